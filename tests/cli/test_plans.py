"""`--plan`: the plan of a SQL job names operators and columns in every command that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.snapshot.test_planned_names import CONFLICT, MATERIALIZER, ROW, make_sink
from tests.sql.small_plans import make_plan, scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called


def test_inspect_and_read_show_the_names(call: Callable[..., Called], tmp_path: Path) -> None:
    plan, savepoint = tmp_path / "plan.json", CONFLICT.open().path
    plan.write_text(make_plan(scan(1, "orders", ROW), make_sink(3)))
    result = call("inspect", savepoint, "--plan", plan)
    assert result.code == 0
    assert "SQL: Sink(table=[cities], fields=[city, amount])" in result.out
    assert "orders.amount" in result.out
    rows = call("read", savepoint, "--operator", MATERIALIZER, "--state", "current-value", "--plan", plan, "--json")
    assert rows.lines[0]["value"].keys() == {"row_kind", "city", "amount"}


def test_a_file_that_is_no_plan_is_named(call: Callable[..., Called], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"nodes": []}')
    result = call("inspect", CONFLICT.open().path, "--plan", plan)
    assert result.code == 2
    assert "no compiled plan" in result.err
    assert str(plan) in result.err
    assert "COMPILE PLAN" in result.err


def test_sql_plan_refuses_before_it_starts_java(call: Callable[..., Called], tmp_path: Path) -> None:
    script, plan = tmp_path / "job.sql", tmp_path / "plan.json"
    script.write_text("INSERT INTO t SELECT 1")
    plan.write_text("{}")
    result = call("sql", "plan", script, "-o", plan)
    assert (result.code, plan.read_text()) == (2, "{}")
    assert "the file exists" in result.err
    result = call("sql", "plan", script, "--flink-home", tmp_path)
    assert result.code == 2
    assert "it is no Flink installation" in result.err
    result = call("inspect", CONFLICT.open().path, "--plan", tmp_path / "none.sql")
    assert result.code == 2
    assert "none.sql" in result.err
