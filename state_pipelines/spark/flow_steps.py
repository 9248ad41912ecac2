"""One step of a data flow over a frame: other fields, rows left out, other keys, another kind of state.

Spark takes -0.0 and 0.0 for equal where it groups rows, at any depth, and gives one of them for both. In Java they are
two keys (`Double.equals`), and so are their bytes. Where keys hold such numbers, rows are grouped by the bytes.

Where keys become one, sessions are merged as Flink merges them (`TimeWindow.mergeWindows`,
`WindowOperator.processElement`): sessions that touch or overlap become the interval around them, and one of the windows
under which their contents were stored keeps all contents.

Columns of connectors are the splits of each element as rows; a step writes elements with other values in them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from state_pipelines.codecs.columns import ColumnCodec, column_type, find_fields, has_opaque, plan_columns
from state_pipelines.codecs.layout import OpaqueBytes
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, contains_opaque, derive_layout
from state_pipelines.connectors.registry import Codec, find_codec
from state_pipelines.errors import MigrationError
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration.flows import SessionRole
from state_pipelines.operations.migration.structs import RAW, find_bare, name_raw, quote_name
from state_pipelines.serializers.tree import LIST_KINDS, StateKind
from state_pipelines.snapshot.operator_state import SPLIT_COLUMN
from state_pipelines.spark.types import (
    EQUAL_KEYS,
    KEYS,
    NULL_KEY,
    PAYLOAD,
    PREFIX,
    VISIBLE,
    cast_by_name,
    conform_value,
    convert_serialized,
    find_layouts,
    fold_constants,
    from_spark,
    hidden,
    is_orderable,
    layout_type,
    name_column,
    reinterpret_column,
    reinterpret_rows,
    require_deterministic,
    spark_arrow_schema,
    spark_schema,
    spark_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.operations.migration.flows import SetSplit
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers.tree import Serializer

_SPLITS, _NEW = hidden("split"), hidden("new_value")
_POSITION = hidden("position")
"""Position of a split in its element; null of an element without splits."""


@dataclass(frozen=True)
class _Elements:
    """Conversion between the payloads of a connector's list state and its decoded elements; can be pickled."""

    stage: SetSplit
    shape: StateShape
    layouts: LayoutContext

    @cached_property
    def codec(self) -> Codec:
        return find_codec(self.stage.connector, self.stage.kind)

    @cached_property
    def columns(self) -> ColumnCodec:
        """Codec between the bytes of elements and the payload column."""
        return plan_columns(derive_layout(self.shape.payload, self.layouts))

    @cached_property
    def split_type(self) -> pa.DataType:
        return pa.struct([each.with_nullable(True) for each in self.codec.columns])

    def read(self, payloads: pa.Array) -> list[Any]:
        encoded = self.columns.encode(conform(payloads, self.columns.type))
        bounds = np.append(np.int64(0), encoded.stops).tolist()
        elements = (encoded.data[start:end].tobytes() for start, end in pairwise(bounds))
        return [self.codec.read(each, self.shape.payload, self._context) for each in elements]

    def write(self, values: Iterable[Any]) -> pa.Array:
        elements = [self.codec.write(each, self.shape.payload, self._context) for each in values]
        stops = np.cumsum([len(each) for each in elements], dtype=np.int64)
        starts = np.append(np.int64(0), stops)[:-1]
        return self.columns.decode(np.frombuffer(b"".join(elements), np.uint8), starts, stops).array

    @property
    def _context(self) -> LayoutContext:
        return replace(self.layouts, opaque_values=OpaqueValues.NONE)


def set_split(
    frame: DataFrame, shape: StateShape, stage: SetSplit, layouts: LayoutContext, *, folding: bool
) -> DataFrame:
    """Set a column of the source splits in the elements of a connector's list state to the value of an SQL expression.

    Args:
        frame: the rows before.
        shape: their shape, which stays.
        stage: the column and its SQL.
        layouts: context of the layouts of rows.
        folding: evaluate constant SQL.

    Raises:
        MigrationError: Spark refuses the expression.
    """
    elements = _Elements(stage, shape, layouts)
    split_type = spark_schema(pa.schema([(_SPLITS, elements.split_type)]))[0].dataType
    schema = StructType([*frame.schema, StructField(_POSITION, IntegerType()), StructField(_SPLITS, split_type)])

    def spread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _spread(batch, elements)

    spread_frame = frame.mapInArrow(spread, schema)
    shown = [F.col(PAYLOAD).alias("value")]
    shown += [F.col(hidden(name)).alias(name) for name in ("list_index", "subtask") if hidden(name) in frame.columns]
    exposed = spread_frame.select("*", *shown, F.col(_SPLITS).alias(SPLIT_COLUMN))
    if folding:
        fold_constants(exposed.select(F.expr(stage.sql)))
    made = exposed.select(F.expr(stage.sql).alias(_NEW))
    require_deterministic(made, allowed=stage.nondeterministic)
    target = split_type[stage.column].dataType  # type: ignore[index]
    value = cast_by_name(F.expr(stage.sql), made.schema[_NEW].dataType, target, f"{SPLIT_COLUMN}.{stage.column}")
    changed = exposed.select(*spread_frame.columns, value.alias(_NEW))

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: pa.Table | None = None
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            rows = rows if held is None else pa.concat_tables([held, rows])
            # Hold back the rows of the last element: more of its splits may follow in the next batch.
            first = _starts(rows)
            cut = int(first[-1]) if len(first) else 0
            held = rows.slice(cut)
            if cut:
                yield _gather(rows.slice(0, cut), elements)
        if held is not None and len(held):
            yield _gather(held, elements)

    return changed.mapInArrow(gather, frame.schema)


def _spread(batch: pa.RecordBatch, elements: _Elements) -> pa.RecordBatch:
    """Replace each element by a row per split; an element without splits keeps one row."""
    found = [[*elements.codec.rows(value)] for value in elements.read(batch.column(PAYLOAD))]
    counts = np.array([max(1, len(each)) for each in found], np.int64)
    repeated = batch.take(pa.array(np.repeat(np.arange(len(batch)), counts)))
    positions = [position for each in found for position in (range(len(each)) if each else (None,))]
    splits = [row for each in found for row in (each or (None,))]
    return pa.RecordBatch.from_arrays(
        [*repeated.columns, pa.array(positions, pa.int32()), pa.array(splits, elements.split_type)],
        names=[*batch.schema.names, _POSITION, _SPLITS],
    )


def _starts(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the row numbers at which the rows of an element begin."""
    return np.flatnonzero(rows.column(_POSITION).fill_null(0).to_numpy() == 0)


def _gather(rows: pa.Table, elements: _Elements) -> pa.RecordBatch:
    """Merge the rows of each element into one row, with the new values in its splits."""
    starts = _starts(rows)
    kept = rows.take(pa.array(starts)).drop_columns([_POSITION, _SPLITS, _NEW])
    splits, news = rows.column(_SPLITS).to_pylist(), rows.column(_NEW).to_pylist()
    edit, column = elements.codec.edit, elements.stage.column
    assert edit is not None
    values = []
    stops = [*starts[1:].tolist(), len(rows)]
    for value, start, stop in zip(elements.read(kept.column(PAYLOAD).combine_chunks()), starts, stops, strict=True):
        edited = [
            {**split, column: new}
            for split, new in zip(splits[start:stop], news[start:stop], strict=True)
            if split is not None
        ]
        values.append(edit.apply(value, edited) if edited else value)
    payload = conform(elements.write(values), kept.schema.field(PAYLOAD).type, PAYLOAD)
    columns = [payload if name == PAYLOAD else kept.column(name).combine_chunks() for name in kept.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=kept.schema.names)


BYTES = hidden("bytes_of_keys")


def group_rows(
    frame: DataFrame, keys: Sequence[str], shape: StateShape, layouts: LayoutContext, aggregates: Sequence[Column] = ()
) -> DataFrame:
    """Group rows by key: one row per key, with the key columns and the columns of aggregates.

    Args:
        frame: the rows.
        keys: names of the columns that are equal for the rows of one key.
        shape: shape of the state.
        layouts: context of the layouts of its serializers.
        aggregates: aggregates over the rows of a key.
    """
    frame, compared = separate_keys(frame, keys, shape, layouts)
    # Keys with floating-point numbers are grouped by their bytes: by value, Spark would return 0.0 for -0.0.
    found = [F.first(name).alias(name) for name in keys if name not in compared]
    found += aggregates
    grouped = frame.groupBy(*compared).agg(*found) if found else frame.select(*compared).distinct()
    return grouped.drop(BYTES)


def separate_keys(
    frame: DataFrame, keys: Sequence[str], shape: StateShape, layouts: LayoutContext
) -> tuple[DataFrame, list[str]]:
    """Return the frame and the columns by which Spark compares keys; floating-point keys are replaced by `BYTES`."""
    inexact = [name for name in keys if _holds_floats(frame.schema[name].dataType)]
    if not inexact:
        return frame, list(keys)
    frame = frame.withColumn(BYTES, serialize_keys(inexact, shape, layouts))
    return frame, [BYTES, *(name for name in keys if name not in inexact)]


def compare_key(column: Column, kind: DataType, serializer: Serializer, layouts: LayoutContext) -> Column:
    """Return the column by which keys are joined: the bytes of keys with floating-point numbers, else the key."""
    return _serialize(column, serializer, layouts) if _holds_floats(kind) else column


def serialize_keys(names: Sequence[str], shape: StateShape, layouts: LayoutContext) -> Column:
    """The bytes of key, namespace and user key one after the other, as canonical savepoints and RocksDB hold them.

    Args:
        names: names of columns, each `hidden(…)` of one of `KEYS`.
        shape: of the state.
        layouts: of its serializers.
    """
    serializers = dict(zip(map(hidden, KEYS), (shape.key, shape.namespace, shape.map_key), strict=True))
    columns = []
    for name in names:
        serializer = serializers[name]
        assert serializer is not None
        columns.append(F.coalesce(_serialize(F.col(name), serializer, layouts), F.lit(b"")))
    return F.concat(*columns)


def _serialize(column: Column, serializer: Serializer, layouts: LayoutContext) -> Column:
    layout = derive_layout(serializer, replace(layouts, opaque_values=OpaqueValues.NONE))

    def work(array: pa.Array) -> pa.Array:
        kind = column_type(layout)
        values = conform(from_spark(array, kind), kind)
        encoded = plan_columns(layout).encode(values.drop_null())
        offsets = np.concatenate([np.zeros(1, np.int64), encoded.stops]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(encoded.data))]
        found = pa.Array.from_buffers(pa.binary(), len(encoded.stops), buffers)
        valid = np.asarray(values.is_valid())
        return found.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

    # Spark derives the kind of UDF from the type hints of `work`; the type stubs of pyspark do not know that.
    make: Any = arrow_udf
    found: Column = make(work, BinaryType())(column)
    return found


def _holds_floats(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_holds_floats(each.dataType) for each in kind)
        case ArrayType(elementType=element):
            return _holds_floats(element)
        case _:
            return isinstance(kind, DoubleType | FloatType)


KEY, NAMESPACE, TIMESTAMP, INDEX = (hidden(name) for name in (*KEYS[:2], "timestamp", "list_index"))
ORDER = hidden("order")
"""Column by which the rows of one new key are ordered."""

OLD_KEY = hidden("compared_key")
"""Column of the old key as it is compared, see `compare_key`."""

SESSION, STORED_UNDER = hidden("session"), hidden("stored_under")
_NEW_SESSION, _NEW_STORED, _GROUP = hidden("new_session"), hidden("new_stored"), hidden("session_group")


def list_sessions(frame: DataFrame, shape: StateShape) -> DataFrame:
    """Add the columns `SESSION` and `STORED_UNDER` to the rows of a state of sessions.

    `SESSION` is the window of a session, `STORED_UNDER` the window under which its contents are stored.
    """
    is_list = shape.kind == StateKind.LIST
    session, stored = (
        (F.col(PAYLOAD)["f0"], F.col(PAYLOAD)["f1"]) if is_list else (F.col(hidden("map_key")), F.col(PAYLOAD))
    )
    return frame.withColumn(SESSION, session).withColumn(STORED_UNDER, stored)


@dataclass(frozen=True)
class UnitedSessions:
    """Session windows after a change of keys: one row per old session, with the merged session that contains it.

    Attributes:
        frame: rows of `list_sessions` under new keys, with `ORDER` and `OLD_KEY`.
        compared: the columns that are equal for sessions of one new key.
        is_sql: the sessions are of an operator of Flink SQL.
    """

    frame: DataFrame
    compared: Sequence[str]
    is_sql: bool

    def unite(self) -> DataFrame:
        """Merge sessions of a key that intersect; each row gets the merged session and the window of its contents."""
        start, end = F.col(SESSION)["start"], F.col(SESSION)["end"]
        order = Window.partitionBy(*self.compared).orderBy(start, end, ORDER)
        before = order.rowsBetween(Window.unboundedPreceding, -1)
        # TimeWindow.intersects: sessions also merge if one ends where the next starts.
        begins = F.coalesce(start > F.max(end).over(before), F.lit(True))
        frame = self.frame.withColumn(_GROUP, begins.cast("int"))
        so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        frame = frame.withColumn(_GROUP, F.sum(_GROUP).over(so_far))
        group = Window.partitionBy(*self.compared, _GROUP)
        whole = group.orderBy(start, end, ORDER).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        united = F.struct(F.min(start).over(group).alias("start"), F.max(end).over(group).alias("end"))
        return frame.withColumn(_NEW_SESSION, united).withColumn(_NEW_STORED, F.first(STORED_UNDER).over(whole))

    def list_rows(self) -> DataFrame:
        """Return the rows of the new state of sessions; lists are ordered by the first old session of each new one."""
        positions = [name for name in (ORDER, INDEX) if name in self.frame.columns]
        group = Window.partitionBy(*self.compared, _GROUP).orderBy(*positions)
        frame = self.unite().withColumn(hidden("number"), F.row_number().over(group))
        frame = frame.where(F.col(hidden("number")) == 1)
        if INDEX in frame.columns:
            pair = F.struct(F.col(_NEW_SESSION).alias("f0"), F.col(_NEW_STORED).alias("f1"))
            order = Window.partitionBy(*self.compared).orderBy(*positions)
            frame = frame.withColumn(PAYLOAD, pair).withColumn(INDEX, F.row_number().over(order) - 1)
        else:
            frame = frame.withColumn(hidden("map_key"), F.col(_NEW_SESSION)).withColumn(PAYLOAD, F.col(_NEW_STORED))
        return frame

    def take_along(self, rows: DataFrame, role: SessionRole) -> DataFrame:
        """Move rows of another state to the windows of the new sessions; rows of no session keep their window.

        Timers at the end of a session or later, such as for allowed lateness, keep their distance to its end.

        Args:
            rows: rows of the state under new keys, with `OLD_KEY`.
            role: role of the state.
        """
        old, new = (STORED_UNDER, _NEW_STORED) if role is SessionRole.STORED else (SESSION, _NEW_SESSION)
        found = self.unite().select(OLD_KEY, F.col(old).alias(NAMESPACE), F.col(new).alias(SESSION))
        joined = rows.join(found.dropDuplicates([OLD_KEY, NAMESPACE]), [OLD_KEY, NAMESPACE], "left")
        if TIMESTAMP in joined.columns:
            moved = F.col(TIMESTAMP) + (F.col(SESSION)["end"] - F.col(NAMESPACE)["end"])
            # Timers of Flink SQL are in local time and cannot be compared with windows, but all of them are for the end
            # of a session.
            at_end = F.lit(True) if self.is_sql else F.col(TIMESTAMP) >= F.col(NAMESPACE)["end"] - 1
            time = F.when(F.col(SESSION).isNotNull() & at_end, moved).otherwise(F.col(TIMESTAMP))
            joined = joined.withColumn(TIMESTAMP, time)
        return joined.withColumn(NAMESPACE, F.coalesce(SESSION, NAMESPACE)).select(*rows.columns)


def leave_out_sessions(
    rows: DataFrame, sessions: DataFrame, contents: tuple[DataFrame, DataFrame], role: SessionRole
) -> DataFrame:
    """Leave out the rows of sessions that a filter left without contents; all frames have `OLD_KEY`.

    Args:
        rows: rows of a state; of the state of the sessions itself, rows of `list_sessions`.
        sessions: rows of `list_sessions`.
        contents: rows of the contents of the sessions, before and after the filter.
        role: of the state of `rows`.
    """
    pair = [OLD_KEY, NAMESPACE]
    before, after = (each.select(*pair).distinct() for each in contents)
    lost = before.join(after, pair, "left_anti").withColumnRenamed(NAMESPACE, STORED_UNDER)
    gone = sessions.select(OLD_KEY, SESSION, STORED_UNDER).join(lost, [OLD_KEY, STORED_UNDER], "left_semi")
    if role is SessionRole.SET:
        return rows.join(gone.select(OLD_KEY, SESSION), [OLD_KEY, SESSION], "left_anti").select(*rows.columns)
    window: Column = F.col(STORED_UNDER if role is SessionRole.STORED else SESSION)
    found = gone.select(OLD_KEY, window.alias(NAMESPACE))
    return rows.join(found, pair, "left_anti").select(*rows.columns)


@dataclass(frozen=True)
class Stage:
    """A stage (one step) of a migration's data flow, applied to a DataFrame.

    Attributes:
        frame: the rows before.
        before: their shape.
        after: the shape of the rows afterwards.
        layouts: context from which the layouts of serializers are derived.
        folding: see `FlowRunner`.
        beside: frames of the other flows that the stage reads (`flows.list_beside`).
    """

    frame: DataFrame
    before: StateShape
    after: StateShape
    layouts: LayoutContext
    folding: bool = False
    beside: tuple[DataFrame, ...] = ()

    def apply(self, stage: flows.Stage) -> DataFrame:
        """Apply a stage to the frame; raises as `FlowRunner.build`."""
        match stage:
            case flows.Project(columns=columns):
                self._fold_fields(columns)
                if self._is_opaque:
                    return self._project_opaque(columns, allowed=stage.nondeterministic)
                struct = F.struct(*(name_column(sql, name) for name, sql in columns))
                return self._with_payload(F.when(F.col(PAYLOAD).isNotNull(), struct), stage.nondeterministic)
            case flows.Replace(sql=sql, over_null=over_null):
                self._fold(self._exposed, sql)
                value = self._find_value(sql)
                if not over_null:
                    value = F.when(F.col(PAYLOAD).isNotNull(), value)
                return self._with_payload(value, stage.nondeterministic)
            case flows.Reserialize():
                payloads = self.before.payload, self.after.payload
                return self.frame.withColumn(PAYLOAD, convert_serialized(F.col(PAYLOAD), *payloads, self.layouts))
            case flows.TableFill():
                return self._fill(stage)
            case flows.Keep(sql=sql):
                return self._keep(sql, allowed=stage.nondeterministic)
            case flows.KeepKeys():
                return self._keep_keys(stage)
            case flows.SetAccessTime(sql=sql):
                return self.frame.drop(hidden(TTL_COLUMN)) if sql is None else self._set_access_time(sql)
            case flows.Regroup():
                return self._regroup(stage)
            case flows.Rekey():
                return self._rekey(stage)
            case flows.Follow():
                return self._follow(stage)
            case flows.Call(function=function):
                return self._call(function)
            case flows.SetSplit():
                return set_split(self.frame, self.before, stage, self.layouts, folding=self.folding)

    @cached_property
    def _is_opaque(self) -> bool:
        """Whether the payload before or after the stage holds opaque values, such as Kryo objects kept as bytes."""
        shapes = (self.before, self.after) if self.after.kind != StateKind.TIMER else ()
        return any(contains_opaque(each.payload, self.layouts) for each in shapes)

    @cached_property
    def _exposed(self) -> DataFrame:
        """The frame, with columns added under the names that SQL may use."""
        return self._expose_opaque() if self._is_opaque else self._expose_plain()

    def _expose_opaque(self) -> DataFrame:
        """Add the columns of `_expose_plain` with opaque values decoded, and their bytes, named by `name_raw`."""
        (row, plain), raw = find_layouts(self.before.payload, self.layouts), F.col(PAYLOAD)
        value, kind = reinterpret_column(raw, row, plain), layout_type(plain)
        fields = kind.names if isinstance(kind, StructType) and not isinstance(plain, OpaqueBytes) else []
        rows, plains = find_fields(row), find_fields(plain)
        shown = [F.col(hidden(name)).alias(name) for name in VISIBLE if self._has(name) and name not in fields]
        for name in fields:
            if row == plain or rows:
                # A struct also has columns that are no fields, such as the one with the class; they have no layout.
                of = raw.getField(name)
                column = reinterpret_column(of, rows[name], plains[name]) if name in rows else of
                shown.append(F.col(PAYLOAD).getField(name).alias(name_raw(name)))
            else:
                column = value.getField(name)
            shown.append(column.alias(name))
        shown += [] if "value" in fields else [value.alias("value")]
        return self.frame.select("*", *shown, raw.alias(RAW))

    def _find_value(self, sql: str) -> Column:
        """Return the column that SQL computes for the payload.

        If the SQL is only the name of the payload, opaque values (such as Kryo objects) in it stay bytes.
        """
        row = derive_layout(self.before.payload, self.layouts)
        same = sql == "value" and "value" not in find_fields(row)
        if same and self._is_opaque and row == derive_layout(self.after.payload, self.layouts):
            return F.col(RAW)
        return F.expr(sql)

    def _project_opaque(self, columns: Sequence[tuple[str, str]], *, allowed: bool) -> DataFrame:
        """Replace the fields of a payload with opaque values (such as Kryo objects); unchanged ones stay bytes."""
        before = find_fields(derive_layout(self.before.payload, self.layouts))
        rows, plains = map(find_fields, find_layouts(self.after.payload, self.layouts))
        made: dict[str, Column] = {}
        for name, sql in columns:
            bare = find_bare(sql)
            stays = bare in before and name in rows and has_opaque(rows[name]) and before[bare] == rows[name]
            value = F.col(quote_name(name_raw(bare))) if stays and bare is not None else F.expr(sql)
            made[hidden(f"field_{name}")] = F.when(F.col(PAYLOAD).isNotNull(), value)
        frame = self._evaluate(self._exposed, made, self.frame.columns, allowed=allowed)
        fields = []
        for name, _ in columns:
            each = quote_name(hidden(f"field_{name}"))
            kind = frame.schema[hidden(f"field_{name}")].dataType
            column = conform_value(F.col(each), kind, rows[name], plains[name], name) if name in rows else F.col(each)
            fields.append(column.alias(name))
        struct = F.when(F.col(PAYLOAD).isNotNull(), F.struct(*fields))
        kept = [name for name in self.frame.columns if name != PAYLOAD]
        return self._conform_payload(frame.select(*kept, struct.alias(PAYLOAD)))

    def _conform_payload(self, frame: DataFrame) -> DataFrame:
        layouts = find_layouts(self.after.payload, self.layouts)
        value = conform_value(F.col(PAYLOAD), frame.schema[PAYLOAD].dataType, *layouts)
        return frame.withColumn(PAYLOAD, value)

    def _expose_plain(self) -> DataFrame:
        kind = self.frame.schema[PAYLOAD].dataType
        fields = kind.names if isinstance(kind, StructType) else []
        shown = [F.col(hidden(name)).alias(name) for name in VISIBLE if self._has(name) and name not in fields]
        if "value" not in fields:
            shown.append(F.col(PAYLOAD).alias("value"))
        # Each call of the JVM takes time, so all fields are selected by one call.
        return self.frame.select("*", *shown, *([F.col(f"{PAYLOAD}.*")] if fields else []))

    def _has(self, name: str) -> bool:
        return hidden(name) in self.frame.columns

    def _fold(self, exposed: DataFrame, *sqls: str) -> None:
        """Evaluate constant SQL over `exposed`, so that mistakes are found before rows are read."""
        chosen = [sql for sql in sqls if find_bare(sql) is None]
        if self.folding and chosen:
            fold_constants(exposed.select(*(F.expr(sql) for sql in chosen)))

    def _fold_fields(self, columns: Iterable[tuple[str, str]]) -> None:
        """Evaluate constant fields as `_fold` does, including their casts to the types of the fields."""
        # A bare name has no constants to evaluate; it is cast when the payload is made.
        sqls = {name: sql for name, sql in columns if find_bare(sql) is None}
        if self.folding and sqls:
            made = self._exposed.select(*(F.expr(sql).alias(name) for name, sql in sqls.items()))
            wanted = layout_type(find_layouts(self.after.payload, self.layouts)[1])
            assert isinstance(wanted, StructType)
            known = {each.name: each.dataType for each in wanted}
            cast = [
                cast_by_name(F.col(quote_name(each.name)), each.dataType, known[each.name], each.name)
                for each in made.schema
                if each.name in known and RAW not in sqls[each.name]
            ]
            fold_constants(made.select(*cast))

    def _evaluate(
        self, exposed: DataFrame, columns: Mapping[str, Column], kept: list[str], *, allowed: bool
    ) -> DataFrame:
        """Select `kept` and the new columns, which are computed from `exposed`."""
        require_deterministic(exposed.select(*(each.alias(name) for name, each in columns.items())), allowed=allowed)
        return exposed.select(*kept, *(each.alias(name) for name, each in columns.items()))

    def _conform(self, frame: DataFrame, name: str, serializer: Serializer, what: str) -> DataFrame:
        target = spark_type(serializer, replace(self.layouts, opaque_values=OpaqueValues.NONE))
        return frame.withColumn(name, cast_by_name(F.col(name), frame.schema[name].dataType, target, what))

    def _with_payload(self, value: Column, allowed: bool) -> DataFrame:
        kept = [name for name in self.frame.columns if name != PAYLOAD]
        return self._conform_payload(self._evaluate(self._exposed, {PAYLOAD: value}, kept, allowed=allowed))

    def _keep(self, sql: str, *, allowed: bool) -> DataFrame:
        flag = hidden("keep")
        self._fold(self._exposed, sql)
        frame = self._evaluate(self._exposed, {flag: F.expr(sql)}, self.frame.columns, allowed=allowed)
        return self._close_up(frame.where(F.col(flag)).drop(flag))

    def _close_up(self, frame: DataFrame) -> DataFrame:
        """Renumber the elements of lists after some were removed."""
        if self.after.kind not in (StateKind.LIST, *LIST_KINDS):
            return frame
        owner = list(map(hidden, ("key_group", "key_bytes") if self.after.kind == StateKind.LIST else ("subtask",)))
        if not set(owner) <= set(frame.columns):
            # The rows have new keys whose bytes are not computed yet, so elements are grouped by the decoded keys.
            keys = [name for name in map(hidden, KEYS) if name in frame.columns]
            frame, owner = separate_keys(frame, keys, self.after, self.layouts)
        key = Window.partitionBy(*owner).orderBy(hidden("list_index"))
        return frame.withColumn(hidden("list_index"), F.row_number().over(key) - 1).drop(BYTES)

    def _keep_keys(self, stage: flows.KeepKeys) -> DataFrame:
        """Keep the rows of the keys that the SQL of a stage selects over the rows of another state (`stage.by`)."""
        by = stage.by.shape
        decided = Stage(self.beside[0], by, by, self.layouts, self.folding)._decide_keys(stage)
        frame, (key,) = separate_keys(self.frame, [hidden("state_key")], self.before, self.layouts)
        other = hidden("decided_key")
        decided = decided.withColumnRenamed(decided.columns[0], other)
        kind = "left_anti" if stage.keeps_missing else "left_semi"
        return self._close_up(frame.join(decided, F.col(key).eqNullSafe(F.col(other)), kind).drop(BYTES))

    def _decide_keys(self, stage: flows.KeepKeys) -> DataFrame:
        """Decide by the rows of this stage which keys stay, and return keys in the first column.

        These are the keys to remove if keys without a row stay (`stage.keeps_missing`), else the keys to keep.
        """
        key, flag = hidden("state_key"), hidden("keep")
        self._fold(self._exposed, stage.sql)
        rows = self._evaluate(self._exposed, {flag: F.expr(stage.sql)}, [key], allowed=stage.nondeterministic)
        rows, compared = separate_keys(rows, [key], self.before, self.layouts)
        stays = F.max(F.coalesce(F.col(flag), F.lit(False))).alias(flag)
        decided = rows.groupBy(*compared).agg(stays)
        return decided.where(~F.col(flag) if stage.keeps_missing else F.col(flag))

    def _set_access_time(self, sql: str) -> DataFrame:
        name = hidden(TTL_COLUMN)
        kept = [each for each in self.frame.columns if each != name]
        frame = self._evaluate(self._exposed, {name: F.expr(sql)}, kept, allowed=False)
        if not isinstance(frame.schema[name].dataType, TimestampType | TimestampNTZType | DateType | StringType):
            raise MigrationError(
                f"{sql} is {frame.schema[name].dataType.simpleString()}, not a time",
                hint="Write TIMESTAMP '2026-01-01 00:00:00', or a date or timestamp of YAML without quotes",
            )
        if self.folding:
            fold_constants(self._exposed.select(F.expr(sql).cast("timestamp")))
        return frame.withColumn(name, F.col(name).cast("timestamp"))

    def _fill(self, stage: flows.TableFill) -> DataFrame:
        """Fill a field from a table that is joined by key; raise for a key of which the table has several rows."""
        table = self.frame.sparkSession.read.parquet(stage.table)
        missing = sorted({*(column for _, column in stage.keys), stage.value} - set(table.columns))
        if missing:
            raise MigrationError(
                f"the table {stage.table} has no column {', '.join(missing)}", hint=f"It has {', '.join(table.columns)}"
            )
        names = [hidden(f"fill_{number}") for number in range(len(stage.keys))]
        count, value = hidden("fill_count"), hidden("fill_value")
        keys = [F.col(quote_name(column)).alias(name) for name, (_, column) in zip(names, stage.keys, strict=True)]
        given = table.select(*keys, F.col(quote_name(stage.value)).alias(value))
        given = given.groupBy(*names).agg(F.count("*").alias(count), F.first(value).alias(value))
        fields_of_keys = (self._find_key_field(field) for field, _ in stage.keys)
        same = [each.eqNullSafe(F.col(name)) for name, each in zip(names, fields_of_keys, strict=True)]
        joined = self.frame.join(given, reduce(and_, same), "left")
        kind = self.frame.schema[PAYLOAD].dataType
        assert isinstance(kind, StructType)
        of = kind[stage.field].dataType
        text = F.lit(f"the table {stage.table} has several rows of a key")
        found = F.when(F.col(count) > 1, F.raise_error(text).cast(of)).otherwise(F.col(value).cast(of))
        old = F.col(PAYLOAD).getField(stage.field)
        new = F.when(F.col(count).isNotNull(), found).otherwise(old)
        fields = [(new if name == stage.field else F.col(PAYLOAD).getField(name)).alias(name) for name in kind.names]
        struct = F.when(F.col(PAYLOAD).isNotNull(), F.struct(*fields))
        filled = joined.withColumn(PAYLOAD, struct).select(*self.frame.columns)
        return self._conform_payload(filled)

    @staticmethod
    def _find_key_field(field: str) -> Column:
        """Return the column of a field of the key, or of the key of a map (`map_key.f0`)."""
        column, _, name = field.rpartition(".")
        return F.col(hidden(column or "state_key")).getField(name)

    def _regroup(self, stage: flows.Regroup) -> DataFrame:
        kinds = (
            self.before.kind if self.before.kind in (StateKind.LIST, StateKind.MAP) else StateKind.VALUE,
            self.after.kind,
        )
        if self.after.kind != StateKind.VALUE:
            self._fold(self._exposed, *filter(None, (stage.sql, stage.key_sql)))
        match kinds:
            case (StateKind.VALUE, StateKind.LIST):
                frame = self._with_payload(self._find_value(stage.sql or "value"), stage.nondeterministic)
                return frame.withColumn(hidden("list_index"), F.lit(0))
            case (_, StateKind.MAP):
                return self._to_map(stage)
            case (StateKind.MAP, StateKind.LIST):
                frame = self._with_payload(self._find_value(stage.sql or "value"), stage.nondeterministic)
                keys = [hidden(name) for name in ("key_group", "state_key", "state_namespace")]
                frame, compared = separate_keys(frame, keys, self.before, self.layouts)
                order = Window.partitionBy(*compared).orderBy(hidden("map_key"))
                frame = frame.withColumn(hidden("list_index"), F.row_number().over(order) - 1)
                return frame.drop(hidden("map_key"), hidden("key_bytes"), BYTES)
            case _:
                return self._to_value(stage)

    def _to_map(self, stage: flows.Regroup) -> DataFrame:
        assert stage.key_sql is not None
        assert self.after.map_key is not None
        gone = (PAYLOAD, *map(hidden, ("key_bytes", "list_index", "map_key")))
        kept = [name for name in self.frame.columns if name not in gone]
        columns = {PAYLOAD: self._find_value(stage.sql or "value"), hidden("map_key"): F.expr(stage.key_sql)}
        frame = self._evaluate(self._exposed, columns, kept, allowed=stage.nondeterministic)
        frame = self._conform_payload(frame)
        frame = self._conform(frame, hidden("map_key"), self.after.map_key, "the user key")
        if self.before.kind not in (StateKind.LIST, StateKind.MAP):
            return frame
        keys = [name for name in map(hidden, ("key_group", *KEYS)) if name in frame.columns]
        ordered = frame.withColumn(hidden("order"), F.lit(0))
        united = self._unite(keys, ordered, stage.rule, "user key", "map_key")
        return united if stage.rule == flows.EqualKeys.ERROR else self._conform_payload(united)

    def _to_value(self, stage: flows.Regroup) -> DataFrame:
        is_map = self.before.kind == StateKind.MAP
        keys = [hidden(name) for name in ("key_group", "state_key", "state_namespace")]
        if not is_map and hidden("key_bytes") in self.frame.columns:
            keys = [name for name in self.frame.columns if name in {*keys, hidden("key_bytes")}]
        first = F.col(hidden("map_key" if is_map else "list_index"))
        pairs = F.collect_list(F.struct(first.alias("key"), F.col(PAYLOAD).alias("value")))
        if is_orderable(self.frame.schema[PAYLOAD].dataType):
            # The keys (or list indexes) differ, so that sorting the pairs never compares values.
            collected = F.sort_array(pairs)
        else:
            collected = F.array_sort(
                pairs,
                lambda one, other: (
                    F.when(one["key"] < other["key"], -1).when(one["key"] > other["key"], 1).otherwise(0)
                ),
            )
        name = "entries" if is_map else "values"
        array = collected if is_map else F.transform(collected, lambda each: each["value"])
        times = [F.max(hidden(TTL_COLUMN)).alias(hidden(TTL_COLUMN))] if self.after.ttl else []
        grouped = group_rows(self.frame, keys, self.before, self.layouts, [array.alias(name), *times])
        return self._take(stage, grouped, name)

    def take_lists(self, stage: flows.Regroup) -> DataFrame:
        """Compute one value from each list of a frame of `StateFrames.read_lists`."""
        return self._take(stage, self.frame.withColumnRenamed(PAYLOAD, "values"), "values")

    def _take(self, stage: flows.Regroup, grouped: DataFrame, name: str) -> DataFrame:
        """Evaluate the SQL of a stage over the column `name` with the gathered values of a row: one value per row."""
        assert stage.sql is not None
        shown = [F.col(hidden(each)).alias(each) for each in KEYS[:2] if hidden(each) in grouped.columns]
        kept = [each for each in grouped.columns if each != name]
        exposed = grouped.select("*", *shown)
        self._fold(exposed, stage.sql)
        frame = self._evaluate(exposed, {PAYLOAD: F.expr(stage.sql)}, kept, allowed=stage.nondeterministic)
        return self._conform_payload(frame)

    def _change_keys(self, stage: flows.Rekey, *, others: Sequence[Column] = ()) -> DataFrame:
        """Give the rows their new keys, and columns for their order; rows of one new key are not merged yet."""
        key = hidden("state_key")
        kind = self.frame.schema[key].dataType
        fields = kind.names if isinstance(kind, StructType) else []
        shown = [F.col(key).getField(name).alias(name) for name in fields]
        if "state_key" not in fields:
            shown.append(F.col(key).alias("state_key"))
        order = hidden("key_bytes")
        if order not in self.frame.columns:
            olds = [name for name in map(hidden, KEYS) if name in self.frame.columns]
            ordered = self.frame.withColumn(hidden("order"), serialize_keys(olds, self.before, self.layouts))
        else:
            ordered = self.frame.withColumnRenamed(order, hidden("order"))
        if is_orderable(kind):
            # Bytes are not in the order of values: the bytes of a text begin with its length, and negative numbers come
            # last.
            in_order = F.struct(F.col(key).alias("value"), F.col(hidden("order")).alias("bytes"))
            ordered = ordered.withColumn(hidden("order"), in_order)
        exposed = ordered.select("*", *shown, *others)
        self._fold(exposed, stage.sql)
        names = [*ordered.columns, *exposed.columns[len(exposed.columns) - len(others) :]]
        kept = [name for name in names if name not in (key, hidden("key_group"))]
        made = {key: F.expr(stage.sql)}
        if stage.sessions is not None:
            made[OLD_KEY] = self._compare_old_key()
        frame = self._evaluate(exposed, made, kept, allowed=stage.nondeterministic)
        assert self.after.key is not None
        frame = self._conform(frame, key, self.after.key, "the key")
        if stage.sessions is None or stage.sessions.role is SessionRole.SET:
            return frame
        before = stage.sessions.windows.shape
        itself = replace(stage, sessions=flows.Sessions(stage.sessions.windows, SessionRole.SET))
        (windows,) = self.beside
        changed = Stage(windows, before, before.with_key(self.after.key), self.layouts)
        united = changed._unite_sessions(changed._change_keys(itself))
        return united.take_along(frame, stage.sessions.role).drop(OLD_KEY)

    def _compare_old_key(self) -> Column:
        key = hidden("state_key")
        assert self.before.key is not None
        return compare_key(F.col(key), self.frame.schema[key].dataType, self.before.key, self.layouts)

    def _unite_sessions(self, frame: DataFrame) -> UnitedSessions:
        """Return the sessions of `frame`, the rows of the state of sessions after `_change_keys`."""
        frame, compared = separate_keys(
            list_sessions(frame, self.before), [hidden("state_key")], self.after, self.layouts
        )
        return UnitedSessions(frame, compared, is_sql=self.before.kind == StateKind.MAP)

    def _follow(self, stage: flows.Follow) -> DataFrame:
        shape = stage.sessions.windows.shape
        windows, *contents = (each.withColumn(OLD_KEY, self._compare_old_key()) for each in self.beside)
        rows = self.frame.withColumn(OLD_KEY, self._compare_old_key())
        is_set = stage.sessions.role is SessionRole.SET
        rows = list_sessions(rows, self.before) if is_set else rows
        before, after = contents
        kept = leave_out_sessions(rows, list_sessions(windows, shape), (before, after), stage.sessions.role)
        return self._close_up(kept.select(*self.frame.columns))

    def find_unfit_keys(self, stage: flows.Rekey) -> DataFrame:
        """Find rows whose new key is null or, if that is an error, equal to another row's; show old and new key."""
        key, old, count = hidden("state_key"), hidden("old_key"), hidden("count")
        frame = self._change_keys(stage, others=[F.col(key).alias(old)])
        keys = [name for name in map(hidden, (*KEYS, "timestamp")) if name in frame.columns]
        is_set = stage.sessions is not None and stage.sessions.role is SessionRole.SET
        unites = not is_set and self.after.kind not in (StateKind.LIST, StateKind.TIMER)
        unites = unites and stage.rule == flows.EqualKeys.ERROR
        frame, compared = separate_keys(frame, keys, self.after, self.layouts) if unites else (frame, keys)
        number = F.count("*").over(Window.partitionBy(*compared)) if unites else F.lit(1)
        unfit = frame.withColumn(count, number).where(F.col(key).isNull() | (F.col(count) > 1))
        shown = [F.col(old).alias("key"), F.col(key).alias("new key")]
        shown += [F.col(hidden(name)).alias(name) for name in KEYS[1:] if hidden(name) in keys]
        shown += [F.col(PAYLOAD).alias(self.after.column)] if PAYLOAD in frame.columns else []
        return unfit.orderBy(*(F.col(each) for each in keys), hidden("order")).select(*shown)

    def hash_new_keys(self, stage: flows.Rekey) -> DataFrame:
        """Compute a column with a hash of the bytes of each new key; the bytes are those of canonical savepoints."""
        frame = self._change_keys(stage)
        serializers = dict(
            zip(map(hidden, KEYS), (self.after.key, self.after.namespace, self.after.map_key), strict=True)
        )
        opaque = [
            name for name, each in serializers.items() if each is not None and contains_opaque(each, self.layouts)
        ]
        keys = [name for name in serializers if name in frame.columns and name not in opaque]
        # Opaque keys are not serialized: rows hold their bytes.
        others = [F.col(name) for name in (hidden("timestamp"), *opaque) if name in frame.columns]
        return frame.select(F.xxhash64(serialize_keys(keys, self.after, self.layouts), *others))

    def _rekey(self, stage: flows.Rekey) -> DataFrame:
        frame, key = self._change_keys(stage), hidden("state_key")
        null = F.raise_error(F.lit(NULL_KEY)).cast(frame.schema[key].dataType)
        frame = frame.withColumn(key, F.when(F.col(key).isNull(), null).otherwise(F.col(key)))
        if stage.sessions is not None and stage.sessions.role is SessionRole.SET:
            gone = (hidden("key_group"), hidden("key_bytes"))
            kept = [name for name in self.frame.columns if name not in gone]
            return self._unite_sessions(frame).list_rows().select(*kept)
        keys = [name for name in map(hidden, (*KEYS, "timestamp")) if name in frame.columns]
        if self.after.kind == StateKind.TIMER:
            return group_rows(frame, keys, self.after, self.layouts)
        if self.after.kind == StateKind.LIST:
            frame, compared = separate_keys(frame, keys, self.after, self.layouts)
            window = Window.partitionBy(*compared).orderBy(hidden("order"), hidden("list_index"))
            return frame.withColumn(hidden("list_index"), F.row_number().over(window) - 1).drop(hidden("order"), BYTES)
        united = self._unite(keys, frame, stage.rule, "key", "state_key")
        return self._conform_payload(united)

    def _unite(self, keys: list[str], frame: DataFrame, rule: str, what: str, column: str) -> DataFrame:
        """Unite the rows of equal keys into one row per key, by `rule`: a value of `EqualKeys`, or an SQL aggregate."""
        order = hidden("order")
        times = [F.max(name).alias(name) for name in [hidden(TTL_COLUMN)] if name in frame.columns]
        if rule in tuple(flows.EqualKeys):
            chosen = F.max_by(PAYLOAD, order) if rule == flows.EqualKeys.LAST else F.min_by(PAYLOAD, order)
            count = hidden("count")
            found = [chosen.alias(PAYLOAD), F.count("*").alias(count), *times]
            grouped = group_rows(frame, keys, self.after, self.layouts, found)
            if rule == flows.EqualKeys.ERROR:
                text = F.concat(F.lit(f"{EQUAL_KEYS} {what}, "), F.to_json(F.struct(F.col(hidden(column)).alias(what))))
                checked = F.when(F.col(count) > 1, F.raise_error(text)).otherwise(F.col(PAYLOAD))
                grouped = grouped.withColumn(PAYLOAD, checked)
            return grouped.drop(count)
        kind = frame.schema[PAYLOAD].dataType
        fields = kind.names if isinstance(kind, StructType) else []
        exposed = frame.select(
            "*",
            *([] if "value" in fields else [F.col(PAYLOAD).alias("value")]),
            *(F.col(PAYLOAD).getField(name).alias(name) for name in fields),
        )
        grouped = group_rows(exposed, keys, self.after, self.layouts, [F.expr(rule).alias(PAYLOAD), *times])
        require_deterministic(grouped, allowed=False)
        return grouped

    def _call(self, function: str | Callable[..., Any]) -> DataFrame:
        befores, afters = (find_layouts(each.payload, self.layouts) for each in (self.before, self.after))
        target = column_type(afters[1])
        names = {PAYLOAD: self.after.column} | {
            name: name.removeprefix(PREFIX) for name in self.frame.columns if name != PAYLOAD
        }
        public = self.frame.withColumnsRenamed(names)
        kind = layout_type(afters[0])
        schema = StructType(
            [
                type(each)(each.name, kind if each.name == self.after.column else each.dataType, True)
                for each in public.schema
            ]
        )
        arrow = spark_arrow_schema(pa.schema([("value", target)])).field("value").type
        column = self.after.column

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            call = _find_function(function)
            for batch in batches:
                if befores[0] != befores[1]:
                    batch = _change_column(batch, column, reinterpret_rows(batch.column(column), *befores))
                result = call(batch)
                arrays = [
                    conform(result.column(name), arrow if name == column else batch.schema.field(name).type, name)
                    for name in batch.schema.names
                ]
                made = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
                if afters[0] != afters[1]:
                    made = _change_column(made, column, reinterpret_rows(made.column(column), afters[1], afters[0]))
                yield made

        frame = public.mapInArrow(work, schema)
        return frame.withColumnsRenamed({public_name: name for name, public_name in names.items()})


def _change_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    columns = {each: values if each == name else batch.column(each) for each in batch.schema.names}
    return pa.RecordBatch.from_pydict(columns)


def _find_function(function: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MigrationError(f"the function {function} cannot be imported: {error}") from None
    return found
