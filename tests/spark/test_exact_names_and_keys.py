"""Names that differ in their case, keys that no column holds, other user keys, and lists in the order of old keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.errors import MigrationError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate
from state_pipelines.spark.session import case_sensitive

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult

HALF = "a\ud800"
CASES = "Pojo<shop.Item>(ID: Long, id: Long)"


class Texts(KeyedProcessFunction):
    """Keys of text, one of them with half of a surrogate pair."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.item = runtime_context.get_state(ValueStateDescriptor("item", CASES))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update(len(value))
        self.item.update({"ID": 1, "id": 2})


class Numbers(KeyedProcessFunction):
    """Keys of numbers, some of them negative."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.sizes = runtime_context.get_map_state(MapStateDescriptor("sizes", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.add(value)
        self.sizes.put(f"{value}", value)


CHANGES: list[dict[str, Any]] = [
    {
        "operator": "texts",
        "state": "count",
        "upgrade": [{"filter": {"keep": "value > 1", "reason": "short"}}],
    },
    {
        "operator": "texts",
        "state": "item",
        "upgrade": [{"set": {"field": "id", "expression": "id + 10 * ID"}}, {"rename": {"ID": "Id"}}],
    },
    {
        "operator": "numbers",
        "state": "sizes",
        "upgrade": [{"kind": {"to": "MAP", "map_key": {"type": "Long", "expression": "CAST(map_key AS BIGINT)"}}}],
    },
    {"operator": "numbers", "upgrade": [{"key": {"type": "Long", "expression": "state_key % 1"}}]},
]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    texts = KeyedProcessOperator(Texts(), lambda value: value, Types.STRING())
    numbers = KeyedProcessOperator(Numbers(), lambda value: value, Types.LONG())
    for operator, values in ((texts, [HALF, "b", "ccc"]), (numbers, [300, -1, 2, -200])):
        operator.open()
        for value in values:
            operator.process(value)
    path = tmp_path_factory.mktemp("old") / "savepoint"
    write_savepoint(str(path), {"texts": [texts], "numbers": [numbers]})
    return open_snapshot(str(path))


@pytest.fixture(scope="module")
def changed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    changes = [{**each, "downgrade": {"impossible": "not asked"}} for each in CHANGES]
    target = tmp_path_factory.mktemp("new") / "savepoint"
    assert spark.conf.get("spark.sql.caseSensitive") == "false"
    return migrate(old, parse_migration({"revision": "1", "changes": changes}), str(target), spark=spark)


def values(result: MigrationResult, operator: str, state: str) -> dict[Any, Any]:
    entries: list[dict[str, Any]] = list(dump(result.snapshot, operator=operator, state=state))
    return {each.get("ukey", each["key"]): each["value"] for each in entries}


def test_keys_with_half_of_a_surrogate_pair_pass_through(changed: MigrationResult) -> None:
    assert values(changed, "texts", "count") == {HALF: 2, "ccc": 3}
    assert changed.proof is not None
    (check,) = [each for each in changed.proof.checks if each.name == "key_groups_match_key_hash"]
    assert check.ok
    assert "have no known hash" not in check.description


def test_fields_may_differ_in_their_case(spark: SparkSession, changed: MigrationResult) -> None:
    assert values(changed, "texts", "item")["ccc"] == {"@class": "shop.Item", "Id": 1, "id": 12}
    assert spark.conf.get("spark.sql.caseSensitive") == "false"


def test_the_case_of_the_session_is_restored_after_an_error(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="x"), case_sensitive(spark):
        raise ValueError("x")
    assert spark.conf.get("spark.sql.caseSensitive") == "false"


def test_a_map_gets_other_user_keys(changed: MigrationResult) -> None:
    assert values(changed, "numbers", "sizes") == {each: each for each in (300, -1, 2, -200)}


def test_joined_lists_are_in_the_order_of_the_old_keys(changed: MigrationResult) -> None:
    assert values(changed, "numbers", "seen") == {0: [-200, -1, 2, 300]}


def test_new_keys_are_counted_without_spark(changed: MigrationResult) -> None:
    assert changed.proof is not None
    (check,) = [each for each in changed.proof.checks if each.name == "equal_keys_united"]
    assert check.ok
    assert "sizes: 4 keys of 4 different ones" in check.observed
    assert "seen: 1 keys of 1 different ones" in check.observed


def test_text_that_is_no_single_expression_is_refused(spark: SparkSession, old: Snapshot, tmp_path: Path) -> None:
    content = {
        "revision": "1",
        "operator": "texts",
        "state": "item",
        "upgrade": [{"set": {"field": "id", "expression": "id, ID"}}],
        "downgrade": {"impossible": "not asked"},
    }
    with pytest.raises(MigrationError, match="'id, ID' is not an expression") as caught:
        migrate(old, parse_migration(content), str(tmp_path / "up"), spark=spark)
    assert caught.value.where.path == "upgrade 1"
