"""Key groups, and their bytes, that another parallelism gives to other subtasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata.handles import KeyGroupRange

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class MovedKeyGroups:
    """Key groups that change subtask.

    Attributes:
        ranges: the key groups, ascending.
        bytes: of state in them; None where the format does not say it (changelog).
        total: bytes of all keyed state of the operator; likewise.
        estimated: the bytes of RocksDB tables were spread evenly over the key groups that they span.
    """

    ranges: tuple[KeyGroupRange, ...]
    bytes: int | None
    total: int | None
    estimated: bool

    @property
    def number(self) -> int:
        """Number of key groups."""
        return sum(map(len, self.ranges))

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "key_groups": [[each.start, each.end] for each in self.ranges],
            "bytes": self.bytes,
            "total_bytes": self.total,
            "estimated": self.estimated,
        }


def find_moved_key_groups(operator: Operator, parallelism: int) -> MovedKeyGroups | None:
    """Key groups that another subtask has afterwards; nothing is read. None without keyed state.

    Args:
        operator: the operator as it was.
        parallelism: its new number of subtasks; the max parallelism stays.

    Raises:
        StateError: keyed state cannot be opened.
    """
    number = operator.max_parallelism
    everything = KeyGroupRange(0, number)
    before, after = np.full(number, -1, np.int32), np.empty(number, np.int32)
    for subtask, file in operator.keyed_files:
        before[file.key_groups.start : file.key_groups.end + 1] = subtask
    if not operator.keyed_files:
        return None
    for subtask in range(parallelism):
        groups = compute_key_group_range(subtask, parallelism, number)
        after[groups.start : groups.end + 1] = subtask
    moved = (before != after) & (before >= 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], moved, [False]]).astype(np.int8))).reshape(-1, 2)
    ranges = tuple(KeyGroupRange(start, end - start) for start, end in edges.tolist())
    sizes = np.zeros(number, np.int64)
    estimated = False
    try:
        for _, file in operator.keyed_files:
            stored, rough = file.measure_stored_bytes(operator.record_context, everything)
            sizes += stored
            estimated |= rough
    except UnsupportedError:
        return MovedKeyGroups(ranges, None, None, estimated=False)
    return MovedKeyGroups(ranges, int(sizes[moved].sum()), int(sizes.sum()), estimated)
