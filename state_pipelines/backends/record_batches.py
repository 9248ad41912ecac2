"""Records in memory as `KeyedRecords`, and back."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.keyed.key_groups import decode_prefixes, encode_prefix
from state_pipelines.keyed.record_layout import KeyedRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BATCH = 1 << 16
"""Records after which a batch ends with the key group at hand."""

NAME = "live state"
"""File name of records that come from no file, in errors."""


def make_records(entries: Sequence[tuple[bytes, bytes]], prefix: int) -> KeyedRecords:
    """Records of (record key, value) pairs, in their order.

    Args:
        entries: record keys with the key-group prefix.
        prefix: bytes of the prefix, 1 or 2.
    """
    count = len(entries)
    data = np.frombuffer(b"".join(chain.from_iterable(entries)), np.uint8)
    lengths = np.fromiter((len(side) for entry in entries for side in entry), np.int64, 2 * count)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    key_starts = starts[::2]
    groups = decode_prefixes(data, key_starts, prefix)
    return KeyedRecords(groups, data, key_starts + prefix, ends[::2], starts[1::2], ends[1::2], 0, NAME)


def split_records(records: KeyedRecords, prefix: int) -> Iterator[tuple[bytes, bytes]]:
    """(Record key, value) of each record; the mirror of `make_records`."""
    view = records.data.data
    heads = {group: encode_prefix(group, prefix) for group in np.unique(records.key_groups).tolist()}
    spans = (records.key_groups, records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    for group, key, key_end, value, value_end in zip(*(span.tolist() for span in spans), strict=True):
        yield heads[group] + bytes(view[key:key_end]), bytes(view[value:value_end])


def batch_key_groups(groups: Iterable[Sequence[tuple[bytes, bytes]]], prefix: int) -> Iterator[KeyedRecords]:
    """Records of whole key groups, several small ones at a time.

    Args:
        groups: entries of each key group, ascending.
        prefix: bytes of the key-group prefix.
    """
    held: list[tuple[bytes, bytes]] = []
    for entries in groups:
        held += entries
        if len(held) >= BATCH:
            yield make_records(held, prefix)
            held = []
    if held:
        yield make_records(held, prefix)
