"""State that connectors keep: splits and offsets of sources, pending transactions and files of sinks, enumerators.

`detect` finds out whose an operator list state is and decodes it, `decode_splits` gives it as a table,
`read_coordinator` reads the state of a source coordinator. The modules: connectors by system (Kafka, other message
queues, change data capture), sources of Flink's base, sources with list state, sinks, and `registry` (custom
connectors, the frames around their bytes, detection).
"""

from __future__ import annotations

# Importing a connector registers it.
from state_pipelines.connectors import base_sources, cdc, kafka, list_state_sources, message_queues, sinks
from state_pipelines.connectors.registry import (
    AmbiguousState,
    ConnectorState,
    CoordinatorState,
    Versioned,
    connector_state,
    decode_splits,
    detect,
    encode_elements,
    enumerator_state,
    find_candidates,
    read_coordinator,
    versioned_state,
    write_coordinator,
)

__all__ = [
    "AmbiguousState",
    "ConnectorState",
    "CoordinatorState",
    "Versioned",
    "base_sources",
    "cdc",
    "connector_state",
    "decode_splits",
    "detect",
    "encode_elements",
    "enumerator_state",
    "find_candidates",
    "kafka",
    "list_state_sources",
    "message_queues",
    "read_coordinator",
    "sinks",
    "versioned_state",
    "write_coordinator",
]
