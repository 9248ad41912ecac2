"""DataFrames of one keyed state to part files, in tasks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.columns import column_type
from state_pipelines.errors import at
from state_pipelines.operations.publishing import make_file_name
from state_pipelines.operations.rewriting import PartFile, write_part
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from state_pipelines.keyed.encoding import RecordEncoder


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

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartFile:
        """Encode batches that Spark gives."""
        with at(operator=self.operator, state=self.encoder.state):
            target = join(self.directory, make_file_name())
            return write_part(self.encoder, (self._restore(batch) for batch in batches), target)

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
            part = writer.write(chain([first], batches))
            yield pa.RecordBatch.from_pydict({"name": [part.location.name], "records": [part.records]})

    with translate_failures(f"state {writer.encoder.state} of operator {writer.operator} cannot be written"):
        rows = frame.mapInArrow(work, "name string, records long").collect()
    return tuple(PartFile(join(writer.directory, row["name"]), row["records"]) for row in rows)
