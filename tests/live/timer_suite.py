"""Behaviour of timers that every backend and every restore operation keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends.keyed_backend import InternalTimer, TimeDomain, TimerQueue, timer_state_name
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers.build import TIME_WINDOW, VOID_NAMESPACE
from tests.live.keyed_suite import KEYS, KeyedSuite, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.keyed_jobs import KeyedJob

EVENT = timer_state_name("user-timers", TimeDomain.EVENT_TIME)
WINDOW = timer_state_name("window-timers", TimeDomain.PROCESSING_TIME)


def fire(job: KeyedJob, up_to: int, name: str = EVENT) -> list[tuple[int, str]]:
    """(Timestamp, key) of the timers that each subtask polls, in that order."""
    return [(timer.timestamp, timer.key) for queue in open_queues(job, name) for timer in queue.poll(up_to)]


def open_queues(job: KeyedJob, name: str = EVENT) -> list[TimerQueue]:
    namespace = VOID_NAMESPACE if name == EVENT else TIME_WINDOW
    return [TimerQueue(backend, name, namespace) for backend in job.subtasks]


class TimerSuite(KeyedSuite):
    """Tests of one store."""

    def test_names_are_those_of_flink(self) -> None:
        assert EVENT == "_timer_state/event_user-timers"
        assert WINDOW == "_timer_state/processing_window-timers"

    def test_timers_fire_in_the_order_of_their_timestamps(
        self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]
    ) -> None:
        (queue,) = open_queues(job)
        for number, key in enumerate(KEYS):
            assert queue.add(1000 - number, key)
            assert queue.add(-number, key)
        assert len(queue) == 2 * len(KEYS)
        again = reopen(job)
        for each in open_queues(again):
            stamps = [timer.timestamp for timer in each.poll(0)]
            assert stamps == sorted(stamps)
        assert fire(again, 0) == []
        fired = fire(again, 5000)
        assert sorted(fired) == sorted((1000 - number, key) for number, key in enumerate(KEYS))
        assert fire(again, 5000) == []

    def test_a_timer_is_there_once(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        (queue,) = open_queues(job)
        assert [queue.add(5, "a"), queue.add(5, "a"), queue.add(6, "a"), queue.add(5, "b")] == [True, False, True, True]
        again = reopen(job)
        subtask = again.subtasks.index(again.find_subtask("a"))
        assert not open_queues(again)[subtask].add(5, "a")
        assert sorted(fire(again, 10)) == [(5, "a"), (5, "b"), (6, "a")]

    def test_removed_timers_do_not_fire(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        (queue,) = open_queues(job)
        for key in KEYS:
            for timestamp in range(5):
                queue.add(timestamp, key)
        for key in KEYS:
            for timestamp in (0, 1, 2, 4):
                assert queue.remove(timestamp, key)
            assert not queue.remove(0, key)
        queue.add(1, KEYS[0])
        assert len(queue) == len(KEYS) + 1
        again = reopen(job)
        assert sorted(fire(again, 10)) == sorted([(1, KEYS[0]), *((3, key) for key in KEYS)])

    def test_a_timer_added_again_fires_once(self, job: KeyedJob) -> None:
        (queue,) = open_queues(job)
        for _ in range(3):
            queue.add(7, "a")
            queue.remove(7, "a")
        queue.add(7, "a")
        assert queue.peek() == InternalTimer(7, "a", None)
        assert list(queue.poll(7)) == [InternalTimer(7, "a", None)]
        assert queue.peek() is None

    def test_timers_added_while_others_fire(self, job: KeyedJob) -> None:
        (queue,) = open_queues(job)
        queue.add(1, "a")
        fired = []
        for timer in queue.poll(3):
            fired.append(timer.timestamp)
            queue.add(timer.timestamp + 1, "a")
        assert fired == [1, 2, 3]
        assert queue.peek() == InternalTimer(4, "a", None)

    def test_timers_have_namespaces(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        (queue,) = open_queues(job, WINDOW)
        for key in KEYS:
            queue.add(9, key, window(0))
            queue.add(9, key, window(10))
        queue.remove(9, KEYS[0], window(0))
        again = reopen(job)
        timers = [timer for each in open_queues(again, WINDOW) for timer in each.timers()]
        assert len(timers) == 2 * len(KEYS) - 1
        assert [timer.namespace for timer in timers if timer.key == KEYS[0]] == [window(10)]

    def test_timers_of_the_current_key(self, job: KeyedJob) -> None:
        (queue,) = open_queues(job)
        backend = job.subtasks[0]
        backend.set_current_key("a")
        queue.add(1, backend.current_key)
        queue.add(1, "b")
        assert backend.current_key == "a"
        assert sorted(timer.key for timer in queue.timers()) == ["a", "b"]

    def test_timers_of_other_subtasks_are_refused(self, start: Callable[[int], KeyedJob]) -> None:
        job = start(2)
        for backend, queue in zip(job.subtasks, open_queues(job), strict=True):
            if backend is not job.find_subtask("a"):
                with pytest.raises(UsageError, match="is not in KeyGroupRange"):
                    queue.add(1, "a")

    def test_a_timestamp_is_a_long(self, job: KeyedJob) -> None:
        (queue,) = open_queues(job)
        queue.add(-(1 << 63), "a")
        queue.add((1 << 63) - 1, "a")
        with pytest.raises(ValueRangeError):
            queue.add(1 << 63, "a")
        assert [timestamp for timestamp, _ in fire(job, (1 << 63) - 1)] == [-(1 << 63), (1 << 63) - 1]
