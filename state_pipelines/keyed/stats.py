"""Sizes of the key groups of an operator, and its hottest keys; no value is decoded.

* `KeyCounter`: the distinct keys of many records: how many records and bytes each has, a batch of records at a time.
  Keys are identified by their bytes. Memory grows with the number and bytes of keys, not with the records.
* `measure_key_groups`: the sizes. All records of a key are in one key group (`KeyGroupRangeAssignment`), so that counts
  of whole key groups are exact and add up over files, processes and machines.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import copy, njit
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.scalar import unknown_class
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.heap_entries import find_opaque
from state_pipelines.keyed.kernels import mix_bytes, same_bytes
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.operator_table import split_files
from state_pipelines.keyed.record_layout import KeyedRecords, Measure, derive_keyed_layout
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo, keyed_state
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyGroupRange

_FIRST_KEYS = 1 << 10
_FIRST_BYTES = 1 << 14
_BITS = 62
"""Number of states per word of a mask; the sign bit is not used."""


@dataclass(frozen=True)
class CountedKeys:
    """Distinct keys, in the order in which they came.

    Attributes:
        key_groups: i32[n].
        data: u8, holds the bytes of the keys.
        starts: i64[n], start of each key in `data`.
        ends: i64[n], end of each key in `data`.
        records: i64[n], number of records of each key in all states.
        sizes: i64[n], bytes of these records.
        masks: i64[n, w], the states that have the key: `_BITS` bits per word, one per state.
    """

    key_groups: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    masks: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.key_groups)

    def key(self, row: int) -> bytes:
        """Return the bytes of a key."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def in_state(self, state: int) -> npt.NDArray[np.bool_]:
        """Return for each key whether a state has it, bool[n]."""
        held: npt.NDArray[np.bool_] = (self.masks[:, state // _BITS] >> (state % _BITS) & 1).astype(np.bool_)
        return held


class KeyCounter:
    """Counter of keys, their records and bytes; a key of several states is one key.

    Args:
        states: number of states.
    """

    def __init__(self, states: int) -> None:
        self._used = np.zeros(2, np.int64)
        self._table = np.full(2 * _FIRST_KEYS, -1, np.int64)
        self._hashes = np.empty(_FIRST_KEYS, np.int64)
        self._key_groups = np.empty(_FIRST_KEYS, np.int32)
        self._spans = np.empty((_FIRST_KEYS, 2), np.int64)
        self._totals = np.empty((_FIRST_KEYS, 2), np.int64)
        self._masks = np.empty((_FIRST_KEYS, max(1, -(-states // _BITS))), np.int64)
        self._data = np.empty(_FIRST_BYTES, np.uint8)

    def add(
        self,
        state: int,
        key_groups: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> None:
        """Count records.

        Args:
            state: number of their state.
            key_groups: i32[n].
            data: u8, holds the keys.
            starts: i64[n], start of the key of each record in `data`.
            ends: i64[n], end of the key of each record in `data`.
            sizes: i64[n], bytes of each record.
        """
        row = 0
        while True:
            row = count_keys(
                row,
                state // _BITS,
                state % _BITS,
                key_groups,
                data.ctypes.data,
                starts,
                ends,
                sizes,
                self._used,
                self._table,
                self._hashes,
                self._key_groups,
                self._spans,
                self._totals,
                self._masks,
                self._data.ctypes.data,
                len(self._data),
            )
            if row == len(starts):
                return
            self._grow(int(ends[row] - starts[row]))

    def result(self) -> CountedKeys:
        """Return the keys counted so far."""
        count = int(self._used[0])
        return CountedKeys(
            self._key_groups[:count],
            self._data[: self._used[1]],
            self._spans[:count, 0],
            self._spans[:count, 1],
            self._totals[:count, 0],
            self._totals[:count, 1],
            self._masks[:count],
        )

    def _grow(self, size: int) -> None:
        """Double the arrays that are full, so that at least one more key of `size` bytes fits."""
        count, used = int(self._used[0]), int(self._used[1])
        if count == len(self._hashes):
            for name in ("_hashes", "_key_groups", "_spans", "_totals", "_masks"):
                old = getattr(self, name)
                new = np.empty((2 * len(old), *old.shape[1:]), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
            self._table = np.full(2 * len(self._table), -1, np.int64)
            insert_keys(self._hashes, count, self._table)
        if used + size > len(self._data):
            data = np.empty(max(2 * len(self._data), used + size), np.uint8)
            data[:used] = self._data[:used]
            self._data = data


@njit(cache=True, nogil=True)
def count_keys(  # type: ignore[no-untyped-def]
    row, word, bit, groups, base, starts, ends, sizes, used, table, hashes, key_groups, spans, totals, masks, data, room
):
    """Count records, and add keys that are not known yet.

    Args:
        row: the first record to count.
        word: index of the mask word that has the bit of the state.
        bit: index of that bit in the word.
        groups: i32[n], key groups of the records.
        base: address to which `starts` and `ends` are relative.
        starts: i64[n], of the keys.
        ends: i64[n].
        sizes: i64[n], bytes of the records.
        used: i64[2], updated: number of keys, bytes of them.
        table: i64[t], hash table of the numbers of keys, -1 in free slots; t is a power of two and larger than k.
        hashes: i64[k], hash of each key; k is the number of keys that fit.
        key_groups: i32[k], key group of each key.
        spans: i64[k, 2], start and end of the bytes of each key in `data`.
        totals: i64[k, 2], number and bytes of the records of each key.
        masks: i64[k, w], states that have each key.
        data: address of the buffer with the bytes of the keys.
        room: size of this buffer in bytes.

    Returns:
        The first record whose key did not fit any more; n if all records were counted.
    """
    last = len(table) - 1
    while row < len(starts):
        address = base + starts[row]
        size = ends[row] - starts[row]
        mixed = mix_bytes(address, size, groups[row])
        slot = mixed & last
        key = table[slot]
        while key >= 0:
            alike = hashes[key] == mixed and key_groups[key] == groups[row] and spans[key, 1] - spans[key, 0] == size
            if alike and same_bytes(data + spans[key, 0], address, size):
                break
            slot = (slot + 1) & last
            key = table[slot]
        if key < 0:
            key = used[0]
            if key == len(hashes) or used[1] + size > room:
                return row
            table[slot] = key
            hashes[key] = mixed
            key_groups[key] = groups[row]
            spans[key, 0] = used[1]
            spans[key, 1] = used[1] + size
            totals[key] = 0
            masks[key] = 0
            copy(data + used[1], address, size)
            used[0] += 1
            used[1] += size
        totals[key, 0] += 1
        totals[key, 1] += sizes[row]
        masks[key, word] |= 1 << bit
        row += 1
    return row


@njit(cache=True, nogil=True)
def insert_keys(hashes, count, table):  # type: ignore[no-untyped-def]
    """Insert keys into an empty hash table; see `count_keys`."""
    last = len(table) - 1
    for key in range(count):
        slot = hashes[key] & last
        while table[slot] >= 0:
            slot = (slot + 1) & last
        table[slot] = key


Counts = npt.NDArray[np.int64]

SPLIT_SIZE = 32 << 20
"""Bytes of file whose keys are counted together; a larger key group is counted alone, as a whole."""


@dataclass(frozen=True)
class HotKey:
    """A key of an operator, with its records and bytes.

    Attributes:
        key_group: the key group in which it is stored.
        key: its bytes, without namespace.
        records: number of records in all states; each entry of a map and each timer counts as one.
        bytes: of these records, keys and values.
    """

    key_group: int
    key: bytes
    records: int
    bytes: int


@dataclass(frozen=True, eq=False)
class MovedSizes:
    """Sizes that the key groups would have with another max parallelism.

    Attributes:
        bytes: i64[max parallelism].
        records: i64[max parallelism].
        keys: i64[max parallelism].
        misfiled: number of keys whose hash gives another key group than the one in which they are stored.
    """

    bytes: Counts
    records: Counts
    keys: Counts
    misfiled: int


@dataclass(frozen=True, eq=False)
class KeyGroupSizes:
    """Statistics of some key groups of an operator.

    Attributes:
        key_groups: the key groups that the arrays cover, n of them.
        states: names, s of them.
        records: i64[s, n].
        bytes: i64[s, n], of keys (without key-group prefix) and values.
        keys: i64[s, n], distinct keys of each state; 0 where they could not be counted.
        all_keys: i64[n], distinct keys of all states together.
        most_bytes: the keys with the most bytes, descending; ties in any order.
        most_records: the keys with the most records, descending; ties in any order.
        uncounted: (state, why its keys could not be found in its records); the numbers of keys leave these states out.
        blocks: uncounted states whose number of records is not known, either, only their bytes.
        moved: sizes with another max parallelism, if they were requested.
    """

    key_groups: KeyGroupRange
    states: tuple[str, ...]
    records: Counts
    bytes: Counts
    keys: Counts
    all_keys: Counts
    most_bytes: tuple[HotKey, ...] = ()
    most_records: tuple[HotKey, ...] = ()
    uncounted: tuple[tuple[str, str], ...] = ()
    blocks: frozenset[str] = frozenset()
    moved: MovedSizes | None = None


@dataclass(frozen=True)
class Move:
    """Another max parallelism, whose key group sizes are to be predicted.

    Attributes:
        max_parallelism: number of key groups.
        hasher: hasher of the keys.
    """

    max_parallelism: int
    hasher: KeyHasher


@dataclass(frozen=True)
class KeyGroupMeasurement:
    """Task that measures some key groups of a subtask; can be pickled.

    Attributes:
        operator: label of the operator, for errors.
        files: all files of the subtask that have these key groups.
        key_groups: the key groups.
        top: number of hottest keys in the result.
        move: another max parallelism for which sizes are predicted.
    """

    operator: str
    files: tuple[KeyedFile, ...]
    key_groups: KeyGroupRange
    top: int = 10
    move: Move | None = None

    def run(self) -> KeyGroupSizes:
        """Measure the key groups.

        Raises:
            StateError: the state cannot be read.
        """
        with at(operator=self.operator):
            return measure_key_groups(self.files, self.key_groups, top=self.top, move=self.move)


def measure_key_groups(
    files: Sequence[KeyedFile],
    key_groups: KeyGroupRange,
    *,
    top: int = 10,
    move: Move | None = None,
) -> KeyGroupSizes:
    """Measure some key groups by reading them once.

    The distinct keys of about `SPLIT_SIZE` bytes of file are in memory at a time, or of one key group if it is larger.

    Args:
        files: all files of one subtask that have the key groups; a key that is in several of them counts once.
        key_groups: the key groups to measure.
        top: number of hottest keys in the result.
        move: another max parallelism for which sizes are predicted.

    Raises:
        FormatError: the bytes are not what the format says.
        UnsupportedError: records of states cannot be found, because a serializer has no reader.
    """
    counting = _Counting(files, key_groups, top, move)
    for split, groups in split_files(files, SPLIT_SIZE, key_groups):
        counting.count(split, key_groups if groups is None else groups)
    return counting.result()


def merge_sizes(sizes: Iterable[KeyGroupSizes], key_groups: KeyGroupRange, top: int = 10) -> KeyGroupSizes:
    """Combine statistics that were measured in several tasks.

    Args:
        sizes: the statistics; no two of them cover the same records.
        key_groups: the key groups that the result covers.
        top: number of hottest keys in the result.
    """
    found = list(sizes)
    ids = {name: index for index, name in enumerate(dict.fromkeys(name for each in found for name in each.states))}
    records, nbytes, keys = (np.zeros((len(ids), len(key_groups)), np.int64) for _ in range(3))
    all_keys = np.zeros(len(key_groups), np.int64)
    uncounted: dict[str, str] = {}
    moved = None
    for each in found:
        rows = [ids[name] for name in each.states]
        first = each.key_groups.start - key_groups.start
        operator = slice(first, first + len(each.key_groups))
        for target, counts in ((records, each.records), (nbytes, each.bytes), (keys, each.keys)):
            target[rows, operator] += counts
        all_keys[operator] += each.all_keys
        uncounted = dict(each.uncounted) | uncounted
        moved = _add_moved(moved, each.moved)
    return KeyGroupSizes(
        key_groups,
        tuple(ids),
        records,
        nbytes,
        keys,
        all_keys,
        _choose_bytes((key for each in found for key in each.most_bytes), top),
        _choose_records((key for each in found for key in each.most_records), top),
        tuple(uncounted.items()),
        frozenset(name for each in found for name in each.blocks),
        moved,
    )


class _Counting:
    """Counts of keys, records and bytes by key group, while `measure_key_groups` reads the files."""

    def __init__(
        self,
        files: Sequence[KeyedFile],
        key_groups: KeyGroupRange,
        top: int,
        move: Move | None,
    ) -> None:
        self._key_groups, self._top, self._move = key_groups, top, move
        self._max_parallelism = max((file.context.max_parallelism for file in files), default=0)
        names = dict.fromkeys(info.name for file in files for info in file.header.states)
        self._ids = {name: index for index, name in enumerate(names)}
        self._totals = np.zeros((2, len(names), len(key_groups)), np.int64)
        self._keys = np.zeros((len(names), len(key_groups)), np.int64)
        self._all_keys = np.zeros(len(key_groups), np.int64)
        self._most: tuple[tuple[HotKey, ...], tuple[HotKey, ...]] = ((), ())
        self._uncounted: dict[str, str] = {}
        self._blocks: set[str] = set()
        self._moved: MovedSizes | None = None
        if move is not None:
            none = np.zeros(move.max_parallelism, np.int64)
            self._moved = MovedSizes(none, none, none, 0)

    def count(self, files: Sequence[KeyedFile], key_groups: KeyGroupRange) -> None:
        """Count the records and keys in some key groups of a subtask's files."""
        counter = KeyCounter(len(self._ids))
        for each in files:
            file = each.with_context(replace(each.context, by_block=True))
            header = file.header
            blocks = _find_blocks(file)
            self._uncounted |= {header.states[number].name: reason for number, reason in blocks.items()}
            self._blocks |= {header.states[number].name for number in blocks}
            for number, records in file.scan(range(len(header.states)), key_groups):
                with at(file=file.name, state=header.states[number].name):
                    self._add(counter, file, header.states[number], records)
        self._take(counter.result())

    def _add(self, counter: KeyCounter, file: KeyedFile, info: StateMetaInfo, records: KeyedRecords) -> None:
        state, count = self._ids[info.name], len(self._all_keys)
        sizes = records.key_ends - records.key_starts + records.value_ends - records.value_starts
        indexes = records.key_groups - self._key_groups.start
        if info.name not in self._blocks:
            self._totals[0, state] += np.bincount(indexes, minlength=count)
        # The sums are doubles, in which integers are exact up to 2**53.
        self._totals[1, state] += np.bincount(indexes, sizes, count).astype(np.int64)
        if info.name in self._uncounted:
            return
        try:
            starts, ends = locate_keys(file, info, records)
        except UnsupportedError as error:
            self._uncounted[info.name] = explain(error)
            return
        counter.add(state, records.key_groups, records.data, starts, ends, sizes)

    def _take(self, keys: CountedKeys) -> None:
        count = len(self._all_keys)
        indexes = keys.key_groups - self._key_groups.start
        self._all_keys += np.bincount(indexes, minlength=count)
        for state in range(len(self._ids)):
            self._keys[state] += np.bincount(indexes[keys.in_state(state)], minlength=count)
        largest = _find_top(keys, keys.sizes, keys.records, self._top)
        busiest = _find_top(keys, keys.records, keys.sizes, self._top)
        self._most = (
            _choose_bytes((*self._most[0], *largest), self._top),
            _choose_records((*self._most[1], *busiest), self._top),
        )
        if self._move is not None:
            self._moved = _add_moved(self._moved, _move_keys(keys, self._max_parallelism, self._move))

    def result(self) -> KeyGroupSizes:
        """Return the counts of all records so far as statistics of the key groups."""
        keys = self._keys
        for name in self._uncounted:
            keys[self._ids[name]] = 0
        return KeyGroupSizes(
            self._key_groups,
            tuple(self._ids),
            self._totals[0],
            self._totals[1],
            keys,
            self._all_keys,
            self._most[0],
            self._most[1],
            tuple(self._uncounted.items()),
            frozenset(self._blocks),
            self._moved,
        )


def _find_blocks(file: KeyedFile) -> dict[int, str]:
    """Return the states of a file that are read as one record per key group (`RecordContext.by_block`), and why."""
    found: dict[int, str] = {}
    if file.lacks_lengths:
        header, context = file.header, file.context
        for number, info in enumerate(header.states):
            layout = derive_keyed_layout(info, header.key_serializer, context.max_parallelism, context.layouts)
            if (node := find_opaque(layout)) is not None:
                found[number] = explain(unknown_class(node))
    return found


def locate_keys(file: KeyedFile, info: StateMetaInfo, records: KeyedRecords) -> tuple[Counts, Counts]:
    """Find the span of the key alone in the key of each record: without namespace, map key and timestamp.

    Args:
        file: of the records.
        info: of their state.
        records: the records.

    Returns:
        (i64[n] starts, i64[n] ends).

    Raises:
        FormatError: the bytes do not fit the serializers.
        UnsupportedError: the end of a key is not known, because its serializer has no reader.
    """
    key_serializer, context = file.header.key_serializer, file.context
    if info.backend_type is BackendStateType.PRIORITY_QUEUE:
        layout = derive_keyed_layout(info, key_serializer, context.max_parallelism, context.layouts).key
    else:
        # The layout of keys does not depend on the value serializer.
        bare = keyed_state(info.name, StateKind.VALUE, VOID_NAMESPACE, info.namespace_serializer)
        layout = derive_keyed_layout(bare, key_serializer, context.max_parallelism, context.layouts).key
    spans = _plan_measure(layout).spans(
        records.data, records.key_starts, records.key_ends, offset=records.offset, name=records.file
    )
    key = spans.field("state_key")
    return key.field("start").to_numpy(), key.field("stop").to_numpy()


@lru_cache(maxsize=512)
def _plan_measure(layout: lay.Struct) -> Measure:
    """Make a `Measure` that finds `state_key` in stored keys of a layout; fields after it are not parsed."""
    fields: list[tuple[str, lay.Layout]] = []
    for name, each in layout.fields:
        if isinstance(each, lay.MeasuredKey):
            fields.append((name, lay.MeasuredKey(lay.Span(each.inner))))
        else:
            fields.append((name, lay.Span(each)))
        if name == "state_key":
            break
    return Measure(lay.Struct((*fields, ("rest", lay.Span(lay.Rest())))))


def _find_top(keys: CountedKeys, by: Counts, then_by: Counts, top: int) -> list[HotKey]:
    rows = np.arange(len(by))
    if len(by) > top:
        rows = np.flatnonzero(by >= np.partition(by, -top)[-top])
        rows = rows[np.lexsort((then_by[rows], by[rows]))[-top:]]
    return [
        HotKey(int(keys.key_groups[row]), keys.key(row), int(keys.records[row]), int(keys.sizes[row]))
        for row in rows.tolist()
    ]


def _choose_bytes(keys: Iterable[HotKey], top: int) -> tuple[HotKey, ...]:
    return tuple(heapq.nsmallest(top, keys, key=lambda each: (-each.bytes, -each.records, each.key)))


def _choose_records(keys: Iterable[HotKey], top: int) -> tuple[HotKey, ...]:
    return tuple(heapq.nsmallest(top, keys, key=lambda each: (-each.records, -each.bytes, each.key)))


def _move_keys(keys: CountedKeys, max_parallelism: int, move: Move) -> MovedSizes:
    """Compute the sizes that the key groups would have with another max parallelism."""
    none = keys.ends
    codes = move.hasher.hash_keys(KeyedRecords(keys.key_groups, keys.data, keys.starts, keys.ends, none, none, 0, ""))
    groups, count = assign_key_groups(codes, move.max_parallelism), move.max_parallelism
    return MovedSizes(
        np.bincount(groups, keys.sizes, count).astype(np.int64),
        np.bincount(groups, keys.records, count).astype(np.int64),
        np.bincount(groups, minlength=count).astype(np.int64),
        int((assign_key_groups(codes, max_parallelism) != keys.key_groups).sum()),
    )


def _add_moved(one: MovedSizes | None, other: MovedSizes | None) -> MovedSizes | None:
    if one is None or other is None:
        return one or other
    return MovedSizes(
        one.bytes + other.bytes, one.records + other.records, one.keys + other.keys, one.misfiled + other.misfiled
    )
