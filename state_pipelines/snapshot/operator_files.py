"""Metadata of an operator and its files of keyed state."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.keys.key_hashes import find_key_group
from state_pipelines.metadata import format_operator_id
from state_pipelines.metadata.references import StateCategory, operator_handles
from state_pipelines.snapshot.python_states import python_name
from state_pipelines.snapshot.snapshot_files import SnapshotFiles, measure_handle
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import count_scans_ahead, scan_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.storage import Location

Item = TypeVar("Item")
Result = TypeVar("Result")


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

    def scan_ahead(
        self, items: Iterable[Item], scan: Callable[[Item], Iterator[Result]], most: int | None = None
    ) -> Iterator[tuple[Item, Iterator[Result]]]:
        """Scan files of its keyed state, or parts of them of `most` bytes; see `storage.reading.scan_ahead`."""
        size = self._mean_size if most is None else min(most, self._mean_size)
        return scan_ahead(items, scan, self.snapshot.location.directory, size)

    @property
    def scans_in_flight(self) -> int:
        """Number of scans of its files that one process had better run at a time: they wait for the storage."""
        return self.count_in_flight(self.snapshot.location.directory)

    def count_in_flight(self, target: Location) -> int:
        """Number of its files that one process had better read and write at `target` at a time."""
        if is_local(self.snapshot.location.directory) and is_local(target):
            return 1
        return 1 + count_scans_ahead(self._mean_size)

    @property
    def _mean_size(self) -> int:
        return self.keyed_size // max(1, len(self.keyed_files))

    def find_python_type(self, info: StateMetaInfo) -> PythonDeclaration | None:
        """The declared type of a state of a Python function; None when there is none."""
        types = self.snapshot.python_types.get(self.metadata.operator_id, {})
        name = python_name(info)
        return types.get(name, types.get(info.name)) if name else None

    def require_key_groups(self, key_groups: KeyGroupRange) -> None:
        """Refuse a range that begins after the last key group.

        Raises:
            UsageError: it does; says which key groups there are.
        """
        if self.max_parallelism > 0 and key_groups.start >= self.max_parallelism:
            text = f"{key_groups.start}-{key_groups.start + key_groups.number - 1}"
            raise UsageError(
                f"there are no key groups {text}",
                where=Where(operator=self.label),
                hint=f"The operator has the key groups 0-{self.max_parallelism - 1}",
            )

    def narrow_key_groups(
        self, key: npt.NDArray[np.uint8] | None, key_groups: KeyGroupRange | None = None
    ) -> KeyGroupRange | None:
        """Narrow a range of key groups to that of a key, so that no other is read.

        Args:
            key: u8, the key as its serializer writes it; None for all keys.
            key_groups: range that is asked for; None for all key groups.

        Returns:
            The range, empty when the key is in another key group; `key_groups` where the hash of the key is not known.
        """
        if key is None or not self.keyed_files:
            return key_groups
        serializer, layouts = self.keyed_files[0][1].header.key_serializer, self.snapshot.layout_context
        found = find_key_group(serializer, layouts, key, self.max_parallelism)
        if found is None:
            return key_groups
        return found if key_groups is None else found.intersect(key_groups)
