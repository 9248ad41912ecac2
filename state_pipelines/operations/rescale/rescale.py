"""Rescaling of a snapshot: planned as a whole, written in stages, proven, published.

* `plan_operator`, `plan_rescale`: the change of each operator; everything impossible is refused here, before anything
  is written. State whose key groups stay and whose files are compatible is reused, or copied as ranges of bytes
  (`assembly`). Other keyed state is moved record by record (`records`).
* `count_splits`: splits that a source knows, so that more subtasks than splits are noticed: those would stay idle. The
  readers hold the splits that are assigned, the enumerator (coordinator state) those that are not yet.
* `run_rescale`, `rehearse`, `rescale`: the operation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from state_pipelines.connectors import AmbiguousState, ConnectorState, read_coordinator
from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import NotFoundError, ProofError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.digests import sum_digests
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import OperatorState, SubtaskState
from state_pipelines.metadata.handles import (
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    OperatorStateMode,
    RelativeFileStateHandle,
)
from state_pipelines.operations.key_search import search_keys
from state_pipelines.operations.local_processes import choose_runner, run_tasks
from state_pipelines.operations.models import parse_choice, read_keywords, takes
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
    MovedRecords,
    OperatorChange,
    OperatorTasks,
    RecordMove,
    RecordsPlan,
    RescalePlan,
    Way,
    check_chosen_keys,
    has_keyed_state,
    move_records,
)
from state_pipelines.operations.rescale.rescale_proof import (
    CountKeyed,
    ProofSide,
    check_sources,
    compare_sides,
    count_keyed,
    digest_lists,
    digest_pairs,
    measure_union,
    report_rescaling,
)
from state_pipelines.operations.rescale.rescale_request import (
    MergeRequest,
    OperatorRequest,
    RescaleRequest,
    TakeRequest,
    edit_operators,
    load_request,
)
from state_pipelines.operations.rescale.snapshot_merge import check_operator_headers
from state_pipelines.operations.write.publication import (
    FileMode,
    choose_properties,
    note_files,
    plan_copies,
    replace_keyed_state,
)
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.snapshot.checks import check_database_keys, check_elements
from state_pipelines.snapshot.operator_state import (
    RAW_KEYED_NAME,
    RAW_OPERATOR_NAME,
    Detected,
    OperatorBroadcastState,
    OperatorListState,
    narrow_enumerator,
)
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.snapshot.snapshot_files import check_subtasks, follows_formula
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.snapshot_writer import open_local_scratch, require_free, require_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import KeyedStateHandle, OperatorStateHandle
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.proofs import ProofReport, StateProof
    from state_pipelines.operations.rescale.rescale_request import EditedOperator, OperatorRequest
    from state_pipelines.snapshot import Operator

_LISTED = 8
"""Maximum number of ranges of key groups in a text."""


def tell_label(change: OperatorChange) -> str:
    """Text with the label of an operator, such as `orders`, or `orders → orders-v2` if it gets a new one."""
    return change.label if change.label == change.former else f"{change.former} → {change.label}"


def tell_number(before: int, after: int) -> str:
    """Text with a number, such as `2`, or `2 → 3` if it changes."""
    return str(before) if before == after else f"{before} → {after}"


def tell_moved(moved: MovedKeyGroups, max_parallelism: int, format_bytes: Callable[[int], str]) -> str:
    """Text with the key groups, and if known the bytes, that change subtask.

    For example `42 of 128 key groups change subtask: 43-84`.
    """
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
"""Name of the list state in which `SourceOperator` stores the splits of its reader."""

_WITHOUT_SPLITS = ("hybrid",)
"""Connectors whose enumerator holds splits that are not decoded."""

_ASSIGNED = ("assigned", "tombstoned")
"""Statuses of splits in enumerator state that no longer wait for a reader: they were assigned or removed."""


def count_splits(operator: Operator) -> int | None:
    """Count the splits that a source still has to read, in its readers and its enumerator.

    Return None for operators that are not sources, and if the number is not known.
    """
    found = list(_find_states(operator))
    if not found or any(state.connector in _WITHOUT_SPLITS for state in found):
        return None
    rows = [row for state in found for element in state.rows for row in element]
    return sum(map(_is_left, rows)) or None


def _find_states(operator: Operator) -> Iterator[ConnectorState]:
    """Yield the decoded state of a source's readers, then of its enumerator; nothing for other operators."""
    try:
        states = [each.detected.state for each in operator.operator_states if isinstance(each, OperatorListState)]
    except StateError:
        # Operator state cannot be read, so the number of splits is not known.
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
    """Count the splits that the readers of a source have, also for an unknown connector; None for other operators.

    Each element of the readers' list state is a split (`SourceOperator.SPLITS_STATE_DESC`). Splits that only the
    enumerator has are not counted.
    """
    if operator.metadata.coordinator_state is None:
        return None
    try:
        states = [each for each in operator.operator_states if each.name == READER_STATE]
        return states[0].count().entries if states else None
    except StateError:
        return None


def _is_left(row: Mapping[str, Any]) -> bool:
    """Return whether a row of reader or enumerator state is a split that still has to be read.

    Splits that the enumerator has assigned or removed do not count: an assigned split has a second row, in the state of
    its reader.
    """
    return not (row.get("status") in _ASSIGNED or row.get("processed") or row.get("finished"))


def plan_operator(
    edited: EditedOperator, request: RescaleRequest, target: Location, *, files: FileMode, verify: bool
) -> OperatorTasks:
    """Plan how the state of one operator gets into the new snapshot, and refuse what is impossible.

    Args:
        edited: the operator, and the same operator in merged snapshots.
        request: the request for all operators.
        target: directory of the new snapshot.
        files: copy, link or reference files that stay as they are.
        verify: read new files again.

    Raises:
        UsageError: parallelism and max parallelism contradict each other, or there is no keyed state to choose keys of.
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
            # The job has probably called `forceNonParallel`, which sets this max parallelism. Then the parallelism of
            # the operator can never change.
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
        """Check the request, choose the way of keyed and operator state, and make the tasks."""
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
        """Refuse an operator that had finished in some of the merged snapshots only.

        Nothing says whether the merged operator would have finished.
        """
        finished = [each.snapshot.path for each in self._sources if each.metadata.fully_finished]
        if 0 < len(finished) < len(self._sources):
            raise UnsupportedError(
                f"the operator had finished in {', '.join(finished)} and not in the other merged snapshots",
                hint="Drop it (--drop-operator), and take it from the snapshot whose state counts (--take)",
            )

    def _hand_on(self, assembler: Assembler) -> list[KeyedHandles] | NeedsRecords:
        """Make the keyed-state handles of the new subtasks, or return why records must be moved.

        At most one of the merged snapshots may have keyed state of the operator (see `_why_records`).
        """
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
            raise UsageError("keys to keep or to drop are given, but the operator has no keyed state")
        if not self.dropped:
            return
        known = {state.name for operator in self._sources for state in operator.states}
        for name in sorted(self.dropped - known):
            raise NotFoundError(f"the operator has no state {name}", hint=f"It has {', '.join(sorted(known))}")
        for name in sorted(self.dropped & {RAW_KEYED_NAME, RAW_OPERATOR_NAME}):
            raise UnsupportedError(f"{name} cannot be dropped", hint="Drop the operator, or another of its states")

    def _why_records(self) -> str:
        """Explain why keyed state must be rewritten record by record; empty if it can be reused as bytes."""
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
                    f"subtasks {', '.join(finished)} have finished and others have not, so that it is not known which "
                    "of the new subtasks would be finished",
                    hint="Leave this operator as it is, or take a snapshot before its first subtask finishes",
                )
        self._refuse_large_union()

    def _refuse_large_union(self) -> None:
        union = sum(map(measure_union, self._sources))
        if union * self.parallelism > self.request.union_limit:
            raise UnsupportedError(
                f"the union state of {union:,} bytes would be loaded {self.parallelism} times, once by every subtask, "
                f"when the job is restored; {self.request.union_limit:,} bytes are allowed in total",
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
        """Make the plan: assign the operator state of all merged snapshots, and join it with the keyed state.

        Args:
            assembler: collects the tasks that write files of ranges.
            keyed: for each new subtask its keyed-state handles; None where records are moved.
            records: tasks that move the records of keyed state.
            reason: why they are moved; empty if they are not.
            hashes: see `OperatorChange`.
        """
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
        """Make the operator-state handles of the new subtasks from the state of all merged snapshots.

        Old subtasks have consecutive numbers: those of the second snapshot follow those of the first. A broadcast state
        is taken from the first snapshot that has it: it is the same in all of them (`_check_broadcasts`).
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
        """Refuse operator state that the merged snapshots store with different serializers or modes."""
        if not self.edited.merged:
            return
        opened = [
            operator.snapshot.handles.open_operator(subtask.managed_operator_state)
            for operator in self._sources
            for subtask in operator.metadata.subtasks
        ]
        # A subtask without state may have a handle over an empty file, without a header.
        found = [each for each in opened if each is not None and each.header_end]
        check_operator_headers([each.header for each in found], self.dropped, [each.name for each in found])

    def _check_broadcasts(self) -> None:
        """Refuse broadcast state that differs between merged snapshots: the new snapshot can hold only one of them."""
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
                    hint="Drop the state (drop_states) and let the job broadcast it again, or merge snapshots with "
                    "equal copies",
                )

    def _note_equal_elements(self) -> None:
        """Warn of list and union states with the same elements in several merged snapshots: they may be copies."""
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
        """Return whether operator state moves to other subtasks, or some of it is dropped."""
        return bool(self.parallelism != self.metadata.parallelism or self.edited.merged or self.dropped)

    def _find_moved(self, state: OperatorState) -> MovedKeyGroups | None:
        if state.max_parallelism != self.metadata.max_parallelism or state.fully_finished:
            return None
        return find_moved_key_groups(self.operator, state.parallelism)

    def _check_splits(self) -> None:
        """Refuse a parallelism of a source above its number of splits; only warn if not requested for this operator."""
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
        """Warn if a source of an unknown connector gets more subtasks than its readers have splits."""
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


@dataclass(frozen=True)
class RescaleResult:
    """Result of a rescaling.

    Attributes:
        path: path of the new snapshot.
        plan: the plan.
        files_written: number of new files with moved records or copied ranges.
        files_taken: number of old files that were copied, linked or referenced.
        bytes: bytes written or copied.
        notes: remarks for the user.
        states: comparison of every state in the old and the new snapshot; empty if no proof was requested.
        proof: checks of the proof; None if no proof was requested.
        seconds: wall time.
    """

    path: str
    plan: RescalePlan
    files_written: int
    files_taken: int
    bytes: int
    notes: tuple[str, ...]
    states: tuple[StateProof, ...]
    proof: ProofReport | None
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as values for `json.dumps`."""
        return self.plan.to_json() | {
            "path": self.path,
            "files_written": self.files_written,
            "files_taken": self.files_taken,
            "bytes": self.bytes,
            "proven": self.proof is not None,
            "proof": None if self.proof is None else self.proof.to_json(),
            "states": [
                {
                    "operator": row.operator,
                    "state": row.state,
                    "entries": row.after.records,
                    "bytes": row.after.bytes,
                    "digest": f"{row.after.content:016x}",
                }
                for row in self.states
            ],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def plan_rescale(
    snapshot: Snapshot,
    target: Location,
    request: RescaleRequest,
    *,
    open_other: Callable[[str], Snapshot] = open_snapshot,
    files: FileMode = FileMode.COPY,
    verify: bool = False,
) -> RescalePlan:
    """Plan a rescaling, and refuse what is impossible; nothing is written.

    Args:
        snapshot: the old snapshot.
        target: directory of the new snapshot.
        request: the changes.
        open_other: opens other snapshots, from which the request takes operators or which it merges.
        files: copy, link or reference files that stay as they are.
        verify: read every new file again and compare; not needed with the proof of `run_rescale`, which checks more.

    Raises:
        UsageError: the request is empty, its numbers contradict each other, or the target is inside of a snapshot.
        NotFoundError: an operator, a state or a snapshot does not exist.
        TargetExistsError: there is something at the target.
        UnsupportedError: the hash of a class in the keys is not known, union state would be too large for every
            subtask to get all of it, data are in flight, or state has a format that cannot be moved.
        StateError: state cannot be read.
    """
    if request.is_empty:
        raise UsageError(
            "the request changes nothing", hint="Give a parallelism, a max parallelism, or changes of operators"
        )
    require_free(target)
    paths = dict.fromkeys([*(each.snapshot for each in request.take.values()), *request.merge.snapshots])
    others = {path: open_other(path) for path in paths}
    for each in (snapshot, *others.values()):
        require_outside(target, each.location.directory)
    edited = edit_operators(snapshot, request, others)
    plans = tuple(plan_operator(operator, request, target, files=files, verify=verify) for operator in edited.operators)
    check_sources(edited)
    notes = [*edited.notes, *(note for plan in plans for note in plan.notes)]
    notes += _note_conflicts(plans)
    notes += _note_max_parallelism(plans)
    if (noted := note_files(files)) is not None:
        notes.append(noted)
    plan = RescalePlan(edited, request, target, plans, files, verify, tuple(notes))
    if files is FileMode.LINK:
        # Only for its errors: `plan_copies` refuses files that cannot be linked. Its result is not used here.
        metadata = _make_metadata(plan, [MovedRecords([], []) for _ in plans])
        plan_copies(edited.snapshot, metadata, target, files=files)
    return plan


def _note_conflicts(plans: Sequence[OperatorTasks]) -> list[str]:
    """Warn of operators with the same parallelism and different max parallelism: if chained, they lose state.

    Flink does not report that loss.
    """
    found: dict[int, dict[int, list[str]]] = {}
    for change in (plan.change for plan in plans if plan.change.keyed is not Way.NONE):
        found.setdefault(change.parallelism[1], {}).setdefault(change.max_parallelism[1], []).append(change.label)
    return [
        "operators of parallelism "
        f"{parallelism} have keyed state with different max parallelism: "
        + "; ".join(f"{number} has {', '.join(labels)}" for number, labels in numbers.items())
        + "; if any of these are chained, Flink loses state without an error"
        for parallelism, numbers in found.items()
        if len(numbers) > 1
    ]


def _note_max_parallelism(plans: Sequence[OperatorTasks]) -> list[str]:
    """Remind the user that the job must set the new max parallelism itself."""
    changed: dict[int, list[str]] = {}
    for plan in plans:
        before, after = plan.change.max_parallelism
        merged = (each.max_parallelism for each in plan.edited.merged)
        if {before, *merged} != {after} and plan.change.keyed is not Way.NONE:
            changed.setdefault(after, []).append(plan.change.label)
    return [
        f"the job must set the same max parallelism, {number} for {', '.join(labels)}, or none at all "
        "(setMaxParallelism of the operator, pipeline.max-parallelism); Flink refuses keyed state with another one"
        for number, labels in changed.items()
    ]


def run_rescale(
    plan: RescalePlan,
    run: Runner | None = None,
    *,
    prove: bool = True,
    scratch: str | None = None,
    is_shared: bool = False,
) -> RescaleResult:
    """Execute a plan: write, prove and publish the new snapshot.

    Args:
        plan: from `plan_rescale`.
        run: runs the tasks; default one after the other in this process.
        prove: read the old and the new snapshot and compare them before the new one is published.
        scratch: directory (path or URL) of temporary files; see `ScratchDirectory` for the default.
        is_shared: `run` uses other machines, which must reach the temporary files.

    Raises:
        ProofError: something was lost, doubled, changed or misplaced; nothing is left at the target.
        IncompatibleError: merged snapshots have the same key, and the request does not say which one counts.
        TargetExistsError: there is something at the target.
        StateError: the old state cannot be read, or the new one not be written.
    """
    started = time.monotonic()
    with SnapshotTransaction(plan.target, run, scratch=scratch, is_shared=is_shared) as transaction:
        run = transaction.run
        assemblies = [task for each in plan.operators for task in each.assemblies]
        size = sum(run(assemblies, "files cannot be put together"))
        moved = move_records(plan, transaction.target, transaction.scratch, run, digests=prove)
        transaction.clear()
        size += sum(file.size for each in moved for _, file in each.files)
        metadata = _make_metadata(plan, moved)
        result = transaction.stage(
            metadata, plan.edited.snapshot, choose_properties(metadata), files=plan.files, verify=plan.verify
        )
        check_chosen_keys(plan, moved)
        if prove:
            _require_gone(plan, result, run)
        states, proof = _prove(plan, moved, result, run) if prove else ((), None)
        failures = [failure for each in states for failure in each.failures]
        transaction.commit(proof, differences=failures, hint="Please report this")
    return RescaleResult(
        path=str(plan.target),
        plan=plan,
        files_written=len(assemblies) + sum(len(each.files) for each in moved),
        files_taken=transaction.copied,
        bytes=size + transaction.copied_bytes,
        notes=plan.notes,
        states=states,
        proof=proof,
        seconds=time.monotonic() - started,
    )


def rehearse(plan: RescalePlan, run: Runner | None = None) -> None:
    """Find the errors that `run_rescale` would find only when it reads records; no file remains.

    Old records are read if their keys must be hashed, if the request chooses keys or merges snapshots, and if only the
    values of records say where they end. Operators with chosen keys or merged snapshots are written to a temporary
    directory.

    Args:
        plan: from `plan_rescale`.
        run: as for `run_rescale`.

    Raises:
        StateError: `run_rescale` would refuse the records.
    """
    run = run or run_tasks
    counts = [task for each in plan.operators for task in _plan_rehearsal(each)]
    for task, counted in zip(counts, run(counts, "the old records cannot be read"), strict=True):
        if counted.unread or sum(counted.misfiled.values()):
            raise UnsupportedError(
                counted.unread or "keys are stored in other key groups than their hash gives",
                where=Where(file=task.file.name, operator=task.operator),
                hint="" if counted.unread else "Give the hash with --key-hash OPERATOR:CLASS=EXPRESSION",
            )
    operators = [each.change.label for each in plan.operators if each.edited.request.keys or each.edited.merged]
    if not operators:
        return
    with open_local_scratch() as directory:
        target = resolve(str(directory))
        plans = tuple(
            plan_operator(each.edited, plan.request, target, files=plan.files, verify=False)
            for each in plan.operators
            if each.change.label in operators
        )
        chosen = replace(plan, operators=plans, verify=False)
        check_chosen_keys(chosen, move_records(chosen, target, target, run))


def _plan_rehearsal(plan: OperatorTasks) -> Iterator[CountKeyed]:
    if plan.records is None:
        return
    for operator in (plan.edited.operator, *plan.edited.merged):
        for file in operator.files.open_stored():
            if plan.records.hasher is not None or file.needs_layouts:
                yield from count_keyed(operator, file, plan.records.hasher)


class RescaleKeywords(TypedDict, total=False):
    """Keyword arguments of `rescale` with their types; they are the fields of `RescaleRequest`."""

    parallelism: int | None
    max_parallelism: int | None
    operators: Mapping[str, OperatorRequest | Mapping[str, object]]
    take: Mapping[str, TakeRequest | Mapping[str, object]]
    merge: MergeRequest | Mapping[str, object]
    union_limit: int
    allow_idle_sources: bool


@takes(RescaleRequest)
def rescale(
    snapshot: Snapshot | str,
    target: str,
    request: RescaleRequest | str | None = None,
    *,
    open_other: Callable[[str], Snapshot] = open_snapshot,
    files: FileMode | str = FileMode.COPY,
    prove: bool = True,
    processes: int = 1,
    run: Runner | None = None,
    scratch: str | None = None,
    **keywords: Unpack[RescaleKeywords],
) -> RescaleResult:
    """Write a new snapshot with the same state for other subtasks, key groups or operators.

    Args:
        snapshot: the old snapshot, or its path; it is not changed.
        target: directory of the new snapshot, which must not exist.
        request: a request, or the path of its YAML file; keywords replace fields of it.
        open_other: opens the other snapshots that the request names.
        files: `copy`, `link` or `reference` files that are not rewritten.
        prove: read the old and the new snapshot and compare them before the result is published.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        run: runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.
        scratch: directory (path or URL) of temporary files; by default the parent of a local target, and the directory
            for temporary files of this machine for other targets.
        keywords: fields of `RescaleRequest`.

    Raises:
        UsageError: nothing is requested, or the numbers contradict each other.
        UnsupportedError: it cannot be done, for instance because the hash of a key class is not known.
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: the target exists.
        StateError: the snapshot cannot be read.
    """
    wanted = load_request(request) if isinstance(request, str) else request or RescaleRequest()
    given = read_keywords(RescaleRequest, keywords, "the rescaling", directory=Path())
    wanted = wanted.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})
    location, mode = resolve(target), parse_choice(FileMode, files, "choice for files")
    plan = plan_rescale(ensure_open(snapshot), location, wanted, open_other=open_other, files=mode, verify=not prove)
    with choose_runner(run, processes) as runner:
        return run_rescale(plan, runner, prove=prove, scratch=scratch)


def _make_metadata(plan: RescalePlan, moved: Sequence[MovedRecords]) -> CheckpointMetadata:
    """Make the metadata of the new snapshot. Its handles name the new files, and other files by their old names.

    Args:
        plan: the plan.
        moved: results of `move_records`, whose files hold the moved keyed state.
    """
    metadata = replace(plan.edited.snapshot.metadata, operator_states=tuple(each.state for each in plan.operators))
    for each, own in zip(plan.operators, moved, strict=True):
        handles = {
            file.subtask: KeyGroupsSavepointStateHandle(
                task.key_groups, file.offsets, RelativeFileStateHandle(task.target.name, file.size)
            )
            for task, file in own.files
        }
        metadata = replace_keyed_state(metadata, each.state.operator_id, handles)
    return metadata


def _require_gone(plan: RescalePlan, result: Snapshot, run: Runner) -> None:
    """Search the new snapshot for keys that the request removes.

    Raises:
        ProofError: such a key was found, or some state cannot be searched.
    """
    for each in plan.operators:
        choice = each.edited.request.keys
        if choice is None or choice.keep:
            continue
        after = _find_written(each, result)
        search = search_keys(result, choice.keys, [after], run)
        if left := [found.state for found in search.found] or [reason for _, reason in search.unsearched]:
            raise ProofError(
                f"keys that the request drops may still be in the new snapshot: {', '.join(dict.fromkeys(left))}",
                where=Where(operator=each.change.label),
                hint="Nothing was published; please report this",
            )


def _find_written(plan: OperatorTasks, result: Snapshot) -> Operator:
    """Find the operator of a plan in the new snapshot.

    Raises:
        ProofError: it is not there.
    """
    found = [each for each in result.operators if each.metadata.operator_id == plan.state.operator_id]
    if not found:
        raise ProofError(
            "the operator is not in the new snapshot; nothing was published",
            where=Where(operator=plan.change.label),
            hint="Please report this",
        )
    return found[0]


def _find_read(plan: OperatorTasks, own: MovedRecords) -> Mapping[str, RecordDigest] | None:
    """Return the digests of all keyed state of the old operator that were computed while its records were moved.

    Return None if the digests do not cover all of the state, so that the proof must read it again.
    """
    edited = plan.edited
    if not own.found or edited.merged or plan.dropped or edited.request.keys is not None:
        return None
    read = [file.key_groups for _, file in edited.operator.keyed_files]
    # If subtasks share a RocksDB database, a task reads only the key groups of one subtask. The digests may then lack
    # records that the database stores outside of these key groups.
    return own.found if read == [file.key_groups for file in edited.operator.files.open_stored()] else None


def _prove(
    plan: RescalePlan, moved: Sequence[MovedRecords], result: Snapshot, run: Runner
) -> tuple[tuple[StateProof, ...], ProofReport]:
    started = time.monotonic()
    sides = []
    for each, own in zip(plan.operators, moved, strict=True):
        sides.append(
            ProofSide(
                before=(each.edited.operator, *each.edited.merged),
                after=_find_written(each, result),
                planned=each.state,
                dropped=each.dropped,
                removed=sum_digests(own.dropped),
                hasher=None if each.records is None else each.records.hasher,
                moved=each.records is not None,
                found=_find_read(each, own),
            )
        )
    states = compare_sides(sides, run)
    return states, report_rescaling(states, sides, run, time.monotonic() - started)
