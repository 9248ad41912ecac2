"""The runtime context and the timer service that operators give to their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.metrics import MetricGroup
from state_pipelines.datastream.runtime_context import RuntimeContext
from state_pipelines.datastream.timer_service import LOWEST_WATERMARK, TimerService
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.timers import TimerQueue
    from state_pipelines.datastream.clocks import Clock
    from state_pipelines.datastream.states import (
        AggregatingState,
        KeyedStateStore,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from state_pipelines.datastream.task_info import TaskInfo


class SubtaskContext(RuntimeContext):
    """The runtime context of a function.

    Args:
        task: the subtask.
        max_parallelism: number of key groups.
        states: registers keyed states; None in operators without keys.
    """

    def __init__(self, task: TaskInfo, max_parallelism: int, states: KeyedStateStore | None) -> None:
        self._task = task
        self._max_parallelism = max_parallelism
        self._states = states
        self._metrics = MetricGroup()

    def get_task_name(self) -> str:
        """Return the name of the task."""
        return self._task.task_name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism."""
        return self._task.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups."""
        return self._max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of the subtask."""
        return self._task.index

    def get_attempt_number(self) -> int:
        """Return the number of the attempt."""
        return self._task.attempt

    def get_task_name_with_subtasks(self) -> str:
        """Return the name of the task with the number of the subtask."""
        return self._task.task_name_with_subtasks

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a parameter of the job."""
        return self._task.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the function."""
        return self._metrics

    def get_state(self, state_descriptor: Any) -> ValueState[Any]:
        """Register a value state."""
        return self._require_states().get_state(state_descriptor)

    def get_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Register a list state."""
        return self._require_states().get_list_state(state_descriptor)

    def get_map_state(self, state_descriptor: Any) -> MapState[Any, Any]:
        """Register a map state."""
        return self._require_states().get_map_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: Any) -> ReducingState[Any]:
        """Register a reducing state."""
        return self._require_states().get_reducing_state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> AggregatingState[Any, Any]:
        """Register an aggregating state."""
        return self._require_states().get_aggregating_state(state_descriptor)

    def _require_states(self) -> KeyedStateStore:
        if self._states is None:
            raise UsageError(
                "Keyed state can only be used on a 'keyed stream', i.e., after a 'keyBy()' operation.",
                hint="Use a function for keyed inputs",
            )
        return self._states


class QueueTimerService(TimerService):
    """Timers of the current key and namespace, in the queues of a backend (`InternalTimerServiceImpl`).

    Args:
        backend: whose current key the timers get.
        event_timers: queue of event time.
        processing_timers: queue of processing time.
        clock: processing time.

    Attributes:
        watermark: the current watermark.
        namespace: of the timers; None is the void namespace.
    """

    def __init__(
        self, backend: KeyedStateBackend, event_timers: TimerQueue, processing_timers: TimerQueue, clock: Clock
    ) -> None:
        self._backend = backend
        self._event_timers = event_timers
        self._processing_timers = processing_timers
        self._clock = clock
        self.watermark = LOWEST_WATERMARK
        self.namespace: Any = None

    def current_processing_time(self) -> int:
        """Return the processing time."""
        return self._clock()

    def current_watermark(self) -> int:
        """Return the watermark."""
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer of processing time."""
        self._processing_timers.add(timestamp, self._backend.current_key, self.namespace)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer of event time."""
        self._event_timers.add(timestamp, self._backend.current_key, self.namespace)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of processing time."""
        self._processing_timers.remove(timestamp, self._backend.current_key, self.namespace)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of event time."""
        self._event_timers.remove(timestamp, self._backend.current_key, self.namespace)
