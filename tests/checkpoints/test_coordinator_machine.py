"""Any order of checkpoints, failures and restarts, against a model of Flink's rules."""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from state_pipelines.checkpoints.completed_checkpoints import find_checkpoints, list_files
from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions
from state_pipelines.errors import StateError
from state_pipelines.metadata.checkpoint import SavepointFormatType
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import SnapshotLocation, is_directory, join, list_directory, resolve
from tests.checkpoints.tasks import OPERATOR, Job, missing_files

OPTIONS = CheckpointOptions(incremental=True, num_retained=2, timeout=1_000)
DECLINES = (FailureReason.CHECKPOINT_DECLINED, FailureReason.CHECKPOINT_ASYNC_EXCEPTION, FailureReason.TASK_FAILURE)


class CoordinatorMachine(RuleBasedStateMachine):
    """The model: the retained ids, the savepoints, the next id."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.root = resolve(self.directory.name)
        self.job = Job(join(self.root, "checkpoints"), OPTIONS)
        self.retained: list[tuple[int, bool]] = []
        self.savepoints: list[SnapshotLocation] = []
        self.next_id = 1
        self.has_orphans = False

    def teardown(self) -> None:
        self.directory.cleanup()

    # The model

    def open(self) -> int:
        number, self.next_id = self.next_id, self.next_id + 1
        return number

    def retain(self, number: int, *, is_savepoint: bool) -> None:
        self.retained.append((number, is_savepoint))
        newest = max((each for each, is_savepoint in self.retained if not is_savepoint), default=0)
        for each in list(self.retained[:-1]):
            if len(self.retained) > OPTIONS.num_retained and each[0] != newest:
                self.retained.remove(each)

    # Steps

    @rule()
    def complete(self) -> None:
        assert self.job.complete() == self.next_id
        self.retain(self.open(), is_savepoint=False)

    @rule()
    def take_savepoint(self) -> None:
        trigger = self.job.coordinator.trigger_savepoint(join(self.root, "savepoints"), SavepointFormatType.NATIVE)
        completed = self.job.coordinator.complete(self.job.answer(trigger))
        assert completed.checkpoint_id == self.next_id
        self.savepoints.append(completed.location)
        self.retain(self.open(), is_savepoint=True)

    @rule(subtask=st.integers(0, 1), table=st.integers(1, 5))
    def change(self, subtask: int, table: int) -> None:
        name, tables = f"{table:06}.sst", self.job.tasks[subtask].tables
        tables.remove(name) if name in tables else tables.append(name)

    @rule(reason=st.sampled_from(DECLINES), is_answered=st.booleans())
    def decline(self, reason: FailureReason, is_answered: bool) -> None:
        trigger = self.job.coordinator.trigger_checkpoint()
        if is_answered:
            self.job.answer(trigger)
            self.has_orphans = True
        self.job.coordinator.abort(reason)
        self.open()

    @rule()
    def expire(self) -> None:
        first, second = self.job.answer(self.job.coordinator.trigger_checkpoint())
        with pytest.raises(StateError, match="Checkpoint expired before completing"):
            self.job.coordinator.complete([replace(first, millis=OPTIONS.timeout), second])
        self.open()

    @rule(is_pending=st.booleans())
    def restart(self, is_pending: bool) -> None:
        """The process was killed: what was pending is gone, its remains are not used again."""
        before = self.job
        if is_pending:
            before.answer(before.coordinator.trigger_checkpoint())
            self.has_orphans = True
        self.job = Job(before.root, OPTIONS, tasks=before.tasks)
        restored = self.job.coordinator.recover()
        checkpoints = [number for number, is_savepoint in self.retained if not is_savepoint]
        assert (restored.metadata.checkpoint_id if restored else 0) == max(checkpoints, default=0)
        self.retained = [(number, False) for number in checkpoints]
        self.next_id = self.job.directories.find_last_id() + 1

    # What always holds

    @invariant()
    def retained_ones_are_listed_and_whole(self) -> None:
        assert self.job.coordinator.pending is None
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

    @invariant()
    def no_file_is_left_over(self) -> None:
        found, _ = find_checkpoints(self.job.directories.job)
        needed = {file for each in found for file in list_files(each.metadata, each.location.directory)}
        shared = self.job.directories.shared
        files = {each.location for each in list_directory(shared)} if is_directory(shared) else set()
        # What a killed or failed run has left is for retention.
        assert self.has_orphans or files == {file for file in needed if file.path.startswith(shared.path)}


TestCoordinatorMachine = pytest.mark.slow(CoordinatorMachine.TestCase)
TestCoordinatorMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
