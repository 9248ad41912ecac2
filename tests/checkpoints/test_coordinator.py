"""The life of checkpoints: triggered, completed, subsumed, aborted; files stay while they are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.completed_checkpoints import find_checkpoints, find_latest_checkpoint
from state_pipelines.checkpoints.coordinator import (
    CheckpointFailure,
    FailureReason,
    TaskCheckpoint,
    is_full,
    make_properties,
)
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata import CheckpointProperties, SubtaskState
from state_pipelines.metadata.checkpoint import SavepointFormatType
from state_pipelines.metadata.handles import FileStateHandle, IncrementalRemoteKeyedStateHandle
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, list_directory, resolve
from tests.checkpoints.tasks import JOB, OPERATOR, Job, missing_files

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.storage import Location

KEPT = CheckpointOptions(incremental=True)


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return resolve(str(tmp_path))


@pytest.fixture
def job(root: Location) -> Job:
    return Job(root)


def listed(job: Job) -> list[int]:
    """Ids of the checkpoints that a reader finds, all of which are whole."""
    found, unreadable = find_checkpoints(job.directories.job)
    assert not unreadable
    assert not [missing for each in found for missing in missing_files(each)]
    return [each.metadata.checkpoint_id for each in found]


def names(location: Location) -> list[str]:
    return [each.location.name for each in list_directory(location)]


def reason_of(job: Job) -> FailureReason:
    failure = job.coordinator.failure
    assert failure is not None
    assert job.coordinator.pending is None
    return failure.reason


# One checkpoint


def test_a_checkpoint_is_there_when_it_is_completed(job: Job) -> None:
    trigger = job.coordinator.trigger_checkpoint()
    assert (trigger.checkpoint_id, listed(job)) == (1, [])
    taken = job.answer(trigger)
    assert listed(job) == []
    completed = job.coordinator.complete(taken)
    assert listed(job) == [1]
    assert (completed.checkpoint_id, completed.state_size) == (1, 22)
    assert job.coordinator.failure is None


def test_the_duration_is_that_of_the_slowest_snapshot_and_of_the_publication(job: Job) -> None:
    trigger = job.coordinator.trigger_checkpoint()
    # The processing of the input, which is none of it.
    job.hands.now += 3_600_000
    first, second = job.answer(trigger)
    job.hands.step = 5
    completed = job.coordinator.complete([replace(first, millis=30), replace(second, millis=20)])
    assert 30 < completed.duration < 100


def test_what_is_published_is_a_checkpoint_of_flink_1_20(job: Job) -> None:
    job.complete()
    metadata = open_snapshot(str(job.directories.checkpoint(1))).metadata
    (operator,) = metadata.operator_states
    assert (metadata.version, metadata.checkpoint_id) == (4, 1)
    assert (operator.operator_id, operator.parallelism, operator.max_parallelism) == (OPERATOR.operator_id, 2, 8)
    assert [each.index for each in operator.subtasks] == [0, 1]
    assert isinstance(metadata.properties, CheckpointProperties)
    assert metadata.properties.discard_subsumed
    assert not metadata.properties.discard_cancelled


def test_newer_metadata_name_the_operator(root: Location) -> None:
    job = Job(root)
    job.coordinator._version = 6
    job.complete()
    (operator,) = open_snapshot(str(job.directories.checkpoint(1))).metadata.operator_states
    assert (operator.uid, operator.name) == ("sums", "Sums")


def test_temporary_files_are_gone(job: Job) -> None:
    job.complete()
    assert names(job.directories.job) == ["chk-1", "shared"]
    assert not [name for name in names(job.directories.checkpoint(1)) if "pending" in name]


@pytest.mark.parametrize("indexes", [[0], [0, 0, 1], [0, 7]])
def test_each_subtask_takes_its_snapshot_exactly_once(job: Job, indexes: list[int]) -> None:
    job.coordinator.trigger_checkpoint()
    taken = [TaskCheckpoint(1, OPERATOR.operator_id, SubtaskState(index)) for index in indexes]
    with pytest.raises(StateError, match="of sums has not taken its snapshot exactly once"):
        job.coordinator.complete(taken)
    assert reason_of(job) is FailureReason.TASK_FAILURE
    assert listed(job) == []


def test_one_checkpoint_at_a_time(job: Job) -> None:
    with pytest.raises(UsageError, match="no checkpoint is pending"):
        job.coordinator.complete([])
    job.coordinator.trigger_checkpoint()
    with pytest.raises(UsageError, match="checkpoint 1 is pending"):
        job.coordinator.trigger_checkpoint()


# Increments


def test_unchanged_files_are_shared_and_gone_with_the_last_checkpoint_that_needs_them(job: Job) -> None:
    job.complete()
    first = set(names(job.directories.shared))
    for task in job.tasks:
        task.tables.append("000002.sst")
    job.complete()
    second = set(names(job.directories.shared))
    assert len(first) == 2
    assert len(second) == 4
    assert first < second
    assert listed(job) == [2]
    for task in job.tasks:
        task.tables.remove("000001.sst")
    job.complete()
    assert set(names(job.directories.shared)) == second - first
    assert listed(job) == [3]
    assert [each.persisted_size for each in job.coordinator.completed.all] == [2]
    assert job.coordinator.completed.latest is not None


def test_checkpoints_are_retained_as_many_as_the_options_say(root: Location) -> None:
    job = Job(root, replace(KEPT, num_retained=3))
    for number in range(1, 6):
        for task in job.tasks:
            task.tables = [f"{each:06}.sst" for each in range(number, number + 3)]
        job.complete()
    assert listed(job) == [3, 4, 5]
    assert len(names(job.directories.shared)) == 2 * 5


# Failures


def test_a_declined_checkpoint_leaves_nothing(job: Job) -> None:
    job.answer(job.coordinator.trigger_checkpoint())
    error = job.coordinator.abort(FailureReason.CHECKPOINT_ASYNC_EXCEPTION, "the disk is full")
    assert job.coordinator.failure == CheckpointFailure(FailureReason.CHECKPOINT_ASYNC_EXCEPTION, 1, "the disk is full")
    assert error.what == "Asynchronous task checkpoint failed. the disk is full"
    assert error.details["reason"] == "CHECKPOINT_ASYNC_EXCEPTION"
    assert names(job.directories.job) == ["shared"]
    # Its tables stay, since no task named them; retention removes them.
    assert len(names(job.directories.shared)) == 2


@pytest.mark.parametrize("slowest", [100, 40], ids=["a task", "the publication"])
def test_a_checkpoint_expires(root: Location, slowest: int) -> None:
    job = Job(root, replace(KEPT, timeout=100))
    trigger = job.coordinator.trigger_checkpoint()
    job.hands.now += 1_000
    first, second = job.answer(trigger)
    job.hands.step = 50 if slowest < 100 else 0
    with pytest.raises(StateError, match="Checkpoint expired before completing") as caught:
        job.coordinator.complete([replace(first, millis=slowest), second])
    assert caught.value.details["reason"] == "CHECKPOINT_EXPIRED"
    assert reason_of(job) is FailureReason.CHECKPOINT_EXPIRED
    assert listed(job) == []
    assert [name for name in names(job.directories.job) if name != "shared"] == []
    assert names(job.directories.shared) == []
    # The next one has its own time.
    job.hands.step = 0
    assert job.complete() == 2


def test_a_checkpoint_of_another_run_subsumes_an_earlier_one(root: Location) -> None:
    job, other = Job(root), Job(root)
    trigger = job.coordinator.trigger_checkpoint()
    taken = job.answer(trigger)
    assert other.complete() == 2
    with pytest.raises(StateError, match=r"Checkpoint has been subsumed. Another run has completed .*chk-2"):
        job.coordinator.complete(taken)
    assert reason_of(job) is FailureReason.CHECKPOINT_SUBSUMED
    assert listed(other) == [2]
    assert len(names(job.directories.shared)) == 2
    # One that has not completed does not.
    other.coordinator.trigger_checkpoint()
    job.coordinator.set_next_id(1)
    with pytest.raises(StateError, match="subsumed"):
        job.complete()


def test_an_earlier_run_that_has_not_completed_subsumes_nothing(root: Location) -> None:
    job, other = Job(root), Job(root)
    trigger = job.coordinator.trigger_checkpoint()
    other.coordinator.trigger_checkpoint()
    job.coordinator.complete(job.answer(trigger))
    assert listed(job) == [1]


def test_a_directory_that_cannot_be_made_is_an_io_problem(job: Job, tmp_path: Path) -> None:
    (tmp_path / JOB).write_text("a file where the directory of the job goes")
    with pytest.raises(StateError, match="IO-problem detected") as caught:
        job.coordinator.trigger_checkpoint()
    assert reason_of(job) is FailureReason.IO_EXCEPTION
    assert caught.value.details["reason"] == "IO_EXCEPTION"


def test_a_handle_of_a_foreign_file_is_not_published(job: Job, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first, taken = job.answer(job.coordinator.trigger_checkpoint())
    keyed = taken.state.managed_keyed_state
    assert isinstance(keyed, IncrementalRemoteKeyedStateHandle)
    foreign = replace(keyed, meta_data_state=FileStateHandle(f"file:{tmp_path}/elsewhere/x", 1))
    with pytest.raises(StateError, match="outside the directories that this snapshot may name"):
        job.coordinator.complete([first, replace(taken, state=replace(taken.state, managed_keyed_state=foreign))])
    assert reason_of(job) is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert listed(job) == []


# Savepoints


def test_a_savepoint_stands_alone_and_is_never_discarded(job: Job) -> None:
    job.complete()
    trigger = job.coordinator.trigger_savepoint(join(job.root, "savepoints"), SavepointFormatType.NATIVE)
    assert (trigger.checkpoint_id, trigger.shared) == (2, None)
    completed = job.coordinator.complete(job.answer(trigger))
    savepoint = open_snapshot(str(completed.location.directory))
    assert savepoint.kind == "savepoint"
    assert completed.location.directory.name.startswith("savepoint-012345-")
    for _ in range(3):
        job.complete()
    assert not missing_files(savepoint)
    assert listed(job) == [5]


def test_the_newest_checkpoint_stays_beside_savepoints(job: Job) -> None:
    job.complete()
    for _ in range(2):
        job.coordinator.complete(job.answer(job.coordinator.trigger_savepoint(join(job.root, "savepoints"))))
    assert listed(job) == [1]
    assert [each.checkpoint_id for each in job.coordinator.completed.all] == [1, 3]


# Restore


def test_a_restarted_job_goes_on_from_its_latest_checkpoint(root: Location) -> None:
    job = Job(root, replace(KEPT, num_retained=2))
    job.complete()
    job.complete()
    again = Job(root, job.options, tasks=job.tasks)
    restored = again.coordinator.recover()
    assert restored is not None
    assert restored.metadata.checkpoint_id == 2
    for task in again.tasks:
        task.tables.append("000002.sst")
    assert again.complete() == 3
    assert listed(again) == [2, 3]
    assert len(names(again.directories.shared)) == 4
    latest = find_latest_checkpoint(again.directories.job)
    assert latest is not None
    assert latest.metadata.checkpoint_id == 3


def test_a_job_that_never_ran_has_nothing_to_recover(job: Job) -> None:
    assert job.coordinator.recover() is None
    assert find_latest_checkpoint(job.directories.job) is None
    assert job.complete() == 1


def test_remains_of_a_killed_run_are_neither_listed_nor_used_again(root: Location) -> None:
    job = Job(root)
    job.complete()
    job.answer(job.coordinator.trigger_checkpoint())
    again = Job(root, tasks=job.tasks)
    again.coordinator.recover()
    assert listed(again) == [1]
    assert again.complete() == 3
    assert listed(again) == [3]


def test_nothing_shared_is_deleted_where_a_checkpoint_cannot_be_read(root: Location, tmp_path: Path) -> None:
    job = Job(root, replace(KEPT, num_retained=3))
    for _ in range(2):
        job.complete()
    broken = tmp_path / JOB / "chk-1" / "_metadata"
    broken.write_bytes(b"broken")
    again = Job(root, replace(KEPT, num_retained=1), tasks=job.tasks)
    again.coordinator.recover()
    before = set(names(again.directories.shared))
    trigger = again.coordinator.trigger_checkpoint()
    again.coordinator.complete([task.take(trigger) for task in again.tasks])
    assert before < set(names(again.directories.shared))
    assert broken.exists()
    assert "cannot be read" in again.coordinator.files.frozen_by


def test_an_unreadable_newest_checkpoint_is_an_error_not_an_older_one(job: Job, tmp_path: Path) -> None:
    job.complete()
    (tmp_path / JOB / "chk-9").mkdir()
    (tmp_path / JOB / "chk-9" / "_metadata").write_bytes(b"broken")
    with pytest.raises(StateError, match="not a _metadata file"):
        find_latest_checkpoint(job.directories.job)


OTHER = "f" * 32


def make_snapshot(root: Location, retained: int = 1) -> Job:
    """A job that has ended with its third checkpoint."""
    job = Job(root, replace(KEPT, num_retained=retained), job_id=OTHER)
    for _ in range(3):
        job.complete()
    return job


def test_a_claimed_checkpoint_is_discarded_when_nothing_needs_it(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))), ClaimMode.CLAIM)
    for task in job.tasks:
        task.tables.append("000002.sst")
    assert job.complete() == 4
    # Its tables are still referenced, its own files are gone.
    assert listed(old) == []
    assert names(old.directories.job) == ["shared"]
    assert listed(job) == [4]
    for task in job.tasks:
        task.tables = ["000003.sst"]
    assert job.complete() == 5
    assert names(old.directories.shared) == []
    assert listed(job) == [5]


def test_discarding_a_claimed_checkpoint_spares_those_beside_it(root: Location) -> None:
    old = make_snapshot(root, retained=2)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))), ClaimMode.CLAIM)
    for task in job.tasks:
        task.tables = ["000003.sst"]
    job.complete()
    assert listed(old) == [2]


def test_a_snapshot_that_is_not_claimed_is_never_touched_nor_referenced(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))))
    for number in (4, 5, 6):
        trigger = job.coordinator.trigger_checkpoint()
        assert is_full(trigger.properties) == (number == 4)
        job.coordinator.complete(job.answer(trigger))
    assert listed(old) == [3]
    assert listed(job) == [6]
    assert len(names(job.directories.shared)) == 2
    metadata = open_snapshot(str(job.directories.checkpoint(6))).metadata
    assert isinstance(metadata.properties, CheckpointProperties)
    assert metadata.properties.checkpoint_type.name == "Checkpoint"


def test_the_first_checkpoint_stays_full_until_one_completes(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))))
    job.coordinator.trigger_checkpoint()
    job.coordinator.abort(FailureReason.CHECKPOINT_DECLINED)
    assert is_full(job.coordinator.trigger_checkpoint().properties)


def test_a_table_of_a_snapshot_that_is_not_claimed_is_not_published(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))))
    trigger = replace(job.coordinator.trigger_checkpoint(), properties=make_properties())
    with pytest.raises(StateError, match="would not be self-contained"):
        job.coordinator.complete([task.take(trigger, 3) for task in job.tasks])
    assert reason_of(job) is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert listed(old) == [3]


def test_a_claimed_native_savepoint_stays_while_its_files_are_referenced(root: Location) -> None:
    old = make_snapshot(root)
    savepoints = Job(root, job_id=OTHER, tasks=old.tasks)
    savepoints.coordinator.recover()
    trigger = savepoints.coordinator.trigger_savepoint(join(root, "savepoints"), SavepointFormatType.NATIVE)
    completed = savepoints.coordinator.complete(savepoints.answer(trigger))
    savepoint = open_snapshot(str(completed.location.directory))
    job = Job(root)
    job.coordinator.restore(savepoint, ClaimMode.CLAIM)
    job.complete()
    assert listed(job) == [5]
    assert names(join(root, "savepoints")) == []
