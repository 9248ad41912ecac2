"""Listings of directories: all files below one, with few requests and little memory."""

from __future__ import annotations

import os
import queue
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fsspec.asyn import AsyncFileSystem

from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.storage.files import FileEntry, is_directory, list_directory, make_time, modified_time, to_entry
from state_pipelines.storage.locations import (
    Location,
    Threads,
    has_directories,
    is_local,
    is_s3,
    request,
    translate,
    translating,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsspec import AbstractFileSystem

IN_FLIGHT = 16
"""Ranges of names that are listed at a time."""

PAGE = 1_000
"""Objects of a page, the most that S3 gives."""

SEQUENTIAL = 4
"""Pages that are listed sequentially before ranges are listed in parallel, since each range may list a page in vain."""

WAITING = 8
"""Maximum number of pages of one range that wait in memory for the reader."""

_LAST = "\U0010ffff"
"""A character after all characters in names."""

# Inside a directory, ranges of names that are listed in parallel begin at these hexadecimal digits, because Flink names
# most files by random UUIDs.
_CUTS = "2468ace"


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object in a listing.

    Attributes:
        path: bucket and key.
        size: bytes.
        modified: time of the last change.
    """

    path: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class _Range:
    """Range of names after `start` up to `end` (inclusive); if `end` is empty, up to the last name."""

    start: str
    end: str


def parse_times_fast(filesystem: AbstractFileSystem) -> None:
    """Make a new s3fs file system parse times without dateutil, which takes two thirds of the time of a listing."""
    from aiobotocore.session import AioSession

    if filesystem.session is None:
        session = AioSession(**filesystem.kwargs)
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        filesystem.session = session


def _parse_time(value: Any) -> datetime:
    # Listings have times in ISO 8601; headers of responses have them in the format of e-mails.
    if isinstance(value, str) and value[10:11] == "T":
        return datetime.fromisoformat(value)
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed


def list_objects(root: Location, leave_out: Callable[[str], str | None] = lambda _: None) -> Iterator[S3Object]:
    """List the objects below a directory in the order of their names.

    Args:
        root: the directory.
        leave_out: for a key relative to the root, returns a directory above it (ending in `/`) whose objects are not
            listed, or None. If a page ends inside such a directory, the next page begins after it. Several threads
            call it.

    Raises:
        MissingFileError: there is no such bucket.
        StorageError: the storage fails.
    """
    lister = _Lister(root, leave_out)
    after: str | None = ""
    for _ in range(SEQUENTIAL):
        page = lister.list_page(_Range(after or "", ""))
        yield from page.objects
        after = page.next
        if after is None:
            return
    for objects in _share(lister.plan_ranges(after or ""), lister.list_pages):
        yield from objects


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of a listing: its objects, and the name after which the next page begins (None: it is the last page)."""

    objects: list[S3Object]
    next: str | None


class _Lister:
    def __init__(self, root: Location, leave_out: Callable[[str], str | None]) -> None:
        self._root = root
        self._leave_out = leave_out
        self._bucket, key, _ = root.filesystem.split_path(root.path)
        self._prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""

    def list_page(self, wanted: _Range) -> _Page:
        """List one page of the objects in a range of names."""
        answer = self._ask(StartAfter=wanted.start) if wanted.start else self._ask()
        objects: list[S3Object] = []
        left_out = ""
        for each in answer.get("Contents", ()):
            key = str(each["Key"])
            if wanted.end and key > wanted.end:
                return _Page(objects, None)
            if left_out and key.startswith(left_out):
                continue
            below = self._leave_out(key[len(self._prefix) :])
            left_out = "" if below is None else self._prefix + below
            # A name that ends in a slash marks a directory.
            if not left_out and not key.endswith("/"):
                objects.append(S3Object(f"{self._bucket}/{key}", int(each["Size"]), each["LastModified"]))
        if not answer.get("IsTruncated"):
            return _Page(objects, None)
        last = str(answer["Contents"][-1]["Key"])
        after = left_out + _LAST if left_out and last.startswith(left_out) else last
        return _Page(objects, None if wanted.end and after >= wanted.end else after)

    def list_pages(self, wanted: _Range) -> Iterator[list[S3Object]]:
        """List the objects in a range of names, page by page."""
        start: str | None = wanted.start
        while start is not None:
            page = self.list_page(_Range(start, wanted.end))
            yield page.objects
            start = page.next

    def plan_ranges(self, after: str) -> list[_Range]:
        """Divide the names after `after` into ranges that are listed in parallel.

        Ranges begin at the names of directories, and, if there are few directories, also inside them (at `_CUTS`).
        """
        prefix = self._prefix
        directories: list[str] = []
        while True:
            answer = self._ask(prefix=prefix, Delimiter="/")
            directories = [str(each["Prefix"]) for each in answer.get("CommonPrefixes", ())]
            if len(directories) != 1 or answer.get("Contents") or answer.get("IsTruncated"):
                break
            prefix = directories[0]
        directories = [each for each in directories if not self._leave_out(each[len(self._prefix) :])]
        if len(directories) < IN_FLIGHT:
            directories = [each for name in directories or [prefix] for each in (name, *(name + c for c in _CUTS))]
        cuts = [each for each in directories if each > after]
        cuts = cuts[:: max(1, -(-len(cuts) // (4 * IN_FLIGHT)))]
        starts = [after, *cuts]
        return [_Range(start, end) for start, end in zip(starts, [*cuts, ""], strict=True)]

    def _ask(self, *, prefix: str | None = None, **arguments: str) -> dict[str, Any]:
        filesystem = self._root.filesystem

        def ask() -> dict[str, Any]:
            wanted = self._prefix if prefix is None else prefix
            answer: dict[str, Any] = filesystem.call_s3(
                "list_objects_v2", Bucket=self._bucket, Prefix=wanted, MaxKeys=PAGE, **arguments
            )
            return answer

        return request(self._root, "list the files", ask)


def _share(
    ranges: Sequence[_Range], list_pages: Callable[[_Range], Iterator[list[S3Object]]]
) -> Iterator[list[S3Object]]:
    """List ranges at the same time and yield their pages in order; few pages of each range wait in memory."""
    waiting: list[queue.Queue[list[S3Object] | Exception | None]] = [queue.Queue(WAITING) for _ in ranges]
    stopped = threading.Event()

    def put(index: int, item: list[S3Object] | Exception | None) -> None:
        while not stopped.is_set():
            try:
                waiting[index].put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work(index: int) -> None:
        try:
            for page in list_pages(ranges[index]):
                put(index, page)
                if stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - raised again by the reader
            put(index, error)
            return
        put(index, None)

    # Threads take ranges in order, so that the range whose pages are yielded has always been started.
    with Threads(IN_FLIGHT) as pool:
        futures = [pool.submit(work, index) for index in range(len(ranges))]
        try:
            for each in waiting:
                while (item := each.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            stopped.set()
            for future in futures:
                future.cancel()


def list_files(root: Location) -> Iterator[FileEntry]:
    """List every file at any depth below a directory, with sizes and times; nothing when there is no directory.

    S3 lists recursively and in the order of names, with several requests at a time for long listings. On other object
    stores fsspec lists recursively and holds the result in memory. Elsewhere each directory is listed by itself.

    Raises:
        MissingFileError: a directory cannot be listed.
        StorageError: the storage fails.
    """
    filesystem = root.filesystem
    if is_local(root):
        yield from _list_local(root)
    elif is_s3(filesystem):
        for found in list_objects(root):
            yield FileEntry(Location(filesystem, found.path), found.size, is_directory=False, modified=found.modified)
    elif isinstance(filesystem, AsyncFileSystem):
        filesystem.invalidate_cache(root.path)
        infos = request(root, "list the files", lambda: filesystem.find(root.path, detail=True))
        filesystem.invalidate_cache(root.path)
        for name in sorted(infos):
            if infos[name]["type"] == "file":
                yield to_entry(filesystem, infos[name])
    elif is_directory(root):
        directories = [root]
        while directories:
            for entry in list_directory(directories.pop()):
                if entry.is_directory:
                    directories.append(entry.location)
                else:
                    yield entry


def _list_local(root: Location) -> Iterator[FileEntry]:
    if not os.path.isdir(root.path):  # noqa: PTH112
        return
    directories = [root.path]
    while directories:
        directory = directories.pop()
        with translating(Location(root.filesystem, directory), "list the directory"), os.scandir(directory) as found:
            entries = sorted(found, key=lambda each: each.name)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                # Leave out an entry that was removed since the directory was listed, or that is a link to nothing.
                continue
            modified = make_time(status.st_mtime)
            yield FileEntry(
                Location(root.filesystem, entry.path), status.st_size, is_directory=False, modified=modified
            )


def list_sizes(directory: Location) -> dict[str, int] | None:
    """List the names in a directory with the sizes of files, -1 for directories; None when there is no such directory.

    Cheaper than `list_directory` for directories of many files.

    Raises:
        MissingFileError: the directory cannot be listed.
        StorageError: the storage fails.
    """
    filesystem = directory.filesystem

    def read() -> list[dict[str, Any]] | None:
        filesystem.invalidate_cache(directory.path)
        try:
            return list(filesystem.ls(directory.path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return None

    if is_local(directory):
        return request(directory, "list the directory", lambda: _scan_directory(directory.path))
    infos = request(directory, "list the directory", read)
    # Object stores may list the directory itself as an empty object.
    own = directory.path.rstrip("/")
    return (
        None
        if infos is None
        else {
            name.rpartition("/")[2]: -1 if info["type"] == "directory" else int(info["size"] or 0)
            for info in infos
            if (name := info["name"].rstrip("/")) != own
        }
    )


def _scan_directory(path: str) -> dict[str, int] | None:
    sizes = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                # Leave out links to nothing, and files that were removed since the directory was opened.
                with suppress(FileNotFoundError):
                    sizes[entry.name] = -1 if entry.is_dir() else entry.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sizes


LIST_THREADS = 16
"""Directories of a remote file system that are listed at a time."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, directory or link below a directory.

    Attributes:
        name: path relative to that directory, with slashes.
        size: bytes of a file, else 0.
        is_directory: it is a directory, not a link to one.
        is_link: it is a symbolic link or another special file.
        modified: time of the last change; None when the storage does not say.
        inode: device and number of a local file that has several names (hard links), else None.
        links: number of names of the file.
    """

    name: str
    size: int
    is_directory: bool = False
    is_link: bool = False
    modified: datetime | None = None
    inode: tuple[int, int] | None = None
    links: int = 1


def list_tree(root: Location) -> list[TreeEntry]:
    """List every file, directory and link below a directory, sorted by name.

    Directories that vanish meanwhile are left out.

    Raises:
        NotFoundError: there is no such directory.
        MissingFileError: a directory cannot be listed.
    """
    if is_local(root):
        entries = _list_local_trees(root)
    elif not has_directories(root.filesystem):
        # Listing all names by their prefix takes a request per 1,000 objects; listing each directory takes one per
        # directory.
        entries = _list_flat(root)
    else:
        entries = _list_remote(root)
    return sorted(entries, key=lambda entry: entry.name)


def _list_local_trees(root: Location) -> list[TreeEntry]:
    entries: list[TreeEntry] = []
    directories = [""]
    while directories:
        prefix = directories.pop()
        path = os.path.join(root.path, prefix)  # noqa: PTH118
        try:
            with os.scandir(path) as found:
                for each in found:
                    entry = _read_local(each, prefix)
                    if entry is not None:
                        entries.append(entry)
                        if entry.is_directory:
                            directories.append(entry.name + "/")
        except (FileNotFoundError, NotADirectoryError) as error:
            if not prefix:
                raise _no_directory(root) from error
        except OSError as error:
            raise translate(Location(root.filesystem, path), "list the directory", error) from error
    return entries


def _read_local(found: os.DirEntry[str], prefix: str) -> TreeEntry | None:
    try:
        status = found.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    modified = make_time(status.st_mtime)
    name = prefix + found.name
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(name, 0, is_directory=True, modified=modified)
    if not stat.S_ISREG(status.st_mode):
        return TreeEntry(name, 0, is_link=True, modified=modified)
    inode = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
    return TreeEntry(name, status.st_size, modified=modified, inode=inode, links=status.st_nlink)


def _list_flat(root: Location) -> list[TreeEntry]:
    filesystem = root.filesystem
    if is_s3(filesystem):
        begin = len(root.path.rstrip("/")) + 1
        entries = [TreeEntry(each.path[begin:], each.size, modified=each.modified) for each in list_objects(root)]
    else:
        filesystem.invalidate_cache()
        infos = request(root, "list the files", lambda: filesystem.find(root.path, detail=True))
        entries = _to_entries(root, list(infos.values()))
    if not entries and not is_directory(root):
        raise _no_directory(root)
    return entries


def _list_remote(root: Location) -> list[TreeEntry]:
    root.filesystem.invalidate_cache()
    if not is_directory(root):
        raise _no_directory(root)
    entries: list[TreeEntry] = []
    prefix = root.path.rstrip("/") + "/"

    def list_one(path: str) -> list[dict[str, Any]]:
        directory = Location(root.filesystem, path)
        try:
            return request(directory, "list the directory", lambda: list(root.filesystem.ls(path, detail=True)))
        except MissingFileError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return []
            raise

    directories = [root.path]
    with Threads(LIST_THREADS) as threads:
        while directories:
            found = [info for infos in threads.map(list_one, directories) for info in infos]
            level = _to_entries(root, found)
            entries += level
            directories = [prefix + entry.name for entry in level if entry.is_directory]
    return entries


def _to_entries(root: Location, infos: list[dict[str, Any]]) -> list[TreeEntry]:
    prefix = root.path.rstrip("/") + "/"
    entries = []
    for info in infos:
        full = str(info["name"])
        if not full.startswith(prefix) or not full[len(prefix) :].strip("/"):
            # The directory itself, which object stores may list as an empty object.
            continue
        name = full[len(prefix) :]
        is_marker = name.endswith("/") and not info.get("size")
        directory = info["type"] == "directory" or is_marker
        entries.append(
            TreeEntry(
                name.rstrip("/") if directory else name,
                0 if directory else int(info["size"] or 0),
                is_directory=directory,
                is_link=bool(info.get("islink")) or info["type"] not in ("file", "directory"),
                modified=modified_time(info),
            )
        )
    return entries


def _no_directory(root: Location) -> NotFoundError:
    return NotFoundError("there is no such directory", where=Where(file=str(root)), hint="Give an existing directory")
