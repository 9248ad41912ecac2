"""The directory `_retention` of a root: pins and the audit log.

* `require_no_link`: a user who can write to a root can put symbolic links there, which would lead retention to files of
  others, such as the quarantine of another root. Links in this directory are refused, wherever they lead.
* `Pin`, `read_pins`, `pin_snapshot`, `unpin_snapshot`: pins.
* `AuditLog`, `open_audit_log`: every path that was to be deleted, with the outcome, as JSON lines. The log is a
  directory with a directory per run. Before a run deletes anything, it writes `000000-started.jsonl`: a line about
  itself and a line per path that it is going to delete. It writes a file per batch with the outcomes, and
  `…-finished.jsonl` when nothing is left to do. No file is ever changed, so any storage can hold the log, and a run
  that was killed is recognized and can be continued.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import FormatError, MissingFileError, StateError, StorageError, UsageError, Where
from state_pipelines.operations.retention.policy import PathKeys, PathKind
from state_pipelines.storage import METADATA_FILE, Location, exists, join, list_directory, read_file
from state_pipelines.storage.documents import MOST_LINES, MOST_TEXT, find_entry_lines, parse_yaml
from state_pipelines.storage.files import create_file_at_once, is_directory, replace_file
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_writer import RETENTION_DIRECTORY, find_snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def locate_own(root: Location, *names: str) -> Location:
    """Return the location of a file or directory in the directory `_retention` of a root; it need not exist.

    Args:
        root: the root, which may be a symbolic link itself.
        names: names on the path below `_retention`.

    Raises:
        UsageError: `_retention`, or a name on the path below it, is a symbolic link.
    """
    location = join(root, RETENTION_DIRECTORY)
    require_no_link(location)
    for name in names:
        location = join(location, name)
        require_no_link(location)
    return location


def find_above(root: Location) -> tuple[list[Location], list[str]]:
    """Find the directories above a root that have been roots of retention, too: they have a directory `_retention`.

    Args:
        root: the root. If its path has symbolic links, the directories above their target are searched, too.

    Returns:
        (the directories, nearest first; notes about directories that we may not list).

    Raises:
        StorageError: the storage fails temporarily.
    """
    if is_local(root):
        real = os.path.realpath(root.path)
        paths = dict.fromkeys((*_list_above(real), *map(os.path.realpath, _list_above(os.path.abspath(root.path)))))  # noqa: PTH100
        above = (Location(root.filesystem, path) for path in paths)
        return [each for each in above if os.path.lexists(join(each, RETENTION_DIRECTORY).path)], []
    found, notes = [], []
    for path in _list_above(root.path):
        location = Location(root.filesystem, path)
        try:
            if is_directory(join(location, RETENTION_DIRECTORY)):
                found.append(location)
        except StateError as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            # Not an error: credentials often allow only some prefixes of a bucket.
            notes.append(f"it is not known whether a directory above the root has pins: {error}")
    return found, notes


def is_own_above(above: Location, root: Location) -> bool:
    """Return whether the owner of the root, the current user or the superuser owns `_retention` in a directory above.

    In directories such as `/tmp` anybody may create a `_retention`. If a stranger has created it, its pins are
    respected, but files in its quarantine are not restored.
    """
    if not is_local(root):
        return True
    owner = os.lstat(join(above, RETENTION_DIRECTORY).path).st_uid
    return owner in (0, os.getuid(), os.stat(root.path).st_uid)  # noqa: PTH116


def _list_above(path: str) -> Iterator[str]:
    """Yield the directories above a path, nearest first; in an object store the last one is the bucket."""
    path = path.rstrip("/")
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path or "/"


def require_no_link(location: Location) -> None:
    """Check that a location is not a symbolic link; only local file systems have them.

    Raises:
        UsageError: the location is a symbolic link.
    """
    if is_local(location) and os.path.islink(location.path):  # noqa: PTH114
        raise refuse_link(str(location))


def refuse_link(path: str) -> UsageError:
    """Make the error about a symbolic link on a path at which retention keeps its own files."""
    return UsageError(
        "this is a symbolic link, and retention follows none to its own files",
        where=Where(file=path),
        hint="Nothing was read, moved or deleted through it; remove the link, or put what it leads to in its place",
    )


PINS_FILE = "pins.yaml"
"""Name of the pin file in the directory `_retention` of a root."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True)
class Pin:
    """An entry of a pin file.

    Attributes:
        path: directory of a snapshot, or of a job for all its snapshots; relative to the root, or absolute.
        reason: reason of the pin, for people.
        tags: without tags, the snapshot always stays; with tags, only as long as a policy keeps snapshots with one of
            them.
        created: time at which the entry was made, as ISO text.
        line: line of the entry in the pin file; 0 for an entry that was not read from a file.
    """

    path: str
    reason: str = ""
    tags: tuple[str, ...] = ()
    created: str = ""
    line: int = field(default=0, compare=False)

    def to_json(self) -> dict[str, object]:
        """Return the entry for YAML or JSON, without empty fields."""
        found: dict[str, object] = {"path": self.path, "reason": self.reason, "tags": list(self.tags)}
        found["created"] = self.created
        return {name: value for name, value in found.items() if value}


def locate_pins(root: Location) -> Location:
    """Return the location of the pin file of a root; the file need not exist.

    Raises:
        UsageError: the file, or the directory `_retention`, is a symbolic link.
    """
    return locate_own(root, PINS_FILE)


def read_pins(root: Location) -> tuple[Pin, ...]:
    """Read the pins of a root; there are none if it has no pin file.

    Raises:
        FormatError: the file is not a pin file. Nothing may be deleted then, because the pins are not known.
        MissingFileError: the file exists but cannot be read.
        UsageError: the file, or the directory `_retention`, is a symbolic link.
    """
    location = locate_pins(root)
    try:
        data = read_file(location, most=MOST_TEXT)
    except MissingFileError:
        if exists(location):
            raise
        return ()
    try:
        content = parse_yaml(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(location, f"it is not YAML: {error}") from None
    # An empty file is refused: a full disk may have truncated it. A file without pins says `pins: []`.
    entries = content["pins"] if isinstance(content, dict) and set(content) == {"pins"} else None
    if not isinstance(entries, list):
        raise _wrong(location, "it is not a mapping with a list under pins")
    lines = find_entry_lines(data, "pins")
    return tuple(
        _parse_pin(entry, location, index, line) for index, (entry, line) in enumerate(zip(entries, lines, strict=True))
    )


def _parse_pin(entry: object, location: Location, index: int, line: int) -> Pin:
    body: dict[str, Any] = {"path": entry} if isinstance(entry, str) else entry if isinstance(entry, dict) else {}
    unknown = set(body) - {"path", "reason", "tags", "created"}
    path = body.get("path")
    tags = body.get("tags") or []
    what = f"line {line}: pins[{index}]"
    if unknown or not isinstance(path, str) or not path.strip().strip("/") or ".." in path.split("/"):
        known = "path, reason, tags and created"
        raise _wrong(location, f"{what} is not a path below the root, or has more than {known}")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong(location, f"{what}.tags is not a list of texts")
    return Pin(path.strip(), str(body.get("reason") or ""), tuple(tags), str(body.get("created") or ""), line)


def find_pinned_keys(base: str, path: str, keys: PathKeys) -> tuple[str, ...]:
    """Return the keys of the directories that a pin may name.

    On a local file system, a path such as `/a` may be absolute or relative to the root: it gives two keys.

    Args:
        base: key of the root with the pin file.
        path: `Pin.path` in any spelling; or the path of the `_metadata` file in the pinned directory.
        keys: computes the keys.
    """
    path = path.strip().rstrip("/").removesuffix(f"/{METADATA_FILE}")
    if _URL.match(path):
        return (keys.directory_key(path),)
    found = keys.directory_key(f"{base}/{path}")
    return (found, keys.directory_key(path)) if path.startswith("/") and base.startswith("file:") else (found,)


def write_pins(root: Location, pins: Iterable[Pin]) -> None:
    """Replace the pin file of a root.

    Raises:
        StateError: the storage refuses.
    """
    content = {"pins": [pin.to_json() for pin in sorted(pins, key=lambda pin: pin.path)]}
    text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    replace_file(locate_pins(root), text.encode())


def pin_snapshot(
    root: Location, path: str, *, reason: str = "", tags: tuple[str, ...] = (), keys: PathKeys | None = None
) -> Pin:
    """Pin a snapshot below a root; an earlier pin of the same path is replaced.

    Args:
        root: the root.
        path: directory of the snapshot, or of a job; relative to the root, or absolute.
        reason: reason of the pin, for people.
        tags: see `Pin`.
        keys: computes the keys by which paths are compared.

    Raises:
        UsageError: there is no snapshot at the path.
        StateError: the pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    found = find_pinnable(root, path, keys)
    if found is None:
        raise UsageError(
            "there is nothing to pin: no snapshot is at this path or below it",
            where=Where(file=f"{root}/{path}"),
            hint="Give an existing snapshot below the root, or a directory that holds some",
        )
    pin = Pin(found, reason, tags, datetime.now(UTC).isoformat(timespec="seconds"))
    pinned = find_pinned_keys(keys.directory_key(root.url), found, keys)
    write_pins(root, [*_without(root, pinned, keys), pin])
    return pin


def pin_restored(
    roots: Sequence[Location], records: Iterable[AuditRecord], *, reason: str, keys: PathKeys | None = None
) -> list[str]:
    """Pin the snapshots that were restored from quarantine, so that the next plan does not delete them again.

    Args:
        roots: the roots of the snapshots.
        records: result of `restore_quarantined`.
        reason: reason of the pins, for people.
        keys: computes the keys by which paths are compared.

    Returns:
        Paths of the snapshots.

    Raises:
        UsageError: a snapshot is not below any of the roots.
        StateError: a pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    suffix = f"/{METADATA_FILE}"
    back = [each.path for each in records if each.outcome in (DeletionOutcome.RESTORED, DeletionOutcome.INCOMPLETE)]
    snapshots = [each.removesuffix(suffix) for each in back if each.endswith(suffix)]
    for path in snapshots:
        root = next((each for each in roots if find_pinnable(each, path, keys) is not None), roots[0])
        pin_snapshot(root, path, reason=reason, keys=keys)
    return snapshots


def find_pinnable(root: Location, path: str, keys: PathKeys) -> str | None:
    """Return the directory that the path of a pin names, relative to the root.

    Return None unless the directory is below the root and is, or contains, a snapshot.
    """
    base = keys.directory_key(root.url)
    for key in find_pinned_keys(base, path, keys) if path.strip() else ():
        relative = key[len(base) + 1 :]
        if key.startswith(f"{base}/") and next(find_snapshots(join(root, relative)), None) is not None:
            return relative
    return None


def unpin_snapshot(root: Location, path: str, *, keys: PathKeys | None = None) -> None:
    """Remove the pin of a snapshot.

    Args:
        root: the root.
        path: path of the pin, in any spelling.
        keys: computes the keys by which paths are compared.

    Raises:
        UsageError: the snapshot is not pinned.
        StateError: the pin file cannot be read or written.
    """
    keys = keys or PathKeys()
    pins = read_pins(root)
    rest = _without(root, find_pinned_keys(keys.directory_key(root.url), path, keys), keys)
    if len(rest) == len(pins):
        hint = f"Pinned are {', '.join(pin.path for pin in pins)}" if pins else "The root has no pins"
        raise UsageError(f"{path} is not pinned", where=Where(file=str(locate_pins(root))), hint=hint)
    write_pins(root, rest)


def _without(root: Location, pinned: Collection[str], keys: PathKeys) -> list[Pin]:
    """Read the pins of a root, except those that may name one of the directories in `pinned` (keys)."""
    base = keys.directory_key(root.url)
    return [each for each in read_pins(root) if not set(find_pinned_keys(base, each.path, keys)) & set(pinned)]


def _wrong(location: Location, what: str) -> StateError:
    hint = "Correct the file; nothing is planned while pins cannot be read"
    return FormatError(f"the pin file cannot be read: {what}", where=Where(file=str(location)), hint=hint)


Leftovers = Collection[tuple[str, int, datetime | None]]
"""(path, size, time) of files that interrupted runs were going to delete: the minimal age does not protect them."""

_STARTED = "started"
_FINISHED = "finished"
_TIME_FORMAT = "%Y%m%dT%H%M%S%fZ"
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")

QUARANTINED = "quarantined"
"""`AuditRecord.kind` of files in the quarantine, whose `PathKind` is not known any more."""

_LONG_REASON = 300
_KINDS = frozenset({QUARANTINED, *PathKind})


class DeletionOutcome(StrEnum):
    """Outcome of an action on a path, as the audit log records it."""

    INTENDED = "intended"
    """The path is going to be deleted or moved; recorded before anything is done."""
    DELETED = "deleted"
    MISSING = "missing"
    """The path did not exist any more: somebody else has deleted it."""
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    """The file was moved back out of the quarantine. A detail says why it is not known whether its snapshot is
    complete."""
    INCOMPLETE = "incomplete"
    """The `_metadata` file of a snapshot was moved back, but the snapshot lacks files; the detail names them."""
    PURGED = "purged"
    """The file was deleted from the quarantine."""
    KEPT = "kept"
    """The path was not deleted, because it has changed or is needed; the detail says why."""
    FAILED = "failed"
    """The path could not be checked, deleted or moved; the detail says why."""


@dataclass(frozen=True)
class AuditRecord:
    """A line of the audit log, about one path.

    Attributes:
        path: path of the file or directory.
        bytes: size of the file.
        kind: a value of `PathKind`, or `QUARANTINED`.
        reason: reason of the plan for deleting it, or since when it is in quarantine.
        modified: time of the file in the plan; None if the storage gives no times.
        fingerprint: fingerprint of the plan.
        outcome: what was done.
        time: time of the record.
        detail: why the path was kept, why it failed, or what its snapshot lacks.
    """

    path: str
    bytes: int
    kind: str
    reason: str
    modified: datetime | None
    fingerprint: str
    outcome: DeletionOutcome
    time: datetime
    detail: str = ""

    def with_outcome(self, outcome: DeletionOutcome, time: datetime, detail: str = "") -> AuditRecord:
        """Return a copy of the record with another outcome, time and detail."""
        return replace(self, outcome=outcome, time=time, detail=detail)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the line in the log."""
        return {
            "time": self.time.isoformat(),
            "outcome": str(self.outcome),
            "path": self.path,
            "bytes": self.bytes,
            "kind": self.kind,
            "reason": self.reason,
            "modified": None if self.modified is None else self.modified.isoformat(),
            "fingerprint": self.fingerprint,
            **({"detail": self.detail} if self.detail else {}),
        }


class AuditRun:
    """A run of retention in the audit log: its files are read, and new ones are added.

    Attributes:
        directory: directory of the run in the log.
        name: fingerprint of the plan that the run applies, or `restore` or `purge`.
    """

    def __init__(self, directory: Location, name: str, files: Sequence[str]) -> None:
        """Open the run. `files` are the names of its files, in order; `append` adds the next one."""
        self.directory = directory
        self.name = name
        self._files = list(files)

    @property
    def finished(self) -> bool:
        """Whether the run has nothing left to do."""
        return any(name.endswith(f"-{_FINISHED}.jsonl") for name in self._files)

    def append(self, records: Iterable[AuditRecord]) -> None:
        """Write records as a new file of the run.

        Raises:
            TargetExistsError: another process continues the same run.
            StateError: the storage refuses.
        """
        self._write("", [record.to_json() for record in records])

    def finish(self, time: datetime, **summary: Any) -> None:
        """Mark the run as finished."""
        self._write(f"-{_FINISHED}", [{"time": time.isoformat(), "event": _FINISHED, **summary}])

    def read_header(self) -> dict[str, Any]:
        """Read the first line of the run, which describes the run itself.

        Raises:
            FormatError: the line is not a line of an audit log.
        """
        location = join(self.directory, self._files[0])
        line = next(_read_lines(location), "")
        try:
            return _parse_object(line)
        except (ValueError, RecursionError) as error:
            raise _refuse_line(error, location, 1) from None

    def read(self) -> Iterator[AuditRecord]:
        """Yield all records of the run, in the order in which they were written.

        Raises:
            FormatError: a line is not a line of an audit log, or a file is too large.
            UsageError: a file is a symbolic link.
        """
        for name in self._files:
            location = join(self.directory, name)
            for number, line in enumerate(_read_lines(location), 1):
                record = _parse_line(line, location, number)
                if record is not None:
                    yield record

    def read_about(self, names: Collection[str]) -> Iterator[AuditRecord]:
        """Yield the records of the run whose lines in the log contain one of these names; see `read`."""
        texts = {text for name in names for text in (name, json.dumps(name)[1:-1])}
        for file in self._files:
            location = join(self.directory, file)
            for number, line in enumerate(_read_lines(location), 1):
                record = _parse_line(line, location, number) if any(text in line for text in texts) else None
                if record is not None:
                    yield record

    def unfinished_records(self) -> dict[str, AuditRecord]:
        """Return, by path, the records of paths whose deletion has no outcome yet, or has failed."""
        left: dict[str, AuditRecord] = {}
        for record in self.read():
            if record.outcome in (DeletionOutcome.INTENDED, DeletionOutcome.FAILED):
                left[record.path] = record
            else:
                left.pop(record.path, None)
        return left

    def _write(self, suffix: str, lines: Sequence[dict[str, Any]]) -> None:
        if not lines:
            return
        name = f"{len(self._files):06}{suffix}.jsonl"
        location = join(self.directory, name)
        content = b"".join(_format_line(line) for line in lines)
        if len(content) > MOST_LINES:
            raise UsageError(
                f"a file of the audit log would have {len(content):,} bytes, more than the {MOST_LINES:,} that can be "
                "read again",
                where=Where(file=str(location)),
                hint="This step has deleted and moved nothing; give fewer roots at a time",
            )
        create_file_at_once(location, content)
        self._files.append(name)


class AuditLog:
    """The audit log in a directory, which need not exist yet."""

    def __init__(self, directory: Location) -> None:
        """Remember the directory; nothing is read or written yet."""
        self.directory = directory

    def start_run(self, name: str, records: Iterable[AuditRecord], *, time: datetime, **about: Any) -> AuditRun:
        """Begin a run: write its first file, which describes the run and lists the paths that it is going to handle.

        Args:
            name: fingerprint of the plan that the run applies, or `restore` or `purge`.
            records: the paths, with the outcome `INTENDED`.
            time: time of the start.
            about: further properties of the run, such as the roots, for the first line.

        Raises:
            StateError: the storage refuses.
        """
        directory = join(self.directory, f"{time.astimezone(UTC).strftime(_TIME_FORMAT)}-{name}")
        run = AuditRun(directory, name, ())
        header = {"time": time.isoformat(), "event": _STARTED, "name": name, **about}
        run._write(f"-{_STARTED}", [header, *(record.to_json() for record in records)])
        return run

    def find_runs(self) -> list[AuditRun]:
        """Find all runs, oldest first."""
        if not exists(self.directory):
            return []
        runs = []
        for entry in list_directory(self.directory):
            _, separator, name = entry.location.name.partition("Z-")
            if entry.is_directory and separator:
                files = [file.location.name for file in list_directory(entry.location)]
                files = [file for file in files if file.endswith(".jsonl") and not file.startswith(".")]
                # A run without files was killed before it did anything.
                if files:
                    runs.append(AuditRun(entry.location, name, files))
        return runs

    def find_unfinished_runs(self) -> list[AuditRun]:
        """Find the runs that were killed, failed or stopped at a limit, oldest first."""
        return [run for run in self.find_runs() if not run.finished]

    def read_about(self, names: Collection[str]) -> Iterator[AuditRecord]:
        """Yield the records of all runs whose lines in the log contain one of these names, oldest first."""
        for run in self.find_runs():
            yield from run.read_about(names)

    def read(self) -> Iterator[AuditRecord]:
        """Yield all records of all runs, oldest first."""
        for run in self.find_runs():
            yield from run.read()


def open_audit_log(root: Location, directory: Location | None = None) -> AuditLog:
    """Return the audit log in `directory`; by default in `_retention/log` below the root.

    Raises:
        UsageError: `_retention` or `_retention/log` is a symbolic link.
    """
    return AuditLog(directory or locate_own(root, "log"))


def is_fingerprint(name: str) -> bool:
    """Return whether the name of a run is the fingerprint of a plan, which the run applies."""
    return _FINGERPRINT.fullmatch(name) is not None


def find_leftovers(log: AuditLog) -> Leftovers:
    """Collect the files that interrupted runs in the log were going to delete, but have not."""
    return frozenset(
        (record.path, record.bytes, record.modified)
        for run in log.find_unfinished_runs()
        if is_fingerprint(run.name)
        for record in run.unfinished_records().values()
    )


def _format_line(line: dict[str, Any]) -> bytes:
    try:
        return f"{json.dumps(line, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:
        # The line has the name of a local file that is not valid UTF-8: write it with JSON escapes.
        return f"{json.dumps(line)}\n".encode()


def _read_lines(location: Location) -> Iterator[str]:
    require_no_link(location)
    content = read_file(location, most=MOST_LINES)
    try:
        # Not `splitlines`: names of files may have other characters at which it splits, and which JSON does not escape.
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _refuse_line(error, location, content.count(b"\n", 0, error.start) + 1) from None
    yield from lines


def _parse_object(line: str) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields


def _parse_line(line: str, location: Location, number: int) -> AuditRecord | None:
    """Parse a line of the log; return None for a line about the run itself."""
    try:
        fields = _parse_object(line)
        if "event" in fields:
            return None
        for name in ("path", "kind", "reason", "fingerprint"):
            if not isinstance(fields[name], str):
                raise TypeError(f"{name} is not a text")
        if type(fields["bytes"]) is not int or fields["bytes"] < 0:
            raise ValueError("bytes is not a number of bytes")
        if fields["kind"] not in _KINDS:
            raise ValueError(f"{fields['kind']!r} is not a kind of path")
        modified = fields["modified"]
        return AuditRecord(
            path=fields["path"],
            bytes=fields["bytes"],
            kind=fields["kind"],
            reason=fields["reason"],
            modified=None if modified is None else datetime.fromisoformat(modified),
            fingerprint=fields["fingerprint"],
            outcome=DeletionOutcome(fields["outcome"]),
            time=datetime.fromisoformat(fields["time"]),
            detail=str(fields.get("detail", "")),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refuse_line(error, location, number) from None


def _refuse_line(error: Exception, location: Location, number: int) -> FormatError:
    # The `repr` of a decoding error has all bytes of the file, so take only its reason.
    reason = error.reason if isinstance(error, UnicodeDecodeError) else repr(error)
    return FormatError(
        f"not a line of an audit log: {reason if len(reason) <= _LONG_REASON else reason[:_LONG_REASON] + ' …'}",
        where=Where(file=str(location), path=f"line {number}"),
        hint="Move the directory of this run out of the audit log and plan again",
    )
