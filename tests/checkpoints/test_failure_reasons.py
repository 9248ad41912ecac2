"""Reasons of failures in Flink's words, and the counter that fails a job."""

from __future__ import annotations

from pathlib import Path

import pytest

import state_pipelines
from state_pipelines.checkpoints.coordinator import CheckpointFailure, FailureCounter, FailureReason

PACKAGE = Path(state_pipelines.__file__).parent
COUNTED = {
    "IO_EXCEPTION",
    "CHECKPOINT_ASYNC_EXCEPTION",
    "CHECKPOINT_EXPIRED",
    "CHECKPOINT_DECLINED",
    "FINALIZE_CHECKPOINT_FAILURE",
}
PREFLIGHT = {
    "PERIODIC_SCHEDULER_SHUTDOWN",
    "TOO_MANY_CHECKPOINT_REQUESTS",
    "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
    "NOT_ALL_REQUIRED_TASKS_RUNNING",
    "IO_EXCEPTION",
    "BLOCKING_OUTPUT_EXIST",
}


def test_reasons_count_and_stop_as_in_flink() -> None:
    assert len(FailureReason) == 24
    assert {each.name for each in FailureReason if each.counts} == COUNTED
    assert {each.name for each in FailureReason if each.is_preflight} == PREFLIGHT


@pytest.mark.parametrize("reason", FailureReason, ids=lambda reason: reason.name)
def test_every_reason_has_a_cause_and_a_remedy_of_one_sentence(reason: FailureReason) -> None:
    for text in (reason.cause, reason.remedy, *([reason.impossible] if reason.impossible else [])):
        assert text[0].isupper()
        assert text.endswith(".")
    described = CheckpointFailure(reason, 3, "the disk is full").describe()
    assert described["reason"] == reason.name
    assert described["message"] == f"{reason.message} the disk is full"


def expire(counter: FailureCounter, number: int | None) -> bool:
    return counter.is_tolerable(CheckpointFailure(FailureReason.CHECKPOINT_EXPIRED, number))


def test_the_failure_after_the_tolerable_ones_fails_the_job() -> None:
    counter = FailureCounter(2)
    assert [expire(counter, number) for number in (1, 2, 3)] == [True, True, False]
    assert [each.checkpoint_id for each in counter.tolerated] == [1, 2]


def test_what_flink_does_not_count_ends_a_run() -> None:
    counter = FailureCounter(100)
    goes_on = {each.name for each in FailureReason if counter.is_tolerable(CheckpointFailure(each, 1))}
    assert goes_on == COUNTED


def test_a_checkpoint_that_may_be_there_is_not_repeated() -> None:
    reason = FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert not FailureCounter(9).is_tolerable(CheckpointFailure(reason, 1, is_in_doubt=True))


ARISES = {
    "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
    "IO_EXCEPTION",
    "CHECKPOINT_ASYNC_EXCEPTION",
    "CHECKPOINT_EXPIRED",
    "CHECKPOINT_SUBSUMED",
    "CHECKPOINT_DECLINED",
    "CHECKPOINT_COORDINATOR_SHUTDOWN",
    "TASK_FAILURE",
    "FINALIZE_CHECKPOINT_FAILURE",
}


def test_a_reason_arises_in_a_run_or_says_why_it_cannot() -> None:
    assert {each.name for each in FailureReason if not each.impossible} == ARISES
    # `flink` explains those of running Flinks.
    ours = (path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "flink"))
    sources = "".join(path.read_text() for path in ours)
    for reason in FailureReason:
        assert (f"FailureReason.{reason.name}" in sources) == (reason.name in ARISES), reason
