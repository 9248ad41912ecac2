"""The `_metadata` file: the content of a checkpoint or savepoint.

Source: `org.apache.flink.runtime.checkpoint.Checkpoints` and `MetadataV2V3SerializerBase` with its subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.writer import Writer
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    StateError,
    UnsupportedError,
    UnsupportedVersionError,
    ValueRangeError,
    Where,
    at,
    older_than_promised,
)
from state_pipelines.metadata.channel_handles import (
    ChannelDirection,
    ChannelStateHandle,
    MergedChannelStateHandle,
    read_channel_handles,
    write_channel_handles,
)
from state_pipelines.metadata.keyed_handles import KeyedStateHandle, read_keyed_handle, write_keyed_handle
from state_pipelines.metadata.operator_handles import OperatorStateHandle, read_operator_handle, write_operator_handle
from state_pipelines.metadata.properties import CheckpointProperties, read_properties, write_properties
from state_pipelines.metadata.stream_handles import (
    ByteStreamStateHandle,
    read_optional_stream_handle,
    write_stream_handle,
)

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


def read_metadata(data: bytes, name: str | None = None) -> CheckpointMetadata:
    """Read a whole `_metadata` file.

    Args:
        data: the content of the file.
        name: path or URL of the file, for errors.

    Raises:
        FormatError: the bytes are not a `_metadata` file, end early or go on after its end, or an operator or a uid is
            listed twice; also when a text conversion has destroyed the file.
        UnsupportedVersionError: the version is 1 or one not known.
    """
    try:
        return _read_metadata(data, name)
    except StateError as error:
        replaced = data.count(REPLACEMENT)
        if replaced < FEWEST_REPLACEMENTS:
            raise
        raise FormatError(
            f"the file was destroyed by a conversion of text: it holds {replaced:,} times the bytes ef bf bd, which "
            "are bytes that are not UTF-8",
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
            # Of two, Flink takes the last one without a word (`Checkpoints.loadAndValidateCheckpoint`).
            raise reader.error(f"the operator {each.operator_id.hex()} is listed twice", position, EDITED_METADATA)
        known.add(each.operator_id)
        if each.uid is not None:
            # A job has each uid once, because the id is its hash (`StreamGraphHasherV2`).
            if each.uid in uids:
                raise reader.error(f"two operators have the uid {each.uid}", position, EDITED_METADATA)
            uids.add(each.uid)
    properties = read_properties(reader) if version >= FIRST_VERSION_WITH_PROPERTIES else None
    reader.expect_end("the metadata")
    return CheckpointMetadata(version, checkpoint_id, master_states, operator_states, properties)


def write_metadata(metadata: CheckpointMetadata) -> bytes:
    """Write what `read_metadata` reads.

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

    Operator names and uids go where the version has none (before 5), properties before 4, and reference checkpoint ids
    before 7; all of them are informative only. State is never dropped: `write_metadata` refuses fields that the version
    cannot store.

    Args:
        metadata: the snapshot.
        version: one of `VERSIONS`.
        properties: taken when the version wants properties and `metadata` has none.
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
        error.hint = "Flink 1.1 and 1.2 wrote it: take a savepoint with 1.2 to 1.7, then one of that with 1.8 to 1.16"
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
        FormatError: a tag or flag is not allowed there.
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
    """Write what `read_subtask_state` reads.

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
