"""The lease of a job: of all processes that upgrade one job, on any machine, one at a time holds it.

A lease is a file with a number; the newest one counts. A process that wants it creates the next file, which the storage
lets only one do, after the holder has released it, or has died: its process is gone, or, on another machine, it has not
renewed the lease for `LEASE_SECONDS`. A holder asks before everything that it does to a cluster whether the lease is
still its own.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from state_pipelines.errors import MissingFileError, StateError, StorageError, TargetExistsError, UsageError, Where
from state_pipelines.storage import Location, join, list_directory, read_file, replace_file
from state_pipelines.storage.files import create_file_at_once, is_directory, remove_file
from state_pipelines.storage.locations import is_local, translating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEASE_SECONDS = 120
"""Time after its last renewal at which a lease of another machine counts as that of a process that has died."""

_RENEWAL_SECONDS = 20
_PREFIX, _SUFFIX = "lease-", ".json"
_MOST_BYTES = 1 << 16


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
    """A lease that this process holds."""

    def __init__(self, location: Location, holder: Holder, job: str) -> None:
        self._location = location
        self._holder = holder
        self._job = job
        # The thread that renews the lease must not write after it was released.
        self._lock = threading.Lock()

    def require_held(self) -> None:
        """Make sure that no other process has taken the lease.

        Raises:
            LeaseLostError: one has.
            StorageError: the storage fails.
        """
        newest = _find_newest(self._directory)
        if newest is None or newest.name != self._location.name:
            raise LeaseLostError(
                f"another process has taken over the upgrade of {self._job}, because this one seemed to have died",
                where=Where(file=str(self._location)),
                hint="Nothing more is done here; look at the other one",
            )

    def renew(self, now: datetime) -> None:
        """Note that this process is alive.

        Raises:
            StorageError: the storage fails.
        """
        with self._lock:
            if not self._holder.is_released:
                self._write(replace(self._holder, renewed=now.isoformat()))

    def release(self) -> None:
        """Give the lease back.

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
        directory: where the files of leases are.
        job: name of the job, for messages.
        what: what the lease is for, for messages.
        now: the time; by default that of this machine.

    Raises:
        UsageError: another process has it; says which.
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
                "it cannot be seen who has the lease", where=Where(file=str(location)), hint="Try again", transient=True
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
            # The next attempt may succeed; whoever takes the lease meanwhile is noticed by `require_held`.
            continue


def _create(location: Location, holder: Holder) -> bool:
    """Create the file of a lease; False if another process has."""
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
        # An answer that was lost may be that of a request that succeeded.
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
    """The holder of a lease; None if the file is gone or was never completed."""
    try:
        content = json.loads(read_file(location, most=_MOST_BYTES))
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
    """Start of a process, in ticks of the clock of the machine; 0 without `/proc`, -1 if there is no such process."""
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
