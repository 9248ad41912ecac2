"""RocketMQ: splits and enumerator of the source, and offsets of the legacy `RocketMQSourceFunction`.

Facts from the repository apache/rocketmq-flink, package `org.apache.flink.connector.rocketmq`:
`source.split.RocketMQPartitionSplitSerializer` (versions 0 and 1),
`source.enumerator.RocketMQSourceEnumStateSerializer` (version 0), `legacy.RocketMQSourceFunction` (union state
`topic-partition-offset-states`, a tuple of `org.apache.rocketmq.common.message.MessageQueue` and a long).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.java import ObjectValue
from state_pipelines.codecs.scalar.codec import read_value
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
    write_plain_element,
)
from state_pipelines.errors import FormatError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.connectors.registry import Row

_MESSAGE_QUEUE = "org.apache.rocketmq.common.message.MessageQueue"
_SMALLEST_QUEUE = 2 + 2 + 4
NO_STOPPING_OFFSET = (1 << 63) - 1

_QUEUE_FIELDS = [
    pa.field("topic", pa.string(), False),
    pa.field("broker", pa.string(), False),
    pa.field("queue_id", pa.int32(), False),
]
SPLIT_COLUMNS = pa.schema(
    [
        *_QUEUE_FIELDS,
        pa.field("offset", pa.int64(), False),
        pa.field("stopping_offset", pa.int64()),
        pa.field("increase", pa.bool_()),
    ]
)
"""`offset`: the next message to read; `increase`: the queue was added to the reader (false: it was taken away)."""

ENUMERATOR_COLUMNS = pa.schema(_QUEUE_FIELDS)
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
        offset: of the next message.
        stopping_offset: where reading stops; a time in version 0; `NO_STOPPING_OFFSET` for an unbounded split.
        increase: see `SPLIT_COLUMNS`; None where old releases do not store it.
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
        offset: as committed.
        value: the queue as the scalar codec gives it.
    """

    queue: RocketMQQueue
    offset: int
    value: object


def split_rows(split: RocketMQSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    stop = None if split.stopping_offset == NO_STOPPING_OFFSET else split.stopping_offset
    yield {**asdict(split.queue), "offset": split.offset, "stopping_offset": stop, "increase": split.increase}


def write_rocketmq_split(split: RocketMQSplit) -> Versioned:
    """Write what `read_rocketmq_split` reads."""
    writer = Writer()
    writer.utf(split.queue.topic)
    writer.utf(split.queue.broker)
    writer.i32(split.queue.queue_id)
    writer.i64(split.offset)
    writer.i64(split.stopping_offset)
    if split.increase is not None:
        writer.bool(split.increase)
    return Versioned(split.version, writer.getvalue())


@source_splits("rocketmq", write=write_rocketmq_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_rocketmq_split(versioned: Versioned) -> RocketMQSplit:
    """Read a split: topic, broker (UTF), i32 queue, i64 offset, i64 stopping offset, and since 2023 a flag.

    Raises:
        FormatError: it could not be one of RocketMQ.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a RocketMQ split", 0, 1) as reader:
        topic, broker = check_name(reader.utf(), "a RocketMQ topic"), check_name(reader.utf(), "a RocketMQ broker")
        queue_id, offset, stop = reader.i32(), reader.i64(), reader.i64()
        require(reader, queue_id >= 0 and offset >= -1, "a queue or an offset of RocketMQ is negative")
        increase = read_flag(reader) if versioned.version and reader.remaining else None
    return RocketMQSplit(versioned.version, RocketMQQueue(topic, broker, queue_id), offset, stop, increase)


def enumerator_rows(state: RocketMQEnumerator) -> Iterator[Row]:
    """Yield a row of `ENUMERATOR_COLUMNS` per queue."""
    yield from map(asdict, state.queues)


def write_rocketmq_enumerator(state: RocketMQEnumerator) -> Versioned:
    """Write what `read_rocketmq_enumerator` reads."""
    writer = Writer()
    writer.i32(len(state.queues))
    for queue in state.queues:
        writer.utf(queue.broker)
        writer.utf(queue.topic)
        writer.i32(queue.queue_id)
    return Versioned(0, writer.getvalue())


@enumerator_state("rocketmq", write=write_rocketmq_enumerator, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_rocketmq_enumerator(versioned: Versioned) -> RocketMQEnumerator:
    """Read the checkpoint of an enumerator: i32 count, then broker, topic (UTF) and i32 queue of each.

    Raises:
        FormatError: it could not be one of RocketMQ.
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
    """Yield one row of `LEGACY_COLUMNS`."""
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
    """Write what `read_legacy_rocketmq_offset` reads."""
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
        FormatError: it could not be one.
    """
    value = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    first = value["f0"]
    fields = cast("Mapping[str, object]", dict(first.fields) if isinstance(first, ObjectValue) else first)
    if not isinstance(fields, dict):
        raise FormatError("a queue of RocketMQ is null")
    topic = check_name(cast("str | None", fields.get("topic")), "a RocketMQ topic")
    broker = check_name(cast("str | None", fields.get("brokerName")), "a RocketMQ broker")
    return LegacyRocketMQOffset(RocketMQQueue(topic, broker, cast("int", fields.get("queueId"))), value["f1"], first)
