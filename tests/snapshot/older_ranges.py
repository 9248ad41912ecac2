"""Snapshots whose subtasks have the key groups of an older rule: the first `M % p` subtasks have one more.

They are made by editing the metadata of a snapshot of one subtask: all new subtasks name its files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.keyed.raw_timers import NEVER_STARTED
from state_pipelines.keyed.sections import NO_SECTION
from state_pipelines.metadata import SubtaskState, write_metadata
from state_pipelines.metadata.handles import (
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.operations.convert import convert
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.snapshot import Snapshot

PARALLELISM = 6


def compute_older_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups of a subtask by the older rule."""
    size, larger = divmod(max_parallelism, parallelism)
    return KeyGroupRange(subtask * size + min(subtask, larger), size + (subtask < larger))


def make_older_ranges(snapshot: Snapshot, target: Path, format: str) -> Snapshot:
    """The keyed state of a snapshot in one format, with parallelism 6 and the ranges of the older rule."""
    single = rescale(snapshot, str(target / "single"), parse_request({"parallelism": 1}))
    made = convert(reopen(single.path, snapshot), str(target / "older"), format)
    path = target / "older" / "_metadata"
    metadata = reopen(made.path, snapshot).metadata
    states = tuple(map(_spread, metadata.operator_states))
    path.write_bytes(write_metadata(replace(metadata, operator_states=states)))
    return reopen(made.path, snapshot)


def reopen(path: str, snapshot: Snapshot) -> Snapshot:
    """Another snapshot of the same job, with the same declarations."""
    # With `files=REFERENCE` it names files of the snapshot it comes from.
    return open_snapshot(path, snapshot.declarations, allow_roots=[path.rpartition("/")[0]])


def _spread(operator: OperatorState) -> OperatorState:
    (subtask,) = operator.subtasks
    if operator.max_parallelism == 1 or (subtask.managed_keyed_state is None and subtask.raw_keyed_state is None):
        return operator
    ranges = [compute_older_range(index, PARALLELISM, operator.max_parallelism) for index in range(PARALLELISM)]
    return replace(
        operator,
        parallelism=PARALLELISM,
        subtasks=tuple(
            SubtaskState(
                index,
                managed_operator_state=subtask.managed_operator_state if index == 0 else None,
                managed_keyed_state=_narrow(subtask.managed_keyed_state, groups),
                raw_keyed_state=_narrow(subtask.raw_keyed_state, groups),
            )
            for index, groups in enumerate(ranges)
        ),
    )


def _narrow(handle: KeyedStateHandle | None, groups: KeyGroupRange) -> KeyedStateHandle | None:
    if isinstance(handle, IncrementalRemoteKeyedStateHandle):
        return replace(handle, key_groups=groups)
    if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
        offsets = handle.offsets[groups.start : groups.end + 1]
        # The stream of a subtask ends where the next section begins.
        last = max(offsets)
        after = [offset for offset in handle.offsets if offset > last and offset not in (NO_SECTION, NEVER_STARTED)]
        assert isinstance(handle.delegate, RelativeFileStateHandle)
        delegate = replace(handle.delegate, size=min([handle.delegate.size, *after]))
        return replace(handle, key_groups=groups, offsets=offsets, delegate=delegate)
    return None
