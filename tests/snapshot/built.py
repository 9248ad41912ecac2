"""Snapshots that tests put together with the writers of the library, for state that no job of ours makes."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from state_pipelines.codecs.programs import Encoded
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, write_metadata
from state_pipelines.metadata.checkpoint import MasterState, SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupsStateHandle, OperatorStreamStateHandle
from state_pipelines.operatorstate import OperatorHeader, write_operator_file, write_raw_partitions
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import operator_list
from state_pipelines.snapshot import Declarations, open_snapshot
from tests.keyed.raw_sections import write_raw_sections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot

BYTES = basic("BytePrimitiveArray")


def write_list_state(name: str, elements: Sequence[bytes], serializer: Serializer = BYTES) -> OperatorStreamStateHandle:
    """The handle of one list state with these elements."""
    stops = np.array([*accumulate(map(len, elements))], np.int64)
    encoded = Encoded(np.frombuffer(b"".join(elements), np.uint8), stops)
    data, states = write_operator_file(OperatorHeader(lists=(operator_list(name, serializer),)), {name: encoded}, {})
    return OperatorStreamStateHandle(states, ByteStreamStateHandle(str(uuid4()), data))


def write_raw_keyed(sections: Mapping[int, bytes], key_groups: KeyGroupRange) -> KeyGroupsStateHandle:
    """The handle of raw keyed state with these sections."""
    data, offsets = write_raw_sections(sections, key_groups)
    return KeyGroupsStateHandle(key_groups, offsets, ByteStreamStateHandle("raw keyed state", data), "raw")


def write_raw_operator(partitions: Sequence[bytes]) -> OperatorStreamStateHandle:
    """The handle of raw operator state with these partitions."""
    data, states = write_raw_partitions(list(partitions))
    return OperatorStreamStateHandle(states, ByteStreamStateHandle("raw operator state", data))


def operator(uid: str, *subtasks: SubtaskState, coordinator: bytes | None = None) -> OperatorState:
    """An operator with 128 key groups."""
    state = None if coordinator is None else ByteStreamStateHandle("coordinator", coordinator)
    return OperatorState(compute_operator_id(uid), len(subtasks), 128, subtasks, coordinator_state=state)


def list_operator(
    uid: str,
    name: str,
    *elements: Sequence[bytes],
    serializer: Serializer = BYTES,
    coordinator: bytes | None = None,
) -> OperatorState:
    """An operator with a list state, `elements` by subtask."""
    subtasks = (
        SubtaskState(index, managed_operator_state=write_list_state(name, each, serializer))
        for index, each in enumerate(elements)
    )
    return operator(uid, *subtasks, coordinator=coordinator)


def build_snapshot(
    directory: Path,
    *operators: OperatorState,
    uids: Sequence[str] = (),
    masters: tuple[MasterState, ...] = (),
    connectors: Mapping[str, str] | None = None,
) -> Snapshot:
    """Write `_metadata` into a directory, which may be new, and open it."""
    directory.mkdir(exist_ok=True)
    metadata = CheckpointMetadata(3, 1, masters, operators)
    (directory / "_metadata").write_bytes(write_metadata(metadata))
    return open_snapshot(str(directory), Declarations(uids=tuple(uids), connectors=connectors or {}))
