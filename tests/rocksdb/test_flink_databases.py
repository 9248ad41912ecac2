from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import read_metadata
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.metadata.streams import open_stream, read_whole_stream
from state_pipelines.rocksdb import read_database
from state_pipelines.storage import PathMapping, resolve_snapshot
from tests.rocksdb.databases import read_with_rocksdb, scan_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.metadata.streams import StateStream

SNAPSHOTS = [
    "flink/snapshots/stateful-udf-migration-itcase-flink1.17-rocksdb-savepoint-native",
    "flink/snapshots/stateful-udf-migration-itcase-flink1.20-rocksdb-checkpoint",
    "made/1.20.5/main-rocksdb-native",
    "made/1.20.5/main-rocksdb-checkpoint",
    "made/2.2.1/main-rocksdb-native",
    "made/2.2.1/files-rocksdb-checkpoint",
    "made/2.2.1/filemerging-rocksdb-checkpoint",
    "made/2.2.1/sql-rocksdb-native",
]


def iter_databases(directory: Path) -> Iterator[dict[str, StateStream]]:
    # The newest checkpoint of the directory.
    path = max(directory.rglob("_metadata"))
    home = resolve_snapshot(str(path.parent)).directory
    for operator in read_metadata(path.read_bytes()).operator_states:
        for subtask in operator.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, IncrementalRemoteKeyedStateHandle):
                files = (*handle.shared_state, *handle.private_state)
                job = re.search(r"file:/flink-data/\S*?/[0-9a-f]{32}(?=/)", str(files))
                mapping = PathMapping(((job[0], str(path.parents[1])),) if job else ())
                yield {file.local_path: open_stream(file.handle, home, mapping) for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_reads_what_rocksdb_reads(fixtures: Path, snapshot: str) -> None:
    total = 0
    for files in iter_databases(fixtures / snapshot):
        column_families = read_database(files).column_families
        found = {column_family.name: scan_pairs(column_family) for column_family in column_families}
        copies = {name: read_whole_stream(stream) for name, stream in files.items()}
        assert found == read_with_rocksdb(copies, list(found))
        total += sum(map(len, found.values()))
    assert total
