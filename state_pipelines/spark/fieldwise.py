"""Field-wise flows: every field of the new payload is one of the old ones, a constant, or computed by Arrow.

Most migrations are field-wise, and their rows never reach Spark: the task that writes a record reads the old record and
computes the new one. Such a flow may also make a list of one element from a value, or one value from each list, and may
remove the times of the last access or set them to one time. This module finds out how each field of a flow is made;
Spark itself resolves the names in an expression. A flow with an expression that Arrow does not compute is not
field-wise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, IntegerType, StructField, StructType, TimestampType

from state_pipelines.codecs.columns import column_type, find_fields, has_opaque
from state_pipelines.codecs.layout import OpaqueBytes
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import OpaqueValues, contains_opaque, derive_layout, keep_undecodable
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE, TableOptions
from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Project,
    Read,
    Regroup,
    SetAccessTime,
    is_nondeterministic,
    names_column,
    walk_flow,
)
from state_pipelines.operations.migration.structs import RAW, find_bare, quote_name
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.spark.arrow_expressions import ArrowExpression, list_sequence, make_inputs, translate_column
from state_pipelines.spark.splits import KeyedSplit, choose_whole, split_state
from state_pipelines.spark.tasks import run_tasks, translate_failures
from state_pipelines.spark.types import (
    KEYS,
    PREFIX,
    VISIBLE,
    cast_by_name,
    from_spark,
    hidden,
    require_deterministic,
    spark_schema,
    spark_type,
    to_spark,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator

_VALUES = "values"


@dataclass(frozen=True)
class GatheredList:
    """Computation by Arrow that makes one value of each list of a list state.

    Attributes:
        shape: shape of the resulting rows, one per list.
        type: Arrow type of their payload (the value of the state).
        value: expression that computes the payload from a column of lists.
    """

    shape: StateShape
    type: pa.DataType
    value: ArrowExpression

    def gather(self, rows: pa.RecordBatch, column: str) -> pa.RecordBatch:
        """Replace the rows of each list by one row with the value that its elements give.

        Args:
            rows: the elements of whole lists, list by list, with their `list_index`.
            column: name of the column of the elements.

        Raises:
            MigrationError: the value of a list cannot be computed.
        """
        starts = np.flatnonzero(rows.column("list_index").to_numpy() == 0)
        assert starts[0] == 0, "a batch begins inside of a list"
        elements = to_spark(rows.select([column])).column(0)
        offsets = pa.array(np.append(starts, len(rows)).astype(np.int32))
        lists = {_VALUES: pa.ListArray.from_arrays(offsets, elements)}
        found = self.value.evaluate(lists, pa.repeat(pa.scalar(True), len(starts)))
        firsts = rows if len(starts) == len(rows) else rows.take(pa.array(starts))
        columns = dict(zip(firsts.schema.names, firsts.columns, strict=True))
        del columns[column]
        payload = conform(from_spark(found, self.type), self.type, self.shape.column)
        return pa.RecordBatch.from_pydict(columns | {self.shape.column: payload})


def is_gathering(flow: Flow) -> bool:
    """Return whether a flow reads a list state and makes one value of each list.

    List states with TTL are left to Spark: each element has a time of the last access of its own.
    """
    match flow:
        case Apply(input=Read(shape=before), stage=Regroup(sql=str(), key_sql=None), shape=after):
            return (before.kind, after.kind, before.ttl) == (StateKind.LIST, StateKind.VALUE, False)
        case _:
            return False


def find_gathered(
    spark: SparkSession, flow: Apply, keys: Mapping[str, DataType], layouts: LayoutContext
) -> GatheredList | None:
    """Return how Arrow computes one value from each list of a list state; None when Arrow cannot.

    Args:
        spark: the session.
        flow: for which `is_gathering` holds.
        keys: types of the columns of the key, which SQL may name, too.
        layouts: context from which the layouts of serializers are derived.

    Raises:
        MigrationError: the SQL is not deterministic, or its type does not fit the state.
        PySparkException: Spark refuses it.
    """
    assert isinstance(flow.stage, Regroup)
    assert flow.stage.sql is not None
    if any(contains_opaque(each.payload, layouts) for each in (flow.input.shape, flow.shape)):
        return None
    try:
        element = spark_type(flow.input.shape.payload, layouts)
        target = spark_type(flow.shape.payload, layouts)
    except UnsupportedError:
        return None
    schema = StructType([StructField(_VALUES, ArrayType(element))])
    for name in KEYS[:2]:
        if name in keys:
            schema.add(name, keys[name])
    frame = make_inputs(spark, schema).select(F.expr(flow.stage.sql).alias("value"))
    require_deterministic(frame, allowed=False)
    frame = frame.select(cast_by_name(F.col("value"), frame.schema["value"].dataType, target))
    value = translate_column(frame, hidden("present"))
    if value is None or value.columns != {_VALUES}:
        return None
    return GatheredList(flow.shape, column_type(derive_layout(flow.shape.payload, layouts)), value)


PRESENT = hidden("present")
"""Whether the payload is not null."""


def field_column(name: str) -> str:
    """Return the name of the temporary column that holds a field of the payload."""
    return f"{PREFIX}field_{name}"


def list_fields(shape: StateShape, layouts: LayoutContext) -> dict[str, pa.DataType]:
    """Return the Arrow types of the fields of a payload; empty if it is no struct.

    Raises:
        UnsupportedError: the payload has no columnar layout.
    """
    layout = derive_layout(shape.payload, layouts)
    kind = column_type(layout)
    has_fields = pa.types.is_struct(kind) and not isinstance(layout, OpaqueBytes)
    return {each.name: each.type for each in kind} if has_fields else {}


@dataclass(frozen=True)
class FieldStage:
    """A stage of a flow without the fields that later stages do not need.

    Attributes:
        columns: name, SQL and type of each field that is needed.
        fields: names of all fields before the stage, needed or not. In SQL, such a name is never a key column.
    """

    columns: tuple[tuple[str, str, DataType], ...]
    fields: frozenset[str]

    def apply(self, frame: DataFrame) -> DataFrame:
        """Replace the fields of a frame by the fields that this stage computes."""
        present = [name for name in frame.columns if name.startswith(field_column(""))]
        shown = [F.col(name).alias(name.removeprefix(field_column(""))) for name in present]
        keys = [name for name in VISIBLE if hidden(name) in frame.columns]
        shown += [F.col(hidden(name)).alias(name) for name in keys if name not in self.fields]
        kept = [PRESENT, *map(hidden, keys)]
        # Null stays null: no SQL is evaluated where the payload is null.
        values = [self._compute(sql, present).alias(field_column(name)) for name, sql, _ in self.columns]
        made = frame.select("*", *shown).select(*kept, *values)
        wanted = {field_column(name): kind for name, _, kind in self.columns}
        schema = made.schema
        differing = {name for name, kind in wanted.items() if schema[name].dataType != kind}
        if not differing:
            return made
        cast = [
            cast_by_name(F.col(name), schema[name].dataType, kind).alias(name) if name in differing else F.col(name)
            for name, kind in wanted.items()
        ]
        return made.select(*kept, *cast)

    def _compute(self, sql: str, present: list[str]) -> Column:
        bare = find_bare(sql)
        if bare is not None and field_column(bare) in present:
            return F.col(field_column(bare))
        return F.when(F.col(PRESENT), F.expr(sql))


@dataclass(frozen=True)
class FieldwiseFlow:
    """A data flow of a migration whose fields Arrow computes one by one, without Spark.

    Attributes:
        state: the state that is read.
        before: its shape.
        after: the shape of the rows afterwards.
        carried: new and old name of each field whose values stay.
        derived: name of each new field that Arrow computes, and its expression. The expression reads old fields, by
            the names that `field_column` gives them, and key columns, by their `hidden` names.
        constants: values of the fields that are the same in every row with a payload; None if there are no such fields.
        whole: the payload stays as it is, because no stage sets fields.
        time: time of the last access that all rows get; None if rows keep theirs, or the new state has no TTL.
        gathered: the first stage, if it makes one value of each list; the other stages then start from that value.
    """

    state: str
    before: StateShape
    after: StateShape
    carried: tuple[tuple[str, str], ...]
    derived: tuple[tuple[str, ArrowExpression], ...]
    constants: pa.StructScalar | None
    whole: bool = False
    time: pa.Scalar | None = None
    gathered: GatheredList | None = None

    @property
    def start(self) -> StateShape:
        """Shape of the rows on whose fields the flow is computed: the stored rows, or one row per gathered list."""
        return self.before if self.gathered is None else self.gathered.shape


def find_fieldwise(spark: SparkSession, flow: Flow, layouts: LayoutContext) -> FieldwiseFlow | None:
    """Split a flow into its fields; return None if it cannot be computed field by field.

    Raises:
        MigrationError: Spark refuses an expression, or an expression is not deterministic.
    """
    *steps, read = walk_flow(flow)
    gathering = next((each for each in steps[-1:] if isinstance(each, Apply) and is_gathering(each)), None)
    if gathering is not None:
        steps.pop()
    applied = [each for each in reversed(steps) if isinstance(each, Apply) and _is_rowwise(each)]
    if not isinstance(read, Read) or len(applied) < len(steps):
        return None
    if is_nondeterministic(flow) or read.shape.kind == StateKind.TIMER:
        return None
    # Expressions below read `list_index` and the time of the last access as they are stored. If a stage changes one of
    # them, SQL that names it needs the changed value, so Spark computes the flow.
    changing = {"list_index": Regroup, TTL_COLUMN: SetAccessTime}
    for column, kind in changing.items():
        if any(isinstance(each.stage, kind) for each in (*applied, gathering) if each) and names_column(flow, column):
            return None
    if gathering is not None and any(isinstance(each.stage, Regroup) for each in applied):
        # The flow replaces each list by a list of one element. Old and new rows would both be identified by their key
        # and `list_index`, although they are not the same elements.
        return None
    with at(state=flow.shape.name), translate_failures("the migration cannot be applied"):
        finder = _Finder(spark, layouts)
        if gathering is None:
            return finder.find(read, applied)
        gathered = find_gathered(spark, gathering, finder.list_visible(read.shape), layouts)
        found = None if gathered is None else finder.find(replace(read, shape=gathering.shape), applied)
        return None if found is None else replace(found, before=read.shape, gathered=gathered)


def _is_rowwise(applied: Apply) -> bool:
    """Return whether a stage makes exactly one row of each row, so that Arrow can compute it.

    It does if it sets fields or the time of the last access, or makes a list of one element.
    """
    match applied.stage:
        case Project() | SetAccessTime():
            return True
        case Regroup(sql=None, key_sql=None):
            return applied.shape.kind == StateKind.LIST and applied.input.shape.kind not in (
                StateKind.LIST,
                StateKind.MAP,
            )
        case _:
            return False


@dataclass(frozen=True)
class _Column:
    """A field that a stage sets: its SQL, and the columns that it depends on.

    Attributes:
        bare: name of the old field that it copies; None if its SQL is more than a name, or the type changes.
        used: fields and other columns that its SQL reads.
    """

    sql: str
    bare: str | None
    used: frozenset[str]


class _Finder:
    """Analysis of a flow: the fields that are copied from old fields, computed by Arrow, or constant."""

    def __init__(self, spark: SparkSession, layouts: LayoutContext) -> None:
        self.spark, self.layouts = spark, layouts

    def find(self, read: Read, applied: list[Apply]) -> FieldwiseFlow | None:
        time = self._find_time(read, applied)
        if time is not None and time.as_py() is None:
            return None
        flow = self._find_fields(read, applied)
        return flow if flow is None or time is None else replace(flow, time=time)

    def _find_time(self, read: Read, applied: list[Apply]) -> pa.Scalar | None:
        """Return the time of the last access that the flow gives all rows.

        A null scalar means that the time depends on the row; None, that the flow sets none or the new state has no TTL.
        """
        stamps = [each for each in applied if isinstance(each.stage, SetAccessTime)]
        if not stamps or not applied[-1].shape.ttl:
            return None
        stamp = stamps[-1]
        assert isinstance(stamp.stage, SetAccessTime)
        assert stamp.stage.sql is not None
        used = self._find_used(self._make_frame(read.shape, stamp.input.shape), [stamp.stage.sql])
        if used is None or used[0]:
            return pa.scalar(None, TTL_TYPE)
        found = self.spark.range(1).select(F.expr(stamp.stage.sql).cast("timestamp").alias("time")).toArrow()
        return conform(found.column("time").combine_chunks(), TTL_TYPE, TTL_COLUMN)[0]

    def _find_fields(self, read: Read, applied: list[Apply]) -> FieldwiseFlow | None:
        shape = applied[-1].shape if applied else read.shape
        if not any(isinstance(each.stage, Project) for each in applied):
            return FieldwiseFlow(read.state, read.shape, shape, (), (), None, whole=True)
        kinds = [self._find_types(shape) for shape in (read.shape, *(each.shape for each in applied))]
        types = [kind for kind in kinds if kind is not None]
        if len(types) < len(kinds):
            return None
        columns = []
        for index, each in enumerate(applied):
            if isinstance(each.stage, Project):
                shapes = (read.shape, each.input.shape, each.shape)
                found = self._analyze(each.stage, *shapes, types[index], types[index + 1])
            else:
                found = {name: _Column(quote_name(name), name, frozenset([name])) for name in types[index]}
            if found is None:
                return None
            columns.append(found)
        origins: dict[str, str | None] = {name: name for name in types[0]}
        varying = set(types[0])
        for stage in columns:
            origins = {name: origins[each.bare] if each.bare is not None else None for name, each in stage.items()}
            varying = {name for name, each in stage.items() if any(n in varying or n in VISIBLE for n in each.used)}
        carried = tuple((name, origin) for name, origin in origins.items() if origin is not None)
        wanted = tuple(name for name, origin in origins.items() if origin is None and name in varying)
        fixed = tuple(name for name, origin in origins.items() if origin is None and name not in varying)
        derived = self._derive(columns, wanted, read.shape, types)
        if len(derived) < len(wanted):
            return None
        constants = self._evaluate(columns, fixed, types) if fixed else None
        return FieldwiseFlow(read.state, read.shape, shape, carried, derived, constants)

    def _find_types(self, shape: StateShape) -> dict[str, pa.DataType] | None:
        try:
            return list_fields(shape, self.layouts) or None
        except UnsupportedError:
            return None

    def _analyze(
        self,
        stage: Project,
        read: StateShape,
        before: StateShape,
        after: StateShape,
        types: dict[str, pa.DataType],
        wanted: dict[str, pa.DataType],
    ) -> dict[str, _Column] | None:
        """Return the columns that a stage sets; None if the stage needs Spark.

        It does if one of them reads the whole payload, or opaque values (such as Kryo objects), which Arrow cannot.
        """
        olds, news = (find_fields(derive_layout(each.payload, self.layouts)) for each in (before, after))
        opaque = {name for name, layout in olds.items() if has_opaque(layout)}
        found: dict[str, _Column] = {}
        rest = []
        for name, sql in stage.columns:
            bare = find_bare(sql)
            stays = bare in opaque and name in news and olds[bare] == news[name]
            if RAW in sql or (not stays and (bare in opaque or (name in news and has_opaque(news[name])))):
                # Stages that decode or encode opaque values, or name their bytes, are left to Spark.
                return None
            if bare in types:
                same = wanted.get(name) == types[bare]
                found[name] = _Column(sql, bare if same else None, frozenset([bare]))
            else:
                rest.append((name, sql))
        if rest:
            used = self._find_used(self._make_frame(read, before), [sql for _, sql in rest])
            if used is None or any("value" in each - set(types) or not opaque.isdisjoint(each) for each in used):
                return None
            found |= {name: _Column(sql, None, each) for (name, sql), each in zip(rest, used, strict=True)}
        return {name: found[name] for name, _ in stage.columns}

    def _find_used(self, base: DataFrame, sqls: list[str]) -> list[frozenset[str]] | None:
        """Return the columns of a frame that each expression reads; None if one depends on other rows, or makes rows.

        Columns are compared by `exprId`, because SQL may spell their names differently. Windows and generators are
        recognized by a plan that is more than one projection, subqueries by the plan inside the expression.
        """
        frame = base.select(*(F.expr(sql).alias(f"{index}") for index, sql in enumerate(sqls)))
        require_deterministic(frame, allowed=False)
        below, plan = (each._jdf.queryExecution().analyzed() for each in (base, frame))
        if plan.getClass().getSimpleName() != "Project" or not plan.child().equals(below):
            return None
        names = {attribute.exprId(): attribute.name() for attribute in list_sequence(below.output())}
        used = []
        for expression in list_sequence(plan.projectList()):
            columns = [attribute.exprId() for attribute in list_sequence(expression.references().toSeq())]
            if not expression.deterministic() or _has_plan(expression) or not set(columns) <= set(names):
                return None
            used.append(frozenset(names[each] for each in columns))
        return used

    def _make_frame(self, read: StateShape, before: StateShape) -> DataFrame:
        """Make a frame without rows that has the columns that SQL may name, with opaque values decoded."""
        decoded = keep_undecodable(self.layouts)
        types = list_fields(before, decoded)
        others = {"value": spark_type(before.payload, decoded)} | self.list_visible(read)
        schema = spark_schema(pa.schema(list(types.items())))
        for name, kind in others.items():
            if name not in types:
                schema.add(name, kind)
        return self.spark.createDataFrame([], schema)

    def list_visible(self, read: StateShape) -> dict[str, DataType]:
        """Types of the columns that SQL may name beside the payload and its fields."""
        serializers = {
            "state_key": read.key,
            "state_namespace": read.info.namespace_serializer,
            "map_key": read.map_key,
        }
        layouts = replace(self.layouts, opaque_values=OpaqueValues.NONE)
        kinds = {name: spark_type(each, layouts) for name, each in serializers.items() if each is not None}
        kinds |= {"list_index": IntegerType()} if read.kind == StateKind.LIST else {}
        return kinds | ({TTL_COLUMN: TimestampType()} if read.ttl else {})

    def _prune(
        self,
        columns: list[dict[str, _Column]],
        wanted: tuple[str, ...],
        types: list[dict[str, pa.DataType]],
    ) -> tuple[tuple[FieldStage, ...], tuple[str, ...], tuple[str, ...]]:
        """Reduce the stages to the wanted fields; also return the stored fields and other columns that they need."""
        needed, keys = set(wanted), set[str]()
        stages = []
        for index in reversed(range(len(columns))):
            stage = columns[index]
            after = spark_schema(pa.schema(list(types[index + 1].items())))
            kept = tuple((name, each.sql, after[name].dataType) for name, each in stage.items() if name in needed)
            used = {column for name in needed for column in stage[name].used}
            needed = used & set(types[index])
            keys |= used - needed
            stages.append(FieldStage(kept, frozenset(types[index])))
        fields = tuple(name for name in types[0] if name in needed)
        return tuple(reversed(stages)), fields, tuple(name for name in VISIBLE if name in keys)

    def _derive(
        self,
        columns: list[dict[str, _Column]],
        wanted: tuple[str, ...],
        before: StateShape,
        types: list[dict[str, pa.DataType]],
    ) -> tuple[tuple[str, ArrowExpression], ...]:
        """Translate the wanted fields for Arrow, up to the first that is left to Spark."""
        if not wanted:
            return ()
        fields, visible = spark_schema(pa.schema(list(types[0].items()))), self.list_visible(before)
        stages, needed, keys = self._prune(columns, wanted, types)
        schema = StructType([StructField(PRESENT, BooleanType())])
        for each in needed:
            schema.add(field_column(each), fields[each].dataType)
        for each in keys:
            schema.add(hidden(each), visible[each])
        # One frame serves all fields: Spark drops what a field does not need before it merges the stages.
        frame = make_inputs(self.spark, schema)
        for stage in stages:
            frame = stage.apply(frame)
        found = []
        for name in wanted:
            expression = translate_column(frame.select(field_column(name)), PRESENT)
            if expression is None:
                break
            found.append((name, expression))
        return tuple(found)

    def _evaluate(
        self,
        columns: list[dict[str, _Column]],
        wanted: tuple[str, ...],
        types: list[dict[str, pa.DataType]],
    ) -> pa.StructScalar:
        """Evaluate the fields that have the same value in every row."""
        stages, _, _ = self._prune(columns, wanted, types)
        frame = self.spark.range(1).select(F.lit(True).alias(PRESENT))
        for stage in stages:
            frame = stage.apply(frame)
        table = frame.select(*(F.col(field_column(name)).alias(name) for name in wanted)).toArrow()
        return table.to_struct_array().combine_chunks()[0]


def _has_plan(expression: Any) -> bool:
    """Return whether an expression contains a subquery."""
    name = expression.getClass().getSimpleName()
    if "Subquery" in name or name in ("Exists", "ListQuery"):
        return True
    return any(map(_has_plan, list_sequence(expression.children())))


Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True)
class MigratedRows:
    """A batch of rows of a state, before and after its migration.

    Attributes:
        stored: before the migration: key group, key as bytes, `list_index`, `ttl_last_access`, and the needed fields
            of the payload.
        new: after the migration: the same columns, as far as the new state has them, and the new payload.
    """

    stored: pa.RecordBatch
    new: pa.RecordBatch


class RowsTask(Protocol[Result]):
    """Work of a task on the rows of one split, before and after their migration."""

    def run(self, rows: Iterator[MigratedRows]) -> Result:
        """Return the result of the task for batches of stored rows and what they become, such as digests of both."""


@dataclass(frozen=True)
class FieldwiseRows:
    """Reader that turns splits of a state into rows of a field-wise flow.

    Attributes:
        flow: the flow.
        layouts: context of the layout of the new payload.
        new: the fields of the new payload that are wanted; None is all.
        old: fields of the old payload that are read in any case.
        hashed: also read the key group that the hash of each key gives.
    """

    flow: FieldwiseFlow
    layouts: LayoutContext
    new: frozenset[str] | None = None
    old: frozenset[str] = frozenset()
    hashed: bool = False

    @cached_property
    def type(self) -> pa.DataType:
        """Arrow type of the new payload, with the wanted fields."""
        kind = column_type(derive_layout(self.flow.after.payload, self.layouts))
        return pa.struct([each for each in kind if self._wants(each.name)])

    @cached_property
    def _carried(self) -> dict[str, str]:
        return {new: old for new, old in self.flow.carried if self._wants(new)}

    @cached_property
    def _derived(self) -> dict[str, ArrowExpression]:
        return {name: each for name, each in self.flow.derived if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.new is None or name in self.new

    @cached_property
    def _used(self) -> frozenset[str]:
        """Columns that expressions read."""
        return frozenset[str]().union(*(each.columns for each in self._derived.values()))

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(name for name in VISIBLE if hidden(name) in self._used)

    @cached_property
    def options(self) -> TableOptions:
        """The columns that `make_rows` needs."""
        fields = self._choose_fields(self._used)
        return list_columns(self.flow.before, fields, keys=self._keys, hashed=self.hashed)

    def read(self, split: KeyedSplit) -> Iterator[MigratedRows]:
        """Read a split, and apply the flow to its rows."""
        for batch in replace(split, options=self.options).batches():
            if len(batch):
                yield self.make_rows(batch)

    def make_rows(self, batch: pa.RecordBatch) -> MigratedRows:
        """Apply the flow to a batch with the columns of `options`."""
        shape, gathered = self.flow.before, self.flow.gathered
        rows = batch if gathered is None else gathered.gather(batch, shape.column)
        payload = rows.column(self.flow.start.column)
        present = payload.is_valid()
        made = dict[str, pa.Array]()
        if self._derived:
            inputs = _find_inputs(rows, payload, self._used, self._keys)
            made |= {name: each.evaluate(inputs, present) for name, each in self._derived.items()}
        new = payload if self.flow.whole else self._make_payload(payload, made)
        return MigratedRows(batch, self._make_columns(rows, new))

    def _choose_fields(self, used: frozenset[str]) -> tuple[str, ...]:
        """Choose the fields to read; none if the payload is read as a whole."""
        if self.flow.whole or self.flow.gathered is not None:
            return ()
        kind = column_type(derive_layout(self.flow.before.payload, self.layouts))
        read = [each.name for each in kind if field_column(each.name) in used]
        return choose_fields(kind, {*self._carried.values(), *read, *self.old})

    def _make_columns(self, stored: pa.RecordBatch, payload: pa.Array) -> pa.RecordBatch:
        before, after = self.flow.start, self.flow.after
        columns = {name: stored.column(name) for name in ("key_group", "key_bytes")}
        if after.kind == StateKind.LIST:
            zeros = pa.array(np.zeros(len(stored), np.int32))
            columns["list_index"] = stored.column("list_index") if before.kind == StateKind.LIST else zeros
        if after.ttl:
            time = self.flow.time
            columns[TTL_COLUMN] = stored.column(TTL_COLUMN) if time is None else pa.repeat(time, len(stored))
        return pa.RecordBatch.from_pydict(columns | {after.column: payload})

    def _make_payload(self, payload: pa.StructArray, made: Mapping[str, pa.Array]) -> pa.StructArray:
        constants = self.flow.constants
        arrays = []
        for each in self.type:
            if each.name in self._carried:
                arrays.append(payload.field(self._carried[each.name]))
                continue
            if each.name in made:
                array = made[each.name]
            else:
                assert constants is not None
                array = pa.repeat(constants[each.name], len(payload))
            arrays.append(conform(from_spark(array, each.type), each.type, each.name))
        mask = payload.is_null() if payload.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=mask)


def split_rows(operator: Operator, name: str, opaque_values: OpaqueValues = OpaqueValues.ALL) -> tuple[KeyedSplit, ...]:
    """Return the splits of a keyed state; a reader chooses their columns later."""
    state = operator.state(name)
    assert isinstance(state, KeyedState)
    layout = derive_row_layout(operator, name, opaque_values)
    return tuple(replace(split, layout=layout) for split in split_state(state, choose_whole(state, TableOptions())))


def derive_row_layout(operator: Operator, name: str, opaque_values: OpaqueValues = OpaqueValues.ALL) -> KeyedLayout:
    """Return the layout with which the rows of a keyed state are read."""
    state = operator.state(name)
    assert isinstance(state, KeyedState)
    return state.derive_layout(replace(operator.snapshot.layout_context, opaque_values=opaque_values))


def choose_fields(kind: pa.DataType, wanted: Collection[str]) -> tuple[str, ...]:
    """Return the `wanted` fields in the payload's order; if there are none, one field, which shows null payloads."""
    chosen = tuple(each.name for each in kind if each.name in wanted)
    if chosen:
        return chosen
    return (min(kind, key=lambda each: (pa.types.is_nested(each.type), pa.types.is_string(each.type))).name,)


def list_columns(
    shape: StateShape, fields: tuple[str, ...], *, keys: tuple[str, ...] = (), hashed: bool = False
) -> TableOptions:
    """List the columns that a task reads: keys as bytes, payload, and the other columns of a row.

    Args:
        shape: shape of the rows.
        fields: fields of the payload; if there are none, it is read as a whole.
        keys: further columns.
        hashed: add the key group that the hash of each key gives.
    """
    columns = ["key_group", "key_bytes", *keys]
    columns += ["list_index"] if shape.kind == StateKind.LIST and "list_index" not in keys else []
    columns += [TTL_COLUMN] if shape.ttl and TTL_COLUMN not in keys else []
    columns += ["hashed_key_group"] if hashed else []
    columns += [f"{shape.column}.{name}" for name in fields] or [shape.column]
    return TableOptions(columns=tuple(columns), key_bytes=True, key_hash=hashed)


def _find_inputs(
    batch: pa.RecordBatch, payload: pa.StructArray, used: Collection[str], keys: tuple[str, ...]
) -> dict[str, pa.Array]:
    """Return the columns that expressions read, in Spark's types."""
    fields = zip(payload.type, payload.flatten(), strict=True)
    columns = {name: array for each, array in fields if (name := field_column(each.name)) in used}
    columns |= {hidden(name): batch.column(name) for name in keys}
    inputs = to_spark(pa.RecordBatch.from_pydict(columns))
    return dict(zip(inputs.schema.names, inputs.columns, strict=True))


def run_on_rows(
    spark: SparkSession,
    rows: FieldwiseRows,
    splits: Sequence[KeyedSplit],
    task: RowsTask[Result],
    what: str,
) -> list[Result]:
    """Run a task on the rows of every split.

    Args:
        spark: the session.
        rows: reader of splits that applies the flow.
        splits: splits of the state that the flow reads.
        task: the task; it goes to the workers.
        what: what failed; the message of an error begins with it.

    Raises:
        StateError: a task failed.
    """
    return run_tasks(spark, [_OnSplit(rows, each, task) for each in splits], what)


@dataclass(frozen=True)
class _OnSplit(Generic[Result]):
    """Task that reads the rows of one split, and runs a `RowsTask` on them."""

    rows: FieldwiseRows
    split: KeyedSplit
    task: RowsTask[Result]

    def run(self) -> Result:
        """Read the rows, and run the task on them."""
        return self.task.run(self.rows.read(self.split))
