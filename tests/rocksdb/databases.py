"""Databases that RocksDB itself makes, and what it reads from them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rocksdict import AccessType, BlockBasedOptions, ChecksumType, Options, Rdict

from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb.manifest import ColumnFamily, read_database
from state_pipelines.rocksdb.scans import SortedEntries, scan
from tests.rocksdb.checksums import masked_crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Pairs = list[tuple[bytes, bytes]]

TEMPLATE = """[Version]
  rocksdb_version=6.20.3
  options_file_version=1.1
[DBOptions]
[CFOptions "default"]
  merge_operator=stringappendtest
[TableOptions/BlockBasedTable "default"]
"""
PUT, MERGE = 1, 2


def make_options(
    *, version: int = 5, checksum: ChecksumType | None = None, blocks: BlockBasedOptions | None = None
) -> Options:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "OPTIONS-000001").write_text(TEMPLATE)
        _, column_families = Options.load_latest(directory)
    options = column_families["default"]
    table = blocks or BlockBasedOptions()
    table.set_format_version(version)
    table.set_checksum_type(checksum or ChecksumType.crc32c())
    options.set_block_based_table_factory(table)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    return options


def list_streams(directory: Path) -> dict[str, StateStream]:
    """The files of a closed database but its log, inlined."""
    return {
        path.name: StateStream(path.name, path.stat().st_size, data=path.read_bytes())
        for path in directory.iterdir()
        if path.suffix == ".sst" or path.name.startswith(("CURRENT", "MANIFEST"))
    }


def read_family(directory: Path, name: str = "default") -> ColumnFamily:
    (column_family,) = (each for each in read_database(list_streams(directory)).column_families if each.name == name)
    return column_family


def read_with_rocksdb(files: Mapping[str, bytes], names: Sequence[str]) -> dict[str, Pairs]:
    """The entries of every column family, as RocksDB reads them from copies of the files."""
    directory = Path(tempfile.mkdtemp())
    try:
        for name, data in files.items():
            (directory / name).write_bytes(data)
        options = make_options()
        column_families = dict.fromkeys(names, options)
        database = Rdict(
            str(directory), options, column_families=column_families, access_type=AccessType.read_only(False)
        )
        found = {name: _read_all(database.get_column_family(name)) for name in names}
        database.close()
    finally:
        shutil.rmtree(directory)
    return found


def _read_all(column_family: Rdict) -> Pairs:
    iterator = column_family.iter()
    iterator.seek_to_first()
    pairs = []
    while iterator.valid():
        pairs.append((iterator.key(), iterator.value()))
        iterator.next()
    iterator.status()
    return pairs


def read_directory(directory: Path, name: str = "default") -> Pairs:
    names = [column_family.name for column_family in read_database(list_streams(directory)).column_families]
    return read_with_rocksdb({key: stream.data for key, stream in list_streams(directory).items()}, names)[name]


def to_pairs(entries: SortedEntries) -> Pairs:
    data = entries.data.tobytes()
    spans = (entries.key_starts, entries.key_ends, entries.value_starts, entries.value_ends)
    columns = zip(*(span.tolist() for span in spans), strict=True)
    return [(data[key:key_end], data[value:value_end]) for key, key_end, value, value_end in columns]


def scan_pairs(
    column_family: ColumnFamily, start: bytes = b"", end: bytes | None = None, window: int = 8 << 20
) -> Pairs:
    return [pair for entries in scan(column_family, start, end, window=window) for pair in to_pairs(entries)]


def to_entries(pairs: Pairs) -> SortedEntries:
    sizes = [len(part) for pair in pairs for part in pair]
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - np.array(sizes, np.int64)
    data = np.frombuffer(b"".join(part for pair in pairs for part in pair), np.uint8)
    return SortedEntries(data, starts[::2], ends[::2], starts[1::2], ends[1::2])


def append_with_rocksdb(directory: Path, options: Options, records: Sequence[tuple[int, bytes, bytes]]) -> None:
    """Let RocksDB write a table of puts and merge operands: rocksdict cannot merge, but RocksDB replays its log."""
    database = Rdict(str(directory), options)
    sequence = database.latest_sequence_number()
    database.close()
    for path in directory.glob("*.log"):
        path.unlink()
    body = b"".join(bytes((kind,)) + _prefixed(key) + _prefixed(value) for kind, key, value in records)
    batch = (sequence + 1).to_bytes(8, "little") + len(records).to_bytes(4, "little") + body
    # Logs older than what the MANIFEST knows are not replayed.
    number = max((int(path.stem) for path in directory.glob("*.sst")), default=0) + 1000
    (directory / f"{number:06d}.log").write_bytes(frame_log(batch))
    Rdict(str(directory), options).close()


def frame_log(payload: bytes) -> bytes:
    """A log with one record, in fragments where it does not fit in a block of 32 KiB."""
    out = bytearray()
    start = 0
    while start < len(payload) or not out:
        size = min(len(payload) - start, (1 << 15) - 7)
        first, last = start == 0, start + size == len(payload)
        kind = 1 if first and last else 2 if first else 4 if last else 3
        part = np.frombuffer(bytes((kind,)) + payload[start : start + size], np.uint8)
        out += masked_crc32c(part.tobytes()).to_bytes(4, "little")
        out += size.to_bytes(2, "little") + part.tobytes()
        start += size
    return bytes(out)


def _prefixed(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*out, size)) + data
