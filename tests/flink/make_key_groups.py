"""Records keys of every type and their key groups: `python -m tests.flink.make_key_groups`."""

from __future__ import annotations

from tests.flink import harness
from tests.flink.key_groups import record_keys
from tests.keyed.key_group_lines import write_recorded

SEED = 20
KEYS_OF_A_TYPE = 400


def main() -> None:
    """Writes the file that the fast tests read, with the latest release."""
    write_recorded(record_keys(harness.VERSIONS[-1], SEED, KEYS_OF_A_TYPE))


if __name__ == "__main__":
    main()
