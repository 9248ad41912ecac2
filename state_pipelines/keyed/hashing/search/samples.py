"""Distinct keys of an operator, and the key groups that they lie in."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.record_bounds import Measure, take_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.serializers import tree

MOST_KEYS = 20_000
"""So many distinct keys are tried."""


def gather_keys(
    key_serializer: tree.Serializer, layouts: LayoutContext, samples: Iterable[KeyedRecords], *, skip: int = 0
) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Distinct keys of records, as bytes, and their key groups.

    Args:
        key_serializer: of the keys.
        layouts: what their layouts depend on.
        samples: records, taken until there are `MOST_KEYS` distinct keys.
        skip: bytes in front of each key.

    Raises:
        FormatError: one key lies in two key groups.
    """
    layout = derive_layout(key_serializer, layouts)
    measure = Measure(lay.Struct((("key", lay.Span(layout)), ("rest", lay.Span(lay.Rest())))))
    found: dict[bytes, int] = {}
    for records in samples:
        for start in range(0, len(records), MOST_KEYS):
            sample = records.cut(start, start + MOST_KEYS)
            spans = measure.spans(
                sample.data, sample.key_starts + skip, sample.key_ends, offset=sample.offset, name=sample.file
            ).field("key")
            starts, stops = (spans.field(name).to_numpy() for name in ("start", "stop"))
            encoded = take_bytes(sample.data, starts, stops).dictionary_encode()
            indexes = encoded.indices.to_numpy()
            _, firsts = np.unique(indexes, return_index=True)
            groups = sample.key_groups[firsts]
            moved = [*encoded.dictionary.take(pa.array(indexes[groups[indexes] != sample.key_groups])).to_pylist()][:1]
            for key, key_group in zip(encoded.dictionary.to_pylist(), groups.tolist(), strict=True):
                if found.setdefault(key, key_group) != key_group:
                    moved.append(key)
            if moved:
                raise FormatError(f"the key {moved[0].hex()} lies in two key groups", where=Where(file=sample.file))
            if len(found) >= MOST_KEYS:
                break
        if len(found) >= MOST_KEYS:
            break
    picked = list(islice(found.items(), MOST_KEYS))
    return pa.array([key for key, _ in picked], pa.binary()), np.array([group for _, group in picked], np.int32)


def bytes_of_keys(keys: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(u8, i64[n] starts, i64[n] ends) of keys in a binary array."""
    encoded = plan_columns(lay.Rest()).encode(keys)
    return encoded.data, encoded.starts, encoded.stops
