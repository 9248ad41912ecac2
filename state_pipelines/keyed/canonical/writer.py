"""Writer of keyed state in the canonical format: header, then a section per key group; the mirror of `reader`.

Source: `FullSnapshotAsyncWriter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import STREAM_ID, compress, compress_chunks
from state_pipelines.keyed.canonical import kernels
from state_pipelines.keyed.canonical.sections import (
    NO_SECTION,
)
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.metadata.handles import KeyGroupRange


def frame_section(runs: Iterable[tuple[int, bytes | memoryview, int]]) -> Iterator[bytes | memoryview]:
    """The section of one key group from framed records, a block at a time; `kernels.join_sections` does it at once.

    Args:
        runs: (state id, framed records, position of the first key byte of the last record of that state in the
            section; outside of the records where another block has it), the blocks of a state one after the other.
    """
    current: int | None = None
    for state, records, last in runs:
        if state != current:
            yield state.to_bytes(2, "big")
            current = state
        if 0 <= last < len(records):
            flagged = bytearray(records)
            flagged[last] |= kernels.FLAG
            yield memoryview(flagged)
        else:
            yield records
    yield kernels.END_OF_KEY_GROUP.to_bytes(2, "big")


@dataclass
class CanonicalWriter:
    """Writes one canonical stream, key group after key group; the mirror of `open_canonical` and `CanonicalFile.scan`.

    Attributes:
        output: where the bytes go.
        header: written at once.
        key_groups: range of the handle.
        prefix: bytes of the key-group prefix.
    """

    output: IO[bytes]
    header: KeyedHeader
    key_groups: KeyGroupRange
    prefix: int

    def __post_init__(self) -> None:
        writer = Writer()
        write_keyed_header(writer, self.header)
        self._position = self.output.write(writer.getvalue())
        self._offsets = dict.fromkeys(self.key_groups, NO_SECTION)

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._position

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position per key group, for the handle."""
        return tuple(self._offsets[key_group] for key_group in self.key_groups)

    def write_section(self, key_group: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write the section of a key group that is too large to be held.

        Args:
            key_group: inside the range, and not written before.
            chunks: the section one chunk after the other, as `write_sections` takes it.
        """
        self._offsets[key_group] = self._position
        if self.header.compressed:
            self._write([STREAM_ID])
            chunks = map(compress_chunks, chunks)
        self._write(chunks)

    def write_sections(
        self, key_groups: npt.NDArray[np.int32], ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> None:
        """Write sections that are whole already, from the first state id to the end mark.

        Args:
            key_groups: i32[s], inside the range, and not written before.
            ends: i64[s], where each section ends in `data`.
            data: u8, the sections; the first one begins at 0.
        """
        view = data.data
        starts = [0, *ends[:-1].tolist()]
        if not self.header.compressed:
            for key_group, start in zip(key_groups.tolist(), starts, strict=False):
                self._offsets[key_group] = self._position + start
            self._write([view])
            return
        for key_group, start, end in zip(key_groups.tolist(), starts, ends.tolist(), strict=False):
            self._offsets[key_group] = self._position
            self._write([compress(view[start:end])])

    def _write(self, chunks: Iterable[bytes | memoryview]) -> None:
        for chunk in chunks:
            self.output.write(chunk)
            self._position += len(chunk)
