"""Suites of Great Expectations that a job keeps in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import ProofError, StateError, UsageError
from state_pipelines.operations.migration import load_migration
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate
from state_pipelines.spark.expectations import find_project, find_states, load_suites, run_suites

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


def write_text(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "orders.yaml").write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("operator", "state", "message", "hint"),
    [
        ("orders", "ordre", "the suite is about the state ordre", "It has order"),
        ("oders", "order", "the suite is about the operator oders", "It has orders"),
    ],
)
def test_a_suite_that_matches_nothing_is_an_error_with_its_line(
    orders: Snapshot, tmp_path: Path, operator: str, state: str, message: str, hint: str
) -> None:
    text = f"# a comment\n- operator: {operator}\n  state: {state}\n  expect: [{{type: expect_column_to_exist}}]\n"
    suites = load_suites(write_text(tmp_path, text))
    with pytest.raises(UsageError, match=message) as caught:
        find_states(orders, suites)
    assert caught.value.where.file == f"{tmp_path / 'orders.yaml'}:2"
    assert caught.value.hint.startswith(hint)


def test_an_optional_suite_of_another_state_is_no_check(spark: SparkSession, orders: Snapshot, tmp_path: Path) -> None:
    text = "{operator: orders, state: nothing, optional: true, expect: [{type: expect_column_to_exist, column: a}]}"
    assert run_suites(spark, orders, load_suites(write_text(tmp_path, text))).checks == ()


def test_compound_columns_and_conditions_name_fields_by_paths(
    spark: SparkSession, orders: Snapshot, tmp_path: Path
) -> None:
    compound = {"type": "expect_compound_columns_to_be_unique", "column_list": ["state_key", "value.quantity"]}
    condition = {"row_condition": "value.quantity > 3"}
    missing = {"type": "expect_column_to_exist", "column": "value.nothing", "severity": "warning"}
    directory = write(tmp_path / "suites", compound, BETWEEN | condition | {"min_value": 4}, missing)
    (check,) = run_suites(spark, orders, load_suites(directory)).checks
    assert (check.ok, check.blocking) == (False, False)
    assert check.observed.count("expect_") == 1


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("{type: expect_column_values_to_not_be_null, column: value.quantitty}", "names the column value.quantitty"),
        ("{type: expect_column_values_to_not_be_null, column: state_kee}", "names the column state_kee"),
        ("{type: expect_compound_columns_to_be_unique, column_list: [state_key, value.x]}", "names the column value.x"),
        (
            "{type: expect_column_values_to_not_be_null, column: state_key, condition_parser: spark, "
            "row_condition: '`value.quantity` > 3'}",
            "has the condition '`value.quantity` > 3', which does not fit the columns",
        ),
        (
            "{type: expect_column_values_to_not_be_null, column: state_key, condition_parser: spark, "
            "row_condition: 'value.quantity >'}",
            "has the condition 'value.quantity >'",
        ),
    ],
)
def test_a_mistake_in_an_expectation_names_file_and_line(
    spark: SparkSession, orders: Snapshot, tmp_path: Path, expectation: str, message: str
) -> None:
    text = (
        f"operator: orders\nstate: order\nexpect:\n- {{type: expect_column_to_exist, column: value}}\n- {expectation}\n"
    )
    suites = load_suites(write_text(tmp_path, text))
    with pytest.raises(UsageError) as caught:
        run_suites(spark, orders, suites)
    assert message in caught.value.what
    assert (caught.value.where.file, caught.value.where.state) == (f"{tmp_path / 'orders.yaml'}:5", "order")
    assert caught.value.hint


def test_suites_of_json_and_python_are_located(tmp_path: Path) -> None:
    suite = {"operator": "orders", "state": "order", "expect": [PRESENT, PRESENT]}
    (tmp_path / "a.json").write_text(json.dumps([suite], indent=1), encoding="utf-8")
    (tmp_path / "b.py").write_text(f"SUITES = [{suite | {'state': 'b'}!r}]", encoding="utf-8")
    one, two = load_suites(tmp_path)
    assert (one.locate().file, one.locate(1).file) == (f"{tmp_path / 'a.json'}:2", f"{tmp_path / 'a.json'}:10")
    assert two.locate(1).file == str(tmp_path / "b.py")


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
    assert str(caught.value.where.file).startswith(str(tmp_path / "suites" / "order.yaml:"))
