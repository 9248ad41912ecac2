"""Kafka sink: writer state and transactions to commit.

Facts from the repository apache/flink-connector-kafka, package `org.apache.flink.connector.kafka.sink`:
`KafkaWriterStateSerializer` (versions 1 and 2), `internal.TransactionOwnership`, `KafkaCommittableSerializer`
(version 1). Committables are inside the state of a committer (`committers`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.registry import ConnectorStateKind, Versioned, check_name, require, versioned_state
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

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
    """A transaction that a checkpoint waits for (`CheckpointTransaction`)."""

    transactional_id: str
    checkpoint_id: int


@dataclass(frozen=True)
class KafkaWriterState:
    """State of a writer of the sink.

    Attributes:
        version: 1, or 2 since connector 4.0.
        transactional_id_prefix: of the transactions of the job.
        owned_subtask: subtask whose transactions the writer owns; version 2, as all that follows.
        owned_subtasks: how many subtasks there are to own.
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
    """A transaction that is to be committed."""

    transactional_id: str
    producer_id: int
    epoch: int


def writer_rows(state: KafkaWriterState) -> Iterator[Row]:
    """Yield a row of `WRITER_COLUMNS` per transaction; one when there are none."""
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
    """Write what `read_kafka_writer_state` reads.

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
        FormatError: it could not be one of Kafka.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the state of a Kafka writer", 1, 2) as reader:
        prefix = check_name(reader.utf(), "the prefix of transactional ids")
        state = KafkaWriterState(versioned.version, prefix)
        if versioned.version == 2:
            # -1: not known, after a restore from version 1.
            owned, total, ownership = reader.i32(), reader.i32(), reader.i32()
            require(reader, owned >= -1 and total >= -1 and ownership in (0, 1), "a Kafka writer does not own that")
            transactions = tuple(_read_transaction(reader) for _ in range(reader.count(10)))
            state = KafkaWriterState(2, prefix, owned, total, OWNERSHIPS[ownership], transactions)
    return state


def committable_rows(committable: KafkaCommittable) -> Iterator[Row]:
    """Yield one row of `COMMITTABLE_COLUMNS`."""
    yield asdict(committable)


def read_kafka_committable(versioned: Versioned) -> KafkaCommittable:
    """Read a committable: i16 epoch, i64 producer id, transactional id (UTF).

    Raises:
        FormatError: it could not be one of Kafka.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a committable of Kafka", 1) as reader:
        epoch, producer_id = reader.i16(), reader.i64()
        require(reader, epoch >= 0 and producer_id >= 0, "epoch or producer id is negative")
        transactional_id = check_name(reader.utf(), "the transactional id")
    return KafkaCommittable(transactional_id, producer_id, epoch)


def write_kafka_committable(committable: KafkaCommittable) -> Versioned:
    """Write what `read_kafka_committable` reads."""
    writer = Writer()
    writer.i16(committable.epoch)
    writer.i64(committable.producer_id)
    writer.utf(committable.transactional_id)
    return Versioned(1, writer.getvalue())


def _read_transaction(reader: Reader) -> KafkaTransaction:
    transactional_id, checkpoint_id = check_name(reader.utf(), "the transactional id"), reader.i64()
    require(reader, checkpoint_id >= 0, f"{checkpoint_id} is no checkpoint id")
    return KafkaTransaction(transactional_id, checkpoint_id)
