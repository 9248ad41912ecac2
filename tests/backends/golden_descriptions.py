"""How real Flink describes states in its logs of changes, as recorded in `tests/data/changes`."""

from __future__ import annotations

import gzip
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "data" / "changes" / "descriptions.txt.gz"


def read_golden() -> dict[str, bytes]:
    """The description of each case of `harness.RecordDescriptions`."""
    lines = gzip.decompress(_FILE.read_bytes()).decode().splitlines()
    return {name: bytes.fromhex(text) for name, text in map(str.split, lines)}


def write_golden(text: str) -> None:
    """Mirror of `read_golden`; equal texts give equal bytes."""
    _FILE.parent.mkdir(exist_ok=True)
    _FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
