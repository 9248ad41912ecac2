"""`_metadata` of every version, state handles, properties, operator ids: readers and writers side by side.

The modules: `checkpoint` (the file), `handles` (streams), `keyed`, `operator`, `channel` (handles of state),
`properties`, `references` (all streams of a file), `streams` (their bytes), `operator_ids`, `key_groups`.
"""

from __future__ import annotations

from state_pipelines.metadata.checkpoint import (
    FIRST_VERSION_WITH_PROPERTIES,
    CheckpointMetadata,
    MasterState,
    OperatorState,
    SubtaskState,
    read_metadata,
    with_version,
    write_metadata,
)
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.metadata.operator_ids import (
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    parse_operator_id,
)
from state_pipelines.metadata.properties import CheckpointProperties
from state_pipelines.metadata.references import StreamReference, list_references, replace_stream_handles

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
