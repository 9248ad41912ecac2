"""Handles of in-flight data that `_metadata` lists twice or not at all, or for another subtask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.streams import HEADER_SIZE, channel_states, measure_channel
from state_pipelines.snapshot.file_owners import find_name
from state_pipelines.snapshot.snapshot_files import measure_handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata import CheckpointMetadata, SubtaskState
    from state_pipelines.metadata.handles import ChannelInfo
    from state_pipelines.snapshot import Snapshot

_GROUPS = {"input": "gate", "output": "partition"}


def find_wrong_channels(subtask: SubtaskState) -> Iterator[str]:
    """Yield what is wrong with the in-flight data of a subtask.

    Each channel has one handle, or is once in a merged one (`ChannelStateCheckpointWriter.complete`).
    """
    for kind, handles in (("input", subtask.input_channel_state), ("output", subtask.result_subpartition_state)):
        known: set[ChannelInfo] = set()
        for handle in handles:
            if handle.subtask_index != subtask.index:
                yield f"in-flight {kind} data of subtask {handle.subtask_index} are listed for subtask {subtask.index}"
            for state in channel_states(handle):
                if state.info in known:
                    group, channel = state.info.group, state.info.channel
                    yield f"in-flight {kind} data of channel {channel} of {_GROUPS[kind]} {group} are listed twice"
                known.add(state.info)


@dataclass
class _Stream:
    """Bytes and buffers of a stream of in-flight data that handles name.

    Attributes:
        size: of the stream.
        operator_id: of an operator that has a handle of it.
        named: bytes of all buffers that handles name.
        offsets: of these buffers.
        twice: offsets of which there are two handles.
    """

    size: int
    operator_id: bytes
    named: int = 0
    offsets: set[int] = field(default_factory=set)
    twice: set[int] = field(default_factory=set)


def find_wrong_streams(metadata: CheckpointMetadata) -> Iterator[tuple[bytes, FormatError]]:
    """Yield what is wrong with the streams of in-flight data, each with the id of an operator that has a handle of it.

    Channels of several subtasks and operators share a stream. It holds a version, and then nothing but their buffers
    (`ChannelStateCheckpointWriter`), so that each is in one handle.
    """
    streams: dict[str, _Stream] = {}
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            for handle in (*subtask.input_channel_state, *subtask.result_subpartition_state):
                name = find_name(handle.delegate)
                if name is None:
                    continue
                stream = streams.setdefault(name, _Stream(measure_handle(handle.delegate), operator.operator_id))
                for state in channel_states(handle):
                    stream.named += measure_channel(state, handle.delegate)
                    stream.twice |= stream.offsets.intersection(state.offsets)
                    stream.offsets.update(state.offsets)
    for name, stream in streams.items():
        if stream.twice:
            what, offset = "a buffer of in-flight data is in two handles", min(stream.twice)
        elif HEADER_SIZE + stream.named != stream.size:
            what = f"handles name {stream.named} of the {stream.size - HEADER_SIZE} bytes of in-flight data"
            offset = None
        else:
            continue
        yield stream.operator_id, FormatError(what, where=Where(file=name, offset=offset), hint=EDITED_METADATA)


def check_channels(snapshot: Snapshot) -> None:
    """Refuse in-flight data that is listed twice or not at all.

    Raises:
        FormatError: there is such data.
    """
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            for problem in find_wrong_channels(subtask):
                where = Where(file=str(snapshot.location.metadata), operator=operator.label)
                raise FormatError(problem, where=where, hint=EDITED_METADATA)
    for _, error in find_wrong_streams(snapshot.metadata):
        raise error
