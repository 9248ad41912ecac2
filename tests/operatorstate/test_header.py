from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnknownSerializerError, UnsupportedError, UsageError
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import ByteStreamStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import StateCategory, list_references
from state_pipelines.operatorstate import OperatorHeader, read_operator_header, write_operator_header
from state_pipelines.serializers import build
from state_pipelines.serializers.state_meta_info import broadcast_state, operator_list

LISTS = (
    bytes.fromhex("0001 000c")
    + b"source-state"
    + bytes.fromhex("00000001 00000001 0020")
    + b"OPERATOR_STATE_DISTRIBUTION_MODE"
    + bytes.fromhex("0005")
    + b"UNION"
    + bytes.fromhex("00000001 0010")
    + b"VALUE_SERIALIZER"
    + bytes.fromhex("00000002 0054")
    + b"org.apache.flink.api.common.typeutils.base.StringSerializer$StringSerializerSnapshot"
    + bytes.fromhex("00000003")
)
STATES = LISTS + bytes.fromhex("0000")
UNION = operator_list("source-state", build.basic("String"), "UNION")
PAYLOAD = b"\x11Here be dragons!"

FILES = {
    "6": (bytes.fromhex("00000006 00") + STATES, OperatorHeader(lists=(UNION,))),
    "6, compressed": (bytes.fromhex("00000006 01") + STATES, OperatorHeader(lists=(UNION,), compressed=True)),
    "5": (bytes.fromhex("00000005") + STATES, OperatorHeader(version=5, lists=(UNION,))),
}


@pytest.mark.parametrize(("data", "header"), FILES.values(), ids=FILES)
def test_header_is_read_and_the_reader_stops_behind_it(data: bytes, header: OperatorHeader) -> None:
    reader = Reader(data + PAYLOAD)
    assert read_operator_header(reader) == header
    assert reader.take(reader.remaining) == PAYLOAD


@pytest.mark.parametrize(("data", "header"), FILES.values(), ids=FILES)
def test_header_is_written(data: bytes, header: OperatorHeader) -> None:
    writer = Writer()
    write_operator_header(writer, header)
    assert writer.getvalue() == data


def test_elements_of_the_example_start_at_0xbc() -> None:
    assert len(FILES["6"][0]) == 0xBC


def test_broadcast_states_follow_the_lists() -> None:
    header = OperatorHeader(broadcasts=(broadcast_state("rules", build.basic("Long"), build.basic("String")),))
    writer = Writer()
    write_operator_header(writer, header)
    assert writer.getvalue()[:9] == bytes.fromhex("00000006 00 0000 0001")
    assert read_operator_header(Reader(writer.getvalue())) == header


def test_version_5_cannot_be_compressed() -> None:
    with pytest.raises(UsageError, match="version 5"):
        write_operator_header(Writer(), OperatorHeader(version=5, compressed=True))


def test_a_header_before_1_8_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedError, match=r"version 3: .* older than 1\.8, .* \[file f, offset 0\]\. Restore"):
        read_operator_header(Reader(bytes.fromhex("00000003"), "f"))


def test_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match=r"operator state has version 1231054637, .*; 5 and 6 expected"):
        read_operator_header(Reader(bytes.fromhex("4960672d 00000003")))


def test_a_truncated_header_is_a_format_error() -> None:
    data, _ = FILES["6"]
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read_operator_header(Reader(data[:size]))


def test_an_unknown_serializer_names_the_state() -> None:
    unknown = FILES["6"][0].replace(b"org.apache", b"com.acme..")
    with pytest.raises(UnknownSerializerError, match=r"com\.acme.* \[file f, offset \d+, state source-state\]"):
        read_operator_header(Reader(unknown, "f"))


FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")


def operator_streams(path: Path) -> list[bytes]:
    """The operator state files of a snapshot that are inside it or beside it."""
    streams = []
    for reference in list_references(read_metadata(path.read_bytes(), str(path))):
        if reference.category is not StateCategory.MANAGED_OPERATOR:
            continue
        if isinstance(reference.handle, ByteStreamStateHandle):
            streams.append(reference.handle.data)
        elif isinstance(reference.handle, RelativeFileStateHandle):
            streams.append((path.parent / reference.handle.relative_path).read_bytes())
    return streams


@pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)
@pytest.mark.parametrize("path", sorted(Path(FIXTURES).rglob("_metadata")) if FIXTURES else [], ids=str)
def test_headers_that_flink_wrote_are_written_byte_for_byte(path: Path) -> None:
    for data in operator_streams(path):
        reader, writer = Reader(data, str(path)), Writer()
        write_operator_header(writer, read_operator_header(reader))
        assert writer.getvalue() == data[: reader.position]
