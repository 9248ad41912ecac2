"""New files that are put together from ranges of old ones, byte by byte."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from state_pipelines.metadata.handles import ByteStreamStateHandle, RelativeFileStateHandle, StreamStateHandle
from state_pipelines.metadata.streams import StreamRange, copy_ranges, read_stream_range
from state_pipelines.operations.local_processes import COPY_THREADS
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.storage import Location, join
from state_pipelines.storage.files import remove_file
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

REMOTE_FILES = 4
"""New files that one process writes at a time to a storage that is not local, each from several requests at a time."""

INLINE_LIMIT = 20 << 10
"""Bytes up to which state that was inlined stays inlined (`execution.checkpointing.data-inline-threshold`)."""


@dataclass(frozen=True)
class FileAssembly:
    """A new file: ranges of old ones, one after the other.

    Attributes:
        ranges: of the old ones.
        target: the new file.
        verify: read it again and compare checksums.
    """

    ranges: tuple[StreamRange, ...] = field(repr=False)
    target: Location
    verify: bool = True
    threads: ClassVar[int] = COPY_THREADS

    @property
    def in_flight(self) -> int:
        """Number of new files that one process writes at a time: they wait for a storage that is not local."""
        return 1 if is_local(self.target) else REMOTE_FILES

    def run(self) -> int:
        """Write it; bytes written.

        Raises:
            ProofError: the new file does not hold what was written.
            StateError: an old file cannot be read, or the new one not be written.
        """
        # Remove leftovers of a failed attempt; the name is unique to this task.
        remove_file(self.target)
        return copy_ranges(self.ranges, self.target, verify=self.verify)


@dataclass
class Assembler:
    """Gathers the new files of an operator.

    Args:
        target: directory of the new snapshot.
        verify: see `FileAssembly`.

    Attributes:
        assemblies: the files so far.
    """

    target: Location
    verify: bool = True
    assemblies: list[FileAssembly] = field(default_factory=list)

    def make_handle(self, ranges: Sequence[StreamRange]) -> StreamStateHandle:
        """A handle of new state with this content: small when all of it was inlined, else in a new file."""
        joined = join_ranges(ranges)
        size = sum(map(len, joined))
        if size <= INLINE_LIMIT and all(each.stream.location is None for each in joined):
            # Flink takes inlined handles of one name for one and the same.
            data = b"".join(read_stream_range(each.stream, each.start, each.end) for each in joined)
            return ByteStreamStateHandle(str(uuid.uuid4()), data)
        name = make_file_name()
        self.assemblies.append(FileAssembly(joined, join(self.target, name), self.verify))
        return RelativeFileStateHandle(name, size)


def join_ranges(ranges: Sequence[StreamRange]) -> tuple[StreamRange, ...]:
    """The same bytes in fewer ranges: those that lie side by side become one, empty ones go."""
    joined: list[StreamRange] = []
    for each in ranges:
        if not len(each):
            continue
        last = joined[-1] if joined else None
        if last is not None and last.end == each.start and last.stream == each.stream:
            joined[-1] = StreamRange(last.stream, last.start, each.end)
        else:
            joined.append(each)
    return tuple(joined)
