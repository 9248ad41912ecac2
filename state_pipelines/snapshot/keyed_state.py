"""Keyed state and timers of an operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.scalar import read_value, unknown_class
from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.heap_entries import has_opaque
from state_pipelines.keyed.operator_columns import StateLayout
from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords, derive_keyed_layout
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.metadata.handles import MAX_PARALLELISM
from state_pipelines.metadata.streams import KEPT
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo, keyed_state
from state_pipelines.serializers.tree import Declared, Opaque, StateKind, walk
from state_pipelines.snapshot.handle_readers import StateStatistics
from state_pipelines.snapshot.snapshot_files import narrow_key_groups, scan_files
from state_pipelines.snapshot.state import (
    SAMPLE_SIZE,
    PythonGuess,
    State,
    declare_types,
    find_declaration,
    find_kind,
    guess_type,
    python_name,
    read_arrays,
)
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.snapshot_files import OperatorFiles


@dataclass(frozen=True)
class KeyedSubtaskState:
    """A keyed state in one subtask.

    Attributes:
        subtask: index of the subtask.
        file: the file that holds the state, opened to show records (`RecordContext.by_block` is set).
        state_id: index of the state in the header of the file.
    """

    subtask: int
    file: KeyedFile
    state_id: int

    def narrow(self, table: KeyedTable) -> KeyedSubtaskState:
        """Return the state limited to the range of the file that may hold records for a table (`KeyedTable.narrow`)."""
        return replace(self, file=table.narrow(self.file))

    def records(self, key_groups: KeyGroupRange | None = None) -> Iterator[KeyedRecords]:
        """Yield the records of the state in this subtask, a window at a time."""
        for _, records in self.file.scan([self.state_id], key_groups):
            yield records


def read_states(
    states: Sequence[KeyedState], options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of several states of one operator as (name of the state, batch of rows); each file is read once.

    Args:
        states: the states.
        options: selection of columns; by default all.
        key_groups: key groups to read; by default all.

    Raises:
        StateError: a state cannot be read.
    """
    files = group_by_file(states)
    tables = {state.name: state.make_table(options) for state in states}
    if options is not None and options.key is not None and states:
        key_groups = narrow_key_groups(states[0].operator, tables[states[0].name].needle, key_groups)
    if key_groups is not None:
        files = [wanted for wanted in files if wanted[0][0].file.key_groups.intersect(key_groups)]

    def scan(wanted: list[tuple[KeyedSubtaskState, KeyedState]]) -> Iterator[tuple[int, KeyedRecords]]:
        ((subtask_state, state), *_) = wanted
        file = tables[state.name].narrow(subtask_state.file)
        return file.scan([subtask_state.state_id for subtask_state, _ in wanted], key_groups)

    for wanted, found in scan_files(states[0].operator, files, scan) if states else ():
        ((subtask_state, state), *_) = wanted
        names = {subtask_state.state_id: state.name for subtask_state, state in wanted}
        with at(operator=state.operator.label, state=state.name if len(wanted) == 1 else None):
            for state_id, records in found:
                name = names[state_id]
                with at(state=name):
                    batch = tables[name].make_batch(records, subtask_state.subtask)
                yield name, batch


def count_states(states: Sequence[KeyedState]) -> dict[str, StateStatistics]:
    """Count the entries of several states of one operator, each file read once; by name of the state.

    Raises:
        StateError: the records of a state cannot be found.
        FormatError: the max parallelism is not one of Flink's, or a record is in a key group above it.
    """
    for state in states:
        if not 0 < state.operator.max_parallelism <= MAX_PARALLELISM:
            raise _outside(f"max parallelism {state.operator.max_parallelism}", f"1 to {MAX_PARALLELISM}", state)
    groups = {state.name: np.zeros(state.operator.max_parallelism, np.int64) for state in states}
    sizes = dict.fromkeys(groups, 0)

    def scan(wanted: list[tuple[KeyedSubtaskState, KeyedState]]) -> Iterator[tuple[int, KeyedRecords]]:
        return wanted[0][0].file.scan([subtask_state.state_id for subtask_state, _ in wanted])

    for wanted, found in scan_files(states[0].operator, group_by_file(states), scan) if states else ():
        state = wanted[0][1]
        names = {subtask_state.state_id: state.name for subtask_state, state in wanted}
        with at(operator=state.operator.label, state=state.name if len(wanted) == 1 else None):
            for state_id, records in found:
                name = names[state_id]
                if len(records) and int(records.key_groups.max()) >= len(groups[name]):
                    raise _outside(f"key group {records.key_groups.max()}", f"0 to {len(groups[name]) - 1}", state)
                groups[name] += np.bincount(records.key_groups, minlength=len(groups[name]))
                sizes[name] += int((records.key_ends - records.key_starts).sum())
                sizes[name] += int((records.value_ends - records.value_starts).sum())
    return {name: _make_statistics(groups[name], sizes[name]) for name in groups}


def _outside(what: str, possible: str, state: KeyedState) -> FormatError:
    where = Where(file=str(state.operator.snapshot.location.metadata), operator=state.operator.label)
    return FormatError(
        f"{what} is not possible, only {possible}", where=where, hint="The metadata are damaged: use another snapshot"
    )


def _make_statistics(groups: npt.NDArray[np.int64], size: int) -> StateStatistics:
    present = np.flatnonzero(groups)
    return StateStatistics(int(groups.sum()), size, {int(group): int(groups[group]) for group in present})


def group_by_file(states: Sequence[KeyedState]) -> list[list[tuple[KeyedSubtaskState, KeyedState]]]:
    """Group the subtask states of several states of one operator by file; each comes with its state."""
    # Grouped by object identity, because hashing the files would take longer.
    files: dict[int, list[tuple[KeyedSubtaskState, KeyedState]]] = {}
    for state in states:
        for subtask_state in state.subtask_states:
            files.setdefault(id(subtask_state.file), []).append((subtask_state, state))
    return list(files.values())


def hold_states(states: Sequence[KeyedState]) -> list[KeyedState]:
    """Prepare keyed states of one operator for reading them one after the other.

    Files on remote storage are read into memory once, unless the keyed state of the operator is larger than `KEPT`.

    Raises:
        StorageError: the storage fails.
    """
    if not states:
        return []
    operator = states[0].operator
    directory = operator.snapshot.location.directory
    if is_local(directory) or operator.keyed_size > KEPT:
        return list(states)
    files = {id(subtask_state.file): subtask_state.file for state in states for subtask_state in state.subtask_states}
    held = dict(zip(files, do_together([each.hold for each in files.values()], directory), strict=True))
    return [
        KeyedState(state.operator, tuple(replace(each, file=held[id(each.file)]) for each in state.subtask_states))
        for state in states
    ]


def _require_known(headers: Iterable[KeyedHeader]) -> None:
    """Raise the error of the first serializer snapshot in the headers that cannot be read, if any."""
    for header in headers:
        for info in header.states:
            for serializer in (header.key_serializer, *(each for _, each in info.serializers)):
                for node in walk(serializer):
                    if isinstance(node, Opaque) and not isinstance(node, Declared):
                        raise unknown_class(node)


class KeyedState(State):
    """A keyed state, or the timers of one service and time domain.

    Attributes:
        subtask_states: the state in each subtask that has it.
    """

    subtask_states: tuple[KeyedSubtaskState, ...]

    def __init__(self, operator: OperatorFiles, subtask_states: tuple[KeyedSubtaskState, ...]) -> None:
        super().__init__(operator)
        self.subtask_states = subtask_states

    @property
    def stored_info(self) -> StateMetaInfo:
        """The meta info as the first subtask wrote it, without declared types."""
        return self.subtask_states[0].file.header.states[self.subtask_states[0].state_id]

    # The name is taken from `stored_info`, because `info` may read records to find declared types.
    @property
    def name(self) -> str:  # noqa: D102
        return self.stored_info.name

    @property
    def python_name(self) -> str:  # noqa: D102
        return python_name(self.stored_info)

    @cached_property
    def info(self) -> StateMetaInfo:  # noqa: D102
        return self._declare(self.stored_info)

    @property
    def kind(self) -> StateKind:  # noqa: D102
        if self.info.backend_type is BackendStateType.PRIORITY_QUEUE:
            return StateKind.TIMER
        if self._declared is not None:
            return self._declared.kind or StateKind.UNKNOWN
        return self.info.state_type or StateKind.UNKNOWN

    @cached_property
    def _declared(self) -> PythonDeclaration | None:
        """The declared type and kind of a state of a Python function; None if no type is declared."""
        types = self.operator.snapshot.python_types.get(self.operator.metadata.operator_id)
        declared = find_declaration(self.stored_info, types)
        return None if declared is None else find_kind(self.stored_info, declared, self._sample_arrays())

    def _declare(self, info: StateMetaInfo) -> StateMetaInfo:
        if self._declared is None or not python_name(info):
            return info
        with at(operator=self.operator.label):
            return declare_types(info, self._declared, self._declared.kind or StateKind.UNKNOWN)

    @cached_property
    def guess(self) -> PythonGuess | None:
        """The type guessed for a state of a Python function without a declared type; None for all other states."""
        if not self.python_name or self._declared is not None:
            return None
        return guess_type(self.stored_info, list(self._sample_arrays()))

    def _sample_arrays(self) -> Iterator[Sequence[bytes]]:
        """Yield the byte arrays in the first records of each subtask, from which types are guessed."""
        with at(operator=self.operator.label, state=self.name):
            for subtask_state in self.subtask_states:
                info = subtask_state.file.header.states[subtask_state.state_id]
                bare = derive_keyed_layout(
                    info, self.key_serializer, self.operator.max_parallelism, self.operator.snapshot.layout_context
                ).key
                before = lay.Struct(tuple(each for each in bare.fields if each[0] != "map_key"))
                for records in subtask_state.records():
                    first = records.cut(0, SAMPLE_SIZE)
                    data = first.data.tobytes()
                    for row in range(len(first)):
                        key = Reader(data, first.file, int(first.key_starts[row]), int(first.key_ends[row]))
                        read_value(before, key, tail=False)
                        value = data[int(first.value_starts[row]) : int(first.value_ends[row])]
                        yield read_arrays(info, key.take(key.remaining), value)
                    if len(first):
                        break

    @property
    def is_keyed(self) -> bool:  # noqa: D102
        return True

    @property
    def key_serializer(self) -> Serializer:
        """Serializer of the keys of the operator."""
        return self.subtask_states[0].file.header.key_serializer

    @property
    def value_serializer(self) -> Serializer:
        """Serializer of the values; of the element where Java stores a single value of a Python function as a list."""
        return self._choose_value(self.info)

    def _choose_value(self, info: StateMetaInfo) -> Serializer:
        return (
            info.element if info.state_type == StateKind.LIST and self.kind != StateKind.LIST else info.value_serializer
        )

    def find_subtask_serializers(self, subtask_state: KeyedSubtaskState) -> tuple[Serializer, Serializer, Serializer]:
        """Return the serializers of key, namespace and value of a subtask; for timers, the last two are the timer's."""
        header = subtask_state.file.header
        info = self._declare(header.states[subtask_state.state_id])
        value = self._choose_value(info)
        return header.key_serializer, value if self.kind == StateKind.TIMER else info.namespace_serializer, value

    @property
    def key_groups(self) -> tuple[KeyGroupRange, ...]:
        """Key-group ranges of the subtasks that have the state."""
        return tuple(subtask_state.file.key_groups for subtask_state in self.subtask_states)

    @cached_property
    def layout(self) -> KeyedLayout:
        """Layouts of the records.

        Raises:
            UnsupportedError: a serializer has no layout, or subtasks have the state with different serializers.
        """
        return self.derive_layout(self.operator.snapshot.layout_context)

    def derive_layout(self, context: LayoutContext) -> KeyedLayout:
        """Derive the layouts of the records in another context than the snapshot's; errors as for `layout`."""
        operator = self.operator
        found: dict[KeyedLayout, int] = {}
        with at(operator=operator.label, state=self.name):
            for subtask_state, header in self._distinct_headers():
                layout = derive_keyed_layout(
                    self._declare(header.states[subtask_state.state_id]),
                    header.key_serializer,
                    operator.max_parallelism,
                    context,
                )
                found.setdefault(layout, subtask_state.subtask)
            if len(found) > 1:
                _require_known(header for _, header in self._distinct_headers())
                # A subtask that has not accessed the state since a schema change still has the old serializer.
                raise UnsupportedError(
                    f"subtasks {' and '.join(map(str, found.values()))} hold the state with different serializers",
                    hint="Let the job touch every key once, then take a new snapshot",
                )
        return next(iter(found))

    def _distinct_headers(self) -> list[tuple[KeyedSubtaskState, KeyedHeader]]:
        """Return the different headers, each with the first subtask that has it.

        Equal headers are mostly one object (see `parse_header`), so they are compared by identity.
        """
        found: dict[tuple[int, int], tuple[KeyedSubtaskState, KeyedHeader]] = {}
        for subtask_state in self.subtask_states:
            header = subtask_state.file.header
            found.setdefault((id(header), subtask_state.state_id), (subtask_state, header))
        return list(found.values())

    def find_subtask_layout(self, subtask_state: KeyedSubtaskState) -> tuple[KeyedLayout | None, str]:
        """Return the layouts of the records of one subtask and an empty text, or None and the reason."""
        header, operator = subtask_state.file.header, self.operator
        info, layouts = self._declare(header.states[subtask_state.state_id]), operator.snapshot.layout_context
        try:
            with at(operator=operator.label, state=self.name):
                layout = derive_keyed_layout(info, header.key_serializer, operator.max_parallelism, layouts)
        except UnsupportedError as error:
            return None, explain(error)
        if subtask_state.file.lacks_lengths and has_opaque(layout):
            return None, self._explain_blocks()
        return layout, ""

    def find_layout(self) -> tuple[KeyedLayout | None, str]:
        """Return the layouts of the records and an empty text, or None and the reason."""
        try:
            layout = self.layout
        except UnsupportedError as error:
            return None, explain(error)
        if self.comes_by_key_group:
            return None, self._explain_blocks()
        return layout, ""

    @cached_property
    def comes_by_key_group(self) -> bool:
        """Whether all entries of a key group are shown as one record.

        That is so for entries of the heap backend that cannot be decoded, because their ends are not known.
        """
        if not any(subtask_state.file.lacks_lengths for subtask_state in self.subtask_states):
            return False
        try:
            return has_opaque(self.layout)
        except UnsupportedError:
            return False

    def _explain_blocks(self) -> str:
        try:
            _require_known(header for _, header in self._distinct_headers())
        except UnsupportedError as error:
            return f"the entries of a key group cannot be distinguished: {explain(error)}"
        return "the entries of a key group cannot be distinguished"

    @cached_property
    def table_layout(self) -> StateLayout:
        """Layouts for the table of all states of the operator (see `OperatorTable`).

        Raises:
            UnsupportedError: the keys have no layout, or subtasks have different ones.
        """
        layout, reason = self.find_layout()
        if layout is not None:
            return StateLayout(self.name, self.kind, layout.key, layout.value, layout.ttl, label=self.label)
        if self.kind == StateKind.TIMER or len(keys := self._key_layouts()) > 1:
            # `layout` raises its error here: the table of all states needs keys of one layout.
            return StateLayout(self.name, self.kind, self.layout.key, None)
        fields = next(iter(keys)).fields
        if self.kind == StateKind.MAP:
            fields = (*fields, ("map_key", lay.Rest()))
        return StateLayout(self.name, self.kind, lay.Struct(fields), None, reason=reason, label=self.label)

    def _key_layouts(self) -> set[lay.Struct]:
        """Return the layouts of key and namespace in the different headers, even if the values have no layout."""
        found = set()
        with at(operator=self.operator.label, state=self.name):
            for subtask_state, header in self._distinct_headers():
                info = header.states[subtask_state.state_id]
                bare = keyed_state(info.name, StateKind.VALUE, VOID_NAMESPACE, info.namespace_serializer)
                context = self.operator.snapshot.layout_context
                max_parallelism = self.operator.max_parallelism
                found.add(derive_keyed_layout(bare, header.key_serializer, max_parallelism, context).key)
        return found

    def make_table(self, options: TableOptions | None = None) -> KeyedTable:
        """Return the table that converts records of the state to batches."""
        layout, reason = self.find_layout()
        with at(operator=self.operator.label, state=self.name):
            return KeyedTable(layout, options or TableOptions(), reason)

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:  # noqa: D102
        return self.make_table(options).schema

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.make_table().undecoded

    def batches(  # noqa: D102
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        for _, batch in read_states([self], options, key_groups):
            yield batch

    def count(self) -> StateStatistics:  # noqa: D102
        return count_states([self])[self.name]
