"""Invariants of SQL's operators: states that are right, and each violation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.migration.shapes import StateShape
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of, tuple_of
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.spark import proof_rows as invariants
from state_pipelines.spark.flow_steps import KEY
from state_pipelines.spark.flow_steps import OLD_KEY as COMPARED
from state_pipelines.spark.types import PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.serializers.tree import Serializer

pytestmark = pytest.mark.spark

INT, LONG = basic("Int"), basic("Long")


@dataclass(frozen=True)
class Rows:
    """Frames of states, in place of a snapshot."""

    shapes: Mapping[str, StateShape]
    frames: Mapping[str, DataFrame]

    def read(self, name: str) -> DataFrame:
        return self.frames[name].withColumn(COMPARED, self.frames[name][KEY])

    def is_plain(self, name: str) -> bool:
        return name in self.shapes


def shape(name: str, kind: str, value: Serializer) -> StateShape:
    return StateShape(keyed_state(name, kind, value, VOID_NAMESPACE), LONG)


def count(spark: SparkSession, rules: object, rows: Rows) -> dict[str, int]:
    return {rule.text: rule.find(rows).count() for rule in rules}  # type: ignore[attr-defined]


def make_join(spark: SparkSession, left: str, right: str) -> Rows:
    """A join without unique keys whose left side is outer: rows occur several times, and count their matches."""
    shapes = {
        "left-records": shape("left-records", "MAP", map_of(LONG, tuple_of(INT, INT))),
        "right-records": shape("right-records", "MAP", map_of(LONG, INT)),
    }
    frames = {
        "left-records": spark.sql(
            f"SELECT k AS {KEY}, struct(t AS f0, m AS f1) AS {PAYLOAD} FROM VALUES {left} a(k, t, m)"
        ),
        "right-records": spark.sql(f"SELECT k AS {KEY}, t AS {PAYLOAD} FROM VALUES {right} a(k, t)"),
    }
    return Rows(shapes, frames)


@pytest.mark.parametrize(
    ("left", "right", "violations"),
    [
        ("(1, 1, 3), (1, 2, 3), (2, 1, 0)", "(1, 1), (1, 2), (3, 1)", [0, 0, 0]),
        ("(1, 1, 3), (1, 0, 3), (2, 1, 1)", "(1, 1), (1, 2), (3, 0)", [1, 1, 1]),
    ],
)
def test_rows_of_a_join_count_their_matches(spark: SparkSession, left: str, right: str, violations: list[int]) -> None:
    rows = make_join(spark, left, right)
    found = count(spark, invariants._find_join_rules(rows), rows)  # type: ignore[arg-type]
    assert found == dict(
        zip(
            (
                "rows of left-records occur less than once",
                "rows of left-records count other matches than right-records has rows of the key",
                "rows of right-records occur less than once",
            ),
            violations,
            strict=True,
        )
    )


@pytest.mark.parametrize(("numbers", "violations"), [("map(10L, 2L, 20L, 1L)", 0), ("map(10L, 1L, 30L, 1L)", 3)])
def test_a_sorted_map_counts_the_rows_of_each_sort_key(spark: SparkSession, numbers: str, violations: int) -> None:
    shapes = {
        "data-state": shape("data-state", "MAP", map_of(LONG, list_of(LONG))),
        "sorted-map": shape("sorted-map", "VALUE", map_of(LONG, LONG)),
    }
    data = "VALUES (1L, 10L, array(5L, 6L)), (1L, 20L, array(7L))"
    frames = {
        "data-state": spark.sql(f"SELECT k AS {KEY}, s AS {hidden('map_key')}, r AS {PAYLOAD} FROM {data} a(k, s, r)"),
        "sorted-map": spark.sql(f"SELECT 1L AS {KEY}, {numbers} AS {PAYLOAD}"),
    }
    rows = Rows(shapes, frames)
    found = count(spark, invariants._find_rank_rules(rows), rows)  # type: ignore[arg-type]
    assert list(found.values()) == [violations]


def make_distinct(spark: SparkSession, counts: str, values: str) -> Rows:
    """Accumulators with a sum and the number of distinct values."""
    shapes = {name: shape(name, kind, LONG) for name, kind in (("accState", "VALUE"), ("distinctAcc_0", "VALUE"))}
    frames = {
        "accState": spark.sql(
            f"SELECT k AS {KEY}, struct(s AS f0, n AS f1) AS {PAYLOAD} FROM VALUES {counts} a(k, s, n)"
        ),
        "distinctAcc_0": spark.sql(f"SELECT k AS {KEY}, v AS {hidden('map_key')} FROM VALUES {values} a(k, v)"),
    }
    return Rows(shapes, frames)


def test_the_number_of_distinct_values_stays_one(spark: SparkSession) -> None:
    old = make_distinct(spark, "(1, 9L, 2L), (2, 5L, 1L), (3, 0L, 0L)", "(1, 'x'), (1, 'y'), (2, 'x')")
    united = make_distinct(spark, "(1, 14L, 2L), (3, 0L, 0L)", "(1, 'x'), (1, 'y')")
    added = make_distinct(spark, "(1, 14L, 3L), (3, 0L, 0L)", "(1, 'x'), (1, 'y')")
    names = "accState", "distinctAcc_0"
    assert invariants._judge_distinct(old, united, *names) is None  # type: ignore[arg-type]
    violated = invariants._judge_distinct(old, added, *names)  # type: ignore[arg-type]
    assert violated is not None
    assert violated.text.startswith("1 keys of accState count other distinct values in f1")
    # Nothing counted distinct values before.
    assert invariants._judge_distinct(added, added, *names) is None  # type: ignore[arg-type]
