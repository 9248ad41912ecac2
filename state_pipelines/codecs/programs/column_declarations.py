"""Declaration of kernel columns: an array builder per layout node, and the columns that the node reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro.avro_layouts import BlockMapping, Blocks, FixedBytes, avro_layout
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
from state_pipelines.codecs.programs.kernel_columns import KernelColumns, Wanted, below, check_wanted
from state_pipelines.codecs.programs.nested_array_builders import (
    CaseBuilder,
    ChoiceBuilder,
    ListBuilder,
    MapBuilder,
    StructBuilder,
)
from state_pipelines.codecs.programs.sql_array_builders import (
    COMPACT_DECIMAL,
    COMPACT_TIMESTAMP,
    DecimalBuilder,
    TimestampBuilder,
    make_decimal_type,
)
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree


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
                return PrimitiveBuilder(column(kind.width), kind)
            case lay.Logical(name=name):
                widths = [component.width for component in lay.LOGICAL_COMPONENTS[name]]
                # Kernels leave zeros under a null struct, which are not a valid date: the column has its own nulls.
                dated = nullable or name in (lay.LogicalKind.LOCAL_DATE, lay.LogicalKind.LOCAL_DATE_TIME)
                columns = tuple(column(width, null=dated) for width in widths)
                return LogicalBuilder(columns[0], name, columns)
            case lay.Text():
                return TextBuilder(column(0, null=nullable or layout.nullable, data=True))
            case lay.JavaText():
                return TextBuilder(column(0, data=True))
            case lay.Sized(text=text):
                return SizedBuilder(column(0, data=True), text)
            case lay.Rest():
                return SizedBuilder(column(0, data=True), text=False)
            case lay.BigInteger():
                return NumberBuilder(column(0, null=True, data=True))
            case lay.BigDecimal():
                return NumberBuilder(column(0, null=True, data=True), column(4, null=False))
            case lay.Constants(names=names):
                return ConstantsBuilder(column(4), names)
            case lay.Constant(empty=empty):
                return ConstantBuilder(column(-1), empty)
            case lay.Optional(inner=inner):
                return self.declare(inner, nullable=True, nested=nested, wanted=wanted)
            case lay.Span(inner=inner):
                return SpanBuilder(column(8), column(8))
            case lay.MeasuredKey(inner=inner):
                return self.declare(inner, nullable=nullable, nested=nested, wanted=wanted)
            case lay.Struct(fields=fields):
                main = column(-1)
                return StructBuilder(main, self._children(fields, nested=nested, wanted=wanted))
            case lay.Masked(fields=fields, kind=kind):
                main = column(-1)
                kind_wanted = kind and (wanted is None or "row_kind" in wanted)
                kinds = self.column(1, nullable=False, nested=nested, wanted=kind_wanted) if kind else -1
                optional = tuple((name, lay.Optional(child)) for name, child in fields)
                children = self._children(optional, nested=nested, wanted=wanted, extra="row_kind" if kind else None)
                return StructBuilder(main, children, kind_column=kinds)
            case lay.PojoObject():
                return self._declare_pojo(layout, column(-1, null=True), nested=nested, wanted=wanted)
            case lay.Choice(left=left, right=right):
                flag = self.column(1, nullable=False, nested=nested, wanted=asked)
                both: Wanted = None if asked else frozenset()
                sides = [self.declare(side, nullable=True, nested=nested, wanted=both) for side in (left, right)]
                return ChoiceBuilder(column(-1), flag, sides[0], sides[1])
            case lay.Sequence(element=element):
                return ListBuilder(column(0), inside(element))
            case lay.Delimited(element=element, delimiter=delimiter):
                if delimiter is None and not smallest_size(element):
                    raise UnsupportedError("list elements without bytes and without a delimiter cannot be counted")
                main = column(0)
                return ListBuilder(main, self.declare(element, nullable=False, nested=True, wanted=wanted))
            case lay.Mapping(key=key, value=value):
                return MapBuilder(column(0), inside(key), inside(value))
            case Blocks(element=element):
                return ListBuilder(column(0), inside(element))
            case BlockMapping(key=key, value=value):
                return MapBuilder(column(0), inside(key), inside(value))
            case FixedBytes():
                return SizedBuilder(column(0, data=True), text=False)
            case lay.NullMasked(element=element, mask=mask):
                return ListBuilder(column(0), inside(element, null=mask))
            case lay.Framed(inner=inner):
                return self.declare(inner, nullable=nullable, nested=nested, wanted=wanted)
            case lay.Marked(inner=inner):
                return self.declare(inner, nullable=True, nested=nested, wanted=wanted)
            case lay.Tagged(cases=cases):
                main = column(-1)
                number = self.column(4, nullable=False, nested=nested, wanted=asked)
                each: Wanted = None if asked else frozenset()
                builders = [
                    (name, self.declare(case, nullable=True, nested=nested, wanted=each)) for _, name, case in cases
                ]
                return CaseBuilder(main, number, tuple(builders))
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
                return sql.declare_row(self, of, nullable=nullable, nested=nested, wanted=wanted, kind=True)
            case tree.ArrayData() | tree.MapData():
                return sql.declare(self, sql_type(serializer), nullable=nullable, nested=nested, wanted=wanted)
            case tree.BinaryRow():
                return SizedBuilder(column(0, data=True), text=False)
            case tree.Decimal(precision=precision, scale=scale):
                digits, scale = make_decimal_type(precision, scale)
                return DecimalBuilder(column(8 if digits <= COMPACT_DECIMAL else 16), digits, scale)
            case tree.TimestampData(precision=precision):
                millis = column(8)
                return TimestampBuilder(millis, column(4) if precision > COMPACT_TIMESTAMP else -1, precision, None)
            case tree.ScalaEnum(constants=constants):
                names, numbers = zip(*constants, strict=True) if constants else ((), ())
                return ConstantsBuilder(column(4), names, numbers)
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
        return StructBuilder(main, children, classes=classes, class_column=class_column)


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
            # No variants of its own: an object is written by the serializer of exactly its class.
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
