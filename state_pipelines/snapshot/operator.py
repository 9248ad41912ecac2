"""An operator of a snapshot and its states."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.errors import NotFoundError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.keys.key_hashes import find_key_group
from state_pipelines.keyed.tables.key_rows import unmeasured
from state_pipelines.keyed.tables.operator_table import OperatorTable, OperatorTableOptions, group_files
from state_pipelines.metadata import format_operator_id
from state_pipelines.metadata.channel_handles import ChannelDirection
from state_pipelines.metadata.references import StateCategory, operator_handles
from state_pipelines.snapshot.held_key_groups import find_held_key_groups
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState, read_states
from state_pipelines.snapshot.list_state import NonKeyedState
from state_pipelines.snapshot.python_states import declare_types, python_name
from state_pipelines.snapshot.raw_state import IN_FLIGHT_NAME, InFlightPart, InFlightState
from state_pipelines.snapshot.representation import describe_operator, make_operator_html
from state_pipelines.snapshot.survey import Survey, raise_first, survey, survey_keyed, survey_operator, survey_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.tables.operator_columns import StateLayout
    from state_pipelines.keyed.tables.state_table import TableOptions
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot.snapshot import Snapshot
    from state_pipelines.snapshot.state import State


class Operator:
    """One operator of a snapshot.

    Attributes:
        snapshot: the snapshot.
        metadata: what `_metadata` says of the operator.
        uid: uid, when the snapshot stores it or the caller knows it.
        is_partial: state in files that cannot be read is left out; else asking for it raises the error of the file.
    """

    def __init__(
        self, snapshot: Snapshot, metadata: OperatorState, uid: str | None = None, *, is_partial: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.metadata = metadata
        self.uid = metadata.uid or uid
        self.is_partial = is_partial

    def __repr__(self) -> str:
        return f"<Operator {describe_operator(self)}>"

    def _repr_html_(self) -> str:
        """Show the states, in notebooks."""
        return make_operator_html(self)

    @cached_property
    def readable(self) -> Operator:
        """The operator without the state in files that cannot be read; `find_failures` says what is left out."""
        return Operator(self.snapshot, self.metadata, self.uid, is_partial=True)

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
            measure_handle(reference.handle)
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

    def find_failures(self, state: State | None, key_groups: KeyGroupRange | None = None) -> list[StateError]:
        """Errors of the files that cannot be read and may hold records of a state.

        Args:
            state: the state; None: any keyed state.
            key_groups: only files that hold some of these.
        """
        if isinstance(state, NonKeyedState):
            return [failure.error for failure in survey_operator(self)[1]]
        if state is not None and not isinstance(state, KeyedState):
            return [failure.error for failure in survey_raw(self)[1]]
        held = find_held_key_groups(self.metadata)
        return [
            failure.error
            for failure in survey_keyed(self)[1]
            if key_groups is None or failure.subtask not in held or held[failure.subtask].intersect(key_groups).number
        ]

    def _iter_states(self) -> Iterator[State]:
        yield from self.keyed_states
        yield from self.operator_states
        yield from self.raw_states

    def state(self, name: str) -> State:
        """A state by name (of Python functions also that in Python), keyed first; `_in_flight_data` is `in_flight`.

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
                # State of another kind is in other files.
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
            for error in self.find_failures(None):
                raise error
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
        key_groups = self.narrow_key_groups(table.needle, key_groups)
        with at(operator=self.label):
            for subtask, files in group_files(self.keyed_files).items():
                if key_groups is not None and not any(each.key_groups.intersect(key_groups) for each in files):
                    continue
                yield from table.batches(files, subtask, self.record_context, key_groups)

    def narrow_key_groups(
        self, key: npt.NDArray[np.uint8] | None, key_groups: KeyGroupRange | None = None
    ) -> KeyGroupRange | None:
        """Narrow a range of key groups to that of a key, so that no other is read.

        Args:
            key: u8, the key as its serializer writes it; None for all keys.
            key_groups: range that is asked for; None for all key groups.

        Returns:
            The range, empty when the key is in another key group; `key_groups` where the hash of the key is not known.
        """
        if key is None or not self.keyed_files:
            return key_groups
        serializer, layouts = self.keyed_files[0][1].header.key_serializer, self.snapshot.layout_context
        found = find_key_group(serializer, layouts, key, self.max_parallelism)
        if found is None:
            return key_groups
        return found if key_groups is None else found.intersect(key_groups)

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
        if self.is_partial:
            return self.snapshot.keyed_files.survey(self.metadata, self.snapshot.layout_context)[0]
        return self.snapshot.keyed_files.open(self.metadata, self.snapshot.layout_context)

    @property
    def stored_files(self) -> tuple[KeyedFile, ...]:
        """The files of its keyed state with the key groups that handles store; see `KeyedFiles.open_stored`."""
        return self.snapshot.keyed_files.open_stored(self.metadata, self.snapshot.layout_context)

    @cached_property
    def keyed_states(self) -> tuple[KeyedState, ...]:
        """Keyed states and timers; errors as of `states`."""
        found, failures = survey_keyed(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    @cached_property
    def operator_states(self) -> tuple[State, ...]:
        """List states, then broadcast states, of which only headers are read; errors as of `states`."""
        found, failures = survey_operator(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    def declare_broadcast(self, info: StateMetaInfo) -> StateMetaInfo:
        """The meta info of a broadcast state with the types that are declared of it."""
        declared = self.find_python_type(info)
        return info if declared is None else declare_types(info, declared, "MAP")

    @cached_property
    def raw_states(self) -> tuple[State, ...]:
        """Raw keyed state that is not timers, keyed state without a header, raw operator state; errors as `states`."""
        found, failures = survey_raw(self)
        if not self.is_partial:
            self.snapshot.keyed_files.find_unread(self.metadata, self.snapshot.layout_context)
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


def measure_handle(handle: object) -> int:
    """Bytes of state that a handle names; nothing is read."""
    data = getattr(handle, "data", None)
    return len(data) if data is not None else int(getattr(handle, "size", 0))
