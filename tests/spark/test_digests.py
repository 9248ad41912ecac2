from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.spark.digests import digest_payload, identify, profile
from state_pipelines.spark.flows import hidden

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def digest(spark: SparkSession, *values: str) -> Any:
    """Of rows of one key group, numbered in the order in which they are given here, whatever Spark makes of it."""
    rows = " UNION ALL ".join(
        f"SELECT {hash(value) % 1000} AS {hidden('key_bytes')}, {value} AS x, 1 AS {hidden('key_group')}"
        for value in values
    )
    frame = identify(spark.sql(rows), (hidden("key_bytes"),))
    (row,) = profile(frame, {"x": digest_payload("x", ())}, {}, by_group=True)
    return row["x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("named_struct('a', CAST(NULL AS INT), 'b', 1)", "named_struct('a', 1, 'b', CAST(NULL AS INT))"),
        ("array(CAST(NULL AS INT), 1)", "array(1, CAST(NULL AS INT))"),
        ("array(1)", "array(1, CAST(NULL AS INT))"),
        ("array(array(1), array(2, 3))", "array(array(1, 2), array(3))"),
        ("array(array(), array(1))", "array(array(1), array())"),
        ("map('a', CAST(NULL AS INT), 'b', 1)", "map('a', 1, 'b', CAST(NULL AS INT))"),
        ("CAST(NULL AS STRING)", "''"),
    ],
)
def test_values_that_differ_in_what_is_null_or_where_it_lies_have_other_digests(
    spark: SparkSession, one: str, other: str
) -> None:
    frame = f"SELECT 1 AS {hidden('key_bytes')}, {{}} AS x, 1 AS {hidden('key_group')}"
    found = []
    for value in (one, other):
        rows = identify(spark.sql(frame.format(value)), (hidden("key_bytes"),))
        found += [row["x"] for row in profile(rows, {"x": digest_payload("x", ())}, {}, by_group=True)]
    assert len(found) == 2
    assert found[0] != found[1]


def test_the_order_of_rows_does_not_count(spark: SparkSession) -> None:
    values = ("'a'", "'b'", "'c'")
    assert digest(spark, *values) == digest(spark, *reversed(values))
    assert digest(spark, *values) != digest(spark, *values, "'c'")
