"""JSON of decoded values: one example per convention, the order of maps and sets, and lines as text."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.java_stream import JavaString
from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.codecs.java import (
    ArrayValue,
    BackReference,
    CollectionKind,
    CollectionValue,
    EnumValue,
    MapValue,
    ObjectValue,
    TypedValue,
    Undecoded,
    calendar_day,
    epoch_day,
)
from state_pipelines.codecs.json import access_times, dumps, sort_text, to_json, value_json
from state_pipelines.errors import ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import LogicalType

HERE = "snapshot"


def basic(kind: str) -> tree.Basic:
    return tree.Basic(snapshot_class=HERE, kind=tree.BasicKind(kind))


def list_of(element: tree.Serializer) -> tree.ListOf:
    return tree.ListOf(snapshot_class=HERE, element=element)


def pojo(name: str, **fields: tree.Serializer) -> tree.Pojo:
    members = tuple(
        tree.PojoField(name=field, declaring_class=name, serializer=serializer) for field, serializer in fields.items()
    )
    return tree.Pojo(pojo_class=name, fields=members)


LONG, STRING = basic("Long"), basic("String")
TTL = tree.Ttl(timestamp=LONG, inner=STRING)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("Boolean", True, True),
        ("Int", -5, -5),
        ("Long", 2**62, 2**62),
        ("Char", "€", "€"),
        ("String", "x", "x"),
        ("Float", 0.10000000149011612, 0.10000000149011612),
        ("Double", float("nan"), "NaN"),
        ("Double", float("inf"), "Infinity"),
        ("FloatValue", float("-inf"), "-Infinity"),
        ("BigInt", -(10**40), {"@bigint": "-1" + "0" * 40}),
        ("BigDec", Decimal("-12.3450"), {"@dec": "-12.3450"}),
        ("BigDec", Decimal("1E+3"), {"@dec": "1000"}),
        ("BigDec", Decimal("0E+3"), {"@dec": "0"}),
        ("BigDec", Decimal("0.00"), {"@dec": "0.00"}),
        ("BigDec", Decimal("1E+1001"), {"@dec": "1E+1001"}),
        ("PythonBigDec", Decimal("NaN"), {"@dec": "NaN"}),
        ("PythonBigDec", Decimal("sNaN"), {"@dec": "sNaN"}),
        ("PythonBigDec", Decimal("-Infinity"), {"@dec": "-Infinity"}),
        ("BigDec", Decimal("1E-7"), {"@dec": "0.0000001"}),
        ("Date", 5, {"@juDate": 5}),
        ("SqlDate", 5, {"@sqlDate": 5}),
        ("SqlTime", 5, {"@sqlTime": 5}),
        ("SqlTimestamp", {"millis": 5, "nanos": 6}, {"@sqlTimestamp": [5, 6]}),
        ("Instant", {"epoch_second": -5, "nano": 6}, {"@instant": [-5, 6]}),
        ("LocalDate", 19782, {"@date": "2024-02-29"}),
        ("LocalTime", 3_723_000_000_004, {"@time": "01:02:03.000000004"}),
        ("LocalDateTime", {"date": -1, "nano_of_day": 0}, {"@datetime": "1969-12-31T00:00:00.000000000"}),
        ("BytePrimitiveArray", b"\x01\xff", {"@bytes": "01ff"}),
        ("IntPrimitiveArray", [1, 2], [1, 2]),
        ("DoublePrimitiveArray", [1.5, float("nan")], [1.5, "NaN"]),
        ("CharPrimitiveArray", [97, 8364], ["a", "€"]),
        ("StringArray", ["a", None], ["a", None]),
        ("VoidNamespace", None, None),
        ("TimeWindow", {"start": 5, "end": 6}, {"@window": [5, 6]}),
        ("GlobalWindow", {}, {"@global": True}),
        ("Tuple0", {}, {"@tuple": []}),
        (
            "TableTimeWindow",
            {"start": 5, "end": 6},
            {"@class": "org.apache.flink.table.runtime.operators.window.TimeWindow", "end": 6, "start": 5},
        ),
        (
            "CountWindow",
            {"id": 5},
            {"@class": "org.apache.flink.table.runtime.operators.window.CountWindow", "id": 5},
        ),
    ],
)
def test_basic_types(kind: str, value: object, expected: object) -> None:
    assert to_json(basic(kind), value) == expected


@pytest.mark.parametrize(
    ("node", "value", "expected"),
    [
        (list_of(basic("LocalDate")), [0, 1], [{"@date": "1970-01-01"}, {"@date": "1970-01-02"}]),
        (tree.SetOf(snapshot_class=HERE, element=LONG), [9, 10], {"@set": [10, 9]}),
        (
            tree.MapOf(snapshot_class=HERE, key=STRING, value=LONG),
            [("b", None), ("a", 5)],
            {"@map": [["a", 5], ["b", None]]},
        ),
        (
            tree.GenericArray(snapshot_class=HERE, component_class="java.lang.Long", element=LONG),
            [1, None],
            [1, None],
        ),
        (
            tree.Tuple(snapshot_class=HERE, tuple_class="T", fields=(LONG, STRING)),
            {"f0": 1, "f1": "a"},
            {"@tuple": [1, "a"]},
        ),
        (
            tree.PositionalRow(snapshot_class=HERE, fields=(LONG, STRING)),
            {"row_kind": "-U", "f0": 1, "f1": None},
            {"@row": [1, None], "@kind": "-U"},
        ),
        (
            tree.PositionalRow(snapshot_class=HERE, fields=(LONG,), supports_row_kind=False),
            {"row_kind": None, "f0": 1},
            {"@row": [1], "@kind": "+I"},
        ),
        (
            tree.Either(snapshot_class=HERE, left=LONG, right=STRING),
            {"is_left": True, "left": 5, "right": None},
            {"@left": 5},
        ),
        (
            tree.Either(snapshot_class=HERE, left=LONG, right=STRING),
            {"is_left": False, "left": None, "right": "a"},
            {"@right": "a"},
        ),
        (tree.Enum(snapshot_class=HERE, enum_class="E", constants=("A",)), "A", {"@enum": "A"}),
        (tree.Nullable(snapshot_class=HERE, inner=basic("LocalDate")), None, None),
        (TTL, {"last_access": 5, "value": "a"}, "a"),
        (
            tree.Timer(snapshot_class=HERE, key=STRING, namespace=basic("VoidNamespace")),
            {"timestamp": 5, "key": "a", "namespace": None},
            {"timestamp": 5, "key": "a", "namespace": None},
        ),
        (tree.BinaryRow(snapshot_class=HERE, num_fields=0), bytes(8), {"@hex": "00000008" + "00" * 8}),
        (tree.Decimal(snapshot_class=HERE, precision=5, scale=2), Decimal("1.50"), {"@dec": "1.50"}),
        (tree.TimestampData(snapshot_class=HERE, precision=3), TimestampValue(5, 0), {"@ts": [5, 0]}),
    ],
)
def test_families(node: tree.Serializer, value: object, expected: object) -> None:
    assert to_json(node, value) == expected


def variants(kind: str, *parts: tree.Serializer) -> tree.Variants:
    return tree.Variants(snapshot_class=HERE, kind=tree.VariantKind(kind), serializers=parts)


DATE, EPOCH = basic("LocalDate"), {"@date": "1970-01-01"}


@pytest.mark.parametrize(
    ("node", "value", "expected"),
    [
        (variants("ScalaOption", DATE), 0, EPOCH),
        (variants("Traversable", DATE), [0, None], [EPOCH, None]),
        (variants("Union", LONG, DATE), {"case": "two", "value": 0}, {"case": "two", "value": EPOCH}),
        (variants("ScalaTry", DATE, LONG), {"case": "success", "value": 0}, {"case": "success", "value": EPOCH}),
        (
            variants("StreamElement", DATE),
            {"case": "record", "value": {"timestamp": 7, "value": 0}},
            {"case": "record", "value": {"timestamp": 7, "value": EPOCH}},
        ),
        (
            variants("StreamElement", DATE),
            {"case": "record_without_timestamp", "value": 0},
            {"case": "record_without_timestamp", "value": EPOCH},
        ),
        (variants("StreamElement", DATE), {"case": "watermark", "value": 7}, {"case": "watermark", "value": 7}),
        (
            variants("TwoPhaseCommit", DATE, DATE),
            {"pending": None, "committing": [{"transaction": 0, "started": 5}], "context": 0},
            {"pending": None, "committing": [{"transaction": EPOCH, "started": 5}], "context": EPOCH},
        ),
        (variants("SharedBufferEdges", list_of(LONG)), [1], [1]),
        (variants("MetaSqnInfo", DATE, LONG), {"high_sqn": 0, "size": 2}, {"high_sqn": EPOCH, "size": 2}),
        (
            tree.PythonRow(snapshot_class=HERE, types=(), fields=(DATE, LONG)),
            {"row_kind": "-D", "f0": 0, "f1": None},
            {"@row": [EPOCH, None], "@kind": "-D"},
        ),
        (
            tree.PythonArray(snapshot_class=HERE, element_type=LogicalType(root="BIGINT"), element=DATE),
            [0, None],
            [EPOCH, None],
        ),
        (
            basic("Uuid"),
            {"mostSigBits": 1, "leastSigBits": 2},
            {"@class": "java.util.UUID", "leastSigBits": 2, "mostSigBits": 1},
        ),
        (basic("Variant"), {"value": b"\1", "metadata": b""}, {"value": {"@bytes": "01"}, "metadata": {"@bytes": ""}}),
    ],
)
def test_what_is_nested_in_objects_of_the_runtime_keeps_its_form(
    node: tree.Serializer, value: object, expected: object
) -> None:
    assert to_json(node, value) == expected


def test_pojo_has_its_class_and_sorted_fields() -> None:
    node = pojo("a.B", z=basic("LocalDate"), b=STRING)
    rendered = to_json(node, {"class": "a.B", "z": 0, "b": None})
    assert json.dumps(rendered) == '{"@class": "a.B", "b": null, "z": {"@date": "1970-01-01"}}'


def test_subclass_of_a_pojo_goes_by_its_own_fields() -> None:
    subclass = tree.PojoSubclass(class_name="a.C", serializer=pojo("a.C", d=basic("LocalDate")))
    node = tree.Pojo(pojo_class="a.B", fields=(), non_registered=(subclass,))
    assert to_json(node, {"class": "a.C", "d": 0}) == {"@class": "a.C", "d": {"@date": "1970-01-01"}}


def test_subclass_of_a_pojo_that_nothing_reads_is_undecoded() -> None:
    shown = to_json(tree.Pojo(pojo_class="a.B", fields=()), Undecoded("a.C", b"\1\2", "no reader"))
    assert shown == {"@class": "a.C", "@undecoded": "0102", "@reason": "no reader"}


def test_access_times_of_a_value_and_of_a_list() -> None:
    value = {"last_access": 5, "value": "a"}
    assert (access_times(TTL, value), access_times(list_of(TTL), [value]), access_times(LONG, 5)) == (5, [5], None)


def test_a_value_of_a_map_that_is_null_has_no_access_time() -> None:
    assert (access_times(TTL, None), to_json(TTL, None)) == (None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TypedValue("java.lang.Long", 5), 5),
        (TypedValue("java.lang.Character", "x"), "x"),
        (TypedValue("java.lang.StringBuilder", "x"), "x"),
        (TypedValue("java.lang.Object", JavaString("x")), "x"),
        (TypedValue("java.math.BigInteger", 5), {"@bigint": "5"}),
        (TypedValue("java.util.BitSet", (5, 1)), {"@bitset": [0, 2, 64]}),
        (TypedValue("java.time.LocalDate", 0), {"@date": "1970-01-01"}),
        (
            TypedValue("java.util.UUID", {"mostSigBits": 1, "leastSigBits": 2}),
            {"@class": "java.util.UUID", "leastSigBits": 2, "mostSigBits": 1},
        ),
        (EnumValue("a.E", "X"), {"@enum": "X"}),
        (ObjectValue("a.B", (("z", 1), ("a", None))), {"@class": "a.B", "a": None, "z": 1}),
        (ObjectValue("a.B", (("x", 1), ("x", 2))), {"@class": "a.B", "x": 2}),
        (
            ObjectValue("org.apache.flink.api.java.tuple.Tuple3", (("f0", 1), ("f2", 3), ("f1", 2))),
            {"@tuple": [1, 2, 3]},
        ),
        (
            ObjectValue(
                "org.apache.flink.types.Row",
                (("fieldByPosition", ArrayValue("[Ljava.lang.Object;", (1,))), ("kind", EnumValue("K", "DELETE"))),
            ),
            {"@row": [1], "@kind": "-D"},
        ),
        (ArrayValue("[D", (float("nan"),)), ["NaN"]),
        (CollectionValue("java.util.ArrayList", CollectionKind.LIST, (2, 1)), [2, 1]),
        (CollectionValue("java.util.HashSet", CollectionKind.SET, ("b", "a")), {"@set": ["a", "b"]}),
        (
            MapValue("java.util.HashMap", ((TypedValue("java.lang.Long", 5), b"\x01"),)),
            {"@map": [[5, {"@bytes": "01"}]]},
        ),
        (BackReference(3), {"@ref": 3}),
        (
            Undecoded("a.B", b"\x01\xff", "why"),
            {"@class": "a.B", "@undecoded": "01ff", "@reason": "why"},
        ),
        (
            AvroRecord("n.R", (("z", AvroEnum("E", "X")), ("a", AvroMap((("k", AvroBranch(1, 5)),))))),
            {"@avro": "n.R", "z": {"@enum": "X"}, "a": {"@map": [["k", 5]]}},
        ),
        (BinaryRowValue("-D", ("a", TimestampValue(5, 6))), {"@rowdata": ["a", {"@ts": [5, 6]}], "@kind": "-D"}),
    ],
)
def test_values_that_carry_their_type(value: object, expected: object) -> None:
    assert value_json(value) == expected


def test_avro_fields_keep_the_order_of_the_schema() -> None:
    assert json.dumps(value_json(AvroRecord("R", (("z", 1), ("a", 2))))) == '{"@avro": "R", "z": 1, "a": 2}'


def test_rows_go_by_their_sql_types() -> None:
    types = (
        LogicalType(root="MAP", children=(LogicalType(root="VARCHAR"), LogicalType(root="BIGINT"))),
        LogicalType(root="MULTISET", children=(LogicalType(root="VARCHAR"),)),
        LogicalType(root="ARRAY", children=(LogicalType(root="ROW", children=(LogicalType(root="FLOAT"),)),)),
    )
    node = tree.RowData(snapshot_class=HERE, types=types, fields=())
    row = BinaryRowValue("+U", ([("b", 1), ("a", None)], [("x", 2)], [BinaryRowValue("+I", (1.5,))]))
    assert to_json(node, row) == {
        "@rowdata": [{"@map": [["a", None], ["b", 1]]}, {"@map": [["x", 2]]}, [{"@rowdata": [1.5], "@kind": "+I"}]],
        "@kind": "+U",
    }


def test_raw_values_go_by_the_section_of_the_row_that_holds_them() -> None:
    node = tree.RowData(snapshot_class=HERE, types=(LogicalType(root="RAW"),), fields=())
    rendered = json.loads(dumps({"value": to_json(node, BinaryRowValue("+I", (b"\x07",)))}))["value"]["@rowdata"][0]
    section = rendered["binarySection"]
    assert rendered["@class"] == "org.apache.flink.table.data.binary.BinaryRawValueData"
    assert (section["offset"], section["sizeInBytes"]) == (16, 1)
    assert section["segments"][0]["heapMemory"] == {"@bytes": "000000000000000001000000100000000700000000000000"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('a\n"\\é😀', '"a\\u000a\\"\\\\\\u00e9\\ud83d\\ude00"'),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (1e7, "1.0E7"),
        (-1.25e-5, "-1.25E-5"),
        (123456789.5, "1.234567895E8"),
        (1e300, "1.0E300"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        ([1, None, True], "[1,null,true]"),
        ({"@dec": "5"}, '{"@dec":"5"}'),
    ],
)
def test_order_follows_the_text_that_java_prints(value: object, text: str) -> None:
    assert sort_text(value) == text  # type: ignore[arg-type]


def test_of_map_keys_with_one_text_the_last_stays() -> None:
    entries = ((1, "a"), (TypedValue("java.lang.Long", 1), "b"))
    assert value_json(MapValue("java.util.HashMap", entries)) == {"@map": [[1, "b"]]}


def test_lines_are_compact_ascii_in_the_order_given() -> None:
    assert dumps({"b": "é\ud83d", "a": [1, 1.0, None]}) == '{"b":"\\u00e9\\ud83d","a":[1,1.0,null]}'


def test_value_that_no_decoder_gives_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="has no JSON form"):
        value_json({1})


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (epoch_day(-5, 12, 31), "-0005-12-31"),
        (epoch_day(0, 1, 1), "0000-01-01"),
        (epoch_day(9999, 12, 31), "9999-12-31"),
        (epoch_day(10000, 1, 1), "+10000-01-01"),
        (epoch_day(999_999_999, 12, 31), "+999999999-12-31"),
    ],
)
def test_years_beyond_four_digits_have_a_sign(days: int, text: str) -> None:
    assert to_json(basic("LocalDate"), days) == {"@date": text}


@given(days=st.integers(-(10**9), 10**9))
def test_calendar_days_survive_the_round_trip(days: int) -> None:
    assert epoch_day(*calendar_day(days)) == days


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_text_of_a_double_is_the_double(value: float) -> None:
    assert float(sort_text(value)) == value


def test_integers_with_more_digits_than_python_writes_have_a_tag() -> None:
    assert value_json(10**4_000) == 10**4_000
    assert value_json(10**5_000) == {"@bigint": "1" + "0" * 5_000}
    assert dumps({"value": value_json((1 << 14_000) - 1)})
