"""`RuntimeContext`: the subtask that a function runs in, and the registration of its keyed states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.metrics import MetricGroup
from state_pipelines.datastream.states import KeyedStateStore
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.datastream.states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from state_pipelines.datastream.task_info import TaskInfo


class RuntimeContext(KeyedStateStore):
    """The subtask that a function runs in (`pyflink.datastream.RuntimeContext`).

    Args:
        task: the subtask.
        max_parallelism: number of key groups.
        states: registers keyed states; None in operators without keys.
        metrics: of the function; default new ones.
    """

    def __init__(
        self, task: TaskInfo, max_parallelism: int, states: KeyedStateStore | None, metrics: MetricGroup | None = None
    ) -> None:
        self._task = task
        self._max_parallelism = max_parallelism
        self._states = states
        self._metrics = metrics or MetricGroup()

    def get_task_name(self) -> str:
        """Return the name of the task."""
        return self._task.task_name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator."""
        return self._task.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the max parallelism of the operator, which is its number of key groups."""
        return self._max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of the subtask, from 0."""
        return self._task.index

    def get_attempt_number(self) -> int:
        """Return the number of the attempt to run the subtask, from 0."""
        return self._task.attempt

    def get_task_name_with_subtasks(self) -> str:
        """Return the name of the task with the number of the subtask, such as `Task (3/6)`."""
        return self._task.task_name_with_subtasks

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a parameter of the job.

        Args:
            key: name of the parameter.
            default_value: if the job has no such parameter.
        """
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
