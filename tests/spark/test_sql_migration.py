"""Savepoints of queries that change, migrated: rows of recorded savepoints of Flink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.errors import IncompatibleError, TargetExistsError
from state_pipelines.spark.sql_migration import PLAN_FILE, REVISION_FILE, SqlMigration, migrate_query
from tests.sql.recorded_pairs import RecordedPair, unpack

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark


def read_rows(snapshot: Snapshot, state: str) -> dict[Any, Any]:
    """Values of a state by key, and by user key of a map."""
    (operator,) = (each for each in snapshot.operators if any(one.name == state for one in each.keyed_states))
    found = {}
    for row in operator.state(state).to_arrow().to_pylist():
        values = {name: value for name, value in (row.get("value") or {}).items() if name != "row_kind"}
        found[tuple(row["state_key"].values())] = tuple(values.values())
    return found


def migrate(pair: RecordedPair, spark: SparkSession, **options: Any) -> SqlMigration:
    return migrate_query(pair.old, pair.new, pair.savepoint, str(pair.folder / "migrated"), spark=spark, **options)


def test_exchanged_aggregates_move_with_their_values(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("swap", tmp_path)
    result = migrate(pair, spark)
    before, after = read_rows(pair.open(), "accState"), read_rows(result.snapshot, "accState")
    assert len(before) == result.rows == 20
    assert after == {key: (second, first) for key, (first, second) in before.items()}
    assert result.proof is not None
    assert result.proof.ok
    assert (tmp_path / "swap/migrated" / PLAN_FILE).read_text() == (tmp_path / "swap/new.json").read_text()
    assert "sum_k: f1" in (tmp_path / "swap/migrated" / REVISION_FILE).read_text()
    with pytest.raises(TargetExistsError):
        migrate(pair, spark)


def test_a_new_sum_begins_with_null_or_with_a_table(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("add-sum", tmp_path)
    before = read_rows(pair.open(), "accState")
    table = pa.table({"cid": [1, 2, 30], "r2": [100, 200, 300]})
    pq.write_table(table, tmp_path / "sums.parquet")
    result = migrate(pair, spark, backfill={"r2": str(tmp_path / "sums.parquet")})
    given = {("+I", 1): 100, ("+I", 2): 200}
    assert read_rows(result.snapshot, "accState") == {key: (*row, given.get(key)) for key, row in before.items()}


def test_renamed_operators_are_metadata_alone(tmp_path: Path) -> None:
    pair = unpack("ids", tmp_path)

    def start() -> Any:
        raise AssertionError("no Spark is needed")

    result = migrate(pair, start)  # type: ignore[arg-type]
    assert result.rows == 0
    assert result.path is not None
    assert read_rows(result.snapshot, "accState") == read_rows(pair.open(), "accState")
    assert {each.uid for each in result.snapshot.operators if each.uid} != {each.uid for each in pair.open().operators}


def test_a_refused_query_leaves_nothing(tmp_path: Path) -> None:
    pair, other = unpack("swap", tmp_path), unpack("retract-swap", tmp_path)
    with pytest.raises(IncompatibleError, match="the input takes back rows now"):
        migrate_query(pair.old, other.new, pair.savepoint, str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()
