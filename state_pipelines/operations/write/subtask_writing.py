"""New keyed state of one subtask, in any format: one task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import at
from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupsSavepointStateHandle, RelativeFileStateHandle
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.write.merged_records import MergedRecords
from state_pipelines.operations.write.state_formats import Format, NativeFiles
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.operations.write.keyed_rewrite import FileRewrite


_WORTH_PROCESSES = 30_000_000
"""Records, of about half a microsecond each in a native format."""


@dataclass(frozen=True)
class WrittenSubtask:
    """New keyed state of one subtask.

    Attributes:
        subtask: index of the subtask.
        handle: for the metadata; its files are relative to the target.
        states: records by name of the state.
        size: bytes written.
    """

    subtask: int
    handle: KeyedStateHandle
    states: dict[str, RecordDigest]
    size: int


@dataclass(frozen=True)
class SubtaskWriting:
    """Merges encoded records with the old state of a subtask, into files of one format.

    Attributes:
        operator: label, for errors.
        rewrite: what is merged; its target is the file of the canonical and of the heap format, and begins the names of
            the files of RocksDB.
        format: of the new files.
        checkpoint_id: of the snapshot.
    """

    operator: str
    rewrite: FileRewrite
    format: Format
    checkpoint_id: int

    @property
    def threads(self) -> int:
        """See `local_processes.Work`.

        Native formats hold the interpreter for a while per record; only many are worth the start of processes.
        """
        base = self.rewrite.base
        records = sum(spill.records for _, spills in self.rewrite.encoded for spill in spills)
        if self.format is not Format.CANONICAL and records > _WORTH_PROCESSES:
            return 1
        return count_kernel_threads([] if base is None else [base])

    def run(self) -> WrittenSubtask:
        """Write it.

        Raises:
            IncompatibleError: a key occurs twice in a state.
            StateError: a spill or the old state cannot be read.
        """
        with at(operator=self.operator):
            return self._write_canonical() if self.format is Format.CANONICAL else self._write_native()

    def _write_canonical(self) -> WrittenSubtask:
        rewrite = self.rewrite
        written = rewrite.run()
        stream = RelativeFileStateHandle(rewrite.target.name, written.size)
        handle = KeyGroupsSavepointStateHandle(rewrite.key_groups, written.offsets, stream)
        return WrittenSubtask(rewrite.subtask, handle, written.states, written.size)

    def _write_native(self) -> WrittenSubtask:
        rewrite = self.rewrite
        compressed = rewrite.header.compressed and self.format is not Format.ROCKSDB
        records = MergedRecords(rewrite)
        files = NativeFiles(
            records,
            replace(rewrite.header, compressed=compressed),
            rewrite.key_groups,
            rewrite.context,
            parent(rewrite.target),
            rewrite.target.name,
            self.checkpoint_id,
        )
        handle, size = files.write_heap() if self.format is Format.HEAP else files.write_rocksdb()
        return WrittenSubtask(rewrite.subtask, handle, records.states, size)
