"""Values that are kept as bytes (`layout.Opaque`), and their conversion from and to decoded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns, walk_layout
from state_pipelines.codecs.programs.column_declarations import pojo_fields

if TYPE_CHECKING:
    import pyarrow as pa


def has_opaque(layout: lay.Layout) -> bool:
    """Return whether a layout keeps a value, or anything nested in it, as bytes (`layout.Opaque`)."""
    return any(isinstance(each, lay.Opaque) for each in walk_layout(layout))


def find_fields(layout: lay.Layout) -> dict[str, lay.Layout]:
    """Return the layouts of the fields of a value, by column; none when it has no fields."""
    match layout:
        case lay.Optional(inner=inner) | lay.Marked(inner=inner):
            return find_fields(inner)
        case lay.PojoObject():
            return dict(pojo_fields(layout))
        case lay.Struct(fields=fields):
            return dict(fields)
        case lay.Masked(fields=fields):
            return {name: lay.Optional(child) for name, child in fields}
        case _:
            return {}


def reinterpret(array: pa.Array, source: lay.Layout, target: lay.Layout) -> pa.Array:
    """Convert values between two layouts of the same bytes.

    Args:
        array: the values, in the type of `source`; null stays null.
        source: their layout.
        target: the same layout, except for which nested values are kept as bytes.

    Raises:
        UnsupportedError: a value cannot be decoded or written.
    """
    encoded = plan_columns(lay.Optional(source)).encode(array)
    columns = plan_columns(lay.Optional(target))
    return columns.decode(encoded.data, encoded.starts, encoded.stops).array
