"""How real Flink hands out operator state at another parallelism, as recorded in `tests/data/redistribution`."""

from __future__ import annotations

import gzip
from pathlib import Path

LINES = ("1.20", "2.2")
SEED = 20
CASES = 500

_FOLDER = Path(__file__).resolve().parents[2] / "data" / "redistribution"


def golden_file(line: str) -> Path:
    """The file of a release line."""
    return _FOLDER / f"flink-{line}.json.gz"


def read_golden(line: str) -> list[str]:
    """A line of JSON per case, as `harness.RecordRedistribution` writes them."""
    return gzip.decompress(golden_file(line).read_bytes()).decode().splitlines()


def write_golden(line: str, text: str) -> None:
    """Mirror of `read_golden`; equal texts give equal bytes."""
    golden_file(line).parent.mkdir(exist_ok=True)
    golden_file(line).write_bytes(gzip.compress(text.encode(), mtime=0))
