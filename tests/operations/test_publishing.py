from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from state_pipelines.errors import OutOfReachError, ProofError, UsageError
from state_pipelines.metadata import (
    CheckpointProperties,
    KeyGroupRange,
    SubtaskState,
    list_references,
    write_metadata,
)
from state_pipelines.metadata.checkpoint import SavepointType
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupsSavepointStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.dump import dump
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operations.write.publication import FileCopy, FileMode, note_files, plan_copies
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import Location, SnapshotWriter, read_range, resolve
from tests.flink.harness import diff_entries
from tests.snapshot.built import build_snapshot, operator
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, TYPES, Savepoint, orders, types
from tests.snapshots import OWN


def copy(savepoint: Savepoint, target: Path | str, files: FileMode = FileMode.COPY) -> int:
    """Publish the savepoint as it is in another location; how many files were copied."""
    snapshot = savepoint.open()
    with SnapshotWriter(resolve(str(target))) as writer:
        metadata, copies = plan_copies(snapshot, snapshot.metadata, writer.target, files=files, verify=True)
        for each in copies:
            each.run()
        writer.publish(write_metadata(metadata))
    return len(copies)


@pytest.mark.slow
@pytest.mark.parametrize("savepoint", ALL_TYPES + ALL_ORDERS, ids=str)
def test_a_copy_holds_every_entry_and_can_be_moved(savepoint: Savepoint, tmp_path: Path) -> None:
    copy(savepoint, tmp_path / "copy")
    moved = (tmp_path / "copy").rename(tmp_path / "moved")
    difference = diff_entries(dump(savepoint.open()), dump(open_snapshot(str(moved), uids=savepoint.uids)))
    assert not difference, str(difference)


@pytest.mark.slow
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
    handles = [each.handle for each in list_references(open_snapshot(str(tmp_path / "copy")).metadata)]
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


def test_a_linked_file_is_the_old_one_under_another_name(tmp_path: Path) -> None:
    copy(types("2.2", "heap"), tmp_path / "old")
    old = open_snapshot(str(tmp_path / "old"))
    metadata, links = plan_copies(old, old.metadata, resolve(str(tmp_path / "new")), files=FileMode.LINK)
    assert [each.run() for each in links] == [0] * len(links)
    numbers = [sorted(each.stat().st_ino for each in (tmp_path / name).glob("*-*")) for name in ("old", "new")]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == len(links) > 0
    assert {type(each.handle) for each in list_references(metadata)} <= {
        RelativeFileStateHandle,
        ByteStreamStateHandle,
    }


def test_a_link_to_another_storage_is_refused() -> None:
    snapshot = orders().open()
    with pytest.raises(UsageError, match="one volume of the local file system"):
        plan_copies(snapshot, snapshot.metadata, resolve("memory://linked"), files=FileMode.LINK)


@pytest.mark.slow
def test_referenced_files_stay_where_they_are(tmp_path: Path) -> None:
    savepoint = types("2.2", "heap")
    assert copy(savepoint, tmp_path / "new", FileMode.REFERENCE) == 0
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["_metadata"]
    with pytest.raises(OutOfReachError):
        _ = open_snapshot(str(tmp_path / "new")).operators[0].states
    new = open_snapshot(str(tmp_path / "new"), uids=savepoint.uids, allow_roots=[str(savepoint.path)])
    handles = {each.handle for each in list_references(new.metadata)}
    files = [handle for handle in handles if isinstance(handle, FileStateHandle)]
    assert {Path(handle.path.removeprefix("file://")).parent for handle in files} == {savepoint.path}
    assert not diff_entries(dump(savepoint.open()), dump(new))


def test_slices_of_merged_files_are_copied_even_when_others_are_referenced(tmp_path: Path) -> None:
    (case,) = (each for each in OWN if each.case == "rocksdb-file-merging" and each.version.startswith("2.2"))
    snapshot = case.open()
    metadata, copies = plan_copies(snapshot, snapshot.metadata, resolve(str(tmp_path)), files=FileMode.REFERENCE)
    assert copies
    assert not any(isinstance(each.handle, SegmentFileStateHandle) for each in list_references(metadata))


def test_only_other_modes_than_copies_have_a_note() -> None:
    assert note_files(FileMode.COPY) is None
    assert "not self-contained" in str(note_files(FileMode.REFERENCE))
    assert "two names" in str(note_files(FileMode.LINK))


def test_handles_over_parts_of_one_file_share_one_copy(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"0123456789")
    subtasks = tuple(
        SubtaskState(
            index,
            managed_keyed_state=KeyGroupsSavepointStateHandle(
                KeyGroupRange(index, 1), (index,), RelativeFileStateHandle("state", size)
            ),
        )
        for index, size in enumerate((4, 10))
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks))
    metadata, (only,) = plan_copies(snapshot, snapshot.metadata, resolve("memory://parts"))
    assert only.run() == 10
    handles = [each.handle for each in list_references(metadata)]
    assert handles == [RelativeFileStateHandle(only.target.name, size) for size in (4, 10)]


class _Forgetful(MemoryFileSystem):  # type: ignore[misc]
    """Storage that loses the last byte of what is written."""

    protocol = "forgetful"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value[:-1], mode=mode, **options)


def test_a_copy_that_is_not_what_was_read_is_found_and_removed() -> None:
    target = Location(_Forgetful(), "/forgetful/copy")
    piece = FileCopy(StateStream("state", 4, data=b"abcd"), target, verify=True)
    with pytest.raises(ProofError, match="4 bytes with the CRC-32 ed82cd11 were written, but it has 3 with"):
        piece.run()
    assert not target.filesystem.exists(target.path)
