from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnknownSerializerError, UnsupportedError
from state_pipelines.keyed.header import KeyedHeader, read_keyed_header, write_keyed_header
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import ByteStreamStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import StateCategory, StreamRole, list_references
from state_pipelines.serializers import build
from state_pipelines.serializers.state_meta_info import keyed_state

# The file of one subtask: key Tuple1<Long>, one ValueState<Long>, key group 1 of 4.
SAVEPOINT = (
    bytes.fromhex("00000006 00 00000002 0043")
    + b"org.apache.flink.api.java.typeutils.runtime.TupleSerializerSnapshot"
    + bytes.fromhex("00000003 000de704 00000002 0026")
    + b"org.apache.flink.api.java.tuple.Tuple1"
    + bytes.fromhex("001457fd 00000001 00000001 0050")
    + b"org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    + bytes.fromhex("00000003 0001 000a")
    + b"state-name"
    + bytes.fromhex("00000000 00000001 0010")
    + b"KEYED_STATE_TYPE"
    + bytes.fromhex("0005")
    + b"VALUE"
    + bytes.fromhex("00000002 0010")
    + b"VALUE_SERIALIZER"
    + bytes.fromhex("00000002 0050")
    + b"org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    + bytes.fromhex("00000003 0014")
    + b"NAMESPACE_SERIALIZER"
    + bytes.fromhex("00000002 0056")
    + b"org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"
    + bytes.fromhex("00000003")
    + bytes.fromhex("0000 0000000a 81000000000000000300 00000008 0000000000000003 ffff")
)
HEADER_SIZE = 505
HEADER = KeyedHeader(
    key_serializer=build.tuple_of(build.basic("Long")),
    states=(keyed_state("state-name", "VALUE", build.basic("Long"), build.VOID_NAMESPACE),),
)


def test_header_is_read() -> None:
    assert read_keyed_header(Reader(SAVEPOINT)) == HEADER


def test_the_reader_stops_behind_the_header() -> None:
    reader = Reader(SAVEPOINT)
    read_keyed_header(reader)
    assert reader.position == HEADER_SIZE


def test_header_is_written() -> None:
    writer = Writer()
    write_keyed_header(writer, HEADER)
    assert writer.getvalue() == SAVEPOINT[:HEADER_SIZE]


def test_the_flag_of_compression_is_kept() -> None:
    compressed = SAVEPOINT[:4] + b"\1" + SAVEPOINT[5:HEADER_SIZE]
    writer = Writer()
    header = read_keyed_header(Reader(compressed))
    write_keyed_header(writer, header)
    assert (header.compressed, writer.getvalue()) == (True, compressed)


def test_a_header_before_1_8_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        UnsupportedError, match=r"version 4: .* a Flink older than 1\.8, .*\[file f, offset 0\]\. Restore"
    ):
        read_keyed_header(Reader(bytes.fromhex("00000004 00"), "f"))


def test_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match="keyed state has version 1231054637, which no release writes; 6 expected"):
        read_keyed_header(Reader(bytes.fromhex("4960672d 00000003")))


def test_a_truncated_header_is_a_format_error() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(FormatError):
            read_keyed_header(Reader(SAVEPOINT[:size]))


def test_an_unknown_value_serializer_names_the_state() -> None:
    unknown = SAVEPOINT.replace(
        b"VALUE_SERIALIZER\0\0\0\2\0\x50org.apache", b"VALUE_SERIALIZER\0\0\0\2\0\x50com.acme  "
    )
    with pytest.raises(UnknownSerializerError, match=r"com\.acme .* \[file f, offset \d+, state state-name\]"):
        read_keyed_header(Reader(unknown, "f"))


def test_an_unknown_key_serializer_is_named_as_such() -> None:
    unknown = SAVEPOINT.replace(b"\0\x43org.apache", b"\0\x43com.acme  ")
    with pytest.raises(UnknownSerializerError, match=r"com\.acme .* at key serializer\]"):
        read_keyed_header(Reader(unknown, "f"))


FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
# Its serializer is a class of the test that made it.
USER_DEFINED = "type-serializer-snapshot-migration"


def metadata_paths() -> list[Path]:
    paths = sorted(Path(FIXTURES).rglob("_metadata")) if FIXTURES else []
    return [path for path in paths if USER_DEFINED not in str(path)]


def keyed_streams(path: Path) -> list[bytes]:
    """The keyed state files of a snapshot that start with a header and are inside it or beside it."""
    streams = []
    for reference in list_references(read_metadata(path.read_bytes(), str(path))):
        if reference.category is not StateCategory.MANAGED_KEYED:
            continue
        if reference.role not in (StreamRole.STATE, StreamRole.META_DATA):
            continue
        if isinstance(reference.handle, ByteStreamStateHandle):
            streams.append(reference.handle.data)
        elif isinstance(reference.handle, RelativeFileStateHandle):
            streams.append((path.parent / reference.handle.relative_path).read_bytes())
    return streams


@pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)
@pytest.mark.parametrize("path", metadata_paths(), ids=str)
def test_headers_that_flink_wrote_are_written_byte_for_byte(path: Path) -> None:
    for data in keyed_streams(path):
        reader, writer = Reader(data, str(path)), Writer()
        write_keyed_header(writer, read_keyed_header(reader))
        assert writer.getvalue() == data[: reader.position]
