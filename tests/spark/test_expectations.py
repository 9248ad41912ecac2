from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from state_pipelines.spark.expectations import SAMPLE_SIZE, Judgement, import_expectations, judge

if TYPE_CHECKING:
    from types import ModuleType

    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def gxe() -> ModuleType:
    return import_expectations()


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    return spark.sql(
        """
        SELECT id AS order_id, CAST(id % 128 AS INT) AS key_group,
               NAMED_STRUCT('city', IF(id = 7, NULL, 'Köln'), 'raw', X'00FF', 'day', DATE '2024-02-29',
                            'price', 1.50BD, 'tags', MAP('a', DOUBLE('NaN'))) AS address
        FROM RANGE(1000)
        """
    )


def judge_one(frame: DataFrame, expectation: Expectation) -> Judgement:
    (judgement,) = judge(frame, "orders", [expectation])
    return judgement


def test_what_holds_succeeds(gxe: ModuleType, orders: DataFrame) -> None:
    assert judge_one(orders, gxe.ExpectColumnValuesToBeBetween(column="key_group", min_value=0, max_value=127)) == (
        Judgement(
            expectation="expect_column_values_to_be_between",
            success=True,
            expected={"column": "key_group", "min_value": 0.0, "max_value": 127.0},
            observed=0,
            sample=[],
        )
    )


def test_what_does_not_hold_fails_with_a_sample(gxe: ModuleType, orders: DataFrame) -> None:
    judgement = judge_one(orders, gxe.ExpectColumnValuesToBeBetween(column="order_id", max_value=996))
    assert (judgement.success, judgement.observed) == (False, 3)
    assert judgement.sample == [{"order_id": 997}, {"order_id": 998}, {"order_id": 999}]


def test_the_value_of_a_whole_table_is_observed(gxe: ModuleType, orders: DataFrame) -> None:
    judgement = judge_one(orders, gxe.ExpectTableRowCountToEqual(value=999))
    assert (judgement.success, judgement.observed, judgement.sample) == (False, 1000, [])


def test_a_query_gives_the_rows_it_finds(gxe: ModuleType, orders: DataFrame) -> None:
    query = "SELECT order_id, address FROM {batch} WHERE address.city IS NULL"
    judgement = judge_one(orders, gxe.UnexpectedRowsExpectation(unexpected_rows_query=query))
    assert (judgement.success, judgement.observed) == (False, 1)
    address = {"city": None, "raw": "00ff", "day": "2024-02-29", "price": "1.50", "tags": {"a": "nan"}}
    assert judgement.sample == [{"order_id": 7, "address": address}]


def test_a_query_that_finds_nothing_succeeds(gxe: ModuleType, orders: DataFrame) -> None:
    query = "SELECT * FROM {batch} WHERE order_id < 0"
    judgement = judge_one(orders, gxe.UnexpectedRowsExpectation(unexpected_rows_query=query))
    assert (judgement.success, judgement.observed, judgement.sample) == (True, 0, [])


def test_a_pair_of_columns_is_sampled_by_name(gxe: ModuleType, orders: DataFrame) -> None:
    judgement = judge_one(orders, gxe.ExpectColumnPairValuesToBeEqual(column_A="order_id", column_B="key_group"))
    assert (judgement.success, judgement.observed) == (False, 872)
    assert judgement.sample[0] == {"order_id": 128, "key_group": 0}


@pytest.mark.parametrize("query", ["SELECT * FROM {batch}", None])
def test_a_sample_is_bounded_and_fit_for_json(gxe: ModuleType, orders: DataFrame, query: str | None) -> None:
    expectation: Expectation = gxe.ExpectColumnValuesToBeNull(column="address")
    if query is not None:
        expectation = gxe.UnexpectedRowsExpectation(unexpected_rows_query=query)
    judgement = judge_one(orders, expectation)
    assert judgement.observed == 1000
    assert len(judgement.sample) == SAMPLE_SIZE
    json.dumps(judgement.sample, allow_nan=False)


def test_judgements_come_in_the_order_of_the_expectations(gxe: ModuleType, orders: DataFrame) -> None:
    suite = [
        gxe.ExpectColumnValuesToBeUnique(column="key_group"),
        gxe.ExpectTableRowCountToEqual(value=1000),
        gxe.ExpectColumnValuesToBeUnique(column="order_id"),
    ]
    assert [each.success for each in judge(orders, "orders", suite)] == [False, True, True]


def test_what_cannot_be_evaluated_fails_with_the_reason(gxe: ModuleType, orders: DataFrame) -> None:
    judgement = judge_one(orders, gxe.ExpectColumnValuesToNotBeNull(column="customer"))
    assert not judgement.success
    assert "customer" in judgement.error


def test_a_broken_query_fails_with_the_reason(gxe: ModuleType, orders: DataFrame) -> None:
    judgement = judge_one(orders, gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT nothing FROM {batch}"))
    assert not judgement.success
    assert "nothing" in judgement.error


def test_nothing_is_left_in_the_session(gxe: ModuleType, spark: SparkSession, orders: DataFrame) -> None:
    judge(orders, "orders", [gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT * FROM {batch} LIMIT 1")])
    assert spark.catalog.listTables() == []
    assert not orders.is_cached


def test_a_frame_that_was_cached_stays_cached(gxe: ModuleType, orders: DataFrame) -> None:
    cached = orders.limit(3).cache()
    try:
        judge(cached, "orders", [gxe.ExpectTableRowCountToEqual(value=3)])
        assert cached.is_cached
    finally:
        cached.unpersist()


def test_progress_is_not_shown(gxe: ModuleType, orders: DataFrame, capfd: pytest.CaptureFixture[str]) -> None:
    judge(orders, "orders", [gxe.ExpectColumnValuesToNotBeNull(column="order_id")])
    assert capfd.readouterr() == ("", "")


def test_great_expectations_loads_in_a_process_whose_main_module_has_no_file() -> None:
    code = (
        "import sys; from state_pipelines.spark.expectations import import_expectations\n"
        "print(import_expectations().__name__, hasattr(sys.modules['__main__'], '__file__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "great_expectations.expectations False\n", done.stderr
