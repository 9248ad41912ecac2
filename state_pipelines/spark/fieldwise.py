"""Field-wise flows: every field of the new payload is one of the old ones, a constant, or computed by Arrow.

Most migrations are such, and their rows never reach Spark: the task that writes a record reads the old one and makes
the new one of it. A value may also become the only one of a list, a list that is read one value, and times of the last
access be taken away or be the same for all. This module finds for each field of a flow where it comes from; Spark
itself says what an expression refers to. A flow with an expression that Arrow does not compute is not field-wise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, StructField, StructType, TimestampType

from state_pipelines.codecs.columns import column_type, find_fields, has_opaque
from state_pipelines.codecs.layout import Opaque
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import OpaqueValues, derive_layout, keep_undecodable
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Project,
    Read,
    Regroup,
    Stamp,
    is_nondeterministic,
    names_column,
    walk_flow,
)
from state_pipelines.operations.migration.structs import RAW, find_bare, quote_name
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.arrow_expressions import ArrowExpression, list_sequence
from state_pipelines.spark.casts import cast_by_name
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.flow_columns import PREFIX, VISIBLE, hidden, require_deterministic, spark_type
from state_pipelines.spark.gathered_lists import GatheredList, find_gathered, is_gathering
from state_pipelines.spark.translated_columns import make_inputs, translate_column
from state_pipelines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.shapes import StateShape

PRESENT = hidden("present")
"""Whether the payload is not null."""


def field_column(name: str) -> str:
    """The column of a field while it is computed."""
    return f"{PREFIX}field_{name}"


def list_fields(shape: StateShape, layouts: LayoutContext) -> dict[str, pa.DataType]:
    """Arrow types of the fields of a payload; none when it is no struct.

    Raises:
        UnsupportedError: it has no columnar form.
    """
    layout = derive_layout(shape.payload, layouts)
    kind = column_type(layout)
    has_fields = pa.types.is_struct(kind) and not isinstance(layout, Opaque)
    return {each.name: each.type for each in kind} if has_fields else {}


@dataclass(frozen=True)
class FieldStage:
    """One stage, without the fields that nothing computed comes from.

    Attributes:
        columns: name, SQL and type of each field that is left.
        fields: names of all fields before; they hide columns that are no fields.
    """

    columns: tuple[tuple[str, str, DataType], ...]
    fields: frozenset[str]

    def apply(self, frame: DataFrame) -> DataFrame:
        """The frame with the fields of this stage in place of those before it."""
        present = [name for name in frame.columns if name.startswith(field_column(""))]
        shown = [F.col(name).alias(name.removeprefix(field_column(""))) for name in present]
        keys = [name for name in VISIBLE if hidden(name) in frame.columns]
        shown += [F.col(hidden(name)).alias(name) for name in keys if name not in self.fields]
        kept = [PRESENT, *map(hidden, keys)]
        # Null stays null: nothing is computed of a payload that is not there.
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
    """A flow, field by field.

    Attributes:
        state: the state that is read.
        before: its shape.
        after: the shape of the rows afterwards.
        carried: new and old name of each field whose values stay.
        derived: new fields that Arrow computes, each with its expression over `field_column`s and `hidden` ones.
        constants: fields that SQL gives the same value in every row, null where there is no payload.
        whole: the payload has no fields, or is none of which the fields matter, and stays as it is.
        time: of the last access of every row; None where it stays, or there is none afterwards.
        gathered: the value of each list, whose fields the others come from; None where rows stay rows.
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
        """The shape of the rows that fields come from."""
        return self.before if self.gathered is None else self.gathered.shape


def find_fieldwise(spark: SparkSession, flow: Flow, layouts: LayoutContext) -> FieldwiseFlow | None:
    """A flow field by field; None when it is none that goes so.

    Raises:
        MigrationError: Spark refuses an expression, or one gives other values each time.
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
    # Ignore these columns: they describe the write, not the rows read.
    changing = {"list_index": Regroup, TTL_COLUMN: Stamp}
    for column, kind in changing.items():
        if any(isinstance(each.stage, kind) for each in (*applied, gathering) if each) and names_column(flow, column):
            return None
    if gathering is not None and any(isinstance(each.stage, Regroup) for each in applied):
        # Elements of lists are identified by their indices, which change here.
        return None
    with at(state=flow.shape.name), translate_failures("the migration cannot be applied"):
        finder = _Finder(spark, layouts)
        if gathering is None:
            return finder.find(read, applied)
        gathered = find_gathered(spark, gathering, finder.list_visible(read.shape), layouts)
        found = None if gathered is None else finder.find(replace(read, shape=gathering.shape), applied)
        return None if found is None else replace(found, before=read.shape, gathered=gathered)


def _is_rowwise(applied: Apply) -> bool:
    """Whether a stage changes fields, or something else of a row that is the same for all."""
    match applied.stage:
        case Project() | Stamp():
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
    """A field of a stage.

    Attributes:
        bare: the field before that it is, when its SQL is but a name and the type stays.
        used: fields and other columns that its SQL reads.
    """

    sql: str
    bare: str | None
    used: frozenset[str]


class _Finder:
    """Takes a flow apart."""

    def __init__(self, spark: SparkSession, layouts: LayoutContext) -> None:
        self.spark, self.layouts = spark, layouts

    def find(self, read: Read, applied: list[Apply]) -> FieldwiseFlow | None:
        time = self._find_time(read, applied)
        if time is not None and time.as_py() is None:
            return None
        flow = self._find_fields(read, applied)
        return flow if flow is None or time is None else replace(flow, time=time)

    def _find_time(self, read: Read, applied: list[Apply]) -> pa.Scalar | None:
        """The time of the last access that every row gets; null where it depends on the row, None where it stays."""
        stamps = [each for each in applied if isinstance(each.stage, Stamp)]
        if not stamps or not applied[-1].shape.ttl:
            return None
        stamp = stamps[-1]
        assert isinstance(stamp.stage, Stamp)
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
        """The columns of a stage; None when one of them reads the payload as a whole."""
        olds, news = (find_fields(derive_layout(each.payload, self.layouts)) for each in (before, after))
        opaque = {name for name, layout in olds.items() if has_opaque(layout)}
        found: dict[str, _Column] = {}
        rest = []
        for name, sql in stage.columns:
            bare = find_bare(sql)
            stays = bare in opaque and name in news and olds[bare] == news[name]
            if RAW in sql or (not stays and (bare in opaque or (name in news and has_opaque(news[name])))):
                # Values that are decoded or made of decoded ones are for Spark's rows.
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
        """The columns of a frame that expressions read; None when other rows than their own count too.

        Names in SQL may be written otherwise than those of the columns, so it is the columns that are compared. What
        looks at other rows (windows, subqueries) or makes rows stands in a plan of its own, or has a plan in it.
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
        """No rows, with the columns that SQL may name; opaque values are decoded there."""
        decoded = keep_undecodable(self.layouts)
        types = list_fields(before, decoded)
        others = {"value": spark_type(before.payload, decoded)} | self.list_visible(read)
        schema = spark_schema(pa.schema(list(types.items())))
        for name, kind in others.items():
            if name not in types:
                schema.add(name, kind)
        return self.spark.createDataFrame([], schema)

    def list_visible(self, read: StateShape) -> dict[str, DataType]:
        """The columns beside the payload that SQL may name."""
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
        """The stages that compute some fields and nothing else, and the fields and other columns that they need."""
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
        """The fields that Arrow computes as Spark would, up to the first that it does not."""
        if not wanted:
            return ()
        fields, visible = spark_schema(pa.schema(list(types[0].items()))), self.list_visible(before)
        stages, needed, keys = self._prune(columns, wanted, types)
        schema = StructType([StructField(PRESENT, BooleanType())])
        for each in needed:
            schema.add(field_column(each), fields[each].dataType)
        for each in keys:
            schema.add(hidden(each), visible[each])
        # One frame for all: Spark leaves out what an expression does not need before it puts the stages into one.
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
        """The values of fields that are the same in every row."""
        stages, _, _ = self._prune(columns, wanted, types)
        frame = self.spark.range(1).select(F.lit(True).alias(PRESENT))
        for stage in stages:
            frame = stage.apply(frame)
        table = frame.select(*(F.col(field_column(name)).alias(name) for name in wanted)).toArrow()
        return table.to_struct_array().combine_chunks()[0]


def _has_plan(expression: Any) -> bool:
    """Whether there is a subquery in an expression."""
    name = expression.getClass().getSimpleName()
    if "Subquery" in name or name in ("Exists", "ListQuery"):
        return True
    return any(map(_has_plan, list_sequence(expression.children())))
