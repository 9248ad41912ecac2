from __future__ import annotations

from collections import Counter
from functools import cache

import pyarrow as pa
import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot.keyed_state import KeyedState
from tests.snapshot.savepoints import ALL_TYPES, VARIANTS, Savepoint, orders, types

MILLISECONDS = pa.timestamp("ms", tz="UTC")
GUEST = load_classes("types.Guest extends types.Person: [visits: int]")


@cache
def find(operator: str, state: str, variant: str = "rocksdb") -> KeyedState:
    found = types("2.2", variant).open(classes=GUEST).operator(operator).state(state)
    assert isinstance(found, KeyedState)
    return found


@cache
def find_order(state: str) -> KeyedState:
    found = orders().open().operator("orders").state(state)
    assert isinstance(found, KeyedState)
    return found


def names(operator: str, state: str, options: TableOptions | None = None) -> list[str]:
    schema = find(operator, state).make_schema(options)
    assert find(operator, state).to_arrow(options).schema == schema
    return list(schema.names)


KEYS = ["key_group", "subtask", "state_key", "state_namespace"]


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        ("value", ["value"]),
        ("sum", ["value"]),
        ("average", ["value"]),
        ("list", ["list_index", "list_value"]),
        ("map", ["map_key", "map_value"]),
    ],
)
def test_columns_follow_the_kind_of_state(state: str, columns: list[str]) -> None:
    assert names("state-kinds", state) == KEYS + columns
    assert names("ttl-states", state) == [*KEYS, *columns, "ttl_last_access"]


def test_timers_have_a_timestamp() -> None:
    table = find("state-kinds", "_timer_state/event_user-timers").to_arrow()
    assert table.schema.names == ["key_group", "subtask", "timestamp", "state_key", "state_namespace"]
    expected = [each["ts"] for each in types().entries() if each["kind"] == "timer" and each["op"] == "state-kinds"]
    processing = find("state-kinds", "_timer_state/processing_user-timers").to_arrow()
    assert Counter(table["timestamp"].to_pylist() + processing["timestamp"].to_pylist()) == Counter(expected)


def test_void_namespaces_are_null_and_windows_a_struct() -> None:
    assert find("state-kinds", "value").schema.field("state_namespace").type == pa.null()
    window = find("tumbling-windows", "window-contents").schema.field("state_namespace").type
    assert {each.name: each.type for each in window} == {"start": pa.int64(), "end": pa.int64()}


def test_composite_keys_are_structs() -> None:
    key = find("state-kinds", "value").schema.field("state_key").type
    assert [each.name for each in key] == ["number", "region"]


def test_the_last_access_is_a_timestamp() -> None:
    table = find("ttl-states", "value").to_arrow()
    assert table.schema.field("ttl_last_access").type == MILLISECONDS
    dumped = dump(types().open(), operator="ttl-states", state="value")
    assert table["ttl_last_access"].cast(pa.int64()).to_pylist() == [line["ttl_ts"] for line in dumped]


def test_lists_may_stay_whole() -> None:
    whole = find("state-kinds", "list").to_arrow(TableOptions(flatten=False))
    assert whole.schema.names == [*KEYS, "value"]
    flat = find("state-kinds", "list").to_arrow()
    indexed = [(row["state_key"], index, each) for row in whole.to_pylist() for index, each in enumerate(row["value"])]
    assert indexed == [(row["state_key"], row["list_index"], row["list_value"]) for row in flat.to_pylist()]


def test_whole_lists_with_ttl_keep_the_last_access_inside() -> None:
    table = find("ttl-states", "list").to_arrow(TableOptions(flatten=False))
    assert table.schema.names == [*KEYS, "value"]
    element = table.schema.field("value").type.value_type
    assert {each.name for each in element} == {"last_access", "value"}


def test_a_field_inside_a_value_can_be_chosen() -> None:
    table = find_order("order").to_arrow(TableOptions(columns=("value.address.zip", "value.amount")))
    address = pa.struct([find_order("order").schema.field("value").type.field("address").type.field("zip")])
    assert table.schema.names == ["value"]
    assert {each.name: each.type for each in table.schema.field("value").type} == {
        "address": address,
        "amount": pa.int64(),
    }
    expected = Counter(
        ((each["value"]["address"] or {}).get("zip"), each["value"]["amount"])
        for each in orders().entries()
        if each.get("state") == "order"
    )
    rows = [row["value"] for row in table.to_pylist()]
    assert Counter(((row["address"] or {}).get("zip"), row["amount"]) for row in rows) == expected


def test_chosen_columns_come_in_the_order_of_the_wish() -> None:
    options = TableOptions(columns=("map_value", "state_key", "key_group"))
    assert find_order("quantities").to_arrow(options).schema.names == ["map_value", "state_key", "key_group"]


def test_keys_alone_can_be_chosen() -> None:
    table = find_order("quantities").to_arrow(TableOptions(columns=("state_key",)))
    whole = find_order("quantities").to_arrow()
    assert table["state_key"] == whole["state_key"]


@pytest.mark.parametrize("column", ["ttl_last_access", "list_index", "list_value"])
def test_one_column_of_a_list_with_ttl_can_be_chosen(column: str) -> None:
    table = find("ttl-states", "list").to_arrow(TableOptions(columns=("state_key", column)))
    whole = find("ttl-states", "list").to_arrow()
    assert table.schema.names == ["state_key", column]
    assert table.to_pylist() == whole.select(["state_key", column]).to_pylist()


@pytest.mark.parametrize("columns", [("ttl_last_access",), ("map_value",), ("ttl_last_access", "map_value")])
def test_columns_of_a_map_with_ttl_can_be_chosen(columns: tuple[str, ...]) -> None:
    table = find("ttl-states", "map").to_arrow(TableOptions(columns=columns))
    assert table.to_pylist() == find("ttl-states", "map").to_arrow().select(columns).to_pylist()


def test_a_column_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="no column price"):
        find_order("order").to_arrow(TableOptions(columns=("price",)))


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="price"):
        find_order("order").to_arrow(TableOptions(columns=("value.price",)))


def test_one_key_can_be_read() -> None:
    table = find_order("quantities").to_arrow(TableOptions(key="order-0064"))
    whole = find_order("quantities").to_arrow()
    expected = [row for row in whole.to_pylist() if row["state_key"] == "order-0064"]
    assert expected
    assert table.to_pylist() == expected


def test_a_composite_key_can_be_read() -> None:
    (first, *_) = find("state-kinds", "map").to_arrow().to_pylist()
    table = find("state-kinds", "map").to_arrow(TableOptions(key=first["state_key"]))
    assert {str(row["state_key"]) for row in table.to_pylist()} == {str(first["state_key"])}


def test_a_key_that_is_not_there_gives_no_rows() -> None:
    assert len(find_order("order").to_arrow(TableOptions(key="order-"))) == 0


def test_a_key_of_another_type_is_an_error() -> None:
    with pytest.raises(UsageError, match="not of the type of the keys, string"):
        find_order("order").to_arrow(TableOptions(key=["order-0064"]))


def test_timers_cannot_be_found_by_key() -> None:
    with pytest.raises(UsageError, match="timers"):
        find_order("_timer_state/event_user-timers").to_arrow(TableOptions(key="order-0064"))


def test_raw_tables_hold_the_stored_bytes() -> None:
    table = find_order("history").to_arrow(TableOptions(raw=True))
    assert table.schema.names == ["key_group", "subtask", "key_bytes", "value_bytes"]
    by_key = dict(zip(table["key_bytes"].to_pylist(), table["value_bytes"].to_pylist(), strict=True))
    # The key is a string (its length plus one, then its characters) and the void namespace; 李雷 ends the value.
    assert by_key[b"\x0border-0198\x00"] == b"\x13PAID article-9, \xce\xce\x01\xf7\xad\x02"


def test_keys_can_stay_beside_as_bytes() -> None:
    table = find_order("order").to_arrow(TableOptions(columns=("state_key", "key_bytes"), key_bytes=True))
    rows = [row for row in table.to_pylist() if row["state_key"].isascii()]
    assert rows
    for row in rows:
        assert row["key_bytes"] == bytes([len(row["state_key"]) + 1]) + row["state_key"].encode() + b"\x00"


def test_the_hash_of_the_key_gives_its_key_group() -> None:
    table = find_order("order").to_arrow(TableOptions(key_hash=True))
    assert table["hashed_key_group"] == table["key_group"]


def test_the_hash_of_a_class_of_the_user_is_not_known() -> None:
    table = find("state-kinds", "value").to_arrow(TableOptions(key_hash=True))
    assert table["hashed_key_group"].null_count == len(table)


def test_only_some_key_groups_are_read() -> None:
    whole = find_order("order").to_arrow()
    part = find_order("order").to_arrow(key_groups=KeyGroupRange(60, 10))
    assert part.to_pylist() == [row for row in whole.to_pylist() if 60 <= row["key_group"] < 70]


def test_a_state_without_layouts_is_a_table_of_bytes_with_the_reason() -> None:
    state = find_order("order")
    table = KeyedTable(None, TableOptions(), "its serializer was lost")
    parts = [(each.subtask, records) for each in state.subtask_states for records in each.records()]
    batches = [table.make_batch(records, subtask) for subtask, records in parts]
    found = pa.Table.from_batches(batches, table.schema)
    assert found.schema.names == ["key_group", "subtask", "key_bytes", "value_bytes", "reason"]
    assert len(found) == 200
    assert set(found["reason"].to_pylist()) == {"its serializer was lost"}
    assert table.undecoded == "its serializer was lost"


def test_the_reason_comes_along_with_chosen_columns() -> None:
    table = KeyedTable(None, TableOptions(columns=("key_group",)), "its serializer was lost")
    assert table.schema.names == ["key_group", "key_bytes", "value_bytes", "reason"]


def test_a_key_cannot_be_found_without_layouts() -> None:
    with pytest.raises(UsageError, match="its serializer was lost"):
        KeyedTable(None, TableOptions(key="a"), "its serializer was lost")


def test_bytes_that_do_not_fit_the_serializer_are_told_with_their_place() -> None:
    state = types("2.2", "heap").open().operator("composite-types").state("person-or-guest")
    with pytest.raises(UnsupportedError) as caught:
        state.to_arrow()
    where = caught.value.where
    assert (where.operator, where.state, where.path) == ("composite-types", "person-or-guest", "value")
    assert where.file is not None
    assert where.offset is not None


@pytest.mark.parametrize("savepoint", ALL_TYPES, ids=str)
def test_tables_have_as_many_rows_as_flink_read(savepoint: Savepoint) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for entry in savepoint.entries():
        if entry["kind"] == "timer":
            expected[entry["op"], f"_timer_state/{entry['domain']}_{entry['service']}"] += 1
        elif entry["kind"] == "keyed":
            expected[entry["op"], entry["state"]] += len(entry["value"]) if entry["type"] == "LIST" else 1
    found: Counter[tuple[str, str]] = Counter()
    for operator in savepoint.open(classes=GUEST).operators:
        for state in operator.states:
            if isinstance(state, KeyedState):
                table = state.to_arrow()
                assert not state.undecoded
                found[operator.label, state.name] += len(table)
    assert +found == +expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["boolean", "byte", "short", "int", "long", "string", "char"])
def test_tables_hold_the_values_that_flink_read(name: str, variant: str) -> None:
    rows = find("basic-types", name, variant).to_arrow().to_pylist()
    expected = [each for each in types("2.2", variant).entries() if each.get("state") == name]
    assert sorted((row["key_group"], row["subtask"], row["state_key"], row["value"]) for row in rows) == sorted(
        (each["kg"], each["subtask"], each["key"], each["value"]) for each in expected
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("operator", ["state-kinds", "ttl-states"])
def test_tables_hold_the_map_entries_that_flink_read(operator: str, variant: str) -> None:
    rows = find(operator, "map", variant).to_arrow().to_pylist()
    expected = [
        (each["kg"], each["ukey"], each["value"])
        for each in types("2.2", variant).entries()
        if (each["op"], each.get("state")) == (operator, "map")
    ]
    assert Counter((row["key_group"], row["map_key"], row["map_value"]) for row in rows) == Counter(expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("operator", ["state-kinds", "ttl-states"])
def test_tables_hold_the_list_elements_that_flink_read(operator: str, variant: str) -> None:
    rows = find(operator, "list", variant).to_arrow().to_pylist()
    expected = [
        (each["kg"], index, value["number"], value["region"])
        for each in types("2.2", variant).entries()
        if (each["op"], each.get("state")) == (operator, "list")
        for index, value in enumerate(each["value"])
    ]
    found = [
        (row["key_group"], row["list_index"], row["list_value"]["number"], row["list_value"]["region"]) for row in rows
    ]
    assert Counter(found) == Counter(expected)
