"""Every kind of step on real savepoints; several states in one run, since a run takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from state_pipelines.errors import MigrationError, ProofError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, Migration, parse_migration
from state_pipelines.spark import MigrationResult, migrate
from tests.snapshot.savepoints import orders, types

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

IMPOSSIBLE = {"impossible": "it is not needed"}


def change(
    operator: str, state: str | None, upgrade: list[Any], downgrade: Any = None, **entries: Any
) -> dict[str, Any]:
    content = {"operator": operator, "upgrade": upgrade, "downgrade": downgrade or IMPOSSIBLE, **entries}
    return content if state is None else {**content, "state": state}


def make(*changes: dict[str, Any], revision: str = "1") -> Migration:
    return parse_migration({"revision": revision, "changes": list(changes)})


def entries(snapshot: Snapshot, operator: str, state: str) -> list[dict[str, Any]]:
    return list(dump(snapshot, operator=operator, state=state))


def pairs(
    before: Snapshot, after: Snapshot, operator: str, state: str, name: str | None = None
) -> list[tuple[Any, Any]]:
    """Values of the same key before and after."""
    olds = {str(each["key"]): each["value"] for each in entries(before, operator, state)}
    news = {str(each["key"]): each["value"] for each in entries(after, operator, name or state)}
    assert olds.keys() == news.keys()
    return [(olds[key], news[key]) for key in olds]


def check(result: MigrationResult, name: str) -> Any:
    assert result.proof is not None
    return next(each for each in result.proof.checks if each.name == name)


@pytest.fixture(scope="module")
def old() -> Snapshot:
    return types().open()


@pytest.fixture(scope="module")
def changed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    tuples = "named_struct('f0', map_key, 'f1', value)"
    migration = make(
        change(
            "composite-types",
            "tuple",
            [{"rename": {"f2.region": "area"}}, {"drop": {"field": "f1"}}],
            [
                {"rename": {"f1.area": "region"}},
                {"add": {"field": "f2", "type": "Long", "default": None}},
                {"reorder": ["f0", "f2", "f1"]},
            ],
            loss=[{"field": "f1", "reason": "it was never read"}],
        ),
        change(
            "composite-types",
            "row",
            [
                {"cast": {"field": "f1", "to": "Long"}},
                {"set": {"field": "f1", "expression": "f1 + 1"}},
                {"rename_state": "row2"},
            ],
            [
                {"rename_state": "row"},
                {"set": {"field": "f1", "expression": "f1 - 1"}},
                {"cast": {"field": "f1", "to": "Int"}},
            ],
        ),
        change(
            "composite-types",
            "person-or-guest",
            [{"rename": {"age": "years"}}, {"rename_class": {"types.Guest": "types.Visitor"}}],
            [{"rename_class": {"types.Visitor": "types.Guest"}}, {"rename": {"years": "age"}}],
        ),
        change("state-kinds", "list", [{"rename_class": {"types": "kinds"}}], [{"rename_class": {"kinds": "types"}}]),
        change(
            "ttl-states",
            "value",
            [{"ttl": {"disable": "the key says when"}}],
            [{"ttl": {"enable": "TIMESTAMP '2024-01-01 00:00:00'"}}],
        ),
        change(
            "ttl-states",
            "list",
            [
                {"filter": {"keep": "list_index > 0", "reason": "the first is a placeholder"}},
                {"ttl": {"shift": "ttl_last_access + INTERVAL 1 DAY"}},
            ],
            [{"ttl": {"shift": "ttl_last_access - INTERVAL 1 DAY"}}],
        ),
        change(
            "state-kinds",
            "value",
            [{"kind": {"to": "LIST"}}],
            [{"kind": {"to": "VALUE", "expression": "values[0]"}}],
            expect=[{"type": "expect_column_values_to_not_be_null", "column": "list_value"}],
        ),
        change(
            "state-kinds",
            "map",
            [{"kind": {"to": "LIST", "type": "Tuple2<Long, String>", "expression": tuples}}],
            [
                {
                    "kind": {
                        "to": "MAP",
                        "map_key": {"type": "Long", "expression": "f0"},
                        "value": {"type": "String", "expression": "f1"},
                    }
                }
            ],
        ),
    )
    return migrate(old, migration, str(tmp_path_factory.mktemp("steps") / "up"))


def test_the_whole_run_is_proven(changed: MigrationResult) -> None:
    assert changed.proof is not None
    assert changed.proof.ok
    assert {each.operator for each in changed.proofs} == {"composite-types", "ttl-states", "state-kinds"}
    assert "own_expectations" in [each.name for each in changed.proof.checks]


def test_tuples_lose_fields_and_their_structs_change(old: Snapshot, changed: MigrationResult) -> None:
    for before, after in pairs(old, changed.snapshot, "composite-types", "tuple"):
        first, _, place = before["@tuple"]
        renamed = {"area" if name == "region" else name: value for name, value in place.items()}
        assert after["@tuple"] == [first, renamed]


def test_rows_change_under_another_name(old: Snapshot, changed: MigrationResult) -> None:
    for before, after in pairs(old, changed.snapshot, "composite-types", "row", "row2"):
        one, two = before["@row"][1], after["@row"][1]
        assert two == (None if one is None else one + 1)
        assert (before["@kind"], before["@row"][2:]) == (after["@kind"], after["@row"][2:])


def test_subclasses_of_a_pojo_change_with_it(old: Snapshot, changed: MigrationResult) -> None:
    found = pairs(old, changed.snapshot, "composite-types", "person-or-guest")
    classes = {before["@class"]: after["@class"] for before, after in found if before}
    assert classes == {"types.Person": "types.Person", "types.Guest": "types.Visitor"}
    assert all(before["age"] == after["years"] for before, after in found if before)


def test_a_class_name_needs_no_new_records(old: Snapshot, changed: MigrationResult) -> None:
    assert "list" not in changed.plans["state-kinds"].changed
    for before, after in pairs(old, changed.snapshot, "state-kinds", "list"):
        assert str(after) == str(before).replace("types.", "kinds.")


def test_ttl_goes(old: Snapshot, changed: MigrationResult) -> None:
    assert all(before == after for before, after in pairs(old, changed.snapshot, "ttl-states", "value"))
    assert not any("ttl_ts" in each for each in entries(changed.snapshot, "ttl-states", "value"))


def test_the_elements_that_stay_close_up(old: Snapshot, changed: MigrationResult) -> None:
    before = {each["key"]: each for each in entries(old, "ttl-states", "list")}
    after = {each["key"]: each for each in entries(changed.snapshot, "ttl-states", "list")}
    long = {key: each for key, each in before.items() if len(each["value"]) > 1}
    assert long
    assert after.keys() == long.keys()
    day = 24 * 60 * 60 * 1000
    for key, each in after.items():
        assert each["value"] == before[key]["value"][1:]
        assert each["ttl_ts"] == [time + day for time in before[key]["ttl_ts"][1:]]


def test_a_value_becomes_a_list(old: Snapshot, changed: MigrationResult) -> None:
    assert all(after == [before] for before, after in pairs(old, changed.snapshot, "state-kinds", "value"))


def test_a_map_becomes_a_list_in_the_order_of_its_keys(old: Snapshot, changed: MigrationResult) -> None:
    maps: dict[str, list[Any]] = {}
    for each in entries(old, "state-kinds", "map"):
        maps.setdefault(str(each["key"]), []).append([each["ukey"], each["value"]])
    lists = {str(each["key"]): each["value"] for each in entries(changed.snapshot, "state-kinds", "map")}
    assert lists == {key: [{"@tuple": pair} for pair in sorted(found)] for key, found in maps.items()}


ORDER_FIELDS = ("address", "customer", "id", "note", "status", "updatedAt")


@pytest.fixture(scope="module")
def split(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    snapshot = orders().open()
    order = snapshot.operator("orders").state("order").serializer
    from state_pipelines.serializers.text import describe

    kept = {name: f"`order`.{name}" for name in ORDER_FIELDS} | {"amount": "sums.f0", "quantity": "sums.f1"}
    whole = f"named_struct({', '.join(f'{name!r}, {sql}' for name, sql in kept.items())})"
    sums = {"type": "Tuple2<Long, Int>", "expression": "named_struct('f0', amount, 'f1', quantity)"}
    into = {"order": {"fields": list(ORDER_FIELDS), "class": "com.acme.Head"}, "sums": sums}
    migration = make(
        change(
            "orders",
            "order",
            [{"split": {"into": into}}],
            [{"merge": {"with": ["sums"], "into": "order", "type": describe(order), "expression": whole}}],
        ),
        change("orders", "quantities", [{"python": {"function": double, "deterministic": True}}]),
    )
    return migrate(snapshot, migration, str(tmp_path_factory.mktemp("split") / "up"))


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("map_value")
    return batch.set_column(index, "map_value", pc.multiply(batch.column(index), 2))


def test_a_state_splits_and_comes_back(split: MigrationResult) -> None:
    assert check(split, "round_trip").ok
    assert "order: records of order" in check(split, "round_trip").observed
    before = {each["key"]: each["value"] for each in entries(orders().open(), "orders", "order")}
    sums = {each["key"]: each["value"] for each in entries(split.snapshot, "orders", "sums")}
    assert sums == {key: {"@tuple": [value["amount"], value["quantity"]]} for key, value in before.items()}


def test_a_function_of_the_user_changes_values(split: MigrationResult) -> None:
    before = {(each["key"], each["ukey"]): each["value"] for each in entries(orders().open(), "orders", "quantities")}
    after = {(each["key"], each["ukey"]): each["value"] for each in entries(split.snapshot, "orders", "quantities")}
    assert after == {key: value * 2 for key, value in before.items()}


@pytest.fixture(scope="module")
def rekeyed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    key = {
        "type": "Tuple2<String, Long>",
        "expression": "named_struct('f0', left(state_key, 7), 'f1', length(state_key))",
        "on_equal": {"order": "last", "last-seen": "max(value)", "quantities": "sum(value)"},
    }
    migration = make(change("orders", None, [{"key": key}]))
    return migrate(orders().open(), migration, str(tmp_path_factory.mktemp("key") / "up"))


def new_key(key: str) -> str:
    return str({"@tuple": [key[:7], len(key)]})


def test_keys_lie_where_their_hash_puts_them(rekeyed: MigrationResult) -> None:
    assert check(rekeyed, "key_groups_match_key_hash").ok
    assert rekeyed.proof is not None
    assert rekeyed.proof.ok


def test_values_of_equal_keys_follow_their_rule(rekeyed: MigrationResult) -> None:
    sums: dict[tuple[str, str], int] = {}
    for each in entries(orders().open(), "orders", "quantities"):
        place = (new_key(each["key"]), each["ukey"])
        sums[place] = sums.get(place, 0) + each["value"]
    after = {
        (str(each["key"]), each["ukey"]): each["value"] for each in entries(rekeyed.snapshot, "orders", "quantities")
    }
    assert after == sums


def test_lists_of_equal_keys_are_one_list(rekeyed: MigrationResult) -> None:
    counts: dict[str, int] = {}
    for each in entries(orders().open(), "orders", "history"):
        counts[new_key(each["key"])] = counts.get(new_key(each["key"]), 0) + len(each["value"])
    after = {str(each["key"]): len(each["value"]) for each in entries(rekeyed.snapshot, "orders", "history")}
    assert after == counts


def test_timers_follow_their_keys(rekeyed: MigrationResult) -> None:
    def timers(snapshot: Snapshot) -> set[tuple[Any, str, Any]]:
        found = [each for each in dump(snapshot, operator="orders") if each["kind"] == "timer"]
        return {(each["domain"], str(each["key"]), each["ts"]) for each in found}

    wanted = {(domain, new_key(key), time) for domain, key, time in timers(orders().open())}
    assert timers(rekeyed.snapshot) == wanted


@pytest.mark.parametrize("sql", ["rand()", "unix_timestamp(current_timestamp())", "uuid()"])
def test_expressions_that_change_each_time_are_refused(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    step = {"set": {"field": "note", "expression": f"CAST({sql} AS STRING)"}}
    with pytest.raises(MigrationError, match="gives other values each time"):
        migrate(orders().open(), make(change("orders", "order", [step])), str(tmp_path / "up"))
    assert not (tmp_path / "up").exists()


def test_expressions_that_change_each_time_may_be_allowed(spark: SparkSession, tmp_path: Path) -> None:
    step = {"set": {"field": "note", "expression": "uuid()", "nondeterministic": True}}
    result = migrate(orders().open(), make(change("orders", "order", [step])), str(tmp_path / "up"))
    assert check(result, "written_reads_back").ok


def test_an_expectation_that_does_not_hold_fails_the_proof(spark: SparkSession, tmp_path: Path) -> None:
    wanted = [{"type": "expect_column_values_to_be_between", "column": "value.amount", "min_value": 0}]
    migration = make(change("orders", "order", [{"drop": {"field": "note"}}], expect=wanted))
    with pytest.raises(ProofError, match="own_expectations"):
        migrate(orders().open(), migration, str(tmp_path / "up"))
    assert not (tmp_path / "up").exists()


def test_a_chain_of_revisions_is_one_run(spark: SparkSession, tmp_path: Path) -> None:
    first = make(change("orders", "order", [{"drop": {"field": "note"}}]), revision="1")
    second = make(
        change(
            "orders",
            "order",
            [
                {"rename_state": "sales"},
                {
                    "convert": {
                        "to": "Long",
                        "expression": "amount",
                        "discard": ["address", "customer", "id", "quantity", "status", "updatedAt"],
                    }
                },
            ],
        ),
        revision="2",
    )
    chain = [(first, Direction.UPGRADE), (second, Direction.UPGRADE)]
    result = migrate(orders().open(), chain, str(tmp_path / "up"), prove=False)
    before = {each["key"]: each["value"]["amount"] for each in entries(orders().open(), "orders", "order")}
    assert {each["key"]: each["value"] for each in entries(result.snapshot, "orders", "sales")} == before
