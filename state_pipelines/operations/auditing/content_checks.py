"""Audit of the content of files: headers, sections, tables, change sets and records."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, StateError, Where, at
from state_pipelines.keyed.changelog.changes import open_change_log
from state_pipelines.keyed.changelog.reader import ChangelogFile
from state_pipelines.keyed.digests import hash_keys
from state_pipelines.keyed.hashing.value_hashes import KeyHasher
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, KeyGroupRange
from state_pipelines.operations.auditing.file_checks import THREADS
from state_pipelines.operations.auditing.report import Depth, Finding, Property, Severity, from_error
from state_pipelines.rocksdb.scans import verify_table
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.checks import check_database_keys
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.storage.locations import Threads, is_local
from state_pipelines.storage.reading import count_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.keyed.state_table import KeyedTable
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.scans import TableCache
    from state_pipelines.snapshot import Operator, Snapshot, State
    from state_pipelines.snapshot.snapshot_files import OperatorFiles

Hashes = npt.NDArray[np.uint64]

MOST_KEYS = 1 << 24
"""Most keys of a key group that are compared; in a larger key group, only the first ones are."""


@dataclass
class RepeatedKeys:
    """Looks for keys that occur twice in a key group; it gets the records of a file in the order of the file.

    Attributes:
        file: the file, which is read again to compare keys with the same hash.
    """

    file: KeyedFile
    _last: dict[int, tuple[int, Hashes]] = field(default_factory=dict)

    def check(self, state_id: int, records: KeyedRecords) -> None:
        """Compare the keys of the next records of a state with each other and with earlier keys of their key group.

        A key here consists of the stored bytes of the key, its namespace and, in a map, the map key.

        Raises:
            FormatError: a key occurs twice in a key group.
            StateError: the file cannot be read again, to compare keys of the same hash.
        """
        if not len(records):
            return
        hashes = hash_keys(records.key_groups, records.data.ctypes.data, records.key_starts, records.key_ends)
        last = int(records.key_groups[-1])
        before, known = self._last.get(state_id, (-1, np.empty(0, np.uint64)))
        ordered = np.sort(hashes)
        same = ordered[1:][ordered[1:] == ordered[:-1]]
        if before == int(records.key_groups[0]) and len(known):
            positions = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
            same = np.concatenate([same, ordered[known[positions] == ordered]])
        for wanted in np.unique(same):
            group = int(records.key_groups[np.flatnonzero(hashes == wanted)[0]])
            self._compare(state_id, group, wanted)
        own = np.sort(hashes[records.key_groups == last])
        if last == before and len(known) + len(own) <= MOST_KEYS:
            own = np.sort(np.concatenate([known, own]), kind="stable")
        elif last == before:
            own = known
        self._last[state_id] = last, own

    def _compare(self, state_id: int, key_group: int, wanted: np.uint64) -> None:
        """Read a key group again, and compare the keys that have the hash `wanted` byte by byte."""
        found: set[bytes] = set()
        for _, records in self.file.scan([state_id], KeyGroupRange(key_group, 1)):
            hashes = hash_keys(records.key_groups, records.data.ctypes.data, records.key_starts, records.key_ends)
            for row in np.flatnonzero(hashes == wanted):
                start, end = int(records.key_starts[row]), int(records.key_ends[row])
                key = records.data[start:end].tobytes()
                if key in found:
                    raise FormatError(
                        f"key group {key_group} holds one key twice",
                        where=Where(file=records.file, offset=records.offset + start),
                        hint="The file was changed or written by a faulty tool. Of the two entries Flink would keep "
                        "the one that it reads last",
                    )
                found.add(key)


_SMALL_FILE = 256 << 10
"""Size in bytes up to which a file is read completely in a sample."""

_WINDOW = 16 << 20
"""Bytes of logged changes that are held in memory at a time."""

_MOST_FAILURES = 8
"""Number of findings on key groups of a file after which no further key groups are read."""


@dataclass
class ReadAmounts:
    """Numbers of what was read.

    Attributes:
        tables: number of RocksDB tables.
        sections: number of key-group sections.
        records: number of records.
    """

    tables: int = 0
    sections: int = 0
    records: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, *, tables: int = 0, sections: int = 0, records: int = 0) -> None:
        """Add numbers; several threads may call it at the same time."""
        with self._lock:
            self.tables += tables
            self.sections += sections
            self.records += records


@dataclass(frozen=True)
class _Subject:
    """Operator, state and file that a task of the audit reads, and the property it checks, for its findings."""

    property: Property
    operator: str
    subtask: int | None = None
    state: str | None = None
    file: str | None = None

    def fail(self, error: StateError) -> Finding:
        return from_error(
            error,
            self.property,
            operator=self.operator,
            subtask=self.subtask,
            state=self.state,
            file=self.file,
        )


Task = tuple[_Subject, "Callable[[], Iterable[Finding]]"]
"""A task of the audit: its subject, and a function that returns findings; tasks may run concurrently."""


def audit_contents(snapshot: Snapshot, depth: Depth, findings: Findings) -> ReadAmounts:
    """Read the files of a snapshot, a sample of their contents or all of it.

    An error in one file, section or state does not hide errors in others. Files that `findings` already report as
    missing or of a wrong size are not reported again.

    Args:
        snapshot: the snapshot.
        depth: `SAMPLE` or `WHOLE`.
        findings: findings so far; those on contents are added.
    """
    amounts = ReadAmounts()
    known = {
        each.file
        for each in findings
        if each.property in (Property.FILES, Property.SIZES) and each.severity is not Severity.WARNING
    }
    whole = depth is Depth.WHOLE
    tasks: list[Task] = []
    for operator in snapshot.operators:
        tasks += _plan_operator(operator, amounts, findings, known, whole=whole)
    with Threads(_count_threads(snapshot, tasks, whole=whole)) as pool:
        for found in pool.map(_run, tasks):
            for finding in found:
                if finding.file is None or finding.file not in known:
                    findings.add(finding)
    return amounts


def _count_threads(snapshot: Snapshot, tasks: Sequence[Task], *, whole: bool) -> int:
    """Return the number of concurrent tasks: one per core for local files, usually more if a storage has latency."""
    cores = os.cpu_count() or 1
    if is_local(snapshot.location.directory):
        return cores
    return max(cores if whole else THREADS, count_together(snapshot.file_size // max(1, len(tasks))))


def _run(task: Task) -> list[Finding]:
    subject, work = task
    try:
        return list(work())
    except StateError as error:
        return [subject.fail(error)]


def _plan_operator(
    operator: Operator, amounts: ReadAmounts, findings: Findings, known: set[str | None], *, whole: bool
) -> Iterator[Task]:
    survey = operator.survey(in_flight=True)
    for failure in survey.failures:
        # Leave out what others report: missing or overlapping key groups, which are damage without a subtask
        # (`audit_structure`), and errors of files that are known to be missing or of a wrong size.
        if (failure.subtask is not None or not failure.is_damage) and failure.error.where.file not in known - {None}:
            findings.add(from_error(failure.error, Property.RECORDS, operator=operator.label, subtask=failure.subtask))
    mixed = _compare_raw_state(operator)
    if mixed is not None:
        findings.add(mixed)
    keyed = [state for state in survey.states if isinstance(state, KeyedState)]
    for state in survey.states:
        if not isinstance(state, KeyedState):
            yield (
                _Subject(Property.RECORDS, operator.label, state=state.label),
                lambda state=state: _read_other(state, amounts, whole=whole),  # type: ignore[misc]
            )
    tables = {}
    for state in keyed:
        try:
            tables[state.name] = state.make_table()
        except StateError as error:
            findings.add(from_error(error, Property.RECORDS, operator=operator.label, state=state.label))
            continue
        if tables[state.name].undecoded:
            findings.add(_note_undecoded(operator, state, tables[state.name].undecoded))
    if not survey.failures:
        yield _Subject(Property.KEY_GROUPS, operator.label), partial(_check_databases, operator)
    for subtask_state in operator.metadata.subtasks:
        handle = subtask_state.managed_keyed_state
        if isinstance(handle, ChangelogStateBackendHandle):
            yield (
                _Subject(Property.RECORDS, operator.label, subtask_state.index),
                lambda handle=handle: _read_changes(operator, handle),  # type: ignore[misc]
            )
    for file, subtask, states in _group_by_file(keyed):
        subject = _Subject(Property.RECORDS, operator.label, subtask, file=file.name)
        reader = _FileReader(operator, subject, file, states, tables, amounts)
        yield subject, reader.read_whole if whole else reader.read_sample
        for table, kept in file.table_files():
            yield (
                _Subject(Property.TABLES, operator.label, subtask, file=table.stream.name),
                partial(_verify_table, table, kept, amounts, whole=whole),
            )


def _note_undecoded(operator: OperatorFiles, state: State, reason: str) -> Finding:
    return Finding(
        Severity.NOTE,
        Property.RECORDS,
        f"values were read as bytes, not decoded: {reason}",
        operator=operator.label,
        state=state.label,
    )


def _group_by_file(states: Sequence[KeyedState]) -> list[tuple[KeyedFile, int, dict[int, KeyedState]]]:
    """Return each file with its subtask, and the states in it by state id."""
    found: dict[int, tuple[KeyedFile, int, dict[int, KeyedState]]] = {}
    for state in states:
        for subtask_state in state.subtask_states:
            _, _, known = found.setdefault(id(subtask_state.file), (subtask_state.file, subtask_state.subtask, {}))
            known[subtask_state.state_id] = state
    return list(found.values())


def _verify_table(table: TableFile, kept: TableCache, amounts: ReadAmounts, *, whole: bool) -> Iterable[Finding]:
    verify_table(table, kept, whole=whole)
    amounts.add(tables=1)
    return ()


def _compare_raw_state(operator: Operator) -> Finding | None:
    """Return a finding if the raw keyed state of some subtasks is timers, and that of others is not; else None."""
    timers = [index for index, file in operator.files.survey()[0] if file.holds_raw_timers]
    others = [index for index, unread in operator.files.survey_unread().items() if not unread.is_timers]
    if not timers or not others:
        return None
    return Finding(
        Severity.ERROR,
        Property.RECORDS,
        f"the raw keyed state of subtask {timers[0]} is timers, and that of subtask {others[0]} is not",
        operator=operator.label,
        subtask=others[0],
        hint="The file or its offsets in `_metadata` were changed; use an earlier snapshot",
    )


def _check_databases(operator: Operator) -> Iterable[Finding]:
    check_database_keys(operator)
    return ()


def _read_changes(operator: Operator, handle: ChangelogStateBackendHandle) -> Iterable[Finding]:
    """Read the logged changes of a subtask without decoding them, to find damage even if their types are unknown."""
    handles = operator.snapshot.handles
    log = open_change_log(handle.non_materialized, handle.key_groups, handles.open_stream, handles.change_files)
    log.metadata()
    for window in log.windows(handle.key_groups, _WINDOW):
        log.read(window)
    return ()


def _read_other(state: State, amounts: ReadAmounts, *, whole: bool) -> Iterator[Finding]:
    """Read operator state, raw state or in-flight data.

    A sample is the first batch; of operator state, it is the state of some subtasks (see `_read_elements`).
    """
    if state.undecoded:
        yield _note_undecoded(state.operator, state, state.undecoded)
    if isinstance(state, NonKeyedState):
        yield from _read_elements(state, amounts, whole=whole)
        return
    for batch in state.batches():
        amounts.add(records=batch.num_rows)
        if not whole:
            return


def _read_elements(state: NonKeyedState, amounts: ReadAmounts, *, whole: bool) -> Iterator[Finding]:
    """Check the offsets of all subtasks and decode elements; in a sample, those of the first one and of small files."""
    table = state.make_table()
    for index, subtask_state in enumerate(state.subtask_states):
        subject = _Subject(Property.RECORDS, state.operator.label, subtask_state.subtask, state.label)
        try:
            subtask_state.unread.check()
            if whole or index == 0 or subtask_state.unread.stream.size <= _SMALL_FILE:
                for batch in table.batches([subtask_state]):
                    amounts.add(records=batch.num_rows)
        except StateError as error:
            yield subject.fail(error)


@dataclass(frozen=True)
class _FileReader:
    """Reads the keyed state of one file.

    Attributes:
        operator: the operator.
        subject: operator, subtask and file, for findings.
        file: the file.
        states: the states in the file by state id.
        tables: tables that decode the records of each state, by name of the state.
        amounts: numbers of what was read; they are increased.
    """

    operator: Operator
    subject: _Subject
    file: KeyedFile
    states: dict[int, KeyedState]
    tables: dict[str, KeyedTable]
    amounts: ReadAmounts

    def read_sample(self) -> Iterator[Finding]:
        """Read a sample: the first and the last section of a file, or all of a small file.

        Of a database, read the first batch of each state; with a changelog, also the first and the last key group.
        """
        if sections := self.file.stored_sections():
            if sections[-1].end <= _SMALL_FILE:
                yield from self.read_whole()
            else:
                yield from self._read_sections(dict.fromkeys((sections[0].key_group, sections[-1].key_group)))
        elif isinstance(self.file, ChangelogFile):
            # Opening the file has checked only the headers of all change sets; reading a key group replays its changes.
            groups = self.file.key_groups
            for group in sorted({groups.start, groups.end}) if groups.number else ():
                yield from self._read(KeyGroupRange(group, 1))
            yield from self._find_first_records()
        else:
            yield from self._find_first_records()

    def read_whole(self) -> Iterator[Finding]:
        """Read all records; if that fails, read them again one key group at a time, to find damage in several of them.

        Reading stops after `_MOST_FAILURES` findings.
        """
        self.amounts.add(sections=len(self.file.stored_sections()))
        found = list(self._read(None))
        if not any(each.severity is Severity.ERROR for each in found):
            yield from found
            return
        count = 0
        for group in self.file.key_groups:
            for each in self._read(KeyGroupRange(group, 1), counted=False):
                count += 1
                yield each
            if count >= _MOST_FAILURES:
                return
        if not count:
            yield from found

    def _read_sections(self, groups: Iterable[int]) -> Iterator[Finding]:
        for group in groups:
            self.amounts.add(sections=1)
            yield from self._read(KeyGroupRange(group, 1))

    def _find_first_records(self) -> Iterator[Finding]:
        for state_id in self.states:
            yield from self._read(None, [state_id], first=True)

    def _read(
        self,
        key_groups: KeyGroupRange | None,
        state_ids: Sequence[int] | None = None,
        *,
        first: bool = False,
        counted: bool = True,
    ) -> Iterator[Finding]:
        """Decode records, and check their keys; after an error in one state, go on with the other states.

        With `first`, only the first batch is read; with `counted`, records are added to `amounts`.
        """
        chosen = list(self.states if state_ids is None else state_ids)
        # RocksDB has each key once, so only files with sections can have a key twice.
        repeated = RepeatedKeys(self.file) if self.file.stored_sections() else None
        failed: set[int] = set()
        try:
            with at(state=self.states[chosen[0]].label if len(chosen) == 1 else None):
                for state_id, records in self.file.scan(chosen, key_groups):
                    if counted:
                        self.amounts.add(records=len(records))
                    state = self.states[state_id]
                    if state_id not in failed and state.name in self.tables:
                        try:
                            with at(state=state.label):
                                self.tables[state.name].make_batch(records, self.subject.subtask or 0)
                                self._check_keys(state_id, records, repeated)
                        except StateError as error:
                            failed.add(state_id)
                            yield self.subject.fail(error)
                    if first:
                        return
        except StateError as error:
            yield self.subject.fail(error)

    def _check_keys(self, state_id: int, records: KeyedRecords, repeated: RepeatedKeys | None) -> None:
        """Check that keys are unique, and in the key groups that follow from their hashes.

        The key groups of keys with an unknown hash, such as objects of user classes, are not checked.
        """
        # Leave out records without a key: if the ends of entries cannot be found, the reader returns all of them as one
        # such record.
        has_key = records.key_ends > records.key_starts
        if not has_key.all():
            records = records.select(np.flatnonzero(has_key))
        if repeated is not None:
            repeated.check(state_id, records)
        state = self.states[state_id]
        hasher = KeyHasher(self.file.header.key_serializer, self.operator.snapshot.layout_context)
        if not hasher.has_kernel:
            return
        skip = TIMESTAMP if state.kind is StateKind.TIMER else 0
        expected = hasher.assign_keys(records, self.operator.max_parallelism, skip=skip)
        wrong = np.flatnonzero(expected != records.key_groups)
        if len(wrong):
            row = int(wrong[0])
            raise FormatError(
                f"{len(wrong):,} of {len(records):,} keys are in key groups where the job does not find them: the "
                f"first one is in key group {records.key_groups[row]}, and its hash gives {expected[row]}",
                where=Where(file=records.file, offset=records.offset + int(records.key_starts[row])),
                hint="The file, or its offsets in `_metadata`, were changed or written by a faulty tool",
            )
