"""Emitting the instructions of a layout, which fill the columns of its parts or take from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs import opcodes as op
from state_pipelines.codecs import sql_program as sql
from state_pipelines.codecs.avro_layout import BlockMapping, Blocks, FixedBytes, Indexed, avro_layout
from state_pipelines.codecs.declaring import Declaring, sql_type, variant_fields
from state_pipelines.codecs.parts import (
    CasePart,
    ChoicePart,
    ConstantPart,
    ConstantsPart,
    ListPart,
    LogicalPart,
    MapPart,
    NumberPart,
    Part,
    PrimitivePart,
    SizedPart,
    SpanPart,
    StructPart,
    TextPart,
)
from state_pipelines.codecs.sizes import smallest_size as smallest_size
from state_pipelines.codecs.sql_parts import (
    COMPACT_TIMESTAMP,
    DecimalPart,
    TimestampPart,
)
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree


@dataclass
class Compiler(Declaring):
    """Emits instructions for parts that are declared.

    Attributes:
        rows: the instructions so far.
        pool: constant bytes.
        paths: field path per instruction, for errors.
        path: steps to the node at hand.
    """

    rows: list[list[int]] = field(default_factory=list)
    pool: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=lambda: ["value"])

    def add(self, code: int, column: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
        """Append an instruction; its number."""
        self.rows.append([code, column, a, b, c, d])
        self.paths.append("".join(self.path))
        return len(self.rows) - 1

    def add_null(self, part: Part) -> None:
        """Append instructions for a null in every column of a part."""
        for column in part.level_columns():
            if column >= 0:
                self.add(op.NULL, column, int(column == part.main))

    def constant(self, raw: bytes) -> int:
        """Where `raw` stands in the pool."""
        self.pool += raw
        return len(self.pool) - len(raw)

    def emit(self, layout: lay.Layout, part: Part) -> None:
        """Append the instructions of a layout."""
        match layout, part:
            case (lay.Primitive(kind=kind), PrimitivePart()):
                self.add(op.FIXED, part.main, lay.PRIMITIVE_WIDTHS[kind])
            case (lay.Logical(name=name), LogicalPart()):
                # A null has a reserved form, which `split` puts into the parts.
                reserved = int(name not in ("char", "ordered_i64"))
                for wire, column in zip(lay.LOGICAL_PARTS[name], part.columns, strict=True):
                    self.add(op.FIXED, column, lay.PRIMITIVE_WIDTHS[wire], reserved)
            case (lay.Text(nullable=nullable), TextPart()):
                self.add(op.TEXT, part.main, int(nullable))
            case (lay.JavaText(), TextPart()):
                self.add(op.JAVA_TEXT, part.main)
            case (lay.Sized(), SizedPart()):
                self.add(op.SIZED, part.main)
            case (lay.Rest(), SizedPart()):
                self.add(op.REST, part.main)
            case (lay.BigInteger(), NumberPart()):
                self.add(op.BIG_INTEGER, part.main)
            case (lay.BigDecimal(), NumberPart()):
                self.add(op.BIG_DECIMAL, part.main, part.scale)
            case (lay.Constants(), ConstantsPart()):
                self.add(op.FIXED, part.main, 4)
            case (lay.Constant(raw=raw, empty=empty), ConstantPart()):
                self.add(op.CONST, -1, len(raw), self.constant(raw))
                if part.main >= 0:
                    self.add(op.PRESENT, part.main, int(not empty))
            case (lay.Optional(), _):
                padding = -1 if layout.rest_is_null else layout.padding
                flag = self.add(op.FLAG, part.main, layout.null_flag, padding)
                self.emit(layout.inner, part)
                self.otherwise(flag, 4, part)
            case (lay.Span(inner=inner), SpanPart()):
                self.add(op.POSITION, part.main)
                self.emit(inner, self.declare(inner, nullable=False, nested=False, wanted=frozenset()))
                self.add(op.POSITION, part.stop)
            case (lay.MeasuredKey(inner=inner), _):
                self.add(op.MARK, -1)
                self.emit(inner, part)
                self.add(op.LENGTH, -1)
            case (lay.Struct(fields=fields), StructPart()):
                if part.main >= 0:
                    self.add(op.PRESENT, part.main)
                for (name, child), (_, child_part) in zip(fields, part.fields, strict=True):
                    self.emit_inside(f".{name}", child, child_part)
            case (lay.Masked(), StructPart()):
                self._emit_masked(layout, part)
            case (lay.PojoObject(), StructPart()):
                self._emit_pojo(layout, part)
            case (lay.Choice(left=left, right=right), ChoicePart()):
                if part.main >= 0:
                    self.add(op.PRESENT, part.main)
                flag = self.add(op.CHOICE, part.flag)
                self.emit_inside(".left", left, part.left)
                self.add_null(part.right)
                jump = self.add(op.JUMP, -1)
                self.rows[flag][2] = len(self.rows)
                self.emit_inside(".right", right, part.right)
                self.add_null(part.left)
                self.rows[jump][2] = len(self.rows)
            case (lay.Sequence(element=element), ListPart()):
                start = self.add(op.LIST, part.main, smallest_size(element))
                self.emit_inside("[]", element, part.element)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case (lay.Delimited(element=element, delimiter=delimiter), ListPart()):
                between = op.NO_DELIMITER if delimiter is None else delimiter
                start = self.add(op.DELIMITED, part.main, between)
                self.emit_inside("[]", element, part.element)
                self.add(op.DELIMITED_NEXT, -1, start + 1, between, part.main)
                self.rows[start][3] = len(self.rows)
            case (lay.Mapping(key=key, value=value), MapPart()):
                start = self.add(op.LIST, part.main, smallest_size(key) + smallest_size(value))
                self.emit_inside("{key}", key, part.key)
                self.emit_inside("{value}", value, part.value)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case _:
                self._emit_rare(layout, part)

    def _emit_rare(self, layout: lay.Layout, part: Part) -> None:
        match layout, part:
            case (Blocks() | BlockMapping(), ListPart() | MapPart()):
                self._emit_blocks(layout, part)
            case (FixedBytes(size=size), SizedPart()):
                self.add(op.BYTES, part.main, size)
            case (lay.NullMasked(element=element, mask=mask), ListPart()):
                start = self.add(op.MASKED_LIST, part.main, 0 if mask else smallest_size(element), 0, int(mask))
                if mask:
                    item = self.add(op.MASKED_ITEM, part.element.main)
                    self.emit_inside("[]", element, part.element)
                    self.otherwise(item, 2, part.element)
                else:
                    self.emit_inside("[]", element, part.element)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case (lay.Framed(inner=inner), _):
                self.add(op.FRAME, -1)
                self.emit(inner, part)
                self.add(op.UNFRAME, -1)
            case (Indexed(inner=inner, null_index=null), _):
                index = self.add(op.INDEX, part.main, null)
                self.emit(inner, part)
                self.otherwise(index, 3, part)
            case (lay.Tagged(), CasePart()):
                self._emit_cases(layout, part)
            case (lay.Dynamic(serializer=serializer), _):
                self._emit_dynamic(serializer, part)
            case _:
                raise UnsupportedError(f"no columnar form for {layout}")

    def _emit_blocks(self, layout: Blocks | BlockMapping, part: ListPart | MapPart) -> None:
        pairs: list[tuple[str, lay.Layout, Part]] = []
        if isinstance(layout, BlockMapping) and isinstance(part, MapPart):
            pairs = [("{key}", layout.key, part.key), ("{value}", layout.value, part.value)]
        elif isinstance(layout, Blocks) and isinstance(part, ListPart):
            pairs = [("[]", layout.element, part.element)]
        smallest = sum(smallest_size(each) for _, each, _ in pairs)
        start = self.add(op.BLOCKS, part.main, smallest)
        for step, each, inner in pairs:
            self.emit_inside(step, each, inner)
        self.add(op.BLOCKS_NEXT, -1, start + 1, smallest, part.main)
        self.rows[start][3] = len(self.rows)

    def _emit_cases(self, layout: lay.Tagged, part: CasePart) -> None:
        if part.main >= 0:
            self.add(op.PRESENT, part.main)
        self.add(op.TAG, part.case, layout.width, len(layout.cases))
        rows = [self.add(op.CASE, -1, tag) for tag, _, _ in layout.cases]
        jumps = []
        for row, (_, name, case), (_, inner) in zip(rows, layout.cases, part.cases, strict=True):
            self.rows[row][5] = len(self.rows)
            self.emit_inside(f".{name}", case, inner)
            for _, other in part.cases:
                if other is not inner:
                    self.add_null(other)
            jumps.append(self.add(op.JUMP, -1))
        for jump in jumps:
            self.rows[jump][2] = len(self.rows)

    def _emit_dynamic(self, serializer: tree.Serializer, part: Part) -> None:
        match serializer, part:
            case (tree.RowData(), StructPart()):
                sql.emit_block(self, sql_type(serializer), part, kind=True)
            case (tree.ArrayData() | tree.MapData(), _):
                sql.emit_block(self, sql_type(serializer), part)
            case (tree.BinaryRow(), SizedPart()):
                self.add(op.SIZED, part.main)
            case (tree.Decimal(), DecimalPart()) if part.width == 8:
                self.add(op.FIXED, part.main, 8)
            case (tree.Decimal(), DecimalPart()):
                self.add(op.WIDE_DECIMAL, part.main)
            case (tree.TimestampData(precision=precision), TimestampPart()):
                self.add(op.FIXED, part.main, 8)
                if precision > COMPACT_TIMESTAMP:
                    self.add(op.FIXED, part.nanos, 4)
            case (tree.ScalaEnum(), ConstantsPart()):
                self.add(op.FIXED, part.main, 4)
            case (tree.Avro(schema_json=schema), _):
                self.emit(avro_layout(schema), part)
            case _:
                raise UnsupportedError(f"no columnar form for {serializer}")

    def emit_inside(self, step: str, layout: lay.Layout, part: Part) -> None:
        """`emit`, one step further along the field path."""
        self.path.append(step)
        self.emit(layout, part)
        self.path.pop()

    def otherwise(self, row: int, argument: int, part: Part) -> None:
        """Let the target in `argument` of `row` append nulls to `part`, and the way so far jump over that."""
        jump = self.add(op.JUMP, -1)
        self.rows[row][argument] = len(self.rows)
        self.add_null(part)
        self.rows[jump][2] = len(self.rows)

    def _emit_masked(self, layout: lay.Masked, part: StructPart) -> None:
        if part.main >= 0:
            self.add(op.PRESENT, part.main)
        first = 2 if layout.kind else 0
        self.add(op.MASK, part.kind_column, (first + len(layout.fields) + 7) // 8, int(layout.kind))
        for bit, ((name, child), (_, child_part)) in enumerate(zip(layout.fields, part.fields, strict=True), first):
            self.path.append(f".{name}")
            masked = self.add(op.MASKED, child_part.main, bit)
            self.emit(child, child_part)
            self.otherwise(masked, 3, child_part)
            self.path.pop()
        self.add(op.UNMASK, -1)

    def _emit_pojo(self, layout: lay.PojoObject, part: StructPart) -> None:
        start = self.add(op.POJO, part.main, 0, len(layout.variants))
        cases = []
        for variant in layout.variants:
            name = variant.class_name.encode()
            tag = -1 if variant.tag is None else variant.tag
            cases.append(self.add(op.CASE, part.class_column, tag, self.constant(name), len(name)))
        named = variant_fields(layout)
        jumps = [self._emit_fields(named[0], part, 0)]
        for number, (case, variant) in enumerate(zip(cases, layout.variants, strict=True), 1):
            self.rows[case][5] = len(self.rows)
            if isinstance(variant.layout, lay.PojoObject):
                # The data of a subclass serializer begin with a flag byte of their own: an exact object.
                self.add(op.CONST, -1, 1, self.constant(b"\x02"))
            jumps.append(self._emit_fields(named[number], part, number))
        self.rows[start][2] = len(self.rows)
        self.add_null(part)
        for jump in jumps:
            self.rows[jump][2] = len(self.rows)

    def _emit_fields(self, fields: tuple[tuple[str, lay.Layout], ...], part: StructPart, number: int) -> int:
        if part.main >= 0:
            self.add(op.PRESENT, part.main)
        if part.class_column >= 0:
            self.add(op.CLASS, part.class_column, number)
        children = dict(part.fields)
        for name, child in fields:
            self.emit_inside(f".{name}", child, children.pop(name))
        for missing in children.values():
            self.add_null(missing)
        return self.add(op.JUMP, -1)
