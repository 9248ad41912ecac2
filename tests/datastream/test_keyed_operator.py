from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.datastream import (
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    KeyedProcessFunction,
    KeyedProcessOperator,
    KeySelector,
    ManualClock,
    OutputTag,
    TaskInfo,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.datastream.functions import LOWEST_WATERMARK
from state_pipelines.errors import IncompatibleError, UsageError
from state_pipelines.storage import resolve
from tests.datastream.operators import Script, Scripted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext

VALUE = ValueStateDescriptor("value", Types.LONG())


class CountWithTimeout(KeyedProcessFunction):
    """Counts per key, and emits the count when no element has come for 10 ms of event time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.count.update((self.count.value() or 0) + 1)
        self.last.update(ctx.timestamp())
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[str, int]]:
        if timestamp == (self.last.value() or 0) + 10:
            yield ctx.get_current_key(), self.count.value() or 0


def test_a_completed_checkpoint_is_the_base_of_the_next(tmp_path: Path) -> None:
    def make_store(prefix: int) -> RocksStore:
        return RocksStore(prefix, tmp_path / "store")

    tables = []
    with KeyedProcessOperator(CountWithTimeout(), lambda each: each, Types.LONG(), make_store=make_store) as operator:
        for number in (1, 2, 3):
            operator.process(number, timestamp=number)
            directory, shared = resolve(str(tmp_path / f"chk-{number}")), resolve(str(tmp_path / "shared"))
            operator.snapshot(directory, "a", number, shared=shared)
            tables.append(len([*(tmp_path / "shared").iterdir()]))
            (operator.notify_checkpoint_aborted if number == 2 else operator.notify_checkpoint_complete)(number)
    first = tables[0]
    # The second adds its own tables; the third those of the second again, which was aborted, and its own.
    assert [later - earlier for earlier, later in pairwise(tables)] == [first, 2 * first]


def fired(timestamp: int, ctx: Any, *states: Any) -> list[Any]:
    return [(timestamp, ctx.get_current_key(), ctx.timestamp(), ctx.time_domain().name)]


def register(script: Script, key: str, *timestamps: int, domain: str = "event") -> None:
    def call(ctx: Any) -> None:
        for timestamp in timestamps:
            getattr(ctx.timer_service(), f"register_{domain}_time_timer")(timestamp)

    script.operator.process((key, call))


def test_a_function_counts() -> None:
    with KeyedProcessOperator(CountWithTimeout(), lambda element: element, Types.STRING()) as operator:
        for timestamp, key in enumerate("aab"):
            assert operator.process(key, timestamp) == []
        assert operator.advance_watermark(10) == []
        assert operator.advance_watermark(12) == [("a", 2), ("b", 1)]


def test_timers_fire_in_their_order() -> None:
    script = Script(on_timer=fired)
    register(script, "a", 5, 1)
    register(script, "b", 3, 9)
    assert script.operator.advance_watermark(5) == [
        (1, "a", 1, "EVENT_TIME"),
        (3, "b", 3, "EVENT_TIME"),
        (5, "a", 5, "EVENT_TIME"),
    ]
    assert script.operator.count_timers(TimeDomain.EVENT_TIME) == 1


def test_a_timer_exists_once_per_key_and_time() -> None:
    script = Script(on_timer=fired)
    register(script, "a", 5, 5)
    register(script, "a", 5)
    assert len(script.operator.advance_watermark(5)) == 1


def test_timers_of_processing_time_fire_by_the_clock() -> None:
    script = Script(on_timer=fired, now=100)
    register(script, "a", 105, 110, domain="processing")
    assert script.operator.advance_processing_time() == []
    assert script.operator.advance_processing_time(105) == [(105, "a", 105, "PROCESSING_TIME")]
    assert script.operator.advance_watermark(1000) == []
    assert script.operator.count_timers(TimeDomain.PROCESSING_TIME) == 1


def test_deleted_timers_do_not_fire() -> None:
    script = Script(on_timer=fired)
    register(script, "a", 5)
    register(script, "a", 1005, domain="processing")

    def delete(ctx: Any) -> None:
        ctx.timer_service().delete_event_time_timer(5)
        ctx.timer_service().delete_processing_time_timer(1005)
        ctx.timer_service().delete_event_time_timer(6)

    script.operator.process(("b", delete))
    assert script.operator.count_timers(TimeDomain.EVENT_TIME) == 1
    script.operator.process(("a", delete))
    assert script.operator.advance_watermark(10) == []
    assert script.operator.advance_processing_time(2000) == []


def test_timers_that_a_timer_registers_fire_too_if_they_are_due() -> None:
    def again(timestamp: int, ctx: Any) -> list[int]:
        ctx.timer_service().register_event_time_timer(timestamp + 2)
        return [timestamp]

    script = Script(on_timer=again)
    register(script, "a", 1)
    assert script.operator.advance_watermark(6) == [1, 3, 5]


def test_a_timer_uses_the_state_of_its_key() -> None:
    script = Script(VALUE, on_timer=lambda timestamp, ctx, state: [state.value()])
    for key, number in (("a", 1), ("b", 2)):
        script.run(lambda state, number=number: state.update(number), key)
        script.operator.process((key, lambda state, ctx: ctx.timer_service().register_event_time_timer(5)))
    assert sorted(script.operator.advance_watermark(5)) == [1, 2]


def test_the_watermark_does_not_go_back() -> None:
    script = Script(on_timer=fired)
    assert script.operator.watermark == LOWEST_WATERMARK
    script.operator.advance_watermark(10)
    register(script, "a", 5)
    assert script.operator.advance_watermark(7) == []
    assert script.operator.watermark == 10
    assert len(script.operator.advance_watermark(11)) == 1


def test_a_context_knows_key_time_and_timestamp() -> None:
    script = Script(now=77)
    script.operator.advance_watermark(5)

    def look(ctx: Any) -> list[Any]:
        timers = ctx.timer_service()
        return [ctx.get_current_key(), ctx.timestamp(), timers.current_watermark(), timers.current_processing_time()]

    assert script.operator.process(("a", look), 9) == ["a", 9, 5, 77]
    assert script.operator.process(("a", look)) == ["a", None, 5, 77]


def test_time_domains_are_those_of_timers() -> None:
    with pytest.raises(UsageError, match="outside of on_timer"):
        Script().operator.process(("a", lambda ctx: ctx.time_domain()))


def test_side_outputs_wait_until_they_are_taken() -> None:
    late = OutputTag("late", Types.LONG())
    script = Script()
    assert script.operator.process(("a", lambda ctx: [1, (late, 2), ("late", 3)])) == [1, ("late", 3)]
    assert script.operator.take_side_output(OutputTag("late")) == [2]
    assert script.operator.take_side_output(late) == []
    with pytest.raises(UsageError):
        OutputTag("")


def test_two_inputs_share_state_and_timers() -> None:
    class Join(KeyedCoProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.left = runtime_context.get_state(ValueStateDescriptor("left", Types.STRING()))

        def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
            self.left.update(value["name"])
            ctx.timer_service().register_event_time_timer(10)

        def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
            yield ctx.get_current_key(), self.left.value(), value[1]

        def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
            yield "end", self.left.value()
            self.left.clear()

    operator = KeyedCoProcessOperator(Join(), lambda left: left["id"], lambda right: right[0], Types.LONG())
    with operator:
        assert operator.process2((1, "x")) == [(1, None, "x")]
        assert operator.process1({"id": 1, "name": "Ada"}) == []
        assert operator.process2((1, "y")) == [(1, "Ada", "y")]
        assert operator.advance_watermark(10) == [("end", "Ada")]
        assert operator.process2((1, "z")) == [(1, None, "z")]


def test_a_key_selector_is_an_object_too() -> None:
    class First(KeySelector):
        def get_key(self, value: Any) -> Any:
            return value[0]

    operator = KeyedProcessOperator(Scripted(), First(), Types.STRING())
    with operator:
        assert operator.process(("a", lambda ctx: [ctx.get_current_key()])) == ["a"]


def test_the_runtime_context_describes_the_subtask() -> None:
    task = TaskInfo("count", 1, 4, 64, 2, {"currency": "EUR"})
    context = Script(task=task).function.context
    assert context.get_task_name() == "count"
    assert context.get_task_name_with_subtasks() == "count (2/4)"
    assert context.get_index_of_this_subtask() == 1
    assert context.get_number_of_parallel_subtasks() == 4
    assert context.get_max_number_of_parallel_subtasks() == 64
    assert context.get_attempt_number() == 2
    assert context.get_job_parameter("currency", "USD") == "EUR"
    assert context.get_job_parameter("country", "DE") == "DE"


def test_metrics_are_counted() -> None:
    group = Script().function.context.get_metrics_group()
    counter = group.add_group("orders").counter("bad")
    counter.inc(3)
    counter.dec()
    group.gauge("size", lambda: 7)
    meter = group.meter("events")
    meter.mark_event(2)
    sizes = group.distribution("sizes")
    sizes.update(4)
    sizes.update(2)
    assert counter.get_count() == 2
    assert meter.get_count() == 2
    assert group.groups["orders"].metrics["bad"] is counter
    assert group.add_group("k", "v") is group.groups["k"].groups["v"]
    assert group.gauges["size"]() == 7
    assert (sizes.count, sizes.sum, sizes.min, sizes.max) == (2, 6, 2, 4)


def test_a_key_of_another_subtask_is_refused() -> None:
    script = Script(VALUE, task=TaskInfo(index=0, parallelism=2))
    # "a" is in key group 97.
    with pytest.raises(UsageError, match=r"is not in KeyGroupRange\{startKeyGroup=0, endKeyGroup=63\}"):
        script.run(lambda state: state.update(1), "a")


def test_max_parallelism_is_flinks_default() -> None:
    assert TaskInfo().choose_max_parallelism(None) == 128
    assert TaskInfo(parallelism=200).choose_max_parallelism(None) == 512
    assert TaskInfo(max_parallelism=3).choose_max_parallelism(None) == 3


def test_max_parallelism_is_that_of_the_restored_state() -> None:
    assert TaskInfo(parallelism=2).choose_max_parallelism(64) == 64
    assert TaskInfo(max_parallelism=64).choose_max_parallelism(64) == 64
    with pytest.raises(IncompatibleError, match="with max parallelism 64 to new program with max parallelism 128"):
        TaskInfo(max_parallelism=128).choose_max_parallelism(64)
    with pytest.raises(IncompatibleError, match=r"is lower than the configured parallelism \(65\)"):
        TaskInfo(parallelism=65).choose_max_parallelism(64)


def test_an_operator_opens_once_and_closes_its_function() -> None:
    script = Script(VALUE)
    with pytest.raises(UsageError, match="open already"):
        script.operator.open()
    script.operator.close()
    assert script.function.is_closed
    script.operator.close()
    with pytest.raises(UsageError, match="not open"):
        script.operator.process(("a", lambda state, ctx: None))


def test_the_clock_of_the_machine_cannot_be_set() -> None:
    operator = KeyedProcessOperator(Scripted(), lambda element: element[0], Types.STRING())
    with operator, pytest.raises(UsageError, match="cannot be set"):
        operator.advance_processing_time(5)


def test_a_manual_clock_begins_where_it_is_set() -> None:
    assert ManualClock(5)() == 5
