"""A snapshot, its operators, and their states."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import (
    NotFoundError,
    StateError,
    StorageError,
    UnsupportedError,
    UnsupportedVersionError,
    UsageError,
    Where,
    at,
)
from state_pipelines.keyed.operator_columns import unmeasured
from state_pipelines.keyed.operator_table import WINDOW, OperatorTable, OperatorTableOptions, group_files
from state_pipelines.metadata import compute_operator_id, read_metadata, write_metadata
from state_pipelines.metadata.handles import ChannelDirection
from state_pipelines.serializers.snapshot_classes import OpenBodyError
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState, read_states
from state_pipelines.snapshot.operator_state import (
    IN_FLIGHT_NAME,
    InFlightState,
    InFlightSubtaskState,
    NonKeyedState,
    NonKeyedSubtaskState,
    OperatorBroadcastState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    RawOperatorSubtaskState,
    UnreadKeyedState,
)
from state_pipelines.snapshot.representation import format_bytes, format_count, make_html_table
from state_pipelines.snapshot.snapshot_files import (
    OperatorFiles,
    SnapshotFiles,
    find_held_key_groups,
    narrow_key_groups,
    scan_files,
)
from state_pipelines.snapshot.state import declare_types, find_declaration
from state_pipelines.storage import PathMapping, parse_path_mapping, read_metadata_file, resolve
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import do_together, scan_ahead
from state_pipelines.storage.snapshot_writer import read_metadata_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.keyed.operator_columns import StateLayout
    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot.handle_readers import RawKeyedSubtaskState
    from state_pipelines.snapshot.state import State
    from state_pipelines.storage import Location, SnapshotLocation


@dataclass(frozen=True)
class Failure:
    """State of an operator that cannot be read.

    Attributes:
        subtask: index of the subtask; None if several subtasks are affected.
        error: error of reading the state.
    """

    subtask: int | None
    error: StateError

    @property
    def is_damage(self) -> bool:
        """Whether bytes are damaged or missing, in contrast to an unsupported format."""
        return is_damage(self.error)


def is_undetermined(error: StateError) -> bool:
    """Return whether an error is about a version that is not known, so that nothing can be said of the bytes."""
    return isinstance(error, UnsupportedVersionError)


def is_unreadable(error: StateError) -> bool:
    """Return whether bytes are damaged or missing, or the storage fails or refuses.

    False for errors about formats that this package does not support.
    """
    return not isinstance(error, UnsupportedError)


def is_damage(error: StateError) -> bool:
    """Return whether an error is about bytes that are damaged or missing.

    False for errors about unsupported formats, and for a storage that fails or refuses.
    """
    return is_unreadable(error) and not isinstance(error, StorageError)


@dataclass(frozen=True)
class OperatorSurvey:
    """The states of an operator as far as they can be read.

    Attributes:
        states: readable states, in the order of `Operator.states`.
        failures: state that cannot be read.
    """

    states: tuple[State, ...]
    failures: tuple[Failure, ...]


def survey(operator: OperatorFiles, *, in_flight: bool = False) -> OperatorSurvey:
    """Return the states of an operator that can be read, and failures for all others; see `Operator.survey`."""
    states: list[State] = []
    failures: list[Failure] = []
    for found, failed in (survey_keyed(operator), survey_operator(operator), survey_raw(operator)):
        states += found
        failures += failed
    if in_flight:
        try:
            with at(operator=operator.label):
                found_in_flight = find_in_flight(operator)
                states += [] if found_in_flight is None else [found_in_flight]
        except StateError as error:
            failures.append(Failure(None, error))
    return OperatorSurvey(tuple(states), tuple(failures))


def find_failures(
    operator: OperatorFiles, state: State | None, key_groups: KeyGroupRange | None = None
) -> list[StateError]:
    """Return the errors of the files that cannot be read and may hold records of a state.

    Args:
        operator: the operator.
        state: the state; None: any keyed state.
        key_groups: only files that hold some of these.
    """
    if isinstance(state, NonKeyedState):
        return [failure.error for failure in survey_operator(operator)[1]]
    if state is not None and not isinstance(state, KeyedState):
        return [failure.error for failure in survey_raw(operator)[1]]
    held = find_held_key_groups(operator.metadata)
    return [
        failure.error
        for failure in survey_keyed(operator)[1]
        if key_groups is None or failure.subtask not in held or held[failure.subtask].intersect(key_groups).number
    ]


def find_in_flight(operator: OperatorFiles) -> InFlightState | None:
    """Find in-flight data of an unaligned checkpoint; None when there is none."""
    subtask_states = tuple(
        InFlightSubtaskState(subtask.index, operator.snapshot.handles.open_stream(handle.delegate), handle, direction)
        for subtask in operator.metadata.subtasks
        for direction, channels in (
            (ChannelDirection.INPUT, subtask.input_channel_state),
            (ChannelDirection.OUTPUT, subtask.result_subpartition_state),
        )
        for handle in channels
    )
    return InFlightState(operator, subtask_states) if subtask_states else None


def raise_first(failures: Sequence[Failure]) -> None:
    """Raise the error of the first failure, if there is one."""
    for failure in failures:
        raise failure.error


def _find_unread(operator: OperatorFiles) -> Mapping[int, RawKeyedSubtaskState]:
    """Find keyed state of subtasks whose header cannot be read, as bytes, by index of the subtask."""
    _, failures = operator.files.survey()
    found = {}
    for subtask in operator.metadata.subtasks:
        failure = failures.get(subtask.index)
        if isinstance(failure, OpenBodyError):
            reason = explain(failure)
            subtask_state = operator.snapshot.handles.open_key_groups(
                subtask.managed_keyed_state, subtask.index, reason
            )
            if subtask_state is not None:
                found[subtask.index] = subtask_state
    return found


def survey_keyed(operator: OperatorFiles) -> tuple[tuple[KeyedState, ...], list[Failure]]:
    """Return the keyed states and timers of an operator that can be read, and failures."""
    files, failures = operator.files.survey()
    unread = _find_unread(operator)
    subtask_states: dict[str, list[KeyedSubtaskState]] = {}
    for subtask, stored in files:
        file = stored.with_context(replace(stored.context, by_block=True))
        for state_id, info in enumerate(file.header.states):
            subtask_states.setdefault(info.name, []).append(KeyedSubtaskState(subtask, file, state_id))
    failed = [_fail(operator, index, error) for index, error in failures.items() if index not in unread]
    return tuple(KeyedState(operator, tuple(each)) for each in subtask_states.values()), failed


def survey_operator(operator: OperatorFiles) -> tuple[tuple[State, ...], list[Failure]]:
    """Return the list states, then the broadcast states of an operator that can be read, and failures."""
    lists: dict[str, list[NonKeyedSubtaskState]] = {}
    broadcasts: dict[str, list[NonKeyedSubtaskState]] = {}
    failures = []
    for subtask in operator.metadata.subtasks:
        try:
            unread = operator.snapshot.handles.open_operator(subtask.managed_operator_state)
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
            continue
        if unread is not None:
            for info in unread.header.lists:
                lists.setdefault(info.name, []).append(NonKeyedSubtaskState(subtask.index, unread, info))
            for info in unread.header.broadcasts:
                broadcasts.setdefault(info.name, []).append(NonKeyedSubtaskState(subtask.index, unread, info))
    for name, subtask_states in broadcasts.items():
        broadcasts[name] = [replace(each, info=_declare_broadcast(operator, each.info)) for each in subtask_states]
    found = (
        *(OperatorListState(operator, tuple(each)) for each in lists.values()),
        *(OperatorBroadcastState(operator, tuple(each)) for each in broadcasts.values()),
    )
    return found, failures


def _declare_broadcast(operator: OperatorFiles, info: StateMetaInfo) -> StateMetaInfo:
    """Return the meta info of a broadcast state with the user's declared types, if any."""
    declared = find_declaration(info, operator.snapshot.python_types.get(operator.metadata.operator_id))
    return info if declared is None else declare_types(info, declared, StateKind.MAP)


def survey_raw(operator: OperatorFiles) -> tuple[tuple[State, ...], list[Failure]]:
    """Return the state of an operator that can only be shown as bytes, and failures."""
    handles = operator.snapshot.handles
    keyed, raw, failures = [], [], []
    sections = _find_unread(operator)
    unread = operator.files.survey_unread()
    for subtask in operator.metadata.subtasks:
        try:
            if subtask.index in unread:
                reason = unread[subtask.index].reason
                keyed.append(handles.open_raw_bytes(subtask.raw_keyed_state, subtask.index, reason))
            if (handle := subtask.raw_operator_state) is not None:
                raw.append(RawOperatorSubtaskState(subtask.index, handles.open_stream(handle.delegate), handle))
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
    found = (
        *([RawKeyedState(operator, tuple(keyed))] if keyed else ()),
        *([UnreadKeyedState(operator, tuple(sections.values()))] if sections else ()),
        *([RawOperatorState(operator, tuple(raw))] if raw else ()),
    )
    return found, failures


def _fail(operator: OperatorFiles, subtask: int | None, error: StateError) -> Failure:
    error.where = replace(error.where, operator=error.where.operator or operator.label)
    return Failure(subtask, error)


def choose_states(
    operator: OperatorFiles, states: Sequence[KeyedState], options: OperatorTableOptions
) -> list[StateLayout]:
    """Choose the keyed states of an operator for the table of several states (`OperatorTable`).

    Args:
        operator: the operator.
        states: its keyed states and timers, except those in files that cannot be read.
        options: options of the table, which may name the wanted states.

    Raises:
        StateError: no states are left because files cannot be read.
        UsageError: the operator has no such states.
        NotFoundError: `options` names a state that is not there.
        UnsupportedError: the keys of a state are not known, or subtasks have different ones.
    """
    keyed = {state.name: state for state in states}
    names = {state.python_name: state.name for state in states}
    wanted = {names.get(name, name) if name not in keyed else name for name in options.states or ()}
    if options.states is None:
        wanted = set(keyed)
    for name in wanted - set(keyed):
        raise NotFoundError(
            f"the operator has no keyed state {name}",
            where=Where(operator=operator.label),
            hint=f"It has {', '.join(keyed)}" if keyed else "It has none at all",
        )
    timers = {name for name, state in keyed.items() if state.kind == StateKind.TIMER}
    if options.states is None:
        wanted -= timers
    if options.timers:
        wanted |= timers
    chosen = [state for name, state in keyed.items() if name in wanted]
    if not chosen:
        for error in find_failures(operator, None):
            raise error
        hint = "Name one of its other states (--state, stateVarName of Spark)" if survey(operator).states else ""
        if keyed:
            hint = "It has timers, which are included on request (--timers, readRegisteredTimers of Spark)"
        raise UsageError("the operator has no keyed state", where=Where(operator=operator.label), hint=hint)
    for state in chosen:
        if state.comes_by_key_group:
            raise UnsupportedError(
                state.find_layout()[1],
                where=Where(operator=operator.label, state=state.name),
                hint="Read this state alone (--state, stateVarName), and the others by name (--states, states)",
            )
    layouts = [state.table_layout for state in chosen]
    if len({unmeasured(dict(each.key.fields)["state_key"]) for each in layouts}) > 1:
        raise UnsupportedError(
            "the subtasks hold keys with different serializers",
            where=Where(operator=operator.label),
            hint="Read its states one by one (--state, stateVarName of Spark), or let the job touch every key once",
        )
    return layouts


class Operator(OperatorFiles):
    """An operator of a snapshot."""

    def __repr__(self) -> str:
        return f"<Operator {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the states, in notebooks; reads headers of files. State that cannot be read is a row with its error."""
        found = self.survey()
        rows = [(state.label, str(state.kind), describe(state.serializer), "") for state in found.states]
        rows += [("", "", "", error) for error in dict.fromkeys(str(failure.error) for failure in found.failures)]
        head = ("state", "kind", "type", "error") if found.failures else ("state", "kind", "type")
        return make_html_table(self._describe(), head, (row[: len(head)] for row in rows), len(rows))

    def _describe(self) -> str:
        """Describe in one line; reads nothing."""
        name = f" ({self.name})" if self.name and self.name != self.label else ""
        return f"{self.label}{name}, parallelism {self.parallelism} of {self.max_parallelism}"

    @cached_property
    def readable(self) -> Operator:
        """The operator without the state in files that cannot be read; `find_failures` says what is left out."""
        return Operator(self.snapshot, self.metadata, self.uid, is_partial=True)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Keyed states and timers, then operator list states, then broadcast states, then raw states.

        Raises:
            StateError: a handle cannot be read, or is of a format that is not covered; see `survey`.
        """
        return tuple(self._iter_states())

    def survey(self, *, in_flight: bool = False) -> OperatorSurvey:
        """The states that can be read, and the errors of those that cannot.

        Args:
            in_flight: include the in-flight data of an unaligned checkpoint.
        """
        return survey(self, in_flight=in_flight)

    def _iter_states(self) -> Iterator[State]:
        yield from self.keyed_states
        yield from self.operator_states
        yield from self.raw_states

    def state(self, name: str) -> State:
        """A state by its name, or its name in Python; keyed states first. `_in_flight_data` names the in-flight data.

        Raises:
            NotFoundError: there is none; the error lists what there is.
            StateError: a file that may hold the state cannot be read.
        """
        in_python = None
        failure: StateError | None = None
        kinds: tuple[Callable[[], tuple[State, ...]], ...] = (
            lambda: self.keyed_states,
            lambda: self.operator_states,
            lambda: self.raw_states,
        )
        for read in kinds:
            try:
                states = read()
            except StateError as error:
                # Go on with the other kinds of state, which are in other files; the error is raised if no state of them
                # has the name.
                failure = failure or error
                continue
            for state in states:
                if state.name == name:
                    return state
                if state.python_name == name and in_python is None:
                    in_python = state
        if in_python is not None:
            return in_python
        if name == IN_FLIGHT_NAME and self.in_flight is not None:
            return self.in_flight
        if failure is not None:
            raise failure
        if self.is_partial:
            raise_first(self.survey().failures)
        known = ", ".join(state.label for state in self.states)
        raise NotFoundError(
            f"the operator has no state {name}",
            where=Where(file=str(self.snapshot.location.metadata), operator=self.label),
            hint=f"It has {known}" if known else "It has no states",
        )

    def make_table(self, options: OperatorTableOptions | None = None) -> OperatorTable:
        """The table of all keyed states, see `batches`."""
        options = options or OperatorTableOptions()
        with at(operator=self.label):
            return OperatorTable(choose_states(self, self.keyed_states, options), options)

    def make_schema(self, options: OperatorTableOptions | None = None) -> pa.Schema:
        """Schema of the batches under `options`."""
        return self.make_table(options).schema

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table of all keyed states."""
        return self.make_schema()

    def batches(
        self, options: OperatorTableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield all keyed states as one table with a row per key and namespace, one record batch at a time.

        Args:
            options: selection of states and columns; by default all keyed states, without timers.
            key_groups: key groups to read; by default all.

        Raises:
            StateError: the state cannot be read, or has no such table; see `OperatorTable`.
        """
        table = self.make_table(options)
        key_groups = narrow_key_groups(self, table.needle, key_groups)
        with at(operator=self.label):
            reads = (
                partial(table.read, split, subtask, groups)
                for subtask, files in group_files(self.keyed_files).items()
                if key_groups is None or any(each.key_groups.intersect(key_groups) for each in files)
                for split, groups in table.split(files, key_groups)
            )
            for _, batches in scan_files(self, reads, lambda read: read(), WINDOW):
                yield from batches

    def batches_by_state(
        self,
        names: Collection[str] | None = None,
        options: TableOptions | None = None,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of keyed states and timers as (name of the state, batch of rows); each file is read once.

        Files of the canonical and heap formats hold all states of a subtask: reading each state by itself would read
        such a file once per state.

        Args:
            names: names of the states; by default all.
            options: selection of columns; by default all.
            key_groups: key groups to read; by default all.

        Raises:
            NotFoundError: there is no such keyed state.
            StateError: a state cannot be read.
        """
        known = {state.label: state for state in self.keyed_states}
        known |= {state.name: state for state in self.keyed_states if names is not None}
        missing = [name for name in names or () if name not in known]
        if missing:
            raise NotFoundError(
                f"the operator has no keyed state {missing[0]}",
                where=Where(file=str(self.snapshot.location.metadata), operator=self.label),
                hint=f"It has {', '.join(known)}" if known else "It has none",
            )
        yield from read_states([known[name] for name in (known if names is None else names)], options, key_groups)

    def to_arrow(
        self, options: OperatorTableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> pa.Table:
        """All keyed states as one table, see `batches`."""
        return pa.Table.from_batches(self.batches(options, key_groups), self.make_schema(options))

    @cached_property
    def keyed_states(self) -> tuple[KeyedState, ...]:
        """Keyed states and timers; errors as for `states`."""
        found, failures = survey_keyed(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    @cached_property
    def operator_states(self) -> tuple[State, ...]:
        """List states, then broadcast states, of which only headers are read; errors as for `states`."""
        found, failures = survey_operator(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    @cached_property
    def raw_states(self) -> tuple[State, ...]:
        """Raw keyed state except timers, keyed state with unreadable header, raw operator state; errors as `states`."""
        found, failures = survey_raw(self)
        if not self.is_partial:
            self.files.find_unread()
            raise_first(failures)
        return found

    @cached_property
    def in_flight(self) -> InFlightState | None:
        """In-flight data of an unaligned checkpoint; None when there is none. It is not among `states`."""
        return find_in_flight(self)


class Snapshot(SnapshotFiles):
    """A checkpoint or savepoint; nothing but `_metadata` is read before a state is asked for."""

    def __repr__(self) -> str:
        return f"<Snapshot {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the operators, in notebooks; nothing is read."""
        rows = (
            (
                each.label,
                each.name or "",
                f"{each.parallelism} of {each.max_parallelism}",
                format_bytes(each.keyed_size),
            )
            for each in self.operators
        )
        head = ("operator", "name", "parallelism", "keyed state")
        return make_html_table(self._describe(), head, rows, len(self.operators))

    def _describe(self) -> str:
        """Describe in one line; reads nothing."""
        number = f" {self.checkpoint_id}" if self.checkpoint_id >= 0 else ""
        counts = f"{format_count(len(self.operators), 'operator')}, {format_bytes(self.file_size)}"
        return f"{self.kind}{number}, {counts}, {self.path}"

    def with_declarations(self, declarations: Declarations) -> Snapshot:
        """The same snapshot, opened with other declarations."""
        return Snapshot(self.location, self.metadata, self.path_mapping, declarations, self.handles.copies)

    def with_copies(self, copies: Mapping[str, Location]) -> Snapshot:
        """The same snapshot, some files of which are read from copies, such as local ones.

        Args:
            copies: URL of a file -> location of its copy.
        """
        return Snapshot(self.location, self.metadata, self.path_mapping, self.declarations, copies)

    @cached_property
    def fingerprint(self) -> str:
        """Stable identity of the content of `_metadata` (SHA-256, 16 hexadecimal digits)."""
        return hashlib.sha256(write_metadata(self.metadata)).hexdigest()[:16]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, in the order of the file."""
        uids = self.known_uids
        return tuple(Operator(self, each, uids.get(each.operator_id)) for each in self.metadata.operator_states)

    def batches_by_operator(
        self, options: TableOptions | None = None
    ) -> Iterator[tuple[Operator, Iterator[tuple[str, pa.RecordBatch]]]]:
        """Yield each operator with the rows of its keyed states and timers, as `Operator.batches_by_state` yields them.

        On a remote storage, the next operators are read ahead; a loop over `operators` would wait for each of them.

        Args:
            options: selection of columns; by default all.

        Yields:
            An operator, and its rows, which have to be taken before the next operator.

        Raises:
            StateError: a state cannot be read; raised by the rows of its operator.
        """
        # The headers are read first, so that not every thread of the scans reads them.
        self.read_headers()
        mean = self.file_size // max(1, len(self.operators))
        directory = self.location.directory
        return scan_ahead(self.operators, lambda each: each.batches_by_state(options=options), directory, mean)

    def get_operator(self, operator_id: bytes) -> Operator | None:
        """The operator with the given id of 16 bytes; None when there is none."""
        return next((each for each in self.operators if each.metadata.operator_id == operator_id), None)

    def operator(self, name: str) -> Operator:
        """An operator by uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        found = self.find_operator(name)
        uid = name if compute_operator_id(name) == found.operator_id else None
        return Operator(self, found, self.known_uids.get(found.operator_id, uid))


def open_snapshot(
    path: str,
    declarations: Declarations | None = None,
    *,
    path_mapping: PathMapping | Iterable[str] = (),
    allow_roots: Iterable[str] = (),
    uids: Iterable[str] = (),
    classes: FieldLists | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Open a checkpoint or savepoint.

    Args:
        path: directory of the snapshot or its `_metadata` file; local path or fsspec URL.
        declarations: information that the snapshot does not hold; `declare` parses them from texts.
        path_mapping: `FROM=TO` texts for directories that were moved (absolute handles name them).
        allow_roots: directories that its files may be in, besides its own directory, those of its job (for a
            checkpoint; see `storage.resolution`), and the new ones of `path_mapping`.
        uids: added to the uids of `declarations`.
        classes: replaces the classes of `declarations`.
        storage_options: options of the fsspec file system, such as `key` and `secret` of S3; they are added to those
            of `use_storage_options`.

    Raises:
        NotFoundError: there is no snapshot.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
        StorageError: the storage fails or refuses.
    """
    location, raw = read_metadata_file(path, **(storage_options or {}))
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    known = declarations or Declarations()
    known = replace(known, uids=(*known.uids, *uids), classes=known.classes if classes is None else classes)
    return Snapshot(location, read_metadata(raw, str(location.metadata)), mapping.allow(allow_roots), known)


def ensure_open(snapshot: Snapshot | str) -> Snapshot:
    """Open the snapshot at a path as `open_snapshot` does; return an open one unchanged."""
    return open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot


def open_together(*snapshots: Snapshot | str) -> list[Snapshot]:
    """Open snapshots as `ensure_open`, and the files that the layouts of their states depend on, at the same time."""

    def read(snapshot: Snapshot | str) -> Snapshot:
        opened = ensure_open(snapshot)
        opened.read_headers()
        return opened

    roots = (resolve(each) if isinstance(each, str) else each.location.directory for each in snapshots)
    remote = next((each for each in roots if not is_local(each)), None)
    return do_together([partial(read, each) for each in snapshots], remote)


def open_location(
    location: SnapshotLocation, declarations: Declarations | None = None, *, path_mapping: PathMapping | None = None
) -> Snapshot:
    """Open a snapshot whose `_metadata` is known, for instance from a listing.

    Args:
        location: directory and `_metadata`.
        declarations: information that the snapshot does not hold.
        path_mapping: current locations of directories that absolute handles name, and further allowed directories.

    Raises:
        MissingFileError: there is no `_metadata`, or it cannot be read.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
        StorageError: the storage fails or refuses.
    """
    metadata = read_metadata(read_metadata_bytes(location.metadata), str(location.metadata))
    return Snapshot(location, metadata, path_mapping or PathMapping(), declarations or Declarations())
