"""Scalar codec of lists and maps."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.scalar.dispatch import locate, read, write
from state_pipelines.codecs.scalar.leaves import Value, expect
from state_pipelines.codecs.scalar.null_masks import read_mask, write_mask
from state_pipelines.errors import StateError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EMPTY_ITEMS_LEFT: ContextVar[int] = ContextVar("empty items of a record", default=MAX_EMPTY_ITEMS)


def begin_record() -> None:
    """Let the lists of the next record have `MAX_EMPTY_ITEMS` elements without bytes together."""
    _EMPTY_ITEMS_LEFT.set(MAX_EMPTY_ITEMS)


def claim_empty_items(reader: Reader, count: int) -> None:
    """Count elements without bytes.

    Raises:
        FormatError: the record has more than `MAX_EMPTY_ITEMS`.
    """
    left = _EMPTY_ITEMS_LEFT.get() - count
    _EMPTY_ITEMS_LEFT.set(left)
    if left < 0:
        raise reader.error(f"the lists of a value have more than {MAX_EMPTY_ITEMS} elements without bytes")


@read.register
def _(layout: lay.Sequence, reader: Reader, tail: bool) -> Value:
    return _read_elements(layout.element, reader, _count(reader))


@write.register
def _(layout: lay.Sequence, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list")))
    _write_elements(layout.element, writer, value)


def _count(reader: Reader) -> int:
    start, count = reader.position, reader.i32()
    if not 0 <= count <= max(reader.remaining, MAX_EMPTY_ITEMS):
        raise reader.error(f"a count of {count} does not fit in the {reader.remaining} bytes left", start)
    return count


def _read_elements(layout: lay.Layout, reader: Reader, count: int, nulls: Sequence[bool] = ()) -> list[Value]:
    try:
        if nulls:
            return [None if null else read(layout, reader, False) for null in nulls]
        return read_items(layout, reader, count)
    except StateError as error:
        locate(error, "[]")
        raise


def read_items(layout: lay.Layout, reader: Reader, count: int) -> list[Value]:
    """Read consecutive elements.

    Raises:
        FormatError: they do not fit the layout, or have no bytes and are too many.
    """
    if count == 0:
        return []
    start = reader.position
    items = [read(layout, reader, False)]
    if reader.position == start:
        claim_empty_items(reader, count)
    items += [read(layout, reader, False) for _ in range(count - 1)]
    return items


def _write_elements(layout: lay.Layout, writer: Writer, values: Iterable[Value]) -> None:
    try:
        for value in values:
            write(layout, writer, value)
    except StateError as error:
        locate(error, "[]")
        raise


@read.register
def _(layout: lay.Delimited, reader: Reader, tail: bool) -> Value:
    values: list[Value] = []
    while reader.remaining:
        start = reader.position
        if values and layout.delimiter is not None and (reader.u8() != layout.delimiter or not reader.remaining):
            raise reader.error("bytes are left over after an element of the list", start)
        values += _read_elements(layout.element, reader, 1)
        if layout.delimiter is None and reader.position == start:
            raise reader.error("an element of the list has no bytes, so that the elements cannot be counted", start)
    return values


@write.register
def _(layout: lay.Delimited, writer: Writer, value: Value) -> None:
    for index, each in enumerate(expect(value, (list, tuple), "a list")):
        if index and layout.delimiter is not None:
            writer.u8(layout.delimiter)
        _write_elements(layout.element, writer, (each,))


@read.register
def _(layout: lay.Runs, reader: Reader, tail: bool) -> Value:
    arrays = read(layout.stored, reader, tail)
    if not layout.ttl:
        return [value for array in arrays for value in array]
    return [{"last_access": each["last_access"], "value": value} for each in arrays for value in each["value"]]


@write.register
def _(layout: lay.Runs, writer: Writer, value: Value) -> None:
    write(layout.written, writer, value)


@read.register
def _(layout: lay.NullMasked, reader: Reader, tail: bool) -> Value:
    count = _count(reader)
    return _read_elements(layout.element, reader, count, read_mask(reader, count) if layout.mask else ())


@write.register
def _(layout: lay.NullMasked, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list")))
    if layout.mask:
        write_mask(writer, [each is None for each in value])
    _write_elements(layout.element, writer, (each for each in value if each is not None or not layout.mask))


@read.register
def _(layout: lay.Mapping, reader: Reader, tail: bool) -> Value:
    entries: list[tuple[Value, Value]] = []
    step = ""
    try:
        for _ in range(_count(reader)):
            start, step = reader.position, "{key}"
            key = read(layout.key, reader, False)
            step = "{value}"
            entries.append((key, read(layout.value, reader, False)))
            if reader.position == start:
                claim_empty_items(reader, 1)
    except StateError as error:
        locate(error, step)
        raise
    return entries


@write.register
def _(layout: lay.Mapping, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list of (key, value)")))
    step = ""
    try:
        for key, item in value:
            step = "{key}"
            write(layout.key, writer, key)
            step = "{value}"
            write(layout.value, writer, item)
    except StateError as error:
        locate(error, step)
        raise
    except (TypeError, ValueError):
        raise ValueRangeError(f"{value!r:.80} is not a list of (key, value)") from None
