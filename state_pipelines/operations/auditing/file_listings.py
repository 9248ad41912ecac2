"""Sizes of files by one listing per directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.storage import Location, file_size
from state_pipelines.storage.files import exists
from state_pipelines.storage.listing import list_sizes
from state_pipelines.storage.locations import Threads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

THREADS = 16
"""Listings and sizes that are asked for at a time."""

_FEW = 4
"""Up to so many files of a directory are asked for one by one: `shared/` may hold those of many checkpoints."""


class Listings:
    """Sizes of files; a directory is listed once, for any number of snapshots.

    Files that change after a directory was listed are not seen: use one instance per audit.
    """

    def __init__(self) -> None:
        self._directories: dict[tuple[int, str], Mapping[str, int] | StateError | None] = {}
        self._files: dict[tuple[int, str], int | StateError | None] = {}

    def load(self, wanted: Mapping[Location, Collection[str]]) -> None:
        """List directories, several at a time.

        Args:
            wanted: names of files by their directory.
        """
        missing = {each: names for each, names in wanted.items() if _key(each) not in self._directories}
        few = [
            Location(each.filesystem, f"{each.path}/{name}")
            for each, names in missing.items()
            if len(names) <= _FEW
            for name in names
        ]
        few = [each for each in few if _key(each) not in self._files]
        many = [each for each, names in missing.items() if len(names) > _FEW]
        if len(few) + len(many) <= 1:
            sizes, listings = list(map(_measure, few)), list(map(_list, many))
        else:
            with Threads(THREADS) as pool:
                measured, listed = pool.map(_measure, few), pool.map(_list, many)
                sizes, listings = list(measured), list(listed)
        self._files.update(zip(map(_key, few), sizes, strict=True))
        self._directories.update(zip(map(_key, many), listings, strict=True))

    def find_size(self, directory: Location, name: str) -> int | None:
        """Size of a file in a directory that was loaded; None when there is no such file.

        Raises:
            StateError: the storage did not answer.
        """
        listing = self._directories.get(_key(directory), _UNLISTED)
        if listing is _UNLISTED:
            size = self._files.get((id(directory.filesystem), f"{directory.path}/{name}"))
            if isinstance(size, StateError):
                raise size
            return size
        if isinstance(listing, StateError):
            raise listing
        return None if listing is None else listing.get(name)

    def list(self, directory: Location) -> Mapping[str, int]:
        """Names and sizes in a directory; -1 for directories; nothing where there is none or it cannot be listed."""
        key = _key(directory)
        if key not in self._directories:
            self._directories[key] = _list(directory)
        listing = self._directories[key]
        return {} if listing is None or isinstance(listing, StateError) else listing


_UNLISTED: Mapping[str, int] = {}


def _key(location: Location) -> tuple[int, str]:
    return id(location.filesystem), location.path


def _list(directory: Location) -> Mapping[str, int] | StateError | None:
    try:
        return list_sizes(directory)
    except StateError as error:
        return error


def _measure(file: Location) -> int | StateError | None:
    try:
        return file_size(file)
    except MissingFileError as error:
        try:
            return error if exists(file) else None
        except StateError as other:
            return other
