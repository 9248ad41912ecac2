"""New objects of bytes that are sent and of ranges that the store copies itself (S3, Azure)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.storage.azure_blocks import AzureUpload
from state_pipelines.storage.locations import Location, is_azure, is_s3
from state_pipelines.storage.part_uploads import FileRange, PartUpload
from state_pipelines.storage.s3_parts import S3Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALLEST_PART = 5 << 20
"""Bytes that every part but the last must have; a shorter range cannot be copied by the store alone."""

SENT_PART = 16 << 20
"""Bytes of a part that is sent, at most; larger only where there would be too many parts."""

COPIED_PART = 512 << 20
"""Bytes of a part that S3 copies, about; it allows 5 GiB, but several smaller ones take less time."""

COPIED_BLOCK = 100 << 20
"""Bytes of a part that Azure copies, at most: as many as every version of its interface allows."""

_MANY_PARTS = 5000
"""Parts after which they become larger; S3 allows 10,000."""


@dataclass(frozen=True)
class Part:
    """One part of an upload.

    Attributes:
        ranges: its content; bytes stand for themselves.
        is_copied: the store copies it; it is a single range then.
    """

    ranges: tuple[FileRange | bytes, ...]
    is_copied: bool = False


def can_copy_ranges(ranges: Sequence[FileRange | bytes], target: Location) -> bool:
    """Return whether the store of `target` can copy at least one of these ranges into a new file."""
    copies = is_s3(target.filesystem) or is_azure(target.filesystem)
    return copies and any(part.is_copied for part in plan_parts(ranges, target))


def plan_parts(ranges: Sequence[FileRange | bytes], target: Location) -> list[Part]:
    """Divide the content of a new file into parts.

    Ranges of at least `SMALLEST_PART` bytes in the same store are copied by it. What is shorter is sent, together with
    as many bytes of the next range as a part needs.
    """
    sent_size = max(SENT_PART, sum(map(len, ranges)) // _MANY_PARTS)
    parts: list[Part] = []
    pending: list[FileRange | bytes] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if pending:
            parts.append(Part(tuple(pending)))
        pending.clear()
        size = 0

    for each in ranges:
        start = 0
        if isinstance(each, FileRange) and each.location.filesystem == target.filesystem:
            missing = max(0, SMALLEST_PART - size) if pending else 0
            if len(each) - missing >= SMALLEST_PART:
                if missing:
                    pending.append(each.cut(0, missing))
                flush()
                copied_size = COPIED_BLOCK if is_azure(target.filesystem) else COPIED_PART
                parts += [Part((copied,), is_copied=True) for copied in _divide(each, missing, copied_size)]
                continue
        while start < len(each):
            end = min(len(each), start + sent_size - size)
            pending.append(each.cut(start, end) if isinstance(each, FileRange) else each[start:end])
            size += end - start
            start = end
            if size >= sent_size:
                flush()
    flush()
    return parts


def _divide(each: FileRange, start: int, size: int) -> list[FileRange]:
    """Cut the rest of a range into parts of at most `size` bytes, none of which is too small."""
    count = -(-(len(each) - start) // size)
    bounds = [start + (len(each) - start) * number // count for number in range(count + 1)]
    return [each.cut(low, high) for low, high in pairwise(bounds)]


def write_parts(parts: Sequence[Part], target: Location, read: Callable[[FileRange], bytes]) -> int:
    """Write a new file, several parts at a time; returns its bytes.

    Args:
        parts: from `plan_parts`.
        target: the new file; it does not exist before all parts are there.
        read: reads a range that is sent.

    Raises:
        CopyRefusedError: the store refuses to copy a range; there is no file then.
        StateError: a range cannot be read, or the store fails; there is no file then.
    """

    def join(part: Part) -> bytes:
        return b"".join(each if isinstance(each, bytes) else read(each) for each in part.ranges)

    with start_upload(target) as upload:
        for part in parts:
            (first, *_) = part.ranges
            if part.is_copied and isinstance(first, FileRange):
                upload.copy(first)
            else:
                upload.send(sum(map(len, part.ranges)), lambda part=part: join(part))  # type: ignore[misc]
    return upload.size


def start_upload(target: Location) -> PartUpload:
    """Start the upload of a new file in parts to S3 or Azure."""
    return AzureUpload(target) if is_azure(target.filesystem) else S3Upload(target)
