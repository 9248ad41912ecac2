"""Audit of the files of a snapshot: existence, size, directory, and segments that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.metadata.handles import SegmentFileStateHandle
from state_pipelines.metadata.references import StreamRole
from state_pipelines.operations.auditing.missing_files import MissingFiles
from state_pipelines.operations.auditing.ownership import find_owner
from state_pipelines.operations.auditing.report import Finding, Property, Severity, from_error
from state_pipelines.storage import read_range
from state_pipelines.storage.snapshot_writer import find_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.operations.auditing.file_listings import Listings
    from state_pipelines.operations.auditing.referenced_files import FileUse, ReferencedFile, ReferencedFiles
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

_CUT_OFF = "The file was cut off; use an earlier snapshot, or restore the file from a backup"
_GROWN = "Flink never changes a file that it has written: something else did"
_APPENDED = (
    "The state is in front of the rest; but Flink never changes a file that it has written: something else did, "
    "or a rescaling has reused a part of the file and its manifest is gone"
)


@dataclass(frozen=True)
class FoundFiles:
    """Numbers of the files of a snapshot that exist.

    Attributes:
        files: number of files.
        bytes: sum of their sizes.
        directories: directories that hold them.
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
        listings: sizes that are known already; the missing ones are added.
        others: directories of other snapshots, where missing files are looked for.
        findings: receives what does not hold.
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
            # Key groups are found by their offsets, so that what follows them does no harm.
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
    """Return whether this package wrote the snapshot: `rescale` reuses the first key groups of a file."""
    try:
        return find_manifest(snapshot.location.directory, snapshot.path_mapping) is not None
    except StateError:
        # A finding of `audit_manifest`.
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
            hint = "At least one of the two handles does not name its own state"
            findings.add(_find(other, file, Property.SEGMENTS, what, offset=after[0], hint=hint))


def _check_owners(snapshot: Snapshot, referenced: ReferencedFiles, findings: Findings) -> None:
    """Warn of files in directories of other snapshots: deleting those directories breaks this snapshot."""
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
