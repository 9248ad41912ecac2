"""The search for `hashCode` on recorded keys of classes that hash as each tool writes it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UsageError
from state_pipelines.keyed.hashing import hash_codes, parse_hash_expression
from state_pipelines.keyed.hashing.candidates import list_orders
from state_pipelines.keyed.hashing.hash_search import HashFinding, count_needed_keys, find_class_hashes
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.serializers.build import basic, enum, list_of, pojo
from state_pipelines.serializers.tree import Tuple
from tests.keyed.key_group_lines import EXPRESSIONS, TypedKeys, expressions_of, make_records, read_recorded

FOUND = {
    **{name.partition("$")[2]: text for name, text in EXPRESSIONS.items()},
    # What cannot be distinguished on the keys goes by the more frequent name.
    "KotlinKey": "record(region, number, flag, id)",
    "LombokBoxedKey": "lombok(flag, boxed(sure), region, array(parts))",
    "SumKey": "hash(number) + hash(region)",
    "XorKey": "(hash(id) ^ hash(number)) ^ hash(region)",
}
ONE_CLASS = sorted(set(FOUND) - {"OuterKey", "OddKey"})


PLACE = pojo("com.acme.Place", {"region": basic("String"), "number": basic("Int")})


@cache
def keys_of(name: str) -> TypedKeys:
    return read_recorded().keys[name]


def search(name: str, count: int | None = None, limit: int = 128) -> HashFinding:
    keys = keys_of(name)
    records = replace(keys.records, key_groups=assign_key_groups(keys.codes, limit)).cut(0, count or len(keys.codes))
    return find_class_hashes(keys.serializer, LayoutContext(), [records], limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_CLASS)
def test_the_hash_of_a_class_is_found(name: str) -> None:
    finding = search(name)
    assert finding.proven, finding.explain()
    assert {name: str(each) for name, each in finding.expressions.items()} == {f"keygroups.Keys${name}": FOUND[name]}
    assert finding.matched == finding.keys > 350


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ObjectsKey", "LombokKey", "OuterKey", "Tuple2 of ObjectsKey", "Avro deep"])
def test_what_is_found_hashes_all_keys(name: str) -> None:
    keys, finding = keys_of(name), search(name)
    hasher = make_key_hasher(keys.serializer, LayoutContext(), finding.expressions)
    np.testing.assert_array_equal(hasher.hash_keys(keys.records), keys.codes)


@pytest.mark.slow
def test_a_class_inside_a_class_is_found_with_it() -> None:
    finding = search("OuterKey")
    assert {each.class_name.partition("$")[2]: str(each.expression) for each in finding.classes} == {
        "OuterKey": FOUND["OuterKey"],
        "RecordKey": FOUND["RecordKey"],
    }


def test_a_class_inside_a_class_whose_hash_is_given_is_found() -> None:
    keys = keys_of("OuterKey")
    known = {name: each for name, each in expressions_of("", keys.serializer).items() if name.endswith("OuterKey")}
    records = replace(keys.records, key_groups=assign_key_groups(keys.codes, 128))
    finding = find_class_hashes(keys.serializer, LayoutContext(), [records], 128, known=known)
    assert [str(each.expression) for each in finding.classes] == [FOUND["RecordKey"]]


def test_a_class_with_fewer_fields_than_the_one_around_it_is_found() -> None:
    fields = {"a": basic("Int"), "b": basic("Long"), "place": PLACE}
    serializer = pojo("com.acme.Outer", fields)
    columns = plan_columns(derive_layout(serializer, LayoutContext()))
    places = [{"region": f"r{row}", "number": row * 7} for row in range(100)]
    array = pa.array([{"a": row % 9, "b": row, "place": place} for row, place in enumerate(places)], columns.type)
    known = {
        "com.acme.Place": parse_hash_expression("autovalue(region, number)"),
        "com.acme.Outer": parse_hash_expression("objects(b, place, a)"),
    }
    encoded = columns.encode(array)
    raw = [encoded.data[a:b].tobytes() for a, b in zip(encoded.starts, encoded.stops, strict=True)]
    records = make_records(raw, assign_key_groups(hash_codes(serializer, array, expressions=known), 128))
    assert find_class_hashes(serializer, LayoutContext(), [records], 128).expressions == known


@pytest.mark.parametrize("release", ["2.12", "2.13"])
def test_the_release_of_scala_is_found_for_a_case_class(release: str) -> None:
    keys = keys_of(f"Scala {release} Tuple4")
    assert isinstance(keys.serializer, Tuple)
    # The hash takes the simple name only.
    serializer = replace(keys.serializer, tuple_class="com.acme.Tuple4")
    records = replace(keys.records, key_groups=assign_key_groups(keys.codes, 128))
    finding = find_class_hashes(serializer, LayoutContext(), [records], 128)
    expected = f"scala{release.replace('.', '')}(f0, f1, f2, f3)"
    assert {name: str(each) for name, each in finding.expressions.items()} == {"com.acme.Tuple4": expected}


def test_a_class_in_lists_is_found() -> None:
    serializer = list_of(PLACE)
    columns = plan_columns(derive_layout(serializer, LayoutContext()))
    rows = [[{"region": f"r{row}", "number": row + place} for place in range(row % 3)] for row in range(60)]
    array = pa.array(rows, columns.type)
    known = {"com.acme.Place": parse_hash_expression("lombok(number, region)")}
    encoded = columns.encode(array)
    raw = [encoded.data[a:b].tobytes() for a, b in zip(encoded.starts, encoded.stops, strict=True)]
    records = make_records(raw, assign_key_groups(hash_codes(serializer, array, expressions=known), 128))
    finding = find_class_hashes(serializer, LayoutContext(), [records], 128)
    assert finding.expressions == known


@pytest.mark.parametrize(
    ("name", "form"), [("Avro flat", "avro()"), ("Avro deep", "avro()"), ("Avro deep classic", "avro_classic()")]
)
def test_the_release_of_avro_is_found(name: str, form: str) -> None:
    assert [str(each.expression) for each in search(name).classes] == [form]


@pytest.mark.slow
def test_few_key_groups_take_more_keys() -> None:
    assert search("ObjectsKey", limit=2).proven
    assert not search("ObjectsKey", 30, limit=2).proven
    assert search("ObjectsKey", 30, limit=1024).proven


def test_too_few_keys_prove_nothing_and_the_need_is_told() -> None:
    finding = search("ObjectsKey", 5)
    assert not finding.proven
    assert finding.expressions == {}
    needed = count_needed_keys(finding.candidates, 128)
    assert f"5 distinct keys prove nothing among {finding.candidates} candidates, {needed} would be needed" in (
        finding.explain()
    )
    assert search("ObjectsKey", 4 * needed).proven


def test_one_key_many_times_proves_nothing() -> None:
    keys = keys_of("ObjectsKey")
    records = replace(keys.records, key_groups=assign_key_groups(keys.codes, 128))
    finding = find_class_hashes(keys.serializer, LayoutContext(), [records.select(np.zeros(500, np.int64))], 128)
    assert finding.keys == 1
    assert not finding.proven


def test_objects_with_few_distinct_codes_prove_nothing_however_many_keys() -> None:
    array = pa.array([{"region": "ab"[row % 2], "number": row} for row in range(500)])
    codes = hash_codes(PLACE, array, expressions={"com.acme.Place": parse_hash_expression("hash(region)")})
    raw = [b"\x02\0" + row.to_bytes(4, "big") + b"\0\x02" + b"ab"[row % 2 : row % 2 + 1] for row in range(500)]
    records = make_records(raw, assign_key_groups(codes, 128))
    finding = find_class_hashes(PLACE, LayoutContext(), [records], 128)
    assert not finding.proven
    assert "2 distinct codes only" in finding.explain() or "ambiguous" in finding.explain()


def test_one_key_group_proves_nothing() -> None:
    finding = search("ObjectsKey", limit=1)
    assert not finding.proven
    assert "with one key group nothing can be proven" in finding.explain()


@pytest.mark.slow
def test_a_hash_that_no_tool_writes_is_not_found() -> None:
    finding = search("OddKey")
    assert not finding.proven
    assert finding.expressions == {}
    assert f"none of {finding.candidates} candidates gives all key groups" in finding.explain()


@pytest.mark.slow
def test_what_nearly_fits_is_told() -> None:
    keys = keys_of("ObjectsKey")
    key_groups = assign_key_groups(keys.codes, 128)
    key_groups[::50] = (key_groups[::50] + 1) % 128
    finding = find_class_hashes(keys.serializer, LayoutContext(), [replace(keys.records, key_groups=key_groups)], 128)
    assert not finding.proven
    text, share = finding.near[0]
    assert text == "objects(region, number)"
    assert 0.95 < share < 1


def test_a_given_hash_is_checked() -> None:
    keys = keys_of("OddKey")
    records = replace(keys.records, key_groups=assign_key_groups(keys.codes, 128))
    known = expressions_of("", keys.serializer)
    assert find_class_hashes(keys.serializer, LayoutContext(), [records], 128, known=known).proven
    wrong = {name: parse_hash_expression("objects(region)") for name in known}
    finding = find_class_hashes(keys.serializer, LayoutContext(), [records], 128, known=wrong)
    assert not finding.proven
    assert "keys lie in the key group that the hash gives" in finding.explain()


@pytest.mark.parametrize("name", ["String", "RowData", "Tuple5", "Either", "Scala 2.12 Tuple4"])
def test_a_known_hash_is_checked_against_the_keys(name: str) -> None:
    finding = search(name)
    assert finding.proven
    assert finding.classes == ()
    assert "is known; it gives the key groups of all" in finding.explain()


def test_a_key_in_two_key_groups_is_an_error() -> None:
    records = make_records([b"\x02a", b"\x02a"], np.array([1, 2], np.int32))
    with pytest.raises(FormatError, match="the key 0261 lies in two key groups"):
        find_class_hashes(basic("String"), LayoutContext(), [records], 128)


def test_an_enum_that_is_a_key_is_refused() -> None:
    records = make_records([b"\0\0\0\0"], np.zeros(1, np.int32))
    with pytest.raises(UsageError, match="an enum constant cannot be a key"):
        find_class_hashes(enum("com.acme.Color", "RED"), LayoutContext(), [records], 128)


def test_no_keys_prove_nothing() -> None:
    finding = find_class_hashes(keys_of("ObjectsKey").serializer, LayoutContext(), [], 128)
    assert "there are no keys" in finding.explain()


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "count"), [(1, 1), (2, 4), (3, 15), (7, 13_699), (8, 109_600)])
def test_all_orders_of_all_subsets_are_listed(fields: int, count: int) -> None:
    orders = list_orders(fields)
    assert len(orders) == count
    assert orders.complete
    rows = {tuple(row[:size]) for row, size in zip(orders.fields.tolist(), orders.sizes.tolist(), strict=True)}
    assert len(rows) == count


@pytest.mark.slow
@pytest.mark.parametrize("fields", [9, 14, 30])
def test_of_many_fields_some_orders_are_left_out_and_that_is_told(fields: int) -> None:
    orders = list_orders(fields)
    assert not orders.complete
    rows = {tuple(row[:size]) for row, size in zip(orders.fields.tolist(), orders.sizes.tolist(), strict=True)}
    assert tuple(range(fields)) in rows
    assert tuple(reversed(range(fields))) in rows
