"""State of Kafka connectors: splits and enumerators of the sources, transactions of the sink and of the old producer.

* `KafkaSplit`, `KafkaEnumerator`: splits and enumerator of the source. Source: repository apache/flink-connector-kafka,
  package `org.apache.flink.connector.kafka`: `source.split.KafkaPartitionSplitSerializer` and `KafkaPartitionSplit`
  (split, special offsets), `source.enumerator.KafkaSourceEnumStateSerializer` and `AssignmentStatus` (enumerator
  versions 0 to 3); and `SerdeUtils` of flink-connector-base (split assignments in version 0 of the enumerator). The
  rule for topic names is `org.apache.kafka.common.internals.Topic`.
* `DynamicKafkaSplit`: splits of the dynamic source, which reads several clusters. Source: the same repository,
  `org.apache.flink.connector.kafka.dynamic.source.split.DynamicKafkaSourceSplitSerializer` (versions 1 and 2).
* `KafkaWriterState`, `KafkaCommittable`: writer state of the sink and transactions to commit. Committables are inside
  the state of a committer (`connectors.sinks`). Source: the same repository, package
  `org.apache.flink.connector.kafka.sink`: `KafkaWriterStateSerializer` (versions 1 and 2),
  `internal.TransactionOwnership`, `KafkaCommittableSerializer` (version 1).
* `TwoPhaseCommitState`: sinks on `TwoPhaseCommitSinkFunction`, the open transaction of each subtask and those to be
  committed; the sink defines the transaction, its serializer the layout. Source:
  `org.apache.flink.streaming.api.functions.sink.TwoPhaseCommitSinkFunction` (state `state`).
* `TransactionalIdHint`: the exactly-once sink `FlinkKafkaProducer` of 1.x. Its list state `state` is that of a
  `TwoPhaseCommitSinkFunction`; union state `next-transactional-id-hint-v2` stores the free transactional ids. Older
  releases keep the hint as a POJO in `next-transactional-id-hint`; its fields are the same. Source:
  `org.apache.flink.streaming.connectors.kafka.FlinkKafkaProducer`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.json import dumps, to_json
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Edit,
    Versioned,
    check_name,
    connector_state,
    enumerator_state,
    read_flag,
    require,
    source_splits,
    versioned_state,
    write_optional,
    write_plain_element,
)
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.connectors.registry import Row

NO_OFFSET = -(1 << 63)
"""No stopping offset; as a starting offset: to be looked up by the enumerator (`MIGRATED`)."""

STARTING_WORDS = {-1: "latest", -2: "earliest", -3: "committed", NO_OFFSET: "migrated"}
STOPPING_WORDS = {-1: "latest", -3: "committed", NO_OFFSET: "none"}
STATUSES = ("assigned", "unassigned", "tombstoned")

_UNSETTABLE = ("migrated", "not set")
"""Words of offsets that only the source itself resolves."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SMALLEST_SPLIT = 2 + 4 + 8 + 8

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64()),
        pa.field("offset_word", pa.string()),
        pa.field("stopping_offset", pa.int64()),
        pa.field("stopping_word", pa.string()),
    ]
)
"""Offsets of the next record to read and of the first record not to read; null where a word is stored instead."""

ENUMERATOR_COLUMNS = pa.schema([*SPLIT_COLUMNS, pa.field("status", pa.string(), False), pa.field("reader", pa.int32())])


@dataclass(frozen=True)
class KafkaSplit:
    """A partition and how far it has been read (`KafkaPartitionSplit`).

    Attributes:
        topic: the topic.
        partition: the partition.
        starting_offset: offset of the next record, or one of `STARTING_WORDS`.
        stopping_offset: offset of the first record that is not read, or one of `STOPPING_WORDS`.
    """

    topic: str
    partition: int
    starting_offset: int
    stopping_offset: int = NO_OFFSET


@dataclass(frozen=True)
class KafkaAssignment:
    """A partition that the enumerator knows.

    Attributes:
        split: the partition and the offsets that it was assigned with; versions 1 and 2 store none (`NO_OFFSET`).
        status: one of `STATUSES`.
        reader: subtask that reads it; stored in version 0 only.
    """

    split: KafkaSplit
    status: str = "assigned"
    reader: int | None = None


@dataclass(frozen=True)
class KafkaEnumerator:
    """Checkpoint of the enumerator (`KafkaSourceEnumState`).

    Attributes:
        version: 0 to 3.
        assignments: the partitions, in the order of the bytes.
        initial_discovery_finished: whether partitions that are found later are new ones; stored from version 2 on.
        readers: subtasks in the order of the bytes, even without assignments; stored in version 0 only.
    """

    version: int
    assignments: tuple[KafkaAssignment, ...]
    initial_discovery_finished: bool = True
    readers: tuple[int, ...] = ()


def split_rows(split: KafkaSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `SPLIT_COLUMNS`."""
    start, stop = STARTING_WORDS.get(split.starting_offset), STOPPING_WORDS.get(split.stopping_offset)
    yield {
        "topic": split.topic,
        "partition": split.partition,
        "offset": None if start else split.starting_offset,
        "offset_word": start,
        "stopping_offset": None if stop else split.stopping_offset,
        "stopping_word": stop,
    }


def choose_offset(before: int, offset: int | None, word: str | None, words: Mapping[int, str]) -> int:
    """Return the new number of an offset that a migration edits in two columns, one for numbers and one for words.

    Args:
        before: the number before the edit.
        offset: the column for numbers after the edit.
        word: the column for words after the edit.
        words: words by the number that stores them.

    Raises:
        ValueRangeError: the word is unknown, the number is negative, both columns were set, or both are null.
    """
    old_word = words.get(before)
    old = None if old_word else before
    changed = [name for name, one, other in (("offset", old, offset), ("word", old_word, word)) if one != other]
    if not changed:
        return before
    if word is not None and "word" in changed:
        if offset is not None and "offset" in changed:
            raise ValueRangeError(f"the offset {offset} and the word {word!r} were both set", hint="Set one of them")
        numbers = {each: number for number, each in words.items() if each not in _UNSETTABLE}
        if word not in numbers:
            raise ValueRangeError(f"{word!r} is no word for an offset", hint=f"Words are {', '.join(numbers)}")
        return numbers[word]
    if offset is None:
        raise ValueRangeError("the row has neither an offset nor a word such as earliest", hint="Set one of them")
    if offset < 0:
        raise ValueRangeError(
            f"the offset {offset} is negative", hint="To start at the first record, set the word earliest"
        )
    return offset


def _edit_split(split: KafkaSplit, rows: Sequence[Mapping[str, Any]]) -> KafkaSplit:
    (row,) = rows
    start = choose_offset(split.starting_offset, row["offset"], row["offset_word"], STARTING_WORDS)
    stop = choose_offset(split.stopping_offset, row["stopping_offset"], row["stopping_word"], STOPPING_WORDS)
    return replace(split, starting_offset=start, stopping_offset=stop)


EDIT = Edit(("offset", "offset_word", "stopping_offset", "stopping_word"), _edit_split)
"""`KafkaPartitionSplitReader` seeks to the offset of a restored split, or to what the word says."""


def write_kafka_split(split: KafkaSplit) -> Versioned:
    """Encode a Kafka split; the inverse of `read_kafka_split`."""
    writer = Writer()
    _write_split(writer, split)
    return Versioned(0, writer.getvalue())


@source_splits("kafka", write=write_kafka_split, rows=split_rows, columns=SPLIT_COLUMNS, edit=EDIT)
def read_kafka_split(versioned: Versioned) -> KafkaSplit:
    """Read a split: topic (UTF), i32 partition, i64 starting offset, i64 stopping offset.

    Raises:
        FormatError: Kafka's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a Kafka split", 0) as reader:
        return _read_split(reader)


def enumerator_rows(state: KafkaEnumerator) -> Iterator[Row]:
    """Yield a row of `ENUMERATOR_COLUMNS` per partition."""
    for each in state.assignments:
        for row in split_rows(each.split):
            yield {**row, "status": each.status, "reader": each.reader}


def write_kafka_enumerator(state: KafkaEnumerator) -> Versioned:
    """Encode the checkpoint of a Kafka enumerator; the inverse of `read_kafka_enumerator`.

    Raises:
        ValueRangeError: a version that does not exist.
    """
    writer = Writer()
    if state.version == 0:
        _write_readers(writer, state)
        return Versioned(0, writer.getvalue())
    if state.version not in (1, 2, 3):
        raise ValueRangeError(f"version {state.version} of Kafka's enumerator does not exist")
    writer.i32(len(state.assignments))
    if state.version == 3:
        writer.i32(0)
    for each in state.assignments:
        if state.version == 3:
            writer.bytes32(write_kafka_split(each.split).data)
        else:
            writer.utf(each.split.topic)
            writer.i32(each.split.partition)
        if state.version > 1:
            writer.i32(STATUSES.index(each.status))
    if state.version > 1:
        writer.bool(state.initial_discovery_finished)
    return Versioned(state.version, writer.getvalue())


@enumerator_state("kafka", write=write_kafka_enumerator, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_kafka_enumerator(versioned: Versioned) -> KafkaEnumerator:
    """Read the checkpoint of a Kafka enumerator.

    Version 0: splits by reader (`SerdeUtils`); 1: topics and partitions; 2: topics and partitions with a status each,
    then whether the initial discovery is finished; 3: splits with a status each, then the same flag.

    Raises:
        FormatError: Kafka's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("Kafka's enumerator", 0, 1, 2, 3) as reader:
        if version == 0:
            state = _read_readers(reader)
        else:
            count = reader.count(6)
            if version == 3:
                _expect_split_version(reader)
            assignments = tuple(_read_assignment(reader, version) for _ in range(count))
            state = KafkaEnumerator(version, assignments, read_flag(reader) if version > 1 else True)
    return state


def read_topic_partition(reader: Reader) -> tuple[str, int]:
    """Read topic (UTF) and i32 partition.

    Raises:
        FormatError: no topic can have this name, or no partition this number.
    """
    topic, partition = reader.utf(), reader.i32()
    check_topic_partition(reader, topic, partition)
    return topic, partition


def check_topic_partition(reader: Reader, topic: str, partition: int) -> None:
    """Refuse invalid topic names and partitions (`Topic.validate`).

    Raises:
        FormatError: the topic or partition is invalid.
    """
    require(reader, bool(_TOPIC.fullmatch(topic)) and topic not in (".", ".."), f"{topic!r:.80} is no Kafka topic")
    require(reader, partition >= 0, f"{partition} is no Kafka partition")


def _read_split(reader: Reader) -> KafkaSplit:
    topic, partition = read_topic_partition(reader)
    start, stop = reader.i64(), reader.i64()
    require(reader, start >= 0 or start in STARTING_WORDS, f"{start} is no starting offset of Kafka")
    require(reader, stop >= 0 or stop in STOPPING_WORDS, f"{stop} is no stopping offset of Kafka")
    return KafkaSplit(topic, partition, start, stop)


def _write_split(writer: Writer, split: KafkaSplit) -> None:
    writer.utf(split.topic)
    writer.i32(split.partition)
    writer.i64(split.starting_offset)
    writer.i64(split.stopping_offset)


def _read_assignment(reader: Reader, version: int) -> KafkaAssignment:
    if version == 3:
        split = read_kafka_split(Versioned(0, reader.bytes32()))
    else:
        split = KafkaSplit(*read_topic_partition(reader), NO_OFFSET)
    if version == 1:
        return KafkaAssignment(split)
    status = reader.i32()
    require(reader, 0 <= status < len(STATUSES), f"{status} is no assignment status of Kafka")
    return KafkaAssignment(split, STATUSES[status])


def _read_readers(reader: Reader) -> KafkaEnumerator:
    assignments: list[KafkaAssignment] = []
    readers: list[int] = []
    count = reader.count(8)
    _expect_split_version(reader)
    for _ in range(count):
        subtask = reader.i32()
        require(reader, subtask >= 0, f"{subtask} is no subtask")
        readers.append(subtask)
        for _ in range(reader.count(4 + _SMALLEST_SPLIT)):
            split = read_kafka_split(Versioned(0, reader.bytes32()))
            assignments.append(KafkaAssignment(split, reader=subtask))
    return KafkaEnumerator(0, tuple(assignments), readers=tuple(readers))


def _write_readers(writer: Writer, state: KafkaEnumerator) -> None:
    writer.i32(len(state.readers))
    writer.i32(0)
    for subtask in state.readers:
        splits = [each.split for each in state.assignments if each.reader == subtask]
        writer.i32(subtask)
        writer.i32(len(splits))
        for split in splits:
            writer.bytes32(write_kafka_split(split).data)


def _expect_split_version(reader: Reader) -> None:
    Versioned(reader.i32(), b"").expect("a Kafka split", 0)


COLUMNS = pa.schema(
    [pa.field("cluster", pa.string(), False), *SPLIT_COLUMNS, pa.field("retained_until", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True)
class DynamicKafkaSplit:
    """A split of Kafka's dynamic source: a partition in one of its clusters.

    Attributes:
        version: 1 or 2.
        cluster: id of the cluster.
        split: the partition.
        retained_until: until when a removed split is kept, epoch milliseconds; version 2.
    """

    version: int
    cluster: str
    split: KafkaSplit
    retained_until: int | None = None


def rows(split: DynamicKafkaSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `COLUMNS`."""
    for row in split_rows(split.split):
        yield {"cluster": split.cluster, **row, "retained_until": split.retained_until}


def write_dynamic_kafka_split(split: DynamicKafkaSplit) -> Versioned:
    """Encode a split of Kafka's dynamic source; the inverse of `read_dynamic_kafka_split`."""
    writer = Writer()
    writer.utf(split.cluster)
    if split.version > 1:
        write_optional(writer, split.retained_until, writer.i64)
    inner = write_kafka_split(split.split)
    writer.i32(inner.version)
    writer.take(inner.data)
    return Versioned(split.version, writer.getvalue())


_EDIT = Edit(EDIT.columns, lambda split, edited: replace(split, split=EDIT.apply(split.split, edited)))


@source_splits("dynamic-kafka", write=write_dynamic_kafka_split, rows=rows, columns=COLUMNS, edit=_EDIT)
def read_dynamic_kafka_split(versioned: Versioned) -> DynamicKafkaSplit:
    """Read a split: cluster (UTF), in version 2 whether and until when it is retained, version and bytes of the split.

    Raises:
        FormatError: Kafka's dynamic source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    versioned.expect("a split of the dynamic Kafka source", 1, 2)
    reader = versioned.reader()
    cluster = check_name(reader.utf(), "the id of a Kafka cluster")
    retained = reader.i64() if versioned.version > 1 and read_flag(reader) else None
    require(reader, retained is None or retained >= 0, "the time until which a split is retained is negative")
    inner = Versioned(reader.i32(), reader.take(reader.remaining))
    return DynamicKafkaSplit(versioned.version, cluster, read_kafka_split(inner), retained)


OWNERSHIPS = ("IMPLICIT_BY_SUBTASK_ID", "EXPLICIT_BY_WRITER_STATE")

WRITER_COLUMNS = pa.schema(
    [
        pa.field("transactional_id_prefix", pa.string(), False),
        pa.field("owned_subtask", pa.int32()),
        pa.field("owned_subtasks", pa.int32()),
        pa.field("ownership", pa.string()),
        pa.field("transactional_id", pa.string()),
        pa.field("checkpoint_id", pa.int64()),
    ]
)

COMMITTABLE_COLUMNS = pa.schema(
    [
        pa.field("transactional_id", pa.string(), False),
        pa.field("producer_id", pa.int64(), False),
        pa.field("epoch", pa.int16(), False),
    ]
)


@dataclass(frozen=True)
class KafkaTransaction:
    """A precommitted transaction and the checkpoint that it belongs to (`CheckpointTransaction`)."""

    transactional_id: str
    checkpoint_id: int


@dataclass(frozen=True)
class KafkaWriterState:
    """State of a writer of the Kafka sink.

    Attributes:
        version: 1, or 2 since connector 4.0.
        transactional_id_prefix: prefix of the ids of the transactions of the job.
        owned_subtask: subtask whose transactions the writer owns; like the fields below, stored in version 2 only.
        owned_subtasks: number of subtasks whose transactions are owned (`totalNumberOfOwnedSubtasks`).
        ownership: one of `OWNERSHIPS`.
        transactions: precommitted transactions.
    """

    version: int
    transactional_id_prefix: str
    owned_subtask: int | None = None
    owned_subtasks: int | None = None
    ownership: str | None = None
    transactions: tuple[KafkaTransaction, ...] = ()


@dataclass(frozen=True)
class KafkaCommittable:
    """A transaction of the Kafka sink that is to be committed."""

    transactional_id: str
    producer_id: int
    epoch: int


def writer_rows(state: KafkaWriterState) -> Iterator[Row]:
    """Yield a row of `WRITER_COLUMNS` per transaction, or a single row if there are none."""
    head: Row = {
        "transactional_id_prefix": state.transactional_id_prefix,
        "owned_subtask": state.owned_subtask,
        "owned_subtasks": state.owned_subtasks,
        "ownership": state.ownership,
    }
    if not state.transactions:
        yield head
    for each in state.transactions:
        yield {**head, "transactional_id": each.transactional_id, "checkpoint_id": each.checkpoint_id}


def write_kafka_writer_state(state: KafkaWriterState) -> Versioned:
    """Encode the state of a Kafka writer; the inverse of `read_kafka_writer_state`.

    Raises:
        ValueRangeError: a field that the version stores is missing.
    """
    writer = Writer()
    writer.utf(state.transactional_id_prefix)
    if state.version == 2:
        if state.owned_subtask is None or state.owned_subtasks is None or state.ownership not in OWNERSHIPS:
            raise ValueRangeError("version 2 of the state of a Kafka writer needs the ownership of transactional ids")
        writer.i32(state.owned_subtask)
        writer.i32(state.owned_subtasks)
        writer.i32(OWNERSHIPS.index(state.ownership))
        writer.i32(len(state.transactions))
        for each in state.transactions:
            writer.utf(each.transactional_id)
            writer.i64(each.checkpoint_id)
    return Versioned(state.version, writer.getvalue())


@versioned_state(
    "kafka",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["writer_raw_states"],
    write=write_kafka_writer_state,
    rows=writer_rows,
    columns=WRITER_COLUMNS,
)
def read_kafka_writer_state(versioned: Versioned) -> KafkaWriterState:
    """Read the state of a writer: prefix (UTF); in version 2 its ownership and precommitted transactions.

    Raises:
        FormatError: Kafka's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the state of a Kafka writer", 1, 2) as reader:
        prefix = check_name(reader.utf(), "the prefix of transactional ids")
        state = KafkaWriterState(versioned.version, prefix)
        if versioned.version == 2:
            # The first two are -1 after a restore from version 1, which does not store them.
            owned, total, ownership = reader.i32(), reader.i32(), reader.i32()
            require(reader, owned >= -1 and total >= -1 and ownership in (0, 1), "a Kafka writer does not own that")
            transactions = tuple(_read_transaction(reader) for _ in range(reader.count(10)))
            state = KafkaWriterState(2, prefix, owned, total, OWNERSHIPS[ownership], transactions)
    return state


def committable_rows(committable: KafkaCommittable) -> Iterator[Row]:
    """Yield one table row, with the columns `COMMITTABLE_COLUMNS`."""
    yield asdict(committable)


def read_kafka_committable(versioned: Versioned) -> KafkaCommittable:
    """Read a committable: i16 epoch, i64 producer id, transactional id (UTF).

    Raises:
        FormatError: Kafka's connector cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a committable of Kafka", 1) as reader:
        epoch, producer_id = reader.i16(), reader.i64()
        require(reader, epoch >= 0 and producer_id >= 0, "epoch or producer id is negative")
        transactional_id = check_name(reader.utf(), "the transactional id")
    return KafkaCommittable(transactional_id, producer_id, epoch)


def write_kafka_committable(committable: KafkaCommittable) -> Versioned:
    """Encode a committable of the Kafka sink; the inverse of `read_kafka_committable`."""
    writer = Writer()
    writer.i16(committable.epoch)
    writer.i64(committable.producer_id)
    writer.utf(committable.transactional_id)
    return Versioned(1, writer.getvalue())


def _read_transaction(reader: Reader) -> KafkaTransaction:
    transactional_id, checkpoint_id = check_name(reader.utf(), "the transactional id"), reader.i64()
    require(reader, checkpoint_id >= 0, f"{checkpoint_id} is no checkpoint id")
    return KafkaTransaction(transactional_id, checkpoint_id)


PRODUCER_COLUMNS = pa.schema(
    [
        pa.field("role", pa.string(), False),
        pa.field("transaction", pa.string()),
        pa.field("started", pa.timestamp("ms", tz="UTC")),
    ]
)
"""`role`: `open`, or `to commit`; `transaction`: as JSON, in the form of `codecs.json`."""


@dataclass(frozen=True)
class Transaction:
    """A transaction of a `TwoPhaseCommitSinkFunction`.

    Attributes:
        value: the transaction as the scalar codec reads it.
        started: epoch milliseconds.
        text: `value` as JSON.
    """

    value: object
    started: int
    text: str


@dataclass(frozen=True)
class TwoPhaseCommitState:
    """State of one subtask of a `TwoPhaseCommitSinkFunction`.

    Attributes:
        pending: the open transaction, or None.
        committing: transactions that the checkpoint is to commit.
        context: the user's context as the scalar codec reads it, or None.
    """

    pending: Transaction | None
    committing: tuple[Transaction, ...]
    context: object = None


def producer_rows(state: TwoPhaseCommitState) -> Iterator[Row]:
    """Yield a row of `PRODUCER_COLUMNS` per transaction."""
    for role, transactions in (("open", (state.pending,)), ("to commit", state.committing)):
        for each in transactions:
            if each is not None:
                yield {"role": role, "transaction": each.text, "started": each.started}


def is_two_phase_commit(serializer: tree.Serializer) -> bool:
    """Return whether the elements are states of a `TwoPhaseCommitSinkFunction` other than `FlinkKafkaProducer`."""
    return transaction_serializer(serializer) is not None and not is_kafka_producer(serializer)


def is_kafka_producer(serializer: tree.Serializer) -> bool:
    """Return whether the elements are states of a `FlinkKafkaProducer`."""
    match transaction_serializer(serializer):
        case tree.Basic(kind=BasicKind.KAFKA_TRANSACTION_STATE):
            return True
    return False


def transaction_serializer(serializer: tree.Serializer) -> tree.Serializer | None:
    """Return the serializer of the transactions of a `TwoPhaseCommitSinkFunction`; None for states of others."""
    match serializer:
        case tree.Variants(kind=tree.VariantKind.TWO_PHASE_COMMIT, serializers=(transaction, _)):
            return transaction
    return None


def write_two_phase_commit(state: TwoPhaseCommitState, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Encode the state of one subtask of a two-phase-commit sink; the inverse of `read_two_phase_commit`."""

    def plain(each: Transaction | None) -> dict[str, object] | None:
        return None if each is None else {"transaction": each.value, "started": each.started}

    value = {
        "pending": plain(state.pending),
        "committing": [plain(each) for each in state.committing],
        "context": state.context,
    }
    return write_plain_element(value, serializer, context)


@connector_state(
    "two-phase-commit",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["state"],
    accepts=is_two_phase_commit,
    write=write_two_phase_commit,
    rows=producer_rows,
    columns=PRODUCER_COLUMNS,
)
def read_two_phase_commit(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> TwoPhaseCommitState:
    """Read the state of one subtask of a `TwoPhaseCommitSinkFunction`.

    Raises:
        FormatError: the bytes do not fit the serializer.
        UnsupportedError: the serializer of the transactions is not covered.
    """
    if not isinstance(serializer, tree.Variants):
        raise UnsupportedError("the serializer is not that of a TwoPhaseCommitSinkFunction")
    value = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    if not isinstance(value, dict):
        raise FormatError("the state of a TwoPhaseCommitSinkFunction has no fields")
    node = serializer.serializers[0]

    def transaction(each: dict[str, object]) -> Transaction:
        started = each["started"]
        if not isinstance(started, int):
            raise FormatError("a transaction has no start time")
        return Transaction(each["transaction"], started, dumps({"": to_json(node, each["transaction"])})[4:-1])

    pending = value["pending"]
    return TwoPhaseCommitState(
        None if pending is None else transaction(pending),
        tuple(transaction(each) for each in value["committing"]),
        value["context"],
    )


_HINT_CLASSES = ("FlinkKafkaProducer$NextTransactionalIdHint", "FlinkKafkaProducer011$NextTransactionalIdHint")
_HINT_FIELDS = ("nextFreeTransactionalId", "lastParallelism")

PRODUCER_WRITER_COLUMNS = pa.schema(
    [
        pa.field("role", pa.string(), False),
        pa.field("transactional_id", pa.string()),
        pa.field("producer_id", pa.int64()),
        pa.field("epoch", pa.int16()),
        pa.field("started", pa.timestamp("ms", tz="UTC")),
    ]
)
"""`role`: `open` or `to commit` of a transaction, `pool` of a transactional id that the subtask may use.

Without exactly-once delivery a transaction has no transactional id, and its producer id and epoch are -1."""

HINT_COLUMNS = pa.schema(
    [pa.field("next_free_transactional_id", pa.int64(), False), pa.field("last_parallelism", pa.int32(), False)]
)


@dataclass(frozen=True)
class TransactionalIdHint:
    """Hint that keeps transactional ids apart from those of earlier runs.

    Attributes:
        next_free: the first number that no subtask has used.
        last_parallelism: parallelism of the sink when it wrote the hint.
        class_name: class of the object, where the serializer names it; else empty.
    """

    next_free: int
    last_parallelism: int
    class_name: str = ""


def producer_writer_rows(state: TwoPhaseCommitState) -> Iterator[Row]:
    """Yield a row of `PRODUCER_WRITER_COLUMNS` per transaction, then one per transactional id of the pool."""
    for role, transactions in (("open", (state.pending,)), ("to commit", state.committing)):
        for each in transactions:
            if each is not None:
                value = cast("Mapping[str, object]", each.value)
                yield {
                    "role": role,
                    "transactional_id": value["transactionalId"],
                    "producer_id": value["producerId"],
                    "epoch": value["epoch"],
                    "started": each.started,
                }
    for name in _pool(state):
        yield {"role": "pool", "transactional_id": name}


connector_state(
    "legacy-kafka",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["state"],
    accepts=is_kafka_producer,
    write=write_two_phase_commit,
    rows=producer_writer_rows,
    columns=PRODUCER_WRITER_COLUMNS,
)(read_two_phase_commit)


def hint_rows(hint: TransactionalIdHint) -> Iterator[Row]:
    """Yield one table row, with the columns `HINT_COLUMNS`."""
    yield {"next_free_transactional_id": hint.next_free, "last_parallelism": hint.last_parallelism}


def is_hint(serializer: tree.Serializer) -> bool:
    """Return whether the elements are hints, by their own serializer or as a POJO."""
    match serializer:
        case tree.Basic(kind=BasicKind.KAFKA_NEXT_TRANSACTIONAL_ID_HINT):
            return True
        case tree.Pojo(pojo_class=name, fields=fields):
            return name.endswith(_HINT_CLASSES) and {each.name for each in fields} == set(_HINT_FIELDS)
    return False


def write_hint(hint: TransactionalIdHint, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Encode a hint of transactional ids; the inverse of `read_hint`."""
    value: dict[str, object] = dict(zip(_HINT_FIELDS, (hint.next_free, hint.last_parallelism), strict=True))
    return write_plain_element({"class": hint.class_name, **value} if hint.class_name else value, serializer, context)


@connector_state(
    "legacy-kafka",
    kind=ConnectorStateKind.TRANSACTIONAL_IDS,
    operator_state_names=["next-transactional-id-hint", "next-transactional-id-hint-v2"],
    accepts=is_hint,
    write=write_hint,
    rows=hint_rows,
    columns=HINT_COLUMNS,
)
def read_hint(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> TransactionalIdHint:
    """Read a hint of transactional ids.

    Raises:
        FormatError: the element is not a hint.
    """
    reader = Reader(element)
    value = read_value(derive_layout(serializer, context), reader, tail=False)
    if not isinstance(value, dict):
        raise FormatError("a hint of transactional ids is null")
    next_free, last_parallelism = (cast("int", value[name]) for name in _HINT_FIELDS)
    hint = TransactionalIdHint(next_free, last_parallelism, str(value.get("class", "")))
    require(reader, hint.next_free >= 0 and hint.last_parallelism >= 0, "a hint of transactional ids is negative")
    return hint


def _pool(state: TwoPhaseCommitState) -> tuple[str, ...]:
    context = cast("Mapping[str, tuple[str, ...]] | None", state.context)
    return () if context is None else tuple(context["transactionalIds"])
