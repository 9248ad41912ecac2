"""Digests of the rows of a keyed state, by which a proof compares source and target.

Whoever writes, reads or computes rows digests them on the way, so that no side is read for its digests alone if it is
read anyway.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.layout import OPAQUE_FIELD
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.keyed.digests import ColumnDigest, Sums, add_sums, drop_fields, identify_rows
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.types import KEYS as KEY_COLUMNS
from state_pipelines.spark.types import from_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests import Hashes
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.flows import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator

NULLS = "# nulls"
TIMES = "# times"
VALUES = "# values"
"""Names of digests that no field has; `VALUES` is that of a payload without fields."""

BUCKETS = 128
"""Rows are compared in so many buckets of keys where they have no key groups."""

HASHED = "hashed_key_group"


@dataclass(frozen=True)
class RowColumns:
    """The columns of rows that are digested.

    Attributes:
        keys: those that tell rows apart.
        groups: number of key groups or, of operator state, subtasks; None where keys get other key groups, so that rows
            are compared in `BUCKETS`.
        group_column: the column of the key group or subtask.
        payload: the column of the payload; timers have none.
        kind: Arrow type of the payload.
        fields: of the payload; None when it is digested as one value.
        lost: dotted paths below fields that do not count.
        times: whether rows carry the time of their last access.
    """

    keys: tuple[str, ...]
    groups: int | None
    group_column: str = "key_group"
    payload: str = ""
    kind: pa.DataType | None = None
    fields: tuple[str, ...] | None = None
    lost: frozenset[str] = frozenset()
    times: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the digests of the payload and of times."""
        times = (TIMES,) if self.times else ()
        return times if self.kind is None else (NULLS, *((VALUES,) if self.fields is None else self.fields), *times)

    def has_losses(self, name: str) -> bool:
        """Whether parts of a field do not count."""
        return any(each.startswith((f"{name}.", f"{name}[")) for each in self.lost)


def choose_columns(
    shape: StateShape,
    kind: pa.DataType | None,
    present: Sequence[str],
    max_parallelism: int,
    lost: Iterable[str] = (),
) -> RowColumns:
    """The digested columns of the rows of a state.

    Args:
        shape: of the rows.
        kind: Arrow type of the payload; None of timers.
        present: the columns that rows have beside the payload; keys as bytes, if they are there, tell all.
        max_parallelism: number of key groups.
        lost: dotted paths, from the fields on, that do not count; `value` is a payload without fields.
    """
    key_columns = (
        ("key_bytes",) if "key_bytes" in present else tuple(n for n in (*KEY_COLUMNS, "timestamp") if n in present)
    )
    keys = (*key_columns, *(name for name in ("list_index",) if name in present))
    groups = max_parallelism if "key_group" in present else None
    columns = RowColumns(keys, groups, times=shape.ttl and TTL_COLUMN in present)
    return columns if kind is None else choose_payload(columns, shape.column, kind, lost)


def choose_payload(columns: RowColumns, payload: str, kind: pa.DataType, lost: Iterable[str]) -> RowColumns:
    """The columns and those of a payload; for the arguments see `choose_columns`."""
    away = frozenset(lost)
    has_fields = pa.types.is_struct(kind) and [each.name for each in kind] != [OPAQUE_FIELD]
    fields = tuple(each.name for each in kind if each.name not in away) if has_fields else None
    if fields is None and "value" in away:
        fields = ()
    return replace(columns, payload=payload, kind=kind, fields=fields, lost=away)


@dataclass(frozen=True)
class Digested:
    """Digests and counts of rows.

    Attributes:
        sums: digests by key group, or by bucket of keys.
        misplaced: by the same, records whose hash gives another key group.
        unhashed: by the same, records whose hash is not known.
    """

    sums: Sums = field(default_factory=dict)
    misplaced: Counter[int] = field(default_factory=Counter)
    unhashed: Counter[int] = field(default_factory=Counter)

    def add(self, other: Digested) -> None:
        """Add what there is in another batch."""
        add_sums(self.sums, other.sums)
        self.misplaced.update(other.misplaced)
        self.unhashed.update(other.unhashed)


def combine(found: Iterable[Digested]) -> Digested:
    """Of several groups together; one is held at a time."""
    total = Digested()
    for each in found:
        total.add(each)
    return total


class RowDigest:
    """Adds up the digests of rows, batch by batch."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns
        self._digest = ColumnDigest(columns.groups or BUCKETS, columns.names)
        self._misplaced, self._unhashed = Counter[int](), Counter[int]()

    def add(self, rows: pa.RecordBatch, identities: Hashes | None = None) -> Hashes:
        """Take rows; where they have the key group that their hash gives, that is judged.

        Args:
            rows: the rows.
            identities: of the rows, where another digest with the same keys has found them.

        Returns:
            Their identities.
        """
        columns = self._columns
        if identities is None:
            identities = identify_rows([_find_key(rows, name) for name in columns.keys])
        if columns.groups is None:
            groups = (identify_rows([rows.column("state_key")]) % np.uint64(BUCKETS)).astype(np.int32)
        else:
            groups = rows.column(columns.group_column).to_numpy().astype(np.int32, copy=False)
        arrays: dict[str, pa.Array] = {}
        if columns.kind is not None:
            arrays |= self._take_apart(rows.column(columns.payload))
        if columns.times:
            arrays[TIMES] = rows.column(TTL_COLUMN)
        self._digest.add(groups, identities, arrays)
        if HASHED in rows.schema.names:
            found = rows.column(HASHED)
            misplaced = pc.fill_null(pc.not_equal(rows.column("key_group"), found), False)
            self._misplaced += _count(groups, misplaced)
            self._unhashed += _count(groups, found.is_null())
        return identities

    def _take_apart(self, payload: pa.Array) -> dict[str, pa.Array]:
        """The null values of a payload, and its fields: they are null where the payload is."""
        columns = self._columns
        arrays = {NULLS: payload.is_null()}
        if columns.fields is None:
            return arrays | {VALUES: payload}
        if columns.fields:
            indexes = {each.name: index for index, each in enumerate(payload.type)}
            found = payload.flatten()
            for name in columns.fields:
                inside = (each for each in columns.lost if each.startswith((f"{name}.", f"{name}[")))
                below = [each.removeprefix(name).removeprefix(".") for each in inside]
                arrays[name] = drop_fields(found[indexes[name]], below)
        return arrays

    @property
    def result(self) -> Digested:
        """The digests of the added rows."""
        return Digested(self._digest.sums, self._misplaced, self._unhashed)


def _find_key(rows: pa.RecordBatch, name: str) -> pa.Array:
    """An identifying column; indices of elements may have any integer width."""
    return rows.column(name).cast(pa.int32()) if name == "list_index" else rows.column(name)


def _count(groups: npt.NDArray[np.int32], rows: pa.BooleanArray) -> Counter[int]:
    found, counts = np.unique(groups[np.asarray(rows)], return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


@dataclass(frozen=True)
class RowDigests:
    """The columns that are digested while rows are written.

    Attributes:
        expected: of the rows as they are written.
        old: of those that they came from; None where that is found elsewhere.
    """

    expected: RowColumns
    old: RowColumns | None = None


class WrittenDigest:
    """Digests rows while they are written."""

    def __init__(self, wanted: RowDigests | None) -> None:
        self._wanted = wanted
        self._expected = None if wanted is None else RowDigest(wanted.expected)
        self._old = None if wanted is None or wanted.old is None else RowDigest(wanted.old)

    def add(self, old: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Take rows as they were and as they are written."""
        if self._wanted is None or self._expected is None:
            return
        identities = self._expected.add(new)
        if self._wanted.old is not None and self._old is not None:
            # Keys and positions are unchanged where both sides have the same identifying columns.
            self._old.add(old, identities if self._wanted.old.keys == self._wanted.expected.keys else None)

    def take(self, batches: Iterable[pa.RecordBatch], types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Rows from Spark as they are to be written.

        Args:
            batches: the rows; beside them there may be the payload that they came from, for `old`.
            types: of the columns; see `restore_types`.
        """
        old = None if self._wanted is None else self._wanted.old
        known = types if old is None or old.kind is None else {**types, old.payload: old.kind}
        for batch in batches:
            rows = restore_types(batch, known)
            self.add(rows, rows)
            yield rows if old is None else rows.drop_columns([old.payload])

    @property
    def results(self) -> tuple[Digested, Digested]:
        """Digests of the expected rows and of their origins; empty where not requested."""
        expected, old = (Digested() if each is None else each.result for each in (self._expected, self._old))
        return expected, old


def find_types(layout: KeyedLayout) -> dict[str, pa.DataType]:
    """Arrow types of the columns of rows of a state: the parts of keys, the payload, times of the last access."""
    types = {each.name: each.type for each in column_type(layout.key)} | ({TTL_COLUMN: TTL_TYPE} if layout.ttl else {})
    if layout.state_type == StateKind.TIMER:
        return types
    value = column_type(layout.value)
    if layout.state_type == StateKind.LIST:
        element = value.value_type
        return types | {"value": value, "list_value": element.field("value").type if layout.ttl else element}
    name = "map_value" if layout.state_type == StateKind.MAP else "value"
    return types | {name: value.field("value").type if layout.ttl else value}


def restore_types(rows: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Rows from Spark in the types of `find_types`.

    Raises:
        ValueRangeError: a value does not fit its type.
    """
    columns = [
        conform(from_spark(column, types[name]), types[name], name) if name in types else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


@dataclass(frozen=True)
class ExpectedDigests:
    """Digests of the rows that a migration writes of a state, for comparison with the rows read back.

    Attributes:
        columns: what was digested of them.
        digested: their digests.
        source: the old state whose rows, which they result from, were digested too; empty where none were.
        old: the digests of those.
        carried: old and new name of digests that are the same, since these values stay.
    """

    columns: RowColumns
    digested: Digested
    source: str
    old: Digested
    carried: tuple[tuple[str, str], ...]

    @cached_property
    def old_sums(self) -> Sums:
        """Digests of the rows that these result from."""
        expected = self.digested.sums
        return {
            group: {old: expected[group][new] for old, new in self.carried} | sums
            for group, sums in self.old.sums.items()
        }


def find_payload_type(shape: StateShape, layouts: LayoutContext) -> pa.DataType | None:
    """Arrow type of the payload of a state; None of timers."""
    return None if shape.kind == StateKind.TIMER else column_type(derive_layout(shape.payload, layouts))


def choose_row_columns(
    shape: StateShape, operator: Operator, layouts: LayoutContext, lost: Iterable[str] = ()
) -> RowColumns:
    """The digested columns of a state of an operator; rows are identified by the bytes of their keys."""
    present = ["key_group", "key_bytes"]
    present += ["list_index"] if shape.kind == StateKind.LIST else []
    present += [TTL_COLUMN] if shape.ttl else []
    kind = find_payload_type(shape, layouts)
    return choose_columns(shape, kind, present, operator.max_parallelism, lost)


def choose_old(operator: Operator, back: Return, layouts: LayoutContext) -> RowColumns:
    """The digested columns of an old state of an operator, for comparison with the downgraded rows."""
    return replace(choose_row_columns(back.shape, operator, layouts, back.lost), times=False)


def share_digests(
    columns: RowColumns, others: RowColumns, carried: Iterable[tuple[str, str]], *, whole: bool
) -> tuple[RowColumns, dict[str, str]]:
    """The columns that remain to be digested where other rows share some values.

    Args:
        columns: wanted columns of the rows.
        others: digested columns of the other rows.
        carried: fields of the rows, each with the field of the others that has its values.
        whole: the payloads are the same.

    Returns:
        (remaining columns, names of digests with their names among the others).
    """
    if (columns.keys, columns.groups) != (others.keys, others.groups):
        # Digests of values depend on the identifying columns.
        return columns, {}
    fields = columns.fields if columns.fields is not None else (VALUES,)
    pairs = zip(fields, fields, strict=True) if whole else carried
    shared = {one: other for one, other in pairs if one in fields and not columns.has_losses(one)}
    left = tuple(name for name in fields if name not in shared)
    return (columns if VALUES in left else replace(columns, fields=left)), shared
