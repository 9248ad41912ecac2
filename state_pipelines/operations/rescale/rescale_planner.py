"""Planning of the change of each operator; everything impossible is refused here, before anything is written.

State whose key groups stay and whose files fit together is reused, or copied as ranges of bytes (`assembly`). Other
keyed state is moved record by record (`regrouping`).

Splits that a source knows, so that more subtasks than splits are noticed: those would stay idle. The readers hold the
splits that are assigned, the enumerator (coordinator state) those that are not yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from state_pipelines.connectors import AmbiguousState, ConnectorState, read_coordinator
from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import NotFoundError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import OperatorState, SubtaskState
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, OperatorStateMode
from state_pipelines.operations.rescale.assembly import (
    Assembler,
    FileAssembly,
    MovedKeyGroups,
    NeedsRecords,
    assemble_operator,
    find_moved_key_groups,
    hand_on_keyed,
)
from state_pipelines.operations.rescale.records import (
    KeyedHandles,
    OperatorChange,
    OperatorTasks,
    RecordMove,
    RecordsPlan,
    Way,
    has_keyed_state,
)
from state_pipelines.operations.rescale.rescale_proof import digest_lists, digest_pairs, measure_union
from state_pipelines.operations.rescale.snapshot_merge import check_operator_headers
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot.checks import check_database_keys, check_elements
from state_pipelines.snapshot.operator_state import (
    RAW_KEYED_NAME,
    RAW_OPERATOR_NAME,
    Detected,
    OperatorBroadcastState,
    OperatorListState,
    narrow_enumerator,
)
from state_pipelines.snapshot.snapshot_files import check_subtasks, follows_formula

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.metadata.handles import KeyedStateHandle, OperatorStateHandle
    from state_pipelines.operations.rescale.rescale_request import EditedOperator, OperatorRequest, RescaleRequest
    from state_pipelines.snapshot import Operator
    from state_pipelines.storage import Location

_LISTED = 8
"""Ranges of key groups that a text lists."""


def tell_label(change: OperatorChange) -> str:
    """The label of an operator, such as `orders`, or `orders → orders-v2` where it has a new one."""
    return change.label if change.label == change.former else f"{change.former} → {change.label}"


def tell_number(before: int, after: int) -> str:
    """A number, such as `2`, or `2 → 3` where it changes."""
    return str(before) if before == after else f"{before} → {after}"


def tell_moved(moved: MovedKeyGroups, max_parallelism: int, format_bytes: Callable[[int], str]) -> str:
    """Key groups and bytes that change subtask, such as `42 of 128 key groups change subtask: 43-84`."""
    if not moved.ranges:
        return "no key group changes subtask"
    names = [f"{each.start}" if len(each) == 1 else f"{each.start}-{each.end}" for each in moved.ranges[:_LISTED]]
    more = f" and {len(moved.ranges) - _LISTED} more ranges" if len(moved.ranges) > _LISTED else ""
    text = f"{moved.number} of {max_parallelism} key groups change subtask: {', '.join(names)}{more}"
    if moved.bytes is None or moved.total is None:
        return text
    about = "about " if moved.estimated else ""
    return f"{text}; {about}{format_bytes(moved.bytes)} of {format_bytes(moved.total)}"


READER_STATE = "SourceReaderState"
"""Name of the list state of the splits of each reader (`SourceOperator`)."""

_WITHOUT_SPLITS = ("hybrid",)
"""Connectors whose enumerator holds splits that are not decoded."""

_ASSIGNED = ("assigned", "tombstoned")
"""Statuses of splits of an enumerator that are not left to assign: a reader has them, or they were removed."""


def count_splits(operator: Operator) -> int | None:
    """Count the splits that a source knows; None for other operators, and where the number is not known."""
    found = list(_find_states(operator))
    if not found or any(state.connector in _WITHOUT_SPLITS for state in found):
        return None
    rows = [row for state in found for element in state.rows for row in element]
    return sum(map(_is_left, rows)) or None


def _find_states(operator: Operator) -> Iterator[ConnectorState]:
    """Decoded state of the readers, then of the enumerator; nothing for operators that are no sources."""
    try:
        states = [each.detected.state for each in operator.operator_states if isinstance(each, OperatorListState)]
    except StateError:
        # The number of splits is not known without the elements.
        return
    readers = [state for state in states if state is not None and state.kind is ConnectorStateKind.SPLIT]
    yield from readers
    coordinator = operator.metadata.coordinator_state
    enumerator = None if coordinator is None else read_coordinator(coordinator.data).state
    if isinstance(enumerator, AmbiguousState):
        left = narrow_enumerator(enumerator.connectors, map(Detected, readers))
        enumerator = next((each for each in enumerator.candidates if left == (each.connector,)), None)
    if readers and isinstance(enumerator, ConnectorState):
        yield enumerator


def count_reader_splits(operator: Operator) -> int | None:
    """Count the splits that the readers of a source have, whatever connector it is; None for other operators.

    Each element of the state is a split (`SourceOperator.SPLITS_STATE_DESC`); an enumerator may have more.
    """
    if operator.metadata.coordinator_state is None:
        return None
    try:
        states = [each for each in operator.operator_states if each.name == READER_STATE]
        return states[0].count().entries if states else None
    except StateError:
        return None


def _is_left(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a split that is still to be read, and not one that another row is."""
    return not (row.get("status") in _ASSIGNED or row.get("processed") or row.get("finished"))


def plan_operator(
    edited: EditedOperator, request: RescaleRequest, target: Location, *, files: FileMode, verify: bool
) -> OperatorTasks:
    """Decide how one operator gets its new form.

    Args:
        edited: the operator, and the same one in merged snapshots.
        request: the whole request.
        target: directory of the new snapshot.
        files: what happens to files that stay as they are.
        verify: new files are read again.

    Raises:
        UsageError: the numbers do not go together.
        FormatError: a subtask is listed twice, or does not exist.
        UnsupportedError: the hash of a class in the keys is not known, raw state that only its operator knows would
            have to change, or data are in flight.
        NotFoundError: the request names a state that is not there.
    """
    for each in (edited.operator, *edited.merged):
        with at(operator=each.label):
            check_subtasks(each.metadata, str(each.snapshot.location.metadata))
    with at(operator=edited.operator.label):
        return _Planner(edited, request, target, files=files, verify=verify).plan()


class _Planner:
    def __init__(
        self, edited: EditedOperator, request: RescaleRequest, target: Location, *, files: FileMode, verify: bool
    ) -> None:
        self.edited, self.request, self.target = edited, request, target
        self.files, self.verify = files, verify
        self.operator = edited.operator
        self.own: OperatorRequest = edited.request
        self.metadata = self.operator.metadata
        self.notes: list[str] = []
        self.max_parallelism = self._choose("max_parallelism", self.metadata.max_parallelism)
        self.parallelism = self._choose("parallelism", self.metadata.parallelism)
        self.dropped = frozenset(self.own.drop_states)

    def _choose(self, name: str, old: int) -> int:
        own: int | None = getattr(self.own, name)
        if own is not None:
            return own
        wanted: int | None = getattr(self.request, name)
        if wanted is None or wanted == old:
            return old
        if self.metadata.max_parallelism == 1:
            # `forceNonParallel`: a job never gives such an operator another number.
            self.notes.append(f"operator {self.operator.label} is not parallel and keeps its {name.replace('_', ' ')}")
            return old
        return wanted

    @property
    def _move(self) -> RecordMove:
        return RecordMove(
            sources=self._sources,
            own=self.own,
            request=self.request,
            target=self.target,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            verify=self.verify,
        )

    @property
    def _sources(self) -> tuple[Operator, ...]:
        return (self.operator, *self.edited.merged)

    def plan(self) -> OperatorTasks:
        """Choose the way."""
        compute_key_group_range(0, self.parallelism, self.max_parallelism)
        self._check_states()
        self._check_splits()
        for source in self._sources:
            self.notes += check_elements(source)
            check_database_keys(source)
        self._refuse_finished()
        if self.metadata.fully_finished:
            state = replace(self.metadata, max_parallelism=self.max_parallelism)
            return self._finish(state, Way.FINISHED, Way.FINISHED)
        resized = (self.parallelism, self.max_parallelism) != (self.metadata.parallelism, self.metadata.max_parallelism)
        realigned = not follows_formula(self.metadata)
        reason = self._why_records()
        if not (resized or realigned or reason or self.edited.merged or self.dropped):
            return self._finish(self.metadata, self._choose_keyed(Way.COPIED), self._choose_operator(Way.COPIED))
        self._refuse(moved=bool(reason))
        assembler = Assembler(self.target, self.verify)
        keyed = [(None, None)] * self.parallelism if reason else self._hand_on(assembler)
        if isinstance(keyed, NeedsRecords):
            reason, keyed = keyed.reason, [(None, None)] * self.parallelism
            assembler = Assembler(self.target, self.verify)
        records, hashes = self._move.plan(reason) if reason else (None, ())
        return self._assemble(assembler, keyed, records, reason, hashes)

    def _refuse_finished(self) -> None:
        """Refuse an operator that had finished in some of the snapshots: nothing says whether the new one has."""
        finished = [each.snapshot.path for each in self._sources if each.metadata.fully_finished]
        if 0 < len(finished) < len(self._sources):
            raise UnsupportedError(
                f"it had finished in {', '.join(finished)} and not in the other merged snapshots",
                hint="Drop it (--drop-operator), and take it from the snapshot whose state counts (--take)",
            )

    def _hand_on(self, assembler: Assembler) -> list[KeyedHandles] | NeedsRecords:
        """Keyed state of the one source that has any."""
        keyed = [operator for operator in self._sources if has_keyed_state(operator)]
        if not keyed:
            return [(None, None)] * self.parallelism
        (source,) = keyed
        found = hand_on_keyed(source, self.parallelism, assembler, narrow=self.files is not FileMode.COPY)
        if not isinstance(found, NeedsRecords):
            self._note_databases([managed for managed, _ in found])
        return found

    def _check_states(self) -> None:
        if self.own.keys is not None and not any(operator.keyed_files for operator in self._sources):
            raise UsageError("the operator has no keyed state of which some keys could be chosen")
        if not self.dropped:
            return
        known = {state.name for operator in self._sources for state in operator.states}
        for name in sorted(self.dropped - known):
            raise NotFoundError(f"the operator has no state {name}", hint=f"It has {', '.join(sorted(known))}")
        for name in sorted(self.dropped & {RAW_KEYED_NAME, RAW_OPERATOR_NAME}):
            raise UnsupportedError(f"{name} cannot be dropped", hint="Drop the operator, or another of its states")

    def _why_records(self) -> str:
        """Why records must move; empty when they need not."""
        keyed = [operator for operator in self._sources if has_keyed_state(operator)]
        if any(operator.max_parallelism != self.max_parallelism for operator in keyed):
            return "other key groups"
        if self.own.keys is not None:
            return "only some keys"
        if len(keyed) > 1:
            return "state of several snapshots"
        names = {info.name for operator in keyed for _, file in operator.keyed_files for info in file.header.states}
        return "without dropped states" if names & self.dropped else ""

    def _refuse(self, *, moved: bool) -> None:
        for operator in self._sources:
            subtasks = operator.metadata.subtasks
            if any(each.input_channel_state or each.result_subpartition_state for each in subtasks):
                raise UnsupportedError(
                    "in-flight data cannot be handed to other subtasks",
                    where=Where(file=str(operator.snapshot.location.metadata)),
                    hint="Take a savepoint or an aligned checkpoint, or drop the in-flight data first "
                    "(convert --format keep --in-flight drop)",
                )
            finished = [str(each.index) for each in subtasks if each.finished]
            if finished and (moved or self.edited.merged or self.parallelism != self.metadata.parallelism):
                raise UnsupportedError(
                    f"subtasks {', '.join(finished)} have finished and others have not, so that nothing says which of "
                    "the new ones have",
                    hint="Leave this operator as it is, or take a snapshot before its first subtask finishes",
                )
        self._refuse_large_union()

    def _refuse_large_union(self) -> None:
        union = sum(map(measure_union, self._sources))
        if union * self.parallelism > self.request.union_limit:
            raise UnsupportedError(
                f"its union state of {union:,} bytes would come {self.parallelism} times, once for every subtask, when "
                f"the job is restored; {self.request.union_limit:,} bytes are allowed",
                hint="Choose a smaller parallelism, or a larger union_limit in the request if the job can bear it",
            )

    def _assemble(
        self,
        assembler: Assembler,
        keyed: Sequence[KeyedHandles],
        records: RecordsPlan | None,
        reason: str,
        hashes: tuple[str, ...],
    ) -> OperatorTasks:
        """The operator with its keyed state, as far as it is reused, and the operator state of all sources."""
        self._check_operator_states()
        self._check_broadcasts()
        self._note_equal_elements()
        managed = self._hand_out(assembler, raw=False)
        raw = self._hand_out(assembler, raw=True)
        finished = {each.index for each in self.metadata.subtasks if each.finished}
        subtasks = tuple(
            SubtaskState(index, finished=True)
            if index in finished
            else SubtaskState(
                index,
                managed_operator_state=managed[index],
                raw_operator_state=raw[index],
                managed_keyed_state=keyed[index][0],
                raw_keyed_state=keyed[index][1],
            )
            for index in range(self.parallelism)
        )
        state = replace(
            self.metadata, parallelism=self.parallelism, max_parallelism=self.max_parallelism, subtasks=subtasks
        )
        coordinator = self.metadata.coordinator_state
        if any(each.metadata.coordinator_state not in (None, coordinator) for each in self.edited.merged):
            self.notes.append(
                f"operator {self.operator.label}: the coordinator state of {self.operator.snapshot.path} is kept, that "
                "of the merged snapshots is not"
            )
        way = Way.RANGES if self._hands_out else Way.COPIED
        keyed_way = self._choose_keyed(Way.RECORDS if reason else way)
        return self._finish(
            state,
            keyed_way,
            self._choose_operator(way),
            reason=reason if keyed_way is Way.RECORDS else "",
            assemblies=tuple(assembler.assemblies),
            records=records,
            hashes=hashes,
        )

    def _hand_out(self, assembler: Assembler, *, raw: bool) -> list[OperatorStateHandle | None]:
        """Operator state of all sources for the new subtasks; sources follow each other as if they were subtasks.

        Broadcast state is that of the first source that has it: it is the same in all (`_check_broadcasts`).
        """
        handles: list[tuple[int, OperatorStateHandle]] = []
        left_out: set[tuple[int, str]] = set()
        first = 0
        broadcast: set[str] = set()
        for operator in self._sources:
            named: set[str] = set()
            for each in sorted(operator.metadata.subtasks, key=lambda each: each.index):
                handle = each.raw_operator_state if raw else each.managed_operator_state
                if handle is None:
                    continue
                copies = {info.state_name for info in handle.states if info.mode is OperatorStateMode.BROADCAST}
                named |= copies
                left_out |= {(first + each.index, name) for name in copies & broadcast}
                handles.append((first + each.index, handle))
            broadcast |= named
            first += operator.parallelism
        if not self._hands_out:
            same = dict(handles)
            return [same.get(index) for index in range(self.parallelism)]
        return assemble_operator(
            handles,
            self.parallelism,
            first,
            self.operator.snapshot.handles,
            assembler,
            raw=raw,
            narrow=self.files is not FileMode.COPY,
            dropped=self.dropped,
            left_out=left_out,
        )

    def _check_operator_states(self) -> None:
        """Refuse operator state that the merged snapshots store in different forms."""
        if not self.edited.merged:
            return
        opened = [
            operator.snapshot.handles.open_operator(subtask.managed_operator_state)
            for operator in self._sources
            for subtask in operator.metadata.subtasks
        ]
        # The handle of a subtask without state may name an empty file.
        found = [each for each in opened if each is not None and each.header_end]
        check_operator_headers([each.header for each in found], self.dropped, [each.name for each in found])

    def _check_broadcasts(self) -> None:
        """Refuse broadcast state that is not the same in all merged snapshots: a subtask can hold one copy only."""
        if not self.edited.merged:
            return
        found: dict[str, set[RecordDigest]] = {}
        for operator in self._sources:
            for state in operator.operator_states:
                if isinstance(state, OperatorBroadcastState) and state.name not in self.dropped:
                    found.setdefault(state.name, set()).update(digest_pairs(state))
        for name, copies in found.items():
            if len(copies) > 1:
                raise UnsupportedError(
                    "the merged snapshots have different broadcast state",
                    where=Where(state=name),
                    hint="Drop the state (drop_states) and let the job broadcast it again, or make them equal before",
                )

    def _note_equal_elements(self) -> None:
        """Note list and union state that several merged snapshots have alike, as copies of one snapshot do."""
        if not self.edited.merged:
            return
        alike: dict[str, set[RecordDigest]] = {}
        twice: dict[str, None] = {}
        for operator in self._sources:
            for name, digest in digest_lists(operator).items():
                known = alike.setdefault(name, set())
                if digest.records and digest in known and name not in self.dropped:
                    twice[name] = None
                known.add(digest)
        if twice:
            self.notes.append(
                f"operator {self.operator.label}: several of the merged snapshots have the same elements in "
                f"{', '.join(twice)}, which are there several times now; if they are copies of one state, merge one of "
                "them only"
            )

    def _note_databases(self, handles: Sequence[KeyedStateHandle | None]) -> None:
        if self._hands_out and any(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in handles):
            self.notes.append(
                f"operator {self.operator.label}: several subtasks share each RocksDB database as a whole; restored at "
                "yet another parallelism, Flink opens it several times, and not with "
                "state.backend.rocksdb.use-ingest-db-restore-mode"
            )

    @property
    def _hands_out(self) -> bool:
        """Whether operator state comes to other subtasks, or some of it goes."""
        return bool(self.parallelism != self.metadata.parallelism or self.edited.merged or self.dropped)

    def _find_moved(self, state: OperatorState) -> MovedKeyGroups | None:
        if state.max_parallelism != self.metadata.max_parallelism or state.fully_finished:
            return None
        return find_moved_key_groups(self.operator, state.parallelism)

    def _check_splits(self) -> None:
        """Refuse, or note, more subtasks of a source than it has splits."""
        if self.parallelism <= self.metadata.parallelism or self.request.allow_idle_sources:
            return
        known = sum(count_splits(each) or 0 for each in self._sources)
        if not known:
            self._note_reader_splits()
        if not known or self.parallelism <= known:
            return
        idle = f"of its {self.parallelism} subtasks {self.parallelism - known} would have nothing to read"
        what = f"the source knows {known} split{'' if known == 1 else 's'}, so that {idle}"
        if self.own.parallelism is not None:
            raise UnsupportedError(
                what,
                hint=f"Choose at most {known} subtasks, or allow it (--allow-idle-sources, allow_idle_sources in the "
                "request) if the source will find more splits",
            )
        self.notes.append(f"operator {self.operator.label}: {what}; a watermark without idleness waits for these")

    def _note_reader_splits(self) -> None:
        """Note more subtasks of a source of no known connector than its readers have splits."""
        read = sum(count_reader_splits(each) or 0 for each in self._sources)
        if read and self.parallelism > read:
            plural = "" if read == 1 else "s"
            self.notes.append(
                f"operator {self.operator.label}: the readers of the source have {read} split{plural}, so that of its "
                f"{self.parallelism} subtasks {self.parallelism - read} have nothing to read unless its enumerator, "
                "which is that of no known connector, has more; a watermark without idleness waits for these"
            )

    def _choose_keyed(self, way: Way) -> Way:
        return way if any(map(has_keyed_state, self._sources)) else Way.NONE

    def _choose_operator(self, way: Way) -> Way:
        subtasks = [subtask for operator in self._sources for subtask in operator.metadata.subtasks]
        return way if any(each.managed_operator_state or each.raw_operator_state for each in subtasks) else Way.NONE

    def _finish(
        self,
        state: OperatorState,
        keyed: Way,
        operator_state: Way,
        *,
        reason: str = "",
        assemblies: tuple[FileAssembly, ...] = (),
        records: RecordsPlan | None = None,
        hashes: tuple[str, ...] = (),
    ) -> OperatorTasks:
        change = OperatorChange(
            former=self.edited.former,
            label=self.operator.label,
            parallelism=(self.metadata.parallelism, state.parallelism),
            max_parallelism=(self.metadata.max_parallelism, state.max_parallelism),
            keyed=keyed,
            operator_state=operator_state,
            reason=reason,
            hashes=hashes,
            moved=self._find_moved(state),
        )
        return OperatorTasks(self.edited, change, state, assemblies, records, self.dropped, tuple(self.notes))
