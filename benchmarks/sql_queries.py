"""A SQL query with one more aggregate: `sql migrate` against the same steps in a migration file, and `sql check`.

    python -m benchmarks.sql_queries --keys 5000000 --rounds 3

Both commands run from the prompt, in turns, with the proof. CPU is user plus system seconds of the command with all its
children: the JVM and the workers of Spark.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.processes import watch
from state_pipelines.spark import NewOperator, NewState, bootstrap, create_session

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = Path(__file__).parent.parent / "examples/totals"
OPERATOR = "3_group-aggregate"
BY_HAND = """
revision: counted
operator: 3_group-aggregate
state: accState
upgrade:
  - columns:
      sum_amount: f0
      sum_shipping: f1
      count: {type: BIGINT, expression: "0"}
downgrade: {impossible: the old query is the way back}
"""


def make_snapshot(keys: int, target: Path) -> None:
    """Write the state of `examples/totals/totals.sql` after rows of many customers."""
    spark = create_session("benchmark")
    rows = spark.range(keys).selectExpr(
        "named_struct('row_kind', '+I', 'f0', id) AS state_key",
        "named_struct('row_kind', '+I', 'f0', id * 7, 'f1', id % 100) AS value",
    )
    state = NewState("accState", rows, type="RowData(BIGINT, BIGINT)")
    operator = NewOperator(OPERATOR, [state], key="RowData(BIGINT)", parallelism=2, max_parallelism=128)
    bootstrap(str(target), [operator], prove=False)
    spark.stop()


def run(name: str, arguments: Sequence[str], found: dict[str, list[float]]) -> None:
    """Run a command, and add its CPU seconds to those of its name."""
    usage = watch([sys.executable, "-c", "from state_pipelines.cli import main; main()", *arguments])
    if usage.code:
        raise RuntimeError(f"{name} ends with {usage.code}")
    seconds = usage.cpu.user + usage.cpu.system
    found.setdefault(name, []).append(seconds)
    sys.stdout.write(f"{name}: {seconds:.1f} s CPU, {usage.wall:.1f} s\n")
    sys.stdout.flush()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    plans = [str(EXAMPLE / f"{name}.json") for name in ("totals", "counted")]
    scripts = [str(EXAMPLE / f"{name}.sql") for name in ("totals", "counted")]
    with TemporaryDirectory(dir=options.scratch) as directory:
        snapshot, target, file = (Path(directory, name) for name in ("snapshot", "result", "by-hand.yaml"))
        make_snapshot(options.keys, snapshot)
        file.write_text(BY_HAND)
        commands = {
            "sql migrate": ["sql", "migrate", *plans, str(snapshot), "--out", str(target)],
            "by hand": ["migrate", str(snapshot), "--migration", str(file), "--uid", OPERATOR, "--out", str(target)],
            "sql check, plans": ["sql", "check", *plans, str(snapshot)],
            "sql check, scripts": ["sql", "check", *scripts, str(snapshot)],
        }
        for _ in range(options.rounds):
            for name, arguments in commands.items():
                run(name, arguments, found)
                shutil.rmtree(target, ignore_errors=True)
    for name, seconds in found.items():
        sys.stdout.write(f"{name}: {statistics.median(seconds):.1f} s CPU ({min(seconds):.1f} to {max(seconds):.1f})\n")


if __name__ == "__main__":
    main()
