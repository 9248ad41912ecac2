"""Symbolic links where retention keeps its own files: nothing is read, moved or deleted through them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.retention import (
    DeletionOutcome,
    apply_plan,
    pin_snapshot,
    plan_retention,
    purge_quarantine,
    read_pins,
    restore_quarantined,
)
from state_pipelines.operations.retention.own_directory import AuditLog, open_audit_log
from state_pipelines.operations.retention.quarantine import list_quarantine, quarantine_location
from state_pipelines.storage import Location, resolve
from tests.operations.retention.trees import OLD, UUIDS, install_job, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FINGERPRINT = "0123456789abcdef"
NOW = datetime(2026, 1, 10, tzinfo=UTC)
LINK = r"symbolic link.*_retention"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints of a job, and one orphan."""
    job = install_job(tmp_path / "root")
    put(job / "shared" / UUIDS[0])
    return tmp_path / "root"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """The directory of retention of another root, with a file in quarantine, an audit log and pins."""
    directory = tmp_path / "victim" / "_retention"
    put(directory / "quarantine" / f"20200101T000000Z-{FINGERPRINT}" / "job" / "precious")
    put(directory / "log" / f"20200101T000000000000Z-{FINGERPRINT}" / "000000-started.jsonl", b"[]\n")
    put(directory / "pins.yaml", b"pins: []\n")
    return directory


def list_content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def link(root: Path, victim: Path, name: str) -> None:
    path = root / "_retention" / name if name else root / "_retention"
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(victim / name)


def to_location(path: Path) -> Location:
    return resolve(str(path))


@pytest.mark.parametrize("name", ["", "quarantine"])
@pytest.mark.parametrize(
    "call",
    [
        lambda root, log: purge_quarantine([root], timedelta(days=1), log),
        lambda root, log: restore_quarantined([root], FINGERPRINT, log),
        lambda root, _: list_quarantine([root]),
        lambda root, _: quarantine_location(root, resolve(f"{root.path}/a"), FINGERPRINT, NOW),
    ],
    ids=["purge", "restore", "list", "move"],
)
def test_a_quarantine_that_is_a_link_is_refused(
    root: Path, victim: Path, tmp_path: Path, name: str, call: Callable[[Location, AuditLog], object]
) -> None:
    link(root, victim, name)
    before = list_content(victim), list_content(root)
    with pytest.raises(UsageError, match=LINK):
        call(to_location(root), AuditLog(to_location(tmp_path / "log")))
    assert (list_content(victim), list_content(root)) == before


@pytest.mark.parametrize("name", ["", "quarantine"])
def test_nothing_is_moved_to_a_quarantine_that_is_a_link(root: Path, victim: Path, tmp_path: Path, name: str) -> None:
    log = str(tmp_path / "log")
    plan = plan_retention(str(root), audit_log=log)
    assert [each.path.rpartition("/")[2] for each in plan.delete] == [UUIDS[0]]
    link(root, victim, name)
    before = list_content(victim), list_content(root)
    with pytest.raises(UsageError, match=LINK):
        apply_plan(str(root), fingerprint=plan.fingerprint, audit_log=log, quarantine=True)
    assert (list_content(victim), list_content(root)) == before


def test_nothing_is_moved_to_directories_that_lead_out_of_the_root(root: Path, victim: Path) -> None:
    stamped = root / "_retention" / "quarantine" / f"20260110T000000Z-{FINGERPRINT}"
    stamped.mkdir(parents=True)
    (stamped / "job").symlink_to(victim)
    with pytest.raises(UsageError, match=LINK):
        quarantine_location(to_location(root), to_location(root / "job" / "a"), FINGERPRINT, NOW)


@pytest.mark.parametrize("name", ["", "log"])
def test_an_audit_log_that_is_a_link_is_refused(root: Path, victim: Path, name: str) -> None:
    link(root, victim, name)
    before = list_content(victim)
    with pytest.raises(UsageError, match=LINK):
        open_audit_log(to_location(root))
    with pytest.raises(UsageError, match=LINK):
        plan_retention(str(root))
    assert list_content(victim) == before


@pytest.mark.slow
def test_an_audit_log_that_the_caller_names_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "log")
    plan = plan_retention(str(root), audit_log=str(tmp_path / "link"))
    assert apply_plan(str(root), fingerprint=plan.fingerprint, audit_log=str(tmp_path / "link")).finished
    assert list_content(tmp_path / "log")


def test_a_file_of_the_audit_log_that_is_a_link_is_refused(root: Path, victim: Path) -> None:
    directory = root / "_retention" / "log" / f"20200101T000000000000Z-{FINGERPRINT}"
    directory.mkdir(parents=True)
    (directory / "000000-started.jsonl").symlink_to(victim / "pins.yaml")
    with pytest.raises(UsageError, match=LINK):
        plan_retention(str(root))


@pytest.mark.parametrize("name", ["", "pins.yaml"])
def test_pins_that_are_a_link_are_refused(root: Path, victim: Path, tmp_path: Path, name: str) -> None:
    link(root, victim, name)
    before = list_content(victim)
    location = to_location(root)
    for call in (
        lambda: read_pins(location),
        lambda: pin_snapshot(location, next(root.glob("*/chk-3")).relative_to(root).as_posix()),
        lambda: plan_retention(str(root), audit_log=str(tmp_path / "log")),
    ):
        with pytest.raises(UsageError, match=LINK):
            call()
    assert list_content(victim) == before


def test_pins_of_a_root_inside_a_root_are_not_left_out_because_of_a_link(
    root: Path, victim: Path, tmp_path: Path
) -> None:
    (next(root.glob("*/chk-3")).parent / "_retention").symlink_to(victim)
    with pytest.raises(UsageError, match=LINK):
        plan_retention(str(root), audit_log=str(tmp_path / "log"))


@pytest.mark.slow
def test_a_root_may_be_a_link_itself(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    plan = plan_retention(str(tmp_path / "link"))
    assert apply_plan(str(tmp_path / "link"), fingerprint=plan.fingerprint, quarantine=True).finished
    log = open_audit_log(to_location(tmp_path / "link"))
    (record,) = restore_quarantined([to_location(tmp_path / "link")], plan.fingerprint, log)
    assert record.outcome is DeletionOutcome.RESTORED


@pytest.mark.slow
def test_nothing_is_restored_behind_a_link_out_of_the_root(root: Path, tmp_path: Path) -> None:
    plan = plan_retention(str(root))
    apply_plan(str(root), fingerprint=plan.fingerprint, quarantine=True)
    shared = next(root.glob("*/shared"))
    shutil.copytree(shared, tmp_path / "elsewhere")
    shutil.rmtree(shared)
    shared.symlink_to(tmp_path / "elsewhere")
    (record,) = restore_quarantined([to_location(root)], plan.fingerprint, open_audit_log(to_location(root)))
    assert (record.outcome, "is a symbolic link" in record.detail) == (DeletionOutcome.FAILED, True)
    assert not (tmp_path / "elsewhere" / UUIDS[0]).exists()


def test_links_in_the_quarantine_are_left_alone(root: Path, victim: Path, tmp_path: Path) -> None:
    directory = root / "_retention" / "quarantine" / f"20200101T000000Z-{FINGERPRINT}"
    put(directory / "real", age=OLD)
    (directory / "file").symlink_to(victim / "pins.yaml")
    (directory / "directory").symlink_to(victim)
    (found,) = list_quarantine([to_location(root)])
    assert found.location.name == "real"
    purge_quarantine([to_location(root)], timedelta(days=1), AuditLog(to_location(tmp_path / "log")))
    assert (directory / "file").is_symlink()
    assert list_content(victim)


@pytest.mark.parametrize("name", [f"20209999T999999Z-{FINGERPRINT}", f"00000000T000000Z-{FINGERPRINT}", "٢٠٢٠"])
def test_directories_of_the_quarantine_without_a_time_are_left_alone(root: Path, tmp_path: Path, name: str) -> None:
    put(root / "_retention" / "quarantine" / name / "a")
    assert list_quarantine([to_location(root)]) == []
    assert purge_quarantine([to_location(root)], timedelta(0), AuditLog(to_location(tmp_path / "log"))) == []


def test_files_from_the_future_are_not_purged(root: Path, tmp_path: Path) -> None:
    put(root / "_retention" / "quarantine" / f"99991231T235959Z-{FINGERPRINT}" / "a")
    assert purge_quarantine([to_location(root)], timedelta(days=1), AuditLog(to_location(tmp_path / "log"))) == []
