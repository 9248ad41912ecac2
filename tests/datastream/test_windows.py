from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.datastream import (
    AggregatingStateDescriptor,
    Duration,
    EventTimeSessionWindows,
    ListStateDescriptor,
    ManualClock,
    OutputTag,
    PassThroughWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    RestoredState,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TaskInfo,
    Time,
    TimeDomain,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    ValueStateDescriptor,
    WindowFunction,
    WindowOperator,
    write_savepoint,
)
from state_pipelines.datastream.windows import merge_windows
from state_pipelines.errors import UsageError
from state_pipelines.operations.dump import dump
from tests.datastream.test_states import Add, Average
from tests.flink.harness import diff_entries
from tests.snapshots import Case, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from state_pipelines.datastream.windows import WindowAssigner

CONTENTS = ListStateDescriptor("window-contents", Types.LONG())
TUMBLING = TumblingEventTimeWindows.of(Time.milliseconds(10))
SESSIONS = EventTimeSessionWindows.with_gap(Time.milliseconds(10))


class Show(WindowFunction):
    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
        yield key, (window.start, window.end), list(inputs)


def start(assigner: WindowAssigner, contents: Any = CONTENTS, **options: Any) -> WindowOperator:
    function = options.pop("function", None) or Show()
    operator = WindowOperator(
        function, assigner, contents, lambda value: value % 2, Types.LONG(), clock=ManualClock(1000), **options
    )
    operator.open()
    return operator


def test_tumbling_windows_fire_at_their_end() -> None:
    operator = start(TUMBLING)
    for timestamp in (1, 2, 9, 10, 12):
        assert operator.process(timestamp, timestamp) == []
    assert operator.advance_watermark(8) == []
    assert sorted(operator.advance_watermark(9)) == [(0, (0, 10), [2]), (1, (0, 10), [1, 9])]
    assert operator.advance_watermark(100) == [(0, (10, 20), [10, 12])]
    assert operator.count_timers(TimeDomain.EVENT_TIME) == 0
    assert not list(operator.backend.register(CONTENTS.make_info(operator.timer_namespace)).keys_and_namespaces())


def test_an_element_is_in_several_sliding_windows() -> None:
    operator = start(SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5)))
    operator.process(2, 7)
    assert operator.advance_watermark(100) == [(0, (0, 10), [2]), (0, (5, 15), [2])]


def test_windows_are_shifted_by_an_offset() -> None:
    operator = start(TumblingEventTimeWindows.of(Duration.of_millis(10), Duration.of_millis(3)))
    operator.process(2, 2)
    operator.process(4, 4)
    assert operator.advance_watermark(100) == [(0, (-7, 3), [2]), (0, (3, 13), [4])]


def test_sessions_end_after_a_gap() -> None:
    operator = start(SESSIONS)
    for value, timestamp in ((2, 0), (4, 5), (6, 30)):
        operator.process(value, timestamp)
    assert operator.advance_watermark(14) == [(0, (0, 15), [2, 4])]
    assert operator.advance_watermark(100) == [(0, (30, 40), [6])]
    assert not list(
        operator.backend.register(
            ListStateDescriptor("merging-window-set", "Tuple2<TimeWindow, TimeWindow>").make_info()
        ).keys()
    )
    assert operator.count_timers(TimeDomain.EVENT_TIME) == 0


def test_an_element_joins_two_sessions() -> None:
    operator = start(SESSIONS)
    for value, timestamp in ((2, 0), (4, 18), (6, 9)):
        operator.process(value, timestamp)
    assert operator.count_timers(TimeDomain.EVENT_TIME) == 1
    ((key, window, values),) = operator.advance_watermark(100)
    assert (key, window, sorted(values)) == (0, (0, 28), [2, 4, 6])


def test_windows_of_processing_time_fire_by_the_clock() -> None:
    operator = start(TumblingProcessingTimeWindows.of(Time.milliseconds(10)))
    operator.process(2)
    assert operator.advance_processing_time(1008) == []
    assert operator.advance_processing_time(1009) == [(0, (1000, 1010), [2])]
    operator = start(ProcessingTimeSessionWindows.with_gap(Time.milliseconds(10)))
    operator.process(2)
    assert operator.advance_processing_time(1005) == []
    operator.process(4)
    assert operator.advance_processing_time(1014) == [(0, (1000, 1015), [2, 4])]
    operator = start(SlidingProcessingTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5)))
    operator.process(2)
    assert operator.advance_processing_time(1020) == [(0, (995, 1005), [2]), (0, (1000, 1010), [2])]


def test_contents_are_reduced_or_aggregated() -> None:
    reducing = ReducingStateDescriptor("window-contents", Add(), Types.LONG())
    operator = start(TUMBLING, reducing, function=PassThroughWindowFunction())
    for value in (2, 4, 6):
        operator.process(value, 1)
    assert operator.advance_watermark(9) == [12]
    state_type = Types.TUPLE([Types.LONG(), Types.LONG()])
    operator = start(SESSIONS, AggregatingStateDescriptor("window-contents", Average(), state_type))
    for value, timestamp in ((2, 0), (4, 18), (12, 9)):
        operator.process(value, timestamp)
    assert operator.advance_watermark(100) == [(0, (0, 28), [6.0])]


def test_late_elements_are_dropped_and_counted() -> None:
    operator = start(TUMBLING)
    operator.advance_watermark(9)
    assert operator.process(2, 5) == []
    counter: Any = operator.runtime_context.get_metrics_group().metrics["numLateRecordsDropped"]
    assert counter.get_count() == 1
    assert operator.count_timers(TimeDomain.EVENT_TIME) == 0


def test_late_elements_go_to_a_side_output() -> None:
    late = OutputTag("late")
    operator = start(SESSIONS, late_output=late)
    operator.advance_watermark(20)
    assert operator.process(2, 5) == []
    assert operator.take_side_output(late) == [2]


def test_allowed_late_elements_fire_again() -> None:
    operator = start(TUMBLING, allowed_lateness=Time.milliseconds(5))
    operator.process(2, 5)
    assert operator.advance_watermark(9) == [(0, (0, 10), [2])]
    assert operator.process(4, 6) == [(0, (0, 10), [2, 4])]
    assert operator.advance_watermark(14) == []
    assert operator.process(6, 7) == []


def test_functions_use_state_per_window_and_per_key() -> None:
    per_window = ValueStateDescriptor("fired", Types.LONG())
    per_key = ValueStateDescriptor("windows", Types.LONG())

    class Count(ProcessWindowFunction):
        def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
            fired = context.window_state().get_state(per_window)
            windows = context.global_state().get_state(per_key)
            fired.update((fired.value() or 0) + 1)
            windows.update((windows.value() or 0) + 1)
            times = context.current_watermark(), context.current_processing_time()
            yield context.window().start, fired.value(), windows.value(), times

        def clear(self, context: ProcessWindowFunction.Context) -> None:
            context.window_state().get_state(per_window).clear()

    operator = start(TUMBLING, function=Count(), allowed_lateness=Time.milliseconds(5))
    operator.process(2, 5)
    assert operator.advance_watermark(9) == [(0, 1, 1, (9, 1000))]
    assert operator.process(4, 6) == [(0, 2, 2, (9, 1000))]
    operator.process(4, 16)
    assert operator.advance_watermark(100) == [(10, 1, 3, (100, 1000))]
    table = operator.backend.register(per_window.make_info(operator.timer_namespace))
    assert not list(table.keys_and_namespaces())


def test_sessions_have_no_state_per_window() -> None:
    class Wrong(ProcessWindowFunction):
        def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
            context.window_state()
            return ()

    operator = start(SESSIONS, function=Wrong())
    operator.process(2, 5)
    with pytest.raises(UsageError, match="not allowed when using merging windows"):
        operator.advance_watermark(100)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="no timestamp marker"):
        start(TUMBLING).process(2)
    for contents in (ValueStateDescriptor("window-contents", Types.LONG()), ListStateDescriptor("mine", Types.LONG())):
        with pytest.raises(UsageError, match="contents of windows"):
            start(TUMBLING, contents)
    with pytest.raises(UsageError, match="negative"):
        start(TUMBLING, allowed_lateness=Time(-1))
    for make in (
        lambda: TumblingEventTimeWindows(10, 10),
        lambda: SlidingEventTimeWindows(10, 5, 5),
        lambda: EventTimeSessionWindows(0),
    ):
        with pytest.raises(UsageError, match="must satisfy"):
            make()


def test_a_session_does_not_end_in_the_past() -> None:
    operator = start(SESSIONS, allowed_lateness=Time.milliseconds(100))
    operator.process(2, 0)
    operator.advance_watermark(50)
    assert operator.process(4, 5) == [(0, (0, 15), [2, 4])]


def test_windows_that_touch_are_merged() -> None:
    windows = [TimeWindow(10, 20), TimeWindow(0, 10), TimeWindow(30, 40)]
    assert merge_windows(windows) == [
        (TimeWindow(0, 20), [TimeWindow(0, 10), TimeWindow(10, 20)]),
        (TimeWindow(30, 40), [TimeWindow(30, 40)]),
    ]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=25))
def test_sessions_are_those_of_the_sorted_elements(timestamps: list[int]) -> None:
    expected = defaultdict(list)
    for key in (0, 1):
        begin, end = 0, -1
        for timestamp in sorted(each for each in timestamps if each % 2 == key):
            if timestamp > end:
                begin = timestamp
            end = timestamp + 10
            expected[key, begin].append(timestamp)
    operator = start(SESSIONS)
    for timestamp in timestamps:
        operator.process(timestamp, timestamp)
    found = operator.advance_watermark(1000)
    operator.close()
    assert {(key, window[0]): sorted(values) for key, window, values in found} == dict(expected)


@pytest.mark.parametrize("case", select("1.20", "heap") + select("2.2", "rocksdb") + select("2.3", "heap"), ids=str)
@pytest.mark.parametrize(
    ("uid", "assigner", "modulus"),
    [
        ("tumbling-windows", TumblingEventTimeWindows.of(Time.seconds(30)), 4),
        ("session-windows", EventTimeSessionWindows.with_gap(Time.seconds(20)), 2),
    ],
)
def test_windows_have_the_state_that_flink_writes(
    tmp_path: Path, case: Case, uid: str, assigner: WindowAssigner, modulus: int
) -> None:
    snapshot = case.open_told()
    contents = ListStateDescriptor("window-contents", Types.INT())
    numbers = [each["value"] for each in case.entries() if each["op"] == uid and each.get("state") == "window-contents"]
    operators = [
        WindowOperator(
            PassThroughWindowFunction(),
            assigner,
            contents,
            lambda value: value % modulus,
            Types.INT(),
            task=TaskInfo(index=index, parallelism=2, max_parallelism=case.max_parallelism),
        )
        for index in range(2)
    ]
    for operator in operators:
        operator.open()
        for number in sorted(each for values in numbers for each in values):
            keys = operator.backend.key_context
            if keys.find_key_group(number % modulus, keys.encode(number % modulus)) in operator.backend.key_groups:
                operator.process(number, number * 7000)
    written = write_savepoint(str(tmp_path / "savepoint"), {uid: operators})
    expected = [each for each in case.entries() if each["op"] == uid]
    difference = diff_entries(expected, dump(written))
    assert not difference, difference

    restored = [
        WindowOperator(PassThroughWindowFunction(), assigner, contents, lambda value: value % modulus, Types.INT())
        for _ in range(2)
    ]
    restored[0].open(RestoredState.of(snapshot.operator(uid)))
    restored[1].open(RestoredState.of(written.operator(uid)))
    first, second = (sorted(each.advance_watermark(1 << 40)) for each in restored)
    assert first == second == sorted(each for values in numbers for each in values)
