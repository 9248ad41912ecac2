"""Redistribution of the elements of operator state when the parallelism changes.

`SPLIT_DISTRIBUTE` and `BROADCAST` state goes where `RoundRobinOperatorStateRepartitioner` puts it. `UNION` state does
not: Flink gives every entry to every subtask on each restore, so that a snapshot must hold it once in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.metadata.handles import OperatorStateMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.metadata.handles import OperatorStateHandle, OperatorStateMetaInfo

_DEFAULT_CAPACITY = 16
_LOAD_FACTOR = 0.75
_TREEIFY_THRESHOLD = 8
_SMALLEST_WITH_TREES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """Elements of one old file for one new subtask.

    Attributes:
        subtask: the old subtask, in whose file the elements lie.
        state_name: name of the state.
        mode: its distribution mode.
        offsets: positions of the elements in the old file, in order; Flink makes shares without elements, too.
    """

    subtask: int
    state_name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...] = field(repr=False)


def redistribute(
    handles: Sequence[tuple[int, OperatorStateHandle]], parallelism: int, *, old_parallelism: int
) -> tuple[tuple[Share, ...], ...]:
    """Distribute operator state over new subtasks; managed and raw state are distributed separately.

    Args:
        handles: (old subtask, its handle), ascending by subtask; subtasks without state may be missing.
        parallelism: number of new subtasks. With as many as before nothing moves, but
            subtasks without broadcast state get a copy.
        old_parallelism: number of old subtasks.

    Returns:
        Of each new subtask its shares: those of `SPLIT_DISTRIBUTE`, then `UNION`, then `BROADCAST` state. Elements of a
        state are in the order of its shares. Entries of `UNION` state go to one subtask each, those of old subtask `k`
        to `k * parallelism // old_parallelism`, so that their order over all subtasks stays.

    Raises:
        UsageError: one of the numbers is not positive, or an old subtask is not below `old_parallelism`.
    """
    if parallelism < 1 or any(not 0 <= subtask < old_parallelism for subtask, _ in handles):
        raise UsageError(f"operator state of {old_parallelism} subtasks cannot be handed to {parallelism}")
    shares: list[list[Share]] = [[] for _ in range(parallelism)]
    if parallelism == old_parallelism:
        for subtask, handle in handles:
            shares[subtask] += [Share(subtask, each.state_name, each.mode, each.offsets) for each in handle.states]
        for locations in _group_by_name(handles, OperatorStateMode.BROADCAST):
            present = {share.subtask for share in locations}
            for index in set(range(parallelism)) - present:
                shares[index].append(locations[index % len(locations)])
        return tuple(map(tuple, shares))
    groups = {mode: _group_by_name(handles, mode) for mode in OperatorStateMode}
    _split(groups[OperatorStateMode.SPLIT_DISTRIBUTE], shares)
    for locations in groups[OperatorStateMode.UNION]:
        for share in locations:
            shares[share.subtask * parallelism // old_parallelism].append(share)
    for locations in groups[OperatorStateMode.BROADCAST]:
        for index, own in enumerate(shares):
            own.append(locations[index % len(locations)])
    return tuple(map(tuple, shares))


def _split(groups: Iterable[Sequence[Share]], shares: list[list[Share]]) -> None:
    """Deal out the elements of each state in shares of equal size; where one state stops, the next one begins."""
    parallelism, first = len(shares), 0
    for locations in groups:
        base, rest = divmod(sum(len(each.offsets) for each in locations), parallelism)
        index = position = 0
        for turn in range(parallelism):
            wanted = base + (turn < rest)
            while wanted > 0:
                share = locations[index]
                offsets = share.offsets[position : position + wanted]
                if len(share.offsets) - position > wanted:
                    position += wanted
                else:
                    index, position = index + 1, 0
                # A file without elements that stands in between is named, too.
                shares[(first + turn) % parallelism].append(Share(share.subtask, share.state_name, share.mode, offsets))
                wanted -= len(offsets)
        first = (first + rest) % parallelism


def _group_by_name(
    handles: Sequence[tuple[int, OperatorStateHandle]], mode: OperatorStateMode
) -> tuple[tuple[Share, ...], ...]:
    """List the handles of each state of a mode, old subtasks ascending; states in the order of Flink's map."""
    found: dict[str, list[Share]] = {}
    names = _JavaHashMap(_DEFAULT_CAPACITY)
    for subtask, handle in handles:
        for state in _order_states(handle.states):
            if state.mode is mode:
                names.compute_if_absent(state.state_name)
                share = Share(subtask, state.state_name, state.mode, state.offsets)
                found.setdefault(state.state_name, []).append(share)
    return tuple(tuple(found[name]) for name in names)


def _order_states(states: Sequence[OperatorStateMetaInfo]) -> list[OperatorStateMetaInfo]:
    """The states of a handle in the order of the map into which Flink reads them.

    Source: `MetadataV2V3SerializerBase.deserializeOperatorStateHandle`, `CollectionUtil.newHashMapWithExpectedSize`.
    """
    number = len(states)
    names = _JavaHashMap(number + 1 if number <= 2 else math.ceil(number / _LOAD_FACTOR))
    for state in states:
        names.put(state.state_name)
    by_name = {state.state_name: state for state in states}
    return [by_name[name] for name in names]


class _JavaHashMap:
    """The order of the keys of a `java.util.HashMap`; bins that became trees keep the order of lists.

    Args:
        capacity: as the constructor takes it.
    """

    def __init__(self, capacity: int) -> None:
        self._bins: list[list[str]] = [[] for _ in range(1 << max(0, capacity - 1).bit_length())]
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        for keys in self._bins:
            yield from keys

    def put(self, key: str) -> None:
        keys = self._find_bin(key)
        if key in keys:
            return
        keys.append(key)
        self._size += 1
        if len(keys) > _TREEIFY_THRESHOLD:
            self._treeify()
        if self._size > _LOAD_FACTOR * len(self._bins):
            self._resize()

    def compute_if_absent(self, key: str) -> None:
        # Looks at the size before, whether or not the key is there, and puts a new key in front.
        if self._size > _LOAD_FACTOR * len(self._bins):
            self._resize()
        keys = self._find_bin(key)
        if key in keys:
            return
        keys.insert(0, key)
        if len(keys) >= _TREEIFY_THRESHOLD:
            self._treeify()
        self._size += 1

    def _find_bin(self, key: str) -> list[str]:
        return self._bins[_spread(key) & len(self._bins) - 1]

    def _treeify(self) -> None:
        if len(self._bins) < _SMALLEST_WITH_TREES:
            self._resize()

    def _resize(self) -> None:
        keys = list(self)
        self._bins = [[] for _ in range(2 * len(self._bins))]
        for key in keys:
            self._find_bin(key).append(key)


def _spread(key: str) -> int:
    """`HashMap.hash` of a string: its `hashCode`, over UTF-16 units, with the upper half mixed in."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16
