"""Checks of changelog handles against what they say of themselves: numbers of changes, and sizes.

Flink does not number the handles of a log, so that a handle that is missing shows only where a size tells.
Source: `ChangelogKeyedStateBackend.buildSnapshotResult`, `FsStateChangelogWriter`, `InMemoryStateChangelogWriter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.keyed.changelog.changes import METADATA_KEY_GROUP
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateHandleStream,
    EmptySegmentFileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata.handles import ChangelogStateBackendHandle, KeyedStateHandle, StreamStateHandle


def check_changelog_handle(handle: ChangelogStateBackendHandle, file: str) -> None:
    """Check that the changes of a handle are complete, as far as the handle shows.

    Args:
        handle: the handle.
        file: name for errors.

    Raises:
        FormatError: changes are missing, or there are too many.
    """
    for problem in find_missing_changes(handle):
        raise FormatError(problem, where=Where(file=file), hint=EDITED_METADATA)


def find_missing_changes(handle: ChangelogStateBackendHandle) -> Iterator[str]:
    """Yield what contradicts itself in a handle and in the handles of its changes; no change is read."""
    found = [problem for change in handle.non_materialized for problem in _find_own(change)]
    # A base without key groups of the handle would not be in it (`IncrementalRemoteKeyedStateHandle.getIntersection`).
    found += [
        f"the materialized state of key groups {base.key_groups.start}-{base.key_groups.end} is in a changelog "
        f"handle of key groups {handle.key_groups.start}-{handle.key_groups.end}"
        for base in handle.materialized
        if handle.key_groups.number and not base.key_groups.intersect(handle.key_groups).number
    ]
    # A change that is missing in its handle shows in the size of all, too.
    yield from found or _compare_persisted_size(handle)


def find_missing_base(handle: ChangelogStateBackendHandle) -> str | None:
    """Text for a handle that counts materializations but has no materialized state; None for others.

    Flink materializes only after a change, for which a state is registered, so that the base is not empty.
    """
    if handle.materialization_id <= 0 or handle.materialized:
        return None
    return f"a changelog handle counts {handle.materialization_id} materializations and has no materialized state"


def _find_own(change: KeyedStateHandle) -> Iterator[str]:
    if isinstance(change, InMemoryChangelogStateHandle):
        yield from _compare_sequence_numbers(change)
        wrong = [each.key_group for each in change.changes if not _belongs(each.key_group, change)]
        if wrong:
            groups = change.key_groups
            yield f"a change of key group {wrong[0]} is in a log of key groups {groups.start}-{groups.end}"
    elif isinstance(change, ChangelogStateHandleStream):
        yield from _compare_sizes(change)
        yield from _compare_order(change)


def _compare_sequence_numbers(change: InMemoryChangelogStateHandle) -> Iterator[str]:
    """Compare the number of changes with the sequence numbers.

    Each change has a number of its own, and an intersection is the whole handle
    (`InMemoryChangelogStateHandle.getIntersection`).
    """
    expected = change.end - change.start
    if len(change.changes) != expected:
        yield (
            f"an in-memory changelog handle holds {len(change.changes):,} changes, not the {expected:,} of its "
            f"sequence numbers {change.start}-{change.end}"
        )


def _compare_sizes(change: ChangelogStateHandleStream) -> Iterator[str]:
    """Compare the sizes of a handle with each other; an intersection has none (`getIntersection`)."""
    if change.size and not change.streams:
        yield f"a changelog handle of {change.size:,} bytes names no set of changes"
    elif 0 < change.size < change.persisted_size:
        yield (
            f"a changelog handle of {change.size:,} bytes says that the checkpoint added {change.persisted_size:,} "
            "bytes to it"
        )


def _belongs(key_group: int, change: InMemoryChangelogStateHandle) -> bool:
    return key_group == METADATA_KEY_GROUP or key_group in change.key_groups


def _compare_order(change: ChangelogStateHandleStream) -> Iterator[str]:
    """Compare the order of change sets in one file with that of their replay: both are that of their numbers."""
    last: dict[StreamStateHandle, int] = {}
    for each in change.streams:
        if last.get(each.handle, -1) >= each.offset:
            yield "a changelog handle names sets of changes in another order than that of their file, or one twice"
            return
        last[each.handle] = each.offset


def _compare_persisted_size(handle: ChangelogStateBackendHandle) -> Iterator[str]:
    """Compare the bytes that the checkpoint added with those of its own changes, which come last.

    Checkpoints of the DataStream functions of this package add either changes or a base. The size means this since
    Flink 1.16, which writes the checkpoint id too.
    """
    if handle.checkpoint_id is None or handle.persisted_size <= 0:
        return
    last = _measure(handle.non_materialized[-1]) if handle.non_materialized else 0
    base = sum(_measure(each) or 0 for each in handle.materialized)
    if last is not None and handle.persisted_size not in (last, base, last + base):
        yield (
            f"a changelog handle says that the checkpoint added {handle.persisted_size:,} bytes of changes, and its "
            f"last changes are {last:,} bytes: the changes of this checkpoint are missing"
        )


def _measure(handle: KeyedStateHandle) -> int | None:
    """Bytes that a checkpoint added with a handle (`getCheckpointedSize`); None where it is not known."""
    match handle:
        case InMemoryChangelogStateHandle():
            return sum(len(each.change) for each in handle.changes)
        case ChangelogStateHandleStream():
            return handle.persisted_size
        case IncrementalRemoteKeyedStateHandle():
            return handle.persisted_size
        case KeyGroupsStateHandle() | KeyGroupsSavepointStateHandle():
            return _measure_stream(handle.delegate)
        case _:
            return None


def _measure_stream(handle: StreamStateHandle) -> int:
    while isinstance(handle, KeyGroupsStateHandle):
        handle = handle.delegate
    match handle:
        case ByteStreamStateHandle():
            return len(handle.data)
        case EmptySegmentFileStateHandle():
            return 0
        case _:
            return handle.size
