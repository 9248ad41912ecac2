"""Hashes and key groups of recorded keys: what the JVM and Flink gave (`tests/data/key_groups`)."""

from __future__ import annotations

import pickle
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.keyed.hashing import hash_codes, parse_hash_expression
from state_pipelines.keyed.hashing.class_hashes import NUMBER_HASHES
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import (
    assign_key_group,
    assign_key_groups,
    compute_default_max_parallelism,
    compute_key_group_range,
)
from state_pipelines.serializers.build import avro, basic, enum, generic_array, pojo, tuple_of
from state_pipelines.serializers.tree import BasicKind
from tests.keyed.key_group_lines import GENERIC, Recorded, TypedKeys, expressions_of, make_records, read_recorded

STRING, INT, LONG = (basic(kind) for kind in ("String", "Int", "Long"))
PLACE = pojo("com.acme.Place", {"region": STRING, "number": INT})
NO_GROUPS = np.zeros(1, np.int32)


@cache
def recorded() -> Recorded:
    return read_recorded()


TYPES = sorted(recorded().keys)


def hash_recorded(name: str, keys: TypedKeys) -> np.ndarray:
    if name == "Scala Float":
        return NUMBER_HASHES[BasicKind.FLOAT](pa.array(_floats(keys)))
    hasher = make_key_hasher(keys.serializer, LayoutContext(), expressions_of(name, keys.serializer))
    return hasher.hash_keys(keys.records)


def _floats(keys: TypedKeys) -> np.ndarray:
    raw = np.lib.stride_tricks.sliding_window_view(keys.records.data, 4)[keys.records.key_starts]
    return raw.copy().view(">f4").astype("f4")[:, 0]


@pytest.mark.parametrize("name", TYPES)
def test_keys_hash_as_in_java(name: str) -> None:
    keys = recorded().keys[name]
    np.testing.assert_array_equal(hash_recorded(name, keys), keys.codes)


@pytest.mark.parametrize("name", TYPES)
def test_keys_lie_in_the_key_groups_of_flink(name: str) -> None:
    keys = recorded().keys[name]
    codes = hash_recorded(name, keys)
    groups = [assign_key_group(code, limit) for code, limit in zip(codes.tolist(), keys.limits.tolist(), strict=True)]
    assert groups == keys.records.key_groups.tolist()
    for limit in (1, 7, 128, 32768):
        chosen = keys.limits == limit
        np.testing.assert_array_equal(assign_key_groups(codes[chosen], limit), keys.records.key_groups[chosen])


def test_subtasks_have_the_key_groups_of_flink() -> None:
    for parallelism, limit, subtask, start, end in recorded().ranges:
        found = compute_key_group_range(subtask, parallelism, limit)
        assert (found.start, found.end) == (start, end)


def test_the_default_max_parallelism_is_that_of_flink() -> None:
    for parallelism, expected in recorded().defaults:
        assert compute_default_max_parallelism(parallelism) == expected


def test_there_are_thousands_of_keys_of_every_type() -> None:
    assert sum(len(keys.codes) for keys in recorded().keys.values()) > 20_000
    assert len(TYPES) > 60


@pytest.mark.parametrize("name", ["String", "Long", "RowData", "Tuple2", "RecordKey"])
def test_a_hasher_goes_to_other_processes(name: str) -> None:
    keys = recorded().keys[name]
    hasher = make_key_hasher(keys.serializer, LayoutContext(), expressions_of(name, keys.serializer))
    again = pickle.loads(pickle.dumps(hasher))
    assert again == hasher
    np.testing.assert_array_equal(again.hash_keys(keys.records), keys.codes)


@pytest.mark.parametrize("name", ["RowData", "RowData nested"])
def test_rows_of_sql_hash_from_arrow_as_from_their_bytes(name: str) -> None:
    keys = recorded().keys[name]
    columns = plan_columns(derive_layout(keys.serializer, LayoutContext()))
    array = columns.decode(keys.records.data, keys.records.key_starts, keys.records.key_ends, exact=False).array
    assert hash_codes(keys.serializer, array).tolist() == keys.codes.tolist()
    assert hash_codes(keys.serializer, pa.concat_arrays([pa.nulls(1, array.type), array]))[0] == 0


def test_the_timestamp_of_a_timer_is_skipped() -> None:
    records = make_records([bytes(8) + b"\x02a"], NO_GROUPS)
    assert make_key_hasher(STRING, LayoutContext()).hash_keys(records, skip=8).tolist() == [97]


def test_key_groups_come_from_the_hash() -> None:
    records = make_records([b"\x02a"], NO_GROUPS)
    assert make_key_hasher(STRING, LayoutContext()).assign_keys(records, 128).tolist() == [81]


@pytest.mark.parametrize(
    ("serializer", "raw"),
    [(STRING, b"\x05ab"), (LONG, bytes(6)), (INT, bytes(2))],
    ids=["String", "Long", "Int"],
)
def test_keys_that_end_early_are_told(serializer: object, raw: bytes) -> None:
    records = make_records([raw], NO_GROUPS)
    with pytest.raises(FormatError, match=r"bytes of a key are not those.*keys, offset 0"):
        make_key_hasher(serializer, LayoutContext()).hash_keys(records)  # type: ignore[arg-type]


def test_a_row_that_is_longer_than_its_key_is_told() -> None:
    records = make_records([b"\0\0\0\x10" + bytes(8)], NO_GROUPS)
    with pytest.raises(FormatError, match="bytes of a key"):
        make_key_hasher(recorded().keys["RowData"].serializer, LayoutContext()).hash_keys(records)


def test_a_class_without_a_hash_is_refused_and_named() -> None:
    with pytest.raises(UnsupportedError, match=r"hashCode of com\.acme\.Place .*objects\(a, b\)"):
        make_key_hasher(tuple_of(PLACE, INT), LayoutContext())


def test_a_hash_of_fields_that_are_not_there_is_refused() -> None:
    hashes = {"com.acme.Place": parse_hash_expression("objects(zip)")}
    with pytest.raises(UsageError, match=r"has no field zip.* Its fields are number, region"):
        make_key_hasher(PLACE, LayoutContext(), hashes)


def test_a_hash_of_a_class_that_is_not_in_the_key_is_refused() -> None:
    hashes = {"com.acme.Other": parse_hash_expression("objects(zip)")}
    with pytest.raises(UsageError, match=r"no part of the key.*com\.acme\.Place"):
        make_key_hasher(PLACE, LayoutContext(), hashes)


@pytest.mark.parametrize(
    "serializer",
    [enum("com.acme.Color", "RED"), basic("LongPrimitiveArray"), generic_array("java.lang.Long", LONG)],
    ids=["enum", "long[]", "Long[]"],
)
def test_types_that_cannot_be_keys_are_refused_with_the_reason(serializer: object) -> None:
    with pytest.raises(UsageError, match="differs from one JVM to the next"):
        make_key_hasher(serializer, LayoutContext())  # type: ignore[arg-type]


def test_an_enum_in_a_class_counts_by_its_name_only() -> None:
    key = pojo("com.acme.Key", {"color": enum("com.acme.Color", "RED", "BLUE")})
    with pytest.raises(UsageError, match="an enum constant cannot be a key"):
        make_key_hasher(key, LayoutContext(), {"com.acme.Key": parse_hash_expression("objects(color)")})
    hasher = make_key_hasher(key, LayoutContext(), {"com.acme.Key": parse_hash_expression("ordinal(color)")})
    assert hasher.hash_values(pa.array([{"color": "BLUE"}])).tolist() == [1]


def test_flat_avro_records_without_text_need_no_hash() -> None:
    schema = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"},{"name":"y","type":["null","long"]}]}'
    records = make_records([b"\0\0\0\x05\0\0\0\x01" + bytes(7) + b"\x07"], NO_GROUPS)
    hasher = make_key_hasher(avro(GENERIC, schema), LayoutContext())
    assert hasher.hash_keys(records).tolist() == [(31 + 5) * 31 + 7]


def test_avro_records_with_text_depend_on_the_release() -> None:
    schema = '{"type":"record","name":"A","fields":[{"name":"x","type":"string"}]}'
    with pytest.raises(UnsupportedError, match=GENERIC):
        make_key_hasher(avro(GENERIC, schema), LayoutContext())


def test_objects_of_subclasses_are_refused() -> None:
    base = pojo("com.acme.Base", {"x": INT}, registered={"com.acme.Sub": pojo("com.acme.Sub", {"x": INT})})
    hasher = make_key_hasher(base, LayoutContext(), {"com.acme.Base": parse_hash_expression("objects(x)")})
    own, other = b"\x02\0\0\0\0\x05", b"\x08\0\x02\0\0\0\0\x05"
    assert hasher.hash_keys(make_records([own], NO_GROUPS)).tolist() == [31 + 5]
    with pytest.raises(UnsupportedError, match=r"include an object of com\.acme\.Sub"):
        hasher.hash_keys(make_records([other], NO_GROUPS))
