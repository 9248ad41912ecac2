"""Audits that read `_metadata` and list directories."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.metadata.streams import StateCategory, StreamRole, list_references
from state_pipelines.operations.auditing import (
    Finding,
    Listings,
    Property,
    Severity,
    audit_snapshot,
    is_restorable,
)
from state_pipelines.operations.rescale.rescale import rescale
from state_pipelines.snapshot import open_snapshot
from tests.operations.auditing.damage import Copy, copy_case
from tests.snapshots import CASES, RESCALING, SQL, UNKNOWN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.operations.auditing import AuditReport


@pytest.fixture
def savepoint(tmp_path: Path) -> Copy:
    return copy_case("types-2.2-heap", tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Copy:
    """An incremental checkpoint with shared files."""
    return copy_case("types-2.2-rocksdb-incremental", tmp_path)


@pytest.fixture
def merged(tmp_path: Path) -> Copy:
    return copy_case("types-2.2-rocksdb-file-merging", tmp_path)


def errors(report: AuditReport) -> list[Finding]:
    return [each for each in report.findings if each.severity is Severity.ERROR]


def is_shared(reference: StreamReference) -> bool:
    return reference.role is StreamRole.SHARED


@pytest.mark.parametrize("case", CASES + RESCALING + SQL + UNKNOWN, ids=str)
def test_sound_snapshots_have_no_findings(case: Case) -> None:
    report = audit_snapshot(case.open(), "files")
    assert (report.verdict, report.findings) == ("restorable", ())


def test_a_missing_file_is_named(savepoint: Copy) -> None:
    file = savepoint.files()[0]
    file.unlink()
    (error,) = errors(savepoint.audit("files"))
    assert (error.property, error.file, error.operator is not None) == (Property.FILES, str(file), True)


def test_a_missing_shared_file_is_named_with_its_name_in_the_database(checkpoint: Copy) -> None:
    file = checkpoint.files(is_shared)[0]
    file.unlink()
    (error,) = errors(checkpoint.audit("files"))
    assert error.file == str(file)
    assert "shared file 0000" in error.what


@pytest.mark.parametrize(("change", "offset"), [(-7, -7), (9, 0)], ids=["cut off", "grown"])
def test_a_file_of_another_size_is_named(savepoint: Copy, change: int, offset: int) -> None:
    file = savepoint.files(lambda each: change < 0 or each.category is StateCategory.MANAGED_OPERATOR)[0]
    size = file.stat().st_size
    os.truncate(file, size + change)
    (error,) = errors(savepoint.audit("files"))
    assert (error.property, error.file, error.offset) == (Property.SIZES, str(file), size + offset)
    assert f"{size + change:,} bytes, its handle records {size:,}" in error.what


def test_bytes_after_key_groups_do_no_harm(savepoint: Copy) -> None:
    file = savepoint.files(lambda each: each.category is StateCategory.MANAGED_KEYED)[0]
    size = file.stat().st_size
    os.truncate(file, size + 9)
    report = savepoint.audit("whole")
    (warning,) = [each for each in report.findings if each.property is Property.SIZES]
    assert (warning.severity, warning.file, warning.offset) == (Severity.WARNING, str(file), size)
    assert report.restorable


@pytest.mark.slow
@pytest.mark.parametrize("files", ["link", "reference"])
def test_a_rescaling_that_hands_on_parts_of_files_is_restorable(savepoint: Copy, tmp_path: Path, files: str) -> None:
    target = str(tmp_path / "rescaled")
    rescale(savepoint.open(), target, parallelism=7, files=files)
    rescaled = open_snapshot(target, path_mapping=[f"file:{savepoint.folder}={savepoint.folder}"])
    keyed = [each.handle for each in list_references(rescaled.metadata) if each.category is StateCategory.MANAGED_KEYED]
    names = [getattr(each, "path", "") or getattr(each, "relative_path", "") for each in keyed]
    assert len(set(names)) < len(names)
    for depth in ("files", "whole"):
        report = audit_snapshot(rescaled, depth)
        assert report.restorable
        assert not [each for each in report.findings if each.property is Property.SIZES]


def test_an_empty_file_of_changes_is_named(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-heap-files", tmp_path)
    file = copy.files(lambda each: each.role is StreamRole.CHANGES)[0]
    os.truncate(file, 0)
    assert [(each.property, each.file) for each in errors(copy.audit("files"))] == [(Property.SIZES, str(file))]


def test_two_files_that_changed_names_are_both_named(savepoint: Copy) -> None:
    one, *_, other = savepoint.files()
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)
    assert {each.file for each in errors(savepoint.audit("files"))} == {str(one), str(other)}


def test_one_missing_file_does_not_hide_the_others(checkpoint: Copy) -> None:
    gone = checkpoint.files()[:5]
    for file in gone:
        file.unlink()
    assert {each.file for each in errors(checkpoint.audit("files"))} == {str(file) for file in gone}


def test_a_moved_directory_gives_the_option_that_finds_it(checkpoint: Copy) -> None:
    report = audit_snapshot(open_snapshot(str(checkpoint.path)), "files")
    finding = next(each for each in errors(report) if "shared file" in each.what)
    option = finding.hint.rpartition("--map ")[2]
    old, new = option.split("=")
    assert audit_snapshot(open_snapshot(str(checkpoint.path), path_mapping=[f"{old}={new}"]), "files").restorable


def claim_from_native_savepoint(copy: Copy, target: Path) -> list[Path]:
    """Write what Flink wrote before FLINK-39964 was fixed.

    The first incremental checkpoint after a restore in CLAIM mode from a native savepoint names the files of the
    savepoint by their paths relative to it.
    """
    target.mkdir(parents=True)
    moved = [Path(shutil.move(file, target / file.name)) for file in copy.files(is_shared)]

    def forget_directory(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not (is_shared(reference) and isinstance(handle, FileStateHandle)):
            return handle
        return RelativeFileStateHandle(handle.path.rpartition("/")[2], handle.size)

    copy.edit_handles(forget_directory)
    return moved


@pytest.mark.parametrize(
    "savepoint_folder",
    ["savepoint-0f97df-9299503c1252", "../savepoints/savepoint-0f97df-9299503c1252"],
    ids=["beside the checkpoint", "beside the job"],
)
def test_files_of_a_claimed_native_savepoint_are_found(checkpoint: Copy, savepoint_folder: str) -> None:
    directory = checkpoint.path.parent / savepoint_folder
    moved = claim_from_native_savepoint(checkpoint, directory)
    found = errors(checkpoint.audit("files"))
    assert {each.file for each in found} == {str(checkpoint.path / file.name) for file in moved}
    assert all("FLINK-39964" in each.hint for each in found)
    assert all(os.path.normpath(str(directory)) in each.hint for each in found)


def test_the_advice_for_a_claimed_native_savepoint_helps(checkpoint: Copy) -> None:
    for file in claim_from_native_savepoint(checkpoint, checkpoint.path.parent / "savepoint-0f97df-9299503c1252"):
        shutil.copy(file, checkpoint.path)
    assert checkpoint.audit("files").verdict == "restorable"


def test_a_claimed_native_savepoint_that_is_gone_is_suspected(checkpoint: Copy, tmp_path: Path) -> None:
    shutil.rmtree(claim_from_native_savepoint(checkpoint, tmp_path / "gone")[0].parent)
    (finding, *_) = errors(checkpoint.audit("files"))
    assert "FLINK-39964" in finding.hint
    assert "--search" in finding.hint


def test_files_in_the_directory_of_another_checkpoint_are_a_warning(checkpoint: Copy) -> None:
    other = checkpoint.path.with_name("chk-1")
    other.mkdir(exist_ok=True)
    (file,) = checkpoint.files(is_shared)[:1]
    shutil.move(file, other / file.name)

    def point_elsewhere(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, FileStateHandle) and handle.path.endswith(file.name):
            return replace(handle, path=f"{handle.path.rpartition('/shared/')[0]}/chk-1/{file.name}")
        return handle

    checkpoint.edit_handles(point_elsewhere)
    report = checkpoint.audit("files")
    (warning,) = report.findings
    assert (report.verdict, warning.severity, warning.property) == (
        "restorable",
        Severity.WARNING,
        Property.LOCATIONS,
    )
    assert (warning.file, "directory of checkpoint chk-1" in warning.what) == (str(other), True)


def test_files_of_another_job_are_a_warning(checkpoint: Copy) -> None:
    job = "0123456789abcdef0123456789abcdef"
    shared = checkpoint.files(is_shared)[0].parent
    other = checkpoint.folder / job / "shared"
    shutil.copytree(shared, other)

    def point_elsewhere(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, FileStateHandle) and is_shared(reference):
            return replace(handle, path=handle.path.replace(shared.parent.name, job))
        return handle

    checkpoint.edit_handles(point_elsewhere)
    (warning,) = checkpoint.audit("files").findings
    assert (warning.severity, warning.file) == (Severity.WARNING, str(other))
    assert job in warning.what


def test_a_segment_outside_its_file_is_named(merged: Copy) -> None:
    file = merged.files()[0]
    os.truncate(file, 1)
    found = errors(merged.audit("files"))
    assert {(each.property, each.file) for each in found} == {(Property.SEGMENTS, str(file))}


def test_overlapping_segments_are_named(merged: Copy) -> None:
    moved: list[str] = []

    def overlap(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, SegmentFileStateHandle) and handle.start > 0 and not moved:
            moved.append(handle.path)
            return replace(handle, start=handle.start - 1)
        return handle

    merged.edit_handles(overlap)
    found = errors(merged.audit("files"))
    assert {each.property for each in found} == {Property.SEGMENTS}
    assert {Path(str(each.file)).name for each in found} == {moved[0].rpartition("/")[2]}


def test_a_path_that_leaves_the_snapshot_is_named(savepoint: Copy) -> None:
    changed: list[StreamReference] = []

    def leave(reference: StreamReference) -> StreamStateHandle:
        if isinstance(reference.handle, RelativeFileStateHandle) and not changed:
            changed.append(reference)
            return replace(reference.handle, relative_path="../../secret")
        return reference.handle

    savepoint.edit_handles(leave)
    (error,) = errors(savepoint.audit("files"))
    assert "does not stay below" in error.what


def change_keyed(change: Callable[..., object]) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    """Change the keyed state of the first subtask that has some in several sections."""

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        done = False
        operators = []
        for operator in metadata.operator_states:
            subtasks = []
            for subtask in operator.subtasks:
                offsets = getattr(subtask.managed_keyed_state, "offsets", ())
                if not done and len([offset for offset in offsets if offset > 0]) > 1:
                    done = True
                    subtask = replace(subtask, managed_keyed_state=change(subtask.managed_keyed_state))  # type: ignore[arg-type]
                subtasks.append(subtask)
            operators.append(replace(operator, subtasks=tuple(subtasks)))
        assert done
        return replace(metadata, operator_states=tuple(operators))

    return edit


def test_an_offset_outside_its_file_is_named(savepoint: Copy) -> None:
    savepoint.edit(change_keyed(lambda handle: replace(handle, offsets=(*handle.offsets[:-1], 1 << 40))))
    (error,) = errors(savepoint.audit("files"))
    assert (error.property, error.offset) == (Property.OFFSETS, 1 << 40)
    assert Path(str(error.file)).exists()


def test_key_groups_without_a_handle_are_named(savepoint: Copy) -> None:
    savepoint.edit(
        change_keyed(
            lambda handle: replace(
                handle,
                key_groups=replace(handle.key_groups, number=handle.key_groups.number - 3),
                offsets=handle.offsets[:-3],
            )
        )
    )
    (error,) = errors(savepoint.audit("files"))
    assert error.property is Property.KEY_GROUPS
    assert error.operator


def test_a_file_that_several_handles_miss_is_one_finding(merged: Copy) -> None:
    files = merged.files()
    for file in files:
        file.unlink()
    found = errors(merged.audit("files"))
    assert sorted(str(each.file) for each in found) == sorted(map(str, files))
    assert any("handles name it" in each.what for each in found)


def test_a_snapshot_is_restorable_until_a_file_is_missing(savepoint: Copy) -> None:
    before = is_restorable(savepoint.open())
    savepoint.files()[0].unlink()
    assert (before, is_restorable(savepoint.open())) == (True, False)


def test_a_snapshot_with_damaged_metadata_is_not_restorable(savepoint: Copy) -> None:
    os.truncate(savepoint.metadata, 100)
    assert not is_restorable(str(savepoint.path))


def test_a_directory_without_metadata_is_not_restorable(tmp_path: Path) -> None:
    assert not is_restorable(str(tmp_path))


def test_a_directory_is_listed_once_for_many_files(checkpoint: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    from state_pipelines.storage import listing

    listed: list[str] = []
    plain = listing._scan_directory

    def count(path: str) -> dict[str, int] | None:
        listed.append(path)
        return plain(path)

    monkeypatch.setattr(listing, "_scan_directory", count)
    known = Listings()
    for _ in range(2):
        audit_snapshot(checkpoint.open(), "files", listings=known)
    assert sorted(listed) == sorted({str(file.parent) for file in checkpoint.files()})


@pytest.mark.parametrize(
    "fault", [PermissionError(13, "Permission denied"), TimeoutError("no answer")], ids=["denied", "time-out"]
)
def test_what_a_storage_does_not_list_is_not_known_to_be_restorable(
    checkpoint: Copy, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    from state_pipelines.storage import listing

    def refuse(_: str) -> object:
        raise fault

    monkeypatch.setattr(listing, "_scan_directory", refuse)
    report = checkpoint.audit("files")
    assert report.verdict != "restorable"
    assert any(str(fault.args[-1]) in each.what for each in report.findings)
    assert not is_restorable(checkpoint.open())


@pytest.mark.parametrize(
    "name", ["types-2.2-rocksdb-incremental", "types-2.2-changelog-heap-files", "types-2.2-rocksdb-file-merging"]
)
def test_the_hint_about_a_moved_tree_helps(name: str) -> None:
    path = str(next(case for case in CASES if case.name == name).path)
    found = audit_snapshot(open_snapshot(path), "files").findings
    mappings = {each.hint.rpartition("--map ")[2] for each in found if each.severity is Severity.ERROR}
    assert len(mappings) == 1
    assert audit_snapshot(open_snapshot(path, path_mapping=mappings), "files").restorable


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories that are listed, after links are followed."""
    from state_pipelines.storage import listing

    found: list[str] = []
    plain = listing._scan_directory

    def record(path: str) -> dict[str, int] | None:
        found.append(os.path.realpath(path))
        return plain(path)

    monkeypatch.setattr(listing, "_scan_directory", record)
    return found


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory that is not below any of the directories above a snapshot that are searched."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("link", ["beside", "../beside", "NAME/chk-7", "NAME/savepoint-0f97df-9299503c1252"])
def test_missing_files_are_not_looked_for_behind_links(
    checkpoint: Copy, elsewhere: Path, listed: list[str], link: str
) -> None:
    gone = checkpoint.files()[0]
    for directory in (elsewhere, elsewhere / "chk-1"):
        directory.mkdir(exist_ok=True)
        shutil.copy(gone, directory / gone.name)
    gone.unlink()
    place = Path(os.path.normpath(checkpoint.path.parent / link.replace("NAME", checkpoint.path.name)))
    place.symlink_to(elsewhere)
    (finding,) = errors(checkpoint.audit("files"))
    assert finding.file == str(gone)
    assert "of this name" not in finding.hint
    assert listed
    assert not [each for each in listed if each.startswith(str(elsewhere))]


def test_links_between_directories_of_the_job_are_followed(checkpoint: Copy) -> None:
    gone = checkpoint.files()[0]
    kept = checkpoint.path.parent / "kept" / "deep"
    kept.mkdir(parents=True)
    shutil.move(gone, kept / gone.name)
    (checkpoint.path.parent / "beside").symlink_to(kept)
    (finding,) = errors(checkpoint.audit("files"))
    assert f"in {checkpoint.path.parent / 'beside'}" in finding.hint


def _replace_shared(handle: FileStateHandle, reference: StreamReference) -> StreamStateHandle:
    return handle if is_shared(reference) else reference.handle


@pytest.mark.parametrize("form", ["s3://x/{}/a", "file:/x/{}/a", "http://x/{}/a"])
def test_a_path_that_a_snapshot_names_leads_the_search_nowhere_else(
    checkpoint: Copy, elsewhere: Path, listed: list[str], form: str
) -> None:
    (elsewhere / "a").write_bytes(b"secret")
    (checkpoint.path.parent / "linked").symlink_to(elsewhere)
    for path in ("../" * 20 + str(elsewhere).lstrip("/"), "linked"):
        handle = FileStateHandle(form.format(path), 6)
        checkpoint.edit_handles(partial(_replace_shared, handle))
        report = checkpoint.audit("files")
        assert report.verdict != "restorable"
        assert not [each for each in report.findings if "of this name" in each.hint]
    assert not [each for each in listed if each.startswith(str(elsewhere))]


def test_the_root_of_a_file_system_is_not_searched(
    savepoint: Copy, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_pipelines.operations.auditing import file_checks

    savepoint.files()[0].unlink()
    monkeypatch.setattr(file_checks, "parent", lambda location: replace(location, path="/"))
    savepoint.audit("files")
    assert "/" not in listed
