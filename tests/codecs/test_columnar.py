"""The columnar codec against the scalar one, on random layouts and values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs import (
    arrow_type,
    compile_layout,
    decode_sequence,
    decode_spans,
    encode_array,
)
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError
from tests.codecs.guarded import guarded
from tests.codecs.strategies import ALL_LAYOUTS, KNOWN_ENDS, SPAN_BOUND, cases, to_arrow_value

Case = tuple[lay.Layout, list[Any]]
random_cases = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def written(layout: lay.Layout, value: Any) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


def as_array(layout: lay.Layout, items: list[Any]) -> pa.Array:
    return pa.array([to_arrow_value(layout, each) for each in items], arrow_type(layout))


def spans(records: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(each) for each in records], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return guarded(b"".join(records)), starts, ends


def decoded(layout: lay.Layout, records: list[bytes], wanted: frozenset[str] | None = None) -> pa.Array:
    array = decode_spans(compile_layout(layout, wanted), *spans(records))
    array.validate(full=True)
    return array


@pytest.mark.slow
@given(cases())
@random_cases
def test_columns_are_written_as_the_scalar_codec_writes_values(case: Case) -> None:
    layout, items = case
    encoded = encode_array(compile_layout(layout), as_array(layout, items))
    records = [written(layout, each) for each in items]
    assert encoded.data.tobytes() == b"".join(records)
    assert list(encoded.stops) == list(np.cumsum([len(each) for each in records]))


@pytest.mark.slow
@given(cases())
@random_cases
def test_columns_are_read_as_the_scalar_codec_wrote_values(case: Case) -> None:
    layout, items = case
    assert decoded(layout, [written(layout, each) for each in items]).equals(as_array(layout, items))


@pytest.mark.slow
@given(cases())
@random_cases
def test_the_scalar_codec_reads_what_it_wrote(case: Case) -> None:
    layout, items = case
    for value in items:
        reader = Reader(written(layout, value))
        assert read_value(layout, reader) == value
        reader.expect_end("the value")


@pytest.mark.slow
@given(cases(KNOWN_ENDS))
@random_cases
def test_records_are_read_one_behind_the_other_without_their_ends(case: Case) -> None:
    layout, items = case
    encoded = encode_array(compile_layout(layout), as_array(layout, items))
    data = guarded(encoded.data.tobytes())
    array, stops = decode_sequence(compile_layout(layout), data, 0, len(data), len(items))
    assert array.equals(as_array(layout, items))
    assert stops.tolist() == encoded.stops.tolist()


@pytest.mark.slow
@given(cases(max_size=8), st.data())
@random_cases
def test_slices_of_arrays_are_written_like_whole_ones(case: Case, data: st.DataObject) -> None:
    layout, items = case
    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    encoded = encode_array(compile_layout(layout), as_array(layout, items)[start:stop])
    assert encoded.data.tobytes() == b"".join(written(layout, each) for each in items[start:stop])


def paths(layout: lay.Layout) -> list[str]:
    """Dotted paths of all fields that can be asked for."""
    match layout:
        case lay.Optional(inner=inner) | lay.MeasuredKey(inner=inner):
            return paths(inner)
        case lay.PojoObject(variants=variants):
            classes = [layout, *(each.layout for each in variants if isinstance(each.layout, lay.PojoObject))]
            fields = [field for each in classes for field in each.fields]
        case lay.Struct(fields=members) | lay.Masked(fields=members):
            fields = list(members)
        case _:
            return []
    return [path for name, child in fields for path in (name, *(f"{name}.{below}" for below in paths(child)))]


def project(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The fields of `array` that `target` has."""
    if not pa.types.is_struct(target):
        return array
    children = [
        project(array.field(array.type.get_field_index(target.field(index).name)), target.field(index).type)
        for index in range(target.num_fields)
    ]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())


@pytest.mark.slow
@given(cases(KNOWN_ENDS.filter(paths)), st.data())
@random_cases
def test_wanted_fields_are_those_of_the_whole_value(case: Case, data: st.DataObject) -> None:
    layout, items = case
    records = [written(layout, each) for each in items]
    wanted = frozenset(data.draw(st.lists(st.sampled_from(paths(layout)), min_size=1, max_size=3)))
    part = decoded(layout, records, wanted)
    assert part.equals(project(decoded(layout, records), part.type))


@pytest.mark.slow
@given(cases(KNOWN_ENDS, max_size=1))
@random_cases
def test_a_record_that_ends_early_is_an_error_wherever_it_ends(case: Case) -> None:
    layout, (value,) = case
    record = written(layout, value)
    for size in range(len(record)):
        with pytest.raises(FormatError):
            decoded(layout, [record[:size]])
        with pytest.raises(FormatError):
            read_value(layout, Reader(record[:size]))


@pytest.mark.slow
@given(cases(SPAN_BOUND, max_size=1))
@random_cases
def test_a_span_that_ends_early_is_an_error_or_another_value(case: Case) -> None:
    layout, (value,) = case
    record = written(layout, value)
    for size in range(len(record)):
        assert_agreement(layout, record[:size])


@pytest.mark.slow
@given(cases(max_size=1), st.data())
@settings(random_cases, max_examples=400)
def test_changed_bytes_mean_the_same_to_both_codecs_or_are_an_error(case: Case, data: st.DataObject) -> None:
    layout, (value,) = case
    record = bytearray(written(layout, value))
    for _ in range(data.draw(st.integers(1, 3)) if record else 0):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    assert_agreement(layout, bytes(record))


def assert_agreement(layout: lay.Layout, record: bytes) -> None:
    """Columns either refuse the bytes or read the value that the scalar codec reads."""
    try:
        array = decoded(layout, [record])
    except (FormatError, UnsupportedError, ValueRangeError):
        array = None
    try:
        reader = Reader(record)
        value = read_value(layout, reader)
        reader.expect_end("the value")
    except StateError:
        assert array is None
        return
    if array is not None:
        again = encode_array(compile_layout(layout), array).data.tobytes()
        # By way of text, for NaN is not equal to itself.
        assert repr(read_value(layout, Reader(again))) == repr(value)


@pytest.mark.slow
@given(st.data())
@random_cases
def test_bytes_of_no_meaning_are_an_error_or_a_value(data: st.DataObject) -> None:
    assert_agreement(data.draw(ALL_LAYOUTS), data.draw(st.binary(max_size=60)))


def test_columns_grow_for_texts_that_are_longer_than_their_bytes() -> None:
    texts = ["\u3000" * 5000, "x" * 5000, None, "\U0001f600" * 5000]
    layout = lay.Text()
    records = [written(layout, text) for text in texts]
    assert decoded(layout, records).to_pylist() == texts
    assert encode_array(compile_layout(layout), pa.array(texts)).data.tobytes() == b"".join(records)


@pytest.mark.slow
def test_columns_grow_for_lists_that_are_longer_than_expected() -> None:
    layout = lay.Sequence(lay.Mapping(lay.Primitive(lay.PrimitiveKind.I8), lay.Sequence(lay.BigDecimal())))
    value = [[(key, [Decimal(key)] * 70)] * 9 for key in range(30)]
    assert decoded(layout, [written(layout, value)]).equals(as_array(layout, [value]))


def test_output_grows_for_flags_that_arrow_keeps_in_bits() -> None:
    layout = lay.Masked(tuple((f"f{index}", lay.Optional(lay.Constant(b"x" * 50))) for index in range(50)), kind=True)
    row = {"row_kind": "-D", **{f"f{index}": None for index in range(50)}}
    nested = lay.Struct((("row", layout), ("flags", lay.Struct((("a", lay.Constant(b"x" * 3000, empty=True)),)))))
    value = {"row": row, "flags": {"a": {}}}
    encoded = encode_array(compile_layout(nested), as_array(nested, [value] * 100))
    assert encoded.data.tobytes() == written(nested, value) * 100


def test_no_records_are_no_values() -> None:
    for layout in (lay.Text(), lay.BigDecimal(), lay.Mapping(lay.Text(), lay.Logical(lay.LogicalKind.INSTANT))):
        empty = np.zeros(0, np.int64)
        array = decode_spans(compile_layout(layout), np.zeros(0, np.uint8), empty, empty)
        assert array.equals(as_array(layout, []))
        assert len(encode_array(compile_layout(layout), array).stops) == 0


PERSON = lay.PojoObject(
    "Person",
    (("name", lay.Text()), ("address", lay.PojoObject("Address", (("zip", lay.Primitive(lay.PrimitiveKind.I32)),)))),
)


def test_error_names_the_record_and_the_place() -> None:
    value = {"class": "Person", "name": "a", "address": {"class": "Address", "zip": 1}}
    good = written(PERSON, value)
    with pytest.raises(FormatError, match="record 1: the bytes end before the value does") as caught:
        decode_spans(compile_layout(PERSON), *spans([good, good[:-1]]), offset=100)
    assert caught.value.where.path == "value.address.zip"
    assert caught.value.where.offset == 100 + 2 * len(good) - 4


@pytest.mark.parametrize(
    ("layout", "record", "message"),
    [
        (lay.Primitive(lay.PrimitiveKind.I32), "0000000100", "bytes are left over after the value"),
        (PERSON, "03", "a flag byte has a value that the format does not know"),
        (PERSON, "0801", "an object has a class that the serializer snapshot does not list"),
        (PERSON, "04000161", "an object has a class that the serializer snapshot does not list"),
        (lay.Text(), "ffffffff0f", "a length or count does not fit in the bytes that are left"),
        (lay.Text(), "ffffffffffff", "a length or count does not fit in the bytes that are left"),
        (lay.Text(), "02bdb003", "a string holds half of a surrogate pair"),
        (lay.Sequence(lay.Constant(b"")), "00010001", "a length or count does not fit"),
        (lay.Sequence(lay.Sequence(lay.Constant(b""))), "00000003" + "00000fff" * 3, "a length or count does not fit"),
        (lay.Constants(()), "00000000", "an index is outside the 0 constants"),
        (lay.Constant(b"\x2a"), "2b", "a byte differs from the constant"),
        (lay.Sized(text=True), "00000001ff", "a string is not UTF-8"),
    ],
)
def test_wrong_bytes_are_an_error(layout: lay.Layout, record: str, message: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=message):
        decoded(layout, [bytes.fromhex(record)])


@pytest.mark.parametrize("record", ["02bdb003", "0280b803", "03bdb00362"])
def test_half_of_a_character_is_legal_but_no_text_of_arrow(record: str) -> None:
    with pytest.raises(UnsupportedError, match="half of a surrogate pair, for which UTF-8"):
        decoded(lay.Text(), [bytes.fromhex(record)])


def test_a_null_key_has_no_place_in_a_map_of_arrow() -> None:
    with pytest.raises(ValueRangeError, match="a map has a null key"):
        decoded(lay.Mapping(lay.Text(), lay.Text()), [bytes.fromhex("00000001000261")])


@pytest.mark.parametrize("bounds", [(-1, 1), (0, 5), (3, 2)])
def test_records_outside_the_bytes_are_refused(bounds: tuple[int, int]) -> None:
    starts, ends = (np.array([bound], np.int64) for bound in bounds)
    with pytest.raises(UsageError, match="a record is outside the 4 bytes given"):
        decode_spans(compile_layout(lay.Rest()), np.zeros(4, np.uint8), starts, ends)
    with pytest.raises(UsageError, match="outside the 4 bytes given"):
        decode_sequence(compile_layout(lay.Text()), np.zeros(4, np.uint8), *bounds, 1)


EITHER = lay.Choice(
    lay.Sequence(lay.Primitive(lay.PrimitiveKind.I32)), lay.Sequence(lay.Primitive(lay.PrimitiveKind.I32))
)
SUBCLASS = lay.PojoVariant("Sub", 0, lay.PojoObject("Sub", (("tags", EITHER.left),)))
BASE = lay.PojoObject("Base", (), (SUBCLASS,))


@pytest.mark.parametrize(
    ("layout", "value", "message"),
    [
        (lay.Primitive(lay.PrimitiveKind.I32), None, "a value is null where the serializer cannot write null"),
        (lay.Struct((("f0", lay.Sized()),)), {"f0": None}, "a value is null"),
        (lay.Sequence(lay.Text(False)), ["a", None], "a value is null"),
        (lay.Primitive(lay.PrimitiveKind.U16), -1, "a Java char is outside 0 to 65535"),
        (lay.Constants(("A",)), "B", "'B' is not one of the enum's constants A"),
        (lay.Masked((), kind=True), {"row_kind": "?"}, r"'\?' is not a known row_kind"),
        (EITHER, {"is_left": True, "left": [1], "right": [2]}, "there is a value where the object has none"),
        (EITHER, {"is_left": None, "left": None, "right": [2]}, "is_left is null"),
        (BASE, {"class": "Base", "tags": [1]}, "there is a value where the object has none"),
        (BASE, {"class": "Other", "tags": [1]}, "'Other' is not a known class"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(layout: lay.Layout, value: Any, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        encode_array(compile_layout(layout), pa.array([value], arrow_type(layout)))


def test_error_of_encoding_names_the_row_and_the_place() -> None:
    layout = lay.Struct((("a", lay.Sequence(lay.Primitive(lay.PrimitiveKind.I32))),))
    with pytest.raises(ValueRangeError, match="row 1: a value is null") as caught:
        encode_array(compile_layout(layout), pa.array([{"a": [1]}, {"a": [2, None]}], arrow_type(layout)))
    assert caught.value.where.path == "value.a[]"
