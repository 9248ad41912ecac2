"""Native formats of keyed state: the files of one subtask, as Flink's backends write them.

Canonical files are written by `keyed_rewrite.merge_spills`, which joins framed records; here records go one key group
after the other into the formats of the heap and the RocksDB backend.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.keyed.heap import HeapWriter, holds_null_timestamp, may_hold_timestamps
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.rocksdb import RocksWriter
from state_pipelines.metadata.handles import (
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.operations.write.keyed_rewrite import align_key_groups
from state_pipelines.storage import Location, create_file, exists, join, resolve
from state_pipelines.storage.files import copy_file, remove_file
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyGroupRecords, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange


class Format(Enum):
    """Formats that can be written, by the word that users say."""

    CANONICAL = "canonical"
    HEAP = "heap"
    ROCKSDB = "rocksdb"
    KEEP = "keep"


@dataclass(frozen=True)
class NativeFiles:
    """The files of one subtask in a native format.

    Attributes:
        records: the records.
        header: the new header.
        key_groups: range of the subtask.
        context: of the operator.
        target: directory of the new snapshot.
        name: of the new file; with RocksDB what the names of the new files start with. It is chosen before any attempt,
            so that one that is made again finds what the one before has left.
        checkpoint_id: of the snapshot.
    """

    records: KeyGroupRecords
    header: KeyedHeader
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location
    name: str
    checkpoint_id: int

    def write_heap(self) -> tuple[KeyGroupsStateHandle, int]:
        """Write the file of a `HeapKeyedStateBackend`; returns its handle and its size.

        Raises:
            UnsupportedError: a SQL timestamp is null, which Flink cannot restore from this format.
            StateError: the records cannot be read.
        """
        location = join(self.target, self.name)
        key = self.header.key_serializer
        doubtful = {
            state_id: derive_keyed_layout(info, key, self.context.max_parallelism, self.context.layouts)
            for state_id, info in enumerate(self.header.states)
            if may_hold_timestamps(info, key)
        }
        # Remove leftovers of a failed attempt; the name is unique to this task.
        with create_file(location, replace=True) as output:
            writer = HeapWriter(output, self.header, self.key_groups, self.context)
            for key_group, runs in align_key_groups(self.records, self.context, self.key_groups):
                if doubtful and runs:
                    self._refuse_null_timestamps(runs, doubtful)
                writer.write_key_group(key_group, runs)
        stream = RelativeFileStateHandle(location.name, writer.size)
        handle = KeyGroupsStateHandle(self.key_groups, writer.offsets, stream, state_handle_id=str(uuid.uuid4()))
        return handle, writer.size

    def _refuse_null_timestamps(self, runs: Runs, layouts: Mapping[int, KeyedLayout]) -> None:
        for state_id, records in runs:
            if state_id in layouts and holds_null_timestamp(records, layouts[state_id]):
                raise UnsupportedError(
                    "a SQL timestamp is null, and Flink cannot restore that from heap native state "
                    "(SqlTimestampSerializer writes 12 bytes and reads 8)",
                    where=Where(state=self.header.states[state_id].name),
                    hint="Write canonical or rocksdb, which say where a record ends",
                )

    def write_rocksdb(self) -> tuple[IncrementalRemoteKeyedStateHandle, int]:
        """Write the database of a `RocksDBKeyedStateBackend`; returns its handle and its size.

        Raises:
            FormatError: a key comes twice.
            StateError: the records cannot be read.
        """
        with open_local_scratch() as directory:
            writer = RocksWriter(directory / "db", self.header, self.context)
            writer.write(self.records, self.key_groups)
            meta = _put(join(self.target, f"{self.name}-meta"), writer.meta)
            paths = writer.files
            locations = [join(self.target, f"{self.name}-{number}") for number in range(len(paths))]
            files = tuple(
                HandleAndLocalPath(path.name, _upload(path, location))
                for path, location in zip(paths, locations, strict=True)
            )
        self._remove_rest(len(paths))
        size = meta.size + sum(file.handle.size for file in files if isinstance(file.handle, RelativeFileStateHandle))
        handle = IncrementalRemoteKeyedStateHandle(
            checkpoint_id=self.checkpoint_id,
            backend_identifier=str(uuid.uuid4()),
            key_groups=self.key_groups,
            meta_data_state=meta,
            shared_state=(),
            private_state=files,
            persisted_size=size,
            state_handle_id=str(uuid.uuid4()),
        )
        return handle, size

    def _remove_rest(self, number: int) -> None:
        """Remove files from `number` on: leftovers of an attempt that made more of them; it wrote them in order."""
        while exists(location := join(self.target, f"{self.name}-{number}")):
            remove_file(location)
            number += 1


def _put(location: Location, data: bytes) -> RelativeFileStateHandle:
    with create_file(location, replace=True) as output:
        output.write(data)
    return RelativeFileStateHandle(location.name, len(data))


def _upload(path: Path, location: Location) -> RelativeFileStateHandle:
    return RelativeFileStateHandle(location.name, copy_file(resolve(str(path)), location, replace=True))
