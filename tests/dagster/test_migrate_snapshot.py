"""One run of the job for each savepoint of the orders example, on real Spark and real Great Expectations."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import MIGRATIONS, SAVEPOINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment

PROOF = {
    "row_counts_per_key_group",
    "key_sets",
    "key_groups_match_key_hash",
    "round_trip",
    "written_reads_back",
}
ASSETS = {"state_tables", "compatibility_report", "migrated_savepoint"}


@dataclass(frozen=True)
class Run:
    """A run of the job and what Dagster knows of it."""

    release: str
    key: str
    result: dg.ExecuteInProcessResult

    def materialization(self, asset: str) -> dg.AssetMaterialization:
        (event,) = self.result.asset_materializations_for_node(f"shop__{asset}")
        return event

    def metadata(self, asset: str) -> dict[str, Any]:
        return {name: value.value for name, value in self.materialization(asset).metadata.items()}

    def evaluations(self) -> dict[str, dg.AssetCheckEvaluation]:
        return {each.check_name: each for each in self.result.get_asset_check_evaluations()}


@pytest.fixture(scope="module", params=sorted(SAVEPOINTS))
def run(request: pytest.FixtureRequest, deployment: Deployment, spark: SparkSession) -> Run:
    key = deployment.add(request.param)
    return Run(request.param, key, deployment.run("migrate_snapshot", key))


def read_expected(release: str, name: str) -> list[dict[str, Any]]:
    with gzip.open(SAVEPOINTS[release].parent / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_asset_is_materialized(run: Run) -> None:
    assert run.result.success
    assert {name for name in ASSETS if run.materialization(name)} == ASSETS


def test_columns_have_their_origin_and_savepoints_their_place(run: Run) -> None:
    metadata = run.metadata("migrated_savepoint")
    assert metadata["dagster/uri"] == metadata["path"]
    assert metadata["derived from"] == run.key
    lineage = metadata["dagster/column_lineage"].deps_by_column
    found = {name: [(each.asset_key.path[-1], each.column_name) for each in lineage[name]] for name in lineage}
    assert found["orders.order.value.customerId"] == [("state_tables", "orders.order.value.customer")]
    assert found["orders.order.value.priority"] == [("state_tables", "orders.order.value.quantity")]
    assert found["orders.last-seen.value"] == [("state_tables", "orders.last-seen.value")]
    before = {each.name for each in run.metadata("state_tables")["dagster/column_schema"].columns}
    after = {each.name for each in metadata["dagster/column_schema"].columns}
    assert {name for _, name in (each for old in found.values() for each in old)} <= before
    assert found.keys() <= after


def test_every_check_passes(run: Run) -> None:
    passed = {name: each.passed for name, each in run.evaluations().items()}
    assert passed == dict.fromkeys(PROOF | {"migrated_state_restores"}, True)


def test_failures_of_the_proof_are_errors(run: Run) -> None:
    assert {run.evaluations()[name].severity for name in PROOF} == {dg.AssetCheckSeverity.ERROR}


def test_checks_say_what_was_expected_and_what_was_seen(run: Run) -> None:
    for evaluation in run.evaluations().values():
        assert {"expected", "observed"} <= evaluation.metadata.keys()


def test_the_proof_belongs_to_the_partition(run: Run) -> None:
    assert {run.evaluations()[name].partition for name in PROOF} == {run.key}


def test_every_state_is_a_table(run: Run, deployment: Deployment) -> None:
    records = [record.data for record in run.metadata("state_tables")["tables"].records]
    assert len(records) == 14
    assert {record["rows"] for record in records} == {pq.read_table(record["path"]).num_rows for record in records}
    assert all(Path(str(record["path"])).is_relative_to(str(deployment.job.tables)) for record in records)


def test_a_table_holds_the_entries_that_flink_read(run: Run, deployment: Deployment) -> None:
    expected = [each for each in read_expected(run.release, "expected.jsonl.gz") if each.get("state") == "prices"]
    table = pq.read_table(Path(str(deployment.job.tables), run.key.replace("@", "-"), "pricing", "prices"))
    rows = table.select(["subtask", "map_key", "map_value"]).to_pylist()
    found = sorted((row["subtask"], row["map_key"], row["map_value"]) for row in rows)
    assert found == sorted((each["subtask"], each["ukey"], each["value"]) for each in expected)


def test_tables_tell_their_rows_and_columns(run: Run) -> None:
    metadata = run.metadata("state_tables")
    records = [record.data for record in metadata["tables"].records]
    assert metadata["dagster/row_count"] == sum(record["rows"] for record in records)
    columns = {column.name: column.type for column in metadata["dagster/column_schema"].columns}
    assert columns["orders.order.state_key"] == "string"
    assert columns["orders.order.value"].startswith("struct<")


def test_the_report_says_what_flink_would(run: Run) -> None:
    metadata = run.metadata("compatibility_report")
    assert "amount" in metadata["report"]
    assert metadata["without the migration"] == "incompatible"
    assert metadata["with the migration"] == "fully compatible"
    assert metadata["result"]["migrated"]["ok"]


@pytest.mark.parametrize("asset", ["state_tables", "compatibility_report"])
def test_what_is_derived_has_the_version_of_the_snapshot(run: Run, asset: str) -> None:
    assert (run.materialization(asset).tags or {})["dagster/data_version"].startswith(run.key.rpartition("@")[2])


def test_the_savepoint_has_the_version_of_its_content(run: Run) -> None:
    result = open_snapshot(run.metadata("migrated_savepoint")["path"])
    tags = run.materialization("migrated_savepoint").tags or {}
    assert tags["dagster/data_version"] == result.fingerprint
    assert tags["dagster/code_version"] == f"{RevisionDirectory(MIGRATIONS).fingerprint}-head"


def test_the_savepoint_holds_what_the_new_release_would(run: Run) -> None:
    snapshot = open_snapshot(run.metadata("migrated_savepoint")["path"], uids=["orders"])
    rows = snapshot.operator("orders").state("order").to_arrow().to_pylist()
    expected = read_expected(run.release, "expected-migrated.jsonl.gz")
    amounts = {each["key"]: each["value"]["amount"] for each in expected if each.get("state") == "order"}
    assert {row["state_key"]: row["value"]["amount"] for row in rows} == amounts


def test_the_proof_is_shown(run: Run) -> None:
    metadata = run.metadata("migrated_savepoint")
    assert all(name in metadata["proof"] for name in PROOF)
    assert metadata["dagster/row_count"] == 200
