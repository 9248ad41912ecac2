"""DataFrames of one keyed state to part files, in tasks."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.columns import column_type
from state_pipelines.errors import at
from state_pipelines.keyed.column_digest import ColumnDigest, Sums, add_sums
from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.operations.publishing import make_file_name
from state_pipelines.operations.rewriting import PartFile, write_part
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, digest_batch, run_on_rows
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.keyed.encoding import RecordEncoder
    from state_pipelines.spark.fieldwise import FieldwiseFlow
    from state_pipelines.spark.splits import KeyedSplit


@dataclass(frozen=True)
class PartWriter:
    """Writes the rows of one task into one part file.

    Attributes:
        encoder: knows the layouts.
        directory: where part files go.
        operator: label of the operator, for errors.
    """

    encoder: RecordEncoder
    directory: Location
    operator: str

    @property
    def failure(self) -> str:
        """What is to be said when it fails."""
        return f"state {self.encoder.state} of operator {self.operator} cannot be written"

    def write_frame(self, batches: Iterator[pa.RecordBatch]) -> PartFile:
        """Encode batches that Spark gives."""
        return self.write(self._restore(batch) for batch in batches)

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartFile:
        """Encode batches."""
        with at(operator=self.operator, state=self.encoder.state):
            return write_part(self.encoder, batches, join(self.directory, make_file_name()))

    def _restore(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        targets = self._targets()
        columns = [
            from_spark(column, targets[name]) if name in targets else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _targets(self) -> dict[str, pa.DataType]:
        layout = self.encoder.layout
        targets = {each.name: each.type for each in column_type(layout.key)}
        value = column_type(layout.value)
        if layout.state_type == "LIST":
            targets["value"] = value
            element = value.value_type
            targets["list_value"] = element.field("value").type if layout.ttl else element
        else:
            name = "map_value" if layout.state_type == "MAP" else "value"
            targets[name] = value.field("value").type if layout.ttl else value
        return targets


def encode_frame(frame: DataFrame, writer: PartWriter) -> tuple[PartFile, ...]:
    """Encode a DataFrame; one part file per task that has rows.

    Raises:
        StateError: a row cannot be encoded.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is not None:
            part = writer.write_frame(chain([first], batches))
            yield pa.RecordBatch.from_pydict({"part": [pickle.dumps(part)]})

    with translate_failures(writer.failure):
        rows = frame.mapInArrow(work, "part binary").collect()
    return tuple(pickle.loads(row["part"]) for row in rows)


@dataclass(frozen=True)
class MeantPart:
    """What a task wrote of a field-wise flow.

    Attributes:
        part: the file; None when there were no rows.
        sums: digests of what was meant, of the fields that are not carried over.
    """

    part: PartFile | None
    sums: Sums


@dataclass(frozen=True)
class EncodeRows:
    """Writes the rows of one split into one part file.

    Attributes:
        writer: writes them.
        column: of the payload.
        digested: fields whose digests are wanted.
    """

    writer: PartWriter
    column: str
    digested: tuple[str, ...]

    def run(self, rows: Iterator[tuple[pa.RecordBatch, pa.StructArray]]) -> MeantPart:
        """Do the work."""
        digest = ColumnDigest(self.writer.encoder.layout.max_parallelism, self.digested)
        batches = self._make_batches(rows, digest)
        first = next(batches, None)
        part = None if first is None else self.writer.write(chain([first], batches))
        return MeantPart(part, digest.sums)

    def _make_batches(
        self, rows: Iterator[tuple[pa.RecordBatch, pa.StructArray]], digest: ColumnDigest
    ) -> Iterator[pa.RecordBatch]:
        kept = ("key_group", "key_bytes", "list_index", TTL_COLUMN)
        for stored, payload in rows:
            if self.digested:
                digest_batch(digest, stored, payload, self.digested)
            columns = {name: stored.column(name) for name in stored.schema.names if name in kept}
            yield pa.RecordBatch.from_pydict(columns | {self.column: payload})


@dataclass(frozen=True)
class MeantRows:
    """What was written of a field-wise flow.

    Attributes:
        flow: the flow.
        parts: one file per split that has rows.
        sums: digests of what was meant, of the fields that are not carried over; empty when nobody asked for them.
    """

    flow: FieldwiseFlow
    parts: tuple[PartFile, ...]
    sums: Sums


def encode_fieldwise(
    spark: SparkSession, rows: FieldwiseRows, splits: Sequence[KeyedSplit], writer: PartWriter, *, digest: bool
) -> MeantRows:
    """Encode the rows of a field-wise flow.

    Raises:
        StateError: a row cannot be computed or encoded.
    """
    flow = rows.flow
    task = EncodeRows(writer, flow.after.column, flow.made if digest else ())
    written = run_on_rows(spark, rows, splits, task, writer.failure)
    parts = tuple(each.part for each in written if each.part is not None)
    return MeantRows(flow, parts, add_sums(each.sums for each in written))
