"""Results of `check` for states of Python functions without a declared type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import walk
from state_pipelines.operations.check.check_report import StateCheck
from state_pipelines.operations.jobs.job_state import JobOperator, JobState, Subject
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.snapshot.state import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator


def judge_undeclared(old: JobOperator, new: JobOperator) -> Iterator[StateCheck]:
    """Yield a result for each Python state of both jobs whose type neither declares: its values are not compared."""
    known = {state.name: state for state in new.states}
    for state in old.states:
        successor = known.get(state.name)
        if not state.name.startswith(PREFIX) or successor is None:
            continue
        if not (_is_typed(state) or _is_typed(successor)):
            yield StateCheck(
                operator=old.label,
                state=state.name,
                kind=str(state.kind),
                subject=Subject.VALUE,
                outcome=Outcome.UNDETERMINED,
                reason="the type of this state of a Python function is not declared, and Flink compares only bytes",
                remedy="Declare it: --python-types for the snapshots, --type for the new job",
            )


def _is_typed(state: JobState) -> bool:
    return any(isinstance(node, PythonValue) for each in state.serializers.values() for node in walk(each))
