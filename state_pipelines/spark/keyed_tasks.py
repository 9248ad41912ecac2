"""Tasks of keyed functions: their inputs, checked and sorted, and the subtasks that run them."""

from __future__ import annotations

import json
import re
import tempfile
import traceback
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import LocalBackup
from state_pipelines.checkpoints.completed_checkpoints import inline_small_files, list_subtask_files, measure_state
from state_pipelines.checkpoints.coordinator import (
    SYSTEM_CLOCK,
    DeclaredOperator,
    FailureReason,
    TaskCheckpoint,
    is_full,
    read_task_checkpoint,
    write_task_checkpoint,
)
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.kryo import oldest_metadata_version
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.datastream import (
    CheckpointListener,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    Row,
    TaskInfo,
    Time,
    Types,
    WindowFunction,
    WindowOperator,
)
from state_pipelines.datastream.flink_types import derive_type
from state_pipelines.datastream.functions import MetricValue
from state_pipelines.datastream.table_states import ROW_KIND, KeyRowTypeInfo, has_pyflink_states, unwrap_key
from state_pipelines.datastream.type_information import to_millis
from state_pipelines.datastream.windows import WINDOW_CONTENTS, WindowAssigner, check_contents
from state_pipelines.errors import StateError, StorageError, UsageError, ValueRangeError, Where, at
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.key_groups import (
    assign_key_groups,
    compute_default_max_parallelism,
    compute_operator_indexes,
)
from state_pipelines.metadata.checkpoint import SavepointFormatType, SavepointType, compute_operator_id
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, IncrementalRemoteKeyedStateHandle
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.write.keyed_rewrite import Format, make_file_name
from state_pipelines.serializers.tree import ListOf, StateKind
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import METADATA_FILE, list_directory
from state_pipelines.storage.files import make_directory, record_files
from state_pipelines.storage.resolution import list_storage_options, use_storage_options
from state_pipelines.storage.snapshot_writer import delete_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from state_pipelines.backends.changelog import ChangelogSettings
    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.backends.rocksdb_store import RocksOptions
    from state_pipelines.checkpoints.coordinator import (
        CheckpointCoordinator,
        CheckpointedOperator,
        CheckpointFailure,
        CheckpointTrigger,
        Clock,
    )
    from state_pipelines.checkpoints.options import CheckpointOptions
    from state_pipelines.datastream import Duration, Function, RestoredState, StateDescriptor, TypeInformation
    from state_pipelines.datastream.table_states import LatencyTracking
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location


def parse_output(output: str | StructType | None) -> pa.Schema:
    """Return the schema of what a keyed function emits, from a Spark schema or its DDL.

    All columns are nullable: in the last row of a subtask, with its acknowledgement, they are null.
    """
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
    """Declare the operator, by default with a subtask per task that Spark runs, and at most one per key group."""
    if parallelism is None:
        parallelism = df.sparkSession.sparkContext.defaultParallelism
        known = None if snapshot is None else snapshot.get_operator(compute_operator_id(uid))
        most = known.max_parallelism if known is not None else max_parallelism
        parallelism = min(parallelism, most or compute_default_max_parallelism(parallelism))
    return DeclaredOperator(uid, parallelism, max_parallelism)


def choose_layout(restored: RestoredState | None, wanted: bool | None) -> bool:
    """Return whether state is kept in PyFlink's layout: as `wanted` says, else as in the restored state.

    Raises:
        UsageError: the wanted layout is not that of the restored state.
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
    """Return the type of the keys: the type in the restored state, else the type of their columns."""
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
    """Refuse window functions without windows, windows of another function, and event-time windows without a timestamp.

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
    """Refuse missing or wrong descriptors of broadcast states, and those for a function without a broadcast input.

    Raises:
        UsageError: the descriptors do not fit the function.
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
    """Describe the contents of windows as list state.

    Its elements have the type that they have in the restored state. Without such a state their type follows from the
    column `element`, or from all columns if `element` is None.

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
            f"the restored windows hold {known.state_type} state, and the snapshot does not contain its function",
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
"""Columns with the rows of each input (see `_INPUTS`) where the second input is broadcast."""


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
    Rows of a broadcast input come first: every subtask gets all broadcast rows of a batch before any row with a key.

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
    """Refuse a DataFrame that is not a result of `connect` if the function has two inputs.

    Raises:
        UsageError: the function has two inputs, and the DataFrame does not have the columns of `connect` for them.
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
                f"{type(function).__name__} has two inputs, {second}, and the DataFrame is no result of `connect`",
                hint=f"Give it {call}",
            )


class InputRows:
    """Converter of rows of `connect` to the rows that a function gets, with the columns of one input.

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
    """Operator that runs a `KeyedCoProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in such a row.
        key_type: type of the keys.
        options: see `KeyedOperator`.
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
    """Operator that runs a `KeyedBroadcastProcessFunction` over rows of `connect`.

    Args:
        function: that the user wrote.
        key_selector: finds the key in a row with one.
        key_type: type of the keys.
        broadcast_state_descriptors: of the broadcast states.
        options: see `KeyedOperator`.
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
"""Column with the index of the subtask that a row goes to. In marker rows, which are no elements, it is this index
minus the parallelism, and so negative. Marker rows make subtasks without elements run, and carry the highest event
time."""

_FIELD = pa.field(SUBTASK, pa.int32(), nullable=False)


@dataclass(frozen=True)
class KeyPartitioner:
    """Finds the subtask of each row (`KeyGroupStreamPartitioner`); can be sent to workers.

    Attributes:
        columns: of the key; several are the fields of a tuple.
        serializer: of the key.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        layouts: context from which the layout of the key is derived.
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
        """Yield the batches with the column `SUBTASK`, then marker rows with the highest event time for every subtask.

        Raises:
            UsageError: a key is null.
            ValueRangeError: the serializer cannot write a key.
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
        """Update `highest`, the highest event time so far by number of the input; a single input has the number 0."""
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
        """Make a marker row per subtask with the highest event time of an input; see `SUBTASK`."""
        count = self.parallelism
        known = {self.timestamp: reached, self.input: number}
        columns = [
            pa.array([known[each.name]] * count, each.type) if each.name in known else pa.nulls(count, each.type)
            for each in schema
        ]
        # All batches of an Arrow stream must have one schema, nullability included.
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


if TYPE_CHECKING:
    KeyedFunction = (
        KeyedProcessFunction
        | KeyedCoProcessFunction
        | KeyedBroadcastProcessFunction
        | WindowFunction
        | ProcessWindowFunction
    )
    """A function that runs on Spark."""

    RowOperator = KeyedProcessOperator | ConnectedOperator | ConnectedBroadcastOperator | WindowOperator
    """An operator whose elements are rows."""

ACKNOWLEDGEMENT = "__acknowledgement"
"""Column of the last row of each subtask: its `TaskCheckpoint`."""

METRICS = "__metrics"
"""Column of the last row of each subtask: the metrics of the function, as JSON."""

FUNCTIONS = (
    KeyedProcessFunction,
    KeyedCoProcessFunction,
    KeyedBroadcastProcessFunction,
    WindowFunction,
    ProcessWindowFunction,
)
"""Classes of the functions that run on Spark."""

_OUTPUT_ROWS = 4096


@dataclass(frozen=True)
class TaskSnapshot:
    """Settings of the checkpoint or savepoint that each task takes of the state of its subtask.

    Attributes:
        checkpoint_id: its id.
        directory: where files of state go.
        format: of keyed state.
        compressed: files are compressed.
        inline_threshold: size of the largest file that is inlined.
        shared: directory of the files that later checkpoints use too; None where each checkpoint has all state.
        full: all tables are uploaded, also those that the restored checkpoint has.
    """

    checkpoint_id: int
    directory: Location
    format: Format
    compressed: bool
    inline_threshold: int
    shared: Location | None = None
    full: bool = False


@dataclass(frozen=True)
class KeyedTask:
    """Runs a function in one subtask; sent to the workers.

    Attributes:
        function: that the user wrote.
        operator: the operator.
        columns: names of the columns of the input.
        key_columns: those of the key; several are the fields of a tuple.
        key_type: type of the keys.
        timestamp: column of event time, milliseconds since 1970, or None.
        watermark: watermark after the last row; None for none.
        out_of_orderness: milliseconds by which rows may be late: the watermark after the last row is the highest event
            time of all subtasks minus this number minus 1. Of two inputs, the one with the lower highest event time
            counts. None if `watermark` is given instead.
        storage_options: storage options of the driver, by root, so that workers can open shared files, whose handles
            hold their URL.
        output: columns of what the function emits; none where nothing is wanted.
        restored: the state to start from; None without.
        snapshot: the snapshot to take; None for none.
        hashes: `hashCode` of user classes among the keys.
        parameters: job parameters.
        make_store: makes the store of the state, given the bytes of a key-group prefix.
        open_backup: opens the local backups of an operator id and key groups; None where none are kept.
        changelog: settings of the changelog; None without.
        pyflink_state: keys and state are in PyFlink's layout.
        layouts: context from which the layouts of state are derived.
        latencies: settings of the tracking of latencies; None without.
        broadcast_states: descriptors of the broadcast states of a `KeyedBroadcastProcessFunction`.
        windows: assigner of the windows of a window function; None for other functions.
        contents: descriptor of the contents of the windows.
        element: column whose values are the elements of the windows; None for rows.
        allowed_lateness: how long after its end a window still accepts elements.
        clock: measures the snapshot.
    """

    function: KeyedFunction
    operator: CheckpointedOperator
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    key_type: TypeInformation
    timestamp: str | None
    watermark: int | None
    output: pa.Schema
    restored: RestoredState | None
    snapshot: TaskSnapshot | None
    hashes: Mapping[str, HashExpression]
    parameters: Mapping[str, str]
    make_store: Callable[[int], EntryStore] = HeapStore
    open_backup: Callable[[bytes, KeyGroupRange], LocalBackup] | None = None
    changelog: ChangelogSettings | None = None
    pyflink_state: bool = False
    layouts: LayoutContext = LayoutContext()  # noqa: RUF009 - frozen
    latencies: LatencyTracking | None = None
    broadcast_states: tuple[MapStateDescriptor, ...] = ()
    windows: WindowAssigner | None = None
    contents: StateDescriptor | None = None
    element: str | None = None
    allowed_lateness: Time | Duration = Time(0)  # noqa: RUF009 - frozen
    out_of_orderness: int | None = None
    clock: Clock = SYSTEM_CLOCK
    storage_options: Mapping[str, Mapping[str, Any]] = field(default_factory=list_storage_options, repr=False)

    @property
    def timed_inputs(self) -> int:
        """Number of inputs whose event time limits the watermark; a broadcast input does not."""
        return 2 if isinstance(self.function, KeyedCoProcessFunction) else 1

    @property
    def is_connected(self) -> bool:
        """Whether rows are those of `connect`, with the number of their input."""
        return isinstance(self.function, KeyedCoProcessFunction) or self.has_broadcast

    @property
    def has_broadcast(self) -> bool:
        """Whether the second input is broadcast."""
        return isinstance(self.function, KeyedBroadcastProcessFunction)

    def make_partitioner(self) -> KeyPartitioner:
        """Make the partitioner that finds the subtask of each row."""
        key_type = KeyRowTypeInfo(self.key_type) if self.pyflink_state else self.key_type
        return KeyPartitioner(
            self.key_columns,
            key_type.serializer,
            self.operator.parallelism,
            self.operator.max_parallelism,
            self.layouts,
            tuple(self.hashes.items()),
            self.pyflink_state,
            None if self.out_of_orderness is None else self.timestamp,
            INPUT if self.is_connected else None,
            BROADCAST_INPUT if self.has_broadcast else None,
        )

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of one partition, which is one subtask.

        Yields:
            What the function emits, then a row with the acknowledgement and the metrics.
        """
        use_storage_options(self.storage_options)
        context = TaskContext.get()
        assert context is not None
        subtask = context.partitionId()
        info = TaskInfo(
            task_name=self.operator.uid or self.operator.label,
            index=subtask,
            parallelism=self.operator.parallelism,
            max_parallelism=self.operator.max_parallelism,
            attempt=context.attemptNumber(),
            job_parameters=dict(self.parameters),
        )
        key_groups = info.find_key_groups(self.operator.max_parallelism)
        backup = None if self.open_backup is None else self.open_backup(self.operator.operator_id, key_groups)
        running = self._make_operator(info, backup)
        with at(operator=self.operator.label):
            try:
                running.open(self.restored)
                yield from self._process(running, subtask, batches)
                taken = None if self.snapshot is None else self._take_snapshot(running, self.snapshot)
                yield self._acknowledge(taken, running.collect_metrics())
            finally:
                running.close()

    def _make_operator(self, info: TaskInfo, backup: LocalBackup | None) -> RowOperator:
        options: dict[str, Any] = {
            "task": info,
            "hashes": dict(self.hashes),
            "make_store": self.make_store,
            "backup": backup,
            "changelog": self.changelog,
            "pyflink_state": self.pyflink_state,
            "layouts": self.layouts,
            "latencies": self.latencies,
        }
        get_key = self._make_key_selector()
        match self.function:
            case KeyedCoProcessFunction():
                return ConnectedOperator(self.function, get_key, self.key_type, **options)
            case KeyedBroadcastProcessFunction():
                return ConnectedBroadcastOperator(
                    self.function, get_key, self.key_type, self.broadcast_states, **options
                )
            case WindowFunction() | ProcessWindowFunction():
                assert self.windows is not None
                assert self.contents is not None
                return RowWindowOperator(
                    self.function,
                    self.windows,
                    self.contents,
                    get_key,
                    self.key_type,
                    element=self.element,
                    allowed_lateness=self.allowed_lateness,
                    **options,
                )
            case KeyedProcessFunction():
                return KeyedProcessOperator(self.function, get_key, self.key_type, **options)

    def _make_key_selector(self) -> Callable[[Any], Any]:
        indexes = [self.columns.index(name) for name in self.key_columns]
        if len(indexes) == 1:
            (index,) = indexes
            return lambda row: row[index]
        return lambda row: tuple(row[index] for index in indexes)

    def _process(
        self, running: RowOperator, subtask: int, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        make_row = Row(*self.columns)
        highest: dict[int, int] = {}
        emitted: list[Any] = running.advance_processing_time()
        for batch in batches:
            own = self._take_own(batch, subtask, highest)
            columns = [own.column(name).to_pylist() for name in self.columns]
            times = [None] * len(own) if self.timestamp is None else own.column(self.timestamp).to_pylist()
            for values, timestamp in zip(zip(*columns, strict=True), times, strict=True):
                emitted += running.process(make_row(*values), timestamp)
                if len(emitted) >= _OUTPUT_ROWS or running.filled_side_outputs:
                    _refuse_side_outputs(running)
                    yield from self._emit(emitted)
                    emitted = []
        watermark = self._find_watermark(highest)
        if watermark is not None:
            emitted += running.advance_watermark(watermark)
        emitted += running.advance_processing_time()
        _refuse_side_outputs(running)
        yield from self._emit(emitted)

    def _take_own(self, batch: pa.RecordBatch, subtask: int, highest: dict[int, int]) -> pa.RecordBatch:
        """Return the elements of a batch; note in `highest` the event times of its marker rows (see `SUBTASK`)."""
        found = batch.column(SUBTASK)
        if set(found.unique().to_pylist()) - {subtask, subtask - self.operator.parallelism}:
            raise StateError(
                f"subtask {subtask} received rows of the subtasks {sorted(set(found.to_pylist()))}",
                hint="Spark has merged partitions; please report this",
            )
        is_element = pc.greater_equal(found, 0)
        if self.out_of_orderness is not None:
            others = batch.filter(pc.invert(is_element))
            times = others.column(self.timestamp).to_pylist()
            numbers = others.column(INPUT).to_pylist() if self.is_connected else [0] * len(times)
            for number, reached in zip(numbers, times, strict=True):
                if reached is not None and not (self.has_broadcast and number == BROADCAST_INPUT):
                    highest[number] = max(reached, highest.get(number, reached))
        return batch.filter(is_element)

    def _find_watermark(self, highest: Mapping[int, int]) -> int | None:
        """Return the watermark after the last row; None for none, for example if an input has no event times at all."""
        if self.out_of_orderness is None:
            return self.watermark
        if len(highest) < self.timed_inputs:
            return None
        # As in Flink, the input with the lowest event time determines the watermark.
        return min(highest.values()) - self.out_of_orderness - 1

    def _emit(self, values: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if not values or not self.output.names:
            return
        rows = [_to_fields(value, self.output.names) for value in values]
        try:
            arrays = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), self.output, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ValueRangeError(
                f"what the function emits does not fit its output: {error}",
                hint="Declare the types of the emitted values in the argument output",
            ) from error
        yield self._extend(arrays, pa.nulls(len(values), pa.binary()), pa.nulls(len(values), pa.string()))

    def _acknowledge(self, taken: TaskCheckpoint | None, metrics: Sequence[MetricValue]) -> pa.RecordBatch:
        written = None if taken is None else write_task_checkpoint(taken)
        return self._extend(
            [pa.nulls(1, field.type) for field in self.output],
            pa.array([written], pa.binary()),
            pa.array([json.dumps([asdict(each) for each in metrics], default=str)], pa.string()),
        )

    def _extend(self, arrays: Iterable[pa.Array], acknowledgements: pa.Array, metrics: pa.Array) -> pa.RecordBatch:
        names = [*self.output.names, ACKNOWLEDGEMENT, METRICS]
        return pa.RecordBatch.from_arrays([*arrays, acknowledgements, metrics], names=names)

    def _take_snapshot(self, running: RowOperator, wanted: TaskSnapshot) -> TaskCheckpoint:
        """Take the snapshot; the text of an error begins with the message of a `CheckpointFailureReason` of Flink."""
        try:
            return self._write_snapshot(running, wanted)
        except StorageError as error:
            error.what = f"{FailureReason.CHECKPOINT_ASYNC_EXCEPTION.message} {error.what}"
            raise
        except StateError as error:
            error.what = f"{FailureReason.CHECKPOINT_DECLINED.message} {error.what}"
            raise
        except Exception as error:
            # `snapshot_state` is code of the user, which may raise anything.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise StateError(
                f"{FailureReason.CHECKPOINT_DECLINED.message} {type(error).__name__}: {' '.join(str(error).split())} "
                f'(File "{frame.filename}", line {frame.lineno}, in {frame.name})'
            ) from error

    def _write_snapshot(self, running: RowOperator, wanted: TaskSnapshot) -> TaskCheckpoint:
        started = self.clock.read()
        # The name of the file is unique to this attempt: another attempt of the subtask may run at the same time.
        with record_files(wanted.directory) as recorder:
            state = running.snapshot(
                wanted.directory,
                make_file_name(),
                wanted.checkpoint_id,
                file_format=wanted.format,
                compressed=wanted.compressed,
                shared=wanted.shared,
                full=wanted.full,
            )
        size = measure_state(state)
        persisted, keyed = size, state.managed_keyed_state
        incremental = (IncrementalRemoteKeyedStateHandle, ChangelogStateBackendHandle)
        if isinstance(keyed, incremental) and keyed.persisted_size is not None:
            persisted += keyed.persisted_size - measure_state(replace(state, managed_operator_state=None))
        inlined = inline_small_files(state, wanted.directory, wanted.inline_threshold)
        return TaskCheckpoint(
            wanted.checkpoint_id,
            self.operator.operator_id,
            inlined,
            state_size=size,
            persisted_size=persisted,
            metadata_version=oldest_metadata_version(running.kryo_version),
            millis=self.clock.read() - started,
            files=tuple(recorder.files.values()),
        )


class RowWindowOperator(WindowOperator):
    """Operator that collects rows, or the values of one of their columns, in windows.

    Args:
        arguments: see `WindowOperator`.
        element: column whose values are the elements; None for rows.
        options: see `WindowOperator`.
    """

    def __init__(self, *arguments: Any, element: str | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._element = element

    def process(self, row: Row, timestamp: int | None = None) -> list[Any]:
        """Add a row, or its element, to the windows of its key; as `WindowOperator.process`."""
        return self._process(self._get_key(row), row if self._element is None else row[self._element], timestamp)


@dataclass(frozen=True)
class MakeRocksStore:
    """Maker of RocksDB stores, each in a local directory of its own.

    Attributes:
        options: of the database.
    """

    options: RocksOptions

    def __call__(self, prefix: int) -> RocksStore:
        """Make a store; its `close` removes the directory."""
        directory = tempfile.mkdtemp(prefix="state-pipelines-", dir=self.options.local_directory or None)
        return RocksStore(prefix, Path(directory), self.options)


def _refuse_side_outputs(running: RowOperator) -> None:
    """Refuse side outputs, which would be lost: on Spark, only the main output of a function is returned."""
    for tag in running.filled_side_outputs:
        raise UsageError(
            f"the function emits to the side output {tag.tag_id}, and Spark gets only the main output",
            hint="Emit rows with a column that says which output they belong to, and filter the result",
        )


def _to_fields(value: Any, names: Sequence[str]) -> Sequence[Any]:
    """Split a value that a function emits into the columns of the output."""
    if isinstance(value, dict):
        fields: Sequence[Any] = [value.get(name) for name in names]
        unknown = set(value) - set(names)
    elif isinstance(value, Row | tuple):
        fields, unknown = list(value), set()
    else:
        fields, unknown = [value], set()
    if len(fields) != len(names) or unknown:
        raise UsageError(
            f"the function emits {value!r:.200}, and its output has the columns {', '.join(names)}",
            where=Where(path="output"),
            hint="Emit a tuple, a Row or a dict with a value for each column",
        )
    return fields


_DECLINES = (FailureReason.CHECKPOINT_ASYNC_EXCEPTION, FailureReason.CHECKPOINT_DECLINED)
"""Reasons for which a task cannot take its snapshot."""

_NATIVE = {StateBackend.HASHMAP: Format.HEAP, StateBackend.ROCKSDB: Format.ROCKSDB}


@dataclass(frozen=True)
class KeyedProcessResult:
    """The results of a keyed function.

    Attributes:
        output: what the function emitted, computed already; None where no output was declared.
        snapshot: the checkpoint or savepoint that was taken; None where none was asked for.
        duration: milliseconds of the longest snapshot of a subtask and of the publication; the processing of input is
            not part of it.
        state_size: bytes of the state in the snapshot.
        persisted_size: bytes that were written; less than `state_size` where an incremental checkpoint references
            tables of earlier ones.
        metrics: of the function, of each subtask, by name; see `combine_metrics`.
        failures: failed checkpoints before the snapshot, which `execution.checkpointing.tolerable-failed-checkpoints`
            tolerates.
        postponed: milliseconds by which `execution.checkpointing.min-pause` has postponed the start of the run.
    """

    output: DataFrame | None
    snapshot: Snapshot | None
    duration: int = 0
    state_size: int = 0
    persisted_size: int = 0
    metrics: tuple[MetricValue, ...] = ()
    failures: tuple[CheckpointFailure, ...] = ()
    postponed: int = 0


class KeyedRun:
    """Run of a keyed function: its tasks, and the checkpoint or savepoint at their end.

    Attributes:
        metrics: metrics of the function in each subtask, once the tasks have ended.
    """

    def __init__(
        self,
        df: DataFrame,
        task: KeyedTask,
        order_by: tuple[str, ...],
        options: CheckpointOptions,
        deliver: Callable[[DataFrame], None] | None,
    ) -> None:
        self._df, self._task, self._order_by, self._options = df, task, order_by, options
        self._deliver = deliver
        self.metrics: tuple[MetricValue, ...] = ()

    def keep_backups(self, job_id: str) -> None:
        """Let the tasks keep the files of their checkpoints on the machines on which they run."""
        roots = tuple(filter(None, re.split("[,:]", self._options.local_directories or "")))
        self._task = replace(self._task, open_backup=partial(LocalBackup.open, roots, job_id))

    def process(self, snapshot: TaskSnapshot | None) -> tuple[DataFrame, list[TaskCheckpoint]]:
        """Run all subtasks; return what they emit, and their acknowledgements."""
        task, operator = replace(self._task, snapshot=snapshot), self._task.operator
        partitioner = task.make_partitioner()
        # All columns become nullable: marker rows (see `SUBTASK`) have no values in most of them.
        fields = [StructField(each.name, each.dataType, True) for each in self._df.schema.fields]
        placed = StructType([*fields, StructField(SUBTASK, IntegerType(), False)])
        ends = [StructField(ACKNOWLEDGEMENT, BinaryType(), True), StructField(METRICS, StringType(), True)]
        emitted = StructType([*from_arrow_schema(task.output), *ends])
        with translate_failures(f"operator {operator.label} cannot run", StateError):
            rows = self._df.mapInArrow(partitioner.add_subtasks, placed).union(self._make_markers(operator.parallelism))
            rows = rows.repartitionById(operator.parallelism, sql.col(SUBTASK))
            # Broadcast rows come first, whatever order is asked for.
            order = ([sql.col(INPUT).desc()] if task.has_broadcast else []) + [sql.col(each) for each in self._order_by]
            if order:
                rows = rows.sortWithinPartitions(*order)
            # Compute the results only once: a second computation would take another snapshot.
            results = rows.mapInArrow(task.run, emitted).localCheckpoint(eager=True)
            is_end = sql.col(METRICS).isNotNull()
            marked = results.where(is_end).select(ACKNOWLEDGEMENT, METRICS).collect()
        taken = [read_task_checkpoint(bytes(row[0])) for row in marked if row[0] is not None]
        found = [MetricValue(**each) for row in marked for each in json.loads(row[1])]
        self.metrics = tuple(sorted(found, key=lambda each: (each.name, each.subtask)))
        return results.where(~is_end).drop(ACKNOWLEDGEMENT, METRICS), taken

    def _make_markers(self, parallelism: int) -> DataFrame:
        """Make a marker row per subtask, so that subtasks without elements run, too; see `SUBTASK`."""
        nulls = [sql.lit(None).cast(each.dataType).alias(each.name) for each in self._df.schema.fields]
        numbers = self._df.sparkSession.range(0, parallelism, 1, 1)
        return numbers.select(*nulls, (sql.col("id") - parallelism).cast("int").alias(SUBTASK))

    def take(
        self, coordinator: CheckpointCoordinator, trigger: CheckpointTrigger, *, has_output: bool
    ) -> KeyedProcessResult:
        """Run all subtasks, and complete the checkpoint with their snapshots.

        Raises:
            StateError: the tasks, the output or the checkpoint failed; nothing was published, unless `failure` of the
                coordinator is in doubt.
        """
        number = trigger.checkpoint_id
        try:
            rows, taken = self.process(self._plan(trigger))
            if self._deliver is not None:
                self._deliver(rows)
            try:
                _remove_leftovers(trigger, taken)
            except StateError as error:
                raise coordinator.abort(FailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error), error) from None
            completed = coordinator.complete(taken)
        except StateError as error:
            raised = error if coordinator.pending is None else _abort(coordinator, error)
            if isinstance(self._task.function, CheckpointListener) and not trigger.properties.is_savepoint:
                self._task.function.notify_checkpoint_aborted(number)
            raise raised from raised.__cause__
        except Exception as error:
            # The output is code of the user, which may raise anything.
            coordinator.abort(FailureReason.TASK_FAILURE, f"The output failed: {type(error).__name__}: {error}")
            raise
        except BaseException:
            if coordinator.pending is not None:
                coordinator.abort(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The driver was interrupted.")
            raise
        # The listener is notified on the driver, because the tasks have ended.
        if isinstance(self._task.function, CheckpointListener) and not trigger.properties.is_savepoint:
            self._task.function.notify_checkpoint_complete(number)
        return KeyedProcessResult(
            rows if has_output else None,
            open_location(completed.location),
            completed.duration,
            completed.state_size,
            completed.persisted_size,
            self.metrics,
        )

    def _plan(self, trigger: CheckpointTrigger) -> TaskSnapshot:
        """Return the settings of the snapshot that the tasks take."""
        kind = trigger.properties.checkpoint_type
        is_canonical = isinstance(kind, SavepointType) and kind.format_type is SavepointFormatType.CANONICAL
        is_incremental = self._options.changelog or (
            self._options.incremental and self._options.backend is StateBackend.ROCKSDB
        )
        shared = trigger.shared if is_incremental else None
        if shared is not None:
            make_directory(shared)
        return TaskSnapshot(
            trigger.checkpoint_id,
            trigger.directory,
            Format.CANONICAL if is_canonical else _NATIVE[self._options.backend],
            self._options.compression,
            self._options.inline_threshold,
            shared,
            is_full(trigger.properties),
        )


def _abort(coordinator: CheckpointCoordinator, error: StateError) -> StateError:
    """End the checkpoint whose tasks or output failed; return the error with Flink's reason."""
    declined = next((each for each in _DECLINES if error.what.startswith(each.message)), None)
    if declined is None:
        return coordinator.abort(FailureReason.TASK_FAILURE, str(error), error)
    return coordinator.abort(declined, str(error).removeprefix(declined.message).strip(), error)


def _remove_leftovers(trigger: CheckpointTrigger, taken: Sequence[TaskCheckpoint]) -> None:
    """Remove the files of attempts that failed; the stage is over, so that no task writes any more."""
    needed = {file.name for each in taken for file in list_subtask_files(each.state, trigger.directory, ())}
    files = [each.location for each in list_directory(trigger.directory) if not each.is_directory]
    left = [each for each in files if each.name not in needed and not each.name.startswith(METADATA_FILE)]
    for error in delete_files(left):
        if error is not None:
            raise error
