"""Arrow values as JSON, without losing a bit of them.

Integers of any width are JSON numbers, floating-point numbers too (NaN and infinities are the texts `NaN`, `Infinity`,
`-Infinity`), bytes are hexadecimal text. Dates are ISO text (`2025-01-31`), times of day `HH:MM:SS.nnnnnnnnn`, points
in time `2025-01-31T12:00:00.000Z`, for all years that Java has. A struct is an object, a list an array, and a map an
array of `[key, value]`, because its keys need not be texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from state_pipelines.codecs.json import date_text, time_text

Row: TypeAlias = dict[str, object]

_MILLIS_OF_DAY = 86_400_000
_PER_SECOND = {"s": 1, "us": 1_000_000, "ns": 1_000_000_000}


def to_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch as objects for `json.dumps`."""
    columns = [to_values(column) for column in batch.columns]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def to_values(array: pa.Array) -> list[object]:
    """The values of an array as objects for `json.dumps`."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        pairs = list(zip(to_values(_child(array, array.keys)), to_values(_child(array, array.items)), strict=True))
        return _slices(array, [list(pair) for pair in pairs])
    if pa.types.is_list(kind):
        return _slices(array, to_values(_child(array, array.values)))
    if pa.types.is_date32(kind):
        return _mapped(array.view(pa.int32()), date_text)
    if pa.types.is_time64(kind):
        return _mapped(array.view(pa.int64()), time_text)
    if pa.types.is_timestamp(kind):
        to_text = _timestamp_text if kind.unit == "ms" else partial(_fine_timestamp_text, _PER_SECOND[kind.unit])
        return _mapped(array.view(pa.int64()), to_text)
    if pa.types.is_binary(kind):
        return _mapped(array, bytes.hex)
    if pa.types.is_floating(kind):
        return _mapped(array, _number)
    values: list[object] = array.to_pylist()
    return values


def _mapped(array: pa.Array, convert: Callable[[Any], object]) -> list[object]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _structs(array: pa.Array) -> list[object]:
    fields = array.flatten()
    if not fields:
        return [{} if valid else None for valid in array.is_valid().to_pylist()]
    names = [field.name for field in array.type]
    columns = [to_values(field) for field in fields]
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _child(array: pa.Array, child: pa.Array) -> pa.Array:
    """The part of a child array that the offsets of `array` reach."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return child.slice(first, last - first)


def _slices(array: pa.Array, items: list[Any]) -> list[object]:
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    spans = zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    return [items[start - first : end - first] if valid else None for start, end, valid in spans]


def _number(value: float) -> object:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _timestamp_text(millis: int) -> str:
    day, rest = divmod(millis, _MILLIS_OF_DAY)
    return f"{date_text(day)}T{time_text(rest * 1_000_000)[:12]}Z"


def _fine_timestamp_text(per_second: int, value: int) -> str:
    second, rest = divmod(value, per_second)
    return _instant_text(second, rest * (1_000_000_000 // per_second))


def _instant_text(second: int, nano: int) -> str:
    day, rest = divmod(second, _MILLIS_OF_DAY // 1000)
    return f"{date_text(day)}T{time_text(rest * 1_000_000_000 + nano)}Z"


def compact(value: object) -> str:
    """A value for people: `{id: 1, tags: [a, b]}`; instants as ISO text."""
    match value:
        case {"epoch_second": int() as second, "nano": int() as nano, **others} if not others:
            return _instant_text(second, nano)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return f"{{{', '.join(f'{name}: {compact(item)}' for name, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(compact, value))}]"
        case _:
            return str(value)
