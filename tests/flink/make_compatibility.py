"""Records what Flink says of pairs of serializers: `python -m tests.flink.make_compatibility`."""

from __future__ import annotations

from tests.flink import harness
from tests.serializers.golden_pairs import write_golden


def main() -> None:
    """Writes one file per release line; later ones are asked about the snapshots of the earlier one, too."""
    earlier = ""
    for version in ("1.20.5", "2.2.1"):
        earlier = harness.resolve_pairs(version, earlier)
        write_golden(version.rpartition(".")[0], earlier)


if __name__ == "__main__":
    main()
