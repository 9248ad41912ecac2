"""Splits of the records of one state for tasks, inside large key groups too.

`KeyedFile.split` cuts between key groups, because a key must stay together with all its states. The records of one
state alone may be cut anywhere (`KeyedFile.split_records`), so that a large key group becomes several tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyGroupRange

_TASKS = 16
"""A key group is worth cutting from this fraction (1/16) of a state on."""

_SKEW = 4
"""A key group is worth cutting from this multiple of the mean of all key groups on."""


def choose_least(
    files: Iterable[tuple[KeyedFile, int]], size: int, context: RecordContext, key_groups: KeyGroupRange | None = None
) -> int:
    """Return the smallest size of a key group that is worth cutting, from the bytes of all key groups of a state.

    To find where to cut, the key group is read once more. So it has to be larger than two parts, and either hold more
    than a 16th of everything or be four times as large as the mean.

    Args:
        files: those of all subtasks, with the position of the state in their headers.
        size: bytes of file per part.
        context: of the operator.
        key_groups: only these.
    """
    total = sum(file.measure_state(state_id, context, key_groups) for file, state_id in files)
    number = context.max_parallelism if key_groups is None else key_groups.number
    return max(2 * size, total // max(_TASKS, number // _SKEW))
