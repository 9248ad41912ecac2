"""Columns of frames: Arrow types without an exact match in Spark, casts, opaque values, and checks of expressions.

| Arrow | Spark | why |
|---|---|---|
| `null` (void namespaces) | STRING, always null | Parquet and most sinks refuse void columns |
| empty struct (global windows) | STRING, empty | Parquet refuses empty structs |
| `time64[ns]` | BIGINT, nanoseconds of the day | Spark's TIME ends at microseconds |
| `timestamp[ms]` | TIMESTAMP | Spark knows microseconds only; values beyond its range are an error |
| `timestamp[ms]` without zone | TIMESTAMP_NTZ | likewise |
| `timestamp[ns]` | BIGINT, nanoseconds since 1970 | Spark's timestamps end at microseconds |
| `duration[ms]` | INTERVAL DAY TO SECOND | Spark knows microseconds only |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from state_pipelines.codecs.columns import column_type, find_fields, has_opaque, reinterpret
from state_pipelines.codecs.layout import OPAQUE_FIELD, Layout, OpaqueBytes
from state_pipelines.codecs.logical_values import conform, dense_offsets, flatten_entries
from state_pipelines.codecs.serializer_layouts import (
    LayoutContext,
    contains_opaque,
    derive_layout,
    keep_all_opaque,
    keep_undecodable,
)
from state_pipelines.codecs.value_conversion import convert_column
from state_pipelines.errors import MigrationError, ValueRangeError
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.migration.flows import (
    Apply,
    Call,
    Project,
    Regroup,
    Replace,
    Reserialize,
    StateMerge,
    walk_flow,
)
from state_pipelines.operations.migration.structs import RAW, find_bare, quote_name
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from state_pipelines.operations.migration.flows import Flow, OperatorPlan, Return
    from state_pipelines.serializers.tree import Serializer


def spark_schema(schema: pa.Schema) -> StructType:
    """Schema of the DataFrame that holds batches of `schema`."""
    return from_arrow_schema(spark_arrow_schema(schema), prefer_timestamp_ntz=True)


def spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with types that Spark has (see the module's table)."""
    return pa.schema([pa.field(each.name, _spark_type(each.type), each.nullable) for each in schema])


def to_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch to the types of `spark_arrow_schema`.

    Raises:
        ValueRangeError: a timestamp lies outside the range of Spark's microseconds.
    """
    schema = spark_arrow_schema(batch.schema)
    return pa.RecordBatch.from_arrays([_to_spark(column) for column in batch.columns], schema=schema)


def from_spark(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Restore types that Spark lacks (see the module's table), so that `conform` can convert the array to `target`."""
    if pa.types.is_null(target):
        return pa.nulls(len(array))
    if pa.types.is_struct(target) and target.num_fields == 0:
        return _empty_structs(array) if pa.types.is_string(array.type) else array
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        return _map_struct(array, lambda child, each: from_spark(child, target.field(each).type), by_name=target)
    if pa.types.is_list(target) and pa.types.is_list(array.type):
        return _relist(array, from_spark(array.flatten(), target.value_type))
    if pa.types.is_timestamp(target) and pa.types.is_integer(array.type):
        return array.cast(pa.int64()).cast(target)
    if pa.types.is_map(target) and pa.types.is_map(array.type):
        entries = flatten_entries(array)
        keys = from_spark(entries.field(0), target.key_type)
        return _remap(array, keys, from_spark(entries.field(1), target.item_type))
    return array


def _spark_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_null(of) or (pa.types.is_struct(of) and of.num_fields == 0):
        return pa.string()
    if pa.types.is_time64(of):
        return pa.int64()
    if pa.types.is_timestamp(of):
        return pa.int64() if of.unit == "ns" else pa.timestamp("us", of.tz)
    if pa.types.is_duration(of):
        return pa.duration("us")
    if pa.types.is_struct(of):
        return pa.struct([pa.field(each.name, _spark_type(each.type), each.nullable) for each in of])
    if pa.types.is_map(of):
        return pa.map_(_spark_type(of.key_type), _spark_type(of.item_type))
    if pa.types.is_list(of):
        return pa.list_(_spark_type(of.value_type))
    return of


def _to_spark(array: pa.Array) -> pa.Array:
    of, target = array.type, _spark_type(array.type)
    if of == target:
        return array
    if pa.types.is_null(of):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_struct(of) and of.num_fields == 0:
        return pc.if_else(array.is_valid(), "", None)
    if pa.types.is_timestamp(of) and of.unit != "ns":
        try:
            return array.cast(target, safe=True)
        except pa.ArrowInvalid:
            raise ValueRangeError(
                "a date lies outside the years that Spark's TIMESTAMP can hold",
                hint="Read the state with the library (`to_arrow`), which keeps milliseconds",
            ) from None
    if pa.types.is_struct(of):
        return _map_struct(array, lambda child, _: _to_spark(child))
    if pa.types.is_map(of):
        entries = flatten_entries(array)
        return _remap(array, _to_spark(entries.field(0)), _to_spark(entries.field(1)))
    if pa.types.is_list(of):
        return _relist(array, _to_spark(array.flatten()))
    return array.cast(target)


def _map_struct(
    array: pa.StructArray, change: Callable[[pa.Array, str], pa.Array], *, by_name: pa.StructType | None = None
) -> pa.Array:
    names = [each.name for each in array.type]
    known = {each.name for each in by_name} if by_name is not None else set(names)
    children = [
        change(array.field(index), name) if name in known else array.field(index) for index, name in enumerate(names)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, names=names, mask=mask)


def _relist(array: pa.ListArray, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(dense_offsets(array), values, mask=array.is_null() if array.null_count else None)


def _remap(array: pa.MapArray, keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(
        dense_offsets(array), keys, items, mask=array.is_null() if array.null_count else None
    )


def _empty_structs(array: pa.Array) -> pa.Array:
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(pa.struct([]), len(array), [valid])


_DEFAULTS = {"row_kind": "+I"}
"""Default values of fields that an expression for a struct may leave out."""


def cast_by_name(column: Column, source: DataType, target: DataType, path: str = "the value") -> Column:
    """Cast a column to a type, with fields of structs matched by name.

    Raises:
        MigrationError: a struct lacks a field of the target, or has one too many.
    """
    if _is_same(source, target):
        return column
    match source, target:
        case NullType(), _:
            return column.cast(target)
        case StructType(), StructType():
            return F.when(column.isNotNull(), F.struct(*_cast_fields(column, source, target, path)))
        case ArrayType(), ArrayType():
            inner = source.elementType, target.elementType
            return F.transform(column, lambda element: cast_by_name(element, *inner, f"{path}[]"))
        case MapType(), MapType():
            keys, values = (source.keyType, target.keyType), (source.valueType, target.valueType)
            entries = F.transform(
                F.map_entries(column),
                lambda entry: F.struct(
                    cast_by_name(entry["key"], *keys, path), cast_by_name(entry["value"], *values, path)
                ),
            )
            return F.map_from_entries(entries)
        case (StructType(), _) | (_, StructType()):
            raise MigrationError(f"{path} is {source.simpleString()}, which is no {target.simpleString()}")
    return column.cast(target)


def _cast_fields(column: Column, source: StructType, target: StructType, path: str) -> list[Column]:
    have = {each.name: each.dataType for each in source}
    extra = [name for name in have if name not in target.names]
    missing = [name for name in target.names if name not in have and name not in _DEFAULTS]
    if extra or missing:
        wrong = [f"lacks {', '.join(missing)}" if missing else "", f"has {', '.join(extra)} too many" if extra else ""]
        raise MigrationError(
            f"{path} {' and '.join(filter(None, wrong))}", hint=f"Its fields must be {', '.join(target.names)}"
        )
    columns = []
    for each in target:
        if each.name in have:
            field = cast_by_name(column.getField(each.name), have[each.name], each.dataType, f"{path}.{each.name}")
        else:
            field = F.lit(_DEFAULTS[each.name])
        columns.append(field.alias(each.name))
    return columns


def _is_same(source: DataType, target: DataType) -> bool:
    """Return whether two types are the same apart from their nullability."""
    match source, target:
        case StructType(), StructType():
            return source.names == target.names and all(
                _is_same(one.dataType, other.dataType) for one, other in zip(source, target, strict=True)
            )
        case ArrayType(), ArrayType():
            return _is_same(source.elementType, target.elementType)
        case MapType(), MapType():
            return _is_same(source.keyType, target.keyType) and _is_same(source.valueType, target.valueType)
    return source == target


PREFIX = "__state_"
PAYLOAD = f"{PREFIX}payload"
STORED = f"{PREFIX}stored"
"""Copy of the payload as it was read, if a reader is asked for one (`stored`)."""

KEYS = ("state_key", "state_namespace", "map_key")
VISIBLE = (*KEYS, "list_index", TTL_COLUMN)
"""Columns that SQL may name beside the fields and `value`."""

NULL_KEY = "the key of some entries becomes null"
EQUAL_KEYS = "several values get the same"
"""Beginnings of the messages for new keys that do not fit; see `FlowRunner.find_unfit_keys`."""

_NOW = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now")
"""Spark expressions that have one value in all rows of a query, but another one in the query of the proof."""

_NOW_WORDS = ("current_", "localtimestamp", "now(")
"""Words of which the text of such an expression has at least one."""


def hidden(name: str) -> str:
    """Return the internal name of a column: `name` with `PREFIX`."""
    return PREFIX + name


def name_column(sql: str, name: str) -> Column:
    """Return the column of an SQL expression under a name; plain names of columns need one call of the JVM, not two."""
    return F.expr(sql).alias(name) if find_bare(sql) is None else F.expr(f"{sql} AS {quote_name(name)}")


def is_orderable(kind: DataType) -> bool:
    """Return whether Spark can order values of a type: all but maps, and types that hold maps."""
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
    """Return the Spark type of the values of a serializer."""
    kind = column_type(derive_layout(serializer, layouts))
    return spark_schema(pa.schema([("value", kind)]))["value"].dataType


def require_deterministic(frame: DataFrame, *, allowed: bool) -> None:
    """Refuse nondeterministic columns of `frame`, unless they are `allowed`.

    Raises:
        MigrationError: a column depends on the time of the query, or is nondeterministic otherwise.
    """
    if allowed:
        return
    expressions = frame._jdf.queryExecution().analyzed().expressions()
    for each in map(expressions.apply, range(expressions.size())):
        if not each.deterministic() or _names_now(each.collectLeaves()):
            text = re.sub(r"#\d+L?", "", each.toString())
            raise MigrationError(
                f"the expression {text} gives other values each time, so that nothing could be proven",
                hint="Use literals, or say `nondeterministic: true` in the step",
            )


def _names_now(leaves: Any) -> bool:
    """Return whether one of the leaves of an expression is the time of the query.

    A call of the JVM takes about a third of a millisecond. One call gets the text of all leaves; each leaf is looked at
    only if that text may contain such an expression.
    """
    text = leaves.mkString(" ")
    if not any(word in text for word in _NOW_WORDS):
        return False
    names = {leaves.apply(index).getClass().getSimpleName() for index in range(leaves.size())}
    return not names.isdisjoint(_NOW)


def fold_constants(frame: DataFrame) -> None:
    """Let Spark evaluate the constants in the expressions of a frame, as it does before it reads a row.

    Raises:
        PySparkException: a constant cannot be evaluated, such as a text that is cast to a date and is none.
    """
    frame._jdf.queryExecution().optimizedPlan()


def find_layouts(serializer: Serializer, layouts: LayoutContext) -> tuple[Layout, Layout]:
    """Return two layouts of a value: in rows (opaque values are bytes) and in SQL (decoded where possible)."""
    return derive_layout(serializer, layouts), derive_layout(serializer, keep_undecodable(layouts))


def layout_type(layout: Layout) -> DataType:
    """Return the Spark type of the values of a layout."""
    return spark_schema(pa.schema([("value", column_type(layout))]))["value"].dataType


def reinterpret_rows(array: pa.Array, source: Layout, target: Layout) -> pa.Array:
    """Apply `reinterpret` to an array in Spark's types."""
    kind = column_type(source)
    found = reinterpret(conform(from_spark(array, kind), kind), source, target)
    return to_spark(pa.RecordBatch.from_arrays([found], names=["value"])).column(0)


def reinterpret_column(column: Column, source: Layout, target: Layout) -> Column:
    """Convert the values of a column to another layout of the same bytes, such as opaque bytes to decoded values."""
    if source == target:
        return column

    def work(array: pa.Array) -> pa.Array:
        return reinterpret_rows(array, source, target)

    # Spark derives the kind of UDF from the type hints of `work`; the type stubs of pyspark do not know that.
    make: Any = arrow_udf
    found: Column = make(work, layout_type(target))(column)
    return found


def convert_serialized(column: Column, old: Serializer, new: Serializer, layouts: LayoutContext) -> Column:
    """Convert the payload column of rows from the old to the new serializer of the state (see `convert_column`)."""
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
        row: layout of the value in rows, with opaque values as bytes.
        plain: layout of the value in SQL, with decoded values.
        path: name of the value, for errors.

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
        error.hint = "Some opaque values (Kryo and the like) are given as bytes: give all of them as bytes, or none"
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
    """Return whether a round trip of an old state is proven by the bytes of its opaque values (such as Kryo objects).

    It is if upgrade and downgrade pass on all opaque values as bytes. Otherwise decoded values are compared.

    Args:
        flow: flow of the migration.
        back: flow of the reverse migration.
        plan: plan of the operator.
    """
    layouts = plan.context.layouts
    return not writes_opaque(flow, layouts) and not writes_opaque(back.way, layouts)


def writes_opaque(flow: Flow, layouts: LayoutContext) -> bool:
    """Return whether a flow encodes opaque values (such as Kryo objects), instead of passing on their bytes.

    Equal values may then have different bytes, because hash maps and shared references can be encoded in several ways.
    """
    return any(_makes_opaque(each, layouts) for each in walk_flow(flow))


def _makes_opaque(node: Flow, layouts: LayoutContext) -> bool:
    if isinstance(node, StateMerge):
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
            if isinstance(after, OpaqueBytes):
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
