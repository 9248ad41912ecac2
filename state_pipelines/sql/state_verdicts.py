"""Verdicts on the states of an operator: which old state each one was, its layout, views of distinct values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.sql.column_verdicts import StatePair, compare_rows, describe_end, find_shorter_window, retracts
from state_pipelines.sql.compiled_plans import list_mappings
from state_pipelines.sql.conversions import Derivation
from state_pipelines.sql.derivations import is_unfiltered
from state_pipelines.sql.matching import JOINS, NodeSignature, find_join_spec
from state_pipelines.sql.verdict import ColumnVerdict, FirstRows, SortColumn, StateVerdict, Verdict, find_worst

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.sql.node_states import PlannedOperator, PlannedState


# Verdicts on states, and on the columns of their rows.


def compare_states(
    old: NodeSignature,
    new: NodeSignature,
    bare_old: PlannedOperator,
    bare_new: PlannedOperator,
    before: PlannedOperator,
    after: PlannedOperator,
) -> Iterator[StateVerdict]:
    """Yield the verdicts on the states of an operator.

    Args:
        old: node of the old plan.
        new: node of the new plan.
        bare_old: old operator in the plan without filters (`without_filters`).
        bare_new: new operator in the plan without filters.
        before: old operator.
        after: new operator.
    """
    names = _pair_names(old, new, bare_old, bare_new)
    views = tuple(
        each
        for each in bare_old.states
        if (each.calls and not each.name.endswith("_null_state")) or each.meaning.startswith(_VALUES)
    )
    accumulator: StateVerdict | None = None
    for state, bare in zip(after.states, bare_new.states, strict=True):
        name = names.get(state.name)
        found = None if name is None else before.find_state(name)
        bare_found = None if name is None else bare_old.find_state(name)
        same = before.find_state(state.name)
        swap = _find_swap(same, state, bare_old.find_state(state.name), bare)
        if not swap and name not in (None, state.name) and same is not None and same.describe() == state.describe():
            swap = f"the rows of {name} would be taken for it, and its own for those of the other side"
        if found is None or bare_found is None:
            added = _copy_values(bare, before, accumulator, state) or _add_state(old, new, state, bare, accumulator)
            yield replace(added, swap=swap)
            continue
        pair = StatePair(found, state, bare_found, bare)
        verdict = replace(_compare_state(old, new, pair, views), swap=swap)
        if any(each.buffer is not None for row in state.rows for each in row.columns):
            accumulator = verdict
        yield verdict
    for state in before.states:
        if state.name not in names.values():
            yield StateVerdict(state, None, Verdict.DROPPED)


def _pair_names(
    old: NodeSignature, new: NodeSignature, before: PlannedOperator, after: PlannedOperator
) -> Mapping[str, str]:
    """Map the names of new states to those of old states: views are matched by their values, other states by name."""
    if new.kind in JOINS and sides_are_exchanged(old, new):
        return {
            each.name: find_other_side(each.name)
            for each in after.states
            if before.find_state(find_other_side(each.name)) is not None
        }
    found: dict[str, str] = {}
    for each in after.states:
        if each.meaning:
            same = (one.name for one in before.states if one.meaning == each.meaning and one.name not in found.values())
            name = next(same, None)
        else:
            name = each.name if (one := before.find_state(each.name)) is not None and not one.meaning else None
        if name is None and new.kind == "rank":
            name = next((one.name for one in before.states if one.name in _RANKS and each.name in _RANKS), None)
        if name is not None:
            found[each.name] = name
    return found


_RANKS = ("Top1-Rank-State", "data-state-with-append", "data-state-with-update", "data-state")
_SIDE_WORDS = (("left", "right"), ("Left", "Right"))


def find_other_side(name: str) -> str:
    """Return the name of the state of the other side of a join."""
    for one, other in _SIDE_WORDS:
        if one in name:
            return name.replace(one, other)
        if other in name:
            return name.replace(other, one)
    return name


def sides_are_exchanged(old: NodeSignature, new: NodeSignature) -> bool:
    """Return whether the sides of a join are exchanged: the left one of the old plan is the right one of the new plan.

    If both sides read one table by one key, only their filters tell them apart.
    """
    if old.full_sides == new.full_sides:
        return False
    if old.full_sides == new.full_sides[::-1]:
        return True
    return old.sides != new.sides and old.sides == new.sides[::-1]


_VALUES = "values of "
"""Beginning of the meaning of a state with the values of MAX or MIN, and the number of rows of each."""


def _copy_values(
    bare: PlannedState, before: PlannedOperator, accumulator: StateVerdict | None, state: PlannedState
) -> StateVerdict | None:
    """Return the verdict on a state of MAX or MIN values that another old state also holds; None if none does."""
    text = bare.meaning.removeprefix(_VALUES)
    if accumulator is None or accumulator.new is None or text == bare.meaning:
        return None
    views = (each.view for each in accumulator.columns if each.new is not None and each.meaning == text)
    source = next((before.find_state(each) for each in views if each is not None), None)
    if source is None:
        return None
    exact = state.ttl is None
    reason = f"from the {source.meaning}, with the number of rows of each"
    return StateVerdict(source, state, Verdict.COMPUTED, derivation=Derivation.COPY_VALUES, exact=exact, reason=reason)


def _add_state(
    old: NodeSignature,
    new: NodeSignature,
    state: PlannedState,
    bare: PlannedState,
    accumulator: StateVerdict | None,
) -> StateVerdict:
    """Return the verdict on a state that the old operator does not have."""
    if bare.meaning.startswith(_VALUES):
        # The state has all values of a MIN or MAX whose input retracts rows.
        text = bare.meaning.removeprefix(_VALUES)
        carried = accumulator is not None and any(
            each.meaning == text and each.verdict is not Verdict.EMPTY for each in accumulator.columns
        )
        if carried:
            reason = "the old query had no retractions and did not keep the values; start from empty, or keep an input "
            return StateVerdict(None, state, Verdict.REFUSED, exact=False, reason=f"{reason}that only inserts")
    if new.kind == "deduplicate" or (new.kind == "rank" and state.name != "sorted-map"):
        reason = "the old query has no state with these rows; start from empty, or keep the old operator"
        return StateVerdict(None, state, Verdict.REFUSED, exact=False, reason=reason)
    if not state.rows and not state.meaning:
        return StateVerdict(None, state, Verdict.EMPTY, reason="begins as in a new job")
    return StateVerdict(None, state, Verdict.EMPTY, exact=False, reason=describe_end(state))


def _compare_state(
    old: NodeSignature, new: NodeSignature, pair: StatePair, views: Sequence[PlannedState]
) -> StateVerdict:
    if pair.new.calls and retracts(old.node) != retracts(new.node):
        reason = (
            "distinct values are stored with counts of rows if the input has retractions, and with a bit for each call "
            "if not; start from empty, or keep an input of the same kind"
        )
        return StateVerdict(pair.old, pair.new, Verdict.REFUSED, exact=False, reason=reason)
    if pair.new.calls and not pair.new.rows:
        return _compare_view(pair)
    derivation: Derivation | None = None
    first: FirstRows | None = None
    unmatched: tuple[int, ...] = ()
    exact, reasons = True, []
    if old.condition != new.condition and any("Tuple2<" in each.plain_template for each in (pair.old, pair.new)):
        reason = (
            f"the condition of the join changes from {old.condition or 'none'} to {new.condition or 'none'}, and "
            "the counts of matching rows with it; start from empty, or keep the old condition"
        )
        return StateVerdict(pair.old, pair.new, Verdict.REFUSED, exact=False, reason=reason)
    if pair.old.plain_template != pair.new.plain_template:
        found = _compare_layouts(old, new, pair)
        if isinstance(found, str):
            return StateVerdict(pair.old, pair.new, Verdict.REFUSED, exact=False, reason=found)
        derivation, exact, reason = found
        reasons.append(reason)
        if derivation is Derivation.COUNT_MATCHES:
            unmatched = _list_unmatched(new)
    if new.kind == "rank" and pair.new.name == "data-state" != pair.old.name:
        reason = "the input has retractions now, and the old query kept the first rows only; start from empty"
        return StateVerdict(pair.old, pair.new, Verdict.REFUSED, exact=False, reason=reason)
    if new.kind == "rank" and (limit := _find_fewer_rows(old, new, pair)) is not None:
        chosen = _choose_rows(old, pair, limit)
        if isinstance(chosen, str):
            return StateVerdict(pair.old, pair.new, Verdict.REFUSED, exact=False, reason=chosen)
        first, derivation = chosen, Derivation.FIRST_ROWS
        rows = "row is" if limit == 1 else f"{limit} rows are"
        reasons = [f"the first {rows} kept; rows after them that were emitted are not retracted"]
        if _get_end(old) == _get_end(new):
            reasons = [f"the first {rows} kept; the state of numbered rows may hold more"]
    last = find_shorter_window(old, new)
    if last is not None and pair.new.name in WINDOW_STATES:
        derivation = Derivation.LAST_ROWS
        rows = "row" if last == 1 else f"{last} rows"
        reasons = [f"the last {rows} of the window are kept; results that were emitted stay as they are"]
    columns = tuple(compare_rows(old, new, pair, views))
    ttl = pair.new.ttl or pair.old.ttl
    if ttl is not None:
        columns = tuple(_limit_by_ttl(each, ttl) for each in columns)
    if pair.old.ttl != pair.new.ttl:
        exact = False
        reasons.append(_explain_ttl(pair.old.ttl, pair.new.ttl))
    verdicts = [each.verdict for each in columns]
    if derivation is not None:
        verdicts.append(Verdict.COMPUTED)
        exact = exact and ttl is None
    if pair.new.calls:
        view = _compare_view(pair)
        return replace(view, columns=columns)
    exact = exact and all(each.exact for each in columns)
    return StateVerdict(
        pair.old,
        pair.new,
        find_worst(verdicts),
        columns,
        derivation,
        first=first,
        last=last,
        unmatched=unmatched,
        exact=exact,
        reason="; ".join(filter(None, reasons)),
    )


def _list_unmatched(node: NodeSignature) -> tuple[int, ...]:
    """Return indices of the key columns of a join in which NULL matches nothing (`JoinConditionWithNullFilters`)."""
    found = find_join_spec(node.node).get("filterNulls")
    return tuple(index for index, each in enumerate(found) if each) if isinstance(found, list) else ()


WINDOW_STATES = ("inputState", "processedCountState", "smallestTSState")
"""States of an OVER by ROWS that say which rows are in its window."""

_LIMITED = ("Top1-Rank-State", "data-state-with-append", "data-state-with-update")
"""States of a rank that hold no more rows than it emits; `RetractableTopNFunction` keeps all rows."""

_UNORDERED = ("FLOAT", "DOUBLE", "RAW", "STRUCTURED_TYPE", "ROW", "ARRAY", "MAP", "MULTISET", "?")
"""Types that Flink orders otherwise than SQL: in a generated comparator, `NaN` is equal to every number."""


def _find_fewer_rows(old: NodeSignature, new: NodeSignature, pair: StatePair) -> int | None:
    """Return the new number of rows of a rank whose state has to be shortened; None if nothing has to be.

    `AppendOnlyTopNFunction` and `UpdatableTopNFunction` remove one row for each incoming row, so a state that is
    restored with too many rows never shrinks. If they emit row numbers, they remove only the rows after the last sort
    key that they have numbered, so their state may hold more rows than they emit (`processElementWithRowNumber`).
    """
    before, after = (each.node.mapping("rankRange") for each in (old, new))
    more, fewer = before.get("end"), after.get("end")
    if pair.new.name not in _LIMITED or after.get("type") != "Constant" or not isinstance(fewer, int):
        return None
    if pair.old.name == "data-state":
        return fewer
    if before.get("type") != "Constant" or not isinstance(more, int):
        return None
    unnumbered = bool(old.node.content.get("outputRowNumber")) and not new.node.content.get("outputRowNumber")
    return fewer if fewer < more or (unnumbered and fewer > 1) else None


def _get_end(node: NodeSignature) -> object:
    return node.node.mapping("rankRange").get("end")


def _choose_rows(old: NodeSignature, pair: StatePair, limit: int) -> FirstRows | str:
    """Describe the first rows by the order of a rank; return the reason as a text if the order cannot be reproduced."""
    columns = pair.old.rows[-1].columns
    order = []
    for each in list_mappings(old.node.mapping("orderBy").get("fields")):
        index = each.get("index")
        if not isinstance(index, int) or not 0 <= index < len(columns) or columns[index].type.root in _UNORDERED:
            name = columns[index].name if isinstance(index, int) and 0 <= index < len(columns) else "a column"
            return (
                f"fewer rows are kept, and the first ones by {name} cannot be chosen outside Flink; keep the old "
                "number of rows and filter its result by row number, or start from empty"
            )
        order.append(SortColumn(index, bool(each.get("isAscending")), bool(each.get("nullIsLast"))))
    return FirstRows(limit, tuple(order))


def _explain_ttl(old: str | None, new: str | None) -> str:
    change = f"time to live changes from {old or 'none'} to {new or 'none'}"
    if old is None:
        return f"{change}, and the time of existing entries starts with the migration"
    return f"{change}, and entries that have expired are missing"


def _limit_by_ttl(column: ColumnVerdict, ttl: str) -> ColumnVerdict:
    """Mark a computed column as not exact: a state with time to live lacks the rows that have expired."""
    if column.verdict is not Verdict.COMPUTED:
        return column
    note = f"not exact, since the state has a time to live ({ttl})"
    return replace(column, exact=False, reason=f"{column.reason}; {note}".removeprefix("; "))


def _compare_view(pair: StatePair) -> StateVerdict:
    """Return the verdict on a view of distinct values, whose values have a bit for each call that it serves."""
    old, new = pair.bare_old.calls, pair.bare_new.calls
    if old == new:
        return StateVerdict(pair.old, pair.new, Verdict.CARRIED)
    unfiltered = next((index for index, each in enumerate(old) if is_unfiltered(each)), None)
    bits = tuple(old.index(each) if each in old else unfiltered if is_unfiltered(each) else None for each in new)
    exact = None not in bits and pair.new.ttl is None
    return StateVerdict(
        pair.old,
        pair.new,
        Verdict.COMPUTED,
        bits=bits,
        exact=exact,
        reason=f"each distinct value has bits for {', '.join(new)} now, and had bits for {', '.join(old)}",
    )


def _compare_layouts(
    old: NodeSignature, new: NodeSignature, pair: StatePair
) -> tuple[Derivation | None, bool, str] | str:
    """Return derivation, exactness and explanation for a state with a new layout; a text with the reason if refused."""
    before, after = pair.old.plain_template, pair.new.plain_template
    if new.kind == "join":
        counted, plain = "Tuple2<{row}, Int>", "{row}"
        one, other = (_mark_row(each) for each in (before, after))
        if one == other.replace(counted, plain) or (one, other) == ("Map<{row}, Int>", "Map<{row}, Tuple2<Int, Int>>"):
            if find_join_spec(new.node).get("nonEquiCondition") is not None:
                return (
                    "counts of matching rows cannot be computed for a join with a condition besides its keys; start "
                    "from empty"
                )
            reason = "matching rows of the other side are counted; rows without a match were never emitted"
            return Derivation.COUNT_MATCHES, False, reason
        if other == one.replace(counted, plain) or (one, other) == ("Map<{row}, Tuple2<Int, Int>>", "Map<{row}, Int>"):
            return Derivation.COPY, True, "counts of matching rows are dropped"
        return (
            f"the unique key of a side changes, and with it the layout ({_name_rows(before)} becomes "
            f"{_name_rows(after)}); give both queries the same primary keys, or start from empty"
        )
    if new.kind == "rank" and "Top1-Rank-State" in (pair.old.name, pair.new.name) and _is_limited(pair):
        exact = pair.new.name == "Top1-Rank-State"
        others = "" if exact else "; rows after the first are not known"
        return Derivation.COPY, exact, f"rows are kept under another layout{others}"
    return (
        f"the layout changes from {_name_rows(before)} to {_name_rows(after)}: the old operator kept other data; "
        "start from empty, or keep the old operator"
    )


def _name_rows(template: str) -> str:
    """Return a template in words: `Map<key row, row>` for `Map<{0}, {1}>`."""
    return template.replace("{0}", "key row" if "{1}" in template else "row").replace("{1}", "row")


def _is_limited(pair: StatePair) -> bool:
    return pair.old.name in _LIMITED and pair.new.name in _LIMITED


def _mark_row(template: str) -> str:
    """Replace the placeholder of the row in a template by `{row}`, so that templates can be compared."""
    for mark in ("{1}", "{0}"):
        if mark in template:
            return template.replace(mark, "{row}", 1)
    return template


def _find_swap(
    old: PlannedState | None, new: PlannedState, bare_old: PlannedState | None, bare_new: PlannedState
) -> str:
    """Describe contents that a restore without migration would confuse, since names and types are equal.

    Return an empty text if there are none.
    """
    if old is None or bare_old is None or old.describe() != new.describe():
        return ""
    if bare_old.meaning != bare_new.meaning:
        return f"the {bare_old.meaning} would be taken for the {bare_new.meaning}"
    found = [
        f"{one.meaning} would be taken for {other.meaning}"
        for row, other_row in zip(bare_old.rows, bare_new.rows, strict=True)
        for one, other in zip(row.columns, other_row.columns, strict=True)
        if one.meaning != other.meaning
    ]
    if bare_old.calls != bare_new.calls and not found:
        return f"distinct values of {', '.join(bare_old.calls)} would be taken for those of {', '.join(bare_new.calls)}"
    return ", ".join(found)
