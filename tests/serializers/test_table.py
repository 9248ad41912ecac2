from __future__ import annotations

from dataclasses import replace

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.table_runtime import to_internal
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import LogicalType, PythonArray, RowData, Serializer
from tests.serializers.literals import LONG, STRING, composite, i32, parts, utf, versioned

LOGICAL = "org.apache.flink.table.types.logical."
TYPEUTILS = "org.apache.flink.table.runtime.typeutils."
PYTHON = f"{TYPEUTILS}serializers.python."
HEADER = bytes.fromhex("aced0005")
SUID_1 = (1).to_bytes(8, "big")


def logical_type(name: str, root: str, nullable: bool = True, fields: bytes = b"\0\0", values: bytes = b"") -> bytes:
    """The Java stream of a logical type, as `InstantiationUtil.serializeObject` writes it."""
    return b"".join(
        (
            HEADER + b"\x73",
            b"\x72" + utf(f"{LOGICAL}{name}") + SUID_1 + b"\x02" + fields + b"\x78",
            b"\x72" + utf(f"{LOGICAL}LogicalType") + SUID_1 + b"\x02\0\2",
            b"Z" + utf("isNullable"),
            b"L" + utf("typeRoot") + b"\x74" + utf(f"L{LOGICAL.replace('.', '/')}LogicalTypeRoot;") + b"\x78\x70",
            b"\1" if nullable else b"\0",
            b"\x7e\x72" + utf(f"{LOGICAL}LogicalTypeRoot") + bytes(8) + b"\x12\0\0\x78",
            b"\x72" + utf("java.lang.Enum") + bytes(8) + b"\x12\0\0\x78\x70",
            b"\x74" + utf(root),
            values,
        )
    )


BIGINT = logical_type("BigIntType", "BIGINT")
VARCHAR = logical_type("VarCharType", "VARCHAR", fields=b"\0\1I" + utf("length"), values=i32(2147483647))
NULL = HEADER + b"\x70"


def read(data: bytes) -> Serializer:
    reader = Reader(data, "file")
    serializer = read_nested(reader)
    reader.expect_end("the snapshot")
    return serializer


SNAPSHOTS = {
    "row": (
        versioned(
            f"{TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot",
            3,
            i32(2) + BIGINT + VARCHAR + parts(LONG, STRING),
        ),
        "RowData(BIGINT, VARCHAR(2147483647))",
    ),
    "row of version 4 with names": (
        versioned(
            f"{TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot",
            4,
            i32(2) + BIGINT + VARCHAR + parts(LONG, STRING) + b"\1" + utf("id") + utf("first name"),
        ),
        "RowData(id: BIGINT, `first name`: VARCHAR(2147483647))",
    ),
    "row of version 4 without names": (
        versioned(f"{TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot", 4, i32(1) + BIGINT + parts(LONG) + b"\0"),
        "RowData(BIGINT)",
    ),
    "array": (
        versioned(f"{TYPEUTILS}ArrayDataSerializer$ArrayDataSerializerSnapshot", 3, BIGINT + NULL),
        "ArrayData<BIGINT>",
    ),
    "map": (
        versioned(f"{TYPEUTILS}MapDataSerializer$MapDataSerializerSnapshot", 3, VARCHAR + BIGINT + NULL + NULL),
        "MapData<VARCHAR(2147483647), BIGINT>",
    ),
    "PyFlink row": (
        versioned(f"{PYTHON}RowDataSerializer$RowDataSerializerSnapshot", 3, i32(1) + BIGINT + parts(LONG)),
        "PythonRow(BIGINT)",
    ),
    "PyFlink array": (
        versioned(f"{PYTHON}ArrayDataSerializer$ArrayDataSerializerSnapshot", 1, BIGINT + NULL),
        "PythonArray<BIGINT>",
    ),
    "PyFlink map": (
        versioned(f"{PYTHON}MapDataSerializer$BaseMapSerializerSnapshot", 1, VARCHAR + BIGINT + NULL + NULL),
        "PythonMap<VARCHAR(2147483647), BIGINT>",
    ),
    "PyFlink decimal": (
        versioned(f"{PYTHON}DecimalDataSerializer$DecimalSerializerSnapshot", 1, i32(10) + i32(2)),
        "PythonDecimal(10, 2)",
    ),
    "PyFlink timestamp": (
        versioned(f"{PYTHON}TimestampSerializer$TimestampSerializerSnapshot", 1, i32(6)),
        "TimestampData(6)",
    ),
    "PyFlink string": (
        versioned(f"{PYTHON}StringSerializer$StringSerializerSnapshot", 3),
        "PythonString",
    ),
    "external": (
        versioned(f"{TYPEUTILS}ExternalSerializer$ExternalSerializerSnapshot", 3, composite(1, NULL + b"\1", LONG)),
        "External<Long>",
    ),
    "sorted map": (
        versioned(f"{TYPEUTILS}SortedMapSerializerSnapshot", 3, NULL + parts(LONG, STRING)),
        "SortedMap<Long, String>",
    ),
    "row key": (
        versioned(
            "org.apache.flink.table.runtime.sequencedmultisetstate.linked.RowDataKeySerializerSnapshot",
            0,
            NULL + NULL + LONG,
        ),
        "RowDataKey<Long>",
    ),
}


def test_a_nullable_bigint_takes_320_bytes() -> None:
    assert len(BIGINT) == 320


@pytest.mark.parametrize(("snapshot", "text"), SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_java_streams_are_read_to_their_end(snapshot: bytes, text: str) -> None:
    assert describe(read(snapshot)) == text


@pytest.mark.parametrize("snapshot", [snapshot for snapshot, _ in SNAPSHOTS.values()], ids=SNAPSHOTS)
def test_java_streams_are_written_byte_for_byte(snapshot: bytes) -> None:
    writer = Writer()
    write_nested(writer, read(snapshot))
    assert writer.getvalue() == snapshot


def test_row_keeps_the_streams_of_its_types() -> None:
    row = read(SNAPSHOTS["row"][0])
    assert isinstance(row, RowData)
    assert row.java_types == (BIGINT, VARCHAR)
    assert row.types == (LogicalType(root="BIGINT"), LogicalType(root="VARCHAR", length=2147483647))


def test_names_have_no_place_before_version_4() -> None:
    row = read(SNAPSHOTS["row"][0])
    assert isinstance(row, RowData)
    with pytest.raises(ValueRangeError, match="version 3 of the snapshot of a row cannot store field names"):
        write_nested(Writer(), replace(row, names=("id", "name")))


def test_there_are_as_many_names_as_fields() -> None:
    row = read(SNAPSHOTS["row of version 4 with names"][0])
    assert isinstance(row, RowData)
    with pytest.raises(ValueRangeError, match="a row of 2 fields has 1 field names"):
        write_nested(Writer(), replace(row, names=("id",)))


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (None, ("f0", "f1")),
        (("id", "name"), ("id", "name")),
        (("id", "id"), ("f0", "f1")),
        (("id", "row_kind"), ("f0", "f1")),
    ],
)
def test_columns_go_by_names_that_can_be_columns(names: tuple[str, ...] | None, columns: tuple[str, ...]) -> None:
    row = read(SNAPSHOTS["row of version 4 with names"][0])
    assert isinstance(row, RowData)
    assert replace(row, names=names).columns == columns


@pytest.mark.parametrize("version", [2, 5])
def test_other_versions_of_rows_are_refused(version: int) -> None:
    snapshot = versioned(f"{TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot", version, i32(0))
    with pytest.raises(UnsupportedError):
        read(snapshot)


def test_not_null_is_kept() -> None:
    stream = logical_type("BigIntType", "BIGINT", nullable=False)
    node = read(versioned(f"{TYPEUTILS}ArrayDataSerializer$ArrayDataSerializerSnapshot", 3, stream + NULL))
    assert describe(node) == "ArrayData<BIGINT NOT NULL>"


def test_a_stream_without_a_type_is_refused_at_its_offset() -> None:
    snapshot = versioned(f"{TYPEUTILS}ArrayDataSerializer$ArrayDataSerializerSnapshot", 3, NULL + NULL)
    with pytest.raises(FormatError, match=rf"is not a logical type .*offset {len(snapshot) - 10}"):
        read(snapshot)


def test_a_number_of_serializers_unlike_the_number_of_types_is_refused() -> None:
    snapshot = versioned(
        f"{TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot", 3, i32(1) + BIGINT + parts(LONG, LONG)
    )
    with pytest.raises(FormatError, match="1 nested serializers expected, 2 found"):
        read(snapshot)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LogicalType(root="INTEGER", nullable=False), "INT NOT NULL"),
        (LogicalType(root="DECIMAL", length=10, scale=2), "DECIMAL(10, 2)"),
        (LogicalType(root="TIMESTAMP_WITH_LOCAL_TIME_ZONE", length=3), "TIMESTAMP_LTZ(3)"),
        (LogicalType(root="ARRAY", children=(LogicalType(root="DATE"),)), "ARRAY<DATE>"),
        (
            LogicalType(
                root="ROW", children=(LogicalType(root="BIGINT"), LogicalType(root="DATE")), names=("id", "on day")
            ),
            "ROW<id BIGINT, `on day` DATE>",
        ),
        (LogicalType(root="RAW", class_name="java.util.LinkedList"), "RAW(java.util.LinkedList)"),
    ],
)
def test_sql_types_are_shown_in_sql_words(kind: LogicalType, text: str) -> None:
    assert describe_type(kind) == text


def test_the_type_of_an_array_of_pyflink_says_how_its_elements_are_written() -> None:
    snapshot = versioned(f"{PYTHON}ArrayDataSerializer$ArrayDataSerializerSnapshot", 1, VARCHAR + NULL)
    node = read(snapshot)
    assert isinstance(node, PythonArray)
    assert describe(node.element) == "StringData"


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (LogicalType(root="INTEGER"), "Int"),
        (LogicalType(root="DATE"), "Int"),
        (LogicalType(root="VARBINARY", length=5), "BytePrimitiveArray"),
        (LogicalType(root="TIMESTAMP_WITHOUT_TIME_ZONE", length=3), "TimestampData(3)"),
        (LogicalType(root="DECIMAL", length=10, scale=2), "PythonDecimal(10, 2)"),
        (LogicalType(root="ARRAY", children=(LogicalType(root="BIGINT"),)), "PythonArray<BIGINT>"),
        (
            LogicalType(root="MAP", children=(LogicalType(root="BIGINT"), LogicalType(root="DATE"))),
            "PythonMap<BIGINT, DATE>",
        ),
        (LogicalType(root="ROW", children=(LogicalType(root="BIGINT"),), names=("a",)), "PythonRow(BIGINT)"),
    ],
)
def test_pyflink_has_a_serializer_for_a_type(of: LogicalType, text: str) -> None:
    assert describe(to_internal(of)) == text


def test_pyflink_has_no_serializer_for_raw_values() -> None:
    with pytest.raises(UnsupportedError, match="PyFlink has no serializer for values of SQL type RAW"):
        to_internal(LogicalType(root="RAW"))
