"""Real Flink goes on from state of functions on Spark as Spark does: broadcast state, sliding windows, raw state.

Spark runs the functions over the first numbers, and then over the others. Flink starts from the state in between,
takes the other numbers, and ends with the same state, which is read here again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.datastream import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    KeyedProcessOperator,
    MapStateDescriptor,
    PassThroughWindowFunction,
    RestoredState,
    SlidingEventTimeWindows,
    TaskInfo,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.keyed.key_groups import assign_key_group
from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, TakeRequest
from state_pipelines.spark import connect, keyed_process
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.datastream import FunctionInitializationContext, FunctionSnapshotContext, RuntimeContext
    from state_pipelines.snapshot import Snapshot
    from tests.flink.harness import Entry

pytestmark = [pytest.mark.flink, pytest.mark.spark]

MIDDLE, END, MAX_PARALLELISM, SECOND = 12, 24, 128, 1_000
UIDS = ("weigh", "sliding", "raw")
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Weigh(KeyedBroadcastProcessFunction):
    """Sums numbers times the factor of the broadcast state, and counts timers that fire."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.sum.update((self.sum.value() or 0) + value.n * ctx.get_broadcast_state(RULES).get("factor"))
        self.count("numbers")
        ctx.timer_service().register_event_time_timer(value.at + 4 * SECOND)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value.name, value.number)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> None:
        self.count("timers")

    def count(self, name: str) -> None:
        self.counts.put(name, (self.counts.get(name) or 0) + 1)


class KeepRaw(KeyedProcessFunction, CheckpointedFunction):
    """Keeps sums by key group and a list of texts in raw state, as `DataOutputView` writes them."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.sums = {group: struct.unpack(">q", data)[0] for group, data in context.get_raw_keyed_state_inputs()}
        self.texts = [data[2:].decode() for data in context.get_raw_operator_state_inputs()]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        group = assign_key_group(value.n, MAX_PARALLELISM)
        self.sums[group] = self.sums.get(group, 0) + value.n
        if value.n % 2 == 0:
            self.texts.append(f"number {value.n}")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        keyed = context.get_raw_keyed_operator_state_output()
        for group in keyed.get_key_group_list():
            if group in self.sums:
                keyed.start_new_key_group(group)
                keyed.write(struct.pack(">q", self.sums[group]))
        partitions = context.get_raw_operator_state_output()
        for text in self.texts:
            partitions.start_new_partition()
            partitions.write(struct.pack(">h", len(text)))
            partitions.write(text.encode())


def process(
    spark: SparkSession, numbers: range, rule: tuple[str, int], start: dict[str, Snapshot], directory: Path
) -> dict[str, Snapshot]:
    """Run the three functions over numbers, up to the watermark before the last one."""

    def frame(key: str) -> DataFrame:
        return spark.range(numbers.start, numbers.stop).selectExpr(key, "int(id) AS n", f"id * {SECOND} AS at")

    rules = spark.createDataFrame([rule], "name string, number long")
    weigh = frame("'key-' || id % 5 AS k")
    inputs: dict[str, tuple[DataFrame, dict[str, Any]]] = {
        "weigh": (
            connect(weigh, rules, key="k", timestamp="at", broadcast=True),
            {"function": Weigh(), "broadcast_states": [RULES]},
        ),
        "sliding": (
            frame("int(id % 3) AS k"),
            {
                "function": PassThroughWindowFunction(),
                "windows": SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5)),
                "element": "n",
            },
        ),
        "raw": (frame("id AS k"), {"function": KeepRaw()}),
    }
    results = {}
    for uid, (df, arguments) in inputs.items():
        result = keyed_process(
            df,
            key="k",
            uid=uid,
            from_snapshot=start.get(uid),
            timestamp="at",
            order_by=["at"],
            watermark=(numbers.stop - 1) * SECOND - 1,
            parallelism=2,
            max_parallelism=MAX_PARALLELISM,
            savepoint=str(directory / uid),
            **arguments,
        )
        assert result.snapshot is not None
        results[uid] = sp.open_snapshot(result.snapshot.path, uids=UIDS)
    return results


def read_raw(snapshot: Snapshot) -> tuple[dict[int, int], list[str]]:
    """Read raw state as the function does, in one subtask."""
    task = TaskInfo(index=0, parallelism=1, max_parallelism=MAX_PARALLELISM)
    operator = KeyedProcessOperator(KeepRaw(), lambda value: value, Types.LONG(), task=task)
    operator.open(RestoredState.of(snapshot.operator("raw")))
    with operator:
        function = operator.function
        assert isinstance(function, KeepRaw)
        return function.sums, sorted(function.texts)


def sum_by_group(numbers: range) -> dict[int, int]:
    sums: dict[int, int] = {}
    for n in numbers:
        group = assign_key_group(n, MAX_PARALLELISM)
        sums[group] = sums.get(group, 0) + n
    return sums


def keep(entries: list[Entry], *uids: str) -> list[Entry]:
    return [each for each in entries if each["op"] in uids]


@pytest.fixture(scope="module")
def snapshots(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """The state of all functions in the middle, and the entries of their states at the end."""
    if reason := harness.missing_jdk():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("functions")
    middle = process(spark, range(MIDDLE), ("factor", 3), {}, directory / "middle")
    take = {uid: TakeRequest(snapshot=middle[uid].path) for uid in UIDS[1:]}
    sp.rescale(
        middle["weigh"],
        str(directory / "all"),
        RescaleRequest(take=take),
        open_other=lambda path: sp.open_snapshot(path, uids=UIDS),
    )
    end = process(spark, range(MIDDLE, END), ("end", END), middle, directory / "end")
    assert read_raw(end["raw"]) == (sum_by_group(range(END)), sorted(f"number {n}" for n in range(0, END, 2)))
    return directory / "all", [entry for uid in UIDS for entry in dump(end[uid])]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_flink_goes_on_from_functions_on_spark(
    snapshots: tuple[Path, list[Entry]], version: str, backend: str, tmp_path: Path
) -> None:
    start, expected = snapshots
    path, entries = harness.make_snapshot(
        version, jobs.functions_job(MIDDLE, END), tmp_path, backend=backend, parallelism=3, start=start
    )
    assert {each["kind"] for each in keep(expected, "weigh")} == {"keyed", "timer", "broadcast"}
    difference = harness.diff_entries(keep(expected, *UIDS[:2]), keep(entries, *UIDS[:2]))
    assert not difference, str(difference)
    # Flink's operator shows its raw state as lists, and its raw state is read here again.
    sums, texts = sum_by_group(range(END)), sorted(f"number {n}" for n in range(0, END, 2))
    shown = {name: sorted(each["value"] for each in entries if each.get("state") == name) for name in ("sums", "texts")}
    assert shown == {"sums": sorted(f"{group}: {number}" for group, number in sums.items()), "texts": texts}
    again = sp.open_snapshot(str(path), uids=UIDS)
    assert read_raw(again) == (sums, texts)
    difference = harness.diff_entries(keep(entries, *UIDS), keep(list(dump(again)), *UIDS))
    assert not difference, str(difference)
