"""Splits of the dynamic Kafka source, which reads several clusters.

Facts from the repository apache/flink-connector-kafka:
`org.apache.flink.connector.kafka.dynamic.source.split.DynamicKafkaSourceSplitSerializer` (versions 1 and 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.element_frames import Versioned, check_name, read_flag, require, write_optional
from state_pipelines.connectors.kafka_source import (
    EDIT,
    SPLIT_COLUMNS,
    KafkaSplit,
    read_kafka_split,
    split_rows,
    write_kafka_split,
)
from state_pipelines.connectors.registry import Edit, source_splits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.connectors.connector_state import Row

COLUMNS = pa.schema(
    [pa.field("cluster", pa.string(), False), *SPLIT_COLUMNS, pa.field("retained_until", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True)
class DynamicKafkaSplit:
    """A partition of one of the clusters.

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
    """Yield one row of `COLUMNS`."""
    for row in split_rows(split.split):
        yield {"cluster": split.cluster, **row, "retained_until": split.retained_until}


def write_dynamic_kafka_split(split: DynamicKafkaSplit) -> Versioned:
    """Write what `read_dynamic_kafka_split` reads."""
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
        FormatError: it could not be one of this source.
        UnsupportedError: an unknown version.
    """
    versioned.expect("a split of the dynamic Kafka source", 1, 2)
    reader = versioned.reader()
    cluster = check_name(reader.utf(), "the id of a Kafka cluster")
    retained = reader.i64() if versioned.version > 1 and read_flag(reader) else None
    require(reader, retained is None or retained >= 0, "the time until which a split is retained is negative")
    inner = Versioned(reader.i32(), reader.take(reader.remaining))
    return DynamicKafkaSplit(versioned.version, cluster, read_kafka_split(inner), retained)
