"""Records of upgrades on the storage beside the results, and the lease of a job, which one process at a time holds.

* `Lease`, `take_lease`, `hold_lease`: of all processes that upgrade one job, on any machine, one at a time holds the
  lease. A lease is a file with a number; the newest one counts. A process that wants it creates the next file, which
  the storage lets only one do, after the holder has released it, or has died: its process is gone, or, on another
  machine, it has not renewed the lease for `LEASE_SECONDS`. A holder asks before everything that it does to a cluster
  whether the lease is still its own.
* `UpgradeRecord`, `RecordDirectory`: a record is one JSON file, which is replaced as a whole. It is written before a
  step begins something that cannot be repeated, and after the step has ended, so that another process can go on where
  one was killed. The ids of the jobs that an upgrade starts, and of the savepoints that it triggers, follow from the id
  of the upgrade: whatever was submitted before a process was killed is found under the same id.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    StateError,
    StorageError,
    TargetExistsError,
    UsageError,
    Where,
)
from state_pipelines.redaction import redact
from state_pipelines.storage import Location, join, list_directory, read_file, replace_file, resolve
from state_pipelines.storage.files import create_file_at_once, is_directory, remove_file
from state_pipelines.storage.locations import is_local, translating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LEASE_SECONDS = 120
"""Seconds after its last renewal from which on a lease of another machine counts as that of a dead process."""

_RENEWAL_SECONDS = 20
_PREFIX, _SUFFIX = "lease-", ".json"
_MOST_LEASE_BYTES = 1 << 16


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease.

    Attributes:
        token: unique to this holding.
        host: name of the machine.
        process: id of the process.
        started: when the process started, in ticks of the machine's clock; 0 where that is not known.
        renewed: ISO time at which it was last known to be alive.
        is_released: whether it has given the lease back.
    """

    token: str
    host: str
    process: int
    started: int
    renewed: str
    is_released: bool = False

    def is_alive(self, now: datetime) -> bool:
        """Return whether the holder may still be at work."""
        if self.is_released:
            return False
        if self.host == socket.gethostname():
            return _find_start(self.process) == self.started
        return now - datetime.fromisoformat(self.renewed) < timedelta(seconds=LEASE_SECONDS)


class LeaseLostError(UsageError):
    """Another process holds the lease now; nothing more may be done to the job."""


class Lease:
    """The right, held by this process, to upgrade a job: while its file is renewed, other processes refuse to."""

    def __init__(self, location: Location, holder: Holder, job: str) -> None:
        self._location = location
        self._holder = holder
        self._job = job
        # The thread that renews the lease must not write after the lease was released.
        self._lock = threading.Lock()

    def require_held(self) -> None:
        """Make sure that no other process has taken the lease.

        Raises:
            LeaseLostError: another process has taken it.
            StorageError: the storage fails.
        """
        newest = _find_newest(self._directory)
        if newest is None or newest.name != self._location.name:
            raise LeaseLostError(
                f"another process has taken over the upgrade of {self._job}, because this one seemed to have died",
                where=Where(file=str(self._location)),
                hint="This process does nothing more; look at the output of the other one",
            )

    def renew(self, now: datetime) -> None:
        """Renew the lease: record that this process is alive at this time.

        Raises:
            StorageError: the storage fails.
        """
        with self._lock:
            if not self._holder.is_released:
                self._write(replace(self._holder, renewed=now.isoformat()))

    def release(self) -> None:
        """Release the lease.

        Raises:
            StorageError: the storage fails.
        """
        with self._lock:
            self._write(replace(self._holder, is_released=True))

    @property
    def _directory(self) -> Location:
        return Location(self._location.filesystem, self._location.path.rpartition("/")[0])

    def _write(self, holder: Holder) -> None:
        self._holder = holder
        replace_file(self._location, _encode(holder))


def take_lease(directory: Location, job: str, *, what: str = "an upgrade", now: datetime | None = None) -> Lease:
    """Take the lease of a job.

    Args:
        directory: directory of the lease files.
        job: name of the job, for messages.
        what: what the lease is for, for messages.
        now: the time; by default that of this machine.

    Raises:
        UsageError: another process has the lease; the error names it.
        StorageError: the storage fails.
    """
    time = now or _now()
    newest = _find_newest(directory)
    if newest is not None:
        holder = _read(newest)
        if holder is not None and holder.is_alive(time):
            raise _held(what, job, holder, newest)
    number = 1 if newest is None else int(newest.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) + 1
    process = os.getpid()
    mine = Holder(uuid4().hex, socket.gethostname(), process, _find_start(process), time.isoformat())
    location = join(directory, f"{_PREFIX}{number:08d}{_SUFFIX}")
    if not _create(location, mine):
        holder = _read(location)
        if holder is None:
            raise StorageError(
                f"another process has just created or removed the lease of {job}, which cannot be read",
                where=Where(file=str(location)),
                hint="Try again",
                transient=True,
            )
        raise _held(what, job, holder, location)
    if newest is not None:
        remove_file(newest)
    return Lease(location, mine, job)


@contextmanager
def hold_lease(directory: Location, job: str, *, what: str = "an upgrade") -> Iterator[Lease]:
    """Hold the lease of a job during a block, and renew it meanwhile.

    Raises:
        UsageError: another process has it.
        StorageError: the storage fails.
    """
    lease = take_lease(directory, job, what=what)
    ended = threading.Event()
    thread = threading.Thread(target=_keep_renewing, args=(lease, ended.wait), name=f"lease of {job}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        ended.set()
        thread.join()
        lease.release()


def _keep_renewing(lease: Lease, wait: Callable[[float], bool]) -> None:
    while not wait(_RENEWAL_SECONDS):
        try:
            lease.renew(_now())
        except StateError:
            # The next attempt may succeed; `require_held` notices a process that takes the lease meanwhile.
            continue


def _create(location: Location, holder: Holder) -> bool:
    """Create the file of a lease; return False if another process has created it."""
    data = _encode(holder)
    if is_local(location):
        try:
            create_file_at_once(location, data)
        except TargetExistsError:
            return False
        return True
    try:
        with translating(location, "write the lease", writes=True):
            location.filesystem.pipe_file(location.path, data, mode="create")
    except (StateError, FileExistsError):
        # The request may have succeeded although its answer was lost, so look whose lease it is.
        found = _read(location)
        if found is None:
            raise
        return found.token == holder.token
    found = _read(location)
    return found is not None and found.token == holder.token


def _find_newest(directory: Location) -> Location | None:
    if not is_directory(directory):
        return None
    names = (each.location for each in list_directory(directory) if not each.is_directory)
    found = [each for each in names if each.name.startswith(_PREFIX) and each.name.endswith(_SUFFIX)]
    return max(found, key=lambda each: each.name, default=None)


def _read(location: Location) -> Holder | None:
    """Return the holder of a lease; None if its file is gone or was never completed."""
    try:
        content = json.loads(read_file(location, most=_MOST_LEASE_BYTES))
        return Holder(**content)
    except (MissingFileError, ValueError, TypeError):
        return None


def _encode(holder: Holder) -> bytes:
    return json.dumps(asdict(holder), indent=2).encode()


def _held(what: str, job: str, holder: Holder, location: Location) -> UsageError:
    return UsageError(
        f"{what} of {job} is under way: process {holder.process} on {holder.host}, last seen {holder.renewed}",
        where=Where(file=str(location)),
        hint=f"Wait for it. If it has died on another machine, its lease ends {LEASE_SECONDS} s after that time",
    )


def _find_start(process: int) -> int:
    """Return the start of a process in ticks of the machine's clock; 0 without `/proc`, -1 if there is no process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program, in parentheses, may have blanks.
        return int(text.rpartition(")")[2].split()[19])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, IndexError):
        return 0
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return -1
    except OSError:
        pass
    return 0


DIRECTORY = "_upgrades"
"""Name of the directory of upgrade records, below the results of a job; it has a directory per job."""

_VERSION = 1
_MOST_BYTES = 16 << 20
_UPGRADE, _APPROVAL, _REHEARSAL = "upgrade-", "approved-", "rehearsal.json"
_UPGRADE_RECORDS_SUFFIX = ".json"


class Step(StrEnum):
    """Steps of an upgrade, in order."""

    STOP = "stop"
    CHECK = "check"
    CHANGE = "change"
    START = "start"
    WATCH = "watch"
    BACK = "back"


class UpgradeOutcome(StrEnum):
    """Outcome of an upgrade: what runs after it."""

    UPGRADED = "upgraded"
    WENT_BACK = "went back"
    NOT_STOPPED = "not stopped"
    NOTHING_RUNS = "nothing runs"


@dataclass(frozen=True)
class UpgradeRecord:
    """Record of an upgrade and its progress.

    Attributes:
        id: id of the upgrade, 12 hexadecimal digits.
        job: name of the job.
        created: ISO time.
        old_job: id of the running job at its cluster.
        fingerprint: fingerprint of the plan that is carried out.
        plan: the plan as JSON.
        steps: outcomes of the steps that have begun.
        outcome: outcome of the upgrade; None until it is decided.
        reason: why the job went back to the old program, was not stopped, or does not run; empty if it was upgraded.
    """

    id: str
    job: str
    created: str
    old_job: str
    fingerprint: str
    plan: Mapping[str, Any]
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outcome: UpgradeOutcome | None = None
    reason: str = ""

    def get(self, step: Step) -> Mapping[str, Any]:
        """The outcome of a step; empty before it has begun."""
        return self.steps.get(step, {})

    def note(self, step: Step, **outcome: Any) -> UpgradeRecord:
        """Return the record with further values in the outcome of a step."""
        return replace(self, steps={**self.steps, step: {**self.get(step), **outcome}})

    def is_done(self, step: Step) -> bool:
        """Return whether a step has ended."""
        return bool(self.get(step).get("done"))

    def make_id(self, *words: object) -> str:
        """Return 32 hexadecimal digits that follow from the id of the upgrade and `words`, in every process.

        They are ids of the jobs and triggers of the upgrade.
        """
        return hashlib.sha256(" ".join((self.id, *map(str, words))).encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """Beginning of the names of directories that belong to the upgrade."""
        return f"{_UPGRADE}{self.id}"

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return {
            "version": _VERSION,
            "id": self.id,
            "job": self.job,
            "created": self.created,
            "old_job": self.old_job,
            "fingerprint": self.fingerprint,
            "plan": dict(self.plan),
            "steps": {name: dict(outcome) for name, outcome in self.steps.items()},
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class RecordDirectory:
    """The records, leases, approvals and rehearsals of one job.

    Attributes:
        location: the directory; it need not exist.
    """

    location: Location

    def read(self, upgrade: str) -> UpgradeRecord | None:
        """Read the record of an upgrade; return None if there is none.

        Raises:
            FormatError: the file is no record.
            StorageError: the storage fails.
        """
        location = self._locate(upgrade)
        try:
            data = read_file(location, most=_MOST_BYTES)
        except MissingFileError:
            return None
        try:
            content = json.loads(data)
            if content.pop("version") != _VERSION:
                raise ValueError("another version")
            outcome = content.pop("outcome")
            return UpgradeRecord(**content, outcome=None if outcome is None else UpgradeOutcome(outcome))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(
                f"this is no record of an upgrade: {redact(str(error))}",
                where=Where(file=str(location)),
                hint="Look which job runs at the cluster, then move the file away",
            ) from None

    def list_records(self) -> list[UpgradeRecord]:
        """Read all records, the oldest first.

        Raises:
            FormatError: a file is no record.
            StorageError: the storage fails.
        """
        if not is_directory(self.location):
            return []
        names = [each.location.name for each in list_directory(self.location) if not each.is_directory]
        ids = [
            name.removeprefix(_UPGRADE).removesuffix(_UPGRADE_RECORDS_SUFFIX)
            for name in names
            if name.startswith(_UPGRADE) and name.endswith(_UPGRADE_RECORDS_SUFFIX)
        ]
        found = [record for each in ids if (record := self.read(each)) is not None]
        return sorted(found, key=lambda record: record.created)

    def find_last(self) -> UpgradeRecord | None:
        """Return the record of the newest upgrade; None before the first one.

        Raises:
            StateError: as for `list_records`.
        """
        records = self.list_records()
        return records[-1] if records else None

    def find_unfinished(self) -> UpgradeRecord | None:
        """Return the record of the upgrade that is not decided; None if there is none.

        Raises:
            UsageError: several upgrades are not decided, which a process of this package never leaves behind.
            StateError: as for `list_records`.
        """
        found = [each for each in self.list_records() if each.outcome is None]
        if len(found) > 1:
            names = ", ".join(each.id for each in found)
            raise UsageError(
                f"several upgrades have not ended: {names}",
                where=Where(file=str(self.location)),
                hint="Look which job runs at the cluster, then move the records of the other upgrades away",
            )
        return found[0] if found else None

    def write(self, record: UpgradeRecord) -> None:
        """Write a record, which replaces its earlier version.

        Raises:
            StorageError: the storage refuses.
        """
        replace_file(self._locate(record.id), json.dumps(record.to_json(), indent=2, default=str).encode())

    def approve(self, fingerprint: str, by: str) -> None:
        """Write the approval of a plan.

        Raises:
            UsageError: this is no fingerprint.
            StorageError: the storage refuses.
        """
        if len(fingerprint) != 16 or not set(fingerprint) <= set("0123456789abcdef"):
            raise UsageError(f"{fingerprint!r} is no fingerprint of a plan", hint="`upgrade --plan` prints it")
        replace_file(self._locate_approval(fingerprint), json.dumps({"by": by}).encode())

    def is_approved(self, fingerprint: str) -> bool:
        """Return whether there is an approval of a plan.

        Raises:
            StorageError: the storage fails.
        """
        try:
            read_file(self._locate_approval(fingerprint), most=_MOST_BYTES)
        except MissingFileError:
            return False
        return True

    def write_rehearsal(self, content: Mapping[str, Any]) -> None:
        """Keep the result of the last rehearsal.

        Raises:
            StorageError: the storage refuses.
        """
        replace_file(join(self.location, _REHEARSAL), json.dumps(content, indent=2, default=str).encode())

    def read_rehearsal(self) -> Mapping[str, Any]:
        """Read the result of the last rehearsal; return an empty mapping without one.

        Raises:
            StorageError: the storage fails.
        """
        try:
            content = json.loads(read_file(join(self.location, _REHEARSAL), most=_MOST_BYTES))
        except (MissingFileError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _locate(self, upgrade: str) -> Location:
        return join(self.location, f"{_UPGRADE}{upgrade}{_UPGRADE_RECORDS_SUFFIX}")

    def _locate_approval(self, fingerprint: str) -> Location:
        return join(self.location, f"{_APPROVAL}{fingerprint}{_UPGRADE_RECORDS_SUFFIX}")


def find_records(results: str, job: str) -> RecordDirectory:
    """Return the upgrade records of a job, which are below its results."""
    return RecordDirectory(join(resolve(results), DIRECTORY, job))
