"""Offsets of Kafka partitions as the state of a Kafka source: splits of its readers, and its enumerator.

Source: `org.apache.flink.connector.kafka.source.enumerator.KafkaSourceEnumerator` (`getSplitOwner`),
`KafkaSourceEnumStateSerializer`, `SourceCoordinator.writeCheckpointBytes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.logical_values import conform, to_plain
from state_pipelines.connectors.kafka_source import (
    NO_OFFSET,
    STARTING_WORDS,
    KafkaAssignment,
    KafkaEnumerator,
    KafkaSplit,
    write_kafka_enumerator,
    write_kafka_split,
)
from state_pipelines.connectors.registry import CoordinatorState, write_coordinator, write_versioned_array
from state_pipelines.errors import IncompatibleError, UsageError, ValueRangeError
from state_pipelines.keyed.hashing.basic_hashes import hash_strings
from state_pipelines.operations.bootstrap.new_states import LIST_INDEX, SUBTASK
from state_pipelines.operations.bootstrap.row_shapes import require_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

COORDINATOR_VERSION = 1
"""Of `SourceCoordinatorSerdeUtils`, since Flink 1.13."""

ENUMERATOR_VERSION = 1
"""Assigned partitions and no more: every release of the connector since Flink 1.14 reads it."""


def read_offsets(rows: pa.Table) -> list[KafkaSplit]:
    """The splits of a table with the columns `topic`, `partition` and `offset` (of the next record to read).

    Raises:
        UsageError: a column is missing, or there are no rows.
        ValueRangeError: an offset or partition is negative or null, or no whole number; a topic is no text.
        IncompatibleError: a partition occurs twice.
    """
    for name in ("topic", "partition", "offset"):
        if name not in rows.schema.names:
            raise UsageError(f"the offsets have no column {name}", hint=f"they have {', '.join(rows.schema.names)}")
    columns = []
    for name, kind in (("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())):
        column = to_plain(rows.column(name).combine_chunks(), name)
        if name == "topic" and not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
            raise ValueRangeError(f"the column {name} is {column.type}, not text")
        require_kind(column.type, kind, name)
        columns.append(conform(column, kind, name).to_pylist())
    splits: dict[tuple[str, int], KafkaSplit] = {}
    for topic, partition, offset in zip(*columns, strict=True):
        label = f"partition {partition} of topic {topic}"
        if not topic or partition is None or partition < 0:
            raise ValueRangeError(f"there is no {label}", hint="Every row names a topic and a partition from 0 on")
        if offset is None or (offset < 0 and offset not in (-1, -2, -3)):
            words = ", ".join(f"{number} {word}" for number, word in STARTING_WORDS.items() if number != NO_OFFSET)
            raise ValueRangeError(
                f"{offset} is no offset for {label}",
                hint=f"Give that of the next record to read; of those below 0: {words}",
            )
        if (topic, partition) in splits:
            raise IncompatibleError(f"there are several offsets for {label}", hint="Take the largest one")
        splits[topic, partition] = KafkaSplit(topic, partition, offset)
    if not splits:
        raise UsageError(
            "there are no offsets", hint="Without any, the source starts as its job says; leave the state out"
        )
    return list(splits.values())


def require_splits(splits: Sequence[KafkaSplit], parallelism: int) -> None:
    """Refuse a source with more subtasks than partitions.

    Raises:
        UsageError: says how many there are.
    """
    if parallelism > len(splits):
        known, idle = len(splits), parallelism - len(splits)
        raise UsageError(
            f"the source knows {known} partition{'' if known == 1 else 's'}, so that of its {parallelism} subtasks "
            f"{idle} would have nothing to read, for whose watermark Flink waits",
            hint=f"Choose at most {known} subtasks, or give the offsets of all partitions: -2 is the earliest record",
        )


def assign_splits(splits: Sequence[KafkaSplit], parallelism: int) -> pa.RecordBatch:
    """Rows of the readers' state: `subtask`, `list_index`, `value`, by the rule of the enumerator."""
    hashes = hash_strings(pa.array([each.topic for each in splits], pa.string())).tolist()
    placed = sorted(
        (((code * 31 & 0x7FFFFFFF) % parallelism + each.partition) % parallelism, each.topic, each.partition, each)
        for code, each in zip(hashes, splits, strict=True)
    )
    return pa.RecordBatch.from_pydict(
        {
            SUBTASK: pa.array([subtask for subtask, *_ in placed], pa.int32()),
            LIST_INDEX: pa.array(range(len(placed)), pa.int64()),
            "value": pa.array([write_versioned_array(write_kafka_split(each)) for *_, each in placed], pa.binary()),
        }
    )


def make_coordinator(splits: Sequence[KafkaSplit]) -> bytes:
    """State of the source coordinator that knows the partitions as assigned, so that it does not assign them again."""
    enumerator = KafkaEnumerator(ENUMERATOR_VERSION, tuple(KafkaAssignment(each) for each in splits))
    versioned = write_kafka_enumerator(enumerator)
    return write_coordinator(CoordinatorState(0, COORDINATOR_VERSION, versioned))
