"""One keyed state of one operator, as most tests of writing have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.operations.jobs.job_state import replace_state_type
from state_pipelines.operations.write.savepoint_plan import OperatorDescription, StateDescription
from state_pipelines.serializers.build import VOID_NAMESPACE

if TYPE_CHECKING:
    from state_pipelines.operations.jobs.job_state import JobDescription
    from state_pipelines.serializers.tree import Serializer


@dataclass(frozen=True)
class OneState:
    """A description of an operator with one keyed state; attributes as of the two descriptions."""

    operator: str
    name: str
    state_type: str | None = None
    key: Serializer | None = None
    value: Serializer | None = None
    namespace: Serializer = VOID_NAMESPACE
    parallelism: int | None = None
    max_parallelism: int | None = None

    @property
    def description(self) -> OperatorDescription:
        """The description of the operator."""
        state = StateDescription(self.name, self.state_type, self.value, self.namespace)
        return OperatorDescription(
            self.operator, (state,), key=self.key, parallelism=self.parallelism, max_parallelism=self.max_parallelism
        )


def replace_type(job: JobDescription, subject: str, serializer: Serializer) -> JobDescription:
    """The job with another type in the state OPERATOR/STATE; of list and map state that of the element or the value."""
    name, _, state_name = subject.partition("/")
    operator = job.find(name)
    states = tuple(
        replace_state_type(each, serializer) if each.name == state_name else each for each in operator.states
    )
    changed = replace(operator, states=states)
    return replace(job, operators=tuple(changed if each is operator else each for each in job.operators))
