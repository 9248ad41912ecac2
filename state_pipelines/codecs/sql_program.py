"""Compiling the values of the table runtime: SQL types to parts and to the instructions on cells.

Fields of the row of a serializer are `f0`, `f1`, …, because the snapshot has no names for them, with `row_kind` in
front; rows inside have the names of their type and no kind. DECIMAL is decimal128; TIMESTAMP and TIMESTAMP_LTZ (UTC)
are timestamps in ms, us or ns by their precision; DATE is date32, TIME time64[ns], intervals are months (int32) and
durations; ARRAY, MAP and MULTISET are lists and maps; RAW values are their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs import opcodes as op
from state_pipelines.codecs.binaryrow import element_width, null_bits
from state_pipelines.codecs.parts import ConstantPart, ListPart, MapPart, Part, PrimitivePart, SizedPart, StructPart
from state_pipelines.codecs.sql_parts import (
    COMPACT_TIMESTAMP,
    DecimalPart,
    SameBitsPart,
    TimeOfDayPart,
    TimestampPart,
    make_decimal_type,
)
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.codecs.declaring import Declaring, Wanted
    from state_pipelines.codecs.emitting import Compiler

    Column = Callable[..., int]

_KINDS = {
    "BOOLEAN": "bool",
    "TINYINT": "i8",
    "SMALLINT": "i16",
    "INTEGER": "i32",
    "BIGINT": "i64",
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "INTERVAL_YEAR_MONTH": "i32",
}
_WIDTHS = {"bool": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}
_SHORT = {"CHAR": True, "VARCHAR": True, "BINARY": False, "VARBINARY": False}
_ZONES = {"TIMESTAMP_WITHOUT_TIME_ZONE": None, "TIMESTAMP_WITH_LOCAL_TIME_ZONE": "UTC"}
_COUNT = LogicalType(root="INTEGER", nullable=False)


def declare_row(
    compiler: Declaring, of: LogicalType, *, nullable: bool, nested: bool, wanted: Wanted, kind: bool = False
) -> Part:
    """Part of a row; `kind` says whether it has a column for its row kind."""
    asked = wanted is None or bool(wanted)
    main = compiler.column(-1, nullable=nullable, nested=nested, wanted=asked)
    kinds = -1
    if kind:
        kinds = compiler.column(1, nullable=False, nested=nested, wanted=wanted is None or "row_kind" in wanted)
    names = field_names(of)
    compiler.check_wanted(wanted, {*names, "row_kind"} if kind else set(names))
    children = tuple(
        (name, declare(compiler, child, nullable=True, nested=nested, wanted=compiler.below(wanted, name)))
        for name, child in zip(names, of.children, strict=True)
    )
    return StructPart(main, children, kind_column=kinds)


def field_names(of: LogicalType) -> tuple[str, ...]:
    """Names of the fields of a row."""
    names = of.names
    if len(names) != len(of.children) or len(set(names)) < len(names):
        return tuple(f"f{index}" for index in range(len(of.children)))
    return names


def declare(compiler: Declaring, of: LogicalType, *, nullable: bool, nested: bool, wanted: Wanted) -> Part:
    """Part of a value of a SQL type.

    Raises:
        UnsupportedError: its binary form is not known.
    """
    asked = wanted is None or bool(wanted)

    def column(width: int, *, data: bool = False) -> int:
        return compiler.column(width, nullable=nullable, nested=nested, wanted=asked, data=data)

    def inside(child: LogicalType) -> Part:
        everything: Wanted = None if asked else frozenset()
        with compiler.deeper():
            return declare(compiler, child, nullable=True, nested=True, wanted=everything)

    def keys(child: LogicalType) -> Part:
        if pa.types.is_null((part := inside(child)).type):
            raise UnsupportedError(f"a {of.root} whose keys are all null has no form in Arrow and Spark")
        return part

    if (primitive := _KINDS.get(of.root)) is not None:
        return PrimitivePart(column(_WIDTHS[primitive]), primitive)
    if (text := _SHORT.get(of.root)) is not None:
        return SizedPart(column(0, data=True), text)
    match of.root:
        case "RAW":
            return SizedPart(column(0, data=True), text=False)
        case "DECIMAL":
            precision, scale = make_decimal_type(10 if of.length is None else of.length, of.scale or 0)
            return DecimalPart(column(8 if precision <= 18 else 16), precision, scale)
        case "DATE":
            return SameBitsPart(column(4), pa.date32())
        case "TIME_WITHOUT_TIME_ZONE":
            return TimeOfDayPart(column(4))
        case "INTERVAL_DAY_TIME":
            return SameBitsPart(column(8), pa.duration("ms"))
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            precision = 6 if of.length is None else of.length
            millis = column(8)
            return TimestampPart(millis, column(4) if precision > COMPACT_TIMESTAMP else -1, precision, _ZONES[of.root])
        case "NULL":
            return ConstantPart(column(-1), empty=False)
        case "DISTINCT_TYPE" if of.children:
            return declare(compiler, of.children[0], nullable=nullable, nested=nested, wanted=wanted)
        case "ROW" | "STRUCTURED_TYPE":
            with compiler.deeper():
                return declare_row(compiler, of, nullable=nullable, nested=nested, wanted=wanted)
        case "ARRAY":
            return ListPart(column(0), inside(of.children[0]))
        case "MAP":
            return MapPart(column(0), keys(of.children[0]), inside(of.children[1]))
        case "MULTISET":
            return MapPart(column(0), keys(of.children[0]), inside(_COUNT))
    raise UnsupportedError(f"the binary form of SQL type {of.root} is not known")


def emit_block(compiler: Compiler, of: LogicalType, part: Part, *, kind: bool = False) -> None:
    """Instructions for a length and a row, array or map behind it."""
    if part.main < 0:
        compiler.add(op.SIZED, -1)
        return
    compiler.add(op.BLOCK, -1)
    if isinstance(part, StructPart) and part.main >= 0:
        compiler.add(op.PRESENT, part.main)
    _emit_content(compiler, of, part, kind=kind)
    compiler.add(op.UNBLOCK, -1)


def _emit_content(compiler: Compiler, of: LogicalType, part: Part, *, kind: bool = False) -> None:
    """What lies in the block at hand."""
    if isinstance(part, StructPart):
        bits = null_bits(len(of.children))
        compiler.add(op.ROW, part.kind_column, bits, bits + 8 * len(of.children), int(kind))
        for index, ((name, child), each) in enumerate(zip(part.fields, of.children, strict=True)):
            if child.main >= 0:
                compiler.path.append(f".{name}")
                cell = compiler.add(op.CELL, child.main, 8 + index, bits + 8 * index)
                _emit_cell(compiler, each, child)
                compiler.otherwise(cell, 4, child)
                compiler.path.pop()
    elif isinstance(part, ListPart):
        _emit_items(compiler, of.children[0], part.element, part.main, op.ROLE_LIST, "[]")
    elif isinstance(part, MapPart):
        values = _COUNT if of.root == "MULTISET" else of.children[1]
        compiler.add(op.KEYS, -1)
        _emit_items(compiler, of.children[0], part.key, part.main, op.ROLE_KEYS, "{key}")
        compiler.add(op.ITEM_VALUES, -1)
        _emit_items(compiler, values, part.value, -1, op.ROLE_VALUES, "{value}")
        compiler.add(op.MAP_END, -1)


def _emit_items(compiler: Compiler, of: LogicalType, part: Part, main: int, role: int, step: str) -> None:
    width = element_width(of)
    compiler.path.append(step)
    start = compiler.add(op.ITEMS, main, width, 0, role)
    item = compiler.add(op.ITEM, part.main, width)
    _emit_cell(compiler, of, part)
    compiler.otherwise(item, 3, part)
    compiler.add(op.NEXT_ITEM, -1, item)
    compiler.rows[start][3] = len(compiler.rows)
    compiler.path.pop()


def _emit_cell(compiler: Compiler, of: LogicalType, part: Part) -> None:
    while of.root == "DISTINCT_TYPE" and of.children:
        of = of.children[0]
    match part:
        case PrimitivePart(kind=primitive):
            compiler.add(op.CELL_FIXED, part.main, _WIDTHS[primitive])
        case SizedPart():
            compiler.add(op.CELL_BYTES, part.main, int(of.root != "RAW"))
        case DecimalPart():
            if part.width == 8:
                compiler.add(op.CELL_FIXED, part.main, 8)
            else:
                compiler.add(op.CELL_DECIMAL, part.main)
        case TimestampPart():
            if part.nanos < 0:
                compiler.add(op.CELL_FIXED, part.main, 8)
            else:
                compiler.add(op.CELL_TIME, part.main, part.nanos)
        case SameBitsPart():
            compiler.add(op.CELL_FIXED, part.main, part.of.bit_width // 8)
        case TimeOfDayPart():
            compiler.add(op.CELL_FIXED, part.main, 4)
        case ConstantPart():
            compiler.add(op.PRESENT, part.main, 1)
        case _:
            if isinstance(part, StructPart):
                compiler.add(op.PRESENT, part.main)
            compiler.add(op.OPEN, -1)
            _emit_content(compiler, of, part)
            compiler.add(op.CLOSE, -1)
