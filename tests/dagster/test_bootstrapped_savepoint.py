"""`bootstrapped_savepoint`: a first savepoint out of tables, and the checks of its state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import state_pipelines as sp
from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.storage import REPORTS
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.spark.bootstrap_run import FrameRows
from tests.dagster.conftest import ORDERS, UIDS, build

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.operations.bootstrap.encoding import EncodedRows

pytestmark = pytest.mark.spark

CHECKS = {"row_counts_per_key_group", "key_sets", "key_groups_match_key_hash", "written_reads_back"}

YAML = """
operators:
  - uid: customers
    key: String
    parallelism: 2
    states:
      - {name: total, rows: customers.parquet, type: Long, columns: {state_key: customer, value: cents}}
"""

KRYO = """
      - name: point
        rows: customers.parquet
        type: Kryo<com.acme.Point>
        columns: {state_key: customer, value: [cents]}
"""

PYTHON = """
from state_pipelines.spark import NewOperator, NewState


def describe(spark):
    rows = spark.createDataFrame([(f"customer-{n}", n) for n in range(20)], "state_key string, value long")
    return [NewOperator("customers", [NewState("total", rows)], parallelism=2)]


def nothing(spark):
    return "customers"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = pa.table({"customer": ["ada", "Zoë"], "cents": [1200, 50]})
    pq.write_table(rows, tmp_path / "customers.parquet")
    (tmp_path / "states.yaml").write_text(YAML)
    (tmp_path / "classes.txt").write_text("final com.acme.Point: [cents: long]")
    (tmp_path / "states.py").write_text(PYTHON)
    (tmp_path / "snapshots").mkdir()
    return tmp_path


def run(folder: Path, bootstrap: str, **config: Any) -> dg.ExecuteInProcessResult:
    job = FlinkJob(
        name="shop",
        roots=(str(folder / "snapshots"),),
        results=str(folder / "results"),
        bootstrap=bootstrap,
        job_classes=(str(folder / "classes.txt"),),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        return (
            build(job)
            .resolve_job_def("shop_bootstrap_savepoint")
            .execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config={"ops": {"shop__bootstrapped_savepoint": {"config": config}}},
            )
        )


def list_results(folder: Path) -> list[str]:
    return [each.name for each in (folder / "results").glob("*") if each.name != REPORTS]


def get_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


def get_checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def get_failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = result.get_step_failure_events()
    assert event.step_failure_data.user_failure_data is not None
    return str(event.step_failure_data.user_failure_data.description)


def test_a_yaml_file_becomes_a_savepoint(spark: SparkSession, folder: Path) -> None:
    (folder / "states.yaml").write_text(YAML.rstrip() + KRYO)
    result = run(folder, str(folder / "states.yaml"), flink_version="1.20")
    assert result.success
    assert get_checks(result) == dict.fromkeys(CHECKS, True)
    metadata = get_metadata(result)
    assert metadata["dagster/row_count"] == 4
    snapshot = sp.open_snapshot(metadata["path"], classes=load_field_lists([folder / "classes.txt"]))
    assert snapshot.kryo_version == 2
    for name, expected in (("total", [1200, 50]), ("point", [{"cents": 1200}, {"cents": 50}])):
        rows = snapshot.operator("customers").state(name).to_arrow().to_pylist()
        assert {each["state_key"]: each["value"] for each in rows} == dict(zip(("ada", "Zoë"), expected, strict=True))


def test_a_function_describes_the_states_of_the_example(spark: SparkSession, folder: Path) -> None:
    result = run(folder, f"{ORDERS / 'bootstrap' / 'bootstrap_orders.py'}:describe_operators", format="rocksdb")
    assert result.success
    assert get_checks(result) == dict.fromkeys(CHECKS, True)
    metadata = get_metadata(result)
    snapshot = sp.open_snapshot(metadata["path"], uids=UIDS)
    assert {each.uid for each in snapshot.operators} == set(UIDS)
    assert "state.backend.type: rocksdb" in metadata["notes"]


def test_states_on_top_of_a_snapshot(spark: SparkSession, folder: Path) -> None:
    first = get_metadata(run(folder, str(folder / "states.yaml")))["path"]
    text = YAML.replace("uid: customers", "uid: others")
    (folder / "more.yaml").write_text(text)
    second = get_metadata(run(folder, str(folder / "more.yaml"), base=first))["path"]
    uids = ["customers", "others"]
    assert {each.uid for each in sp.open_snapshot(second, uids=uids).operators} == set(uids)


def test_lost_rows_fail_the_checks_and_nothing_is_published(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = FrameRows.encode_keyed

    def lose(self: FrameRows, states: Any) -> list[tuple[int, list[EncodedRows]]]:
        """The tasks count their rows, but a file of theirs gets lost."""
        (rows, found), *others = encode(self, states)
        index = next(index for index, each in enumerate(found) if each.spills)
        found[index] = replace(found[index], spills=found[index].spills[1:])
        return [(rows, found), *others]

    monkeypatch.setattr(FrameRows, "encode_keyed", lose)
    result = run(folder, f"{folder / 'states.py'}:describe")
    assert not result.success
    checks = get_checks(result)
    assert checks.keys() == CHECKS
    assert not checks["row_counts_per_key_group"]
    assert not checks["key_sets"]
    assert checks["key_groups_match_key_hash"]
    assert result.get_asset_materialization_events() == []
    assert list_results(folder) == []


def test_a_function_that_returns_no_operators_is_refused(spark: SparkSession, folder: Path) -> None:
    assert "returns str, and no list of NewOperator" in get_failure(run(folder, f"{folder / 'states.py'}:nothing"))


def test_other_definitions_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="or a YAML file"):
        FlinkJob(name="shop", roots=("a",), results="b", bootstrap="shop.states:describe")
