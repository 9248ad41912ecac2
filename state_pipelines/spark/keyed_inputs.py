"""Input and output of a keyed function on Spark: columns, keys, parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from state_pipelines.checkpoints.coordinator import DeclaredOperator
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.datastream import (
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    Row,
    Types,
    WindowFunction,
)
from state_pipelines.datastream.flink_types import derive_type
from state_pipelines.datastream.keyed_states import ROW_KIND, has_pyflink_states, unwrap_key
from state_pipelines.datastream.type_information import to_millis
from state_pipelines.datastream.windows import WINDOW_CONTENTS, WindowAssigner, check_contents
from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.key_groups import (
    assign_key_groups,
    compute_default_max_parallelism,
    compute_operator_indexes,
)
from state_pipelines.metadata.checkpoint import compute_operator_id
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.tree import ListOf
from state_pipelines.spark.types import from_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.datastream import Duration, Function, RestoredState, StateDescriptor, Time, TypeInformation
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.serializers.tree import Serializer
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


INPUT = "input"
"""Column with 1 for the rows of the first input, 2 for those of the second."""

BROADCAST_INPUT = 2
"""Number of the broadcast input."""

_INPUTS = ("first", "second")
"""Columns with the rows of each input, null in the rows of the other."""

_WITH_BROADCAST = ("first", "broadcast")
"""The same where the second input is broadcast."""


def connect(
    first: DataFrame,
    second: DataFrame,
    *,
    key: str | Sequence[str],
    second_key: str | Sequence[str] | None = None,
    timestamp: str | None = None,
    second_timestamp: str | None = None,
    broadcast: bool = False,
) -> DataFrame:
    """Connect two DataFrames, or two streams, for a function of two inputs (`DataStream.connect`).

    The result is the input of `keyed_process` and `keyed_batches`. As in Flink, nothing orders the inputs against each
    other, unless `order_by` does: by `timestamp`, or with `["input", …]` all rows of the first before the second.
    Rows of a broadcast input come first: every subtask gets all those of a batch before any row with a key.

    Args:
        first: the first input.
        second: the second input.
        key: columns of the key in the first input.
        second_key: those in the second input, in the same order; default the same names.
        timestamp: column of event time in the first input.
        second_timestamp: that in the second input; default the same name, of a broadcast input none.
        broadcast: the second input has no keys, and each of its rows goes to every subtask: for a
            `KeyedBroadcastProcessFunction`, otherwise a `KeyedCoProcessFunction` takes the result.

    Returns:
        The columns of the key and of event time under the names of the first input; `input`, 1 or 2; `first` and
        `second`, or `broadcast`, structs with all columns of a row of that input, null in rows of the other.

    Raises:
        UsageError: a column is missing or has one of the names above, the types of keys or event times differ, or a
            broadcast input is given a key.
    """
    columns: list[list[str | None]] = [[key] if isinstance(key, str) else [*key]]
    inputs = _WITH_BROADCAST if broadcast else _INPUTS
    if broadcast:
        if second_key is not None:
            raise UsageError("a broadcast input has no keys", hint="Leave second_key out")
        columns.append([None] * len(columns[0]))
    else:
        other = key if second_key is None else second_key
        columns.append([other] if isinstance(other, str) else [*other])
    if len(columns[0]) != len(columns[1]):
        raise UsageError(
            f"the key of the first input has {len(columns[0])} columns, that of the second {len(columns[1])}",
            hint="Name the columns of both in the same order",
        )
    if timestamp is not None:
        columns[0].append(timestamp)
        columns[1].append(second_timestamp or (None if broadcast else timestamp))
    elif second_timestamp is not None:
        raise UsageError("only the second input has event time", hint="Give timestamp for the first input too")
    frames = [first, second]
    for df, own in zip(frames, columns, strict=True):
        require_columns(df, [each for each in own if each is not None])
    for one, two in zip(*columns, strict=True):
        if one is None or two is None:
            continue
        found = [first.schema[one].dataType.simpleString(), second.schema[two].dataType.simpleString()]
        if found[0] != found[1]:
            raise UsageError(
                f"{one} of the first input is {found[0]}, and {two} of the second is {found[1]}",
                hint="Cast one of them: the keys, and the event times, of both inputs have one type",
            )
    names = [each for each in columns[0] if each is not None]
    unclear = {name for name in names if name in (INPUT, *inputs) or names.count(name) > 1}
    if unclear:
        raise UsageError(
            f"the result would have two columns named {', '.join(sorted(unclear))}",
            hint="Rename that key or event time in the first input",
        )
    tagged = []
    for index, (df, own) in enumerate(zip(frames, columns, strict=True)):
        rows = [sql.lit(None).cast(each.schema).alias(name) for each, name in zip(frames, inputs, strict=True)]
        rows[index] = sql.struct(*(sql.col(f"`{name}`") for name in df.columns)).alias(inputs[index])
        common = [
            (sql.lit(None).cast(first.schema[name].dataType) if column is None else sql.col(f"`{column}`")).alias(name)
            for column, name in zip(own, names, strict=True)
        ]
        tagged.append(df.select(*common, sql.lit(index + 1).alias(INPUT), *rows))
    return tagged[0].union(tagged[1])


def check_inputs(df: DataFrame, function: Function) -> None:
    """Refuse a DataFrame of one input for a function of two, and one whose second input is not as the function has it.

    Raises:
        UsageError: the function has two inputs, and the DataFrame is not such a one of `connect`.
    """
    for kind, inputs, call in (
        (KeyedCoProcessFunction, _INPUTS, "connect(first, second, key=…)"),
        (KeyedBroadcastProcessFunction, _WITH_BROADCAST, "connect(first, second, key=…, broadcast=True)"),
    ):
        structs = [df.schema[name].dataType for name in inputs if name in df.columns]
        is_connected = INPUT in df.columns and [type(each) for each in structs] == [StructType, StructType]
        if isinstance(function, kind) and not is_connected:
            second = "a broadcast one" if kind is KeyedBroadcastProcessFunction else "both with keys"
            raise UsageError(
                f"{type(function).__name__} has two inputs, {second}, and the DataFrame is not one of such",
                hint=f"Give it {call}",
            )


class InputRows:
    """Makes the rows that a function gets out of those of `connect`, with the columns of their own input.

    Args:
        inputs: columns with the rows of each input.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._factories: dict[int, Row] = {}

    def read(self, row: Row) -> tuple[int, Any]:
        """Return the number of the input, and the row of that input."""
        number = row[INPUT]
        fields = row[self._inputs[number - 1]]
        make_row = self._factories.get(number)
        if make_row is None:
            make_row = self._factories[number] = Row(*fields)
        return number, make_row(*fields.values())


class ConnectedOperator(KeyedCoProcessOperator):
    """Runs a `KeyedCoProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in such a row.
        key_type: type of the keys.
        options: as of `KeyedOperator`.
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector: Callable[[Any], Any],
        key_type: TypeInformation,
        **options: Any,
    ) -> None:
        super().__init__(function, key_selector, key_selector, key_type, **options)
        self._rows = InputRows(_INPUTS)

    def process(self, row: Row, timestamp: int | None = None) -> list[Any]:
        """Process a row of one of the inputs, which the function gets as a `Row` with the columns of that input.

        Args:
            row: of `connect`.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        number, value = self._rows.read(row)
        function = self.function
        process_element = function.process_element1 if number == 1 else function.process_element2
        return self._process(process_element, self._get_key1(row), value, timestamp)


class ConnectedBroadcastOperator(KeyedBroadcastProcessOperator):
    """Runs a `KeyedBroadcastProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in a row with one.
        key_type: type of the keys.
        broadcast_state_descriptors: of the broadcast states.
        options: as of `KeyedOperator`.
    """

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        key_selector: Callable[[Any], Any],
        key_type: TypeInformation,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, key_selector, key_type, broadcast_state_descriptors, **options)
        self._rows = InputRows(_WITH_BROADCAST)

    def process(self, row: Row, timestamp: int | None = None) -> list[Any]:
        """Process a row of one of the inputs; as `ConnectedOperator.process`."""
        number, value = self._rows.read(row)
        if number == BROADCAST_INPUT:
            return self.process_broadcast(value, timestamp)
        return self._process(self._get_key(row), value, timestamp)


SUBTASK = "__subtask"
"""Column with the index of the subtask that a row belongs to; less the parallelism, and so negative, in rows that are
no elements: they make a subtask without elements run, and tell the highest event time."""

_FIELD = pa.field(SUBTASK, pa.int32(), nullable=False)


@dataclass(frozen=True)
class KeyPartitioner:
    """Finds the subtask of each row (`KeyGroupStreamPartitioner`); can be sent to workers.

    Attributes:
        columns: of the key; several are the fields of a tuple.
        serializer: of the key.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        layouts: what the layout of the key depends on.
        hashes: `hashCode` of user classes, by class name.
        in_row: the key is the only field of a row, as in the Java operators of PyFlink.
        timestamp: column of event time, whose highest value every subtask gets; None where no watermark is wanted.
        input: column with the number of the input; None where there is one input.
        broadcast: number of the input whose rows go to every subtask; None without.
    """

    columns: tuple[str, ...]
    serializer: Serializer
    parallelism: int
    max_parallelism: int
    layouts: LayoutContext
    hashes: tuple[tuple[str, HashExpression], ...] = ()
    in_row: bool = False
    timestamp: str | None = None
    input: str | None = None
    broadcast: int | None = None

    def add_subtasks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column `SUBTASK`, then the rows that tell the subtasks the highest event time.

        Raises:
            UsageError: a key is null.
            ValueRangeError: a key has no form in its serializer.
            UnsupportedError: the hash of the keys is not known.
        """
        wanted = plan_columns(derive_layout(self.serializer, self.layouts)).type
        highest: dict[int, int] = {}
        schema: pa.Schema | None = None
        for given in batches:
            schema = given.schema
            self._note_highest(given, highest)
            batch = given
            if self.broadcast is not None:
                is_broadcast = pc.equal(given.column(self.input), self.broadcast)
                batch, copied = given.filter(pc.invert(is_broadcast)), given.filter(is_broadcast)
                for subtask in range(self.parallelism) if len(copied) else ():
                    yield copied.append_column(_FIELD, pa.array([subtask] * len(copied), pa.int32()))
            keys = conform(from_spark(self._read_keys(batch), wanted), wanted, "key")
            codes = hash_codes(self.serializer, keys, expressions=dict(self.hashes))
            groups = assign_key_groups(codes, self.max_parallelism)
            subtasks = compute_operator_indexes(groups, self.parallelism, self.max_parallelism)
            yield batch.append_column(_FIELD, pa.array(subtasks))
        for number, reached in highest.items():
            assert schema is not None
            yield self._tell_highest(schema, number, reached)

    def _note_highest(self, batch: pa.RecordBatch, highest: dict[int, int]) -> None:
        """Keep the highest event time of each input; the only one is 0."""
        if self.timestamp is None:
            return
        times = batch.column(self.timestamp)
        inputs = None if self.input is None else batch.column(self.input)
        for number in [0] if inputs is None else inputs.unique().to_pylist():
            own = times if inputs is None else times.filter(pc.equal(inputs, number))
            reached = pc.max(own).as_py()
            if reached is not None:
                highest[number] = max(reached, highest.get(number, reached))

    def _tell_highest(self, schema: pa.Schema, number: int, reached: int) -> pa.RecordBatch:
        """Make a row per subtask with the highest event time of an input; negative as all rows without an element."""
        count = self.parallelism
        known = {self.timestamp: reached, self.input: number}
        columns = [
            pa.array([known[each.name]] * count, each.type) if each.name in known else pa.nulls(count, each.type)
            for each in schema
        ]
        # Arrow's streams have one schema, down to the fields that are never null.
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return rows.append_column(_FIELD, pa.array(range(-count, 0), pa.int32()))

    def _read_keys(self, batch: pa.RecordBatch) -> pa.Array:
        found = [batch.column(name) for name in self.columns]
        for name, column in zip(self.columns, found, strict=True):
            if column.null_count:
                raise UsageError(
                    f"a row has no key: {name} is null",
                    hint="Flink refuses null keys; leave such rows out of the input",
                )
        if len(found) == 1:
            key = found[0]
        else:
            key = pa.StructArray.from_arrays(found, names=[f"f{index}" for index in range(len(found))])
        if not self.in_row:
            return key
        kinds = pa.repeat(pa.scalar(ROW_KIND), len(batch))
        return pa.StructArray.from_arrays([kinds, key], names=["row_kind", "f0"])
