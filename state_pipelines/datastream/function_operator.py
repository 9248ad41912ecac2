"""Base class of operators: lifecycle, operator state, watermarks, output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from state_pipelines.backends.operator_backend import OperatorStateBackend
from state_pipelines.backends.raw_streams import (
    RawOperatorOutput,
    RawState,
    read_raw_keyed,
    read_raw_operator,
    write_raw_keyed,
    write_raw_operator,
)
from state_pipelines.backends.system_clock import read_clock
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.datastream.checkpoint_hooks import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from state_pipelines.datastream.clocks import ManualClock
from state_pipelines.datastream.functions import require_function
from state_pipelines.datastream.metrics import MetricGroup
from state_pipelines.datastream.operator_states import BackendOperatorStates
from state_pipelines.datastream.output_tag import OutputTag
from state_pipelines.datastream.runtime_context import RuntimeContext
from state_pipelines.datastream.task_info import TaskInfo
from state_pipelines.datastream.timer_service import LOWEST_WATERMARK
from state_pipelines.errors import UsageError
from state_pipelines.metadata import SubtaskState
from state_pipelines.operations.write.new_layouts import KRYO_OF_FLINK_1, has_kryo
from state_pipelines.operations.write.state_formats import Format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from state_pipelines.backends.raw_streams import RawKeyedOutput
    from state_pipelines.datastream.aggregations import Function
    from state_pipelines.datastream.clocks import Clock
    from state_pipelines.datastream.functions import Output
    from state_pipelines.datastream.metrics import MetricValue
    from state_pipelines.datastream.restored_state import RestoredState
    from state_pipelines.datastream.states import KeyedStateStore
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location


class FunctionOperator(ABC):
    """Runs a function in one subtask.

    `process`, `advance_watermark` and `advance_processing_time` return what the function emits; values for side
    outputs wait in `take_side_output`.

    Args:
        function: that the user wrote.
        task: the subtask; default the only one.
        clock: processing time; default that of the machine.
        layouts: what layouts of new state depend on: declared classes, and the version of Kryo; default that of Flink
            2.x without classes. Restored state has the layouts of its snapshot; classes given here replace its own.

    Raises:
        UsageError: the function is not one that the operator runs.

    Attributes:
        metrics: of the function; those of an operator that is opened again begin at 0.
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
        """Release line of Kryo that the metadata of a snapshot must say; 2 where no state of it depends on that.

        Restored state may be carried as bytes, and its line is that of its snapshot.
        """
        if self._is_restored or has_kryo(self.list_serializers()):
            return self._layouts.kryo_version
        return KRYO_OF_FLINK_1

    def list_serializers(self) -> Iterator[Serializer]:
        """All serializers of the registered and restored states."""
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
        """Raise the watermark, and fire the timers of event time up to it, in their order; an older one does nothing.

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
        """Fire the timers of processing time that are due, in their order.

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
        """Side outputs that hold something."""
        return tuple(self._side_outputs)

    def take_side_output(self, tag: OutputTag) -> list[Any]:
        """Return what was emitted to a side output since the last call."""
        return self._side_outputs.pop(tag, [])

    def prepare_snapshot(self, checkpoint_id: int, timestamp: int | None = None) -> None:
        """Let the function bring its operator state up to date, and remove values that TTL leaves out of snapshots.

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
            name: begin of the names of the files; no file of an older snapshot that is carried over may have it.
            checkpoint_id: id of the checkpoint or savepoint.
            file_format: of the keyed state: canonical, heap or rocksdb.
            compressed: compress the state (`execution.checkpointing.snapshot-compression`).
            timestamp: time at which it was triggered, in epoch milliseconds; default now.
            shared: directory of the tables of an incremental snapshot of RocksDB, where `file_format` and `compressed`
                do not count; default none, all state is written.
            full: an incremental snapshot uploads all tables again, as after a restore without claim.

        Returns:
            The handles, relative to the directory; those of tables name their URL.

        Raises:
            UsageError: the snapshot is incremental, and the state is not in RocksDB.
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
        """Tell the function that all subtasks have completed a checkpoint."""
        if isinstance(self.function, CheckpointListener):
            self.function.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the function that a checkpoint has failed."""
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
        """Open the keyed state; None if there is none."""
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
        """Make what takes raw keyed state; None in operators without keys."""
        return None

    def _write_keyed_state(
        self, file_format: Format, directory: Location, name: str, checkpoint_id: int, *, compressed: bool
    ) -> KeyedStateHandle | None:
        """Write the keyed state; None if there is none."""
        return None

    def _write_increment(
        self, directory: Location, shared: Location, checkpoint_id: int, *, full: bool
    ) -> KeyedStateHandle | None:
        """Write what has changed of the keyed state; None if there is none."""
        return None

    # Operators without keys have none.
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
        """Add what a call emits to `output`, or to side outputs."""
        if emitted is not None:
            for value in emitted:
                if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], OutputTag):
                    self._side_outputs.setdefault(value[0], []).append(value[1])
                else:
                    output.append(value)
        return output
