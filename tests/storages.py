"""Storages that are not this machine."""

from __future__ import annotations

from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem

from state_pipelines.storage import Location


class CountedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Storage that notes what is read of its files."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    reads: ClassVar[list[tuple[str, int, int]]] = []
    """(path, start, end) of every read."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        content = super().cat_file(path, start=start, end=end, **options)
        self.reads.append((path, start or 0, (start or 0) + len(content)))
        return bytes(content)


def empty_counted() -> Location:
    """The root of the storage, without files or notes."""
    filesystem = CountedFileSystem()
    filesystem.store.clear()
    filesystem.reads.clear()
    return Location(filesystem, "/counted")
