"""Audit of one snapshot."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, NotFoundError, SnapshotGoneError, UnsupportedError, UsageError
from state_pipelines.operations.auditing.content_checks import audit_contents
from state_pipelines.operations.auditing.file_checks import audit_files
from state_pipelines.operations.auditing.file_listings import Listings
from state_pipelines.operations.auditing.manifest_checks import audit_manifest
from state_pipelines.operations.auditing.metadata_checks import audit_structure
from state_pipelines.operations.auditing.referenced_files import collect_files
from state_pipelines.operations.auditing.report import (
    AuditReport,
    AuditTotals,
    Depth,
    Findings,
    Property,
    Severity,
    from_error,
)
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve_snapshot
from state_pipelines.storage.snapshot_listing import is_removed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from state_pipelines.errors import StateError
    from state_pipelines.storage import Location, SnapshotLocation


def audit_snapshot(
    snapshot: Snapshot | str,
    depth: Depth | str = Depth.SAMPLE,
    *,
    listings: Listings | None = None,
    search: Sequence[Location] = (),
    modified: datetime | None = None,
) -> AuditReport:
    """Check whether a snapshot can be restored, as far as its bytes show; nothing is written.

    Args:
        snapshot: the snapshot, or its path.
        depth: how much is read: `files`, `sample` or `whole`.
        listings: known listings, to share between audits that run at one time.
        search: directories in which missing files are looked for, beside those around the snapshot.
        modified: when `_metadata` was written, for the report.

    A `_metadata` that is damaged or of an unknown version is a finding; only a path is opened here.

    Raises:
        NotFoundError: there is no snapshot at the path.
        SnapshotGoneError: it was removed meanwhile, which is no damage.
        UsageError: the depth does not exist, or the storage cannot be reached.
    """
    started = time.perf_counter()
    depth = parse_depth(depth)
    if isinstance(snapshot, str):
        path = snapshot
        try:
            snapshot = open_snapshot(path)
        except (FormatError, UnsupportedError) as error:
            return report_unreadable(resolve_snapshot(path), depth, error, modified)
    findings = Findings()
    listings = listings or Listings()
    totals = _audit_files(snapshot, listings, search, findings)
    manifest = audit_manifest(snapshot.location, snapshot.path_mapping, depth, findings, listings)
    totals = replace(totals, checksums=manifest.checked, unchecked=manifest.unchecked)
    if depth is not Depth.FILES:
        read = audit_contents(snapshot, depth, findings)
        totals = replace(totals, tables=read.tables, sections=read.sections, records=read.records)
    if findings.counts and is_removed(snapshot.location.directory):
        raise SnapshotGoneError(str(snapshot.location.directory))
    return AuditReport(
        path=snapshot.path,
        depth=depth,
        findings=tuple(findings),
        counts=findings.counts,
        totals=totals,
        kind=snapshot.kind,
        checkpoint_id=snapshot.checkpoint_id,
        fingerprint=snapshot.fingerprint,
        modified=modified,
        seconds=time.perf_counter() - started,
        has_manifest=manifest.exists,
    )


def report_unreadable(
    location: SnapshotLocation, depth: Depth, error: StateError, modified: datetime | None = None
) -> AuditReport:
    """Make the report of a snapshot whose `_metadata` cannot be read."""
    findings = Findings()
    findings.add(from_error(error, Property.METADATA, file=str(location.metadata)))
    return AuditReport(str(location.directory), depth, tuple(findings), findings.counts, modified=modified)


def parse_depth(depth: Depth | str) -> Depth:
    """Return the depth of a name.

    Raises:
        UsageError: there is no such depth.
    """
    try:
        return Depth(depth)
    except ValueError:
        raise UsageError(f"{depth!r} is not a depth", hint=f"Choose one of {', '.join(Depth)}") from None


def _audit_files(snapshot: Snapshot, listings: Listings, search: Sequence[Location], findings: Findings) -> AuditTotals:
    """Check `_metadata`, and the existence and sizes of all files."""
    referenced = collect_files(snapshot, findings)
    audit_structure(snapshot, findings)
    found = audit_files(snapshot, referenced, listings, search, findings)
    return AuditTotals(referenced.handles, found.files, found.bytes, found.directories, referenced.inlined_bytes)


def is_restorable(snapshot: Snapshot | str, *, listings: Listings | None = None) -> bool | None:
    """Return whether `_metadata` is sound and every referenced file exists with its recorded size.

    Args:
        snapshot: the snapshot, or its path.
        listings: known listings, to share between snapshots of one root.

    Returns:
        None where no error was found, but the storage does not say whether all files exist.

    Raises:
        StorageError: the storage does not answer, so that nothing is known about the snapshot.
    """
    try:
        opened = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
    except (NotFoundError, FormatError, UnsupportedError):
        return False
    findings = Findings()
    _audit_files(opened, listings or Listings(), (), findings)
    counts = findings.counts
    if any(severity is Severity.ERROR for severity, _ in counts):
        return False
    return None if (Severity.UNDETERMINED, Property.FILES) in counts else True
