"""Opening the handles of subtasks: which reader a handle needs is decided here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.canonical import open_canonical
from state_pipelines.keyed.changelog import open_changelog
from state_pipelines.keyed.files import RecordContext
from state_pipelines.keyed.heap import open_heap
from state_pipelines.keyed.raw_timers import open_raw_timers
from state_pipelines.keyed.rocksdb import open_rocksdb
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, KeyGroupsStateHandle
from state_pipelines.metadata.key_groups import MAX_PARALLELISM
from state_pipelines.metadata.keyed import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
)
from state_pipelines.metadata.streams import open_stream, read_stream_range, read_whole_stream
from state_pipelines.operatorstate.backend import OperatorStateFile, read_operator_file

if TYPE_CHECKING:
    from state_pipelines.keyed.files import KeyedFile
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.operator import OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location, PathMapping


class HandleReader:
    """Opens the handles of one snapshot.

    Args:
        directory: the exclusive directory.
        path_mapping: where directories that absolute handles name are now.
    """

    def __init__(self, directory: Location, path_mapping: PathMapping) -> None:
        self.directory = directory
        self.path_mapping = path_mapping

    def open_stream(self, handle: StreamStateHandle) -> StateStream:
        """The bytes behind a handle."""
        return open_stream(handle, self.directory, self.path_mapping)

    def open_keyed(
        self, handle: KeyedStateHandle | None, key_serializer: Serializer | None = None
    ) -> KeyedFile | None:
        """The managed keyed state behind a handle; None when there is none.

        Args:
            handle: the handle.
            key_serializer: what the caller knows of the keys, for changelog state that does not say it.

        Raises:
            UnsupportedError: the handle is not one that stands alone.
        """
        match handle:
            case None:
                return None
            case KeyGroupsSavepointStateHandle():
                return open_canonical(self.open_stream(handle.delegate), handle.key_groups, handle.offsets)
            case KeyGroupsStateHandle():
                stream = self.open_stream(handle.delegate)
                opened = open_heap if _is_heap_native(stream, handle) else open_canonical
                return opened(stream, handle.key_groups, handle.offsets)
            case IncrementalRemoteKeyedStateHandle():
                files = (*handle.shared_state, *handle.private_state)
                tables = {each.local_path: self.open_stream(each.handle) for each in files}
                return open_rocksdb(self.open_stream(handle.meta_data_state), handle.key_groups, tables)
            case ChangelogStateBackendHandle():
                bases = [each for each in map(self.open_keyed, handle.materialized) if each is not None]
                return open_changelog(handle, bases, self.open_stream, key_serializer=key_serializer)
            case _:
                raise UnsupportedError(f"a {type(handle).__name__} holds changes without the state that they change")

    def open_raw_keyed(self, handle: KeyedStateHandle | None, context: LayoutContext) -> KeyedFile | None:
        """The timers in raw keyed state; None when there are none.

        Raises:
            UnsupportedError: the state is not timers, or in a form of releases before 1.8.
            FormatError: the state is not timers.
        """
        if not isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
            return None
        return open_raw_timers(self.open_stream(handle.delegate), handle.key_groups, handle.offsets, context)

    def open_operator(self, handle: OperatorStateHandle | None) -> OperatorStateFile | None:
        """The operator state behind a handle; None when there is none."""
        if handle is None or isinstance(handle.delegate, EmptySegmentFileStateHandle):
            return None
        stream = self.open_stream(handle.delegate)
        return read_operator_file(read_whole_stream(stream), handle, stream.name)


def _is_heap_native(stream: StateStream, handle: KeyGroupsStateHandle) -> bool:
    """Tell the native format of the heap backend from the canonical one behind the same handle.

    A native section begins with its key group as i32. Read as a canonical one, that is state 0 and a first key of at
    least 64 KiB times the key group; only key group 0 leaves a doubt, which the whole section settles.
    """
    present = [(group, offset) for offset, group in zip(handle.offsets, handle.key_groups, strict=True) if offset]
    if not present:
        return False
    key_group, offset = max(present)
    if key_group:
        return read_stream_range(stream, offset, min(offset + 4, stream.size)) == key_group.to_bytes(4, "big")
    file = open_canonical(stream, handle.key_groups, handle.offsets)
    if file.header.compressed:
        # Canonical sections are snappy streams as a whole; native ones begin with the bare key group.
        return read_stream_range(stream, offset, min(offset + 4, stream.size)) == bytes(4)
    for prefix_of in (1, MAX_PARALLELISM):
        context = RecordContext(prefix_of, LayoutContext())
        try:
            for _ in file.scan(range(len(file.header.states)), context):
                pass
        except FormatError:
            continue
        return False
    return True
