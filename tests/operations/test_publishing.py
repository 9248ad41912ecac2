from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import CheckpointProperties, stream_handles, write_metadata
from state_pipelines.metadata.handles import ByteStreamStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.properties import SavepointType
from state_pipelines.operations.dump import dump
from state_pipelines.operations.publishing import make_file_name, plan_copies
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import SnapshotWriter, read_range, resolve
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, TYPES, Savepoint, orders, types

if TYPE_CHECKING:
    from pathlib import Path


def copy(savepoint: Savepoint, target: Path) -> int:
    """Publish the savepoint as it is at another place; how many files were copied."""
    snapshot = savepoint.open()
    with SnapshotWriter(resolve(str(target))) as writer:
        metadata, copies = plan_copies(snapshot, snapshot.metadata, writer.target)
        for each in copies:
            each.run()
        writer.publish(write_metadata(metadata))
    return len(copies)


@pytest.mark.parametrize("savepoint", ALL_TYPES + ALL_ORDERS, ids=str)
def test_a_copy_holds_every_entry_and_can_be_moved(savepoint: Savepoint, tmp_path: Path) -> None:
    copy(savepoint, tmp_path / "copy")
    moved = (tmp_path / "copy").rename(tmp_path / "moved")
    difference = diff_entries(dump(savepoint.open()), dump(open_snapshot(str(moved), uids=savepoint.uids)))
    assert not difference, str(difference)


@pytest.mark.parametrize(
    ("variant", "compressed"),
    [("changelog-heap-files", False), ("changelog-rocksdb-files", True), ("changelog-heap-materialized", True)],
)
def test_a_copy_of_logged_changes_holds_every_entry_and_can_be_moved(
    variant: str, compressed: bool, tmp_path: Path
) -> None:
    folder = TYPES / "flink-2.2" / variant
    case = json.loads((folder / "case.json").read_text())
    mapping = [f"file:{case['written']}={folder}"]
    snapshot = open_snapshot(str(folder / case["snapshot"]), path_mapping=mapping, uids=case["uids"])
    with SnapshotWriter(resolve(str(tmp_path / "copy"))) as writer:
        metadata, copies = plan_copies(snapshot, snapshot.metadata, writer.target)
        flags = set()
        for each in copies:
            each.run()
            if each.source.holds_changes:
                flags.add(read_range(each.target, 0, 1) == b"\1")
        writer.publish(write_metadata(metadata))
    moved = open_snapshot(str((tmp_path / "copy").rename(tmp_path / "moved")), uids=case["uids"])
    difference = diff_entries(dump(snapshot), dump(moved))
    assert flags == {compressed}
    assert not difference, str(difference)


def test_every_file_is_copied_once_under_a_new_name(tmp_path: Path) -> None:
    savepoint = orders()
    count = copy(savepoint, tmp_path / "copy")
    old = {each.name for each in savepoint.path.iterdir()} - {"_metadata"}
    new = {each.name for each in (tmp_path / "copy").iterdir()} - {"_metadata"}
    assert (len(old), len(new)) == (count, count)
    assert not old & new


def test_every_handle_is_relative_or_inlined(tmp_path: Path) -> None:
    copy(orders(), tmp_path / "copy")
    handles = [each.handle for each in stream_handles(open_snapshot(str(tmp_path / "copy")).metadata)]
    assert {type(handle) for handle in handles} <= {RelativeFileStateHandle, ByteStreamStateHandle}


def test_state_inside_the_metadata_stays_there(tmp_path: Path) -> None:
    assert copy(types("2.2", "heap-snappy"), tmp_path / "copy") == 0
    assert [each.name for each in (tmp_path / "copy").iterdir()] == ["_metadata"]


def test_the_copy_is_a_canonical_savepoint(tmp_path: Path) -> None:
    copy(orders(), tmp_path / "copy")
    properties = open_snapshot(str(tmp_path / "copy")).metadata.properties
    assert isinstance(properties, CheckpointProperties)
    assert isinstance(properties.checkpoint_type, SavepointType)


def test_names_of_files_do_not_repeat() -> None:
    assert len({make_file_name() for _ in range(100)}) == 100
