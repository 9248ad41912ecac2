from __future__ import annotations

import itertools

import pytest

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import FormatError
from state_pipelines.metadata.checkpoint import (
    CheckpointProperties,
    CheckpointType,
    PostCheckpointAction,
    SavepointFormatType,
    SavepointType,
    SharingFilesStrategy,
    make_checkpoint_properties,
    make_savepoint_properties,
    read_properties,
    write_properties,
)

PACKAGE = b"org.apache.flink.runtime.checkpoint."
# The end of a canonical savepoint of Flink 2.2.
SAVEPOINT = (
    bytes.fromhex("aced0005 7372 0038")
    + PACKAGE
    + b"CheckpointProperties"
    + bytes.fromhex("0000000000000002 02 0008")
    + b"Z\0\x10discardCancelledZ\0\x0ddiscardFailedZ\0\x0fdiscardFinishedZ\0\x0fdiscardSubsumedZ\0\x10discardSuspended"
    + b"Z\0\x06forcedZ\0\x09unclaimedL\0\x0echeckpointTypet\0\x32Lorg/apache/flink/runtime/checkpoint/SnapshotType;"
    + bytes.fromhex("7870 00 00 00 00 00 01 00 7372 0031")
    + PACKAGE
    + b"SavepointType"
    + bytes.fromhex("a087d308a45814b8 02 0003")
    + b"L\0\x0aformatTypet\0\x35Lorg/apache/flink/core/execution/SavepointFormatType;L\0\x04namet\0\x12"
    + b"Ljava/lang/String;L\0\x14postCheckpointActiont\0\x48"
    + b"Lorg/apache/flink/runtime/checkpoint/SavepointType$PostCheckpointAction;xp~r\0\x33"
    + b"org.apache.flink.core.execution.SavepointFormatType"
    + bytes.fromhex("0000000000000000 12 0000 78 72 000e")
    + b"java.lang.Enum"
    + bytes.fromhex("0000000000000000 12 0000 78 70 74 0009")
    + b"CANONICALt\0\x09Savepoint~r\0\x46"
    + PACKAGE
    + b"SavepointType$PostCheckpointAction"
    + bytes.fromhex("0000000000000000 12 0000 78 71 007e0009 74 0004")
    + b"NONE"
)
KINDS = [
    *(
        CheckpointType(name, strategy)
        for name in ("Checkpoint", "Full Checkpoint")
        for strategy in SharingFilesStrategy
    ),
    *(
        SavepointType(format_type, "Savepoint", action)
        for format_type, action in itertools.product(SavepointFormatType, PostCheckpointAction)
    ),
]


def test_properties_of_a_savepoint_are_read() -> None:
    reader = Reader(SAVEPOINT)
    assert read_properties(reader) == CheckpointProperties(SavepointType(), forced=True)
    reader.expect_end("the properties")


def test_properties_of_a_savepoint_are_written() -> None:
    assert write_properties(make_savepoint_properties(SavepointFormatType.CANONICAL)) == SAVEPOINT


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back(kind: CheckpointType | SavepointType) -> None:
    value = CheckpointProperties(kind, discard_finished=True, unclaimed=True)
    assert read_properties(Reader(write_properties(value))) == value


def test_savepoints_are_told_from_checkpoints() -> None:
    assert make_savepoint_properties(SavepointFormatType.NATIVE).is_savepoint
    assert not make_checkpoint_properties(CheckpointType()).is_savepoint


def test_changed_class_is_kept_as_bytes() -> None:
    changed = SAVEPOINT.replace(bytes.fromhex("a087d308a45814b8"), bytes.fromhex("a087d308a45814b9"))
    assert read_properties(Reader(changed)) == changed


def test_unknown_constant_is_kept_as_bytes() -> None:
    changed = SAVEPOINT.replace(b"CANONICAL", b"CANONICAX")
    assert read_properties(Reader(changed)) == changed


def test_anything_but_a_java_stream_is_an_error() -> None:
    with pytest.raises(FormatError, match="AC ED 00 05"):
        read_properties(Reader(b"\0\0\0\0\0"))
