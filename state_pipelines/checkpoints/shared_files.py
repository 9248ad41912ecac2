"""Files of checkpoints, counted by reference; a file that a checkpoint references is never released.

Source: `SharedStateRegistryImpl`. A file is known by its location, as in Flink since 1.17.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from state_pipelines.errors import OutOfReachError
from state_pipelines.metadata import CheckpointMetadata, OperatorState, list_references
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.metadata.references import operator_handles
from state_pipelines.metadata.streams import locate_file, name_file
from state_pipelines.storage import PathMapping
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.metadata import SubtaskState
    from state_pipelines.storage import Location


def list_files(
    metadata: CheckpointMetadata, directory: Location, path_mapping: PathMapping | None = None
) -> frozenset[Location]:
    """Return the files that a snapshot references, those in its own directory included.

    Args:
        metadata: of the snapshot.
        directory: of the snapshot, from which relative handles start.
        path_mapping: current directories of absolute handles.

    Raises:
        FormatError: a relative path leaves the directory.
        OutOfReachError: a file is outside the directories that the snapshot may name.
        UsageError: the storage of an absolute handle cannot be reached.
    """
    mapping = () if path_mapping is None else (path_mapping,)
    handles = {reference.handle for reference in list_references(metadata) if isinstance(reference.handle, _FILES)}
    return frozenset(locate_file(handle, directory, *mapping) for handle in handles)


def name_files(metadata: CheckpointMetadata, directory: Location, path_mapping: PathMapping) -> frozenset[Location]:
    """Return the files of this storage that a snapshot names, in reach or not: those that must not be deleted.

    Arguments as for `list_files`.
    """
    handles = (reference.handle for reference in list_references(metadata) if isinstance(reference.handle, _FILES))
    named = (name_file(handle, directory, path_mapping) for handle in handles)
    return frozenset(each for each in named if each is not None)


def list_subtask_files(state: SubtaskState, directory: Location, beside: Iterable[Location]) -> frozenset[Location]:
    """Return the files that one subtask references and that its checkpoint may name; others are never published.

    Args:
        state: of the subtask.
        directory: of the checkpoint.
        beside: other directories whose files it may name.
    """
    allowed = PathMapping().allow(each.url for each in beside)
    operator = OperatorState(bytes(16), 1, 1, (state,))
    found: set[Location] = set()
    for reference in operator_handles(operator):
        if isinstance(reference.handle, _FILES):
            with suppress(OutOfReachError):
                found.add(locate_file(reference.handle, directory, allowed))
    return frozenset(found)


_FILES = (FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle)


class SharedFiles:
    """The files that pending and completed checkpoints reference.

    Attributes:
        frozen_by: why no file is released any more; empty where files are released.
    """

    def __init__(self) -> None:
        self.frozen_by = ""
        self._users: dict[Location, set[int]] = {}
        self._files: dict[int, set[Location]] = {}
        self._protected: set[Location] = set()

    def __len__(self) -> int:
        """Return the number of files that are referenced."""
        return len(self._users)

    def __contains__(self, file: object) -> bool:
        """Return whether a file is referenced, or belongs to somebody else."""
        return file in self._users or file in self._protected

    @property
    def directories(self) -> set[Location]:
        """The directories of the files that are referenced."""
        return {parent(file) for file in self._users}

    def register(self, checkpoint_id: int, files: Iterable[Location]) -> None:
        """Note that a checkpoint references files; they may have been registered before."""
        own = self._files.setdefault(checkpoint_id, set())
        for file in files:
            own.add(file)
            self._users.setdefault(file, set()).add(checkpoint_id)

    def protect(self, files: Iterable[Location]) -> None:
        """Note files that are never released: those of a snapshot that belongs to somebody else."""
        self._protected.update(files)

    def freeze(self, reason: str) -> None:
        """Release no file any more, since not all references are known.

        Args:
            reason: one sentence, for people.
        """
        self.frozen_by = self.frozen_by or reason

    def release(self, checkpoint_id: int) -> list[Location]:
        """Forget the references of a checkpoint that is gone.

        Args:
            checkpoint_id: the checkpoint; its `_metadata` does not exist any more, or never did.

        Returns:
            Files that nothing references, in a stable order, to be deleted now.
        """
        free: list[Location] = []
        for file in self._files.pop(checkpoint_id, ()):
            users = self._users[file]
            users.discard(checkpoint_id)
            if not users:
                del self._users[file]
                free.append(file)
        if self.frozen_by:
            return []
        return sorted((file for file in free if file not in self._protected), key=lambda file: file.path)

    def forget(self, checkpoint_id: int) -> None:
        """Forget the references of a checkpoint that stays where it is and does not belong to the job any more."""
        for file in self._files.pop(checkpoint_id, ()):
            self._users[file].discard(checkpoint_id)
            if not self._users[file]:
                del self._users[file]
                self._protected.add(file)
