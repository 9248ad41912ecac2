"""Rows, arrays and maps of the table runtime in the kernels, against the scalar codec."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.codecs.programs import (
    arrow_type,
    compile_layout,
    decode_sequence,
    decode_spans,
    encode_array,
)
from state_pipelines.codecs.scalar import write_value
from state_pipelines.errors import FormatError, StateError, UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import LogicalType
from tests.codecs.guarded import guarded
from tests.codecs.sql_strategies import (
    can_be_key,
    draw_row,
    draw_sql,
    row_serializers,
    row_to_arrow,
    sql_to_arrow,
    sql_types,
)
from tests.codecs.test_binaryrow import OVERLAPPING

random_cases = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
BIGINT, VARCHAR = LogicalType(root="BIGINT"), LogicalType(root="VARCHAR", length=10)
TIMESTAMP_9 = LogicalType(root="TIMESTAMP_WITHOUT_TIME_ZONE", length=9)


def rows_of(*types: LogicalType) -> lay.Dynamic:
    return lay.Dynamic(tree.RowData(snapshot_class="R", snapshot_version=3, types=types, fields=()))


def written(layout: lay.Layout, value: Any) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


def decoded(layout: lay.Layout, records: list[bytes], wanted: frozenset[str] | None = None) -> pa.Array:
    ends = np.cumsum([len(each) for each in records], dtype=np.int64)
    starts = ends - np.array([len(each) for each in records])
    array = decode_spans(compile_layout(layout, wanted), guarded(b"".join(records)), starts, ends)
    array.validate(full=True)
    return array


@pytest.mark.slow
@given(st.data())
@random_cases
def test_rows_go_through_columns_as_the_scalar_codec_writes_them(data: st.DataObject) -> None:
    serializer = data.draw(row_serializers())
    draw: Any = data.draw
    layout = lay.Dynamic(serializer)
    rows = [draw_row(draw, serializer.types) for _ in range(draw(st.integers(1, 4)))]
    records = [written(layout, each) for each in rows]
    array = decoded(layout, records)
    expected = pa.array([row_to_arrow(serializer.types, each) for each in rows], arrow_type(layout))
    assert array.equals(expected)
    encoded = encode_array(compile_layout(layout), expected)
    assert encoded.data.tobytes() == b"".join(records)


@pytest.mark.slow
@given(st.data())
@random_cases
def test_values_inside_other_layouts_go_through_columns(data: st.DataObject) -> None:
    draw: Any = data.draw
    of, key = draw(sql_types(1)), draw(sql_types(1).filter(can_be_key))
    array_data = tree.ArrayData(snapshot_class="A", snapshot_version=3, element_type=of)
    map_data = tree.MapData(snapshot_class="M", snapshot_version=3, key_type=key, value_type=of)
    element = lay.Dynamic(draw(st.sampled_from((array_data, map_data))))
    sql = LogicalType(root="ARRAY", children=(of,))
    if element.serializer is map_data:
        sql = LogicalType(root="MAP", children=(key, of))
    layout = lay.Struct(
        (("last_access", lay.Primitive(lay.PrimitiveKind.I64)), ("value", lay.Sequence(lay.Optional(element))))
    )
    items = [draw_sql(draw, sql) for _ in range(3)]
    record = written(layout, {"last_access": 1, "value": items})
    array = decoded(layout, [record, record])
    expected = {"last_access": 1, "value": [sql_to_arrow(sql, each) for each in items]}
    assert array.equals(pa.array([expected, expected], arrow_type(layout)))
    assert encode_array(compile_layout(layout), array).data.tobytes() == record * 2


@pytest.mark.slow
@given(st.data())
@random_cases
def test_broken_rows_are_errors_and_never_crashes(data: st.DataObject) -> None:
    serializer = data.draw(row_serializers())
    layout = lay.Dynamic(serializer)
    draw: Any = data.draw
    raw = bytearray(written(layout, draw_row(draw, serializer.types)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(StateError):
        decoded(layout, [bytes(raw)])


@pytest.mark.parametrize("millis", [-1, 86_400_000])
def test_a_time_outside_of_the_day_is_an_error(millis: int) -> None:
    layout = rows_of(LogicalType(root="TIME_WITHOUT_TIME_ZONE"))
    with pytest.raises(FormatError, match="not a time of day"):
        decoded(layout, [written(layout, BinaryRowValue("+I", (millis,)))])


@pytest.mark.parametrize("root", ["MAP", "MULTISET"])
def test_maps_whose_keys_are_all_null_have_no_columns(root: str) -> None:
    nothing = LogicalType(root="DISTINCT_TYPE", children=(LogicalType(root="NULL"),))
    children = (nothing, BIGINT) if root == "MAP" else (nothing,)
    with pytest.raises(UnsupportedError, match="whose keys are all null"):
        compile_layout(rows_of(LogicalType(root=root, children=children)))


def test_a_row_of_known_bytes() -> None:
    # As Flink writes (7, 'Hello, world', null): kind and null bits, three slots, the text padded to 16 bytes.
    raw = bytes.fromhex(
        "00000030" "0004000000000000" "0700000000000000" "0c00000020000000" "0000000000000000"
        "48656c6c6f2c20776f726c6400000000"
    )  # fmt: skip
    layout = rows_of(BIGINT, VARCHAR, BIGINT)
    array = decoded(layout, [raw])
    assert array.to_pylist() == [{"row_kind": "+I", "f0": 7, "f1": "Hello, world", "f2": None}]
    assert encode_array(compile_layout(layout), array).data.tobytes() == raw


def test_names_that_the_snapshot_holds_are_those_of_the_columns() -> None:
    row = tree.RowData(snapshot_class="R", snapshot_version=4, types=(BIGINT, BIGINT), fields=(), names=("id", "total"))
    layout = lay.Dynamic(row)
    record = written(layout, BinaryRowValue("-D", (7, None)))
    array = decoded(layout, [record])
    assert array.to_pylist() == [{"row_kind": "-D", "id": 7, "total": None}]
    assert encode_array(compile_layout(layout), array).data.tobytes() == record


def test_only_the_wanted_fields_are_decoded() -> None:
    inner = LogicalType(root="ROW", children=(BIGINT, VARCHAR), names=("id", "city"))
    layout = rows_of(BIGINT, inner, VARCHAR)
    record = written(layout, BinaryRowValue("+U", (1, BinaryRowValue("+I", (2, "Bern")), "x")))
    assert decoded(layout, [record], frozenset({"f1.city"})).to_pylist() == [{"f1": {"city": "Bern"}}]
    assert decoded(layout, [record], frozenset({"row_kind", "f2"})).to_pylist() == [{"row_kind": "+U", "f2": "x"}]


def test_rows_that_nobody_asked_for_are_skipped() -> None:
    layout = lay.Struct((("a", rows_of(VARCHAR)), ("b", lay.Text())))
    record = written(layout, {"a": BinaryRowValue("+I", ("some text",)), "b": "x"})
    assert decoded(layout, [record], frozenset({"b"})).to_pylist() == [{"b": "x"}]


def test_rows_follow_each_other_without_known_ends() -> None:
    layout = rows_of(VARCHAR)
    data = b"".join(written(layout, BinaryRowValue("+I", (text,))) for text in ("a", "a longer text"))
    array, stops = decode_sequence(compile_layout(layout), guarded(data), 0, len(data), 2)
    assert [each["f0"] for each in array.to_pylist()] == ["a", "a longer text"]
    assert stops[-1] == len(data)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (LogicalType(root="DECIMAL", length=10, scale=2), pa.decimal128(10, 2)),
        (LogicalType(root="TIMESTAMP_WITHOUT_TIME_ZONE", length=3), pa.timestamp("ms")),
        (LogicalType(root="TIMESTAMP_WITHOUT_TIME_ZONE", length=6), pa.timestamp("us")),
        (LogicalType(root="TIMESTAMP_WITH_LOCAL_TIME_ZONE", length=9), pa.timestamp("ns", "UTC")),
        (LogicalType(root="DATE"), pa.date32()),
        (LogicalType(root="TIME_WITHOUT_TIME_ZONE", length=0), pa.time64("ns")),
        (LogicalType(root="MULTISET", children=(VARCHAR,)), pa.map_(pa.string(), pa.int32())),
        (LogicalType(root="RAW", class_name="a.B"), pa.binary()),
    ],
)
def test_sql_types_have_arrow_types(of: LogicalType, expected: pa.DataType) -> None:
    assert arrow_type(rows_of(of)).field("f0").type == expected


@pytest.mark.parametrize(
    ("serializer", "value", "raw", "expected"),
    [
        (
            tree.Decimal(snapshot_class="D", snapshot_version=3, precision=4, scale=2),
            "-1.05",
            "ffffffffffffff97",
            pa.decimal128(4, 2),
        ),
        (
            tree.Decimal(snapshot_class="D", snapshot_version=3, precision=20, scale=0),
            "255",
            "0000000200ff",
            pa.decimal128(20, 0),
        ),
        (
            tree.TimestampData(snapshot_class="T", snapshot_version=1, precision=6),
            "1970-01-01T00:00:00.001002",
            "0000000000000001000007d0",
            pa.timestamp("us"),
        ),
        (
            tree.ScalaEnum(snapshot_class="S", snapshot_version=2, enum_class="E", constants=(("A", 1), ("B", 7))),
            "B",
            "00000007",
            pa.string(),
        ),
    ],
)
def test_values_outside_rows_have_forms_of_their_own(
    serializer: tree.Serializer, value: str, raw: str, expected: pa.DataType
) -> None:
    layout = lay.Dynamic(serializer)
    array = pa.array([value]).cast(expected)
    assert decoded(layout, [bytes.fromhex(raw)]).equals(array)
    assert encode_array(compile_layout(layout), array).data.tobytes().hex() == raw


def test_a_timestamp_beyond_the_nanoseconds_of_arrow_is_an_error() -> None:
    layout = rows_of(TIMESTAMP_9)
    record = written(layout, BinaryRowValue("+I", (TimestampValue(253_402_300_799_000, 0),)))
    with pytest.raises(ValueRangeError, match="outside the range"):
        decoded(layout, [record])


def test_a_row_inside_another_one_has_no_row_kind_of_its_own() -> None:
    inner = LogicalType(root="ROW", children=(BIGINT,), names=("id",))
    record = written(rows_of(inner), BinaryRowValue("+I", (BinaryRowValue("-D", (1,)),)))
    with pytest.raises(UnsupportedError, match="a nested row has a row kind"):
        decoded(rows_of(inner), [record])


@pytest.mark.parametrize(("raw", "types"), OVERLAPPING)
def test_variable_length_data_that_overlap_are_an_error(raw: bytes, types: tuple[LogicalType, ...]) -> None:
    with pytest.raises(FormatError, match="overlap"):
        decoded(rows_of(*types), [len(raw).to_bytes(4, "big") + raw])


def test_an_offset_outside_the_row_is_an_error() -> None:
    record = bytearray(written(rows_of(VARCHAR), BinaryRowValue("+I", ("a longer text",))))
    record[4 + 8 + 4] = 200
    with pytest.raises(FormatError, match="does not fit"):
        decoded(rows_of(VARCHAR), [bytes(record)])


def test_a_number_with_more_digits_than_its_type_is_an_error() -> None:
    record = written(rows_of(BIGINT), BinaryRowValue("+I", (100,)))
    with pytest.raises(FormatError, match=r"more digits than DECIMAL\(2, 1\)"):
        decoded(rows_of(LogicalType(root="DECIMAL", length=2, scale=1)), [record])
