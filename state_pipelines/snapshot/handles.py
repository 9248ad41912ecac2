"""Opening the handles of subtasks: which reader a handle needs is decided here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.canonical import open_canonical
from state_pipelines.keyed.files import RecordContext
from state_pipelines.keyed.heap import open_heap
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, KeyGroupsStateHandle
from state_pipelines.metadata.key_groups import MAX_PARALLELISM
from state_pipelines.metadata.keyed import KeyedStateHandle, KeyGroupsSavepointStateHandle
from state_pipelines.metadata.streams import StateStream, open_stream, read_stream_range, read_whole_stream
from state_pipelines.operatorstate.backend import OperatorStateFile, read_operator_file

if TYPE_CHECKING:
    from state_pipelines.keyed.files import KeyedFile
    from state_pipelines.metadata import SubtaskState
    from state_pipelines.metadata.operator import OperatorStateHandle
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

    def open_stream(self, handle: KeyGroupsStateHandle | KeyGroupsSavepointStateHandle) -> StateStream:
        """The stream behind a handle of keyed state."""
        return open_stream(handle.delegate, self.directory, self.path_mapping)

    def open_keyed(self, handle: KeyedStateHandle | None) -> KeyedFile | None:
        """The keyed state behind a handle; None when there is none.

        Raises:
            UnsupportedError: the handle is of a format that is not covered.
        """
        if handle is None:
            return None
        if not isinstance(handle, KeyGroupsSavepointStateHandle | KeyGroupsStateHandle):
            raise UnsupportedError(
                f"keyed state in a {type(handle).__name__} is not covered yet",
                hint="Take a canonical savepoint (`flink savepoint --type canonical`)",
            )
        stream = self.open_stream(handle)
        if isinstance(handle, KeyGroupsStateHandle) and _is_heap_native(stream, handle):
            return open_heap(stream, handle.key_groups, handle.offsets)
        return open_canonical(stream, handle.key_groups, handle.offsets)

    def open_operator(self, handle: OperatorStateHandle | None) -> OperatorStateFile | None:
        """The operator state behind a handle; None when there is none."""
        if handle is None or isinstance(handle.delegate, EmptySegmentFileStateHandle):
            return None
        stream = open_stream(handle.delegate, self.directory, self.path_mapping)
        return read_operator_file(read_whole_stream(stream), handle, stream.name)

    def read_serializers(self, subtask: SubtaskState) -> list[Serializer]:
        """Every serializer that the managed state of a subtask names; none for formats that are not covered."""
        found: list[Serializer] = []
        try:
            keyed = self.open_keyed(subtask.managed_keyed_state)
        except UnsupportedError:
            # Whoever reads that state is told; here it has nothing to give.
            keyed = None
        if keyed is not None:
            found.append(keyed.header.key_serializer)
            found += [serializer for info in keyed.header.states for _, serializer in info.serializers]
        operator = self.open_operator(subtask.managed_operator_state)
        if operator is not None:
            infos = (*operator.header.lists, *operator.header.broadcasts)
            found += [serializer for info in infos for _, serializer in info.serializers]
        return found


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
