"""Audit of the files of a snapshot: existence, size, directory, segments that do not overlap, and the manifest.

* `audit_files`, `audit_manifest`: the findings.
* `find_owner`: owners of directories in the layout of Flink's checkpoints (`AbstractFsCheckpointStorageAccess`). A job
  writes `<root>/<job id>/chk-<n>` for each checkpoint, and beside them `shared` and `taskowned`; logged changes are in
  `<base>/<job id>/dstl` (`FsStateChangelogStorage`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, OutOfReachError, StateError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.metadata.handles import SegmentFileStateHandle
from state_pipelines.metadata.streams import StreamRole
from state_pipelines.operations.auditing.report import Depth, Finding, Property, Severity, from_error
from state_pipelines.storage import METADATA_FILE, Location, file_size, join, read_range
from state_pipelines.storage.files import COPY_SIZE, compute_checksum, exists
from state_pipelines.storage.listing import list_sizes
from state_pipelines.storage.locations import Threads, is_below, is_local, parent
from state_pipelines.storage.reading import count_together, read_ranges
from state_pipelines.storage.resolution import (
    CHECKPOINT_DIRECTORY,
    COMMON,
    JOB_DIRECTORY,
    MANIFEST_FILE,
    SAVEPOINT_DIRECTORY,
    locate_named,
    stays_below,
)
from state_pipelines.storage.snapshot_writer import find_manifest

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from state_pipelines.operations.auditing.metadata_checks import FileUse, ReferencedFile, ReferencedFiles
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import PathMapping, SnapshotLocation
    from state_pipelines.storage.files import RecordedFile


def find_owner(directory: str, exclusive: Location) -> str:
    """Describe who owns a directory; empty for that of the snapshot, and for those that its job shares.

    Args:
        directory: path or URL of the directory, after path mapping.
        exclusive: directory of the snapshot.
    """
    own = str(exclusive).rstrip("/")
    if is_below(directory, own):
        return ""
    checkpoint = _find_name(directory, CHECKPOINT_DIRECTORY)
    savepoint = _find_name(directory, SAVEPOINT_DIRECTORY)
    if savepoint:
        return f"the savepoint {savepoint}"
    job_directory = str(parent(exclusive)).rstrip("/")
    job = exclusive.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    names = directory.split("/")
    ours = is_below(directory, job_directory) or (JOB_DIRECTORY.fullmatch(job) is not None and job in names)
    if checkpoint:
        return f"the directory of checkpoint {checkpoint}" + ("" if ours else " of another job")
    if ours and any(name in COMMON for name in names):
        return ""
    if ours:
        return "a directory beside the snapshot"
    other = _find_name(directory, JOB_DIRECTORY)
    return f"a directory of another job ({other})" if other else "a directory outside that of its job"


def _find_name(path: str, pattern: re.Pattern[str]) -> str:
    return next((name for name in reversed(path.split("/")) if pattern.fullmatch(name)), "")


_MOST_SEARCHED = 256
"""Most directories that are listed in search of missing files."""

_MOST_ABOVE = 4
"""Number of ancestors of a snapshot below which `MissingFiles` looks for the end of the path of a missing file."""

_MOST_NAMES = 64
"""Most directory names at the end of the path of a missing file that `MissingFiles` looks for below an ancestor."""

_RESTORED = "Use an earlier snapshot, or restore the file from a backup"


class MissingFiles:
    """Searches the directories around a snapshot for missing files, which handles of the snapshot reference.

    Symbolic links that lead out of these directories are not followed: a snapshot from elsewhere may contain some.

    Args:
        snapshot: the snapshot.
        listings: known listings; further directories are added.
        directories: directories that are searched first.
    """

    def __init__(self, snapshot: Snapshot, listings: Listings, directories: Sequence[Location]) -> None:
        self._snapshot = snapshot
        self._listings = listings
        self._directories = directories
        self._found: dict[str, list[tuple[Location, int]]] | None = None
        self._moved: dict[str, list[Location]] = {}

    def explain(self, file: ReferencedFile) -> Finding:
        """Make the finding on a missing file, with a hint on where it may be and on what to do."""
        use = file.uses[0]
        role = use.reference.role
        kind = {StreamRole.SHARED: "shared file ", StreamRole.PRIVATE: "private file "}.get(role, "file ")
        name = f"{kind}{use.reference.local_path} " if use.reference.local_path else kind
        what = f"the {name}does not exist"
        if file.refusal is not None:
            what = f"the {name}is outside the directories that the snapshot may name"
        if len(file.uses) > 1:
            what += f" ({len(file.uses):,} handles name it)"
        elsewhere: list[Location] = []
        if file.refusal is None or not use.is_relative:
            elsewhere = [
                directory
                for directory, size in self._surroundings.get(file.name, ())
                if size == use.handle.size and directory != file.directory
            ]
        if not use.is_relative:
            elsewhere = elsewhere or self._find_moved(file)
        hint = _RESTORED
        kind = self._snapshot.kind
        if elsewhere and use.is_relative and role is StreamRole.SHARED and kind is not SnapshotKind.SAVEPOINT:
            hint = (
                f"A file of this name and size is in {elsewhere[0]}: after a restore in CLAIM mode from a native "
                "savepoint Flink wrote its path relative to the savepoint into the checkpoint (FLINK-39964). Copy the "
                f"file into {file.directory} before the savepoint is deleted"
            )
        elif elsewhere and use.is_relative:
            hint = f"A file of this name and size is in {elsewhere[0]}: copy it into {file.directory}"
        elif elsewhere:
            old, new = _strip_common(str(file.directory), str(elsewhere[0]))
            hint = f"A file of this name is in {elsewhere[0]}: if it was moved, add --map {old}={new}"
        elif file.refusal is not None:
            hint = file.refusal.hint
        elif use.is_relative and role is StreamRole.SHARED and kind is SnapshotKind.CHECKPOINT:
            hint = (
                "Checkpoints name shared files by absolute paths; a relative one comes from a native savepoint that "
                "was restored in CLAIM mode (FLINK-39964). Copy the file from that savepoint (name its directory or a "
                f"directory above it with --search) into {file.directory}"
            )
        elif not use.is_relative:
            hint = f"If it was moved, say where it is with --map FROM=TO; otherwise: {_RESTORED.lower()}"
        return Finding(
            Severity.UNDETERMINED if file.refusal is not None and not elsewhere else Severity.ERROR,
            Property.FILES,
            what,
            file=str(file.location),
            operator=use.operator,
            subtask=use.subtask,
            hint=hint,
        )

    def _find_moved(self, file: ReferencedFile) -> list[Location]:
        """Find directories with a file of this name and the same end of the path: a whole tree may have been moved."""
        key = str(file.directory)
        if key not in self._moved:
            names = file.directory.path.strip("/").split("/")[-_MOST_NAMES:]
            above = parent(self._snapshot.location.directory)
            directories: list[Location] = []
            for _ in range(_MOST_ABOVE):
                # Stop at the root of the file system: all names below it would give the old path itself.
                if above == parent(above):
                    break
                below = (_below(above, "/".join(names[index:])) for index in range(len(names)))
                directories += [each for each in below if stays_below(each, [above])]
                above = parent(above)
            self._moved[key] = [
                each for each in directories if each != file.directory and file.name in self._listings.list(each)
            ]
        return self._moved[key]

    @property
    def _surroundings(self) -> dict[str, list[tuple[Location, int]]]:
        """(Directory, size) of the files around the snapshot, by file name."""
        if self._found is None:
            self._found = {}
            waiting = deque(self._iter_directories())
            roots = [*self._directories, *self._list_above()]
            seen: set[str] = set()
            while waiting and len(seen) < _MOST_SEARCHED:
                directory = waiting.popleft()
                if directory.path in seen:
                    continue
                seen.add(directory.path)
                if not stays_below(directory, roots):
                    continue
                for name, size in self._listings.list(directory).items():
                    if size >= 0:
                        self._found.setdefault(name, []).append((directory, size))
                    elif SAVEPOINT_DIRECTORY.fullmatch(name) or CHECKPOINT_DIRECTORY.fullmatch(name):
                        waiting.append(_below(directory, name))
        return self._found

    def _iter_directories(self) -> Iterator[Location]:
        """Yield the given directories, then the siblings of the snapshot and, for a checkpoint, those of its job."""
        yield from self._directories
        for above in self._list_above():
            for name, size in self._listings.list(above).items():
                if size < 0:
                    yield _below(above, name)

    def _list_above(self) -> list[Location]:
        """List the parent directory of the snapshot and the directory above it, which holds the job of a checkpoint.

        The root of a file system is left out, because its directories or buckets need not belong together.
        """
        job = parent(self._snapshot.location.directory)
        return [each for each in (job, parent(job)) if each.path.strip("/")]


def _below(directory: Location, name: str) -> Location:
    return Location(directory.filesystem, f"{directory.path.rstrip('/')}/{name}")


def _strip_common(old: str, new: str) -> tuple[str, str]:
    """Remove the common end of an old and a new path; the rests are the two sides of a path mapping."""
    olds, news = old.split("/"), new.split("/")
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds.pop()
        news.pop()
    return "/".join(olds), "/".join(news)


THREADS = 16
"""Number of listings and sizes that are requested concurrently."""

_FEW = 4
"""Number of wanted files up to which their sizes are requested one by one, instead of listing the directory.

A directory such as `shared/` may have the files of many checkpoints.
"""


class Listings:
    """Sizes of files; a directory is listed once, for any number of snapshots.

    Files that change after a directory was listed are not seen: use one instance per audit.
    """

    def __init__(self) -> None:
        self._directories: dict[tuple[int, str], Mapping[str, int] | StateError | None] = {}
        self._files: dict[tuple[int, str], int | StateError | None] = {}

    def load(self, wanted: Mapping[Location, Collection[str]]) -> None:
        """Request the sizes of files concurrently, by listing directories or one by one.

        Args:
            wanted: names of the files by their directory.
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
        """Return the size of a file that was among the `wanted` ones of `load`; None if there is no such file.

        Raises:
            StateError: the storage did not answer when the size was requested.
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
        """Return the sizes in a directory by name, -1 for directories; empty if it is missing or cannot be listed."""
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


_CUT_OFF = "The file was cut off; use an earlier snapshot, or restore the file from a backup"
_GROWN = "Flink never changes a file that it has written: something else did"
_APPENDED = (
    "The extra bytes come after the state and do no harm; but Flink never changes a file that it has written: "
    "something else did, or `rescale` has reused only the first key groups of the file and the manifest is gone"
)


@dataclass(frozen=True)
class FoundFiles:
    """Numbers of the existing files of a snapshot.

    Attributes:
        files: number of files.
        bytes: sum of their sizes.
        directories: number of directories that handles name.
    """

    files: int
    bytes: int
    directories: int


def audit_files(
    snapshot: Snapshot, referenced: ReferencedFiles, listings: Listings, others: Sequence[Location], findings: Findings
) -> FoundFiles:
    """Compare the handles of a snapshot with listings of the directories that they name.

    Args:
        snapshot: the snapshot.
        referenced: the files that its handles reference.
        listings: known sizes; further ones are added.
        others: directories of other snapshots, in which missing files are looked for.
        findings: findings so far; those on files are added.
    """
    by_directory = referenced.by_directory()
    listings.load(by_directory)
    missing = MissingFiles(snapshot, listings, [*by_directory, *others])
    size = count = 0
    for file in referenced.files:
        use = file.uses[0]
        if file.refusal is not None:
            findings.add(missing.explain(file))
            continue
        try:
            found = listings.find_size(file.directory, file.name)
        except StateError as error:
            findings.add(from_error(error, Property.FILES, operator=use.operator, subtask=use.subtask))
            continue
        if found is None:
            findings.add(missing.explain(file))
            continue
        size += found
        count += 1
        _check_size(snapshot, file, found, findings)
        _check_segments(file, found, findings)
    _check_owners(snapshot, referenced, findings)
    return FoundFiles(count, size, len(by_directory))


def _check_size(snapshot: Snapshot, file: ReferencedFile, size: int, findings: Findings) -> None:
    is_warned = False
    for use in file.uses:
        expected = use.handle.size
        if isinstance(use.handle, SegmentFileStateHandle) or expected == size:
            continue
        if use.holds_changes and (size == expected + 1 or (size and _is_compressed(file))):
            continue
        what = f"the file has {size:,} bytes, its handle records {expected:,}"
        if size > expected and use.has_sections:
            # Flink finds key groups by their offsets, so bytes after the last key group do no harm. Warn of them unless
            # `rescale` may be the reason, which writes a manifest.
            if not is_warned and not _has_manifest(snapshot):
                finding = _find(use, file, Property.SIZES, what, offset=expected, hint=_APPENDED)
                findings.add(replace(finding, severity=Severity.WARNING))
            is_warned = True
            continue
        findings.add(
            _find(
                use,
                file,
                Property.SIZES,
                what,
                offset=min(size, expected),
                hint=_CUT_OFF if size < expected else _GROWN,
            )
        )
        return


def _has_manifest(snapshot: Snapshot) -> bool:
    """Return whether the snapshot has a manifest, which only this package writes.

    Then a file may be longer than its handle says, because `rescale` uses only the first key groups of it.
    """
    try:
        return find_manifest(snapshot.location.directory, snapshot.path_mapping) is not None
    except StateError:
        # `audit_manifest` reports the error.
        return False


def _is_compressed(file: ReferencedFile) -> bool:
    try:
        return read_range(file.location, 0, 1) != b"\0"
    except StateError:
        return False


def _check_segments(file: ReferencedFile, size: int, findings: Findings) -> None:
    spans: dict[tuple[int, int], FileUse] = {}
    for use in file.uses:
        handle = use.handle
        if not isinstance(handle, SegmentFileStateHandle):
            continue
        if use.end > size:
            what = f"a segment of bytes {handle.start:,} to {use.end:,} is not inside the file of {size:,} bytes"
            findings.add(_find(use, file, Property.SEGMENTS, what, offset=handle.start, hint=_CUT_OFF))
        elif handle.size:
            spans.setdefault((handle.start, use.end), use)
    for (before, use), (after, other) in pairwise(sorted(spans.items(), key=lambda each: each[0])):
        if after[0] < before[1]:
            what = (
                f"the segments {before[0]:,} to {before[1]:,} (operator {use.operator}, subtask {use.subtask}) and "
                f"{after[0]:,} to {after[1]:,} overlap"
            )
            hint = "At least one of the two handles names bytes of other state; use an earlier snapshot"
            findings.add(_find(other, file, Property.SEGMENTS, what, offset=after[0], hint=hint))


def _check_owners(snapshot: Snapshot, referenced: ReferencedFiles, findings: Findings) -> None:
    """Add warnings on files in directories of other snapshots: deleting those directories breaks this snapshot."""
    counts: dict[str, tuple[FileUse, int]] = {}
    for file in referenced.files:
        if file.refusal is not None:
            continue
        directory = str(file.directory)
        if directory in counts:
            use, count = counts[directory]
            counts[directory] = use, count + 1
        else:
            counts[directory] = file.uses[0], 1
    for directory, (use, count) in counts.items():
        owner = find_owner(directory, snapshot.location.directory)
        if owner:
            what = (
                f"{count:,} file{'s' if count > 1 else ''} of this snapshot {'are' if count > 1 else 'is'} in {owner}"
            )
            findings.add(
                Finding(
                    Severity.WARNING,
                    Property.LOCATIONS,
                    what,
                    file=directory,
                    operator=use.operator,
                    subtask=use.subtask,
                    hint="Keep that directory as long as this snapshot, or write one that holds all its files "
                    "(convert --format keep)",
                )
            )


def _find(
    use: FileUse,
    file: ReferencedFile,
    property: Property,
    what: str,
    *,
    offset: int | None = None,
    hint: str = "",
) -> Finding:
    role = {StreamRole.SHARED: "shared file", StreamRole.PRIVATE: "private file"}.get(use.reference.role)
    if role and use.reference.local_path:
        what = f"{what} ({role} {use.reference.local_path})"
    return Finding(
        Severity.ERROR,
        property,
        what,
        file=str(file.location),
        offset=offset,
        operator=use.operator,
        subtask=use.subtask,
        hint=hint,
    )


SAMPLED_SIZE = 4 << 20
"""Size in bytes up to which a file is compared at the depth `sample`; larger ones are compared at `whole` only."""

_THREADS = 4


@dataclass(frozen=True)
class ManifestAudit:
    """Result of the comparison of a snapshot with its manifest.

    Attributes:
        exists: whether there is a manifest.
        checked: number of files that were compared.
        unchecked: number of files that were not compared: too large for the depth, or without a checksum.
    """

    exists: bool
    checked: int = 0
    unchecked: int = 0


def audit_manifest(
    location: SnapshotLocation, path_mapping: PathMapping, depth: Depth, findings: Findings, listings: Listings
) -> ManifestAudit:
    """Compare `_metadata` with its checksum in the manifest, and also other files, depending on the depth.

    Missing files are not reported here, but by `audit_files`.

    Args:
        location: location of the snapshot.
        path_mapping: path mapping of the snapshot; links are followed only into directories that it allows.
        depth: `files` compares `_metadata` alone, `sample` also files of up to `SAMPLED_SIZE`, `whole` all files.
        findings: findings so far; those on differences are added.
        listings: known sizes, which are used if the storage is remote; further ones are added.
    """
    try:
        manifest = find_manifest(location.directory, path_mapping)
    except StateError as error:
        findings.add(from_error(error, Property.CHECKSUMS, file=str(join(location.directory, MANIFEST_FILE))))
        return ManifestAudit(exists=True)
    if manifest is None:
        return ManifestAudit(exists=False)
    limit = {Depth.FILES: -1, Depth.SAMPLE: SAMPLED_SIZE}.get(depth)
    files = [each for each in manifest.files if each.checksum is not None and (limit is None or each.size <= limit)]
    compared = [manifest.metadata, *files]
    threads = _THREADS
    if not is_local(location.directory):
        threads = max(threads, count_together(sum(each.size for each in compared) // len(compared)))
        wanted: dict[Location, list[str]] = {}
        for file in (join(location.directory, each.name) for each in compared):
            wanted.setdefault(parent(file), []).append(file.name)
        listings.load(wanted)
    compare = partial(_compare, location.directory, path_mapping, listings)
    with Threads(threads) as pool:
        for found in pool.map(compare, compared):
            if found is not None:
                findings.add(found)
    return ManifestAudit(True, 1 + len(files), len(manifest.files) + len(manifest.referenced) - len(files))


def _compare(
    directory: Location, path_mapping: PathMapping, listings: Listings, recorded: RecordedFile
) -> Finding | None:
    location = join(directory, recorded.name)
    try:
        location = locate_named(recorded.name, directory, path_mapping, relative=True, handle="manifest")
        size = file_size(location) if is_local(location) else listings.find_size(parent(location), location.name)
        if size is None:
            # `audit_files` reports missing files.
            return None
        found = compute_checksum(read_ranges([(location, 0, size)], COPY_SIZE)) if size == recorded.size else None
    except StateError as error:
        if isinstance(error, MissingFileError) and not isinstance(error, OutOfReachError):
            return None
        return from_error(error, Property.CHECKSUMS, file=str(location))
    if (size, found) == (recorded.size, recorded.checksum):
        return None
    what = "the file has changed since it was written: its checksum differs from the one in the manifest"
    if size != recorded.size:
        what = f"the file has changed since it was written: {size:,} bytes instead of {recorded.size:,}"
    whole = "" if recorded.name != METADATA_FILE else ", with all files of the snapshot"
    hint = f"Restore it from a backup{whole}, or use another snapshot"
    return Finding(Severity.ERROR, Property.CHECKSUMS, what, file=str(location), hint=hint)
