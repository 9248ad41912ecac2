"""Null masks, and the scalar codec of rows that begin with one.

A mask has a bit per field or element, from the high bit of the first byte on; a set bit is null. With a row kind two
bits precede those of the fields. In the kernels these are the instructions `opcodes.MASK` and `opcodes.MASKED_LIST`.
Source: `MaskUtils`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.scalar.dispatch import expect_fields, read, read_fields, write, write_fields
from state_pipelines.codecs.scalar.leaves import Value
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_mask(reader: Reader, size: int) -> list[bool]:
    """Read bits packed into bytes, the first in the top bit (`MaskUtils`)."""
    raw = reader.take((size + 7) // 8)
    return [bool(raw[index >> 3] & 0x80 >> (index & 7)) for index in range(size)]


def write_mask(writer: Writer, bits: Sequence[bool]) -> None:
    """Write what `read_mask` reads."""
    raw = bytearray((len(bits) + 7) // 8)
    for index, bit in enumerate(bits):
        raw[index >> 3] |= 0x80 >> (index & 7) if bit else 0
    writer.take(bytes(raw))


@read.register
def _(layout: lay.Masked, reader: Reader, tail: bool) -> Value:
    first = 2 if layout.kind else 0
    mask = read_mask(reader, first + len(layout.fields))
    present = tuple(each for null, each in zip(mask[first:], layout.fields, strict=True) if not null)
    values = read_fields(present, reader, tail)
    kind = ROW_KINDS[mask[0] | mask[1] << 1] if layout.kind else None
    return {"row_kind": kind, **{name: values.get(name) for name, _ in layout.fields}}


@write.register
def _(layout: lay.Masked, writer: Writer, value: Value) -> None:
    kind = expect_fields(layout.fields, value, "row_kind").get("row_kind") or ROW_KINDS[0]
    if kind not in ROW_KINDS or (kind != ROW_KINDS[0] and not layout.kind):
        raise ValueRangeError(f"{kind!r} is not a known row kind")
    number = ROW_KINDS.index(kind)
    kinds = [bool(number & 1), bool(number & 2)] if layout.kind else []
    write_mask(writer, [*kinds, *(value[name] is None for name, _ in layout.fields)])
    write_fields(tuple(each for each in layout.fields if value[each[0]] is not None), writer, value)
