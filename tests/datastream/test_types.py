from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.datastream import Instant, Row, RowKind, Types
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError
from state_pipelines.serializers import build
from state_pipelines.serializers.text import describe
from tests.serializers.custom_families import PLAIN, Plain

if TYPE_CHECKING:
    from state_pipelines.datastream import TypeInformation

ORDER = "Pojo<shop.Order>(cents: Long, id: String)"
ANIMAL = "Pojo<zoo.Animal>(name: String, subclass zoo.Dog: Pojo<zoo.Dog>(name: String, tricks: Int))"


def encode(of: TypeInformation, value: Any) -> bytes:
    writer = Writer()
    write_value(derive_layout(of.serializer, LayoutContext()), writer, of.to_internal_type(value))
    return writer.getvalue()


def decode(of: TypeInformation, data: bytes) -> Any:
    return of.from_internal_type(read_value(derive_layout(of.serializer, LayoutContext()), Reader(data)))


@dataclass(frozen=True)
class Line:
    article: str
    number: Annotated[int, Types.INT()]


@dataclass(frozen=True)
class Order:
    id: str
    cents: int
    placed: datetime.datetime | None
    lines: list[Line]
    tags: dict[str, float]


LINE = Line("pen", 2)
SIMPLE = (
    (Types.STRING(), "String", "Grüße"),
    (Types.BOOLEAN(), "Boolean", True),
    (Types.BYTE(), "Byte", -128),
    (Types.SHORT(), "Short", 32767),
    (Types.INT(), "Int", -5),
    (Types.LONG(), "Long", 1 << 62),
    (Types.FLOAT(), "Float", 0.5),
    (Types.DOUBLE(), "Double", 0.1),
    (Types.CHAR(), "Char", "x"),
    (Types.BIG_INT(), "BigInt", 1 << 200),
    (Types.BIG_DEC(), "BigDec", Decimal("1.50")),
    (Types.INSTANT(), "Instant", Instant(5, 7)),
    (Types.SQL_DATE(), "SqlDate", datetime.date(1969, 12, 31)),
    (Types.SQL_TIME(), "SqlTime", datetime.time(23, 59, 59, 999_000)),
    (Types.SQL_TIMESTAMP(), "SqlTimestamp", datetime.datetime(1969, 7, 20, 20, 17, 40, 123_456)),
    (Types.LOCAL_DATE(), "LocalDate", datetime.date(2024, 2, 29)),
    (Types.LOCAL_TIME(), "LocalTime", datetime.time(1, 2, 3, 4)),
    (Types.LOCAL_DATE_TIME(), "LocalDateTime", datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),
    (Types.LIST(Types.LONG()), "List<Long>", [1, 2]),
    (Types.LIST(Types.SQL_DATE()), "List<SqlDate>", [datetime.date(2024, 1, 1)]),
    (Types.MAP(Types.STRING(), Types.LONG()), "Map<String, Long>", {"a": 1, "b": 2}),
    (Types.TUPLE([Types.STRING(), Types.INT()]), "Tuple2<String, Int>", ("a", 1)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "BytePrimitiveArray", b"\x00\xff"),
    (Types.PRIMITIVE_ARRAY(Types.DOUBLE()), "DoublePrimitiveArray", [0.5]),
    (Types.BASIC_ARRAY(Types.STRING()), "StringArray", ["a", None]),
    (Types.BASIC_ARRAY(Types.INT()), "Array<java.lang.Integer>(Int)", [1, None]),
    (
        Types.OBJECT_ARRAY(Types.TUPLE([Types.LONG()])),
        "Array<org.apache.flink.api.java.tuple.Tuple1>(Tuple1<Long>)",
        [(1,)],
    ),
    (Types.OBJECT_ARRAY(Types.BASIC_ARRAY(Types.STRING())), "Array<`[Ljava.lang.String;`>(StringArray)", [["a"]]),
    (Types.of("Set<String>"), "Set<String>", {"a", "b"}),
    (Types.of("Nullable<Long>"), "Nullable<Long>", None),
    (Types.of("Enum<shop.Color>(RED, GREEN)"), "Enum<shop.Color>(RED, GREEN)", "GREEN"),
    (Types.of(Line), "Row(f0: String, f1: Int)", LINE),
)


@pytest.mark.parametrize(("of", "text", "value"), SIMPLE, ids=[text for _, text, _ in SIMPLE])
def test_a_type_has_the_serializer_and_the_values(of: TypeInformation, text: str, value: Any) -> None:
    assert describe(of.serializer).replace("`", "") == text.replace("`", "")
    assert decode(of, encode(of, value)) == value


def test_rows_are_read_with_names() -> None:
    of = Types.ROW_NAMED(["id", "n"], [Types.STRING(), Types.LONG()])
    row = decode(of, encode(of, Row.of_kind(RowKind.DELETE, n=1, id="a")))
    assert row.as_dict() == {"id": "a", "n": 1}
    assert row.get_row_kind() is RowKind.DELETE


@pytest.mark.parametrize("value", [Row("a", None), ("a", None), ["a", None], {"f0": "a", "f1": None}])
def test_rows_are_given_by_position_or_name(value: Any) -> None:
    of = Types.ROW([Types.STRING(), Types.TUPLE([Types.LONG()])])
    assert list(decode(of, encode(of, value))) == ["a", None]


def test_rows_with_other_fields_are_refused() -> None:
    of = Types.ROW_NAMED(["id", "n"], [Types.STRING(), Types.LONG()])
    for value in (Row(id="a", m=1), ("a",), 5, {"id": "a"}):
        with pytest.raises(ValueRangeError, match="does not have the fields id, n"):
            of.to_internal_type(value)
    with pytest.raises(UsageError):
        Types.ROW_NAMED(["id", "id"], [Types.STRING(), Types.LONG()])


@pytest.mark.parametrize("value", [Row(id="a", cents=5), {"id": "a", "cents": 5}])
def test_pojos_are_rows_with_names(value: Any) -> None:
    of = Types.of(ORDER)
    assert of == Types.POJO("shop.Order", {"id": Types.STRING(), "cents": Types.LONG()})
    found = decode(of, encode(of, value))
    assert (found.id, found.cents) == ("a", 5)


def test_fields_of_pojos_have_names() -> None:
    with pytest.raises(ValueRangeError):
        Types.of(ORDER).to_internal_type(("a", 5))


def test_subclasses_of_pojos_name_their_class() -> None:
    of = Types.of(ANIMAL)
    dog = {"class": "zoo.Dog", "name": "Rex", "tricks": 3}
    assert decode(of, encode(of, dog)).as_dict() == dog
    assert decode(of, encode(of, {"name": "Tom"})).as_dict() == {"class": "zoo.Animal", "name": "Tom"}
    with pytest.raises(ValueRangeError, match=r"zoo\.Cat is neither"):
        of.to_internal_type({"class": "zoo.Cat", "name": "Tom"})


def test_a_dataclass_is_a_row() -> None:
    order = Order("a", 5, datetime.datetime(2024, 1, 1), [LINE], {"x": 0.5})
    of = Types.of(Order)
    assert str(of) == (
        "Row(f0: String, f1: Long, f2: LocalDateTime, f3: List<Row(f0: String, f1: Int)>, f4: Map<String, Double>)"
    )
    assert decode(of, encode(of, order)) == order


def test_a_dataclass_is_a_pojo_of_a_class() -> None:
    order = Order("a", 5, None, [LINE], {"x": 0.5})
    of = Types.POJO("shop.Order", Order)
    assert "lines: Nullable<List<Nullable<Row(f0: String, f1: Int)>>>" in str(of)
    assert "tags: Nullable<Map<Nullable<String>, Double>>" in str(of)
    assert decode(of, encode(of, order)) == order


def test_fields_of_dataclasses_need_a_type() -> None:
    @dataclass
    class Bad:
        value: complex

    with pytest.raises(UsageError, match="field value of Bad"):
        Types.of(Bad)
    with pytest.raises(UsageError, match="not a dataclass"):
        Types.POJO("a.B", int)


def test_a_schema_of_arrow_is_a_row() -> None:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("items", pa.list_(pa.struct([("n", pa.int32())]))),
            ("tags", pa.map_(pa.string(), pa.float64())),
            ("price", pa.decimal128(10, 2)),
        ]
    )
    assert str(Types.of(schema)) == (
        "Row(f0: String, f1: Instant, f2: LocalDateTime, f3: List<Row(f0: Int)>, f4: Map<String, Double>, f5: BigDec)"
    )
    with pytest.raises(UsageError, match="uint64"):
        Types.of(pa.uint64())


def test_text_of_a_serializer_is_a_type() -> None:
    assert Types.of("Map<String, List<Long>>") == Types.MAP(Types.STRING(), Types.LIST(Types.LONG()))
    assert Types.of(build.basic("Long")) == Types.LONG()
    with pytest.raises(UsageError):
        Types.of("Longs")
    with pytest.raises(UsageError):
        Types.of(5)


def test_serializers_of_other_versions_are_kept() -> None:
    old = build.row(build.basic("Long"), supports_row_kind=False)
    of = Types.of(old)
    assert of.serializer == old
    assert list(decode(of, encode(of, (1,)))) == [1]


def test_stored_values_are_not_converted() -> None:
    of = Types.of("SqlTimestamp", stored=True)
    value = {"millis": -1, "nanos": 999_999_999}
    assert decode(of, encode(of, value)) == value
    with pytest.raises(ValueRangeError, match="stored=True"):
        decode(Types.SQL_TIMESTAMP(), encode(of, value))


def test_pickles_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="pickle"):
        Types.PICKLED_BYTE_ARRAY()


def test_arrays_have_elements_of_java() -> None:
    with pytest.raises(UsageError):
        Types.PRIMITIVE_ARRAY(Types.STRING())
    with pytest.raises(UsageError):
        Types.BASIC_ARRAY(Types.BIG_DEC())


def test_arrays_have_elements_of_a_serializer_that_names_no_class() -> None:
    of = build.generic_array("com.acme.Note", Plain(snapshot_class=PLAIN))
    assert Types.of(of).serializer == of
    assert Types.of(of).to_internal_type(["a", None]) == ["a", None]


def test_maps_need_keys_with_a_hash() -> None:
    of = Types.MAP(Types.LIST(Types.LONG()), Types.LONG())
    with pytest.raises(ValueRangeError, match="cannot be keys of a dict"):
        of.from_internal_type([([1], 2)])


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Types.LIST(Types.LONG()), "ab"),
        (Types.LIST(Types.LONG()), 5),
        (Types.MAP(Types.LONG(), Types.LONG()), [1]),
        (Types.TUPLE([Types.LONG()]), (1, 2)),
        (Types.TUPLE([Types.LONG()]), None),
        (Types.SQL_DATE(), datetime.datetime(2024, 1, 1)),
        (Types.SQL_DATE(), "2024-01-01"),
        (Types.SQL_TIME(), datetime.time(0, 0, 0, 1)),
        (Types.LOCAL_TIME(), datetime.time(0, tzinfo=datetime.UTC)),
        (Types.LOCAL_DATE_TIME(), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)),
        (Types.INSTANT(), 5),
    ],
)
def test_other_values_are_refused(of: TypeInformation, value: Any) -> None:
    with pytest.raises(ValueRangeError):
        of.to_internal_type(value)


def test_datetimes_with_a_time_zone_are_converted_to_utc() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    of = Types.SQL_TIMESTAMP()
    value = datetime.datetime(2024, 1, 1, 1, tzinfo=zone)
    assert decode(of, encode(of, value)) == datetime.datetime(2023, 12, 31, 23)


def test_values_outside_the_years_of_python_are_refused() -> None:
    for of, value in ((Types.LOCAL_DATE(), 1 << 40), (Types.of("Date"), 1 << 60)):
        with pytest.raises(ValueRangeError, match="outside the years"):
            of.from_internal_type(value)
    with pytest.raises(ValueRangeError, match="whole number of days"):
        Types.SQL_DATE().from_internal_type(1)
    with pytest.raises(ValueRangeError, match="time of day"):
        Types.SQL_TIME().from_internal_type(-1)


@given(st.datetimes())
def test_datetimes_are_read_as_they_were_written(value: datetime.datetime) -> None:
    for of in (Types.SQL_TIMESTAMP(), Types.LOCAL_DATE_TIME()):
        assert decode(of, encode(of, value)) == value


@given(st.dates(), st.times())
def test_dates_and_times_are_read_as_they_were_written(day: datetime.date, time: datetime.time) -> None:
    assert decode(Types.SQL_DATE(), encode(Types.SQL_DATE(), day)) == day
    assert decode(Types.LOCAL_DATE(), encode(Types.LOCAL_DATE(), day)) == day
    assert decode(Types.LOCAL_TIME(), encode(Types.LOCAL_TIME(), time)) == time
