"""Ranges of key groups, as state handles store them (`org.apache.flink.runtime.state.KeyGroupRange`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer

MAX_PARALLELISM = 1 << 15
"""Most key groups that Flink allows (`KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM`)."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """`number` key groups from `start` on; empty when `number` is 0.

    Attributes:
        start: first key group.
        number: how many key groups.
    """

    start: int
    number: int

    @property
    def end(self) -> int:
        """Last key group, inclusive as in Flink; `start - 1` when the range is empty."""
        return self.start + self.number - 1

    def __len__(self) -> int:
        """Return the number of key groups."""
        return self.number

    def __iter__(self) -> Iterator[int]:
        """Yield the key groups in order."""
        return iter(range(self.start, self.start + self.number))

    def __contains__(self, key_group: object) -> bool:
        """Return whether a key group is in the range."""
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups in both ranges; an empty range at 0 when there are none."""
        start = max(self.start, other.start)
        number = min(self.end, other.end) - start + 1
        return KeyGroupRange(start, number) if number > 0 else KeyGroupRange(0, 0)


_LONGEST = 1000
"""Characters of a range of key groups; Python takes no number of several thousand digits."""


def parse_key_groups(text: str) -> KeyGroupRange:
    """Return key groups from `a-b` (both included) or `a`.

    Raises:
        UsageError: the text has another form.
    """
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and len(text) < _LONGEST and int(first) <= int(last)):
        raise UsageError(f"{text!r} is not a range of key groups", hint="Write it as a-b, both ends included")
    if int(last) >= MAX_PARALLELISM:
        raise UsageError(f"there is no key group {last[:20]}", hint=f"Key groups are 0 to {MAX_PARALLELISM - 1}")
    return KeyGroupRange(int(first), int(last) - int(first) + 1)


def read_key_group_range(reader: Reader) -> KeyGroupRange:
    """Read a start and a number, two i32.

    Raises:
        FormatError: the range leaves the 32,768 key groups that Flink allows.
    """
    at = reader.position
    key_groups = KeyGroupRange(reader.i32(), reader.i32())
    if key_groups.start < 0 or key_groups.number < 0 or key_groups.start + key_groups.number > MAX_PARALLELISM:
        raise reader.error(
            f"{key_groups.number} key groups from {key_groups.start} on are outside 0..{MAX_PARALLELISM - 1}", at
        )
    return key_groups


def write_key_group_range(writer: Writer, key_groups: KeyGroupRange) -> None:
    """Write what `read_key_group_range` reads."""
    writer.i32(key_groups.start)
    writer.i32(key_groups.number)
