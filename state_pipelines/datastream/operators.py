"""Operators that run functions: lifecycle, restored state, operator state, watermarks, output.

An operator runs one function for the keys of one subtask. It can be used like Flink's test harnesses for operators
(`KeyedOneInputStreamOperatorTestHarness`):

    with KeyedProcessOperator(CountClicks(), lambda click: click["user"], Types.STRING()) as operator:
        assert operator.process({"user": "ada"}, timestamp=1) == [("ada", 1)]
        assert operator.advance_watermark(3_600_000) == []
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from state_pipelines.backends.changelog import ChangelogSettings, ChangelogSnapshots, ChangelogStore, is_continuable
from state_pipelines.backends.entry_store import HeapStore, read_clock
from state_pipelines.backends.keyed_backend import KeyedStateBackend, TimeDomain, TimerQueue, timer_state_name
from state_pipelines.backends.operator_backend import (
    OperatorStateBackend,
    RawKeyedOutput,
    RawOperatorOutput,
    RawState,
    read_raw_keyed,
    read_raw_operator,
    write_raw_keyed,
    write_raw_operator,
)
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import IncrementalSnapshots, restore_incremental, write_full_snapshot
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.datastream.flink_types import check_key_type, derive_type
from state_pipelines.datastream.functions import (
    LOWEST_WATERMARK,
    BroadcastProcessFunction,
    ElementContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedTimerContext,
    KeySelector,
    MetricGroup,
    OutputTag,
    RuntimeContext,
    TaskInfo,
    TimerService,
    require_function,
)
from state_pipelines.datastream.table_states import BackendKeyedStates, BackendOperatorStates, KeyRowTypeInfo
from state_pipelines.datastream.ttl import ManualClock
from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.key_groups import key_group_prefix_size
from state_pipelines.metadata import SubtaskState
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
)
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.savepoint_plan import KRYO_OF_FLINK_1, has_kryo
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.backends.keyed_backend import InternalTimer
    from state_pipelines.backends.operator_backend import OldOperatorState
    from state_pipelines.backends.snapshots import KeyedSnapshot, LocalBackup
    from state_pipelines.datastream.functions import (
        BroadcastState,
        Function,
        KeyedStateStore,
        MapStateDescriptor,
        MetricValue,
        Output,
        ReadOnlyBroadcastState,
        StateDescriptor,
    )
    from state_pipelines.datastream.table_states import LatencyTracking, TableBroadcastState, TableState
    from state_pipelines.datastream.ttl import Clock
    from state_pipelines.datastream.type_information import TypeDescription, TypeInformation
    from state_pipelines.keyed.hashing.class_hashes import HashExpression
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class FunctionInitializationContext:
    """Context of the initialisation of a function (`org.apache.flink.runtime.state.FunctionInitializationContext`).

    It also gives raw state, which in Java only operators can read, not functions (`StateInitializationContext`).
    """

    checkpoint_id: int | None
    operator_states: BackendOperatorStates
    keyed_states: KeyedStateStore
    raw_state: RawState

    def get_raw_keyed_state_inputs(self) -> Iterator[tuple[int, bytes]]:
        """Return (key group, bytes) of the restored raw keyed state.

        If the function neither reads it nor writes new raw keyed state, the next snapshot carries it over.
        """
        return self.raw_state.take_keyed()

    def get_raw_operator_state_inputs(self) -> Iterator[bytes]:
        """Return the partitions of the restored raw operator state.

        If the function neither reads it nor writes new raw operator state, the next snapshot carries it over.
        """
        return self.raw_state.take_partitions()

    def is_restored(self) -> bool:
        """Return whether the subtask starts from a snapshot."""
        return self.checkpoint_id is not None

    def get_restored_checkpoint_id(self) -> int | None:
        """Return the id of the checkpoint that the subtask starts from; None if it starts without a checkpoint."""
        return self.checkpoint_id

    def get_operator_state_store(self) -> BackendOperatorStates:
        """Return the store with which operator states are registered."""
        return self.operator_states

    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the store with which keyed states are registered."""
        return self.keyed_states


@dataclass(frozen=True)
class FunctionSnapshotContext:
    """The current checkpoint (`org.apache.flink.runtime.state.FunctionSnapshotContext`).

    It also accepts raw state, which in Java only operators can write, not functions (`StateSnapshotContext`).
    """

    checkpoint_id: int
    timestamp: int
    raw_operator_output: RawOperatorOutput
    raw_keyed_output: RawKeyedOutput | None

    def get_raw_keyed_operator_state_output(self) -> RawKeyedOutput:
        """Return the output for raw keyed state: bytes per key group, in a format that only the function knows.

        Raises:
            UsageError: the operator has no keys.
        """
        if self.raw_keyed_output is None:
            raise UsageError("an operator without keys has no raw keyed state", hint="Write raw operator state")
        return self.raw_keyed_output

    def get_raw_operator_state_output(self) -> RawOperatorOutput:
        """Return the output for raw operator state: partitions of bytes, which a rescale distributes among subtasks."""
        return self.raw_operator_output

    def get_checkpoint_id(self) -> int:
        """Return the id of the checkpoint."""
        return self.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return the time at which the checkpoint was triggered, in epoch milliseconds."""
        return self.timestamp


class CheckpointedFunction(ABC):
    """Functions with operator state (`org.apache.flink.streaming.api.checkpoint.CheckpointedFunction`)."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Register states, and take over what was restored; called once, before `open`."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Bring the states up to date; called before every snapshot."""


class CheckpointListener(ABC):
    """Functions that are notified when checkpoints end (`org.apache.flink.api.common.state.CheckpointListener`)."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """React to a checkpoint that all subtasks have completed."""

    # Not abstract: most listeners have nothing to undo.
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027
        """React to a checkpoint that failed."""


@dataclass(frozen=True)
class KeyedHandles:
    """The handles of the managed keyed state of an operator in a snapshot.

    Attributes:
        handles: of all old subtasks.
        directory: of the snapshot.
        path_mapping: new locations of directories that were moved and that handles name by absolute path.
    """

    handles: tuple[KeyedStateHandle, ...]
    directory: Location
    path_mapping: PathMapping

    @staticmethod
    def of(operator: Operator) -> KeyedHandles:
        """Return the handles of an operator."""
        keyed = (each.managed_keyed_state for each in operator.metadata.subtasks)
        handles = tuple(each for each in keyed if each is not None)
        return KeyedHandles(handles, operator.snapshot.location.directory, operator.snapshot.path_mapping)

    def open_copy(self, file: KeyedFile, backup: LocalBackup) -> KeyedFile | None:
        """Open the keyed state of a subtask from copies on this machine.

        Args:
            file: keyed state of the same subtask, opened from the snapshot; gives the context and the key serializer.
            backup: of the subtask.

        Returns:
            The state; None if this machine has a copy of none of its files.

        Raises:
            StateError: a copy cannot be read.
        """
        own = [each for each in self.handles if each.key_groups == file.key_groups]
        reader = self._make_reader()
        reader.copies |= backup.find(own, reader)
        if len(own) != 1 or not reader.copies:
            return None
        return reader.open_keyed(own[0], file.context, file.header.key_serializer)

    def _make_reader(self) -> HandleReader:
        return HandleReader(self.directory, self.path_mapping)


@dataclass(frozen=True)
class DatabaseFiles(KeyedHandles):
    """The RocksDB databases of an operator in a snapshot; a subtask with a RocksDB store reuses their files."""

    handles: tuple[IncrementalRemoteKeyedStateHandle, ...]

    @staticmethod
    def find(operator: Operator) -> DatabaseFiles | None:
        """Return the RocksDB databases of an operator; None unless they hold all of its keyed state."""
        keyed = KeyedHandles.of(operator)
        handles = tuple(each for each in keyed.handles if isinstance(each, IncrementalRemoteKeyedStateHandle))
        has_raw = any(each.raw_keyed_state is not None for each in operator.metadata.subtasks)
        is_forst = any(file.is_forst for _, file in operator.keyed_files)
        if not handles or len(handles) != len(keyed.handles) or has_raw or is_forst:
            return None
        return DatabaseFiles(handles, keyed.directory, keyed.path_mapping)

    def restore(
        self, backend: KeyedStateBackend, store: RocksStore, context: RecordContext, backup: LocalBackup | None = None
    ) -> IncrementalSnapshots:
        """Restore the key groups of a subtask; see `restore_incremental`."""
        return restore_incremental(backend, store, self.handles, self._make_reader(), context, backup)


@dataclass(frozen=True)
class RestoredState:
    """State of all subtasks of an operator in a snapshot; a new subtask restores what belongs to its key groups.

    Attributes:
        keyed_files: keyed state, of any format, of all old subtasks.
        operator_states: operator state by index of the old subtask; None for subtasks without operator state.
        context: of the old operator: number of key groups, and what its layouts depend on.
        checkpoint_id: id of the checkpoint or savepoint.
        snapshot: path of the checkpoint or savepoint, for errors.
        databases: the keyed state as RocksDB databases; None if they do not hold all of it, or if the user has
            declared serializers for the snapshot.
        changelogs: changelog handles of old subtasks that later checkpoints can reference; empty with declared
            serializers.
        handles: of the managed keyed state, for subtasks with local copies of its files; None with declared
            serializers.
        raw_keyed: handle and stream of the raw keyed state of old subtasks; timers are among `keyed_files` instead.
        raw_operator: handle and stream of the raw operator state by index of the old subtask; None for subtasks
            without.
    """

    keyed_files: tuple[KeyedFile, ...]
    operator_states: tuple[OldOperatorState, ...]
    context: RecordContext
    checkpoint_id: int
    snapshot: str = ""
    databases: DatabaseFiles | None = None
    changelogs: tuple[ChangelogStateBackendHandle, ...] = ()
    handles: KeyedHandles | None = None
    raw_keyed: tuple[tuple[KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, StateStream], ...] = ()
    raw_operator: tuple[tuple[OperatorStateHandle, StateStream] | None, ...] = ()

    @staticmethod
    def of(operator: Operator) -> RestoredState:
        """Collect the state of an operator in a snapshot.

        Raises:
            StateError: the state cannot be read.
        """
        handles = {each.index: each.managed_operator_state for each in operator.metadata.subtasks}
        open_state = operator.snapshot.handles.open_operator
        is_declared = bool(operator.snapshot.declarations.serializers)
        return RestoredState(
            tuple(file for _, file in operator.keyed_files),
            tuple(open_state(handles.get(index)) for index in range(operator.parallelism)),
            operator.record_context,
            operator.snapshot.checkpoint_id,
            operator.snapshot.path,
            None if is_declared else DatabaseFiles.find(operator),
            () if is_declared else _find_changelogs(operator),
            None if is_declared else KeyedHandles.of(operator),
            *_find_raw(operator),
        )

    def find_files(self, key_groups: KeyGroupRange, backup: LocalBackup | None = None) -> tuple[KeyedFile, ...]:
        """Return the keyed state for a subtask.

        State of an old subtask with the same key groups is read from copies on this machine, if there are any.

        Args:
            key_groups: of the subtask.
            backup: of the subtask; None without.

        Raises:
            StateError: a copy cannot be read.
        """
        if backup is None or self.handles is None:
            return self.keyed_files
        return tuple(
            file
            if file.holds_raw_timers or file.key_groups != key_groups
            else self.handles.open_copy(file, backup) or file
            for file in self.keyed_files
        )

    def find_changelog(self, key_groups: KeyGroupRange) -> ChangelogStateBackendHandle | None:
        """Return the changelog of the old subtask with the same key groups; None if there is none."""
        return next((each for each in self.changelogs if each.key_groups == key_groups), None)


def _find_raw(
    operator: Operator,
) -> tuple[
    tuple[tuple[KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, StateStream], ...],
    tuple[tuple[OperatorStateHandle, StateStream] | None, ...],
]:
    """Return the raw keyed and the raw operator state of an operator, without timers: `keyed_files` has these."""
    snapshot = operator.snapshot
    unread = operator.files.survey_unread()
    subtasks = {each.index: each for each in operator.metadata.subtasks}
    keyed = []
    for index in unread:
        handle = subtasks[index].raw_keyed_state
        if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
            keyed.append((handle, snapshot.handles.open_stream(handle.delegate)))
    raw: list[tuple[OperatorStateHandle, StateStream] | None] = []
    for index in range(operator.parallelism):
        partitions = subtasks[index].raw_operator_state if index in subtasks else None
        opened = None if partitions is None else (partitions, snapshot.handles.open_stream(partitions.delegate))
        raw.append(opened)
    return tuple(keyed), tuple(raw)


def _find_changelogs(operator: Operator) -> tuple[ChangelogStateBackendHandle, ...]:
    """Return the changelog handles that later checkpoints can reference; none if the snapshot was moved."""
    if operator.snapshot.path_mapping != PathMapping():
        return ()
    handles = (each.managed_keyed_state for each in operator.metadata.subtasks)
    return tuple(each for each in handles if isinstance(each, ChangelogStateBackendHandle) and is_continuable(each))


class FunctionOperator(ABC):
    """Runs a function in one subtask.

    `process`, `advance_watermark` and `advance_processing_time` return what the function emits; values for side
    outputs wait in `take_side_output`.

    Args:
        function: that the user wrote.
        task: the subtask; default the only subtask of an operator.
        clock: processing time; default the clock of the machine.
        layouts: what the layouts of new state depend on: declared classes, and the version of Kryo; default Flink 2.x
            without classes. Restored state keeps the layouts of its snapshot, but classes given here replace those of
            the snapshot.

    Raises:
        UsageError: the function is not one that the operator runs.

    Attributes:
        metrics: of the function; `open` resets them.
    """

    function_types: ClassVar[tuple[type[Function], ...]]
    """Classes of the functions that the operator runs."""

    def __init__(
        self,
        function: Function,
        *,
        task: TaskInfo | None = None,
        clock: Clock = read_clock,
        layouts: LayoutContext | None = None,
    ) -> None:
        require_function(function, self.function_types, type(self).__name__)
        self.function = function
        self.task = task or TaskInfo()
        self._clock = clock
        self._given_layouts = self._layouts = layouts or LayoutContext()
        self._is_restored = False
        self._watermark = LOWEST_WATERMARK
        self.metrics = MetricGroup()
        self._side_outputs: dict[OutputTag, list[Any]] = {}
        self._operator_backend: OperatorStateBackend | None = None

    def open(self, restored: RestoredState | None = None) -> None:
        """Restore state, initialise the function, and open it.

        Args:
            restored: the state to start from; default none.

        Raises:
            IncompatibleError: the state has other key groups, other keys, or serializers that do not fit.
            StateError: the state cannot be read.
            UsageError: the operator is open, or the function registers states wrongly.
        """
        if self.is_open:
            raise UsageError("the operator is open already")
        self._is_restored = restored is not None
        self._layouts = self._given_layouts
        if restored is None:
            max_parallelism = self.task.choose_max_parallelism(None)
        else:
            found = restored.context.max_parallelism
            max_parallelism = self.task.choose_max_parallelism(found, restored.snapshot)
            known, given = restored.context.layouts, self._given_layouts
            self._layouts = replace(
                known, classes=given.classes or known.classes, messages=given.messages or known.messages
            )
        self._watermark = LOWEST_WATERMARK
        self.metrics = MetricGroup()
        self._operator_backend = OperatorStateBackend(self._layouts)
        try:
            if restored is not None:
                self._operator_backend.restore(restored.operator_states, self.task.index, self.task.parallelism)
            self.operator_states = BackendOperatorStates(self._operator_backend)
            keyed_states = self._open_keyed_state(max_parallelism, restored)
            self._raw_state = self._restore_raw_state(max_parallelism, restored)
            self.runtime_context = RuntimeContext(self.task, max_parallelism, keyed_states, self.metrics)
            if isinstance(self.function, CheckpointedFunction):
                checkpoint_id = None if restored is None else restored.checkpoint_id
                context = FunctionInitializationContext(
                    checkpoint_id, self.operator_states, self.runtime_context, self._raw_state
                )
                self.function.initialize_state(context)
            self.function.open(self.runtime_context)
            self._open_contexts()
        except BaseException:
            self._operator_backend = None
            self._close_keyed_state()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the operator is open."""
        return self._operator_backend is not None

    @property
    def max_parallelism(self) -> int:
        """Number of key groups of the open operator."""
        return self.runtime_context.get_max_number_of_parallel_subtasks()

    def collect_metrics(self) -> tuple[MetricValue, ...]:
        """Read the metrics of the function; gauges are called, so that the operator must be open."""
        return tuple(self.metrics.collect(self.task.index))

    @property
    def layouts(self) -> LayoutContext:
        """Context of the layouts of the state, restored or new."""
        return self._layouts

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo that the metadata of a snapshot must imply; 2 if no serializer uses Kryo.

        An operator with restored state keeps the version of its snapshot, since it may carry over Kryo values as bytes.
        """
        if self._is_restored or has_kryo(self.list_serializers()):
            return self._layouts.kryo_version
        return KRYO_OF_FLINK_1

    def list_serializers(self) -> Iterator[Serializer]:
        """Return all serializers of the registered and restored states."""
        for info in self.operator_backend.states:
            yield from (serializer for _, serializer in info.serializers)

    @property
    def operator_backend(self) -> OperatorStateBackend:
        """The operator state of the subtask.

        Raises:
            UsageError: the operator is not open.
        """
        if self._operator_backend is None:
            raise UsageError("the operator is not open", hint="Call open(), or use the operator in a with statement")
        return self._operator_backend

    @property
    def watermark(self) -> int:
        """The current watermark."""
        return self._watermark

    def read_clock(self) -> int:
        """Return the processing time in epoch milliseconds."""
        return self._clock()

    def advance_watermark(self, timestamp: int) -> list[Any]:
        """Raise the watermark, and fire the event-time timers up to it, in order; a lower watermark is ignored.

        Args:
            timestamp: epoch milliseconds.

        Returns:
            What the function emits.
        """
        if timestamp <= self._watermark:
            return []
        self._watermark = timestamp
        return self._fire_event_timers(timestamp)

    def advance_processing_time(self, timestamp: int | None = None) -> list[Any]:
        """Fire the processing-time timers that are due, in order.

        Args:
            timestamp: epoch milliseconds that a `ManualClock` is set to; default the time of the clock.

        Returns:
            What the function emits.

        Raises:
            UsageError: a time is given, but the clock cannot be set.
        """
        if timestamp is not None:
            if not isinstance(self._clock, ManualClock):
                raise UsageError("the clock cannot be set", hint="Make the operator with clock=ManualClock()")
            self._clock.millis = timestamp
        return self._fire_processing_timers(self._clock())

    @property
    def filled_side_outputs(self) -> tuple[OutputTag, ...]:
        """Side outputs with values that `take_side_output` has not returned yet."""
        return tuple(self._side_outputs)

    def take_side_output(self, tag: OutputTag) -> list[Any]:
        """Return what was emitted to a side output since the last call."""
        return self._side_outputs.pop(tag, [])

    def prepare_snapshot(self, checkpoint_id: int, timestamp: int | None = None) -> None:
        """Let the function update its operator state, and remove expired values that a snapshot must not contain.

        Args:
            checkpoint_id: id of the checkpoint.
            timestamp: time at which it was triggered, in epoch milliseconds; default now.
        """
        self._raw_output, self._raw_keyed_output = RawOperatorOutput(), self._make_raw_keyed_output()
        if isinstance(self.function, CheckpointedFunction):
            triggered = self._clock() if timestamp is None else timestamp
            self.function.snapshot_state(
                FunctionSnapshotContext(checkpoint_id, triggered, self._raw_output, self._raw_keyed_output)
            )

    def snapshot(
        self,
        directory: Location,
        name: str,
        checkpoint_id: int,
        *,
        file_format: Format = Format.CANONICAL,
        compressed: bool = False,
        timestamp: int | None = None,
        shared: Location | None = None,
        full: bool = False,
    ) -> SubtaskState:
        """Write all state of the subtask, after `prepare_snapshot`.

        Args:
            directory: of the snapshot.
            name: prefix of the names of the files; files carried over from an older snapshot must not have it.
            checkpoint_id: id of the checkpoint or savepoint.
            file_format: of the keyed state: canonical, heap or rocksdb.
            compressed: compress the state (`execution.checkpointing.snapshot-compression`).
            timestamp: time at which it was triggered, in epoch milliseconds; default now.
            shared: directory for the shared files of an incremental snapshot of the keyed state, to which `file_format`
                and `compressed` do not apply; default a full snapshot.
            full: an incremental snapshot uploads all files again, as after a restore in NO_CLAIM mode.

        Returns:
            The handles, relative to the directory; handles of shared files have URLs.

        Raises:
            UsageError: the snapshot is incremental, and the operator uses neither RocksDB nor a changelog.
            StateError: a file cannot be written.
        """
        self.prepare_snapshot(checkpoint_id, timestamp)
        raw = self._raw_keyed_output
        return SubtaskState(
            self.task.index,
            raw_operator_state=write_raw_operator(
                self._raw_state.choose_partitions(self._raw_output.content), directory, f"{name}-raw-operator"
            ),
            raw_keyed_state=None
            if raw is None
            else write_raw_keyed(
                self._raw_state.choose_keyed(raw.content), self.key_groups, directory, f"{name}-raw-keyed"
            ),
            managed_operator_state=self.operator_backend.snapshot(directory, f"{name}-operator", compressed=compressed),
            managed_keyed_state=self._write_keyed_state(
                file_format, directory, f"{name}-keyed", checkpoint_id, compressed=compressed
            )
            if shared is None
            else self._write_increment(directory, shared, checkpoint_id, full=full),
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the function that all subtasks have completed a checkpoint."""
        if isinstance(self.function, CheckpointListener):
            self.function.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the function that a checkpoint has failed."""
        if isinstance(self.function, CheckpointListener):
            self.function.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        """Close the function, and release the state."""
        if self.is_open:
            self._operator_backend = None
            try:
                self.function.close()
            finally:
                self._close_keyed_state()

    def __enter__(self) -> Self:
        """Open the operator without state, unless it is open."""
        if not self.is_open:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_keyed_state(self, max_parallelism: int, restored: RestoredState | None) -> KeyedStateStore | None:
        """Open the keyed state; return None in operators without keys."""
        if restored is not None and restored.keyed_files:
            raise UsageError("keyed state is restored into an operator without keys")
        return None

    @property
    def key_groups(self) -> KeyGroupRange:
        """Key groups of the subtask."""
        return self.task.find_key_groups(self.max_parallelism)

    def _restore_raw_state(self, max_parallelism: int, restored: RestoredState | None) -> RawState:
        if restored is None:
            return RawState()
        key_groups = self.task.find_key_groups(max_parallelism)
        keyed = (pair for handle, stream in restored.raw_keyed for pair in read_raw_keyed(handle, stream, key_groups))
        partitions = read_raw_operator(restored.raw_operator, self.task.index, self.task.parallelism)
        return RawState(keyed, partitions)

    def _make_raw_keyed_output(self) -> RawKeyedOutput | None:
        """Return a new output for raw keyed state; None in operators without keys."""
        return None

    def _write_keyed_state(
        self, file_format: Format, directory: Location, name: str, checkpoint_id: int, *, compressed: bool
    ) -> KeyedStateHandle | None:
        """Write the keyed state; return None in operators without keys."""
        return None

    def _write_increment(
        self, directory: Location, shared: Location, checkpoint_id: int, *, full: bool
    ) -> KeyedStateHandle | None:
        """Write the changes to the keyed state; return None in operators without keys."""
        return None

    # Not abstract: operators without keys have no keyed state to release.
    def _close_keyed_state(self) -> None:  # noqa: B027
        """Release the keyed state."""

    @abstractmethod
    def _open_contexts(self) -> None:
        """Make the contexts of elements and timers."""

    def _fire_event_timers(self, up_to: int) -> list[Any]:
        return []

    def _fire_processing_timers(self, up_to: int) -> list[Any]:
        return []

    def _collect(self, emitted: Output, output: list[Any]) -> list[Any]:
        """Add emitted values to `output`, and (tag, value) tuples to side outputs; return `output`."""
        if emitted is not None:
            for value in emitted:
                if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], OutputTag):
                    self._side_outputs.setdefault(value[0], []).append(value[1])
                else:
                    output.append(value)
        return output


class _Times:
    """Timestamp of the element or timer, and the watermark, processing time and broadcast states of the subtask.

    Args:
        operator: gives the watermark and the processing time.
        states: broadcast states by name.
    """

    def __init__(self, operator: FunctionOperator, states: Mapping[str, TableBroadcastState]) -> None:
        self._operator = operator
        self._states = states
        self._timestamp: int | None = None

    def set(self, timestamp: int | None) -> None:
        """Set the timestamp of an element."""
        self._timestamp = timestamp

    def timestamp(self) -> int | None:
        """Return the timestamp."""
        return self._timestamp

    def current_processing_time(self) -> int:
        """Return the processing time."""
        return self._operator.read_clock()

    def current_watermark(self) -> int:
        """Return the watermark."""
        return self._operator.watermark

    def _find_state(self, descriptor: MapStateDescriptor) -> TableBroadcastState:
        found = self._states.get(descriptor.name)
        if found is None or not found.descriptor.describes_same_state(descriptor):
            # The same message as Flink's `CoBroadcastWithKeyedOperator`.
            raise UsageError(
                "The requested state does not exist. Check for typos in your state descriptor, or specify the state "
                "descriptor in the datastream.broadcast(...) call if you forgot to register it.",
                where=Where(state=descriptor.name),
                hint="Descriptors are an argument of the operator",
            )
        return found


class ReadOnlyContext(_Times, BroadcastProcessFunction.ReadOnlyContext):
    """Context of an element that is not broadcast."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Return a broadcast state for reading."""
        return self._find_state(state_descriptor).for_reading()


class BroadcastContext(_Times, BroadcastProcessFunction.Context):
    """Context of a broadcast element."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Return a broadcast state."""
        return self._find_state(state_descriptor)


class KeyedReadOnlyContext(KeyedTimerContext, _Times, KeyedBroadcastProcessFunction.OnTimerContext):
    """Context of an element with a key, or of a timer.

    Args:
        operator: gives the watermark and the processing time.
        states: broadcast states by name.
        timers: of the subtask.
    """

    def __init__(
        self, operator: FunctionOperator, states: Mapping[str, TableBroadcastState], timers: TimerService
    ) -> None:
        _Times.__init__(self, operator, states)
        KeyedTimerContext.__init__(self, timers)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Return a broadcast state for reading."""
        return self._find_state(state_descriptor).for_reading()


class KeyedBroadcastContext(_Times, KeyedBroadcastProcessFunction.Context):
    """Context of a broadcast element of an operator whose other input is keyed.

    Args:
        operator: gives the watermark and the processing time.
        states: broadcast states by name.
        keyed_states: of the subtask.
        key_type: of the keys.
    """

    def __init__(
        self,
        operator: FunctionOperator,
        states: Mapping[str, TableBroadcastState],
        keyed_states: BackendKeyedStates,
        key_type: TypeInformation,
    ) -> None:
        super().__init__(operator, states)
        self._keyed_states = keyed_states
        self._key_type = key_type

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Return a broadcast state."""
        return self._find_state(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        """Call a function for every key that has a value in a state, with the key and the state."""
        state = self._keyed_states.register(state_descriptor)
        self._keyed_states.for_each_key(state, lambda key: function(self._key_type.from_internal_type(key), state))


class KeyedOperator(FunctionOperator):
    """Runs a function for the keys of one subtask.

    Args:
        function: that the user wrote.
        key_type: type of the keys, or another description of it (see `Types.of`).
        make_store: makes the store of the keyed state from the size of a key-group prefix in bytes; default the heap.
        hashes: `hashCode` of user classes among the keys, by class name.
        backup: keeps copies of snapshot files on this machine, and restores from them; default none.
        changelog: log every change, so that a snapshot uploads the changes only; default no.
        pyflink_state: use PyFlink's layout of keys and state, so that a PyFlink job can restore it; default Java's.
        latencies: measure access to keyed states in histograms among the metrics; default no.
        options: as of `FunctionOperator`.

    Raises:
        UsageError: Flink rejects the type of the keys.
    """

    timer_service: ClassVar[str] = "user-timers"
    """Name of the timer service (`KeyedProcessOperator.open`), which is part of the names of the states of timers."""

    timer_namespace: ClassVar[Serializer] = VOID_NAMESPACE
    """Serializer of the namespaces of timers."""

    function: Any

    def __init__(
        self,
        function: Function,
        key_type: TypeDescription,
        *,
        make_store: Callable[[int], EntryStore] = HeapStore,
        hashes: Mapping[str, HashExpression] | None = None,
        backup: LocalBackup | None = None,
        changelog: ChangelogSettings | None = None,
        pyflink_state: bool = False,
        latencies: LatencyTracking | None = None,
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self._backup = backup
        self._changelog = changelog
        self._pyflink_state = pyflink_state
        self._latencies = latencies
        self._key_type = derive_type(key_type)
        if pyflink_state:
            self._key_type = KeyRowTypeInfo(self._key_type)
        check_key_type(self._key_type.serializer, hashes or {})
        self._make_store = make_store
        self._hashes = hashes
        self._backend: KeyedStateBackend | None = None
        self._increments: IncrementalSnapshots | ChangelogSnapshots | None = None
        self._completed = -1

    @property
    def backend(self) -> KeyedStateBackend:
        """The keyed state of the subtask.

        Raises:
            UsageError: the operator is not open.
        """
        if self._backend is None:
            raise UsageError("the operator is not open", hint="Call open(), or use the operator in a with statement")
        return self._backend

    @override
    def list_serializers(self) -> Iterator[Serializer]:
        """Return the serializer of the key, and all serializers of the registered and restored states."""
        yield self.backend.key_serializer
        for info in self.backend.states:
            yield from (serializer for _, serializer in info.serializers)
        yield from super().list_serializers()

    def count_timers(self, domain: TimeDomain) -> int:
        """Return the number of timers of event time or processing time."""
        return len(self._event_timers if domain is TimeDomain.EVENT_TIME else self._processing_timers)

    def prepare_snapshot(self, checkpoint_id: int, timestamp: int | None = None) -> None:
        """Let the function update its operator state, and remove expired values that a snapshot must not contain."""
        super().prepare_snapshot(checkpoint_id, timestamp)
        self._states.clean_for_snapshot()

    def _open_keyed_state(self, max_parallelism: int, restored: RestoredState | None) -> BackendKeyedStates:
        entries = self._make_store(key_group_prefix_size(max_parallelism))
        self._backend = KeyedStateBackend(
            entries if self._changelog is None else ChangelogStore(entries),
            self._key_type.serializer,
            self.task.find_key_groups(max_parallelism),
            max_parallelism,
            self._layouts,
            self._hashes,
        )
        self._increments = None
        self._completed = -1 if restored is None else restored.checkpoint_id
        store = self._backend.store
        if restored is not None and restored.databases is not None and isinstance(store, RocksStore):
            self._increments = restored.databases.restore(self._backend, store, restored.context, self._backup)
        elif restored is not None:
            files = restored.find_files(self._backend.key_groups, self._backup)
            self._backend.restore(files)
        if isinstance(store, ChangelogStore):
            going_on = None if restored is None else restored.find_changelog(self._backend.key_groups)
            self._increments = ChangelogSnapshots(self._backend, store, going_on, self._changelog)
        self._states = BackendKeyedStates(
            self._backend, self._clock, pyflink_state=self._pyflink_state, track=self._track_latency
        )
        return self._states

    def _make_raw_keyed_output(self) -> RawKeyedOutput:
        return RawKeyedOutput(self.key_groups)

    def _track_latency(self, state: TableState) -> None:
        if self._latencies is not None:
            self._latencies.track(state, self.metrics)

    def _write_keyed_state(
        self, file_format: Format, directory: Location, name: str, checkpoint_id: int, *, compressed: bool
    ) -> KeyedStateHandle | None:
        write = partial(
            write_full_snapshot, self.backend, file_format, directory, name, checkpoint_id, compressed=compressed
        )
        return self._write_with_copies(write, checkpoint_id, directory)

    def _write_increment(
        self, directory: Location, shared: Location, checkpoint_id: int, *, full: bool
    ) -> KeyedStateHandle | None:
        store = self.backend.store
        if self._increments is None:
            if not isinstance(store, RocksStore):
                hint = "Set state.backend.type to rocksdb, or state.changelog.enabled to true"
                raise UsageError("only RocksDB and the changelog have incremental snapshots", hint=hint)
            self._increments = IncrementalSnapshots(self.backend, store, backup=self._backup)
        write = partial(self._increments.write, checkpoint_id, directory, shared, full=full)
        if isinstance(self._increments, IncrementalSnapshots):
            # `IncrementalSnapshots` keeps local copies itself: links to its tables, which are on this machine already.
            return write().handle
        return self._write_with_copies(write, checkpoint_id, directory)

    def _write_with_copies(
        self, write: Callable[[], KeyedSnapshot], checkpoint_id: int, directory: Location
    ) -> KeyedStateHandle | None:
        """Write a snapshot, and keep copies of its files on this machine if the operator has a `backup`."""
        if self._backup is None:
            return write().handle
        with self._backup.write_copies(checkpoint_id):
            handle = write().handle
        self._backup.keep_written(checkpoint_id, handle, directory, self._completed)
        return handle

    @override
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the function, and base later incremental snapshots on this one."""
        super().notify_checkpoint_complete(checkpoint_id)
        self._completed = max(self._completed, checkpoint_id)
        if self._increments is not None:
            self._increments.complete(checkpoint_id)

    @override
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the function, and base no incremental snapshot on this one."""
        super().notify_checkpoint_aborted(checkpoint_id)
        if self._increments is not None:
            self._increments.abort(checkpoint_id)

    def _close_keyed_state(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _open_contexts(self) -> None:
        self._event_timers, self._processing_timers = (
            TimerQueue(self.backend, timer_state_name(self.timer_service, domain), self.timer_namespace)
            for domain in TimeDomain
        )
        self._timers = TimerService(self.backend, self._event_timers, self._processing_timers, self._clock)
        self._context: Any = ElementContext(self._timers)

    def _on_timer(self, timer: InternalTimer, key: Any, domain: TimeDomain) -> Output:
        """Call the function for a timer; `key` is converted to the function's Python type."""
        self._context.set_key(key, timer.timestamp, domain)
        emitted: Output = self.function.on_timer(timer.timestamp, self._context)
        return emitted

    def _set_key(self, key: Any) -> None:
        self.backend.set_current_key(self._key_type.to_internal_type(key))
        self._states.clean_by_record()

    def _fire_event_timers(self, up_to: int) -> list[Any]:
        self._timers.watermark = up_to
        return self._fire(self._event_timers, up_to, TimeDomain.EVENT_TIME)

    def _fire_processing_timers(self, up_to: int) -> list[Any]:
        return self._fire(self._processing_timers, up_to, TimeDomain.PROCESSING_TIME)

    def _fire(self, timers: TimerQueue, up_to: int, domain: TimeDomain) -> list[Any]:
        output: list[Any] = []
        for timer in timers.poll(up_to):
            self.backend.set_current_key(timer.key)
            key = self._key_type.from_internal_type(timer.key)
            self._collect(self._on_timer(timer, key, domain), output)
        return output


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector: finds the key of an element.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedProcessFunction,)
    function: KeyedProcessFunction

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key = find_key_function(key_selector)

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element.

        Args:
            value: the element.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        key = self._get_key(value)
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(self.function.process_element(value, self._context), [])


class KeyedCoProcessOperator(KeyedOperator):
    """Runs a `KeyedCoProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector1: finds the key of an element of the first input.
        key_selector2: finds the key of an element of the second input.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedCoProcessFunction,)
    function: KeyedCoProcessFunction

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector1: KeySelector | Callable[[Any], Any],
        key_selector2: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key1 = find_key_function(key_selector1)
        self._get_key2 = find_key_function(key_selector2)

    def process1(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the first input; as `KeyedProcessOperator.process`."""
        return self._process(self.function.process_element1, self._get_key1(value), value, timestamp)

    def process2(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the second input; as `KeyedProcessOperator.process`."""
        return self._process(self.function.process_element2, self._get_key2(value), value, timestamp)

    def _process(
        self, process_element: Callable[[Any, ElementContext], Output], key: Any, value: Any, timestamp: int | None
    ) -> list[Any]:
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(process_element(value, self._context), [])


def find_key_function(key_selector: KeySelector | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of a key selector."""
    return key_selector.get_key if isinstance(key_selector, KeySelector) else key_selector


class BroadcastProcessOperator(FunctionOperator):
    """Runs a `BroadcastProcessFunction` (`CoBroadcastWithNonKeyedOperator`).

    Args:
        function: that the user wrote.
        broadcast_state_descriptors: of the broadcast states.
        options: as of `FunctionOperator`.
    """

    function_types: ClassVar = (BroadcastProcessFunction,)
    function: BroadcastProcessFunction

    def __init__(
        self,
        function: BroadcastProcessFunction,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self._descriptors = broadcast_state_descriptors

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the input that is not broadcast.

        Args:
            value: the element.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        self._context.set(timestamp)
        return self._collect(self.function.process_element(value, self._context), [])

    def process_broadcast(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process a broadcast element; as `process`."""
        self._broadcast_context.set(timestamp)
        return self._collect(self.function.process_broadcast_element(value, self._broadcast_context), [])

    def _open_contexts(self) -> None:
        states = {each.name: self.operator_states.get_broadcast_state(each) for each in self._descriptors}
        self._context = ReadOnlyContext(self, states)
        self._broadcast_context = BroadcastContext(self, states)


class KeyedBroadcastProcessOperator(KeyedOperator):
    """Runs a `KeyedBroadcastProcessFunction` (`CoBroadcastWithKeyedOperator`).

    Args:
        function: that the user wrote.
        key_selector: finds the key of an element of the keyed input.
        key_type: type of the keys, or another description of it (see `Types.of`).
        broadcast_state_descriptors: of the broadcast states.
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedBroadcastProcessFunction,)
    function: KeyedBroadcastProcessFunction

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key = find_key_function(key_selector)
        self._descriptors = broadcast_state_descriptors

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the keyed input; as `BroadcastProcessOperator.process`."""
        return self._process(self._get_key(value), value, timestamp)

    def _process(self, key: Any, value: Any, timestamp: int | None) -> list[Any]:
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(self.function.process_element(value, self._context), [])

    def process_broadcast(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process a broadcast element, without a current key; as `BroadcastProcessOperator.process`."""
        self.backend.clear_current_key()
        self._broadcast_context.set(timestamp)
        return self._collect(self.function.process_broadcast_element(value, self._broadcast_context), [])

    def _open_contexts(self) -> None:
        super()._open_contexts()
        states = {each.name: self.operator_states.get_broadcast_state(each) for each in self._descriptors}
        self._context = KeyedReadOnlyContext(self, states, self._timers)
        self._broadcast_context = KeyedBroadcastContext(self, states, self._states, self._key_type)
