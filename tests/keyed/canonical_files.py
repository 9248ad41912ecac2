"""Canonical files built from plain records, without the library's writer, which is held against them."""

from __future__ import annotations

import io
import struct
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import compress
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.keyed.canonical import (
    CanonicalFile,
    CanonicalWriter,
    RecordBuffer,
    gather_runs,
    join_runs,
    open_canonical,
)
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.sections import NO_SECTION
from state_pipelines.metadata.streams import StateStream
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange

Record = tuple[bytes, bytes]
"""Key behind the prefix, and value."""

Run = tuple[int, int, "Sequence[Record]"]
"""Key group, state id, and the records, at least one."""


def make_header(*, states: int = 1, compressed: bool = False) -> KeyedHeader:
    infos = tuple(keyed_state(f"state-{each}", "VALUE", basic("Long"), VOID_NAMESPACE) for each in range(states))
    return KeyedHeader(compressed=compressed, key_serializer=basic("String"), states=infos)


def make_section(runs: Iterable[Run], prefix: int) -> bytes:
    """The section of one key group, in the order of its runs, as `FullSnapshotAsyncWriter` writes it."""
    section = b""
    for key_group, state, records in runs:
        section += struct.pack(">H", state)
        for number, (key, value) in enumerate(records, 1):
            place = bytearray(key_group.to_bytes(prefix, "big"))
            if number == len(records):
                place[0] |= 0x80
            section += struct.pack(">i", prefix + len(key)) + place + key + struct.pack(">i", len(value)) + value
    return section + b"\xff\xff"


def make_file(
    header: KeyedHeader, key_groups: KeyGroupRange, prefix: int, runs: Iterable[Run]
) -> tuple[bytes, tuple[int, ...]]:
    """A file and the position of each key group; sections and states lie in the order of the runs."""
    writer = Writer()
    write_keyed_header(writer, header)
    data = writer.getvalue()
    offsets = dict.fromkeys(key_groups, NO_SECTION)
    for key_group, found in groupby(runs, lambda run: run[0]):
        section = make_section(found, prefix)
        assert offsets[key_group] == NO_SECTION
        offsets[key_group] = len(data)
        data += compress(section) if header.compressed else section
    return data, tuple(offsets.values())


def make_context(prefix: int) -> RecordContext:
    """The context of an operator whose key groups need so many bytes."""
    return RecordContext({1: 128, 2: 1024}[prefix], LayoutContext())


def make_canonical(
    header: KeyedHeader, key_groups: KeyGroupRange, prefix: int, runs: Iterable[Run], *, name: str = "savepoint/file"
) -> CanonicalFile:
    """The file of `make_file`, opened."""
    data, offsets = make_file(header, key_groups, prefix, runs)
    return open_canonical(StateStream(name, len(data), data=data), key_groups, offsets, make_context(prefix))


def rewrite(file: CanonicalFile) -> CanonicalFile:
    """The file, its records written again by the library's writer in the order in which the file has its states."""
    buffer = RecordBuffer(file.context.prefix, frozenset(), 1 << 30)
    order: dict[tuple[int, int], int] = {}
    for key_group, found in file.scan_key_groups(file.key_groups):
        for state, records in found:
            order.setdefault((key_group, state), len(order))
            buffer.add(state, records)
    runs = gather_runs([(0, buffer.sort(file.key_groups))])
    places = zip(runs.key_groups.tolist(), runs.states.tolist(), strict=True)
    output = io.BytesIO()
    writer = CanonicalWriter(output, file.header, file.key_groups, file.context.prefix)
    ranks = np.array([order[place] for place in places], np.int64)
    writer.write_sections(*join_runs(runs.select(np.argsort(ranks))))
    data = output.getvalue()
    return open_canonical(StateStream("rewritten", len(data), data=data), file.key_groups, writer.offsets, file.context)
