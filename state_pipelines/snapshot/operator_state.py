"""Operator state, raw state and data in flight of an operator.

* `OperatorListState`, `OperatorBroadcastState`: list and broadcast state, with their tables.
* `RawKeyedState`, `RawOperatorState`, `InFlightState`: state whose bytes only its operator or Flink's network stack
  knows. Nothing in a snapshot describes such state, so that its tables hold bytes. Operators write raw state through
  `StateInitializationContext.getRawKeyedStateInputs` and `getRawOperatorStateInputs`; timers in raw keyed state are not
  among it, those are decoded (`keyed.raw_timers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import ColumnCodec, explain, plan_columns
from state_pipelines.codecs.serializer_layouts import OpaqueValues, derive_layout
from state_pipelines.connectors import AmbiguousState, ConnectorState, detect, find_candidates
from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError, UsageError, at
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import ChannelDirection
from state_pipelines.metadata.streams import (
    AnyChannelStateHandle,
    ChannelData,
    ChannelSummary,
    StateStream,
    read_channel_data,
    read_whole_stream,
    summarise_channels,
)
from state_pipelines.operatorstate import (
    OperatorStateFile,
    decode_list_state,
    read_broadcast_state,
    read_raw_partitions,
)
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import StateMetaInfo, operator_list
from state_pipelines.serializers.tree import BasicKind, StateKind
from state_pipelines.snapshot.handle_readers import (
    BYTES_FIELDS,
    RAW_KEYED_SCHEMA,
    SUBTASK_FIELD,
    WINDOW,
    RawKeyedSubtaskState,
    StateStatistics,
)
from state_pipelines.snapshot.state import State
from state_pipelines.storage.reading import scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.metadata.handles import KeyGroupRange, OperatorStateHandle
    from state_pipelines.operatorstate import UnreadOperatorState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.snapshot_files import OperatorFiles

CONNECTOR_COLUMN = "connector"
SPLIT_COLUMN = "split"


@dataclass(frozen=True)
class Detected:
    """The connector that wrote an operator list state, as far as it is known.

    Attributes:
        state: the decoded state; None if no known connector fits, or several do.
        candidates: the connectors that fit, if there are several and the caller has not chosen one.
        is_foreign: the state has elements, and no known connector wrote them.
    """

    state: ConnectorState | None = None
    candidates: tuple[str, ...] = ()
    is_foreign: bool = False

    @property
    def ambiguity(self) -> str:
        """Message for a state without connector columns because several connectors fit; else empty."""
        if not self.candidates:
            return ""
        names = f"{', '.join(self.candidates[:-1])} and {self.candidates[-1]}"
        return f"could be the state of {names}; say which one (--connector OPERATOR=NAME, option connectors)"

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The fields `connector` and `split`; none when the connector is not known."""
        if self.state is None:
            return ()
        split = pa.struct([each.with_nullable(True) for each in self.state.columns])
        return pa.field(CONNECTOR_COLUMN, pa.string(), False), pa.field(SPLIT_COLUMN, split)

    def cut(self, first: int, number: int) -> Detected:
        """Return the same connector with the rows of only `number` elements, from element `first` on."""
        if self.state is None:
            return self
        # The values are dropped, since tables need only the rows.
        return replace(self, state=replace(self.state, values=(), rows=self.state.rows[first : first + number]))

    def spread(self, first: int, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], pa.Array]:
        """Return the table rows for some elements: one row per split, or one row without a split if it has none.

        Args:
            first: position of the first element among the elements of all subtasks.
            number: number of elements.

        Returns:
            (i64[n], position of each row's element, counted from `first`; bool[n], the row is the first of its element;
            array of n splits).
        """
        assert self.state is not None
        rows = self.state.rows[first : first + number]
        counts = np.array([max(1, len(each)) for each in rows], np.int64)
        elements = np.repeat(np.arange(number, dtype=np.int64), counts)
        leading = np.ones(len(elements), np.bool_)
        leading[1:] = elements[1:] != elements[:-1]
        splits = [row for each in rows for row in (each or (None,))]
        return elements, leading, pa.array(splits, self.fields[1].type)


NOTHING_DETECTED = Detected()


def find_connector(
    state_name: str,
    serializers: Sequence[Serializer],
    elements: Sequence[bytes],
    context: LayoutContext,
    chosen: str | None = None,
) -> Detected:
    """Detect the state that all subtasks together have; see `connectors.detect`.

    Args:
        state_name: name of the state.
        serializers: serializers of the elements, one per subtask.
        elements: elements of all subtasks.
        context: properties other than serializers on which layouts depend.
        chosen: the connector that the user has declared, for the case that several fit.

    Raises:
        UsageError: several connectors fit, and `chosen` is not among them.
    """
    if len(set(serializers)) != 1:
        return Detected()
    match detect(state_name, serializers[0], elements, context):
        case ConnectorState() as state:
            return Detected(state)
        case AmbiguousState() as state:
            return _decide(state, chosen)
    return Detected(is_foreign=bool(elements))


def may_be_known(state_name: str, serializers: Sequence[Serializer]) -> bool:
    """Return whether a connector has states of this name and serializer; otherwise the elements need not be read."""
    return len(set(serializers)) == 1 and bool(find_candidates(state_name, serializers[0]))


def _decide(state: AmbiguousState, chosen: str | None) -> Detected:
    if chosen is None:
        return Detected(candidates=state.connectors)
    for candidate in state.candidates:
        if candidate.connector == chosen:
            return Detected(candidate)
    raise UsageError(
        f"the declared connector {chosen} cannot have written the state",
        hint=f"Declare {' or '.join(state.connectors)}",
    )


def narrow_enumerator(candidates: Iterable[str], splits: Iterable[Detected]) -> tuple[str, ...]:
    """Return the connectors that fit both the state of an enumerator and the splits of the readers.

    Args:
        candidates: the connectors that fit the enumerator.
        splits: the detected connectors of the list states of the same operator.
    """
    left = tuple(candidates)
    for detected in splits:
        names = detected.candidates
        if detected.state is not None and detected.state.kind is ConnectorStateKind.SPLIT:
            names = (detected.state.connector,)
        if names or detected.is_foreign:
            left = tuple(each for each in left if each in names)
    return left


Spans = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class NonKeyedSubtaskState:
    """An operator state in one subtask. Each access reads the file again. It can be sent to other processes.

    Attributes:
        subtask: index of the subtask.
        unread: the file that holds the state.
        info: meta info of the state in the header of the file.
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
        """Number of elements of a list state; the elements are not read."""
        return sum(len(each.offsets) for each in self.unread.handle.states if each.state_name == self.info.name)

    def read(self) -> OperatorStateFile:
        """Read the file, with all its states."""
        return self.unread.read()

    def elements(self) -> Spans:
        """Read a list state: bytes, start of each element in them, and upper bound of the end of each element."""
        return self.read().elements(self.info.name)

    def entries(self) -> tuple[npt.NDArray[np.uint8], int, int, int]:
        """Read a broadcast state: bytes, start of the pairs in them, upper bound of their end, and number of pairs."""
        return self.read().broadcast(self.info.name)


class ValueColumn:
    """Columns of the values of all subtasks, or the reason why they cannot be decoded.

    Args:
        serializers: serializers of the values; subtasks may have different ones.
        options: selection of columns.
        context: properties other than serializers on which layouts depend.
    """

    def __init__(self, serializers: Iterable[Serializer], options: TableOptions, context: LayoutContext) -> None:
        self.columns: ColumnCodec | None = None
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
        """Whether the table has the columns `value_bytes` and `reason` for single values that cannot be decoded."""
        return self.columns is not None and (self.columns.may_fail or bool(self._asked))


@dataclass(frozen=True)
class NonKeyedTable(ABC):
    """Converts an operator state of some subtasks to record batches; can be sent to other processes.

    Attributes:
        infos: the distinct meta infos that the subtasks store for the state.
        options: selection of columns.
        context: properties other than serializers on which layouts depend.
    """

    infos: tuple[StateMetaInfo, ...]
    options: TableOptions
    context: LayoutContext

    def __getstate__(self) -> dict[str, object]:
        # Cached values are not pickled; they are derived again in the other process.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def value(self) -> ValueColumn:
        """Columns for the values of all subtasks."""
        return ValueColumn((each.value_serializer for each in self.infos), self.options, self.context)

    @property
    @abstractmethod
    def undecoded(self) -> str:
        """Reason why values are shown as bytes; empty if they are decoded."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of the batches.

        Raises:
            UsageError: a wanted column does not exist.
        """

    @abstractmethod
    def batches(self, subtask_states: Sequence[NonKeyedSubtaskState]) -> Iterator[pa.RecordBatch]:
        """Yield a batch per subtask, whose file is read just before."""

    def cut(self, first: int, number: int) -> Self:
        """Return the table for some of the subtasks.

        Args:
            first: position of their first element among the elements of all subtasks.
            number: number of their elements.
        """
        return self


class NonKeyedState(State):
    """Base class of list and broadcast states of operators, which belong to subtasks and not to keys."""

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
        """Return the table that converts the states of the subtasks to batches."""

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
        """Yield groups of subtasks whose files have about `size` bytes together, each with the table that reads them.

        No file is opened for it.
        """
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
    """Converts a list state of some subtasks to record batches; see `OperatorListState` for the columns.

    Attributes:
        detected: the connector, and the splits of the elements of all subtasks.
    """

    detected: Detected = NOTHING_DETECTED

    @property
    def _spread(self) -> Detected:
        """The splits that become rows. Nothing if no wanted column shows splits: then every element is one row."""
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
            # If an element has several splits, only its first row has values in these columns.
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
    `reason` for elements that cannot be decoded, if that can happen or these columns are requested.

    The state of a known connector has two more columns, `connector` and `split`, a struct of the connector's columns,
    and one row per split or committable. An element with several has several rows with its `list_index`, and only the
    first has `value`, `value_bytes` and `reason`. An element with none has one row without `split`.
    """

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return self.info.distribution_mode or StateKind.SPLIT_DISTRIBUTE

    @cached_property
    def detected(self) -> Detected:
        """The connector that wrote the state; elements are read only if a connector has such a name and serializer.

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
        """Return the detected connector; `NOTHING_DETECTED` for a table without the columns of the connector."""
        wanted = options.columns
        if options.raw or (wanted is not None and not {CONNECTOR_COLUMN, SPLIT_COLUMN} & set(wanted)):
            return NOTHING_DETECTED
        try:
            return self.detected
        except (FormatError, MissingFileError):
            # Reading the rows of the damaged file raises the error again. Other files are shown without these columns.
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
    """Repeat the rows of elements so that there is one per split, and add the connector's columns.

    Args:
        columns: the columns, one row per element.
        detected: the connector and the splits of all elements.
        first: position of the first element among the elements of all subtasks.
    """
    elements, leading, splits = detected.spread(first, len(columns["list_index"]))
    every, once = pa.array(elements), pa.array(elements, mask=~leading)
    spread = {
        name: column.take(every if name in ("subtask", "list_index") else once) for name, column in columns.items()
    }
    assert detected.state is not None
    names = pa.array([detected.state.connector] * len(elements), pa.string())
    return spread | {CONNECTOR_COLUMN: names, SPLIT_COLUMN: splits}


def select_fields(fields: list[pa.Field], options: TableOptions | None) -> pa.Schema:
    """Return the schema of the wanted columns, in the order of `options.columns`.

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


@dataclass(frozen=True)
class BroadcastTable(NonKeyedTable):
    """Converts a broadcast state of some subtasks to record batches; see `OperatorBroadcastState` for the columns."""

    @cached_property
    def key(self) -> ValueColumn:
        """Columns for the keys of all subtasks."""
        context = replace(self.context, opaque_values=OpaqueValues.NONE)
        return ValueColumn((each.key_serializer for each in self.infos), self.options, context)

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.key.reason or self.value.reason

    @cached_property
    def schema(self) -> pa.Schema:  # noqa: D102
        key, value = self.key, self.value
        found = [pa.field("subtask", pa.int32(), False)]
        may_fail = False
        if key.columns is not None and value.columns is not None:
            found += [pa.field("map_key", key.columns.type), pa.field("map_value", value.columns.type)]
            may_fail = key.keeps_bytes or value.keeps_bytes
        if may_fail or key.columns is None or value.columns is None:
            found.append(pa.field("value_bytes", pa.binary(), may_fail))
        if self.undecoded or may_fail:
            found.append(pa.field("reason", pa.string(), may_fail))
        return select_fields(found, self.options)

    def batches(self, subtask_states: Sequence[NonKeyedSubtaskState]) -> Iterator[pa.RecordBatch]:  # noqa: D102
        key, value, schema = self.key, self.value, self.schema
        for subtask_state in subtask_states:
            columns: dict[str, pa.Array] = {}
            reason = self.undecoded
            with at(file=subtask_state.name):
                file = subtask_state.read()
                data, start, end, count = file.broadcast(subtask_state.info.name)
                whole = pa.array([data[start:end].tobytes()], pa.binary())
                if key.columns is not None and value.columns is not None:
                    try:
                        columns["map_key"], columns["map_value"] = read_broadcast_state(
                            file, subtask_state.info, self.context
                        )
                        columns["value_bytes"] = pa.nulls(count, pa.binary())
                    except UnsupportedError as error:
                        if "reason" not in schema.names:
                            raise
                        reason, count = explain(error), 1
                        columns["map_key"] = pa.nulls(1, key.columns.type)
                        columns["map_value"] = pa.nulls(1, value.columns.type)
                        columns["value_bytes"] = whole
                else:
                    count = 1
                    columns["value_bytes"] = whole
            columns["subtask"] = pa.array(np.full(count, subtask_state.subtask, np.int32))
            columns["reason"] = pa.array([reason or None] * count, pa.string())
            yield pa.RecordBatch.from_arrays([columns[each] for each in schema.names], schema=schema)


class OperatorBroadcastState(NonKeyedState):
    """A broadcast state.

    Columns: `subtask` int32, `map_key`, `map_value`; one row per pair and subtask. A state that cannot be decoded gives
    one row per subtask with all pairs in `value_bytes`, since nothing but the serializers tells where a pair ends; so
    does a subtask with a pair that cannot be decoded, where that is possible.
    """

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return StateKind.BROADCAST

    @cached_property
    def undecoded(self) -> str:  # noqa: D102
        return self.make_table().undecoded

    def make_table(self, options: TableOptions | None = None) -> BroadcastTable:  # noqa: D102
        return BroadcastTable(self.infos, options or TableOptions(), self.operator.snapshot.layout_context)

    def count(self) -> StateStatistics:  # noqa: D102
        number = size = 0
        with at(operator=self.operator.label, state=self.name):
            for subtask_state in self.subtask_states:
                _, start, end, count = subtask_state.entries()
                number += count
                size += end - start
        return StateStatistics(number, size)


RAW_KEYED_NAME = "_raw_keyed_state"
RAW_OPERATOR_NAME = "_raw_operator_state"
UNREAD_KEYED_NAME = "_unread_keyed_state"
"""Name of managed keyed state whose header cannot be read, so that its states are not known."""
IN_FLIGHT_NAME = "_in_flight_data"

_OPAQUE = "raw operator state: only its operator knows what the bytes mean"
RAW_OPERATOR_SCHEMA = pa.schema([SUBTASK_FIELD, pa.field("list_index", pa.int32(), False), *BYTES_FIELDS])
IN_FLIGHT_SCHEMA = pa.schema(
    [
        SUBTASK_FIELD,
        pa.field("direction", pa.string(), False),
        pa.field("gate_or_partition", pa.int32(), False),
        pa.field("channel", pa.int32(), False),
        pa.field("buffer_index", pa.int32(), False),
        pa.field("value_bytes", pa.binary(), False),
    ]
)
DIRECTIONS = {ChannelDirection.INPUT: "input", ChannelDirection.OUTPUT: "output"}


class BytesSubtaskState(Protocol):
    """State of one subtask that is known as bytes only; can be sent to other processes."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the subtask, with all columns."""

    def count(self) -> StateStatistics:
        """Count entries and bytes, as far as the handle has them."""


@dataclass(frozen=True)
class RawOperatorSubtaskState:
    """Raw operator state of a subtask.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        handle: handle with the offsets of the partitions.
    """

    subtask: int
    stream: StateStream
    handle: OperatorStateHandle

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the partitions, one row per partition."""
        data, starts, ends = read_raw_partitions(read_whole_stream(self.stream), self.handle, self.stream.name)
        number = len(starts)
        columns = [
            pa.array(np.full(number, self.subtask, np.int32)),
            pa.array(np.arange(number, dtype=np.int32)),
            pa.array([data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)], pa.binary()),
            pa.array([_OPAQUE] * number, pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_OPERATOR_SCHEMA)

    def count(self) -> StateStatistics:
        """Count the partitions, and the bytes of the stream, which is not read."""
        return StateStatistics(sum(len(state.offsets) for state in self.handle.states), self.stream.size)


@dataclass(frozen=True)
class InFlightSubtaskState:
    """Network buffers of a subtask, of one handle.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        handle: handle of one or several channels.
        direction: input or output of the subtask.
    """

    subtask: int
    stream: StateStream
    handle: AnyChannelStateHandle
    direction: ChannelDirection

    def read(self) -> tuple[ChannelData, ...]:
        """Read the buffers by channel, see `read_channel_data`."""
        return read_channel_data(self.handle, self.direction, self.stream)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the network buffers, one row per buffer."""
        rows = [
            {
                "subtask": self.subtask,
                "direction": DIRECTIONS[self.direction],
                "gate_or_partition": channel.info.group,
                "channel": channel.info.channel,
                "buffer_index": index,
                "value_bytes": buffer,
            }
            for channel in self.read()
            for index, buffer in enumerate(channel.buffers)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=IN_FLIGHT_SCHEMA)

    @property
    def summary(self) -> ChannelSummary:
        """Number of channels, number of network buffers, and bytes of the state."""
        return summarise_channels([self.handle])

    def count(self) -> StateStatistics:
        """Count the buffers and their bytes; the stream is not read."""
        return StateStatistics(self.summary.buffers, self.summary.bytes)


class BytesState(State):
    """State that can be shown as stored bytes only.

    Attributes:
        subtask_states: the state in each subtask that has it.
    """

    subtask_states: tuple[BytesSubtaskState, ...]

    @property
    @abstractmethod
    def _all_columns(self) -> pa.Schema:
        """Schema of the batches of the subtasks."""

    @property
    def info(self) -> StateMetaInfo:
        """A placeholder with byte arrays, because snapshots store no name and no serializer of such state."""
        return operator_list(self.name, basic(BasicKind.BYTE_PRIMITIVE_ARRAY))

    @property
    def is_keyed(self) -> bool:
        """False, because keys cannot be read from the bytes, if there are any."""
        return False

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:
        """Return the schema of the batches with these options.

        Raises:
            UsageError: a wanted column does not exist, or the options have a key.
        """
        if options is not None and options.key is not None:
            raise UsageError(
                "raw state is not decoded, so that it cannot be selected by key", hint="Choose key groups instead"
            )
        return select_fields(list(self._all_columns), options)

    def batches(  # noqa: D102
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = self.make_schema(options).names
        with at(operator=self.operator.label, state=self.name):
            chosen = self.choose_subtask_states(key_groups)
            size = self.count().bytes // max(1, len(self.subtask_states))
            location = self.operator.snapshot.location.directory
            for _, batches in scan_ahead(chosen, lambda subtask_state: subtask_state.batches(), location, size):
                for batch in batches:
                    yield batch.select(names)

    def choose_subtask_states(self, key_groups: KeyGroupRange | None) -> Iterator[BytesSubtaskState]:
        """Yield the state of each subtask; with `key_groups`, only what is in these key groups.

        Raises:
            UsageError: `key_groups` is given, and the state has none.
        """
        if key_groups is not None:
            raise UsageError(f"{self.name} has no key groups")
        yield from self.subtask_states

    def count(self) -> StateStatistics:
        """Count entries and bytes, as far as the handles have them; nothing is read."""
        counts = [subtask_state.count() for subtask_state in self.subtask_states]
        groups = {group: number for each in counts for group, number in each.entries_by_key_group.items()}
        return StateStatistics(sum(each.entries for each in counts), sum(each.bytes for each in counts), groups)


class RawKeyedState(BytesState):
    """Raw keyed state that is not timers, or timers in an unsupported format.

    Columns: `key_group` int32, `subtask` int32, `value_bytes`, `reason`; one row per key group.
    """

    subtask_states: tuple[RawKeyedSubtaskState, ...]

    def __init__(self, operator: OperatorFiles, subtask_states: tuple[RawKeyedSubtaskState, ...]) -> None:
        super().__init__(operator)
        self.subtask_states = subtask_states

    @property
    def name(self) -> str:  # noqa: D102
        return RAW_KEYED_NAME

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return StateKind.RAW

    @property
    def key_groups(self) -> tuple[KeyGroupRange, ...]:
        """Key-group ranges of the subtasks that have the state."""
        return tuple(subtask_state.key_groups for subtask_state in self.subtask_states)

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.subtask_states[0].reason

    @property
    def _all_columns(self) -> pa.Schema:
        return RAW_KEYED_SCHEMA

    def choose_subtask_states(self, key_groups: KeyGroupRange | None) -> Iterator[RawKeyedSubtaskState]:
        """Yield the state of each subtask in some key groups, about `WINDOW` bytes at a time."""
        for subtask_state in self.subtask_states:
            yield from subtask_state.split(WINDOW, key_groups)


class UnreadKeyedState(RawKeyedState):
    """Managed keyed state of subtasks whose header cannot be read; columns as in `RawKeyedState`."""

    @property
    def name(self) -> str:  # noqa: D102
        return UNREAD_KEYED_NAME


class RawOperatorState(BytesState):
    """Raw operator state.

    Columns: `subtask` int32, `list_index` int32 (position of the partition), `value_bytes`, `reason`.
    """

    subtask_states: tuple[RawOperatorSubtaskState, ...]

    def __init__(self, operator: OperatorFiles, subtask_states: tuple[RawOperatorSubtaskState, ...]) -> None:
        super().__init__(operator)
        self.subtask_states = subtask_states

    @property
    def name(self) -> str:  # noqa: D102
        return RAW_OPERATOR_NAME

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return StateKind.RAW

    @property
    def undecoded(self) -> str:  # noqa: D102
        return _OPAQUE

    @property
    def _all_columns(self) -> pa.Schema:
        return RAW_OPERATOR_SCHEMA


class InFlightState(BytesState):
    """In-flight data of an unaligned checkpoint.

    Columns: `subtask` int32, `direction` (`input` or `output`), `gate_or_partition` int32 (of an input the gate, of an
    output the result partition), `channel` int32 (channel of the gate, or subpartition), `buffer_index` int32,
    `value_bytes`; one row per network buffer. Records straddle buffers, see `metadata.streams`.
    """

    subtask_states: tuple[InFlightSubtaskState, ...]

    def __init__(self, operator: OperatorFiles, subtask_states: tuple[InFlightSubtaskState, ...]) -> None:
        super().__init__(operator)
        self.subtask_states = subtask_states

    @property
    def name(self) -> str:  # noqa: D102
        return IN_FLIGHT_NAME

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return StateKind.IN_FLIGHT

    @property
    def undecoded(self) -> str:  # noqa: D102
        return "network buffers: records are spread over them, in the serializers of the job"

    @property
    def _all_columns(self) -> pa.Schema:
        return IN_FLIGHT_SCHEMA
