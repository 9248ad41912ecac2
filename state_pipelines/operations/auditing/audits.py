"""Audits of one snapshot, of several and of all below a root; restore drills."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, NotFoundError, SnapshotGoneError, UnsupportedError, UsageError, Where
from state_pipelines.operations.auditing.content_checks import audit_contents
from state_pipelines.operations.auditing.file_checks import Listings, audit_files, audit_manifest
from state_pipelines.operations.auditing.metadata_checks import audit_structure, collect_files
from state_pipelines.operations.auditing.report import (
    AuditReport,
    AuditTotals,
    AuditVerdict,
    Depth,
    Finding,
    Findings,
    Property,
    Severity,
    from_error,
)
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve, resolve_snapshot
from state_pipelines.storage.files import find_entry, is_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_writer import SnapshotEntry, find_snapshots, is_removed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from state_pipelines.errors import StateError
    from state_pipelines.storage import Location, SnapshotLocation

_SHOWN = 2000
"""Number of characters that a finding shows of the end of a failed command's output."""


def run_drill(report: AuditReport, command: Sequence[str], *, seconds: float = 1800.0) -> AuditReport:
    """Run a command that tries to restore a snapshot, and return the report with the result.

    The path of the snapshot is the last argument of the command. If the report has errors already, the command is not
    run.

    Args:
        report: report of the snapshot.
        command: program and arguments; exit code 0 means that the snapshot was restored.
        seconds: time limit of the command.

    Raises:
        UsageError: the program cannot be started.
    """
    if not report.restorable:
        return report
    finding = None
    try:
        done = subprocess.run(
            [*command, report.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"the drill {command[0]!r} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        what = f"the drill {command[0]!r} did not end within {seconds:,.0f} seconds"
        finding = Finding(Severity.UNDETERMINED, Property.RESTORE, what, file=report.path)
    else:
        if done.returncode:
            output = done.stdout.decode("utf-8", "replace").strip()[-_SHOWN:]
            what = f"the drill {command[0]!r} ended with exit code {done.returncode}: {output or 'it printed nothing'}"
            finding = Finding(Severity.ERROR, Property.RESTORE, what, file=report.path)
    if finding is None:
        return replace(report, drilled=True)
    key = finding.severity, finding.property
    return replace(report, drilled=True, findings=(*report.findings, finding), counts={**report.counts, key: 1})


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
        search: directories in which missing files are looked for, besides those around the snapshot.
        modified: when `_metadata` was written, for the report.

    If `snapshot` is a path, a `_metadata` that is damaged or of an unknown version is a finding, not an error.

    Raises:
        NotFoundError: there is no snapshot at the path.
        SnapshotGoneError: the snapshot was removed during the audit, which is no damage.
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
    """Convert the name of a depth.

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
        True or False; None if no error was found, but the storage did not say whether all files exist.

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


_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class AuditSummary:
    """Results of several audits.

    Attributes:
        reports: reports of the snapshots, the newest snapshot first.
    """

    reports: tuple[AuditReport, ...]

    @property
    def newest_restorable(self) -> AuditReport | None:
        """Report of the newest snapshot without an error; None if there is none."""
        return next((each for each in self.reports if each.restorable), None)

    @property
    def newest_by_directory(self) -> dict[str, AuditReport | None]:
        """Report of the newest snapshot without an error, or None, for each directory that contains snapshots.

        Checkpoints are in the directory of their job.
        """
        found: dict[str, AuditReport | None] = {}
        for report in self.reports:
            directory = report.path.rstrip("/").rpartition("/")[0]
            if found.get(directory) is None:
                found[directory] = report if report.restorable else None
        return found

    @property
    def verdict(self) -> AuditVerdict:
        """The worst verdict of all snapshots; restorable if there are none."""
        verdicts = {each.verdict for each in self.reports}
        return next((each for each in AuditVerdict if each in verdicts), AuditVerdict.RESTORABLE)

    def to_json(self) -> dict[str, object]:
        """Return the summary as an object for `json.dumps`."""
        newest = self.newest_restorable
        return {
            "verdict": self.verdict,
            "newest_restorable": None if newest is None else newest.path,
            "newest_restorable_by_directory": {
                directory: None if each is None else each.path for directory, each in self.newest_by_directory.items()
            },
            "snapshots": [each.to_json() for each in self.reports],
        }


def audit_paths(
    paths: str | Iterable[str],
    depth: Depth | str = Depth.SAMPLE,
    *,
    open: Callable[[str], Snapshot] = open_snapshot,
    search: Iterable[str] = (),
    report: Callable[[int, int], None] | None = None,
) -> AuditSummary:
    """Audit snapshots and all snapshots below directories.

    A snapshot whose `_metadata` cannot be read gets a report with that finding. Missing files are looked for in the
    directories of all these snapshots.

    Args:
        paths: paths of snapshots, and of directories with snapshots below them; or a single path.
        depth: how much is read.
        open: function that opens a snapshot by its path.
        search: further snapshots, and directories with snapshots below them, in which missing files are looked for.
        report: function that is called after each audit with the number of finished audits and of all audits.

    Raises:
        NotFoundError: a path holds no snapshot.
        StateError: the storage does not answer.
    """
    depth = parse_depth(depth)
    roots = [paths] if isinstance(paths, str) else paths
    entries = {entry.location.metadata.url: entry for path in roots for entry in _find_snapshots(path)}
    around = [entry.location.directory for path in search for entry in _find_snapshots(path, needed=False)]
    around += [entry.location.directory for entry in entries.values()]
    listings = Listings()
    reports = []
    for entry in entries.values():
        metadata = entry.location.metadata
        try:
            # The text of a remote location is redacted; only its URL has the secrets that opening it may need.
            snapshot = open(str(metadata) if is_local(metadata) else metadata.url)
        except (FormatError, UnsupportedError) as error:
            reports.append(report_unreadable(entry.location, depth, error, entry.modified))
        else:
            reports.append(audit_snapshot(snapshot, depth, listings=listings, search=around, modified=entry.modified))
        if report is not None:
            report(len(reports), len(entries))
    reports.sort(key=lambda each: (each.modified or _BEFORE_ALL, each.checkpoint_id or -1), reverse=True)
    return AuditSummary(tuple(reports))


def _find_snapshots(path: str, *, needed: bool = True) -> list[SnapshotEntry]:
    location = resolve(path)
    try:
        found = resolve_snapshot(path)
    except NotFoundError:
        if not is_directory(location):
            raise
        entries = list(find_snapshots(location))
        if needed and not entries:
            raise NotFoundError(
                "no snapshot is in the directory or below it",
                where=Where(file=str(location)),
                hint="Snapshots are directories with a file _metadata",
            ) from None
        return entries
    entry = find_entry(found.metadata)
    return [SnapshotEntry(found, entry.size, entry.modified)]
