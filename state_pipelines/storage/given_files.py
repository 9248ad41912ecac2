"""Local files that a command is given: migrations, requests, policies, schemas, lists of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.storage.files import read_file
from state_pipelines.storage.locations import Location

if TYPE_CHECKING:
    from pathlib import Path

MOST_TEXT = 8 << 20
"""Bytes of a text that people write."""

MOST_LINES = 1 << 30
"""Bytes of a file that has a line per key or path."""


def read_given_file(
    path: str | Path, what: str, *, most: int = MOST_TEXT, kind: type[StateError] = UsageError
) -> bytes:
    """Read a local file whole.

    Args:
        path: the file.
        what: its name in errors, such as `the policy`.
        most: bytes that it may have.
        kind: class of the error.

    Raises:
        StateError: of `kind`: it cannot be read, is a device or a pipe, or has more bytes.
    """
    if "\0" in str(path):
        raise kind(f"{what} cannot be read: no file has such a name", where=Where(file=str(path)))
    try:
        return read_file(Location(LocalFileSystem(), str(path)), most=most)
    except StateError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else error.what
        raise kind(f"{what} cannot be read: {reason}", where=Where(file=str(path))) from None


def read_given_text(path: str | Path, what: str, *, most: int = MOST_TEXT, kind: type[StateError] = UsageError) -> str:
    """Read a local file of UTF-8; arguments and errors as of `read_given_file`, also for other bytes."""
    try:
        return read_given_file(path, what, most=most, kind=kind).decode()
    except UnicodeDecodeError as error:
        raise kind(f"{what} is not UTF-8: {error}", where=Where(file=str(path))) from None
