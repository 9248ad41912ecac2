"""Keyed functions on Spark whose state is in PyFlink's layout, from nothing and from a savepoint of PyFlink."""

from __future__ import annotations

from ast import literal_eval
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.datastream import KeyedProcessFunction, Types, ValueStateDescriptor
from state_pipelines.errors import UsageError
from state_pipelines.serializers.text import describe
from state_pipelines.spark.keyed_step import keyed_process
from tests.datastream.pyflink_states import KEYS, ROUNDS, States, expect
from tests.datastream.test_pyflink_layout import SAVEPOINT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.spark import KeyedProcessResult

OTHERS = {"execution.state-recovery.ignore-unclaimed-state": True}


def run(spark: SparkSession, numbers: range, **arguments: Any) -> KeyedProcessResult:
    """Process numbers as the job of the savepoint does; negative ones show what a key holds."""
    rows = [(f"key-{abs(number) % KEYS}", number) for number in numbers]
    return keyed_process(
        spark.createDataFrame(rows, "key string, number long"),
        key="key",
        function=States(),
        uid="states",
        output="key string, states string",
        order_by=["number"],
        parallelism=2,
        max_parallelism=128,
        **arguments,
    )


def show(spark: SparkSession, snapshot: Any) -> dict[str, Any]:
    result = run(spark, range(-2 * KEYS + 1, -KEYS + 1), from_snapshot=snapshot, options=OTHERS)
    assert result.output is not None
    return {row["key"]: literal_eval(row["states"]) for row in result.output.collect()}


@pytest.mark.parametrize(
    "options",
    [{}, {"state.backend.type": "rocksdb"}, {"state.changelog.enabled": True}],
    ids=["heap", "rocksdb", "log"],
)
def test_a_function_starts_in_the_layout_and_goes_on(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    common: dict[str, Any] = {"checkpoint": str(tmp_path), "options": options}
    first = run(spark, range(2 * KEYS), **common, pyflink_state=True)
    second = run(spark, range(2 * KEYS, ROUNDS * KEYS), **common, from_snapshot=first.snapshot)
    assert second.snapshot is not None
    operator = second.snapshot.operator("states")
    names = {state.name for state in operator.keyed_states}
    assert {"python-state-typed", "python-state-list"} <= {
        info.name for info in operator.keyed_files[0][1].header.states
    }
    assert names
    assert describe(operator.keyed_files[0][1].header.key_serializer) == "Row(f0: String)"
    assert show(spark, second.snapshot) == {f"key-{key}": expect(key) for key in range(KEYS)}


def test_a_savepoint_of_pyflink_goes_on_in_its_layout(spark: SparkSession, tmp_path: Path) -> None:
    start = ROUNDS * KEYS
    result = run(
        spark, range(start, start + KEYS), savepoint=str(tmp_path), from_snapshot=str(SAVEPOINT), options=OTHERS
    )
    assert show(spark, result.snapshot) == {f"key-{key}": expect(key, ROUNDS + 1) for key in range(KEYS)}
    # State that the function does not know is carried.
    assert result.snapshot is not None
    names = {info.name for info in result.snapshot.operator("states").keyed_files[0][1].header.states}
    assert {"python-state-pickled", "python-state-all"} <= names


def test_another_layout_than_that_of_the_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in PyFlink's layout, and Java's layout is asked for"):
        run(spark, range(1), from_snapshot=str(SAVEPOINT), options=OTHERS, pyflink_state=False)
    java = run(spark, range(KEYS), checkpoint=str(tmp_path))
    with pytest.raises(UsageError, match="in Java's layout, and PyFlink's layout is asked for"):
        run(spark, range(1), from_snapshot=java.snapshot, pyflink_state=True)


class Remember(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        before, (region, number) = self.last.value() or 0, ctx.get_current_key()
        self.last.update(before + value.amount)
        yield region, number, before


def test_keys_of_several_columns_are_a_tuple_in_the_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(f"r{number % 3}", number % 5, 1) for number in range(60)]
    frame = spark.createDataFrame(rows, "region string, number long, amount long")
    arguments: dict[str, Any] = {"key": ["region", "number"], "function": Remember(), "uid": "last", "parallelism": 3}
    result = keyed_process(frame, **arguments, savepoint=str(tmp_path), pyflink_state=True)
    assert result.snapshot is not None
    (header,) = {describe(file.header.key_serializer) for _, file in result.snapshot.operator("last").keyed_files}
    assert header == "Row(f0: Tuple2<String, Long>)"
    again = keyed_process(
        frame, **arguments, from_snapshot=result.snapshot, output="region string, number long, before long"
    )
    assert again.output is not None
    assert {row["before"] for row in again.output.collect()} == {4, 5, 6, 7}
    types = sp.declare({"python_types": ["last.last=BIGINT"]})
    table = sp.open_snapshot(result.snapshot.path, types, uids=["last"]).operator("last").state("last").to_arrow()
    assert set(table["value"].to_pylist()) == {4}
