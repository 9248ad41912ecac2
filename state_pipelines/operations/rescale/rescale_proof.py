"""The proof of a rescaling: counts, bytes and digests of every state before and after.

They do not depend on the order of records nor on their key groups.

Keyed state is read by the readers that everything else uses, and not by what wrote the new files. Operator state is
compared by its stored bytes (`stored_elements`), and raw keyed state by the bytes of its sections.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from state_pipelines.errors import UnsupportedError, Where, at
from state_pipelines.keyed.digests import RecordDigest, digest_run, digest_sections
from state_pipelines.keyed.key_groups import assign_key_groups, compute_key_group_range
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.operations.local_processes import KERNEL_THREADS
from state_pipelines.operations.proofs.state_proofs import StateProof
from state_pipelines.operations.rescale.hashed_keys import count_threads
from state_pipelines.operations.rescale.snapshot_merge import is_timer
from state_pipelines.operations.rescale.stored_elements import (
    StateDescription,
    StoredElements,
    find_delegates,
    list_stored_elements,
    name_elements,
)
from state_pipelines.serializers.merged_subclasses import join_infos
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import StateMetaInfo
from state_pipelines.snapshot.operator_state import RAW_KEYED_NAME, RawKeyedState
from state_pipelines.snapshot.snapshot_files import count_scans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyGroupRange, OperatorStateMode
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.rescale.operator_edits import EditedSnapshot
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.handle_readers import RawKeyedSubtaskState

KEYED_STATE = "keyed state"
"""Name of the row for keyed state that is compared by the bytes of its key groups, all states together."""

SPLIT_SIZE = 32 << 20
"""Bytes of a file that one task reads."""


@dataclass(frozen=True)
class Counted:
    """Findings of one task, by name of the state.

    Attributes:
        digests: of the entries.
        misplaced: entries in key groups of other subtasks.
        misfiled: entries whose hash gives another key group.
        copies: of broadcast state the copy of each subtask.
        infos: descriptions of the states.
        sections: of heap native and changelog state the stored bytes of all key groups.
        unread: why the records of such state cannot be found; empty when they were.
    """

    digests: Mapping[str, RecordDigest]
    misplaced: Mapping[str, int] = field(default_factory=dict)
    misfiled: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, Mapping[int, RecordDigest]] = field(default_factory=dict)
    infos: Mapping[str, frozenset[StateDescription]] = field(default_factory=dict)
    sections: RecordDigest | None = None
    unread: str = ""


@dataclass(frozen=True)
class CountKeyed:
    """Digests of the states of one file of keyed state, or of a part of it.

    Attributes:
        operator: label, for errors.
        file: the file.
        context: of the operator.
        key_groups: of the subtask, where the records are to be; None does not look at it.
        hasher: gives the hashes that are to agree with the key groups; None does not look at them.
        in_flight: as `Work` says.
    """

    operator: str
    file: KeyedFile
    context: RecordContext
    key_groups: KeyGroupRange | None = None
    hasher: KeyHasher | None = None
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """As `Work` says."""
        return count_threads(self.hasher, [self.file])

    def run(self) -> Counted:
        """Read the file.

        Raises:
            UnsupportedError: records cannot be found, and there are no bytes to compare instead.
        """
        sections = self.file.digest_stored_bytes(self.context, self.file.key_groups)
        try:
            return replace(self._read(), sections=sections)
        except UnsupportedError as error:
            if sections is None:
                raise
            return Counted({}, self._count_misplaced(), sections=sections, unread=str(error))

    def _count_misplaced(self) -> dict[str, int]:
        if self.key_groups is None:
            return {}
        if sections := self.file.stored_sections():
            return {KEYED_STATE: sum(each.key_group not in self.key_groups for each in sections)}
        return {KEYED_STATE: self.file.key_groups.number - self.file.key_groups.intersect(self.key_groups).number}

    def _read(self) -> Counted:
        digests: dict[str, RecordDigest] = {}
        misplaced: dict[str, int] = {}
        misfiled: dict[str, int] = {}
        with at(operator=self.operator):
            states = self.file.header.states
            for state_id, records in self.file.scan(range(len(states)), self.context):
                info = states[state_id]
                digest = digest_run(records, is_map=info.state_type == StateKind.MAP).without_key_groups
                digests[info.name] = digests.get(info.name, RecordDigest()) + digest
                if self.key_groups is not None:
                    inside = (records.key_groups >= self.key_groups.start) & (records.key_groups <= self.key_groups.end)
                    misplaced[info.name] = misplaced.get(info.name, 0) + int((~inside).sum())
                if self.hasher is not None:
                    codes = self.hasher.hash_keys(records, skip=TIMESTAMP if is_timer(info) else 0)
                    wrong = assign_key_groups(codes, self.context.max_parallelism) != records.key_groups
                    misfiled[info.name] = misfiled.get(info.name, 0) + int(wrong.sum())
            infos = {info.name: frozenset([info]) for info in states}
        return Counted(digests, misplaced, misfiled, infos=infos)


@dataclass(frozen=True)
class CountOperatorState:
    """Digests of the list, broadcast and raw states of one operator, by their stored bytes.

    Attributes:
        operator: its label.
        elements: its operator state, by subtask.
        sections: its raw keyed state that is not timers, by subtask.
        in_flight: as `Work` says.
    """

    operator: str
    elements: tuple[StoredElements, ...]
    sections: tuple[RawKeyedSubtaskState, ...] = ()
    in_flight: int = 1
    # It is little beside keyed state, for which processes need not be started then.
    threads: ClassVar[int] = KERNEL_THREADS

    def run(self) -> Counted:
        """Read them."""
        digests: dict[str, RecordDigest] = {}
        copies: dict[str, dict[int, RecordDigest]] = {}
        infos: dict[str, set[StateDescription]] = {}
        with at(operator=self.operator):
            for each in self.elements:
                lists, broadcasts, found = each.digest()
                for name, digest in lists.items():
                    digests[name] = digests.get(name, RecordDigest()) + digest
                for name, digest in broadcasts.items():
                    copies.setdefault(name, {})[each.subtask] = digest
                for name, description in found.items():
                    infos.setdefault(name, set()).add(description)
            if self.sections:
                digests[RAW_KEYED_NAME] = sum(
                    (digest_sections(each.stream, each.sections) for each in self.sections), RecordDigest()
                )
        return Counted(digests, copies=copies, infos={name: frozenset(each) for name, each in infos.items()})


def compare_sides(sides: Sequence[ProofSide], run: Runner) -> tuple[StateProof, ...]:
    """Count both sides of every operator and compare.

    Args:
        sides: one per operator of the new snapshot.
        run: runs tasks and gives their results in order.

    Raises:
        StateError: a side cannot be read.
    """
    tasks: list[CountKeyed | CountOperatorState] = []
    owners: list[tuple[int, bool]] = []
    for number, side in enumerate(sides):
        for is_after, operators in ((False, side.before), (True, (side.after,))):
            for operator in operators:
                for task in _plan_counts(operator, side, is_after=is_after):
                    tasks.append(task)
                    owners.append((number, is_after))
    counted = run(tasks, "the proof cannot read the state")
    rows: list[StateProof] = []
    for number, side in enumerate(sides):
        mine = [
            (is_after, task, result)
            for (owner, is_after), task, result in zip(owners, tasks, counted, strict=True)
            if owner == number
        ]
        if side.found is not None:
            mine += _take_found(side.before[0], side.found)
        rows += _compare(side, mine)
    return tuple(rows)


@dataclass(frozen=True)
class ProofSide:
    """One operator, before and after.

    Attributes:
        before: the operator in all snapshots that its state comes from.
        after: in the new snapshot, read back.
        planned: its metadata as planned, in which files that are copied still have their old names.
        dropped: names of states that were to go.
        removed: by state, what else was to go: entries of other keys, or that several snapshots had.
        hasher: where key groups are new.
        moved: keyed state was written record by record, not copied as bytes.
        found: digests of all keyed state of the old operator, taken when it was read to be moved; None to read it.
    """

    before: tuple[Operator, ...]
    after: Operator
    planned: OperatorState
    dropped: frozenset[str] = frozenset()
    removed: Mapping[str, RecordDigest] = field(default_factory=dict)
    hasher: KeyHasher | None = None
    moved: bool = False
    found: Mapping[str, RecordDigest] | None = None


def check_sources(edited: EditedSnapshot) -> None:
    """Open all state that the proof will read.

    Raises:
        StateError: some of it cannot be opened.
    """
    for each in edited.operators:
        for operator in (each.operator, *each.merged):
            with at(operator=operator.label):
                _ = operator.stored_files, operator.raw_states
                for _ in list_stored_elements(operator, {}, {}):
                    pass


def count_keyed(
    operator: Operator, file: KeyedFile, hasher: KeyHasher | None = None, key_groups: KeyGroupRange | None = None
) -> Iterator[CountKeyed]:
    """The tasks that count the records of a file of an operator."""
    for split in file.split(SPLIT_SIZE, operator.record_context):
        context, in_flight = operator.record_context, count_scans(operator)
        yield CountKeyed(operator.label, split, context, key_groups, hasher, in_flight)


def _plan_counts(operator: Operator, side: ProofSide, *, is_after: bool) -> Iterator[CountKeyed | CountOperatorState]:
    if is_after:
        for subtask, file in operator.keyed_files:
            wanted = compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)
            yield from count_keyed(operator, file, side.hasher, wanted)
    elif side.found is None:
        for file in operator.stored_files:
            yield from count_keyed(operator, file)
    delegates = find_delegates(side.planned) if is_after else {}
    elements = tuple(list_stored_elements(operator, name_elements(side.before), delegates))
    raw = [state for state in operator.raw_states if isinstance(state, RawKeyedState)]
    sections = tuple(subtask_state for state in raw for subtask_state in state.subtask_states)
    if elements or sections:
        yield CountOperatorState(operator.label, elements, sections, count_scans(operator))


def _take_found(
    operator: Operator, found: Mapping[str, RecordDigest]
) -> Iterator[tuple[bool, CountKeyed | CountOperatorState, Counted]]:
    """Results of the old keyed state that is not read again."""
    files = operator.stored_files
    digests = {name: digest.without_key_groups for name, digest in found.items()}
    for file in files[:1]:
        infos = {info for each in files for info in each.header.states}
        named = {name: frozenset[StateDescription](info for info in infos if info.name == name) for name in digests}
        yield False, CountKeyed(operator.label, file, operator.record_context), Counted(digests, infos=named)


def _compare(
    side: ProofSide, counted: Iterable[tuple[bool, CountKeyed | CountOperatorState, Counted]]
) -> Iterator[StateProof]:
    results = list(_by_sections(side, list(counted)))
    keyed_names = {name for _, task, result in results if isinstance(task, CountKeyed) for name in result.digests}
    names = dict.fromkeys(name for *_, result in results for name in result.digests)
    label = side.after.label
    old, new = _find_modes(side.before), _find_modes((side.after,))
    remade = {name for name in new if not new[name] <= old.get(name, set())}
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
            _is_reformed(name, before, after) or (name not in keyed_names and name in remade),
        )
    for name in dict.fromkeys(name for *_, result in results for name in result.copies):
        before, after = (
            [result for is_after, _, result in results if is_after is wanted and name in result.copies]
            for wanted in (False, True)
        )
        kinds, copies = (
            {digest for each in found for digest in each.copies[name].values()} for found in (before, after)
        )
        if name in side.dropped:
            expected = RecordDigest()
        else:
            # Copies may have their entries in different orders, and any of them may be the one that goes on.
            expected = sum(copies if copies and copies <= kinds else kinds, RecordDigest())
        # A handle that names the state without an offset holds no copy.
        copied = (pair for each in after for pair in each.copies[name].items())
        present = {subtask for subtask, digest in copied if digest != RecordDigest()}
        missing = side.after.parallelism - len(present) if expected.records else 0
        yield StateProof(
            label,
            name,
            False,
            expected,
            sum(copies, RecordDigest()),
            missing,
            reformed=_is_reformed(name, before, after) or name in remade,
        )


def _find_modes(operators: Iterable[Operator]) -> dict[str, set[OperatorStateMode]]:
    """Distribution modes that handles give each operator state, by name."""
    found: dict[str, set[OperatorStateMode]] = {}
    for subtask in (each for operator in operators for each in operator.metadata.subtasks):
        for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
            for state in () if handle is None else handle.states:
                found.setdefault(state.state_name, set()).add(state.mode)
    return found


def _by_sections(
    side: ProofSide, results: list[tuple[bool, CountKeyed | CountOperatorState, Counted]]
) -> list[tuple[bool, CountKeyed | CountOperatorState, Counted]]:
    """Results with key groups of heap native and changelog state as a whole, where records of some cannot be found.

    That proves as much where the key groups were copied as bytes: each is compared with its number.

    Raises:
        UnsupportedError: records cannot be found, and were moved.
    """
    unread = next((result.unread for *_, result in results if result.unread), "")
    if not unread:
        return results
    if side.moved:
        raise UnsupportedError(f"the proof cannot find the records: {unread}", where=Where(operator=side.after.label))
    infos = {KEYED_STATE: frozenset[StateDescription]()}
    return [
        (
            is_after,
            task,
            result
            if result.sections is None
            else Counted({KEYED_STATE: result.sections}, {KEYED_STATE: sum(result.misplaced.values())}, infos=infos),
        )
        for is_after, task, result in results
    ]


def _is_reformed(name: str, before: Iterable[Counted], after: Iterable[Counted]) -> bool:
    """Whether what is there has another form than what was there; subclasses of POJOs may be listed together."""
    old, new = ({info for each in found for info in each.infos.get(name, ())} for found in (before, after))
    if new <= old:
        return False
    infos = sorted((info for info in new if isinstance(info, StateMetaInfo)), key=repr)
    if len(infos) < len(new):
        # Headers that cannot be read are copied as they are.
        return True
    whole: StateMetaInfo | None = infos[0]
    for info in infos:
        whole = None if whole is None else join_infos(whole, info)
    return whole is None or any(isinstance(info, bytes) or join_infos(whole, info) != whole for info in old)
