"""State that connectors keep: splits and offsets of sources, pending transactions and files of sinks, enumerators.

`detect` finds out whose an operator list state is and decodes it, `decode_splits` gives it as a table,
`read_coordinator` reads the state of a source coordinator. The modules: one per connector, `element_frames` (the frames
around their bytes), `registry` (custom connectors), `detection`, `connector_state`.
"""

from __future__ import annotations

# Importing a connector registers it.
from state_pipelines.connectors import (
    beam,
    cdc,
    committers,
    dynamic_kafka,
    file_sink,
    file_source,
    hybrid_source,
    kafka_producer,
    kafka_sink,
    kafka_source,
    kinesis,
    legacy_sources,
    list_checkpointed,
    number_sequence,
    pulsar,
    rocketmq,
    two_phase_commit,
)
from state_pipelines.connectors.connector_state import AmbiguousState, ConnectorState, CoordinatorState
from state_pipelines.connectors.detection import (
    decode_splits,
    detect,
    encode_elements,
    find_candidates,
    read_coordinator,
    write_coordinator,
)
from state_pipelines.connectors.element_frames import Versioned
from state_pipelines.connectors.registry import connector_state, enumerator_state, versioned_state

__all__ = [
    "AmbiguousState",
    "ConnectorState",
    "CoordinatorState",
    "Versioned",
    "beam",
    "cdc",
    "committers",
    "connector_state",
    "decode_splits",
    "detect",
    "dynamic_kafka",
    "encode_elements",
    "enumerator_state",
    "file_sink",
    "file_source",
    "find_candidates",
    "hybrid_source",
    "kafka_producer",
    "kafka_sink",
    "kafka_source",
    "kinesis",
    "legacy_sources",
    "list_checkpointed",
    "number_sequence",
    "pulsar",
    "read_coordinator",
    "rocketmq",
    "two_phase_commit",
    "versioned_state",
    "write_coordinator",
]
