"""Handles of operator (non-keyed) state (`org.apache.flink.runtime.state.OperatorStateHandle`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.handle_tags import HandleTag
from state_pipelines.metadata.stream_handles import (
    EmptySegmentFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    read_offsets,
    read_stream_handle,
    write_offsets,
    write_stream_handle,
)

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer


class OperatorStateMode(IntEnum):
    """The way Flink distributes the elements of a state to new subtasks (`OperatorStateHandle.Mode`, by ordinal)."""

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


@dataclass(frozen=True, slots=True)
class OperatorStateMetaInfo:
    """Offsets of the elements of one named state (`OperatorStateHandle.StateMetaInfo`).

    Attributes:
        state_name: name of the state; `_default_` for raw operator state.
        mode: distribution mode.
        offsets: position of each element in the stream; one for a broadcast state.
    """

    state_name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorStreamStateHandle:
    """Operator state of one subtask in one stream (tag 4)."""

    states: tuple[OperatorStateMetaInfo, ...]
    delegate: StreamStateHandle


@dataclass(frozen=True, slots=True)
class FileMergingOperatorStreamStateHandle:
    """Operator state of one subtask in a slice of a merged file (tag 17, since 1.20).

    Attributes:
        states: the named states.
        task_owned_directory: directory of the merged files of this task.
        shared_directory: directory of the merged shared files.
        is_empty: no file was written.
        delegate: the slice.
    """

    states: tuple[OperatorStateMetaInfo, ...]
    task_owned_directory: str
    shared_directory: str
    is_empty: bool
    delegate: SegmentFileStateHandle | EmptySegmentFileStateHandle


OperatorStateHandle: TypeAlias = OperatorStreamStateHandle | FileMergingOperatorStreamStateHandle


def read_operator_handle(reader: Reader) -> OperatorStateHandle | None:
    """Read an operator state handle or none (tag 0).

    Raises:
        FormatError: the tag, a mode or the kind of the stream is not allowed here.
    """
    at = reader.position
    match reader.u8():
        case HandleTag.NULL:
            return None
        case HandleTag.PARTITIONABLE_OPERATOR:
            return OperatorStreamStateHandle(_read_states(reader), read_stream_handle(reader))
        case HandleTag.SEGMENT_PARTITIONABLE_OPERATOR:
            return _read_file_merging_handle(reader)
        case tag:
            raise reader.error(f"{tag} is not the tag of an operator state handle", at)


def write_operator_handle(writer: Writer, handle: OperatorStateHandle | None) -> None:
    """Write what `read_operator_handle` reads."""
    match handle:
        case None:
            writer.u8(HandleTag.NULL)
        case OperatorStreamStateHandle():
            writer.u8(HandleTag.PARTITIONABLE_OPERATOR)
            _write_states(writer, handle.states)
            write_stream_handle(writer, handle.delegate)
        case FileMergingOperatorStreamStateHandle():
            writer.u8(HandleTag.SEGMENT_PARTITIONABLE_OPERATOR)
            _write_states(writer, handle.states)
            writer.utf(handle.task_owned_directory)
            writer.utf(handle.shared_directory)
            writer.bool(handle.is_empty)
            write_stream_handle(writer, handle.delegate)


def _read_file_merging_handle(reader: Reader) -> FileMergingOperatorStreamStateHandle:
    states = _read_states(reader)
    task_owned_directory, shared_directory, is_empty = reader.utf(), reader.utf(), reader.bool()
    at = reader.position
    delegate = read_stream_handle(reader)
    if not isinstance(delegate, SegmentFileStateHandle | EmptySegmentFileStateHandle):
        raise reader.error("a file-merging operator state handle needs a segment of a file", at)
    return FileMergingOperatorStreamStateHandle(states, task_owned_directory, shared_directory, is_empty, delegate)


def _read_states(reader: Reader) -> tuple[OperatorStateMetaInfo, ...]:
    return tuple(_read_state(reader) for _ in range(reader.count(7)))


def _read_state(reader: Reader) -> OperatorStateMetaInfo:
    name = reader.utf()
    at = reader.position
    mode = reader.u8()
    if mode > OperatorStateMode.BROADCAST:
        raise reader.error(f"{mode} is not a distribution mode (0 split, 1 union, 2 broadcast)", at)
    return OperatorStateMetaInfo(name, OperatorStateMode(mode), read_offsets(reader, reader.count(8)))


def _write_states(writer: Writer, states: tuple[OperatorStateMetaInfo, ...]) -> None:
    names = {state.state_name for state in states}
    if len(names) != len(states):
        # Flink reads the states into a map, so of two with one name only the last would be restored.
        raise ValueRangeError("a state name occurs twice in one operator state handle")
    writer.i32(len(states))
    for state in states:
        writer.utf(state.state_name)
        writer.u8(state.mode)
        writer.i32(len(state.offsets))
        write_offsets(writer, state.offsets)
