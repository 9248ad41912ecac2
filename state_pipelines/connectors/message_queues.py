"""State of the connectors of Pulsar, RocketMQ and Kinesis: splits, enumerators and committables.

* `PulsarSplit`, `PulsarEnumerator`, `PulsarCommittable`: splits and enumerator of the source, committables of the sink.
  Source: repository apache/flink-connector-pulsar, package `org.apache.flink.connector.pulsar`:
  `source.split.PulsarPartitionSplitSerializer` (versions 0 to 2), `source.enumerator.PulsarSourceEnumStateSerializer`
  (versions 1 to 3), `sink.committer.PulsarCommittableSerializer` (version 1); message ids are `MessageIdData` of
  `PulsarApi.proto`.
* `RocketMQSplit`, `RocketMQEnumerator`, `LegacyRocketMQOffset`: splits and enumerator of the source, and offsets of the
  legacy `RocketMQSourceFunction`. Source: repository apache/rocketmq-flink, package
  `org.apache.flink.connector.rocketmq`: `source.split.RocketMQPartitionSplitSerializer` (versions 0 and 1),
  `source.enumerator.RocketMQSourceEnumStateSerializer` (version 0), `legacy.RocketMQSourceFunction` (union state
  `topic-partition-offset-states`, a tuple of `org.apache.rocketmq.common.message.MessageQueue` and a long).
* `KinesisSplit`, `KinesisEnumerator`: shard splits and enumerator of the source; the types of iterators are those of
  the AWS API. Source: repository apache/flink-connector-aws, package `org.apache.flink.connector.kinesis.source`:
  `split.KinesisShardSplitSerializer` (versions 0 to 2), `enumerator.KinesisStreamsSourceEnumeratorStateSerializer`
  (versions 0 and 1), `enumerator.SplitAssignmentStatus`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import JavaEnum, JavaObject, read_stream
from state_pipelines.codecs.java import ObjectValue
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Versioned,
    check_name,
    connector_state,
    enumerator_state,
    read_flag,
    require,
    source_splits,
    write_optional,
    write_plain_element,
)
from state_pipelines.connectors.sinks import register_committables
from state_pipelines.errors import FormatError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.connectors.registry import Row

_LAST_KEY_HASH = (1 << 16) - 1
_SMALLEST_PARTITION = 2 + 4 + 4
# The fields of `MessageIdData` that identify a message, all numbers; fields with higher numbers are skipped.
_ID_FIELDS = {1: "ledger_id", 2: "entry_id", 3: "partition", 4: "batch_index"}

_PARTITION_FIELDS = [
    pa.field("topic", pa.string(), False),
    pa.field("partition", pa.int32(), False),
    pa.field("ranges", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())])), False),
]
PULSAR_SPLIT_COLUMNS = pa.schema(
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

PULSAR_ENUMERATOR_COLUMNS = pa.schema(_PARTITION_FIELDS)
COMMITTABLE_COLUMNS = pa.schema([pa.field("topic", pa.string(), False), pa.field("transaction", pa.string(), False)])


@dataclass(frozen=True)
class PulsarPartition:
    """A partition of a topic and the ranges of key hashes to read (`TopicPartition`).

    Attributes:
        topic: the topic.
        partition: -1 for a topic without partitions.
        ranges: first and last hash of each range.
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
    """A transaction of the Pulsar sink that is to be committed."""

    transaction: tuple[int, int]
    topic: str


def _partition_row(partition: PulsarPartition) -> Row:
    ranges = [{"start": start, "end": end} for start, end in partition.ranges]
    return {"topic": partition.topic, "partition": partition.partition, "ranges": ranges}


def _transaction_text(transaction: tuple[int, int]) -> str:
    """Format a transaction id as Pulsar's `TxnID.toString` does."""
    return f"({transaction[0]},{transaction[1]})"


def pulsar_split_rows(split: PulsarSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `PULSAR_SPLIT_COLUMNS`."""
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
    """Encode a Pulsar split; the inverse of `read_pulsar_split`."""
    writer = Writer()
    _write_partition(writer, split.partition, split.version)
    writer.bytes32(split.stop_cursor)
    write_optional(writer, split.last_read, writer.bytes32)
    writer.bool(split.transaction is not None)
    for bits in split.transaction or ():
        writer.i64(bits)
    return Versioned(split.version, writer.getvalue())


@source_splits("pulsar", write=write_pulsar_split, rows=pulsar_split_rows, columns=PULSAR_SPLIT_COLUMNS)
def read_pulsar_split(versioned: Versioned) -> PulsarSplit:
    """Read a split: partition, stop cursor (a Java stream), the last message that was read, an open transaction.

    Raises:
        FormatError: Pulsar's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a Pulsar split", 0, 1, 2) as reader:
        partition, cursor = _read_partition(reader, versioned.version), reader.bytes32()
        require(reader, _cursor_class(cursor) != "", "a stop cursor of Pulsar is no object")
        last_read = reader.bytes32() if read_flag(reader) else None
        transaction = (reader.i64(), reader.i64()) if read_flag(reader) else None
    return PulsarSplit(versioned.version, partition, cursor, last_read, transaction)


def pulsar_enumerator_rows(state: PulsarEnumerator) -> Iterator[Row]:
    """Yield a row of `PULSAR_ENUMERATOR_COLUMNS` per partition."""
    yield from map(_partition_row, state.partitions)


def write_pulsar_enumerator(state: PulsarEnumerator) -> Versioned:
    """Encode the checkpoint of a Pulsar enumerator; the inverse of `read_pulsar_enumerator`."""
    writer = Writer()
    writer.i32(len(state.partitions))
    for partition in state.partitions:
        _write_partition(writer, partition, state.version - 1)
    return Versioned(state.version, writer.getvalue())


@enumerator_state(
    "pulsar", write=write_pulsar_enumerator, rows=pulsar_enumerator_rows, columns=PULSAR_ENUMERATOR_COLUMNS
)
def read_pulsar_enumerator(versioned: Versioned) -> PulsarEnumerator:
    """Read the checkpoint of an enumerator: i32 count, then partitions in the layout of split version `version - 1`.

    Version 1 without partitions is refused: enumerators of other connectors write the same bytes.

    Raises:
        FormatError: Pulsar's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("the enumerator of Pulsar", 1, 2, 3) as reader:
        partitions = tuple(_read_partition(reader, version - 1) for _ in range(reader.count(_SMALLEST_PARTITION)))
        require(
            reader, version > 1 or bool(partitions), "an enumerator without partitions could be that of any connector"
        )
    return PulsarEnumerator(version, partitions)


def committable_rows(committable: PulsarCommittable) -> Iterator[Row]:
    """Yield one table row, with the columns `COMMITTABLE_COLUMNS`."""
    yield {"topic": committable.topic, "transaction": _transaction_text(committable.transaction)}


def write_pulsar_committable(committable: PulsarCommittable) -> Versioned:
    """Encode a committable of the Pulsar sink; the inverse of `read_pulsar_committable`."""
    writer = Writer()
    for bits in committable.transaction:
        writer.i64(bits)
    writer.utf(committable.topic)
    return Versioned(1, writer.getvalue())


def read_pulsar_committable(versioned: Versioned) -> PulsarCommittable:
    """Read a committable: two i64 of the transaction, topic (UTF).

    Raises:
        FormatError: Pulsar's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a committable of Pulsar", 1) as reader:
        transaction = (reader.i64(), reader.i64())
        return PulsarCommittable(transaction, check_name(reader.utf(), "a Pulsar topic"))


register_committables(
    "pulsar", read_pulsar_committable, write_pulsar_committable, committable_rows, COMMITTABLE_COLUMNS
)

_MESSAGE_QUEUE = "org.apache.rocketmq.common.message.MessageQueue"
_SMALLEST_QUEUE = 2 + 2 + 4
NO_STOPPING_OFFSET = (1 << 63) - 1

_QUEUE_FIELDS = [
    pa.field("topic", pa.string(), False),
    pa.field("broker", pa.string(), False),
    pa.field("queue_id", pa.int32(), False),
]
ROCKETMQ_SPLIT_COLUMNS = pa.schema(
    [
        *_QUEUE_FIELDS,
        pa.field("offset", pa.int64(), False),
        pa.field("stopping_offset", pa.int64()),
        pa.field("increase", pa.bool_()),
    ]
)
"""`offset`: the next message to read; `increase`: the queue was added to the reader (false: it was taken away)."""

ROCKETMQ_ENUMERATOR_COLUMNS = pa.schema(_QUEUE_FIELDS)
LEGACY_COLUMNS = pa.schema([*_QUEUE_FIELDS, pa.field("offset", pa.int64(), False)])


@dataclass(frozen=True)
class RocketMQQueue:
    """A queue of a topic on a broker."""

    topic: str
    broker: str
    queue_id: int


@dataclass(frozen=True)
class RocketMQSplit:
    """A queue and how far it has been read (`RocketMQSourceSplit`).

    Attributes:
        version: 0 or 1.
        queue: the queue.
        offset: offset of the next message.
        stopping_offset: where reading stops, in version 0 a time; `NO_STOPPING_OFFSET` for an unbounded split.
        increase: see `ROCKETMQ_SPLIT_COLUMNS`; None for old releases, which do not store it.
    """

    version: int
    queue: RocketMQQueue
    offset: int
    stopping_offset: int
    increase: bool | None = None


@dataclass(frozen=True)
class RocketMQEnumerator:
    """Checkpoint of the enumerator: the queues that are assigned, in the order of the bytes."""

    queues: tuple[RocketMQQueue, ...]


@dataclass(frozen=True)
class LegacyRocketMQOffset:
    """An element of the state of `RocketMQSourceFunction`.

    Attributes:
        queue: the queue.
        offset: the committed offset.
        value: the queue as the scalar codec gives it.
    """

    queue: RocketMQQueue
    offset: int
    value: object


def rocketmq_split_rows(split: RocketMQSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `ROCKETMQ_SPLIT_COLUMNS`."""
    stop = None if split.stopping_offset == NO_STOPPING_OFFSET else split.stopping_offset
    yield {**asdict(split.queue), "offset": split.offset, "stopping_offset": stop, "increase": split.increase}


def write_rocketmq_split(split: RocketMQSplit) -> Versioned:
    """Encode a RocketMQ split; the inverse of `read_rocketmq_split`."""
    writer = Writer()
    writer.utf(split.queue.topic)
    writer.utf(split.queue.broker)
    writer.i32(split.queue.queue_id)
    writer.i64(split.offset)
    writer.i64(split.stopping_offset)
    if split.increase is not None:
        writer.bool(split.increase)
    return Versioned(split.version, writer.getvalue())


@source_splits("rocketmq", write=write_rocketmq_split, rows=rocketmq_split_rows, columns=ROCKETMQ_SPLIT_COLUMNS)
def read_rocketmq_split(versioned: Versioned) -> RocketMQSplit:
    """Read a split: topic, broker (UTF), i32 queue, i64 offset, i64 stopping offset, and since 2023 a flag.

    Raises:
        FormatError: the RocketMQ source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a RocketMQ split", 0, 1) as reader:
        topic, broker = check_name(reader.utf(), "a RocketMQ topic"), check_name(reader.utf(), "a RocketMQ broker")
        queue_id, offset, stop = reader.i32(), reader.i64(), reader.i64()
        require(reader, queue_id >= 0 and offset >= -1, "a queue or an offset of RocketMQ is negative")
        increase = read_flag(reader) if versioned.version and reader.remaining else None
    return RocketMQSplit(versioned.version, RocketMQQueue(topic, broker, queue_id), offset, stop, increase)


def rocketmq_enumerator_rows(state: RocketMQEnumerator) -> Iterator[Row]:
    """Yield a row of `ROCKETMQ_ENUMERATOR_COLUMNS` per queue."""
    yield from map(asdict, state.queues)


def write_rocketmq_enumerator(state: RocketMQEnumerator) -> Versioned:
    """Encode the checkpoint of a RocketMQ enumerator; the inverse of `read_rocketmq_enumerator`."""
    writer = Writer()
    writer.i32(len(state.queues))
    for queue in state.queues:
        writer.utf(queue.broker)
        writer.utf(queue.topic)
        writer.i32(queue.queue_id)
    return Versioned(0, writer.getvalue())


@enumerator_state(
    "rocketmq", write=write_rocketmq_enumerator, rows=rocketmq_enumerator_rows, columns=ROCKETMQ_ENUMERATOR_COLUMNS
)
def read_rocketmq_enumerator(versioned: Versioned) -> RocketMQEnumerator:
    """Read the checkpoint of an enumerator: i32 count, then broker, topic (UTF) and i32 queue of each.

    Raises:
        FormatError: the RocketMQ source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of RocketMQ", 0) as reader:
        queues = []
        for _ in range(reader.count(_SMALLEST_QUEUE)):
            broker, topic = check_name(reader.utf(), "a RocketMQ broker"), check_name(reader.utf(), "a RocketMQ topic")
            queues.append(RocketMQQueue(topic, broker, reader.i32()))
            require(reader, queues[-1].queue_id >= 0, "a queue of RocketMQ is negative")
    return RocketMQEnumerator(tuple(queues))


def legacy_rows(offset: LegacyRocketMQOffset) -> Iterator[Row]:
    """Yield one table row, with the columns `LEGACY_COLUMNS`."""
    yield {**asdict(offset.queue), "offset": offset.offset}


def is_legacy_rocketmq(serializer: tree.Serializer) -> bool:
    """Return whether the elements are tuples of a queue and a long."""
    match serializer:
        case tree.Tuple(
            fields=(tree.Pojo(pojo_class=name) | tree.Kryo(type_class=name), tree.Basic(kind=BasicKind.LONG))
        ):
            return name == _MESSAGE_QUEUE
    return False


def write_legacy_rocketmq_offset(
    offset: LegacyRocketMQOffset, serializer: tree.Serializer, context: LayoutContext
) -> bytes:
    """Encode an element of the state of `RocketMQSourceFunction`; the inverse of `read_legacy_rocketmq_offset`."""
    return write_plain_element({"f0": offset.value, "f1": offset.offset}, serializer, context)


@connector_state(
    "legacy-rocketmq",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["topic-partition-offset-states"],
    accepts=is_legacy_rocketmq,
    write=write_legacy_rocketmq_offset,
    rows=legacy_rows,
    columns=LEGACY_COLUMNS,
)
def read_legacy_rocketmq_offset(
    element: bytes, serializer: tree.Serializer, context: LayoutContext
) -> LegacyRocketMQOffset:
    """Read an element of the state of `RocketMQSourceFunction`.

    Raises:
        FormatError: the connector cannot have written the element.
    """
    value = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    first = value["f0"]
    fields = cast("Mapping[str, object]", dict(first.fields) if isinstance(first, ObjectValue) else first)
    if not isinstance(fields, dict):
        raise FormatError("a queue of RocketMQ is null")
    topic = check_name(cast("str | None", fields.get("topic")), "a RocketMQ topic")
    broker = check_name(cast("str | None", fields.get("brokerName")), "a RocketMQ broker")
    return LegacyRocketMQOffset(RocketMQQueue(topic, broker, cast("int", fields.get("queueId"))), value["f1"], first)


ITERATOR_TYPES = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")
STATUSES = ("assigned", "unassigned")

KINESIS_SPLIT_COLUMNS = pa.schema(
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
KINESIS_ENUMERATOR_COLUMNS = pa.schema(
    [*KINESIS_SPLIT_COLUMNS, pa.field("status", pa.string()), pa.field("last_seen_shard_id", pa.string())]
)


@dataclass(frozen=True)
class KinesisSplit:
    """A shard and how far it has been read (`KinesisShardSplit`).

    Attributes:
        version: 0 to 2.
        stream_arn: the stream.
        shard_id: the shard.
        iterator_type: one of `ITERATOR_TYPES`, which says what `marker` is.
        marker: sequence number, epoch milliseconds, or None.
        parent_shard_ids: ids of the parent shards, in the order of the bytes, from version 1 on; else None.
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
        splits: known splits; in version 0 only those that are not assigned.
        statuses: one of `STATUSES` per split; none in version 0.
        last_seen_shard_id: the shard after which discovery continues.
    """

    version: int
    split_version: int
    splits: tuple[KinesisSplit, ...]
    statuses: tuple[str, ...] = ()
    last_seen_shard_id: str | None = None


def kinesis_split_rows(split: KinesisSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `KINESIS_SPLIT_COLUMNS`."""
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
    """Encode a Kinesis split; the inverse of `read_kinesis_split`."""
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


@source_splits("kinesis", write=write_kinesis_split, rows=kinesis_split_rows, columns=KINESIS_SPLIT_COLUMNS)
def read_kinesis_split(versioned: Versioned) -> KinesisSplit:
    """Read a split: ARN, shard id, type of the iterator (UTF), marker; then the fields of later versions.

    Raises:
        FormatError: the Kinesis source cannot have written the bytes.
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


def kinesis_enumerator_rows(state: KinesisEnumerator) -> Iterator[Row]:
    """Yield a row of `KINESIS_ENUMERATOR_COLUMNS` per split."""
    for index, split in enumerate(state.splits):
        status = state.statuses[index] if state.statuses else None
        for row in kinesis_split_rows(split):
            yield {**row, "status": status, "last_seen_shard_id": state.last_seen_shard_id}


def write_kinesis_enumerator(state: KinesisEnumerator) -> Versioned:
    """Encode the checkpoint of a Kinesis enumerator; the inverse of `read_kinesis_enumerator`."""
    writer = Writer()
    write_optional(writer, state.last_seen_shard_id, writer.utf)
    writer.i32(len(state.splits))
    writer.i32(state.split_version)
    for index, split in enumerate(state.splits):
        writer.bytes32(write_kinesis_split(split).data)
        if state.version > 0:
            writer.i32(STATUSES.index(state.statuses[index]))
    return Versioned(state.version, writer.getvalue())


@enumerator_state(
    "kinesis", write=write_kinesis_enumerator, rows=kinesis_enumerator_rows, columns=KINESIS_ENUMERATOR_COLUMNS
)
def read_kinesis_enumerator(versioned: Versioned) -> KinesisEnumerator:
    """Read the checkpoint of an enumerator: last seen shard, i32 count, i32 version of the splits, splits.

    Raises:
        FormatError: the Kinesis source cannot have written the bytes.
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
