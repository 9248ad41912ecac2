"""Flink's own RocksDB opens the files of its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.metadata.streams import read_whole_stream
from tests.flink import harness
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot
    from tests.snapshots import Case

pytestmark = pytest.mark.flink

OPERATOR = "state-kinds"


def copy_directories(snapshot: Snapshot, target: Path) -> list[Path]:
    """The RocksDB directory of each subtask of the operator, put together from its state handles."""
    directories = []
    for number, subtask in enumerate(snapshot.operator(OPERATOR).metadata.subtasks):
        handle = subtask.managed_keyed_state
        assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
        directory = target / str(number)
        directory.mkdir()
        for file in (*handle.shared_state, *handle.private_state):
            stream = snapshot.handles.open_stream(file.handle)
            (directory / file.local_path).write_bytes(read_whole_stream(stream))
        directories.append(directory)
    return directories


@pytest.mark.parametrize("case", [*select("1.20", "rocksdb-incremental"), *select("2.2", "rocksdb-native")], ids=str)
def test_column_families_hold_the_entries_of_the_states(case: Case, tmp_path: Path) -> None:
    families: dict[str, int] = {}
    for directory in copy_directories(case.open(), tmp_path):
        for name, entries in harness.dump_rocksdb(case.version, directory).items():
            families[name] = families.get(name, 0) + len(entries)

    expected = [each.get("state", each.get("domain")) for each in case.entries() if each["op"] == OPERATOR]
    wanted = {name: expected.count(name) for name in set(expected) - {"event", "processing"}}
    assert families == wanted | {
        "default": 0,
        "_timer_state/event_user-timers": expected.count("event"),
        "_timer_state/processing_user-timers": expected.count("processing"),
    }
