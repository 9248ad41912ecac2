"""Reading heap files whose key groups have few entries, in one process.

    python -m benchmarks.sparse_groups [--keys 65536] [--out .cache/sparse-groups]

Three states (value, map, list) in 32,768 key groups, plain and with snappy. CPU seconds to read all columns of a state,
the best of several runs, each with a snapshot that was just opened.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.generate import generate
from benchmarks.processes import Clock
from benchmarks.shapes import Shape
from state_pipelines import open_snapshot

STATES = ("value", "map", "list")
KEY_GROUPS = 32_768
RUNS = 3


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2 * KEY_GROUPS)
    parser.add_argument("--out", type=Path, default=Path(".cache/sparse-groups"))
    arguments = parser.parse_args()
    for compressed in (False, True):
        shape = Shape(states=STATES, format="heap-native", compressed=compressed, max_parallelism=KEY_GROUPS)
        directory = arguments.out / f"{arguments.keys}-{'snappy' if compressed else 'plain'}"
        if not directory.exists():
            generate(str(directory), arguments.keys, shape)
        for number, name in enumerate(STATES):
            spent = []
            for _ in range(RUNS):
                state = open_snapshot(str(directory)).operators[0].states[number]
                clock = Clock()
                with clock.measure(name):
                    rows = sum(batch.num_rows for batch in state.batches())
                spent.append(clock.seconds[name][0].total)
            line = f"{'snappy' if compressed else 'plain':8}{name:8}{rows:10,} rows  {min(spent):.2f} CPU s"
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
