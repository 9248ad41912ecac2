"""Records how Flink hands out operator state at another parallelism: `python -m tests.flink.make_redistribution`."""

from __future__ import annotations

from tests.flink import harness
from tests.operations.rescaling.golden_redistribution import CASES, SEED, write_golden


def main() -> None:
    """Writes one file per release line."""
    for version in ("1.20.5", "2.2.1"):
        write_golden(version.rpartition(".")[0], harness.redistribute(version, seed=SEED, cases=CASES))


if __name__ == "__main__":
    main()
