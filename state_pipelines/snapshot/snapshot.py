"""A snapshot and its operators."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses
from state_pipelines.errors import NotFoundError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.files import RecordContext
from state_pipelines.keyed.key_rows import unmeasured
from state_pipelines.keyed.operator_table import OperatorTable, OperatorTableOptions, group_files
from state_pipelines.metadata import (
    CheckpointMetadata,
    CheckpointProperties,
    OperatorState,
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    stream_handles,
    write_metadata,
)
from state_pipelines.metadata.channel import ChannelDirection
from state_pipelines.metadata.properties import SavepointType
from state_pipelines.metadata.references import StateCategory, operator_handles
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.handles import HandleReader, find_header_ends
from state_pipelines.snapshot.keyed_files import KeyedFiles
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState, read_states
from state_pipelines.snapshot.python_states import declare_types, python_name
from state_pipelines.snapshot.raw_state import (
    IN_FLIGHT_NAME,
    InFlightPart,
    InFlightState,
)
from state_pipelines.snapshot.survey import Survey, raise_first, survey, survey_keyed, survey_operator, survey_raw

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from state_pipelines.codecs.kryo.fieldlists import FieldLists
    from state_pipelines.keyed.files import KeyedFile
    from state_pipelines.keyed.state_columns import StateLayout
    from state_pipelines.keyed.tables import TableOptions
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.serializers.metainfo import StateMetaInfo
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.snapshot.state import State
    from state_pipelines.storage import PathMapping, SnapshotLocation

FIRST_VERSION_OF_FLINK_2 = 5
"""Metadata versions from here on are written by Flink 2, whose generic types are Kryo 5."""


class Snapshot:
    """A checkpoint or savepoint; nothing but `_metadata` is read before a state is asked for.

    Args:
        location: where it lies.
        metadata: content of `_metadata`.
        path_mapping: where directories that absolute handles name are now.
        declarations: facts that the snapshot does not hold.
    """

    def __init__(
        self,
        location: SnapshotLocation,
        metadata: CheckpointMetadata,
        path_mapping: PathMapping,
        declarations: Declarations | None = None,
    ) -> None:
        self.location = location
        self.metadata = metadata
        self.path_mapping = path_mapping
        self.declarations = declarations or Declarations()
        self.handles = HandleReader(
            location.directory, path_mapping, self.declarations.serializers, find_header_ends(metadata)
        )
        keys = {find_operator_id(name): key for name, key in self.declarations.key_serializers.items()}
        self.keyed_files = KeyedFiles(metadata, self.handles, keys)

    def with_declarations(self, declarations: Declarations) -> Snapshot:
        """The same snapshot, opened with other declarations."""
        return Snapshot(self.location, self.metadata, self.path_mapping, declarations)

    @property
    def uids(self) -> tuple[str, ...]:
        """Declared uids."""
        return self.declarations.uids

    @property
    def classes(self) -> FieldLists | None:
        """Declared classes."""
        return self.declarations.classes

    @cached_property
    def connectors(self) -> dict[bytes, str]:
        """Declared connectors by operator id."""
        return {find_operator_id(name): connector for name, connector in self.declarations.connectors.items()}

    @cached_property
    def python_types(self) -> dict[bytes, Mapping[str, PythonDeclaration]]:
        """Declared types of the states of Python functions, by operator id and name of the state in Python."""
        return {find_operator_id(name): types for name, types in self.declarations.python_types.items()}

    @property
    def path(self) -> str:
        """Directory of the snapshot, as a path or URL that `open_snapshot` takes."""
        return str(self.location.directory)

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint or savepoint."""
        return self.metadata.checkpoint_id

    @property
    def kind(self) -> str:
        """`savepoint` or `checkpoint`; `unknown` before Flink 1.16, whose metadata do not say."""
        properties = self.metadata.properties
        if not isinstance(properties, CheckpointProperties):
            return "unknown"
        return "savepoint" if isinstance(properties.checkpoint_type, SavepointType) else "checkpoint"

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo behind generic types: 2 for Flink 1.x, 5 from 2.0."""
        return 5 if self.metadata.version >= FIRST_VERSION_OF_FLINK_2 else 2

    @cached_property
    def fingerprint(self) -> str:
        """Stable identity of the content of `_metadata` (SHA-256, 16 hexadecimal digits)."""
        return hashlib.sha256(write_metadata(self.metadata)).hexdigest()[:16]

    @cached_property
    def file_size(self) -> int:
        """Bytes of state that the handles name, inlined state included."""
        return sum(_handle_size(reference.handle) for reference in stream_handles(self.metadata))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, in the order of the file."""
        names = {compute_operator_id(uid): uid for uid in self.uids}
        return tuple(Operator(self, state, names.get(state.operator_id)) for state in self.metadata.operator_states)

    def operator(self, name: str) -> Operator:
        """An operator by uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        by_uid = compute_operator_id(name)
        for operator in self.operators:
            if name in (operator.id, operator.metadata.uid) or operator.metadata.operator_id == by_uid:
                uid = operator.uid or (None if name == operator.id else name)
                return Operator(self, operator.metadata, uid)
        named = [operator for operator in self.operators if operator.metadata.name == name]
        if len(named) == 1:
            return named[0]
        known = ", ".join(operator.label for operator in self.operators)
        raise NotFoundError(
            f"the snapshot has no operator {name}",
            where=Where(file=str(self.location.metadata)),
            hint=f"It has {known}" if known else "It has no operators at all",
        )

    @cached_property
    def layout_context(self) -> LayoutContext:
        """What the layouts of data depend on beyond their serializers (see `LayoutContext`)."""
        serializers = [*self.keyed_files.serializers()]
        for operator in self.metadata.operator_states:
            for subtask in operator.subtasks:
                try:
                    source = self.handles.open_operator(subtask.managed_operator_state)
                except StateError:
                    # Whoever asks for that state is told; here it has nothing to give.
                    continue
                infos = () if source is None else (*source.header.lists, *source.header.broadcasts)
                serializers += [serializer for info in infos for _, serializer in info.serializers]
        subclasses = collect_subclasses(serializers)
        return LayoutContext(self.kryo_version, subclasses, self.classes, self.declarations.messages)


class Operator:
    """One operator of a snapshot.

    Attributes:
        snapshot: the snapshot.
        metadata: what `_metadata` says of the operator.
        uid: uid, when the snapshot stores it or the caller knows it.
    """

    def __init__(self, snapshot: Snapshot, metadata: OperatorState, uid: str | None = None) -> None:
        self.snapshot = snapshot
        self.metadata = metadata
        self.uid = metadata.uid or uid

    @property
    def id(self) -> str:
        """Operator id, 32 hexadecimal digits."""
        return format_operator_id(self.metadata.operator_id)

    @property
    def name(self) -> str | None:
        """Operator name; Flink stores it from 2.0 on."""
        return self.metadata.name

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not known."""
        return self.uid or self.id

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""
        return self.metadata.parallelism

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self.metadata.max_parallelism

    @property
    def record_context(self) -> RecordContext:
        """What finding records of its keyed state takes beyond the bytes."""
        return RecordContext(self.max_parallelism, self.snapshot.layout_context)

    @cached_property
    def keyed_size(self) -> int:
        """Bytes of keyed state that the handles name, managed and raw; nothing is read."""
        return sum(
            _handle_size(reference.handle)
            for reference in operator_handles(self.metadata)
            if reference.category in (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        )

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Keyed states and timers, then operator list states, then broadcast states, then raw states.

        Raises:
            StateError: a handle cannot be read, or is of a format that is not covered; see `survey`.
        """
        return tuple(self._iter_states())

    def survey(self, *, in_flight: bool = False) -> Survey:
        """The states as far as they can be read, and what cannot.

        Args:
            in_flight: the data in flight too.
        """
        return survey(self, in_flight=in_flight)

    def _iter_states(self) -> Iterator[State]:
        yield from self.keyed_states
        yield from self.operator_states
        yield from self.raw_states

    def state(self, name: str) -> State:
        """A state by name (of Python functions also that in Python), keyed first; `_in_flight_data` is `in_flight`.

        Raises:
            NotFoundError: there is none; the error lists what there is.
            StateError: a handle cannot be read; other kinds of state than those up to the wanted one are not touched.
        """
        in_python = None
        for state in self._iter_states():
            if state.name == name:
                return state
            if state.python_name == name and in_python is None:
                in_python = state
        if in_python is not None:
            return in_python
        if name == IN_FLIGHT_NAME and self.in_flight is not None:
            return self.in_flight
        known = ", ".join(state.label for state in self.states)
        raise NotFoundError(
            f"the operator has no state {name}",
            where=Where(file=str(self.snapshot.location.metadata), operator=self.label),
            hint=f"It has {known}" if known else "It has no states",
        )

    def find_python_type(self, info: StateMetaInfo) -> PythonDeclaration | None:
        """The declared type of a state of a Python function; None when there is none."""
        types = self.snapshot.python_types.get(self.metadata.operator_id, {})
        name = python_name(info)
        return types.get(name, types.get(info.name)) if name else None

    def make_table(self, options: OperatorTableOptions | None = None) -> OperatorTable:
        """What turns the records of the keyed states into one table, see `batches`."""
        options = options or OperatorTableOptions()
        with at(operator=self.label):
            return OperatorTable(self.choose_states(options), options)

    def choose_states(self, options: OperatorTableOptions) -> list[StateLayout]:
        """The keyed states that take part in one table.

        Raises:
            UsageError: there are none.
            NotFoundError: `options` names a state that is not there.
            UnsupportedError: the keys of a state are not known, or subtasks have different ones.
        """
        keyed = {state.name: state for state in self.keyed_states}
        names = {state.python_name: state.name for state in self.keyed_states}
        wanted = {names.get(name, name) if name not in keyed else name for name in options.states or ()}
        if options.states is None:
            wanted = set(keyed)
        for name in wanted - set(keyed):
            raise NotFoundError(
                f"the operator has no keyed state {name}",
                where=Where(operator=self.label),
                hint=f"It has {', '.join(keyed)}" if keyed else "It has none at all",
            )
        timers = {name for name, state in keyed.items() if state.kind == TIMER}
        if options.states is None:
            wanted -= timers
        if options.timers:
            wanted |= timers
        chosen = [state for name, state in keyed.items() if name in wanted]
        if not chosen:
            hint = "Name one of its other states (--state, stateVarName of Spark)" if self.states else ""
            if keyed:
                hint = "It has timers, which take part when asked for (--timers, readRegisteredTimers of Spark)"
            raise UsageError("the operator has no keyed state", where=Where(operator=self.label), hint=hint)
        for state in chosen:
            if state.comes_by_key_group:
                raise UnsupportedError(
                    state.find_layout()[1],
                    where=Where(operator=self.label, state=state.name),
                    hint="Read this state alone (--state, stateVarName), and the others by name (--states, states)",
                )
        layouts = [state.table_layout for state in chosen]
        if len({unmeasured(dict(each.key.fields)["state_key"]) for each in layouts}) > 1:
            raise UnsupportedError(
                "the subtasks hold keys with different serializers",
                where=Where(operator=self.label),
                hint="Read its states one by one (--state, stateVarName of Spark), or let the job touch every key once",
            )
        return layouts

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
        """All keyed states as one table, a row per key and namespace, a batch at a time.

        Args:
            options: what is wanted; default all keyed states, without timers.
            key_groups: only these.

        Raises:
            StateError: the state cannot be read, or has no such table; see `OperatorTable`.
        """
        table = self.make_table(options)
        with at(operator=self.label):
            for subtask, files in group_files(self.keyed_files).items():
                yield from table.batches(files, subtask, self.record_context, key_groups)

    def batches_by_state(
        self,
        names: Collection[str] | None = None,
        options: TableOptions | None = None,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of keyed states and timers, each file read once: the name of a state, and a batch of its rows.

        Reading the states one after the other reads files of the canonical and heap formats, which hold all of them,
        as often.

        Args:
            names: of states; default all.
            options: which columns; default all.
            key_groups: only these.

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
    def keyed_files(self) -> tuple[tuple[int, KeyedFile], ...]:
        """Index of each subtask that has keyed state, and its file."""
        return self.snapshot.keyed_files.open(self.metadata, self.snapshot.layout_context)

    @property
    def stored_files(self) -> tuple[KeyedFile, ...]:
        """The files of its keyed state with the key groups that handles store; see `KeyedFiles.open_stored`."""
        return self.snapshot.keyed_files.open_stored(self.metadata, self.snapshot.layout_context)

    @cached_property
    def keyed_states(self) -> tuple[KeyedState, ...]:
        """Keyed states and timers; errors as of `states`."""
        found, failures = survey_keyed(self)
        raise_first(failures)
        return found

    @cached_property
    def operator_states(self) -> tuple[State, ...]:
        """List states, then broadcast states, of which only headers are read; errors as of `states`."""
        found, failures = survey_operator(self)
        raise_first(failures)
        return found

    def declare_broadcast(self, info: StateMetaInfo) -> StateMetaInfo:
        """The meta info of a broadcast state with the types that are declared of it."""
        declared = self.find_python_type(info)
        return info if declared is None else declare_types(info, declared, "MAP")

    @cached_property
    def raw_states(self) -> tuple[State, ...]:
        """Raw keyed state that is not timers, keyed state without a header, raw operator state; errors as `states`."""
        self.snapshot.keyed_files.find_unread(self.metadata, self.snapshot.layout_context)
        found, failures = survey_raw(self)
        raise_first(failures)
        return found

    @cached_property
    def in_flight(self) -> InFlightState | None:
        """In-flight data of an unaligned checkpoint; None when there is none. It is not among `states`."""
        parts = tuple(
            InFlightPart(subtask.index, self.snapshot.handles.open_stream(handle.delegate), handle, direction)
            for subtask in self.metadata.subtasks
            for direction, channels in (
                (ChannelDirection.INPUT, subtask.input_channel_state),
                (ChannelDirection.OUTPUT, subtask.result_subpartition_state),
            )
            for handle in channels
        )
        return InFlightState(self, parts) if parts else None


def _handle_size(handle: object) -> int:
    data = getattr(handle, "data", None)
    return len(data) if data is not None else int(getattr(handle, "size", 0))
