"""Null SQL timestamps, with which Flink cannot restore native state of the heap backend.

`SqlTimestampSerializer` writes 12 bytes for null and reads 8. Formats that say where a record ends get over that; heap
native state does not, and Flink loses its position.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs.execution import decode_spans
from state_pipelines.codecs.programs.program import compile_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.record_bounds import SPAN
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

_NULL = bytes([0x80]) + bytes(11)


def may_hold_timestamps(info: StateMetaInfo, key: Serializer) -> bool:
    """Whether keys, namespaces or values of a state may be written by `SqlTimestampSerializer`."""
    return any(map(_is_mentioned, (key, *(serializer for _, serializer in info.serializers))))


def _is_mentioned(serializer: Serializer) -> bool:
    if isinstance(serializer, tree.Basic):
        return serializer.kind == BasicKind.SQL_TIMESTAMP
    return any(map(_is_mentioned, serializer.nested))


def holds_null_timestamp(records: KeyedRecords, layout: KeyedLayout) -> bool:
    """Whether a SQL timestamp in some records of a state is null.

    Where the layouts have no kernels (Kryo beside it), bytes that look like one are taken for one.

    Args:
        records: at least one.
        layout: of the records.

    Raises:
        FormatError: the bytes do not fit the serializers.
    """
    keys = (layout.key, records.key_starts, records.key_ends)
    values = (layout.value, records.value_starts, records.value_ends)
    return any(_holds_null(records.data, *side) for side in (keys, values))


def _holds_null(
    data: npt.NDArray[np.uint8], layout: lay.Layout, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> bool:
    # Hardly any data hold these bytes, and to look for them is cheap.
    if _NULL not in data[int(starts.min()) : int(ends.max())].tobytes():
        return False
    try:
        program = compile_layout(_mark(layout))
    except UnsupportedError:
        return True
    positions = _find_spans(decode_spans(program, data, starts, ends))
    return any(data[position : position + len(_NULL)].tobytes() == _NULL for position in positions.tolist())


def _mark(layout: lay.Layout) -> lay.Layout:
    """The layout with a span in place of each SQL timestamp."""
    if isinstance(layout, lay.Logical):
        return lay.Span(layout) if layout.name is lay.LogicalKind.SQL_TIMESTAMP else layout
    changed = {each.name: _mark_within(getattr(layout, each.name)) for each in fields(layout)}
    return replace(layout, **changed)


def _mark_within(value: object) -> object:
    if isinstance(value, lay.Layout):
        return _mark(value)
    return tuple(map(_mark_within, value)) if isinstance(value, tuple) else value


def _find_spans(array: pa.Array) -> npt.NDArray[np.int64]:
    """Starts of all spans in an array."""
    if array.type == SPAN:
        return np.asarray(array.drop_null().field(0))
    nested: list[pa.Array] = []
    if pa.types.is_struct(array.type):
        nested = array.flatten()
    elif pa.types.is_map(array.type):
        nested = [array.keys, array.items]
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        nested = [array.flatten()]
    return np.concatenate([np.zeros(0, np.int64), *map(_find_spans, nested)])
