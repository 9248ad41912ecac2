"""Directories of a root that somebody exchanges for links while retention runs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.retention import apply_plan, plan_retention
from state_pipelines.operations.retention.own_directory import AuditLog, DeletionOutcome, open_audit_log
from state_pipelines.operations.retention.quarantine import purge_quarantine, restore_quarantined
from state_pipelines.storage import resolve
from tests.operations.retention.trees import UUIDS, install_job, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.operations.retention.own_directory import AuditRun

ORPHAN = f"shared/{UUIDS[0]}"
STAMP = "20200101T000000Z-aaaa"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return put(tmp_path / "outside" / UUIDS[0], b"vital").parent


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], None]:
    """Function that lets a directory become a link once the audit log of a run has begun."""
    start = AuditLog.start_run

    def install(directory: Path, other: Path) -> None:
        def started(self: AuditLog, *args: object, **options: object) -> AuditRun:
            run = start(self, *args, **options)  # type: ignore[arg-type]
            directory.rename(directory.with_name("away"))
            directory.symlink_to(other)
            return run

        monkeypatch.setattr(AuditLog, "start_run", started)

    return install


@pytest.mark.slow
@pytest.mark.parametrize("quarantine", [False, True], ids=["delete", "quarantine"])
def test_a_file_outside_with_the_name_size_and_time_of_an_orphan_stays(
    root: Path, outside: Path, exchange: Callable[[Path, Path], None], *, quarantine: bool
) -> None:
    job = install_job(root)
    orphan = put(job / ORPHAN, b"decoy")
    times = orphan.stat().st_atime_ns, orphan.stat().st_mtime_ns
    os.utime(outside / UUIDS[0], ns=times)
    plan = plan_retention(str(root))
    assert [each.path for each in plan.delete] == [str(orphan)]
    exchange(job / "shared", outside)
    result = apply_plan(str(root), fingerprint=plan.fingerprint, quarantine=quarantine)
    assert not result.finished
    assert "symbolic link" in result.failed[0].detail
    assert (outside / UUIDS[0]).read_bytes() == b"vital"
    assert (job / "away" / UUIDS[0]).read_bytes() == b"decoy"


def test_nothing_outside_of_the_quarantine_is_purged(
    root: Path, outside: Path, exchange: Callable[[Path, Path], None]
) -> None:
    kept = root / "_retention/quarantine" / STAMP / "x"
    put(kept / UUIDS[0])
    exchange(kept, outside)
    (record,) = purge_quarantine([resolve(str(root))], timedelta(days=1), open_audit_log(resolve(str(root))))
    assert record.outcome is DeletionOutcome.FAILED
    assert (outside / UUIDS[0]).exists()


@pytest.mark.parametrize("side", ["from", "to"])
def test_nothing_is_restored_from_or_to_a_directory_outside(
    root: Path, outside: Path, exchange: Callable[[Path, Path], None], side: str
) -> None:
    kept = root / "_retention/quarantine" / STAMP / "x"
    put(kept / UUIDS[1 if side == "to" else 0], b"bait")
    (root / "x").mkdir()
    exchange(kept if side == "from" else root / "x", outside)
    (record,) = restore_quarantined([resolve(str(root))], "aaaa", open_audit_log(resolve(str(root))))
    assert record.outcome is DeletionOutcome.FAILED
    assert [(each.name, each.read_bytes()) for each in outside.iterdir()] == [(UUIDS[0], b"vital")]
