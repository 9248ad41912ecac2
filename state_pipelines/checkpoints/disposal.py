"""Disposal of checkpoints in an order that a kill may interrupt anywhere: `_metadata` first, then files.

Source: `CompletedCheckpoint.CompletedCheckpointDiscardObject`, `CheckpointsCleaner`. Without `_metadata` no reader
finds the checkpoint; what is left of it is what retention calls an orphan.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.storage import join
from state_pipelines.storage.deletion import delete_files, remove_empty_directory
from state_pipelines.storage.files import is_directory, list_directory, remove_directory, remove_file
from state_pipelines.storage.resolution import MANIFEST_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.storage import Location

_log = logging.getLogger(__name__)


class Disposal:
    """Deletes files and directories; what the storage refuses is tried again with the next checkpoint.

    Attributes:
        files: files that could not be deleted yet.
        directories: directories that could not be removed yet, with all that is in them.
    """

    def __init__(self) -> None:
        self.files: list[Location] = []
        self.directories: list[Location] = []

    def retire(self, metadata: Location) -> bool:
        """Delete a `_metadata`; return whether it is gone, so that files of the checkpoint may go."""
        try:
            remove_file(metadata)
        except StateError as error:
            _log.warning("A checkpoint could not be discarded, which is tried again: %s", error)
            return False
        return True

    def delete(self, files: Iterable[Location]) -> None:
        """Delete files, and those that could not be deleted before."""
        wanted = [*self.files, *files]
        if not wanted:
            return
        self.files = []
        for file, error in zip(wanted, delete_files(wanted), strict=True):
            if error is not None:
                self.files.append(file)
                _log.warning("A file could not be deleted, which is tried again: %s", error)

    def remove(self, directories: Iterable[Location] = ()) -> None:
        """Remove directories with all that is in them, and those that could not be removed before.

        Args:
            directories: of checkpoints without `_metadata`.
        """
        wanted = [*self.directories, *directories]
        self.directories = []
        for directory in wanted:
            try:
                remove_directory(directory)
            except StateError as error:
                self.directories.append(directory)
                _log.warning("A directory could not be removed, which is tried again: %s", error)

    def remove_if_empty(self, directory: Location) -> None:
        """Remove a directory unless something other than a manifest is in it; then the manifest stays too."""
        try:
            left = [each.location.name for each in list_directory(directory)] if is_directory(directory) else []
        except StateError as error:
            _log.warning("A directory could not be listed, and stays: %s", error)
            return
        if left == [MANIFEST_FILE]:
            self.delete([join(directory, MANIFEST_FILE)])
        remove_empty_directory(directory)
