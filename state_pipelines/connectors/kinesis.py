"""Kinesis: shard splits and enumerator of the source.

Facts from the repository apache/flink-connector-aws, package `org.apache.flink.connector.kinesis.source`:
`split.KinesisShardSplitSerializer` (versions 0 to 2), `enumerator.KinesisStreamsSourceEnumeratorStateSerializer`
(versions 0 and 1), `enumerator.SplitAssignmentStatus`; the types of iterators are those of the AWS API.
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
    require,
    source_splits,
    write_optional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

ITERATOR_TYPES = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")
STATUSES = ("assigned", "unassigned")

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("stream_arn", pa.string(), False),
        pa.field("shard_id", pa.string(), False),
        pa.field("iterator_type", pa.string(), False),
        pa.field("sequence_number", pa.string()),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("parent_shard_ids", pa.list_(pa.string())),
        pa.field("starting_hash_key", pa.string()),
        pa.field("ending_hash_key", pa.string()),
        pa.field("finished", pa.bool_()),
    ]
)
ENUMERATOR_COLUMNS = pa.schema(
    [*SPLIT_COLUMNS, pa.field("status", pa.string()), pa.field("last_seen_shard_id", pa.string())]
)


@dataclass(frozen=True)
class KinesisSplit:
    """A shard and how far it has been read (`KinesisShardSplit`).

    Attributes:
        version: 0 to 2.
        stream_arn: the stream.
        shard_id: the shard.
        iterator_type: one of `ITERATOR_TYPES`: the meaning of the marker.
        marker: sequence number, epoch milliseconds, or None.
        parent_shard_ids: in the order of the bytes, from version 1 on; else None.
        hash_keys: first and last hash key, from version 1 on; else None.
        finished: the shard is read to its end; from version 2 on, else None.
    """

    version: int
    stream_arn: str
    shard_id: str
    iterator_type: str
    marker: str | int | None = None
    parent_shard_ids: tuple[str, ...] | None = None
    hash_keys: tuple[str, str] | None = None
    finished: bool | None = None


@dataclass(frozen=True)
class KinesisEnumerator:
    """Checkpoint of the enumerator (`KinesisStreamsSourceEnumeratorState`).

    Attributes:
        version: 0 or 1.
        split_version: version of the splits.
        splits: known splits; in version 0 those not assigned.
        statuses: one of `STATUSES` per split; none in version 0.
        last_seen_shard_id: where discovery goes on.
    """

    version: int
    split_version: int
    splits: tuple[KinesisSplit, ...]
    statuses: tuple[str, ...] = ()
    last_seen_shard_id: str | None = None


def split_rows(split: KinesisSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    first, last = split.hash_keys or (None, None)
    yield {
        "stream_arn": split.stream_arn,
        "shard_id": split.shard_id,
        "iterator_type": split.iterator_type,
        "sequence_number": split.marker if isinstance(split.marker, str) else None,
        "timestamp": split.marker if isinstance(split.marker, int) else None,
        "parent_shard_ids": split.parent_shard_ids,
        "starting_hash_key": first,
        "ending_hash_key": last,
        "finished": split.finished,
    }


def write_kinesis_split(split: KinesisSplit) -> Versioned:
    """Write what `read_kinesis_split` reads."""
    writer = Writer()
    for text in (split.stream_arn, split.shard_id, split.iterator_type):
        writer.utf(text)
    writer.bool(split.marker is not None)
    if split.marker is not None:
        write_optional(writer, split.marker if isinstance(split.marker, int) else None, writer.i64)
        write_optional(writer, split.marker if isinstance(split.marker, str) else None, writer.utf)
    if split.version > 0:
        writer.i32(len(split.parent_shard_ids or ()))
        for text in (*(split.parent_shard_ids or ()), *(split.hash_keys or ("", ""))):
            writer.utf(text)
    if split.version > 1:
        writer.bool(bool(split.finished))
    return Versioned(split.version, writer.getvalue())


@source_splits("kinesis", write=write_kinesis_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_kinesis_split(versioned: Versioned) -> KinesisSplit:
    """Read a split: ARN, shard id, type of the iterator (UTF), marker; then the fields of later versions.

    Raises:
        FormatError: it could not be one of Kinesis.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("a Kinesis split", 0, 1, 2) as reader:
        arn, shard, kind = reader.utf(), check_name(reader.utf(), "a shard id"), reader.utf()
        require(reader, arn.startswith("arn:"), f"{arn!r:.80} is no ARN")
        require(reader, kind in ITERATOR_TYPES, f"{kind!r:.80} is no type of a shard iterator")
        marker = _read_marker(reader)
        parents, keys = None, None
        if version > 0:
            parents = tuple(check_name(reader.utf(), "a shard id") for _ in range(reader.count(2)))
            keys = (reader.utf(), reader.utf())
        finished = read_flag(reader) if version > 1 else None
    return KinesisSplit(version, arn, shard, kind, marker, parents, keys, finished)


def enumerator_rows(state: KinesisEnumerator) -> Iterator[Row]:
    """Yield a row of `ENUMERATOR_COLUMNS` per split."""
    for index, split in enumerate(state.splits):
        status = state.statuses[index] if state.statuses else None
        for row in split_rows(split):
            yield {**row, "status": status, "last_seen_shard_id": state.last_seen_shard_id}


def write_kinesis_enumerator(state: KinesisEnumerator) -> Versioned:
    """Write what `read_kinesis_enumerator` reads."""
    writer = Writer()
    write_optional(writer, state.last_seen_shard_id, writer.utf)
    writer.i32(len(state.splits))
    writer.i32(state.split_version)
    for index, split in enumerate(state.splits):
        writer.bytes32(write_kinesis_split(split).data)
        if state.version > 0:
            writer.i32(STATUSES.index(state.statuses[index]))
    return Versioned(state.version, writer.getvalue())


@enumerator_state("kinesis", write=write_kinesis_enumerator, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_kinesis_enumerator(versioned: Versioned) -> KinesisEnumerator:
    """Read the checkpoint of an enumerator: last seen shard, i32 count, i32 version of the splits, splits.

    Raises:
        FormatError: it could not be one of Kinesis.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of Kinesis", 0, 1) as reader:
        last_seen = check_name(reader.utf(), "a shard id") if read_flag(reader) else None
        count, split_version = reader.count(4), reader.i32()
        Versioned(split_version, b"").expect("a Kinesis split", 0, 1, 2)
        splits, statuses = [], []
        for _ in range(count):
            splits.append(read_kinesis_split(Versioned(split_version, reader.bytes32())))
            if versioned.version > 0:
                status = reader.i32()
                require(reader, 0 <= status < len(STATUSES), f"{status} is no assignment status of Kinesis")
                statuses.append(STATUSES[status])
    return KinesisEnumerator(versioned.version, split_version, tuple(splits), tuple(statuses), last_seen)


def _read_marker(reader: Reader) -> str | int | None:
    if not read_flag(reader):
        return None
    instant = reader.i64() if read_flag(reader) else None
    text = reader.utf() if read_flag(reader) else None
    require(reader, (instant is None) != (text is None), "a starting marker is a time or a sequence number")
    return text if instant is None else instant
