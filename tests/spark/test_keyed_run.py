"""The end of a run whose tasks, output or driver fail: Flink's reason, and nothing is left of its checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import CheckpointListener
from state_pipelines.errors import StateError, StorageError
from state_pipelines.spark.keyed_tasks import KeyedRun
from state_pipelines.storage import join, resolve
from tests.checkpoints.tasks import Job

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.checkpoints.coordinator import CheckpointTrigger


class Listener(CheckpointListener):
    def __init__(self) -> None:
        self.aborted: list[int] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        raise AssertionError

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.aborted.append(checkpoint_id)


class Run(KeyedRun):
    """A run whose tasks do what a test says."""

    def __init__(self, job: Job, *, error: BaseException | None = None, deliver: Any = None, tasks: int = 2) -> None:
        self.listener, self.job, self.error, self.tasks = Listener(), job, error, tasks
        task: Any = SimpleNamespace(function=self.listener)
        rows: Any = None
        super().__init__(rows, task, (), job.options, deliver)

    def process(self, snapshot: Any) -> Any:
        trigger: CheckpointTrigger = SimpleNamespace(**vars(snapshot), properties=self.properties)  # type: ignore[assignment]
        taken = [task.take(trigger) for task in self.job.tasks[: self.tasks]]
        if self.error is not None:
            raise self.error
        return None, taken

    def go(self) -> BaseException:
        """Let it fail; the error."""
        trigger = self.job.coordinator.trigger_checkpoint()
        self.properties = trigger.properties
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            self.take(self.job.coordinator, trigger, has_output=False)
        assert self.job.coordinator.pending is None
        assert not join(self.job.directories.job, "chk-1").filesystem.exists(trigger.directory.path)
        return caught.value


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(resolve(str(tmp_path)))


def reason(job: Job) -> str:
    assert job.coordinator.failure is not None
    return job.coordinator.failure.reason.name


def refuse(_: Any) -> None:
    raise ValueError("the table is read-only")


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (StateError("no such page"), "TASK_FAILURE"),
        (StateError("Checkpoint was declined. ZeroDivisionError: no clicks"), "CHECKPOINT_DECLINED"),
        (StorageError("Asynchronous task checkpoint failed. the disk is full"), "CHECKPOINT_ASYNC_EXCEPTION"),
    ],
)
def test_an_error_of_a_task_is_raised_with_the_reason(job: Job, error: StateError, name: str) -> None:
    run = Run(job, error=error)
    raised = run.go()
    assert raised is error
    assert error.details["reason"] == reason(job) == name
    assert run.listener.aborted == [1]


def test_a_subtask_that_has_not_run_is_a_failed_task(job: Job) -> None:
    raised = Run(job, tasks=1).go()
    assert "subtask 1 of sums has not taken its snapshot exactly once" in str(raised)
    assert reason(job) == "TASK_FAILURE"


def test_an_output_may_raise_anything(job: Job) -> None:
    assert isinstance(Run(job, deliver=refuse).go(), ValueError)
    assert reason(job) == "TASK_FAILURE"
    assert "The output failed: ValueError: the table is read-only" in str(job.coordinator.failure)


def test_an_interrupted_driver_shuts_the_coordinator_down(job: Job) -> None:
    assert isinstance(Run(job, error=KeyboardInterrupt()).go(), KeyboardInterrupt)
    assert str(job.coordinator.failure) == "CheckpointCoordinator shutdown. The driver was interrupted."
    assert reason(job) == "CHECKPOINT_COORDINATOR_SHUTDOWN"
