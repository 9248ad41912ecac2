"""Opaque values in frames: rows hold their bytes (`layout.Opaque`), SQL sees them decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from state_pipelines.codecs.columns import column_type, find_fields, has_opaque, reinterpret
from state_pipelines.codecs.layout import OPAQUE_FIELD, Layout, Opaque
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import contains_opaque, derive_layout, keep_all_opaque, keep_undecodable
from state_pipelines.codecs.value_conversion import convert_column
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.flows import (
    Apply,
    Call,
    Merge,
    Project,
    Regroup,
    Replace,
    Reserialize,
    walk_flow,
)
from state_pipelines.operations.migration.structs import RAW, find_bare
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.casts import cast_by_name
from state_pipelines.spark.types import from_spark, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.serializers.tree import Serializer


def find_layouts(serializer: Serializer, layouts: LayoutContext) -> tuple[Layout, Layout]:
    """Layouts of a value as rows hold it and as SQL sees it."""
    return derive_layout(serializer, layouts), derive_layout(serializer, keep_undecodable(layouts))


def layout_type(layout: Layout) -> DataType:
    """Spark type of the values of a layout."""
    return spark_schema(pa.schema([("value", column_type(layout))]))["value"].dataType


def reinterpret_rows(array: pa.Array, source: Layout, target: Layout) -> pa.Array:
    """Apply `reinterpret` to an array in the types of Spark."""
    kind = column_type(source)
    found = reinterpret(conform(from_spark(array, kind), kind), source, target)
    return to_spark(pa.RecordBatch.from_arrays([found], names=["value"])).column(0)


def reinterpret_column(column: Column, source: Layout, target: Layout) -> Column:
    """Decode the bytes of the values of a column with another layout."""
    if source == target:
        return column

    def work(array: pa.Array) -> pa.Array:
        return reinterpret_rows(array, source, target)

    # Spark derives the kind of function from its type hints, which the stubs do not know.
    make: Any = arrow_udf
    found: Column = make(work, layout_type(target))(column)
    return found


def convert_serialized(column: Column, old: Serializer, new: Serializer, layouts: LayoutContext) -> Column:
    """Convert the values of a payload as rows hold them, as the old and the new serializer do together."""
    kind = column_type(derive_layout(old, layouts))

    def work(array: pa.Array) -> pa.Array:
        found = convert_column(conform(from_spark(array, kind), kind), old, new, layouts)
        return to_spark(pa.RecordBatch.from_arrays([found], names=["value"])).column(0)

    make: Any = arrow_udf
    found: Column = make(work, layout_type(derive_layout(new, layouts)))(column)
    return found


def conform_value(column: Column, source: DataType, row: Layout, plain: Layout, path: str = "the value") -> Column:
    """Convert a column of SQL to the layout that rows hold.

    Args:
        column: the column.
        source: its type.
        row: layout as rows hold it.
        plain: layout as SQL sees it.
        path: for errors.

    Raises:
        MigrationError: see `cast_by_name`; or the value holds opaque values both as bytes and decoded.
    """
    if row == plain or isinstance(source, NullType):
        return cast_by_name(column, source, layout_type(row), path)
    if not _holds_bytes(source):
        return reinterpret_column(cast_by_name(column, source, layout_type(plain), path), plain, row)
    try:
        return cast_by_name(column, source, layout_type(row), path)
    except MigrationError as error:
        error.hint = "Opaque values (Kryo and the like) are passed on as bytes here; give either all of them or none"
        raise


def _holds_bytes(kind: DataType) -> bool:
    match kind:
        case StructType():
            return kind.names == [OPAQUE_FIELD] or any(_holds_bytes(each.dataType) for each in kind)
        case ArrayType(elementType=element):
            return _holds_bytes(element)
        case MapType(keyType=key, valueType=value):
            return _holds_bytes(key) or _holds_bytes(value)
        case _:
            return False


def compares_bytes(flow: Flow, back: Return, plan: OperatorPlan) -> bool:
    """Return whether a round trip of an old state is proven by the bytes of its opaque values.

    It is where upgrade and downgrade pass all of them on. Else decoded values are compared.

    Args:
        flow: flow of the migration.
        back: flow of the reverse migration.
        plan: plan of the operator.
    """
    layouts = plan.context.layouts
    return not writes_opaque(flow, layouts) and not writes_opaque(back.way, layouts)


def writes_opaque(flow: Flow, layouts: LayoutContext) -> bool:
    """Return whether a flow encodes opaque values, instead of passing on their bytes.

    Equal values may then have other bytes: hash maps and shared references have several encodings.
    """
    return any(_makes_opaque(each, layouts) for each in walk_flow(flow))


def _makes_opaque(node: Flow, layouts: LayoutContext) -> bool:
    if isinstance(node, Merge):
        return contains_opaque(node.shape.payload, layouts)
    if (
        not isinstance(node, Apply)
        or node.shape.kind == StateKind.TIMER
        or not contains_opaque(node.shape.payload, layouts)
    ):
        return False
    before, after = (derive_layout(each.payload, keep_all_opaque(layouts)) for each in (node.input.shape, node.shape))
    match node.stage:
        case Project(columns=columns):
            if isinstance(after, Opaque):
                return True
            olds, news = find_fields(before), find_fields(after)
            return any(
                has_opaque(news[name]) and RAW not in sql and olds.get(find_bare(sql) or "") != news[name]
                for name, sql in columns
                if name in news
            )
        case Replace(sql=sql) | Regroup(sql=str(sql)):
            return before != after or (RAW not in sql and find_bare(sql) != "value" and sql != "value")
        case Call() | Reserialize():
            return True
        case _:
            return False
