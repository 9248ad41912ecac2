"""State that connectors keep: splits and offsets of sources, pending transactions and files of sinks, enumerators.

`recognise` finds out whose an operator list state is and decodes it, `decode_splits` gives it as a table,
`read_coordinator` reads the state of a source coordinator. The modules: one per connector, `framing` (what is around
their bytes), `registry` (connectors of your own), `recognition`, `states`.
"""

from __future__ import annotations

# Importing a connector registers it.
from state_pipelines.connectors import (
    beam,
    cdc,
    committers,
    dynamic_kafka,
    file_sink,
    files,
    hybrid,
    kafka,
    kafka_producer,
    kafka_sink,
    kinesis,
    legacy,
    list_checkpointed,
    pulsar,
    rocketmq,
    sequences,
    two_phase_commit,
)
from state_pipelines.connectors.framing import Versioned
from state_pipelines.connectors.recognition import (
    decode_splits,
    encode_elements,
    find_candidates,
    read_coordinator,
    recognise,
    write_coordinator,
)
from state_pipelines.connectors.registry import connector_state, enumerator_state, versioned_state
from state_pipelines.connectors.states import AmbiguousState, ConnectorState, CoordinatorState

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
    "dynamic_kafka",
    "encode_elements",
    "enumerator_state",
    "file_sink",
    "files",
    "find_candidates",
    "hybrid",
    "kafka",
    "kafka_producer",
    "kafka_sink",
    "kinesis",
    "legacy",
    "list_checkpointed",
    "pulsar",
    "read_coordinator",
    "recognise",
    "rocketmq",
    "sequences",
    "two_phase_commit",
    "versioned_state",
    "write_coordinator",
]
