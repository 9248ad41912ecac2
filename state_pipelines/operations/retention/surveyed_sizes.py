"""Sizes of the files that a survey has listed, for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import StorageError, Where
from state_pipelines.operations.auditing import Listings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from state_pipelines.operations.retention.path_keys import PathKeys
    from state_pipelines.storage import Location


class SurveyedSizes(Listings):
    """Sizes of files from the listing of a survey; the storage is not asked.

    Args:
        sizes: size of each listed file by its key.
        is_inside: returns whether a key is below a root.
        keys: the one spelling of paths.
        linked: size of the file to which each listed symbolic link leads, by the key of the link.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        is_inside: Callable[[str], bool],
        keys: PathKeys,
        linked: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self._linked = linked or {}
        self._is_inside = is_inside
        self._keys = keys

    def load(self, wanted: Mapping[Location, Collection[str]]) -> None:
        """Do nothing: the survey has listed everything below the roots."""

    def get(self, key: str) -> int | None:
        """Size of a listed file, or of that to which a listed link leads; None for others."""
        size = self.sizes.get(key)
        return self._linked.get(key) if size is None else size

    def find_size(self, directory: Location, name: str) -> int | None:
        """Size of a file; None when there is no such file below the roots.

        Raises:
            StorageError: the directory is outside all roots.
        """
        key = self._keys.key(f"{directory.url}/{name}")
        size = self.get(key)
        if size is None and not self._is_inside(key):
            raise StorageError("the file is outside all roots", where=Where(file=f"{directory}/{name}"))
        return size

    def list(self, directory: Location) -> Mapping[str, int]:
        """Nothing: the audit lists directories only to explain missing files."""
        return {}
