"""Requests of three incremental checkpoints fail once, lose their responses, or are the last ones before a kill.

The ways of a test take turns with the requests.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.completed_checkpoints import find_checkpoints, list_files
from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions
from state_pipelines.errors import StateError
from state_pipelines.storage import Location, is_directory, join, list_directory, locations
from tests.checkpoints.tasks import Job, missing_files
from tests.storages import CountedFileSystem, Fault, LostResponse, empty_counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.snapshot import Snapshot

OPTIONS = CheckpointOptions(incremental=True, num_retained=1)
CHECKPOINTS = 3


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0)
    yield
    CountedFileSystem.rule = None


def start() -> Job:
    root = empty_counted()
    return Job(join(Location(root.filesystem, "/jobs"), "checkpoints"), OPTIONS)


def step(job: Job, number: int) -> None:
    """Take a checkpoint after each task has changed one of its three tables; one that fails is not repeated."""
    for task in job.tasks:
        task.tables = [f"{each:06}.sst" for each in range(number, number + 3)]
    try:
        job.complete()
    except StateError as error:
        if job.coordinator.pending is not None:
            job.coordinator.abort(FailureReason.CHECKPOINT_ASYNC_EXCEPTION, str(error))
        assert job.coordinator.failure is not None


def run(job: Job) -> None:
    for number in range(CHECKPOINTS):
        step(job, number)


def listed(job: Job) -> list[Snapshot]:
    """The checkpoints that a reader finds; each must be whole."""
    CountedFileSystem.rule = None
    found, unreadable = find_checkpoints(job.directories.job)
    assert not unreadable
    for each in found:
        assert not missing_files(each), each
    return found


def list_orphans(job: Job) -> set[Location]:
    """Shared files that no listed checkpoint references."""
    needed = {file for each in listed(job) for file in list_files(each.metadata, each.location.directory)}
    shared = job.directories.shared
    return {each.location for each in list_directory(shared)} - needed if is_directory(shared) else set()


@cache
def count_requests() -> int:
    job = start()
    run(job)
    number = len(CountedFileSystem.requests)
    assert [each.metadata.checkpoint_id for each in listed(job)] == [CHECKPOINTS]
    assert not list_orphans(job)
    return number


def at(wanted: int, fault: Fault) -> Callable[[int, str, str], Fault | None]:
    return lambda number, operation, path: fault if number == wanted else None


def go_on(job: Job) -> None:
    """Two more checkpoints without faults: the last one is listed and whole, and what was left over is gone."""
    newest = max((each.metadata.checkpoint_id for each in listed(job)), default=0)
    assert newest >= max((each.checkpoint_id for each in job.coordinator.completed.all), default=0)
    for number in (CHECKPOINTS, CHECKPOINTS + 1):
        step(job, number)
        assert listed(job)[-1].metadata.checkpoint_id > newest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "first"),
    [(TimeoutError("timed out"), 0), (LostResponse(ConnectionResetError("reset by peer")), 1)],
    ids=["fails", "lost"],
)
def test_a_request_that_may_be_repeated_changes_nothing(fault: Fault, first: int) -> None:
    for number in range(first, count_requests(), 2):
        job = start()
        CountedFileSystem.rule = staticmethod(at(number, fault))
        run(job)
        assert [each.metadata.checkpoint_id for each in listed(job)] == [CHECKPOINTS], number
        assert not list_orphans(job), number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "first"),
    [(OSError(errno.ENOSPC, "no space left"), 0), (LostResponse(PermissionError("the token has expired")), 1)],
    ids=["fails", "done but reported as failed"],
)
def test_a_request_that_fails_costs_one_checkpoint_at_most(fault: Fault, first: int) -> None:
    for number in range(first, count_requests(), 2):
        job = start()
        CountedFileSystem.rule = staticmethod(at(number, fault))
        run(job)
        completed = [each.checkpoint_id for each in job.coordinator.completed.all]
        assert completed in ([CHECKPOINTS], [CHECKPOINTS - 1]), number
        go_on(job)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after it"])
def test_a_killed_run_goes_on_from_its_last_checkpoint(after: bool) -> None:
    kills = 0
    # A kill after a request leaves what one before the next request leaves: each state of the storage is met once.
    for number in range(0, count_requests(), 2):
        job = start()

        def kill(count: int, operation: str, path: str, number: int = number) -> Fault | None:
            if count != number:
                return None
            if after:
                return LostResponse(Killed())
            raise Killed

        CountedFileSystem.rule = staticmethod(kill)
        try:
            run(job)
        except Killed:
            kills += 1
        before = {each.metadata.checkpoint_id for each in listed(job)}
        known = {each.checkpoint_id for each in job.coordinator.completed.all}
        assert not known or before & known or max(before) > max(known), number
        again = Job(job.root, replace(OPTIONS), tasks=job.tasks)
        again.coordinator.recover()
        go_on(again)
    # A request whose answer is that there is no such file has no response to lose.
    assert kills > count_requests() // 4


@pytest.mark.slow
def test_a_storage_that_fails_for_good_removes_nothing() -> None:
    for number in range(0, count_requests(), 2):
        job = start()
        CountedFileSystem.rule = staticmethod(
            lambda count, *_, number=number: OSError(errno.ENOSPC, "no space left") if count >= number else None
        )
        run(job)
        completed = [each.checkpoint_id for each in job.coordinator.completed.all]
        assert set(completed) <= {each.metadata.checkpoint_id for each in listed(job)}, number
        go_on(job)
