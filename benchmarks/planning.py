"""What planning a migration takes: chains of revisions over the few keys of the orders example.

    python -m benchmarks.planning
    python -m benchmarks.planning --revisions 1,5,15 --repeat 2

Each revision changes two states: it adds, casts and renames a field of a POJO, and rewrites the text in a list; all can
be undone. CPU is user plus system seconds of the process with all its children, the JVM and the workers of Spark. The
first run of a session is cold: Java compiles in it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import Clock
from state_pipelines import open_snapshot
from state_pipelines.operations.migration import Direction, Migration, parse_migration
from state_pipelines.spark import create_session, migrate

ORDERS = Path(__file__).parents[1] / "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


def make_revision(number: int) -> Migration:
    """A revision of two states, with its way back."""
    new, name = f"x{number}", f"y{number}"
    kinds = ("Double", "Long") if number % 2 == 0 else ("Long", "Double")
    there, back = ("amount + 1", "CAST(amount - 1 AS BIGINT)")
    if number % 2:
        there, back = ("CAST(amount - 1 AS BIGINT)", "CAST(amount + 1 AS DOUBLE)")
    order = {
        "operator": "orders",
        "state": "order",
        "upgrade": [
            {"add": {"field": new, "type": "Long", "expression": f"amount + {number}"}},
            {"cast": {"field": "amount", "to": kinds[0], "expression": there}},
            {"rename": {new: name}},
        ],
        "downgrade": [
            {"rename": {name: new}},
            {"cast": {"field": "amount", "to": kinds[1], "expression": back}},
            {"drop": {"field": new}},
        ],
    }
    cut = f"substring(value, 1, length(value) - {len(str(number))})"
    history = {
        "operator": "orders",
        "state": "history",
        "upgrade": [{"convert": {"to": "String", "expression": f"concat(value, '{number}')"}}],
        "downgrade": [{"convert": {"to": "String", "expression": cut}}],
    }
    return parse_migration({"revision": f"{number:04}", "changes": [order, history]})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--revisions", default="1,5,15", help="lengths of the chains, with commas")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each chain in one session")
    arguments = parser.parse_args()
    session = create_session("benchmark")
    session.range(1).count()
    for length in map(int, arguments.revisions.split(",")):
        chain = [(make_revision(number), Direction.UPGRADE) for number in range(length)]
        for turn in range(arguments.repeat):
            clock = Clock()
            with TemporaryDirectory() as name, clock.measure("migrate"):
                migrate(open_snapshot(str(ORDERS)), chain, str(Path(name) / "new"), spark=session)
            cpu, wall = clock.seconds["migrate"]
            figures = f"{wall:6.1f} s, {cpu.total:6.1f} CPU s, {cpu.total / length:5.2f} per revision"
            sys.stdout.write(f"{length:3} revisions, run {turn + 1}: {figures}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
