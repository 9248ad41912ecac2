"""Spellings of pins, pins without a snapshot, and pins and audit logs above a root."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.retention import (
    ApplyLimits,
    apply_plan,
    pin_snapshot,
    plan_retention,
    read_pins,
    unpin_snapshot,
)
from state_pipelines.storage import join, resolve
from tests.operations.retention.trees import JOB, deleted, install_job, plan, put
from tests.storages import empty_counted

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.retention import RetentionPlan

POLICY = {"checkpoints": {"last": 1}}
SPELLINGS = (
    f"{JOB}/chk-2",
    f"./{JOB}/chk-2",
    f"{JOB}/chk-2/",
    f"{JOB}//chk-2",
    f"{JOB}/./chk-2",
    f"/{JOB}/chk-2",
    f"{JOB}/chk-2/_metadata",
    f"  {JOB}/chk-2 ",
    "ROOT/" + f"{JOB}/chk-2",
    f"file:ROOT/{JOB}/chk-2",
    f"file://ROOT/{JOB}/chk-2/_metadata",
    f"ROOT/../root/{JOB}/chk-2",
    f"alias/{JOB}/chk-2",
    f"ROOT/alias/{JOB}/chk-2",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    install_job(root)
    (root / "alias").symlink_to(root)
    return root


def write_pins(root: Path, *texts: str) -> Path:
    lines = "".join(f"- {text!r}\n" for text in texts)
    return put(root / "_retention" / "pins.yaml", f"# what stays\npins:\n{lines}".encode())


def goes(result: RetentionPlan) -> list[str]:
    return [each.path for each in result.snapshots if each.delete]


@pytest.mark.parametrize("spelling", [each for each in SPELLINGS if ".." not in each])
def test_spellings_in_a_pin_file(root: Path, spelling: str) -> None:
    assert goes(plan(root, policy=POLICY)) == [f"{root}/{JOB}/chk-2"]
    write_pins(root, spelling.replace("ROOT", str(root)))
    result = plan(root, policy=POLICY)
    assert (goes(result), result.stopped) == ([], ())
    assert any(reason.startswith("pinned") for each in result.snapshots for reason in each.reasons)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_who_pins_and_unpins(root: Path, spelling: str) -> None:
    location = resolve(str(root))
    assert pin_snapshot(location, spelling.replace("ROOT", str(root))).path == f"{JOB}/chk-2"
    pin_snapshot(location, f"{JOB}/chk-2", reason="again")
    assert [each.reason for each in read_pins(location)] == ["again"]
    unpin_snapshot(location, spelling.replace("ROOT", str(root)))
    assert read_pins(location) == ()


def test_spellings_of_urls() -> None:
    root = empty_counted()
    job = join(root, JOB, "chk-2", "_metadata")
    root.filesystem.pipe_file(job.path, b"damaged")
    pin_snapshot(root, f"counted://{root.path}//{JOB}/chk-2/_metadata")
    assert [each.path for each in read_pins(root)] == [f"{JOB}/chk-2"]


@pytest.mark.parametrize("path", ["", " ", ".", "/", "..", "_retention", f"{JOB}/shared", f"{JOB}/chk-4", "/elsewhere"])
def test_what_is_no_snapshot_below_the_root_cannot_be_pinned(root: Path, path: str) -> None:
    with pytest.raises(UsageError, match="nothing to pin"):
        pin_snapshot(resolve(str(root)), path)


@pytest.mark.parametrize(
    "path", [f"{JOB}/chk-49", f"{JOB}/chk-2x", "/elsewhere/chk-2", "s3://bucket/chk-2", f"{JOB}/*"]
)
def test_a_pin_without_a_snapshot_stops_the_plan_with_its_line(root: Path, path: str) -> None:
    orphan = put(root / JOB / "shared" / "00000001-aaaa-4bbb-8ccc-000000000001")
    file = write_pins(root, f"{JOB}/chk-3", path)
    result = plan(root, policy=POLICY)
    assert (deleted(result), orphan.exists()) == ([], True)
    assert result.stopped == (
        f"{file}, line 4: no snapshot is at the pinned path {path!r}. Correct the path, or remove the pin with --unpin",
    )


@pytest.mark.slow
def test_a_tag_without_a_snapshot_stops_the_plan_unless_retention_has_deleted_that(root: Path) -> None:
    pin_snapshot(resolve(str(root)), f"{JOB}/chk-2", tags=("release",))
    kept = plan(root, policy=POLICY | {"keep": {"tags": ["release"]}})
    first = plan(root, policy=POLICY)
    assert goes(first) == [f"{root}/{JOB}/chk-2"]
    apply_plan(str(root), POLICY, fingerprint=first.fingerprint)
    second = plan(root, policy=POLICY)
    assert (second.stopped, "has tags, and retention has deleted it" in second.notes[0]) == ((), True)
    shutil.rmtree(root / "_retention" / "log")
    assert "no snapshot is at the pinned path" in plan(root, policy=POLICY).stopped[0]
    assert kept.stopped == ()


@pytest.mark.slow
def test_pins_above_the_root_count(tmp_path: Path) -> None:
    team = tmp_path / "all" / "team"
    install_job(team)
    (tmp_path / "link").symlink_to(team)
    pin_snapshot(resolve(str(tmp_path / "all")), f"team/{JOB}/chk-2")
    assert goes(plan(team, policy=POLICY)) == []
    # Also above the directory to which a link leads, and above the link.
    assert goes(plan(tmp_path / "link", policy=POLICY)) == []
    unpin_snapshot(resolve(str(tmp_path / "all")), f"team/{JOB}/chk-2")
    assert goes(plan(team, policy=POLICY)) == [f"{team}/{JOB}/chk-2"]
    pin_snapshot(resolve(str(tmp_path)), f"link/{JOB}")
    assert goes(plan(tmp_path / "link", policy=POLICY)) == []


def test_pins_above_the_root_that_are_about_others(tmp_path: Path) -> None:
    install_job(tmp_path / "team")
    install_job(tmp_path / "other")
    write_pins(tmp_path, f"other/{JOB}/chk-2", "other")
    result = plan(tmp_path / "team", policy=POLICY)
    assert (goes(result), result.stopped) == ([f"{tmp_path}/team/{JOB}/chk-2"], ())
    write_pins(tmp_path, "team")
    assert goes(plan(tmp_path / "team", policy=POLICY)) == []
    # A misspelled one may be about any.
    write_pins(tmp_path, f"teem/{JOB}/chk-2")
    assert "line 3: no snapshot" in plan(tmp_path / "team", policy=POLICY).stopped[0]


def test_pins_above_the_root_on_an_object_store(tmp_path: Path) -> None:
    root = empty_counted()
    job = install_job(tmp_path, url=f"counted://{root.path}/team")
    for file in (each for each in job.rglob("*") if each.is_file()):
        root.filesystem.pipe_file(join(root, "team", JOB, file.relative_to(job).as_posix()).path, file.read_bytes())
    pin_snapshot(root, f"team/{JOB}/chk-2")
    later = datetime.now(UTC) + timedelta(days=30)
    assert goes(plan_retention(join(root, "team"), POLICY, now=lambda: later)) == []


@pytest.mark.slow
def test_a_run_above_the_root_that_has_not_finished_is_noted(tmp_path: Path) -> None:
    install_job(tmp_path / "team")
    first = plan(tmp_path, policy=POLICY)
    apply_plan(str(tmp_path), POLICY, fingerprint=first.fingerprint, limits=ApplyLimits(paths=1))
    notes = plan(tmp_path / "team", policy=POLICY).notes
    assert any(f"plan {first.fingerprint} of {tmp_path} has not finished" in note for note in notes)
