"""Reasons of failures in Flink's words, and the counter that fails a job."""

from __future__ import annotations

import pytest

from state_pipelines.checkpoints.failure_reasons import CheckpointFailure, FailureCounter, FailureReason

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


def fail(counter: FailureCounter, number: int | None, reason: FailureReason = FailureReason.CHECKPOINT_EXPIRED) -> bool:
    return counter.fail(CheckpointFailure(reason, number))


def test_the_failure_after_the_tolerable_ones_fails_the_job() -> None:
    counter = FailureCounter(2)
    assert [fail(counter, number) for number in (1, 2, 3)] == [False, False, True]
    # The counter starts again.
    assert not fail(counter, 4)


def test_a_success_forgets_failures_and_ignores_those_before_it() -> None:
    counter = FailureCounter(1)
    assert not fail(counter, 1)
    counter.succeed(3)
    assert counter.count == 0
    assert not fail(counter, 2)
    assert counter.count == 0
    assert not fail(counter, 4)
    assert fail(counter, 5)


def test_an_older_success_forgets_nothing() -> None:
    counter = FailureCounter(5)
    counter.succeed(3)
    fail(counter, 4)
    counter.succeed(2)
    assert counter.count == 1


def test_a_checkpoint_counts_once_and_one_without_id_each_time() -> None:
    counter = FailureCounter(5)
    for number in (1, 1, None, None):
        fail(counter, number, FailureReason.IO_EXCEPTION)
    assert counter.count == 3


def test_other_reasons_do_not_count() -> None:
    counter = FailureCounter(0)
    assert not any(fail(counter, None, each) for each in FailureReason if not each.counts)
    assert counter.count == 0
