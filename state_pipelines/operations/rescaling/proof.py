"""What there was of every state, and what there is now: counts, bytes and digests that do not depend on order or place.

Both sides are read by the readers that everything else uses, and not by what wrote the new files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import at
from state_pipelines.keyed.assignment import assign_key_groups, compute_key_group_range
from state_pipelines.keyed.digest import RecordDigest, digest_records, digest_run
from state_pipelines.keyed.key_filter import TIMESTAMP
from state_pipelines.keyed.tables import TableOptions
from state_pipelines.operations.processes import KERNEL_THREADS
from state_pipelines.operations.rescaling.hashed_keys import count_threads
from state_pipelines.operations.rescaling.merging import is_timer
from state_pipelines.serializers.joining import join_infos
from state_pipelines.snapshot.broadcast_state import BroadcastState
from state_pipelines.snapshot.list_state import OperatorListState
from state_pipelines.snapshot.raw_state import RawKeyedState, RawOperatorState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from state_pipelines.codecs.columnar import Encoded
    from state_pipelines.keyed.files import KeyedFile, RecordContext
    from state_pipelines.keyed.key_hashing import KeyHasher
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.serializers.metainfo import StateMetaInfo
    from state_pipelines.snapshot import Operator

UnkeyedState = OperatorListState | BroadcastState | RawKeyedState | RawOperatorState

SPLIT_SIZE = 32 << 20
"""Bytes of a file that one piece of work reads."""


@dataclass(frozen=True)
class StateProof:
    """One state on both sides.

    Attributes:
        operator: label of the operator.
        state: name.
        keyed: it is keyed state, not operator state.
        before: what must be there.
        after: what is there.
        misplaced: entries in key groups that are not those of their subtask; of broadcast state, subtasks without a
            copy.
        misfiled: entries whose hash gives another key group; None where key groups stayed what they were.
        reformed: kind or serializers are not those of before.
    """

    operator: str
    state: str
    keyed: bool
    before: RecordDigest
    after: RecordDigest
    misplaced: int = 0
    misfiled: int | None = None
    reformed: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, doubled, changed or put elsewhere."""
        return self.before == self.after and not (self.misplaced or self.misfiled or self.reformed)


@dataclass(frozen=True)
class RescaleProof:
    """All states."""

    rows: tuple[StateProof, ...]

    @property
    def ok(self) -> bool:
        """Whether every state is as it must be."""
        return all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong, a sentence each."""
        found = []
        for row in self.rows:
            name = f"{row.operator}, state {row.state}"
            if row.before != row.after:
                found.append(
                    f"{name}: {row.after.records:,} entries of {row.after.bytes:,} bytes where there must be "
                    f"{row.before.records:,} of {row.before.bytes:,}"
                    if (row.before.records, row.before.bytes) != (row.after.records, row.after.bytes)
                    else f"{name}: entries with other bytes"
                )
            if row.misplaced:
                what = "entries in key groups of other subtasks" if row.keyed else "subtasks without it"
                found.append(f"{name}: {row.misplaced:,} {what}")
            if row.reformed:
                found.append(f"{name}: another kind or other serializers")
            if row.misfiled:
                found.append(f"{name}: {row.misfiled:,} entries in another key group than their hash gives")
        return tuple(found)


@dataclass(frozen=True)
class Counted:
    """What a piece of work found, by name of the state; of broadcast state the copy of each subtask."""

    digests: Mapping[str, RecordDigest]
    misplaced: Mapping[str, int] = field(default_factory=dict)
    misfiled: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, Mapping[int, RecordDigest]] = field(default_factory=dict)
    forms: Mapping[str, frozenset[StateMetaInfo]] = field(default_factory=dict)


@dataclass(frozen=True)
class CountKeyed:
    """Digests of the states of one file of keyed state, or of a part of it.

    Attributes:
        operator: label, for errors.
        file: the file.
        context: of the operator.
        key_groups: of the subtask, where the records are to be; None does not look at it.
        hasher: gives the hashes that are to agree with the key groups; None does not look at them.
    """

    operator: str
    file: KeyedFile
    context: RecordContext
    key_groups: KeyGroupRange | None = None
    hasher: KeyHasher | None = None

    @property
    def threads(self) -> int:
        """As `Work` says."""
        return count_threads(self.hasher, [self.file])

    def run(self) -> Counted:
        """Read the file."""
        digests: dict[str, RecordDigest] = {}
        misplaced: dict[str, int] = {}
        misfiled: dict[str, int] = {}
        with at(operator=self.operator):
            states = self.file.header.states
            for state_id, records in self.file.scan(range(len(states)), self.context):
                info = states[state_id]
                digest = digest_run(records, is_map=info.state_type == "MAP").without_key_groups
                digests[info.name] = digests.get(info.name, RecordDigest()) + digest
                if self.key_groups is not None:
                    inside = (records.key_groups >= self.key_groups.start) & (records.key_groups <= self.key_groups.end)
                    misplaced[info.name] = misplaced.get(info.name, 0) + int((~inside).sum())
                if self.hasher is not None:
                    codes = self.hasher.hash_keys(records, skip=TIMESTAMP if is_timer(info) else 0)
                    wrong = assign_key_groups(codes, self.context.max_parallelism) != records.key_groups
                    misfiled[info.name] = misfiled.get(info.name, 0) + int(wrong.sum())
            forms = {info.name: frozenset([info]) for info in states}
        return Counted(digests, misplaced, misfiled, forms=forms)


@dataclass(frozen=True)
class CountOperatorState:
    """Digests of the list, broadcast and raw states of one operator; a broadcast state counts once.

    Attributes:
        operator: its label.
        states: its states.
    """

    operator: str
    states: tuple[UnkeyedState, ...]
    # It is little beside keyed state, for which processes need not be started then.
    threads: ClassVar[int] = KERNEL_THREADS

    def run(self) -> Counted:
        """Read them."""
        with at(operator=self.operator):
            copies = {state.name: digest_copies(state) for state in self.states if isinstance(state, BroadcastState)}
            forms = {
                state.name: frozenset(state.infos)
                for state in self.states
                if isinstance(state, OperatorListState | BroadcastState)
            }
            digests = {state.name: _digest_state(state) for state in self.states if state.name not in copies}
            return Counted(digests, copies=copies, forms=forms)


def digest_copies(state: BroadcastState) -> dict[int, RecordDigest]:
    """Digest of the copy of each subtask that has the state."""
    copies = {part.subtask: RecordDigest() for part in state.parts}
    for batch in _read(state):
        copies[batch.column("subtask")[0].as_py()] += _digest_batch(state, batch)
    return copies


def _digest_state(state: UnkeyedState) -> RecordDigest:
    """Digest of the elements of a list state, or of raw state; sections of raw keyed state with their key groups.

    Decoded and encoded again, since only that tells where an element ends when a handle leaves out others. What cannot
    be decoded counts as the bytes that are there.
    """
    return sum((_digest_batch(state, batch) for batch in _read(state)), RecordDigest())


def _read(state: UnkeyedState) -> Iterator[pa.RecordBatch]:
    wanted = [name for name in state.make_schema().names if name in (*_VALUES, "subtask", "key_group")]
    return (batch for batch in state.batches(TableOptions(columns=tuple(wanted))) if batch.num_rows)


_VALUES = ("value", "map_key", "map_value", "value_bytes")


def _digest_batch(state: UnkeyedState, batch: pa.RecordBatch) -> RecordDigest:
    context = state.operator.snapshot.layout_context
    columns: list[tuple[lay.Layout, pa.Array]] = []
    if "value" in batch.schema.names:
        columns.append((derive_layout(state.info.value_serializer, context), batch.column("value")))
    if "map_key" in batch.schema.names:
        columns.append((derive_layout(state.info.key_serializer, context), batch.column("map_key")))
        columns.append((derive_layout(state.info.value_serializer, context), batch.column("map_value")))
    if "value_bytes" in batch.schema.names:
        columns.append((lay.Rest(), batch.column("value_bytes")))
    total = RecordDigest()
    encoded = [plan_columns(layout).encode(array.filter(array.is_valid())) for layout, array in columns]
    whole = [each for each in encoded if len(each.stops)]
    if len(whole) == 2 and len(whole[0].stops) == len(whole[1].stops):
        return _digest_spans(*whole)
    for each in whole:
        total += _digest_spans(None, each)
    if "key_group" not in batch.schema.names:
        return total
    # Raw keyed state: the place of a section belongs to it.
    places = np.array(batch.column("key_group").to_pylist(), np.int32)
    (section,) = whole
    none = np.zeros(len(places), np.int64)
    digest = digest_records(places, 0, none, none, *_addresses(section)).tolist()
    return RecordDigest(digest[0], digest[1], content=digest[2])


def _digest_spans(keys: Encoded | None, values: Encoded) -> RecordDigest:
    """Digest of pairs of a key, which may be missing, and a value."""
    count = len(values.stops)
    none = np.zeros(count, np.int64)
    key_starts, key_ends = (none, none) if keys is None else _addresses(keys)
    total = digest_records(np.zeros(count, np.int32), 0, key_starts, key_ends, *_addresses(values))
    return RecordDigest(*total.tolist()).without_key_groups


def _addresses(encoded: Encoded) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    address = encoded.data.ctypes.data
    return encoded.starts + address, encoded.stops + address


def prove_rescaling(
    sides: Sequence[ProofSide], run: Callable[[Sequence[CountKeyed | CountOperatorState], str], Sequence[Counted]]
) -> RescaleProof:
    """Count both sides of every operator and compare.

    Args:
        sides: one per operator of the new snapshot.
        run: runs pieces of work and gives their results in order.

    Raises:
        StateError: a side cannot be read.
    """
    pieces: list[CountKeyed | CountOperatorState] = []
    owners: list[tuple[int, bool]] = []
    for number, side in enumerate(sides):
        for is_after, operators in ((False, side.before), (True, (side.after,))):
            for operator in operators:
                for piece in _plan_counts(operator, side, is_after=is_after):
                    pieces.append(piece)
                    owners.append((number, is_after))
    counted = run(pieces, "the proof cannot read the state")
    rows: list[StateProof] = []
    for number, side in enumerate(sides):
        mine = [
            (is_after, piece, result)
            for (owner, is_after), piece, result in zip(owners, pieces, counted, strict=True)
            if owner == number
        ]
        rows += _compare(side, mine)
    return RescaleProof(tuple(rows))


@dataclass(frozen=True)
class ProofSide:
    """One operator, before and after.

    Attributes:
        before: the operator in all snapshots that its state comes from.
        after: in the new snapshot, read back.
        dropped: names of states that were to go.
        removed: by state, what else was to go: entries of other keys, or that several snapshots had.
        hasher: where key groups are new.
    """

    before: tuple[Operator, ...]
    after: Operator
    dropped: frozenset[str] = frozenset()
    removed: Mapping[str, RecordDigest] = field(default_factory=dict)
    hasher: KeyHasher | None = None


def _plan_counts(operator: Operator, side: ProofSide, *, is_after: bool) -> Iterator[CountKeyed | CountOperatorState]:
    context = operator.record_context
    for subtask, file in operator.keyed_files:
        wanted = compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism) if is_after else None
        for part in file.split(SPLIT_SIZE, context):
            yield CountKeyed(operator.label, part, context, wanted, side.hasher if is_after else None)
    unkeyed = (*operator.operator_states, *operator.raw_states)
    if states := tuple(state for state in unkeyed if isinstance(state, UnkeyedState)):
        yield CountOperatorState(operator.label, states)


def _compare(
    side: ProofSide, counted: Iterable[tuple[bool, CountKeyed | CountOperatorState, Counted]]
) -> Iterator[StateProof]:
    results = list(counted)
    keyed_names = {name for _, piece, result in results if isinstance(piece, CountKeyed) for name in result.digests}
    names = dict.fromkeys(name for *_, result in results for name in result.digests)
    label = side.after.label
    for name in names:
        before, after = (
            [result for is_after, _, result in results if is_after is wanted and name in result.digests]
            for wanted in (False, True)
        )
        expected = sum((each.digests[name] for each in before), RecordDigest())
        if name in side.dropped:
            expected = RecordDigest()
        elif name in side.removed:
            expected -= side.removed[name].without_key_groups
        yield StateProof(
            label,
            name,
            name in keyed_names,
            expected,
            sum((each.digests[name] for each in after), RecordDigest()),
            sum(each.misplaced.get(name, 0) for each in after),
            None if side.hasher is None else sum(each.misfiled.get(name, 0) for each in after),
            _is_reformed(name, before, after),
        )
    for name in dict.fromkeys(name for *_, result in results for name in result.copies):
        before, after = (
            [result for is_after, _, result in results if is_after is wanted and name in result.copies]
            for wanted in (False, True)
        )
        kinds, copies = (
            {digest for each in found for digest in each.copies[name].values()} for found in (before, after)
        )
        expected = RecordDigest() if name in side.dropped else sum(kinds, RecordDigest())
        present = {subtask for each in after for subtask in each.copies[name]}
        missing = side.after.parallelism - len(present) if expected.records else 0
        yield StateProof(
            label,
            name,
            False,
            expected,
            sum(copies, RecordDigest()),
            missing,
            reformed=_is_reformed(name, before, after),
        )


def _is_reformed(name: str, before: Iterable[Counted], after: Iterable[Counted]) -> bool:
    """Whether what is there has another form than what was there; subclasses of POJOs may be listed together."""
    old, new = ({info for each in found for info in each.forms.get(name, ())} for found in (before, after))
    if not new or old == new:
        return False
    infos = sorted(new, key=repr)
    whole: StateMetaInfo | None = infos[0]
    for info in infos:
        whole = None if whole is None else join_infos(whole, info)
    return whole is None or any(join_infos(whole, info) != whole for info in old)
