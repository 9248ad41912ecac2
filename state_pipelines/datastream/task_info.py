"""`TaskInfo`: the subtask that an operator runs as, and the rules of max parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError
from state_pipelines.keyed.key_groups import compute_default_max_parallelism, compute_key_group_range
from state_pipelines.operations.check.restore_errors import explain_max_parallelism, explain_parallelism

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.metadata.handles import KeyGroupRange


@dataclass(frozen=True)
class TaskInfo:
    """The subtask that an operator runs as (`org.apache.flink.api.common.TaskInfo`).

    Attributes:
        task_name: name of the task.
        index: of the subtask, from 0.
        parallelism: number of subtasks.
        max_parallelism: number of key groups; None to take that of the restored state, or else Flink's default.
        attempt: number of the attempt, from 0.
        job_parameters: parameters of the job by name.
    """

    task_name: str = "operator"
    index: int = 0
    parallelism: int = 1
    max_parallelism: int | None = None
    attempt: int = 0
    job_parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def task_name_with_subtasks(self) -> str:
        """Name of the task with the number of the subtask, such as `operator (1/4)`."""
        return f"{self.task_name} ({self.index + 1}/{self.parallelism})"

    def choose_max_parallelism(self, restored: int | None, snapshot: str = "") -> int:
        """Return the number of key groups (`StateAssignmentOperation.checkParallelismPreconditions`).

        Args:
            restored: that of the restored state; None without one.
            snapshot: path of the snapshot, for errors.

        Raises:
            IncompatibleError: the restored state has fewer key groups than subtasks, or another number than is set.
            UsageError: the parallelism is no number from 1 to 32,768.
        """
        if restored is None:
            return self.max_parallelism or compute_default_max_parallelism(self.parallelism)
        if restored < self.parallelism:
            raise IncompatibleError(explain_parallelism(self.task_name, restored, self.parallelism))
        if self.max_parallelism is not None and self.max_parallelism != restored:
            raise IncompatibleError(
                explain_max_parallelism(snapshot, self.task_name, restored, self.max_parallelism),
                hint="Leave the max parallelism out, or rescale the snapshot first",
            )
        return restored

    def find_key_groups(self, max_parallelism: int) -> KeyGroupRange:
        """Return the key groups of the subtask.

        Raises:
            UsageError: the parallelism is larger than the max parallelism, or there is no such subtask.
        """
        return compute_key_group_range(self.index, self.parallelism, max_parallelism)
