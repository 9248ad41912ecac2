"""Snapshots of flink-datastream-protobuf, which hold the descriptors of the messages.

Source: `io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Protobuf

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

SNAPSHOT_CLASS = "io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot"
_VERSION = _FRAMING = _NORMALIZATION = 1
_DIGEST_SIZE = 32


def write_protobuf(writer: Writer, node: Protobuf) -> None:
    """Write what `read_protobuf` reads."""
    writer.i32(_FRAMING)
    writer.i32(_NORMALIZATION)
    writer.utf(node.message_class)
    writer.utf(node.message_name)
    writer.bool(node.deterministic)
    writer.i32(node.max_message_size)
    writer.i32(node.recursion_limit)
    writer.bytes32(node.descriptors)
    writer.take(hashlib.sha256(node.descriptors).digest())


@register(SNAPSHOT_CLASS, write=write_protobuf)
def read_protobuf(reader: Reader, head: Head) -> Protobuf:
    """Read names, settings and descriptors; the digest must be that of the descriptors."""
    head.expect(_VERSION)
    for what, known in (("framing", _FRAMING), ("normalization", _NORMALIZATION)):
        start, version = reader.position, reader.i32()
        if version != known:
            raise reader.error(f"version {version} of the {what} of messages is not known (known: {known})", start)
    node = Protobuf(
        **head.marks,
        message_class=reader.utf(),
        message_name=reader.utf(),
        deterministic=reader.bool(),
        max_message_size=reader.i32(),
        recursion_limit=reader.i32(),
        descriptors=reader.bytes32(),
    )
    start = reader.position
    if reader.take(_DIGEST_SIZE) != hashlib.sha256(node.descriptors).digest():
        raise reader.error("the digest after the descriptors is not theirs", start)
    return node
