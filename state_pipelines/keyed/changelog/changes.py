"""The bytes of logged changes: what the changelog state backend appends, and the files that it uploads.

A change is an operation, a state id and the key, namespace and value of the operation; metadata changes name the
state after an id. Changes lie in change sets, grouped by key group, the metadata (key group -1) first; change sets lie
in streams, whose first byte says whether the rest is one snappy framed stream.
Source: `AbstractStateChangeLogger`, `KvStateChangeLoggerImpl`, `ChangelogBackendLogApplier`, `StateChangeFormat`,
`StateChangeFsUploader`, `ChangelogStreamWrapper`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import read_stream
from state_pipelines.binary.snappy_frames import compress
from state_pipelines.errors import FormatError, UnknownSerializerError, UsageError, Where, unsupported_version
from state_pipelines.metadata.handles import StateChange
from state_pipelines.serializers.body_ends import OpenBodyError, read_settled
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    read_state_meta_info,
    write_state_meta_info,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

METADATA_KEY_GROUP = -1
"""Key group under which metadata changes are logged (`StateChange.META_KEY_GROUP`)."""

_PLAIN, _COMPRESSED = 0, 1
_VERSIONS = (6, 7)
_TYPE_CODES = {BackendStateType.KEY_VALUE: 0, BackendStateType.PRIORITY_QUEUE: 3, BackendStateType.KEY_VALUE_V2: 10}
# State id and type code.
_TAIL = 3


class Operation(IntEnum):
    """`StateChangeOperation`; the byte in front of a change."""

    CLEAR = 0
    SET = 1
    SET_INTERNAL = 2
    ADD = 3
    MERGE_NS = 4
    ADD_ELEMENT = 5
    ADD_OR_UPDATE_ELEMENT = 6
    REMOVE_ELEMENT = 7
    METADATA = 8


@dataclass(frozen=True, kw_only=True)
class MetadataChange:
    """Assigns a state id from here on.

    Attributes:
        version: of the meta info, 6 or 7.
        info: the state.
        state_id: number in the data changes that follow.
        ttl_config: `StateTtlConfig` as a Java serialization stream, as it was read; None without TTL.
        default_value: default value in the state's serializer; None when there is none.
    """

    version: int = 7
    info: StateMetaInfo
    state_id: int
    ttl_config: bytes | None = field(default=None, repr=False)
    default_value: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class DataChange:
    """One operation on one state.

    Attributes:
        operation: what was done.
        state_id: as the metadata change in front of it says.
        payload: key and namespace (not for timers), then the operands; only layouts separate them.
    """

    operation: Operation
    state_id: int
    payload: bytes


def read_metadata_change(
    change: bytes, name: str | None = None, declared: Sequence[DeclaredSerializer] = ()
) -> MetadataChange:
    """Read a change of key group -1.

    Where a serializer has no reader and the end of its snapshot cannot be proven, the state has a stand-in for what
    comes after it, and neither TTL nor default value is known. Such a change cannot be written.

    Args:
        change: all bytes of the change.
        name: of the file, for errors.
        declared: snapshot classes that the user declares.

    Raises:
        FormatError: the bytes are not a metadata change.
    """
    try:
        return _read_metadata_change(Reader(change, name))
    except UnknownSerializerError:
        pass
    try:
        return read_settled(_read_metadata_change, change, name, end=len(change), declared=declared)[0]
    except OpenBodyError as error:
        if not error.infos:
            raise
        (info,) = error.infos
        tail = Reader(change, name, len(change) - _TAIL)
        return MetadataChange(info=info, state_id=tail.u16())


def _read_metadata_change(reader: Reader) -> MetadataChange:
    if (operation := reader.u8()) != Operation.METADATA:
        raise reader.error(f"a change of metadata begins with {Operation.METADATA}, not {operation}", 0)
    version = reader.i32()
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise unsupported_version("a change of metadata", version, known, Where(file=reader.name, offset=1))
    info = read_state_meta_info(reader)
    ttl_config = default_value = None
    if info.backend_type is not BackendStateType.PRIORITY_QUEUE:
        if reader.bool():
            start = reader.position
            read_stream(reader)
            end, reader.position = reader.position, start
            ttl_config = reader.take(end - start)
        if reader.bool():
            # Its length is the rest that the later fields leave.
            default_value = reader.take(reader.remaining - _TAIL)
    state_id = reader.u16()
    if (code := reader.u8()) != _TYPE_CODES.get(info.backend_type):
        raise reader.error(f"{code} is not the code of {info.backend_type} state {info.name}", reader.position - 1)
    reader.expect_end("the change of metadata")
    return MetadataChange(
        version=version, info=info, state_id=state_id, ttl_config=ttl_config, default_value=default_value
    )


def write_metadata_change(change: MetadataChange) -> bytes:
    """Mirror of `read_metadata_change`.

    Raises:
        UsageError: the state is not keyed state, or a priority queue has TTL or a default value.
    """
    if change.info.backend_type not in _TYPE_CODES:
        raise UsageError(f"{change.info.backend_type} state has no changes", where=Where(state=change.info.name))
    writer = Writer()
    writer.u8(Operation.METADATA)
    writer.i32(change.version)
    write_state_meta_info(writer, change.info)
    if change.info.backend_type is not BackendStateType.PRIORITY_QUEUE:
        for content in (change.ttl_config, change.default_value):
            writer.bool(content is not None)
            writer.take(content or b"")
    elif change.ttl_config is not None or change.default_value is not None:
        raise UsageError("a priority queue has neither TTL nor a default value", where=Where(state=change.info.name))
    writer.u16(change.state_id)
    writer.u8(_TYPE_CODES[change.info.backend_type])
    return writer.getvalue()


def read_data_change(change: bytes, name: str | None = None) -> DataChange:
    """Read a change of a key group.

    Raises:
        FormatError: the change is shorter than its head, or has no such operation.
    """
    reader = Reader(change, name)
    operation = reader.u8()
    if operation >= Operation.METADATA:
        raise reader.error(f"{operation} is not an operation on state", 0)
    return DataChange(Operation(operation), reader.u16(), reader.take(reader.remaining))


def write_data_change(change: DataChange) -> bytes:
    """Mirror of `read_data_change`."""
    writer = Writer()
    writer.u8(change.operation)
    writer.u16(change.state_id)
    writer.take(change.payload)
    return writer.getvalue()


def read_change_set(reader: Reader) -> tuple[StateChange, ...]:
    """Read one change set; the reader ends after it.

    Raises:
        FormatError: a count or length does not fit, or a group is empty.
    """
    changes: list[StateChange] = []
    for _ in range(reader.count(8)):
        start, count, key_group = reader.position, reader.count(4), reader.i32()
        if count == 0 or key_group < METADATA_KEY_GROUP:
            raise reader.error(f"a change set has {count} changes of key group {key_group}", start)
        changes.extend(StateChange(key_group, reader.bytes32()) for _ in range(count))
    return tuple(changes)


def write_change_set(writer: Writer, changes: Iterable[StateChange]) -> None:
    """Mirror of `read_change_set`: groups ascend, so metadata comes first; inside a group the order is kept."""
    groups: dict[int, list[StateChange]] = {}
    for change in changes:
        groups.setdefault(change.key_group, []).append(change)
    writer.i32(len(groups))
    for key_group in sorted(groups):
        writer.i32(len(groups[key_group]))
        writer.i32(key_group)
        for change in groups[key_group]:
            writer.bytes32(change.change)


def is_compressed(flag: bytes, name: str) -> bool:
    """Return whether the first byte of a stream of change sets marks compression.

    Raises:
        FormatError: there is none, or it says neither.
    """
    if flag not in (bytes((_PLAIN,)), bytes((_COMPRESSED,))):
        raise FormatError(
            f"a stream of changes does not begin with {flag.hex() or 'nothing'}", where=Where(file=name, offset=0)
        )
    return flag[0] == _COMPRESSED


def write_change_stream(
    change_sets: Sequence[Iterable[StateChange]], *, compressed: bool = False
) -> tuple[bytes, tuple[int, ...]]:
    """A stream of change sets, and the position of each for the handle.

    Returns:
        (bytes of the file, positions in the uncompressed data after the first byte).
    """
    writer, offsets = Writer(), []
    for changes in change_sets:
        offsets.append(len(writer))
        write_change_set(writer, changes)
    data = writer.getvalue()
    if compressed:
        return bytes((_COMPRESSED,)) + compress(data), tuple(offsets)
    return bytes((_PLAIN,)) + data, tuple(offsets)
