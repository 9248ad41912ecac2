"""The hybrid source: splits and enumerator of the sources that it runs one after the other.

Facts from `org.apache.flink.connector.base.source.hybrid.HybridSourceSplitSerializer` (versions 0 and 1) and
`HybridSourceEnumeratorStateSerializer` (version 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.registry import (
    Versioned,
    check_name,
    enumerator_state,
    read_flag,
    read_versioned,
    require,
    source_splits,
    write_versioned,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.connectors.registry import Row

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("source_index", pa.int32(), False),
        pa.field("split_id", pa.string(), False),
        pa.field("finished", pa.bool_(), False),
        pa.field("wrapped_version", pa.int32(), False),
        pa.field("wrapped", pa.binary(), False),
    ]
)
ENUMERATOR_COLUMNS = pa.schema(
    [
        pa.field("source_index", pa.int32(), False),
        pa.field("wrapped_version", pa.int32(), False),
        pa.field("wrapped", pa.binary(), False),
    ]
)


@dataclass(frozen=True)
class HybridSplit:
    """A split of one of the sources.

    Attributes:
        version: 0 or 1.
        source_index: position of the source.
        split_id: id of the split.
        wrapped: the split as the source wrote it.
        finished: the split is read to its end; stored from version 1 on.
    """

    version: int
    source_index: int
    split_id: str
    wrapped: Versioned
    finished: bool = False


@dataclass(frozen=True)
class HybridEnumerator:
    """Checkpoint of the enumerator of the current source."""

    source_index: int
    wrapped: Versioned


def split_rows(split: HybridSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    yield {
        "source_index": split.source_index,
        "split_id": split.split_id,
        "finished": split.finished,
        "wrapped_version": split.wrapped.version,
        "wrapped": split.wrapped.data,
    }


def write_hybrid_split(split: HybridSplit) -> Versioned:
    """Write what `read_hybrid_split` reads."""
    writer = Writer()
    writer.i32(split.source_index)
    writer.utf(split.split_id)
    write_versioned(writer, split.wrapped)
    if split.version > 0:
        writer.bool(split.finished)
    return Versioned(split.version, writer.getvalue())


@source_splits("hybrid", write=write_hybrid_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_hybrid_split(versioned: Versioned) -> HybridSplit:
    """Read a split: i32 source, id (UTF), the wrapped split, in version 1 whether it is finished.

    Raises:
        FormatError: it could not be one of this source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a hybrid split", 0, 1) as reader:
        index = reader.i32()
        require(reader, index >= 0, f"{index} is no position of a source")
        split_id, wrapped = check_name(reader.utf(), "a split id"), read_versioned(reader)
        finished = read_flag(reader) if versioned.version > 0 else False
    return HybridSplit(versioned.version, index, split_id, wrapped, finished)


def enumerator_rows(state: HybridEnumerator) -> Iterator[Row]:
    """Yield one row of `ENUMERATOR_COLUMNS`."""
    yield {
        "source_index": state.source_index,
        "wrapped_version": state.wrapped.version,
        "wrapped": state.wrapped.data,
    }


def write_hybrid_enumerator(state: HybridEnumerator) -> Versioned:
    """Write what `read_hybrid_enumerator` reads."""
    writer = Writer()
    writer.i32(state.source_index)
    write_versioned(writer, state.wrapped)
    return Versioned(0, writer.getvalue())


@enumerator_state("hybrid", write=write_hybrid_enumerator, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_hybrid_enumerator(versioned: Versioned) -> HybridEnumerator:
    """Read the checkpoint of an enumerator: i32 source, then the checkpoint of its own enumerator.

    Raises:
        FormatError: it could not be one of this source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of a hybrid source", 0) as reader:
        state = HybridEnumerator(reader.i32(), read_versioned(reader))
        require(reader, state.source_index >= 0, f"{state.source_index} is no position of a source")
    return state
