"""Quarantine: files that retention has moved instead of deleted; they can be restored until they are purged.

Each root has its own, so that a move stays within one storage: `_retention/quarantine/<time>-<fingerprint>/<path below
the root>`. The path alone says when a file was moved, by which plan, and where it belongs.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, StateError, Where
from state_pipelines.metadata import list_references, read_metadata
from state_pipelines.metadata.stream_handles import FileStateHandle, SegmentFileStateHandle
from state_pipelines.operations.retention.audit_log import QUARANTINED, AuditLog, AuditRecord, Outcome
from state_pipelines.operations.retention.own_directory import locate_own, refuse_link
from state_pipelines.storage import METADATA_FILE, Location, exists, join, resolve_beside
from state_pipelines.storage.deletion import delete_files, move_file, remove_empty_directory, stat_files
from state_pipelines.storage.files import FileEntry
from state_pipelines.storage.locations import is_below, parent, protocols
from state_pipelines.storage.reach import stays_below
from state_pipelines.storage.resolution import find_scheme, normalize
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY
from state_pipelines.storage.snapshot_location import read_metadata_bytes
from state_pipelines.storage.trees import list_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from state_pipelines.operations.retention.audit_log import AuditRun

_DIRECTORY = "quarantine"
_RESTORE = "restore"
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([0-9a-f]+)")


@dataclass(frozen=True)
class QuarantinedFile:
    """A file in the quarantine.

    Attributes:
        root: the root that it belongs to.
        location: where it is now.
        original: where it belongs.
        bytes: its size.
        fingerprint: of the plan that was applied.
        since: when the run began that moved it.
    """

    root: Location
    location: Location
    original: Location
    bytes: int
    fingerprint: str
    since: datetime


def quarantine_location(root: Location, location: Location, fingerprint: str, since: datetime) -> Location:
    """The location in the quarantine for a file below a root.

    Raises:
        UsageError: a symbolic link leads out of the root, or is the directory of the quarantine or above it.
    """
    relative = location.path[len(root.path.rstrip("/")) + 1 :]
    stamp = since.astimezone(UTC).strftime(_TIME_FORMAT)
    found = join(locate_own(root, _DIRECTORY, f"{stamp}-{fingerprint}"), relative)
    # Somebody may have made directories of this name before.
    if not stays_below(parent(found), [root]):
        raise refuse_link(str(parent(found)))
    return found


def require_own_quarantine(root: Location) -> None:
    """Refuse a quarantine that is somewhere else; it need not exist.

    Raises:
        UsageError: its directory, or the one above it, is a symbolic link.
    """
    locate_own(root, _DIRECTORY)


def list_quarantine(roots: Iterable[Location]) -> list[QuarantinedFile]:
    """Every file in the quarantines of the roots, the oldest first.

    Raises:
        MissingFileError: a directory cannot be listed.
        UsageError: the quarantine of a root is a symbolic link.
    """
    found = [file for root in roots for file in _list_quarantine(root)]
    return sorted(found, key=lambda file: (file.since, file.location.path))


def _list_quarantine(root: Location) -> Iterable[QuarantinedFile]:
    directory = locate_own(root, _DIRECTORY)
    if not exists(directory):
        return
    for entry in list_tree(directory):
        name, _, relative = entry.name.partition("/")
        match = _NAME.fullmatch(name)
        # Retention moves neither directories nor links into it.
        if match and relative and not (entry.is_directory or entry.is_link):
            try:
                since = datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
            except ValueError:
                # Only the digits look like a time: somebody else's directory.
                continue
            location, original = join(directory, entry.name), join(root, relative)
            yield QuarantinedFile(root, location, original, entry.size, match[2], since)


def restore_quarantined(
    roots: Sequence[Location], what: str, log: AuditLog, *, now: datetime | None = None
) -> list[AuditRecord]:
    """Move files back to where they were: data first and `_metadata` last, so that no incomplete snapshot appears.

    Args:
        roots: the roots whose quarantines are searched.
        what: fingerprint of an applied plan, or path of a file or directory as it was before. With a snapshot come all
            files of the quarantine that it references, such as shared files that a later plan has moved.
        log: gets a line per file.
        now: the time for the log.

    Returns:
        the lines of the log; files that could not be moved have the outcome `FAILED` and stay in the quarantine.

    Raises:
        NotFoundError: the quarantine has nothing of this fingerprint or path.
    """
    now = now or datetime.now(UTC)
    files = list_quarantine(roots)
    chosen = _choose(files, what)
    restores = [run for run in log.find_runs() if run.name == _RESTORE and run.read_header().get("what") == what]
    kept = {str(file.original) for file in files}
    records = [each for run in restores if not run.finished for each in _finish_restore(run, roots, kept, now)]
    if not chosen:
        if records:
            return records
        known = sorted({file.fingerprint for file in files})
        hint = f"In quarantine are files of {', '.join(known)}" if known else "The quarantines of the roots are empty"
        if any(each.outcome is Outcome.RESTORED for run in restores for each in run.read()):
            hint = "It was restored before, as the audit log says"
        raise NotFoundError(f"nothing of {what} is in quarantine", where=Where(file=str(roots[0])), hint=hint)
    planned = [_to_record(file, Outcome.INTENDED, now, "to be restored") for file in chosen]
    run = log.start_run(_RESTORE, planned, time=now, what=what)
    finished, records = records, []
    blocked: set[str] = set()
    for file in chosen:
        record = _to_record(file, Outcome.RESTORED, now)
        try:
            if _is_metadata(file) and blocked:
                raise StateError("kept in quarantine, because a file before it could not be restored")
            if exists(file.original):
                raise StateError("kept in quarantine, because a file of this name exists again")
            move_file(file.location, file.original, file.root)
        except StateError as error:
            blocked.add(file.original.path)
            record = record.with_outcome(Outcome.FAILED, now, str(error))
        records.append(record)
    run.append(records)
    if not blocked:
        run.finish(now, restored=len(records))
    _remove_emptied(chosen)
    return [*finished, *records]


def _finish_restore(
    run: AuditRun, roots: Sequence[Location], kept: Collection[str], now: datetime
) -> list[AuditRecord]:
    """Finish the run of a restore that was killed, with a line for each file that it had moved back by then.

    Args:
        run: the run.
        roots: the roots; the log may come from somebody else, and paths elsewhere are not looked for.
        kept: original paths of the files that are still in quarantine.
        now: the time for the log.
    """
    moved = []
    for record in run.unfinished_records().values():
        root = next((each for each in roots if record.path.startswith(f"{str(each).rstrip('/')}/")), None)
        if record.outcome is Outcome.INTENDED and record.path not in kept and root is not None:
            location = join(root, record.path[len(str(root).rstrip("/")) + 1 :])
            (found,) = stat_files([location], [root])
            if isinstance(found, FileEntry) and found.size == record.bytes:
                moved.append(record.with_outcome(Outcome.RESTORED, now))
    run.append(moved)
    run.finish(now, restored=len(moved))
    return moved


def purge_quarantine(
    roots: Sequence[Location], keep: timedelta, log: AuditLog, *, now: datetime | None = None
) -> list[AuditRecord]:
    """Delete the files that have been in quarantine for longer than `keep`, `_metadata` first.

    Returns:
        the lines of the log.
    """
    now = now or datetime.now(UTC)
    due = [file for file in list_quarantine(roots) if now - file.since >= keep]
    if not due:
        return []
    run = log.start_run("purge", [_to_record(file, Outcome.INTENDED, now) for file in due], time=now)
    records = []
    for metadata in (True, False):
        group = [file for file in due if _is_metadata(file) is metadata]
        errors = delete_files([file.location for file in group], [file.root for file in group])
        for file, error in zip(group, errors, strict=True):
            outcome = Outcome.PURGED if error is None else Outcome.FAILED
            records.append(_to_record(file, outcome, now, "" if error is None else str(error)))
    run.append(records)
    if all(record.outcome is Outcome.PURGED for record in records):
        run.finish(now, purged=len(records))
    _remove_emptied(due)
    return records


def _choose(files: Sequence[QuarantinedFile], what: str) -> list[QuarantinedFile]:
    chosen = {file.location: file for file in files if file.fingerprint == what}
    if not chosen:
        for file in files:
            path = resolve_beside(what, file.original).path.rstrip("/")
            if is_below(file.original.path, path):
                chosen[file.location] = file
    by_path = {file.original.path: file for file in files}
    for file in list(chosen.values()):
        if _is_metadata(file):
            needed = (by_path.get(path) for path in _references(file))
            chosen |= {each.location: each for each in needed if each is not None}
    return sorted(chosen.values(), key=_is_metadata)


def _references(file: QuarantinedFile) -> Iterable[str]:
    try:
        metadata = read_metadata(read_metadata_bytes(file.location), str(file.location))
    except StateError:
        # It is restored as it is; what it references is not known.
        return
    for reference in list_references(metadata):
        if not isinstance(reference.handle, FileStateHandle | SegmentFileStateHandle):
            continue
        path = normalize(reference.handle.path)
        if find_scheme(path) in protocols(file.original.filesystem):
            # Others are not in this quarantine, and their storage is not for a snapshot to choose; nor is one that no
            # URL can name.
            with suppress(StateError):
                yield resolve_beside(path, file.original).path


def _is_metadata(file: QuarantinedFile) -> bool:
    return file.original.name == METADATA_FILE


def _to_record(file: QuarantinedFile, outcome: Outcome, now: datetime, detail: str = "") -> AuditRecord:
    return AuditRecord(
        path=str(file.original),
        bytes=file.bytes,
        kind=QUARANTINED,
        reason=f"in quarantine since {file.since.isoformat()}",
        modified=None,
        fingerprint=file.fingerprint,
        outcome=outcome,
        time=now,
        detail=detail,
    )


def _remove_emptied(files: Iterable[QuarantinedFile]) -> None:
    """Remove the directories of the quarantine that a restore or a purge has emptied."""
    directories = {(parent(file.location), file.root) for file in files}
    while directories:
        emptied = (
            (each, root)
            for each, root in directories
            if each.name != RETENTION_DIRECTORY and remove_empty_directory(each, root)
        )
        directories = {(parent(each), root) for each, root in emptied}


__all__ = [
    "QuarantinedFile",
    "list_quarantine",
    "purge_quarantine",
    "quarantine_location",
    "restore_quarantined",
]
