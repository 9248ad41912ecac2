"""State whose bytes only its operator or Flink's network stack knows: raw keyed and raw operator state, data in flight.

Nothing in a snapshot describes such state, so that its tables hold bytes. Operators write raw state through
`StateInitializationContext.getRawKeyedStateInputs` and `getRawOperatorStateInputs`; timers in raw keyed state are not
among it, those are decoded (`keyed.raw_timers`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from state_pipelines.errors import UsageError, at
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
from state_pipelines.operatorstate import read_raw_partitions
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import StateMetaInfo, operator_list
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.snapshot.list_state import select_fields
from state_pipelines.snapshot.raw_key_groups import (
    BYTES_FIELDS,
    RAW_KEYED_SCHEMA,
    SUBTASK_FIELD,
    WINDOW,
    RawKeyedSubtaskState,
)
from state_pipelines.snapshot.state import State
from state_pipelines.snapshot.subtask_states import StateStatistics
from state_pipelines.storage.reading import scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.metadata.handles import KeyGroupRange, OperatorStateHandle
    from state_pipelines.snapshot.operator_files import OperatorFiles

RAW_KEYED_NAME = "_raw_keyed_state"
RAW_OPERATOR_NAME = "_raw_operator_state"
UNREAD_KEYED_NAME = "_unread_keyed_state"
"""Managed keyed state whose key serializer nothing reads and whose states are therefore not known."""
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
    """The bytes of one subtask of such a state; can be sent to other processes."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All its rows, with all columns."""

    def count(self) -> StateStatistics:
        """The amount, as far as the handle says."""


@dataclass(frozen=True)
class RawOperatorSubtaskState:
    """Raw operator state of a subtask.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        handle: says where its partitions begin.
    """

    subtask: int
    stream: StateStream
    handle: OperatorStateHandle

    def batches(self) -> Iterator[pa.RecordBatch]:
        """A row per partition."""
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
        """Partitions and the bytes of the stream; nothing is read."""
        return StateStatistics(sum(len(state.offsets) for state in self.handle.states), self.stream.size)


@dataclass(frozen=True)
class InFlightSubtaskState:
    """Network buffers of a subtask, of one handle.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        handle: of one channel, or of several.
        direction: in front of the subtask or after it.
    """

    subtask: int
    stream: StateStream
    handle: AnyChannelStateHandle
    direction: ChannelDirection

    def read(self) -> tuple[ChannelData, ...]:
        """The buffers by channel, see `read_channel_data`."""
        return read_channel_data(self.handle, self.direction, self.stream)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """A row per buffer."""
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
        """The amount of the state."""
        return summarise_channels([self.handle])

    def count(self) -> StateStatistics:
        """Buffers and their bytes; nothing is read."""
        return StateStatistics(self.summary.buffers, self.summary.bytes)


class BytesState(State):
    """State of which there is a table of bytes and no more.

    Attributes:
        subtask_states: of the subtasks that have it.
    """

    subtask_states: tuple[BytesSubtaskState, ...]

    @property
    @abstractmethod
    def _all_columns(self) -> pa.Schema:
        """Schema of the batches of the subtasks."""

    @property
    def info(self) -> StateMetaInfo:
        """A stand-in that says byte arrays: a snapshot stores no name and no serializer of such state."""
        return operator_list(self.name, basic(BasicKind.BYTE_PRIMITIVE_ARRAY))

    @property
    def is_keyed(self) -> bool:
        """No keys are known of it."""
        return False

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:
        """Schema of the batches under `options`.

        Raises:
            UsageError: a wanted column does not exist, or a key is asked for.
        """
        if options is not None and options.key is not None:
            raise UsageError("no keys are known of raw state", hint="Choose key groups instead")
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
        """The state of each subtask, as far as it is wanted.

        Raises:
            UsageError: the state has no key groups.
        """
        if key_groups is not None:
            raise UsageError(f"{self.name} has no key groups")
        yield from self.subtask_states

    def count(self) -> StateStatistics:
        """The amount, as far as the handles say; nothing is read."""
        counts = [subtask_state.count() for subtask_state in self.subtask_states]
        groups = {group: number for each in counts for group, number in each.entries_by_key_group.items()}
        return StateStatistics(sum(each.entries for each in counts), sum(each.bytes for each in counts), groups)


class RawKeyedState(BytesState):
    """Raw keyed state that is not timers, or timers in a form that is not read.

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
        """Ranges of the subtasks that have it."""
        return tuple(subtask_state.key_groups for subtask_state in self.subtask_states)

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.subtask_states[0].reason

    @property
    def _all_columns(self) -> pa.Schema:
        return RAW_KEYED_SCHEMA

    def choose_subtask_states(self, key_groups: KeyGroupRange | None) -> Iterator[RawKeyedSubtaskState]:
        """The bytes of each subtask in some key groups, about `WINDOW` bytes at a time."""
        for subtask_state in self.subtask_states:
            yield from subtask_state.split(WINDOW, key_groups)


class UnreadKeyedState(RawKeyedState):
    """Managed keyed state of subtasks whose header cannot be read; columns as of `RawKeyedState`."""

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
