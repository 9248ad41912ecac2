"""The fewest bytes that a value takes; bounds counts before anything is allocated."""

from __future__ import annotations

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro.avro_layouts import BlockMapping, Blocks, FixedBytes, avro_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree


def smallest_size(layout: lay.Layout) -> int:
    """Return the fewest bytes that a value of `layout` takes."""
    match layout:
        case lay.Struct(fields=fields):
            return sum(smallest_size(child) for _, child in fields)
        case lay.Masked(fields=fields, kind=kind):
            return (len(fields) + (2 if kind else 0) + 7) // 8
        case lay.Sized() | lay.BigInteger() | lay.BigDecimal() | lay.Sequence() | lay.Mapping():
            return 4
        case lay.Framed(inner=inner) | lay.Marked(inner=inner):
            return 4 + (smallest_size(inner) if isinstance(layout, lay.Framed) else 0)
        case lay.NullMasked():
            return 4
        case lay.JavaText():
            return 2
        case lay.Delimited():
            return 0
        case lay.Span(inner=inner):
            return smallest_size(inner)
        case lay.MeasuredKey(inner=inner):
            return 1 + smallest_size(inner)
        case lay.Choice(left=left, right=right):
            return 1 + min(smallest_size(left), smallest_size(right))
        case lay.Tagged(cases=cases, width=width):
            return width + min((smallest_size(child) for _, _, child in cases), default=0)
        case lay.Optional() | lay.PojoObject() | lay.Text() | Blocks() | BlockMapping():
            return 1
        case FixedBytes(size=size):
            return size
        case lay.Opaque(inner=inner):
            return smallest_size(inner)
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
