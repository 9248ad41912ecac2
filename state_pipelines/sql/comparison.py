"""Comparison of two plans: how the state of a SQL query is kept when the query changes.

The verdicts come from the plans alone. `compare_plans` is what `sql check` reports and what `sql migrate` carries out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.column_verdicts import describe_end, find_shorter_window
from state_pipelines.sql.conversions import Derivation, compare_types
from state_pipelines.sql.lineage import INCREMENTAL, find_mark, find_table_options, list_joined_pairs, walk_up
from state_pipelines.sql.matching import JOINS, NodeMatches, NodeSignature, find_join_spec, list_signatures, match_nodes
from state_pipelines.sql.state_verdicts import compare_states, sides_are_exchanged
from state_pipelines.sql.verdict import OperatorVerdict, PlanComparison, SinkChange, StateVerdict, Verdict, find_worst

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import LogicalType
    from state_pipelines.sql.compiled_plans import Plan, PlanNode
    from state_pipelines.sql.node_states import PlannedOperator


def compare_plans(old: Plan, new: Plan, given: Mapping[str, str] | None = None) -> PlanComparison:
    """Compare two plans: match the operators whose state is kept, and find the old columns of every new column.

    Args:
        old: plan of the job that wrote the state.
        new: plan of the job that takes it.
        given: maps the uid of an operator of the old plan to the uid of the new operator that keeps its state; resolves
            ties.

    Raises:
        UsageError: a given uid is in no plan.
        FormatError: a node lacks inputs or fields of its kind.
    """
    before, after = list_signatures(old), list_signatures(new)
    matches = match_nodes(before, after, given)
    operators = [each for pair in matches.pairs for each in _compare_nodes(old, new, *pair, matches)]
    operators += [_start_empty(operator, each, matches) for each in matches.added for operator in _stateful(each)]
    operators += [_drop(operator) for each in matches.dropped for operator in _stateful(each)]
    order = {each.id: index for index, each in enumerate(new.nodes)}
    operators.sort(key=lambda each: len(order) if each.new is None else order[each.new.node])
    return PlanComparison(tuple(operators), matches.ties, tuple(_compare_sinks(matches)))


def _stateful(node: NodeSignature) -> tuple[PlannedOperator, ...]:
    """Return the operators of a node whose state is known; if there are none, its first operator."""
    known = tuple(each for each in node.operators if each.states)
    return known or node.operators[:1]


def _drop(operator: PlannedOperator) -> OperatorVerdict:
    states = tuple(StateVerdict(each, None, Verdict.DROPPED) for each in operator.states)
    if operator.kind == "table-source-scan":
        return OperatorVerdict(
            operator,
            None,
            Verdict.DROPPED,
            states,
            reasons=("the new query does not read the table: its offsets are dropped",),
        )
    reason = "the new query has no such operator"
    return OperatorVerdict(operator, None, Verdict.DROPPED, states, reasons=(reason,))


def _start_empty(operator: PlannedOperator, node: NodeSignature, matches: NodeMatches) -> OperatorVerdict:
    states = tuple(
        StateVerdict(None, each, Verdict.EMPTY, exact=False, reason=describe_end(each)) for each in operator.states
    )
    if node.is_source:
        reason = "the table is new: it is read from where its options say"
        return OperatorVerdict(None, operator, Verdict.EMPTY, states, exact=False, reasons=(reason,))
    if not operator.states:
        return OperatorVerdict(None, operator, Verdict.EMPTY, reasons=("it is new",))
    kept = {sink for _, each in matches.pairs if each.keeps_state and not each.is_source for sink in each.sinks}
    reasons = ["it is new, and rows from before the savepoint never reach it"]
    if kept & node.sinks:
        reasons.append("operators before or after it keep their state, and do not emit their rows again")
    return OperatorVerdict(None, operator, Verdict.EMPTY, states, exact=False, reasons=tuple(reasons))


# Verdicts on the operators of a pair of nodes (an old and a new one).


def _compare_nodes(
    old_plan: Plan, new_plan: Plan, old: NodeSignature, new: NodeSignature, matches: NodeMatches
) -> Iterator[OperatorVerdict]:
    refusals = tuple(_find_refusals(old_plan, new_plan, old, new))
    changes = tuple(_find_changes(old, new))
    remarks = tuple(_find_options(old.node, new.node)) if new.is_source else ()
    widened = tuple(_find_key_changes(old, new))
    by_name = {_transformation(each): (each, bare) for each, bare in zip(old.operators, old.bare, strict=True)}
    for operator, bare in zip(new.operators, new.bare, strict=True):
        if not operator.states and any(each.states for each in new.operators) and new.kind != "sink":
            continue
        found = by_name.get(_transformation(operator))
        if found is None and len(old.operators) == 1:
            found = (old.operators[0], old.bare[0])
        if found is None:
            yield _start_empty(operator, new, matches)
            continue
        before, bare_before = found
        if refusals:
            states = tuple(
                StateVerdict(before.find_state(each.name), each, Verdict.REFUSED, exact=False)
                for each in operator.states
            )
            yield OperatorVerdict(before, operator, Verdict.REFUSED, states, exact=False, reasons=refusals)
            continue
        states = tuple(compare_states(old, new, bare_before, bare, before, operator))
        verdict = find_worst([*(each.verdict for each in states), *([Verdict.COMPUTED] if widened else [])])
        exact = not changes and all(each.exact for each in states)
        yield OperatorVerdict(before, operator, verdict, states, exact, (*changes, *remarks, *widened))


def _transformation(operator: PlannedOperator) -> str:
    name = operator.transformation
    return "" if name == operator.kind or operator.kind in ("limit", "sort-limit") else name


_OPAQUE: Mapping[str, tuple[str, str]] = {
    "match": ("MATCH_RECOGNIZE keeps partial matches of its pattern", "start it from empty"),
    "process-table-function": ("a process table function keeps states of its own", "start it from empty"),
}
_INPUT = re.compile(r"#\d+")
_PRECEDING = re.compile(r"preceding \d+")
_NO_STATE_KNOWN = ("table-source-scan", "sink")


def _find_refusals(old_plan: Plan, new_plan: Plan, old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    """Yield the reasons why the new node of a pair cannot take the state of the old node."""
    one, other = old.node, new.node
    opaque = _OPAQUE.get(new.kind)
    if opaque is not None:
        if (old.task, old.inputs) != (new.task, new.inputs):
            yield f"{opaque[0]}, and it or its input changes; {opaque[1]}, or keep the old query"
        return
    if _is_split(old_plan, one) != _is_split(new_plan, other):
        yield (
            "table.optimizer.distinct-agg.split.enabled or the phases of DISTINCT change, so that values are under "
            "other keys; keep the setting of the old query"
        )
        return
    if old.key != new.key and sorted(_split_key(old)) == sorted(_split_key(new)):
        before, after = (" / ".join(each) for each in (old.key, new.key))
        yield (
            f"the columns of the key change their order from {before} to {after}, and other keys are in other key "
            "groups; keep the order of the columns in GROUP BY, PARTITION BY or the condition of the join"
        )
    elif old.key != new.key:
        before, after = (" / ".join(each) or "nothing" for each in (old.key, new.key))
        what = "join" if new.kind in JOINS else "grouping"
        yield (
            f"the {what} key changes from {before} to {after}: state is kept by key, and rows of the old key cannot be "
            "split; build the state with bootstrap from a table, or start from empty"
        )
    yield from _find_key_refusals(old, new)
    window, window_before = find_window(other), find_window(one)
    if window != window_before:
        yield (
            f"the window changes from {window_before or 'none'} to {window or 'none'}: rows inside a window have been "
            "added up; let the windows end in the old query, and start from empty"
        )
    if is_async(old_plan) != is_async(new_plan):
        yield (
            "asynchronous state (table.exec.async-state.enabled) is switched, which has other operators; keep the "
            "setting of the old query"
        )
    if "window" in new.kind and window == window_before and old.key == new.key and old.bare_task != new.bare_task:
        yield (
            f"the window, its time or its order changes ({old.bare_task} becomes {new.bare_task}): rows inside a "
            "window were chosen by the old one; let the windows end in the old query, and start from empty"
        )
    if old.order != new.order and new.kind in JOINS:
        yield (
            f"the times of the join change from {old.order or 'none'} to {new.order or 'none'}: rows are kept by them; "
            "start from empty, or keep the old times"
        )
    elif old.order != new.order:
        yield (
            f"the order changes from {old.order or 'none'} to {new.order or 'none'}: rows were chosen by the old one, "
            "and others are not kept; start from empty, or keep the old order"
        )
    if doubtful := _find_doubtful_columns(old, new):
        yield (
            f"the joins above it change, and read one table several times: of which of them {', '.join(doubtful)} was "
            "cannot be said; keep the order of the joins, or start from empty"
        )
    if new.kind == "over-aggregate" and (reason := _find_over_refusal(old, new)):
        yield reason
    extremes = set(_list_extremes(new)) - set(_list_extremes(old))
    if extremes and new_plan.flink_version.startswith("1."):
        calls = ", ".join(sorted(meaning for _, meaning in extremes))
        yield (
            f"Flink {new_plan.flink_version} writes the accumulator of {calls} in its own way, "
            "which is known of Flink 2 only; migrate to Flink 2, keep these calls as they are, or start from empty"
        )
    is_known = new.kind in _NO_STATE_KNOWN or any(each.states for each in new.operators)
    if not is_known and (old.task, old.inputs) != (new.task, new.inputs):
        yield f"the states of {other.kind} are not known, and it or its input changes; start it from empty"


def _list_extremes(node: NodeSignature) -> Iterator[tuple[str, str]]:
    """Yield class and meaning of the accumulators of MAX and MIN that have to retract rows."""
    for operator in node.bare:
        for state in operator.states:
            for column in (each for row in state.rows for each in row.columns):
                if column.type.root == "STRUCTURED_TYPE" and column.buffer is not None:
                    yield column.type.class_name or "", column.meaning


def _split_key(node: NodeSignature) -> list[str]:
    """Return the columns of a key one by one; the key of a join has one text per side, with all columns of the key."""
    return [column for text in node.key for column in (text.split(", ") if node.kind in JOINS else [text])]


def _list_key_types(old: NodeSignature, new: NodeSignature) -> Iterator[tuple[str, LogicalType, LogicalType]]:
    """Yield each column of the key: its expression, old and new type; nothing if the columns themselves change."""
    before, after = (next((one.key for one in each.bare if one.key is not None), None) for each in (old, new))
    if before is None or after is None or old.key != new.key or len(before.columns) != len(after.columns):
        return
    for one, other in zip(before.columns, after.columns, strict=True):
        yield other.meaning, one.type, other.type


def _find_key_refusals(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    """Yield a reason for each column of the key whose old values may not fit its new type."""
    for text, before, after in _list_key_types(old, new):
        how = compare_types(replace(before, nullable=True), replace(after, nullable=True))
        if how is None or how is Derivation.CHECK:
            yield (
                f"the type of {text}, by which state is kept, changes from {describe_type(before)} to "
                f"{describe_type(after)}; cast the column to its old type in the query, or start from empty"
            )


def _find_key_changes(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    """Yield a remark on each column of the key whose type becomes wider."""
    for text, before, after in _list_key_types(old, new):
        if compare_types(replace(before, nullable=True), replace(after, nullable=True)) is Derivation.WIDEN:
            yield f"{text}, by which state is kept, changes from {describe_type(before)} to {describe_type(after)}"


def _find_doubtful_columns(old: NodeSignature, new: NodeSignature) -> list[str]:
    """Return columns that have the same text in both plans, but may be of different occurrences of a joined table.

    If joins read a table several times, texts mark its occurrences in the order of the joins (`other`, `third`). If
    that order changes, the same text may be of another occurrence.
    """
    if not any(find_mark(text) for each in (old, new) for text in each.bare_inputs):
        return []
    shared = sorted({*old.columns, *old.key} & {*new.columns, *new.key})
    if old.bare_inputs == new.bare_inputs:
        # The inputs differ in filters only. If all filters together are the same, filters have moved between inputs.
        return shared if old.inputs != new.inputs and old.filters == new.filters else []
    before, after = (list_joined_pairs("; ".join(each.bare_inputs)) for each in (old, new))
    none = frozenset[str]()
    pairs = {mark: (before.get(mark, none), after.get(mark, none)) for mark in {*before, *after}}
    changed = {mark for mark, (one, other) in pairs.items() if not (one <= other or other <= one)}
    return [each for each in shared if find_mark(each) in changed]


def _find_over_refusal(old: NodeSignature, new: NodeSignature) -> str:
    """Explain why an OVER with its new bounds cannot use the old state; empty if it can.

    The kind of the bounds (ROWS or RANGE) and of the time decides in which states Flink keeps the window.
    """
    way = "start from empty, or keep the bounds"
    kept, wanted = (
        {each.name for each in node.bare[0].states if not each.meaning and each.name not in ("accState", "inputState")}
        for node in (old, new)
    )
    if kept != wanted:
        return f"the window needs other states now (only one query has {', '.join(sorted(kept ^ wanted))}); {way}"
    return ""


def find_window(node: PlanNode) -> str:
    """Return the window of a node as text, without the column of its time; empty without one."""
    window = node.mapping("windowing").get("window") or node.mapping("window")
    if not isinstance(window, Mapping) or not window:
        return ""
    ignored = ("alias", "timeField", "partitionKeys", "partition_key_indices")
    return ", ".join(f"{key} {each}" for key, each in sorted(window.items()) if key not in ignored)


def is_async(plan: Plan) -> bool:
    """Return whether the script of a plan enables asynchronous state; the compiled plan does not have this option."""
    return plan.settings.get("table.exec.async-state.enabled", "false").lower() == "true"


def _is_split(plan: Plan, node: PlanNode) -> bool:
    return node.kind == "global-group-aggregate" and any(each.kind == INCREMENTAL for each in walk_up(plan, node))


def _find_changes(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    """Yield the reasons why the kept state differs from the state that the new query would have built."""
    if new.kind in _NO_STATE_KNOWN:
        # The offsets of a source do not depend on filters; changes of sinks are reported by column.
        return
    gone, come = _find_filter_changes(old, new)
    if gone or come:
        changed = f"the filter changes from {_join(gone) or 'none'} to {_join(come) or 'none'}"
        yield f"{changed}: rows from before the savepoint stay as the old filter chose them"
    elif moved := _find_moved_filters(old, new):
        yield f"{', '.join(moved)}: its values come from rows of other filters, and those from before stay as they are"
    if old.bare_inputs != new.bare_inputs:
        yield "the rows that reach it come from other tables, joins or keys: those from before stay as they are"
    if old.kind == "rank" and (more := _find_more_rows(old.node, new.node)):
        yield more
    if old.kind in JOINS:
        yield from _find_join_changes(old, new)
    elif old.bare_task != new.bare_task and old.kind != "rank" and not _is_shortened(old, new):
        # These texts call the inputs `#0` and `#1`: replace that by words for the user.
        one, other = (_INPUT.sub("its input", each.bare_task) for each in (old, new))
        yield f"its task changes from {one} to {other}: rows from before were handled by the old one"


def _is_shortened(old: NodeSignature, new: NodeSignature) -> bool:
    """Return whether an OVER differs only in a shorter window, whose rows are the last ones of the old window."""
    one, other = (_PRECEDING.sub("", each.bare_task) for each in (old, new))
    return one == other and find_shorter_window(old, new) is not None


def _find_filter_changes(old: NodeSignature, new: NodeSignature) -> tuple[list[str], list[str]]:
    """Return the filters that only the old node has, and those that only the new node has; joins compare each side."""
    if old.kind not in JOINS or len(old.side_filters) != len(new.side_filters):
        return _subtract(old.filters, new.filters), _subtract(new.filters, old.filters)
    sides = new.side_filters[::-1] if sides_are_exchanged(old, new) else new.side_filters
    names = old.sides if len(set(old.side_filters)) > 1 or len(set(sides)) > 1 else ("",) * len(sides)
    gone, come = list[str](), list[str]()
    for name, one, other in zip(names, old.side_filters, sides, strict=True):
        of = f" of {name}" if name and len(set(old.sides)) > 1 else ""
        gone += [f"{each}{of}" for each in _subtract(one, other)]
        come += [f"{each}{of}" for each in _subtract(other, one)]
    return gone, come


def _subtract(some: Iterable[str], others: Collection[str]) -> list[str]:
    return sorted(each for each in some if each not in others)


def _find_moved_filters(old: NodeSignature, new: NodeSignature) -> list[str]:
    """Return columns whose filters have moved, such as from one branch of a UNION to another."""
    before, after = (_list_filtered_columns(each) for each in (old, new))
    return sorted(text for text, full in after.items() if text in before and before[text] != full)


def _list_filtered_columns(node: NodeSignature) -> Mapping[str, frozenset[str]]:
    """Map each column of key and states, as text without filters, to its texts with filters."""
    found: dict[str, set[str]] = {}
    for bare, full in zip(node.bare, node.operators, strict=True):
        rows = [
            pair
            for one, other in zip(bare.states, full.states, strict=True)
            for pair in zip(one.rows, other.rows, strict=True)
        ]
        rows += [] if bare.key is None or full.key is None else [(bare.key, full.key)]
        for row, other_row in rows:
            for one_column, other_column in zip(row.columns, other_row.columns, strict=True):
                found.setdefault(one_column.meaning, set()).add(other_column.meaning)
    return {text: frozenset(texts) for text, texts in found.items()}


def _find_join_changes(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    one, other = (str(find_join_spec(each.node).get("joinType")) for each in (old, new))
    if sides_are_exchanged(old, new):
        one = _MIRRORED.get(one, one)
    if one != other:
        yield f"the join changes from {one} to {other}: rows that it has emitted stay as they are"
    elif old.bare_task != new.bare_task and not sides_are_exchanged(old, new):
        if new.kind == "join":
            yield "the condition of the join changes: rows that it has emitted stay as they are"
        else:
            yield "the bounds or windows of the join change: rows that the old ones have removed are missing"


_MIRRORED = {"LEFT": "RIGHT", "RIGHT": "LEFT"}


def _find_options(old: PlanNode, new: PlanNode) -> Iterator[str]:
    """Yield a remark if options of a source change, such as the topic: the kept offsets belong to the old options."""
    before, after = find_table_options(old), find_table_options(new)
    changed = [
        f"{key} from {before.get(key, 'none')} to {after.get(key, 'none')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    if changed:
        yield f"options of the table change ({', '.join(changed)}): its offsets are those of the old ones"


def _find_more_rows(old: PlanNode, new: PlanNode) -> str:
    """Describe that a rank keeps more rows than before; empty if it does not, or if its state keeps all rows anyway."""
    before, after = old.mapping("rankRange"), new.mapping("rankRange")
    if before == after or new.mapping("rankStrategy").get("type") == "Retract":
        return ""
    fewer, more = before.get("end"), after.get("end")
    if isinstance(fewer, int) and isinstance(more, int):
        if more <= fewer:
            return ""
        return f"it keeps {more} rows instead of {fewer}: those that the old query did not keep are missing"
    return "the limit of its rows changes: rows that the old query did not keep are missing"


def _join(texts: Sequence[str]) -> str:
    return " and ".join(texts)


def _compare_sinks(matches: NodeMatches) -> Iterator[SinkChange]:
    for old, new in matches.pairs:
        if new.kind != "sink":
            continue
        table = min(new.sinks)
        before = dict(zip(old.sink_columns, old.operators[0].columns, strict=False))
        for name, text in zip(new.sink_columns, new.operators[0].columns, strict=False):
            if before.get(name) != text:
                yield SinkChange(table, name, before.get(name, ""), text)
