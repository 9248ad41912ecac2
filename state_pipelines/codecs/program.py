"""Layouts compiled for the kernels: instructions, kernel columns, and the way between those and Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs import opcodes as op
from state_pipelines.codecs.buffers import ColumnKind
from state_pipelines.codecs.parts import (
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
from state_pipelines.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_NESTING = 64

Wanted = frozenset[str] | None
"""Dotted paths of the fields to decode, such as `address.zip`; None is everything."""


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled layout.

    Attributes:
        instructions: i32[n, 6], see `opcodes`.
        pool: constant bytes.
        kinds: the kernel columns.
        part: the way between kernel columns and the Arrow array.
        paths: field path per instruction, such as `value.tags[].name`, for errors.
    """

    instructions: npt.NDArray[np.int32]
    pool: npt.NDArray[np.uint8]
    kinds: tuple[ColumnKind, ...]
    part: Part
    paths: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        return self.part.type


@lru_cache(maxsize=512)
def compile_layout(layout: lay.Layout, wanted: Wanted = None) -> Program:
    """Compile `layout`; with `wanted`, fields that nobody asked for are skipped (decoding only).

    Raises:
        UnsupportedError: some part of the layout has no columnar form (`Dynamic`).
        UsageError: `wanted` names a field that the layout does not have, or nothing at all.
    """
    if wanted is not None and not wanted:
        raise UsageError("no field is wanted", hint="name at least one, or leave the choice out for all of them")
    compiler = _Compiler()
    part = compiler.declare(layout, nullable=False, nested=False, wanted=wanted)
    compiler.emit(layout, part)
    compiler.add(op.END)
    return Program(
        instructions=np.array(compiler.rows, np.int32).reshape(-1, op.ARGUMENTS),
        pool=np.frombuffer(bytes(compiler.pool) + b"\0", np.uint8),
        kinds=tuple(compiler.kinds),
        part=part,
        paths=tuple(compiler.paths),
    )


def arrow_type(layout: lay.Layout) -> pa.DataType:
    """Arrow type of the values of `layout`.

    Raises:
        UnsupportedError: the layout has no columnar form.
    """
    return compile_layout(layout).type


@dataclass
class _Compiler:
    rows: list[list[int]] = field(default_factory=list)
    kinds: list[ColumnKind] = field(default_factory=list)
    pool: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=lambda: ["value"])
    depth: int = 0

    # Declaring: a part per layout, kernel columns for it.

    def column(self, width: int, *, nullable: bool, nested: bool, wanted: bool, data: bool = False) -> int:
        if not wanted:
            return -1
        self.kinds.append(ColumnKind(width, data=data, nullable=nullable, nested=nested))
        return len(self.kinds) - 1

    def declare(self, layout: lay.Layout, *, nullable: bool, nested: bool, wanted: Wanted) -> Part:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise UnsupportedError(f"values are nested more than {MAX_NESTING} levels deep")
        try:
            return self._declare(layout, nullable=nullable, nested=nested, wanted=wanted)
        finally:
            self.depth -= 1

    def _declare(self, layout: lay.Layout, *, nullable: bool, nested: bool, wanted: Wanted) -> Part:
        asked = wanted is None or bool(wanted)

        def column(width: int, *, null: bool = nullable, data: bool = False) -> int:
            return self.column(width, nullable=null, nested=nested, wanted=asked, data=data)

        def inside(child: lay.Layout, *, null: bool = False) -> Part:
            everything: Wanted = None if asked else frozenset()
            return self.declare(child, nullable=null, nested=True, wanted=everything)

        match layout:
            case lay.Primitive(kind=kind):
                return PrimitivePart(column(lay.PRIMITIVE_WIDTHS[kind]), kind)
            case lay.Logical(name=name):
                widths = [lay.PRIMITIVE_WIDTHS[part] for part in lay.LOGICAL_PARTS[name]]
                # What a kernel leaves for a date under a null struct, all zero, is no date: tell them apart.
                dated = nullable or name in ("local_date", "local_date_time")
                columns = tuple(column(width, null=dated) for width in widths)
                return LogicalPart(columns[0], name, columns)
            case lay.Text():
                return TextPart(column(0, null=nullable or layout.nullable, data=True))
            case lay.Sized(text=text):
                return SizedPart(column(0, data=True), text)
            case lay.Rest():
                return SizedPart(column(0, data=True), text=False)
            case lay.BigInteger():
                return NumberPart(column(0, null=True, data=True))
            case lay.BigDecimal():
                return NumberPart(column(0, null=True, data=True), column(4, null=False))
            case lay.Constants(names=names):
                return ConstantsPart(column(4), names)
            case lay.Constant(empty=empty):
                return ConstantPart(column(-1), empty)
            case lay.Optional(inner=inner):
                return self.declare(inner, nullable=True, nested=nested, wanted=wanted)
            case lay.Span(inner=inner):
                return SpanPart(column(8), column(8))
            case lay.MeasuredKey(inner=inner):
                return self.declare(inner, nullable=nullable, nested=nested, wanted=wanted)
            case lay.Struct(fields=fields):
                main = column(-1)
                return StructPart(main, self._children(fields, nested=nested, wanted=wanted))
            case lay.Masked(fields=fields, kind=kind):
                main = column(-1)
                kind_wanted = kind and (wanted is None or "row_kind" in wanted)
                kinds = self.column(1, nullable=False, nested=nested, wanted=kind_wanted) if kind else -1
                optional = tuple((name, lay.Optional(child)) for name, child in fields)
                children = self._children(optional, nested=nested, wanted=wanted, extra="row_kind" if kind else None)
                return StructPart(main, children, kind_column=kinds)
            case lay.PojoObject():
                return self._declare_pojo(layout, column(-1, null=True), nested=nested, wanted=wanted)
            case lay.Choice(left=left, right=right):
                flag = self.column(1, nullable=False, nested=nested, wanted=asked)
                both: Wanted = None if asked else frozenset()
                sides = [self.declare(side, nullable=True, nested=nested, wanted=both) for side in (left, right)]
                return ChoicePart(column(-1), flag, sides[0], sides[1])
            case lay.Sequence(element=element):
                return ListPart(column(0), inside(element))
            case lay.Delimited(element=element):
                main = column(0)
                return ListPart(main, self.declare(element, nullable=False, nested=True, wanted=wanted))
            case lay.Mapping(key=key, value=value):
                return MapPart(column(0), inside(key), inside(value))
            case lay.Dynamic(serializer=serializer):
                name = type(serializer).__name__
            case _:
                name = type(layout).__name__
        raise UnsupportedError(
            f"{name} data have no columnar form yet", hint="`dump` decodes them; tables give the raw bytes"
        )

    def _children(
        self, fields: tuple[tuple[str, lay.Layout], ...], *, nested: bool, wanted: Wanted, extra: str | None = None
    ) -> tuple[tuple[str, Part], ...]:
        names = {name for name, _ in fields} | ({extra} if extra else set())
        for path in wanted or ():
            if path.split(".")[0] not in names:
                raise UsageError(f"there is no field {path}", hint=f"the fields are {', '.join(sorted(names))}")
        return tuple(
            (name, self.declare(child, nullable=False, nested=nested, wanted=below(wanted, name)))
            for name, child in fields
        )

    def _declare_pojo(self, layout: lay.PojoObject, main: int, *, nested: bool, wanted: Wanted) -> Part:
        fields = {name: lay.Optional(child) for name, child in layout.fields}
        for variant in layout.variants:
            pojo = variant_object(variant)
            for name, child in pojo.fields:
                if fields.setdefault(name, lay.Optional(child)) != lay.Optional(child):
                    raise UnsupportedError(
                        f"field {name} of {pojo.class_name} has another type than in {layout.class_name}",
                        hint="tables give the raw bytes; `dump` decodes them",
                    )
        class_column = -1
        classes: tuple[str, ...] = ()
        if layout.variants:
            classes = (layout.class_name, *(variant.class_name for variant in layout.variants))
            class_column = self.column(4, nullable=False, nested=nested, wanted=wanted is None or "class" in wanted)
        extra = "class" if classes else None
        children = self._children(tuple(fields.items()), nested=nested, wanted=wanted, extra=extra)
        return StructPart(main, children, classes=classes, class_column=class_column)

    # Emitting: instructions that fill or take from the columns of a part.

    def add(self, code: int, column: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
        self.rows.append([code, column, a, b, c, d])
        self.paths.append("".join(self.path))
        return len(self.rows) - 1

    def add_null(self, part: Part) -> None:
        for column in part.level_columns():
            if column >= 0:
                self.add(op.NULL, column, int(column == part.main))

    def constant(self, raw: bytes) -> int:
        self.pool += raw
        return len(self.pool) - len(raw)

    def emit(self, layout: lay.Layout, part: Part) -> None:
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
                self._otherwise(flag, 4, part)
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
                start = self.add(op.DELIMITED, part.main, delimiter)
                self.emit_inside("[]", element, part.element)
                self.add(op.DELIMITED_NEXT, -1, start + 1, delimiter, part.main)
                self.rows[start][3] = len(self.rows)
            case (lay.Mapping(key=key, value=value), MapPart()):
                start = self.add(op.LIST, part.main, smallest_size(key) + smallest_size(value))
                self.emit_inside("{key}", key, part.key)
                self.emit_inside("{value}", value, part.value)
                self.add(op.NEXT, -1, start + 1)
                self.rows[start][3] = len(self.rows)
            case _:
                raise UnsupportedError(f"no columnar form for {layout}")

    def emit_inside(self, step: str, layout: lay.Layout, part: Part) -> None:
        self.path.append(step)
        self.emit(layout, part)
        self.path.pop()

    def _otherwise(self, row: int, argument: int, part: Part) -> None:
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
            self._otherwise(masked, 3, child_part)
            self.path.pop()
        self.add(op.UNMASK, -1)

    def _emit_pojo(self, layout: lay.PojoObject, part: StructPart) -> None:
        start = self.add(op.POJO, part.main, 0, len(layout.variants))
        cases = []
        for variant in layout.variants:
            name = variant.class_name.encode()
            tag = -1 if variant.tag is None else variant.tag
            cases.append(self.add(op.CASE, part.class_column, tag, self.constant(name), len(name)))
        jumps = [self._emit_fields(layout, part, 0)]
        for number, (case, variant) in enumerate(zip(cases, layout.variants, strict=True), 1):
            self.rows[case][5] = len(self.rows)
            # The data of a subclass serializer begin with a flag byte of their own: an exact object.
            self.add(op.CONST, -1, 1, self.constant(b"\x02"))
            jumps.append(self._emit_fields(variant_object(variant), part, number))
        self.rows[start][2] = len(self.rows)
        self.add_null(part)
        for jump in jumps:
            self.rows[jump][2] = len(self.rows)

    def _emit_fields(self, layout: lay.PojoObject, part: StructPart, number: int) -> int:
        if part.main >= 0:
            self.add(op.PRESENT, part.main)
        if part.class_column >= 0:
            self.add(op.CLASS, part.class_column, number)
        children = dict(part.fields)
        for name, child in layout.fields:
            self.emit_inside(f".{name}", lay.Optional(child), children.pop(name))
        for missing in children.values():
            self.add_null(missing)
        return self.add(op.JUMP, -1)


def variant_object(variant: lay.PojoVariant) -> lay.PojoObject:
    """The POJO layout of a subclass.

    Raises:
        UnsupportedError: the subclass has another kind of serializer, or subclasses of its own.
    """
    if isinstance(variant.layout, lay.PojoObject) and not variant.layout.variants:
        return variant.layout
    raise UnsupportedError(
        f"objects of class {variant.class_name} have no columnar form yet", hint="`dump` decodes them"
    )


def below(wanted: Wanted, name: str) -> Wanted:
    """The part of `wanted` that lies under field `name`."""
    if wanted is None or name in wanted:
        return None
    return frozenset(path[len(name) + 1 :] for path in wanted if path.startswith(name + "."))


def smallest_size(layout: lay.Layout) -> int:
    """The fewest bytes that a value of `layout` takes; bounds counts before anything is allocated."""
    match layout:
        case lay.Struct(fields=fields):
            return sum(smallest_size(child) for _, child in fields)
        case lay.Masked(fields=fields, kind=kind):
            return (len(fields) + (2 if kind else 0) + 7) // 8
        case lay.Sized() | lay.BigInteger() | lay.BigDecimal() | lay.Sequence() | lay.Mapping():
            return 4
        case lay.Delimited():
            return 0
        case lay.Span(inner=inner):
            return smallest_size(inner)
        case lay.MeasuredKey(inner=inner):
            return 1 + smallest_size(inner)
        case lay.Choice(left=left, right=right):
            return 1 + min(smallest_size(left), smallest_size(right))
        case lay.Optional() | lay.PojoObject() | lay.Text():
            return 1
        case _:
            return lay.fixed_width(layout) or 0
