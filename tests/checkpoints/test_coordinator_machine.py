"""Any order of triggers, answers, failures, pauses and restarts, against a model of Flink's rules."""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state_pipelines.checkpoints.completed_checkpoints import find_checkpoints
from state_pipelines.checkpoints.failure_reasons import FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions, Retention
from state_pipelines.checkpoints.pending_checkpoint import Acknowledgement
from state_pipelines.checkpoints.properties import CheckpointKind
from state_pipelines.checkpoints.shared_files import list_files
from state_pipelines.metadata.properties import SavepointFormatType
from state_pipelines.snapshot.opening import open_location
from state_pipelines.storage import SnapshotLocation, is_directory, join, list_directory, resolve
from tests.checkpoints.tasks import OPERATOR, Job, missing_files

if TYPE_CHECKING:
    from state_pipelines.checkpoints.requests import CheckpointRequest

OPTIONS = CheckpointOptions(
    incremental=True,
    retention=Retention.RETAIN_ON_CANCELLATION,
    num_retained=2,
    max_concurrent=2,
    timeout=1_000,
    tolerable_failures=1_000_000,
)
DECLINES = (FailureReason.CHECKPOINT_DECLINED, FailureReason.CHECKPOINT_ASYNC_EXCEPTION, FailureReason.TASK_FAILURE)


class CoordinatorMachine(RuleBasedStateMachine):
    """The model: pending ids with their missing subtasks, the retained ids, the savepoints."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.root = resolve(self.directory.name)
        self.job = Job(join(self.root, "checkpoints"), OPTIONS)
        self.missing: dict[int, set[int]] = {}
        self.triggered: dict[int, int] = {}
        self.waiting = 0
        self.retained: list[tuple[int, bool]] = []
        self.savepoints: list[SnapshotLocation] = []
        self.requests: dict[int, CheckpointRequest] = {}
        self.ended: list[int] = []
        self.kinds: dict[int, bool] = {}
        self.next_id = 1
        self.has_orphans = False

    def teardown(self) -> None:
        self.directory.cleanup()

    # The model

    def open(self, *, is_savepoint: bool) -> int:
        number, self.next_id = self.next_id, self.next_id + 1
        self.missing[number] = {0, 1}
        self.triggered[number] = self.job.clock.now
        self.kinds[number] = is_savepoint
        return number

    def fill(self) -> None:
        while self.waiting and len(self.missing) < OPTIONS.max_concurrent:
            self.waiting -= 1
            self.open(is_savepoint=False)

    def end(self, number: int) -> None:
        del self.missing[number]
        self.ended.append(number)

    def complete(self, number: int) -> None:
        del self.missing[number]
        self.retained.append((number, self.kinds[number]))
        if not self.kinds[number]:
            for older in [each for each in self.missing if each < number and not self.kinds[each]]:
                self.end(older)
        newest = max((each for each, is_savepoint in self.retained if not is_savepoint), default=0)
        for each in list(self.retained[:-1]):
            if len(self.retained) > OPTIONS.num_retained and each[0] != newest:
                self.retained.remove(each)

    # Steps

    @rule(kind=st.sampled_from(CheckpointKind))
    def trigger(self, kind: CheckpointKind) -> None:
        self.job.coordinator.trigger_checkpoint(kind)
        self.waiting += 1
        self.fill()

    @rule()
    def trigger_savepoint(self) -> None:
        request = self.job.coordinator.trigger_savepoint(join(self.root, "savepoints"), SavepointFormatType.NATIVE)
        number = self.open(is_savepoint=True)
        assert request.checkpoint_id == number
        self.requests[number] = request

    @rule(subtask=st.integers(0, 1), table=st.integers(1, 5))
    def change(self, subtask: int, table: int) -> None:
        name, tables = f"{table:06}.sst", self.job.tasks[subtask].tables
        tables.remove(name) if name in tables else tables.append(name)

    @precondition(lambda self: self.missing)
    @rule(data=st.data(), subtask=st.integers(0, 1))
    def acknowledge(self, data: st.DataObject, subtask: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.missing)))
        answer = self.job.coordinator.acknowledge(self.job.tasks[subtask].take(self.job.owner.triggers[number]))
        assert (answer is Acknowledgement.SUCCESS) == (subtask in self.missing[number])
        self.has_orphans |= answer is Acknowledgement.DUPLICATE
        self.missing[number].discard(subtask)
        if not self.missing[number]:
            if self.kinds[number]:
                location = self.requests[number].location
                assert location is not None
                self.savepoints.append(location)
            self.complete(number)
            self.fill()

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), subtask=st.integers(0, 1))
    def acknowledge_late(self, data: st.DataObject, subtask: int) -> None:
        number = data.draw(st.sampled_from(self.ended))
        if number in self.job.owner.triggers:
            taken = self.job.tasks[subtask].take(self.job.owner.triggers[number])
            assert self.job.coordinator.acknowledge(taken) is Acknowledgement.LATE

    @precondition(lambda self: self.missing)
    @rule(data=st.data(), reason=st.sampled_from(DECLINES))
    def decline(self, data: st.DataObject, reason: FailureReason) -> None:
        number = data.draw(st.sampled_from(sorted(self.missing)))
        assert self.job.coordinator.decline(number, reason)
        self.end(number)
        self.fill()

    @rule(millis=st.integers(1, 600))
    def wait(self, millis: int) -> None:
        self.job.clock.now += millis
        self.job.coordinator.run_due()
        for number in list(self.missing):
            if self.triggered[number] + OPTIONS.timeout <= self.job.clock.now:
                self.end(number)
                self.fill()

    @rule()
    def restart(self) -> None:
        """The process was killed: what was pending is gone, its remains are not used again."""
        before, self.has_orphans = self.job, True
        self.job = Job(before.root, replace(OPTIONS), clock=before.clock, tasks=before.tasks)
        restored = self.job.coordinator.recover()
        checkpoints = [number for number, is_savepoint in self.retained if not is_savepoint]
        assert (restored.metadata.checkpoint_id if restored else 0) == max(checkpoints, default=0)
        self.retained = [(number, False) for number in checkpoints]
        self.missing, self.waiting, self.ended = {}, 0, []
        self.next_id = self.job.directories.find_last_id() + 1

    # What always holds

    @invariant()
    def pending_ones_are_those_of_the_model(self) -> None:
        found = {number: {place[1] for place in each.awaiting} for number, each in self.job.coordinator.pending.items()}
        assert found == self.missing
        assert len(self.job.coordinator.queue) == self.waiting
        assert all(each.checkpoint_id in self.missing for each in self.job.coordinator.pending.values())

    @invariant()
    def retained_ones_are_listed_and_whole(self) -> None:
        assert [each.checkpoint_id for each in self.job.coordinator.completed.all] == [
            each for each, _ in self.retained
        ]
        found, unreadable = find_checkpoints(self.job.directories.job)
        assert not unreadable
        wanted = [number for number, is_savepoint in self.retained if not is_savepoint]
        assert [each.metadata.checkpoint_id for each in found] == wanted
        assert all(not missing_files(each) for each in found)
        assert all(each.metadata.operator_states[0].operator_id == OPERATOR.operator_id for each in found)

    @invariant()
    def savepoints_stay(self) -> None:
        assert all(not missing_files(open_location(each)) for each in self.savepoints)

    @precondition(lambda self: not self.missing and not self.waiting)
    @invariant()
    def no_file_is_left_over(self) -> None:
        found, _ = find_checkpoints(self.job.directories.job)
        needed = {file for each in found for file in list_files(each.metadata, each.location.directory)}
        shared = self.job.directories.shared
        files = {each.location for each in list_directory(shared)} if is_directory(shared) else set()
        # What a killed run, or a second attempt of a subtask, has left is for retention.
        assert self.has_orphans or files == {file for file in needed if file.path.startswith(shared.path)}


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
