"""Detection of the connector that wrote a state: a candidate by name and serializer that reads every element fully.

Source of the frames: `SourceOperator`, `SinkWriterOperator`, `CommitterOperator`, `SourceCoordinator`,
`SourceCoordinatorSerdeUtils`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.connectors.connector_state import (
    AmbiguousState,
    ConnectorState,
    ConnectorStateKind,
    CoordinatorState,
)
from state_pipelines.connectors.element_frames import Versioned, read_versioned, write_versioned, write_versioned_array
from state_pipelines.connectors.registry import Codec, find_codec, list_codecs
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from state_pipelines.serializers.tree import Serializer

_BYTES = basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
_COORDINATOR_VERSIONS = (0, 1)


def detect(
    state_name: str, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext | None = None
) -> ConnectorState | AmbiguousState | None:
    """Find the connector that wrote an operator list state, and decode it.

    Args:
        state_name: name of the state.
        serializer: of its elements.
        elements: bytes of all elements, of one subtask or of all of them; the more, the surer the answer.
        context: context of the layouts; only legacy connectors need it.

    Returns:
        None if no known connector wrote the state, or if it has no elements and its name is ambiguous.
    """
    candidates = find_candidates(state_name, serializer)
    if not elements and len(candidates) > 1:
        return None
    return _decide(candidates, serializer, elements, context or LayoutContext())


def find_candidates(state_name: str, serializer: Serializer) -> tuple[Codec, ...]:
    """Return the connectors that have an operator list state of this name and serializer; no element is looked at."""
    return tuple(codec for codec in list_codecs() if state_name in codec.state_names and codec.accepts(serializer))


def decode_splits(
    state_name: str, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext | None = None
) -> pa.RecordBatch | None:
    """Return the elements of an operator list state as a table; see `detect` for the arguments.

    Returns:
        Columns `connector`, `list_index` and those of the connector; None when the state is that of no known connector.

    Raises:
        UnsupportedError: it could be that of several connectors.
    """
    state = detect(state_name, serializer, elements, context)
    if isinstance(state, AmbiguousState):
        names = " and ".join(state.connectors)
        raise UnsupportedError(
            f"the state could be that of {names}", hint="`detect` shows how each of them reads it; it is not guessed"
        )
    return None if state is None else state.to_batch()


def encode_elements(
    state: ConnectorState, serializer: Serializer, context: LayoutContext | None = None
) -> tuple[bytes, ...]:
    """Mirror of `detect`: the elements of a state.

    Raises:
        UsageError: no connector of this name has such a state.
    """
    codec = find_codec(state.connector, state.kind)
    return tuple(codec.write(value, serializer, context or LayoutContext()) for value in state.values)


def read_coordinator(data: bytes) -> CoordinatorState:
    """Read the state of an operator coordinator: that of a source as far as it is known, any other by its size.

    A source coordinator writes i32 version, i32 version of the enumerator's serializer, i32 length and the bytes;
    in version 0 (up to 1.12) the split assignments follow.
    """
    reader = Reader(data)
    try:
        version = reader.i32()
        enumerator = read_versioned(reader)
    except FormatError:
        return CoordinatorState(len(data))
    if version not in _COORDINATOR_VERSIONS or enumerator.version < 0 or (version and reader.remaining):
        return CoordinatorState(len(data))
    rest = reader.take(reader.remaining)
    element = write_versioned_array(enumerator)
    state = _decide(list_codecs(ConnectorStateKind.ENUMERATOR), _BYTES, [element], LayoutContext())
    return CoordinatorState(len(data), version, enumerator, rest, state)


def write_coordinator(state: CoordinatorState) -> bytes:
    """Write what `read_coordinator` reads, from its frame.

    Raises:
        UsageError: the state is not that of a source coordinator.
    """
    if state.version is None or state.enumerator is None:
        raise UsageError("only the state of a source coordinator can be put together", hint="Copy the bytes instead")
    writer = Writer()
    writer.i32(state.version)
    write_versioned(writer, Versioned(state.enumerator.version, state.enumerator.data))
    writer.take(state.rest)
    return writer.getvalue()


def _decide(
    candidates: Sequence[Codec], serializer: Serializer, elements: Sequence[bytes], context: LayoutContext
) -> ConnectorState | AmbiguousState | None:
    for last_resort in (False, True):
        found = [
            state
            for codec in candidates
            if codec.last_resort is last_resort and (state := _try(codec, serializer, elements, context)) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            return AmbiguousState(tuple(found))
    return None


def _try(
    codec: Codec, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext
) -> ConnectorState | None:
    try:
        values = tuple(codec.read(element, serializer, context) for element in elements)
    except StateError:
        # That the bytes do not fit is the answer: it is not the state of this connector.
        return None
    rows = tuple(tuple(codec.rows(value)) for value in values)
    return ConnectorState(codec.connector, codec.kind, values, rows, codec.columns)
