"""Reading and writing by the type of a layout, and the fields that most layouts consist of."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.leaves import Value, read_leaf, write_leaf
from state_pipelines.errors import StateError, ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

Fields: TypeAlias = tuple[tuple[str, lay.Layout], ...]


def locate(error: StateError, step: str) -> None:
    """Prepend a step to the field path of an error."""
    error.where = replace(error.where, path=step + (error.where.path or ""))


@singledispatch
def read(layout: lay.Layout, reader: Reader, tail: bool) -> Value:
    """Read a value by the type of its layout; modules register their layouts here. See `codec.read_value`."""
    return read_leaf(layout, reader)


@singledispatch
def write(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Write a value by the type of its layout; modules register their layouts here."""
    write_leaf(layout, writer, value)


def read_fields(fields: Fields, reader: Reader, tail: bool) -> dict[str, Value]:
    """Read consecutive fields."""
    values: dict[str, Value] = {}
    last = len(fields) - 1
    name = ""
    try:
        for index, (name, child) in enumerate(fields):
            values[name] = read(child, reader, tail and index == last)
    except StateError as error:
        locate(error, f".{name}")
        raise
    return values


def expect_fields(fields: Fields, value: Value, mark: str = "") -> Value:
    """Return `value` if it is a dict of exactly these fields, and optionally of `mark`.

    Raises:
        ValueRangeError: it is something else.
    """
    names = {name for name, _ in fields}
    if not isinstance(value, dict) or not names <= value.keys() <= names | {mark}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of {', '.join(sorted(names)) or 'nothing'}")
    return value


def write_fields(fields: Fields, writer: Writer, value: Value) -> None:
    """Write consecutive fields."""
    name = ""
    try:
        for name, child in fields:
            write(child, writer, value[name])
    except StateError as error:
        locate(error, f".{name}")
        raise
