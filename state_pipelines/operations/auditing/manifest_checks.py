"""Comparison of a snapshot with its manifest, which shows changed bytes in files without checksums of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.operations.auditing.report import Depth, Finding, Property, Severity, from_error
from state_pipelines.storage import METADATA_FILE, file_size, join
from state_pipelines.storage.files import COPY_SIZE
from state_pipelines.storage.manifest import find_manifest
from state_pipelines.storage.reading import read_ranges
from state_pipelines.storage.written_files import compute_checksum
from state_pipelines.storage.written_names import MANIFEST_FILE

if TYPE_CHECKING:
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.storage import Location, SnapshotLocation
    from state_pipelines.storage.written_files import WrittenFile

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


def audit_manifest(location: SnapshotLocation, depth: Depth, findings: Findings) -> ManifestAudit:
    """Compare `_metadata` with the manifest, and by depth the files that it names.

    Missing files are not reported here: `audit_files` does.

    Args:
        location: of the snapshot.
        depth: `files` compares `_metadata` alone, `sample` also files of up to `SAMPLED_SIZE`, `whole` all files.
        findings: receives what differs.
    """
    place = join(location.directory, MANIFEST_FILE)
    try:
        manifest = find_manifest(location.directory)
    except StateError as error:
        findings.add(from_error(error, Property.CHECKSUMS, file=str(place)))
        return ManifestAudit(exists=True)
    if manifest is None:
        return ManifestAudit(exists=False)
    limit = {Depth.FILES: -1, Depth.SAMPLE: SAMPLED_SIZE}.get(depth)
    files = [each for each in manifest.files if each.checksum is not None and (limit is None or each.size <= limit)]
    wanted = [(location.metadata, manifest.metadata)]
    wanted += [(join(location.directory, each.name), each) for each in files]
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(_compare, *zip(*wanted, strict=True)):
            if found is not None:
                findings.add(found)
    return ManifestAudit(True, len(wanted), len(manifest.files) + len(manifest.referenced) - len(files))


def _compare(place: Location, recorded: WrittenFile) -> Finding | None:
    try:
        size = file_size(place)
        found = compute_checksum(read_ranges([(place, 0, size)], COPY_SIZE))
    except MissingFileError:
        # A finding of `audit_files`.
        return None
    except StateError as error:
        return from_error(error, Property.CHECKSUMS, file=str(place))
    if (size, found) == (recorded.size, recorded.checksum):
        return None
    what = "the file has changed since it was written: its checksum differs from the one in the manifest"
    if size != recorded.size:
        what = f"the file has changed since it was written: {size:,} bytes instead of {recorded.size:,}"
    whole = "" if recorded.name != METADATA_FILE else ", with all files of the snapshot"
    hint = f"Restore it from a backup{whole}, or use another snapshot"
    return Finding(Severity.ERROR, Property.CHECKSUMS, what, file=str(place), hint=hint)
