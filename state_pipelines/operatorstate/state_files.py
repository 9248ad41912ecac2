"""Files of the default operator state backend, and raw operator state.

After the header follow the elements of the list states, then the broadcast states. Only the offsets of the state
handle locate the elements. Compressed files hold one snappy framed stream after the
header, in which every element and every broadcast state begins with a new chunk.
Source: `DefaultOperatorStateBackendSnapshotStrategy`, `PartitionableListState`, `HeapBroadcastState`,
`OperatorStateRestoreOperation`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.snappy_frames import STREAM_ID, compress_chunks, iter_chunks
from state_pipelines.binary.writer import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Decoded, plan_columns
from state_pipelines.codecs.programs.execution import Encoded
from state_pipelines.codecs.programs.program import smallest_size
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, derive_layout
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    NotFoundError,
    StateError,
    UsageError,
    Where,
    at,
)
from state_pipelines.metadata.operator_handles import OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.operatorstate.element_offsets import (
    Offsets,
    Spans,
    bound_elements,
    check_inside,
    join_offsets,
    order_offsets,
    select_own,
)
from state_pipelines.operatorstate.header import OperatorHeader, read_operator_header, write_operator_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from state_pipelines.metadata.operator_handles import OperatorStateHandle
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

Bytes = npt.NDArray[np.uint8]

RAW_STATE = "_default_"
"""The one state name of raw operator state (`OperatorStateBackend.DEFAULT_OPERATOR_STATE_NAME`)."""

COUNT_SIZE = 4
"""Size of the number of entries before a broadcast state."""


@dataclass(frozen=True)
class OperatorStateFile:
    """The operator state of one subtask, as far as a handle names it; plain and compressed files look the same.

    Attributes:
        name: file or handle name, for errors.
        header: as read.
        data: u8; the file itself, or the decompressed stream.
        spans: per state that the handle names, i64[n] starts and ends in `data`, in the order of the handle.
        chunks: of a compressed file, i64[m] where chunks begin in `data` and in the file; None of a plain file.
    """

    name: str
    header: OperatorHeader
    data: Bytes = field(repr=False)
    spans: Mapping[str, Spans] = field(repr=False)
    chunks: Spans | None = field(default=None, repr=False)

    def elements(self, state: str) -> tuple[Bytes, Offsets, Offsets]:
        """Return elements of a list state: (data, i64[n] starts, i64[n] ends); none when the handle does not name it.

        Raises:
            NotFoundError: the file has no list state of this name.
        """
        self._require(state, "list")
        starts, ends = self.spans.get(state, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        return self.data, starts, ends

    def broadcast(self, state: str) -> tuple[Bytes, int, int, int]:
        """Return the entries of a broadcast state, alternating keys and values: (data, start, end, number).

        Raises:
            NotFoundError: the file has no broadcast state of this name.
            FormatError: the number of entries does not fit in the bytes.
        """
        self._require(state, "broadcast")
        if state not in self.spans:
            return self.data, 0, 0, 0
        start, end = (int(bound[0]) for bound in self.spans[state])
        first = start + COUNT_SIZE
        count = int.from_bytes(self.data[start:first].tobytes(), "big", signed=True)
        # An entry may have no bytes at all, but then there is one at most, since keys differ.
        if first > end or not 0 <= count <= max(1, end - first):
            where = Where(file=self.name, offset=self.locate(start), state=state)
            raise FormatError(f"{count} entries do not fit in {end - start} bytes", where=where)
        return self.data, first, end, count

    def locate(self, position: int) -> int:
        """Return the file offset of an offset in `data`; in a compressed file, that of its chunk."""
        if self.chunks is None or not len(self.chunks[0]):
            return position
        plain, framed = self.chunks
        return int(framed[max(0, int(np.searchsorted(plain, position, "right")) - 1)])

    def refill(self, data: bytes, start: int) -> OperatorStateFile:
        """Return the file after its bytes were read again.

        Args:
            data: all bytes of the stream.
            start: where the header ends.

        Raises:
            FormatError: a chunk is damaged.
        """
        if self.chunks is None:
            return replace(self, data=np.frombuffer(data, np.uint8))
        plain, _ = _decompress(data, start, self.name)
        return replace(self, data=np.frombuffer(plain, np.uint8))

    def _require(self, state: str, kind: str) -> None:
        if state not in self.header.by_name or self.header.has_list(state) != (kind == "list"):
            states = self.header.lists if kind == "list" else self.header.broadcasts
            names = ", ".join(info.name for info in states) or "none"
            raise NotFoundError(
                f"there is no {kind} state {state!r} (there are: {names})", where=Where(file=self.name, state=state)
            )


def read_operator_file(
    data: bytes,
    handle: OperatorStateHandle,
    name: str,
    known: tuple[OperatorHeader, int] | None = None,
    shared: Sequence[OperatorStateMetaInfo] = (),
) -> OperatorStateFile:
    """Find the elements that a handle names.

    Args:
        data: all bytes of the stream.
        handle: its states and offsets are used.
        name: file or handle name, for errors.
        known: the header and its end, where they were read before.
        shared: the states of all handles over the stream, where it has several; after a rescaling the copies of a
            broadcast state may be in one file.

    Raises:
        FormatError: the header is invalid, an offset is outside the payload or not at a chunk, the handle names a state
            that the file does not have, or two handles the elements of one, or bytes belong to no element.
        UnsupportedError, UnknownSerializerError: see `read_operator_header`.
    """
    if not data and not handle.states:
        # The handle of file merging for a subtask without state.
        return OperatorStateFile(name, OperatorHeader(), np.zeros(0, np.uint8), {})
    if known is None:
        reader = Reader(data, name)
        known = read_operator_header(reader), reader.position
    header, end = known
    ordered = order_offsets(handle.states, shared, header, (end, len(data)), name)
    if not header.compressed:
        spans = select_own(bound_elements(ordered, len(data)), handle.states)
        return OperatorStateFile(name, header, np.frombuffer(data, np.uint8), spans)
    plain, chunks = _decompress(data, end, name)
    whole = (np.append(chunks[0], len(plain)), np.append(chunks[1], len(data)))
    moved = {state: _find_chunks(framed, whole, name, state) for state, framed in ordered.items()}
    spans = select_own(bound_elements(moved, len(plain)), handle.states)
    return OperatorStateFile(name, header, np.frombuffer(plain, np.uint8), spans, chunks)


def write_operator_file(
    header: OperatorHeader, lists: Mapping[str, Encoded], broadcasts: Mapping[str, tuple[int, bytes]]
) -> tuple[bytes, tuple[OperatorStateMetaInfo, ...]]:
    """Write a file; the mirror of `read_operator_file`.

    Args:
        header: the states in their order, and whether the payload is compressed.
        lists: elements of each list state.
        broadcasts: number of entries and their bytes, alternating keys and values, of each broadcast state.

    Returns:
        (the bytes of the file, the states for its handle).

    Raises:
        UsageError: states of the header are missing, or there are others.
    """
    _check_names("list", header.lists, lists)
    _check_names("broadcast", header.broadcasts, broadcasts)
    writer = Writer()
    write_operator_header(writer, header)
    if header.compressed:
        writer.take(STREAM_ID)
    states = []
    for info in header.lists:
        elements = lists[info.name]
        states.append(_meta_info(info, _write_elements(writer, elements, compressed=header.compressed)))
    for info in header.broadcasts:
        count, entries = broadcasts[info.name]
        states.append(_meta_info(info, (len(writer),)))
        payload = Writer()
        payload.i32(count)
        payload.take(entries)
        writer.take(compress_chunks(payload.getvalue()) if header.compressed else payload.getvalue())
    return writer.getvalue(), tuple(states)


def read_list_state(file: OperatorStateFile, info: StateMetaInfo, context: LayoutContext) -> pa.Array:
    """Read the elements of a list state as one Arrow array.

    Args:
        file: the file.
        info: one of the list states of its header.
        context: context of the layout.

    Raises:
        UnsupportedError: an element cannot be decoded; `OperatorStateFile.elements` gives their bytes.
        FormatError: the bytes do not fit the serializer, or elements do not use up their spans, so that the handle
            leaves out others; names file, offset, state and field.
    """
    return decode_list_state(file, info, context).array


def decode_list_state(
    file: OperatorStateFile,
    info: StateMetaInfo,
    context: LayoutContext,
    *,
    lenient: bool = False,
) -> Decoded:
    """Decode the elements of a list state; with `lenient`, report those that cannot be decoded.

    Raises:
        UnsupportedError: the elements have no Arrow type.
        FormatError: as `read_list_state`.
    """
    with _at_state(file, info.name):
        columns = plan_columns(derive_layout(info.element, context))
        return columns.decode(*file.elements(info.name), lenient=lenient)


def read_broadcast_state(
    file: OperatorStateFile, info: StateMetaInfo, context: LayoutContext
) -> tuple[pa.Array, pa.Array]:
    """Read the entries of a broadcast state as two Arrow arrays, keys and values, in the order of the file.

    Args:
        file: the file.
        info: one of the broadcast states of its header.
        context: context of the layouts.

    Raises:
        UnsupportedError: keys or values have no Arrow type; `OperatorStateFile.broadcast` gives their bytes.
        FormatError: the bytes do not fit the serializers; names file, offset, state and field.
    """
    entries, _ = _decode_entries(file, info, context)
    return entries.field("key"), entries.field("value")


def find_entries(
    file: OperatorStateFile, info: StateMetaInfo, context: LayoutContext
) -> tuple[Bytes, Offsets, Offsets]:
    """Return the entries of a broadcast state as bytes: (data, i64[n] starts, i64[n] ends), key and value together.

    Raises:
        UnsupportedError, FormatError: as `read_broadcast_state`; only the serializers determine the end of an entry.
    """
    _, ends = _decode_entries(file, info, context)
    data, start, _, _ = file.broadcast(info.name)
    return data, np.append(np.int64(start), ends)[:-1], ends


def lay_out_entry(info: StateMetaInfo, key: LayoutContext, value: LayoutContext) -> lay.Layout:
    """Return the layout of an entry of a broadcast state: the key, then the value.

    Args:
        info: of the state.
        key: context of the layout of the key.
        value: context of the layout of the value.

    Raises:
        UnsupportedError: a serializer has no layout.
    """
    key = replace(key, opaque_values=OpaqueValues.NONE)
    fields = (("key", derive_layout(info.key_serializer, key)), ("value", derive_layout(info.value_serializer, value)))
    return lay.Struct(fields)


def _decode_entries(file: OperatorStateFile, info: StateMetaInfo, context: LayoutContext) -> tuple[pa.Array, Offsets]:
    """Return the entries as structs, and where each of them ends."""
    data, start, end, count = file.broadcast(info.name)
    with _at_state(file, info.name):
        entry = lay_out_entry(info, context, context)
        columns = plan_columns(entry)
        if count * smallest_size(entry) > end - start:
            raise FormatError(f"{count} entries do not fit in {end - start} bytes", where=Where(offset=start))
        entries, stops = columns.decode_sequence(data, start, end, count)
        stop = int(stops[-1]) if count else start
        if stop != end:
            raise FormatError(f"{end - stop} bytes are left over after {count} entries", where=Where(offset=stop))
        return entries, stops


def read_raw_partitions(data: bytes, handle: OperatorStateHandle, name: str) -> tuple[Bytes, Offsets, Offsets]:
    """Partitions of raw operator state: (data, i64[n] starts, i64[n] ends); their content is private to the operator.

    Args:
        data: all bytes of the stream.
        handle: has one state, `RAW_STATE`, whose offsets are the starts.
        name: file or handle name, for errors.

    Raises:
        FormatError: an offset is outside the stream, or bytes belong to no partition.
    """
    for state in handle.states:
        check_inside(state, 0, len(data), name)
    offsets = {state: np.array(each, np.int64) for state, each in join_offsets(handle.states, name).items()}
    first = min((int(each.min()) for each in offsets.values() if len(each)), default=len(data))
    if first:
        what = f"bytes 0 to {first} belong to no partition that the handle names"
        raise FormatError(what, where=Where(file=name, offset=0), hint=EDITED_METADATA)
    spans = bound_elements(offsets, len(data))
    empty = np.zeros(0, np.int64)
    starts = np.concatenate([empty, *(span[0] for span in spans.values())])
    return np.frombuffer(data, np.uint8), starts, np.concatenate([empty, *(span[1] for span in spans.values())])


def write_raw_partitions(partitions: list[bytes]) -> tuple[bytes, tuple[OperatorStateMetaInfo, ...]]:
    """Return the mirror of `read_raw_partitions`: (the bytes of the stream, the states for its handle)."""
    *offsets, _ = accumulate((len(partition) for partition in partitions), initial=0)
    state = OperatorStateMetaInfo(RAW_STATE, OperatorStateMode.SPLIT_DISTRIBUTE, tuple(offsets))
    return b"".join(partitions), (state,)


def gather_elements(data: Bytes, starts: Offsets, ends: Offsets) -> Encoded:
    """Return the elements from anywhere in `data`, one after the other, for `write_operator_file`."""
    sizes = ends - starts
    stops = np.cumsum(sizes, dtype=np.int64)
    if len(starts) and np.array_equal(starts[1:], ends[:-1]):
        return Encoded(data[starts[0] : ends[-1]], stops)
    positions = np.arange(stops[-1] if len(stops) else 0, dtype=np.int64) + np.repeat(starts - (stops - sizes), sizes)
    return Encoded(data[positions], stops)


@contextmanager
def _at_state(file: OperatorStateFile, state: str) -> Iterator[None]:
    """Name file and state in errors, and turn their position in the data into one in the file."""
    try:
        with at(state=state):
            yield
    except StateError as error:
        offset = None if error.where.offset is None else file.locate(error.where.offset)
        error.where = replace(error.where, file=file.name, offset=offset)
        raise


def _decompress(data: bytes, start: int, name: str) -> tuple[bytes, Spans]:
    """Return the stream after the header, and where its chunks begin in it and in the file."""
    if data[start : start + len(STREAM_ID)] != STREAM_ID:
        raise FormatError("no snappy framed stream follows the header", where=Where(file=name, offset=start))
    chunks, plain, framed = [], [], []
    size = 0
    for chunk in iter_chunks(data, start, name=name):
        plain.append(size)
        framed.append(chunk.start)
        chunks.append(chunk.data)
        size += len(chunk.data)
    return b"".join(chunks), (np.array(plain, np.int64), np.array(framed, np.int64))


def _find_chunks(offsets: Offsets, chunks: Spans, name: str, state: str) -> Offsets:
    """Return the positions in the decompressed stream of elements that begin at `offsets` of the file."""
    plain, framed = chunks
    found = np.searchsorted(framed, offsets)
    wrong = np.flatnonzero(framed[found] != offsets)
    if len(wrong):
        offset = int(offsets[wrong[0]])
        where = Where(file=name, offset=offset, state=state)
        raise FormatError("an element of a compressed file does not begin with a chunk", where=where)
    positions: Offsets = plain[found]
    return positions


def _write_elements(writer: Writer, elements: Encoded, *, compressed: bool) -> tuple[int, ...]:
    starts, stops = elements.starts, elements.stops
    if not compressed:
        position = len(writer)
        writer.take(elements.data[: int(stops[-1]) if len(stops) else 0].tobytes())
        return tuple((starts + position).tolist())
    offsets = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        offsets.append(len(writer))
        writer.take(compress_chunks(elements.data[start:stop].tobytes()))
    return tuple(offsets)


def _meta_info(info: StateMetaInfo, offsets: tuple[int, ...]) -> OperatorStateMetaInfo:
    mode = info.distribution_mode or "none"
    if mode not in OperatorStateMode.__members__:
        modes = ", ".join(OperatorStateMode.__members__)
        raise UsageError(f"a distribution mode of {mode} is not one of {modes}", where=Where(state=info.name))
    return OperatorStateMetaInfo(info.name, OperatorStateMode[mode], offsets)


def _check_names(kind: str, infos: tuple[StateMetaInfo, ...], given: Mapping[str, object]) -> None:
    names = [info.name for info in infos]
    if set(names) != set(given):
        what = f"the {kind} states of the header are {', '.join(names) or 'none'}"
        raise UsageError(f"{what}, those given {', '.join(given) or 'none'}")
