"""The keyed state of one subtask in another format: one task, which any process can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import at
from state_pipelines.keyed.heap_entries import make_entry_codecs
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupsSavepointStateHandle, RelativeFileStateHandle
from state_pipelines.operations.write.keyed_rewrite import copy_states
from state_pipelines.operations.write.state_formats import Format, NativeFiles
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import Location, PathMapping, join

if TYPE_CHECKING:
    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.heap_entries import EntryCodec
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyGroupRange


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
        operator: its label, for errors.
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
        in_flight: as `Work` says.
    """

    operator_id: bytes
    operator: str
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
    in_flight: int = 1

    def run(self) -> WrittenState:
        """Write it, and read it again; leftovers of a failed attempt are replaced.

        Raises:
            UnsupportedError: a record has no form in the new format.
            StateError: the old state cannot be read.
        """
        with at(operator=self.operator):
            if self.needs_ends:
                self._require_ends()
            handle, size = self.write()
            # Read again, in another way than the writer did: records that its reading lost are not in the new files.
            before = digest_states(self.source, self.context, self.key_groups)
            after = None
            if self.verify:
                again = self.open_written(handle)
                after = {} if again is None else digest_states(again, self.context, self.key_groups)
        return WrittenState(handle, before, size, after)

    @property
    def needs_ends(self) -> bool:
        """Whether the new files are read again without lengths of entries."""
        return self.format is Format.HEAP and self.verify

    def find_doubtful(self) -> list[tuple[int, EntryCodec]]:
        """The ids of states with values whose ends may not be found, and their codecs as entries of a heap."""
        codecs = make_entry_codecs(self.header, self.context)
        return [(number, each) for number, each in enumerate(codecs) if each.is_opaque or not each.entries.is_compiled]

    def _require_ends(self) -> None:
        for state_id, codec in self.find_doubtful():
            with at(state=self.header.states[state_id].name):
                for _, records in self.source.scan([state_id], self.context):
                    codec.require_ends(records)

    def write(self) -> tuple[KeyedStateHandle, int]:
        """Write it and read nothing again: the handle, and bytes written; errors as `run`."""
        return _WRITERS[self.format](self)

    @property
    def native_files(self) -> NativeFiles:
        """The new files, where the new format is a native one."""
        return NativeFiles(
            self.source, self.header, self.key_groups, self.context, self.target, self.name, self.checkpoint_id
        )

    def open_written(self, handle: KeyedStateHandle) -> KeyedFile | None:
        """The new file, before it is published."""
        return HandleReader(self.target, PathMapping()).open_keyed(handle)


def _write_canonical(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    file = join(task.target, task.name)
    written = copy_states(task.subtask, task.source, task.header, task.context, file).run()
    stream = RelativeFileStateHandle(file.name, written.size)
    return KeyGroupsSavepointStateHandle(task.key_groups, written.offsets, stream), written.size


def _write_heap(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    return task.native_files.write_heap()


def _write_rocksdb(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    return task.native_files.write_rocksdb()


_WRITERS = {Format.CANONICAL: _write_canonical, Format.HEAP: _write_heap, Format.ROCKSDB: _write_rocksdb}
