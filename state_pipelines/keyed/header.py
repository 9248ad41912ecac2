"""Header of keyed state: key serializer and the states, in the order of their ids.

The same header stands in canonical files, in heap native files and in the meta stream of RocksDB snapshots.
Source: `KeyedBackendSerializationProxy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import Where, at, older_than_promised
from state_pipelines.serializers.metainfo import StateMetaInfo, read_state_meta_infos, write_state_meta_infos
from state_pipelines.serializers.registry import read_snapshot, write_snapshot

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer
    from state_pipelines.serializers.tree import Serializer

VERSION = 6


@dataclass(frozen=True, kw_only=True)
class KeyedHeader:
    """The header.

    Attributes:
        version: 6 since Flink 1.8.
        compressed: each key-group section is a snappy framed stream; the header itself never is.
        key_serializer: of the key that all states share.
        states: the position is the state id that records name.
    """

    version: int = VERSION
    compressed: bool = False
    key_serializer: Serializer
    states: tuple[StateMetaInfo, ...]


def read_keyed_header(reader: Reader) -> KeyedHeader:
    """Read the header and leave the reader at the first byte behind it.

    Raises:
        UnsupportedError: version 1 to 5, written before 1.8.
        UnknownSerializerError: a serializer has no reader; it names the state.
        FormatError: the bytes are not the header of keyed state.
    """
    start = reader.position
    version = reader.i32()
    if 1 <= version < VERSION:
        raise older_than_promised(f"keyed state header of version {version}", Where(file=reader.name, offset=start))
    if version != VERSION:
        raise reader.error(f"keyed state starts with version {VERSION}, not {version}", start)
    compressed = reader.bool()
    with at(path="key serializer"):
        key_serializer = read_snapshot(reader)
    return KeyedHeader(
        version=version, compressed=compressed, key_serializer=key_serializer, states=read_state_meta_infos(reader)
    )


def write_keyed_header(writer: Writer, header: KeyedHeader) -> None:
    """Mirror of `read_keyed_header`."""
    writer.i32(header.version)
    writer.bool(header.compressed)
    write_snapshot(writer, header.key_serializer)
    write_state_meta_infos(writer, header.states)
