"""Requests and bytes for one key, and requests in flight for all of them, of snapshots with many keys."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from state_pipelines.keyed import canonical, heap, rocksdb
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    DataChange,
    MetadataChange,
    StateChangeOperation,
    write_metadata_change,
)
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    InMemoryChangelogStateHandle,
    LoggedChange,
)
from state_pipelines.operations.convert import convert
from state_pipelines.rocksdb import scans
from state_pipelines.rocksdb.scans import ColumnFamilyScans
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import METADATA_FILE
from tests.keyed.changelogs import write_data_change
from tests.storages import CountedFileSystem, store_folder

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot


KEYS = 30_000
MOST_REQUESTS = {"canonical": 4, "heap": 5, "rocksdb": 12}
"""By format, the most requests for a key of a snapshot of two subtasks that is not open yet.

Of the heap backend the file that begins with key group 0 takes one more: its format does not show at once.
"""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same two states in two subtasks, by format; `changelog-…` has a change of each state on top."""
    root = tmp_path_factory.mktemp("generated")
    generate(str(root / "canonical"), KEYS)
    for format in ("heap", "rocksdb"):
        convert(open_snapshot(str(root / "canonical")), str(root / format), format, verify=False)
    for format in MOST_REQUESTS:
        log_changes(root / format, root / f"changelog-{format}")
    return {path.name: path for path in root.iterdir()}


def log_changes(base: Path, target: Path) -> None:
    """Make a snapshot the materialized base of a changelog checkpoint, which sets the first value of each state."""
    (operator,) = open_snapshot(str(base)).operators
    changes: dict[int, list[LoggedChange]] = {}
    for state_id, state in enumerate(operator.keyed_states):
        subtask_state = state.subtask_states[0]
        records = next(subtask_state.records()).cut(0, 2)
        data = records.data.tobytes()
        key, value = (
            data[records.key_starts[0] : records.key_ends[0]],
            data[records.value_starts[1] : records.value_ends[1]],
        )
        logged = changes.setdefault(subtask_state.subtask, [])
        description = write_metadata_change(MetadataChange(info=state.stored_info, state_id=state_id))
        logged.append(LoggedChange(METADATA_KEY_GROUP, description))
        change = write_data_change(DataChange(StateChangeOperation.SET, state_id, key + value))
        logged.append(LoggedChange(int(records.key_groups[0]), change))
    metadata = read_metadata((base / METADATA_FILE).read_bytes(), "")
    (stored,) = metadata.operator_states
    subtasks = []
    for subtask in stored.subtasks:
        handle = subtask.managed_keyed_state
        assert handle is not None
        logged = changes.get(subtask.index, [])
        log = InMemoryChangelogStateHandle(handle.key_groups, 0, len(logged), tuple(logged), f"log {subtask.index}")
        logs = (log,) if logged else ()
        whole = ChangelogStateBackendHandle(handle.key_groups, 0, (handle,), logs, 1, f"{subtask.index}", 1)
        subtasks.append(replace(subtask, managed_keyed_state=whole))
    target.mkdir()
    for path in base.iterdir():
        if path.name != METADATA_FILE:
            (target / path.name).hardlink_to(path)
    metadata = replace(metadata, operator_states=(replace(stored, subtasks=tuple(subtasks)),))
    (target / METADATA_FILE).write_bytes(write_metadata(metadata))


def put(directory: Path) -> tuple[Snapshot, int]:
    """The snapshot on the counted storage, opened, and the bytes of its files; the request for `_metadata` counts."""
    snapshot = open_snapshot(store_folder(directory).url, uids=[OPERATOR])
    return snapshot, sum(path.stat().st_size for path in directory.iterdir())


def count_read() -> int:
    return sum(end - start for _, start, end in CountedFileSystem.reads)


@pytest.mark.slow
@pytest.mark.parametrize("format", [*MOST_REQUESTS, *(f"changelog-{each}" for each in MOST_REQUESTS)])
def test_one_key_takes_few_requests_and_bytes(directories: dict[str, Path], format: str) -> None:
    most = MOST_REQUESTS[format.removeprefix("changelog-")]
    for state in open_snapshot(str(directories[format]), uids=[OPERATOR]).operator(OPERATOR).keyed_states:
        rows = state.to_arrow().to_pylist()
        # The first one is changed where changes are logged.
        for row in rows[:: len(rows) // 2]:
            snapshot, size = put(directories[format])
            found = snapshot.operator(OPERATOR).state(state.name)
            assert found.make_schema()
            headers = count_read()
            assert found.to_arrow(TableOptions(key=row["state_key"])).to_pylist() == [row]
            assert {operation for operation, _ in CountedFileSystem.requests} == {"read"}
            assert len(CountedFileSystem.requests) <= most
            # Canonical and heap: one of 128 key groups. RocksDB: the end of a table with its index, and a block.
            assert count_read() - headers <= 0.06 * size


@pytest.mark.slow
@pytest.mark.parametrize("format", MOST_REQUESTS)
def test_many_requests_are_in_flight_where_all_is_read(
    directories: dict[str, Path], format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical, "WINDOW", 1 << 14)
    monkeypatch.setattr(heap, "WINDOW", 1 << 14)
    monkeypatch.setattr(rocksdb, "ColumnFamilyScans", partial(ColumnFamilyScans, window=1 << 14))
    monkeypatch.setattr(scans, "READ_SIZE", 1 << 14)
    monkeypatch.setattr(scans, "_LEAST_READ", 1 << 14)
    snapshot, _ = put(directories[format])
    batches = snapshot.operator(OPERATOR).batches_by_state()
    # Readers begin with few requests, so that those who stop early have not read much.
    rows = sum(len(batch) for _, batch in islice(batches, 8))
    CountedFileSystem.gather = {"read": 8}
    rows += sum(len(batch) for _, batch in batches)
    assert rows == 2 * KEYS
    assert CountedFileSystem.most >= 8
