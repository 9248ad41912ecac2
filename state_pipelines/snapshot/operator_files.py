"""Metadata of an operator and its files of keyed state."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata import format_operator_id
from state_pipelines.metadata.references import StateCategory, operator_handles
from state_pipelines.snapshot.snapshot_files import SnapshotFiles, measure_handle

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import OperatorState


class OperatorFiles:
    """Metadata and files of one operator of a snapshot.

    Attributes:
        snapshot: the snapshot.
        metadata: what `_metadata` says of the operator.
        uid: uid, when the snapshot stores it or the caller knows it.
        is_partial: state in files that cannot be read is left out; else asking for it raises the error of the file.
    """

    def __init__(
        self, snapshot: SnapshotFiles, metadata: OperatorState, uid: str | None = None, *, is_partial: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.metadata = metadata
        self.uid = metadata.uid or uid
        self.is_partial = is_partial

    @property
    def id(self) -> str:
        """Operator id, 32 hexadecimal digits."""
        return format_operator_id(self.metadata.operator_id)

    @property
    def name(self) -> str | None:
        """Operator name; Flink stores it from 2.0 on."""
        return self.metadata.name

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not known."""
        return self.uid or self.id

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""
        return self.metadata.parallelism

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self.metadata.max_parallelism

    @property
    def record_context(self) -> RecordContext:
        """The properties needed, besides the bytes, to find the records of its keyed state."""
        return RecordContext(self.max_parallelism, self.snapshot.layout_context)

    @cached_property
    def keyed_size(self) -> int:
        """Bytes of keyed state that the handles name, managed and raw; nothing is read."""
        return sum(
            measure_handle(reference.handle)
            for reference in operator_handles(self.metadata)
            if reference.category in (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        )

    @cached_property
    def keyed_files(self) -> tuple[tuple[int, KeyedFile], ...]:
        """Index of each subtask that has keyed state, and its file."""
        if self.is_partial:
            return self.snapshot.keyed_files.survey(self.metadata, self.snapshot.layout_context)[0]
        return self.snapshot.keyed_files.open(self.metadata, self.snapshot.layout_context)

    @property
    def stored_files(self) -> tuple[KeyedFile, ...]:
        """The files of its keyed state with the key groups that handles store; see `KeyedFiles.open_stored`."""
        return self.snapshot.keyed_files.open_stored(self.metadata, self.snapshot.layout_context)
