"""New files of operator state: some states encoded again, all others copied as bytes.

Two steps, as for keyed state (`keyed_rewrite`): `write_elements` encodes rows of one state into element files, one per
subtask and task; `OperatorRewrite.run` writes the file of one subtask from those and from the old file. One subtask's
file is held in memory, no more.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.programs import Encoded
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import UsageError, Where, at
from state_pipelines.metadata.handles import OperatorStreamStateHandle, RelativeFileStateHandle
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operatorstate import (
    OperatorHeader,
    OperatorStateFile,
    find_entries,
    gather_elements,
    lay_out_entry,
    write_operator_file,
)
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo
from state_pipelines.storage import Location, create_file, join, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.operatorstate import UnreadOperatorState
    from state_pipelines.snapshot.operator_state import NonKeyedSubtaskState

ELEMENT_SCHEMA = pa.schema([("index", pa.int64()), ("element", pa.large_binary())])
"""Rows of an element file: the index of an element among those of its subtask, and its bytes."""

NO_INDEX = -1
"""Entries of a broadcast state have no order."""


@dataclass(frozen=True)
class ElementFile:
    """Temporary file with encoded elements of one subtask's list state, or with entries of a broadcast state."""

    location: Location
    subtask: int
    records: int


@dataclass(frozen=True)
class ElementEncoder:
    """Encodes rows of one list or broadcast state.

    Columns of the rows: `subtask`, then `list_index` and `value`, or `map_key` and `map_value`.

    Attributes:
        info: meta info of the new state.
        layouts: context for the layout of the values.
        keys: context for the layout of the keys of a broadcast state.
    """

    info: StateMetaInfo
    layouts: LayoutContext
    keys: LayoutContext

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Arrow type of each column that is encoded, by name."""
        kind = plan_columns(self._layout).type
        if self.info.backend_type is BackendStateType.BROADCAST:
            return {"map_key": kind.field("key").type, "map_value": kind.field("value").type}
        return {"value": kind}

    @property
    def _layout(self) -> lay.Layout:
        if self.info.backend_type is BackendStateType.BROADCAST:
            return lay_out_entry(self.info, self.keys, self.layouts)
        return derive_layout(self.info.value_serializer, self.layouts)

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        """Encode the elements or entries of a batch.

        Raises:
            ValueRangeError: a value does not fit its serializer.
        """
        arrays = [conform(batch.column(name), kind, name) for name, kind in self.types.items()]
        if self.info.backend_type is BackendStateType.BROADCAST:
            arrays = [pa.StructArray.from_arrays(arrays, names=["key", "value"])]
        columns = plan_columns(self._layout)
        return columns.encode(conform(arrays[0], columns.type))


def write_elements(
    encoder: ElementEncoder, batches: Iterable[pa.RecordBatch], directory: Location
) -> list[ElementFile]:
    """Encode rows of one state into files: a new one begins whenever the subtask differs from that of the row before.

    Args:
        encoder: encoder of the state.
        batches: the rows.
        directory: directory of the files.

    Raises:
        ValueRangeError: a value does not fit its serializer.
    """
    found: list[ElementFile] = []
    with ExitStack() as open_file:
        stream: pa.RecordBatchStreamWriter | None = None
        for subtask, rows in _encode(encoder, batches):
            if stream is None or found[-1].subtask != subtask:
                open_file.close()
                found.append(ElementFile(join(directory, make_file_name()), subtask, 0))
                output = open_file.enter_context(create_file(found[-1].location))
                stream = open_file.enter_context(pa.ipc.new_stream(output, ELEMENT_SCHEMA))
            stream.write_batch(rows)
            found[-1] = ElementFile(found[-1].location, subtask, found[-1].records + len(rows))
    return found


def _encode(encoder: ElementEncoder, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Encode batches; yield (subtask, encoded rows) for each run of rows of one subtask."""
    for batch in batches:
        if not len(batch):
            continue
        elements = encoder.encode(batch)
        bounds = np.append(np.int64(0), elements.stops)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(elements.data))]
        array = pa.Array.from_buffers(pa.large_binary(), len(batch), buffers)
        has_indexes = "list_index" in batch.schema.names
        indexes = batch.column("list_index") if has_indexes else pa.array(np.full(len(batch), NO_INDEX))
        rows = pa.RecordBatch.from_arrays([indexes.cast(pa.int64()), array], schema=ELEMENT_SCHEMA)
        subtasks = np.asarray(batch.column("subtask"))
        edges = [0, *(np.flatnonzero(np.diff(subtasks)) + 1).tolist(), len(batch)]
        for start, end in pairwise(edges):
            yield int(subtasks[start]), rows.slice(start, end - start)


def read_elements(files: Iterable[ElementFile]) -> Encoded:
    """Read the elements that `write_elements` wrote for one subtask, in the order of their indexes.

    Raises:
        UsageError: two elements have the same index.
    """
    tables = [pa.ipc.open_stream(read_file(each.location)).read_all() for each in files]
    rows = pa.concat_tables([ELEMENT_SCHEMA.empty_table(), *tables])
    indexes = np.asarray(rows.column("index"))
    if len(indexes) and indexes[0] != NO_INDEX and (np.diff(indexes) <= 0).any():
        rows = rows.take(pa.array(np.argsort(indexes, kind="stable")))
        if (np.diff(np.asarray(rows.column("index"))) == 0).any():
            raise UsageError(
                "several elements have the same list_index",
                hint="Each element of a subtask needs its own index; a function must return the column unchanged",
            )
    stops = np.cumsum(pc.binary_length(rows.column("element")).to_numpy(), dtype=np.int64)
    arrays = [np.zeros(0, np.uint8), *(_flatten(chunk) for chunk in rows.column("element").chunks)]
    return Encoded(np.concatenate(arrays), stops)


def _flatten(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes of all values of a binary array, one value after the other."""
    if not len(array):
        return np.zeros(0, np.uint8)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data is not None else np.zeros(0, np.uint8)


@dataclass(frozen=True)
class WrittenOperatorState:
    """The new operator state of one subtask.

    Attributes:
        handle: handle of the new file; None if no state is left.
    """

    subtask: int
    handle: OperatorStreamStateHandle | None


@dataclass(frozen=True)
class OperatorRewrite:
    """Task that writes the new operator state of one subtask.

    Attributes:
        subtask: index of the subtask.
        base: the old file; None if there was none.
        header: header of the new file.
        copied: (new name, old name) of the states that are copied as bytes.
        encoded: (new name, element files) of the states with new, encoded elements. For broadcast state, these are the
            files of all subtasks, since each subtask gets all entries.
        target: the new file.
    """

    subtask: int
    base: UnreadOperatorState | None
    header: OperatorHeader
    copied: tuple[tuple[str, str], ...]
    encoded: tuple[tuple[str, tuple[ElementFile, ...]], ...]
    target: Location

    def run(self) -> WrittenOperatorState:
        """Write the file.

        Raises:
            StateError: the old file cannot be read, or the new one cannot be written.
        """
        if not (self.header.lists or self.header.broadcasts):
            return WrittenOperatorState(self.subtask, None)
        file = (
            OperatorStateFile("", OperatorHeader(), np.zeros(0, np.uint8), {})
            if self.base is None
            else self.base.read()
        )
        named = set[str]() if self.base is None else {each.state_name for each in self.base.handle.states}
        olds, files = dict(self.copied), dict(self.encoded)
        lists: dict[str, Encoded] = {}
        broadcasts: dict[str, tuple[int, bytes]] = {}
        for info in self.header.lists:
            with at(state=info.name):
                if info.name in olds:
                    lists[info.name] = gather_elements(*file.elements(olds[info.name]))
                else:
                    lists[info.name] = read_elements(files[info.name])
        for info in self.header.broadcasts:
            if info.name in olds:
                data, start, end, count = file.broadcast(olds[info.name])
                broadcasts[info.name] = (count, data[start:end].tobytes())
            else:
                entries = read_elements(files[info.name])
                broadcasts[info.name] = (len(entries.stops), entries.data.tobytes())
        raw, states = write_operator_file(self.header, lists, broadcasts)
        # If the old handle of a subtask does not name a broadcast state, the new one must not name it either: Flink
        # would restore an empty copy.
        absent = {info.name for info in self.header.broadcasts if olds.get(info.name, info.name) not in named}
        absent -= files.keys()
        # `replace` removes leftovers of a failed attempt: nothing else has the random name of the target.
        with create_file(self.target, replace=True) as output:
            output.write(raw)
        stream = RelativeFileStateHandle(self.target.name, len(raw))
        kept = tuple(each for each in states if each.state_name not in absent)
        return WrittenOperatorState(self.subtask, OperatorStreamStateHandle(kept, stream))


@dataclass(frozen=True)
class BroadcastCopy:
    """Task that reads the copy of a broadcast state in one subtask.

    Attributes:
        subtask_state: the state of the subtask.
        context: context for layouts.
    """

    subtask_state: NonKeyedSubtaskState
    context: LayoutContext

    def run(self) -> bytes:
        """Return a digest (SHA-256) of the entries that does not depend on their order.

        Subtasks may store equal maps in different orders.

        Raises:
            StateError: the state cannot be read.
        """
        info = self.subtask_state.info
        data, starts, ends = find_entries(self.subtask_state.read(), info, self.context)
        entries = plan_columns(lay.Rest()).decode(data, starts, ends).array
        entries = entries.take(pc.sort_indices(entries))
        digest = hashlib.sha256(np.asarray(pc.binary_length(entries)).astype(np.int64).tobytes())
        digest.update(_flatten(entries.cast(pa.large_binary())).tobytes())
        return digest.digest()


def require_equal_copies(subtask_states: Iterable[NonKeyedSubtaskState], digests: Iterable[bytes], state: str) -> None:
    """Make sure that all subtasks have equal copies of a broadcast state.

    Args:
        subtask_states: the states of the subtasks.
        digests: digests of their copies, as `BroadcastCopy.run` returns them.
        state: name of the broadcast state.

    Raises:
        UsageError: copies differ.
    """
    first: dict[bytes, int] = {}
    for subtask_state, digest in zip(subtask_states, digests, strict=True):
        first.setdefault(digest, subtask_state.subtask)
    if len(first) > 1:
        raise UsageError(
            f"subtasks {' and '.join(map(str, first.values()))} hold different copies of the broadcast state",
            where=Where(state=state),
            hint="Copies that differ have no common value to migrate; let the job broadcast the entries again, then "
            "take a new snapshot",
        )
