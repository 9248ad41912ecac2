"""Records how Flink describes states in its logs of changes: `python -m tests.flink.make_descriptions`."""

from __future__ import annotations

from tests.backends.golden_descriptions import write_golden
from tests.flink import harness


def main() -> None:
    """Writes the descriptions of 2.2.1; those of the other releases are the same."""
    write_golden(harness.describe_states("2.2.1"))


if __name__ == "__main__":
    main()
