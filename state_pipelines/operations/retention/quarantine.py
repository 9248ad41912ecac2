"""Quarantine: files that retention has moved instead of deleted; they can be restored until they are purged.

Each root has its own, so that a move stays within one storage: `_retention/quarantine/<time>-<fingerprint>/<path below
the root>`. The path alone says when a file was moved, by which plan, and where it belongs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, SnapshotGoneError, StateError, StorageError, Where
from state_pipelines.metadata import read_metadata
from state_pipelines.operations.auditing import Depth, Listings, Severity, audit_snapshot
from state_pipelines.operations.retention.own_directory import (
    QUARANTINED,
    AuditLog,
    AuditRecord,
    DeletionOutcome,
    find_above,
    is_own_above,
    locate_own,
    refuse_link,
)
from state_pipelines.operations.retention.policy import PathKeys
from state_pipelines.operations.retention.references import extract_references, follow_links
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import METADATA_FILE, Location, PathMapping, SnapshotLocation, exists, join, resolve
from state_pipelines.storage.files import FileEntry
from state_pipelines.storage.listing import list_tree
from state_pipelines.storage.locations import is_below, parent
from state_pipelines.storage.resolution import is_state_file, stays_below
from state_pipelines.storage.snapshot_writer import (
    RETENTION_DIRECTORY,
    delete_files,
    move_file,
    read_metadata_bytes,
    remove_empty_directory,
    stat_files,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from state_pipelines.operations.retention.own_directory import AuditRun

_DIRECTORY = "quarantine"
_RESTORE = "restore"
_BACK = (DeletionOutcome.RESTORED, DeletionOutcome.INCOMPLETE)
_SHOWN = 3
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([0-9a-f]+)")


@dataclass(frozen=True)
class QuarantinedFile:
    """A file in the quarantine.

    Attributes:
        root: the root whose quarantine holds the file.
        location: location of the file in the quarantine.
        original: location from which the file was moved.
        bytes: size of the file.
        fingerprint: fingerprint of the plan whose application has moved the file.
        since: time at which that application began.
    """

    root: Location
    location: Location
    original: Location
    bytes: int
    fingerprint: str
    since: datetime


def quarantine_location(root: Location, location: Location, fingerprint: str, since: datetime) -> Location:
    """Return the location in the quarantine to which a file below a root is moved.

    Args:
        root: the root.
        location: the file.
        fingerprint: fingerprint of the plan.
        since: time at which the run began.

    Raises:
        UsageError: the quarantine or a directory on the path is a symbolic link that could lead out of the root.
    """
    relative = location.path[len(root.path.rstrip("/")) + 1 :]
    stamp = since.astimezone(UTC).strftime(_TIME_FORMAT)
    found = join(locate_own(root, _DIRECTORY, f"{stamp}-{fingerprint}"), relative)
    # Directories on this path may already exist, and may be symbolic links that somebody else has made.
    if not stays_below(parent(found), [root]):
        raise refuse_link(str(parent(found)))
    return found


def require_own_quarantine(root: Location) -> None:
    """Check that symbolic links do not lead the quarantine of a root elsewhere; it need not exist.

    Raises:
        UsageError: `_retention` or `_retention/quarantine` is a symbolic link.
    """
    locate_own(root, _DIRECTORY)


def list_quarantine(roots: Iterable[Location]) -> list[QuarantinedFile]:
    """List every file in the quarantines of the roots, sorted by the time at which the files were moved.

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
        # Retention moves neither directories nor links into the quarantine, so these are not its own.
        if match and relative and not (entry.is_directory or entry.is_link):
            try:
                since = datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
            except ValueError:
                # The digits of the name are not a valid time, so retention has not made this directory.
                continue
            location, original = join(directory, entry.name), join(root, relative)
            yield QuarantinedFile(root, location, original, entry.size, match[2], since)


def restore_quarantined(
    roots: Sequence[Location],
    what: str,
    log: AuditLog,
    *,
    keys: PathKeys | None = None,
    path_mapping: PathMapping | None = None,
    now: datetime | None = None,
) -> list[AuditRecord]:
    """Move files back to where they were: data first and `_metadata` last, so that no incomplete snapshot appears.

    Restored snapshots are verified (as by `verify --depth files`).

    Args:
        roots: the roots. Their quarantines are searched, and also quarantines in directories above them, for files that
            belong below these roots.
        what: fingerprint of an applied plan; or the former path of a file or directory, in any spelling, also relative
            to a root. With a snapshot, all files in quarantine that it references are moved back, such as shared files
            that a later plan has moved.
        log: audit log to which the records are added.
        keys: computes the keys by which paths are compared.
        path_mapping: mapping from directories that snapshots name to current ones.
        now: the time for the log.

    Returns:
        Audit records. Files that could not be moved have the outcome `FAILED` and stay in the quarantine. The
        `_metadata` of a snapshot that lacks files has the outcome `INCOMPLETE`; if it is not known whether files are
        missing, it has the outcome `RESTORED` with a detail.

    Raises:
        NotFoundError: the quarantine has no files of this fingerprint or path.
    """
    now = now or datetime.now(UTC)
    mapping = (path_mapping or PathMapping()).allow(root.url for root in roots)
    keys = keys or PathKeys()
    files = [*list_quarantine(roots), *_list_above(roots, keys)]
    chosen, present = _choose(files, roots, what, keys, mapping)
    restores = [run for run in log.find_runs() if run.name == _RESTORE and run.read_header().get("what") == what]
    kept = {str(file.original) for file in files}
    finished = [each for run in restores if not run.finished for each in _finish_restore(run, roots, kept, now)]
    if not chosen:
        if finished:
            return _verify(finished, {}, roots, mapping, now)
        known = sorted({file.fingerprint for file in files})
        hint = f"In quarantine are files of {', '.join(known)}" if known else "The quarantines of the roots are empty"
        if any(each.outcome in _BACK for run in restores for each in run.read()):
            hint = "It was restored before, as the audit log says"
        raise NotFoundError(f"nothing of {what} is in quarantine", where=Where(file=str(roots[0])), hint=hint)
    planned = [_to_record(file, DeletionOutcome.INTENDED, now, "to be restored") for file in chosen]
    run = log.start_run(_RESTORE, planned, time=now, what=what)
    records = []
    blocked: set[str] = set()
    for file in chosen:
        record = _to_record(file, DeletionOutcome.RESTORED, now)
        try:
            if _is_metadata(file) and blocked:
                raise StateError(
                    "kept in quarantine, because a file that is restored before it could not be moved back"
                )
            if exists(file.original):
                raise StateError("kept in quarantine, because there is a new file at its former path")
            move_file(file.location, file.original, file.root)
        except StateError as error:
            blocked.add(file.original.path)
            record = record.with_outcome(DeletionOutcome.FAILED, now, str(error))
        records.append(record)
    run.append(records)
    # Also verify snapshots whose `_metadata` was not in quarantine, but whose files may have been.
    located = {str(each): each for each in present} | {str(file.original): file.original for file in chosen}
    before = [
        replace(_to_record(chosen[0], DeletionOutcome.RESTORED, now), path=str(each), bytes=0) for each in present
    ]
    verified = _verify([*finished, *records], located, roots, mapping, now)
    verified += [each for each in _verify(before, located, roots, mapping, now) if each.detail]
    run.append(each for each in verified if each.outcome is DeletionOutcome.INCOMPLETE)
    if not blocked:
        run.finish(now, restored=len(records))
    _remove_emptied(chosen)
    return verified


def _verify(
    records: Iterable[AuditRecord],
    known: Mapping[str, Location],
    roots: Sequence[Location],
    mapping: PathMapping,
    now: datetime,
) -> list[AuditRecord]:
    """Audit the snapshots of restored `_metadata` files.

    Args:
        records: records of restored files.
        known: locations of files by path, as far as known.
        roots: the roots.
        mapping: mapping from directories that snapshots name to current ones.
        now: the time for changed records.

    Returns:
        All records. Those of `_metadata` say whether the snapshot lacks files (see `restore_quarantined`).
    """
    listings = Listings()
    verified = []
    for record in records:
        location = known.get(record.path) or _locate(record.path, roots)
        if record.outcome is DeletionOutcome.RESTORED and location is not None and location.name == METADATA_FILE:
            errors, doubts = _find_missing(location, mapping, listings)
            if errors or doubts:
                outcome = DeletionOutcome.INCOMPLETE if errors else DeletionOutcome.RESTORED
                record = record.with_outcome(outcome, now, _join(errors or doubts))
        verified.append(record)
    return verified


def _find_missing(
    metadata: Location, mapping: PathMapping, listings: Listings
) -> tuple[Sequence[object], Sequence[object]]:
    """Audit the files of a snapshot.

    Returns:
        (errors, such as missing files; findings that say what cannot be determined).
    """
    try:
        content = read_metadata(read_metadata_bytes(metadata), str(metadata))
        snapshot = Snapshot(SnapshotLocation(parent(metadata), metadata), content, mapping)
        findings = audit_snapshot(snapshot, Depth.FILES, listings=listings).findings
    except (StorageError, SnapshotGoneError) as error:
        return (), (error,)
    except StateError as error:
        return (error,), ()
    return (
        [each for each in findings if each.severity is Severity.ERROR],
        [each for each in findings if each.severity is Severity.UNDETERMINED],
    )


def _join(findings: Sequence[object]) -> str:
    more = len(findings) - _SHOWN
    return "; ".join([*map(str, findings[:_SHOWN]), *([f"and {more:,} more"] if more > 0 else [])])


def _locate(path: str, roots: Sequence[Location]) -> Location | None:
    """Return the location of a path that a record of the audit log names.

    Return None if the path is outside the roots: the log may have been written by somebody else.
    """
    root = next((each for each in roots if path.startswith(f"{str(each).rstrip('/')}/")), None)
    return None if root is None else join(root, path[len(str(root).rstrip("/")) + 1 :])


def _list_above(roots: Sequence[Location], keys: PathKeys) -> Iterable[QuarantinedFile]:
    """Yield the files that are in quarantines of directories above the roots, but were moved from below the roots."""
    bases = [keys.directory_key(root.url) for root in roots]
    above = dict.fromkeys(each for root in roots for each in find_above(root)[0] if is_own_above(each, root))
    for file in list_quarantine(each for each in above if keys.directory_key(each.url) not in bases):
        if any(is_below(keys.key(file.original.url), base) for base in bases):
            yield file


def _finish_restore(
    run: AuditRun, roots: Sequence[Location], kept: Collection[str], now: datetime
) -> list[AuditRecord]:
    """Finish the run of a killed restore in the audit log, with a record for each file that it had moved back.

    Args:
        run: the run.
        roots: the roots. Paths outside of them are ignored, because the log may have been written by somebody else.
        kept: original paths of the files that are still in quarantine.
        now: the time for the log.

    Returns:
        The new records.
    """
    moved = []
    for record in run.unfinished_records().values():
        location = _locate(record.path, roots)
        if record.outcome is DeletionOutcome.INTENDED and record.path not in kept and location is not None:
            (found,) = stat_files([location], [root for root in roots if is_below(location.path, root.path)][:1])
            if isinstance(found, FileEntry) and found.size == record.bytes:
                moved.append(record.with_outcome(DeletionOutcome.RESTORED, now))
    run.append(moved)
    run.finish(now, restored=len(moved))
    return moved


def purge_quarantine(
    roots: Sequence[Location], keep: timedelta, log: AuditLog, *, now: datetime | None = None
) -> list[AuditRecord]:
    """Delete the files that have been in quarantine for at least `keep`, `_metadata` files first.

    Returns:
        The records that were added to the audit log, one for each file.
    """
    now = now or datetime.now(UTC)
    due = [file for file in list_quarantine(roots) if now - file.since >= keep]
    if not due:
        return []
    run = log.start_run("purge", [_to_record(file, DeletionOutcome.INTENDED, now) for file in due], time=now)
    records = []
    for metadata in (True, False):
        group = [file for file in due if _is_metadata(file) is metadata]
        errors = delete_files([file.location for file in group], [file.root for file in group])
        for file, error in zip(group, errors, strict=True):
            outcome = DeletionOutcome.PURGED if error is None else DeletionOutcome.FAILED
            records.append(_to_record(file, outcome, now, "" if error is None else str(error)))
    run.append(records)
    if all(record.outcome is DeletionOutcome.PURGED for record in records):
        run.finish(now, purged=len(records))
    _remove_emptied(due)
    return records


def _choose(
    files: Sequence[QuarantinedFile], roots: Sequence[Location], what: str, keys: PathKeys, mapping: PathMapping
) -> tuple[list[QuarantinedFile], list[Location]]:
    """Choose the files to restore.

    Args:
        files: all files in the quarantines.
        roots: the roots.
        what: see `restore_quarantined`.
        keys: computes the keys by which paths are compared.
        mapping: mapping from directories that snapshots name to current ones.

    Returns:
        (files of the fingerprint or path, and files that their snapshots reference, `_metadata` last; `_metadata` files
        of the path that are not in quarantine).
    """
    originals = {file.location: keys.key(file.original.url) for file in files}
    chosen = {file.location: file for file in files if file.fingerprint == what}
    present: list[Location] = []
    if not chosen:
        wanted = _find_wanted(roots, what, keys)
        chosen = {
            file.location: file for file in files if any(is_below(originals[file.location], each) for each in wanted)
        }
        # If the `_metadata` is not in quarantine, restore the files that it references: an earlier restore may have
        # failed to move some of them.
        for root in roots:
            base = keys.directory_key(root.url)
            there = [join(root, each[len(base) + 1 :], METADATA_FILE) for each in wanted if each.startswith(f"{base}/")]
            present += [each for each in there if each not in present and exists(each)]
    metadata = [(each, each) for each in present]
    metadata += [(file.location, file.original) for file in chosen.values() if _is_metadata(file)]
    by_key = {originals[file.location]: file for file in files}
    by_name: dict[str, list[QuarantinedFile]] = {}
    for file in files:
        by_name.setdefault(file.original.name, []).append(file)
    for location, original in metadata:
        for key in _find_references(location, original, keys, mapping):
            if key in by_key:
                chosen[by_key[key].location] = by_key[key]
            elif is_state_file(name := key.rpartition("/")[2]) and not os.path.lexists(key.removeprefix("file:")):
                # The directory of the snapshot was moved, so that the snapshot names the old path of the file. Find the
                # file by its name, a random UUID.
                chosen |= {file.location: file for file in by_name.get(name, ())}
    return sorted(chosen.values(), key=_is_metadata), present


def _find_wanted(roots: Sequence[Location], what: str, keys: PathKeys) -> set[str]:
    """Return the keys of the files or directories that the path `what`, given by a user, may name."""
    what = what.strip().rstrip("/").removesuffix(f"/{METADATA_FILE}")
    if not what:
        return set()
    texts = [] if what.startswith("/") or ":/" in what else [join(root, what).url for root in roots]
    texts.append(resolve(what).url)
    return {key for text in texts for key in (keys.key(text), keys.directory_key(text))}


def _find_references(location: Location, original: Location, keys: PathKeys, mapping: PathMapping) -> Iterable[str]:
    """Return the keys of the files that a `_metadata` file references.

    Args:
        location: location of the file, perhaps in quarantine.
        original: location at which it belongs, from which relative references start.
        keys: computes the keys.
        mapping: mapping from directories that snapshots name to current ones.
    """
    try:
        metadata = read_metadata(read_metadata_bytes(location), str(location))
    except StateError:
        # Restore the snapshot without the files that it references: they are not known.
        return ()
    directory = keys.directory_key(parent(original).url)
    return follow_links(extract_references(metadata, directory, keys.key, mapping), (), {}).files


def _is_metadata(file: QuarantinedFile) -> bool:
    return file.original.name == METADATA_FILE


def _to_record(file: QuarantinedFile, outcome: DeletionOutcome, now: datetime, detail: str = "") -> AuditRecord:
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
