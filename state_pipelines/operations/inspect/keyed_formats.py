"""Formats of the keyed state of an operator, with the number of files of each kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.keyed.changelog.changes import is_compressed
from state_pipelines.keyed.keyed_file import FileFormat
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import read_whole_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile, LoggedFile
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.snapshot.handle_readers import HandleReader

FORST = "ForSt"

_COMPRESSION = re.compile(r"compression=k(\w+?)(?:Compression)?")
# ForSt writes the same options file as RocksDB; its working directory differs: `ForStKeyedStateBackendBuilder`
# names the directory of an operator `op_…` with this end, and its log goes there.
_LOG_DIRECTORY = "db_log_dir="
_FORST_DIRECTORY_END = re.compile(r"__\d+_\d+__attempt_\d+/db$")


@dataclass(frozen=True)
class KeyedFormat:
    """Keyed state of an operator in one format.

    Attributes:
        format: `canonical`, `heap native`, `RocksDB native` (every file belongs to the snapshot), `RocksDB incremental`
            (files that other checkpoints may share), the same with `ForSt`, or `changelog` and the formats of what is
            materialized: `changelog over heap native`.
        subtasks: indices of the subtasks.
        compression: `snappy`, `none` or another algorithm of RocksDB; `mixed` where it differs; of changelog that of
            the materialized state, empty without any.
        file_merging: the state is in segments of merged files.
        shared_files: files that other checkpoints may share.
        private_files: the other files of the database, its meta stream included; of other formats the streams.
        bases: of changelog: materialized handles.
        changes: of changelog: streams with changes, inlined ones included.
        change_bytes: bytes of changes, as the handles say.
        change_compression: of changes in files; empty for others.
    """

    format: str
    subtasks: list[int]
    compression: str
    file_merging: bool = False
    shared_files: int = 0
    shared_bytes: int = 0
    private_files: int = 0
    private_bytes: int = 0
    bases: int = 0
    changes: int = 0
    change_bytes: int = 0
    change_compression: str = ""


def find_keyed_formats(
    handles: Iterable[tuple[int, KeyedStateHandle | None]],
    files: Sequence[tuple[int, KeyedFile]],
    reader: HandleReader,
    *,
    without_options: bool = False,
) -> list[KeyedFormat]:
    """The formats of an operator, each with the subtasks that have it.

    Args:
        handles: index of each subtask, and its managed keyed state.
        files: the same, opened; subtasks whose files cannot be opened are left out.
        reader: opens streams; of a database the options file of one subtask is read.
        without_options: read no options file; it is then not known which of the two databases it is.

    Raises:
        StateError: a file cannot be read.
    """
    opened: dict[int, KeyedFile] = {}
    for subtask, file in files:
        # Managed state comes first, then timers of raw state.
        opened.setdefault(subtask, file)
    present = [(subtask, handle) for subtask, handle in handles if handle is not None and subtask in opened]
    # A database without records has no file to share, but the other subtasks tell.
    incremental = any(_has_shared_files(handle) for _, handle in present)
    databases = _Databases(reader, incremental, without_options)
    found: dict[tuple[str, str, bool], tuple[KeyedFormat, list[int]]] = {}
    for subtask, handle in present:
        one = _describe(handle, opened[subtask], databases)
        key = (one.format, one.compression, one.file_merging)
        total, subtasks = found.get(key, (None, []))
        subtasks.append(subtask)
        found[key] = one if total is None else _add(total, one), subtasks
    return [replace(total, subtasks=subtasks) for total, subtasks in found.values()]


class _Databases:
    """Options files of RocksDB and ForSt.

    Args:
        reader: opens streams.
        incremental: some subtask has files that other checkpoints may share.
        without_options: read no options file.
    """

    def __init__(self, reader: HandleReader, incremental: bool, without_options: bool) -> None:
        self.reader = reader
        self.incremental = incremental
        self._without_options = without_options
        self._known: dict[tuple[str, ...], tuple[str, str]] = {}

    def identify(self, handle: IncrementalRemoteKeyedStateHandle) -> tuple[str, str]:
        """(`RocksDB` or `ForSt`, compression); subtasks whose file has the same name have the same options."""
        if self._without_options:
            return f"{FileFormat.ROCKSDB.value} or {FORST}", ""
        options = [each for each in handle.private_state if each.local_path.startswith("OPTIONS-")]
        key = tuple(each.local_path for each in options)
        if key not in self._known:
            raw = read_whole_stream(self.reader.open_stream(options[0].handle)) if options else b""
            lines = [each.strip() for each in raw.decode("utf-8", "replace").splitlines()]
            store = FORST if any(map(_names_forst, lines)) else FileFormat.ROCKSDB.value
            compressions = filter(None, map(_COMPRESSION.fullmatch, lines))
            self._known[key] = store, _join(each[1] for each in compressions)
        return self._known[key]


def _names_forst(line: str) -> bool:
    end = _FORST_DIRECTORY_END.search(line)
    return end is not None and line.startswith(_LOG_DIRECTORY) and "op_" in line[: end.start()]


def _has_shared_files(handle: KeyedStateHandle) -> bool:
    if isinstance(handle, ChangelogStateBackendHandle):
        return any(map(_has_shared_files, handle.materialized))
    return isinstance(handle, IncrementalRemoteKeyedStateHandle) and bool(handle.shared_state)


def _describe(handle: KeyedStateHandle, file: KeyedFile, databases: _Databases) -> KeyedFormat:
    match handle:
        case KeyGroupsStateHandle() | KeyGroupsSavepointStateHandle():
            compression = "snappy" if file.header.compressed else "none"
            return _count_files(KeyedFormat(file.format.value, [], compression), (), (handle.delegate,))
        case IncrementalRemoteKeyedStateHandle():
            store, compression = databases.identify(handle)
            if file.is_forst:
                store = FORST
            name = f"{store} {'incremental' if databases.incremental else 'native'}"
            shared = [each.handle for each in handle.shared_state]
            private = [*(each.handle for each in handle.private_state), handle.meta_data_state]
            return _count_files(KeyedFormat(name, [], compression), shared, private)
        case ChangelogStateBackendHandle():
            (log,) = file.change_logs()
            return _describe_changelog(handle, log, databases)
    return KeyedFormat(type(handle).__name__, [], "")


def _describe_changelog(handle: ChangelogStateBackendHandle, file: LoggedFile, databases: _Databases) -> KeyedFormat:
    bases = [_describe(base, opened, databases) for base, opened in zip(handle.materialized, file.bases, strict=True)]
    streams: list[StreamStateHandle] = []
    compressions: list[str] = []
    inlined = size = 0
    for log in handle.non_materialized:
        if isinstance(log, ChangelogStateHandleStream):
            streams += [each.handle for each in log.streams]
            size += log.size
        elif isinstance(log, InMemoryChangelogStateHandle):
            inlined += 1
            size += sum(len(each.change) for each in log.changes)
    for each in dict.fromkeys(streams):
        # Its log has been read for the state, so that this is no request.
        stream = replace(databases.reader.open_stream(each), holds_changes=True)
        flag = databases.reader.kept.read(stream, 0, 1)
        compressions.append("snappy" if is_compressed(flag, stream.name) else "none")
    kinds = " and ".join(dict.fromkeys(base.format for base in bases))
    total = KeyedFormat(
        f"{file.format.value} over {kinds}" if kinds else file.format.value,
        [],
        _join([base.compression for base in bases]),
        any(isinstance(each, SegmentFileStateHandle) for each in streams),
        bases=len(bases),
        changes=inlined + len(streams),
        change_bytes=size,
        change_compression=_join(compressions),
    )
    for base in bases:
        total = _add(total, replace(base, subtasks=[]))
    return total


def _count_files(
    one: KeyedFormat, shared: Sequence[StreamStateHandle], private: Sequence[StreamStateHandle]
) -> KeyedFormat:
    return KeyedFormat(
        one.format,
        [],
        one.compression,
        file_merging=any(isinstance(each, SegmentFileStateHandle) for each in (*shared, *private)),
        shared_files=len(shared),
        shared_bytes=sum(map(measure_handle, shared)),
        private_files=len(private),
        private_bytes=sum(map(measure_handle, private)),
    )


def measure_handle(handle: StreamStateHandle) -> int:
    """Bytes of state of a handle, as recorded in it."""
    if isinstance(handle, ByteStreamStateHandle):
        return len(handle.data)
    return int(getattr(handle, "size", 0))


def _add(one: KeyedFormat, other: KeyedFormat) -> KeyedFormat:
    return KeyedFormat(
        one.format,
        [*one.subtasks, *other.subtasks],
        one.compression,
        one.file_merging or other.file_merging,
        one.shared_files + other.shared_files,
        one.shared_bytes + other.shared_bytes,
        one.private_files + other.private_files,
        one.private_bytes + other.private_bytes,
        one.bases + other.bases,
        one.changes + other.changes,
        one.change_bytes + other.change_bytes,
        _join([one.change_compression, other.change_compression]),
    )


def _join(compressions: Iterable[str]) -> str:
    known = {"none" if each.lower() in ("no", "none") else each.lower() for each in compressions if each}
    return "mixed" if len(known) > 1 else next(iter(known), "")
