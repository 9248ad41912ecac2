"""Every kind of step, on a savepoint that Flink wrote, as Flink itself reads it back.

One savepoint of Flink 1.20 with an operator for each kind of step is migrated once; a job with the new classes and
states is restored from it, once for each version and backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.flink.harness import Entry

pytestmark = [pytest.mark.flink, pytest.mark.spark]

OLD = "1.20.5"
RESTORES = (
    ("2.3.0", "hashmap", 2),
    ("2.3.0", "rocksdb", 3),
    ("2.2.1", "hashmap", 2),
    ("2.2.1", "rocksdb", 3),
    ("1.20.5", "hashmap", 3),
)
UIDS = ("classes", "collections", "fields", "filters", "keys", "kinds", "kryo", "numbers", "rows", "states", "ttl")
ADDRESS = "Pojo<steps.Address>(city: String, zip: Int)"
ITEM = "Pojo<steps.Item>(name: String, price: Long, weight: Double)"
CLASSES = """
steps.Totals: [credit: Long, debit: Long, rate: Double]
steps.Item: [name: String, price: long, weight: Double]
steps.Ticket: [title: String, priority: int, parent: Long, cost: BigDecimal, labels: ArrayList<String>]
steps.Premium extends steps.Account: [discount: int, manager: String]
steps.Spot extends steps.Place: [angle: long]
"""


def job(main: str, side: str) -> jobs.Job:
    folders = (f"tests/flink/java/steps/{each}" for each in ("job", side))
    # Collections of POJOs go through Kryo in 1.20.
    settings = {"pipeline.generic-types": "true"}
    orders = ("examples/orders/java/v1", "examples/orders/java/job")
    return jobs.Job(main, (*folders, *orders), settings=settings)


def change(operator: str, state: str | None, *upgrade: Any) -> dict[str, Any]:
    subject = {} if state is None else {"state": state}
    return {
        "operator": operator,
        **subject,
        "upgrade": list(upgrade),
        "downgrade": {"impossible": "Flink's view of it is not what is tested"},
    }


FIELDS = (
    {"rename": {"owner": "holder", "discount": "rebate", "home.zip": "postcode"}},
    {"cast": {"field": "level", "to": "long"}},
    {"cast": {"field": "rebate", "to": "double"}},
    {"cast": {"field": "home.postcode", "to": "String"}},
    {"set": {"field": "visits", "expression": "visits + 1"}},
    {"add": {"field": "currency", "type": "String", "expression": "concat('EUR ', level)"}},
    {"drop": {"field": "note"}},
)
RENAMED_CLASSES = {"rename_class": {"steps.Place": "steps.Site", "steps.Spot": "steps.Corner"}}
TICKET = "Pojo<steps.Ticket>(cost: BigDec, labels: StringArray, parent: Long, priority: Int, title: String)"
ENABLED = {"ttl": {"enable": "TIMESTAMP '2026-01-01 00:00:00'"}}
DISABLED = {"ttl": {"disable": "they are kept for ever"}}
EVEN = "CAST(split_part(value, ' ', 2) AS INT) % 2 = 0"
TO_MAP = {
    "kind": {
        "to": "MAP",
        "map_key": {"type": "String", "expression": "city"},
        "value": {"type": "Int", "expression": "zip"},
    }
}
TOTALS = "Pojo<steps.Totals>(credit: Long, debit: Long, rate: Double)"

CHANGES = (
    change(
        "collections",
        "basket",
        {
            "collections": {
                "tags": "String",
                "items": ITEM,
                "counts": "String, Long",
                "places": f"Int, {ITEM}",
                "marks": "Set<Int>",
            }
        },
    ),
    change("kryo", "ticket", {"convert": {"to": TICKET}}),
    change("kryo", "tickets", {"convert": {"to": TICKET}}),
    change(
        "keys",
        None,
        {
            "key": {
                "type": "Tuple2<String, Long>",
                "expression": "named_struct('f0', split_part(state_key, '/', 1), "
                "'f1', CAST(split_part(state_key, '/', 2) AS BIGINT) % 5)",
                "on_equal": {"level": "max(value)", "amounts": "sum(value)"},
            }
        },
    ),
    change("fields", "account", *FIELDS),
    change("fields", "accounts", *FIELDS),
    change("classes", "place", RENAMED_CLASSES),
    change("classes", "places", RENAMED_CLASSES),
    change("ttl", "given", ENABLED),
    change("ttl", "given-list", ENABLED),
    change("ttl", "given-map", ENABLED),
    change("ttl", "taken", DISABLED),
    change("ttl", "taken-list", DISABLED),
    change("ttl", "taken-map", DISABLED),
    change("ttl", "expired", {"ttl": {"enable": f"IF({EVEN}, TIMESTAMP '2001-01-01', TIMESTAMP '2100-01-01')"}}),
    change("ttl", "shifted", {"ttl": {"shift": f"ttl_last_access - IF({EVEN}, INTERVAL 2 DAYS, INTERVAL 1 HOUR)"}}),
    change("filters", "value", {"filter": {"keep": "value % 2 = 0", "reason": "odd"}}),
    change("filters", "list", {"filter": {"keep": "list_index <> 1 AND value < 20", "reason": "second or large"}}),
    change("filters", "map", {"filter": {"keep": "map_key <> 'odd' OR value > 20", "reason": "odd and small"}}),
    change("kinds", "value-list", {"kind": {"to": "LIST"}}),
    change("kinds", "list-value", {"kind": {"to": "VALUE", "expression": "values[0] + values[1]"}}),
    change("kinds", "value-map", TO_MAP),
    change(
        "kinds",
        "map-value",
        {"kind": {"to": "VALUE", "expression": "aggregate(entries, 0L, (sum, each) -> sum + each.value)"}},
    ),
    change(
        "kinds",
        "map-list",
        {
            "kind": {
                "to": "LIST",
                "type": "Tuple2<String, Long>",
                "expression": "named_struct('f0', map_key, 'f1', value)",
            }
        },
    ),
    change("kinds", "list-map", TO_MAP),
    change(
        "states",
        "shipment",
        {
            "split": {
                "into": {
                    "label": {"fields": ["code", "customer", "to"], "class": "steps.Label"},
                    "weight": {"type": "Long", "expression": "weight"},
                }
            }
        },
    ),
    change(
        "states",
        "credit",
        {
            "merge": {
                "with": ["debit"],
                "into": "totals",
                "type": TOTALS,
                "expression": "named_struct('credit', credit, 'debit', debit, 'rate', credit / debit)",
            }
        },
    ),
    change("states", "old-name", {"rename_state": "new-name"}),
    change("states", "gone", {"drop_state": {"reason": "nobody reads it"}}),
    change(
        "rows",
        "row",
        {"cast": {"field": "f1", "to": "Long"}},
        {"rename": {"f2.city": "town"}},
        {"set": {"field": "f2.town", "expression": "concat(f2.town, ' ', f1)"}},
        {"rename": {"f2.town": "city"}},
        {"add": {"field": "f3", "type": "String", "expression": "concat(f0, '!')"}},
    ),
    change("rows", "tuple", {"drop": {"field": "f1"}}, {"reorder": ["f1", "f0"]}),
)


@dataclass(frozen=True)
class Restored:
    """What Flink saw before the migration and sees after it."""

    version: str
    before: list[Entry]
    after: list[Entry]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    if reason := harness.missing_jdk():
        pytest.skip(reason)
    return harness.make_snapshot(OLD, job("steps.OldJob", "before"), tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def migrated(spark: SparkSession, old: tuple[Path, list[Entry]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from state_pipelines.spark import migrate

    snapshot = open_snapshot(str(old[0]), uids=UIDS, classes=load_classes(CLASSES))
    target = tmp_path_factory.mktemp("new") / "migrated"
    migrate(snapshot, parse_migration({"revision": "1", "changes": list(CHANGES)}), str(target))
    return target


@pytest.fixture(scope="module")
def migrated_for_1(spark: SparkSession, migrated: Path) -> Path:
    """Without the collections, whose serializers Flink 1.x cannot even read."""
    from state_pipelines.spark import migrate

    content = {"revision": "2", "changes": [change("collections", "basket", {"drop_state": {"reason": "needs 2.x"}})]}
    target = migrated.with_name("migrated-for-1")
    migrate(open_snapshot(str(migrated), uids=UIDS), parse_migration(content), str(target))
    return target


@pytest.fixture(scope="module", params=RESTORES, ids=lambda each: "-".join(map(str, each)))
def restored(request: pytest.FixtureRequest, old: tuple[Path, list[Entry]]) -> Restored:
    version, backend, parallelism = request.param
    migrated: Path = request.getfixturevalue("migrated_for_1" if version.startswith("1.") else "migrated")
    new_job = job("steps.NewJob", "after")
    result = harness.restore(version, migrated, new_job, backend=backend, parallelism=parallelism)
    assert result.ok, result.error
    return Restored(version, old[1], result.entries)


def select(entries: list[Entry], operator: str, *states: str) -> list[Entry]:
    return [each for each in entries if each["op"] == operator and each.get("state") in states]


def assert_same(expected: list[Entry], actual: list[Entry]) -> None:
    assert expected
    assert actual
    difference = harness.diff_entries(expected, actual)
    assert not difference, str(difference)


def assert_values(restored: Restored, operator: str, state: str, function: Callable[[Any], Any]) -> None:
    """The state has the same keys as before, and of each value what the function makes."""
    before = [{**each, "value": function(each["value"])} for each in select(restored.before, operator, state)]
    assert_same(before, select(restored.after, operator, state))


def same(value: Any) -> Any:
    return value


def test_collections_come_out_of_kryo(restored: Restored) -> None:
    if restored.version.startswith("1."):
        pytest.skip("Flink 1.x has no serializers for collections of POJOs: the job does not read the state")
    assert_values(restored, "collections", "basket", same)


@pytest.mark.parametrize("state", ["ticket", "tickets"])
def test_kryo_becomes_a_pojo(restored: Restored, state: str) -> None:
    assert_values(restored, "kryo", state, same)


def new_key(key: str) -> dict[str, Any]:
    customer, _, number = key.partition("/")
    return {"@tuple": [customer, int(number) % 5]}


def by_new_key(entries: list[Entry], *others: str) -> dict[str, list[Any]]:
    """Values that get the same key, in the order of their old keys."""
    found: dict[str, list[Any]] = {}
    for each in sorted(entries, key=lambda each: each["key"]):
        found.setdefault(str([new_key(each["key"]), *(each[name] for name in others)]), []).append(each["value"])
    return found


def by_key(entries: list[Entry], *others: str) -> dict[str, Any]:
    found = {str([each[name] for name in ("key", *others)]): each["value"] for each in entries}
    assert len(found) == len(entries)
    return found


def test_the_largest_value_of_equal_keys_stays(restored: Restored) -> None:
    before = by_new_key(select(restored.before, "keys", "level"))
    after = by_key(select(restored.after, "keys", "level"))
    assert after == {key: max(values) for key, values in before.items()}
    assert len(after) == 5


def test_map_values_of_equal_keys_are_added(restored: Restored) -> None:
    before = by_new_key(select(restored.before, "keys", "amounts"), "ukey")
    after = by_key(select(restored.after, "keys", "amounts"), "ukey")
    assert after == {key: sum(values) for key, values in before.items()}
    assert max(map(len, before.values())) > 1


def test_lists_of_equal_keys_are_joined_in_the_order_of_the_keys(restored: Restored) -> None:
    before = by_new_key(select(restored.before, "keys", "visits"))
    after = by_key(select(restored.after, "keys", "visits"))
    assert after == {key: [each for value in values for each in value] for key, values in before.items()}
    assert max(map(len, after.values())) > 1


def test_timers_follow_their_keys(restored: Restored) -> None:
    def timers(entries: list[Entry]) -> list[tuple[str, str, int]]:
        return sorted((each["domain"], str(each["key"]), each["ts"]) for each in entries if each["kind"] == "timer")

    before = [{**each, "key": new_key(each["key"])} for each in restored.before if each["kind"] == "timer"]
    assert timers(restored.after) == sorted(set(timers(before)))
    assert len(timers(restored.after)) < len(before)


def new_account(account: dict[str, Any]) -> dict[str, Any]:
    changed = {name: value for name, value in account.items() if name not in ("owner", "note", "discount")}
    changed |= {"holder": account["owner"], "currency": f"EUR {account['level']}"}
    changed["visits"] = None if account["visits"] is None else account["visits"] + 1
    if account["@class"] == "steps.Premium":
        changed["rebate"] = float(account["discount"])
    if home := account["home"]:
        changed["home"] = {"@class": home["@class"], "city": home["city"], "postcode": str(home["zip"])}
    return changed


@pytest.mark.parametrize("state", ["account", "accounts"])
def test_fields_of_a_pojo_and_of_its_subclass_change(restored: Restored, state: str) -> None:
    values = [each["value"] for each in select(restored.before, "fields", state)]
    assert {each["@class"] for each in values} == {"steps.Account", "steps.Premium"}
    assert_values(restored, "fields", state, new_account)


def new_place(place: dict[str, Any]) -> dict[str, Any]:
    names = {"steps.Place": "steps.Site", "steps.Spot": "steps.Corner"}
    return {**place, "@class": names[place["@class"]]}


def test_a_class_gets_another_name_with_its_subclass(restored: Restored) -> None:
    assert_values(restored, "classes", "place", new_place)


def test_elements_get_another_class_name(restored: Restored) -> None:
    assert_values(restored, "classes", "places", lambda places: [new_place(each) for each in places])


@pytest.mark.parametrize("state", ["taken", "taken-list", "taken-map"])
def test_ttl_is_taken_away(restored: Restored, state: str) -> None:
    assert_values(restored, "ttl", state, same)


@pytest.mark.parametrize("state", ["given", "given-list", "given-map"])
def test_ttl_is_given(restored: Restored, state: str) -> None:
    assert_values(restored, "ttl", state, same)


@pytest.mark.parametrize("state", ["expired", "shifted"])
def test_values_whose_time_is_over_are_gone_and_no_others(restored: Restored, state: str) -> None:
    before = select(restored.before, "ttl", state)
    left = [each for each in before if int(each["value"].split()[1]) % 2]
    assert 0 < len(left) < len(before)
    assert_same(left, select(restored.after, "ttl", state))


def test_values_are_left_out(restored: Restored) -> None:
    before = [each for each in select(restored.before, "filters", "value") if each["value"] % 2 == 0]
    assert_same(before, select(restored.after, "filters", "value"))


def test_elements_are_left_out(restored: Restored) -> None:
    before = [
        {**each, "value": kept}
        for each in select(restored.before, "filters", "list")
        if (kept := [value for index, value in enumerate(each["value"]) if index != 1 and value < 20])
    ]
    assert_same(before, select(restored.after, "filters", "list"))


def test_entries_of_maps_are_left_out(restored: Restored) -> None:
    before = select(restored.before, "filters", "map")
    kept = [each for each in before if each["ukey"] != "odd" or each["value"] > 20]
    assert_same(kept, select(restored.after, "filters", "map"))


def test_a_value_becomes_a_list(restored: Restored) -> None:
    before = select(restored.before, "kinds", "value-list")
    expected = [{**each, "type": "LIST", "value": [each["value"]]} for each in before]
    assert_same(expected, select(restored.after, "kinds", "value-list"))


def test_a_list_becomes_a_value(restored: Restored) -> None:
    before = select(restored.before, "kinds", "list-value")
    expected = [{**each, "type": "VALUE", "value": sum(each["value"])} for each in before]
    assert_same(expected, select(restored.after, "kinds", "list-value"))


def test_a_value_becomes_a_map(restored: Restored) -> None:
    before = select(restored.before, "kinds", "value-map")
    expected = [
        {**each, "type": "MAP", "ukey": each["value"]["city"], "value": each["value"]["zip"]} for each in before
    ]
    assert_same(expected, select(restored.after, "kinds", "value-map"))


def test_a_list_becomes_a_map(restored: Restored) -> None:
    expected = [
        {**each, "type": "MAP", "ukey": place["city"], "value": place["zip"]}
        for each in select(restored.before, "kinds", "list-map")
        for place in each["value"]
    ]
    assert_same(expected, select(restored.after, "kinds", "list-map"))


def maps(entries: list[Entry]) -> list[tuple[Entry, dict[str, Any]]]:
    """Of each key the entry without the map, and its map."""
    found: dict[str, tuple[Entry, dict[str, Any]]] = {}
    for each in entries:
        plain = {name: value for name, value in each.items() if name not in ("ukey", "value")}
        found.setdefault(each["key"], (plain, {}))[1][each["ukey"]] = each["value"]
    return list(found.values())


def test_a_map_becomes_a_value(restored: Restored) -> None:
    before = maps(select(restored.before, "kinds", "map-value"))
    expected = [{**each, "type": "VALUE", "value": sum(found.values())} for each, found in before]
    assert_same(expected, select(restored.after, "kinds", "map-value"))


def test_a_map_becomes_a_list_in_the_order_of_its_keys(restored: Restored) -> None:
    before = maps(select(restored.before, "kinds", "map-list"))
    expected = [
        {**each, "type": "LIST", "value": [{"@tuple": list(pair)} for pair in sorted(found.items())]}
        for each, found in before
    ]
    assert_same(expected, select(restored.after, "kinds", "map-list"))


def test_a_state_is_split(restored: Restored) -> None:
    before = select(restored.before, "states", "shipment")
    labels = [
        {**each, "state": "label", "value": {"@class": "steps.Label"} | {name: each["value"][name] for name in kept}}
        for each in before
        for kept in [("code", "customer", "to")]
    ]
    weights = [{**each, "state": "weight", "value": each["value"]["weight"]} for each in before]
    assert_same(labels, select(restored.after, "states", "label"))
    assert_same(weights, select(restored.after, "states", "weight"))


def test_states_are_merged(restored: Restored) -> None:
    found: dict[str, Entry] = {}
    for each in select(restored.before, "states", "credit", "debit"):
        empty = {"@class": "steps.Totals", "credit": None, "debit": None, "rate": None}
        entry = found.setdefault(each["key"], {**each, "state": "totals", "value": empty})
        entry["value"][each["state"]] = each["value"]
    for entry in found.values():
        value = entry["value"]
        if value["credit"] is not None and value["debit"] is not None:
            value["rate"] = value["credit"] / value["debit"]
    assert len(found) < count_keys(restored)
    assert_same(list(found.values()), select(restored.after, "states", "totals"))


def count_keys(restored: Restored) -> int:
    """How many keys there are."""
    return len(select(restored.before, "states", "shipment"))


def test_a_state_gets_another_name(restored: Restored) -> None:
    before = [{**each, "state": "new-name"} for each in select(restored.before, "states", "old-name")]
    assert_same(before, select(restored.after, "states", "new-name"))


def test_no_other_states_are_left(restored: Restored) -> None:
    assert select(restored.before, "states", "gone")
    left = {each["state"] for each in restored.after if each["op"] == "states"}
    assert left == {"label", "weight", "totals", "new-name"}


def test_rows_change(restored: Restored) -> None:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        text, number, address = row["@row"]
        if address is not None:
            # The expression names the field as it is called in between; null makes null of the whole.
            city = None if number is None else f"{address['city']} {number}"
            address = {**address, "city": city}
        return {**row, "@row": [text, number, address, f"{text}!"]}

    assert_values(restored, "rows", "row", changed)


def test_tuples_change(restored: Restored) -> None:
    assert_values(restored, "rows", "tuple", lambda value: {"@tuple": [value["@tuple"][2], value["@tuple"][0]]})
