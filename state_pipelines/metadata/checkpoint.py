"""The `_metadata` file: the content of a checkpoint or savepoint, its properties, and ids of operators.

* `CheckpointMetadata`, `read_metadata`, `write_metadata`: the file. Source:
  `org.apache.flink.runtime.checkpoint.Checkpoints` and `MetadataV2V3SerializerBase` with its subclasses.
* `CheckpointProperties`, `find_snapshot_kind`: properties of a checkpoint or savepoint. Flink writes them with Java
  serialization at the end of `_metadata` since version 4, and reads them with the class, so the serial version uids
  below are defined by the format. Source: `org.apache.flink.runtime.checkpoint.CheckpointProperties`.
* `compute_operator_id`, `parse_operator_id`, `find_operator_id`: ids of operators.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import (
    ENUM,
    SERIALIZABLE,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaFieldDesc,
    JavaObject,
    JavaString,
    JavaValue,
    read_stream,
    write_stream,
)
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    StateError,
    UnsupportedError,
    UnsupportedVersionError,
    UsageError,
    ValueRangeError,
    Where,
    at,
    older_than_promised,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChannelDirection,
    ChannelStateHandle,
    KeyedStateHandle,
    MergedChannelStateHandle,
    OperatorStateHandle,
    read_channel_handles,
    read_keyed_handle,
    read_operator_handle,
    read_optional_stream_handle,
    write_channel_handles,
    write_keyed_handle,
    write_operator_handle,
    write_stream_handle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_HEX = re.compile("[0-9a-fA-F]{32}")


def compute_operator_id(uid: str) -> bytes:
    """Return the 16 bytes of the operator id for `uid`: murmur3_128 (x64, seed 0) of its UTF-8 bytes.

    Unpaired surrogates, which UTF-8 cannot encode, become question marks, as in Java.
    """
    return murmur3_128(uid.encode(errors="replace"))


def format_operator_id(operator_id: bytes) -> str:
    """Return the 32 hexadecimal digits of an operator id, as Flink prints them."""
    return operator_id.hex()


def parse_operator_id(text: str) -> bytes:
    """Return the 16 bytes of an operator id that is given as hexadecimal digits.

    Raises:
        UsageError: `text` is not 32 hexadecimal digits.
    """
    if not is_operator_id(text):
        raise UsageError(f"{text!r} is not an operator id of 32 hexadecimal digits")
    return bytes.fromhex(text)


def is_operator_id(text: str) -> bool:
    """Return whether `text` has the form of an operator id (a uid may have that form too)."""
    return _HEX.fullmatch(text) is not None


def find_operator_id(name: str) -> bytes:
    """Return the operator id of `name`: 32 hexadecimal digits are an id, anything else is a uid."""
    return parse_operator_id(name) if is_operator_id(name) else compute_operator_id(name)


def murmur3_128(data: bytes, seed: int = 0) -> bytes:
    """Return MurmurHash3 x64 of 128 bits: both halves little-endian, as Guava's `Hashing.murmur3_128` returns them."""
    h1 = h2 = seed
    whole = len(data) // 16 * 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 ^= _mix_k1(k1)
        h1 = (_rotate(h1, 27) + h2 & _MASK) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mix_k2(k2)
        h2 = (_rotate(h2, 31) + h1 & _MASK) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:].ljust(16, b"\0")
    k1, k2 = struct.unpack("<QQ", tail)
    h1 ^= _mix_k1(k1) ^ len(data)
    h2 ^= _mix_k2(k2) ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return struct.pack("<QQ", h1, h2)


def _mix_k1(k1: int) -> int:
    return _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k2: int) -> int:
    return _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


class SharingFilesStrategy(Enum):
    """The files that a checkpoint may share (`SnapshotType.SharingFilesStrategy`)."""

    FORWARD_BACKWARD = "FORWARD_BACKWARD"
    FORWARD = "FORWARD"
    NO_SHARING = "NO_SHARING"


class SavepointFormatType(Enum):
    """The format of a savepoint (`org.apache.flink.core.execution.SavepointFormatType`)."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"


class PostCheckpointAction(Enum):
    """The action of the job after the savepoint (`SavepointType.PostCheckpointAction`)."""

    NONE = "NONE"
    SUSPEND = "SUSPEND"
    TERMINATE = "TERMINATE"


class SnapshotKind(StrEnum):
    """Kind of a snapshot, as reports name it."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    UNKNOWN = "unknown"
    """Before Flink 1.16 `_metadata` does not say."""


@dataclass(frozen=True, slots=True)
class CheckpointType:
    """Type of a checkpoint, incremental or full (`org.apache.flink.runtime.checkpoint.CheckpointType`)."""

    name: str = "Checkpoint"
    sharing_files_strategy: SharingFilesStrategy = SharingFilesStrategy.FORWARD_BACKWARD


@dataclass(frozen=True, slots=True)
class SavepointType:
    """Type of a savepoint (`SavepointType`): `Savepoint`, `Suspend Savepoint` or `Terminate Savepoint`."""

    format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    name: str = "Savepoint"
    post_checkpoint_action: PostCheckpointAction = PostCheckpointAction.NONE


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """Checkpoint properties; the flags have the order of the stream.

    Attributes:
        checkpoint_type: checkpoint or savepoint, and which.
        discard_cancelled: Flink deletes the checkpoint when the job is cancelled.
        discard_failed: Flink deletes it when the job fails.
        discard_finished: Flink deletes it when the job finishes.
        discard_subsumed: Flink deletes it when a later checkpoint replaces it.
        discard_suspended: Flink deletes it when the job is suspended.
        forced: it was taken although other checkpoints were running; true for savepoints.
        unclaimed: a job was restored from it in NO_CLAIM mode; Flink sets this in memory only.
    """

    checkpoint_type: CheckpointType | SavepointType
    discard_cancelled: bool = False
    discard_failed: bool = False
    discard_finished: bool = False
    discard_subsumed: bool = False
    discard_suspended: bool = False
    forced: bool = False
    unclaimed: bool = False

    @property
    def is_savepoint(self) -> bool:
        """Whether this is a savepoint; Flink never deletes savepoints itself."""
        return isinstance(self.checkpoint_type, SavepointType)


def find_snapshot_kind(properties: CheckpointProperties | bytes | None) -> SnapshotKind:
    """Return the kind of the snapshot whose `_metadata` has these properties."""
    if not isinstance(properties, CheckpointProperties):
        return SnapshotKind.UNKNOWN
    return SnapshotKind.SAVEPOINT if properties.is_savepoint else SnapshotKind.CHECKPOINT


def make_savepoint_properties(format_type: SavepointFormatType) -> CheckpointProperties:
    """Return the properties of a savepoint that a user asked for (`CheckpointProperties.forSavepoint`)."""
    return CheckpointProperties(SavepointType(format_type), forced=True)


def make_checkpoint_properties(checkpoint_type: CheckpointType) -> CheckpointProperties:
    """Return the properties of a checkpoint that is kept on cancellation (`RETAIN_ON_CANCELLATION`)."""
    return CheckpointProperties(checkpoint_type, discard_finished=True, discard_subsumed=True)


_PACKAGE = "org.apache.flink.runtime.checkpoint."
_FLAGS = tuple(member.name for member in fields(CheckpointProperties))[1:]
_STRING = "Ljava/lang/String;"
_ENUM_DESC = JavaClassDesc("java.lang.Enum", 0, SERIALIZABLE | ENUM)
_ENUM_CLASSES: dict[type[Enum], str] = {
    SharingFilesStrategy: _PACKAGE + "SnapshotType$SharingFilesStrategy",
    SavepointFormatType: "org.apache.flink.core.execution.SavepointFormatType",
    PostCheckpointAction: _PACKAGE + "SavepointType$PostCheckpointAction",
}
_ENUM_DESCS = {
    kind: JavaClassDesc(name, 0, SERIALIZABLE | ENUM, (), _ENUM_DESC) for kind, name in _ENUM_CLASSES.items()
}


def _describe(name: str, suid: int, *members: tuple[str, str]) -> JavaClassDesc:
    described = tuple(
        JavaFieldDesc("Z", member) if signature == "Z" else JavaFieldDesc("L", member, JavaString(signature))
        for member, signature in members
    )
    return JavaClassDesc(name, suid, SERIALIZABLE, described)


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(map(str.title, tail))


def _signature(kind: type[Enum]) -> str:
    return f"L{_ENUM_CLASSES[kind].replace('.', '/')};"


_PROPERTIES_DESC = _describe(
    _PACKAGE + "CheckpointProperties",
    2,
    *((_camel_case(flag), "Z") for flag in _FLAGS),
    ("checkpointType", "Lorg/apache/flink/runtime/checkpoint/SnapshotType;"),
)
_CHECKPOINT_DESC = _describe(
    _PACKAGE + "CheckpointType",
    -0x2921B0FCFA51E2C6,
    ("name", _STRING),
    ("sharingFilesStrategy", _signature(SharingFilesStrategy)),
)
_SAVEPOINT_DESC = _describe(
    _PACKAGE + "SavepointType",
    -0x5F782CF75BA7EB48,
    ("formatType", _signature(SavepointFormatType)),
    ("name", _STRING),
    ("postCheckpointAction", _signature(PostCheckpointAction)),
)


def read_properties(reader: Reader) -> CheckpointProperties | bytes:
    """Read the properties of a checkpoint; return their bytes if the Java stream is complete but of an unknown kind.

    Raises:
        FormatError: not a Java serialization stream, or truncated.
    """
    start = reader.position
    content = read_stream(reader)
    raw = bytes(reader.data[start : reader.position])
    properties = _to_properties(content)
    return properties if properties is not None and write_properties(properties) == raw else raw


def write_properties(properties: CheckpointProperties | bytes) -> bytes:
    """Encode the properties of a checkpoint; the inverse of `read_properties`."""
    if isinstance(properties, bytes):
        return properties
    kind = properties.checkpoint_type
    flags = tuple(bool(getattr(properties, flag)) for flag in _FLAGS)
    if isinstance(kind, SavepointType):
        action = _to_java_enum(kind.post_checkpoint_action)
        snapshot = _to_java_object(_SAVEPOINT_DESC, _to_java_enum(kind.format_type), JavaString(kind.name), action)
    else:
        strategy = _to_java_enum(kind.sharing_files_strategy)
        snapshot = _to_java_object(_CHECKPOINT_DESC, JavaString(kind.name), strategy)
    return write_stream(_to_java_object(_PROPERTIES_DESC, *flags, snapshot))


def _to_java_object(desc: JavaClassDesc, *values: JavaValue) -> JavaObject:
    return JavaObject(desc, (JavaClassData(values),))


def _to_java_enum(value: Enum) -> JavaEnum:
    return JavaEnum(_ENUM_DESCS[type(value)], JavaString(value.name))


def _to_properties(content: JavaContent) -> CheckpointProperties | None:
    if not isinstance(content, JavaObject) or content.class_name != _PROPERTIES_DESC.name:
        return None
    values = content.fields
    kind = _to_snapshot_type(values.get("checkpointType"))
    if kind is None:
        return None
    return CheckpointProperties(kind, **{flag: values.get(_camel_case(flag)) is True for flag in _FLAGS})


def _to_snapshot_type(value: JavaValue) -> CheckpointType | SavepointType | None:
    if not isinstance(value, JavaObject):
        return None
    name = value.fields.get("name")
    if not isinstance(name, str):
        return None
    if value.class_name == _CHECKPOINT_DESC.name:
        strategy = _to_enum(SharingFilesStrategy, value.fields.get("sharingFilesStrategy"))
        return None if strategy is None else CheckpointType(name, strategy)
    if value.class_name == _SAVEPOINT_DESC.name:
        format_type = _to_enum(SavepointFormatType, value.fields.get("formatType"))
        action = _to_enum(PostCheckpointAction, value.fields.get("postCheckpointAction"))
        return None if format_type is None or action is None else SavepointType(format_type, name, action)
    return None


_AnyEnum = TypeVar("_AnyEnum", bound=Enum)


def _to_enum(kind: type[_AnyEnum], value: JavaValue) -> _AnyEnum | None:
    known = isinstance(value, JavaEnum) and value.constant in kind.__members__
    return kind[value.constant] if known and isinstance(value, JavaEnum) else None


MAGIC = 0x4960672D
MASTER_STATE_MAGIC = 0xC96B1696
VERSIONS = range(2, 8)
"""Metadata versions that are read and written: Flink 1.3 to the newest."""

FIRST_VERSION_WITH_PROPERTIES = 4
"""The oldest metadata version that has checkpoint properties."""

_FULLY_FINISHED = -1


@dataclass(frozen=True, slots=True)
class MasterState:
    """State of a master hook (`org.apache.flink.runtime.checkpoint.MasterState`)."""

    name: str
    version: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """State of one subtask (`org.apache.flink.runtime.checkpoint.OperatorSubtaskState`).

    Attributes:
        index: subtask index, from 0.
        finished: the subtask had finished; it has no state.
        managed_operator_state: operator state, or None.
        raw_operator_state: raw operator state, or None.
        managed_keyed_state: keyed state, or None.
        raw_keyed_state: raw keyed state (legacy timers), or None.
        input_channel_state: in-flight data of the inputs of the subtask.
        result_subpartition_state: in-flight data of the outputs of the subtask.
        reference_checkpoint_id: first checkpoint with this state (version 7), or None.
    """

    index: int
    finished: bool = False
    managed_operator_state: OperatorStateHandle | None = None
    raw_operator_state: OperatorStateHandle | None = None
    managed_keyed_state: KeyedStateHandle | None = None
    raw_keyed_state: KeyedStateHandle | None = None
    input_channel_state: tuple[ChannelStateHandle | MergedChannelStateHandle, ...] = ()
    result_subpartition_state: tuple[ChannelStateHandle | MergedChannelStateHandle, ...] = ()
    reference_checkpoint_id: int | None = None


REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
"""Bytes that a conversion of text encodings writes for bytes that it cannot read."""

FEWEST_REPLACEMENTS = 8
"""Smallest number of replacement characters in an unreadable file that makes a text conversion the likely cause."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one operator (`org.apache.flink.runtime.checkpoint.OperatorState`).

    Attributes:
        operator_id: 16 bytes, in the order of their hexadecimal text.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        subtasks: the subtasks that the file mentions, in its order; those without state may be missing.
        name: operator name (version 5), or None.
        uid: uid that the user gave the operator (version 5), or None.
        coordinator_state: state of the operator coordinator, or None.
        fully_finished: all subtasks had finished; there is no state.
    """

    operator_id: bytes
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...] = ()
    name: str | None = None
    uid: str | None = None
    coordinator_state: ByteStreamStateHandle | None = None
    fully_finished: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Content of a `_metadata` file (`org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata`).

    Attributes:
        version: metadata version, one of `VERSIONS`.
        checkpoint_id: id of the checkpoint or savepoint, from 0.
        master_states: states of master hooks.
        operator_states: operators, in the order of the file.
        properties: the properties; their bytes if they are of an unknown kind; None before version 4.
    """

    version: int
    checkpoint_id: int
    master_states: tuple[MasterState, ...] = ()
    operator_states: tuple[OperatorState, ...] = ()
    properties: CheckpointProperties | bytes | None = None

    def map_subtasks(self, change: Callable[[OperatorState, SubtaskState], SubtaskState]) -> CheckpointMetadata:
        """Return the metadata with each subtask replaced by the result of `change` for its operator and the subtask."""
        operators = (
            replace(operator, subtasks=tuple(change(operator, each) for each in operator.subtasks))
            for operator in self.operator_states
        )
        return replace(self, operator_states=tuple(operators))


def read_metadata(data: bytes, name: str | None = None) -> CheckpointMetadata:
    """Read a whole `_metadata` file.

    Args:
        data: the content of the file.
        name: path or URL of the file, for errors.

    Raises:
        FormatError: the bytes are not a `_metadata` file, end early or go on after its end, or an operator or a uid is
            listed twice; also when a text conversion has destroyed the file.
        UnsupportedVersionError: the version is 0 or 1, or one that is not known.
    """
    try:
        return _read_metadata(data, name)
    except StateError as error:
        replaced = data.count(REPLACEMENT)
        if replaced < FEWEST_REPLACEMENTS:
            raise
        raise FormatError(
            f"the file was destroyed by a conversion of text: it holds {replaced:,} times the bytes ef bf bd "
            "(U+FFFD), which replaced bytes that are not UTF-8",
            where=Where(file=name),
            hint="Copy the snapshot again, as binary data (for git: `*/_metadata binary` in .gitattributes)",
        ) from error


def _read_metadata(data: bytes, name: str | None) -> CheckpointMetadata:
    reader = Reader(data, name)
    if reader.remaining < 8 or reader.i32() != MAGIC:
        raise reader.error(
            "not a _metadata file, its first bytes are not 49 60 67 2D", 0, "Give a snapshot directory or its _metadata"
        )
    version = reader.i32()
    if version not in VERSIONS:
        raise _unsupported_version(version, name)
    position = reader.position
    checkpoint_id = reader.i64()
    if checkpoint_id < 0:
        raise reader.error(f"checkpoint id {checkpoint_id} is negative", position)
    master_states = tuple(_read_master_state(reader) for _ in range(reader.count(8)))
    position = reader.position
    operator_states = tuple(_read_operator_state(reader, version) for _ in range(reader.count(28)))
    known: set[bytes] = set()
    uids: set[str] = set()
    for each in operator_states:
        if each.operator_id in known:
            # Of two operators with one id, Flink silently restores the last (`Checkpoints.loadAndValidateCheckpoint`).
            raise reader.error(f"the operator {each.operator_id.hex()} is listed twice", position, EDITED_METADATA)
        known.add(each.operator_id)
        if each.uid is not None:
            # A job cannot have a uid twice, because the operator id is the hash of the uid (`StreamGraphHasherV2`).
            if each.uid in uids:
                raise reader.error(f"two operators have the uid {each.uid}", position, EDITED_METADATA)
            uids.add(each.uid)
    properties = read_properties(reader) if version >= FIRST_VERSION_WITH_PROPERTIES else None
    reader.expect_end("the metadata")
    return CheckpointMetadata(version, checkpoint_id, master_states, operator_states, properties)


def write_metadata(metadata: CheckpointMetadata) -> bytes:
    """Encode a whole `_metadata` file; the inverse of `read_metadata`.

    Raises:
        ValueRangeError: the version is not one of `VERSIONS` or cannot store a field of the value
            (see `with_version`).
    """
    version = metadata.version
    if version not in VERSIONS:
        raise ValueRangeError(f"metadata version {version} cannot be written", hint=f"Choose one of {list(VERSIONS)}")
    writer = Writer()
    writer.i32(MAGIC)
    writer.i32(version)
    if metadata.checkpoint_id < 0:
        raise ValueRangeError(f"checkpoint id {metadata.checkpoint_id} is negative")
    writer.i64(metadata.checkpoint_id)
    writer.i32(len(metadata.master_states))
    for master_state in metadata.master_states:
        _write_master_state(writer, master_state)
    writer.i32(len(metadata.operator_states))
    for operator_state in metadata.operator_states:
        with at(operator=operator_state.uid or operator_state.operator_id.hex()):
            _write_operator_state(writer, operator_state, version)
    _require(version >= FIRST_VERSION_WITH_PROPERTIES or metadata.properties is None, version, "checkpoint properties")
    if version >= FIRST_VERSION_WITH_PROPERTIES:
        if metadata.properties is None:
            raise ValueRangeError(f"metadata version {version} needs checkpoint properties")
        writer.take(write_properties(metadata.properties))
    return writer.getvalue()


def with_version(
    metadata: CheckpointMetadata, version: int, properties: CheckpointProperties | None = None
) -> CheckpointMetadata:
    """Return the same snapshot for another metadata version.

    Fields that the version does not have are dropped: operator names and uids before 5, properties before 4, and
    reference checkpoint ids before 7. All of them are informative only. State is never dropped: `write_metadata`
    raises ValueRangeError for state that the version cannot store.

    Args:
        metadata: the snapshot.
        version: one of `VERSIONS`.
        properties: used if the version has properties and `metadata` has none.
    """
    return replace(
        metadata,
        version=version,
        operator_states=tuple(_operator_with_version(state, version) for state in metadata.operator_states),
        properties=(metadata.properties or properties) if version >= FIRST_VERSION_WITH_PROPERTIES else None,
    )


def _operator_with_version(state: OperatorState, version: int) -> OperatorState:
    if version < 5:
        state = replace(state, name=None, uid=None)
    if version < 7 and any(subtask.reference_checkpoint_id is not None for subtask in state.subtasks):
        subtasks = tuple(replace(subtask, reference_checkpoint_id=None) for subtask in state.subtasks)
        state = replace(state, subtasks=subtasks)
    return state


def _unsupported_version(version: int, name: str | None) -> UnsupportedVersionError:
    where = Where(file=name, offset=4)
    if version in (0, 1):
        error = older_than_promised(f"metadata of version {version}", where)
        error.hint = (
            "Flink 1.1 and 1.2 wrote it: take a savepoint with Flink 1.2 to 1.7, restore it with 1.8 to 1.16, and take "
            "another one there"
        )
        return error
    hint = f"Take a canonical savepoint with a Flink that writes one of the versions {VERSIONS[0]} to {VERSIONS[-1]}"
    return UnsupportedVersionError(f"metadata version {version} cannot be read", where=where, hint=hint)


def _require(condition: bool, version: int, what: str) -> None:
    if not condition:
        raise ValueRangeError(f"metadata version {version} cannot store {what}")


def _read_master_state(reader: Reader) -> MasterState:
    start = reader.position
    if reader.i32() & 0xFFFFFFFF != MASTER_STATE_MAGIC:
        raise reader.error("a master state does not begin with C9 6B 16 96", start)
    size = reader.count()
    content = Reader(reader.data, reader.name, reader.position, reader.position + size)
    version, name, payload = content.i32(), content.utf(), content.bytes32()
    content.expect_end("a master state")
    reader.skip(size)
    return MasterState(name, version, payload)


def _write_master_state(writer: Writer, state: MasterState) -> None:
    content = Writer()
    content.i32(state.version)
    content.utf(state.name)
    content.bytes32(state.payload)
    writer.i32(MASTER_STATE_MAGIC - (1 << 32))
    writer.bytes32(content.getvalue())


def _read_operator_state(reader: Reader, version: int) -> OperatorState:
    name, uid = (reader.utf() or None, reader.utf() or None) if version >= 5 else (None, None)
    operator_id = reader.take(16)
    with at(operator=uid or operator_id.hex()):
        parallelism = reader.i32()
        max_parallelism = reader.i32()
        coordinator_state = None
        if version == 2:
            reader.i32()  # the chain length of Flink 1.2; later releases write 1 and ignore it
        else:
            coordinator_state = _read_coordinator_state(reader)
        position = reader.position
        number = reader.i32()
        fully_finished = version >= 3 and number == _FULLY_FINISHED
        if not fully_finished and (number < 0 or number > reader.remaining // 4):
            raise reader.error(f"{number} is not a number of subtasks", position)
        subtasks = () if fully_finished else tuple(read_subtask_state(reader, version) for _ in range(number))
    return OperatorState(
        operator_id, parallelism, max_parallelism, subtasks, name, uid, coordinator_state, fully_finished
    )


def _write_operator_state(writer: Writer, state: OperatorState, version: int) -> None:
    if len(state.operator_id) != 16:
        raise ValueRangeError(f"an operator id has 16 bytes, not {len(state.operator_id)}")
    _require(version >= 5 or (state.name is None and state.uid is None), version, "an operator name or uid")
    if version >= 5:
        writer.utf(state.name or "")
        writer.utf(state.uid or "")
    writer.take(state.operator_id)
    writer.i32(state.parallelism)
    writer.i32(state.max_parallelism)
    _require(version >= 3 or state.coordinator_state is None, version, "coordinator state")
    if version == 2:
        writer.i32(1)
    else:
        write_stream_handle(writer, state.coordinator_state)
    _require(version >= 3 or not state.fully_finished, version, "finished operators")
    if state.fully_finished:
        if state.subtasks or state.coordinator_state is not None:
            raise ValueRangeError("a fully finished operator has no state")
        writer.i32(_FULLY_FINISHED)
        return
    writer.i32(len(state.subtasks))
    for subtask in state.subtasks:
        write_subtask_state(writer, subtask, version)


def _read_coordinator_state(reader: Reader) -> ByteStreamStateHandle | None:
    position = reader.position
    handle = read_optional_stream_handle(reader)
    if handle is not None and not isinstance(handle, ByteStreamStateHandle):
        raise reader.error("coordinator state is not inlined", position)
    return handle


def read_subtask_state(reader: Reader, version: int) -> SubtaskState:
    """Read the state of one subtask as metadata of `version` hold it.

    Raises:
        FormatError: a tag or flag is not allowed for subtasks.
        UnsupportedError: legacy state of Flink 1.1.
    """
    index = reader.i32()
    if index < 0:
        if version == 2:
            raise reader.error(f"subtask index {index} is negative", reader.position - 4)
        return SubtaskState(-index - 1, finished=True)
    if version == 2:
        reader.i64()  # the duration of old releases; always -1 since
        if reader.i32() != 0:
            raise UnsupportedError(
                "a subtask holds legacy state of Flink 1.1",
                where=Where(file=reader.name, offset=reader.position - 4),
                hint="Restore it with Flink 1.2 or 1.3 and take a new savepoint there",
            )
    return SubtaskState(
        index,
        managed_operator_state=read_operator_handle(reader) if _read_presence(reader) else None,
        raw_operator_state=read_operator_handle(reader) if _read_presence(reader) else None,
        managed_keyed_state=read_keyed_handle(reader),
        raw_keyed_state=read_keyed_handle(reader),
        input_channel_state=read_channel_handles(reader, ChannelDirection.INPUT, version) if version >= 3 else (),
        result_subpartition_state=read_channel_handles(reader, ChannelDirection.OUTPUT, version)
        if version >= 3
        else (),
        reference_checkpoint_id=reader.i64() if version >= 7 and reader.bool() else None,
    )


def write_subtask_state(writer: Writer, state: SubtaskState, version: int) -> None:
    """Write the state of one subtask; the inverse of `read_subtask_state`.

    Raises:
        ValueRangeError: the version cannot store a field of the value.
    """
    if state.finished:
        _require(version >= 3, version, "finished subtasks")
        writer.i32(-state.index - 1)
        return
    writer.i32(state.index)
    if version == 2:
        writer.i64(-1)
        writer.i32(0)
    for operator_handle in (state.managed_operator_state, state.raw_operator_state):
        writer.i32(0 if operator_handle is None else 1)
        if operator_handle is not None:
            write_operator_handle(writer, operator_handle)
    write_keyed_handle(writer, state.managed_keyed_state)
    write_keyed_handle(writer, state.raw_keyed_state)
    channels = (
        (state.input_channel_state, ChannelDirection.INPUT),
        (
            state.result_subpartition_state,
            ChannelDirection.OUTPUT,
        ),
    )
    for handles, direction in channels:
        _require(version >= 3 or not handles, version, "channel state")
        if version >= 3:
            write_channel_handles(writer, handles, direction, version)
    _require(version >= 7 or state.reference_checkpoint_id is None, version, "a reference checkpoint id")
    if version >= 7:
        writer.bool(state.reference_checkpoint_id is not None)
        if state.reference_checkpoint_id is not None:
            writer.i64(state.reference_checkpoint_id)


def _read_presence(reader: Reader) -> bool:
    position = reader.position
    flag = reader.i32()
    if flag not in (0, 1):
        raise reader.error(f"{flag} is not a handle flag (0 or 1)", position)
    return flag == 1
