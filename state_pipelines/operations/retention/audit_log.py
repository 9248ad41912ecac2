"""Audit log of retention: every path that was to be deleted, with the outcome, as JSON lines.

The log is a directory with a directory per run. Before a run deletes anything, it writes `000000-started.jsonl`: a line
about itself and a line per path that it is going to delete. It writes a file per batch with the outcomes, and
`…-finished.jsonl` when nothing is left to do. No file is ever changed, so any storage can hold the log, and a run that
was killed is recognized and can be continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import FormatError, UsageError, Where
from state_pipelines.operations.retention.own_directory import locate_own, require_no_link
from state_pipelines.operations.retention.plan import PathKind
from state_pipelines.storage import exists, join, list_directory, read_file
from state_pipelines.storage.documents import MOST_LINES
from state_pipelines.storage.files import create_file_at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.storage import Location


Leftovers = Collection[tuple[str, int, datetime | None]]
"""Path, size and time of files that interrupted runs were going to delete: no age floor protects them."""

_STARTED = "started"
_FINISHED = "finished"
_TIME_FORMAT = "%Y%m%dT%H%M%S%fZ"
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")

QUARANTINED = "quarantined"
"""Kind of files in quarantine, whose role in the root is not known any more."""

_LONG_REASON = 300
_KINDS = frozenset({QUARANTINED, *PathKind})


class Outcome(StrEnum):
    """Record of an action on a path."""

    INTENDED = "intended"
    """Going to be deleted; written before."""
    DELETED = "deleted"
    MISSING = "missing"
    """Somebody else has deleted it before."""
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    """Moved back out of the quarantine; with a detail, it is not known whether its snapshot is complete."""
    INCOMPLETE = "incomplete"
    """The `_metadata` of a snapshot that was moved back, but whose files are not all there; the detail names them."""
    PURGED = "purged"
    """Deleted in the quarantine."""
    KEPT = "kept"
    """Not deleted, because it has changed or is needed; the detail says why."""
    FAILED = "failed"
    """The storage refused; the detail says why."""


@dataclass(frozen=True)
class AuditRecord:
    """A line of the log.

    Attributes:
        path: the file.
        bytes: its size.
        kind: what it is, a value of `PathKind`, or `QUARANTINED`.
        reason: why it was planned.
        modified: its time in the plan, None when the storage gives none.
        fingerprint: of the plan.
        outcome: what was done.
        time: when.
        detail: why it was kept, why it failed, or what its snapshot lacks.
    """

    path: str
    bytes: int
    kind: str
    reason: str
    modified: datetime | None
    fingerprint: str
    outcome: Outcome
    time: datetime
    detail: str = ""

    def with_outcome(self, outcome: Outcome, time: datetime, detail: str = "") -> AuditRecord:
        """The record of a later time."""
        return replace(self, outcome=outcome, time=time, detail=detail)

    def to_json(self) -> dict[str, Any]:
        """The fields of the line."""
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
    """One run in the log.

    Attributes:
        directory: of the run.
        name: fingerprint of the plan, or the verb of another run.
    """

    def __init__(self, directory: Location, name: str, files: Sequence[str]) -> None:
        """Continue after the files that exist."""
        self.directory = directory
        self.name = name
        self._files = list(files)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
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
        """The first line of the run, about the run itself.

        Raises:
            FormatError: the line is not one of this log.
        """
        location = join(self.directory, self._files[0])
        line = next(_read_lines(location), "")
        try:
            return _parse_object(line)
        except (ValueError, RecursionError) as error:
            raise _refuse_line(error, location, 1) from None

    def read(self) -> Iterator[AuditRecord]:
        """Every record of the run, in the order in which it was written.

        Raises:
            FormatError: a line is not one of this log, or a file is too large for one.
            UsageError: a file is a symbolic link.
        """
        for name in self._files:
            location = join(self.directory, name)
            for number, line in enumerate(_read_lines(location), 1):
                record = _parse_line(line, location, number)
                if record is not None:
                    yield record

    def read_about(self, names: Collection[str]) -> Iterator[AuditRecord]:
        """The records of the run that have one of some names in them; see `read`."""
        texts = {text for name in names for text in (name, json.dumps(name)[1:-1])}
        for file in self._files:
            location = join(self.directory, file)
            for number, line in enumerate(_read_lines(location), 1):
                record = _parse_line(line, location, number) if any(text in line for text in texts) else None
                if record is not None:
                    yield record

    def unfinished_records(self) -> dict[str, AuditRecord]:
        """The deletions without an outcome or with a failure, by path."""
        left: dict[str, AuditRecord] = {}
        for record in self.read():
            if record.outcome in (Outcome.INTENDED, Outcome.FAILED):
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
                f"a file of the audit log would have {len(content):,} bytes, more than {MOST_LINES:,} that are read",
                where=Where(file=str(location)),
                hint="Nothing of this was deleted or moved; give fewer roots at a time",
            )
        create_file_at_once(location, content)
        self._files.append(name)


class AuditLog:
    """The audit log in a directory, which need not exist yet."""

    def __init__(self, directory: Location) -> None:
        """Remember the directory; nothing is read or written yet."""
        self.directory = directory

    def start_run(self, name: str, records: Iterable[AuditRecord], *, time: datetime, **about: Any) -> AuditRun:
        """Write the first file of a new run: what it is and what it is going to do.

        Args:
            name: fingerprint of the plan, or the verb of another run.
            records: the paths, with the outcome `INTENDED`.
            time: of the start.
            about: more about the run, such as the roots.

        Raises:
            StateError: the storage refuses.
        """
        directory = join(self.directory, f"{time.astimezone(UTC).strftime(_TIME_FORMAT)}-{name}")
        run = AuditRun(directory, name, ())
        header = {"time": time.isoformat(), "event": _STARTED, "name": name, **about}
        run._write(f"-{_STARTED}", [header, *(record.to_json() for record in records)])
        return run

    def find_runs(self) -> list[AuditRun]:
        """All runs, the oldest first."""
        if not exists(self.directory):
            return []
        runs = []
        for entry in list_directory(self.directory):
            _, separator, name = entry.location.name.partition("Z-")
            if entry.is_directory and separator:
                files = [file.location.name for file in list_directory(entry.location)]
                files = [file for file in files if file.endswith(".jsonl") and not file.startswith(".")]
                # Without a first file the run was killed before it did anything.
                if files:
                    runs.append(AuditRun(entry.location, name, files))
        return runs

    def find_unfinished_runs(self) -> list[AuditRun]:
        """The runs that were killed or stopped at a limit, the oldest first."""
        return [run for run in self.find_runs() if not run.finished]

    def read_about(self, names: Collection[str]) -> Iterator[AuditRecord]:
        """The records of all runs that have one of some names in them, the oldest first."""
        for run in self.find_runs():
            yield from run.read_about(names)

    def read(self) -> Iterator[AuditRecord]:
        """Every record of every run, the oldest first."""
        for run in self.find_runs():
            yield from run.read()


def open_audit_log(root: Location, directory: Location | None = None) -> AuditLog:
    """The audit log in a directory, by default `_retention/log` below the first root.

    Raises:
        UsageError: the default directory, or the one above it, is a symbolic link.
    """
    return AuditLog(directory or locate_own(root, "log"))


def is_fingerprint(name: str) -> bool:
    """Return whether a run of this name applied a plan."""
    return _FINGERPRINT.fullmatch(name) is not None


def find_leftovers(log: AuditLog) -> Leftovers:
    """The files that interrupted runs in the log were going to delete."""
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
        # Names of files on this machine need not be UTF-8.
        return f"{json.dumps(line)}\n".encode()


def _read_lines(location: Location) -> Iterator[str]:
    require_no_link(location)
    content = read_file(location, most=MOST_LINES)
    try:
        # Names of files may have other characters at which Python splits lines; JSON escapes this one only.
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _refuse_line(error, location, content.count(b"\n", 0, error.start) + 1) from None
    yield from lines


def _parse_object(line: str) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("it is not an object")
    return fields


def _parse_line(line: str, location: Location, number: int) -> AuditRecord | None:
    """The record of a line, None for a line about the run itself."""
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
            outcome=Outcome(fields["outcome"]),
            time=datetime.fromisoformat(fields["time"]),
            detail=str(fields.get("detail", "")),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refuse_line(error, location, number) from None


def _refuse_line(error: Exception, location: Location, number: int) -> FormatError:
    # Errors of decoding hold all bytes that they are about.
    reason = error.reason if isinstance(error, UnicodeDecodeError) else repr(error)
    return FormatError(
        f"not a line of an audit log: {reason if len(reason) <= _LONG_REASON else reason[:_LONG_REASON] + ' …'}",
        where=Where(file=str(location), path=f"line {number}"),
        hint="Move the directory of this run out of the audit log and plan again",
    )
