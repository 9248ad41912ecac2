"""Functions with a broadcast input and functions of windows on Spark: state and output are those of a plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.datastream import (
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    RestoredState,
    SlidingEventTimeWindows,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WindowFunction,
    WindowOperator,
)
from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.spark import connect, keyed_batches, keyed_process
from tests.datastream import test_kryo_states as kryo
from tests.datastream.test_states import Average

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.datastream.windows import WindowAssigner

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
EVENTS = "user string, amount long, at long"


class Limit(KeyedBroadcastProcessFunction):
    """Emits amounts above the limit of a rule; counts the elements of each user, and says so at its timers."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterator[tuple[str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.at + 10)
        limit = ctx.get_broadcast_state(RULES).get("limit")
        if limit is None or value.amount > limit:
            yield ctx.get_current_key(), value.amount

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value.name, value.limit)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[tuple[str, int]]:
        yield f"timer of {ctx.get_current_key()}", timestamp


class Collect(WindowFunction):
    """Emits the sorted amounts of each window."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
        yield key, window.start, window.end, sorted(each.amount for each in inputs)


class AverageOfRows(Average):
    """The average of the amounts of rows."""

    def add(self, value: Any, accumulator: Any) -> Any:
        return super().add(value.amount, accumulator)


class EmitAverage(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        (average,) = elements
        yield key, context.window().start, context.window().end, [int(average)]


def events(start: int, end: int) -> list[tuple[str, int, int]]:
    return [(f"user-{at % 5}", at * 3 % 20, at) for at in range(start, end)]


def collect(output: DataFrame | None) -> list[tuple[Any, ...]]:
    assert output is not None
    return sorted(tuple(row) for row in output.collect())


def with_rules(spark: SparkSession, rows: list[Any], rules: list[Any]) -> DataFrame:
    return connect(
        spark.createDataFrame(rows, EVENTS).repartition(2),
        spark.createDataFrame(rules, "name string, limit long"),
        key="user",
        timestamp="at",
        broadcast=True,
    )


# Broadcast


def test_a_broadcast_input_reaches_every_subtask_before_the_keyed_rows(spark: SparkSession, tmp_path: Path) -> None:
    taken: list[Any] = []
    emitted: dict[int, list[Any]] = {}
    process = keyed_batches(
        key="user",
        function=Limit(),
        uid="limit",
        checkpoints=str(tmp_path),
        output=lambda rows, batch: emitted.__setitem__(batch, collect(rows)),
        columns="user string, amount long",
        job_id="ab" * 16,
        parallelism=3,
        order_by=["at"],
        timestamp="at",
        out_of_orderness=0,
        broadcast_states=[RULES],
        on_checkpoint=taken.append,
    )
    process(with_rules(spark, events(0, 20), [("limit", 10)]), 0)
    process(with_rules(spark, events(20, 40), []), 1)
    # Without a row of the broadcast input its state counts, and the watermark is that of the keyed input.
    for batch, (start, end) in enumerate([(0, 20), (20, 40)]):
        above = [(user, amount) for user, amount, _ in events(start, end) if amount > 10]
        due = [at for at in range(end) if start - 2 < at + 10 <= end - 2]
        assert emitted[batch] == sorted(above + [(f"timer of user-{at % 5}", at + 10) for at in due])
    snapshot = sp.open_snapshot(taken[-1].snapshot.path)
    operator = snapshot.operator("limit")
    assert not audit_snapshot(snapshot).findings
    # Each subtask has a copy of the broadcast state.
    assert operator.state("rules").to_arrow().select(["subtask", "map_key", "map_value"]).to_pylist() == [
        {"subtask": subtask, "map_key": "limit", "map_value": 10} for subtask in range(3)
    ]
    counts = operator.state("count").to_arrow().select(["state_key", "value"]).to_pylist()
    assert {row["state_key"]: row["value"] for row in counts} == {f"user-{number}": 8 for number in range(5)}


# Windows

ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(10)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)),
    "sessions": EventTimeSessionWindows.with_gap(Time.milliseconds(4)),
}
OUTPUT = "user string, start long, end long, amounts array<long>"
SPARSE = [row for row in events(0, 100) if row[2] % 20 < 13]


@pytest.mark.parametrize("name", ASSIGNERS)
def test_windows_fire_and_go_on_in_one_subtask(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assigner = ASSIGNERS[name]
    result = keyed_process(
        spark.createDataFrame(SPARSE, EVENTS).repartition(2),
        key="user",
        function=Collect(),
        uid="windows",
        output=OUTPUT,
        windows=assigner,
        timestamp="at",
        watermark=75,
        savepoint=str(tmp_path),
        parallelism=2,
    )
    fired, left = model(assigner, SPARSE, 75)
    assert collect(result.output) == fired
    assert result.snapshot is not None
    assert not audit_snapshot(result.snapshot).findings
    # The function goes on at another place, from the type of the rows that the state has.
    restored = sp.open_snapshot(result.snapshot.path).operator("windows")
    element = Types.ROW_NAMED(["user", "amount", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])
    operator = WindowOperator(
        Collect(), assigner, ListStateDescriptor("window-contents", element), lambda row: row.user, Types.STRING()
    )
    operator.open(RestoredState.of(restored))
    with operator:
        assert sorted(operator.advance_watermark(1_000)) == left


def model(assigner: WindowAssigner, rows: list[Any], watermark: int) -> tuple[list[Any], list[Any]]:
    """Windows that have fired at a watermark, and those that have not."""
    windows: dict[tuple[str, TimeWindow], list[int]] = {}
    for user, amount, at in rows:
        for window in assigner.assign(at):
            if assigner.is_merging:
                for key in [key for key in windows if key[0] == user and key[1].intersects(window)]:
                    window = key[1].cover(window)
                    windows[user, window] = windows.pop(key)
            windows.setdefault((user, window), []).append(amount)
    found = [(user, window.start, window.end, sorted(amounts)) for (user, window), amounts in windows.items()]
    return (
        sorted(each for each in found if each[2] - 1 <= watermark),
        sorted(each for each in found if each[2] - 1 > watermark),
    )


def test_windows_of_a_stream_go_on_from_batch_to_batch(spark: SparkSession, tmp_path: Path) -> None:
    emitted: list[Any] = []
    descriptor = AggregatingStateDescriptor(
        "window-contents", AverageOfRows(), Types.TUPLE([Types.LONG(), Types.LONG()])
    )
    process = keyed_batches(
        key="user",
        function=EmitAverage(),
        uid="averages",
        checkpoints=str(tmp_path),
        output=lambda rows, _: emitted.extend(collect(rows)),
        columns=OUTPUT,
        job_id="cd" * 16,
        parallelism=2,
        timestamp="at",
        out_of_orderness=0,
        windows=ASSIGNERS["tumbling"],
        contents=descriptor,
    )
    for batch, (start, end) in enumerate([(0, 15), (15, 41)]):
        process(spark.createDataFrame(events(start, end), EVENTS), batch)
    expected = [
        (user, start, end, [sum(amounts) // len(amounts)])
        for user, start, end, amounts in model(ASSIGNERS["tumbling"], events(0, 41), 39)[0]
    ]
    assert sorted(emitted) == expected


# Kryo


def test_values_of_kryo_go_on_in_the_version_of_their_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    snapshot = kryo.open_example()
    old = kryo.find_operator(snapshot).state("visits").to_arrow()
    df = spark.createDataFrame([("customer-14",), ("customer-2",)], "customer string")
    options = {"execution.state-recovery.ignore-unclaimed-state": True}
    result = keyed_process(
        df,
        key="customer",
        function=kryo.AddRowVisit(snapshot),
        uid=kryo.UID,
        output="pages array<string>",
        from_snapshot=snapshot,
        savepoint=str(tmp_path / "old"),
        options=options,
    )
    assert result.snapshot is not None
    assert ["page-14", "page-34", "page-54", "new"] in [row.pages for row in (result.output or df).collect()]
    assert result.snapshot.metadata.version == snapshot.metadata.version
    again = sp.open_snapshot(result.snapshot.path, classes=snapshot.classes)
    assert len(again.operator(kryo.UID).state("visits").to_arrow()) == len(old) + 2
    assert not audit_snapshot(again, depth="whole").findings
    # New state: the metadata says the release whose Kryo has written it.
    for release, version in (("1.20", 4), ("2.2", 5)):
        new = keyed_process(
            df,
            key="customer",
            function=kryo.KeepRowPoint(),
            uid="points",
            savepoint=str(tmp_path / release),
            classes=kryo.CLASSES,
            flink_version=release,
            parallelism=2,
        ).snapshot
        assert new is not None
        assert new.metadata.version == version
        again = sp.open_snapshot(new.path, classes=kryo.CLASSES)
        assert again.operator("points").state("point").to_arrow()["value"].to_pylist()[0]["tags"] == ["new"]
        assert not audit_snapshot(again, depth="whole").findings


# Refusals, before anything runs


class Plain(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield OutputTag("late"), value


class Unkeyed(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> None: ...

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None: ...


class Two(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None: ...

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None: ...


TUMBLING = ASSIGNERS["tumbling"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": len}, "Spark runs a KeyedProcessFunction or .* is none"),
        ({"function": Plain}, r"Plain is a class: give an object of it, Plain\(\)"),
        ({"function": Unkeyed()}, "Unkeyed is a BroadcastProcessFunction, which another operator runs"),
        ({"function": Average()}, "Average is a AggregateFunction, which another operator runs"),
        ({"function": Collect()}, "Collect is a function of windows, and no windows are given"),
        ({"function": Collect(), "windows": 10}, "windows is 10, which assigns no windows"),
        ({"function": Collect(), "windows": TUMBLING}, "windows of event time, and the rows have none"),
        ({"function": Plain(), "windows": TUMBLING}, "Plain is not a function of windows"),
        (
            {"function": Collect(), "windows": TUMBLING, "timestamp": "at", "contents": RULES},
            "contents of windows are list, reducing or aggregating state",
        ),
        ({"function": Limit()}, "Limit has a broadcast input, and no broadcast state"),
        ({"function": Limit(), "broadcast_states": ["rules"]}, "'rules' does not describe a broadcast state"),
        ({"function": Plain(), "broadcast_states": [RULES]}, "Plain has no broadcast input"),
    ],
)
def test_what_is_no_function_of_spark_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        keyed_process(None, key="user", uid="refused", **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        keyed_batches(key="user", uid="refused", checkpoints="never", **arguments)


def test_a_frame_whose_second_input_is_of_another_kind_is_refused(spark: SparkSession) -> None:
    broadcast = with_rules(spark, [], [])
    keyed = connect(spark.createDataFrame([], EVENTS), spark.createDataFrame([], EVENTS), key="user")
    with pytest.raises(UsageError, match=r"has two inputs, a broadcast one.*broadcast=True"):
        keyed_process(keyed, key="user", function=Limit(), uid="limit", broadcast_states=[RULES])
    with pytest.raises(UsageError, match="has two inputs, both with keys"):
        keyed_process(broadcast, key="user", function=Two(), uid="two")


def test_a_side_output_is_an_error_not_a_loss(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(events(0, 1), EVENTS)
    with pytest.raises(StateError, match="emits to the side output late, and Spark gets only the main output"):
        keyed_process(df, key="user", function=Plain(), uid="plain", savepoint=str(tmp_path))
    assert not list(tmp_path.glob("*/_metadata"))
