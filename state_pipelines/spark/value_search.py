"""Searching the tables of all states of a snapshot by a SQL predicate over their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from state_pipelines.errors import UsageError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.splits import SPLIT_SIZE, StateOptions, find_schema, find_state, plan_splits
from state_pipelines.spark.tasks import read_splits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.snapshot import Snapshot

_UNRESOLVED = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND", "INVALID_EXTRACT_BASE_FIELD_TYPE", "DATATYPE_MISMATCH")
"""Error conditions of a predicate that does not fit the columns of a table, as opposed to one that is no SQL."""


@dataclass(frozen=True)
class FoundRows:
    """Rows of one state that a predicate finds.

    Attributes:
        path: of the snapshot.
        operator: label of the operator.
        state: name of the state.
        rows: how many.
        examples: the first of them, as `operations.state_rows.to_rows` gives them.
    """

    path: str
    operator: str
    state: str
    rows: int
    examples: tuple[dict[str, object], ...]

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "path": self.path,
            "operator": self.operator,
            "state": self.state,
            "rows": self.rows,
            "examples": list(self.examples),
        }


def find_rows(spark: SparkSession, snapshot: Snapshot, predicate: str, examples: int = 3) -> Iterator[FoundRows]:
    """Count the rows of every state for which a predicate is true.

    Args:
        spark: the session.
        snapshot: the snapshot.
        predicate: Spark SQL over the columns of a state's table. States without those columns are left out.
        examples: rows of each state that are returned.

    Yields:
        One result for each state that has the columns.

    Raises:
        UsageError: the predicate is no SQL, or fits no state.
        StateError: a state cannot be read.
    """
    fitting, misfit = 0, ""
    for operator in snapshot.operators:
        for state in operator.states:
            if state.kind == StateKind.TIMER or state.undecoded:
                continue
            frame = _load(spark, snapshot, operator.label, state.name)
            try:
                found = frame.filter(predicate)
            except AnalysisException as error:
                condition = error.getCondition() or ""
                if not condition.startswith(_UNRESOLVED):
                    raise UsageError(f"the predicate cannot be evaluated: {error}") from None
                misfit = str(error).partition("\n")[0]
                continue
            fitting += 1
            first = [row for batch in found.limit(examples).toArrow().to_batches() for row in to_rows(batch)]
            yield FoundRows(snapshot.path, operator.label, state.name, found.count(), tuple(first))
    if not fitting:
        raise UsageError(
            f"no state has the columns of the predicate: {misfit}",
            hint="`read --operator UID --state NAME` shows the columns of a state",
        )


def _load(spark: SparkSession, snapshot: Snapshot, operator: str, name: str) -> DataFrame:
    """The rows of a state; planned in this process, which has opened the snapshot and knows the storage options."""
    options = StateOptions(operator, name, TableOptions(), None, SPLIT_SIZE)
    state = find_state(snapshot, options)
    return read_splits(spark, plan_splits(state, options), find_schema(state, options))
