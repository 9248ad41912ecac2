"""Digests of keyed state by its stored bytes, for state whose records cannot be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.keyed.canonical.sections import WINDOW, group_sections, read_sections
from state_pipelines.keyed.digests.record_digests import RecordDigest, digest_records
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.canonical.sections import Section
    from state_pipelines.keyed.changelog.change_streams import ChangeLog
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

CHANGES = 16 << 20
"""Bytes of logged changes that are digested at once."""


def digest_sections(stream: StateStream, sections: Sequence[Section]) -> RecordDigest:
    """Digest the bytes of key groups, each with its number."""
    total = RecordDigest()
    none = np.zeros(1, np.int64)
    windows = read_ahead(
        group_sections(sections, WINDOW),
        lambda group: read_sections(stream, group[0].start, group[-1].end),
        stream.location,
        lambda group: group[-1].end - group[0].start,
    )
    for group, raw in windows:
        data = np.frombuffer(raw, np.uint8)
        for section in group:
            address = data.ctypes.data + section.start - group[0].start
            groups, end = np.full(1, section.key_group, np.int32), np.full(1, section.size, np.int64)
            records, size, digest, _ = digest_records(groups, address, none, none, none, end).tolist()
            total += RecordDigest(records, size, content=digest)
    return total


def digest_changes(log: ChangeLog, key_groups: KeyGroupRange) -> RecordDigest:
    """Digest logged changes, each with its key group and its position among the changes of that key group."""
    total = RecordDigest()
    for window in log.windows(key_groups, CHANGES):
        changes = log.read(window)
        order = np.argsort(changes.key_groups, kind="stable")
        groups = changes.key_groups[order]
        positions = (np.arange(len(groups)) - np.searchsorted(groups, groups, side="left")).astype(">i4")
        data = np.concatenate([positions.view(np.uint8), changes.data])
        keys = 4 * np.arange(len(groups), dtype=np.int64)
        starts, ends = (each[order] + 4 * len(groups) for each in (changes.starts, changes.ends))
        found = digest_records(groups, data.ctypes.data, keys, keys + 4, starts, ends).tolist()
        total += RecordDigest(found[0], found[1], content=found[2])
    return total
