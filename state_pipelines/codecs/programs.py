"""Layouts compiled to instructions, and their runs by the kernels, between bytes and Arrow arrays.

* `Compiler`, `compile_layout`: the `LayoutProgram` of a layout.
* `ColumnDeclarer`, `sql_type`: programs of SQL values: array builders of logical types and the instructions on the
  cells of binary rows. Fields of the outer row are `f0`, `f1`, … unless the snapshot has names for them, after a column
  `row_kind`; nested rows have the names of their type and no row kind. DECIMAL is decimal128; TIMESTAMP and
  TIMESTAMP_LTZ (UTC) are timestamps in ms, us or ns by their precision; DATE is date32, TIME time64[ns], intervals are
  months (int32) and durations; ARRAY, MAP and MULTISET are lists and maps; RAW values are their bytes.
* `decode_spans`, `decode_sequence`, `encode_array`: the execution of a program.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs import array_builders as arrays
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro import BlockArray, BlockMapping, FixedBytes, avro_layout
from state_pipelines.codecs.binary_rows import element_width, null_bits
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.buffers import ColumnKind, InputColumns, OutputColumns
from state_pipelines.codecs.kernels.decoding import decode
from state_pipelines.codecs.kernels.encoding import encode
from state_pipelines.codecs.layout import PrimitiveKind
from state_pipelines.codecs.logical_values import conform
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError, Where
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.codecs.array_builders import ArrayBuilder


def smallest_size(layout: lay.Layout) -> int:
    """Return the smallest number of bytes that a value of `layout` takes."""
    match layout:
        case lay.Struct(fields=fields):
            return sum(smallest_size(child) for _, child in fields)
        case lay.Masked(fields=fields, kind=kind):
            return (len(fields) + (2 if kind else 0) + 7) // 8
        case lay.Sized() | lay.BigInteger() | lay.BigDecimal() | lay.Sequence() | lay.Mapping():
            return 4
        case lay.Marked() | lay.NullMasked():
            return 4
        case lay.Framed(inner=inner):
            return 4 + smallest_size(inner)
        case lay.JavaText():
            return 2
        case lay.Delimited():
            return 0
        case lay.Span(inner=inner) | lay.OpaqueBytes(inner=inner):
            return smallest_size(inner)
        case lay.MeasuredKey(inner=inner):
            return 1 + smallest_size(inner)
        case lay.Choice(left=left, right=right):
            return 1 + min(smallest_size(left), smallest_size(right))
        case lay.Tagged(cases=cases, width=width):
            return width + min((smallest_size(child) for _, _, child in cases), default=0)
        case lay.Optional() | lay.PojoObject() | lay.Text() | BlockArray() | BlockMapping():
            return 1
        case FixedBytes(size=size):
            return size
        case lay.Dynamic(serializer=serializer):
            return _smallest_dynamic(serializer)
        case _:
            return lay.fixed_width(layout) or 0


def _smallest_dynamic(serializer: tree.Serializer) -> int:
    match serializer:
        case tree.RowData() | tree.ArrayData() | tree.MapData() | tree.BinaryRow() | tree.ScalaEnum() | tree.Protobuf():
            return 4
        case tree.Decimal() | tree.TimestampData():
            return 5
        case tree.Kryo():
            return 1
        case tree.Avro(schema_json=schema):
            try:
                return smallest_size(avro_layout(schema))
            except UnsupportedError:
                return 0
        case _:
            return 0


MAX_NESTING = 64

Wanted = frozenset[str] | None
"""Dotted paths of the fields to decode, such as `address.zip`; None is everything."""


@dataclass
class KernelColumns:
    """The kernel columns declared for a layout.

    Attributes:
        kinds: the kernel columns.
        depth: current nesting depth.
    """

    kinds: list[ColumnKind] = field(default_factory=list)
    depth: int = 0

    def column(self, width: int, *, nullable: bool, nested: bool, wanted: bool, data: bool = False) -> int:
        """Declare a kernel column and return its index; if it is not `wanted`, declare none and return -1."""
        if not wanted:
            return -1
        self.kinds.append(ColumnKind(width, data=data, nullable=nullable, nested=nested))
        return len(self.kinds) - 1

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one nesting level; raise UnsupportedError beyond `MAX_NESTING`."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise UnsupportedError(f"values are nested more than {MAX_NESTING} levels deep")
        try:
            yield
        finally:
            self.depth -= 1


def check_wanted(wanted: Wanted, names: set[str]) -> None:
    """Raise UsageError unless every wanted path begins with one of the names."""
    for path in wanted or ():
        if path.split(".")[0] not in names:
            raise UsageError(f"there is no field {path}", hint=f"the fields are {', '.join(sorted(names))}")


def below(wanted: Wanted, name: str) -> Wanted:
    """Return the wanted paths relative to the field `name`; None (everything) if the whole field is wanted."""
    if wanted is None or name in wanted:
        return None
    return frozenset(path[len(name) + 1 :] for path in wanted if path.startswith(name + "."))


@dataclass
class InstructionList:
    """The instructions emitted for a layout.

    Attributes:
        rows: the instructions.
        pool: constant bytes.
        paths: field path per instruction, for errors.
        path: field path of the current node.
    """

    rows: list[list[int]] = field(default_factory=list)
    pool: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=lambda: ["value"])

    def add(self, code: int, column: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
        """Append an instruction and return its index."""
        self.rows.append([code, column, a, b, c, d])
        self.paths.append("".join(self.path))
        return len(self.rows) - 1

    def add_null(self, builder: ArrayBuilder) -> None:
        """Append instructions that write a null to every column of a builder."""
        for column in builder.level_columns():
            if column >= 0:
                self.add(op.NULL, column, int(column == builder.main))

    def constant(self, raw: bytes) -> int:
        """Add bytes to the pool and return their offset."""
        self.pool += raw
        return len(self.pool) - len(raw)

    def otherwise(self, row: int, argument: int, builder: ArrayBuilder) -> None:
        """Append instructions that write nulls for `builder`, reached only by a jump.

        Args:
            row: index of the instruction that jumps to them.
            argument: position of the jump target in that instruction.
            builder: builder whose columns get nulls.
        """
        jump = self.add(op.JUMP, -1)
        self.rows[row][argument] = len(self.rows)
        self.add_null(builder)
        self.rows[jump][2] = len(self.rows)


if TYPE_CHECKING:
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
    """Declare the columns of a row; with `kind`, also a column for the row kind."""
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
    return arrays.StructBuilder(main, children, kind_column=kinds)


def field_names(of: LogicalType) -> tuple[str, ...]:
    """Return the field names of a row type."""
    names = of.names
    if len(names) != len(of.children) or len(set(names)) < len(names):
        return tuple(f"f{index}" for index in range(len(of.children)))
    return names


def declare(columns: KernelColumns, of: LogicalType, *, nullable: bool, nested: bool, wanted: Wanted) -> ArrayBuilder:
    """Declare the columns of a value of a SQL type.

    Raises:
        UnsupportedError: the binary format of the type is not known.
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
        return arrays.PrimitiveBuilder(column(primitive.width), primitive)
    if (text := _SHORT.get(of.root)) is not None:
        return arrays.SizedBuilder(column(0, data=True), text)
    match of.root:
        case "RAW":
            return arrays.SizedBuilder(column(0, data=True), text=False)
        case "DECIMAL":
            precision, scale = arrays.make_decimal_type(10 if of.length is None else of.length, of.scale or 0)
            return arrays.DecimalBuilder(column(8 if precision <= 18 else 16), precision, scale)
        case "DATE":
            return arrays.SameBitsBuilder(column(4), pa.date32())
        case "TIME_WITHOUT_TIME_ZONE":
            return arrays.TimeOfDayBuilder(column(4))
        case "INTERVAL_DAY_TIME":
            return arrays.SameBitsBuilder(column(8), pa.duration("ms"))
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            precision = 6 if of.length is None else of.length
            millis = column(8)
            return arrays.TimestampBuilder(
                millis, column(4) if precision > arrays.COMPACT_TIMESTAMP else -1, precision, _ZONES[of.root]
            )
        case "NULL":
            return arrays.ConstantBuilder(column(-1), empty=False)
        case "DISTINCT_TYPE" if of.children:
            return declare(columns, of.children[0], nullable=nullable, nested=nested, wanted=wanted)
        case "ROW" | "STRUCTURED_TYPE":
            with columns.deeper():
                return declare_row(columns, of, nullable=nullable, nested=nested, wanted=wanted)
        case "ARRAY":
            return arrays.ListBuilder(column(0), inside(of.children[0]))
        case "MAP":
            return arrays.MapBuilder(column(0), keys(of.children[0]), inside(of.children[1]))
        case "MULTISET":
            return arrays.MapBuilder(column(0), keys(of.children[0]), inside(_COUNT))
    raise UnsupportedError(f"the binary form of SQL type {of.root} is not known")


def emit_block(instructions: InstructionList, of: LogicalType, builder: ArrayBuilder, *, kind: bool = False) -> None:
    """Append the instructions of a row, array or map with a length prefix."""
    if builder.main < 0:
        instructions.add(op.SIZED, -1)
        return
    instructions.add(op.BLOCK, -1)
    if isinstance(builder, arrays.StructBuilder) and builder.main >= 0:
        instructions.add(op.PRESENT, builder.main)
    _emit_content(instructions, of, builder, kind=kind)
    instructions.add(op.UNBLOCK, -1)


def _emit_content(instructions: InstructionList, of: LogicalType, builder: ArrayBuilder, *, kind: bool = False) -> None:
    """Append the instructions of the content of the current block."""
    if isinstance(builder, arrays.StructBuilder):
        bits = null_bits(len(of.children))
        instructions.add(op.ROW, builder.kind_column, bits, bits + 8 * len(of.children), int(kind))
        for index, ((name, child), each) in enumerate(zip(builder.fields, of.children, strict=True)):
            if child.main >= 0:
                instructions.path.append(f".{name}")
                cell = instructions.add(op.CELL, child.main, 8 + index, bits + 8 * index)
                _emit_cell(instructions, each, child)
                instructions.otherwise(cell, 4, child)
                instructions.path.pop()
    elif isinstance(builder, arrays.ListBuilder):
        _emit_items(instructions, of.children[0], builder.element, builder.main, op.ROLE_LIST, "[]")
    elif isinstance(builder, arrays.MapBuilder):
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
        case arrays.PrimitiveBuilder(kind=primitive):
            instructions.add(op.CELL_FIXED, builder.main, primitive.width)
        case arrays.SizedBuilder():
            instructions.add(op.CELL_BYTES, builder.main, int(of.root != "RAW"))
        case arrays.DecimalBuilder():
            if builder.width == 8:
                instructions.add(op.CELL_FIXED, builder.main, 8)
            else:
                instructions.add(op.CELL_DECIMAL, builder.main)
        case arrays.TimestampBuilder():
            if builder.nanos < 0:
                instructions.add(op.CELL_FIXED, builder.main, 8)
            else:
                instructions.add(op.CELL_TIME, builder.main, builder.nanos)
        case arrays.SameBitsBuilder():
            instructions.add(op.CELL_FIXED, builder.main, builder.of.bit_width // 8)
        case arrays.TimeOfDayBuilder():
            instructions.add(op.CELL_FIXED, builder.main, 4)
        case arrays.ConstantBuilder():
            instructions.add(op.PRESENT, builder.main, 1)
        case _:
            if isinstance(builder, arrays.StructBuilder):
                instructions.add(op.PRESENT, builder.main)
            instructions.add(op.OPEN, -1)
            _emit_content(instructions, of, builder)
            instructions.add(op.CLOSE, -1)


@dataclass
class ColumnDeclarer(KernelColumns):
    """Declares the array builder and the kernel columns of a layout."""

    def declare(self, layout: lay.Layout, *, nullable: bool, nested: bool, wanted: Wanted) -> ArrayBuilder:
        """Declare the columns of a layout and return its array builder.

        Args:
            layout: the layout.
            nullable: a flag or mask before the value marks nulls.
            nested: the value is inside a list.
            wanted: the fields to decode.
        """
        with self.deeper():
            return self._declare(layout, nullable=nullable, nested=nested, wanted=wanted)

    def _declare(self, layout: lay.Layout, *, nullable: bool, nested: bool, wanted: Wanted) -> ArrayBuilder:
        asked = wanted is None or bool(wanted)

        def column(width: int, *, null: bool = nullable, data: bool = False) -> int:
            return self.column(width, nullable=null, nested=nested, wanted=asked, data=data)

        def inside(child: lay.Layout, *, null: bool = False) -> ArrayBuilder:
            everything: Wanted = None if asked else frozenset()
            return self.declare(child, nullable=null, nested=True, wanted=everything)

        match layout:
            case lay.Primitive(kind=kind):
                return arrays.PrimitiveBuilder(column(kind.width), kind)
            case lay.Logical(name=name):
                widths = [component.width for component in lay.LOGICAL_COMPONENTS[name]]
                # Where a struct is null, kernels write zeros to the columns of its fields. Zeros are not a valid date,
                # so that columns of dates always have their own nulls.
                dated = nullable or name in (lay.LogicalKind.LOCAL_DATE, lay.LogicalKind.LOCAL_DATE_TIME)
                columns = tuple(column(width, null=dated) for width in widths)
                return arrays.LogicalBuilder(columns[0], name, columns)
            case lay.Text():
                return arrays.TextBuilder(column(0, null=nullable or layout.nullable, data=True))
            case lay.JavaText():
                return arrays.TextBuilder(column(0, data=True))
            case lay.Sized(text=text):
                return arrays.SizedBuilder(column(0, data=True), text)
            case lay.Rest() | FixedBytes():
                return arrays.SizedBuilder(column(0, data=True), text=False)
            case lay.BigInteger():
                return arrays.NumberBuilder(column(0, null=True, data=True))
            case lay.BigDecimal():
                return arrays.NumberBuilder(column(0, null=True, data=True), column(4, null=False))
            case lay.Constants(names=names):
                return arrays.ConstantsBuilder(column(4), names)
            case lay.Constant(empty=empty):
                return arrays.ConstantBuilder(column(-1), empty)
            case lay.Optional(inner=inner) | lay.Marked(inner=inner):
                return self.declare(inner, nullable=True, nested=nested, wanted=wanted)
            case lay.Span(inner=inner):
                return arrays.SpanBuilder(column(8), column(8))
            case lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner):
                return self.declare(inner, nullable=nullable, nested=nested, wanted=wanted)
            case lay.Struct(fields=fields):
                main = column(-1)
                return arrays.StructBuilder(main, self._children(fields, nested=nested, wanted=wanted))
            case lay.Masked(fields=fields, kind=kind):
                main = column(-1)
                kind_wanted = kind and (wanted is None or "row_kind" in wanted)
                kinds = self.column(1, nullable=False, nested=nested, wanted=kind_wanted) if kind else -1
                optional = tuple((name, lay.Optional(child)) for name, child in fields)
                children = self._children(optional, nested=nested, wanted=wanted, extra="row_kind" if kind else None)
                return arrays.StructBuilder(main, children, kind_column=kinds)
            case lay.PojoObject():
                return self._declare_pojo(layout, column(-1, null=True), nested=nested, wanted=wanted)
            case lay.Choice(left=left, right=right):
                flag = self.column(1, nullable=False, nested=nested, wanted=asked)
                both: Wanted = None if asked else frozenset()
                sides = [self.declare(side, nullable=True, nested=nested, wanted=both) for side in (left, right)]
                return arrays.ChoiceBuilder(column(-1), flag, sides[0], sides[1])
            case lay.Sequence(element=element) | BlockArray(element=element):
                return arrays.ListBuilder(column(0), inside(element))
            case lay.Delimited(element=element, delimiter=delimiter):
                if delimiter is None and not smallest_size(element):
                    raise UnsupportedError("list elements without bytes and without a delimiter cannot be counted")
                main = column(0)
                return arrays.ListBuilder(main, self.declare(element, nullable=False, nested=True, wanted=wanted))
            case lay.Mapping(key=key, value=value) | BlockMapping(key=key, value=value):
                return arrays.MapBuilder(column(0), inside(key), inside(value))
            case lay.NullMasked(element=element, mask=mask):
                return arrays.ListBuilder(column(0), inside(element, null=mask))
            case lay.Tagged(cases=cases):
                main = column(-1)
                number = self.column(4, nullable=False, nested=nested, wanted=asked)
                each: Wanted = None if asked else frozenset()
                builders = [
                    (name, self.declare(case, nullable=True, nested=nested, wanted=each)) for _, name, case in cases
                ]
                return arrays.CaseBuilder(main, number, tuple(builders))
            case lay.Dynamic(serializer=serializer):
                return self._declare_dynamic(serializer, nullable=nullable, nested=nested, wanted=wanted)
        raise UnsupportedError(f"{type(layout).__name__} data have no Arrow type")

    def _declare_dynamic(
        self, serializer: tree.Serializer, *, nullable: bool, nested: bool, wanted: Wanted
    ) -> ArrayBuilder:
        asked = wanted is None or bool(wanted)

        def column(width: int, *, data: bool = False) -> int:
            return self.column(width, nullable=nullable, nested=nested, wanted=asked, data=data)

        match serializer:
            case tree.RowData():
                of = sql_type(serializer)
                return declare_row(self, of, nullable=nullable, nested=nested, wanted=wanted, kind=True)
            case tree.ArrayData() | tree.MapData():
                return declare(self, sql_type(serializer), nullable=nullable, nested=nested, wanted=wanted)
            case tree.BinaryRow():
                return arrays.SizedBuilder(column(0, data=True), text=False)
            case tree.Decimal(precision=precision, scale=scale):
                digits, scale = arrays.make_decimal_type(precision, scale)
                return arrays.DecimalBuilder(column(8 if digits <= arrays.COMPACT_DECIMAL else 16), digits, scale)
            case tree.TimestampData(precision=precision):
                millis = column(8)
                return arrays.TimestampBuilder(
                    millis, column(4) if precision > arrays.COMPACT_TIMESTAMP else -1, precision, None
                )
            case tree.ScalaEnum(constants=constants):
                names, numbers = zip(*constants, strict=True) if constants else ((), ())
                return arrays.ConstantsBuilder(column(4), names, numbers)
            case tree.Avro(schema_json=schema):
                return self.declare(avro_layout(schema), nullable=nullable, nested=nested, wanted=wanted)
        raise UnsupportedError(f"{type(serializer).__name__} data cannot be read by the kernels")

    def _children(
        self, fields: tuple[tuple[str, lay.Layout], ...], *, nested: bool, wanted: Wanted, extra: str | None = None
    ) -> tuple[tuple[str, ArrayBuilder], ...]:
        check_wanted(wanted, {name for name, _ in fields} | ({extra} if extra else set()))
        return tuple(
            (name, self.declare(child, nullable=False, nested=nested, wanted=below(wanted, name)))
            for name, child in fields
        )

    def _declare_pojo(self, layout: lay.PojoObject, main: int, *, nested: bool, wanted: Wanted) -> ArrayBuilder:
        fields = pojo_fields(layout)
        class_column = -1
        classes: tuple[str, ...] = ()
        if layout.variants:
            classes = (layout.class_name, *(variant.class_name for variant in layout.variants))
            class_column = self.column(4, nullable=False, nested=nested, wanted=wanted is None or "class" in wanted)
        extra = "class" if classes else None
        children = self._children(fields, nested=nested, wanted=wanted, extra=extra)
        return arrays.StructBuilder(main, children, classes=classes, class_column=class_column)


def variant_fields(layout: lay.PojoObject) -> list[tuple[tuple[str, lay.Layout], ...]]:
    """List the struct fields of a POJO class and of each of its subclasses, with their layouts.

    A subclass field whose type differs from that of an earlier class is named `<field>_<class>`. A subclass without a
    POJO serializer has one field, named after the class.
    """
    known: dict[str, lay.Layout] = {name: lay.Optional(child) for name, child in layout.fields}
    found: list[tuple[tuple[str, lay.Layout], ...]] = [tuple(known.items())]
    for variant in layout.variants:
        short = variant.class_name.replace("$", ".").rpartition(".")[2]
        content: list[tuple[str, lay.Layout]] = [(short, variant.layout)]
        if isinstance(variant.layout, lay.PojoObject):
            # The variants of the subclass itself are ignored: Flink writes every object with the serializer of exactly
            # its own class.
            content = [(name, lay.Optional(child)) for name, child in variant.layout.fields]
        named: list[tuple[str, lay.Layout]] = []
        for field_name, child in content:
            name = field_name
            while known.setdefault(name, child) != child or name in (each for each, _ in named) or name == "class":
                name = f"{field_name}_{short}" if name == field_name else f"{name}_"
            named.append((name, child))
        found.append(tuple(named))
    return found


def pojo_fields(layout: lay.PojoObject) -> tuple[tuple[str, lay.Layout], ...]:
    """List all struct fields of a POJO class and its subclasses."""
    return tuple({name: child for fields in variant_fields(layout) for name, child in fields}.items())


def sql_type(serializer: tree.RowData | tree.ArrayData | tree.MapData) -> tree.LogicalType:
    """Return the SQL type of the values of a serializer."""
    match serializer:
        case tree.RowData(types=types, columns=names):
            return tree.LogicalType(root="ROW", children=types, names=names)
        case tree.ArrayData(element_type=element):
            return tree.LogicalType(root="ARRAY", children=(element,))
        case tree.MapData(key_type=key, value_type=value):
            return tree.LogicalType(root="MAP", children=(key, value))


@dataclass
class Compiler(ColumnDeclarer, InstructionList):
    """Emits the instructions of declared layouts."""

    def emit(self, layout: lay.Layout, builder: ArrayBuilder) -> None:
        """Append the instructions that decode and encode values of a layout."""
        match layout, builder:
            case (lay.Primitive(kind=kind), arrays.PrimitiveBuilder()):
                self.add(op.FIXED, builder.main, kind.width)
            case (lay.Logical(name=logical), arrays.LogicalBuilder()):
                # Most of these types encode null by reserved numbers, which `logical_values.split` has put in place.
                reserved = int(logical not in (lay.LogicalKind.CHAR, lay.LogicalKind.ORDERED_I64))
                for wire, column in zip(lay.LOGICAL_COMPONENTS[logical], builder.columns, strict=True):
                    self.add(op.FIXED, column, wire.width, reserved)
            case (lay.Text(nullable=nullable), arrays.TextBuilder()):
                self.add(op.TEXT, builder.main, int(nullable))
            case (lay.JavaText(), arrays.TextBuilder()):
                self.add(op.JAVA_TEXT, builder.main)
            case (lay.Sized(), arrays.SizedBuilder()):
                self.add(op.SIZED, builder.main)
            case (lay.Rest(), arrays.SizedBuilder()):
                self.add(op.REST, builder.main)
            case (lay.BigInteger(), arrays.NumberBuilder()):
                self.add(op.BIG_INTEGER, builder.main)
            case (lay.BigDecimal(), arrays.NumberBuilder()):
                self.add(op.BIG_DECIMAL, builder.main, builder.scale)
            case (lay.Constants(), arrays.ConstantsBuilder()):
                self.add(op.FIXED, builder.main, 4)
            case (lay.Constant(raw=raw, empty=empty), arrays.ConstantBuilder()):
                self.add(op.CONST, -1, len(raw), self.constant(raw))
                if builder.main >= 0:
                    self.add(op.PRESENT, builder.main, int(not empty))
            case (lay.Optional(), _):
                padding = -1 if layout.rest_is_null else layout.padding
                flag = self.add(op.FLAG, builder.main, layout.null_flag, padding)
                self.emit(layout.inner, builder)
                self.otherwise(flag, 4, builder)
            case (lay.Span(inner=inner), arrays.SpanBuilder()):
                self.add(op.POSITION, builder.main)
                self.emit(inner, self.declare(inner, nullable=False, nested=False, wanted=frozenset()))
                self.add(op.POSITION, builder.stop)
            case (lay.MeasuredKey(inner=inner), _):
                self.add(op.MARK, -1)
                self.emit(inner, builder)
                self.add(op.LENGTH, -1)
            case (lay.Struct(fields=fields), arrays.StructBuilder()):
                if builder.main >= 0:
                    self.add(op.PRESENT, builder.main)
                for (name, child), (_, child_builder) in zip(fields, builder.fields, strict=True):
                    self.emit_inside(f".{name}", child, child_builder)
            case (lay.Masked(), arrays.StructBuilder()):
                self._emit_masked(layout, builder)
            case (lay.PojoObject(), arrays.StructBuilder()):
                self._emit_pojo(layout, builder)
            case (lay.Choice(left=left, right=right), arrays.ChoiceBuilder()):
                if builder.main >= 0:
                    self.add(op.PRESENT, builder.main)
                flag = self.add(op.CHOICE, builder.flag)
                self.emit_inside(".left", left, builder.left)
                self.add_null(builder.right)
                jump = self.add(op.JUMP, -1)
                self.rows[flag][2] = len(self.rows)
                self.emit_inside(".right", right, builder.right)
                self.add_null(builder.left)
                self.rows[jump][2] = len(self.rows)
            case (lay.Sequence(element=element), arrays.ListBuilder()):
                start = self.add(op.LIST, builder.main, smallest_size(element))
                self.emit_inside("[]", element, builder.element)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case (lay.Delimited(element=element, delimiter=delimiter), arrays.ListBuilder()):
                between = op.NO_DELIMITER if delimiter is None else delimiter
                start = self.add(op.DELIMITED, builder.main, between)
                self.emit_inside("[]", element, builder.element)
                self.add(op.DELIMITED_NEXT, -1, start + 1, between, builder.main)
                self.rows[start][3] = len(self.rows)
            case (lay.Mapping(key=key, value=value), arrays.MapBuilder()):
                start = self.add(op.LIST, builder.main, smallest_size(key) + smallest_size(value))
                self.emit_inside("{key}", key, builder.key)
                self.emit_inside("{value}", value, builder.value)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case _:
                self._emit_rare(layout, builder)

    def _emit_rare(self, layout: lay.Layout, builder: ArrayBuilder) -> None:
        match layout, builder:
            case (BlockArray() | BlockMapping(), arrays.ListBuilder() | arrays.MapBuilder()):
                self._emit_blocks(layout, builder)
            case (FixedBytes(size=size), arrays.SizedBuilder()):
                self.add(op.BYTES, builder.main, size)
            case (lay.NullMasked(element=element, mask=mask), arrays.ListBuilder()):
                start = self.add(op.MASKED_LIST, builder.main, 0 if mask else smallest_size(element), 0, int(mask))
                if mask:
                    item = self.add(op.MASKED_ITEM, builder.element.main)
                    self.emit_inside("[]", element, builder.element)
                    self.otherwise(item, 2, builder.element)
                else:
                    self.emit_inside("[]", element, builder.element)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case (lay.Framed(inner=inner), _):
                self.add(op.FRAME, -1)
                self.emit(inner, builder)
                self.add(op.UNFRAME, -1)
            case (lay.Marked(inner=inner, null=null, present=present), _):
                marker = self.add(op.MARKER, builder.main, null, 0, present)
                self.emit(inner, builder)
                self.otherwise(marker, 3, builder)
            case (lay.Tagged(), arrays.CaseBuilder()):
                self._emit_cases(layout, builder)
            case (lay.Dynamic(serializer=serializer), _):
                self._emit_dynamic(serializer, builder)
            case _:
                raise UnsupportedError(f"no instructions for {layout}")

    def _emit_blocks(self, layout: BlockArray | BlockMapping, builder: arrays.ListBuilder | arrays.MapBuilder) -> None:
        pairs: list[tuple[str, lay.Layout, ArrayBuilder]] = []
        if isinstance(layout, BlockMapping) and isinstance(builder, arrays.MapBuilder):
            pairs = [("{key}", layout.key, builder.key), ("{value}", layout.value, builder.value)]
        elif isinstance(layout, BlockArray) and isinstance(builder, arrays.ListBuilder):
            pairs = [("[]", layout.element, builder.element)]
        smallest = sum(smallest_size(each) for _, each, _ in pairs)
        start = self.add(op.BLOCKS, builder.main, smallest)
        for step, each, inner in pairs:
            self.emit_inside(step, each, inner)
        self.add(op.BLOCKS_NEXT, -1, start + 1, smallest, builder.main)
        self.rows[start][3] = len(self.rows)

    def _emit_cases(self, layout: lay.Tagged, builder: arrays.CaseBuilder) -> None:
        if builder.main >= 0:
            self.add(op.PRESENT, builder.main)
        self.add(op.TAG, builder.case, layout.width, len(layout.cases))
        rows = [self.add(op.CASE, -1, tag) for tag, _, _ in layout.cases]
        jumps = []
        for row, (_, name, case), (_, inner) in zip(rows, layout.cases, builder.cases, strict=True):
            self.rows[row][5] = len(self.rows)
            self.emit_inside(f".{name}", case, inner)
            for _, other in builder.cases:
                if other is not inner:
                    self.add_null(other)
            jumps.append(self.add(op.JUMP, -1))
        for jump in jumps:
            self.rows[jump][2] = len(self.rows)

    def _emit_dynamic(self, serializer: tree.Serializer, builder: ArrayBuilder) -> None:
        match serializer, builder:
            case (tree.RowData(), arrays.StructBuilder()):
                emit_block(self, sql_type(serializer), builder, kind=True)
            case (tree.ArrayData() | tree.MapData(), _):
                emit_block(self, sql_type(serializer), builder)
            case (tree.BinaryRow(), arrays.SizedBuilder()):
                self.add(op.SIZED, builder.main)
            case (tree.Decimal(), arrays.DecimalBuilder()) if builder.width == 8:
                self.add(op.FIXED, builder.main, 8)
            case (tree.Decimal(), arrays.DecimalBuilder()):
                self.add(op.WIDE_DECIMAL, builder.main)
            case (tree.TimestampData(precision=precision), arrays.TimestampBuilder()):
                self.add(op.FIXED, builder.main, 8)
                if precision > arrays.COMPACT_TIMESTAMP:
                    self.add(op.FIXED, builder.nanos, 4)
            case (tree.ScalaEnum(), arrays.ConstantsBuilder()):
                self.add(op.FIXED, builder.main, 4)
            case (tree.Avro(schema_json=schema), _):
                self.emit(avro_layout(schema), builder)
            case _:
                raise UnsupportedError(f"no instructions for {serializer}")

    def emit_inside(self, step: str, layout: lay.Layout, builder: ArrayBuilder) -> None:
        """Append the instructions of a child, with `step` added to the field path."""
        self.path.append(step)
        self.emit(layout, builder)
        self.path.pop()

    def _emit_masked(self, layout: lay.Masked, builder: arrays.StructBuilder) -> None:
        if builder.main >= 0:
            self.add(op.PRESENT, builder.main)
        first = 2 if layout.kind else 0
        self.add(op.MASK, builder.kind_column, (first + len(layout.fields) + 7) // 8, int(layout.kind))
        for bit, ((name, child), (_, child_builder)) in enumerate(
            zip(layout.fields, builder.fields, strict=True), first
        ):
            self.path.append(f".{name}")
            masked = self.add(op.MASKED, child_builder.main, bit)
            self.emit(child, child_builder)
            self.otherwise(masked, 3, child_builder)
            self.path.pop()
        self.add(op.UNMASK, -1)

    def _emit_pojo(self, layout: lay.PojoObject, builder: arrays.StructBuilder) -> None:
        start = self.add(op.POJO, builder.main, 0, len(layout.variants))
        cases = []
        for variant in layout.variants:
            name = variant.class_name.encode()
            tag = -1 if variant.tag is None else variant.tag
            cases.append(self.add(op.CASE, builder.class_column, tag, self.constant(name), len(name)))
        named = variant_fields(layout)
        jumps = [self._emit_fields(named[0], builder, 0)]
        for number, (case, variant) in enumerate(zip(cases, layout.variants, strict=True), 1):
            self.rows[case][5] = len(self.rows)
            if isinstance(variant.layout, lay.PojoObject):
                # The data of a subclass serializer begin with their own flag byte: an object of exactly that class.
                self.add(op.CONST, -1, 1, self.constant(b"\x02"))
            jumps.append(self._emit_fields(named[number], builder, number))
        self.rows[start][2] = len(self.rows)
        self.add_null(builder)
        for jump in jumps:
            self.rows[jump][2] = len(self.rows)

    def _emit_fields(
        self, fields: tuple[tuple[str, lay.Layout], ...], builder: arrays.StructBuilder, number: int
    ) -> int:
        if builder.main >= 0:
            self.add(op.PRESENT, builder.main)
        if builder.class_column >= 0:
            self.add(op.CLASS, builder.class_column, number)
        children = dict(builder.fields)
        for name, child in fields:
            self.emit_inside(f".{name}", child, children.pop(name))
        for missing in children.values():
            self.add_null(missing)
        return self.add(op.JUMP, -1)


@dataclass(frozen=True, eq=False)
class LayoutProgram:
    """A layout compiled to instructions for the kernels, which decode and encode its values.

    Attributes:
        instructions: i32[n, 6], see `opcodes`.
        pool: constant bytes.
        kinds: the kernel columns.
        builder: conversion between kernel columns and the Arrow array.
        paths: field path per instruction, such as `value.tags[].name`, for errors.
    """

    instructions: npt.NDArray[np.int32]
    pool: npt.NDArray[np.uint8]
    kinds: tuple[ColumnKind, ...]
    builder: ArrayBuilder
    paths: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        return self.builder.type


@lru_cache(maxsize=512)
def compile_layout(layout: lay.Layout, wanted: Wanted = None) -> LayoutProgram:
    """Compile `layout`; with `wanted`, all other fields are skipped (decoding only).

    Raises:
        UnsupportedError: a node of the layout has no Arrow type (`Dynamic`).
        UsageError: `wanted` names a field that the layout does not have, or nothing at all.
    """
    if wanted is not None and not wanted:
        raise UsageError("no field is wanted", hint="Name at least one field, or do not choose fields to get all")
    compiler = Compiler()
    builder = compiler.declare(layout, nullable=False, nested=False, wanted=wanted)
    compiler.emit(layout, builder)
    compiler.add(op.END)
    return LayoutProgram(
        instructions=np.array(compiler.rows, np.int32).reshape(-1, op.ARGUMENTS),
        pool=np.frombuffer(bytes(compiler.pool) + b"\0", np.uint8),
        kinds=tuple(compiler.kinds),
        builder=builder,
        paths=tuple(compiler.paths),
    )


def arrow_type(layout: lay.Layout) -> pa.DataType:
    """Return the Arrow type of the values of a layout.

    Raises:
        UnsupportedError: the layout has no Arrow type.
    """
    return compile_layout(layout).type


KEEPING = "Tables with the columns `reason` and `value_bytes` keep such rows as bytes"
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Consecutive encoded records.

    Attributes:
        data: u8, all bytes.
        stops: i64[n], end of each record in `data`.
    """

    data: Bytes
    stops: Offsets

    @property
    def starts(self) -> Offsets:
        """i64[n], start of each record in `data`."""
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]]) if len(self.stops) else self.stops


def decode_spans(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0
) -> pa.Array:
    """Decode the records in `data[starts[i]:ends[i]]`.

    Args:
        program: the compiled layout.
        data: u8, holds the records.
        starts: i64[n], first byte of each record.
        ends: i64[n], end of each record (exclusive), within `data`.
        exact: each record must use up its bytes.
        offset: position of `data` in its file, for errors.

    Returns:
        Array of `program.type`, one value per record.

    Raises:
        FormatError: the bytes do not fit the layout; names offset and field path.
        UsageError: a record is outside `data`.
    """
    columns, _ = fill_columns(program, data, starts, ends, exact=exact, offset=offset)
    return _finish(program, columns, starts, offset)


def decode_sequence(
    program: LayoutProgram, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
) -> tuple[pa.Array, Offsets]:
    """Decode `count` consecutive records of unknown sizes in `data[start:end]`.

    Returns:
        (array of `program.type`, i64[count] end of each record in `data`).

    Raises:
        FormatError: as in `decode_spans`.
        UsageError: the range is outside `data`.
    """
    _check_range(data, start, end)
    starts, ends, counts, offsets = (np.array([each], np.int64) for each in (start, end, count, offset))
    columns, stops = fill_sequences(program, data, starts, ends, counts, offsets)
    return _finish(program, columns, starts, offset), stops


def measure_sequence(program: LayoutProgram, data: Bytes, start: int, end: int, count: int) -> Offsets:
    """Find the ends of at most `count` consecutive records in `data[start:end]`.

    Returns:
        i64[n], end of each record; it stops before the first record that is cut off or does not fit the layout.

    Raises:
        UsageError: the range is outside `data`.
    """
    _check_range(data, start, end)
    columns = OutputColumns(program.kinds, count, end - start)
    starts, ends = np.full(count, -1, np.int64), np.full(count, end, np.int64)
    starts[:1] = start
    stops = np.empty(count, np.int64)
    status, record, _, _ = _fill(program, columns, data, starts, ends, stops, exact=False)
    return stops if status == op.OK else stops[:record]


def fill_columns(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0
) -> tuple[OutputColumns, Offsets]:
    """Decode the records in `data[starts[i]:ends[i]]` to kernel columns: `decode_spans` without building the array.

    Returns:
        (kernel columns of `program`, i64[n] end of each record in `data`).
    """
    columns = OutputColumns(program.kinds, len(starts), _measure_spans(data, starts, ends))
    stops = np.empty(len(starts), np.int64)
    found = _fill(program, columns, data, starts, ends, stops, exact=exact)
    if found[0] != op.OK:
        raise _make_error(program, *found, offset=offset)
    return columns, stops


def fill_sequences(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, counts: Offsets, offsets: Offsets
) -> tuple[OutputColumns, Offsets]:
    """Decode several sequences, each of consecutive records of unknown sizes, without building the array.

    Args:
        program: the compiled layout.
        data: u8, holds the records.
        starts: i64[m], first byte of each sequence.
        ends: i64[m], limit of each sequence, beyond which none of its records reaches.
        counts: i64[m], number of records in each sequence.
        offsets: i64[m], position of `data` in the file of each sequence, for errors.

    Returns:
        (kernel columns of `program`, i64[n] end of each of the n records in `data`).

    Raises:
        FormatError: as in `decode_spans`.
        UsageError: a range is outside `data`.
    """
    size = _measure_spans(data, starts, ends)
    totals = np.cumsum(counts)
    count = int(totals[-1]) if len(totals) else 0
    firsts, filled = totals - counts, counts > 0
    each_start = np.full(count, -1, np.int64)
    each_start[firsts[filled]] = starts[filled]
    columns = OutputColumns(program.kinds, count, size)
    stops = np.empty(count, np.int64)
    status, record, position, where = _fill(
        program, columns, data, each_start, np.repeat(ends, counts), stops, exact=False
    )
    if status != op.OK:
        number = int(np.searchsorted(totals, record, side="right"))
        raise _make_error(program, status, record - int(firsts[number]), position, where, offset=int(offsets[number]))
    return columns, stops


def _check_range(data: Bytes, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(data):
        raise UsageError(f"bytes {start} to {end} are outside the {len(data)} bytes given")


def _measure_spans(data: Bytes, starts: Offsets, ends: Offsets) -> int:
    """Return the total size of all spans; UsageError if one is outside the data."""
    if not len(starts):
        return 0
    if starts.min() < 0 or ends.max() > len(data) or bool((starts > ends).any()):
        raise UsageError(f"a record is outside the {len(data)} bytes given")
    return int((ends - starts).sum())


def _make_error(
    program: LayoutProgram, status: int, record: int, position: int, where: int, *, offset: int
) -> StateError:
    """Make the error for a status code of the kernel, with the offset in the file and the path of the field."""
    if status in (op.BAD_SUBCLASS, op.BAD_KIND, op.HALF_TEXT):
        return UnsupportedError(
            f"record {record}: {op.MESSAGES[status]}",
            where=Where(offset=offset + position, path=program.paths[where] or None),
            hint=f"Declare the class (`--classes`). {KEEPING}" if status == op.BAD_SUBCLASS else KEEPING,
        )
    found = Where(offset=offset + position, path=program.paths[where])
    return FormatError(f"record {record}: {op.MESSAGES[status]}", where=found)


def _finish(program: LayoutProgram, columns: OutputColumns, starts: Offsets, offset: int) -> pa.Array:
    try:
        return program.builder.finish(columns)
    except StateError as error:
        first = offset + int(starts[0]) if len(starts) else offset
        if error.where.offset is None:
            error.where = replace(error.where, offset=first)
        raise


def _fill(
    program: LayoutProgram,
    columns: OutputColumns,
    data: Bytes,
    starts: Offsets,
    ends: Offsets,
    stops: Offsets,
    *,
    exact: bool,
) -> tuple[int, int, int, int]:
    """Run the decoding kernel, again whenever a column was too small.

    Returns:
        (status, record, position, instruction): 0, or the status of an error and its location.
    """
    # Read-only in all calls: for Numba, writable arrays have another type, so that it would compile the kernel twice
    # (10 s each).
    starts, ends = _protect(starts), _protect(ends)
    while True:
        found: tuple[int, int, int, int] = decode(
            program.instructions,
            program.pool.ctypes.data,
            columns.table,
            data.ctypes.data,
            starts,
            ends,
            exact,
            stops,
        )
        if found[0] != op.FULL:
            return found
        columns.enlarge(found[3])


def _protect(offsets: Offsets) -> Offsets:
    view = offsets.view()
    view.flags.writeable = False
    return view


def encode_array(program: LayoutProgram, array: pa.Array) -> Encoded:
    """Encode every value of `array`, which may be of any type that `conform` converts to `program.type`.

    Raises:
        ValueRangeError: a value does not fit the layout; names the row and the field path.
    """
    columns = InputColumns(program.kinds)
    program.builder.prepare(conform(array, program.type), columns)
    stops = np.empty(len(array), np.int64)
    capacity = array.nbytes + 32 * len(array) + 1024
    while True:
        data = np.empty(capacity, np.uint8)
        status, record, size, where = encode(
            program.instructions,
            program.pool.ctypes.data,
            columns.table,
            len(array),
            data.ctypes.data,
            capacity,
            stops,
        )
        if status != op.FULL:
            break
        capacity *= 2
        columns.rewind()
    if status != op.OK:
        raise ValueRangeError(f"row {record}: {op.MESSAGES[status]}", where=Where(path=program.paths[where]))
    return Encoded(data[:size], stops)
