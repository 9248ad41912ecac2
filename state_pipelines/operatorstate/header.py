"""Header of operator state: list states (split and union), then broadcast states.

Source: `OperatorBackendSerializationProxy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.errors import UsageError, Where, older_than_promised, unsupported_version
from state_pipelines.serializers.body_ends import OpenBodyError, read_settled
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    read_state_meta_infos,
    unread_state,
    write_state_meta_infos,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

# Version 5 is that of Flink 1.8 to 1.17; 6 (since 1.18) adds the flag of compression.
FIRST_VERSION = 5
FIRST_WITH_COMPRESSION = 6
VERSION = 6


@dataclass(frozen=True, kw_only=True)
class OperatorHeader:
    """The header.

    Attributes:
        version: 5 or 6.
        compressed: the payload is a snappy framed stream that starts right after the header.
        lists: list states; their elements are found through the offsets of the state handle only.
        broadcasts: broadcast states.
        raw: the bytes of a header that cannot be read completely and is written unchanged; else empty.
    """

    version: int = VERSION
    compressed: bool = False
    lists: tuple[StateMetaInfo, ...] = ()
    broadcasts: tuple[StateMetaInfo, ...] = ()
    raw: bytes = field(default=b"", repr=False)

    @cached_property
    def by_name(self) -> dict[str, StateMetaInfo]:
        """The states by name, lists first; of two of one name the first."""
        found: dict[str, StateMetaInfo] = {}
        for info in (*self.lists, *self.broadcasts):
            found.setdefault(info.name, info)
        return found

    def has_list(self, name: str) -> bool:
        """Return whether there is a list state of a name."""
        info = self.by_name.get(name)
        return info is not None and info.backend_type is not BackendStateType.BROADCAST


def read_operator_header(reader: Reader) -> OperatorHeader:
    """Read the header.

    Raises:
        UnsupportedVersionError: version 1 to 4, written before 1.8, or a later one than 6.
        UnknownSerializerError: a serializer has no reader; it names the state.
        FormatError: the bytes are not the header of operator state.
    """
    start = reader.position
    version = reader.i32()
    if 1 <= version < FIRST_VERSION:
        raise older_than_promised(f"operator state header of version {version}", Where(file=reader.name, offset=start))
    if not FIRST_VERSION <= version <= VERSION:
        where = Where(file=reader.name, offset=start)
        raise unsupported_version("operator state", version, f"{FIRST_VERSION} and {VERSION}", where)
    compressed = reader.bool() if version >= FIRST_WITH_COMPRESSION else False
    header = OperatorHeader(version=version, compressed=compressed)
    try:
        header = replace(header, lists=read_state_meta_infos(reader))
        return replace(header, broadcasts=read_state_meta_infos(reader))
    except OpenBodyError as error:
        found = (*header.lists, *error.infos)
        error.header = replace(
            header,
            lists=tuple(info for info in found if info.backend_type is not BackendStateType.BROADCAST),
            broadcasts=tuple(info for info in found if info.backend_type is BackendStateType.BROADCAST),
        )
        raise


def settle_operator_header(
    data: bytes,
    name: str | None,
    end: int,
    states: Mapping[str, str],
    declared: Sequence[DeclaredSerializer] = (),
) -> tuple[OperatorHeader, int]:
    """Read a header with unknown serializer snapshots as far as possible.

    Args:
        data: begins with the header.
        name: of the file, for errors.
        end: offset of the payload, of a compressed file that of its first chunk.
        states: distribution mode by name of all states, from `_metadata`.
        declared: snapshot classes that the user declares.

    Returns:
        The header, and its end. A header that cannot be read completely has its bytes (`raw`), and placeholders
            for the unread states.

    Raises:
        UnsupportedError, FormatError: as `read_operator_header`.
    """
    stop = end
    if data[end - len(STREAM_ID) : end] == STREAM_ID and data[3:5] == b"\6\1":
        stop = end - len(STREAM_ID)
    try:
        return read_settled(read_operator_header, data, name, end=stop, declared=declared)
    except OpenBodyError as error:
        if not isinstance(error.header, OperatorHeader):
            raise
        read = {info.name for info in (*error.header.lists, *error.header.broadcasts)}
        unread = [
            unread_state(
                each,
                BackendStateType.BROADCAST if mode == StateKind.BROADCAST else BackendStateType.OPERATOR,
                error.node,
                mode,
            )
            for each, mode in states.items()
            if each not in read
        ]
        return replace(
            error.header,
            lists=(*error.header.lists, *(info for info in unread if info.backend_type is BackendStateType.OPERATOR)),
            broadcasts=(
                *error.header.broadcasts,
                *(info for info in unread if info.backend_type is BackendStateType.BROADCAST),
            ),
            raw=data[:stop],
        ), stop


def write_operator_header(writer: Writer, header: OperatorHeader) -> None:
    """Write what `read_operator_header` reads.

    Raises:
        UsageError: a compressed header of version 5, which cannot store the flag.
    """
    if header.compressed and header.version < FIRST_WITH_COMPRESSION:
        raise UsageError(
            f"version {header.version} of the operator state header cannot mark a compressed payload",
            hint=f"Write version {VERSION}",
        )
    if header.raw:
        writer.take(header.raw)
        return
    writer.i32(header.version)
    if header.version >= FIRST_WITH_COMPRESSION:
        writer.bool(header.compressed)
    write_state_meta_infos(writer, header.lists)
    write_state_meta_infos(writer, header.broadcasts)
