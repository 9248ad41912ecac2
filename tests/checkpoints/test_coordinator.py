"""The life of checkpoints: triggered, acknowledged, published, subsumed, aborted; files stay while they are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.completed_checkpoints import JobStatus, find_checkpoints, find_latest_checkpoint
from state_pipelines.checkpoints.failure_reasons import CheckpointFailure, FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode, Retention
from state_pipelines.checkpoints.pending_checkpoint import Acknowledgement
from state_pipelines.checkpoints.properties import CheckpointKind
from state_pipelines.checkpoints.requests import MAX_QUEUED, RequestState
from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata import CheckpointProperties, SubtaskState
from state_pipelines.metadata.keyed_handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.metadata.operator_handles import (
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
)
from state_pipelines.metadata.properties import PostCheckpointAction, SavepointFormatType
from state_pipelines.metadata.stream_handles import ByteStreamStateHandle, FileStateHandle
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, list_directory, resolve
from tests.checkpoints.tasks import JOB, OPERATOR, Job, count_calls, missing_files

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.storage import Location

KEPT = CheckpointOptions(incremental=True, retention=Retention.RETAIN_ON_CANCELLATION)


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


def reason_of(failure: CheckpointFailure | None) -> FailureReason:
    assert failure is not None
    return failure.reason


# One checkpoint


def test_a_checkpoint_is_there_when_all_subtasks_have_acknowledged(job: Job) -> None:
    request = job.coordinator.trigger_checkpoint()
    assert (request.state, request.checkpoint_id, listed(job)) == (RequestState.PENDING, 1, [])
    job.answer(1, 0)
    assert listed(job) == []
    job.clock.now = 40
    job.answer(1, 1)
    assert request.state is RequestState.COMPLETED
    assert listed(job) == [1]
    (completed,) = job.coordinator.completed.all
    assert (completed.duration, completed.state_size) == (40, 22)
    assert job.owner.calls == [("trigger", 1), ("complete", 1)]


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


def test_unknown_subtasks_and_checkpoints_are_refused(job: Job) -> None:
    job.coordinator.trigger_checkpoint()
    with pytest.raises(UsageError, match="does not wait for subtask 7"):
        job.coordinator.acknowledge(TaskCheckpoint(1, OPERATOR.operator_id, SubtaskState(7)))
    with pytest.raises(UsageError, match="checkpoint 5 was not triggered"):
        job.coordinator.acknowledge(TaskCheckpoint(5, OPERATOR.operator_id, SubtaskState(0)))


def test_a_subtask_that_runs_twice_counts_once(job: Job) -> None:
    job.coordinator.trigger_checkpoint()
    task, trigger = job.tasks[0], job.owner.triggers[1]
    first = task.take(trigger)
    assert job.coordinator.acknowledge(first) is Acknowledgement.SUCCESS
    assert job.coordinator.acknowledge(first) is Acknowledgement.DUPLICATE
    assert job.coordinator.acknowledge(task.take(trigger)) is Acknowledgement.DUPLICATE
    job.answer(1, 1)
    (operator,) = open_snapshot(str(job.directories.checkpoint(1))).metadata.operator_states
    assert operator.subtasks[0] == first.state
    # The attempt that lives on takes its own tables for the base.
    assert job.complete() == 2
    assert listed(job) == [2]


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


def test_checkpoints_are_retained_as_many_as_the_options_say(root: Location) -> None:
    job = Job(root, replace(KEPT, num_retained=3))
    for number in range(1, 6):
        for task in job.tasks:
            task.tables = [f"{each:06}.sst" for each in range(number, number + 3)]
        job.complete()
    assert listed(job) == [3, 4, 5]
    assert len(names(job.directories.shared)) == 2 * 5
    assert count_calls(job.owner)["subsumed"] == [1, 2]


def test_a_full_checkpoint_has_no_base(job: Job) -> None:
    job.complete()
    job.coordinator.trigger_checkpoint(CheckpointKind.FULL)
    assert job.owner.triggers[2].base_id is None
    job.answer(2)
    job.coordinator.trigger_checkpoint(CheckpointKind.INCREMENTAL)
    assert job.owner.triggers[3].base_id == 2
    assert len(names(job.directories.shared)) == 2


def test_without_increments_there_is_no_base(root: Location) -> None:
    job = Job(root, replace(KEPT, incremental=False))
    job.complete()
    job.coordinator.trigger_checkpoint()
    assert job.owner.triggers[2].base_id is None


def test_files_stay_while_a_pending_checkpoint_may_reference_them(root: Location) -> None:
    job = Job(root, replace(KEPT, max_concurrent=2))
    job.coordinator.trigger_checkpoint()
    job.coordinator.trigger_checkpoint()
    job.answer(1)
    # The third is based on the first, the second, taken before, is not.
    job.coordinator.trigger_checkpoint()
    assert job.owner.triggers[3].base_id == 1
    job.answer(2)
    assert listed(job) == [2]
    job.answer(3)
    assert listed(job) == [3]
    assert len(names(job.directories.shared)) == 2


# Failures


def test_a_declined_checkpoint_leaves_nothing_and_fails_the_job(job: Job) -> None:
    request = job.coordinator.trigger_checkpoint()
    job.answer(1, 0)
    assert job.coordinator.decline(1, FailureReason.CHECKPOINT_ASYNC_EXCEPTION, "the disk is full")
    assert request.failure == CheckpointFailure(FailureReason.CHECKPOINT_ASYNC_EXCEPTION, 1, "the disk is full")
    assert names(job.directories.job) == ["shared"]
    assert names(job.directories.shared) == []
    assert count_calls(job.owner)["aborted"] == [1]
    assert job.owner.failed == [
        "Exceeded checkpoint tolerable failure threshold. Asynchronous task checkpoint failed. the disk is full"
    ]


@pytest.mark.parametrize("reason", [each for each in FailureReason if each.is_preflight or each.impossible])
def test_a_task_declines_only_with_reasons_of_tasks(job: Job, reason: FailureReason) -> None:
    with pytest.raises(UsageError, match=reason.name):
        job.coordinator.decline(1, reason)


def test_a_late_answer_is_ignored_and_its_files_go(job: Job) -> None:
    job.complete()
    job.coordinator.trigger_checkpoint()
    for task in job.tasks:
        task.tables.append("000002.sst")
    late = job.tasks[0].take(job.owner.triggers[2])
    job.coordinator.decline(2, FailureReason.CHECKPOINT_DECLINED)
    assert job.coordinator.acknowledge(late) is Acknowledgement.LATE
    assert not job.coordinator.decline(2, FailureReason.CHECKPOINT_DECLINED)
    assert listed(job) == [1]
    assert len(names(job.directories.shared)) == 2
    assert job.coordinator.acknowledge(replace(late, checkpoint_id=1)) is Acknowledgement.LATE


def test_a_checkpoint_expires(job: Job) -> None:
    request = job.coordinator.trigger_checkpoint()
    job.clock.now = job.options.timeout - 1
    job.coordinator.run_due()
    assert request.state is RequestState.PENDING
    assert job.coordinator.next_due == job.options.timeout
    job.clock.now += 1
    job.coordinator.run_due()
    assert reason_of(request.failure) is FailureReason.CHECKPOINT_EXPIRED
    assert len(job.owner.failed) == 1


def test_a_directory_that_cannot_be_made_is_an_io_problem(job: Job, tmp_path: Path) -> None:
    (tmp_path / JOB).write_text("a file where the directory of the job goes")
    request = job.coordinator.trigger_checkpoint()
    assert reason_of(request.failure) is FailureReason.IO_EXCEPTION
    assert job.owner.failed


def test_a_trigger_that_cannot_be_forwarded(job: Job) -> None:
    job.owner.error = StateError("no worker answers")
    request = job.coordinator.trigger_checkpoint()
    assert request.failure == CheckpointFailure(FailureReason.TRIGGER_CHECKPOINT_FAILURE, 1, "no worker answers")
    assert names(job.directories.job) == []
    assert not job.owner.failed


def test_tasks_that_do_not_run(job: Job) -> None:
    job.owner.running = False
    request = job.coordinator.trigger_checkpoint()
    assert reason_of(request.failure) is FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert request.checkpoint_id is None


def test_a_failed_task_ends_pending_checkpoints(job: Job) -> None:
    request = job.coordinator.trigger_checkpoint()
    waiting = job.coordinator.trigger_checkpoint()
    job.coordinator.fail_tasks("worker 3 is gone")
    assert {reason_of(request.failure), reason_of(waiting.failure)} == {FailureReason.TASK_FAILURE}
    assert not job.owner.failed


def test_a_handle_of_a_foreign_file_is_not_published(job: Job, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    request = job.coordinator.trigger_checkpoint()
    job.answer(1, 0)
    taken = job.tasks[1].take(job.owner.triggers[1])
    keyed = taken.state.managed_keyed_state
    assert isinstance(keyed, IncrementalRemoteKeyedStateHandle)
    foreign = replace(keyed, meta_data_state=FileStateHandle(f"file:{tmp_path}/elsewhere/x", 1))
    job.coordinator.acknowledge(replace(taken, state=replace(taken.state, managed_keyed_state=foreign)))
    assert reason_of(request.failure) is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert "outside the directories that this snapshot may name" in str(request.failure)
    assert listed(job) == []


# Requests


def test_one_checkpoint_at_a_time_and_the_next_one_after_it(job: Job) -> None:
    first, second = job.coordinator.trigger_checkpoint(), job.coordinator.trigger_checkpoint()
    assert (first.state, second.state) == (RequestState.PENDING, RequestState.QUEUED)
    job.answer(1)
    assert second.state is RequestState.PENDING
    assert job.owner.calls == [("trigger", 1), ("complete", 1), ("trigger", 2)]


def test_the_queue_has_a_bound(job: Job) -> None:
    requests = [job.coordinator.trigger_checkpoint() for _ in range(1 + MAX_QUEUED)]
    assert {each.state for each in requests[1:]} == {RequestState.QUEUED}
    refused = job.coordinator.trigger_checkpoint()
    assert reason_of(refused.failure) is FailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    # A savepoint is before all of them, but those of users are retained.
    savepoint = job.coordinator.trigger_savepoint(join(job.root, "savepoints"))
    assert reason_of(savepoint.failure) is FailureReason.TOO_MANY_CHECKPOINT_REQUESTS


def test_periodic_requests_leave_a_full_queue_first(root: Location) -> None:
    job = Job(root, replace(KEPT, interval=10))
    job.coordinator.start_scheduler()
    pending = job.coordinator.trigger_checkpoint()
    periodic = job.coordinator.trigger_checkpoint(is_periodic=True)
    others = [job.coordinator.trigger_checkpoint() for _ in range(MAX_QUEUED)]
    assert pending.state is RequestState.PENDING
    assert reason_of(periodic.failure) is FailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    assert others[-1].state is RequestState.QUEUED


def test_periodic_checkpoints(root: Location) -> None:
    job = Job(root, replace(KEPT, interval=100))
    assert job.coordinator.next_due is None
    job.coordinator.start_scheduler()
    for now in (99, 100, 150, 200, 555):
        job.clock.now = now
        job.coordinator.run_due()
        for number in list(job.coordinator.pending):
            job.answer(number)
    assert count_calls(job.owner)["complete"] == [1, 2, 3]
    assert job.coordinator.next_due == 600
    job.coordinator.stop_scheduler()
    job.clock.now = 700
    job.coordinator.run_due()
    assert count_calls(job.owner)["complete"] == [1, 2, 3]
    late = job.coordinator.trigger_checkpoint(is_periodic=True)
    assert reason_of(late.failure) is FailureReason.PERIODIC_SCHEDULER_SHUTDOWN


def test_a_scheduler_needs_an_interval(job: Job) -> None:
    with pytest.raises(UsageError, match="there is no interval"):
        job.coordinator.start_scheduler()


def test_the_pause_counts_from_the_end_of_a_checkpoint(root: Location) -> None:
    job = Job(root, replace(KEPT, interval=100, min_pause=80))
    job.coordinator.start_scheduler()
    job.clock.now = 100
    job.coordinator.run_due()
    job.clock.now = 190
    job.answer(1)
    job.clock.now = 200
    job.coordinator.run_due()
    assert reason_of(job.coordinator.failures.last) is FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert job.coordinator.next_due == 270
    # Users need not wait.
    assert job.coordinator.trigger_checkpoint().state is RequestState.PENDING
    job.answer(2)
    job.clock.now = 280
    job.coordinator.run_due()
    assert list(job.coordinator.pending) == [3]


def test_suspending_ends_pending_checkpoints(root: Location) -> None:
    job = Job(root, replace(KEPT, interval=100))
    job.coordinator.start_scheduler()
    request = job.coordinator.trigger_checkpoint()
    job.coordinator.stop_scheduler()
    assert reason_of(request.failure) is FailureReason.CHECKPOINT_COORDINATOR_SUSPEND


def test_a_later_checkpoint_ends_an_earlier_one(root: Location) -> None:
    job = Job(root, replace(KEPT, max_concurrent=2))
    first = job.coordinator.trigger_checkpoint()
    job.coordinator.trigger_checkpoint()
    job.answer(1, 0)
    job.answer(2)
    assert reason_of(first.failure) is FailureReason.CHECKPOINT_SUBSUMED
    assert listed(job) == [2]
    assert len(names(job.directories.shared)) == 2


# Savepoints


def test_a_savepoint_stands_alone_and_is_never_discarded(job: Job) -> None:
    job.complete()
    request = job.coordinator.trigger_savepoint(join(job.root, "savepoints"), SavepointFormatType.NATIVE)
    assert request.checkpoint_id == 2
    assert job.owner.triggers[2].shared is None
    job.answer(2)
    assert request.location is not None
    savepoint = open_snapshot(str(request.location.directory))
    assert savepoint.kind == "savepoint"
    assert request.location.directory.name.startswith("savepoint-012345-")
    for _ in range(3):
        job.complete()
    assert not missing_files(savepoint)
    assert listed(job) == [5]
    assert ("complete", 2) not in job.owner.calls


def test_a_savepoint_does_not_wait_nor_end_a_pending_checkpoint(job: Job) -> None:
    checkpoint = job.coordinator.trigger_checkpoint()
    savepoint = job.coordinator.trigger_savepoint(join(job.root, "savepoints"))
    assert sorted(job.coordinator.pending) == [1, 2]
    job.answer(2)
    assert savepoint.state is RequestState.COMPLETED
    job.answer(1)
    assert checkpoint.state is RequestState.COMPLETED


def test_the_newest_checkpoint_stays_beside_savepoints(job: Job) -> None:
    job.complete()
    for number in (2, 3):
        job.coordinator.trigger_savepoint(join(job.root, "savepoints"))
        job.answer(number)
    assert listed(job) == [1]
    assert [each.checkpoint_id for each in job.coordinator.completed.all] == [1, 3]


def test_a_job_that_stops_with_a_savepoint_needs_no_checkpoint(job: Job) -> None:
    job.complete()
    job.coordinator.trigger_savepoint(join(job.root, "savepoints"), action=PostCheckpointAction.SUSPEND)
    job.answer(2)
    assert listed(job) == []
    assert ("complete", 2) in job.owner.calls


def test_failures_of_savepoints_count_only_where_a_task_caused_them(job: Job) -> None:
    job.coordinator.trigger_savepoint(join(job.root, "savepoints"))
    job.clock.now = job.options.timeout
    job.coordinator.run_due()
    assert not job.owner.failed
    job.coordinator.trigger_savepoint(join(job.root, "savepoints"))
    job.coordinator.decline(2, FailureReason.CHECKPOINT_DECLINED)
    assert len(job.owner.failed) == 1


def test_a_job_that_would_stop_fails_with_its_savepoint(root: Location) -> None:
    job = Job(root, replace(KEPT, tolerable_failures=9))
    job.coordinator.trigger_savepoint(join(job.root, "savepoints"), action=PostCheckpointAction.TERMINATE)
    job.coordinator.decline(1, FailureReason.CHECKPOINT_DECLINED, "sums: 1 / 0")
    assert job.owner.failed == ["Checkpoint was declined. sums: 1 / 0"]


def test_a_savepoint_needs_a_directory(root: Location, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory of savepoints"):
        Job(root).coordinator.trigger_savepoint()
    job = Job(root, replace(KEPT, savepoint_directory=str(tmp_path / "default")))
    job.coordinator.trigger_savepoint()
    job.answer(1)
    assert len([*(tmp_path / "default").iterdir()]) == 1


# Finished tasks


def test_finished_subtasks_are_not_waited_for(job: Job) -> None:
    job.coordinator.finish_task(OPERATOR.operator_id, 0)
    request = job.coordinator.trigger_checkpoint()
    job.answer(1, 1)
    assert request.state is RequestState.COMPLETED
    (operator,) = open_snapshot(str(job.directories.checkpoint(1))).metadata.operator_states
    assert [each.finished for each in operator.subtasks] == [True, False]


def test_an_operator_whose_subtasks_have_all_finished(job: Job) -> None:
    for subtask in (0, 1):
        job.coordinator.finish_task(OPERATOR.operator_id, subtask)
    assert job.coordinator.trigger_checkpoint().state is RequestState.COMPLETED
    (operator,) = open_snapshot(str(job.directories.checkpoint(1))).metadata.operator_states
    assert operator.fully_finished


def test_no_checkpoints_after_tasks_finish_where_the_options_say_so(root: Location) -> None:
    job = Job(root, replace(KEPT, after_tasks_finish=False))
    job.coordinator.finish_task(OPERATOR.operator_id, 0)
    request = job.coordinator.trigger_checkpoint()
    assert reason_of(request.failure) is FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING


def test_union_state_of_half_finished_subtasks_is_declined(job: Job) -> None:
    job.coordinator.finish_task(OPERATOR.operator_id, 0)
    request = job.coordinator.trigger_checkpoint()
    states = (OperatorStateMetaInfo("offsets", OperatorStateMode.UNION, (0,)),)
    handle = OperatorStreamStateHandle(states, ByteStreamStateHandle("u", b"1"))
    state = SubtaskState(1, managed_operator_state=handle)
    job.coordinator.acknowledge(TaskCheckpoint(1, OPERATOR.operator_id, state))
    assert reason_of(request.failure) is FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
    assert "has used UnionListState, but part of its tasks are FINISHED" in str(request.failure)


# The end of the job


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention.NO_EXTERNALIZED_CHECKPOINTS, set()),
        (Retention.DELETE_ON_CANCELLATION, {JobStatus.FAILED}),
        (Retention.RETAIN_ON_CANCELLATION, {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.SUSPENDED}),
    ],
)
@pytest.mark.parametrize("status", JobStatus)
def test_checkpoints_outlive_the_job_as_the_retention_says(
    root: Location, retention: Retention, kept: set[JobStatus], status: JobStatus
) -> None:
    job = Job(root, replace(KEPT, retention=retention, num_retained=2))
    job.complete()
    job.complete()
    pending = job.coordinator.trigger_checkpoint()
    job.coordinator.shut_down(status)
    job.coordinator.shut_down(status)
    assert reason_of(pending.failure) is FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert listed(job) == ([1, 2] if status in kept else [])
    assert len(names(job.directories.shared)) == (2 if status in kept else 0)
    refused = job.coordinator.trigger_checkpoint()
    assert reason_of(refused.failure) is FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN


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
    job.coordinator.trigger_checkpoint()
    job.answer(2, 0)
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
    again.coordinator.trigger_checkpoint(CheckpointKind.FULL)
    again.answer(3)
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
    job.coordinator.shut_down(JobStatus.CANCELED)
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
        job.coordinator.trigger_checkpoint()
        assert (job.owner.triggers[number].base_id is None) == (number == 4)
        job.answer(number)
    assert listed(old) == [3]
    assert listed(job) == [6]
    assert len(names(job.directories.shared)) == 2
    metadata = open_snapshot(str(job.directories.checkpoint(6))).metadata
    assert isinstance(metadata.properties, CheckpointProperties)
    assert metadata.properties.checkpoint_type.name == "Checkpoint"


def test_the_first_checkpoint_stays_full_until_one_completes(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, replace(KEPT, tolerable_failures=3), tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))))
    job.coordinator.trigger_checkpoint()
    job.coordinator.decline(4, FailureReason.CHECKPOINT_DECLINED)
    job.coordinator.trigger_checkpoint()
    assert job.owner.triggers[5].properties.checkpoint_type.name == "Full Checkpoint"


def test_a_table_of_a_snapshot_that_is_not_claimed_is_not_published(root: Location) -> None:
    old = make_snapshot(root)
    job = Job(root, tasks=old.tasks)
    job.coordinator.restore(open_snapshot(str(old.directories.checkpoint(3))))
    request = job.coordinator.trigger_checkpoint()
    for task in job.tasks:
        job.coordinator.acknowledge(task.take(replace(job.owner.triggers[4], base_id=3)))
    assert reason_of(request.failure) is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert listed(old) == [3]


def test_a_claimed_native_savepoint_stays_while_its_files_are_referenced(root: Location) -> None:
    old = make_snapshot(root)
    savepoints = Job(root, job_id=OTHER, tasks=old.tasks)
    savepoints.coordinator.recover()
    request = savepoints.coordinator.trigger_savepoint(join(root, "savepoints"), SavepointFormatType.NATIVE)
    savepoints.answer(4)
    assert request.location is not None
    savepoint = open_snapshot(str(request.location.directory))
    job = Job(root)
    job.coordinator.restore(savepoint, ClaimMode.CLAIM)
    job.complete()
    assert listed(job) == [5]
    assert names(join(root, "savepoints")) == []
