"""`_metadata` of every version, state handles, properties, operator ids: readers and writers side by side.

The modules: `checkpoint` (the file, its properties, ids of operators), `handles` (of streams and state), `streams` (the
bytes of handles, and all files that a snapshot references).
"""

from __future__ import annotations

from state_pipelines.metadata.checkpoint import (
    FIRST_VERSION_WITH_PROPERTIES,
    CheckpointMetadata,
    CheckpointProperties,
    MasterState,
    OperatorState,
    SubtaskState,
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    parse_operator_id,
    read_metadata,
    with_version,
    write_metadata,
)
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StreamReference, list_references, replace_stream_handles

__all__ = [
    "FIRST_VERSION_WITH_PROPERTIES",
    "CheckpointMetadata",
    "CheckpointProperties",
    "KeyGroupRange",
    "MasterState",
    "OperatorState",
    "StreamReference",
    "SubtaskState",
    "compute_operator_id",
    "find_operator_id",
    "format_operator_id",
    "list_references",
    "parse_operator_id",
    "read_metadata",
    "replace_stream_handles",
    "with_version",
    "write_metadata",
]
