"""Instructions of a layout, which fill the kernel columns of its array builders or read from them."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro.avro_layouts import BlockMapping, Blocks, FixedBytes, avro_layout
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.minimal_sizes import smallest_size as smallest_size
from state_pipelines.codecs.programs import sql_programs as sql
from state_pipelines.codecs.programs.array_builders import (
    ArrayBuilder,
    ConstantBuilder,
    ConstantsBuilder,
    LogicalBuilder,
    NumberBuilder,
    PrimitiveBuilder,
    SizedBuilder,
    SpanBuilder,
    TextBuilder,
)
from state_pipelines.codecs.programs.column_declarations import ColumnDeclarer, sql_type, variant_fields
from state_pipelines.codecs.programs.instruction_list import InstructionList
from state_pipelines.codecs.programs.nested_array_builders import (
    CaseBuilder,
    ChoiceBuilder,
    ListBuilder,
    MapBuilder,
    StructBuilder,
)
from state_pipelines.codecs.programs.sql_array_builders import COMPACT_TIMESTAMP, DecimalBuilder, TimestampBuilder
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree


@dataclass
class Compiler(ColumnDeclarer, InstructionList):
    """Emits the instructions of declared layouts."""

    def emit(self, layout: lay.Layout, builder: ArrayBuilder) -> None:
        """Append the instructions of a layout."""
        match layout, builder:
            case (lay.Primitive(kind=kind), PrimitiveBuilder()):
                self.add(op.FIXED, builder.main, kind.width)
            case (lay.Logical(name=logical), LogicalBuilder()):
                # Nulls have a reserved encoding, which `logical_values.split` writes.
                reserved = int(logical not in (lay.LogicalKind.CHAR, lay.LogicalKind.ORDERED_I64))
                for wire, column in zip(lay.LOGICAL_COMPONENTS[logical], builder.columns, strict=True):
                    self.add(op.FIXED, column, wire.width, reserved)
            case (lay.Text(nullable=nullable), TextBuilder()):
                self.add(op.TEXT, builder.main, int(nullable))
            case (lay.JavaText(), TextBuilder()):
                self.add(op.JAVA_TEXT, builder.main)
            case (lay.Sized(), SizedBuilder()):
                self.add(op.SIZED, builder.main)
            case (lay.Rest(), SizedBuilder()):
                self.add(op.REST, builder.main)
            case (lay.BigInteger(), NumberBuilder()):
                self.add(op.BIG_INTEGER, builder.main)
            case (lay.BigDecimal(), NumberBuilder()):
                self.add(op.BIG_DECIMAL, builder.main, builder.scale)
            case (lay.Constants(), ConstantsBuilder()):
                self.add(op.FIXED, builder.main, 4)
            case (lay.Constant(raw=raw, empty=empty), ConstantBuilder()):
                self.add(op.CONST, -1, len(raw), self.constant(raw))
                if builder.main >= 0:
                    self.add(op.PRESENT, builder.main, int(not empty))
            case (lay.Optional(), _):
                padding = -1 if layout.rest_is_null else layout.padding
                flag = self.add(op.FLAG, builder.main, layout.null_flag, padding)
                self.emit(layout.inner, builder)
                self.otherwise(flag, 4, builder)
            case (lay.Span(inner=inner), SpanBuilder()):
                self.add(op.POSITION, builder.main)
                self.emit(inner, self.declare(inner, nullable=False, nested=False, wanted=frozenset()))
                self.add(op.POSITION, builder.stop)
            case (lay.MeasuredKey(inner=inner), _):
                self.add(op.MARK, -1)
                self.emit(inner, builder)
                self.add(op.LENGTH, -1)
            case (lay.Struct(fields=fields), StructBuilder()):
                if builder.main >= 0:
                    self.add(op.PRESENT, builder.main)
                for (name, child), (_, child_builder) in zip(fields, builder.fields, strict=True):
                    self.emit_inside(f".{name}", child, child_builder)
            case (lay.Masked(), StructBuilder()):
                self._emit_masked(layout, builder)
            case (lay.PojoObject(), StructBuilder()):
                self._emit_pojo(layout, builder)
            case (lay.Choice(left=left, right=right), ChoiceBuilder()):
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
            case (lay.Sequence(element=element), ListBuilder()):
                start = self.add(op.LIST, builder.main, smallest_size(element))
                self.emit_inside("[]", element, builder.element)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case (lay.Delimited(element=element, delimiter=delimiter), ListBuilder()):
                between = op.NO_DELIMITER if delimiter is None else delimiter
                start = self.add(op.DELIMITED, builder.main, between)
                self.emit_inside("[]", element, builder.element)
                self.add(op.DELIMITED_NEXT, -1, start + 1, between, builder.main)
                self.rows[start][3] = len(self.rows)
            case (lay.Mapping(key=key, value=value), MapBuilder()):
                start = self.add(op.LIST, builder.main, smallest_size(key) + smallest_size(value))
                self.emit_inside("{key}", key, builder.key)
                self.emit_inside("{value}", value, builder.value)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case _:
                self._emit_rare(layout, builder)

    def _emit_rare(self, layout: lay.Layout, builder: ArrayBuilder) -> None:
        match layout, builder:
            case (Blocks() | BlockMapping(), ListBuilder() | MapBuilder()):
                self._emit_blocks(layout, builder)
            case (FixedBytes(size=size), SizedBuilder()):
                self.add(op.BYTES, builder.main, size)
            case (lay.NullMasked(element=element, mask=mask), ListBuilder()):
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
            case (lay.Tagged(), CaseBuilder()):
                self._emit_cases(layout, builder)
            case (lay.Dynamic(serializer=serializer), _):
                self._emit_dynamic(serializer, builder)
            case _:
                raise UnsupportedError(f"no instructions for {layout}")

    def _emit_blocks(self, layout: Blocks | BlockMapping, builder: ListBuilder | MapBuilder) -> None:
        pairs: list[tuple[str, lay.Layout, ArrayBuilder]] = []
        if isinstance(layout, BlockMapping) and isinstance(builder, MapBuilder):
            pairs = [("{key}", layout.key, builder.key), ("{value}", layout.value, builder.value)]
        elif isinstance(layout, Blocks) and isinstance(builder, ListBuilder):
            pairs = [("[]", layout.element, builder.element)]
        smallest = sum(smallest_size(each) for _, each, _ in pairs)
        start = self.add(op.BLOCKS, builder.main, smallest)
        for step, each, inner in pairs:
            self.emit_inside(step, each, inner)
        self.add(op.BLOCKS_NEXT, -1, start + 1, smallest, builder.main)
        self.rows[start][3] = len(self.rows)

    def _emit_cases(self, layout: lay.Tagged, builder: CaseBuilder) -> None:
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
            case (tree.RowData(), StructBuilder()):
                sql.emit_block(self, sql_type(serializer), builder, kind=True)
            case (tree.ArrayData() | tree.MapData(), _):
                sql.emit_block(self, sql_type(serializer), builder)
            case (tree.BinaryRow(), SizedBuilder()):
                self.add(op.SIZED, builder.main)
            case (tree.Decimal(), DecimalBuilder()) if builder.width == 8:
                self.add(op.FIXED, builder.main, 8)
            case (tree.Decimal(), DecimalBuilder()):
                self.add(op.WIDE_DECIMAL, builder.main)
            case (tree.TimestampData(precision=precision), TimestampBuilder()):
                self.add(op.FIXED, builder.main, 8)
                if precision > COMPACT_TIMESTAMP:
                    self.add(op.FIXED, builder.nanos, 4)
            case (tree.ScalaEnum(), ConstantsBuilder()):
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

    def _emit_masked(self, layout: lay.Masked, builder: StructBuilder) -> None:
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

    def _emit_pojo(self, layout: lay.PojoObject, builder: StructBuilder) -> None:
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

    def _emit_fields(self, fields: tuple[tuple[str, lay.Layout], ...], builder: StructBuilder, number: int) -> int:
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
