"""Key groups that each subtask of an operator holds in its keyed state, by the ranges of its handles.

Flink restores a subtask from handles of any ranges and drops the key groups outside the range that its formula gives
(`KeyGroupRangeAssignment`). Only the ranges of the handles say which key groups a snapshot holds: they follow the
formula of the release that wrote them, which may differ from that of current releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata.handles import (
    MAX_PARALLELISM,
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyedStateHandle

_LISTED = 8
"""Largest number of ranges that an error lists."""


def find_held_key_groups(operator: OperatorState) -> dict[int, KeyGroupRange]:
    """Key groups of the managed keyed state of each subtask that has any, by index of the subtask.

    That is the range of its handle. Where several subtasks have the handle of one RocksDB database with ranges that
    overlap, as `rescale` writes them, it is the intersection with the range that Flink's formula gives: Flink clips
    the database so for each of them (`RocksDBIncrementalRestoreOperation`).
    """
    handles = {each.index: each.managed_keyed_state for each in operator.subtasks}
    present = {index: handle for index, handle in handles.items() if handle is not None and handle.key_groups.number}
    shared = _find_shared(present)
    follows_formula = operator.parallelism <= operator.max_parallelism
    return {
        index: handle.key_groups.intersect(_compute(operator, index))
        if index in shared and follows_formula and index < operator.parallelism
        else handle.key_groups
        for index, handle in present.items()
    }


def follows_formula(operator: OperatorState) -> bool:
    """Return whether no subtask holds key groups that Flink's formula gives to another one.

    Flink restores an operator of unchanged parallelism from the handles of the same subtasks, so that key groups
    outside the range of the formula would be lost or refused.
    """
    if not operator.parallelism <= operator.max_parallelism:
        return True
    held = [*find_held_key_groups(operator).items(), *_find_raw(operator).items()]
    return all(
        index < operator.parallelism and _compute(operator, index).intersect(groups) == groups
        for index, groups in held
        if groups.number
    )


def explain_older_ranges(operator: OperatorState, label: str) -> str | None:
    """Note for users of a snapshot whose subtasks hold other key groups than Flink gives them; None if they do not."""
    if follows_formula(operator):
        return None
    return (
        f"operator {label}: its subtasks hold other key groups than Flink gives them today, so that Flink restores it "
        f"whole at another parallelism only; rescale --parallelism {label}={operator.parallelism} writes them as Flink "
        "does"
    )


def explain_missing_handles(operator: OperatorState, *, raw: bool = False) -> str | None:
    """Text for key groups in no handle although other subtasks of the operator have one; None where there are none.

    That is legal: a subtask that has registered no state, because it has seen no record yet, has no handle
    (`HeapSnapshotStrategy`, `RocksDBSnapshotStrategyBase`, `ChangelogKeyedStateBackend.buildSnapshotResult`). A handle
    that was removed from `_metadata` looks the same, unless subtasks beside each other show it
    (`check_held_key_groups`). Subtasks that have finished have no state in any case. Timers on the heap, which are raw
    keyed state, are written by each subtask (`InternalTimeServiceManagerImpl.snapshotToRawKeyedState`).

    Args:
        operator: metadata of an operator that `check_held_key_groups` accepts.
        raw: raw keyed state instead of managed keyed state.
    """
    held = _find_raw(operator) if raw else find_held_key_groups(operator)
    if not held:
        return None
    finished = {each.index for each in operator.subtasks if each.finished}
    missing = np.ones(operator.max_parallelism, np.bool_)
    for groups in held.values():
        missing[groups.start : groups.end + 1] = False
    for index in finished - held.keys() if operator.parallelism <= operator.max_parallelism else ():
        groups = _compute(operator, index)
        missing[groups.start : groups.end + 1] = False
    if not missing.any():
        return None
    without = [str(index) for index in range(operator.parallelism) if index not in held and index not in finished]
    more = f" and {len(without) - _LISTED} more" if len(without) > _LISTED else ""
    subtasks = f"subtask{'s' if len(without) > 1 else ''} {', '.join(without[:_LISTED])}{more}"
    if raw:
        return (
            f"{_name(missing)} in no handle of raw keyed state: {subtasks} without it. Timers on the heap are there, "
            "which Flink writes for every subtask; only an operator that writes raw keyed state itself may leave it out"
        )
    return (
        f"{_name(missing)} in no handle: {subtasks} without keyed state. Flink writes it so where a subtask has "
        "registered no state; nothing shows whether a handle was lost"
    )


def check_subtasks(operator: OperatorState, file: str) -> None:
    """Check that the subtasks of an operator are those that its parallelism gives it, each at most once.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.

    Raises:
        FormatError: a subtask is listed twice, or does not exist.
    """
    indexes = [each.index for each in operator.subtasks]
    if len(set(indexes)) != len(indexes):
        raise FormatError("a subtask is listed twice", where=Where(file=file), hint=EDITED_METADATA)
    outside = next((index for index in indexes if not 0 <= index < operator.parallelism), None)
    if outside is not None and operator.parallelism > 0:
        what = f"subtask {outside} does not exist at parallelism {operator.parallelism}"
        raise FormatError(what, where=Where(file=file), hint=EDITED_METADATA)


def check_parallelism(operator: OperatorState, file: str) -> None:
    """Check that an operator with keyed state can have its parallelism and its number of key groups.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.

    Raises:
        FormatError: the parallelism is below 1, or the max parallelism not between 1 and 32,768
            (`KeyGroupRangeAssignment.checkParallelismPreconditions`).
    """
    where = Where(file=file)
    if operator.parallelism < 1:
        raise FormatError(f"the parallelism {operator.parallelism} is below 1", where=where, hint=EDITED_METADATA)
    if not 0 < operator.max_parallelism <= MAX_PARALLELISM:
        what = f"the max parallelism {operator.max_parallelism} is not between 1 and {MAX_PARALLELISM:,}"
        raise FormatError(what, where=where, hint=EDITED_METADATA)


def check_held_key_groups(operator: OperatorState, file: str, *, raw: bool = False) -> None:
    """Check that the keyed state of an operator covers each key group exactly once.

    Key groups without state are legal where a subtask between the others has none: Flink writes no handle for a
    subtask that has registered no state.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.
        raw: check raw keyed state instead of managed keyed state.

    Raises:
        FormatError: the operator cannot have its subtasks or its parallelism; or a key group is covered by no handle
            or by several: says which, and by which subtasks.
    """
    check_subtasks(operator, file)
    if not any(each.raw_keyed_state if raw else each.managed_keyed_state for each in operator.subtasks):
        return
    check_parallelism(operator, file)
    held = _find_raw(operator) if raw else find_held_key_groups(operator)
    stored = held if raw else _find_stored(operator)
    end = max([operator.max_parallelism, *(each.end + 1 for each in (*held.values(), *stored.values()))])
    counts = np.zeros(min(end, MAX_PARALLELISM) + 1, np.int64)
    for groups in held.values():
        counts[groups.start : groups.end + 1] += 1
    known = np.zeros(len(counts), bool)
    for groups in stored.values():
        known[groups.start : groups.end + 1] = True
    kind = "raw keyed state" if raw else "keyed state"
    handles = {} if raw else {each.index: each.managed_keyed_state for each in operator.subtasks}
    problems = [
        f"no key group in the handle of subtask {index}, which names state"
        for index, handle in handles.items()
        if isinstance(handle, IncrementalRemoteKeyedStateHandle | ChangelogStateBackendHandle)
        and not handle.key_groups.number
    ]
    if (counts > 1).any():
        problems.append(f"{_name(counts > 1)} in several handles ({_name_holders(held, counts > 1)})")
    missing = known & (counts == 0)
    for gap in _find_gaps(operator, held):
        missing[gap.start : gap.end + 1] = True
    if missing.any():
        problems.append(f"{_name(missing)} in none (the handles hold {_name_holders(held, counts > 0)})")
    foreign = [index for index, groups in held.items() if stored[index].number and not groups.number]
    if foreign:
        groups = stored[foreign[0]]
        problems.append(
            f"no key group of subtask {foreign[0]} in its handle ({groups.start}-{groups.end}, of a database that "
            "another subtask has too)"
        )
    outside = known.copy()
    outside[: operator.max_parallelism] = False
    if outside.any():
        problems.append(
            f"{_name(outside)} although there are {operator.max_parallelism} ({_name_holders(held, outside)})"
        )
    if problems:
        raise FormatError(
            f"the {kind} does not hold every key group once: {'; '.join(problems)}",
            where=Where(file=file),
            hint="The snapshot is incomplete or was edited. Use an earlier one, or write it without this operator "
            "(rescale --drop-operator)",
        )


def _compute(operator: OperatorState, subtask: int) -> KeyGroupRange:
    return compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)


def _find_shared(handles: Mapping[int, KeyedStateHandle]) -> set[int]:
    """Find subtasks that share a database with another subtask whose range overlaps."""
    databases: dict[object, list[int]] = {}
    for index, handle in handles.items():
        if isinstance(handle, IncrementalRemoteKeyedStateHandle):
            databases.setdefault((handle.backend_identifier, handle.meta_data_state), []).append(index)
    found: set[int] = set()
    for same in databases.values():
        end, last = -1, -1
        for groups, index in sorted(((handles[index].key_groups, index) for index in same), key=_start):
            if groups.start <= end:
                found |= {index, last}
            if groups.end > end:
                end, last = groups.end, index
    return found


def _start(held: tuple[KeyGroupRange, int]) -> int:
    return held[0].start


def _find_stored(operator: OperatorState) -> dict[int, KeyGroupRange]:
    """Ranges of managed handles as they are stored."""
    handles = {each.index: each.managed_keyed_state for each in operator.subtasks}
    return {index: handle.key_groups for index, handle in handles.items() if handle is not None}


def _find_raw(operator: OperatorState) -> dict[int, KeyGroupRange]:
    handles = {each.index: each.raw_keyed_state for each in operator.subtasks}
    return {
        index: handle.key_groups for index, handle in handles.items() if handle is not None and handle.key_groups.number
    }


def _find_gaps(operator: OperatorState, held: Mapping[int, KeyGroupRange]) -> Iterator[KeyGroupRange]:
    """Yield key groups between the handles of adjacent subtasks, so that no subtask without state can have them."""
    ordered = sorted(((groups, index) for index, groups in held.items() if groups.number), key=_start)
    before, position = -1, 0
    for groups, index in [*ordered, (KeyGroupRange(operator.max_parallelism, 0), operator.parallelism)]:
        if groups.start > position and abs(index - before) == 1:
            yield KeyGroupRange(position, groups.start - position)
        position, before = max(position, groups.end + 1), index


def _name(chosen: npt.NDArray[np.bool_]) -> str:
    """Format key groups, such as `key groups 0-3, 12`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    ranges = [f"{start}" if end - start == 1 else f"{start}-{end - 1}" for start, end in edges.reshape(-1, 2).tolist()]
    more = f" and {len(ranges) - _LISTED} more ranges" if len(ranges) > _LISTED else ""
    return f"key group{'s' if int(chosen.sum()) > 1 else ''} {', '.join(ranges[:_LISTED])}{more}"


def _name_holders(held: Mapping[int, KeyGroupRange], chosen: npt.NDArray[np.bool_]) -> str:
    """Subtasks that hold some key groups, with their ranges."""
    holders = [
        f"subtask {index}: {groups.start}-{groups.end}"
        for index, groups in held.items()
        if groups.number and chosen[groups.start : groups.end + 1].any()
    ]
    more = f", and {len(holders) - _LISTED} more" if len(holders) > _LISTED else ""
    return f"{', '.join(holders[:_LISTED])}{more}"
