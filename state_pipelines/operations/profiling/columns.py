"""Null and default ratios, ranges and lengths of the columns of a state, batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.operations.json_rows import to_values

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COLUMNS = 200
"""Columns of one state that are profiled; wide records have thousands."""


class Quantity(StrEnum):
    """Quantity whose minimum, maximum and mean a profile has."""

    VALUE = "value"
    LENGTH = "length"
    NONE = ""


_NOT_PROFILED = frozenset({"key_group", "subtask", "list_index", "ttl_last_access", "reason"})
_DEPTH = 8


@dataclass(frozen=True)
class ColumnProfile:
    """One column, or one field of a nested column.

    Attributes:
        column: dotted path, such as `value.address.zip`; `[]` for the elements of a list, `{}` for the keys and values
            of a map.
        type: Arrow type.
        rows: rows in which the column could have a value: those in which the record around it is not null.
        nulls: rows without a value.
        defaults: rows with the default of Java's primitive types (0, false) or an empty text, list or map; None for
            types that have none.
        measured: what `minimum`, `maximum` and `mean` are of.
        minimum: number, or text as in `json_rows` (dates and times, `NaN`, `Infinity`); None without values.
        maximum: likewise.
        mean: None without values, for dates and times, and where it is not finite.
    """

    column: str
    type: str
    rows: int
    nulls: int
    defaults: int | None
    measured: Quantity
    minimum: float | str | None
    maximum: float | str | None
    mean: float | None

    @property
    def null_ratio(self) -> float:
        """Share of rows without a value, 0 to 1."""
        return self.nulls / self.rows if self.rows else 0.0

    @property
    def default_ratio(self) -> float | None:
        """Share of rows with the default, 0 to 1."""
        if self.defaults is None:
            return None
        return self.defaults / self.rows if self.rows else 0.0


class ColumnProfiler:
    """Adds up the columns of one state; memory grows with the columns, not the rows."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self.omitted: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name not in _NOT_PROFILED and not pa.types.is_null(array.type):
                for path, each, rows in _flatten(name, array, len(array), _DEPTH):
                    self._add(path, each, rows)

    def _add(self, path: str, array: pa.Array, rows: int) -> None:
        column = self._columns.get(path)
        if column is None:
            if len(self._columns) >= MAX_COLUMNS:
                self.omitted.add(path)
                return
            column = self._columns[path] = _Column(path, array.type)
        column.add(array, rows)

    def result(self) -> list[ColumnProfile]:
        """The columns in their order."""
        return [each.result() for each in self._columns.values()]


def _flatten(path: str, array: pa.Array, rows: int, depth: int) -> Iterator[tuple[str, pa.Array, int]]:
    """The column and its fields, each with the number of rows in which the record around it is not null."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        array, kind = array.storage, array.storage.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_struct(kind):
        if array.null_count:
            yield path, array, rows
        present = rows - array.null_count if rows == len(array) else len(array) - array.null_count
        if depth and present:
            whole = array.drop_null() if array.null_count else array
            for index in range(kind.num_fields):
                yield from _flatten(f"{path}.{kind.field(index).name}", whole.field(index), present, depth - 1)
        return
    yield path, array, rows
    if not depth:
        return
    if pa.types.is_map(kind):
        whole = array.drop_null() if array.null_count else array
        keys, items = whole.keys, whole.items
        offsets = whole.offsets
        start, stop = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
        for name, each in (("key", keys), ("value", items)):
            values = each.slice(start, stop - start)
            if len(values):
                yield from _flatten(f"{path}{{}}.{name}", values, len(values), depth - 1)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        elements = array.flatten()
        if len(elements):
            yield from _flatten(f"{path}[]", elements, len(elements), depth - 1)


class _Column:
    """Sums over one column."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        self._path, self._kind = path, kind
        self._measured = _choose_quantity(kind)
        self._rows = self._nulls = self._values = 0
        self._defaults: int | None = 0 if _has_default(kind) else None
        self._minimum: pa.Scalar | None = None
        self._maximum: pa.Scalar | None = None
        self._total = 0.0

    def add(self, array: pa.Array, rows: int) -> None:
        """Add an array of the column."""
        self._rows += rows
        self._nulls += array.null_count
        self._values += len(array) - array.null_count
        if len(array) == array.null_count or self._defaults is None:
            return
        if pa.types.is_duration(array.type):
            # Arrow has no range of durations.
            array = array.cast(pa.int64())
        measured = array if self._measured is not Quantity.LENGTH else _measure_lengths(array)
        self._defaults += _count_defaults(measured)
        if not self._measured:
            return
        bounds = pc.min_max(measured)
        self._minimum = _choose(self._minimum, bounds["min"], pc.less)
        self._maximum = _choose(self._maximum, bounds["max"], pc.greater)
        if _is_number(measured.type):
            self._total += pc.sum(pc.cast(measured, pa.float64(), safe=False)).as_py() or 0.0

    def result(self) -> ColumnProfile:
        """The profile of the column."""
        is_number = self._measured is Quantity.LENGTH or _is_number(self._kind) or pa.types.is_duration(self._kind)
        return ColumnProfile(
            self._path,
            str(self._kind) if not pa.types.is_nested(self._kind) else str(self._kind).partition("<")[0],
            self._rows,
            self._nulls,
            self._defaults,
            self._measured if self._minimum is not None else Quantity.NONE,
            _to_plain(self._minimum),
            _to_plain(self._maximum),
            self._find_mean() if is_number and self._minimum is not None else None,
        )

    def _find_mean(self) -> float | None:
        return self._total / self._values if self._values and math.isfinite(self._total) else None


def _choose_quantity(kind: pa.DataType) -> Quantity:
    if _is_number(kind) or pa.types.is_temporal(kind):
        return Quantity.VALUE
    if _has_length(kind):
        return Quantity.LENGTH
    return Quantity.NONE


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _has_length(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_map,
        )
    )


def _has_default(kind: pa.DataType) -> bool:
    return bool(_choose_quantity(kind)) or pa.types.is_boolean(kind)


def _measure_lengths(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_length(array)
    if pa.types.is_map(kind):
        # Arrow counts the entries of lists only; a map is one in memory.
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return pc.binary_length(array)
    return pc.list_value_length(array)


def _count_defaults(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_boolean(kind):
        return int(pc.sum(pc.invert(array)).as_py() or 0)
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    zero = pa.scalar(Decimal(0), kind) if pa.types.is_decimal(kind) else pa.scalar(0, array.type)
    return int(pc.sum(pc.equal(array, zero)).as_py() or 0)


def _choose(known: pa.Scalar | None, found: pa.Scalar, is_better: object) -> pa.Scalar | None:
    if not found.is_valid or (known is not None and not is_better(found, known).as_py()):  # type: ignore[operator]
        return known
    return found


def _to_plain(scalar: pa.Scalar | None) -> float | str | None:
    if scalar is None:
        return None
    if pa.types.is_decimal(scalar.type):
        return float(scalar.as_py())
    # Texts for what JSON has no number for, and for dates and times of all years that Java has.
    (value,) = to_values(pa.array([scalar], scalar.type))
    return value if isinstance(value, int | float) else str(value)
