"""`NumberSequenceSource`, and the data generator source based on it.

Facts from `org.apache.flink.api.connector.source.lib.NumberSequenceSource` (split and enumerator checkpoint, version 1)
and `org.apache.flink.connector.datagen.source.DataGeneratorSource`, which uses the same splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.registry import Versioned, check_name, enumerator_state, require, source_splits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

COLUMNS = pa.schema(
    [
        pa.field("split_id", pa.string(), False),
        pa.field("from", pa.int64(), False),
        pa.field("to", pa.int64(), False),
    ]
)
"""The next number and the last one."""

_SMALLEST_SPLIT = 2 + 8 + 8


@dataclass(frozen=True)
class NumberSequenceSplit:
    """The numbers that are still to come, both ends included."""

    split_id: str
    start: int
    end: int


def split_rows(split: NumberSequenceSplit) -> Iterator[Row]:
    """Yield one row of `COLUMNS`."""
    yield {"split_id": split.split_id, "from": split.start, "to": split.end}


def write_number_sequence_split(split: NumberSequenceSplit) -> Versioned:
    """Write what `read_number_sequence_split` reads."""
    writer = Writer()
    _write(writer, split)
    return Versioned(1, writer.getvalue())


@source_splits("number-sequence", write=write_number_sequence_split, rows=split_rows, columns=COLUMNS)
def read_number_sequence_split(versioned: Versioned) -> NumberSequenceSplit:
    """Read a split: id (UTF), i64 from, i64 to.

    Raises:
        FormatError: it could not be one of this source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a number sequence split", 1) as reader:
        return _read(reader)


def enumerator_rows(splits: tuple[NumberSequenceSplit, ...]) -> Iterator[Row]:
    """Yield a row of `COLUMNS` per split that is not assigned."""
    for split in splits:
        yield from split_rows(split)


def write_number_sequence_enumerator(splits: tuple[NumberSequenceSplit, ...]) -> Versioned:
    """Write what `read_number_sequence_enumerator` reads."""
    writer = Writer()
    writer.i32(len(splits))
    for split in splits:
        _write(writer, split)
    return Versioned(1, writer.getvalue())


@enumerator_state("number-sequence", write=write_number_sequence_enumerator, rows=enumerator_rows, columns=COLUMNS)
def read_number_sequence_enumerator(versioned: Versioned) -> tuple[NumberSequenceSplit, ...]:
    """Read the checkpoint of an enumerator: the splits that are not assigned.

    Raises:
        FormatError: it could not be one of this source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of number sequences", 1) as reader:
        return tuple(_read(reader) for _ in range(reader.count(_SMALLEST_SPLIT)))


def _read(reader: Reader) -> NumberSequenceSplit:
    split = NumberSequenceSplit(check_name(reader.utf(), "a split id"), reader.i64(), reader.i64())
    require(reader, split.start <= split.end, f"the sequence from {split.start} to {split.end} is empty")
    return split


def _write(writer: Writer, split: NumberSequenceSplit) -> None:
    writer.utf(split.split_id)
    writer.i64(split.start)
    writer.i64(split.end)
