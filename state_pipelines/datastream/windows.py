"""Time windows, their assigners (`pyflink.datastream.window`), their functions, and the operator that runs them.

`WindowOperator` has the state of Flink's `WindowOperator`. Contents are the state `window-contents`, per key and
window. Sessions are the state `merging-window-set` (`MergingWindowSet`): pairs of a session and the window under which
its contents are stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from state_pipelines.datastream.functions import HIGHEST_WATERMARK, Function, ListStateDescriptor, StateDescriptor
from state_pipelines.datastream.operators import KeyedOperator, find_key_function
from state_pipelines.datastream.table_states import BackendKeyedStates
from state_pipelines.datastream.type_information import Duration, Time, to_millis
from state_pipelines.errors import UsageError, Where
from state_pipelines.serializers.build import TIME_WINDOW
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.backends.keyed_backend import InternalTimer, TimeDomain, TimerQueue
    from state_pipelines.datastream.functions import KeyedStateStore, KeySelector, ListState, Output, OutputTag
    from state_pipelines.datastream.operators import FunctionOperator
    from state_pipelines.datastream.type_information import TypeDescription
    from state_pipelines.serializers.tree import Serializer


@dataclass(frozen=True, order=True)
class TimeWindow:
    """A span of time.

    Attributes:
        start: epoch milliseconds.
        end: epoch milliseconds, exclusive.
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the last millisecond of the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window of a timestamp.

        Args:
            timestamp: epoch milliseconds.
            offset: milliseconds by which windows are shifted.
            window_size: milliseconds.
        """
        return timestamp - (timestamp - offset) % window_size


class WindowAssigner(ABC):
    """Assigns windows to elements; a window fires when the watermark or the processing time passes its end."""

    is_merging = False
    """Windows of a key that overlap or touch become one."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether the windows are of event time; otherwise they are of processing time."""

    @abstractmethod
    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the windows of an element: `timestamp` is its event time, or the processing time of its arrival."""


class _EventTime:
    """Windows of event time."""

    def is_event_time(self) -> bool:
        """Return True."""
        return True


class _ProcessingTime:
    """Windows of processing time."""

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class _Tumbling(WindowAssigner):
    """Windows of a fixed size without overlaps or gaps.

    Args:
        size: milliseconds.
        offset: milliseconds by which they are shifted.

    Raises:
        UsageError: the offset is not smaller than the size.
    """

    def __init__(self, size: int, offset: int) -> None:
        if abs(offset) >= size:
            raise UsageError(f"{type(self).__name__} parameters must satisfy abs(offset) < size")
        self._size, self._offset = size, offset

    @classmethod
    def of(cls, size: Time | Duration, offset: Time | Duration | None = None) -> Self:
        """Return windows of a size, shifted by an offset."""
        return cls(to_millis(size), to_millis(offset or Time(0)))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the one window of a timestamp, in a list."""
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._size)
        return [TimeWindow(start, start + self._size)]


class TumblingEventTimeWindows(_EventTime, _Tumbling):
    """Tumbling windows of event time."""


class TumblingProcessingTimeWindows(_ProcessingTime, _Tumbling):
    """Tumbling windows of processing time."""


class _Sliding(WindowAssigner):
    """Windows that overlap.

    Args:
        size: milliseconds.
        slide: milliseconds between the starts of two windows.
        offset: milliseconds by which they are shifted.

    Raises:
        UsageError: the offset is not smaller than the slide, or the size is not positive.
    """

    def __init__(self, size: int, slide: int, offset: int) -> None:
        if abs(offset) >= slide or size <= 0:
            raise UsageError(f"{type(self).__name__} parameters must satisfy abs(offset) < slide and size > 0")
        self._size, self._slide, self._offset = size, slide, offset

    @classmethod
    def of(cls, size: Time | Duration, slide: Time | Duration, offset: Time | Duration | None = None) -> Self:
        """Return windows of a size, one of which starts every `slide`, shifted by an offset."""
        return cls(to_millis(size), to_millis(slide), to_millis(offset or Time(0)))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the windows that contain a timestamp, the latest first."""
        last = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._slide)
        return [TimeWindow(start, start + self._size) for start in range(last, timestamp - self._size, -self._slide)]


class SlidingEventTimeWindows(_EventTime, _Sliding):
    """Windows of event time that overlap."""


class SlidingProcessingTimeWindows(_ProcessingTime, _Sliding):
    """Windows of processing time that overlap."""


class _Sessions(WindowAssigner):
    """Windows that end when no element has come for some time.

    Args:
        session_gap: milliseconds.

    Raises:
        UsageError: the gap is not positive.
    """

    is_merging = True

    def __init__(self, session_gap: int) -> None:
        if session_gap <= 0:
            raise UsageError(f"{type(self).__name__} parameters must satisfy 0 < size")
        self._session_gap = session_gap

    @classmethod
    def with_gap(cls, size: Time | Duration) -> Self:
        """Return session windows with a gap of `size`."""
        return cls(to_millis(size))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the window of one element, which is merged with others."""
        return [TimeWindow(timestamp, timestamp + self._session_gap)]


class EventTimeSessionWindows(_EventTime, _Sessions):
    """Sessions of event time."""


class ProcessingTimeSessionWindows(_ProcessingTime, _Sessions):
    """Sessions of processing time."""


def merge_windows(windows: Iterable[TimeWindow]) -> list[tuple[TimeWindow, list[TimeWindow]]]:
    """Merge windows that overlap or touch (`TimeWindow.mergeWindows`).

    Returns:
        (merged window, the windows merged into it), both in order of time.
    """
    merged: list[tuple[TimeWindow, list[TimeWindow]]] = []
    for window in sorted(windows):
        if merged and merged[-1][0].intersects(window):
            before, covered = merged[-1]
            merged[-1] = before.cover(window), [*covered, window]
        else:
            merged.append((window, [window]))
    return merged


@dataclass(frozen=True)
class WindowMerge:
    """A merge of sessions, caused by the window of a new element.

    Attributes:
        result: the merged session.
        merged: the sessions before the merge, without the window of the new element.
        stored: namespace of the contents of the result: the window under which the first session has its contents.
        merged_stored: namespaces of the other sessions, whose contents move to `stored`.
    """

    result: TimeWindow
    merged: list[TimeWindow]
    stored: TimeWindow
    merged_stored: list[TimeWindow]


class MergingWindowSet:
    """The sessions of the current key.

    A merge extends a session, but its contents stay in the namespace of an earlier window.

    Args:
        state: pairs (session, window that is the namespace of its contents).
    """

    def __init__(self, state: ListState[Any]) -> None:
        self._state = state
        self._stored = {TimeWindow(**session): TimeWindow(**stored) for session, stored in state.get()}
        self._before = dict(self._stored)

    def add(self, added: TimeWindow) -> list[WindowMerge]:
        """Add the window of an element; return the merges that it causes."""
        if added in self._stored:
            return []
        merges: list[WindowMerge] = []
        for result, windows in merge_windows([*self._stored, added]):
            before = [each for each in windows if each != added]
            if len(windows) < 2:
                continue
            first, *others = [self._stored.pop(each) for each in before]
            self._stored[result] = first
            # An element within the bounds of a session does not change the session: no merge.
            if before != [result]:
                merges.append(WindowMerge(result, before, first, others))
        if self.get(added) is None and not any(_contains(each, added) for each in self._stored):
            self._stored[added] = added
        return merges

    def cover(self, added: TimeWindow) -> TimeWindow:
        """Return the session that contains an added window."""
        return next(each for each in self._stored if _contains(each, added))

    def get(self, session: TimeWindow) -> TimeWindow | None:
        """Return the window that is the namespace of the contents of a session; None if there is no such session."""
        return self._stored.get(session)

    def find(self, session: TimeWindow) -> TimeWindow:
        """Return the window that is the namespace of the contents of an existing session."""
        return self._stored[session]

    def retire(self, session: TimeWindow) -> None:
        """Remove a session."""
        del self._stored[session]

    def persist(self) -> None:
        """Write the sessions, if they have changed."""
        if self._stored != self._before:
            self._state.update([(vars(session), vars(stored)) for session, stored in self._stored.items()])


def _contains(outer: TimeWindow, inner: TimeWindow) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


class WindowFunction(Function, ABC):
    """Computes the output of a window from its elements, or from their single reduced or aggregated value."""

    @abstractmethod
    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return what the window emits.

        Args:
            key: of the window.
            window: the window.
            inputs: elements of the window, or their single reduced or aggregated value.
        """


class PassThroughWindowFunction(WindowFunction):
    """Emits the elements, or their single reduced or aggregated value."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return the inputs."""
        return inputs


class ProcessWindowFunction(Function, ABC):
    """A window function that can also use the current times, and state per window and per key."""

    class Context(ABC):
        """Context of a call for one window; valid during the call only."""

        @abstractmethod
        def window(self) -> TimeWindow:
            """Return the window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time in epoch milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark in epoch milliseconds."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Return the store of states per key and window; `ProcessWindowFunction.clear` must clear the states."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Return the store of states per key, which all windows share."""

    @abstractmethod
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Return what the window emits.

        Args:
            key: of the window.
            context: of the window.
            elements: of the window.
        """

    # Not abstract: functions without state per window have nothing to clear.
    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear the states of a window that is removed."""


class WindowContext(ProcessWindowFunction.Context):
    """Context of a call for one window.

    Args:
        operator: gives the watermark and the processing time.
        window_states: store of states per key and window.
        global_states: store of states per key.
        is_merging: windows are sessions; Flink allows no state per window then.
    """

    def __init__(
        self,
        operator: FunctionOperator,
        window_states: BackendKeyedStates,
        global_states: BackendKeyedStates,
        *,
        is_merging: bool,
    ) -> None:
        self._operator = operator
        self._window_states = window_states
        self._global_states = global_states
        self._is_merging = is_merging
        self._window = TimeWindow(0, 0)

    def set(self, window: TimeWindow) -> None:
        """Set the window."""
        self._window = window
        self._window_states.set_current_namespace({"start": window.start, "end": window.end})

    def window(self) -> TimeWindow:
        """Return the window."""
        return self._window

    def current_processing_time(self) -> int:
        """Return the processing time."""
        return self._operator.read_clock()

    def current_watermark(self) -> int:
        """Return the watermark."""
        return self._operator.watermark

    def window_state(self) -> BackendKeyedStates:
        """Return the store of states per key and window.

        Raises:
            UsageError: the windows are sessions.
        """
        if self._is_merging:
            raise UsageError("Per-window state is not allowed when using merging windows.")
        return self._window_states

    def global_state(self) -> BackendKeyedStates:
        """Return the store of states per key."""
        return self._global_states


WINDOW_CONTENTS = "window-contents"
"""Name of the state of the contents, which Flink gives it."""

LATE_ELEMENTS = "numLateRecordsDropped"
"""Name of the counter of late elements that are dropped."""


class WindowOperator(KeyedOperator):
    """Collects elements in windows, and calls a function when a window ends.

    A window fires when the watermark or the processing time reaches its last millisecond, and again for every late
    element within the allowed lateness. Flink's other triggers, and its evictors, are not supported.

    Args:
        function: that the user wrote.
        assigner: assigns windows to elements.
        contents: descriptor of the state that holds the elements, named `window-contents`: a list, reducing or
            aggregating state.
        key_selector: finds the key of an element.
        key_type: type of the keys, or another description of it (see `Types.of`).
        allowed_lateness: how long after its end a window still accepts elements; only event time has late elements.
        late_output: side output for elements that are too late; by default they are dropped and counted.
        options: as of `KeyedOperator`.

    Raises:
        UsageError: `contents` is no such descriptor, or the lateness is negative.
    """

    timer_service: ClassVar[str] = "window-timers"
    timer_namespace: ClassVar[Serializer] = TIME_WINDOW
    function_types: ClassVar = (WindowFunction, ProcessWindowFunction)
    function: WindowFunction | ProcessWindowFunction

    def __init__(
        self,
        function: WindowFunction | ProcessWindowFunction,
        assigner: WindowAssigner,
        contents: StateDescriptor,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        *,
        allowed_lateness: Time | Duration = Time(0),  # noqa: B008 - frozen
        late_output: OutputTag | None = None,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        check_contents(contents, allowed_lateness)
        self._lateness = to_millis(allowed_lateness)
        self._assigner = assigner
        self._descriptor = contents
        self._get_key = find_key_function(key_selector)
        self._late_output = late_output

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Add an element to its windows.

        Args:
            value: the element.
            timestamp: epoch milliseconds of event time; windows of event time need it.

        Returns:
            What is emitted by windows that fire because the element is late but still allowed.

        Raises:
            UsageError: an element has no timestamp.
        """
        return self._process(self._get_key(value), value, timestamp)

    def _process(self, key: Any, value: Any, timestamp: int | None) -> list[Any]:
        self._set_key(key)
        output: list[Any] = []
        is_event_time = self._assigner.is_event_time()
        if is_event_time and timestamp is None:
            raise UsageError(
                "Record has Java Long.MIN_VALUE timestamp (= no timestamp marker). Is the time characteristic set to "
                "'ProcessingTime', or did you forget to call 'data_stream.assign_timestamps_and_watermarks(...)'?"
            )
        assigned_at = timestamp if is_event_time and timestamp is not None else self._clock()
        windows = self._assigner.assign(assigned_at)
        sessions = self._read_sessions()
        is_taken = False
        for assigned in windows:
            window = assigned if sessions is None else self._join(sessions, assigned)
            if self._is_late(window):
                if sessions is not None:
                    sessions.retire(window)
                continue
            is_taken = True
            self._contents.set_current_namespace(_name(window if sessions is None else sessions.find(window)))
            self._contents.add(value)  # type: ignore[attr-defined]
            if is_event_time and window.max_timestamp() <= self.watermark:
                self._emit(key, window, output)
            else:
                self._queue.add(window.max_timestamp(), self.backend.current_key, _name(window))
            self._add_cleanup(window)
        if sessions is not None:
            sessions.persist()
        if not is_taken and is_event_time and assigned_at + self._lateness <= self.watermark:
            self._report_late(value)
        return output

    def _open_contexts(self) -> None:
        super()._open_contexts()
        is_event_time = self._assigner.is_event_time()
        self._queue: TimerQueue = self._event_timers if is_event_time else self._processing_timers
        window_states = BackendKeyedStates(self.backend, self._clock, TIME_WINDOW, track=self._track_latency)
        self._contents = window_states.register(self._descriptor)
        self._sessions: Any = None
        if self._assigner.is_merging:
            self._sessions = self._states.get_list_state(
                ListStateDescriptor("merging-window-set", "Tuple2<TimeWindow, TimeWindow>")
            )
        self._late = self.runtime_context.get_metrics_group().counter(LATE_ELEMENTS)
        self._context = WindowContext(self, window_states, self._states, is_merging=self._assigner.is_merging)

    def _on_timer(self, timer: InternalTimer, key: Any, domain: TimeDomain) -> Output:
        window = TimeWindow(**timer.namespace)
        output: list[Any] = []
        sessions = self._read_sessions()
        stored = window if sessions is None else sessions.get(window)
        if stored is None:
            return output
        self._contents.set_current_namespace(_name(stored))
        if timer.timestamp == window.max_timestamp():
            self._emit(key, window, output)
        if timer.timestamp == self._find_cleanup(window):
            self._contents.clear()
            self._context.set(window)
            if isinstance(self.function, ProcessWindowFunction):
                self.function.clear(self._context)
            if sessions is not None:
                sessions.retire(window)
                sessions.persist()
        return output

    def _emit(self, key: Any, window: TimeWindow, output: list[Any]) -> None:
        stored = self._contents.get()  # type: ignore[attr-defined]
        if stored is None or (self._descriptor.state_type == StateKind.LIST and not stored):
            return
        inputs = stored if self._descriptor.state_type == StateKind.LIST else [stored]
        self._context.set(window)
        if isinstance(self.function, ProcessWindowFunction):
            self._collect(self.function.process(key, self._context, inputs), output)
        else:
            self._collect(self.function.apply(key, window, inputs), output)

    def _read_sessions(self) -> MergingWindowSet | None:
        return None if self._sessions is None else MergingWindowSet(self._sessions)

    def _join(self, sessions: MergingWindowSet, added: TimeWindow) -> TimeWindow:
        """Add a window to the sessions of the key, merging sessions; return the session that contains the window."""
        key = self.backend.current_key
        for merge in sessions.add(added):
            self._check_merge(merge.result)
            for window in merge.merged:
                self._queue.remove(window.max_timestamp(), key, _name(window))
                self._queue.remove(self._find_cleanup(window), key, _name(window))
            self._contents.merge_namespaces(_name(merge.stored), [_name(each) for each in merge.merged_stored])
            if merge.result.max_timestamp() > (self.watermark if self._assigner.is_event_time() else self._clock()):
                self._queue.add(merge.result.max_timestamp(), key, _name(merge.result))
        return sessions.cover(added)

    def _check_merge(self, result: TimeWindow) -> None:
        """Refuse a merge into a session that has already ended, with the message of `WindowOperator.processElement`."""
        if self._assigner.is_event_time():
            if result.max_timestamp() + self._lateness <= self.watermark:
                raise UsageError(
                    "The end timestamp of an event-time window cannot become earlier than the current watermark by "
                    f"merging. Current watermark: {self.watermark} window: {result}"
                )
        elif result.max_timestamp() <= self._clock():
            raise UsageError(
                "The end timestamp of a processing-time window cannot become earlier than the current processing time "
                f"by merging. Current processing time: {self._clock()} window: {result}"
            )

    def _is_late(self, window: TimeWindow) -> bool:
        return self._assigner.is_event_time() and self._find_cleanup(window) <= self.watermark

    def _find_cleanup(self, window: TimeWindow) -> int:
        """Return the time at which the state of a window is removed; `Long.MAX_VALUE` means never."""
        lateness = self._lateness if self._assigner.is_event_time() else 0
        return min(window.max_timestamp() + lateness, HIGHEST_WATERMARK)

    def _add_cleanup(self, window: TimeWindow) -> None:
        time = self._find_cleanup(window)
        if time < HIGHEST_WATERMARK:
            self._queue.add(time, self.backend.current_key, _name(window))

    def _report_late(self, value: Any) -> None:
        if self._late_output is None:
            self._late.inc()
        else:
            self._side_outputs.setdefault(self._late_output, []).append(value)


def check_contents(contents: StateDescriptor, allowed_lateness: Time | Duration) -> None:
    """Refuse a state descriptor that cannot hold the contents of windows, and a negative allowed lateness.

    Raises:
        UsageError: the descriptor is of another kind, has TTL or another name, or the lateness is negative.
    """
    if not isinstance(contents, StateDescriptor):
        hint = f"Give ListStateDescriptor({WINDOW_CONTENTS!r}, type)"
        raise UsageError(f"contents is {contents!r:.80}, which is no descriptor of a state", hint=hint)
    where = Where(state=contents.name)
    if (
        contents.state_type not in (StateKind.LIST, StateKind.REDUCING, StateKind.AGGREGATING)
        or contents.ttl_config is not None
    ):
        raise UsageError("contents of windows are list, reducing or aggregating state without TTL", where=where)
    if contents.name != WINDOW_CONTENTS:
        raise UsageError(f"the state of the contents of windows is named {WINDOW_CONTENTS}", where=where)
    if to_millis(allowed_lateness) < 0:
        raise UsageError("The allowed lateness cannot be negative.")


def _name(window: TimeWindow) -> dict[str, int]:
    """Return a window as the namespace of states and timers."""
    return {"start": window.start, "end": window.end}
