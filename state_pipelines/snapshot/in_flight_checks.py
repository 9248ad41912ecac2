"""Handles of in-flight data that `_metadata` lists twice, or for another subtask: Flink would restore buffers twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.channel_handles import MergedChannelStateHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata import SubtaskState
    from state_pipelines.metadata.channel_handles import ChannelInfo
    from state_pipelines.snapshot.operator import Operator

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
            states = handle.states if isinstance(handle, MergedChannelStateHandle) else (handle.state,)
            for state in states:
                if state.info in known:
                    group, channel = state.info.group, state.info.channel
                    yield f"in-flight {kind} data of channel {channel} of {_GROUPS[kind]} {group} are listed twice"
                known.add(state.info)


def check_channels(operator: Operator) -> None:
    """Refuse in-flight data that is listed twice.

    Raises:
        FormatError: there is such data.
    """
    for subtask in operator.metadata.subtasks:
        for problem in find_wrong_channels(subtask):
            where = Where(file=str(operator.snapshot.location.metadata), operator=operator.label)
            raise FormatError(problem, where=where, hint=EDITED_METADATA)
