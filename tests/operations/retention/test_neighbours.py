"""Roots inside the directory of a job, and snapshots outside the roots that need their files."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from state_pipelines import open_snapshot
from state_pipelines.errors import UsageError
from state_pipelines.metadata import list_references, read_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.operations.auditing import Depth, Severity, audit_snapshot
from state_pipelines.operations.retention import ApplyLimits, apply_plan, plan_retention
from state_pipelines.storage import join
from tests.operations.retention.trees import (
    JOB,
    OTHER_JOB,
    UUIDS,
    deleted,
    install_job,
    kept_reason,
    plan,
    put,
    rewrite,
    set_age,
)
from tests.storages import empty_counted

NOTHING = timedelta(0)


def claim(old: Path, new: Path) -> Path:
    """A checkpoint of a new job that needs the files of the old one, whose checkpoints Flink has removed."""
    new.mkdir(parents=True, exist_ok=True)
    checkpoint = new / "chk-4"
    (old / "chk-3").rename(checkpoint)
    # Its own files are in its directory now, the shared ones where they were.
    rewrite(checkpoint / "_metadata", lambda path: path.replace(f"{old}/chk-3", str(checkpoint)))
    shutil.rmtree(old / "chk-2")
    set_age(new, timedelta(days=20))
    return checkpoint


def apply(*roots: Path) -> None:
    fingerprint = plan(*roots, min_age=NOTHING).fingerprint
    apply_plan(list(map(str, roots)), min_age=NOTHING, fingerprint=fingerprint)


def require_whole(snapshot: Path, *allowed: Path) -> None:
    opened = open_snapshot(str(snapshot), allow_roots=list(map(str, allowed)))
    found = audit_snapshot(opened, Depth.FILES).findings
    assert [each for each in found if each.severity is not Severity.WARNING] == []


def find_needed(checkpoint: Path) -> set[str]:
    """Names of the shared files that a checkpoint references."""
    handles = (each.handle for each in list_references(read_metadata((checkpoint / "_metadata").read_bytes())))
    return {Path(each.path).name for each in handles if isinstance(each, FileStateHandle) and "/shared/" in each.path}


@pytest.mark.parametrize("name", ["shared", "taskowned", "chk-3", "shared/job_x", "chk-9/deep/er"])
@pytest.mark.parametrize("job", [JOB, "no-job-id"])
def test_a_root_inside_a_job_is_refused(tmp_path: Path, name: str, job: str) -> None:
    directory = install_job(tmp_path, job=job)
    (directory / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to(directory / name)
    for root in (directory / name, tmp_path / "link"):
        with pytest.raises(UsageError, match=f"Give the directory of the job as the root: {directory}$"):
            plan(root)
        with pytest.raises(UsageError, match="inside the directory of a job"):
            apply_plan(str(root), fingerprint="0123456789abcdef")


def test_the_directory_of_a_job_without_checkpoints_is_one(tmp_path: Path) -> None:
    put(tmp_path / OTHER_JOB / "shared" / UUIDS[0])
    with pytest.raises(UsageError, match="inside the directory of a job"):
        plan(tmp_path / OTHER_JOB / "shared")


def test_a_directory_that_is_only_called_shared_is_a_root(tmp_path: Path) -> None:
    install_job(tmp_path / "shared" / "checkpoints")
    for root in (tmp_path / "shared", tmp_path / "shared" / "checkpoints"):
        assert len(plan(root).snapshots) == 2


@pytest.mark.slow
@pytest.mark.parametrize("names", [(JOB, OTHER_JOB), ("one", "other")])
def test_what_a_job_beside_it_has_claimed_stays(tmp_path: Path, names: tuple[str, str]) -> None:
    old = install_job(tmp_path, job=names[0])
    new = claim(old, tmp_path / names[1])
    orphan = put(old / "shared" / UUIDS[0])
    (old / "chk-1").mkdir()
    result = plan(old, min_age=NOTHING)
    assert str(orphan) in deleted(result)
    assert "and of the 1 beside them" in result.notes[0]
    assert f"referenced by {new}" in kept_reason(result, old / "shared" / next(iter(find_needed(new))))
    apply(old)
    assert not orphan.exists()
    require_whole(new, tmp_path)


def test_a_checkpoint_beside_the_root_that_cannot_be_read_stops_the_plan(tmp_path: Path) -> None:
    old = install_job(tmp_path)
    (claim(old, tmp_path / OTHER_JOB) / "_metadata").write_bytes(b"damaged")
    result = plan(old, min_age=NOTHING)
    assert deleted(result) == []
    assert f"{tmp_path}/{OTHER_JOB}/chk-4/_metadata cannot be read" in result.stopped[0]


@pytest.mark.slow
def test_a_job_that_claims_while_a_plan_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = install_job(tmp_path / "root")
    copy = install_job(tmp_path / "copy")
    checkpoint = claim(copy, tmp_path / "copy" / OTHER_JOB)
    rewrite(checkpoint / "_metadata", lambda path: path.replace(str(tmp_path / "copy"), str(tmp_path / "root")))
    shutil.rmtree(old / "chk-3")
    shutil.rmtree(old / "chk-2")
    orphans = [put(old / "shared" / UUIDS[0]), put(old / "shared" / UUIDS[1])]
    first = plan(old, min_age=NOTHING)
    steps: list[int] = []

    def report(done: int, _: int) -> None:
        if not steps:
            shutil.copytree(tmp_path / "copy" / OTHER_JOB, tmp_path / "root" / OTHER_JOB)
        steps.append(done)

    before = set((old / "shared").iterdir())
    result = apply_plan(
        str(old), min_age=NOTHING, fingerprint=first.fingerprint, report=report, limits=ApplyLimits(batch=1)
    )
    assert any("the new snapshot" in each.detail for each in result.kept)
    assert len(before - set((old / "shared").iterdir())) < len(before)
    assert not orphans[1].exists()


def test_snapshots_behind_a_link_to_a_directory_count(tmp_path: Path) -> None:
    old = install_job(tmp_path / "root")
    new = claim(old, tmp_path / "disk" / OTHER_JOB)
    (tmp_path / "root" / OTHER_JOB).symlink_to(tmp_path / "disk" / OTHER_JOB)
    apply(tmp_path / "root")
    require_whole(new, old)


def test_what_cannot_be_listed_beside_a_root_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = install_job(tmp_path)
    (tmp_path / OTHER_JOB).mkdir()
    put(old / "shared" / UUIDS[0])
    listed = os.scandir

    def refuse(path: str) -> object:
        if str(path).rstrip("/").endswith(OTHER_JOB):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    notes = plan(old, min_age=NOTHING).notes
    assert any(OTHER_JOB in note and "directories that cannot be listed" in note for note in notes)


def test_jobs_beside_each_other_on_an_object_store(tmp_path: Path) -> None:
    root = empty_counted()
    old = install_job(tmp_path)
    checkpoint = claim(old, tmp_path / OTHER_JOB)
    for metadata in tmp_path.glob("*/chk-*/_metadata"):
        rewrite(metadata, lambda path: path.replace(str(tmp_path), f"counted://{root.path}"))
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        root.filesystem.pipe_file(join(root, file.relative_to(tmp_path).as_posix()).path, file.read_bytes())
    later = datetime.now(UTC) + timedelta(days=30)
    result = plan_retention(join(root, JOB), now=lambda: later)
    needed = find_needed(checkpoint)
    assert len(needed) > 0 < len(deleted(result))
    assert not {each.rpartition("/")[2] for each in deleted(result)} & needed
    with pytest.raises(UsageError, match="inside the directory of a job"):
        plan_retention(join(root, JOB, "shared"), now=lambda: later)
