"""Audits of several snapshots, and of all below a root."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, NotFoundError, UnsupportedError, Where
from state_pipelines.operations.auditing.file_listings import Listings
from state_pipelines.operations.auditing.report import AuditReport, AuditVerdict, Depth
from state_pipelines.operations.auditing.snapshot_audit import audit_snapshot, parse_depth, report_unreadable
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve, resolve_snapshot
from state_pipelines.storage.files import find_entry, is_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_listing import SnapshotEntry, find_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.snapshot import Snapshot

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class AuditSummary:
    """Results of several audits.

    Attributes:
        reports: newest snapshot first.
    """

    reports: tuple[AuditReport, ...]

    @property
    def newest_restorable(self) -> AuditReport | None:
        """The newest snapshot without an error; None when there is none."""
        return next((each for each in self.reports if each.restorable), None)

    @property
    def newest_by_directory(self) -> dict[str, AuditReport | None]:
        """The newest snapshot without an error by the directory that holds it: of checkpoints, that of the job."""
        found: dict[str, AuditReport | None] = {}
        for report in self.reports:
            directory = report.path.rstrip("/").rpartition("/")[0]
            if found.get(directory) is None:
                found[directory] = report if report.restorable else None
        return found

    @property
    def verdict(self) -> AuditVerdict:
        """The worst verdict of all snapshots."""
        verdicts = {each.verdict for each in self.reports}
        return next((each for each in AuditVerdict if each in verdicts), AuditVerdict.RESTORABLE)

    def to_json(self) -> dict[str, object]:
        """The summary as JSON."""
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

    A snapshot whose `_metadata` cannot be read is a report with that finding. Missing files are looked for in the
    directories of all these snapshots.

    Args:
        paths: snapshots, and directories with snapshots below them; or a single one.
        depth: how much is read.
        open: opens a snapshot by its path.
        search: further snapshots, and directories with snapshots below them, in which missing files are looked for.
        report: receives the number of audits that are finished, and of all.

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
            # The text of one elsewhere has no secrets, with which it is opened.
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
