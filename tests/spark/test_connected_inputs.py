"""Two inputs of a keyed function: state equals a plain model, as DataFrames and as streams."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import state_pipelines as sp
from state_pipelines.datastream import (
    CheckpointListener,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    ListStateDescriptor,
    RestoredState,
    Row,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.errors import StateError, UsageError
from state_pipelines.spark import connect, keyed_batches, keyed_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.datastream import RuntimeContext

UID = "orders"
CUSTOMERS = [f"customer-{index}" for index in range(7)]
ORDER_SCHEMA = "customer string, cents int, at long"
NAME_SCHEMA = "id string, name string, time long"


class AddNames(KeyedCoProcessFunction, CheckpointListener):
    """Emits orders with the name of the customer; those that come before the name wait for it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def open(self, runtime_context: RuntimeContext) -> None:
        self.name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.INT()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[tuple[str, int]]:
        assert value.customer == ctx.get_current_key()
        assert value.at == ctx.timestamp()
        ctx.timer_service().register_event_time_timer(value.at + 10)
        name = self.name.value()
        if name is None:
            self.waiting.add(value.cents)
        else:
            yield name, value.cents

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[tuple[str, int]]:
        assert value.id == ctx.get_current_key()
        if value.name == "unknown":
            raise UsageError("nobody is called that")
        self.name.update(value.name)
        for cents in self.waiting:
            yield value.name, cents
        self.waiting.clear()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[tuple[str, int]]:
        yield "timer", timestamp

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(("aborted", checkpoint_id))


def orders(start: int, end: int) -> list[tuple[str, int, int]]:
    return [(CUSTOMERS[(at * 3) % len(CUSTOMERS)], at * 100, at) for at in range(start, end)]


def names(start: int, end: int) -> list[tuple[str, str, int]]:
    return [(CUSTOMERS[index], f"Name {index}", index) for index in range(start, end)]


def make_input(spark: SparkSession, first: list[Any], second: list[Any]) -> DataFrame:
    return connect(
        spark.createDataFrame(first, ORDER_SCHEMA).repartition(2),
        spark.createDataFrame(second, NAME_SCHEMA).repartition(2),
        key="customer",
        second_key="id",
        timestamp="at",
        second_timestamp="time",
    )


def run(df: DataFrame, function: Any = None, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "key": "customer",
        "uid": UID,
        "timestamp": "at",
        "output": "name string, cents long",
        "order_by": ["input", "at"],
        "parallelism": 2,
    }
    return keyed_process(df, function=function or AddNames(), **(defaults | options))


def read_state(path: str, name: str) -> list[Any]:
    rows = sp.open_snapshot(path).operator(UID).state(name).to_arrow().to_pylist()
    return sorted((row["state_key"], row["value"] if "value" in row else row["list_value"]) for row in rows)


def collect(output: DataFrame | None) -> list[tuple[Any, ...]]:
    assert output is not None
    return sorted(tuple(row) for row in output.collect())


def test_the_result_has_the_rows_of_both_inputs(spark: SparkSession) -> None:
    df = make_input(spark, orders(1, 2), names(0, 1))
    assert df.columns == ["customer", "at", "input", "first", "second"]
    assert [row.asDict(recursive=True) for row in df.orderBy("input").collect()] == [
        {
            "customer": "customer-3",
            "at": 1,
            "input": 1,
            "first": {"customer": "customer-3", "cents": 100, "at": 1},
            "second": None,
        },
        {
            "customer": "customer-0",
            "at": 0,
            "input": 2,
            "first": None,
            "second": {"id": "customer-0", "name": "Name 0", "time": 0},
        },
    ]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_two_inputs_share_state_and_timers_and_go_on(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    options = {"checkpoint": str(tmp_path), "options": {"state.backend.type": backend}}
    first = run(make_input(spark, orders(0, 20), names(0, 3)), parallelism=3, **options)
    named = {key: name for key, name, _ in names(0, 3)}
    assert collect(first.output) == sorted((named[key], cents) for key, cents, _ in orders(0, 20) if key in named)
    waiting = sorted((key, cents) for key, cents, _ in orders(0, 20) if key not in named)
    assert read_state(first.snapshot.path, "name") == sorted(named.items())
    assert read_state(first.snapshot.path, "waiting") == waiting
    assert len(read_timers(first.snapshot.path)) == 20

    second = run(make_input(spark, [], names(3, 7)), watermark=14, from_snapshot=first.snapshot, **options)
    named = {key: name for key, name, _ in names(0, 7)}
    late = [(named[key], cents) for key, cents in waiting]
    assert collect(second.output) == sorted(late + [("timer", at + 10) for at in range(5)])
    assert read_state(second.snapshot.path, "name") == sorted(named.items())
    assert read_state(second.snapshot.path, "waiting") == []
    assert read_timers(second.snapshot.path) == [at + 10 for at in range(5, 20)]


def read_timers(path: str) -> list[int]:
    rows = sp.open_snapshot(path).operator(UID).state("_timer_state/event_user-timers").to_arrow()
    return sorted(rows["timestamp"].to_pylist())


def test_the_operator_of_one_subtask_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    taken = run(make_input(spark, orders(0, 20), []), parallelism=1, savepoint=str(tmp_path)).snapshot
    operator = KeyedCoProcessOperator(AddNames(), lambda row: row.customer, lambda row: row.id, Types.STRING())
    operator.open(RestoredState.of(sp.open_snapshot(taken.path).operator(UID)))
    with operator:
        emitted = operator.process2(Row("id", "name", "time")("customer-3", "Ada", 1))
    assert sorted(emitted) == [("Ada", cents) for key, cents, _ in orders(0, 20) if key == "customer-3"]


def test_rows_of_both_inputs_are_ordered_together(spark: SparkSession) -> None:
    key = CUSTOMERS[0]
    df = make_input(spark, [(key, 1, 5), (key, 2, 7)], [(key, "A", 6), (key, "B", 8)])
    assert collect(run(df, order_by=["at"]).output) == [("A", 1), ("A", 2)]
    df = make_input(spark, [(key, 1, 5), (key, 2, 9)], [(key, "A", 6), (key, "B", 8)])
    assert collect(run(df, order_by=["at"]).output) == [("A", 1), ("B", 2)]


def test_several_columns_are_the_key(spark: SparkSession, tmp_path: Path) -> None:
    class Both(KeyedCoProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.text = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))

        def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
            self.text.update((self.text.value() or "") + f"1{value.a}{value.b}")

        def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
            self.text.update((self.text.value() or "") + f"2{value.x}{value.y}")

    first = spark.createDataFrame([(1, "u"), (2, "u")], "a int, b string")
    second = spark.createDataFrame([("u", 1), ("v", 1)], "y string, x int")
    df = connect(first, second, key=["a", "b"], second_key=["x", "y"])
    options: dict[str, Any] = {"key": ["a", "b"], "order_by": ["input"], "timestamp": None, "output": None}
    result = run(df, Both(), savepoint=str(tmp_path), **options)
    rows = sp.open_snapshot(result.snapshot.path).operator(UID).state("name").to_arrow().to_pylist()
    assert sorted((*row["state_key"].values(), row["value"]) for row in rows) == [
        (1, "u", "11u21u"),
        (1, "v", "21v"),
        (2, "u", "12u"),
    ]


# Streams


def write(folder: Path, number: int | str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))


class Streams:
    """Two directories of files as the inputs of one query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.function = AddNames()
        self.emitted: dict[int, list[tuple[Any, ...]]] = {}
        self.stop: tuple[str, Path | None] = ("", None)

    def stop_once(self, step: str) -> None:
        wanted, marker = self.stop
        if wanted == step and marker is not None and not marker.exists():
            marker.touch()
            raise ZeroDivisionError("the driver stops here")

    def write(self, rows: DataFrame, batch_id: int) -> None:
        self.emitted[batch_id] = collect(rows)
        self.stop_once("after the output")

    def run(self, first: list[Any], second: list[Any], name: str = "") -> None:
        number = name or len(self.emitted)
        for name, schema, rows in (("orders", ORDER_SCHEMA, first), ("names", NAME_SCHEMA, second)):
            columns = [each.split()[0] for each in schema.split(", ")]
            (self.folder / name).mkdir(exist_ok=True)
            if rows:
                write(self.folder / name, number, [dict(zip(columns, row, strict=True)) for row in rows])
        stream = connect(
            self.spark.readStream.schema(ORDER_SCHEMA).json(str(self.folder / "orders")),
            self.spark.readStream.schema(NAME_SCHEMA).json(str(self.folder / "names")),
            key="customer",
            second_key="id",
            timestamp="at",
            second_timestamp="time",
        )
        writer = keyed_batches(
            key="customer",
            function=self.function,
            uid=UID,
            checkpoints=str(self.folder / "checkpoints"),
            output=self.write,
            columns="name string, cents long",
            order_by=["input", "at"],
            timestamp="at",
            out_of_orderness=0,
            parallelism=2,
        )

        def process(df: DataFrame, batch_id: int) -> None:
            writer(df, batch_id)
            self.stop_once("before the commit")

        query = stream.writeStream.foreachBatch(process).option("checkpointLocation", str(self.folder / "query"))
        query.trigger(availableNow=True).start().awaitTermination()


def test_two_streams(spark: SparkSession, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path)
    ada, bob = CUSTOMERS[:2]
    streams.run([(ada, 1, 100), (bob, 2, 200)], [(ada, "Ada", 150)])
    # The input that is behind holds the watermark: 149.
    assert streams.emitted[0] == [("Ada", 1), ("timer", 110)]
    assert streams.function.heard == [("complete", 1)]
    streams.run([(ada, 3, 300)], [])
    # Without rows of the second input there is no watermark.
    assert streams.emitted[1] == [("Ada", 3)]
    streams.run([(bob, 4, 400)], [(bob, "Bob", 500), (ada, "Ada L.", 600)])
    assert streams.emitted[2] == [("Bob", 2), ("Bob", 4), ("timer", 210), ("timer", 310)]
    (path,) = (tmp_path / "checkpoints").glob("*/chk-3")
    assert read_state(str(path), "name") == [(ada, "Ada L."), (bob, "Bob")]
    assert read_timers(str(path)) == [410]


class Dying(AddNames):
    """Ends its worker in the middle of the second input, once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[tuple[str, int]]:
        if value.time == 400 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process_element2(value, ctx)


@pytest.mark.parametrize("step", ["in the second input", "after the output"])
def test_two_streams_that_stop_anywhere_go_on(spark: SparkSession, tmp_path: Path, step: str) -> None:
    streams = Streams(spark, tmp_path)
    ada, bob = CUSTOMERS[:2]
    streams.run([(ada, 1, 100), (bob, 2, 200)], [(ada, "Ada", 150)])
    marker = tmp_path / "stopped"
    if step == "in the second input":
        streams.function = Dying(marker)
    streams.stop = (step, marker)
    # Ada's second name and Bob's second order are processed before the end.
    first = [(ada, 3, 300), (bob, 4, 400), (ada, 5, 450)]
    second = [(ada, "Ada L.", 350), (bob, "Bob", 400), (ada, "Ada Lovelace", 600)]
    with pytest.raises(StreamingQueryException):
        streams.run(first, second)
    assert marker.exists()
    streams.run([], [], "nothing new")
    path, *others = (tmp_path / "checkpoints").glob("*/chk-*")
    assert (path.name, others) == ("chk-2", [])
    assert read_state(str(path), "name") == [(ada, "Ada Lovelace"), (bob, "Bob")]
    assert read_state(str(path), "waiting") == []
    assert read_timers(str(path)) == [460]
    assert streams.emitted[0] == [("Ada", 1), ("timer", 110)]
    timers = [("timer", at + 10) for at in (200, 300, 400)]
    assert streams.emitted[1] == [("Ada", 3), ("Ada", 5), ("Bob", 2), ("Bob", 4), *timers]


# Notifications


def test_a_listener_is_told_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    function = AddNames()
    first = run(make_input(spark, orders(0, 5), []), function, checkpoint=str(tmp_path))
    assert function.heard == [("complete", 1)]
    with pytest.raises(StateError, match="nobody is called that"):
        run(
            make_input(spark, [], [("x", "unknown", 1)]),
            function,
            checkpoint=str(tmp_path),
            from_snapshot=first.snapshot,
        )
    assert function.heard == [("complete", 1), ("aborted", 2)]
    run(make_input(spark, orders(5, 9), []), function, checkpoint=str(tmp_path), from_snapshot=first.snapshot)
    # Where a task of the failed run ended late, there is a chk-2, and its number is not used again.
    assert function.heard[2:] in ([("complete", 2)], [("complete", 3)])
    # As in Flink, which tells nobody of savepoints.
    run(make_input(spark, orders(0, 5), []), function, savepoint=str(tmp_path / "savepoints"))
    assert len(function.heard) == 3


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "nobody"}, "no column nobody"),
        ({"second_key": "nobody"}, "no column nobody"),
        ({"second_key": ["id", "name"]}, "has 1 columns, that of the second 2"),
        ({"second_key": "time"}, "customer of the first input is string, and time of the second is bigint"),
        ({"second_timestamp": "time"}, "only the second input has event time"),
        ({"timestamp": "at", "second_timestamp": "name"}, "at of the first input is bigint, and name of the second"),
        ({"key": "input", "second_key": "id"}, "two columns named input"),
        ({"timestamp": "customer", "second_timestamp": "id"}, "two columns named customer"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    first = spark.createDataFrame([], ORDER_SCHEMA + ", input string")
    second = spark.createDataFrame([], NAME_SCHEMA)
    with pytest.raises(UsageError, match=message):
        connect(first, second, **({"key": "customer", "second_key": "id"} | options))


def test_a_function_of_two_inputs_needs_both(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="AddNames has two inputs, both with keys, and the DataFrame is no result"):
        run(spark.createDataFrame(orders(0, 3), ORDER_SCHEMA), order_by=["at"])
    lacking = make_input(spark, [], []).drop("second")
    with pytest.raises(UsageError, match="AddNames has two inputs"):
        run(lacking)


def test_a_null_key_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="customer is null"):
        run(make_input(spark, [], [(None, "Ada", 1)]))
