"""Input and output of a keyed function on Spark: columns, keys, parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from state_pipelines.checkpoints.coordinator import DeclaredOperator
from state_pipelines.datastream import (
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    Types,
    WindowFunction,
)
from state_pipelines.datastream.flink_types import derive_type
from state_pipelines.datastream.keyed_states import has_pyflink_states, unwrap_key
from state_pipelines.datastream.type_information import to_millis
from state_pipelines.datastream.windows import WINDOW_CONTENTS, WindowAssigner, check_contents
from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.key_groups import compute_default_max_parallelism
from state_pipelines.metadata.checkpoint import compute_operator_id
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.tree import ListOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from state_pipelines.datastream import (
        Duration,
        Function,
        RestoredState,
        StateDescriptor,
        Time,
        TypeInformation,
    )
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


def check_windows(
    function: Function,
    windows: WindowAssigner | None,
    contents: StateDescriptor | None,
    allowed_lateness: Time | Duration,
    timestamp: str | None,
    element: str | None,
) -> None:
    """Refuse a window function without windows, windows of another function, and windows of a time that rows lack.

    Raises:
        UsageError: these do not fit each other.
    """
    name = type(function).__name__
    if not isinstance(function, WindowFunction | ProcessWindowFunction):
        if any(each is not None for each in (windows, contents, element)) or to_millis(allowed_lateness):
            raise UsageError(
                f"{name} is not a function of windows, and windows, contents, element or allowed_lateness is given",
                hint="Derive it from WindowFunction or ProcessWindowFunction, or leave them out",
            )
        return
    if windows is None:
        raise UsageError(
            f"{name} is a function of windows, and no windows are given",
            hint="Give windows, such as TumblingEventTimeWindows.of(Time.hours(1))",
        )
    if not isinstance(windows, WindowAssigner):
        raise UsageError(
            f"windows is {windows!r:.80}, which assigns no windows",
            hint="Give an assigner, such as TumblingEventTimeWindows.of(Time.hours(1))",
        )
    if windows.is_event_time() and timestamp is None:
        raise UsageError(
            f"{type(windows).__name__} are windows of event time, and the rows have none",
            hint="Name its column as timestamp, or choose windows of processing time",
        )
    check_contents(contents or ListStateDescriptor(WINDOW_CONTENTS, Types.LONG()), allowed_lateness)


def check_broadcast_states(function: Function, descriptors: Sequence[MapStateDescriptor]) -> None:
    """Refuse descriptors of broadcast states that the function does not have or need.

    Raises:
        UsageError: the function has no broadcast input, or an object is no descriptor of a map.
    """
    if not isinstance(function, KeyedBroadcastProcessFunction):
        if descriptors:
            raise UsageError(
                f"{type(function).__name__} has no broadcast input, and broadcast_states are given",
                hint="Derive it from KeyedBroadcastProcessFunction, or leave them out",
            )
        return
    for each in descriptors:
        if not isinstance(each, MapStateDescriptor):
            raise UsageError(
                f"{each!r:.80} does not describe a broadcast state",
                hint="Give broadcast_states=[MapStateDescriptor(…)]",
            )
    if not descriptors:
        raise UsageError(
            f"{type(function).__name__} has a broadcast input, and no broadcast state",
            hint="Give broadcast_states=[MapStateDescriptor(…)], as in Flink the argument of broadcast",
        )


def find_contents(df: DataFrame, restored: RestoredState | None, element: str | None) -> StateDescriptor:
    """Describe the contents of windows as a list of the type that the restored state has, else of their elements.

    Raises:
        UsageError: the restored contents are no list, or a column has a type that rows of Flink do not have.
    """
    states = [] if restored is None else [info for file in restored.keyed_files for info in file.header.states]
    known = next((info for info in states if info.name == WINDOW_CONTENTS), None)
    if known is None:
        schema = to_arrow_schema(df.schema)
        return ListStateDescriptor(
            WINDOW_CONTENTS, derive_type(schema if element is None else schema.field(element).type)
        )
    if known.state_type != StateKind.LIST or not isinstance(known.value_serializer, ListOf):
        raise UsageError(
            f"the restored windows hold {known.state_type} state, whose function the snapshot does not have",
            where=Where(state=WINDOW_CONTENTS),
            hint="Give contents, a ReducingStateDescriptor or AggregatingStateDescriptor",
        )
    return ListStateDescriptor(WINDOW_CONTENTS, known.value_serializer.element)
