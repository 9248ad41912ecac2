"""Data of Beam's coders: bytes and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.avro import AvroRecord
from state_pipelines.codecs.beam import BlockList
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout, fixed_length
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.keyed.hashing.value_hashes import Hasher
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.serializers.beam import BYTE_BUFFER_CODER, LEGACY, BeamSerializer, Coder
from tests.serializers.javacoders import CODERS, WINDOWED, WINDOWS

CONTEXT = LayoutContext()
TIMERS = "org.apache.beam.runners.core.TimerInternals$"
KAFKA = "org.apache.beam.sdk.io.kafka."
AVRO = """{"type": "record", "name": "Mark", "fields": [{"name": "topic", "type": "string"},
  {"name": "offset", "type": "long"}, {"name": "rate", "type": "double"}, {"name": "lag", "type": "float"},
  {"name": "tags", "type": {"type": "array", "items": "int"}}, {"name": "note", "type": ["null", "bytes"]}]}"""


def coder(name: str, *, detail: str = "", **parts: Coder) -> Coder:
    return Coder(name if "." in name else f"{CODERS}{name}", tuple(parts.items()), detail)


def node(of: Coder) -> BeamSerializer:
    return BeamSerializer(snapshot_class=LEGACY, snapshot_version=1, coder=of, java=b"")


TEXT, BYTES, INT, LONG = map(coder, ("StringUtf8Coder", "ByteArrayCoder", "VarIntCoder", "VarLongCoder"))
GLOBAL = coder(f"{WINDOWS}GlobalWindow$Coder")
INTERVAL = coder(f"{WINDOWS}IntervalWindow$IntervalWindowCoder")
KV = coder("KvCoder", keyCoder=TEXT, valueCoder=LONG)
USER = coder("com.acme.OrderCoder")
TAGGED = "org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator$TaggedKvCoder"


def windowed(value: Coder, window: Coder = GLOBAL) -> Coder:
    windows = coder("CollectionCoder", elementCoder=window)
    return coder(f"{WINDOWED}FullWindowedValueCoder", valueCoder=value, windowCoder=window, windowsCoder=windows)


PANE = {"first": True, "last": True, "timing": "UNKNOWN", "index": 0, "on_time_index": 0}
TIMER = {"timer_id": "ts-gc", "namespace": "//", "timestamp": 1645716536254, "domain": "EVENT_TIME"}


@dataclass(frozen=True)
class Vector:
    """Bytes of a coder and the value they mean."""

    coder: Coder
    data: str
    value: Any


VECTORS = {
    "text": Vector(TEXT, "04e282ac61", "€a"),
    "bytes": Vector(BYTES, "020001", b"\0\1"),
    "a key": Vector(coder(BYTE_BUFFER_CODER), "0100", b"\0"),
    "var int": Vector(INT, "ac02", 300),
    "var int, negative": Vector(INT, "ffffffff0f", -1),
    "var long, negative": Vector(LONG, "feffffffffffffffff01", -2),
    "var long, largest": Vector(LONG, "ffffffffffffffff7f", (1 << 63) - 1),
    "big-endian int": Vector(coder("BigEndianIntegerCoder"), "fffffffe", -2),
    "big-endian long": Vector(coder("BigEndianLongCoder"), "0000000000000007", 7),
    "big-endian short": Vector(coder("BigEndianShortCoder"), "0007", 7),
    "byte": Vector(coder("ByteCoder"), "ff", -1),
    "boolean": Vector(coder("BooleanCoder"), "01", True),
    "double": Vector(coder("DoubleCoder"), "3ff8000000000000", 1.5),
    "float": Vector(coder("FloatCoder"), "3fc00000", 1.5),
    "big integer": Vector(coder("BigIntegerCoder"), "0200ff", 255),
    "big decimal": Vector(coder("BigDecimalCoder"), "02017b", Decimal("1.23")),
    "big decimal with a negative scale": Vector(coder("BigDecimalCoder"), "feffffff0f017b", Decimal("1.23E+4")),
    "void": Vector(coder("VoidCoder"), "", None),
    "instant": Vector(coder("InstantCoder"), "80000000000003e8", 1000),
    "instant before 1970": Vector(coder("InstantCoder"), "7fffffffffffffff", -1),
    "key and value": Vector(KV, "016107", {"key": "a", "value": 7}),
    "nullable, null": Vector(coder("NullableCoder", valueCoder=TEXT), "00", None),
    "nullable": Vector(coder("NullableCoder", valueCoder=TEXT), "010161", "a"),
    "length prefix": Vector(coder("LengthPrefixCoder", valueCoder=KV), "03016107", {"key": "a", "value": 7}),
    "list": Vector(coder("ListCoder", elementCoder=TEXT), "0000000201610162", ["a", "b"]),
    "iterable of unknown size": Vector(
        coder("IterableCoder", elementCoder=TEXT), "ffffffff0201610162010163 00", ["a", "b", "c"]
    ),
    "map": Vector(coder("MapCoder", keyCoder=TEXT, valueCoder=LONG), "00000001016107", [("a", 7)]),
    "windowed value": Vector(
        windowed(TEXT),
        "8000000000000001 00000001 0f 0161",
        {"timestamp": 1, "windows": [{}], "pane": PANE, "value": "a"},
    ),
    "windowed value in an interval": Vector(
        windowed(TEXT, INTERVAL),
        "8000000000000001 00000001 80000000000007d0e807 0f 0161",
        {"timestamp": 1, "windows": [{"start": 1000, "end": 2000}], "pane": PANE, "value": "a"},
    ),
    "windowed value of fixed windows": Vector(
        coder(f"{WINDOWED}ParamWindowedValueCoder", valueCoder=TEXT), "0161", "a"
    ),
    "timestamped value": Vector(
        coder("org.apache.beam.sdk.values.TimestampedValue$TimestampedValueCoder", valueCoder=TEXT),
        "0161 8000000000000005",
        {"value": "a", "timestamp": 5},
    ),
    "pane that is early": Vector(
        coder(f"{WINDOWS}PaneInfo$PaneInfoCoder"),
        "1002",
        {"first": False, "last": False, "timing": "EARLY", "index": 2, "on_time_index": -1},
    ),
    "pane with two indices": Vector(
        coder(f"{WINDOWS}PaneInfo$PaneInfoCoder"),
        "2a0302",
        {"first": False, "last": True, "timing": "LATE", "index": 3, "on_time_index": 2},
    ),
    "tagged": Vector(
        Coder(TAGGED, (("0", LONG), ("1", windowed(TEXT)))),
        "01 8000000000000001 00000000 0f 0161",
        {"case": "tag_1", "value": {"timestamp": 1, "windows": [], "pane": PANE, "value": "a"}},
    ),
    "timer": Vector(
        coder(f"{TIMERS}TimerDataCoder", windowCoder=GLOBAL),
        "0574732d6763 022f2f 8000017f2c597bbe 0a4556454e545f54494d45",
        TIMER,
    ),
    "timer, second version": Vector(
        coder(f"{TIMERS}TimerDataCoderV2", windowCoder=GLOBAL),
        "0574732d6763 00 022f2f 8000017f2c597bbe 8000017f2c597bbe 0a4556454e545f54494d45",
        {**TIMER, "timer_family_id": "", "output_timestamp": 1645716536254},
    ),
    "record of Kafka": Vector(
        coder(f"{KAFKA}KafkaRecordCoder", kvCoder=KV),
        "0174 03 2a 05 01 00000001016b0176 016107",
        {
            "topic": "t",
            "partition": 3,
            "offset": 42,
            "timestamp": 5,
            "timestamp_type": 1,
            "headers": [{"key": "k", "value": b"v"}],
            "kv": {"key": "a", "value": 7},
        },
    ),
    "record for Kafka": Vector(
        coder(f"{KAFKA}ProducerRecordCoder", kvCoder=KV),
        "0174 ffffffff0f ffffffffffffffff7f 00000000 016107",
        {"topic": "t", "partition": -1, "timestamp": (1 << 63) - 1, "headers": [], "kv": {"key": "a", "value": 7}},
    ),
    "objects as text": Vector(coder("StringDelegateCoder", coder=TEXT), "0161", "a"),
    "range of offsets": Vector(
        coder("org.apache.beam.sdk.io.range.OffsetRange$Coder"), "07ac02", {"from": 7, "to": 300}
    ),
    "partition of Kafka": Vector(coder(f"{KAFKA}TopicPartitionCoder"), "017403", {"topic": "t", "partition": 3}),
    # Numbers zigzag, little-endian floats, lengths and counts as numbers.
    "Avro": Vector(
        coder("AvroCoder", detail=AVRO),
        "0274 53 000000000000f83f 0000c03f 04 02 03 00 02 02ff",
        AvroRecord(
            "Mark",
            (("topic", "t"), ("offset", -42), ("rate", 1.5), ("lag", 1.5), ("tags", [1, -2]), ("note", b"\xff")),
        ),
    ),
}
each_vector = pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())


@each_vector
def test_bytes_mean_the_value(vector: Vector) -> None:
    reader = Reader(bytes.fromhex(vector.data))
    assert read_value(derive_layout(node(vector.coder), CONTEXT), reader) == vector.value
    reader.expect_end("the value")


@each_vector
def test_value_is_written_as_the_bytes(vector: Vector) -> None:
    layout, data = derive_layout(node(vector.coder), CONTEXT), bytes.fromhex(vector.data)
    writer = Writer()
    write_value(layout, writer, read_value(layout, Reader(data)))
    assert writer.getvalue() == data


@each_vector
def test_columns_have_the_value_and_go_back_to_it(vector: Vector) -> None:
    layout, data = derive_layout(node(vector.coder), CONTEXT), bytes.fromhex(vector.data)
    columns = plan_columns(layout)
    array = columns.decode(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)])).array
    again = read_value(layout, Reader(columns.encode(array).data.tobytes()))
    assert again == vector.value


def test_a_list_without_blocks_is_written_with_its_size() -> None:
    layout, writer = derive_layout(node(coder("IterableCoder", elementCoder=TEXT)), CONTEXT), Writer()
    write_value(layout, writer, [*BlockList(["a"], (1,))])
    assert writer.getvalue().hex() == "000000010161"


@pytest.mark.parametrize(
    ("of", "data", "message"),
    [
        (INT, "ffffffff1f", "a number has more than 32 bits"),
        (LONG, "ff" * 10 + "01", "a number has more than 64 bits"),
        (TEXT, "05616263", "5 bytes expected but only 3 are left"),
        (TEXT, "02ff61", "a string is not UTF-8"),
        (BYTES, "ffffffff0f", "a length of -1 is negative"),
        (coder("ListCoder", elementCoder=TEXT), "fffffffe", "-2 is no number of elements"),
        (coder("ListCoder", elementCoder=coder("VoidCoder")), "00ffffff", "a count of 16777215 does not fit"),
        (coder("LengthPrefixCoder", valueCoder=LONG), "020707", "1 bytes are left over"),
        (coder(f"{WINDOWS}PaneInfo$PaneInfoCoder"), "3f", "0x3f is no pane of Beam"),
        (Coder(TAGGED, (("0", LONG),)), "01", "1 is not a known tag"),
        (coder("AvroCoder", detail=AVRO), "0274 53 000000000000f83f 0000c03f 03 02 02 00 00", "has a size prefix"),
    ],
)
def test_bytes_that_no_coder_writes_are_refused(of: Coder, data: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_value(derive_layout(node(of), CONTEXT), Reader(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("of", "value"),
    [(INT, 1 << 31), (LONG, -(1 << 63) - 1), (TEXT, 7), (coder(f"{WINDOWS}PaneInfo$PaneInfoCoder"), {"first": True})],
)
def test_values_that_do_not_fit_are_refused(of: Coder, value: object) -> None:
    with pytest.raises(ValueRangeError):
        write_value(derive_layout(node(of), CONTEXT), Writer(), value)


def test_a_value_of_a_coder_of_the_user_is_kept_with_what_is_before_it() -> None:
    data = bytes.fromhex("8000000000000001 00000000 0f 0102")
    value = read_value(derive_layout(node(windowed(USER)), CONTEXT), Reader(data))
    assert value["timestamp"] == 1
    assert value["value"] == Undecoded(
        "com.acme.OrderCoder",
        b"\1\2",
        "values of com.acme.OrderCoder are written by code that the snapshot does not hold. "
        "their bytes can be kept as they are",
    )


def test_columns_name_the_coder_of_the_user() -> None:
    with pytest.raises(UnsupportedError, match=r"values of com\.acme\.OrderCoder are written by code"):
        plan_columns(derive_layout(node(windowed(USER)), CONTEXT))


def test_values_are_plain_in_json() -> None:
    assert to_json(node(KV), {"key": "a", "value": 7}) == {"key": "a", "value": 7}


def test_keys_have_no_fixed_length() -> None:
    assert fixed_length(node(coder("BigEndianLongCoder")), CONTEXT) is None


def test_keys_hash_as_byte_buffers() -> None:
    """The key group that Beam 2.31 stored the entries of a null key in."""
    codes = Hasher().hash(node(coder(BYTE_BUFFER_CODER)), pa.array([b"\0", b"\1\2", b"\xff"]))
    assert codes.tolist() == [31, 31 * (31 + 2) + 1, 30]
    assert assign_key_groups(codes[:1], 128).tolist() == [123]
