"""Verdicts on the columns of the rows in a state: buffers of accumulators, and rows that are kept as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.accumulators import MAP_VIEW, UNRESOLVED, PlannedColumn, Role
from state_pipelines.sql.compiled_plans import list_mappings
from state_pipelines.sql.conversions import UNCHANGED, Derivation, compare_types
from state_pipelines.sql.derivations import derive_column, is_bookkeeping, strip_casts
from state_pipelines.sql.verdict import ColumnVerdict, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.sql.compiled_plans import PlanNode
    from state_pipelines.sql.matching import NodeSignature
    from state_pipelines.sql.node_states import PlannedRow, PlannedState


@dataclass(frozen=True)
class StatePair:
    """A state in both plans, and in the plans without filters (`bare_old`, `bare_new`; `lineage.without_filters`)."""

    old: PlannedState
    new: PlannedState
    bare_old: PlannedState
    bare_new: PlannedState


def describe_end(state: PlannedState) -> str:
    """Return in words until when a state that starts empty is partial."""
    if state.namespace != "VoidNamespace":
        return "partial until the windows that are open now have ended"
    if state.ttl is not None:
        return f"partial until rows from before are older than the time to live ({state.ttl})"
    return "partial for keys that had rows before, until a backfill"


def compare_rows(
    old: NodeSignature, new: NodeSignature, pair: StatePair, views: Sequence[PlannedState]
) -> Iterator[ColumnVerdict]:
    """Yield the verdicts on the columns of the rows in a state.

    Args:
        old: node of the old plan.
        new: node of the new plan.
        pair: the state in both plans.
        views: old states that hold all values of DISTINCT, MAX or MIN calls.
    """
    rows, bare_rows = pair.new.rows, pair.bare_new.rows
    found = pair.bare_old.rows
    for number, (row, bare) in enumerate(zip(rows, bare_rows, strict=True)):
        if len(found) == len(rows):
            source: PlannedRow | None = found[number]
        else:
            # Only one of the two layouts also has a key that is computed from the row, and so one row more. The row
            # itself is the last one in both layouts.
            source = found[-1] if found else None
        if source is None:
            continue
        is_derived = len(found) != len(rows) and number < len(rows) - 1
        is_key = number < len(rows) - 1 or _is_map_key(pair.new) or _finds_rows_by_value(new, pair.new)
        if any(map(_is_buffer, (*bare.columns, *source.columns))):
            yield from _compare_accumulators(old, new, pair, number, row, bare, source, views)
        else:
            verdicts = _compare_kept_rows(pair, number, row, bare, source, is_key=is_key)
            # The key is computed from the row: old columns that the key lacks are still in the row, so not dropped.
            yield from (each for each in verdicts if not (is_derived and each.verdict is Verdict.DROPPED))


def _is_buffer(column: PlannedColumn) -> bool:
    """Return whether a column belongs to an accumulator, even if its function has buffers that no plan describes."""
    return column.buffer is not None or column.call is not None or column.type == MAP_VIEW


def _finds_rows_by_value(node: NodeSignature, state: PlannedState) -> bool:
    """Return whether the operator finds the row to retract by comparing all columns of the rows that it keeps.

    Source: `RetractableTopNFunction`, `SinkUpsertMaterializer` without the upsert key of its input.
    """
    if node.kind == "sink":
        return state.name == "values" and not node.node.content.get("inputUpsertKey")
    return node.kind == "rank" and state.name == "data-state"


def _is_map_key(state: PlannedState) -> bool:
    """Return whether the only row of a state is the key of its map."""
    return len(state.rows) == 1 and state.plain_template.startswith("Map<{0},")


def _compare_kept_rows(
    pair: StatePair, number: int, row: PlannedRow, bare: PlannedRow, old: PlannedRow, *, is_key: bool
) -> Iterator[ColumnVerdict]:
    taken: set[int] = set()
    pending: list[tuple[int, PlannedColumn]] = []
    verdicts: dict[int, ColumnVerdict] = {}
    for index, column in enumerate(bare.columns):
        same = [n for n, each in enumerate(old.columns) if each.meaning == column.meaning and n not in taken]
        if not same:
            pending.append((index, column))
            continue
        taken.add(same[0])
        verdicts[index] = _convert(row.columns[index], number, same[0], index, old.columns[same[0]])
    for index, column in pending:
        shown = row.columns[index]
        cast = next(
            (
                n
                for n, each in enumerate(old.columns)
                if n not in taken
                and strip_casts(each.meaning) == strip_casts(column.meaning)
                and compare_types(each.type, column.type) in (Derivation.WIDEN, Derivation.RETYPE)
            ),
            None,
        )
        if cast is not None:
            taken.add(cast)
            verdicts[index] = _convert(shown, number, cast, index, old.columns[cast])
        elif is_key:
            verdicts[index] = _verdict(
                shown,
                Verdict.REFUSED,
                number,
                new=index,
                exact=False,
                reason="rows are stored by it, so that later changes would not find rows from before the savepoint; "
                "declare a primary key, give a table with the column, or start from empty",
            )
        else:
            where = " (NULL is not allowed: give a default or a table)" if not shown.type.nullable else ""
            verdicts[index] = _verdict(
                shown,
                Verdict.EMPTY,
                number,
                new=index,
                derivation=Derivation.NULL,
                exact=False,
                reason=f"rows from before do not have it{where}; {describe_end(pair.new)}",
            )
    yield from (verdicts[index] for index in sorted(verdicts))
    reason = "rows that are equal without it are counted together" if is_key and _is_map_key(pair.new) else ""
    for index, column in enumerate(old.columns):
        if index not in taken:
            yield _verdict(column, Verdict.DROPPED, number, old=index, reason=reason)


def _convert(shown: PlannedColumn, row: int, old: int, new: int, column: PlannedColumn) -> ColumnVerdict:
    """Return the verdict on a column with the same content as an old column, whose type may differ."""
    how = Derivation.COPY if column.type == shown.type == UNRESOLVED else compare_types(column.type, shown.type)
    types = f"from {describe_type(column.type)} to {describe_type(shown.type)}"
    if how is None:
        reason = f"the type changes {types}; cast the column to its old type in the query, or start from empty"
        return _verdict(shown, Verdict.REFUSED, row, old=old, new=new, exact=False, reason=reason)
    if how in UNCHANGED:
        return _verdict(shown, Verdict.CARRIED, row, old=old, new=new, derivation=how, sources=(old,))
    checked = ", if all values fit" if how is Derivation.CHECK else ""
    return _verdict(
        shown, Verdict.COMPUTED, row, old=old, new=new, derivation=how, sources=(old,), reason=f"{types}{checked}"
    )


def _verdict(
    column: PlannedColumn,
    verdict: Verdict,
    row: int,
    *,
    old: int | None = None,
    new: int | None = None,
    derivation: Derivation | None = None,
    sources: tuple[int, ...] = (),
    view: str | None = None,
    exact: bool = True,
    reason: str = "",
) -> ColumnVerdict:
    return ColumnVerdict(
        column.name,
        column.meaning,
        describe_type(column.type),
        verdict,
        row,
        old,
        new,
        derivation,
        sources,
        view,
        exact,
        reason,
    )


def _compare_accumulators(
    old: NodeSignature,
    new: NodeSignature,
    pair: StatePair,
    number: int,
    row: PlannedRow,
    bare: PlannedRow,
    source: PlannedRow,
    views: Sequence[PlannedState],
) -> Iterator[ColumnVerdict]:
    taken: set[int] = set()
    begins_to_retract = retracts(new.node) and not retracts(old.node)
    derived = [
        derive_column(column, source.columns, views, taken, counts=not begins_to_retract)
        if column.type != MAP_VIEW
        else None
        for column in bare.columns
    ]
    kept = _list_kept_rows(old, new)
    used: set[int] = set(taken)
    shortened = find_shorter_window(old, new) is not None
    if shortened:
        # The old buffers aggregate rows that the shorter window no longer has, so none of them can be kept.
        derived = [None] * len(derived)
    for index, (shown, column) in enumerate(zip(row.columns, bare.columns, strict=True)):
        if column.type == MAP_VIEW:
            same = [n for n, each in enumerate(source.columns) if each.meaning == column.meaning]
            if shortened:
                used |= {*same}
                reason = "it also has values of rows outside the shorter window; start from empty, or keep the bounds"
                yield _verdict(shown, Verdict.REFUSED, number, new=index, exact=False, reason=reason)
            elif same:
                used.add(same[0])
                yield _verdict(
                    shown,
                    Verdict.CARRIED,
                    number,
                    old=same[0],
                    new=index,
                    derivation=Derivation.COPY,
                    sources=(same[0],),
                )
            else:
                yield _verdict(
                    shown,
                    Verdict.EMPTY,
                    number,
                    new=index,
                    derivation=Derivation.INITIAL,
                    exact=False,
                    reason=describe_end(pair.new),
                )
            continue
        together = [n for n, each in enumerate(bare.columns) if _is_same_call(each, column)]
        missing = [n for n in together if derived[n] is None]
        found = derived[index]
        if found is not None and not missing:
            used |= {*found.indices}
            same_value = found.derivation in UNCHANGED and found.view is None and not found.reason
            yield _verdict(
                shown,
                Verdict.CARRIED if same_value else Verdict.COMPUTED,
                number,
                old=found.indices[0] if len(found.indices) == 1 else None,
                new=index,
                derivation=found.derivation,
                sources=found.indices,
                view=found.view,
                reason=found.reason,
            )
        elif (
            begins_to_retract
            and (is_bookkeeping(column) or len(missing) < len(together))
            and (column.buffer is None or not column.buffer.argument or len(missing) < len(together))
        ):
            yield _verdict(
                shown,
                Verdict.REFUSED,
                number,
                new=index,
                exact=False,
                reason="the input has retractions now, which need counts of rows that the old query did not keep; "
                "add COUNT(*) or COUNT of the column to the old query first, or start from empty",
            )
        elif column.buffer is None:
            yield _verdict(
                shown,
                Verdict.REFUSED,
                number,
                new=index,
                exact=False,
                reason="no plan describes the accumulator of the function, so that its first value is not known; "
                "start from empty, or keep the calls as they are",
            )
        elif column.type.root == "STRUCTURED_TYPE" and not kept:
            yield _verdict(
                shown,
                Verdict.REFUSED,
                number,
                new=index,
                exact=False,
                reason="Flink retracts rows from before the savepoint from it, and no state has their values; keep "
                "MAX, MIN or COUNT(DISTINCT …) of the column in the old query first, or start from empty",
            )
        elif kept and (reason := _find_unfolded(column, kept)):
            yield _verdict(shown, Verdict.REFUSED, number, new=index, exact=False, reason=reason)
        elif column.buffer.argument in kept:
            is_float = shown.type.root in ("FLOAT", "DOUBLE")
            note = "; roundings depend on the order of the rows" if is_float else ""
            argument = column.buffer.argument
            yield _verdict(
                shown,
                Verdict.COMPUTED,
                number,
                new=index,
                derivation=Derivation.FOLD_ROWS,
                sources=(kept.index(argument) - 1,) if argument else (),
                view="inputState",
                exact=not is_float,
                reason=f"from the rows of the window in inputState{note}",
            )
        else:
            yield _verdict(
                shown,
                Verdict.EMPTY,
                number,
                new=index,
                derivation=Derivation.INITIAL,
                exact=False,
                reason="partial until the rows from before the savepoint, which lack the column, have left the window"
                if kept
                else _explain_empty(column, source, pair.new) + (_TAKEN_BACK if retracts(new.node) else ""),
            )
    for index in range(len(source.columns)):
        if index not in used:
            yield _verdict(pair.old.rows[number].columns[index], Verdict.DROPPED, number, old=index)


def _list_kept_rows(old: NodeSignature, new: NodeSignature) -> tuple[str, ...]:
    """Return the columns of `inputState`, in which a bounded OVER keeps the rows of its window; empty for other nodes.

    The first element is an empty text, which is the argument of COUNT(*).
    """
    operator = old.bare[0]
    rows = operator.find_state("inputState")
    limits = any(operator.find_state(name) is not None for name in ("processedCountState", "cleanupTsState"))
    if new.kind != "over-aggregate" or rows is None or not limits:
        return ()
    return ("", *(each.meaning for row in rows.rows for each in row.columns))


def find_shorter_window(old: NodeSignature, new: NodeSignature) -> int | None:
    """Return the new number of rows in the window of an OVER by ROWS that gets shorter; None for other nodes.

    Once its window is full, `RowTimeRowsBoundedPrecedingFunction` retracts one row for each incoming row, so a window
    that is restored with too many rows never shrinks. An OVER by RANGE retracts every row that is too old.
    """
    if new.kind != "over-aggregate":
        return None
    before, after = (_count_preceding(each.node) for each in (old, new))
    # The window also contains the current row, which the number of preceding rows does not count.
    return after + 1 if before is not None and after is not None and after < before else None


def _count_preceding(node: PlanNode) -> int | None:
    """Return the number of preceding rows of an OVER by ROWS; None for other nodes."""
    spec = node.mapping("overSpec")
    groups, constants = list_mappings(spec.get("groups")), list_mappings(spec.get("constants"))
    if not groups or not groups[0].get("isRows"):
        return None
    lower = groups[0].get("lowerBound")
    offset = lower.get("offset") if isinstance(lower, Mapping) else None
    if not isinstance(offset, Mapping):
        return None
    value, index, inputs = offset.get("value"), offset.get("inputIndex"), spec.get("originalInputFields")
    if isinstance(index, int) and isinstance(inputs, int) and 0 <= index - inputs < len(constants):
        value = constants[index - inputs].get("value")
    return value if isinstance(value, int) else None


_TAKEN_BACK = "; retractions of rows from before the savepoint are subtracted from it, too"

_ADDED_UP = ("COUNT", "SUM", "$SUM0", "AVG")


def _find_unfolded(column: PlannedColumn, kept: Sequence[str]) -> str:
    """Explain why a buffer of a bounded OVER cannot be computed from the rows of its window; empty if it can.

    After the restore, Flink retracts the old rows of the window from the buffer when they leave the window, so the
    buffer must contain their values. An argument that the old rows lack is NULL in them, and aggregates do not retract
    NULL.
    """
    buffer = column.buffer
    assert buffer is not None
    way = "start from empty, or keep the calls as they are"
    if buffer.distinct or buffer.filter or buffer.function not in _ADDED_UP:
        return f"Flink retracts rows that leave the window from it, but its value over them cannot be computed; {way}"
    if buffer.argument and buffer.argument not in kept and ", " in buffer.argument:
        return (
            "Flink retracts rows from before the savepoint from it, but its value over them cannot be computed, since "
            f"it has several arguments; {way}"
        )
    return ""


def retracts(node: PlanNode) -> bool:
    """Return whether an aggregate has to retract rows of its input."""
    return bool(node.content.get("needRetraction"))


def _is_same_call(one: PlannedColumn, other: PlannedColumn) -> bool:
    if one.buffer is None or other.buffer is None:
        return one is other
    return replace(one.buffer, role=Role.VALUE) == replace(other.buffer, role=Role.VALUE)


def _explain_empty(column: PlannedColumn, source: PlannedRow, state: PlannedState) -> str:
    """Explain until when a buffer that starts empty is partial; name an old call with a similar argument."""
    end = describe_end(state)
    mine = column.buffer
    if mine is None:
        return end
    for each in source.columns:
        found = each.buffer
        if found is None or (found.function, found.role) != (mine.function, mine.role) or not mine.argument:
            continue
        if (
            mine.argument != found.argument
            and found.argument
            and (found.argument in mine.argument or mine.argument in found.argument)
        ):
            return f"{each.meaning} of the old query has another expression; {end}"
    return end
