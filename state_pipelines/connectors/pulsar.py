"""Pulsar: splits and enumerator of the source, committables of the sink.

Facts from the repository apache/flink-connector-pulsar, package `org.apache.flink.connector.pulsar`:
`source.split.PulsarPartitionSplitSerializer` (versions 0 to 2), `source.enumerator.PulsarSourceEnumStateSerializer`
(versions 1 to 3), `sink.committer.PulsarCommittableSerializer` (version 1); message ids are `MessageIdData` of
`PulsarApi.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import JavaEnum, JavaObject, read_stream
from state_pipelines.connectors.committers import register_committables
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

    from state_pipelines.connectors.registry import Row

_LAST_KEY_HASH = (1 << 16) - 1
_SMALLEST_PARTITION = 2 + 4 + 4
# Fields of `MessageIdData`, all of them numbers but those that come later.
_ID_FIELDS = {1: "ledger_id", 2: "entry_id", 3: "partition", 4: "batch_index"}

_PARTITION_FIELDS = [
    pa.field("topic", pa.string(), False),
    pa.field("partition", pa.int32(), False),
    pa.field("ranges", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())])), False),
]
SPLIT_COLUMNS = pa.schema(
    [
        *_PARTITION_FIELDS,
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("batch_index", pa.int64()),
        pa.field("stop_cursor", pa.string(), False),
        pa.field("transaction", pa.string()),
    ]
)
"""Ledger, entry and batch index of the last message that was read; class of the stop cursor; open transaction."""

ENUMERATOR_COLUMNS = pa.schema(_PARTITION_FIELDS)
COMMITTABLE_COLUMNS = pa.schema([pa.field("topic", pa.string(), False), pa.field("transaction", pa.string(), False)])


@dataclass(frozen=True)
class PulsarPartition:
    """A partition of a topic and the ranges of key hashes to read (`TopicPartition`).

    Attributes:
        topic: the topic.
        partition: -1 of a topic without partitions.
        ranges: first and last hash of each.
        mode: how the ranges were made; stored in version 1 only.
    """

    topic: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    mode: int | None = None


@dataclass(frozen=True)
class PulsarSplit:
    """A partition and how far it has been read (`PulsarPartitionSplit`).

    Attributes:
        version: 0 to 2.
        partition: the partition.
        stop_cursor: the serialized `StopCursor`.
        last_read: `MessageIdData` of the last message that was read, or None.
        transaction: most and least significant bits of the open transaction, or None.
    """

    version: int
    partition: PulsarPartition
    stop_cursor: bytes
    last_read: bytes | None = None
    transaction: tuple[int, int] | None = None


@dataclass(frozen=True)
class PulsarEnumerator:
    """Checkpoint of the enumerator: the partitions that were found, in the order of the bytes."""

    version: int
    partitions: tuple[PulsarPartition, ...]


@dataclass(frozen=True)
class PulsarCommittable:
    """A transaction that is to be committed."""

    transaction: tuple[int, int]
    topic: str


def _partition_row(partition: PulsarPartition) -> Row:
    ranges = [{"start": start, "end": end} for start, end in partition.ranges]
    return {"topic": partition.topic, "partition": partition.partition, "ranges": ranges}


def _transaction_text(transaction: tuple[int, int]) -> str:
    """Format a transaction id as Pulsar's `TxnID.toString` does."""
    return f"({transaction[0]},{transaction[1]})"


def split_rows(split: PulsarSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    read = {} if split.last_read is None else read_message_id(split.last_read)
    yield {
        **_partition_row(split.partition),
        **{name: read.get(name) for name in ("ledger_id", "entry_id", "batch_index")},
        "stop_cursor": _cursor_class(split.stop_cursor),
        "transaction": None if split.transaction is None else _transaction_text(split.transaction),
    }


def read_message_id(data: bytes) -> dict[str, int]:
    """Read the numbers of a `MessageIdData` (protocol buffers) that identify the message.

    Raises:
        FormatError: not such a message.
    """
    reader, found = Reader(data), {}
    while reader.remaining:
        start, key = reader.position, _varint(reader)
        number, wire = key >> 3, key & 7
        require(reader, wire in (0, 2) and number > 0, f"{key} at byte {start} is no field of a message id")
        if wire == 2:
            reader.skip(_varint(reader))
            continue
        value = _varint(reader)
        if number in _ID_FIELDS:
            found[_ID_FIELDS[number]] = value - (1 << 64) if value >> 63 else value
    require(reader, {"ledger_id", "entry_id"} <= found.keys(), "a message id has no ledger or no entry")
    return found


def _varint(reader: Reader) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = reader.u8()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1)
    raise reader.error("a number of a message id has more than 64 bits")


def _cursor_class(stream: bytes) -> str:
    content = read_stream(Reader(stream))
    return content.class_name if isinstance(content, JavaObject | JavaEnum) else ""


def _write_partition(writer: Writer, partition: PulsarPartition, version: int) -> None:
    writer.utf(partition.topic)
    writer.i32(partition.partition)
    if version > 0:
        writer.i32(len(partition.ranges))
    for start, end in partition.ranges:
        writer.i32(start)
        writer.i32(end)
    if version == 1:
        writer.i32(partition.mode or 0)


def _read_partition(reader: Reader, version: int) -> PulsarPartition:
    topic, partition = check_name(reader.utf(), "a Pulsar topic"), reader.i32()
    require(reader, partition >= -1, f"{partition} is no partition of Pulsar")
    count = reader.count(8) if version > 0 else 1
    ranges = tuple((reader.i32(), reader.i32()) for _ in range(count))
    fits = all(0 <= start <= end <= _LAST_KEY_HASH for start, end in ranges)
    require(reader, fits, "a range of key hashes of Pulsar is invalid")
    return PulsarPartition(topic, partition, ranges, reader.i32() if version == 1 else None)


def write_pulsar_split(split: PulsarSplit) -> Versioned:
    """Write what `read_pulsar_split` reads."""
    writer = Writer()
    _write_partition(writer, split.partition, split.version)
    writer.bytes32(split.stop_cursor)
    write_optional(writer, split.last_read, writer.bytes32)
    writer.bool(split.transaction is not None)
    for bits in split.transaction or ():
        writer.i64(bits)
    return Versioned(split.version, writer.getvalue())


@source_splits("pulsar", write=write_pulsar_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_pulsar_split(versioned: Versioned) -> PulsarSplit:
    """Read a split: partition, stop cursor (a Java stream), the last message that was read, an open transaction.

    Raises:
        FormatError: it could not be one of Pulsar.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a Pulsar split", 0, 1, 2) as reader:
        partition, cursor = _read_partition(reader, versioned.version), reader.bytes32()
        require(reader, _cursor_class(cursor) != "", "a stop cursor of Pulsar is no object")
        last_read = reader.bytes32() if read_flag(reader) else None
        transaction = (reader.i64(), reader.i64()) if read_flag(reader) else None
    return PulsarSplit(versioned.version, partition, cursor, last_read, transaction)


def enumerator_rows(state: PulsarEnumerator) -> Iterator[Row]:
    """Yield a row of `ENUMERATOR_COLUMNS` per partition."""
    yield from map(_partition_row, state.partitions)


def write_pulsar_enumerator(state: PulsarEnumerator) -> Versioned:
    """Write what `read_pulsar_enumerator` reads."""
    writer = Writer()
    writer.i32(len(state.partitions))
    for partition in state.partitions:
        _write_partition(writer, partition, state.version - 1)
    return Versioned(state.version, writer.getvalue())


@enumerator_state("pulsar", write=write_pulsar_enumerator, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_pulsar_enumerator(versioned: Versioned) -> PulsarEnumerator:
    """Read the checkpoint of an enumerator: i32 count and the partitions, in the form of one version less.

    Without partitions, version 1 has the bytes of other enumerators and is not taken for one of Pulsar.

    Raises:
        FormatError: it could not be one of Pulsar.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("the enumerator of Pulsar", 1, 2, 3) as reader:
        partitions = tuple(_read_partition(reader, version - 1) for _ in range(reader.count(_SMALLEST_PARTITION)))
        require(reader, version > 1 or bool(partitions), "an enumerator without partitions could be any")
    return PulsarEnumerator(version, partitions)


def committable_rows(committable: PulsarCommittable) -> Iterator[Row]:
    """Yield one row of `COMMITTABLE_COLUMNS`."""
    yield {"topic": committable.topic, "transaction": _transaction_text(committable.transaction)}


def write_pulsar_committable(committable: PulsarCommittable) -> Versioned:
    """Write what `read_pulsar_committable` reads."""
    writer = Writer()
    for bits in committable.transaction:
        writer.i64(bits)
    writer.utf(committable.topic)
    return Versioned(1, writer.getvalue())


def read_pulsar_committable(versioned: Versioned) -> PulsarCommittable:
    """Read a committable: two i64 of the transaction, topic (UTF).

    Raises:
        FormatError: it could not be one of Pulsar.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a committable of Pulsar", 1) as reader:
        transaction = (reader.i64(), reader.i64())
        return PulsarCommittable(transaction, check_name(reader.utf(), "a Pulsar topic"))


register_committables(
    "pulsar", read_pulsar_committable, write_pulsar_committable, committable_rows, COMMITTABLE_COLUMNS
)
