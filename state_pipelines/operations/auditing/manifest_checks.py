"""Comparison of a snapshot with its manifest, which shows changed bytes in files without checksums of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, OutOfReachError, StateError
from state_pipelines.operations.auditing.report import Depth, Finding, Property, Severity, from_error
from state_pipelines.storage import METADATA_FILE, file_size, join
from state_pipelines.storage.files import COPY_SIZE, compute_checksum
from state_pipelines.storage.locations import Threads, is_local, parent
from state_pipelines.storage.reading import count_together, read_ranges
from state_pipelines.storage.resolution import MANIFEST_FILE, locate_named
from state_pipelines.storage.snapshot_writer import find_manifest

if TYPE_CHECKING:
    from state_pipelines.operations.auditing.file_listings import Listings
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.storage import Location, PathMapping, SnapshotLocation
    from state_pipelines.storage.files import RecordedFile

SAMPLED_SIZE = 4 << 20
"""Bytes up to which a file is compared at the depth `sample`; larger ones at `whole`."""

_THREADS = 4


@dataclass(frozen=True)
class ManifestAudit:
    """Result of the comparison with a manifest.

    Attributes:
        exists: whether there is a manifest.
        checked: files that were compared.
        unchecked: files that were not: too large for the depth, or without a checksum.
    """

    exists: bool
    checked: int = 0
    unchecked: int = 0


def audit_manifest(
    location: SnapshotLocation, path_mapping: PathMapping, depth: Depth, findings: Findings, listings: Listings
) -> ManifestAudit:
    """Compare `_metadata` with the manifest, and by depth the files that it names.

    Missing files are not reported here: `audit_files` does.

    Args:
        location: of the snapshot.
        path_mapping: of the snapshot: links are followed only into directories that it may name.
        depth: `files` compares `_metadata` alone, `sample` also files of up to `SAMPLED_SIZE`, `whole` all files.
        findings: receives what differs.
        listings: of the directories of the snapshot on a storage that is not local; the missing ones are added.
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
            # A finding of `audit_files`.
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
