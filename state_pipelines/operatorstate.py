"""Operator (non-keyed) state: the header, the elements, and the files that hold them.

* `join_offsets`, `bound_elements`: offsets of elements that handles of operator state name in a file, and whether they
  name all of them. Flink writes the elements of a subtask back to back after the header, and names each of them in one
  handle (`DefaultOperatorStateBackendSnapshotStrategy`). So does `rescale`, but for broadcast state, of which every
  subtask has the same: further handles may name it in a file whose list elements another handle names.
* `OperatorHeader`, `read_operator_header`: list states (split and union), then broadcast states. Source:
  `OperatorBackendSerializationProxy`.
* `read_operator_file`, `write_operator_file`: files of the default operator state backend. After the header follow the
  elements of the list states, then the broadcast states. Only the offsets of the state handle locate the elements.
  Compressed files hold one snappy framed stream after the header, in which every element and every broadcast state
  begins with a new chunk. Source: `DefaultOperatorStateBackendSnapshotStrategy`, `PartitionableListState`,
  `HeapBroadcastState`, `OperatorStateRestoreOperation`.
* `read_raw_partitions`, `write_raw_partitions`: raw operator state.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.snappy_frames import STREAM_ID, compress_chunks, iter_chunks
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Decoded, plan_columns
from state_pipelines.codecs.programs import Encoded, smallest_size
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, derive_layout
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    NotFoundError,
    StateError,
    UnsupportedError,
    UsageError,
    Where,
    at,
    older_than_promised,
    unsupported_version,
)
from state_pipelines.metadata.handles import OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.metadata.streams import KeptStreams, read_header_bytes
from state_pipelines.serializers.snapshot_classes import OpenBodyError, read_settled
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    read_state_meta_infos,
    unread_state,
    write_state_meta_infos,
)
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from state_pipelines.metadata.handles import OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer

Offsets = npt.NDArray[np.int64]
Spans = tuple[Offsets, Offsets]


def join_offsets(states: Sequence[OperatorStateMetaInfo], name: str) -> dict[str, tuple[int, ...]]:
    """Join the element offsets of all handles over a stream, by state.

    Args:
        states: the states of all handles.
        name: name of the stream, for errors.

    Raises:
        FormatError: elements of a list state are listed in two handles, or twice in one; or handles have different
            offsets of a broadcast state.
    """
    found: dict[str, tuple[int, ...]] = {}
    for state in states:
        known = found.get(state.state_name, ())
        if known and state.offsets and (state.mode is not OperatorStateMode.BROADCAST or known != state.offsets):
            raise FormatError(
                "elements of this state in this file are listed in two handles, or twice in one",
                where=Where(file=name, offset=state.offsets[0], state=state.state_name),
                hint=EDITED_METADATA,
            )
        found[state.state_name] = known or state.offsets
    return found


def order_offsets(
    handle: Sequence[OperatorStateMetaInfo],
    shared: Sequence[OperatorStateMetaInfo],
    header: OperatorHeader,
    bounds: tuple[int, int],
    name: str,
) -> dict[str, Offsets]:
    """Check the handles over a file, and return the offsets in them by state.

    The states are in the order of the header: if two of them begin at the same offset, the first one is empty.

    Args:
        handle: states of one handle.
        shared: states of all handles over the file, if there are several; else empty.
        header: header of the file.
        bounds: end of the header, and end of the file.
        name: name of the file.

    Raises:
        FormatError: the file lacks a state, or has it with another mode; an offset is outside; two handles have the
            same elements; bytes after the header belong to no element; or the handle lacks a broadcast state.
    """
    if shared and not header.broadcasts:
        # Subtasks share a file only for the copy of broadcast state in it, as after a rescaling.
        what = "two handles name this file, which has no broadcast state that subtasks could share"
        raise FormatError(what, where=Where(file=name), hint=EDITED_METADATA)
    for state in (*handle, *shared):
        _check_state(state, header.by_name.get(state.state_name), bounds, name)
    own = {state.state_name for state in handle}
    for info in header.broadcasts:
        if info.name not in own:
            # A subtask has all its broadcast state in one file.
            what = "the file has a broadcast state that its handle does not name"
            raise FormatError(what, where=Where(file=name, state=info.name), hint=EDITED_METADATA)
    offsets = join_offsets(shared or handle, name)
    ordered = {state: np.array(offsets[state], np.int64) for state in header.by_name if state in offsets}
    start = bounds[0] + len(STREAM_ID) * header.compressed
    first = min((int(each.min()) for each in ordered.values() if len(each)), default=bounds[1])
    if first > start and not header.raw:
        raise FormatError(
            f"bytes {start} to {first}, after the header, belong to no element that a handle names",
            where=Where(file=name, offset=start),
            hint=EDITED_METADATA,
        )
    return ordered


def select_own(ordered: Mapping[str, Spans], handle: Sequence[OperatorStateMetaInfo]) -> dict[str, Spans]:
    """Select the spans of the elements of one handle from the spans of all handles over its file."""
    none = np.zeros(0, np.int64)
    named = {state.state_name: state.offsets for state in handle}
    return {state: span if named[state] else (none, none) for state, span in ordered.items() if state in named}


def _check_state(state: OperatorStateMetaInfo, info: StateMetaInfo | None, bounds: tuple[int, int], name: str) -> None:
    where = Where(file=name, state=state.state_name)
    if info is None:
        raise FormatError("the handle names a state that its file does not have", where=where)
    if info.distribution_mode not in (None, state.mode.name):
        what = f"the handle says that the state is {state.mode.name}, but the file says {info.distribution_mode}"
        raise FormatError(what, where=where, hint=EDITED_METADATA)
    if state.mode is OperatorStateMode.BROADCAST and len(state.offsets) != 1:
        raise FormatError(f"a broadcast state has one offset, not {len(state.offsets)}", where=where)
    check_inside(state, *bounds, name)
    if any(after < before for before, after in pairwise(state.offsets)):
        raise FormatError("elements are not in the order of the file", where=where, hint=EDITED_METADATA)


def check_inside(state: OperatorStateMetaInfo, start: int, end: int, name: str) -> None:
    """Check that elements begin at bytes `start` to `end` of a file.

    Raises:
        FormatError: an offset is outside.
    """
    for offset in state.offsets:
        if not start <= offset <= end:
            raise FormatError(
                f"an offset of {offset} is outside the payload, bytes {start} to {end}",
                where=Where(file=name, offset=offset, state=state.state_name),
            )


def bound_elements(offsets: Mapping[str, Offsets], size: int) -> dict[str, Spans]:
    """Return the spans of elements: each ends at the next offset of any state, or at `size`, so that none overlap."""
    if not offsets:
        return {}
    starts = np.concatenate(list(offsets.values()))
    order = np.argsort(starts, kind="stable")
    ends = np.empty_like(starts)
    ends[order] = np.append(starts[order][1:], size)
    stops = np.cumsum([len(each) for each in offsets.values()])[:-1]
    return dict(zip(offsets, zip(offsets.values(), np.split(ends, stops), strict=True), strict=True))


# Version 5 is that of Flink 1.8 to 1.17; 6 (since 1.18) adds the flag of compression.
FIRST_VERSION = 5
FIRST_WITH_COMPRESSION = 6
VERSION = 6


@dataclass(frozen=True, kw_only=True)
class OperatorHeader:
    """The header of a file of operator state.

    Attributes:
        version: 5 or 6.
        compressed: the payload (all bytes after the header) is a snappy framed stream.
        lists: list states; their elements are found through the offsets of the state handle only.
        broadcasts: broadcast states.
        raw: the bytes of a header that cannot be read completely and is written unchanged; else empty.
    """

    version: int = VERSION
    compressed: bool = False
    lists: tuple[StateMetaInfo, ...] = ()
    broadcasts: tuple[StateMetaInfo, ...] = ()
    raw: bytes = field(default=b"", repr=False)

    @cached_property
    def by_name(self) -> dict[str, StateMetaInfo]:
        """The states by name, lists first; if two states have the same name, the first one."""
        found: dict[str, StateMetaInfo] = {}
        for info in (*self.lists, *self.broadcasts):
            found.setdefault(info.name, info)
        return found

    def has_list(self, name: str) -> bool:
        """Return whether there is a list state of a name."""
        info = self.by_name.get(name)
        return info is not None and info.backend_type is not BackendStateType.BROADCAST


def read_operator_header(reader: Reader) -> OperatorHeader:
    """Read the header of a file of operator state.

    Raises:
        UnsupportedVersionError: version 1 to 4, written before 1.8, or a later one than 6.
        UnknownSerializerError: a serializer has no reader; the error names the state.
        FormatError: the bytes are not the header of operator state.
    """
    start = reader.position
    version = reader.i32()
    if 1 <= version < FIRST_VERSION:
        raise older_than_promised(f"operator state header of version {version}", Where(file=reader.name, offset=start))
    if not FIRST_VERSION <= version <= VERSION:
        where = Where(file=reader.name, offset=start)
        raise unsupported_version("operator state", version, f"{FIRST_VERSION} and {VERSION}", where)
    compressed = reader.bool() if version >= FIRST_WITH_COMPRESSION else False
    header = OperatorHeader(version=version, compressed=compressed)
    try:
        header = replace(header, lists=read_state_meta_infos(reader))
        return replace(header, broadcasts=read_state_meta_infos(reader))
    except OpenBodyError as error:
        found = (*header.lists, *error.infos)
        error.header = replace(
            header,
            lists=tuple(info for info in found if info.backend_type is not BackendStateType.BROADCAST),
            broadcasts=tuple(info for info in found if info.backend_type is BackendStateType.BROADCAST),
        )
        raise


def settle_operator_header(
    data: bytes,
    name: str | None,
    end: int,
    states: Mapping[str, str],
    declared: Sequence[DeclaredSerializer] = (),
) -> tuple[OperatorHeader, int]:
    """Read a header with unknown serializer snapshots as far as possible.

    Args:
        data: begins with the header.
        name: name of the file, for errors.
        end: offset of the first byte after the header; in a compressed file, offset of the first chunk, which follows
            the stream id.
        states: distribution mode by name of all states, from `_metadata`.
        declared: snapshot classes that the user declares.

    Returns:
        The header, and its end. A header that cannot be read completely has its bytes (`raw`), and placeholders
            for the unread states.

    Raises:
        UnsupportedError, FormatError: as for `read_operator_header`.
    """
    stop = end
    if data[end - len(STREAM_ID) : end] == STREAM_ID and data[3:5] == b"\6\1":
        stop = end - len(STREAM_ID)
    try:
        return read_settled(read_operator_header, data, name, end=stop, declared=declared)
    except OpenBodyError as error:
        if not isinstance(error.header, OperatorHeader):
            raise
        read = {info.name for info in (*error.header.lists, *error.header.broadcasts)}
        unread = [
            unread_state(
                each,
                BackendStateType.BROADCAST if mode == StateKind.BROADCAST else BackendStateType.OPERATOR,
                error.node,
                mode,
            )
            for each, mode in states.items()
            if each not in read
        ]
        return replace(
            error.header,
            lists=(*error.header.lists, *(info for info in unread if info.backend_type is BackendStateType.OPERATOR)),
            broadcasts=(
                *error.header.broadcasts,
                *(info for info in unread if info.backend_type is BackendStateType.BROADCAST),
            ),
            raw=data[:stop],
        ), stop


def write_operator_header(writer: Writer, header: OperatorHeader) -> None:
    """Write the header of a file of operator state; the inverse of `read_operator_header`.

    Raises:
        UsageError: a compressed header of version 5, which cannot store the flag.
    """
    if header.compressed and header.version < FIRST_WITH_COMPRESSION:
        raise UsageError(
            f"version {header.version} of the operator state header cannot mark a compressed payload",
            hint=f"Write version {VERSION}",
        )
    if header.raw:
        writer.take(header.raw)
        return
    writer.i32(header.version)
    if header.version >= FIRST_WITH_COMPRESSION:
        writer.bool(header.compressed)
    write_state_meta_infos(writer, header.lists)
    write_state_meta_infos(writer, header.broadcasts)


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
        header: header of the file, as read.
        data: u8; the file itself, or the decompressed stream.
        spans: per state that the handle names, i64[n] starts and ends in `data`, in the order of the handle.
        chunks: for a compressed file, i64[m] starts of its chunks in `data` and in the file; None for a plain file.
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
        """Return the file offset of an offset in `data`; in a compressed file, the file offset of its chunk."""
        if self.chunks is None or not len(self.chunks[0]):
            return position
        plain, framed = self.chunks
        return int(framed[max(0, int(np.searchsorted(plain, position, "right")) - 1)])

    def refill(self, data: bytes, start: int) -> OperatorStateFile:
        """Return the file with `data` from bytes that were read again; the spans stay.

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
    """Find the elements that a handle of operator state names in its file.

    Args:
        data: all bytes of the stream.
        handle: the handle, of which states and offsets are used.
        name: file or handle name, for errors.
        known: the header and its end, where they were read before.
        shared: the states of all handles over the stream, if there are several; after a rescaling the copies of a
            broadcast state may be in one file.

    Raises:
        FormatError: the header is invalid, an offset is outside the payload or not at the start of a chunk, the file
            lacks a state of the handle, two handles have the same elements, or bytes belong to no element.
        UnsupportedError, UnknownSerializerError: see `read_operator_header`.
    """
    if not data and not handle.states:
        # File merging makes an empty handle for a subtask without state.
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
    """Encode a file of operator state; the inverse of `read_operator_file`.

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
        FormatError: the bytes do not fit the serializer, or bytes are left in a span after its element, because the
            handle lacks elements; the error names file, offset, state and field.
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
        FormatError: as for `read_list_state`.
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
        FormatError: the bytes do not fit the serializers; the error names file, offset, state and field.
    """
    entries, _ = _decode_entries(file, info, context)
    return entries.field("key"), entries.field("value")


def find_entries(
    file: OperatorStateFile, info: StateMetaInfo, context: LayoutContext
) -> tuple[Bytes, Offsets, Offsets]:
    """Return the entries of a broadcast state as bytes: (data, i64[n] starts, i64[n] ends), key and value together.

    Raises:
        UnsupportedError, FormatError: as for `read_broadcast_state`; only serializers determine the end of an entry.
    """
    _, ends = _decode_entries(file, info, context)
    data, start, _, _ = file.broadcast(info.name)
    return data, np.append(np.int64(start), ends)[:-1], ends


def lay_out_entry(info: StateMetaInfo, key: LayoutContext, value: LayoutContext) -> lay.Layout:
    """Return the layout of an entry of a broadcast state: the key, then the value.

    Args:
        info: meta info of the state.
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
    """Write partitions for `read_raw_partitions`: (the bytes of the stream, the states for its handle)."""
    *offsets, _ = accumulate((len(partition) for partition in partitions), initial=0)
    state = OperatorStateMetaInfo(RAW_STATE, OperatorStateMode.SPLIT_DISTRIBUTE, tuple(offsets))
    return b"".join(partitions), (state,)


def gather_elements(data: Bytes, starts: Offsets, ends: Offsets) -> Encoded:
    """Return the elements at any spans of `data` as consecutive bytes, for `write_operator_file`."""
    sizes = ends - starts
    stops = np.cumsum(sizes, dtype=np.int64)
    if len(starts) and np.array_equal(starts[1:], ends[:-1]):
        return Encoded(data[starts[0] : ends[-1]], stops)
    positions = np.arange(stops[-1] if len(stops) else 0, dtype=np.int64) + np.repeat(starts - (stops - sizes), sizes)
    return Encoded(data[positions], stops)


@contextmanager
def _at_state(file: OperatorStateFile, state: str) -> Iterator[None]:
    """Add file and state to errors, and turn an offset in `file.data` into an offset in the file."""
    try:
        with at(state=state):
            yield
    except StateError as error:
        offset = None if error.where.offset is None else file.locate(error.where.offset)
        error.where = replace(error.where, file=file.name, offset=offset)
        raise


def _decompress(data: bytes, start: int, name: str) -> tuple[bytes, Spans]:
    """Return the decompressed bytes after the header, and the starts of the chunks in them and in the file."""
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
        raise UsageError(f"{what}, but the states given are {', '.join(given) or 'none'}")


FIRST_READ = 64 << 10
"""Bytes of a file that are read at first; its header is longer when the serializers are many."""

_GROWTH = 8


@dataclass(frozen=True)
class UnreadOperatorState:
    """The operator state of one subtask, as far as a handle names it; can be sent to other processes.

    Attributes:
        stream: the stream of the handle.
        handle: the handle, which has the offsets of the elements.
        header: header of the file, as read.
        header_end: offset of the first byte after the header.
        kept: cache through which the stream is read, since other states are in it too.
        shared: the states of all handles over the stream, where it has several.
    """

    stream: StateStream
    handle: OperatorStateHandle
    header: OperatorHeader
    header_end: int
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)
    shared: tuple[OperatorStateMetaInfo, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Name of the file, for errors."""
        return self.stream.name

    def read(self) -> OperatorStateFile:
        """Read the whole state; errors as in `read_operator_file`."""
        data = self.kept.read_whole(self.stream)
        # Locate the elements only once: every state reads the file again, and there may be thousands of states.
        size, located = cast("tuple[int, OperatorStateFile | None]", self.__dict__.get("_located", (-1, None)))
        if located is not None and size == len(data):
            return located.refill(data, self.header_end)
        file = read_operator_file(data, self.handle, self.stream.name, (self.header, self.header_end), self.shared)
        self.__dict__["_located"] = len(data), replace(file, data=np.zeros(0, np.uint8))
        return file

    def check(self) -> None:
        """Check the handles over the file by its header, without reading the elements.

        Raises:
            FormatError: as for `order_offsets`.
        """
        if "_is_checked" not in self.__dict__:
            bounds = self.header_end, self.stream.size
            order_offsets(self.handle.states, self.shared, self.header, bounds, self.stream.name)
            self.__dict__["_is_checked"] = True

    def __getstate__(self) -> dict[str, object]:
        # Cached positions are not pickled; they are found again in the other process.
        return {each.name: getattr(self, each.name) for each in fields(self)}


@lru_cache(maxsize=64)
def _parse_header(data: bytes, name: str | None = None) -> tuple[OperatorHeader, int]:
    """Parse the header at the beginning of `data`; cached, because subtasks mostly have the same header."""
    reader = Reader(data, name)
    return read_operator_header(reader), reader.position


@lru_cache(maxsize=64)
def _settle_header(
    data: bytes,
    name: str | None,
    states: tuple[tuple[str, str], ...],
    declared: tuple[DeclaredSerializer, ...],
) -> tuple[OperatorHeader, int]:
    return settle_operator_header(data, name, len(data), dict(states), declared)


def open_operator_state(
    stream: StateStream,
    handle: OperatorStateHandle,
    kept: KeptStreams | None = None,
    *,
    first_read: int = FIRST_READ,
    header_end: int = 0,
    declared: tuple[DeclaredSerializer, ...] = (),
) -> UnreadOperatorState:
    """Read the header of operator state by a short read of the beginning of the file.

    Args:
        stream: the stream of the handle.
        handle: the handle, which has the offsets of the elements; the header ends before the first element.
        kept: cache of the streams of the snapshot; streams of at most `first_read` bytes are read through it.
        first_read: bytes that are read at first.
        header_end: the header ends here or before, by the handles of other subtasks over this stream; 0: unknown.
        declared: snapshot classes that the user declares.

    Raises:
        FormatError: the bytes are not the header of operator state, or the file is cut off in it.
        UnsupportedError: see `read_operator_header`.
        MissingFileError: no such file.
    """
    kept = kept or KeptStreams()
    if not stream.size and not handle.states:
        # File merging makes an empty handle for a subtask without state.
        return UnreadOperatorState(stream, handle, OperatorHeader(), 0, kept)
    # Ignore invalid offsets here; they are reported when elements are read.
    offsets = [offset for state in handle.states for offset in state.offsets if 0 < offset < stream.size]
    end = min([stream.size, *offsets])
    if 0 < header_end < end:
        end = header_end
    size = min(first_read, end)
    while True:
        data = kept.read(stream, 0, size) if stream.size <= first_read else read_header_bytes(stream, size)
        try:
            return UnreadOperatorState(stream, handle, *_parse_header(data), kept)
        except StateError as error:
            # A header that the short read has cut off looks damaged too: read more, and report only the error of a
            # complete one.
            if size == end:
                if isinstance(error, UnsupportedError):
                    states = tuple((state.state_name, state.mode.name) for state in handle.states)
                    return UnreadOperatorState(
                        stream, handle, *_settle_header(data, stream.name, states, declared), kept
                    )
                # Parse again with the name of this file, for the error; the cached call has no name.
                return UnreadOperatorState(stream, handle, *_parse_header.__wrapped__(data, stream.name), kept)
        size = min(size * _GROWTH, end)
