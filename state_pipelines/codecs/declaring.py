"""Declaring the columns of a layout: a part per node, and the kernel columns that it fills or takes from."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs import sql_program as sql
from state_pipelines.codecs.avro_layout import BlockMapping, Blocks, FixedBytes, Indexed, avro_layout
from state_pipelines.codecs.buffers import ColumnKind
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
    COMPACT_DECIMAL,
    COMPACT_TIMESTAMP,
    DecimalPart,
    TimestampPart,
    make_decimal_type,
)
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.serializers import tree

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_NESTING = 64

Wanted = frozenset[str] | None
"""Dotted paths of the fields to decode, such as `address.zip`; None is everything."""


@dataclass
class Declaring:
    """Declares parts; collects the kernel columns.

    Attributes:
        kinds: the kernel columns so far.
        depth: how deep in the layout.
    """

    kinds: list[ColumnKind] = field(default_factory=list)
    depth: int = 0

    def column(self, width: int, *, nullable: bool, nested: bool, wanted: bool, data: bool = False) -> int:
        """Number of a new kernel column; -1 when nobody wants it."""
        if not wanted:
            return -1
        self.kinds.append(ColumnKind(width, data=data, nullable=nullable, nested=nested))
        return len(self.kinds) - 1

    def declare(self, layout: lay.Layout, *, nullable: bool, nested: bool, wanted: Wanted) -> Part:
        """Part of a layout.

        Args:
            layout: the layout.
            nullable: something in front of the value says whether it is null.
            nested: the value lies in a list.
            wanted: the fields to decode.
        """
        with self.deeper():
            return self._declare(layout, nullable=nullable, nested=nested, wanted=wanted)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level deeper, as far as values may be nested."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise UnsupportedError(f"values are nested more than {MAX_NESTING} levels deep")
        try:
            yield
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
            case lay.JavaText():
                return TextPart(column(0, data=True))
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
            case lay.Delimited(element=element, delimiter=delimiter):
                if delimiter is None and not smallest_size(element):
                    raise UnsupportedError("elements without bytes have no end of their own that could be found")
                main = column(0)
                return ListPart(main, self.declare(element, nullable=False, nested=True, wanted=wanted))
            case lay.Mapping(key=key, value=value):
                return MapPart(column(0), inside(key), inside(value))
            case Blocks(element=element):
                return ListPart(column(0), inside(element))
            case BlockMapping(key=key, value=value):
                return MapPart(column(0), inside(key), inside(value))
            case FixedBytes():
                return SizedPart(column(0, data=True), text=False)
            case lay.NullMasked(element=element, mask=mask):
                return ListPart(column(0), inside(element, null=mask))
            case lay.Framed(inner=inner):
                return self.declare(inner, nullable=nullable, nested=nested, wanted=wanted)
            case Indexed(inner=inner):
                return self.declare(inner, nullable=True, nested=nested, wanted=wanted)
            case lay.Tagged(cases=cases):
                main = column(-1)
                number = self.column(4, nullable=False, nested=nested, wanted=asked)
                each: Wanted = None if asked else frozenset()
                parts = [
                    (name, self.declare(case, nullable=True, nested=nested, wanted=each)) for _, name, case in cases
                ]
                return CasePart(main, number, tuple(parts))
            case lay.Dynamic(serializer=serializer):
                return self._declare_dynamic(serializer, nullable=nullable, nested=nested, wanted=wanted)
        raise UnsupportedError(f"{type(layout).__name__} data have no columnar form")

    def _declare_dynamic(self, serializer: tree.Serializer, *, nullable: bool, nested: bool, wanted: Wanted) -> Part:
        asked = wanted is None or bool(wanted)

        def column(width: int, *, data: bool = False) -> int:
            return self.column(width, nullable=nullable, nested=nested, wanted=asked, data=data)

        match serializer:
            case tree.RowData():
                of = sql_type(serializer)
                return sql.declare_row(self, of, nullable=nullable, nested=nested, wanted=wanted, kind=True)
            case tree.ArrayData() | tree.MapData():
                return sql.declare(self, sql_type(serializer), nullable=nullable, nested=nested, wanted=wanted)
            case tree.BinaryRow():
                return SizedPart(column(0, data=True), text=False)
            case tree.Decimal(precision=precision, scale=scale):
                digits, scale = make_decimal_type(precision, scale)
                return DecimalPart(column(8 if digits <= COMPACT_DECIMAL else 16), digits, scale)
            case tree.TimestampData(precision=precision):
                millis = column(8)
                return TimestampPart(millis, column(4) if precision > COMPACT_TIMESTAMP else -1, precision, None)
            case tree.ScalaEnum(constants=constants):
                names, numbers = zip(*constants, strict=True) if constants else ((), ())
                return ConstantsPart(column(4), names, numbers)
            case tree.Avro(schema_json=schema):
                return self.declare(avro_layout(schema), nullable=nullable, nested=nested, wanted=wanted)
        raise UnsupportedError(f"{type(serializer).__name__} data cannot be read by the kernels")

    def _children(
        self, fields: tuple[tuple[str, lay.Layout], ...], *, nested: bool, wanted: Wanted, extra: str | None = None
    ) -> tuple[tuple[str, Part], ...]:
        self.check_wanted(wanted, {name for name, _ in fields} | ({extra} if extra else set()))
        return tuple(
            (name, self.declare(child, nullable=False, nested=nested, wanted=below(wanted, name)))
            for name, child in fields
        )

    @staticmethod
    def check_wanted(wanted: Wanted, names: set[str]) -> None:
        """Raise unless every wanted path begins with one of the names."""
        for path in wanted or ():
            if path.split(".")[0] not in names:
                raise UsageError(f"there is no field {path}", hint=f"the fields are {', '.join(sorted(names))}")

    @staticmethod
    def below(wanted: Wanted, name: str) -> Wanted:
        """See `below`."""
        return below(wanted, name)

    def _declare_pojo(self, layout: lay.PojoObject, main: int, *, nested: bool, wanted: Wanted) -> Part:
        fields = pojo_fields(layout)
        class_column = -1
        classes: tuple[str, ...] = ()
        if layout.variants:
            classes = (layout.class_name, *(variant.class_name for variant in layout.variants))
            class_column = self.column(4, nullable=False, nested=nested, wanted=wanted is None or "class" in wanted)
        extra = "class" if classes else None
        children = self._children(fields, nested=nested, wanted=wanted, extra=extra)
        return StructPart(main, children, classes=classes, class_column=class_column)


def variant_fields(layout: lay.PojoObject) -> list[tuple[tuple[str, lay.Layout], ...]]:
    """Columns of the objects of a POJO class and of each subclass: names that are the struct's, and layouts.

    A field that a subclass has with another type than the classes before it goes by `<field>_<class>`. A subclass that
    is no POJO has one column, which goes by the name of the class.
    """
    known: dict[str, lay.Layout] = {name: lay.Optional(child) for name, child in layout.fields}
    found: list[tuple[tuple[str, lay.Layout], ...]] = [tuple(known.items())]
    for variant in layout.variants:
        short = variant.class_name.replace("$", ".").rpartition(".")[2]
        content: list[tuple[str, lay.Layout]] = [(short, variant.layout)]
        if isinstance(variant.layout, lay.PojoObject):
            # Its own subclasses never follow: an object is written by the serializer of exactly its class.
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
    """All columns of a POJO class with subclasses."""
    return tuple({name: child for fields in variant_fields(layout) for name, child in fields}.items())


def sql_type(serializer: tree.RowData | tree.ArrayData | tree.MapData) -> tree.LogicalType:
    """The SQL type of the values."""
    match serializer:
        case tree.RowData(types=types, columns=names):
            return tree.LogicalType(root="ROW", children=types, names=names)
        case tree.ArrayData(element_type=element):
            return tree.LogicalType(root="ARRAY", children=(element,))
        case tree.MapData(key_type=key, value_type=value):
            return tree.LogicalType(root="MAP", children=(key, value))


def below(wanted: Wanted, name: str) -> Wanted:
    """The part of `wanted` that lies under field `name`."""
    if wanted is None or name in wanted:
        return None
    return frozenset(path[len(name) + 1 :] for path in wanted if path.startswith(name + "."))
