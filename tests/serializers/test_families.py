from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers import build
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import (
    Avro,
    Basic,
    BasicKind,
    BinaryRow,
    ClassBound,
    ClassBoundKind,
    Decimal,
    Kryo,
    KryoRegistration,
    LinkedListOf,
    PositionalRow,
    ScalaEnum,
    Serializer,
    TimestampData,
    TtlAware,
    Variants,
)
from tests.serializers.literals import (
    BASE,
    LONG,
    LONG_CLASS,
    RUNTIME,
    STRING,
    composite,
    frame,
    i32,
    optional_map,
    parts,
    utf,
    versioned,
)

AVRO = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"
SINK = "org.apache.flink.streaming.api.functions.sink.TwoPhaseCommitSinkFunction$StateSerializerSnapshot"
ROW = f"{RUNTIME}RowSerializer$RowSerializerSnapshot"
TABLE = "org.apache.flink.table.runtime.typeutils."
LINKED_LIST = f"{TABLE}LinkedListSerializer$LinkedListSerializerSnapshot"
NFA = "org.apache.flink.cep.nfa.NFAStateSerializerSnapshot"
EDGE = (
    "org.apache.flink.cep.nfa.sharedbuffer.SharedBufferEdge$SharedBufferEdgeSerializer"
    "$SharedBufferEdgeSerializerSnapshot"
)
NODE = (
    "org.apache.flink.cep.nfa.sharedbuffer.SharedBufferNode$SharedBufferNodeSerializer"
    "$SharedBufferNodeSerializerSnapshot"
)
SCALA = "org.apache.flink.api.scala.typeutils."

# Snapshot as stored -> readable form.
SNAPSHOTS = {
    "list": (versioned(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", LONG)), "List<Long>"),
    "array list": (
        versioned("org.apache.flink.runtime.state.ArrayListSerializerSnapshot", 3, composite(1, b"", STRING)),
        "ArrayList<String>",
    ),
    "set": (versioned(f"{BASE}SetSerializerSnapshot", 3, composite(1, b"", LONG)), "Set<Long>"),
    "map": (versioned(f"{BASE}MapSerializerSnapshot", 3, composite(1, b"", STRING, LONG)), "Map<String, Long>"),
    "null aware map": (
        versioned("org.apache.flink.table.dataview.NullAwareMapSerializerSnapshot", 3, composite(1, b"", STRING, LONG)),
        "NullAwareMap<String, Long>",
    ),
    "generic array": (
        versioned(f"{BASE}GenericArraySerializerSnapshot", 3, composite(1, utf("java.lang.String"), STRING)),
        "Array<java.lang.String>(String)",
    ),
    "generic array before 1.8": (
        versioned(f"{BASE}GenericArraySerializerConfigSnapshot", 2, utf("java.lang.String") + parts(STRING)),
        "Array<java.lang.String>(String)",
    ),
    "tuple": (
        versioned(
            f"{RUNTIME}TupleSerializerSnapshot",
            3,
            composite(2, utf("org.apache.flink.api.java.tuple.Tuple2"), STRING, LONG),
        ),
        "Tuple2<String, Long>",
    ),
    "tuple before 1.8": (
        versioned(f"{RUNTIME}TupleSerializerSnapshot", 2, utf("com.acme.Pair") + parts(STRING, LONG)),
        "Tuple<com.acme.Pair>(String, Long)",
    ),
    "case class": (
        versioned(f"{SCALA}ScalaCaseClassSerializerSnapshot", 3, composite(2, utf("com.acme.Pair"), STRING, LONG)),
        "CaseClass<com.acme.Pair>(String, Long)",
    ),
    "either": (
        versioned(f"{RUNTIME}JavaEitherSerializerSnapshot", 3, composite(1, b"", STRING, LONG)),
        "Either<String, Long>",
    ),
    "either before 1.8": (
        versioned(f"{RUNTIME}EitherSerializerSnapshot", 2, parts(STRING, LONG)),
        "Either<String, Long>",
    ),
    "nullable": (
        versioned(f"{RUNTIME}NullableSerializer$NullableSerializerSnapshot", 3, composite(2, i32(0), STRING)),
        "Nullable<String>",
    ),
    "nullable, padded": (
        versioned(f"{RUNTIME}NullableSerializer$NullableSerializerSnapshot", 3, composite(2, i32(8), LONG)),
        "Nullable<Long, padding 8>",
    ),
    "row": (versioned(ROW, 3, composite(4, b"\1", LONG, STRING)), "Row(f0: Long, f1: String)"),
    "row, no kind": (versioned(ROW, 3, composite(4, b"\0", LONG)), "RowWithoutKind(f0: Long)"),
    "row of 1.11": (versioned(ROW, 3, composite(3, b"", LONG)), "Row(f0: Long)"),
    "row of 1.10": (versioned(ROW, 3, composite(2, b"", LONG)), "RowWithoutKind(f0: Long)"),
    "row before 1.8": (versioned(ROW, 2, parts(LONG)), "RowWithoutKind(f0: Long)"),
    "enum": (
        versioned(
            f"{BASE}EnumSerializer$EnumSerializerSnapshot", 3, utf("com.acme.Color") + i32(2) + utf("RED") + utf("BLUE")
        ),
        "Enum<com.acme.Color>(RED, BLUE)",
    ),
    "scala enum": (
        versioned(
            f"{SCALA}ScalaEnumSerializerSnapshot",
            3,
            utf("com.acme.Color") + i32(2) + utf("RED") + i32(0) + utf("BLUE") + i32(7),
        ),
        "ScalaEnum<com.acme.Color>(RED = 0, BLUE = 7)",
    ),
    "value": (
        versioned(f"{RUNTIME}ValueSerializer$ValueSerializerSnapshot", 2, utf("com.acme.Money")),
        "Value<com.acme.Money>",
    ),
    "avro 1": (versioned(AVRO, 1, utf('"long"')), "Avro<``>"),
    "avro 2": (
        versioned(AVRO, 2, utf("com.acme.Order") + utf('{"type":"record","name":"Order","namespace":"com.acme"}')),
        "Avro<com.acme.Order>",
    ),
    "avro 3": (versioned(AVRO, 3, b'\2R\x0d{"name":"O"}'), "Avro<R>(O)"),
    "kryo": (
        versioned(
            f"{RUNTIME}kryo.KryoSerializerSnapshot",
            2,
            utf("com.acme.Thing")
            + optional_map(
                utf("com.acme.Thing") + frame(utf("com.acme.Thing")) + frame(utf("com.acme.Thing") + i32(0)),
                utf("com.acme.Gone") + frame(None) + frame(None),
            )
            + optional_map()
            + optional_map(),
        ),
        "Kryo<com.acme.Thing>",
    ),
    "timer": (
        versioned(
            "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot", 3, composite(2, b"", STRING, LONG)
        ),
        "Timer<String, Long>",
    ),
    "ttl": (
        versioned(
            "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
            3,
            composite(2, b"", LONG, STRING),
        ),
        "Ttl<String>",
    ),
    "ttl aware": (
        versioned("org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot", 1, b"\1" + STRING),
        "TtlAware<enabled, String>",
    ),
    "state of the sink of JDBC": (
        versioned(
            "org.apache.flink.connector.jdbc.xa.XaSinkStateSerializer$XaSinkStateSimpleXaTypeSerializerSnapshot",
            3,
            i32(1),
        ),
        "JdbcXaSinkState",
    ),
    "single-thread check": (
        versioned(
            "org.apache.flink.api.common.typeutils.SingleThreadAccessCheckingTypeSerializer"
            "$SingleThreadAccessCheckingTypeSerializerSnapshot",
            3,
            composite(1, b"", LONG),
        ),
        "SingleThreadAccessChecking<Long>",
    ),
    "two-phase commit": (versioned(SINK, 3, composite(4, b"\1", LONG, STRING)), "TwoPhaseCommit<Long, String>"),
    "two-phase commit, 3": (versioned(SINK, 3, composite(3, b"", LONG, STRING)), "TwoPhaseCommit<Long, String>"),
    "two-phase commit, 2": (versioned(SINK, 3, composite(2, b"", LONG, STRING)), "TwoPhaseCommit<Long, String>"),
    "nfa state": (versioned(NFA, 3, composite(2, b"\1", LONG, LONG, LONG)), "NFAState<Long, Long, Long>"),
    "nfa state, 1": (versioned(NFA, 3, composite(1, b"", LONG, LONG, LONG)), "NFAState<Long, Long, Long>"),
    "edge": (versioned(EDGE, 3, composite(1, b"", LONG, LONG)), "SharedBufferEdge<Long, Long>"),
    "node before reference counts": (versioned(NODE, 3, composite(1, b"", LONG)), "SharedBufferEdges<Long>"),
    "uuid": (versioned(f"{BASE}UuidSerializer$UuidSerializerSnapshot", 3), "Uuid"),
    "bitmap": (versioned(f"{BASE}BitmapSerializer$BitmapSerializerSnapshot", 3), "Bitmap"),
    "sorted long": (
        versioned("org.apache.flink.table.runtime.operators.sink.SortedLongSerializer$SortedLongSerializerSnapshot", 3),
        "SortedLong",
    ),
    "scala collection": (
        versioned(f"{SCALA}TraversableSerializerSnapshot", 3, composite(2, utf("Seq"), LONG)),
        "Traversable<Long>",
    ),
    "scala option": (
        versioned(f"{SCALA}ScalaOptionSerializerSnapshot", 3, composite(2, b"", LONG)),
        "ScalaOption<Long>",
    ),
    "linked list": (versioned(LINKED_LIST, 3, composite(3, b"\1", LONG)), "LinkedList<Long>"),
    "linked list, 2": (versioned(LINKED_LIST, 3, composite(2, b"", LONG)), "LinkedList<Long>"),
    "linked list, 1": (versioned(LINKED_LIST, 3, composite(1, b"", LONG)), "LinkedList<Long>"),
    "binary row": (
        versioned(f"{TABLE}BinaryRowDataSerializer$BinaryRowDataSerializerSnapshot", 3, i32(4)),
        "BinaryRowData(4)",
    ),
    "decimal": (
        versioned(f"{TABLE}DecimalDataSerializer$DecimalSerializerSnapshot", 3, i32(10) + i32(2)),
        "DecimalData(10, 2)",
    ),
    "timestamp": (
        versioned(f"{TABLE}TimestampDataSerializer$TimestampDataSerializerSnapshot", 1, i32(3)),
        "TimestampData(3)",
    ),
    "raw value": (
        versioned(f"{TABLE}RawValueDataSerializer$RawValueDataSerializerSnapshot", 3, composite(0, b"", LONG)),
        "RawValue<Long>",
    ),
    "simple before 1.8": (versioned(LONG_CLASS, 2, utf(f"{BASE}LongSerializer")), "Long"),
}


def read(data: bytes) -> Serializer:
    reader = Reader(data)
    serializer = read_nested(reader)
    reader.expect_end("the snapshot")
    return serializer


@pytest.mark.parametrize(("snapshot", "text"), SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_snapshot_is_read_to_its_end(snapshot: bytes, text: str) -> None:
    assert describe(read(snapshot)) == text


@pytest.mark.parametrize("snapshot", [snapshot for snapshot, _ in SNAPSHOTS.values()], ids=SNAPSHOTS)
def test_snapshot_is_written_byte_for_byte(snapshot: bytes) -> None:
    writer = Writer()
    write_nested(writer, read(snapshot))
    assert writer.getvalue() == snapshot


@pytest.mark.parametrize("kind", basics.SNAPSHOT_CLASSES)
def test_every_basic_kind_round_trips(kind: str) -> None:
    writer = Writer()
    write_nested(writer, build.basic(kind))
    assert read(writer.getvalue()) == build.basic(kind)


def test_simple_snapshots_of_version_2_keep_the_serializer_class() -> None:
    assert read(SNAPSHOTS["simple before 1.8"][0]) == Basic(
        snapshot_class=LONG_CLASS, snapshot_version=2, kind=BasicKind.LONG, serializer_class=f"{BASE}LongSerializer"
    )


def test_table_windows_are_told_from_streaming_windows() -> None:
    window = "TimeWindow$Serializer$TimeWindowSerializerSnapshot"
    table = read(versioned(f"org.apache.flink.table.runtime.operators.window.{window}", 3))
    streaming = read(versioned(f"org.apache.flink.streaming.api.windowing.windows.{window}", 3))
    assert (describe(table), describe(streaming)) == ("TableTimeWindow", "TimeWindow")


@pytest.mark.parametrize(
    ("name", "expected"), [("row", True), ("row, no kind", False), ("row of 1.11", True), ("row of 1.10", False)]
)
def test_row_kind_follows_the_outer_version(name: str, expected: bool) -> None:
    row = read(SNAPSHOTS[name][0])
    assert isinstance(row, PositionalRow)
    assert row.supports_row_kind is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two-phase commit", True),
        ("two-phase commit, 3", True),
        ("two-phase commit, 2", False),
        ("nfa state", True),
        ("nfa state, 1", False),
    ],
)
def test_flag_follows_the_outer_version(name: str, expected: bool) -> None:
    node = read(SNAPSHOTS[name][0])
    assert isinstance(node, Variants)
    assert node.flag is expected


@pytest.mark.parametrize(
    ("name", "expected"), [("linked list", True), ("linked list, 2", True), ("linked list, 1", False)]
)
def test_null_mask_follows_the_outer_version(name: str, expected: bool) -> None:
    node = read(SNAPSHOTS[name][0])
    assert isinstance(node, LinkedListOf)
    assert node.has_null_mask is expected


def test_legacy_composites_have_the_snapshot_version_as_outer_version() -> None:
    row = read(SNAPSHOTS["row before 1.8"][0])
    assert isinstance(row, PositionalRow)
    assert (row.snapshot_version, row.outer_version) == (2, 2)


def test_avro_keeps_class_and_schema() -> None:
    node = read(SNAPSHOTS["avro 3"][0])
    assert node == Avro(snapshot_version=3, runtime_class="R", schema_json='{"name":"O"}')


def test_avro_refuses_a_null_string() -> None:
    with pytest.raises(FormatError, match="the class or schema in the snapshot of an Avro serializer is null"):
        read(versioned(AVRO, 3, b"\0\0"))


def test_kryo_keeps_registrations_and_what_was_unresolved() -> None:
    node = read(SNAPSHOTS["kryo"][0])
    assert isinstance(node, Kryo)
    assert node.registrations == (
        KryoRegistration(class_name="com.acme.Thing", resolved=True, value=utf("com.acme.Thing") + i32(0)),
        KryoRegistration(class_name="com.acme.Gone", resolved=False, value=None),
    )


def test_class_bound_serializers_name_their_type() -> None:
    assert read(SNAPSHOTS["value"][0]) == ClassBound(
        snapshot_class=f"{RUNTIME}ValueSerializer$ValueSerializerSnapshot",
        snapshot_version=2,
        kind=ClassBoundKind.VALUE,
        type_class="com.acme.Money",
    )


def test_parameters_of_table_types() -> None:
    nodes = [read(SNAPSHOTS[name][0]) for name in ("binary row", "decimal", "timestamp")]
    binary_row, decimal, timestamp = nodes
    assert isinstance(binary_row, BinaryRow)
    assert isinstance(decimal, Decimal)
    assert isinstance(timestamp, TimestampData)
    assert (binary_row.num_fields, decimal.precision, decimal.scale, timestamp.precision) == (4, 10, 2, 3)


def test_ttl_aware_says_whether_ttl_is_on() -> None:
    node = read(SNAPSHOTS["ttl aware"][0])
    assert isinstance(node, TtlAware)
    assert node.ttl_enabled is True


def test_scala_enum_keeps_ids() -> None:
    node = read(SNAPSHOTS["scala enum"][0])
    assert isinstance(node, ScalaEnum)
    assert node.constants == (("RED", 0), ("BLUE", 7))


@pytest.mark.parametrize(
    "snapshot",
    [
        versioned(LONG_CLASS, 4),
        versioned(f"{BASE}ListSerializerSnapshot", 4, composite(1, b"", LONG)),
        versioned(f"{RUNTIME}PojoSerializerSnapshot", 3),
        versioned(f"{RUNTIME}kryo.KryoSerializerSnapshot", 3),
        versioned(AVRO, 4),
        versioned(f"{BASE}EnumSerializer$EnumSerializerSnapshot", 2),
    ],
    ids=["basic", "composite", "pojo", "kryo", "avro", "enum"],
)
def test_versions_that_nobody_writes_are_refused(snapshot: bytes) -> None:
    with pytest.raises(UnsupportedError, match="is not supported"):
        read(snapshot)


def test_negative_padding_is_refused() -> None:
    snapshot = versioned(f"{RUNTIME}NullableSerializer$NullableSerializerSnapshot", 3, composite(2, i32(-1), LONG))
    with pytest.raises(FormatError, match="padding of -1"):
        read(snapshot)
