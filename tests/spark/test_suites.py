"""Suites of Great Expectations that a job keeps in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import ProofError, StateError, UsageError
from state_pipelines.operations.migration import load_migration
from state_pipelines.operations.proofs.proof_reports import ProofReport
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate
from state_pipelines.spark.suites import find_project, load_suites, run_suites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"
MIGRATION = "examples/orders/migrations/0001_amount_as_double.yaml"
PRESENT = {"type": "expect_column_values_to_not_be_null", "column": "value.quantity"}
BETWEEN = {"type": "expect_column_values_to_be_between", "column": "value.quantity"}


@pytest.fixture
def orders() -> Snapshot:
    return open_snapshot(ORDERS, uids=["orders", "order-counter", "pricing"])


def write(directory: Path, *expect: dict[str, Any], state: str = "order") -> Path:
    directory.mkdir(exist_ok=True)
    content = {"operator": "orders", "state": state, "expect": list(expect)}
    (directory / f"{state}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return directory


def test_suites_that_hold(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    directory = write(tmp_path / "suites", PRESENT, {"type": "expect_table_row_count_to_equal", "value": 200})
    (check,) = run_suites(spark, orders, load_suites(directory)).checks
    assert (check.name, check.ok, check.observed) == ("expectations_hold", True, "2 expectations hold")


def test_rows_that_do_not_meet_a_suite_are_shown_with_their_keys(
    spark: SparkSession, orders: Snapshot, tmp_path: Path
) -> None:
    directory = write(tmp_path / "suites", BETWEEN | {"max_value": 3})
    (check,) = run_suites(spark, orders, load_suites(directory)).checks
    assert not check.ok
    assert check.blocking
    assert len(check.rows) == 10
    assert all("state_key" in row.key and row.values["after"] > 3 for row in check.rows)


def test_a_warning_does_not_block(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    directory = write(tmp_path / "suites", BETWEEN | {"max_value": 3, "severity": "warning"})
    (check,) = run_suites(spark, orders, load_suites(directory)).checks
    assert (check.ok, check.blocking, check.result) == (False, False, "warning")


def test_a_suite_of_another_state_is_no_check(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    directory = write(tmp_path / "suites", BETWEEN, state="nothing")
    assert run_suites(spark, orders, load_suites(directory)).checks == ()


def test_migrated_rows_that_do_not_meet_a_suite_are_not_published(
    spark: SparkSession, orders: Snapshot, tmp_path: Path
) -> None:
    suites = load_suites(write(tmp_path / "suites", BETWEEN | {"max_value": 3}))
    with pytest.raises(ProofError, match="expectations_hold") as caught:
        migrate(orders, load_migration(MIGRATION), str(tmp_path / "new"), suites=suites)
    assert isinstance(caught.value.report, ProofReport)
    assert [each.name for each in caught.value.report.failed] == ["expectations_hold"]
    assert not (tmp_path / "new").exists()


def test_results_are_kept_and_shown_in_data_docs(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    suites = load_suites(write(tmp_path / "suites", BETWEEN | {"max_value": 3, "severity": "warning"}))
    docs = tmp_path / "docs"
    for _ in range(2):
        results = run_suites(spark, orders, suites, project=find_project(tmp_path / "suites", docs))
    assert results.data_docs.startswith("file://")
    index = results.data_docs.removeprefix("file://")
    assert "orders.order" in Path(index).read_text(encoding="utf-8")
    assert (docs / "gx" / "expectations" / "orders" / "order.json").is_file()
    assert len(list((docs / "gx" / "uncommitted" / "validations").rglob("*.json"))) == 2


def test_actions_that_a_team_adds_to_a_checkpoint_stay(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    import great_expectations as gx

    suites = load_suites(write(tmp_path / "suites", PRESENT))
    project = find_project(tmp_path / "suites", tmp_path / "docs")
    run_suites(spark, orders, suites, project=project)
    context = gx.get_context(mode="file", project_root_dir=project)
    checkpoint = context.checkpoints.get("orders.order")
    checkpoint.actions = []
    checkpoint.save()
    run_suites(spark, orders, suites, project=project)
    kept = gx.get_context(mode="file", project_root_dir=project).checkpoints.get("orders.order")
    assert kept.actions == []


def test_a_suite_of_great_expectations_is_read(tmp_path: Path) -> None:
    content = {
        "name": "orders.order",
        "id": "5f0d1f0a-4f0f-4b0e-8d7e-0a0a0a0a0a0a",
        "expectations": [
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "state_key"}, "severity": "warning"}
        ],
        "meta": {},
    }
    (tmp_path / "orders.json").write_text(json.dumps(content), encoding="utf-8")
    (suite,) = load_suites(tmp_path)
    assert (suite.operator, suite.state) == ("orders", "order")
    assert [severity for _, severity in suite.expectations] == ["warning"]


def test_a_python_file_gives_suites(tmp_path: Path) -> None:
    text = (
        "EXPECT = [{'type': 'expect_column_to_exist', 'column': 'value'}]\n"
        "SUITES = [{'operator': 'orders', 'state': name, 'expect': EXPECT} for name in ('a', 'b')]\n"
    )
    (tmp_path / "suites.py").write_text(text, encoding="utf-8")
    assert [each.name for each in load_suites(tmp_path)] == ["orders.a", "orders.b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("state: order", "`operator` is missing"),
        ("{operator: orders, state: order}", "`expect` is not a list"),
        ("{operator: orders, state: order, expect: [{column: a}]}", "a mapping with `type`"),
        ("{operator: orders, state: order, expect: [{type: x, severity: bad}]}", "'bad' is no severity"),
        ("{operator: orders, state: order, expects: []}", "unknown entries expects"),
        ("[1]", "a suite is a mapping"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        load_suites(tmp_path)
    assert caught.value.where.file == str(tmp_path / "wrong.yaml")


def test_an_unknown_expectation_is_reported_before_anything_is_written(
    spark: SparkSession, orders: Snapshot, tmp_path: Path
) -> None:
    suites = load_suites(write(tmp_path / "suites", {"type": "expect_miracles"}))
    with pytest.raises(StateError, match="Great Expectations has no expect_miracles") as caught:
        migrate(orders, load_migration(MIGRATION), str(tmp_path / "new"), suites=suites)
    assert caught.value.where.file == str(tmp_path / "suites" / "order.yaml")
