"""List state of an operator: split or union redistribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Columns, explain, plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError, UsageError, at
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operatorstate import OperatorStateFile, decode_list_state
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.connector_states import (
    CONNECTOR_COLUMN,
    NOTHING_DETECTED,
    SPLIT_COLUMN,
    Detected,
    find_connector,
    may_be_known,
)
from state_pipelines.snapshot.state import State
from state_pipelines.snapshot.subtask_states import StateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operatorstate import UnreadOperatorState
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.operator_files import OperatorFiles

Spans = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class NonKeyedSubtaskState:
    """The state of one subtask; read whenever it is asked for, and not held. Can be sent to other processes.

    Attributes:
        subtask: index of the subtask.
        unread: the file that holds it.
        info: what the header of the file says of it.
    """

    subtask: int
    unread: UnreadOperatorState
    info: StateMetaInfo

    @property
    def name(self) -> str:
        """Name of the file, for errors."""
        return self.unread.name

    @property
    def number(self) -> int:
        """Elements of a list state; nothing is read."""
        return sum(len(each.offsets) for each in self.unread.handle.states if each.state_name == self.info.name)

    def read(self) -> OperatorStateFile:
        """The file with all its states."""
        return self.unread.read()

    def elements(self) -> Spans:
        """Bytes, and where each element of a list state starts and at most ends."""
        return self.read().elements(self.info.name)

    def entries(self) -> tuple[npt.NDArray[np.uint8], int, int, int]:
        """Bytes, where the pairs of a broadcast state start and at most end, and how many there are."""
        return self.read().broadcast(self.info.name)


class ValueColumn:
    """Columns of what all subtasks wrote, or why there are none.

    Args:
        serializers: one per subtask.
        options: what is wanted.
        context: what layouts depend on beyond serializers.
    """

    def __init__(self, serializers: Iterable[Serializer], options: TableOptions, context: LayoutContext) -> None:
        self.columns: Columns | None = None
        self.reason = ""
        self._asked = {"reason", "value_bytes"} & set(options.columns or ())
        if options.raw:
            return
        try:
            layouts = {derive_layout(each, context) for each in serializers}
            if len(layouts) > 1:
                raise UnsupportedError("the subtasks hold the state with different serializers")
            self.columns = plan_columns(layouts.pop())
        except UnsupportedError as error:
            self.reason = explain(error)

    @property
    def keeps_bytes(self) -> bool:
        """Whether there are columns for the values that cannot be decoded."""
        return self.columns is not None and (self.columns.may_fail or bool(self._asked))


@dataclass(frozen=True)
class NonKeyedTable(ABC):
    """Turns what subtasks have of an operator state into batches; can be sent to other processes.

    Attributes:
        infos: what the subtasks say of the state, each only once.
        options: what is wanted.
        context: what layouts depend on beyond serializers.
    """

    infos: tuple[StateMetaInfo, ...]
    options: TableOptions
    context: LayoutContext

    def __getstate__(self) -> dict[str, object]:
        # What is derived from the fields is derived again elsewhere.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def value(self) -> ValueColumn:
        """Columns for the values of all subtasks."""
        return ValueColumn((each.value_serializer for each in self.infos), self.options, self.context)

    @property
    @abstractmethod
    def undecoded(self) -> str:
        """Why values come as bytes; empty when they do not."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of the batches.

        Raises:
            UsageError: a wanted column does not exist.
        """

    @abstractmethod
    def batches(self, subtask_states: Sequence[NonKeyedSubtaskState]) -> Iterator[pa.RecordBatch]:
        """A batch per subtask, each read when it is its turn."""

    def cut(self, first: int, number: int) -> Self:
        """The table for subtasks that have `number` elements, the first of which is element `first` of the state."""
        return self


class NonKeyedState(State):
    """Common base of list and broadcast state: a list per subtask, and no keys."""

    subtask_states: tuple[NonKeyedSubtaskState, ...]

    def __init__(self, operator: OperatorFiles, subtask_states: tuple[NonKeyedSubtaskState, ...]) -> None:
        super().__init__(operator)
        self.subtask_states = subtask_states

    @property
    def info(self) -> StateMetaInfo:  # noqa: D102
        return self.subtask_states[0].info

    @property
    def is_keyed(self) -> bool:  # noqa: D102
        return False

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """The distinct meta infos that the subtasks store for the state."""
        return tuple(dict.fromkeys(subtask_state.info for subtask_state in self.subtask_states))

    @abstractmethod
    def make_table(self, options: TableOptions | None = None) -> NonKeyedTable:
        """The table that turns the subtasks' states into batches."""

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:  # noqa: D102
        return self.make_table(options).schema

    def batches(  # noqa: D102
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        if key_groups is not None:
            raise UsageError("operator state has no key groups")
        with at(operator=self.operator.label, state=self.name):
            yield from self.make_table(options).batches(self.subtask_states)

    def split(
        self, size: int, options: TableOptions | None = None
    ) -> Iterator[tuple[tuple[NonKeyedSubtaskState, ...], NonKeyedTable]]:
        """Groups of subtasks whose files have about `size` bytes together, and the table for them; nothing is read."""
        table = self.make_table(options)
        first = 0
        for subtask_states in _group_subtasks(self.subtask_states, size):
            number = sum(subtask_state.number for subtask_state in subtask_states)
            yield subtask_states, table.cut(first, number)
            first += number


def _group_subtasks(
    subtask_states: Iterable[NonKeyedSubtaskState], size: int
) -> Iterator[tuple[NonKeyedSubtaskState, ...]]:
    group: list[NonKeyedSubtaskState] = []
    total = 0
    for subtask_state in subtask_states:
        if group and total + subtask_state.unread.stream.size > size:
            yield tuple(group)
            group, total = [], 0
        group.append(subtask_state)
        total += subtask_state.unread.stream.size
    if group:
        yield tuple(group)


@dataclass(frozen=True)
class ListTable(NonKeyedTable):
    """Turns what subtasks have of a list state into batches; see `OperatorListState` for the columns.

    Attributes:
        detected: the connector, and the splits of the elements of all subtasks.
    """

    detected: Detected = NOTHING_DETECTED

    @property
    def _spread(self) -> Detected:
        """The splits that rows are made of; none where no column shows them, and every element is one row."""
        wanted = self.options.columns
        shown = wanted is None or {CONNECTOR_COLUMN, SPLIT_COLUMN} & set(wanted)
        return self.detected if shown else NOTHING_DETECTED

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.value.reason

    @cached_property
    def schema(self) -> pa.Schema:  # noqa: D102
        column = self.value
        found = [pa.field("subtask", pa.int32(), False), pa.field("list_index", pa.int32(), False)]
        may_fail = column.keeps_bytes
        if column.columns is not None:
            found.append(pa.field("value", column.columns.type))
        if column.columns is None or may_fail:
            found.append(pa.field("value_bytes", pa.binary(), may_fail))
        if column.reason or may_fail:
            found.append(pa.field("reason", pa.string(), may_fail))
        split = self._spread.fields
        if split:
            # They stand in the first row of an element only.
            once = ("value", "value_bytes", "reason")
            found = [each.with_nullable(True) if each.name in once else each for each in found]
        return select_fields([*found, *split], self.options)

    def batches(self, subtask_states: Sequence[NonKeyedSubtaskState]) -> Iterator[pa.RecordBatch]:  # noqa: D102
        column, schema = self.value, self.schema
        first = 0
        for subtask_state in subtask_states:
            with at(file=subtask_state.name):
                file = subtask_state.read()
                data, starts, ends = file.elements(subtask_state.info.name)
                columns = {
                    "subtask": pa.array(np.full(len(starts), subtask_state.subtask, np.int32)),
                    "list_index": pa.array(np.arange(len(starts), dtype=np.int32)),
                    "reason": pa.array([column.reason] * len(starts), pa.string()),
                }
                raw = plan_columns(lay.Rest()).decode(data, starts, ends).array
                if column.columns is None:
                    columns["value_bytes"] = raw
                else:
                    decoded = decode_list_state(
                        file, subtask_state.info, self.context, lenient="reason" in schema.names
                    )
                    columns["value"] = decoded.array
                    columns["reason"] = decoded.reasons()
                    columns["value_bytes"] = pc.if_else(columns["reason"].is_valid(), raw, None)
            if self._spread.state is not None:
                columns = _spread(columns, self.detected, first)
            first += len(starts)
            yield pa.RecordBatch.from_arrays([columns[each] for each in schema.names], schema=schema)

    def cut(self, first: int, number: int) -> ListTable:  # noqa: D102
        return replace(self, detected=self.detected.cut(first, number))


class OperatorListState(NonKeyedState):
    """A list state of an operator.

    Columns: `subtask` int32, `list_index` int32 (position in the subtask's list), `value`; also `value_bytes` and
    `reason` for elements that cannot be decoded, where that may well be or they are asked for.

    The state of a known connector has two more, `connector` and `split`, a struct of the connector's columns, and one
    row per split or committable. An element that holds several has as many rows with its `list_index`; `value`,
    `value_bytes` and `reason` stand in the first of them. An element that holds none has one row without `split`.
    """

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return self.info.distribution_mode or StateKind.SPLIT_DISTRIBUTE

    @cached_property
    def detected(self) -> Detected:
        """The connector that the state is that of; elements are looked at only where name and serializer fit one.

        Raises:
            UsageError: several connectors fit, and the one that the caller named is not among them.
        """
        serializers = [subtask_state.info.value_serializer for subtask_state in self.subtask_states]
        if not may_be_known(self.name, serializers):
            return NOTHING_DETECTED
        snapshot = self.operator.snapshot
        chosen = snapshot.connectors.get(self.operator.metadata.operator_id)
        with at(operator=self.operator.label, state=self.name):
            elements = []
            for subtask_state in self.subtask_states:
                data, starts, ends = subtask_state.elements()
                elements += [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
            return find_connector(self.name, serializers, elements, snapshot.layout_context, chosen)

    def _find_split(self, options: TableOptions) -> Detected:
        """The columns of the connector that are wanted; none for a table that does not show them."""
        wanted = options.columns
        if options.raw or (wanted is not None and not {CONNECTOR_COLUMN, SPLIT_COLUMN} & set(wanted)):
            return NOTHING_DETECTED
        try:
            return self.detected
        except (FormatError, MissingFileError):
            # Reading the rows of the damaged file raises it again; the others are shown without columns of a connector.
            return NOTHING_DETECTED

    @cached_property
    def undecoded(self) -> str:  # noqa: D102
        return ListTable(self.infos, TableOptions(), self.operator.snapshot.layout_context).undecoded

    def make_table(self, options: TableOptions | None = None) -> ListTable:  # noqa: D102
        options = options or TableOptions()
        return ListTable(self.infos, options, self.operator.snapshot.layout_context, self._find_split(options))

    def count(self) -> StateStatistics:  # noqa: D102
        number = size = 0
        with at(operator=self.operator.label, state=self.name):
            for subtask_state in self.subtask_states:
                _, starts, ends = subtask_state.elements()
                number += len(starts)
                size += int((ends - starts).sum())
        return StateStatistics(number, size)


def _spread(columns: Mapping[str, pa.Array], detected: Detected, first: int) -> dict[str, pa.Array]:
    """The columns of some elements, a row per split; `first` is the position of the first element."""
    elements, leading, splits = detected.spread(first, len(columns["list_index"]))
    every, once = pa.array(elements), pa.array(elements, mask=~leading)
    spread = {
        name: column.take(every if name in ("subtask", "list_index") else once) for name, column in columns.items()
    }
    assert detected.state is not None
    names = pa.array([detected.state.connector] * len(elements), pa.string())
    return spread | {CONNECTOR_COLUMN: names, SPLIT_COLUMN: splits}


def select_fields(fields: list[pa.Field], options: TableOptions | None) -> pa.Schema:
    """Only the wanted columns, in the order of the wish.

    Raises:
        UsageError: a wanted column does not exist.
    """
    if options is None or options.columns is None:
        return pa.schema(fields)
    by_name = {each.name: each for each in fields}
    for name in options.columns:
        if name not in by_name:
            raise UsageError(f"the state has no column {name}", hint=f"it has {', '.join(by_name)}")
    return pa.schema([by_name[name] for name in options.columns])
