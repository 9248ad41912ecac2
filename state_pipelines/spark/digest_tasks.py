"""Tasks that digest the rows of a keyed state: as stored, as downgraded by Arrow, or as computed by Spark."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.operations.proofs import AFTER, EXPECTED, DifferingRecord, to_plain
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, choose_fields, run_on_rows
from state_pipelines.spark.row_digests import HASHED, Digested, RowColumns, RowDigest, combine, restore_types
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
    """Digest a state as stored in its files.

    Args:
        spark: the session.
        splits: of the state.
        columns: the digested columns.
        hashed: also count keys that are not in the key group of their hash.

    Raises:
        StateError: the state cannot be read.
    """
    return combine(run_tasks(spark, [_DigestSplit(each, columns, hashed) for each in splits], _WHAT))


def find_misplaced(spark: SparkSession, state: str, splits: Sequence[KeyedSplit], limit: int) -> list[DifferingRecord]:
    """Find records of a state that are in another key group than their hash gives.

    Args:
        spark: the session.
        state: its name.
        splits: of the state.
        limit: records at most.

    Raises:
        StateError: the state cannot be read.
    """
    found = run_tasks(spark, [_FindMisplaced(each, limit) for each in splits], _WHAT)
    rows = [row for each in found for row in each][:limit]
    return [
        DifferingRecord(
            state,
            {"state_key": key},
            {AFTER: f"key group {group}", EXPECTED: f"key group {hashed}, by the hash of the key"},
        )
        for key, group, hashed in rows
    ]


def digest_back(
    spark: SparkSession, splits: Sequence[KeyedSplit], way: FieldwiseRows, made: RowColumns, written: RowColumns | None
) -> tuple[Digested, Digested]:
    """Digest the result of a field-wise downgrade and, in the same pass, its input.

    Args:
        spark: the session.
        splits: of the new state.
        way: the way back.
        made: digested columns of the result.
        written: digested columns of the new state, with keys checked by their hashes; None for none.

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
        columns: the digested columns.

    Raises:
        StateError: a row cannot be computed, or does not fit its type.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest = RowDigest(columns)
        for batch in batches:
            digest.add(restore_types(batch, types))
        yield pa.RecordBatch.from_pydict({"digested": [pickle.dumps(digest.result)]})

    # After a shuffle every task has all key groups, so that sums are merged before the driver collects them.
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
class _FindMisplaced:
    """Finds records of one split that are in another key group than their hash gives."""

    split: KeyedSplit
    limit: int

    def run(self) -> list[tuple[Any, int, int]]:
        """Find (key, key group, key group of the hash)."""
        rows: list[tuple[Any, int, int]] = []
        options = TableOptions(columns=("key_group", "state_key", HASHED), key_hash=True)
        for batch in replace(self.split, options=options).batches():
            wrong = batch.filter(pc.fill_null(pc.not_equal(batch.column("key_group"), batch.column(HASHED)), False))
            rows += [
                (to_plain(row["state_key"]), row["key_group"], row[HASHED])
                for row in wrong.slice(0, self.limit - len(rows)).to_pylist()
            ]
            if len(rows) >= self.limit:
                break
        return rows


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
