"""Examples of differing rows for the report of a failed proof."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_pipelines.spark.stages import KEYS, PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from state_pipelines.spark.comparisons import GroupResult

EXAMPLES = 10
"""Largest number of rows that a failed check shows."""

_PLACES = 64
"""Largest number of key groups or subtasks that are searched for rows."""

_EQUAL = hidden("equal")


def find_failed(results: Sequence[GroupResult], check: str, state: str) -> tuple[set[str], list[int]]:
    """Find the digests of a state that differ in a check: their names, and the key groups or subtasks."""
    names: set[str] = set()
    places: set[int] = set()
    for result in results:
        for what, before, after in result.values.get(check, ()):
            if result.state == state and before != after:
                names.add(what)
                places.add(result.place)
    return names, sorted(places)[:_PLACES]


def find_rows(
    sides: Mapping[str, DataFrame],
    compared: tuple[str, str],
    place: tuple[str, Collection[int]],
    fields: Collection[str],
    *,
    kept: bool = False,
) -> list[dict[str, Any]]:
    """Find rows that differ between two frames.

    Args:
        sides: frames of `FlowRunner` by name, with the same keys; those that are not compared are only shown.
        compared: names of the two frames to compare.
        place: column of the key group or subtask, and the values of it to search.
        fields: of the payload that are compared; the whole payload where it has none of them.
        kept: rows that the second frame lacks are no difference: the migration left them out.

    Returns:
        At most `EXAMPLES` rows, each with the key and the values of every frame.
    """
    column, places = hidden(place[0]), place[1]
    common = set.intersection(*(set(frame.columns) for frame in sides.values()))
    parts = ("key_bytes",) if hidden("key_bytes") in common else (*KEYS, "timestamp")
    identity = [name for name in map(hidden, (place[0], *parts, "list_index")) if name in common]
    shown = [name for name in map(hidden, KEYS) if name in next(iter(sides.values())).columns and name not in identity]
    joined: list[DataFrame] = []
    for index, (name, frame) in enumerate(sides.items()):
        rows = frame.where(F.col(column).isin(list(places))) if column in identity else frame
        chosen = [*map(F.col, identity), _to_text(frame, ()).alias(name)]
        chosen += [_compare_text(frame, fields).alias(_EQUAL + name)] if name in compared else []
        chosen += [F.col(each) for each in shown] if index == 0 else []
        joined.append(rows.select(*chosen))
    together = reduce(lambda one, other: one.join(other, identity, "full"), joined)
    first, second = (F.col(_EQUAL + name) for name in compared)
    different = ~first.eqNullSafe(second) & (second.isNotNull() if kept else F.lit(True))
    found = together.where(different).orderBy(*identity).limit(EXAMPLES)
    names = {name: name.removeprefix(hidden("")) for name in (*identity, *shown)}
    return [_make_row(row.asDict(recursive=True), names, list(sides)) for row in found.collect()]


def _to_text(frame: DataFrame, fields: Collection[str]) -> Column:
    """The payload, or fields of it, as JSON; null where there is no row."""
    payload, kind = F.col(PAYLOAD), frame.schema[PAYLOAD].dataType
    known = [name for name in fields if isinstance(kind, StructType) and name in kind.names]
    value = F.struct(*(payload.getField(name).alias(name) for name in known)) if known else payload
    return F.to_json(F.struct(value.alias("value")), {"ignoreNullFields": "false"})


def _compare_text(frame: DataFrame, fields: Collection[str]) -> Column:
    """The text of `_to_text` and the types: an INT 1 and a BIGINT 1 differ."""
    kind = frame.schema[PAYLOAD].dataType
    known = {each.name: each.dataType for each in kind} if isinstance(kind, StructType) else {}
    types = [known[name].simpleString() for name in sorted(fields) if name in known] or [kind.simpleString()]
    return F.concat(F.lit(" ".join(types)), _to_text(frame, fields))


def _make_row(row: Mapping[str, Any], names: Mapping[str, str], sides: Sequence[str]) -> dict[str, Any]:
    shown = {
        names[name]: value.hex() if isinstance(value, bytes | bytearray) else value
        for name, value in row.items()
        if name in names
    }
    if shown.get("state_key") is not None:
        shown.pop("key_bytes", None)
    shown = {name: value for name, value in shown.items() if value is not None}
    values = {name: None if row[name] is None else json.loads(row[name])["value"] for name in sides}
    absent = [name for name in sides if row[name] is None]
    return {**shown, **values, **({"absent": absent} if absent else {})}
