"""The marker in the results of a job: which Dagster instance and code location runs its sensor.

Two instances, or two code locations of one, with a job of the same name and the same results would migrate each
snapshot twice. They see each other by the marker, which the sensor `new_snapshots` renews.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.errors import MissingFileError
from state_pipelines.storage import read_file, replace_file

if TYPE_CHECKING:
    import dagster as dg

    from state_pipelines.storage import Location

INSTANCE = "state_pipelines_instance"
"""Set of dynamic partitions whose first entry is the id of the Dagster instance."""

RENEWAL = timedelta(minutes=2)
"""Age of a marker at which its owner writes it again."""

LEASE = timedelta(minutes=6)
"""Age of a marker from which another one may take it over."""


@dataclass(frozen=True)
class Owner:
    """The process that runs the sensor of a job.

    Attributes:
        instance: id of the Dagster instance.
        location: name of the code location.
        host: name of the machine or container.
        pid: of the process of the code location.
        seen: when the marker was written, in ISO format.
    """

    instance: str
    location: str
    host: str
    pid: int
    seen: str = ""

    def is_same(self, other: Owner) -> bool:
        """Return whether two markers are of the same code location of one instance, whatever process it has."""
        return (self.instance, self.location) == (other.instance, other.location)


def describe_owner(instance: dg.DagsterInstance, location: str) -> Owner:
    """Return the owner that this process is."""
    if not (entries := instance.get_dynamic_partitions(INSTANCE)):
        instance.add_dynamic_partitions(INSTANCE, [uuid.uuid4().hex])
        # Of two that come at the same time, the first in the stored order counts.
        entries = instance.get_dynamic_partitions(INSTANCE)
    return Owner(entries[0], location, socket.gethostname(), os.getpid())


def take_marker(marker: Location, owner: Owner, now: datetime) -> str:
    """Write the marker of a job; return why another one has it, or an empty text.

    Args:
        marker: the file in the results of the job.
        owner: this process.
        now: the current time, with its zone.

    Raises:
        StateError: the marker cannot be read or written.
    """
    found = _read(marker)
    if found is not None and not found.is_same(owner) and not _is_dead(found):
        left = LEASE - abs(now - datetime.fromisoformat(found.seen))
        if left > timedelta():
            return (
                f"another code location runs this job with the same results: {found.location or 'unnamed'} on "
                f"{found.host}, process {found.pid}, of {_name_instance(found, owner)}, last seen {found.seen}. Give "
                "one of them other results or another name, or stop its sensors. If it ended, this one takes over in "
                f"{max(1, round(left.total_seconds() / 60))} min; {marker} says who has it"
            )
    replace_file(marker, json.dumps(asdict(replace(owner, seen=now.isoformat(timespec="seconds")))).encode())
    return ""


def is_due(written: str | None, now: datetime) -> bool:
    """Return whether the marker must be written again.

    Args:
        written: when this owner wrote it last, in ISO format; None if it never did.
        now: the current time.
    """
    return written is None or not timedelta() <= now - datetime.fromisoformat(written) < RENEWAL


def _read(marker: Location) -> Owner | None:
    """Return the stored owner; None if there is none, or the file is none of ours."""
    try:
        found = Owner(**json.loads(read_file(marker)))
        datetime.fromisoformat(found.seen).astimezone()
    except (MissingFileError, ValueError, TypeError):
        return None
    return found


def _is_dead(owner: Owner) -> bool:
    """Return whether the process of an owner on this machine has ended, such as that of `dg dev` before its restart."""
    if owner.host != socket.gethostname():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _name_instance(found: Owner, owner: Owner) -> str:
    return "this Dagster instance" if found.instance == owner.instance else "another Dagster instance"
