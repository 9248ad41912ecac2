"""Rows that differ between two sides of a proof, for the report of a failed check."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.proofs import (
    BEFORE,
    EXAMPLES,
    EXPECTED,
    DifferingRecord,
    RecordCounts,
    to_plain,
)
from state_pipelines.spark.flow_columns import KEYS, PAYLOAD, hidden
from state_pipelines.spark.row_digests import TIMES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame


_SIDE, _VALUE, _COMPARED, _KIND = (hidden(name) for name in ("side", "value", "compared", "kind"))
_MISSING, _UNEXPECTED, _DIFFERING = "missing", "unexpected", "differing"


@dataclass(frozen=True)
class FoundRows:
    """Rows that differ.

    Attributes:
        counts: how many, of each kind.
        rows: examples, those that are missing or unexpected first.
        other: examples with other values only.
    """

    counts: RecordCounts = field(default_factory=RecordCounts)
    rows: tuple[DifferingRecord, ...] = ()
    other: tuple[DifferingRecord, ...] = ()

    def __add__(self, other: FoundRows) -> FoundRows:
        rows, others = (*self.rows, *other.rows), (*self.other, *other.other)
        return FoundRows(self.counts + other.counts, rows[:EXAMPLES], others[:EXAMPLES])

    @property
    def examples(self) -> tuple[DifferingRecord, ...]:
        """Examples of every kind."""
        half = max(EXAMPLES // 2, EXAMPLES - len(self.other))
        return (*self.rows[:half], *self.other)[:EXAMPLES]


def find_rows(
    state: str,
    sides: Mapping[str, DataFrame],
    compared: tuple[str, str],
    groups: tuple[str, Collection[int]],
    fields: Collection[str],
    *,
    kept: bool = False,
) -> FoundRows:
    """Find rows that differ between two frames, in one pass over all of them.

    Args:
        state: name of the state.
        sides: frames of `FlowRunner` by name, with the same keys; those that are not compared are only shown.
        compared: names of the expected frame and of the one that is there.
        groups: column of the key group or subtask, and the values of it to search.
        fields: names of digests, and of fields of the payload, that are compared; the whole payload where it has none.
        kept: rows that the second frame lacks are no difference: the migration left them out.

    Returns:
        Numbers of rows, and at most `EXAMPLES` of each kind.
    """
    column, values = hidden(groups[0]), groups[1]
    common = set.intersection(*(set(frame.columns) for frame in sides.values()))
    key_columns = ("key_bytes",) if hidden("key_bytes") in common else (*KEYS, "timestamp")
    identity = [name for name in map(hidden, (groups[0], *key_columns, "list_index")) if name in common]
    shown = [
        name
        for name in map(hidden, KEYS)
        if name not in identity and any(name in frame.columns for frame in sides.values())
    ]
    timed = TIMES in fields or "times of the last access" in fields
    union: DataFrame | None = None
    for name, frame in sides.items():
        rows = frame.where(F.col(column).isin(list(values))) if column in identity else frame
        own = rows.select(
            *identity,
            *(F.col(each) for each in shown if each in frame.columns),
            F.lit(name).alias(_SIDE),
            _to_text(frame, timed=timed).alias(_VALUE),
            _compare_text(frame, fields, timed=timed).alias(_COMPARED),
        )
        union = own if union is None else union.unionByName(own, allowMissingColumns=True)
    assert union is not None
    # Groups, not joins: a namespace may be null, and a key may occur twice on one side.
    pair = F.struct(_COMPARED, _VALUE)
    together = union.groupBy(*identity).agg(
        *(F.first(name, ignorenulls=True).alias(name) for name in shown),
        *(F.sort_array(F.collect_list(F.when(F.col(_SIDE) == name, pair))).alias(name) for name in sides),
    )
    wanted, found = compared
    different = together.withColumn(_KIND, _classify(F.col(wanted), F.col(found), kept=kept)).where(F.col(_KIND) != "")
    different = different.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        numbers = {row[_KIND]: row["count"] for row in different.groupBy(_KIND).count().collect()}
        names = {name: name.removeprefix(hidden("")) for name in (*identity, *shown)}
        examples = {
            kind: tuple(
                _make_row(state, row.asDict(recursive=True), names, list(sides), compared, frozenset(fields))
                for row in different.where(F.col(_KIND) == kind).orderBy(*identity).limit(EXAMPLES).collect()
            )
            for kind in numbers
        }
    finally:
        different.unpersist()
    missing, unexpected = examples.get(_MISSING, ()), examples.get(_UNEXPECTED, ())
    half = max(EXAMPLES // 2, EXAMPLES - len(unexpected))
    return FoundRows(
        RecordCounts(0, *(numbers.get(kind, 0) for kind in (_DIFFERING, _MISSING, _UNEXPECTED))),
        (*missing[:half], *unexpected)[:EXAMPLES],
        examples.get(_DIFFERING, ()),
    )


def _classify(wanted: Column, found: Column, *, kept: bool) -> Column:
    lost = F.lit("") if kept else F.lit(_MISSING)
    same = F.transform(wanted, lambda each: each[_COMPARED]) == F.transform(found, lambda each: each[_COMPARED])
    return (
        F.when(F.size(found) == 0, lost)
        .when(F.size(found) < F.size(wanted), F.lit(_MISSING))
        .when(F.size(found) > F.size(wanted), F.lit(_UNEXPECTED))
        .when(same, F.lit(""))
        .otherwise(F.lit(_DIFFERING))
    )


def _choose_fields(frame: DataFrame, fields: Collection[str]) -> list[str]:
    """The compared fields of the payload, sorted; none where the payload is compared as a whole."""
    kind = frame.schema[PAYLOAD].dataType if PAYLOAD in frame.columns else None
    return [name for name in sorted(fields) if name in kind.names] if isinstance(kind, StructType) else []


def _to_text(frame: DataFrame, fields: Sequence[str] = (), *, timed: bool) -> Column:
    """The payload, or fields of it, as JSON."""
    columns: list[Column] = []
    if PAYLOAD in frame.columns:
        payload = F.col(PAYLOAD)
        value = F.struct(*(payload.getField(name).alias(name) for name in fields)) if fields else payload
        columns.append(F.when(payload.isNotNull(), value).alias("value"))
    if timed and hidden(TTL_COLUMN) in frame.columns:
        columns.append(F.col(hidden(TTL_COLUMN)).alias("ttl_last_access"))
    # Timers have keys only.
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}) if columns else F.lit("{}")


def _compare_text(frame: DataFrame, fields: Collection[str], *, timed: bool) -> Column:
    """The text of `_to_text` and the types: an INT 1 and a BIGINT 1 differ."""
    if PAYLOAD not in frame.columns:
        return _to_text(frame, timed=timed)
    kind, known = frame.schema[PAYLOAD].dataType, _choose_fields(frame, fields)
    types = (
        [kind[name].dataType.simpleString() for name in known]
        if known and isinstance(kind, StructType)
        else [kind.simpleString()]
    )
    return F.concat(F.lit(" ".join(types)), _to_text(frame, known, timed=timed))


def _make_row(
    state: str,
    row: Mapping[str, Any],
    names: Mapping[str, str],
    sides: Sequence[str],
    compared: tuple[str, str],
    fields: frozenset[str],
) -> DifferingRecord:
    key = {names[name]: to_plain(value) for name, value in row.items() if name in names and value is not None}
    if "state_key" in key:
        key.pop("key_bytes", None)
    # The key first, its position in the snapshot last.
    order = (*KEYS, "timestamp", "key_bytes", "list_index", "subtask", "key_group")
    key = {name: key[name] for name in order if name in key}
    texts = {name: [json.loads(each[_VALUE]) for each in row[name]] for name in sides}
    values = {name: [_open(each) for each in found] for name, found in texts.items() if found}
    several = [f"{len(found)} records {name}" for name, found in values.items() if len(found) > 1]
    shown = {name: found[0] if len(found) == 1 else found for name, found in values.items()}
    absent = tuple(name for name in sides if not texts[name])
    if EXPECTED not in sides:
        # What comes back is expected to be what was there.
        shown |= {EXPECTED: shown[BEFORE]} if BEFORE in shown else {}
        absent += () if BEFORE in shown else (EXPECTED,)
    note = f"the key occurs several times: {', '.join(several)}" if several else ""
    return DifferingRecord(state, key, shown, absent, note, compared, fields)


def _open(content: dict[str, Any]) -> Any:
    return content["value"] if list(content) == ["value"] else content or "timer"


def combine_found(found: Sequence[FoundRows]) -> FoundRows:
    """The rows of several states."""
    return reduce(lambda one, other: one + other, found, FoundRows())
