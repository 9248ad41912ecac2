"""Rows of one keyed state to spills, in tasks: rows of Spark, or splits of a state field by field.

Where each task writes the file of a subtask, rows that are made field by field go there at once (`RowsRewrite`).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.errors import at
from state_pipelines.keyed.canonical import join_sides, replace_values
from state_pipelines.keyed.state_table import KeyedTable
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.operations.write.state_spills import StateSpill, write_state_spill
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, run_on_rows
from state_pipelines.spark.row_digests import Digested, RowDigests, WrittenDigest, find_types
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.keyed.row_encoding import RecordEncoder
    from state_pipelines.spark.fieldwise_rows import Rows
    from state_pipelines.spark.splits import KeyedSplit


@dataclass(frozen=True)
class RecordSpillWriter:
    """Writes the rows of one task into one spill.

    Attributes:
        encoder: knows the layouts.
        directory: where spills go.
        operator: label of the operator, for errors.
    """

    encoder: RecordEncoder
    directory: Location
    operator: str

    @property
    def failure(self) -> str:
        """Description of the task for errors."""
        return f"state {self.encoder.state} of operator {self.operator} cannot be written"

    def write(self, batches: Iterator[pa.RecordBatch]) -> StateSpill:
        """Encode batches."""
        with at(operator=self.operator, state=self.encoder.state):
            return write_state_spill(self.encoder, batches, join(self.directory, make_file_name()))


@dataclass(frozen=True)
class Written:
    """Files written for a state.

    Attributes:
        spills: one file per task that had rows.
        expected: digests of the expected rows.
        old: of the rows that it came from.
    """

    spills: tuple[StateSpill, ...]
    expected: Digested
    old: Digested


def _pack(spill: StateSpill | None, digest: WrittenDigest) -> Written:
    return Written(() if spill is None else (spill,), *digest.results)


def combine_written(found: Iterable[Written]) -> Written:
    """Combine the results of several tasks."""
    spills: list[StateSpill] = []
    expected, old = Digested(), Digested()
    for each in found:
        spills += each.spills
        expected.add(each.expected)
        old.add(each.old)
    return Written(tuple(spills), expected, old)


def encode_frame(frame: DataFrame, writer: RecordSpillWriter, digests: RowDigests | None = None) -> Written:
    """Encode a DataFrame; one spill per task that has rows.

    Args:
        frame: the rows; beside them there may be the payload of `digests.old`, which is not written.
        writer: writes them.
        digests: columns to digest while writing.

    Raises:
        StateError: a row cannot be encoded.
    """
    types = find_types(writer.encoder.layout)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest = WrittenDigest(digests)
        taken = digest.take(batches, types)
        first = next(taken, None)
        if first is not None:
            written = _pack(writer.write(chain([first], taken)), digest)
            yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})

    with translate_failures(writer.failure):
        rows = frame.mapInArrow(work, "written binary").collect()
    return combine_written(pickle.loads(row["written"]) for row in rows)


@dataclass(frozen=True)
class EncodeRows:
    """Writes the rows of one split into one spill.

    Attributes:
        writer: writes them.
        digests: columns to digest while writing.
    """

    writer: RecordSpillWriter
    digests: RowDigests | None

    def run(self, rows: Iterator[Rows]) -> Written:
        """Do the work."""
        digest = WrittenDigest(self.digests)

        def take() -> Iterator[pa.RecordBatch]:
            for each in rows:
                digest.add(each.stored, each.new)
                yield each.new

        batches = take()
        first = next(batches, None)
        return _pack(None if first is None else self.writer.write(chain([first], batches)), digest)


def encode_fieldwise(
    spark: SparkSession,
    rows: FieldwiseRows,
    splits: Sequence[KeyedSplit],
    writer: RecordSpillWriter,
    digests: RowDigests | None = None,
) -> Written:
    """Encode the rows of a field-wise flow; arguments as of `encode_frame`.

    Raises:
        StateError: a row cannot be computed or encoded.
    """
    task = EncodeRows(writer, digests)
    return combine_written(run_on_rows(spark, rows, splits, task, writer.failure))


@dataclass(frozen=True)
class RowsRewrite:
    """Rewrites the records of a state field by field, without spills.

    Attributes:
        rows: the flow.
        layout: of the old records.
        encoder: of the new ones.
        operator: its label, for errors.
        digests: columns to digest while writing.
    """

    rows: FieldwiseRows
    layout: KeyedLayout
    encoder: RecordEncoder
    operator: str
    digests: RowDigests | None

    def start(self) -> RowsRewriter:
        """Return the rewriter of one task."""
        return RowsRewriter(self)


class RowsRewriter:
    """Rewrites the records of a state in one task."""

    def __init__(self, rewrite: RowsRewrite) -> None:
        self._rewrite = rewrite
        self._table = KeyedTable(rewrite.layout, rewrite.rows.options)
        self._digest = WrittenDigest(rewrite.digests)
        # Of lists a record has several rows.
        flow = rewrite.rows.flow
        self._has_lists = StateKind.LIST in (flow.before.kind, flow.after.kind)

    def rewrite(self, records: KeyedRecords, subtask: int) -> Iterator[KeyedRecords]:
        """Rewrite records of the old file.

        Raises:
            StateError: a record cannot be decoded, computed or encoded.
        """
        rewrite = self._rewrite
        with at(operator=rewrite.operator, state=rewrite.rows.flow.state):
            batch = self._table.make_batch(records, subtask)
        if not len(batch):
            return
        with at(operator=rewrite.operator, state=rewrite.encoder.state):
            rows = rewrite.rows.make_rows(batch)
            self._digest.add(rows.stored, rows.new)
            if not self._has_lists:
                new = [replace_values(records, rewrite.encoder.encode_values(rows.new))]
            else:
                encoded = rewrite.encoder.encode([rows.new])
                new = [join_sides(each.key_groups, each.keys, each.values) for each in encoded]
        yield from new

    @property
    def result(self) -> Written:
        """The digests of all rows."""
        return Written((), *self._digest.results)
