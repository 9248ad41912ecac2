"""The keyed state of one subtask in another format: one piece of work, which any process can do."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, Where, at
from state_pipelines.keyed.digests.file_digests import digest_states
from state_pipelines.keyed.heap.null_timestamps import holds_null_timestamp, may_hold_timestamps
from state_pipelines.keyed.heap.reader import HeapWriter
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.rocksdb.reader import RocksWriter
from state_pipelines.metadata.keyed_handles import (
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
)
from state_pipelines.metadata.stream_handles import KeyGroupsStateHandle, RelativeFileStateHandle
from state_pipelines.operations.write.keyed_rewrite import align_key_groups, copy_states
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import Location, PathMapping, create_file, exists, join
from state_pipelines.storage.files import remove_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.keyed.digests.record_digests import RecordDigest
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.key_groups import KeyGroupRange

_PIECE = 8 << 20


class Format(Enum):
    """Formats that can be written, by the word that users say."""

    CANONICAL = "canonical"
    HEAP = "heap"
    ROCKSDB = "rocksdb"
    KEEP = "keep"


@dataclass(frozen=True)
class WrittenState:
    """Files written for one subtask.

    Attributes:
        handle: for the metadata; its files are relative to the target.
        states: digest of each state of the source.
        size: bytes written.
        read_back: digest of each state of the new files; None when they were not read.
    """

    handle: KeyedStateHandle
    states: dict[str, RecordDigest]
    size: int
    read_back: dict[str, RecordDigest] | None = None


@dataclass(frozen=True)
class SubtaskConversion:
    """The keyed state of one subtask in its new format.

    Attributes:
        operator_id: of the operator.
        place: label of the operator, for errors.
        subtask: index of the subtask.
        source: the old state.
        header: the new header.
        format: the new format.
        key_groups: range of the subtask.
        context: of the operator.
        target: directory of the new snapshot.
        name: of the new file; with rocksdb what the names of the new files start with. It is chosen before any attempt,
            so that one that is made again finds what the one before has left.
        checkpoint_id: of the snapshot.
        verify: read the new files again.
    """

    operator_id: bytes
    place: str
    subtask: int
    source: KeyedFile
    header: KeyedHeader
    format: Format
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location
    name: str
    checkpoint_id: int
    verify: bool = True

    def run(self) -> WrittenState:
        """Write it, and read it again; leftovers of a failed attempt are replaced.

        Raises:
            UnsupportedError: a record has no form in the new format.
            StateError: the old state cannot be read.
        """
        with at(operator=self.place):
            handle, size = self.write()
            # Read again, in another way than the writer did: records that its reading lost are not in the new files.
            before = digest_states(self.source, self.context, self.key_groups)
            after = None
            if self.verify:
                again = self.open_written(handle)
                after = {} if again is None else digest_states(again, self.context, self.key_groups)
        return WrittenState(handle, before, size, after)

    def write(self) -> tuple[KeyedStateHandle, int]:
        """Write it and read nothing again: the handle, and bytes written; errors as `run`."""
        return _WRITERS[self.format](self)

    def open_written(self, handle: KeyedStateHandle) -> KeyedFile | None:
        """The new file, before it is published."""
        return HandleReader(self.target, PathMapping()).open_keyed(handle)


def _write_canonical(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    place = join(task.target, task.name)
    written = copy_states(task.subtask, task.source, task.header, task.context, place).run()
    stream = RelativeFileStateHandle(place.name, written.size)
    return KeyGroupsSavepointStateHandle(task.key_groups, written.offsets, stream), written.size


def _write_heap(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    place = join(task.target, task.name)
    key = task.header.key_serializer
    doubtful = {
        state_id: derive_keyed_layout(info, key, task.context.max_parallelism, task.context.layouts)
        for state_id, info in enumerate(task.header.states)
        if may_hold_timestamps(info, key)
    }
    # Remove leftovers of a failed attempt; the name is unique to this task.
    with create_file(place, replace=True) as output:
        writer = HeapWriter(output, task.header, task.key_groups, task.context)
        for key_group, runs in align_key_groups(task.source, task.context, task.key_groups):
            if doubtful and runs:
                _refuse_null_timestamps(task, runs, doubtful)
            writer.write_key_group(key_group, runs)
    stream = RelativeFileStateHandle(place.name, writer.size)
    handle = KeyGroupsStateHandle(task.key_groups, writer.offsets, stream, state_handle_id=str(uuid.uuid4()))
    return handle, writer.size


def _refuse_null_timestamps(task: SubtaskConversion, runs: Runs, layouts: Mapping[int, KeyedLayout]) -> None:
    for state_id, records in runs:
        if state_id in layouts and holds_null_timestamp(records, layouts[state_id]):
            raise UnsupportedError(
                "a SQL timestamp is null, and Flink cannot restore that from heap native state "
                "(SqlTimestampSerializer writes 12 bytes and reads 8)",
                where=Where(state=task.header.states[state_id].name),
                hint="Convert to canonical or rocksdb, which say where a record ends",
            )


def _write_rocksdb(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    with tempfile.TemporaryDirectory() as directory:
        writer = RocksWriter(Path(directory, "db"), task.header, task.context)
        writer.write(task.source, task.key_groups)
        meta = _put(join(task.target, f"{task.name}-meta"), writer.meta)
        paths = writer.files
        places = [join(task.target, f"{task.name}-{number}") for number in range(len(paths))]
        files = tuple(
            HandleAndLocalPath(path.name, _upload(path, place)) for path, place in zip(paths, places, strict=True)
        )
    _remove_rest(task, len(paths))
    size = meta.size + sum(file.handle.size for file in files if isinstance(file.handle, RelativeFileStateHandle))
    handle = IncrementalRemoteKeyedStateHandle(
        checkpoint_id=task.checkpoint_id,
        backend_identifier=str(uuid.uuid4()),
        key_groups=task.key_groups,
        meta_data_state=meta,
        shared_state=(),
        private_state=files,
        persisted_size=size,
        state_handle_id=str(uuid.uuid4()),
    )
    return handle, size


_WRITERS = {Format.CANONICAL: _write_canonical, Format.HEAP: _write_heap, Format.ROCKSDB: _write_rocksdb}


def _put(place: Location, data: bytes) -> RelativeFileStateHandle:
    with create_file(place, replace=True) as output:
        output.write(data)
    return RelativeFileStateHandle(place.name, len(data))


def _upload(path: Path, place: Location) -> RelativeFileStateHandle:
    with path.open("rb") as source, create_file(place, replace=True) as output:
        while piece := source.read(_PIECE):
            output.write(piece)
    return RelativeFileStateHandle(place.name, path.stat().st_size)


def _remove_rest(task: SubtaskConversion, number: int) -> None:
    """Remove the files from `number` on, which an attempt that made more of them has left; it wrote them in order."""
    while exists(place := join(task.target, f"{task.name}-{number}")):
        remove_file(place)
        number += 1
