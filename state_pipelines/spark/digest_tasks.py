"""Digesting the rows of a keyed state in tasks: as they lie in files, as a way back makes them, or as Spark does."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.keyed.tables import TTL_COLUMN, TableOptions
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, choose_fields, run_on_rows
from state_pipelines.spark.row_digests import (
    HASHED,
    Digested,
    RowColumns,
    RowDigest,
    combine,
    restore_types,
)
from state_pipelines.spark.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.spark.fieldwise_rows import Rows
    from state_pipelines.spark.splits import KeyedSplit

_WHAT = "the proof cannot read the state"


def digest_splits(
    spark: SparkSession, splits: Sequence[KeyedSplit], columns: RowColumns, *, hashed: bool = False
) -> Digested:
    """Digest a state as it lies in its files.

    Args:
        spark: the session.
        splits: of the state.
        columns: what is digested.
        hashed: also judge whether keys lie where their hashes put them.

    Raises:
        StateError: the state cannot be read.
    """
    return combine(run_tasks(spark, [_DigestSplit(each, columns, hashed) for each in splits], _WHAT))


def digest_back(
    spark: SparkSession, splits: Sequence[KeyedSplit], way: FieldwiseRows, made: RowColumns, written: RowColumns | None
) -> tuple[Digested, Digested]:
    """Digest what a field-wise way back computes and, in the same pass, what it computes that of.

    Args:
        spark: the session.
        splits: of the new state.
        way: the way back.
        made: what is digested of its rows.
        written: what is digested of the new state's, keys judged by their hashes; None is nothing.

    Returns:
        (what comes back, what was written).

    Raises:
        StateError: the state cannot be read, or a field not be computed.
    """
    fields = () if written is None or written.fields is None else written.fields
    new = None if made.fields is None else frozenset(made.fields)
    rows = replace(way, new=new, old=frozenset(fields), hashed=written is not None)
    found = run_on_rows(spark, rows, splits, _DigestBack(made, written), "the way back cannot be computed")
    return combine(back for back, _ in found), combine(read for _, read in found)


def digest_frame(frame: DataFrame, types: Mapping[str, pa.DataType], columns: RowColumns) -> Digested:
    """Digest rows that Spark makes.

    Args:
        frame: the rows, as they would be written.
        types: of their columns, where Spark has others.
        columns: what is digested.

    Raises:
        StateError: a row cannot be computed, or has no place in its type.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest = RowDigest(columns)
        for batch in batches:
            digest.add(restore_types(batch, types))
        yield pa.RecordBatch.from_pydict({"digested": [pickle.dumps(digest.result)]})

    # Behind a shuffle every task has all key groups: the driver gets the sums of some tasks, not each task's.
    made = frame.mapInArrow(work, "digested binary").rdd.map(lambda row: pickle.loads(row["digested"]))
    return made.treeAggregate(Digested(), _join, _join)


def _join(one: Digested, other: Digested) -> Digested:
    """Both together, in the first."""
    one.add(other)
    return one


@dataclass(frozen=True)
class _DigestSplit:
    """Digests one split."""

    split: KeyedSplit
    columns: RowColumns
    hashed: bool

    def run(self) -> Digested:
        """Do the work."""
        columns = self.columns
        digest = RowDigest(columns)
        names = ["key_group", *columns.keys]
        names += [TTL_COLUMN] if columns.times else []
        names += [HASHED] if self.hashed else []
        if columns.kind is not None:
            apart = columns.fields is not None and pa.types.is_struct(columns.kind) and columns.kind.num_fields
            fields = choose_fields(columns.kind, columns.fields or ()) if apart else ()
            names += [f"{columns.payload}.{name}" for name in fields] or [columns.payload]
        options = TableOptions(columns=tuple(names), key_bytes="key_bytes" in names, key_hash=self.hashed)
        for batch in replace(self.split, options=options).batches():
            digest.add(batch)
        return digest.result


@dataclass(frozen=True)
class _DigestBack:
    """Digests what comes back of one split, and the split."""

    made: RowColumns
    written: RowColumns | None

    def run(self, rows: Iterator[Rows]) -> tuple[Digested, Digested]:
        """Do the work."""
        back, read = RowDigest(self.made), None if self.written is None else RowDigest(self.written)
        for each in rows:
            back.add(each.new)
            if read is not None:
                read.add(each.stored)
        return back.result, Digested() if read is None else read.result
