"""Search of keyed state for keys: which states of a snapshot hold entries of them, and how many.

Where the hash of a key is known without user code, its key group may be all that is read. No value is decoded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, UsageError, ValueRangeError, at
from state_pipelines.keyed.hashing.value_hashes import find_key_group
from state_pipelines.keyed.keys import TIMESTAMP, KeyFilter, KeySeeks, encode_keys
from state_pipelines.operations.local_processes import count_kernel_threads, run_tasks
from state_pipelines.serializers.state_meta_info import BackendStateType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.snapshot import Operator, Snapshot

SPLIT_SIZE = 128 << 20
"""Bytes of a file that one task reads."""

MANY_KEY_GROUPS = 16
"""If keys are in more key groups than this, all key groups are searched for all keys in one pass."""


@dataclass(frozen=True)
class FoundKeys:
    """Result of a search in one file.

    Attributes:
        entries: number of entries by (name of the state, index of the key).
        unsearched: reasons why states cannot be searched.
    """

    entries: Mapping[tuple[str, int], int]
    unsearched: tuple[str, ...] = ()


@dataclass(frozen=True)
class FindKeys:
    """Task that searches one file of keyed state, or a byte range of it, for keys.

    Attributes:
        operator: label of the operator, for errors.
        file: the file, or a byte range of it.
        keys: index of each key by its serialized bytes.
        key_groups: key groups to search; None for all.
    """

    operator: str
    file: KeyedFile
    keys: Mapping[bytes, int]
    key_groups: KeyGroupRange | None = None

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> FoundKeys:
        """Search the file; for states that cannot be read, the result has the reasons in place of entries."""
        states = range(len(self.file.header.states))
        try:
            return FoundKeys(self._search(states))
        except StateError:
            pass  # Each state says it for itself.
        found: Counter[tuple[str, int]] = Counter()
        unsearched: dict[str, None] = {}
        for state_id in states:
            try:
                with at(operator=self.operator, state=self.file.header.states[state_id].name):
                    found += self._search([state_id])
            except StateError as error:
                unsearched[str(error)] = None
        return FoundKeys(found, tuple(unsearched))

    def _search(self, states: Sequence[int]) -> Counter[tuple[str, int]]:
        found: Counter[tuple[str, int]] = Counter()
        wanted = KeyFilter(frozenset(self.keys))
        for state_id, records in self.file.scan(states, self.key_groups):
            info = self.file.header.states[state_id]
            skip = TIMESTAMP if info.backend_type is BackendStateType.PRIORITY_QUEUE else 0
            rows = np.flatnonzero(wanted.select(records, timers=bool(skip)))
            for start, end in zip(records.key_starts[rows] + skip, records.key_ends[rows], strict=True):
                found[info.name, self._identify(records.data[start:end].tobytes())] += 1
        return found

    def _identify(self, data: bytes) -> int:
        """Return the index of the searched key that is the beginning of the key bytes of a record."""
        return next(index for key, index in self.keys.items() if data.startswith(key))


@dataclass(frozen=True)
class KeyEntries:
    """Entries of one key in one state.

    Attributes:
        operator: label of the operator.
        state: name of the state.
        kind: kind of the state, as in `State.kind`.
        key: index of the key in the keys that were searched for.
        entries: number of records of keyed state, or of timers.
    """

    operator: str
    state: str
    kind: str
    key: int
    entries: int


@dataclass(frozen=True)
class KeySearch:
    """States of a snapshot that hold keys, with the numbers of entries.

    Attributes:
        path: path of the snapshot.
        checkpoint_id: checkpoint id; None if `_metadata` cannot be read.
        found: entries of the keys, in the order of operators and states.
        unsearched: (label of an operator, why some of its state cannot be searched). If the snapshot cannot be read at
            all: (empty text, why).
    """

    path: str
    checkpoint_id: int | None
    found: tuple[KeyEntries, ...]
    unsearched: tuple[tuple[str, str], ...] = ()

    def keys_of(self, operator: str) -> tuple[int, ...]:
        """Indices of the keys that an operator holds."""
        return tuple(dict.fromkeys(each.key for each in self.found if each.operator == operator))


def search_keys(
    snapshot: Snapshot,
    keys: Sequence[object],
    operators: Sequence[Operator] | None = None,
    run: Runner | None = None,
    *,
    everywhere: bool = True,
) -> KeySearch:
    """Search the keyed state of a snapshot for keys.

    Args:
        snapshot: the snapshot.
        keys: values of keys, as `keys.encode_keys` takes them. An operator with keys of another type cannot hold such
            a value.
        operators: operators to search; default all.
        run: runs the tasks; default one after the other in this process.
        everywhere: search all key groups. Otherwise, if the hash of a key is known, search only the key group that it
            gives: Flink writes the key to no other key group, but a faulty tool may.
    """
    unsearched: list[tuple[str, str]] = []
    tasks: list[FindKeys] = []
    kinds: dict[tuple[str, str], str] = {}
    for operator in snapshot.operators if operators is None else operators:
        label = operator.label
        unsearched += ((label, reason) for reason in _find_unsearched(operator))
        try:
            kinds |= {(label, state.name): str(state.kind) for state in operator.keyed_states}
            tasks += list(_plan(operator, keys, everywhere=everywhere))
        except StateError as error:
            unsearched.append((label, str(error)))
    found: Counter[tuple[str, str, int]] = Counter()
    for task, counted in zip(tasks, (run or run_tasks)(tasks, "keyed state cannot be searched"), strict=True):
        unsearched += ((task.operator, reason) for reason in counted.unsearched)
        for (state, key), number in counted.entries.items():
            found[task.operator, state, key] += number
    entries = tuple(
        KeyEntries(operator, state, kind, key, found[operator, state, key])
        for (operator, state), kind in kinds.items()
        for key in range(len(keys))
        if (operator, state, key) in found
    )
    return KeySearch(snapshot.path, snapshot.checkpoint_id, entries, tuple(unsearched))


def _plan(operator: Operator, keys: Sequence[object], *, everywhere: bool) -> Iterator[FindKeys]:
    layouts = operator.snapshot.layout_context
    for _, file in operator.keyed_files:
        serializer = file.header.key_serializer
        with at(operator=operator.label):
            layout = derive_layout(serializer, layouts)
        encoded: dict[KeyGroupRange | None, dict[bytes, int]] = {}
        for index, key in enumerate(keys):
            try:
                written = encode_keys(layout, [key])
            except (UsageError, ValueRangeError):
                # The value does not fit the type of the operator's keys, so the operator cannot hold it.
                continue
            for data in written:
                group = None
                if not everywhere:
                    group = find_key_group(serializer, layouts, np.frombuffer(data, np.uint8), operator.max_parallelism)
                encoded.setdefault(group, {})[data] = index
        seeks = KeySeeks(tuple((data, group) for group, wanted in encoded.items() for data in wanted))
        if len(encoded) > MANY_KEY_GROUPS:
            encoded = {None: {data: index for wanted in encoded.values() for data, index in wanted.items()}}
        for group, wanted in encoded.items():
            if group is None or file.key_groups.intersect(group).number:
                for split in file.narrow_to_keys(seeks).split(SPLIT_SIZE, group):
                    yield FindKeys(operator.label, split, wanted, group)


def _find_unsearched(operator: Operator) -> Iterator[str]:
    """Yield the reasons why some state of an operator cannot be searched for keys."""
    try:
        unread = operator.files.find_unread()
    except StateError as error:
        yield str(error)
        return
    for reason in dict.fromkeys(each.reason for each in unread.values()):
        yield f"raw keyed state: {reason}"
    if operator.in_flight is not None:
        yield "in-flight data of an unaligned checkpoint hold records, not entries"
