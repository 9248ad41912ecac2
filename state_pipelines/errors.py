"""Errors: one root, about ten leaves; each says what is wrong, where, and what to do about it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.redaction import redact, redact_path

if TYPE_CHECKING:
    from collections.abc import Iterator

EDITED_METADATA = "`_metadata` was edited or written by a faulty tool; use an earlier snapshot"
"""Hint of errors about handles that Flink does not write."""


@dataclass(frozen=True)
class Where:
    """The location in a snapshot that an error is about; every attribute may be unknown.

    Attributes:
        file: path or URL of the file (or the name of an inlined handle), without secrets.
        offset: byte offset inside `file`.
        operator: uid, or the 32-digit operator id.
        state: state name.
        path: path to a field inside a value, such as `value.address.zip`.
    """

    file: str | None = None
    offset: int | None = None
    operator: str | None = None
    state: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None:
            object.__setattr__(self, "file", redact_path(self.file))

    def __str__(self) -> str:
        fields = (
            ("file", self.file),
            ("offset", self.offset),
            ("operator", self.operator),
            ("state", self.state),
            ("at", self.path),
        )
        return ", ".join(f"{name} {value}" for name, value in fields if value is not None)


class StateError(Exception):
    """Root of every error that this package raises on purpose.

    Attributes:
        what: what is wrong, one sentence.
        where: the location (see `Where`).
        hint: what to do about it; empty when nothing helps.
        details: further texts for reports, by name, such as Flink's reason of a failed checkpoint.
    """

    def __init__(self, what: str, *, where: Where | None = None, hint: str = "") -> None:
        # Paths, options and the words of storage clients may hold secrets.
        self.what = redact(what)
        self.where = where or Where()
        self.hint = redact(hint)
        self.details: dict[str, str] = {}
        super().__init__(self.what)

    def __str__(self) -> str:
        where = str(self.where)
        text = f"{self.what} [{where}]" if where else self.what
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.what, self.where, self.hint), {"details": self.details}


def _restore(kind: type[StateError], what: str, where: Where, hint: str) -> StateError:
    return kind(what, where=where, hint=hint)


class FormatError(StateError):
    """Bytes are not what the format says: truncated, wrong magic, offset outside the file, bytes left over."""


class UnsupportedError(StateError):
    """The bytes are legal but this release does not cover them; the hint names the way around."""


class UnsupportedVersionError(UnsupportedError):
    """The bytes have a format version that this release does not read; nothing suggests that they are damaged."""


_LARGEST_VERSION = 255
"""Largest number that a version can have; Flink counts its versions from 1."""

_NEWER = (
    "Probably a later Flink wrote it. Use a later release of this package, or take a savepoint with a Flink release "
    "from 1.8 to 2.x"
)


def unsupported_version(
    what: str, version: int, known: str | int, where: Where, hint: str = _NEWER
) -> UnsupportedVersionError | FormatError:
    """Make the error of an unknown version: a `FormatError` (damage) if no version can have this number.

    Args:
        what: what has the version, such as `keyed state`.
        version: the version found.
        known: the versions that this release reads, such as `5 and 6`.
        where: location of the version.
        hint: what to do if the number can be a version.
    """
    if 0 < version <= _LARGEST_VERSION:
        return UnsupportedVersionError(
            f"{what} has version {version}, which is not known: this release reads {known}", where=where, hint=hint
        )
    return FormatError(f"{what} has version {version}, which no release writes; {known} expected", where=where)


def older_than_promised(what: str, where: Where) -> UnsupportedVersionError:
    """Make the error of a layout that only releases before Flink 1.8 wrote.

    Args:
        what: the layout, such as `keyed state header of version 5`.
        where: location of the layout.
    """
    return UnsupportedVersionError(
        f"{what}: written by a Flink older than 1.8, the oldest release whose snapshots are supported",
        where=where,
        hint="Restore it with Flink 1.8 to 1.16, which still read that format, take a savepoint there, and use that",
    )


class UnknownSerializerError(UnsupportedError):
    """A serializer snapshot class that no registered reader knows."""


class MissingFileError(StateError):
    """A file that a snapshot references does not exist or cannot be opened."""


class StorageError(StateError):
    """The storage failed or refuses: time-outs, broken connections, damaged responses, missing credentials.

    Also raised for a file that does not fit in memory.

    Attributes:
        transient: the same operation may succeed later.
    """

    def __init__(self, what: str, *, where: Where | None = None, hint: str = "", transient: bool = False) -> None:
        super().__init__(what, where=where, hint=hint)
        self.transient = transient

    def __reduce__(self) -> tuple[object, ...]:
        restore, arguments, _ = super().__reduce__()
        return restore, arguments, {"details": self.details, "transient": self.transient}


class ClusterError(StateError):
    """A running Flink cluster cannot be reached, refuses a request or fails.

    `details["flink"]` has Flink's own words, where it gave any.

    Attributes:
        transient: the same request may succeed later.
        is_in_doubt: the request changes something, and may have been carried out although its answer was lost.
    """

    def __init__(
        self, what: str, *, where: Where | None = None, hint: str = "", transient: bool = False, in_doubt: bool = False
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.transient = transient
        self.is_in_doubt = in_doubt

    def __reduce__(self) -> tuple[object, ...]:
        restore, arguments, _ = super().__reduce__()
        state = {"details": self.details, "transient": self.transient, "is_in_doubt": self.is_in_doubt}
        return restore, arguments, state


class SnapshotGoneError(StorageError):
    """A snapshot was removed while it was read, as Flink removes a checkpoint that newer ones replace."""

    def __init__(self, directory: str) -> None:
        hint = "Flink removes a checkpoint that newer ones replace: read a newer one, or a savepoint, which stays"
        super().__init__("the snapshot was removed while it was read", where=Where(file=directory), hint=hint)


class OutOfReachError(MissingFileError):
    """A file outside the directories that the snapshot may name (`storage.resolution`); it was not looked for.

    Usually the snapshot was copied, and the path is one of the machine on which it was taken.
    """


class NotFoundError(StateError):
    """The snapshot has no such operator or state, or the path holds no snapshot."""


class UsageError(StateError):
    """The caller's arguments are wrong or contradict each other."""


class ValueRangeError(StateError):
    """A value does not fit in the wanted type or format (overflow, null where the format has none)."""


class TargetExistsError(StateError):
    """The target already holds something; a snapshot is never overwritten."""


class MigrationError(StateError):
    """A migration file is wrong, or does not fit the state it is applied to."""


class IncompatibleError(StateError):
    """The request cannot be fulfilled: the state does not fit what is asked for."""


class StateMigrationError(IncompatibleError):
    """A restored state does not fit the serializer that it is registered with (Flink's `StateMigrationException`)."""


class ProofError(StateError):
    """The proof after a change failed; nothing was published.

    Attributes:
        report: the checks and their results.
    """

    def __init__(self, what: str, *, where: Where | None = None, hint: str = "", report: object = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.report = report


@contextmanager
def at(**where: str | int | None) -> Iterator[None]:
    """Add a location to a `StateError` that passes through, without replacing what is known already."""
    try:
        yield
    except StateError as error:
        known = error.where
        missing = {name: value for name, value in where.items() if getattr(known, name) is None}
        error.where = replace(known, **missing)  # type: ignore[arg-type]
        raise
