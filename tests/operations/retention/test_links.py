"""Symbolic links among the files that snapshots reference: what they lead to is needed too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from state_pipelines import open_snapshot
from state_pipelines.metadata import list_references, read_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.operations.auditing import Depth, audit_snapshot
from state_pipelines.operations.retention import apply_plan
from tests.operations.retention.trees import (
    OLD,
    OTHER_JOB,
    UUIDS,
    deleted,
    install_job,
    kept_reason,
    plan,
    put,
    set_age,
)

NOTHING = timedelta(0)


def find_shared_file(job: Path) -> Path:
    """A shared file that the newest checkpoint references."""
    metadata = read_metadata((job / "chk-3" / "_metadata").read_bytes())
    handles = (each.handle for each in list_references(metadata))
    names = (Path(each.path).name for each in handles if isinstance(each, FileStateHandle) and "/shared/" in each.path)
    return job / "shared" / next(names)


def move_behind_link(file: Path, target: Path, *, text: str = "") -> None:
    """Move a file and put a link in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file.rename(target)
    file.symlink_to(text or target)
    set_age(target, OLD)


def apply(*roots: Path, **options: object) -> None:
    result = plan(*roots, **options)
    apply_plan([str(root) for root in roots], fingerprint=result.fingerprint, **options)  # type: ignore[arg-type]


def audit(snapshot: Path) -> list[object]:
    return list(audit_snapshot(open_snapshot(str(snapshot)), Depth.FILES).findings)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["shared", f"../{OTHER_JOB}/shared", "chk-1", "taskowned"])
@pytest.mark.parametrize("is_relative", [True, False])
def test_the_file_behind_a_link_stays(tmp_path: Path, place: str, is_relative: bool) -> None:
    job = install_job(tmp_path)
    file = find_shared_file(job)
    target = job / place / UUIDS[0]
    move_behind_link(file, target, text=f"../{place}/{UUIDS[0]}" if is_relative else "")
    orphan = put(job / "shared" / UUIDS[1])
    assert audit(job / "chk-3") == []
    result = plan(tmp_path, min_age=NOTHING)
    assert str(orphan) in deleted(result)
    assert "referenced by" in kept_reason(result, target.resolve())
    # A snapshot of which a file is a link can be restored.
    assert next(each.restorable for each in result.snapshots if each.path.endswith("chk-3")) is True
    apply(tmp_path, min_age=NOTHING)
    assert not orphan.exists()
    assert audit(job / "chk-3") == []


def test_links_to_links_and_through_directories(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    file = find_shared_file(job)
    move_behind_link(file, job / "shared" / UUIDS[0])
    # Through a directory that is empty otherwise, and would go.
    (job / "chk-1").mkdir()
    set_age(job / "chk-1", OLD)
    move_behind_link(job / "shared" / UUIDS[0], job / "taskowned" / UUIDS[1], text=f"../chk-1/../taskowned/{UUIDS[1]}")
    apply(tmp_path, min_age=NOTHING)
    assert (job / "taskowned" / UUIDS[1]).exists()
    assert audit(job / "chk-3") == []


@pytest.mark.parametrize("target", ["nothing", "circle", "elsewhere"])
def test_nothing_goes_beside_a_link_that_leads_nowhere(tmp_path: Path, target: str) -> None:
    job = install_job(tmp_path)
    file = find_shared_file(job)
    file.unlink()
    texts = {"nothing": UUIDS[5], "circle": file.name, "elsewhere": f"../../{OTHER_JOB}/shared/{UUIDS[5]}"}
    file.symlink_to(texts[target])
    orphan = put(job / "shared" / UUIDS[0])
    other = put(tmp_path / OTHER_JOB / "shared" / UUIDS[1])
    result = plan(tmp_path, min_age=NOTHING)
    assert "symbolic link" in kept_reason(result, orphan)
    # Also nothing of the directory to which it may have led.
    assert (str(other) in deleted(result)) is (target != "elsewhere")


def test_a_link_of_a_checkpoint_outside_that_leads_into_the_root(tmp_path: Path) -> None:
    job = install_job(tmp_path / "root")
    outside = tmp_path / "outside"
    file = find_shared_file(job)
    hidden = job / "shared" / UUIDS[0]
    file.rename(hidden)
    outside.mkdir()
    (outside / file.name).symlink_to(hidden)
    mapping = [f"{job}/shared/{file.name}={outside}/{file.name}"]
    set_age(job, OLD)
    assert "referenced by" in kept_reason(plan(tmp_path / "root", min_age=NOTHING, path_mapping=mapping), hidden)


@pytest.mark.slow
def test_links_that_change_between_two_passes(tmp_path: Path) -> None:
    job = install_job(tmp_path / "root")
    (tmp_path / "root" / "alias").symlink_to(tmp_path / "root" / "elsewhere")
    (tmp_path / "root" / "elsewhere").mkdir()
    mapping = [f"{job}={tmp_path}/root/alias"]

    def exchange(_: float) -> None:
        (tmp_path / "root" / "alias").unlink()
        (tmp_path / "root" / "alias").symlink_to(job)

    file = find_shared_file(job)
    assert "may be its copy" in kept_reason(plan(tmp_path / "root", path_mapping=mapping), file)
    result = plan(tmp_path / "root", grace=timedelta(minutes=1), wait=exchange, path_mapping=mapping)
    assert "referenced by" in kept_reason(result, file)
