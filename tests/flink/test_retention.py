"""Retention beside real Flink: what stays can be restored, and what a running job needs is never touched."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import IncompatibleError
from state_pipelines.operations.retention import ApplyLimits, apply_plan, open_audit_log, plan_retention
from state_pipelines.storage import resolve
from tests.flink.harness import restore, running_job
from tests.flink.jobs import few_states_job, steady_job
from tests.operations.retention.tree import BASE, identify, job_directory, make_tree

if TYPE_CHECKING:
    from pathlib import Path

FAST = ApplyLimits(paths_per_second=1e9)
ROUNDS = 40
PAUSE_SECONDS = 0.3
# Far below what anybody should use; checkpoints of this job take some milliseconds.
FLOOR = timedelta(seconds=2)
CHECKPOINTS = {
    "execution.checkpointing.interval": "200 ms",
    "execution.checkpointing.min-pause": "0 ms",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.data-inline-threshold": "0",
    "execution.checkpointing.num-retained": "2",
}


@pytest.mark.flink
@pytest.mark.parametrize(
    ("counts", "referring"),
    [((60, 40, 30), {"second", "third"}), pytest.param(None, {"third"}, marks=pytest.mark.slow)],
    ids=["130 snapshots", "1,000 snapshots"],
)
def test_snapshots_that_stay_are_restored(
    tmp_path: Path, counts: tuple[int, int, int] | None, referring: set[str]
) -> None:
    tree = make_tree(tmp_path) if counts is None else make_tree(tmp_path, counts=counts)
    policy = {"checkpoints": {"last": 2}}
    plan = plan_retention(tree.roots, policy)
    assert apply_plan(tree.roots, policy, fingerprint=plan.fingerprint, limits=FAST).finished
    for job in ("second", "third"):
        newest = tree.of(job)[-1]
        # To shared files of the job before, or to files of the savepoint.
        refers = any(job_directory(tree, job) not in file.parents for file in newest.files)
        assert refers == (job in referring)
        restored = restore("2.2.1", newest.path, few_states_job(), backend="rocksdb")
        assert restored.ok, restored.error
        keys = {(entry.get("state"), str(entry.get("key"))) for entry in restored.entries if entry["kind"] == "keyed"}
        expected = {(entry.get("state"), str(entry.get("key"))) for entry in BASE.entries() if entry["kind"] == "keyed"}
        assert keys == expected


@pytest.mark.flink
def test_a_running_job_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    planted: set[str] = set()
    completed: set[str] = set()
    changed = 0
    with running_job("2.2.1", steady_job(CHECKPOINTS), root):
        (directory,) = [path for path in root.iterdir() if len(path.name) == 32]
        for number in range(ROUNDS):
            # Something to delete in every round, between the files of the job: older than all of them.
            orphan = directory / "shared" / identify("orphan", number)
            orphan.write_bytes(b"orphan")
            os.utime(orphan, (time.time() - 600, time.time() - 600))
            planted.add(str(orphan))
            completed |= {path.parent.name for path in root.glob("*/chk-*/_metadata")}
            plan = plan_retention(str(root), min_age=FLOOR)
            try:
                apply_plan(str(root), fingerprint=plan.fingerprint, min_age=FLOOR, limits=FAST)
            except IncompatibleError:
                # The job goes on: the second plan is another one, or the newest checkpoint goes while it is checked.
                # Then nothing is deleted.
                changed += 1
            time.sleep(PAUSE_SECONDS)
    deleted = {record.path for record in open_audit_log(resolve(str(root))).read() if record.outcome == "deleted"}
    assert deleted <= planted
    assert len(deleted) >= ROUNDS // 2
    assert changed < ROUNDS // 2
    # The job went on meanwhile, and what it has kept is whole.
    assert len(completed) >= ROUNDS // 2
    newest = max((path.parent for path in root.glob("*/chk-*/_metadata")), key=lambda path: int(path.name[4:]))
    restored = restore("2.2.1", newest, steady_job(), backend="rocksdb")
    assert restored.ok, restored.error
    assert {entry["op"] for entry in restored.entries if entry["kind"] == "keyed"} == {"counts"}
