"""Data flows of migrations (`operations.migration.flows`) as DataFrames.

Inside, every column but those that SQL may name goes by a prefix, so that no field of a payload can hide it. Keys are
decoded only where SQL names them or where they change.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from state_pipelines.codecs.carrying import carries, find_fields
from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.conform import conform
from state_pipelines.codecs.layout import Carried
from state_pipelines.codecs.serializer_layouts import Carrying, LayoutContext, contains_carried, derive_layout
from state_pipelines.errors import MigrationError, at
from state_pipelines.keyed.tables import TTL_COLUMN, KeyedTable, TableOptions
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration.flows import Apply, Flow, Merge, Read
from state_pipelines.operations.migration.shapes import OPERATOR_LISTS
from state_pipelines.operations.migration.structs import RAW, find_bare, name_raw, quote_name
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState
from state_pipelines.spark.casting import cast_by_name
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.opaque_values import (
    conform_value,
    find_layouts,
    layout_type,
    reinterpret_column,
    reinterpret_rows,
)
from state_pipelines.spark.splits import choose_whole, split_state
from state_pipelines.spark.tasks import read_splits
from state_pipelines.spark.types import spark_arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.keyed.records import KeyedLayout
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator

PREFIX = "__state_"
PAYLOAD = f"{PREFIX}payload"
STORED = f"{PREFIX}stored"
"""The payload as the state that was read had it; only where it is asked for."""

KEYS = ("state_key", "state_namespace", "map_key")
VISIBLE = (*KEYS, "list_index", TTL_COLUMN)
"""Columns that SQL may name beside the fields and `value`."""

NULL_KEY = "the key of some entries becomes null"
EQUAL_KEYS = "several values get the same"
"""Beginnings of what is said where new keys do not fit; see `FlowRunner.find_unfit_keys`."""

_NOW = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now")
"""Expressions of Spark that are the same in all rows, but not in the run of the proof."""


def hidden(name: str) -> str:
    """A column under the name that it has inside."""
    return PREFIX + name


class FrameReader(Protocol):
    """Reads states as frames with the columns that stages know: `PAYLOAD`, and others under `hidden` names."""

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """The rows of a state; see `StateReader.read`."""


@dataclass
class StateReader:
    """Reads keyed states of one operator as frames; one that several flows need is read once.

    Attributes:
        operator: the operator; its snapshot need not be published.
        shared: states that several flows need.
        carried: the values that are passed on as their bytes.
    """

    spark: SparkSession
    operator: Operator
    shared: frozenset[str] = frozenset()
    carried: Carrying = Carrying.OPAQUE
    _frames: dict[tuple[str, tuple[str, ...]], DataFrame] = field(default_factory=dict)

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """The rows of a state.

        Args:
            name: of the state.
            keys: parts of the key that are decoded.
            stored: with a second column of the payload, which no stage changes.
        """
        if (name, keys) not in self._frames:
            frame = self._read(name, keys)
            if name in self.shared:
                frame = frame.persist(StorageLevel.DISK_ONLY)
            self._frames[name, keys] = frame
        frame = self._frames[name, keys]
        if stored:
            frame = frame.withColumn(STORED, F.col(PAYLOAD))
        return frame

    def _read(self, name: str, keys: tuple[str, ...]) -> DataFrame:
        state = self.operator.state(name)
        assert isinstance(state, KeyedState)
        names = name_columns(state.layout, keys)
        return self._read_columns(state, TableOptions(columns=tuple(names), key_bytes=True)).withColumnsRenamed(names)

    def _read_columns(self, state: KeyedState, options: TableOptions) -> DataFrame:
        layout = state.derive_layout(replace(self.operator.snapshot.layout_context, carried=self.carried))
        with at(operator=self.operator.label, state=state.name):
            schema = KeyedTable(layout, options).schema
        splits = split_state(state, choose_whole(state, options))
        return read_splits(self.spark, (replace(split, layout=layout) for split in splits), schema)

    def read_lists(self, name: str, keys: tuple[str, ...]) -> DataFrame:
        """The lists of a state without times of the last access, a row each, in `PAYLOAD`; empty ones have no row.

        A list is one record, so that nothing need be gathered.
        """
        state = self.operator.state(name)
        assert isinstance(state, KeyedState)
        columns = ("key_group", "key_bytes", *keys, "value")
        table = TableOptions(columns=columns, key_bytes=True, flatten=False)
        frame = self._read_columns(state, table)
        frame = frame.withColumnsRenamed({each: PAYLOAD if each == "value" else hidden(each) for each in columns})
        return frame.where(F.size(PAYLOAD) > 0)

    def release(self) -> None:
        """Forget what was kept on disk."""
        for (name, _), frame in self._frames.items():
            if name in self.shared:
                frame.unpersist()


def name_columns(layout: KeyedLayout, keys: tuple[str, ...]) -> dict[str, str]:
    """The columns that are read of a keyed state, each with its name inside.

    Args:
        layout: of the records of the state.
        keys: parts of the key that are decoded.
    """
    payload = {"LIST": "list_value", "MAP": "map_value"}.get(layout.state_type, "value")
    present = {each for each, _ in layout.key.fields}
    columns = ["key_group", "key_bytes", *(each for each in (*keys, "timestamp") if each in present)]
    columns += ["list_index"] if layout.state_type == "LIST" else []
    columns += [payload] if layout.state_type != TIMER else []
    columns += [TTL_COLUMN] if layout.ttl else []
    return {each: PAYLOAD if each == payload else hidden(each) for each in columns}


@dataclass(frozen=True)
class FlowRunner:
    """Builds the frames of flows.

    Attributes:
        reader: of the states that the flows start at.
        layouts: what layouts depend on.
        stored: see `StateReader.read`; for aligned flows only.
        folding: evaluate constant expressions, and constants inside of others, while frames are built.
    """

    reader: FrameReader
    layouts: LayoutContext
    stored: bool = False
    folding: bool = False

    def build(self, flow: Flow) -> DataFrame:
        """The frame of a flow; its payload is in `PAYLOAD`.

        Raises:
            MigrationError: Spark refuses an expression, or one gives other values each time without saying so.
        """
        with at(state=flow.shape.name):
            return self._build(flow, find_keys(flow))

    def _build(self, flow: Flow, keys: tuple[str, ...]) -> DataFrame:
        step = None if isinstance(flow, Read) else flow.step or None
        with at(path=step), translate_failures("the migration cannot be applied"):
            return self._build_node(flow, keys)

    def _build_node(self, flow: Flow, keys: tuple[str, ...]) -> DataFrame:
        match flow:
            case Read(state=state):
                return self.reader.read(state, keys, stored=self.stored)
            case Merge():
                return self._merge(flow, keys)
            case Apply(source=Read(state=state, shape=before), stage=flows.Regroup() as stage, shape=shape) if (
                isinstance(self.reader, StateReader)
                and (before.kind, shape.kind, before.ttl) == ("LIST", "VALUE", False)
            ):
                lists = self.reader.read_lists(state, tuple(name for name in keys if name in KEYS[:2]))
                return _Stage(lists, before, shape, self.layouts).take_lists(stage)
            case Apply(source=source, stage=stage, shape=shape):
                frame = self._build(source, keys)
                if source.shape.kind == TIMER and not isinstance(stage, flows.Rekey):
                    raise MigrationError("timers have no values that could change")
                return _Stage(frame, source.shape, shape, self.layouts, self.folding).apply(stage)

    def find_unfit_keys(self, flow: Flow, limit: int) -> list[dict[str, Any]]:
        """Rows whose new key is null, or the same as that of other rows, with the old key and the new one.

        Args:
            flow: one with a change of the key.
            limit: rows at most.
        """
        keys = find_keys(flow)
        found = (each for each in flows.walk_flow(flow) if isinstance(each, Apply))
        change = next(each for each in found if isinstance(each.stage, flows.Rekey))
        assert isinstance(change.stage, flows.Rekey)
        frame = self._build(change.source, keys)
        stage = _Stage(frame, change.source.shape, change.shape, self.layouts)
        rows = stage.find_unfit_keys(change.stage).limit(limit)
        return [json.loads(row[0]) for row in rows.select(F.to_json(F.struct("*"))).collect()]

    def _merge(self, flow: Merge, keys: tuple[str, ...]) -> DataFrame:
        frames = [self._build(source, keys) for _, source in flow.sources]
        names = [name for name, _ in flow.sources]
        common = [name for name in frames[0].columns if all(name in frame.columns for frame in frames)]
        identity = _identity(common)
        others = [name for name in common if name not in identity and name not in (PAYLOAD, hidden(TTL_COLUMN))]
        union: DataFrame | None = None
        for index, frame in enumerate(frames):
            own = frame.select(
                *identity,
                *others,
                F.col(hidden(TTL_COLUMN)) if hidden(TTL_COLUMN) in frame.columns else _no_time(),
                F.col(PAYLOAD).alias(hidden(f"from_{index}")),
            )
            union = own if union is None else union.unionByName(own, allowMissingColumns=True)
        assert union is not None
        sources = [hidden(f"from_{index}") for index in range(len(frames))]
        grouped = union.groupBy(*identity).agg(
            *(F.first(name, ignorenulls=True).alias(name) for name in (*others, *sources)),
            F.max(hidden(TTL_COLUMN)).alias(hidden(TTL_COLUMN)),
        )
        shown = [name for name in VISIBLE if hidden(name) in grouped.columns and name not in names]
        exposed = grouped.select(
            "*",
            *(F.col(hidden(name)).alias(name) for name in shown),
            *(F.col(source).alias(name) for source, name in zip(sources, names, strict=True)),
        )
        if self.folding:
            _fold(exposed.select(F.expr(flow.sql)))
        value = exposed.select(F.expr(flow.sql).alias(PAYLOAD))
        require_deterministic(value, allowed=flow.nondeterministic)
        layouts = find_layouts(flow.shape.payload, self.layouts)
        kept = [*identity, *others, *([hidden(TTL_COLUMN)] if flow.shape.ttl else [])]
        merged = exposed.select(*kept, F.expr(flow.sql).alias(PAYLOAD))
        return merged.select(
            *kept, conform_value(F.col(PAYLOAD), merged.schema[PAYLOAD].dataType, *layouts).alias(PAYLOAD)
        )


def _no_time() -> Column:
    return F.lit(None).cast("timestamp").alias(hidden(TTL_COLUMN))


def _identity(columns: list[str]) -> list[str]:
    """What tells a row from the others of a state without lists."""
    if hidden("key_bytes") in columns:
        return [hidden("key_group"), hidden("key_bytes")]
    return [name for name in map(hidden, ("key_group", *KEYS, "timestamp")) if name in columns]


def find_keys(flow: Flow) -> tuple[str, ...]:
    """The parts of the key that a flow needs decoded."""
    calls = any(isinstance(each, Apply) and isinstance(each.stage, flows.Call) for each in flows.walk_flow(flow))
    if calls or not flows.keeps_keys(flow):
        return KEYS
    return tuple(name for name in KEYS if flows.names_column(flow, name))


def is_orderable(kind: DataType) -> bool:
    """Whether Spark can compare values of a type: all but maps, and what holds maps."""
    match kind:
        case MapType():
            return False
        case ArrayType(elementType=element):
            return is_orderable(element)
        case StructType():
            return all(is_orderable(each.dataType) for each in kind)
        case _:
            return True


def spark_type(serializer: Serializer, layouts: LayoutContext) -> DataType:
    """Spark type of the values of a serializer."""
    kind = column_type(derive_layout(serializer, layouts))
    return spark_schema(pa.schema([("value", kind)]))["value"].dataType


_ROW_COLUMNS = ("key_group", "key_bytes", *KEYS, "timestamp", "list_index", TTL_COLUMN)


def to_rows(frame: DataFrame, shape: StateShape) -> DataFrame:
    """A frame of `FlowRunner` with the columns that `RecordEncoder` takes."""
    present = [name for name in _ROW_COLUMNS if hidden(name) in frame.columns]
    if "key_bytes" in present:
        # The bytes say it all.
        present = [name for name in present if name not in (*KEYS, "timestamp")]
    columns = [F.col(hidden(name)).alias(name) for name in present]
    if PAYLOAD in frame.columns:
        columns.append(F.col(PAYLOAD).alias(shape.column))
    columns += [F.col(STORED)] if STORED in frame.columns else []
    return frame.select(*columns)


def require_deterministic(frame: DataFrame, *, allowed: bool) -> None:
    """Raise when a column of `frame` has other values each time.

    Raises:
        MigrationError: it has, and nothing allows it.
    """
    expressions = frame._jdf.queryExecution().analyzed().expressions()
    for each in map(expressions.apply, range(expressions.size())):
        leaves = each.collectLeaves()
        names = {leaves.apply(index).getClass().getSimpleName() for index in range(leaves.size())}
        if not allowed and (not each.deterministic() or not names.isdisjoint(_NOW)):
            text = re.sub(r"#\d+L?", "", each.toString())
            raise MigrationError(
                f"the expression {text} gives other values each time, so that nothing could be proven",
                hint="Use literals, or say `nondeterministic: true` in the step",
            )


@dataclass(frozen=True)
class _Stage:
    """One stage over a frame.

    Attributes:
        frame: the rows before.
        before: their shape.
        after: the shape of the rows afterwards.
    """

    frame: DataFrame
    before: StateShape
    after: StateShape
    layouts: LayoutContext
    folding: bool = False

    def apply(self, stage: flows.Stage) -> DataFrame:
        match stage:
            case flows.Project(columns=columns):
                self._fold_fields(columns)
                if self._is_opaque:
                    return self._project_opaque(columns, allowed=stage.nondeterministic)
                struct = F.struct(*(F.expr(sql).alias(name) for name, sql in columns))
                return self._with_payload(F.when(F.col(PAYLOAD).isNotNull(), struct), stage.nondeterministic)
            case flows.Replace(sql=sql, over_null=over_null):
                self._fold(self._exposed, sql)
                value = self._find_value(sql)
                if not over_null:
                    value = F.when(F.col(PAYLOAD).isNotNull(), value)
                return self._with_payload(value, stage.nondeterministic)
            case flows.Keep(sql=sql):
                return self._keep(sql, allowed=stage.nondeterministic)
            case flows.Stamp(sql=sql):
                return self.frame.drop(hidden(TTL_COLUMN)) if sql is None else self._stamp(sql)
            case flows.Regroup():
                return self._regroup(stage)
            case flows.Rekey():
                return self._rekey(stage)
            case flows.Call(function=function):
                return self._call(function)

    @cached_property
    def _is_opaque(self) -> bool:
        """Whether the payload before or after holds opaque values."""
        shapes = (self.before, self.after) if self.after.kind != TIMER else ()
        return any(contains_carried(each.payload, self.layouts) for each in shapes)

    @cached_property
    def _exposed(self) -> DataFrame:
        """All columns, and beside them those that SQL may name."""
        return self._expose_opaque() if self._is_opaque else self._expose_plain()

    def _expose_opaque(self) -> DataFrame:
        """As `_expose_plain`: opaque values are decoded, and as rows hold them under the names of `name_raw`."""
        (row, plain), raw = find_layouts(self.before.payload, self.layouts), F.col(PAYLOAD)
        value, kind = reinterpret_column(raw, row, plain), layout_type(plain)
        fields = kind.names if isinstance(kind, StructType) and not isinstance(plain, Carried) else []
        rows, plains = find_fields(row), find_fields(plain)
        shown = [F.col(hidden(name)).alias(name) for name in VISIBLE if self._has(name) and name not in fields]
        for name in fields:
            if row == plain or rows:
                # The other columns of a struct, such as that of the class, have no layout.
                of = raw.getField(name)
                column = reinterpret_column(of, rows[name], plains[name]) if name in rows else of
                shown.append(F.col(PAYLOAD).getField(name).alias(name_raw(name)))
            else:
                column = value.getField(name)
            shown.append(column.alias(name))
        shown += [] if "value" in fields else [value.alias("value")]
        return self.frame.select("*", *shown, raw.alias(RAW))

    def _find_value(self, sql: str) -> Column:
        """SQL of the payload; where it is but that of before, as rows hold it."""
        row = derive_layout(self.before.payload, self.layouts)
        same = sql == "value" and "value" not in find_fields(row)
        if same and self._is_opaque and row == derive_layout(self.after.payload, self.layouts):
            return F.col(RAW)
        return F.expr(sql)

    def _project_opaque(self, columns: Sequence[tuple[str, str]], *, allowed: bool) -> DataFrame:
        """Other fields, of which opaque ones that stay are passed on."""
        before = find_fields(derive_layout(self.before.payload, self.layouts))
        rows, plains = map(find_fields, find_layouts(self.after.payload, self.layouts))
        made: dict[str, Column] = {}
        for name, sql in columns:
            bare = find_bare(sql)
            stays = bare in before and name in rows and carries(rows[name]) and before[bare] == rows[name]
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
        return self.frame.select("*", *shown, *(F.col(PAYLOAD).getField(name).alias(name) for name in fields))

    def _has(self, name: str) -> bool:
        return hidden(name) in self.frame.columns

    def _fold(self, exposed: DataFrame, *sqls: str) -> None:
        """Evaluate what is constant in SQL over `exposed`, so that mistakes in it are found before rows are read."""
        if self.folding and sqls:
            _fold(exposed.select(*(F.expr(sql) for sql in sqls)))

    def _fold_fields(self, columns: Iterable[tuple[str, str]]) -> None:
        """As `_fold`, down to the types of the fields."""
        if self.folding:
            sqls = dict(columns)
            made = self._exposed.select(*(F.expr(sql).alias(name) for name, sql in columns))
            wanted = layout_type(find_layouts(self.after.payload, self.layouts)[1])
            assert isinstance(wanted, StructType)
            known = {each.name: each.dataType for each in wanted}
            cast = [
                cast_by_name(F.col(quote_name(each.name)), each.dataType, known[each.name], each.name)
                for each in made.schema
                if each.name in known and RAW not in sqls[each.name]
            ]
            _fold(made.select(*cast))

    def _evaluate(
        self, exposed: DataFrame, columns: Mapping[str, Column], kept: list[str], *, allowed: bool
    ) -> DataFrame:
        """`kept` and new columns, whose SQL is over `exposed`."""
        require_deterministic(exposed.select(*(each.alias(name) for name, each in columns.items())), allowed=allowed)
        return exposed.select(*kept, *(each.alias(name) for name, each in columns.items()))

    def _conform(self, frame: DataFrame, name: str, serializer: Serializer, what: str) -> DataFrame:
        target = spark_type(serializer, replace(self.layouts, carried=Carrying.NOTHING))
        return frame.withColumn(name, cast_by_name(F.col(name), frame.schema[name].dataType, target, what))

    def _with_payload(self, value: Column, allowed: bool) -> DataFrame:
        kept = [name for name in self.frame.columns if name != PAYLOAD]
        return self._conform_payload(self._evaluate(self._exposed, {PAYLOAD: value}, kept, allowed=allowed))

    def _keep(self, sql: str, *, allowed: bool) -> DataFrame:
        flag = hidden("keep")
        self._fold(self._exposed, sql)
        frame = self._evaluate(self._exposed, {flag: F.expr(sql)}, self.frame.columns, allowed=allowed)
        frame = frame.where(F.col(flag)).drop(flag)
        if self.after.kind not in ("LIST", *OPERATOR_LISTS):
            return frame
        # The elements that stay close up.
        owner = ("key_group", "key_bytes") if self.after.kind == "LIST" else ("subtask",)
        key = Window.partitionBy(*map(hidden, owner)).orderBy(hidden("list_index"))
        return frame.withColumn(hidden("list_index"), F.row_number().over(key) - 1)

    def _stamp(self, sql: str) -> DataFrame:
        name = hidden(TTL_COLUMN)
        kept = [each for each in self.frame.columns if each != name]
        frame = self._evaluate(self._exposed, {name: F.expr(sql)}, kept, allowed=False)
        if not isinstance(frame.schema[name].dataType, TimestampType | TimestampNTZType | DateType | StringType):
            raise MigrationError(
                f"{sql} is {frame.schema[name].dataType.simpleString()}, not a time",
                hint="Write TIMESTAMP '2026-01-01 00:00:00', or a date or timestamp of YAML without quotes",
            )
        if self.folding:
            _fold(self._exposed.select(F.expr(sql).cast("timestamp")))
        return frame.withColumn(name, F.col(name).cast("timestamp"))

    def _regroup(self, stage: flows.Regroup) -> DataFrame:
        kinds = (self.before.kind if self.before.kind in ("LIST", "MAP") else "VALUE", self.after.kind)
        if self.after.kind != "VALUE":
            self._fold(self._exposed, *filter(None, (stage.sql, stage.key_sql)))
        match kinds:
            case ("VALUE", "LIST"):
                frame = self._with_payload(self._find_value(stage.sql or "value"), stage.nondeterministic)
                return frame.withColumn(hidden("list_index"), F.lit(0))
            case (_, "MAP"):
                return self._to_map(stage)
            case ("MAP", "LIST"):
                frame = self._with_payload(self._find_value(stage.sql or "value"), stage.nondeterministic)
                keys = [hidden(name) for name in ("key_group", "state_key", "state_namespace")]
                order = Window.partitionBy(*keys).orderBy(hidden("map_key"))
                frame = frame.withColumn(hidden("list_index"), F.row_number().over(order) - 1)
                return frame.drop(hidden("map_key"), hidden("key_bytes"))
            case _:
                return self._to_value(stage)

    def _to_map(self, stage: flows.Regroup) -> DataFrame:
        assert stage.key_sql is not None
        assert self.after.map_key is not None
        kept = [name for name in self.frame.columns if name not in (PAYLOAD, hidden("key_bytes"), hidden("list_index"))]
        columns = {PAYLOAD: self._find_value(stage.sql or "value"), hidden("map_key"): F.expr(stage.key_sql)}
        frame = self._evaluate(self._exposed, columns, kept, allowed=stage.nondeterministic)
        frame = self._conform_payload(frame)
        frame = self._conform(frame, hidden("map_key"), self.after.map_key, "the user key")
        if self.before.kind != "LIST":
            return frame
        keys = [name for name in map(hidden, ("key_group", *KEYS)) if name in frame.columns]
        return _unite(keys, frame.withColumn(hidden("order"), F.lit(0)), flows.ERROR, "user key", "map_key")

    def _to_value(self, stage: flows.Regroup) -> DataFrame:
        is_map = self.before.kind == "MAP"
        keys = [hidden(name) for name in ("key_group", "state_key", "state_namespace")]
        if not is_map and hidden("key_bytes") in self.frame.columns:
            keys = [name for name in self.frame.columns if name in {*keys, hidden("key_bytes")}]
        first = F.col(hidden("map_key" if is_map else "list_index"))
        pairs = F.collect_list(F.struct(first.alias("key"), F.col(PAYLOAD).alias("value")))
        if is_orderable(self.frame.schema[PAYLOAD].dataType):
            # Keys differ, so that values are never compared.
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
        return self._take(stage, self.frame.groupBy(*keys).agg(array.alias(name), *times), name)

    def take_lists(self, stage: flows.Regroup) -> DataFrame:
        """Values of the lists of `StateReader.read_lists`."""
        return self._take(stage, self.frame.withColumnRenamed(PAYLOAD, "values"), "values")

    def _take(self, stage: flows.Regroup, grouped: DataFrame, name: str) -> DataFrame:
        """One value per row of what was gathered in a column."""
        assert stage.sql is not None
        shown = [F.col(hidden(each)).alias(each) for each in KEYS[:2] if hidden(each) in grouped.columns]
        kept = [each for each in grouped.columns if each != name]
        exposed = grouped.select("*", *shown)
        self._fold(exposed, stage.sql)
        frame = self._evaluate(exposed, {PAYLOAD: F.expr(stage.sql)}, kept, allowed=stage.nondeterministic)
        return self._conform_payload(frame)

    def _change_keys(self, stage: flows.Rekey, *, others: Sequence[Column] = ()) -> DataFrame:
        """The rows under their new keys, with what they are ordered by, before any are united."""
        key = hidden("state_key")
        kind = self.frame.schema[key].dataType
        fields = kind.names if isinstance(kind, StructType) else []
        shown = [F.col(key).getField(name).alias(name) for name in fields]
        if "state_key" not in fields:
            shown.append(F.col(key).alias("state_key"))
        order = hidden("key_bytes")
        if order not in self.frame.columns:
            olds = [name for name in map(hidden, KEYS) if name in self.frame.columns]
            ordered = self.frame.withColumn(hidden("order"), F.to_json(F.struct(*olds)))
        else:
            ordered = self.frame.withColumnRenamed(order, hidden("order"))
        exposed = ordered.select("*", *shown, *others)
        self._fold(exposed, stage.sql)
        names = [*ordered.columns, *exposed.columns[len(exposed.columns) - len(others) :]]
        kept = [name for name in names if name not in (key, hidden("key_group"))]
        frame = self._evaluate(exposed, {key: F.expr(stage.sql)}, kept, allowed=stage.nondeterministic)
        assert self.after.key is not None
        return self._conform(frame, key, self.after.key, "the key")

    def find_unfit_keys(self, stage: flows.Rekey) -> DataFrame:
        """Rows whose new key is null or, where that is an error, the same as that of others: old and new key."""
        key, old, count = hidden("state_key"), hidden("old_key"), hidden("count")
        frame = self._change_keys(stage, others=[F.col(key).alias(old)])
        keys = [name for name in map(hidden, (*KEYS, "timestamp")) if name in frame.columns]
        unites = self.after.kind not in ("LIST", TIMER) and stage.rule == flows.ERROR
        number = F.count("*").over(Window.partitionBy(*keys)) if unites else F.lit(1)
        unfit = frame.withColumn(count, number).where(F.col(key).isNull() | (F.col(count) > 1))
        shown = [F.col(old).alias("key"), F.col(key).alias("new key")]
        shown += [F.col(hidden(name)).alias(name) for name in KEYS[1:] if hidden(name) in keys]
        shown += [F.col(PAYLOAD).alias(self.after.column)] if PAYLOAD in frame.columns else []
        return unfit.orderBy(*(F.col(each) for each in keys), hidden("order")).select(*shown)

    def _rekey(self, stage: flows.Rekey) -> DataFrame:
        frame, key = self._change_keys(stage), hidden("state_key")
        null = F.raise_error(F.lit(NULL_KEY)).cast(frame.schema[key].dataType)
        frame = frame.withColumn(key, F.when(F.col(key).isNull(), null).otherwise(F.col(key)))
        keys = [name for name in map(hidden, (*KEYS, "timestamp")) if name in frame.columns]
        if self.after.kind == TIMER:
            return frame.select(*keys).distinct()
        if self.after.kind == "LIST":
            window = Window.partitionBy(*keys).orderBy(hidden("order"), hidden("list_index"))
            return frame.withColumn(hidden("list_index"), F.row_number().over(window) - 1).drop(hidden("order"))
        united = _unite(keys, frame, stage.rule, "key", "state_key")
        return self._conform_payload(united)

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


def _fold(frame: DataFrame) -> None:
    """Let Spark evaluate the constants in the expressions of a frame, as it does before it reads a row.

    Raises:
        PySparkException: one cannot be evaluated, such as a text that is no date.
    """
    frame._jdf.queryExecution().optimizedPlan()


def _find_function(function: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MigrationError(f"the function {function} cannot be imported: {error}") from None
    return found


def _unite(keys: list[str], frame: DataFrame, rule: str, what: str, column: str) -> DataFrame:
    """One row per key out of all that have it, as `rule` says."""
    order = hidden("order")
    times = [F.max(name).alias(name) for name in [hidden(TTL_COLUMN)] if name in frame.columns]
    if rule in (flows.ERROR, flows.FIRST, flows.LAST):
        chosen = F.max_by(PAYLOAD, order) if rule == flows.LAST else F.min_by(PAYLOAD, order)
        count = hidden("count")
        grouped = frame.groupBy(*keys).agg(chosen.alias(PAYLOAD), F.count("*").alias(count), *times)
        if rule == flows.ERROR:
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
    grouped = exposed.groupBy(*keys).agg(F.expr(rule).alias(PAYLOAD), *times)
    require_deterministic(grouped, allowed=False)
    return grouped
