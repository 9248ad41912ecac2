"""Operators that run one function for the keys of one subtask.

They can be used like Flink's test harnesses for operators (`KeyedOneInputStreamOperatorTestHarness`):

    with KeyedProcessOperator(CountClicks(), lambda click: click["user"], Types.STRING()) as operator:
        assert operator.process({"user": "ada"}, timestamp=1) == [("ada", 1)]
        assert operator.advance_watermark(3_600_000) == []
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from state_pipelines.backends.heap_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.timers import TimeDomain as QueueDomain
from state_pipelines.backends.timers import TimerQueue, timer_state_name
from state_pipelines.codecs.layout_context import LayoutContext
from state_pipelines.datastream.clocks import ManualClock, read_system_clock
from state_pipelines.datastream.derived_types import derive_type
from state_pipelines.datastream.element_contexts import ElementContext
from state_pipelines.datastream.functions import KeySelector
from state_pipelines.datastream.key_types import check_key_type
from state_pipelines.datastream.keyed_states import BackendKeyedStates
from state_pipelines.datastream.output_tag import OutputTag
from state_pipelines.datastream.subtask_context import QueueTimerService, SubtaskContext
from state_pipelines.datastream.task_info import TaskInfo
from state_pipelines.datastream.timer_service import TimeDomain
from state_pipelines.errors import UsageError
from state_pipelines.keyed.key_group_assignment import key_group_prefix_size
from state_pipelines.serializers.build import VOID_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.backends.live_file import LiveFile
    from state_pipelines.datastream.aggregations import Function
    from state_pipelines.datastream.clocks import Clock
    from state_pipelines.datastream.functions import KeyedCoProcessFunction, KeyedProcessFunction, Output
    from state_pipelines.datastream.restored_state import RestoredState
    from state_pipelines.datastream.type_information import TypeInformation
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression
    from state_pipelines.serializers.tree import Serializer

TIMERS = "user-timers"
"""Name of the timer service of functions (`KeyedProcessOperator.open`)."""


class KeyedOperator(ABC):
    """Runs a function for the keys of one subtask.

    `process`, `advance_watermark` and `advance_processing_time` return what the function emits; values for side outputs
    wait in `take_side_output`.

    Args:
        function: that the user wrote.
        key_type: type of the keys, or another description of it (see `Types.of`).
        task: the subtask; default the only one.
        make_store: makes the store of the state, given the bytes of a key-group prefix; default the heap.
        clock: processing time; default that of the machine.
        layouts: what layouts of serializers depend on, such as declared classes.
        hashes: `hashCode` of user classes among the keys, by class name.

    Raises:
        UsageError: Flink rejects the type of the keys.
    """

    def __init__(
        self,
        function: Function,
        key_type: TypeInformation | Serializer | str | type,
        *,
        task: TaskInfo | None = None,
        make_store: Callable[[int], EntryStore] = HeapStore,
        clock: Clock = read_system_clock,
        layouts: LayoutContext | None = None,
        hashes: Mapping[str, HashExpression] | None = None,
    ) -> None:
        self.function = function
        self.task = task or TaskInfo()
        self._key_type = derive_type(key_type)
        check_key_type(self._key_type.serializer, hashes or {})
        self._make_store = make_store
        self._clock = clock
        self._layouts = layouts or LayoutContext()
        self._hashes = hashes
        self._side_outputs: dict[OutputTag, list[Any]] = {}
        self._backend: KeyedStateBackend | None = None

    def open(self, restored: RestoredState | None = None) -> None:
        """Restore state, and open the function.

        Args:
            restored: the state to start from; default none.

        Raises:
            IncompatibleError: the state has other key groups, other keys, or serializers that do not fit.
            StateError: the state cannot be read.
            UsageError: the operator is open, or the function registers states wrongly.
        """
        if self._backend is not None:
            raise UsageError("the operator is open already")
        max_parallelism = self.task.choose_max_parallelism(
            None if restored is None else restored.context.max_parallelism
        )
        self._backend = backend = KeyedStateBackend(
            self._make_store(key_group_prefix_size(max_parallelism)),
            self._key_type.serializer,
            self.task.find_key_groups(max_parallelism),
            max_parallelism,
            self._layouts,
            self._hashes,
        )
        if restored is not None:
            backend.restore(restored.keyed_files, restored.context)
        self._states = BackendKeyedStates(backend, self._clock)
        self.runtime_context = SubtaskContext(self.task, max_parallelism, self._states)
        self.function.open(self.runtime_context)
        self._event_timers, self._processing_timers = (
            TimerQueue(backend, timer_state_name(TIMERS, domain), VOID_NAMESPACE) for domain in QueueDomain
        )
        self._timers = QueueTimerService(backend, self._event_timers, self._processing_timers, self._clock)
        self._context = ElementContext(self._timers)

    @property
    def backend(self) -> KeyedStateBackend:
        """The keyed state of the subtask.

        Raises:
            UsageError: the operator is not open.
        """
        if self._backend is None:
            raise UsageError("the operator is not open", hint="Call open(), or use the operator in a with statement")
        return self._backend

    @property
    def watermark(self) -> int:
        """The current watermark."""
        return self._timers.watermark

    def advance_watermark(self, timestamp: int) -> list[Any]:
        """Raise the watermark, and fire the timers of event time up to it, in their order; an older one does nothing.

        Args:
            timestamp: epoch milliseconds.

        Returns:
            What the function emits.
        """
        output: list[Any] = []
        if timestamp > self._timers.watermark:
            self._timers.watermark = timestamp
            self._fire(self._event_timers, timestamp, TimeDomain.EVENT_TIME, output)
        return output

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
        output: list[Any] = []
        self._fire(self._processing_timers, self._clock(), TimeDomain.PROCESSING_TIME, output)
        return output

    def count_timers(self, domain: TimeDomain) -> int:
        """Return the number of timers of event time or processing time."""
        return len(self._event_timers if domain is TimeDomain.EVENT_TIME else self._processing_timers)

    def take_side_output(self, tag: OutputTag) -> list[Any]:
        """Return what was emitted to a side output since the last call."""
        return self._side_outputs.pop(tag, [])

    def prepare_snapshot(self) -> LiveFile:
        """Return the keyed state as a keyed file for the writers of snapshots, without values that TTL leaves out.

        The file is a view: it is written before the next element is processed.
        """
        self._states.clean_for_snapshot()
        return self.backend.as_file()

    def close(self) -> None:
        """Close the function, and release the state."""
        if self._backend is not None:
            try:
                self.function.close()
            finally:
                self._backend.close()
                self._backend = None

    def __enter__(self) -> Self:
        """Open the operator without state, unless it is open."""
        if self._backend is None:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _on_timer(self, timestamp: int) -> Output:
        """Call the function for a timer."""

    def _enter(self, key: Any, timestamp: int | None) -> None:
        """Make key and timestamp of an element the current ones."""
        context = self._context
        self.backend.set_current_key(self._key_type.to_internal_type(key))
        context.key, context.time, context.domain = key, timestamp, None
        self._states.clean_by_record()

    def _fire(self, timers: TimerQueue, up_to: int, domain: TimeDomain, output: list[Any]) -> None:
        context = self._context
        for timer in timers.poll(up_to):
            self.backend.set_current_key(timer.key)
            context.key = self._key_type.from_internal_type(timer.key)
            context.time, context.domain = timer.timestamp, domain
            self._collect(self._on_timer(timer.timestamp), output)

    def _collect(self, emitted: Output, output: list[Any]) -> list[Any]:
        """Add what a call emits to `output`, or to side outputs."""
        if emitted is not None:
            for value in emitted:
                if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], OutputTag):
                    self._side_outputs.setdefault(value[0], []).append(value[1])
                else:
                    output.append(value)
        return output


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector: finds the key of an element.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function: KeyedProcessFunction

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeInformation | Serializer | str | type,
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
        self._enter(self._get_key(value), timestamp)
        return self._collect(self.function.process_element(value, self._context), [])

    def _on_timer(self, timestamp: int) -> Output:
        return self.function.on_timer(timestamp, self._context)


class KeyedCoProcessOperator(KeyedOperator):
    """Runs a `KeyedCoProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector1: finds the key of an element of the first input.
        key_selector2: finds the key of an element of the second input.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function: KeyedCoProcessFunction

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector1: KeySelector | Callable[[Any], Any],
        key_selector2: KeySelector | Callable[[Any], Any],
        key_type: TypeInformation | Serializer | str | type,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key1 = find_key_function(key_selector1)
        self._get_key2 = find_key_function(key_selector2)

    def process1(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the first input; as `KeyedProcessOperator.process`."""
        self._enter(self._get_key1(value), timestamp)
        return self._collect(self.function.process_element1(value, self._context), [])

    def process2(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the second input; as `KeyedProcessOperator.process`."""
        self._enter(self._get_key2(value), timestamp)
        return self._collect(self.function.process_element2(value, self._context), [])

    def _on_timer(self, timestamp: int) -> Output:
        return self.function.on_timer(timestamp, self._context)


def find_key_function(key_selector: KeySelector | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of a key selector."""
    return key_selector.get_key if isinstance(key_selector, KeySelector) else key_selector
