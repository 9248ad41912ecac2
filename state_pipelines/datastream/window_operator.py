"""The operator of time windows, with the state of Flink's `WindowOperator`.

Contents are the state `window-contents`, per key and window. Sessions are the state `merging-window-set`: pairs of a
session and the window under which its contents are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from state_pipelines.datastream.descriptors import ListStateDescriptor, StateDescriptor
from state_pipelines.datastream.durations import Time, to_millis
from state_pipelines.datastream.keyed_operator import KeyedOperator, find_key_function
from state_pipelines.datastream.keyed_states import BackendKeyedStates
from state_pipelines.datastream.merging_windows import MergingWindowSet
from state_pipelines.datastream.timer_service import HIGHEST_WATERMARK, TimeDomain
from state_pipelines.datastream.window_contexts import WindowContext
from state_pipelines.datastream.window_functions import ProcessWindowFunction, WindowFunction
from state_pipelines.datastream.windows import TimeWindow
from state_pipelines.errors import UsageError, Where
from state_pipelines.serializers.build import TIME_WINDOW
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.timers import Timer, TimerQueue
    from state_pipelines.datastream.durations import Duration
    from state_pipelines.datastream.functions import KeySelector, Output
    from state_pipelines.datastream.output_tag import OutputTag
    from state_pipelines.datastream.type_information import TypeDescription
    from state_pipelines.datastream.windows import WindowAssigner
    from state_pipelines.serializers.tree import Serializer

WINDOW_CONTENTS = "window-contents"
"""Name of the state of the contents, which Flink gives it."""

LATE_ELEMENTS = "numLateRecordsDropped"
"""Name of the counter of late elements that go nowhere."""


class WindowOperator(KeyedOperator):
    """Collects elements in windows, and calls a function when a window ends.

    Windows fire when the watermark or the clock reaches their last millisecond, and for every late element that is
    still allowed. Other triggers and evictors of Flink are not covered.

    Args:
        function: that the user wrote.
        assigner: assigns windows to elements.
        contents: descriptor of the contents, named `window-contents`: a list of the elements, or a reducing or
            aggregating state of them.
        key_selector: finds the key of an element.
        key_type: type of the keys, or another description of it (see `Types.of`).
        allowed_lateness: of elements after the end of their window; only event time has late elements.
        late_output: side output of elements that are too late; default they are dropped and counted.
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
            What windows emit that are late but still allowed.

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

    def _on_timer(self, timer: Timer, key: Any, domain: TimeDomain) -> Output:
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
        """Add a window to the sessions of the key; return the session that it is part of."""
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
        """Refuse a merge whose result is over, in the words of `WindowOperator.processElement`."""
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
        """Return the time at which the state of a window is removed; at most Java's largest, which means never."""
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
    """Refuse a state that windows cannot have as their contents, and a lateness that they cannot allow.

    Raises:
        UsageError: the descriptor is that of another state, or the lateness is negative.
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
    """Return a window as a namespace."""
    return {"start": window.start, "end": window.end}
