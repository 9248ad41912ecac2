"""The bytes of headers of state, no more than a header can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, Where
from state_pipelines.metadata.streams import read_stream_range

if TYPE_CHECKING:
    from state_pipelines.metadata.streams import StateStream

MOST_HEADER = 256 << 20
"""Bytes of a header of state: a thousand states, each with an Avro schema of 250 KiB."""


def read_header_bytes(stream: StateStream, end: int) -> bytes:
    """Read the bytes of a stream up to `end`, before which a header ends.

    Raises:
        FormatError: a header is not that long, or the stream ends before.
        MissingFileError: no such file.
    """
    check_header_size(stream, end)
    return read_stream_range(stream, 0, end)


def check_header_size(stream: StateStream, end: int) -> None:
    """Check that a header may be as long as the bytes of a stream up to `end`.

    Raises:
        FormatError: it is not.
    """
    if end > MOST_HEADER:
        what = f"the first {end:,} bytes of the file are to be a header, which has {MOST_HEADER >> 20} MiB at most"
        raise FormatError(what, where=Where(file=stream.name, offset=MOST_HEADER), hint="The file was changed")
