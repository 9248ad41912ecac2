"""What destroys, is ambiguous, or gives other values each time is refused with a reason, unless the file says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import IncompatibleError, StateError
from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.spark import migrate
from state_pipelines.spark.analysis import analyse_plans
from state_pipelines.spark.flows import FlowRunner, StateFrames
from state_pipelines.spark.migration_run import plan_snapshot
from tests.snapshot.savepoints import orders, types

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration import Migration

pytestmark = pytest.mark.spark

IMPOSSIBLE = {"impossible": "it is not needed"}
OTHERS = ["address", "customer", "id", "note", "quantity", "status", "updatedAt"]
FIRST = {"type": "String", "expression": "left(state_key, 7)"}


def keep_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def make(step: dict[str, Any], operator: str, state: str | None, **entries: Any) -> Migration:
    content = {"revision": "1", "operator": operator, "upgrade": [step], "downgrade": IMPOSSIBLE, **entries}
    return parse_migration(content if state is None else {**content, "state": state})


def plan(spark: SparkSession, migration: Migration) -> None:
    """All that comes before rows are read."""
    snapshot = (types if migration.changes[0].operator == "ttl-states" else orders)().open()
    for operator, each in plan_snapshot(snapshot, [(migration, Direction.UPGRADE)]):
        runner = FlowRunner(StateFrames(spark, operator), each.context.layouts)
        for flow in each.changed.values():
            runner.build(flow)


def set_note(expression: str, **entries: Any) -> dict[str, Any]:
    return {"set": {"field": "note", "expression": f"CAST({expression} AS STRING)", **entries}}


ORDER = ("orders", "order")
PARTS: dict[str, Any] = {"head": {"fields": ["id", "customer"], "class": "com.acme.Head"}}
EACH_TIME = ["rand()", "uuid()", "current_timestamp()", "current_date()", "monotonically_increasing_id()"]
REFUSED: dict[str, tuple[tuple[str, str | None], dict[str, Any], dict[str, Any], str]] = {
    "filter": (
        ORDER,
        {"filter": {"keep": "amount > 0"}},
        {"filter": {"keep": "amount > 0", "reason": "nothing was paid"}},
        "`reason` is missing",
    ),
    "ttl": (
        ("ttl-states", "value"),
        {"ttl": {"disable": None}},
        {"ttl": {"disable": "they are kept for ever"}},
        "`disable` has no value",
    ),
    "drop_state": (
        ORDER,
        {"drop_state": {}},
        {"drop_state": {"reason": "nobody reads it"}},
        "`reason` is missing",
    ),
    "convert": (
        ORDER,
        {"convert": {"to": "Long", "expression": "amount"}},
        {"convert": {"to": "Long", "expression": "amount", "discard": OTHERS}},
        "cannot store address, customer",
    ),
    "split": (
        ORDER,
        {"split": {"into": PARTS}},
        {"split": {"into": PARTS, "discard": ["amount", "address", "note", "quantity", "status", "updatedAt"]}},
        "none of the new states has address, amount",
    ),
    "python": (
        ORDER,
        {"python": {"function": keep_all}},
        {"python": {"function": keep_all, "deterministic": False}},
        "does not say whether its function is deterministic",
    ),
    "filter by chance": (
        ORDER,
        {"filter": {"keep": "rand() < 0.5", "reason": "a sample"}},
        {"filter": {"keep": "rand() < 0.5", "reason": "a sample", "nondeterministic": True}},
        "gives other values each time",
    ),
    "key": (
        ("orders", None),
        {"key": {"type": "String", "expression": "uuid()"}},
        {"key": {"type": "String", "expression": "uuid()", "nondeterministic": True}},
        "gives other values each time",
    ),
    **{
        sql: (ORDER, set_note(sql), set_note(sql, nondeterministic=True), "other values each time") for sql in EACH_TIME
    },
}


@pytest.mark.parametrize(("place", "refused", "explicit", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_file_does_not_say_is_refused_with_the_reason(
    spark: SparkSession, place: tuple[str, str | None], refused: Any, explicit: Any, reason: str
) -> None:
    with pytest.raises(StateError, match=reason):
        plan(spark, make(refused, *place))
    plan(spark, make(explicit, *place))


UNSOUND: dict[str, tuple[tuple[str, str | None], dict[str, Any], dict[str, Any]]] = {
    "unknown name": (ORDER, {"set": {"field": "note", "expression": "upper(nate)"}}, {}),
    "no SQL": (ORDER, {"filter": {"keep": "amount >", "reason": "r"}}, {}),
    "no date": (("ttl-states", "value"), {"ttl": {"shift": "TIMESTAMP '2026-13-01 00:00:00'"}}, {}),
    "text that is no date": (("ttl-states", "value"), {"ttl": {"shift": "'2026-13-01'"}}, {}),
    "constant inside": (ORDER, {"filter": {"keep": "quantity > CAST('many' AS INT)", "reason": "r"}}, {}),
    "default of another type": (ORDER, {"add": {"field": "n", "type": "int", "default": "none"}}, {}),
    "way back": (
        ORDER,
        {"drop": {"field": "note"}},
        {
            "downgrade": [{"add": {"field": "note", "type": "String", "expression": "nobody"}}],
            "loss": [{"field": "note", "reason": "r"}],
        },
    ),
    "key": (("orders", None), {"key": {"type": "Long", "expression": "CAST('one' AS BIGINT)"}}, {}),
}


@pytest.mark.parametrize(("place", "step", "others"), UNSOUND.values(), ids=UNSOUND)
def test_a_mistake_in_sql_is_found_before_anything_is_read_and_names_operator_state_and_step(
    spark: SparkSession, place: tuple[str, str | None], step: Any, others: Any
) -> None:
    snapshot = (types if place[0] == "ttl-states" else orders)().open()
    rename = {"rename_state": "other"} if place[1] and "downgrade" not in others else None
    given: dict[str, Any] = {"upgrade": [rename, step], **others} if rename else others
    content = make(step, place[0], place[1], **given)
    with pytest.raises(StateError) as caught:
        analyse_plans(spark, plan_snapshot(snapshot, [(content, Direction.UPGRADE)]))
    where = caught.value.where
    assert where.operator == place[0]
    assert where.state == ("other" if rename else place[1] or "quantities")
    assert where.path == ("upgrade 2" if rename else "downgrade 1" if others else "upgrade 1")


def test_a_number_is_no_time_of_the_last_access(spark: SparkSession) -> None:
    """2026-01-01 without quotes is 2024 in SQL, which Spark would take for seconds."""
    migration = make({"ttl": {"shift": "2026-01-01"}}, "ttl-states", "value")
    with pytest.raises(StateError, match="2026-01-01 is int, not a time"):
        analyse_plans(spark, plan_snapshot(types().open(), [(migration, Direction.UPGRADE)]))


def test_a_null_key_is_refused_with_examples_and_nothing_is_published(spark: SparkSession, tmp_path: Path) -> None:
    key = {"key": {"type": "String", "expression": "nullif(state_key, 'order-0003')"}}
    with pytest.raises(IncompatibleError) as caught:
        migrate(orders().open(), make(key, "orders", None), str(tmp_path / "target"))
    assert "the key of some entries becomes null: {" in caught.value.what
    assert '"key": "order-0003"' in caught.value.what
    assert (caught.value.where.operator, caught.value.where.path) == ("orders", "upgrade 1")
    assert caught.value.where.state == "quantities"
    assert not (tmp_path / "target").exists()


def test_equal_keys_are_refused_with_ten_rows_of_old_and_new_keys(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError) as caught:
        migrate(orders().open(), make({"key": FIRST}, "orders", None), str(tmp_path / "target"))
    rows = [json.loads(each) for each in caught.value.what.partition(": ")[2].split("; ")]
    assert len(rows) == 10
    assert all(row["new key"] == row["key"][:7] for row in rows)
    assert len({(row["key"], row["map_key"]) for row in rows}) == 10
    assert "several values get the same key" in caught.value.what
    assert not (tmp_path / "target").exists()
