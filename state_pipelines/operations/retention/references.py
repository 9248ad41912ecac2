"""References: the files that the `_metadata` files below the roots name."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from state_pipelines.errors import FormatError, MissingFileError, StateError, StorageError, Where
from state_pipelines.metadata import CheckpointProperties, list_references, read_metadata
from state_pipelines.metadata.checkpoint import SavepointType, SnapshotKind, find_snapshot_kind
from state_pipelines.metadata.handles import (
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import StreamRole
from state_pipelines.operations.auditing import Listings, is_restorable
from state_pipelines.operations.retention.policy import SnapshotFormat
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import Location, SnapshotLocation, exists, read_file, replace_file
from state_pipelines.storage.documents import MOST_LINES
from state_pipelines.storage.locations import Threads, is_local, parent
from state_pipelines.storage.resolution import follow_path
from state_pipelines.storage.snapshot_writer import read_metadata_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.retention.policy import PathKeys
    from state_pipelines.storage import PathMapping
    from state_pipelines.storage.resolution import FollowedPath

READ_THREADS = 16
"""Number of `_metadata` files that are read concurrently."""

# Beginning of the keys of local files (`PathKeys`).
_LOCAL = "file:"
# Name of the state of `GenericWriteAheadSink`. Java objects in its elements name files in `taskowned` that no handle
# names.
_WRITE_AHEAD_STATE = "pending-checkpoints"


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A `_metadata` file, as the listing of a directory shows it.

    Attributes:
        path: path of the file, as for `PlannedPath.path`.
        directory_key: key of its directory (see `PathKeys`).
        location: location from which the file is read.
        size: size in bytes.
        modified: time of the last change; None if the storage gives no times.
    """

    path: str
    directory_key: str
    location: Location
    size: int
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class SnapshotReferences:
    """The contents of one `_metadata` file that matter for retention.

    Attributes:
        checkpoint_id: id of the checkpoint or savepoint.
        kind: `checkpoint` or `savepoint`; `unknown` before Flink 1.16.
        formats: the format of the snapshot; empty before Flink 1.16.
        files: for each referenced file, by key, the bytes that it must have at least.
        texts: the paths of absolute references, as they are stored, by key.
        directories: names of directories with merged files that operator state needs.
        has_write_ahead_log: user state names files in `taskowned` that no handle names.
        restorable: see `SnapshotVerdict`.
        passed: if referenced files are symbolic links: keys of the directories on the path to their targets.
        unresolved: if referenced files are symbolic links whose targets do not exist: path of the link, by key of the
            directory of the link and by key of the directory in which following the link ends. The link may stand for
            any file in these directories.
    """

    checkpoint_id: int
    kind: SnapshotKind
    formats: frozenset[SnapshotFormat]
    files: dict[str, int]
    texts: dict[str, str]
    directories: frozenset[str]
    has_write_ahead_log: bool
    restorable: bool | None = None
    passed: frozenset[str] = frozenset()
    unresolved: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A `_metadata` file that cannot be read, so that its references are not known.

    Attributes:
        reason: text of the error.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A `_metadata` file that has vanished since it was listed, mostly because Flink has subsumed its checkpoint."""


Reading = SnapshotReferences | Unreadable | Gone

_Known: TypeAlias = tuple[MetadataFile, Reading, tuple[int | None, ...]]


class KnownReferences(NamedTuple):
    """References of a snapshot, with the file sizes from which `restorable` was determined.

    There is a size for each file in `reading.files`; None for a file that was not listed.
    """

    reading: SnapshotReferences
    found_sizes: tuple[int | None, ...]


class ReferenceReader:
    """Reads the references of `_metadata` files.

    A file is read again only if its size or time has changed, or the sizes of files that it references.

    Args:
        keys: computes the keys of paths.
        path_mapping: mapping from directories that absolute handles name to current ones.
        store: references that an earlier plan has read and stored.
    """

    def __init__(self, keys: PathKeys, path_mapping: PathMapping, store: StoredReferences | None = None) -> None:
        self.keys = keys
        self._path_mapping = path_mapping
        self._store = store
        self._last: Sequence[MetadataFile] = ()
        self._known: dict[str, _Known] = {}

    def read(self, files: Sequence[MetadataFile], sizes: SurveyedSizes | None = None) -> list[Reading]:
        """Read the references of `_metadata` files, in threads; the results are in the order of the files.

        Args:
            files: the files.
            sizes: sizes of the files below the roots, from which `restorable` is determined; None to leave it open.
        """
        self._last = files
        if self.keys.refresh():
            self._known.clear()
        with Threads(READ_THREADS) as threads:
            readings = list(threads.map(lambda file: self._read_known(file, sizes), files))
        regular = {} if sizes is None else sizes.sizes
        followed: dict[str, FollowedPath | None] = {}
        return [
            follow_links(reading, regular, followed) if isinstance(reading, SnapshotReferences) else reading
            for reading in readings
        ]

    def save(self) -> None:
        """Store the references of the files that were read last.

        Raises:
            StateError: the storage refuses.
        """
        if self._store is not None:
            known = (self._known[file.path] for file in self._last)
            self._store.save(
                (file, KnownReferences(reading, found))
                for file, reading, found in known
                if isinstance(reading, SnapshotReferences)
            )

    def _read_known(self, file: MetadataFile, sizes: SurveyedSizes | None) -> Reading:
        known, reading, found = self._known.get(file.path) or self._find_stored(file) or (None, Gone(), ())
        # Without a time, a changed file of the same size would not be noticed: read such a file again.
        is_same = known == file and file.modified is not None and not isinstance(reading, Gone)
        if is_same and (sizes is None or found == _find_sizes(reading, sizes)):
            self._known[file.path] = file, reading, found
            return reading
        reading = self._read(file, sizes)
        self._known[file.path] = file, reading, () if sizes is None else _find_sizes(reading, sizes)
        return reading

    def _find_stored(self, file: MetadataFile) -> _Known | None:
        stored = self._store.find(file) if self._store is not None else None
        return None if stored is None else (file, *stored)

    def _read(self, file: MetadataFile, sizes: SurveyedSizes | None) -> Reading:
        try:
            metadata = read_metadata(read_metadata_bytes(file.location), file.path)
            found = extract_references(metadata, file.directory_key, self.keys.key, self._path_mapping)
            if sizes is None:
                return found
            location = SnapshotLocation(parent(file.location), file.location)
            return replace(
                found, restorable=is_restorable(Snapshot(location, metadata, self._path_mapping), listings=sizes)
            )
        except MissingFileError as error:
            return Gone() if _is_gone(file.location) else Unreadable(str(error))
        except (StateError, RecursionError, OSError) as error:
            return Unreadable(" ".join(str(error).split()))


def extract_references(
    metadata: CheckpointMetadata, directory_key: str, key: Callable[[str], str], path_mapping: PathMapping
) -> SnapshotReferences:
    """Extract the references of one snapshot from its metadata.

    Args:
        metadata: the metadata.
        directory_key: key of the directory of the snapshot, to which relative handles refer.
        key: function that returns the key of a path.
        path_mapping: mapping that is applied to absolute paths before.
    """
    files: dict[str, int] = {}
    texts: dict[str, str] = {}
    is_incremental = False
    for reference in list_references(metadata):
        handle = reference.handle
        if isinstance(handle, RelativeFileStateHandle):
            text, size = f"{directory_key}/{handle.relative_path}", handle.size
            name = text if _is_plain(handle.relative_path) else key(text)
        elif isinstance(handle, FileStateHandle):
            text, size = handle.path, handle.size
            name = key(path_mapping.apply(text))
            texts[name] = text
        elif isinstance(handle, SegmentFileStateHandle):
            text, size = handle.path, handle.start + handle.size
            name = key(path_mapping.apply(text))
            texts[name] = text
        else:
            continue
        # Handles of changelog files state sizes before compression (`StateChangeFormat`), so a file may be smaller.
        least = 0 if reference.role is StreamRole.CHANGES else size
        files[name] = max(files.get(name, 0), least)
        is_incremental |= reference.role is StreamRole.SHARED
    kind, formats = find_snapshot_kind(metadata.properties), _find_formats(metadata, is_incremental=is_incremental)
    directories, has_log = _look_into_operator_state(metadata)
    return SnapshotReferences(metadata.checkpoint_id, kind, formats, files, texts, directories, has_log)


def follow_links(
    references: SnapshotReferences, regular: Collection[str], followed: dict[str, FollowedPath | None]
) -> SnapshotReferences:
    """If referenced files are symbolic links, add the files to which they lead to the references.

    Keys of paths follow links among directories only. But a snapshot that references a link needs its target, too.

    Args:
        references: references of a snapshot.
        regular: keys of files that are known not to be links.
        followed: cache of the paths that were followed before, by key; None for files that are not links.
    """
    files = dict(references.files)
    passed: set[str] = set()
    unresolved: dict[str, str] = {}
    for key, size in references.files.items():
        if key in regular or not key.startswith(_LOCAL):
            continue
        if key not in followed:
            path = key.removeprefix(_LOCAL)
            followed[key] = follow_path(path) if os.path.islink(path) else None  # noqa: PTH114
        found = followed[key]
        if found is None:
            continue
        passed.update(_LOCAL + directory for directory in found.directories)
        if found.path is None:
            link = key.removeprefix(_LOCAL)
            unresolved[key.rpartition("/")[0]] = unresolved[_LOCAL + found.directories[-1]] = link
        else:
            real = _LOCAL + found.path
            files[real] = max(files.get(real, 0), size)
    return replace(references, files=files, passed=frozenset(passed), unresolved=unresolved) if passed else references


def _find_sizes(reading: Reading, sizes: SurveyedSizes) -> tuple[int | None, ...]:
    files = reading.files if isinstance(reading, SnapshotReferences) else ()
    return tuple(sizes.get(key) for key in files)


def _find_formats(metadata: CheckpointMetadata, *, is_incremental: bool) -> frozenset[SnapshotFormat]:
    properties = metadata.properties
    if not isinstance(properties, CheckpointProperties):
        return frozenset()
    if isinstance(properties.checkpoint_type, SavepointType):
        return frozenset({SnapshotFormat[properties.checkpoint_type.format_type.name]})
    return frozenset({SnapshotFormat.INCREMENTAL if is_incremental else SnapshotFormat.FULL})


def _look_into_operator_state(metadata: CheckpointMetadata) -> tuple[frozenset[str], bool]:
    directories: set[str] = set()
    has_log = False
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
                if handle is None:
                    continue
                has_log |= any(state.state_name == _WRITE_AHEAD_STATE for state in handle.states)
                if isinstance(handle, FileMergingOperatorStreamStateHandle):
                    directories.update((handle.task_owned_directory, handle.shared_directory))
    # These paths lack scheme and authority (`DirectoryStreamStateHandle` keeps a `java.nio.file.Path`), so they have no
    # keys: return only the names of the directories.
    return frozenset(directory.rstrip("/").rpartition("/")[2] for directory in directories if directory), has_log


def _is_plain(name: str) -> bool:
    return "//" not in name and "/." not in name and not name.startswith((".", "/"))


def _is_gone(location: Location) -> bool:
    try:
        return not exists(location)
    except StateError:
        return False


class SurveyedSizes(Listings):
    """Sizes of files from the listing of a survey; the storage is not asked.

    Args:
        sizes: size of each listed file, by key.
        is_inside: function that returns whether a key is below a root.
        keys: computes the keys of paths.
        linked: for each listed symbolic link to a file, by key of the link: size of the file.
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
        """Return the size of a listed file, or of the file to which a listed link leads; None for other keys."""
        size = self.sizes.get(key)
        return self._linked.get(key) if size is None else size

    def find_size(self, directory: Location, name: str) -> int | None:
        """Return the size of a file; None if there is no such file below the roots.

        Raises:
            StorageError: the directory is outside all roots.
        """
        key = self._keys.key(f"{directory.url}/{name}")
        size = self.get(key)
        if size is None and not self._is_inside(key):
            raise StorageError("the file is outside all roots", where=Where(file=f"{directory}/{name}"))
        return size

    def list(self, directory: Location) -> Mapping[str, int]:
        """Return no files: the audit lists directories only to explain missing files, which is not needed here."""
        return {}


_VERSION = 1
_SETTINGS_KEY = b"state-pipelines.references"
_IDENTITY = ("path", "directory_key", "size", "modified")
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("directory_key", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("formats", pa.list_(pa.string())),
        ("files", pa.list_(pa.string())),
        ("texts", pa.list_(pa.string())),
        ("least_sizes", pa.list_(pa.int64())),
        ("found_sizes", pa.list_(pa.int64())),
        ("directories", pa.list_(pa.string())),
        ("has_write_ahead_log", pa.bool_()),
        ("restorable", pa.bool_()),
    ]
)


class StoredReferences:
    """A file with the references that a plan has read, so that the next plan need not read them again.

    The file is read and replaced as a whole, and has only snapshots of the last plan. References of snapshots on local
    disks are not stored: their keys depend on symbolic links, which may change.

    Args:
        location: the file.
        keys: computes the keys of paths.
        path_mapping: mapping from directories that absolute handles name to current ones.
        roots: keys of the roots.
    """

    def __init__(self, location: Location, keys: PathKeys, path_mapping: PathMapping, roots: Iterable[str]) -> None:
        self._location = location
        settings = [_VERSION, keys.equal_schemes, keys.equal_authorities, repr(path_mapping), sorted(roots)]
        self._settings = sha256(json.dumps(settings).encode()).hexdigest().encode()
        self._rows: list[dict[str, Any]] = []
        self._known: dict[tuple[object, ...], KnownReferences] = {}

    def load(self) -> None:
        """Read the file; start without references if it does not exist, is damaged or was made with other settings."""
        try:
            table = pq.read_table(pa.BufferReader(read_file(self._location, most=MOST_LINES)))
        except (FormatError, MissingFileError, pa.ArrowException, OSError):
            # Arrow raises `OSError` for pages that it cannot decode.
            return
        if (table.schema.metadata or {}).get(_SETTINGS_KEY) == self._settings and table.schema == _SCHEMA:
            rows = table.to_pylist()
            try:
                self._known = {tuple(row[name] for name in _IDENTITY): _to_known(row) for row in rows}
            except (TypeError, ValueError):
                # A damaged file may still be readable for Arrow, with wrong values.
                return
            self._rows = rows

    def find(self, file: MetadataFile) -> KnownReferences | None:
        """Return the stored references of a `_metadata` file; None if its size or time is not the stored one."""
        return self._known.get(tuple(getattr(file, name) for name in _IDENTITY))

    def save(self, known: Iterable[tuple[MetadataFile, KnownReferences]]) -> None:
        """Replace the file if references have changed.

        Raises:
            StateError: the storage refuses.
        """
        # Without a time, the next plan could not see that the `_metadata` file has changed.
        chosen = (each for each in known if each[0].modified is not None and not is_local(each[0].location))
        rows = sorted((_to_row(file, *each) for file, each in chosen), key=lambda row: str(row["path"]))
        if rows == self._rows:
            return
        table = pa.Table.from_pylist(rows, _SCHEMA.with_metadata({_SETTINGS_KEY: self._settings}))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        replace_file(self._location, sink.getvalue().to_pybytes())


def _to_row(file: MetadataFile, reading: SnapshotReferences, found_sizes: tuple[int | None, ...]) -> dict[str, Any]:
    return {
        "path": file.path,
        "directory_key": file.directory_key,
        "size": file.size,
        "modified": file.modified,
        "checkpoint_id": reading.checkpoint_id,
        "kind": reading.kind,
        "formats": sorted(reading.formats),
        "files": list(reading.files),
        "texts": [reading.texts.get(name) for name in reading.files],
        "least_sizes": list(reading.files.values()),
        "found_sizes": list(found_sizes),
        "directories": sorted(reading.directories),
        "has_write_ahead_log": reading.has_write_ahead_log,
        "restorable": reading.restorable,
    }


def _to_known(row: Mapping[str, Any]) -> KnownReferences:
    texts = zip(row["files"], row["texts"], strict=True)
    reading = SnapshotReferences(
        row["checkpoint_id"],
        SnapshotKind(row["kind"]),
        frozenset(map(SnapshotFormat, row["formats"])),
        dict(zip(row["files"], row["least_sizes"], strict=True)),
        {name: text for name, text in texts if text is not None},
        frozenset(row["directories"]),
        row["has_write_ahead_log"],
        row["restorable"],
    )
    return KnownReferences(reading, tuple(row["found_sizes"]))
