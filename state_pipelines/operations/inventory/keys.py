"""Partition keys: the date of a savepoint, a short name that tells jobs apart, and eight digits of the fingerprint."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from state_pipelines.errors import UsageError
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, JOB_DIRECTORY, SAVEPOINT_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.storage import Location

SHORT = 8
"""Hexadecimal digits of the fingerprint in a key."""

LONG = 16
"""Digits in the key of a snapshot whose short key another one has already."""

_NAME_SIZE = 40
_CHECKPOINT_KEY = re.compile(r"(?<![A-Za-z0-9])chk-\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d_(?=.)")
_KEY = re.compile(rf"(.+)@([0-9a-f]{{{SHORT}}}|[0-9a-f]{{{LONG}}})")


class SnapshotName(NamedTuple):
    """A readable name of a snapshot, from its path alone.

    Attributes:
        name: `chk-17-1a2b3c`, `savepoint-df4606`, or the name of the directory.
        job_id: id of the Flink job as far as the path says it: 32 hexadecimal digits above checkpoints, the first six
            in the name of a savepoint; None when it does not.
    """

    name: str
    job_id: str | None


class PartitionKey(NamedTuple):
    """A partition key in two: the name, with its date, and the first 8 or 16 digits of the fingerprint."""

    name: str
    digits: str

    @property
    def undated(self) -> str:
        """The name without its date."""
        return _DATE.sub("", self.name, count=1)

    def fits(self, name: str, fingerprint: str) -> bool:
        """Return whether the key is one of a snapshot, whatever its date is.

        Args:
            name: see `name_snapshot`.
            fingerprint: of the snapshot; empty to compare names only.
        """
        return name in (self.name, self.undated) and (not fingerprint or fingerprint.startswith(self.digits))


def name_snapshot(directory: Location) -> SnapshotName:
    """Name a snapshot by its directory.

    Checkpoints have their number and six digits of their job's id, where the directory above is named by that.
    Savepoints keep the name that Flink gives up to the job's id. Other names are kept, without the characters that
    Dagster refuses in partition keys, and cut after 40 characters.

    Args:
        directory: the exclusive directory of the snapshot.
    """
    name = directory.name
    if CHECKPOINT_DIRECTORY.fullmatch(name):
        above = directory.path.rstrip("/").split("/")[-2:-1]
        if above and JOB_DIRECTORY.fullmatch(above[0]):
            return SnapshotName(f"{name}-{above[0][:6]}", above[0])
        return SnapshotName(name, None)
    savepoint = SAVEPOINT_DIRECTORY.fullmatch(name)
    if savepoint and savepoint[1]:
        return SnapshotName(f"savepoint-{savepoint[1]}", savepoint[1])
    plain = re.sub(r"\.{2,}", ".", re.sub(r"[^\w.~+=-]+", "-", name))
    return SnapshotName(plain[:_NAME_SIZE] or "snapshot", None)


def make_partition_key(name: str, fingerprint: str, size: int = SHORT, *, taken: datetime | None = None) -> str:
    """The key of a snapshot.

    Args:
        name: see `name_snapshot`.
        fingerprint: of the snapshot, 16 hexadecimal digits.
        size: digits of the fingerprint in the key, `SHORT` or `LONG`.
        taken: when a savepoint was written; None for checkpoints, and where the storage does not say. Without effect on
            a name that has a date, and on `chk-…`, which has a number.
    """
    date = "" if taken is None or name.startswith("chk-") or _DATE.match(name) else f"{taken.astimezone(UTC):%Y-%m-%d}_"
    return f"{date}{name}@{fingerprint[:size]}"


def find_key(keys: Iterable[str], name: str, fingerprint: str) -> str:
    """Return the first of some keys that is one of a snapshot, or an empty text.

    Args:
        keys: partition keys; other texts are ignored.
        name: see `name_snapshot`.
        fingerprint: of the snapshot.
    """
    parsed = ((key, match) for key in keys if (match := _KEY.fullmatch(key)) is not None)
    return next((key for key, match in parsed if PartitionKey(match[1], match[2]).fits(name, fingerprint)), "")


def is_checkpoint_key(key: str) -> bool:
    """Return whether a key is that of a snapshot in a directory as Flink names those of checkpoints."""
    return _CHECKPOINT_KEY.search(key) is not None


def parse_partition_key(key: str) -> PartitionKey:
    """Name and digits of a key.

    Raises:
        UsageError: the text is not a key.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        hint = "A key is NAME@DIGITS, such as chk-17-1a2b3c@bcb9ffff; the inventory lists the keys that there are"
        raise UsageError(f"{key!r} is not the key of a snapshot", hint=hint)
    return PartitionKey(match[1], match[2])
