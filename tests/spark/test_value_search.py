from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.errors import UsageError
from state_pipelines.spark.splits import find_rows
from tests.snapshot.savepoints import orders
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_rows_are_found_in_every_state_that_has_the_columns(spark: SparkSession) -> None:
    (found,) = find_rows(spark, orders().open(), "value.customer = 'Zoë'")
    wanted = [
        entry["key"]
        for entry in orders().entries()
        if entry.get("state") == "order" and entry["value"] and entry["value"]["customer"] == "Zoë"
    ]
    assert (found.operator, found.state, found.rows) == ("orders", "order", len(wanted))
    assert len(found.examples) == 3
    assert {row["state_key"] for row in found.examples} <= set(wanted)


def test_operator_and_broadcast_state_are_searched(spark: SparkSession) -> None:
    found = {each.state: each.rows for each in find_rows(spark, orders().open(), "map_key IS NOT NULL")}
    assert found.keys() == {"quantities", "prices"}
    assert all(found.values())


def test_files_that_were_moved_are_found(spark: SparkSession) -> None:
    snapshot = select("2.2", "rocksdb-incremental")[0].open()
    assert sum(found.rows for found in find_rows(spark, snapshot, "state_key IS NOT NULL")) > 0


@pytest.mark.parametrize(
    ("predicate", "message"),
    [("value.nobody = 1", "no state has the columns"), ("value =", "the predicate cannot be evaluated")],
)
def test_a_predicate_that_fits_nothing_is_refused(spark: SparkSession, predicate: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(find_rows(spark, orders().open(), predicate))


@pytest.mark.usefixtures("spark")
def test_erase_tells_which_rows_hold_a_value(tmp_path: Path) -> None:
    arguments = ["--key", "order-0064", "--out", str(tmp_path / "new"), "--also", "value.customer = 'Zoë'", "--json"]
    result = CliRunner().invoke(main, ["erase", str(orders().path), *arguments])
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["also"]
    assert (found["path"], found["operator"], found["state"]) == (str(tmp_path / "new"), "orders", "order")
    # The rows of the key itself are gone.
    assert "order-0064" not in [row["state_key"] for row in found["examples"]]
    assert found["rows"] > 0
