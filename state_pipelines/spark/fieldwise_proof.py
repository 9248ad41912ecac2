"""The proof of a field-wise flow: columns are digested where they are read, and only what SQL computes goes to Spark.

The old state is read once and the new one once, column by column, by nothing that the writing shares but the readers;
what was meant by the computed fields was digested while it was written. The way back needs another pass only where it
computes something.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.column_digest import KEYS, ROWS, ColumnDigest, Sums, add_sums, require_digestible
from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.spark.comparisons import GroupResult
from state_pipelines.spark.fieldwise import list_fields
from state_pipelines.spark.fieldwise_rows import (
    FieldwiseRows,
    choose_fields,
    digest_batch,
    list_columns,
    run_on_rows,
)
from state_pipelines.spark.reports import KEY_SETS, READ_BACK, ROUND_TRIP, ROW_COUNTS
from state_pipelines.spark.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.spark.fieldwise import FieldwiseFlow
    from state_pipelines.spark.splits import KeyedSplit

NULLS = "# nulls"
TIMES = "# times"
"""Names of digests that no field has."""


def is_digestible(shape: StateShape, layouts: LayoutContext) -> bool:
    """Whether all fields of a payload can be digested where they are read."""
    try:
        for kind in list_fields(shape, layouts).values():
            require_digestible(kind)
    except UnsupportedError:
        return False
    return True


@dataclass(frozen=True)
class Side:
    """A state, before or after.

    Attributes:
        splits: of it.
        shape: of its rows.
        layouts: what the layout of its payload depends on.
        max_parallelism: number of its key groups.
    """

    splits: tuple[KeyedSplit, ...]
    shape: StateShape
    layouts: LayoutContext
    max_parallelism: int


@dataclass(frozen=True)
class Proven:
    """A field-wise flow that was written.

    Attributes:
        flow: what was meant.
        meant: digests of the fields that were not carried over, made while they were written.
        back: the way back; None where there is none to be judged here.
        lost: old fields that the way back does not bring back.
    """

    flow: FieldwiseFlow
    meant: Sums
    back: FieldwiseFlow | None
    lost: frozenset[str] = frozenset()


def compare_fieldwise(spark: SparkSession, name: str, before: Side, after: Side, proven: Proven) -> list[GroupResult]:
    """Compare a state as it was with the state as it was written, key group by key group.

    Raises:
        StateError: one side cannot be read.
    """
    flow, back = proven.flow, proven.back
    carried = dict(flow.carried)
    returned = {} if back is None else {old: new for old, new in back.carried if old not in proven.lost}
    made = [] if back is None else [each for each in back.made if each not in proven.lost]
    olds = {*carried.values(), *returned, *made}
    old = _digest_side(spark, before, olds)
    news = {*carried, *flow.made, *returned.values()}
    new = _digest_side(spark, after, news, hashed=True)
    round_trip: Sums = {}
    if back is not None and made:
        rows = FieldwiseRows(back, before.layouts, frozenset(made))
        task = _DigestRows(after.max_parallelism, tuple(made))
        round_trip = add_sums(
            each.sums for each in run_on_rows(spark, rows, after.splits, task, "the way back cannot be computed")
        )
    results = []
    for group in sorted({*old.sums, *new.sums, *proven.meant, *round_trip}):
        one, other = old.sums.get(group, {}), new.sums.get(group, {})
        meant, came = proven.meant.get(group, {}), round_trip.get(group, {})
        read_back = [("null values", one.get(NULLS), other.get(NULLS))]
        for each in list_fields(after.shape, after.layouts):
            if each in carried:
                read_back.append((each, one.get(carried[each]), other.get(each)))
            else:
                read_back.append((each, meant.get(each), other.get(each)))
        if before.shape.ttl:
            read_back.append((TTL_COLUMN, one.get(TIMES), other.get(TIMES)))
        values = {
            ROW_COUNTS: [("records", str(one.get(ROWS, "none")), str(other.get(ROWS, "none")))],
            KEY_SETS: [("keys", _to_text(one.get(KEYS)), _to_text(other.get(KEYS)))],
            READ_BACK: [(what, _to_text(left), _to_text(right)) for what, left, right in read_back],
        }
        if back is not None:
            pairs = [("null values", one.get(NULLS), other.get(NULLS))]
            pairs += [(each, one.get(each), other.get(returned[each])) for each in returned]
            pairs += [(each, one.get(each), came.get(each)) for each in made]
            values[ROUND_TRIP] = [(what, _to_text(left), _to_text(right)) for what, left, right in pairs]
        results.append(GroupResult(name, group, values, other.get(ROWS, 0), new.misplaced[group], new.unhashed[group]))
    return results


def _to_text(digest: int | None) -> str:
    return "none" if digest is None else f"{digest:016x}"


@dataclass(frozen=True)
class _Digested:
    """What a side holds.

    Attributes:
        sums: digests of keys, fields, nulls and times.
        misplaced: by key group, records whose hash gives another one.
        unhashed: by key group, records whose hash is not known.
    """

    sums: Sums
    misplaced: Counter[int] = field(default_factory=Counter)
    unhashed: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class _DigestSplit:
    """Digests the columns of one split."""

    split: KeyedSplit
    shape: StateShape
    fields: tuple[str, ...]
    max_parallelism: int
    hashed: bool

    def run(self) -> _Digested:
        """Do the work."""
        times = [TIMES] if self.shape.ttl else []
        digest = ColumnDigest(self.max_parallelism, (*self.fields, NULLS, *times))
        misplaced, unhashed = Counter[int](), Counter[int]()
        options = list_columns(self.shape, self.fields, hashed=self.hashed)
        for batch in replace(self.split, options=options).batches():
            payload = batch.column(self.shape.column)
            others = {NULLS: payload.is_null()} | {name: batch.column(TTL_COLUMN) for name in times}
            digest_batch(digest, batch, payload, self.fields, others)
            if self.hashed:
                groups, found = batch.column("key_group"), batch.column("hashed_key_group")
                misplaced += _count(groups, pc.fill_null(pc.not_equal(groups, found), False))
                unhashed += _count(groups, found.is_null())
        return _Digested(digest.sums, misplaced, unhashed)


def _count(groups: pa.Array, rows: pa.BooleanArray) -> Counter[int]:
    found, counts = np.unique(groups.filter(rows).to_numpy(), return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _digest_side(spark: SparkSession, side: Side, fields: Collection[str], *, hashed: bool = False) -> _Digested:
    chosen = choose_fields(side.shape, side.layouts, fields)
    tasks = [_DigestSplit(each, side.shape, chosen, side.max_parallelism, hashed) for each in side.splits]
    found: Sequence[_Digested] = run_tasks(spark, tasks, "the proof cannot read the state")
    return _Digested(
        add_sums(each.sums for each in found),
        sum((each.misplaced for each in found), Counter()),
        sum((each.unhashed for each in found), Counter()),
    )


@dataclass(frozen=True)
class _DigestRows:
    """Digests computed fields of one split."""

    max_parallelism: int
    fields: tuple[str, ...]

    def run(self, rows: Iterator[tuple[pa.RecordBatch, pa.StructArray]]) -> _Digested:
        """Do the work."""
        digest = ColumnDigest(self.max_parallelism, self.fields)
        for stored, payload in rows:
            digest_batch(digest, stored, payload, self.fields)
        return _Digested(digest.sums)
