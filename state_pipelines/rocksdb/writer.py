"""Writer of the files of a RocksDB database, through rocksdict.

Tables are written one by one and ingested into an empty database, so that nothing is sorted or compacted. They have the
format that the RocksDB of Flink 1.20 (6.20.3) and of Flink 2.2 (8.10.0) both read.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from rocksdict import (
    BlockBasedOptions,
    ChecksumType,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.rocksdb.kernels import find_disorder
from state_pipelines.rocksdb.manifest import CURRENT
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from state_pipelines.rocksdb.scans import SortedEntries

TABLE_SIZE = 64 << 20
"""Bytes after which a new table is begun, the `target_file_size_base` of RocksDB and Flink."""
DEFAULT_COLUMN_FAMILY = "default"
COMPRESSIONS = ("snappy", "lz4", "zstd", "none")

_STAGING = "ingest"
_FORMAT_VERSION = 5
# The merge operator can only be named in an OPTIONS file; rocksdict has no method for it.
_TEMPLATE = """[Version]
  rocksdb_version=6.20.3
  options_file_version=1.1
[DBOptions]
[CFOptions "default"]
  merge_operator=stringappendtest
[TableOptions/BlockBasedTable "default"]
"""


class DatabaseWriter:
    """Writer of a new database, which is complete after `finish`.

    Args:
        directory: local directory for the database; empty, or not there yet.
        column_families: names of the column families besides `default`.
        compression: compression of the blocks, one of `COMPRESSIONS`.
        table_size: bytes after which a new table is begun.

    Raises:
        TargetExistsError: the directory holds something.
        UsageError: a name is given twice or is `default`, or the compression is unknown.
    """

    def __init__(
        self,
        directory: Path,
        column_families: Iterable[str],
        *,
        compression: str = "snappy",
        table_size: int = TABLE_SIZE,
    ) -> None:
        self._directory = directory
        self._column_families = tuple(column_families)
        self._table_size = table_size
        self._staged: dict[str, list[str]] = {name: [] for name in self._column_families}
        if DEFAULT_COLUMN_FAMILY in self._staged or len(self._staged) != len(self._column_families):
            what = "the names of the column families are not distinct, or one is 'default'"
            raise UsageError(what, hint=f"The names: {', '.join(self._column_families)}")
        if compression not in COMPRESSIONS:
            raise UsageError(f"no compression {compression!r}", hint=f"Choose from {', '.join(COMPRESSIONS)}")
        if directory.exists() and any(directory.iterdir()):
            raise TargetExistsError("the directory is not empty", where=Where(file=str(directory)))
        self._options = _make_options(compression)
        self._staging = directory / _STAGING
        self._staging.mkdir(parents=True)
        self._tables: dict[str, SstFileWriter] = {}
        self._last_keys: dict[str, bytes] = {}

    def write(self, column_family: str, entries: SortedEntries) -> None:
        """Append entries to a column family; calls for different column families may alternate.

        Raises:
            UsageError: no such column family, or a key is not above the one before it.
        """
        if column_family not in self._staged:
            raise UsageError(f"column family {column_family!r} is not among those to be written")
        if not len(entries):
            return
        data = entries.data.tobytes()
        first = data[int(entries.key_starts[0]) : int(entries.key_ends[0])]
        wrong = find_disorder(entries.data.ctypes.data, entries.key_starts, entries.key_ends)
        if wrong >= 0 or (column_family in self._last_keys and first <= self._last_keys[column_family]):
            position = max(int(wrong), 0)
            what = f"key {position} of a batch for column family {column_family!r} is not above the key before it"
            raise UsageError(what)
        self._last_keys[column_family] = data[int(entries.key_starts[-1]) : int(entries.key_ends[-1])]
        step = max(1, self._table_size * len(entries) // max(1, len(data)))
        spans = (entries.key_starts, entries.key_ends, entries.value_starts, entries.value_ends)
        for start in range(0, len(entries), step):
            records = zip(*(span[start : start + step].tolist() for span in spans), strict=True)
            table = self._open_table(column_family)
            for key, key_end, value, value_end in records:
                table[data[key:key_end]] = data[value:value_end]
            if table.file_size() >= self._table_size:
                self._finish_table(column_family)

    def finish(self) -> list[Path]:
        """Complete the database.

        Returns:
            The files that a snapshot of the database consists of: CURRENT, MANIFEST, OPTIONS and the tables.
        """
        for name in self._column_families:
            self._finish_table(name)
        # The column families are created at once, because RocksDB rewrites the options of all whenever it creates one.
        database = Rdict(str(self._directory), self._options, dict.fromkeys(self._column_families, self._options))
        ingesting = IngestExternalFileOptions()
        ingesting.set_move_files(True)
        for name in self._column_families:
            if self._staged[name]:
                column_family = database.get_column_family(name)
                column_family.ingest_external_file(self._staged[name], ingesting)
                column_family.close()
        database.close()
        shutil.rmtree(self._staging)
        return list_files(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._tables.clear()
            shutil.rmtree(self._staging, ignore_errors=True)

    def _open_table(self, column_family: str) -> SstFileWriter:
        if column_family not in self._tables:
            number = sum(map(len, self._staged.values()))
            path = str(self._staging / f"{number:06d}.sst")
            table = SstFileWriter(self._options)
            table.open(path)
            self._tables[column_family] = table
            self._staged[column_family].append(path)
        return self._tables[column_family]

    def _finish_table(self, column_family: str) -> None:
        table = self._tables.pop(column_family, None)
        if table is not None:
            table.finish()


def list_files(directory: Path) -> list[Path]:
    """Return the files of a closed database that a handle of Flink's RocksDB backend names, sorted by name."""
    manifest = directory / (directory / CURRENT).read_text().rstrip("\n")
    # `glob` would return no files, instead of an error, for a directory that may not be read.
    files = list(directory.iterdir())
    # RocksDB writes a new OPTIONS file with each change of the column families; the last one is valid.
    options = max(
        (each for each in files if each.name.startswith("OPTIONS-")),
        key=lambda path: int(path.name.partition("-")[2]),
    )
    return sorted([directory / CURRENT, manifest, options, *(each for each in files if each.suffix == ".sst")])


def load_flink_options() -> Options:
    """Load options with the merge operator of Flink's list state, without which its databases cannot be opened."""
    with open_local_scratch() as directory:
        (directory / "OPTIONS-000001").write_text(_TEMPLATE)
        _, column_families = Options.load_latest(str(directory))
    return column_families[DEFAULT_COLUMN_FAMILY]


def make_table_format() -> BlockBasedOptions:
    """Return options for tables that Flink 1.20 can read; rocksdict's defaults are for newer releases of RocksDB."""
    blocks = BlockBasedOptions()
    blocks.set_format_version(_FORMAT_VERSION)
    blocks.set_checksum_type(ChecksumType.crc32c())
    return blocks


def _make_options(compression: str) -> Options:
    options = load_flink_options()
    options.set_block_based_table_factory(make_table_format())
    options.set_compression_type(getattr(DBCompressionType, compression)())
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Compaction is not needed, since tables are ingested in their final positions.
    options.set_disable_auto_compactions(True)
    return options
