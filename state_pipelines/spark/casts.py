"""Columns as the types that a state wants: structs by the names of their fields, everything else by CAST."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from state_pipelines.errors import MigrationError

if TYPE_CHECKING:
    from pyspark.sql import Column

_DEFAULTS = {"row_kind": "+I"}
"""Columns beside the fields that an expression may leave out."""


def cast_by_name(column: Column, source: DataType, target: DataType, path: str = "the value") -> Column:
    """`column` of type `source` as `target`.

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
    """Whether the types are the same but for what may be null."""
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
