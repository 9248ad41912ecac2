"""Keys that Spark takes for equal and Flink does not, and the order of keys in chains of revisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ValueRangeError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import NewOperator, NewState, bootstrap, migrate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration import Migration

pytestmark = pytest.mark.spark

ZEROS = "0.0D, 1), (-0.0D, 2), (1.5D, 3), (DOUBLE('NaN'), 4"


def write(spark: SparkSession, path: Path, *states: tuple[str, str, str], max_parallelism: int = 128) -> Snapshot:
    """A savepoint with one operator; of each state its name, its SQL and its kind."""
    new = [NewState(name, spark.sql(sql), kind) for name, sql, kind in states]
    bootstrap(str(path), [NewOperator("a", new, parallelism=1, max_parallelism=max_parallelism)], spark=spark)
    return open_snapshot(str(path), uids=["a"])


def make_migration(step: dict[str, Any], state: str | None = None, revision: str = "1") -> Migration:
    named = {} if state is None else {"state": state}
    content = {"revision": revision, "operator": "a", **named, "upgrade": [step], "downgrade": {"impossible": "x"}}
    return parse_migration(content)


def change_key(type: str, expression: str, **on_equal: str) -> dict[str, Any]:
    return {"key": {"type": type, "expression": expression, **({"on_equal": on_equal} if on_equal else {})}}


def show(snapshot: Snapshot, state: str, *fields: str) -> list[tuple[str, ...]]:
    """Fields of the entries of a state as texts, in which -0.0 differs from 0.0."""
    return sorted(tuple(repr(entry[field]) for field in fields) for entry in dump(snapshot, state=state))


@pytest.mark.parametrize("rule", ["first", "max(value)"])
def test_user_keys_of_both_zeros_stay_when_keys_change(spark: SparkSession, tmp_path: Path, rule: str) -> None:
    values = f"SELECT 'a' state_key, * FROM VALUES ({ZEROS}) t(map_key, map_value)"
    old = write(spark, tmp_path / "old", ("m", values, "MAP"))
    step = make_migration(change_key("String", "concat('x', state_key)", m=rule))
    new = migrate(old, step, str(tmp_path / "new")).snapshot
    assert show(new, "m", "ukey", "value") == show(old, "m", "ukey", "value")
    assert ("-0.0", "2") in show(new, "m", "ukey", "value")


@pytest.mark.parametrize("rule", ["last", "error"])
def test_keys_of_both_zeros_stay_two_keys(spark: SparkSession, tmp_path: Path, rule: str) -> None:
    values = f"SELECT * FROM VALUES ({ZEROS}) t(state_key, value)"
    old = write(spark, tmp_path / "old", ("v", values, "VALUE"))
    new = migrate(old, make_migration(change_key("Double", "state_key * -1", v=rule)), str(tmp_path / "new")).snapshot
    expected = {"0.0": "-0.0", "-0.0": "0.0", "1.5": "-1.5"}
    assert show(new, "v", "key", "value") == sorted(
        (expected.get(key, key), value) for key, value in show(old, "v", "key", "value")
    )


def test_keys_of_both_zeros_in_rows_stay_two_keys(spark: SparkSession, tmp_path: Path) -> None:
    old = write(spark, tmp_path / "old", ("v", f"SELECT * FROM VALUES ({ZEROS}) t(state_key, value)", "VALUE"))
    step = make_migration(change_key("Tuple2<String, Double>", "named_struct('f0', 'b', 'f1', state_key)", v="first"))
    new = migrate(old, step, str(tmp_path / "new")).snapshot
    assert [value for (value,) in show(new, "v", "value")] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["VALUE", "LIST"])
def test_maps_under_both_zeros_become_other_state_of_two_keys(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    values = "SELECT * FROM VALUES (0.0D, 'x', 1), (-0.0D, 'y', 2), (-0.0D, 'z', 3) t(state_key, map_key, map_value)"
    old = write(spark, tmp_path / "old", ("m", values, "MAP"), max_parallelism=1)
    step: dict[str, Any] = {"to": kind, "type": "Integer"}
    step |= {"expression": "size(entries)"} if kind == "VALUE" else {"expression": "value", "discard": ["map_key"]}
    new = migrate(old, make_migration({"kind": step}, "m"), str(tmp_path / "new")).snapshot
    expected = {"VALUE": [("-0.0", "2"), ("0.0", "1")], "LIST": [("-0.0", "[2, 3]"), ("0.0", "[1]")]}
    assert show(new, "m", "key", "value") == expected[kind]


def test_all_states_of_a_key_go_to_the_same_zero(spark: SparkSession, tmp_path: Path) -> None:
    old = write(
        spark,
        tmp_path / "old",
        ("v", "SELECT 1.5D state_key, 7 value", "VALUE"),
        ("l", "SELECT 1.5D state_key, array(1, 2) value", "LIST"),
    )
    step = make_migration(change_key("Double", "state_key * -0.0D", v="first"))
    new = migrate(old, step, str(tmp_path / "new")).snapshot
    assert show(new, "v", "key", "kg") == show(new, "l", "key", "kg")
    assert [key for (key,) in show(new, "v", "key")] == ["-0.0"]


def test_a_chain_orders_keys_as_its_revisions_do_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of which the text and the bytes have different orders."""
    rows = "SELECT k state_key, {} value FROM VALUES (9L), (10L), (200L), (1000L) t(k)"
    states = ("v", rows.format("concat('v', k)"), "VALUE"), ("l", rows.format("array(concat('v', k))"), "LIST")
    old = write(spark, tmp_path / "old", *states)
    first = make_migration(change_key("Long", "state_key + 1"))
    second = make_migration(change_key("String", "'all'", v="last"), revision="2")
    chain = [(each, Direction.UPGRADE) for each in (first, second)]
    at_once = migrate(old, chain, str(tmp_path / "at once")).snapshot
    between = migrate(old, first, str(tmp_path / "between")).snapshot
    one_by_one = migrate(between, second, str(tmp_path / "one by one")).snapshot
    for snapshot in (at_once, one_by_one):
        assert show(snapshot, "v", "value") == [("'v1000'",)]
        assert show(snapshot, "l", "value") == [("['v9', 'v10', 'v200', 'v1000']",)]


@pytest.mark.parametrize("type", ["Instant", "LocalDateTime", "Pojo<a.B>(x: Int)", "Row(f0: Int)", "List<Instant>"])
def test_columns_that_are_no_structs_do_not_fit_types_that_are(spark: SparkSession, tmp_path: Path, type: str) -> None:
    value = "array(1)" if type.startswith("List") else "1"
    new = NewState("v", spark.sql(f"SELECT 'a' state_key, {value} value"), type=type)
    with pytest.raises(ValueRangeError, match=r"does not fit .*state v, at value"):
        bootstrap(str(tmp_path / "new"), [NewOperator("a", [new], parallelism=1)], spark=spark)


def test_null_in_fields_of_values_that_are_carried_over_stays(spark: SparkSession, tmp_path: Path) -> None:
    rows = "SELECT 'a' state_key, array(named_struct('city', 'c', 'zip', CAST(NULL AS INT))) value"
    new = NewState("v", spark.sql(rows), type="List<Pojo<shop.Home>(city: String, zip: Int)>")
    bootstrap(str(tmp_path / "old"), [NewOperator("a", [new], parallelism=1)], spark=spark)
    old = open_snapshot(str(tmp_path / "old"), uids=["a"])
    result = migrate(old, make_migration({"kind": {"to": "LIST"}}, "v"), str(tmp_path / "new")).snapshot
    (value,) = show(result, "v", "value")
    assert "'zip': None" in value[0]
