"""Programs of SQL values: array builders of logical types and the instructions on the cells of binary rows.

Fields of the outer row are `f0`, `f1`, … unless the snapshot has names for them, after a column `row_kind`; nested rows
have the names of their type and no row kind. DECIMAL is decimal128; TIMESTAMP and TIMESTAMP_LTZ (UTC) are timestamps in
ms, us or ns by their precision; DATE is date32, TIME time64[ns], intervals are months (int32) and durations; ARRAY, MAP
and MULTISET are lists and maps; RAW values are their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.layout import PrimitiveKind
from state_pipelines.codecs.programs.array_builders import ArrayBuilder, ConstantBuilder, PrimitiveBuilder, SizedBuilder
from state_pipelines.codecs.programs.kernel_columns import below, check_wanted
from state_pipelines.codecs.programs.nested_array_builders import ListBuilder, MapBuilder, StructBuilder
from state_pipelines.codecs.programs.sql_array_builders import (
    COMPACT_TIMESTAMP,
    DecimalBuilder,
    SameBitsBuilder,
    TimeOfDayBuilder,
    TimestampBuilder,
    make_decimal_type,
)
from state_pipelines.codecs.sql.binary_rows import element_width, null_bits
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.codecs.programs.instruction_list import InstructionList
    from state_pipelines.codecs.programs.kernel_columns import KernelColumns, Wanted

    Column = Callable[..., int]

_KINDS = {
    "BOOLEAN": PrimitiveKind.BOOL,
    "TINYINT": PrimitiveKind.I8,
    "SMALLINT": PrimitiveKind.I16,
    "INTEGER": PrimitiveKind.I32,
    "BIGINT": PrimitiveKind.I64,
    "FLOAT": PrimitiveKind.F32,
    "DOUBLE": PrimitiveKind.F64,
    "INTERVAL_YEAR_MONTH": PrimitiveKind.I32,
}
_SHORT = {"CHAR": True, "VARCHAR": True, "BINARY": False, "VARBINARY": False}
_ZONES = {"TIMESTAMP_WITHOUT_TIME_ZONE": None, "TIMESTAMP_WITH_LOCAL_TIME_ZONE": "UTC"}
_COUNT = LogicalType(root="INTEGER", nullable=False)


def declare_row(
    columns: KernelColumns, of: LogicalType, *, nullable: bool, nested: bool, wanted: Wanted, kind: bool = False
) -> ArrayBuilder:
    """Declare the columns of a row, with `kind` also one for its row kind."""
    asked = wanted is None or bool(wanted)
    main = columns.column(-1, nullable=nullable, nested=nested, wanted=asked)
    kinds = -1
    if kind:
        kinds = columns.column(1, nullable=False, nested=nested, wanted=wanted is None or "row_kind" in wanted)
    names = field_names(of)
    check_wanted(wanted, {*names, "row_kind"} if kind else set(names))
    children = tuple(
        (name, declare(columns, child, nullable=True, nested=nested, wanted=below(wanted, name)))
        for name, child in zip(names, of.children, strict=True)
    )
    return StructBuilder(main, children, kind_column=kinds)


def field_names(of: LogicalType) -> tuple[str, ...]:
    """Return the field names of a row type."""
    names = of.names
    if len(names) != len(of.children) or len(set(names)) < len(names):
        return tuple(f"f{index}" for index in range(len(of.children)))
    return names


def declare(columns: KernelColumns, of: LogicalType, *, nullable: bool, nested: bool, wanted: Wanted) -> ArrayBuilder:
    """Declare the columns of a value of a SQL type.

    Raises:
        UnsupportedError: its binary form is not known.
    """
    asked = wanted is None or bool(wanted)

    def column(width: int, *, data: bool = False) -> int:
        return columns.column(width, nullable=nullable, nested=nested, wanted=asked, data=data)

    def inside(child: LogicalType) -> ArrayBuilder:
        everything: Wanted = None if asked else frozenset()
        with columns.deeper():
            return declare(columns, child, nullable=True, nested=True, wanted=everything)

    def keys(child: LogicalType) -> ArrayBuilder:
        if pa.types.is_null((builder := inside(child)).type):
            raise UnsupportedError(f"a {of.root} whose keys are all null cannot be represented in Arrow and Spark")
        return builder

    if (primitive := _KINDS.get(of.root)) is not None:
        return PrimitiveBuilder(column(primitive.width), primitive)
    if (text := _SHORT.get(of.root)) is not None:
        return SizedBuilder(column(0, data=True), text)
    match of.root:
        case "RAW":
            return SizedBuilder(column(0, data=True), text=False)
        case "DECIMAL":
            precision, scale = make_decimal_type(10 if of.length is None else of.length, of.scale or 0)
            return DecimalBuilder(column(8 if precision <= 18 else 16), precision, scale)
        case "DATE":
            return SameBitsBuilder(column(4), pa.date32())
        case "TIME_WITHOUT_TIME_ZONE":
            return TimeOfDayBuilder(column(4))
        case "INTERVAL_DAY_TIME":
            return SameBitsBuilder(column(8), pa.duration("ms"))
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            precision = 6 if of.length is None else of.length
            millis = column(8)
            return TimestampBuilder(
                millis, column(4) if precision > COMPACT_TIMESTAMP else -1, precision, _ZONES[of.root]
            )
        case "NULL":
            return ConstantBuilder(column(-1), empty=False)
        case "DISTINCT_TYPE" if of.children:
            return declare(columns, of.children[0], nullable=nullable, nested=nested, wanted=wanted)
        case "ROW" | "STRUCTURED_TYPE":
            with columns.deeper():
                return declare_row(columns, of, nullable=nullable, nested=nested, wanted=wanted)
        case "ARRAY":
            return ListBuilder(column(0), inside(of.children[0]))
        case "MAP":
            return MapBuilder(column(0), keys(of.children[0]), inside(of.children[1]))
        case "MULTISET":
            return MapBuilder(column(0), keys(of.children[0]), inside(_COUNT))
    raise UnsupportedError(f"the binary form of SQL type {of.root} is not known")


def emit_block(instructions: InstructionList, of: LogicalType, builder: ArrayBuilder, *, kind: bool = False) -> None:
    """Append the instructions of a row, array or map with a length prefix."""
    if builder.main < 0:
        instructions.add(op.SIZED, -1)
        return
    instructions.add(op.BLOCK, -1)
    if isinstance(builder, StructBuilder) and builder.main >= 0:
        instructions.add(op.PRESENT, builder.main)
    _emit_content(instructions, of, builder, kind=kind)
    instructions.add(op.UNBLOCK, -1)


def _emit_content(instructions: InstructionList, of: LogicalType, builder: ArrayBuilder, *, kind: bool = False) -> None:
    """Append the instructions of the content of the current block."""
    if isinstance(builder, StructBuilder):
        bits = null_bits(len(of.children))
        instructions.add(op.ROW, builder.kind_column, bits, bits + 8 * len(of.children), int(kind))
        for index, ((name, child), each) in enumerate(zip(builder.fields, of.children, strict=True)):
            if child.main >= 0:
                instructions.path.append(f".{name}")
                cell = instructions.add(op.CELL, child.main, 8 + index, bits + 8 * index)
                _emit_cell(instructions, each, child)
                instructions.otherwise(cell, 4, child)
                instructions.path.pop()
    elif isinstance(builder, ListBuilder):
        _emit_items(instructions, of.children[0], builder.element, builder.main, op.ROLE_LIST, "[]")
    elif isinstance(builder, MapBuilder):
        values = _COUNT if of.root == "MULTISET" else of.children[1]
        instructions.add(op.KEYS, -1)
        _emit_items(instructions, of.children[0], builder.key, builder.main, op.ROLE_KEYS, "{key}")
        instructions.add(op.ITEM_VALUES, -1)
        _emit_items(instructions, values, builder.value, -1, op.ROLE_VALUES, "{value}")
        instructions.add(op.MAP_END, -1)


def _emit_items(
    instructions: InstructionList, of: LogicalType, builder: ArrayBuilder, main: int, role: int, step: str
) -> None:
    width = element_width(of)
    instructions.path.append(step)
    start = instructions.add(op.ITEMS, main, width, 0, role)
    item = instructions.add(op.ITEM, builder.main, width)
    _emit_cell(instructions, of, builder)
    instructions.otherwise(item, 3, builder)
    instructions.add(op.NEXT_ITEM, -1, item)
    instructions.rows[start][3] = len(instructions.rows)
    instructions.path.pop()


def _emit_cell(instructions: InstructionList, of: LogicalType, builder: ArrayBuilder) -> None:
    while of.root == "DISTINCT_TYPE" and of.children:
        of = of.children[0]
    match builder:
        case PrimitiveBuilder(kind=primitive):
            instructions.add(op.CELL_FIXED, builder.main, primitive.width)
        case SizedBuilder():
            instructions.add(op.CELL_BYTES, builder.main, int(of.root != "RAW"))
        case DecimalBuilder():
            if builder.width == 8:
                instructions.add(op.CELL_FIXED, builder.main, 8)
            else:
                instructions.add(op.CELL_DECIMAL, builder.main)
        case TimestampBuilder():
            if builder.nanos < 0:
                instructions.add(op.CELL_FIXED, builder.main, 8)
            else:
                instructions.add(op.CELL_TIME, builder.main, builder.nanos)
        case SameBitsBuilder():
            instructions.add(op.CELL_FIXED, builder.main, builder.of.bit_width // 8)
        case TimeOfDayBuilder():
            instructions.add(op.CELL_FIXED, builder.main, 4)
        case ConstantBuilder():
            instructions.add(op.PRESENT, builder.main, 1)
        case _:
            if isinstance(builder, StructBuilder):
                instructions.add(op.PRESENT, builder.main)
            instructions.add(op.OPEN, -1)
            _emit_content(instructions, of, builder)
            instructions.add(op.CLOSE, -1)
