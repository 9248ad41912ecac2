"""Reading a RocksDB database: our own reader against iteration by rocksdict, in one process.

    python -m benchmarks.rocksdb_scan [--rows 1000000] [--out .cache/rocksdb-scan]

Rows have keys of 16 bytes and values of 84 bytes, of which half repeat. CPU seconds; the best of several runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rocksdict import AccessType, BlockBasedOptions, ChecksumType, DBCompressionType, Options, Rdict, WriteBatch

from benchmarks.processes import Clock
from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import read_database, scan
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("snappy", "none", "lz4", "zstd")
BATCH = 10_000


def make_database(directory: Path, kind: str, rows: int) -> None:
    """Write and compact a database; nothing when it is there already."""
    if directory.exists():
        return
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(getattr(DBCompressionType, kind)())
    blocks = BlockBasedOptions()
    blocks.set_format_version(5)
    blocks.set_checksum_type(ChecksumType.crc32c())
    options.set_block_based_table_factory(blocks)
    directory.parent.mkdir(parents=True, exist_ok=True)
    database = Rdict(str(directory), options)
    random = np.random.default_rng(1)
    for start in range(0, rows, BATCH):
        batch = WriteBatch(raw_mode=True)
        for row in range(start, min(start + BATCH, rows)):
            batch.put(row.to_bytes(16, "big"), random.bytes(42) * 2)
        database.write(batch)
    database.flush()
    database.compact_range(None, None)
    database.close()


def count_ours(directory: Path) -> int:
    """Rows by our reader, keys and values in arrays."""
    streams = {
        path.name: StateStream(path.name, path.stat().st_size, location=resolve(str(path)))
        for path in directory.iterdir()
        if path.suffix == ".sst" or path.name.startswith(("CURRENT", "MANIFEST"))
    }
    (family,) = read_database(streams).column_families
    return sum(map(len, scan(family)))


def count_theirs(directory: Path) -> int:
    """Rows by rocksdict, one Python object per key and value."""
    database = Rdict(str(directory), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return sum(1 for _ in database.items())
    finally:
        database.close()


def measure(work: Callable[[Path], int], directory: Path, rows: int, times: int) -> float:
    """The least CPU seconds of some runs."""
    found = []
    for _ in range(times):
        clock = Clock()
        with clock.measure(work.__name__):
            count = work(directory)
        if count != rows:
            raise SystemExit(f"{work.__name__} lost rows")
        found.append(clock.seconds[work.__name__][0].total)
    return min(found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(".cache/rocksdb-scan"))
    arguments = parser.parse_args()
    for kind in KINDS:
        directory = arguments.out / f"{kind}-{arguments.rows}"
        make_database(directory, kind, arguments.rows)
        ours = measure(count_ours, directory, arguments.rows, 7)
        theirs = measure(count_theirs, directory, arguments.rows, 3)
        sys.stdout.write(f"{kind:8} ours {ours:.3f} CPU s, rocksdict {theirs:.3f} CPU s, {theirs / ours:.1f} x\n")


if __name__ == "__main__":
    main()
