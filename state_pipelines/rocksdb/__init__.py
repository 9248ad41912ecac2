"""The files of a RocksDB database, read without RocksDB and written through rocksdict; nothing of Flink's state in it.

The modules: `manifest` (the column families and their tables), `table` (one SST file, its blocks and their checksums),
`scans` (entries of a column family, size estimates, splits, tables opened once for several scans), `kernels` (blocks
decompressed and decoded, versions of a key resolved), `writer` (a new database).
"""

from __future__ import annotations

from state_pipelines.rocksdb.manifest import ColumnFamily, Database, TableFile, read_database
from state_pipelines.rocksdb.scans import SortedEntries, TableCache, estimate, scan, split_keys
from state_pipelines.rocksdb.writer import DatabaseWriter

__all__ = [
    "ColumnFamily",
    "Database",
    "DatabaseWriter",
    "SortedEntries",
    "TableCache",
    "TableFile",
    "estimate",
    "read_database",
    "scan",
    "split_keys",
]
