from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.keyed.hashing import parse_hash_expression
from state_pipelines.keyed.key_groups import assign_key_group, assign_key_groups
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of, pojo, ttl
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.keyed.key_group_lines import read_recorded

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer

STRING, LONG, INT = basic("String"), basic("Long"), basic("Int")

Records = list[tuple[int, bytes, bytes]]
Rows = dict[str, list[object]]


def make_encoder(state_type: str, value: Serializer, key: Serializer = STRING, most: int = 128) -> RecordEncoder:
    info = keyed_state("prices", state_type, value, VOID_NAMESPACE)
    return RecordEncoder(derive_keyed_layout(info, key, most, LayoutContext()), "prices")


def encode(encoder: RecordEncoder, *tables: Rows) -> Records:
    found: Records = []
    for rows in encoder.encode(pa.RecordBatch.from_pydict(table) for table in tables):
        for index, key_group in enumerate(rows.key_groups.tolist()):
            key = rows.keys.data[rows.keys.starts[index] : rows.keys.stops[index]].tobytes()
            value = rows.values.data[rows.values.starts[index] : rows.values.stops[index]].tobytes()
            found.append((key_group, key, value))
    return found


def test_the_hash_of_the_key_gives_the_key_group() -> None:
    records = encode(make_encoder("VALUE", LONG), {"state_key": ["order-0198", "order-0064"], "value": [1, 2]})
    # Where Flink put these keys in the savepoints of the orders example.
    assert [key_group for key_group, _, _ in records] == [0, 1]


def test_a_key_is_followed_by_the_void_namespace() -> None:
    assert encode(make_encoder("VALUE", INT), {"key_group": [33], "state_key": ["ab"], "value": [1]}) == [
        (33, b"\x03ab\x00", b"\x00\x00\x00\x01")
    ]


def test_stored_keys_are_taken_as_they_are() -> None:
    rows: Rows = {"key_group": [7], "key_bytes": [b"\x03ab\x00"], "value": [1]}
    assert encode(make_encoder("VALUE", INT), rows) == [(7, b"\x03ab\x00", b"\x00\x00\x00\x01")]


def test_map_keys_follow_the_namespace_and_map_values_say_whether_they_are_null() -> None:
    rows: Rows = {
        "key_group": [81, 81],
        "state_key": ["a", "a"],
        "map_key": [1, 2],
        "map_value": [5, None],
    }
    assert encode(make_encoder("MAP", map_of(INT, INT)), rows) == [
        (81, b"\x02a\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x05"),
        (81, b"\x02a\x00\x00\x00\x00\x02", b"\x01"),
    ]


def test_list_elements_are_joined_by_commas() -> None:
    rows: Rows = {
        "key_group": [81, 81, 22],
        "state_key": ["a", "a", "b"],
        "list_index": [0, 1, 0],
        "list_value": ["x", "y", "z"],
    }
    assert encode(make_encoder("LIST", list_of(STRING)), rows) == [
        (81, b"\x02a\x00", b"\x02x,\x02y"),
        (22, b"\x02b\x00", b"\x02z"),
    ]


def test_lists_may_come_whole() -> None:
    rows: Rows = {"key_group": [81], "state_key": ["a"], "value": [["x", "y"]]}
    assert encode(make_encoder("LIST", list_of(STRING)), rows) == [(81, b"\x02a\x00", b"\x02x,\x02y")]


def test_a_list_may_go_on_in_the_next_batch() -> None:
    first: Rows = {
        "key_group": [81, 22],
        "state_key": ["a", "b"],
        "list_index": [0, 0],
        "list_value": [1, 2],
    }
    second: Rows = {
        "key_group": [22, 62],
        "state_key": ["b", "c"],
        "list_index": [1, 0],
        "list_value": [3, 4],
    }
    assert encode(make_encoder("LIST", list_of(INT)), first, second) == [
        (81, b"\x02a\x00", b"\x00\x00\x00\x01"),
        (22, b"\x02b\x00", b"\x00\x00\x00\x02,\x00\x00\x00\x03"),
        (62, b"\x02c\x00", b"\x00\x00\x00\x04"),
    ]


@pytest.mark.parametrize("index", [[1, 2], [0, 2], [0, 1, 1], [1, 0]])
def test_elements_that_are_not_in_order_are_refused(index: list[object]) -> None:
    rows: Rows = {"state_key": ["a"] * len(index), "list_index": index, "list_value": [1] * len(index)}
    with pytest.raises(UsageError, match="one after the other"):
        encode(make_encoder("LIST", list_of(INT)), rows)


def test_elements_of_another_key_do_not_go_on_a_list() -> None:
    rows: Rows = {"state_key": ["a", "b"], "list_index": [0, 1], "list_value": [1, 2]}
    with pytest.raises(UsageError, match="one after the other"):
        encode(make_encoder("LIST", list_of(INT)), rows)


@pytest.mark.parametrize("column", ["list_index", "list_value"])
def test_a_missing_column_of_a_list_is_told(column: str) -> None:
    rows: Rows = {"state_key": ["a"], "list_index": [0], "list_value": [1]}
    del rows[column]
    with pytest.raises(UsageError, match=f"state prices have no column {column}"):
        encode(make_encoder("LIST", list_of(INT)), rows)


def test_a_list_index_of_null_is_told() -> None:
    with pytest.raises(UsageError, match="list_index"):
        encode(make_encoder("LIST", list_of(INT)), {"state_key": ["a"], "list_index": [None], "list_value": [1]})


def test_the_last_access_stands_before_the_value() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([81]), pa.array(["a"]), pa.array([1]), pa.array([1_000]).cast(pa.timestamp("ms", tz="UTC"))],
        names=["key_group", "state_key", "value", "ttl_last_access"],
    )
    (rows,) = make_encoder("VALUE", ttl(INT)).encode([batch])
    assert rows.values.data.tobytes() == (1_000).to_bytes(8, "big") + (1).to_bytes(4, "big")


@pytest.mark.parametrize("column", ["state_key", "value"])
def test_a_missing_column_is_told(column: str) -> None:
    rows: Rows = {"key_group": [81], "state_key": ["a"], "value": [1]}
    del rows[column]
    with pytest.raises(UsageError, match=f"state prices have no column {column}"):
        encode(make_encoder("VALUE", INT), rows)


@pytest.mark.parametrize("key_group", [-1, 128])
def test_a_key_group_that_does_not_exist_is_told(key_group: int) -> None:
    with pytest.raises(UsageError, match="outside 0 to 127"):
        encode(make_encoder("VALUE", INT), {"key_group": [key_group], "key_bytes": [b"\x02a\x00"], "value": [1]})


def test_a_key_group_of_null_is_told() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"key_group": pa.array([None, 1], pa.int32()), "state_key": ["a", "b"], "value": [1, 2]}
    )
    with pytest.raises(UsageError, match="key_group is null in some rows"):
        list(make_encoder("VALUE", INT).encode([batch]))


def test_a_key_in_a_key_group_that_its_hash_does_not_give_is_refused() -> None:
    with pytest.raises(UsageError, match="'a' belongs to key group 81, the row says 99"):
        encode(make_encoder("VALUE", INT), {"key_group": [99], "state_key": ["a"], "value": [1]})


def test_a_key_whose_hash_is_not_known_is_written_as_told() -> None:
    # Keys of user classes have hashes that nobody knows here, so the column is trusted.
    encoder = make_encoder("VALUE", INT, key=pojo("shop.Key", {"id": INT}))
    assert encode(encoder, {"key_group": [99], "state_key": [{"id": 1}], "value": [1]})[0][0] == 99


def test_a_null_key_is_refused_although_its_serializer_could_write_it() -> None:
    with pytest.raises(ValueRangeError, match="row 1 for state prices has no key"):
        encode(make_encoder("VALUE", LONG), {"state_key": ["a", None], "value": [1, 2]})


def test_null_has_no_place_in_a_primitive() -> None:
    with pytest.raises(ValueRangeError):
        encode(make_encoder("VALUE", INT), {"key_group": [81, 22], "state_key": ["a", "b"], "value": [1, None]})


def test_a_number_that_is_too_large_is_told() -> None:
    with pytest.raises(ValueRangeError):
        encode(make_encoder("VALUE", INT), {"key_group": [81], "state_key": ["a"], "value": [1 << 40]})


def test_fields_are_found_by_name() -> None:
    point = pojo("shop.Point", {"x": INT, "y": INT})
    rows: Rows = {"key_group": [81], "state_key": ["a"], "value": [{"y": 2, "x": 1}]}
    ((_, _, value),) = encode(make_encoder("VALUE", point), rows)
    assert value == bytes.fromhex("02 00 00000001 00 00000002")


def test_no_rows_give_no_records() -> None:
    batch = pa.RecordBatch.from_pydict({"state_key": pa.array([], pa.string()), "value": pa.array([], pa.int32())})
    assert list(make_encoder("VALUE", INT).encode([batch])) == []


@pytest.mark.slow
def test_rows_of_sql_hash_by_their_bytes() -> None:
    key = read_recorded().keys["RowData"]
    columns = plan_columns(derive_layout(key.serializer, LayoutContext()))
    records = key.records
    array = columns.decode(records.data, records.key_starts, records.key_ends, exact=False).array
    encoder = make_encoder("VALUE", INT, key=key.serializer)
    batch = pa.RecordBatch.from_arrays([array, pa.array([1] * len(array))], ["state_key", "value"])
    (rows,) = encoder.encode([batch])
    assert rows.key_groups.tolist() == assign_key_groups(key.codes, 128).tolist()


def test_a_given_hash_of_a_class_is_used_and_checked() -> None:
    encoder = make_encoder("VALUE", INT, key=pojo("shop.Key", {"id": INT}))
    encoder = replace(encoder, hashes=(("shop.Key", parse_hash_expression("objects(id)")),))
    expected = assign_key_group(31 + 1, 128)
    assert encode(encoder, {"state_key": [{"id": 1}], "value": [1]})[0][0] == expected
    with pytest.raises(UsageError, match=f"belongs to key group {expected}, the row says 99"):
        encode(encoder, {"key_group": [99], "state_key": [{"id": 1}], "value": [1]})
