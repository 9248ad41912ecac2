"""`RuntimeContext`: the subtask that a function runs in, and the registration of its keyed states."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from state_pipelines.datastream.states import KeyedStateStore

if TYPE_CHECKING:
    from state_pipelines.datastream.metrics import MetricGroup


class RuntimeContext(KeyedStateStore):
    """The subtask that a function runs in (`pyflink.datastream.RuntimeContext`)."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Return the name of the task."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the max parallelism of the operator, which is its number of key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Return the index of the subtask, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Return the number of the attempt to run the subtask, from 0."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """Return the name of the task with the number of the subtask, such as `Task (3/6)`."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a parameter of the job.

        Args:
            key: name of the parameter.
            default_value: if the job has no such parameter.
        """

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the function."""
