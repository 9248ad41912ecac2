"""Opening the handles of subtasks: which reader a handle needs is decided here and nowhere else."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.binary.reader import Reader
from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.keyed.canonical import CanonicalFile, open_canonical
from state_pipelines.keyed.framing import END_OF_KEY_GROUP
from state_pipelines.keyed.header import KeyedHeader, read_keyed_header
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, KeyGroupsStateHandle
from state_pipelines.metadata.keyed import KeyedStateHandle, KeyGroupsSavepointStateHandle
from state_pipelines.metadata.streams import StateStream, open_stream, read_stream_range, read_whole_stream
from state_pipelines.operatorstate.backend import OperatorStateFile, read_operator_file

if TYPE_CHECKING:
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

    def open_keyed(self, handle: KeyedStateHandle | None) -> CanonicalFile | None:
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
            raise UnsupportedError(
                "keyed state in the native format of the heap backend is not covered yet",
                where=Where(file=stream.name),
                hint="Take a canonical savepoint (`flink savepoint --type canonical`)",
            )
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

    A native section begins with the key group as i32 and then, for every state, its id; a canonical one with a state
    id and the length of the first key, whose prefix repeats the key group.
    """
    present = [(offset, group) for offset, group in zip(handle.offsets, handle.key_groups, strict=True) if offset]
    if not present:
        return False
    offset, key_group = min(present)
    header = parse_header(read_stream_range(stream, 0, offset), stream.name)
    if header.compressed:
        # Canonical sections are snappy streams as a whole; native ones begin with the bare key group.
        return read_stream_range(stream, offset, min(offset + 4, stream.size)) == key_group.to_bytes(4, "big")
    reader = Reader(read_stream_range(stream, offset, min(offset + 9, stream.size)), stream.name)
    if reader.remaining < 8:
        return True
    state_id, size = reader.i16(), reader.i32()
    if not 0 <= state_id < len(header.states) or size < 1 or state_id == END_OF_KEY_GROUP:
        return True
    first = reader.u8() & 0x7F
    if first == key_group:
        return False
    return reader.remaining < 1 or (first << 8 | reader.u8()) != key_group


@lru_cache(maxsize=256)
def parse_header(data: bytes, name: str) -> KeyedHeader:
    """The header of keyed state; subtasks mostly share its bytes."""
    reader = Reader(data, name)
    return read_keyed_header(reader)
