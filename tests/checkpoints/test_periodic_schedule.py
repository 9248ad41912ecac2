"""The interval and the pause between the checkpoints of a stream."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.coordinator import FailureReason, PeriodicSchedule
from tests.checkpoints.tasks import Hands

if TYPE_CHECKING:
    import pytest


def test_the_first_checkpoint_starts_at_once_and_the_next_ones_after_the_interval() -> None:
    hands = Hands()
    schedule = PeriodicSchedule(100, 0, hands.clock)
    starts = []
    # The second one is quick, the third one takes longer than the interval.
    for duration in (30, 10, 250, 0):
        assert schedule.wait_for_start() == 0
        starts.append(hands.now)
        hands.now += duration
        schedule.note_completion()
    assert starts == [0, 100, 200, 450]


def test_the_pause_counts_from_the_completion(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    schedule = PeriodicSchedule(100, 80, hands.clock)
    caplog.set_level(logging.INFO)
    schedule.wait_for_start()
    hands.now += 90
    schedule.note_completion()
    assert not caplog.messages
    assert schedule.wait_for_start() == 70
    assert hands.now == 170
    assert caplog.messages == [FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message]


def test_a_failed_checkpoint_needs_no_pause() -> None:
    hands = Hands()
    schedule = PeriodicSchedule(None, 80, hands.clock)
    schedule.wait_for_start()
    schedule.wait_for_start()
    assert hands.waits == []


def test_without_interval_and_pause_nothing_waits() -> None:
    hands = Hands()
    schedule = PeriodicSchedule(clock=hands.clock)
    for _ in range(3):
        assert schedule.wait_for_start() == 0
        schedule.note_completion()
    assert hands.waits == []
