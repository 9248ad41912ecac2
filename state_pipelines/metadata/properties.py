"""Properties of a checkpoint or savepoint (`org.apache.flink.runtime.checkpoint.CheckpointProperties`).

Flink writes them with Java serialization at the end of `_metadata` since version 4, and reads them with the class, so
the serial version uids below are part of the format.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.java_stream import read_stream, write_stream
from state_pipelines.binary.java_values import (
    ENUM,
    SERIALIZABLE,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaField,
    JavaObject,
    JavaString,
    JavaValue,
)

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader


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
    """`org.apache.flink.runtime.checkpoint.CheckpointType`: `Checkpoint` or `Full Checkpoint`."""

    name: str = "Checkpoint"
    sharing_files_strategy: SharingFilesStrategy = SharingFilesStrategy.FORWARD_BACKWARD


@dataclass(frozen=True, slots=True)
class SavepointType:
    """`org.apache.flink.runtime.checkpoint.SavepointType`: `Savepoint`, `Suspend Savepoint`, `Terminate Savepoint`."""

    format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    name: str = "Savepoint"
    post_checkpoint_action: PostCheckpointAction = PostCheckpointAction.NONE


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """Checkpoint properties; the flags have the order of the stream.

    Attributes:
        checkpoint_type: checkpoint or savepoint, and which.
        discard_cancelled: Flink deletes it when the job is cancelled.
        discard_failed: … when the job fails.
        discard_finished: … when the job finishes.
        discard_subsumed: … when a later checkpoint replaces it.
        discard_suspended: … when the job is suspended.
        forced: taken although others were running; true for savepoints.
        unclaimed: restored in NO_CLAIM mode; only in memory.
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
    """Properties of a checkpoint that is retained on cancellation (`forCheckpoint`, `RETAIN_ON_CANCELLATION`)."""
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
        JavaField("Z", member) if signature == "Z" else JavaField("L", member, JavaString(signature))
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
    """Read the properties; their bytes if the stream is complete but of an unknown kind.

    Raises:
        FormatError: not a Java serialization stream, or truncated.
    """
    start = reader.position
    content = read_stream(reader)
    raw = bytes(reader.data[start : reader.position])
    properties = _to_properties(content)
    return properties if properties is not None and write_properties(properties) == raw else raw


def write_properties(properties: CheckpointProperties | bytes) -> bytes:
    """Write what `read_properties` reads."""
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
