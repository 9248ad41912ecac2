"""State of Python functions: Flink compares byte arrays, PyFlink compares nothing, so that declared types decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility.outcome import SAME, Compatibility, Outcome, differ
from state_pipelines.serializers.compatibility.rules import rule
from state_pipelines.serializers.python_types import PythonValue

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer


@rule.register(PythonValue)
def compare_python_values(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers, at least one of which has a declared type.

    A coder of PyFlink reads the bytes of another one without a word, or fails on the first value.
    """
    if not isinstance(old, PythonValue) or not isinstance(new, PythonValue):
        side = "new job" if isinstance(old, PythonValue) else "snapshot"
        return differ(
            old,
            new,
            outcome=Outcome.UNDETERMINED,
            reason=f"the type of this state of a Python function is not declared for the {side}",
            remedy="Declare it: --python-types for the snapshots, --type for the new job",
        )
    if old.type == new.type:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason="the type of this state of a Python function changed: PyFlink reads old bytes with the new coder",
        remedy="Migrate the state (`state-pipelines migrate`), or keep the type",
        unnoticed=True,
    )
