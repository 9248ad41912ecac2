"""Comparison of two plans: how the state of a SQL query is kept when the query changes.

The verdicts come from the plans alone. `compare_plans` is what `sql check` reports and what `sql migrate` carries out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from state_pipelines.sql.column_verdicts import describe_end, find_shorter_window
from state_pipelines.sql.lineage import INCREMENTAL, find_table_options, walk_up
from state_pipelines.sql.matching import JOINS, NodeMatches, NodeSignature, find_join_spec, list_signatures, match_nodes
from state_pipelines.sql.state_verdicts import compare_states, sides_are_exchanged
from state_pipelines.sql.verdict import OperatorVerdict, PlanComparison, SinkChange, StateVerdict, Verdict, find_worst

if TYPE_CHECKING:
    from state_pipelines.sql.compiled_plans import Plan, PlanNode
    from state_pipelines.sql.node_states import PlannedOperator


def compare_plans(old: Plan, new: Plan, given: Mapping[str, str] | None = None) -> PlanComparison:
    """Compare two plans: which operator keeps the state of which, and the source of every column.

    Args:
        old: plan of the job that wrote the state.
        new: plan of the job that takes it.
        given: uids of operators of the old plan, and of those of the new plan that keep their state; for ties.

    Raises:
        UsageError: a given uid is in no plan.
        FormatError: a node has not the inputs or the fields of its kind.
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
    """The operators of a node that have state, or the first one, whose state is not known."""
    known = tuple(each for each in node.operators if each.states)
    return known or node.operators[:1]


def _drop(operator: PlannedOperator) -> OperatorVerdict:
    states = tuple(StateVerdict(each, None, Verdict.DROPPED) for each in operator.states)
    if operator.kind == "table-source-scan":
        return OperatorVerdict(
            operator, None, Verdict.DROPPED, states, reasons=("the new query does not read the table: its offsets go",)
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
        reasons.append("operators with state above or below it are carried: their rows are not sent again")
    return OperatorVerdict(None, operator, Verdict.EMPTY, states, exact=False, reasons=tuple(reasons))


# Pairs of nodes.


def _compare_nodes(
    old_plan: Plan, new_plan: Plan, old: NodeSignature, new: NodeSignature, matches: NodeMatches
) -> Iterator[OperatorVerdict]:
    refusals = tuple(_find_refusals(old_plan, new_plan, old, new))
    changes = tuple(_find_changes(old, new))
    remarks = tuple(_find_options(old.node, new.node)) if new.is_source else ()
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
        verdict = find_worst([each.verdict for each in states])
        exact = not changes and all(each.exact for each in states)
        yield OperatorVerdict(before, operator, verdict, states, exact, (*changes, *remarks))


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
    """Yield why the state of a node fits no node of the new plan."""
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
    if old.key != new.key:
        before, after = (" / ".join(each) or "nothing" for each in (old.key, new.key))
        what = "join" if new.kind in JOINS else "grouping"
        yield (
            f"the {what} key changes from {before} to {after}: state is kept by key, and rows of the old key cannot be "
            "split; build the state with bootstrap from a table, or start from empty"
        )
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
    if new.kind == "over-aggregate" and (reason := _find_over_refusal(old, new)):
        yield reason
    is_known = new.kind in _NO_STATE_KNOWN or any(each.states for each in new.operators)
    if not is_known and (old.task, old.inputs) != (new.task, new.inputs):
        yield f"the states of {other.kind} are not known, and it or its input changes; start it from empty"


def _find_over_refusal(old: NodeSignature, new: NodeSignature) -> str:
    """Return in words why an OVER with other bounds cannot go on; empty where it can.

    The states of its window differ by the kind of the bound and of the time.
    """
    way = "start from empty, or keep the bounds"
    kept, wanted = (
        {each.name for each in node.bare[0].states if not each.meaning and each.name not in ("accState", "inputState")}
        for node in (old, new)
    )
    if kept != wanted:
        return f"the window goes by other rows or times ({', '.join(sorted(kept ^ wanted))} of one is unknown); {way}"
    return ""


def find_window(node: PlanNode) -> str:
    """Return the window of a node as text, without the column of its time; empty without one."""
    window = node.mapping("windowing").get("window") or node.mapping("window")
    if not isinstance(window, Mapping) or not window:
        return ""
    ignored = ("alias", "timeField", "partitionKeys", "partition_key_indices")
    return ", ".join(f"{key} {each}" for key, each in sorted(window.items()) if key not in ignored)


def is_async(plan: Plan) -> bool:
    """Return whether the script of a plan asks for asynchronous state; no compiled plan says it."""
    return plan.settings.get("table.exec.async-state.enabled", "false").lower() == "true"


def _is_split(plan: Plan, node: PlanNode) -> bool:
    return node.kind == "global-group-aggregate" and any(each.kind == INCREMENTAL for each in walk_up(plan, node))


def _find_changes(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    """Yield in words what makes rows from before others than the new query would have made of them."""
    if new.kind in _NO_STATE_KNOWN:
        # Offsets do not depend on filters, and for sinks the columns say it.
        return
    gone = [each for each in old.filters if each not in new.filters]
    come = [each for each in new.filters if each not in old.filters]
    if gone or come:
        changed = f"the filter changes from {_join(gone) or 'none'} to {_join(come) or 'none'}"
        yield f"{changed}: rows from before stay as the old one chose them"
    if old.bare_inputs != new.bare_inputs:
        yield "the rows that reach it come from other tables, joins or keys: those from before stay as they are"
    if old.kind == "rank" and (more := _find_more_rows(old.node, new.node)):
        yield more
    if old.kind in JOINS:
        yield from _find_join_changes(old, new)
    elif old.bare_task != new.bare_task and old.kind != "rank" and not _is_shortened(old, new):
        # An input stands as # and its number in these texts.
        one, other = (_INPUT.sub("its input", each.bare_task) for each in (old, new))
        yield f"its task changes from {one} to {other}: rows from before were handled by the old one"


def _is_shortened(old: NodeSignature, new: NodeSignature) -> bool:
    """Return whether only the number of rows of an OVER gets less, whose last rows are kept."""
    one, other = (_PRECEDING.sub("", each.bare_task) for each in (old, new))
    return one == other and find_shorter_window(old, new) is not None


def _find_join_changes(old: NodeSignature, new: NodeSignature) -> Iterator[str]:
    one, other = (str(find_join_spec(each.node).get("joinType")) for each in (old, new))
    if sides_are_exchanged(old, new):
        one = _MIRRORED.get(one, one)
    if one != other:
        yield f"the join changes from {one} to {other}: rows that it has emitted stay as they are"
    elif old.bare_task != new.bare_task and not sides_are_exchanged(old, new):
        yield "the bounds or windows of the join change: rows that the old ones have removed are missing"


_MIRRORED = {"LEFT": "RIGHT", "RIGHT": "LEFT"}


def _find_options(old: PlanNode, new: PlanNode) -> Iterator[str]:
    """Yield in words which options of a source change, such as the topic: its offsets are those of the old ones."""
    before, after = find_table_options(old), find_table_options(new)
    changed = [
        f"{key} from {before.get(key, 'none')} to {after.get(key, 'none')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    if changed:
        yield f"options of the table change ({', '.join(changed)}): its offsets are those of the old ones"


def _find_more_rows(old: PlanNode, new: PlanNode) -> str:
    """Return in words that a rank keeps more rows than before; empty where it does not, or has kept all of them."""
    before, after = old.mapping("rankRange"), new.mapping("rankRange")
    if before == after or new.mapping("rankStrategy").get("type") == "Retract":
        return ""
    fewer, more = before.get("end"), after.get("end")
    if isinstance(fewer, int) and isinstance(more, int):
        if more <= fewer:
            return ""
        return f"it keeps {more} rows instead of {fewer}: those that the old query did not keep are missing"
    return "its number of rows is another one: rows that the old query did not keep are missing"


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
