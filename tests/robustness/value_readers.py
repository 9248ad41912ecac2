"""Readers of connectors' elements and of values of Protobuf, Thrift and Beam, with sound bytes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.messages import MessageFormat, MessageTypes, ThriftFiles
from state_pipelines.codecs.protobuf import ProtobufTypes
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.registry import Versioned, list_codecs, write_array_element, write_versioned_array
from state_pipelines.errors import StateError
from tests.codecs import test_beam, test_protobuf, test_thrift
from tests.connectors import test_kinesis
from tests.connectors.vectors import BYTES, DATA, RELEASES
from tests.robustness.byte_readers import ByteReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.connectors.registry import Codec
    from state_pipelines.serializers.beam import Coder

CONTEXT = LayoutContext()
PROTOBUF_ORDER = "080710011a040a02783122050a016110052a0200ff"


def make_connector_reader() -> ByteReader:
    """Elements of connectors, read as one of those that the sound element fits; the first byte says which."""
    codecs = [each for each in list_codecs() if each.accepts(BYTES)]
    seeds = [
        bytes((number,)) + element
        for element in sorted(_list_elements())
        for number, codec in enumerate(codecs)
        if _fits(codec, element)
    ]

    def read(data: bytes) -> None:
        _pass_through(codecs[data[0] % len(codecs) if data else 0], data[1:])

    return ByteReader(tuple(seeds), read)


def make_protobuf_reader() -> ByteReader:
    """Messages of Protobuf."""
    types = ProtobufTypes([test_protobuf.make_set()])

    def read(data: bytes) -> None:
        value_json(dict(types.decode("acme.ShopOrder$Order", data)))

    return ByteReader((bytes.fromhex(PROTOBUF_ORDER), bytes.fromhex("1009")), read)


def make_descriptor_reader() -> ByteReader:
    """Descriptors of Protobuf, and a message that is read by them."""

    def read(data: bytes) -> None:
        MessageTypes(protobuf=(data,)).decode(
            MessageFormat.PROTOBUF, "acme.ShopOrder$Order", bytes.fromhex(PROTOBUF_ORDER)
        )

    return ByteReader((test_protobuf.make_set(),), read)


def make_thrift_reader() -> ByteReader:
    """Structs of Thrift."""
    files = ThriftFiles([test_thrift.FILE])

    def read(data: bytes) -> None:
        value_json(dict(files.decode("com.acme.thrift.Order", data)))

    return ByteReader((bytes.fromhex(test_thrift.ORDER),), read)


def make_thrift_file_reader() -> ByteReader:
    """Thrift files, and a struct that is read by them."""

    def read(data: bytes) -> None:
        types = MessageTypes(thrift=(data.decode(errors="replace"),))
        types.decode(MessageFormat.THRIFT, "com.acme.thrift.Order", bytes.fromhex(test_thrift.ORDER))

    return ByteReader((test_thrift.FILE.encode(),), read, True)


def make_beam_reader() -> ByteReader:
    """Values of Beam's coders; the first byte says which coder."""
    vectors = list(test_beam.VECTORS.values())
    layouts = [derive_layout(test_beam.node(each[0]), CONTEXT) for each in map(_fields, vectors)]
    seeds = tuple(bytes((number,)) + bytes.fromhex(_fields(each)[1]) for number, each in enumerate(vectors))

    def read(data: bytes) -> None:
        value_json(read_value(layouts[data[0] % len(layouts) if data else 0], Reader(data[1:], "value")))

    return ByteReader(seeds, read)


def _fields(vector: test_beam.Vector) -> tuple[Coder, str]:
    return vector.coder, vector.data


def _list_elements() -> set[bytes]:
    """Elements that Flink's serializers wrote, and those of Kinesis; enumerators have no length before the array."""
    lines = [line for each in RELEASES for line in (DATA / f"flink-{each}.txt").read_text("utf-8").splitlines()]
    found = {bytes.fromhex(line.split()[1]) for line in lines}
    found |= {write_array_element(Versioned(version, raw)) for version, (raw, _) in test_kinesis.SPLITS.items()}
    found |= {write_versioned_array(Versioned(version, raw)) for version, (raw, _) in test_kinesis.ENUMERATORS.items()}
    return found | {len(each).to_bytes(4, "big") + each for each in found}


def _pass_through(codec: Codec, element: bytes) -> None:
    value = codec.read(element, BYTES, CONTEXT)
    list(codec.rows(value))
    codec.write(value, BYTES, CONTEXT)


def _fits(codec: Codec, element: bytes) -> bool:
    try:
        _pass_through(codec, element)
    except StateError:
        return False
    return True


VALUE_READERS: dict[str, Callable[[], ByteReader]] = {
    "connectors": make_connector_reader,
    "protobuf": make_protobuf_reader,
    "protobuf-descriptors": make_descriptor_reader,
    "thrift": make_thrift_reader,
    "thrift-files": make_thrift_file_reader,
    "beam-values": make_beam_reader,
}
"""By name: makes the reader."""
