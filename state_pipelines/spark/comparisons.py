"""Comparisons of the digests of two sides of a proof, per state and key group or subtask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.keyed.digests import ROWS
from state_pipelines.operations.proofs import (
    EXAMPLES,
    KEY_SETS,
    READ_BACK,
    ROUND_TRIP,
    ROW_COUNTS,
    ProofCheck,
    RecordCounts,
)
from state_pipelines.spark.row_digests import NULLS, TIMES, VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.spark.differing_rows import FoundRows
    from state_pipelines.spark.row_digests import RowColumns

COMPARED = (ROW_COUNTS, KEY_SETS, ROUND_TRIP, READ_BACK)
"""The checks that hold when both sides are equal."""


@dataclass(frozen=True)
class GroupResult:
    """One comparison in one group.

    Attributes:
        state: its name.
        group: the key group, or a bucket of keys if keys have changed their key group; of operator state the subtask.
        values: by check, the names of the compared values, with the values before and after.
        records: that were written; None where rows of the way back are compared.
        misplaced: records in another key group than their hash gives.
        unhashed: records of them whose hash is not known.
    """

    state: str
    group: int
    values: dict[str, list[tuple[str, str, str]]]
    records: int | None
    misplaced: int
    unhashed: int


def name_values(columns: RowColumns) -> dict[str, str]:
    """Names of the digests of the values of rows, with readable names."""
    words = {NULLS: "null values", VALUES: "values", TIMES: "times of the last access"}
    return {name: words.get(name, name) for name in columns.names}


def compare_sums(
    names: Mapping[str, str], before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> list[tuple[str, str, str]]:
    """The compared values, before and after.

    Args:
        names: of the digests, with readable names.
        before: digests of the one side; None is a side without rows.
        after: of the other side.
    """
    return [(what, _to_text(name, before, "before"), _to_text(name, after, "after")) for name, what in names.items()]


def _to_text(name: str, side: Mapping[str, int] | None, word: str) -> str:
    if side is None:
        return "none"
    if name not in side:
        # Never equal to the other side.
        return f"not there {word}"
    return str(side[name]) if name == ROWS else f"{side[name]:016x}"


def differ(results: Sequence[GroupResult], check: str) -> bool:
    """Return whether the two sides of a check differ anywhere."""
    return any(before != after for each in results for _, before, after in each.values.get(check, ()))


def find_failed(results: Sequence[GroupResult], check: str, state: str) -> tuple[set[str], list[int]]:
    """Find the digests of a state that differ in a check: their names, and the key groups or subtasks."""
    names: set[str] = set()
    groups: set[int] = set()
    for result in results:
        for what, before, after in result.values.get(check, ()):
            if result.state == state and before != after:
                names.add(what)
                groups.add(result.group)
    return names, sorted(groups)


def make_check(
    name: str,
    results: Sequence[GroupResult],
    found: FoundRows | None,
    *,
    unit: str,
    description: str,
    notes: Sequence[str] = (),
) -> ProofCheck:
    """One check of `COMPARED`.

    Args:
        name: of the check.
        results: all comparisons.
        found: rows that differ; None when the check holds.
        unit: `key group` or `subtask`.
        description: of the check.
        notes: rows that the check leaves out.
    """
    records = sum(each.records or 0 for each in results)
    compared = "; ".join(dict.fromkeys(_name_digests(results, name)))
    expected = f"equal in every {unit}: {compared}" if compared else "no records"
    if found is None:
        return ProofCheck(name, True, description, expected, "; ".join([expected, *notes]), RecordCounts(records))
    counts = replace(found.counts, compared=records)
    rows = found.examples
    if name in (ROW_COUNTS, KEY_SETS):
        # Values may differ too, which is for other checks to say.
        counts, rows = replace(counts, differing=0), found.rows
    observed = [f"different: {_name_different(results, name, unit)}"]
    observed.append(str(counts) if counts.failed else "no differing record is found when both sides are read again")
    return ProofCheck(name, False, description, expected, "; ".join([*observed, *notes]), counts, rows[:EXAMPLES])


def _name_digests(results: Sequence[GroupResult], check: str) -> list[str]:
    """The name of the compared value, with the state where there are several."""
    several = len({each.state for each in results}) > 1
    return [
        f"{each.state}: {', '.join(what for what, *_ in each.values[check])}"
        if several
        else ", ".join(what for what, *_ in each.values[check])
        for each in results
        if each.values.get(check)
    ]


def _name_different(results: Sequence[GroupResult], check: str, unit: str) -> str:
    counts: dict[str, list[int]] = {}
    several = len({each.state for each in results}) > 1
    for each in results:
        for what, before, after in each.values.get(check, ()):
            if before != after:
                counts.setdefault(f"{each.state}: {what}" if several else what, []).append(each.group)
    return ", ".join(f"{what} in {_name_groups(found, unit)}" for what, found in counts.items())


def _name_groups(found: Sequence[int], unit: str) -> str:
    return f"{unit} {found[0]}" if len(found) == 1 else f"{len(found)} {unit}s"
