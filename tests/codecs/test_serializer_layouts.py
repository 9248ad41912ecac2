"""Data of each family of serializers: the bytes that Flink wrote, and what they mean."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses, derive_layout, fixed_length
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.registry import read_snapshot

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
PATHS = sorted(Path(FIXTURES, "flink/serializers").glob("*/*/test-data")) if FIXTURES else []
CONTEXT = LayoutContext()
LONG, STRING, INT = build.basic("Long"), build.basic("String"), build.basic("Int")
EVENT_ID, DEWEY = build.basic("EventId"), build.basic("DeweyNumber")
BIGINT, VARCHAR = tree.LogicalType(root="BIGINT"), tree.LogicalType(root="VARCHAR", length=5)
PERSON = build.pojo(
    "Person",
    {
        "age": INT,
        "favoriteColor": build.enum("Color", "RED", "BLUE"),
        "married": build.basic("Boolean"),
        "name": STRING,
    },
)
SUBCLASS = build.pojo("Sub", {"age": INT, "extra": build.basic("Boolean")})


def variants(kind: str, *parts: tree.Serializer, flag: bool | None = None) -> tree.Variants:
    return tree.Variants(snapshot_class=kind, kind=tree.VariantKind(kind), serializers=parts, flag=flag)


def writable(name: str) -> tree.ClassBound:
    return tree.ClassBound(
        snapshot_class="", kind=tree.ClassBoundKind.WRITABLE, type_class=f"org.apache.hadoop.io.{name}"
    )


NODE_ID = variants("NodeId", EVENT_ID)


@dataclass(frozen=True)
class Vector:
    """Bytes of a serializer and the value they mean."""

    serializer: tree.Serializer
    data: str
    value: Any


VECTORS = {
    "Boolean": Vector(build.basic("Boolean"), "01", True),
    "BooleanValue": Vector(build.basic("BooleanValue"), "01", True),
    "Byte": Vector(build.basic("Byte"), "2a", 42),
    "Short": Vector(build.basic("Short"), "007b", 123),
    "Char": Vector(build.basic("Char"), "ffff", "\uffff"),
    "CharValue": Vector(build.basic("CharValue"), "002a", "*"),
    "Int": Vector(INT, "0001e240", 123456),
    "Long": Vector(LONG, "00000000499602d2", 1234567890),
    "Float": Vector(build.basic("Float"), "42f6e979", 123.45600128173828),
    "Double": Vector(build.basic("Double"), "40c81cd6e631f8a1", 12345.6789),
    "String": Vector(STRING, "06466c696e6b", "Flink"),
    "String null": Vector(STRING, "00", None),
    "String beyond ASCII": Vector(STRING, "02ac41", "€"),
    "String beyond the basic plane": Vector(STRING, "03bdb00380bc03", "\U0001f600"),
    "StringValue": Vector(build.basic("StringValue"), "05466c696e6b", "Flink"),
    "StringData": Vector(build.basic("StringData"), "00000003e282ac", "€"),
    "NullValue": Vector(build.basic("NullValue"), "", None),
    "Void": Vector(build.basic("Void"), "00", None),
    "BigInt": Vector(
        build.basic("BigInt"), "0000001317c6e3bfd70fdeeaec417172dcbac0", 123456789012345678901234567890123456
    ),
    "BigInt null": Vector(build.basic("BigInt"), "00000000", None),
    "BigInt ZERO": Vector(build.basic("BigInt"), "00000001", 0),
    "BigInt ONE": Vector(build.basic("BigInt"), "00000002", 1),
    "BigInt TEN": Vector(build.basic("BigInt"), "00000003", 10),
    "BigInt negative": Vector(build.basic("BigInt"), "00000005ff", -1),
    "BigDec": Vector(
        build.basic("BigDec"),
        "000000145ce0e9a56015fec5aadfa328ae39811500000003",
        Decimal("123456789012345678901234567890123456.789"),
    ),
    "BigDec null": Vector(build.basic("BigDec"), "00000000", None),
    "Date": Vector(build.basic("Date"), "000000005e32baf0", 1580382960),
    "Date null": Vector(build.basic("Date"), "8000000000000000", None),
    "SqlDate": Vector(build.basic("SqlDate"), "000000005e32baf0", 1580382960),
    "SqlTime": Vector(build.basic("SqlTime"), "000000005e32baf0", 1580382960),
    "SqlTimestamp": Vector(
        build.basic("SqlTimestamp"), "000000005e32baf039387000", {"millis": 1580382960, "nanos": 960000000}
    ),
    "SqlTimestamp null": Vector(build.basic("SqlTimestamp"), "800000000000000000000000", None),
    "Instant": Vector(build.basic("Instant"), "000000005e32baf000000007", {"epoch_second": 1580382960, "nano": 7}),
    "Instant null": Vector(build.basic("Instant"), "800000000000000080000000", None),
    "LocalDate": Vector(build.basic("LocalDate"), "000007b20102", 1),
    "LocalDate null": Vector(build.basic("LocalDate"), "800000008000", None),
    "LocalTime": Vector(build.basic("LocalTime"), "01020300000004", 3_723_000_000_004),
    "LocalTime null": Vector(build.basic("LocalTime"), "80800080000000", None),
    "LocalDateTime": Vector(build.basic("LocalDateTime"), "000007b2010100000000000001", {"date": 0, "nano_of_day": 1}),
    "LocalDateTime null": Vector(build.basic("LocalDateTime"), "80000000800080800080000000", None),
    "VoidNamespace": Vector(build.basic("VoidNamespace"), "00", None),
    "GlobalWindow": Vector(build.basic("GlobalWindow"), "00", {}),
    "TimeWindow": Vector(build.basic("TimeWindow"), "00000000000030390000000000010932", {"start": 12345, "end": 67890}),
    "CountWindow": Vector(build.basic("CountWindow"), "0000000000000007", {"id": 7}),
    "Tuple0": Vector(build.basic("Tuple0"), "2a", {}),
    "BooleanPrimitiveArray": Vector(build.basic("BooleanPrimitiveArray"), "000000020100", [True, False]),
    "BytePrimitiveArray": Vector(build.basic("BytePrimitiveArray"), "00000003000102", b"\0\1\2"),
    "CharPrimitiveArray": Vector(build.basic("CharPrimitiveArray"), "0000000200000001", [0, 1]),
    "DoublePrimitiveArray": Vector(
        build.basic("DoublePrimitiveArray"), "000000013fb99999a0000000", [0.10000000149011612]
    ),
    "FloatPrimitiveArray": Vector(build.basic("FloatPrimitiveArray"), "000000013e4ccccd", [0.20000000298023224]),
    "ShortPrimitiveArray": Vector(build.basic("ShortPrimitiveArray"), "0000000200000001", [0, 1]),
    "StringArray": Vector(build.basic("StringArray"), "000000030230000231", ["0", None, "1"]),
    "GenericArray": Vector(
        build.generic_array("java.lang.String", STRING),
        "000000030107417061636865000106466c696e6b",
        ["Apache", None, "Flink"],
    ),
    "List": Vector(build.list_of(STRING), "000000020741706163686506466c696e6b", ["Apache", "Flink"]),
    "ArrayList": Vector(build.array_list_of(STRING), "000000020741706163686506466c696e6b", ["Apache", "Flink"]),
    "Set": Vector(build.set_of(STRING), "000000020006466c696e6b01", ["Flink", None]),
    "Map": Vector(
        build.map_of(INT, STRING),
        "0000000300000000000230000000010002310000000201",
        [(0, "0"), (1, "1"), (2, None)],
    ),
    "NullAwareMap": Vector(build.null_aware_map_of(INT, STRING), "0000000101000230", [(None, "0")]),
    "Tuple": Vector(
        build.tuple_of(STRING, STRING, INT),
        "0d68656c6c6f20476f72646f6e056369616f0000000e",
        {"f0": "hello Gordon", "f1": "ciao", "f2": 14},
    ),
    "Row": Vector(
        build.row(INT, LONG, STRING, STRING),
        "24000000000000002a0b4d7920737472696e672e",
        {"row_kind": "+I", "f0": None, "f1": 42, "f2": "My string.", "f3": None},
    ),
    "Row of another kind": Vector(build.row(STRING), "c00261", {"row_kind": "-D", "f0": "a"}),
    "Row without kind": Vector(
        build.row(STRING, STRING, supports_row_kind=False), "800261", {"row_kind": None, "f0": None, "f1": "a"}
    ),
    "Either": Vector(
        build.either(STRING, LONG),
        "010c417061636865466c696e6b",
        {"is_left": True, "left": "ApacheFlink", "right": None},
    ),
    "Either right": Vector(
        build.either(STRING, LONG), "000000000000000001", {"is_left": False, "left": None, "right": 1}
    ),
    "Nullable": Vector(build.nullable(LONG), "01", None),
    "Nullable padded": Vector(build.nullable(LONG, 8), "010000000000000000", None),
    "Nullable with value": Vector(build.nullable(LONG, 8), "000000000000000007", 7),
    "Enum": Vector(build.enum("Letter", "A", "B", "EMMA"), "00000002", "EMMA"),
    "Pojo": Vector(
        PERSON,
        "02000000001b000000000100000007476f72646f6e",
        {"class": "Person", "age": 27, "favoriteColor": "BLUE", "married": False, "name": "Gordon"},
    ),
    "Pojo null": Vector(PERSON, "01", None),
    "Pojo with null fields": Vector(
        build.pojo("A", {"a": STRING, "b": INT}), "020101", {"class": "A", "a": None, "b": None}
    ),
    "Pojo of a registered subclass": Vector(
        build.pojo("Base", {"age": INT}, registered={"Other": PERSON, "Sub": SUBCLASS}),
        "08010200000000070001",
        {"class": "Sub", "age": 7, "extra": True},
    ),
    "Pojo of another subclass": Vector(
        build.pojo("Base", {"age": INT}, non_registered={"Sub": SUBCLASS}),
        "0400035375620200000000070001",
        {"class": "Sub", "age": 7, "extra": True},
    ),
    "Ttl": Vector(
        build.ttl(STRING), "000000000000000d0d68656c6c6f20476f72646f6e", {"last_access": 13, "value": "hello Gordon"}
    ),
    "TtlAware": Vector(build.ttl_aware(STRING, ttl_enabled=False), "0d68656c6c6f20476f72646f6e", "hello Gordon"),
    "Timer": Vector(
        build.timer(STRING, INT),
        "8000000000003039046b6579000002a6",
        {"timestamp": 12345, "key": "key", "namespace": 678},
    ),
    "Timer before 1970": Vector(
        build.timer(STRING, build.basic("VoidNamespace")),
        "7fffffffffffffff046b657900",
        {"timestamp": -1, "key": "key", "namespace": None},
    ),
    "DeweyNumber": Vector(DEWEY, "000000010000002a", [42]),
    "EventId": Vector(EVENT_ID, "0000002a000000000000002a", {"id": 42, "timestamp": 42}),
    "NodeId": Vector(
        NODE_ID, "010000002a000000000000002a056369616f", {"event": {"id": 42, "timestamp": 42}, "page": "ciao"}
    ),
    "NodeId null": Vector(NODE_ID, "00", None),
    "SharedBufferEdge": Vector(
        variants("SharedBufferEdge", NODE_ID, DEWEY),
        "010000002a000000000000002a0570616765000000010000002a",
        {"target": {"event": {"id": 42, "timestamp": 42}, "page": "page"}, "version": [42]},
    ),
    "Lockable": Vector(
        variants("Lockable", STRING), "0000000a06666c696e6b", {"reference_count": 10, "element": "flink"}
    ),
    "NFAState": Vector(
        variants("NFAState", DEWEY, NODE_ID, EVENT_ID, flag=True), "0000000000000000", {"partial": [], "completed": []}
    ),
    "BufferEntry": Vector(variants("BufferEntry", STRING), "000668656c6c6f", {"joined": False, "element": "hello"}),
    "KafkaTransactionState": Vector(
        build.basic("KafkaTransactionState"),
        "010004746f2d31000000000000002a0007",
        {"transactionalId": "to-1", "producerId": 42, "epoch": 7},
    ),
    "KafkaTransactionState without a transaction": Vector(
        build.basic("KafkaTransactionState"),
        "00ffffffffffffffffffff",
        {"transactionalId": None, "producerId": -1, "epoch": -1},
    ),
    "KafkaTransactionContext": Vector(
        build.basic("KafkaTransactionContext"), "000000020002612d0002622d", {"transactionalIds": ["a-", "b-"]}
    ),
    "KafkaNextTransactionalIdHint": Vector(
        build.basic("KafkaNextTransactionalIdHint"),
        "000000000000000f00000003",
        {"nextFreeTransactionalId": 15, "lastParallelism": 3},
    ),
    "JdbcXaSinkState": Vector(
        tree.Basic(snapshot_class="", kind=tree.BasicKind.JDBC_XA_SINK_STATE),
        "00000001000000c902ab01010000000001000000000000000700000002000000c901ff00",
        {
            "hanging": [{"formatId": 201, "globalTransactionId": b"\xab\x01", "branchQualifier": b"\0"}],
            "prepared": [
                {
                    "checkpointId": 7,
                    "attempts": 2,
                    "xid": {"formatId": 201, "globalTransactionId": b"\xff", "branchQualifier": b""},
                }
            ],
        },
    ),
    "SingleThreadAccessChecking": Vector(variants("SingleThreadAccessChecking", LONG), "0000000000000007", 7),
    "TwoPhaseCommit": Vector(
        variants("TwoPhaseCommit", INT, STRING, flag=True),
        "010000000c000000005ace4672000000010000007b000000005d6a1b4a0106666c696e6b",
        {
            "pending": {"transaction": 12, "started": 1523467890},
            "committing": [{"transaction": 123, "started": 1567234890}],
            "context": "flink",
        },
    ),
    "Union of the first": Vector(variants("Union", STRING, LONG), "0106666c696e6b", {"case": "one", "value": "flink"}),
    "Union of the second": Vector(
        variants("Union", STRING, LONG), "020000000000005ba0", {"case": "two", "value": 23456}
    ),
    "StreamElement": Vector(
        variants("StreamElement", STRING),
        "00000000000001e240046b6579",
        {"case": "record", "value": {"timestamp": 123456, "value": "key"}},
    ),
    "Watermark": Vector(variants("StreamElement", STRING), "020000000000000007", {"case": "watermark", "value": 7}),
    "ScalaOption": Vector(variants("ScalaOption", LONG), "00", None),
    "ScalaTry": Vector(variants("ScalaTry", LONG, STRING), "000261", {"case": "failure", "value": "a"}),
    "ScalaEnum": Vector(
        tree.ScalaEnum(snapshot_class="", enum_class="Day", constants=(("MON", 0), ("TUE", 1))), "00000001", "TUE"
    ),
    "ScalaEnum with gaps": Vector(
        tree.ScalaEnum(snapshot_class="", enum_class="Day", constants=(("MON", 1), ("TUE", 5))), "00000005", "TUE"
    ),
    "MetaSqnInfo": Vector(
        variants("MetaSqnInfo", LONG, LONG), "00000000000000070000000000000002", {"high_sqn": 7, "size": 2}
    ),
    "LinkedList": Vector(tree.LinkedListOf(snapshot_class="", element=LONG), "0000000240000000000000002a", [42, None]),
    "LinkedList without mask": Vector(
        tree.LinkedListOf(snapshot_class="", element=LONG, has_null_mask=False), "00000001000000000000002a", [42]
    ),
    "RawValue": Vector(tree.RawValue(snapshot_class="", inner=STRING), "0000000606466c696e6b", "Flink"),
    "DecimalData": Vector(tree.Decimal(snapshot_class="", precision=5, scale=2), "0000000000000064", Decimal("1.00")),
    "DecimalData beyond 18 digits": Vector(
        tree.Decimal(snapshot_class="", precision=38, scale=0), "00000002ff7f", Decimal(-129)
    ),
    "TimestampData": Vector(
        tree.TimestampData(snapshot_class="", precision=3), "0000000000000007", TimestampValue(7, 0)
    ),
    "TimestampData with nanoseconds": Vector(
        tree.TimestampData(snapshot_class="", precision=9), "000000000000000700000008", TimestampValue(7, 8)
    ),
    "RowData": Vector(
        tree.RowData(snapshot_class="", types=(BIGINT, VARCHAR), fields=(LONG, STRING)),
        "00000018030000000000000007000000000000006100000000000081",
        BinaryRowValue("-D", (7, "a")),
    ),
    "BinaryRow": Vector(tree.BinaryRow(snapshot_class="", num_fields=1), "00000002abcd", b"\xab\xcd"),
    "ArrayData": Vector(
        tree.ArrayData(snapshot_class="", element_type=BIGINT),
        "00000018020000000200000007000000000000000000000000000000",
        [7, None],
    ),
    "WindowKey": Vector(
        tree.WindowKey(snapshot_class="", key=tree.RowData(snapshot_class="", types=(BIGINT,), fields=(LONG,))),
        "00000000000000050000001000000000000000000700000000000000",
        {"window": 5, "key": BinaryRowValue("+I", (7,))},
    ),
    "Variant": Vector(
        build.basic("Variant"), "00000002000000030c07010000", {"value": b"\x0c\x07", "metadata": b"\1\0\0"}
    ),
    "SortedLong": Vector(build.basic("SortedLong"), "7ffffffffffffff9", -7),
    "Uuid": Vector(build.basic("Uuid"), "0000000000000001fffffffffffffffe", {"mostSigBits": 1, "leastSigBits": -2}),
    "Bitmap": Vector(build.basic("Bitmap"), "00000002abcd", b"\xab\xcd"),
    "StringValueArray": Vector(build.basic("StringValueArray"), "00000002000000080331323303343536", ["123", "456"]),
    "LongValueWithProperHashCode": Vector(build.basic("LongValueWithProperHashCode"), "0000000000003039", 12345),
    "SharedBufferNode": Vector(
        variants("SharedBufferNode", DEWEY),
        "0000000100000007000000010000002a",
        [{"reference_count": 7, "edge": [42]}],
    ),
    "SharedBufferNode before reference counts": Vector(
        variants("SharedBufferEdges", build.list_of(DEWEY)), "00000001000000010000002a", [[42]]
    ),
    "PyFlink string": Vector(build.basic("PythonString"), "00000003e282ac", "€"),
    "PyFlink date": Vector(build.basic("PythonDate"), "00000001", 1),
    "PyFlink time": Vector(build.basic("PythonTime"), "000003e8", 1000),
    "PyFlink BigDecimal": Vector(build.basic("PythonBigDec"), "00000004312e3530", Decimal("1.50")),
    "PyFlink decimal": Vector(
        tree.PythonDecimal(snapshot_class="", precision=5, scale=2), "00000004312e3530", Decimal("1.50")
    ),
    "PyFlink row": Vector(
        tree.PythonRow(snapshot_class="", types=(BIGINT, VARCHAR), fields=(LONG, build.basic("StringData"))),
        "d00000000000000007",
        {"row_kind": "-D", "f0": 7, "f1": None},
    ),
    "PyFlink array": Vector(
        tree.PythonArray(snapshot_class="", element_type=BIGINT, element=LONG),
        "0000000200010000000000000007",
        [None, 7],
    ),
    "PyFlink map": Vector(
        tree.PythonMap(snapshot_class="", key_type=BIGINT, value_type=BIGINT, key=LONG, value=LONG),
        "00000001000000000000000701",
        [(7, None)],
    ),
    "Hadoop IntWritable": Vector(writable("IntWritable"), "00000007", 7),
    "Hadoop BytesWritable": Vector(writable("BytesWritable"), "00000002abcd", b"\xab\xcd"),
    "Hadoop NullWritable": Vector(writable("NullWritable"), "", None),
    "Hadoop Text": Vector(writable("Text"), "03e282ac", "€"),
    "Hadoop Text of 200 bytes": Vector(writable("Text"), "8fc8" + "61" * 200, "a" * 200),
    "Hadoop VIntWritable": Vector(writable("VIntWritable"), "90", -112),
    "Hadoop VIntWritable of two bytes": Vector(writable("VIntWritable"), "8770", -113),
    "Hadoop VLongWritable": Vector(writable("VLongWritable"), "887fffffffffffffff", 2**63 - 1),
    "Hadoop VLongWritable of the least number": Vector(writable("VLongWritable"), "807fffffffffffffff", -(2**63)),
    "Value": Vector(
        tree.ClassBound(snapshot_class="", kind=tree.ClassBoundKind.VALUE, type_class="com.acme.Name"),
        "00076b6c696f6e3236",
        Undecoded(
            "com.acme.Name",
            bytes.fromhex("00076b6c696f6e3236"),
            "values of com.acme.Name are written by code that the snapshot does not hold."
            " their bytes can be kept as they are",
        ),
    ),
}
DECIMAL_38 = tree.Decimal(snapshot_class="D", snapshot_version=3, precision=38, scale=3)
each_vector = pytest.mark.parametrize("vector", VECTORS.values(), ids=list(VECTORS))


@each_vector
def test_bytes_mean_the_value(vector: Vector) -> None:
    reader = Reader(bytes.fromhex(vector.data))
    assert read_value(derive_layout(vector.serializer, CONTEXT), reader) == vector.value
    reader.expect_end("the value")


@each_vector
def test_value_is_written_as_the_bytes(vector: Vector) -> None:
    writer = Writer()
    write_value(derive_layout(vector.serializer, CONTEXT), writer, vector.value)
    assert writer.getvalue().hex() == vector.data


def test_decimals_keep_their_scale() -> None:
    value = read_value(derive_layout(build.basic("BigDec"), CONTEXT), Reader(bytes.fromhex("000000050f00000001")))
    assert value.as_tuple().exponent == -1


@pytest.mark.parametrize(
    ("serializer", "width"),
    [
        (INT, 4),
        (build.basic("LocalDateTime"), 13),
        (build.basic("VoidNamespace"), 1),
        (build.basic("TimeWindow"), 16),
        (build.tuple_of(INT, LONG), 12),
        (build.nullable(LONG, 8), 9),
        (build.enum("Letter", "A"), 4),
        (build.ttl(INT), 12),
        (build.timer(INT, LONG), 20),
        (STRING, None),
        (build.tuple_of(INT, STRING), None),
        (build.nullable(LONG), None),
        (build.row(INT), None),
        (build.pojo("A", {"a": INT}), None),
        (build.basic("BytePrimitiveArray"), None),
    ],
)
def test_fixed_width_is_that_of_the_serializer(serializer: tree.Serializer, width: int | None) -> None:
    assert lay.fixed_width(derive_layout(serializer, CONTEXT)) == width


@pytest.mark.parametrize(
    ("serializer", "data", "message"),
    [
        (build.basic("Variant"), "00000002ffffffff0c07", "a VARIANT of 2 + -1 bytes does not fit in the 2 bytes left"),
        (build.basic("Variant"), "00000002000000010c07", "a VARIANT of 2 + 1 bytes does not fit in the 2 bytes left"),
        (
            build.basic("StringValueArray"),
            "0000000200000001",
            "2 strings of 1 bytes in total do not fit in the 0 bytes left",
        ),
        (build.basic("StringValueArray"), "000000010000000300000000", "2 bytes are left over"),
        (build.basic("PythonBigDec"), "00000003312c35", "is not a decimal number"),
        (build.basic("PythonBigDec"), "000000032b3135", "is not a decimal number in the form of Java"),
        (DECIMAL_38, "00000011" + "7f" * 17, "has 17 bytes, not 1 to 16"),
        (DECIMAL_38, "00000000", "has 0 bytes, not 1 to 16"),
        (writable("Text"), "05", "a text of 5 bytes does not fit in the 0 bytes left"),
        (writable("Text"), "ff", "a text of -1 bytes does not fit"),
        (writable("Text"), "01ff", "a text is not UTF-8"),
    ],
)
def test_bytes_that_no_serializer_writes_are_refused(serializer: tree.Serializer, data: str, message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)):
        read_value(derive_layout(serializer, CONTEXT), Reader(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("serializer", "length"),
    [
        (LONG, 8),
        (build.tuple_of(LONG, INT), 12),
        (STRING, None),
        # The layout is four bytes, but WritableSerializer.getLength says -1.
        (writable("IntWritable"), None),
        (build.tuple_of(LONG, writable("IntWritable")), None),
    ],
)
def test_fixed_length_is_what_the_serializer_says(serializer: tree.Serializer, length: int | None) -> None:
    assert fixed_length(serializer, CONTEXT) == length


def test_subclasses_that_another_serializer_lists_are_known() -> None:
    elsewhere = build.list_of(build.pojo("Base", {"age": INT}, non_registered={"Sub": SUBCLASS}))
    data = bytes.fromhex("0400035375620200000000070001")
    alone = derive_layout(build.pojo("Base", {"age": INT}), CONTEXT)
    with pytest.raises(UnsupportedError, match="an object is of class Sub, which the serializer of Base does not list"):
        read_value(alone, Reader(data))
    context = LayoutContext(subclasses=collect_subclasses([elsewhere]))
    layout = derive_layout(build.pojo("Base", {"age": INT}), context)
    assert read_value(layout, Reader(data)) == {"class": "Sub", "age": 7, "extra": True}


def test_a_field_whose_type_was_lost_is_named() -> None:
    lost = tree.PojoField(name="zip", declaring_class="A", serializer=None)
    with pytest.raises(UnsupportedError, match="the type of field zip of A was lost"):
        derive_layout(tree.Pojo(pojo_class="A", fields=(lost,)), CONTEXT)


def test_a_class_of_the_user_inside_other_data_stops_the_reading() -> None:
    value = tree.ClassBound(snapshot_class="", kind=tree.ClassBoundKind.VALUE, type_class="com.acme.Name")
    with pytest.raises(UnsupportedError, match=r"values of com\.acme\.Name are written by code"):
        read_value(derive_layout(build.tuple_of(value, INT), CONTEXT), Reader(bytes(9)))


def test_a_class_of_the_user_at_the_end_is_kept_as_bytes() -> None:
    value = tree.ClassBound(snapshot_class="", kind=tree.ClassBoundKind.VALUE, type_class="com.acme.Name")
    layout = derive_layout(build.tuple_of(INT, value), CONTEXT)
    assert read_value(layout, Reader(bytes(9)))["f1"].raw == bytes(5)


needs_fixtures = pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)
each_fixture = pytest.mark.parametrize("path", PATHS, ids=[path.parent.name for path in PATHS])
OPAQUE = (
    # The class writes itself; its code is not in the snapshot.
    "copyable-value-serializer",
    "value-serializer",
    "writeable-serializer",
    # Kryo: the fields of the class are not in the snapshot, or it has a Kryo serializer of its own.
    "kryo-custom-type-serializer",
    "kryo-type-serializer",
)

JSON = ("java-serializer",)


def fixture_layout(path: Path) -> lay.Layout:
    snapshot = read_snapshot(Reader((path.parent / "serializer-snapshot").read_bytes()))
    # All of them were written by Flink 1.x.
    return derive_layout(snapshot, LayoutContext(kryo_version=2))


@needs_fixtures
def test_there_are_data_of_flink() -> None:
    assert len(PATHS) > 200


@needs_fixtures
@each_fixture
def test_data_of_flink_are_read_to_their_end(path: Path) -> None:
    reader = Reader(path.read_bytes(), str(path))
    value = read_value(fixture_layout(path), reader)
    reader.expect_end("the value")
    assert isinstance(value, Undecoded) == path.parent.name.startswith(OPAQUE)


@needs_fixtures
@each_fixture
def test_data_of_flink_are_written_byte_for_byte(path: Path) -> None:
    layout = fixture_layout(path)
    writer = Writer()
    write_value(layout, writer, read_value(layout, Reader(path.read_bytes())))
    assert writer.getvalue() == path.read_bytes()


@needs_fixtures
@each_fixture
def test_data_of_flink_go_through_columns_byte_for_byte(path: Path) -> None:
    layout = fixture_layout(path)
    data = path.read_bytes()
    record = (np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))
    if path.parent.name.startswith(OPAQUE):
        with pytest.raises(UnsupportedError):
            plan_columns(layout).decode(*record)
        return
    columns = plan_columns(layout)
    array = columns.decode(*record).array
    if path.parent.name.startswith(JSON):
        with pytest.raises(UnsupportedError, match="JSON text"):
            columns.encode(array)
        return
    assert columns.encode(array).data.tobytes() == data
