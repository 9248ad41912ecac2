"""`inspect`: the contents of a snapshot. Only splits and committables of connectors are decoded."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.connectors import AmbiguousState, ConnectorState, read_coordinator
from state_pipelines.connectors.registry import LIST_INDEX, ConnectorStateKind
from state_pipelines.errors import OutOfReachError, SnapshotGoneError, StateError, at
from state_pipelines.keyed.changelog.changes import is_compressed
from state_pipelines.keyed.changelog.reader import ChangelogFile
from state_pipelines.keyed.keyed_file import FileFormat
from state_pipelines.metadata import StreamReference, list_references
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import ChannelSummary, read_whole_stream, summarise_in_flight
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState, count_states, hold_states
from state_pipelines.snapshot.operator_state import (
    BytesState,
    OperatorBroadcastState,
    OperatorListState,
    RawKeyedState,
    narrow_enumerator,
)
from state_pipelines.snapshot.snapshot import ensure_open, is_damage, is_undetermined, is_unreadable
from state_pipelines.snapshot.snapshot_files import has_rows
from state_pipelines.storage.reading import count_scans_ahead, do_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.snapshot import Operator, Snapshot, State
    from state_pipelines.snapshot.handle_readers import HandleReader, StateStatistics
    from state_pipelines.snapshot.operator_state import Detected
    from state_pipelines.sql.node_states import PlannedOperator

ROW_LIMIT = 1000
"""Maximum number of rows of connector state in a report; tables of the state have all rows."""


@dataclass(frozen=True)
class ConnectorReport:
    """State of a connector.

    Attributes:
        connector: name of the connector, such as `kafka`; None if several connectors could have written the state.
        kind: kind of the state; None if `connector` is None, except for enumerators.
        summary: summary in words, such as `2 splits` or `3 committables pending for checkpoint 7`.
        candidates: the connectors that could have written the state, if there are several.
        rows: number of splits or committables.
        columns: names of the columns of a row.
        first_rows: the first `ROW_LIMIT` rows, ready for JSON.
    """

    connector: str | None
    kind: ConnectorStateKind | None
    summary: str
    candidates: list[str] = field(default_factory=list)
    rows: int = 0
    columns: list[str] = field(default_factory=list)
    first_rows: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class CoordinatorReport:
    """State of an operator coordinator.

    Attributes:
        bytes: size of the state.
        version: version of the source coordinator; None if the state is not that of a source coordinator.
        enumerator_version: version of the serializer of the split enumerator; None as for `version`.
        enumerator_bytes: size of the state of the enumerator; None as for `version`.
        connector: state of the enumerator, if it belongs to a known connector, or to one of several.
    """

    bytes: int
    version: int | None = None
    enumerator_version: int | None = None
    enumerator_bytes: int | None = None
    connector: ConnectorReport | None = None


def report_connector(detected: Detected) -> ConnectorReport | None:
    """Return the report on a list state; None if no known connector wrote it."""
    if detected.state is not None:
        return _report_state(detected.state)
    if detected.candidates:
        return ConnectorReport(None, None, detected.ambiguity, list(detected.candidates))
    return None


def report_coordinator(data: bytes, chosen: str | None = None, splits: Iterable[Detected] = ()) -> CoordinatorReport:
    """Make the report on coordinator state.

    Several connectors may fit the state of an enumerator.

    Args:
        data: stored bytes of the state.
        chosen: connector that the user has declared; it decides if it fits.
        splits: connectors of the operator's list states, which narrow the choice otherwise.
    """
    state = read_coordinator(data)
    if state.enumerator is None:
        return CoordinatorReport(state.size)
    connector = None
    match state.state:
        case ConnectorState() as known:
            connector = _report_state(known)
        case AmbiguousState() as open_question:
            names = list(narrow_enumerator(open_question.connectors, splits))
            names = [chosen] if chosen in open_question.connectors else names
            named = [each for each in open_question.candidates if each.connector in names]
            if len(named) == 1:
                connector = _report_state(named[0])
            elif named:
                connector = ConnectorReport(
                    None, ConnectorStateKind.ENUMERATOR, f"could be that of {' or '.join(names)}", names
                )
    return CoordinatorReport(state.size, state.version, state.enumerator.version, len(state.enumerator.data), connector)


def _report_state(state: ConnectorState) -> ConnectorReport:
    first: list[dict[str, object]] = []
    for element in state.rows:
        first += [dict(row) for row in element[: ROW_LIMIT - len(first)]]
        if len(first) >= ROW_LIMIT:
            break
    number = sum(map(len, state.rows))
    columns = pa.schema([each for each in state.columns if each.name != LIST_INDEX.name])
    shown = list(to_rows(pa.RecordBatch.from_pylist(first, schema=columns)))
    return ConnectorReport(state.connector, state.kind, _summarise(state, number), [], number, columns.names, shown)


def _summarise(state: ConnectorState, number: int) -> str:
    if state.kind is ConnectorStateKind.COMMITTER:
        waiting = Counter(row.get("checkpoint_id") for element in state.rows for row in element)
        positions = [
            f"{count:,} for checkpoint {checkpoint}" if checkpoint is not None else f"{count:,} of no known checkpoint"
            for checkpoint, count in sorted(waiting.items(), key=lambda each: (each[0] is None, each[0] or 0))
        ]
        text = f"{number:,} committable{'' if number == 1 else 's'} pending"
        return f"{text}: {', '.join(positions)}" if positions else text
    plural = "" if number == 1 else "s"
    if state.kind is ConnectorStateKind.WRITER:
        text = f"{number:,} {'entry' if number == 1 else 'entries'} of writers"
    elif state.kind is ConnectorStateKind.TRANSACTIONAL_IDS:
        text = f"{number:,} hint{plural} of transactional ids"
    else:
        text = f"{number:,} split{plural}{' known' if state.kind is ConnectorStateKind.ENUMERATOR else ''}"
    topics = sorted({str(row["topic"]) for element in state.rows for row in element if row.get("topic") is not None})
    if not topics:
        return text
    return f"{text} of {topics[0] if len(topics) == 1 else f'{len(topics):,} topics'}"


FORST = "ForSt"

_COMPRESSION = re.compile(r"compression=k(\w+?)(?:Compression)?")
# ForSt writes the same options file as RocksDB, but the option for its log directory names a directory `op_…` with this
# end (`ForStKeyedStateBackendBuilder`).
_LOG_DIRECTORY = "db_log_dir="
_FORST_DIRECTORY_END = re.compile(r"__\d+_\d+__attempt_\d+/db$")


@dataclass(frozen=True)
class KeyedFormatReport:
    """Keyed state of an operator in one format.

    Attributes:
        format: `canonical`, `heap native`, `RocksDB native` (all files belong to this snapshot), `RocksDB incremental`
            (other checkpoints may share files), the latter two also with `ForSt`; or `changelog` with the formats of
            the materialized state, such as `changelog over heap native`.
        subtasks: indices of the subtasks with state in this format.
        compression: `snappy`, `none` or another algorithm of RocksDB; `mixed` if files have different ones. For
            changelog the compression of the materialized state; empty without any.
        file_merging: the state is in segments of merged files.
        shared_files: number of files that other checkpoints may share.
        private_files: number of other files of the database, including its meta stream; for other formats number of
            streams.
        bases: for changelog: number of materialized handles.
        changes: for changelog: number of streams with changes, including inlined ones.
        change_bytes: bytes of changes, as recorded in the handles.
        change_compression: compression of changes in files; empty without such files.
    """

    format: str
    subtasks: list[int]
    compression: str
    file_merging: bool = False
    shared_files: int = 0
    shared_bytes: int = 0
    private_files: int = 0
    private_bytes: int = 0
    bases: int = 0
    changes: int = 0
    change_bytes: int = 0
    change_compression: str = ""


def find_keyed_formats(
    handles: Iterable[tuple[int, KeyedStateHandle | None]],
    files: Sequence[tuple[int, KeyedFile]],
    reader: HandleReader,
    *,
    without_options: bool = False,
) -> list[KeyedFormatReport]:
    """Find the formats of the keyed state of an operator, each with the subtasks that have it.

    Args:
        handles: (index of the subtask, its managed keyed state).
        files: (index of the subtask, an opened file of it); subtasks without opened files are left out.
        reader: opens streams. To tell RocksDB and ForSt apart, options files of databases are read, of each name one.
        without_options: read no options file; the format then says `RocksDB or ForSt`.

    Raises:
        StateError: a file cannot be read.
    """
    opened: dict[int, KeyedFile] = {}
    for subtask, file in files:
        # Keep the first file of each subtask, which has the managed state; a second one has raw timers.
        opened.setdefault(subtask, file)
    present = [(subtask, handle) for subtask, handle in handles if handle is not None and subtask in opened]
    # An incremental checkpoint has no shared files for a database without records, so look at all subtasks.
    incremental = any(_has_shared_files(handle) for _, handle in present)
    databases = _Databases(reader, incremental, without_options)
    found: dict[tuple[str, str, bool], tuple[KeyedFormatReport, list[int]]] = {}
    for subtask, handle in present:
        one = _describe(handle, opened[subtask], databases)
        key = (one.format, one.compression, one.file_merging)
        total, subtasks = found.get(key, (None, []))
        subtasks.append(subtask)
        found[key] = one if total is None else _add(total, one), subtasks
    return [replace(total, subtasks=subtasks) for total, subtasks in found.values()]


class _Databases:
    """Reads options files of databases, to tell RocksDB and ForSt apart and to find the compression.

    Args:
        reader: opens streams.
        incremental: some subtask has files that other checkpoints may share.
        without_options: read no options file.
    """

    def __init__(self, reader: HandleReader, incremental: bool, without_options: bool) -> None:
        self.reader = reader
        self.incremental = incremental
        self._without_options = without_options
        self._known: dict[tuple[str, ...], tuple[str, str]] = {}

    def identify(self, handle: IncrementalRemoteKeyedStateHandle) -> tuple[str, str]:
        """Return (`RocksDB` or `ForSt`, compression) of a database.

        Databases whose options files have the same name have the same options, so one of these files is read.
        """
        if self._without_options:
            return f"{FileFormat.ROCKSDB.value} or {FORST}", ""
        options = [each for each in handle.private_state if each.local_path.startswith("OPTIONS-")]
        key = tuple(each.local_path for each in options)
        if key not in self._known:
            raw = read_whole_stream(self.reader.open_stream(options[0].handle)) if options else b""
            lines = [each.strip() for each in raw.decode("utf-8", "replace").splitlines()]
            store = FORST if any(map(_names_forst, lines)) else FileFormat.ROCKSDB.value
            compressions = filter(None, map(_COMPRESSION.fullmatch, lines))
            self._known[key] = store, _join(each[1] for each in compressions)
        return self._known[key]


def _names_forst(line: str) -> bool:
    end = _FORST_DIRECTORY_END.search(line)
    return end is not None and line.startswith(_LOG_DIRECTORY) and "op_" in line[: end.start()]


def _has_shared_files(handle: KeyedStateHandle) -> bool:
    if isinstance(handle, ChangelogStateBackendHandle):
        return any(map(_has_shared_files, handle.materialized))
    return isinstance(handle, IncrementalRemoteKeyedStateHandle) and bool(handle.shared_state)


def _describe(handle: KeyedStateHandle, file: KeyedFile, databases: _Databases) -> KeyedFormatReport:
    match handle:
        case KeyGroupsStateHandle() | KeyGroupsSavepointStateHandle():
            compression = "snappy" if file.header.compressed else "none"
            return _count_files(KeyedFormatReport(file.format.value, [], compression), (), (handle.delegate,))
        case IncrementalRemoteKeyedStateHandle():
            store, compression = databases.identify(handle)
            if file.is_forst:
                store = FORST
            name = f"{store} {'incremental' if databases.incremental else 'native'}"
            shared = [each.handle for each in handle.shared_state]
            private = [*(each.handle for each in handle.private_state), handle.meta_data_state]
            return _count_files(KeyedFormatReport(name, [], compression), shared, private)
        case ChangelogStateBackendHandle() if isinstance(file, ChangelogFile):
            return _describe_changelog(handle, file, databases)
    return KeyedFormatReport(type(handle).__name__, [], "")


def _describe_changelog(
    handle: ChangelogStateBackendHandle, file: ChangelogFile, databases: _Databases
) -> KeyedFormatReport:
    bases = [_describe(base, opened, databases) for base, opened in zip(handle.materialized, file.bases, strict=True)]
    streams: list[StreamStateHandle] = []
    compressions: list[str] = []
    inlined = size = 0
    for log in handle.non_materialized:
        if isinstance(log, ChangelogStateHandleStream):
            streams += [each.handle for each in log.streams]
            size += log.size
        elif isinstance(log, InMemoryChangelogStateHandle):
            inlined += 1
            size += sum(len(each.change) for each in log.changes)
    for each in dict.fromkeys(streams):
        # This costs no request: the stream has been read before, and its first byte is in the cache.
        stream = replace(databases.reader.open_stream(each), holds_changes=True)
        flag = databases.reader.kept.read(stream, 0, 1)
        compressions.append("snappy" if is_compressed(flag, stream.name) else "none")
    kinds = " and ".join(dict.fromkeys(base.format for base in bases))
    total = KeyedFormatReport(
        f"{file.format.value} over {kinds}" if kinds else file.format.value,
        [],
        _join([base.compression for base in bases]),
        any(isinstance(each, SegmentFileStateHandle) for each in streams),
        bases=len(bases),
        changes=inlined + len(streams),
        change_bytes=size,
        change_compression=_join(compressions),
    )
    for base in bases:
        total = _add(total, replace(base, subtasks=[]))
    return total


def _count_files(
    one: KeyedFormatReport, shared: Sequence[StreamStateHandle], private: Sequence[StreamStateHandle]
) -> KeyedFormatReport:
    return KeyedFormatReport(
        one.format,
        [],
        one.compression,
        file_merging=any(isinstance(each, SegmentFileStateHandle) for each in (*shared, *private)),
        shared_files=len(shared),
        shared_bytes=sum(map(measure_handle, shared)),
        private_files=len(private),
        private_bytes=sum(map(measure_handle, private)),
    )


def measure_handle(handle: StreamStateHandle) -> int:
    """Return the size of the state of a handle, as recorded in the handle."""
    if isinstance(handle, ByteStreamStateHandle):
        return len(handle.data)
    return int(getattr(handle, "size", 0))


def _add(one: KeyedFormatReport, other: KeyedFormatReport) -> KeyedFormatReport:
    return KeyedFormatReport(
        one.format,
        [*one.subtasks, *other.subtasks],
        one.compression,
        one.file_merging or other.file_merging,
        one.shared_files + other.shared_files,
        one.shared_bytes + other.shared_bytes,
        one.private_files + other.private_files,
        one.private_bytes + other.private_bytes,
        one.bases + other.bases,
        one.changes + other.changes,
        one.change_bytes + other.change_bytes,
        _join([one.change_compression, other.change_compression]),
    )


def _join(compressions: Iterable[str]) -> str:
    known = {"none" if each.lower() in ("no", "none") else each.lower() for each in compressions if each}
    return "mixed" if len(known) > 1 else next(iter(known), "")


RAW_TIMERS = "raw timers"
"""`StateReport.format` of timers in raw keyed state."""

COUNT_LIMIT = 256 << 20
"""Bytes of state up to which entries are counted by default; counting reads all state."""


@dataclass(frozen=True)
class PythonReport:
    """Java side of a state of a Python function (PyFlink).

    Attributes:
        java_name: name of the state in the snapshot.
        java_value: serializer of the value in the snapshot.
        guess: type that was guessed from the bytes, such as `ValueState<BIGINT>`; empty if no type fits, None if the
            user has declared a type.
    """

    java_name: str
    java_value: str
    guess: str | None


@dataclass(frozen=True)
class ColumnReport:
    """A column of the rows of an SQL state, as the plan that the user has declared describes it."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class StateReport:
    """Report of a state: its serializers, format and size.

    Attributes:
        kind: VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMER, SPLIT_DISTRIBUTE, UNION, BROADCAST or RAW.
        key: serializer of the keys (for a broadcast state of the keys of the map), as text.
        namespace: serializer of the namespace, as text; None for operator state.
        value: serializer of the value, as text; empty for raw state, which has none.
        subtasks: indices of the subtasks that have the state.
        key_groups: [first, last] key group of each of these subtasks; empty for operator state.
        entries: number of entries; None if they were not counted.
        bytes: bytes of the entries without framing; None if they were not counted.
        used_key_groups: number of key groups with entries; None if they were not counted.
        undecoded: why tables of this state hold raw bytes; empty if they do not.
        format: format of keyed state, see `KeyedFormatReport`; None for other state.
        connector: report on the connector that wrote the list state; None if it is not known.
        python: Java side of a state of PyFlink, whose `name`, `kind` and `value` are those in Python; else None.
        ttl: time to live according to a declared plan, such as `1 d`; None without one.
        columns: columns of the values of an SQL state, according to a declared plan; empty without one.
        error: why the state could not be read; empty if it could.
        damaged: bytes of the state are damaged or missing; `error` has the reason.
        undetermined: the version of a format is not known; `error` has the reason.
        unreachable: the storage fails or refuses, so that it is not known whether the state is damaged; `error` has the
            reason.
    """

    name: str
    kind: str
    key: str | None
    namespace: str | None
    value: str
    subtasks: list[int]
    key_groups: list[list[int]]
    entries: int | None
    bytes: int | None
    used_key_groups: int | None
    undecoded: str
    format: str | None = None
    connector: ConnectorReport | None = None
    python: PythonReport | None = None
    ttl: str | None = None
    columns: list[ColumnReport] = field(default_factory=list)
    error: str = ""
    damaged: bool = False
    undetermined: bool = False
    unreachable: bool = False


@dataclass(frozen=True)
class InFlightReport:
    """In-flight data of an operator in an unaligned checkpoint: of input channels and of result subpartitions."""

    input: ChannelSummary
    output: ChannelSummary


@dataclass(frozen=True)
class OperatorReport:
    """Report of an operator and its states.

    Attributes:
        id: operator id, 32 hexadecimal digits.
        uid: uid; None if it is not known.
        name: name; None if the snapshot does not store it.
        finished: all subtasks had finished.
        finished_subtasks: indices of the subtasks that had finished.
        bytes: bytes of all state of the operator.
        coordinator_bytes: bytes of the coordinator state.
        coordinator: report on the coordinator state; None without such state.
        in_flight: in-flight data; None if there are none.
        keyed_formats: formats in which the keyed state is stored.
        key_evidence: evidence for the key serializer, if it was inferred because the snapshot does not store it; else
            empty.
        states: managed keyed state and timers, list, broadcast and raw state.
        node: node of a declared plan to which the operator belongs, as EXPLAIN shows it; empty without a plan.
        rows: content of the rows of the node, as an expression over tables; empty without a plan.
        error: why not all states could be read; empty if they could.
        damaged: state of the operator is damaged or missing; `error` has the reason.
        undetermined: the version of a format is not known; `error` has the reason.
        unreachable: the storage fails or refuses, so that it is not known whether state is damaged; `error` has the
            reason.
    """

    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    finished: bool
    finished_subtasks: list[int]
    bytes: int
    coordinator_bytes: int
    coordinator: CoordinatorReport | None
    in_flight: InFlightReport | None
    keyed_formats: list[KeyedFormatReport]
    key_evidence: str
    states: list[StateReport]
    error: str
    damaged: bool
    undetermined: bool = False
    unreachable: bool = False
    node: str = ""
    rows: str = ""

    @property
    def damage(self) -> Iterator[str]:
        """Errors of the operator and its states about bytes that are damaged, missing or refused by the storage."""
        if self.damaged or self.unreachable:
            yield self.error
        yield from (state.error for state in self.states if state.damaged or state.unreachable)

    @property
    def notes(self) -> Iterator[str]:
        """Undamaged states of the operator that cannot be shown decoded, each with the reason."""
        if self.error and not (self.damaged or self.unreachable):
            yield self.error
        for state in self.states:
            if state.damaged or state.unreachable:
                continue
            if state.undecoded and state.entries != 0:
                yield f"state {state.name} is shown as bytes: {state.undecoded}"
            elif state.error:
                yield f"state {state.name} is shown only as far as headers describe it: {state.error}"


@dataclass(frozen=True)
class MasterReport:
    """State of a hook of the job master, which only the hook can read."""

    name: str
    version: int
    bytes: int


@dataclass(frozen=True)
class SnapshotReport:
    """Report of a snapshot and its operators."""

    path: str
    kind: str
    metadata_version: int
    checkpoint_id: int
    kryo_version: int
    fingerprint: str
    bytes: int
    files: int
    master_states: list[MasterReport]
    operators: list[OperatorReport]

    @property
    def notes(self) -> list[str]:
        """Undamaged states that cannot be shown decoded, each with operator and reason."""
        return [f"operator {each.uid or each.id}: {note}" for each in self.operators for note in each.notes]

    @property
    def damage(self) -> list[str]:
        """Errors about bytes that are damaged, missing or refused by the storage, each with its operator."""
        errors = ((each.uid or each.id, error) for each in self.operators for error in each.damage)
        return [f"operator {label} cannot be read: {error}" for label, error in errors]

    @property
    def has_undetermined(self) -> bool:
        """Whether some state has a format whose version is not known."""
        return any(each.undetermined or any(state.undetermined for state in each.states) for each in self.operators)

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`."""
        return {**asdict(self), "notes": self.notes}


def inspect(snapshot: Snapshot | str, *, count: bool | None = None) -> SnapshotReport:
    """Report the operators and states of a snapshot, with serializers and sizes.

    State that cannot be read or decoded does not hide the rest; see `notes` and `damage` of the report.

    Args:
        snapshot: a snapshot, or its path.
        count: count entries and bytes, which reads all state; None counts up to `COUNT_LIMIT` bytes.

    Raises:
        StateError: `_metadata` cannot be read.
    """
    snapshot = ensure_open(snapshot)
    references = list_references(snapshot.metadata)
    files = {_identity(each) for each in references if not isinstance(each.handle, ByteStreamStateHandle)}
    if count is None:
        count = snapshot.file_size <= COUNT_LIMIT
    sizes: dict[bytes, int] = {}
    for reference in references:
        size = sizes.get(reference.operator.operator_id, 0)
        sizes[reference.operator.operator_id] = size + measure_handle(reference.handle)
    return SnapshotReport(
        path=snapshot.path,
        kind=snapshot.kind,
        metadata_version=snapshot.metadata.version,
        checkpoint_id=snapshot.checkpoint_id,
        kryo_version=snapshot.kryo_version,
        fingerprint=snapshot.fingerprint,
        bytes=snapshot.file_size,
        files=len(files),
        master_states=[
            MasterReport(each.name, each.version, len(each.payload)) for each in snapshot.metadata.master_states
        ],
        operators=_report_operators(snapshot, sizes, count=count),
    )


def _report_operators(snapshot: Snapshot, sizes: Mapping[bytes, int], *, count: bool) -> list[OperatorReport]:
    """Report the operators; of a snapshot on a remote storage, several small operators concurrently."""
    # Read the headers once, before several threads need them.
    snapshot.read_headers()
    works = [
        partial(_report_operator, each, sizes.get(each.metadata.operator_id, 0), count=count)
        for each in snapshot.operators
    ]
    mean = snapshot.file_size // max(1, len(works)) if count else 0
    return do_together(works, snapshot.location.directory, 1 + count_scans_ahead(mean))


def _report_operator(operator: Operator, size: int, *, count: bool) -> OperatorReport:
    metadata = operator.metadata
    coordinator = metadata.coordinator_state
    chosen = operator.snapshot.connectors.get(metadata.operator_id)
    found = operator.survey()
    errors: list[StateError] = [failure.error for failure in found.failures]
    damage = [_counts_as_damage(each) for each in errors]
    undetermined = any(is_undetermined(each) for each in errors)
    unreachable = any(_is_unreachable(each) for each in errors)
    formats = []
    try:
        with at(operator=operator.label):
            formats = _find_formats(operator)
    except StateError as failure:
        damage.append(_counts_as_damage(failure))
        errors.append(failure)
        unreachable = unreachable or _is_unreachable(failure)
        if isinstance(failure, OutOfReachError):
            formats = _find_formats(operator, without_options=True)
    counted: dict[str, StateStatistics] = {}
    if count:
        # Ignore errors: each state is then counted by itself below, and reports its own error.
        with suppress(StateError):
            counted = count_states([state for state in found.states if isinstance(state, KeyedState)])
    keyed = [state for state in found.states if isinstance(state, KeyedState)]
    if count and not counted:
        # Ignore errors here, too: each state reports its own error when it is counted.
        with suppress(StateError):
            keyed = hold_states(keyed)
    others = [state for state in found.states if not isinstance(state, KeyedState)]
    states = [_describe_state(state, formats, counted, count=count) for state in (*keyed, *others)]
    planned = operator.snapshot.planned.get(metadata.operator_id)
    if planned is not None:
        states[: len(keyed)] = map(_add_plan, states, keyed, repeat(planned))
    front, after = summarise_in_flight(metadata)
    return OperatorReport(
        id=operator.id,
        uid=operator.uid,
        name=operator.name,
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
        finished=metadata.fully_finished,
        finished_subtasks=[each.index for each in metadata.subtasks if each.finished],
        bytes=size,
        coordinator_bytes=len(coordinator.data) if coordinator else 0,
        coordinator=report_coordinator(coordinator.data, chosen, _find_splits(others)) if coordinator else None,
        in_flight=InFlightReport(front, after) if front.handles or after.handles else None,
        keyed_formats=formats,
        key_evidence=operator.files.evidence,
        states=states,
        error=join_errors(errors),
        damaged=any(damage),
        undetermined=undetermined,
        unreachable=unreachable,
        node="" if planned is None else planned.description,
        rows="" if planned is None else planned.meaning,
    )


def _add_plan(report: StateReport, state: KeyedState, operator: PlannedOperator) -> StateReport:
    planned = operator.find_state(state.name)
    if planned is None or not has_rows(state.info.value_serializer, planned.rows):
        return report
    columns = [
        ColumnReport(each.name, describe_type(each.type), each.meaning) for row in planned.rows for each in row.columns
    ]
    return replace(report, ttl=planned.ttl, columns=columns)


def join_errors(errors: Iterable[StateError]) -> str:
    """Join the texts of errors. Of errors that differ only in location, give the first and the number of others."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for each in errors:
        texts = kinds.setdefault((each.what, each.hint), [])
        if str(each) not in texts:
            texts.append(str(each))
    return "; ".join(
        first if not others else f"{first} (and {len(others)} more of this kind)" for first, *others in kinds.values()
    )


def _counts_as_damage(error: StateError) -> bool:
    """Return whether an error is about damaged or missing bytes.

    Files that are out of reach, as in a snapshot of which only `_metadata` was copied, do not count: `inspect` reports
    what `_metadata` alone says.

    Raises:
        SnapshotGoneError: the whole snapshot does not exist any more.
    """
    if isinstance(error, SnapshotGoneError):
        raise error
    return is_damage(error) and not isinstance(error, OutOfReachError)


def _is_unreachable(error: StateError) -> bool:
    return is_unreadable(error) and not is_damage(error)


def _find_formats(operator: Operator, *, without_options: bool = False) -> list[KeyedFormatReport]:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    files, _ = operator.files.survey()
    return find_keyed_formats(handles, files, operator.snapshot.handles, without_options=without_options)


def _find_splits(states: Iterable[State]) -> Iterator[Detected]:
    """Yield the connectors of the list states of an operator, as far as they can be read."""
    for state in states:
        if isinstance(state, OperatorListState):
            # Ignore a state that cannot be read: its own report has the error.
            with suppress(StateError):
                yield state.detected


def _describe_state(
    state: State, formats: list[KeyedFormatReport], counted: Mapping[str, StateStatistics], *, count: bool
) -> StateReport:
    key = namespace = connector = python = None
    groups: list[list[int]] = []
    undecoded = error = ""
    damaged = undetermined = unreachable = False
    statistics = None
    stored = describe(state.serializer)
    match state:
        case KeyedState():
            key = describe(state.key_serializer)
            namespace = describe(state.info.namespace_serializer) if state.kind != StateKind.TIMER else None
            groups = [[each.start, each.end] for each in state.key_groups]
            if state.python_name:
                stored = describe(state.value_serializer)
                python = PythonReport(state.name, describe(state.stored_info.value_serializer), None)
        case OperatorBroadcastState():
            key = describe(state.info.key_serializer)
            if state.python_name:
                python = PythonReport(state.name, "Map<ByteArrayWrapper, BytePrimitiveArray>", None)
        case BytesState():
            stored = ""
            # Counting reads nothing, because the handles record the size: count in any case.
            count = True
            if isinstance(state, RawKeyedState):
                groups = [[each.start, each.end] for each in state.key_groups]
    try:
        undecoded = state.undecoded
        if isinstance(state, KeyedState) and python is not None and state.guess is not None:
            python = replace(python, guess=state.guess.type)
        if isinstance(state, OperatorListState):
            connector = report_connector(state.detected)
        statistics = counted.get(state.name) if isinstance(state, KeyedState) else None
        if statistics is None and count:
            statistics = state.count()
    except StateError as failure:
        error, damaged = str(failure), _counts_as_damage(failure)
        undetermined, unreachable = is_undetermined(failure), _is_unreachable(failure)
    return StateReport(
        name=state.label,
        kind=str(state.kind),
        key=key,
        namespace=namespace,
        value=stored,
        subtasks=[subtask_state.subtask for subtask_state in state.subtask_states],
        key_groups=groups,
        entries=statistics.entries if statistics else None,
        bytes=statistics.bytes if statistics else None,
        used_key_groups=len(statistics.entries_by_key_group) if statistics else None,
        undecoded=undecoded,
        format=_name_format(state, formats) if isinstance(state, KeyedState) else None,
        connector=connector,
        python=python,
        error=error,
        damaged=damaged,
        undetermined=undetermined,
        unreachable=unreachable,
    )


def _name_format(state: KeyedState, formats: list[KeyedFormatReport]) -> str | None:
    if all(subtask_state.file.holds_raw_timers for subtask_state in state.subtask_states):
        return RAW_TIMERS
    subtasks = {subtask_state.subtask for subtask_state in state.subtask_states}
    return ", ".join(dict.fromkeys(each.format for each in formats if subtasks & set(each.subtasks))) or None


def _identity(reference: StreamReference) -> object:
    handle = reference.handle
    return getattr(handle, "path", None) or getattr(handle, "relative_path", None) or handle
