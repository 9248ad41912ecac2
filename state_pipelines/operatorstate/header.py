"""Header of operator state: list states (split and union), then broadcast states.

Source: `OperatorBackendSerializationProxy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where, older_than_promised
from state_pipelines.serializers.metainfo import StateMetaInfo, read_state_meta_infos, write_state_meta_infos

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer

# Version 5 is that of Flink 1.8 to 1.17; 6 (since 1.18) adds the flag of compression.
FIRST_VERSION = 5
FIRST_WITH_COMPRESSION = 6
VERSION = 6


@dataclass(frozen=True, kw_only=True)
class OperatorHeader:
    """The header.

    Attributes:
        version: 5 or 6.
        compressed: the payload is a snappy framed stream that starts right behind the header.
        lists: list states; their elements are found through the offsets of the state handle only.
        broadcasts: broadcast states.
    """

    version: int = VERSION
    compressed: bool = False
    lists: tuple[StateMetaInfo, ...] = ()
    broadcasts: tuple[StateMetaInfo, ...] = ()


def read_operator_header(reader: Reader) -> OperatorHeader:
    """Read the header and leave the reader at the first byte behind it.

    Raises:
        UnsupportedError: version 1 to 4, written before 1.8.
        UnknownSerializerError: a serializer has no reader; it names the state.
        FormatError: the bytes are not the header of operator state.
    """
    start = reader.position
    version = reader.i32()
    if 1 <= version < FIRST_VERSION:
        raise older_than_promised(f"operator state header of version {version}", Where(file=reader.name, offset=start))
    if not FIRST_VERSION <= version <= VERSION:
        raise reader.error(f"operator state starts with version {FIRST_VERSION} to {VERSION}, not {version}", start)
    compressed = reader.bool() if version >= FIRST_WITH_COMPRESSION else False
    lists = read_state_meta_infos(reader)
    broadcasts = read_state_meta_infos(reader)
    return OperatorHeader(version=version, compressed=compressed, lists=lists, broadcasts=broadcasts)


def write_operator_header(writer: Writer, header: OperatorHeader) -> None:
    """Mirror of `read_operator_header`.

    Raises:
        UsageError: a compressed header of version 5, which has no place for the flag.
    """
    if header.compressed and header.version < FIRST_WITH_COMPRESSION:
        raise UsageError(
            f"version {header.version} of the operator state header cannot say that the payload is compressed",
            hint=f"Write version {VERSION}",
        )
    writer.i32(header.version)
    if header.version >= FIRST_WITH_COMPRESSION:
        writer.bool(header.compressed)
    write_state_meta_infos(writer, header.lists)
    write_state_meta_infos(writer, header.broadcasts)
