"""JSON of SQL values: rows, arrays, maps and timestamps of the table runtime, by their logical types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from state_pipelines.codecs.json.json_values import Json, hex_bytes, sorted_map, value_json
from state_pipelines.codecs.sql.binary_rows import BinaryRowValue, TimestampValue, find_variable, write_row

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import LogicalType

_BINARY = "org.apache.flink.table.data.binary."
_ARRAY_BASE = 16
"""Offset of the elements of a byte[] in the memory of a 64-bit JVM."""


def sql_row(row: BinaryRowValue, types: Sequence[LogicalType], *, nested: bool = False) -> Json:
    """Return a row with its kind; RAW values of an outermost row as sections of its memory."""
    values = [sql_value(value, of) for of, value in zip(types, row.fields, strict=True)]
    raw = [index for index, of in enumerate(types) if of.root == "RAW" and row.fields[index] is not None]
    if raw and not nested:
        block = write_row(row, types)
        for index in raw:
            values[index] = raw_value_json(block, *find_variable(block, len(types), index))
    return {"@rowdata": values, "@kind": row.kind}


def raw_value_json(block: bytes, offset: int, size: int) -> Json:
    """Return a RAW value as the fields of its object: a section of the row's memory."""
    segment: dict[str, Json] = {
        "@class": "org.apache.flink.core.memory.MemorySegment",
        "address": _ARRAY_BASE,
        "addressLimit": _ARRAY_BASE + len(block),
        "allowWrap": True,
        "cleaner": None,
        "heapMemory": hex_bytes(block),
        "isFreedAtomic": {"@class": "java.util.concurrent.atomic.AtomicBoolean", "value": 0},
        "offHeapBuffer": None,
        "owner": None,
        "size": len(block),
    }
    section: dict[str, Json] = {
        "@class": f"{_BINARY}BinarySection",
        "offset": offset,
        "segments": [segment],
        "sizeInBytes": size,
    }
    return {"@class": f"{_BINARY}BinaryRawValueData", "binarySection": section, "javaObject": None}


def sql_array(value: object, of: LogicalType) -> list[Json]:
    """Return an array."""
    return [sql_value(item, of) for item in cast("Iterable[object]", value)]


def sql_map(value: object, key_type: LogicalType, value_type: LogicalType | None) -> Json:
    """Return a map; a multiset without value type."""
    return sorted_map(
        (sql_value(key, key_type), value_json(item) if value_type is None else sql_value(item, value_type))
        for key, item in cast("Iterable[tuple[object, object]]", value)
    )


def sql_value(value: object, of: LogicalType) -> Json:
    """Return a value of a logical type."""
    if value is None:
        return None
    match of.root:
        case "ROW" | "STRUCTURED_TYPE" if isinstance(value, BinaryRowValue):
            return sql_row(value, of.children, nested=True)
        case "ARRAY":
            return sql_array(value, of.children[0])
        case "MAP":
            return sql_map(value, of.children[0], of.children[1])
        case "MULTISET":
            return sql_map(value, of.children[0], None)
        case "DISTINCT_TYPE" if of.children:
            return sql_value(value, of.children[0])
    return value_json(value)


def sql_timestamp(value: object) -> Json:
    """Return a timestamp, with or without nanoseconds."""
    if isinstance(value, Mapping):
        millis, nanos = (*value.values(), 0)[:2]
        return value_json(TimestampValue(cast("int", millis), cast("int", nanos)))
    return value_json(TimestampValue(value, 0) if isinstance(value, int) else value)
