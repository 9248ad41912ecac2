"""Input and output of a keyed function on Spark: columns, keys, parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from state_pipelines.checkpoints.restoring import DeclaredOperator
from state_pipelines.datastream import Types
from state_pipelines.datastream.derived_types import derive_type
from state_pipelines.datastream.pyflink_layout import has_pyflink_states, unwrap_key
from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.key_group_assignment import compute_default_max_parallelism
from state_pipelines.metadata.operator_ids import compute_operator_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from state_pipelines.datastream import RestoredState, TypeInformation
    from state_pipelines.snapshot import Snapshot


def parse_output(output: str | StructType | None) -> pa.Schema:
    """Columns of the output, all of which may be null: the row of an acknowledgement has none."""
    if output is None:
        return to_arrow_schema(StructType([]))
    schema = StructType.fromDDL(output) if isinstance(output, str) else output
    fields = schema.fields if isinstance(schema, StructType) else []
    if not fields:
        raise UsageError("the output has no columns", hint="Leave it out where nothing is wanted")
    return to_arrow_schema(StructType([StructField(each.name, each.dataType, True) for each in fields]))


def require_columns(df: DataFrame, names: Sequence[str]) -> None:
    """Refuse a DataFrame that lacks one of these columns."""
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise UsageError(
            f"the input has no column {', '.join(missing)}", hint=f"Its columns are {', '.join(df.columns)}"
        )


def choose_parallelism(
    df: DataFrame, uid: str, snapshot: Snapshot | None, parallelism: int | None, max_parallelism: int | None
) -> DeclaredOperator:
    """Declare the operator, by default with as many subtasks as Spark runs tasks, within its key groups."""
    if parallelism is None:
        parallelism = df.sparkSession.sparkContext.defaultParallelism
        known = None if snapshot is None else snapshot.get_operator(compute_operator_id(uid))
        most = known.max_parallelism if known is not None else max_parallelism
        parallelism = min(parallelism, most or compute_default_max_parallelism(parallelism))
    return DeclaredOperator(uid, parallelism, max_parallelism)


def choose_layout(restored: RestoredState | None, wanted: bool | None) -> bool:
    """Return whether state is in PyFlink's layout: as asked for, and as the restored state is.

    Raises:
        UsageError: these differ.
    """
    states = [] if restored is None else [info for file in restored.keyed_files for info in file.header.states]
    is_pyflink = has_pyflink_states(states)
    if wanted is None or not states or wanted == is_pyflink:
        return is_pyflink if wanted is None else wanted
    assert restored is not None
    layouts = ("Java's layout", "PyFlink's layout")
    raise UsageError(
        f"the state of the snapshot is in {layouts[is_pyflink]}, and {layouts[wanted]} is asked for",
        where=Where(file=restored.snapshot),
        hint="Leave pyflink_state out, and the function keeps the state as the snapshot has it",
    )


def find_key_type(
    df: DataFrame, keys: Sequence[str], restored: RestoredState | None, *, pyflink_state: bool = False
) -> TypeInformation:
    """Return the type of the keys: that of the restored state, else that of their columns."""
    if restored is not None and restored.keyed_files:
        stored = restored.keyed_files[0].header.key_serializer
        if stored is not None:
            return derive_type(unwrap_key(stored) if pyflink_state else stored)
    schema = to_arrow_schema(df.select(*keys).schema)
    found = [derive_type(field.type) for field in schema]
    return found[0] if len(found) == 1 else Types.TUPLE(found)
