"""Pairs of nodes of two plans that keep the same state.

Nodes are compared by what they hold, in columns of tables: by kind, key, inputs and what the node does. Ids of
nodes are never compared. Each round compares fewer properties than the one before, to find the pairs of changed nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from state_pipelines.errors import UsageError
from state_pipelines.sql.compiled_plans import Plan, PlanNode, list_mappings
from state_pipelines.sql.lineage import (
    SECOND_PHASES,
    Lineage,
    describe_node,
    find_arguments,
    find_column,
    find_conditions,
    find_join_times,
    find_null_keys,
    find_table,
    render_sort,
    trace_lineage,
    without_filters,
)
from state_pipelines.sql.node_states import PlannedOperator, list_operators

JOINS = ("join", "interval-join", "temporal-join", "window-join")
"""Kinds of nodes that join two inputs."""

# Kinds of nodes, each with the kind of nodes that keep their state in the same way.
_KINDS: Mapping[str, str] = {
    "global-group-aggregate": "group-aggregate",
    "global-window-aggregate": "window-aggregate",
    "limit": "rank",
    "sort-limit": "rank",
}
_STATELESS = (
    "async-calc",
    "calc",
    "drop-update-before",
    "exchange",
    "expand",
    "local-group-aggregate",
    "local-window-aggregate",
    "mini-batch-assigner",
    "python-calc",
    "union",
    "values",
    "watermark-assigner",
)


@dataclass(frozen=True)
class NodeSignature:
    """Description of the state of a node, independent of its id. Columns and rows are the texts of `Lineage`.

    Attributes:
        node: the node.
        kind: kind of the node; kinds that keep their state in the same way have one name.
        operators: operators of the node.
        bare: the same operators in the plan without filters (`without_filters`).
        key: texts of the columns of its key, without filters; of a join the columns of both sides, of a source the
            table.
        task: what the node does with its inputs.
        bare_task: `task` without conditions.
        inputs: texts of the rows of its inputs.
        bare_inputs: `inputs` without filters.
        filters: conditions of the node and of all nodes upstream of it; of a join, of the upstream nodes only.
        condition: of a join, its condition apart from the equality of its keys; empty for other nodes.
        order: of a rank, the order by which it chooses rows; of an interval join or a temporal join, the times of both
            sides.
        tables: tables that it reads, directly or through other nodes.
        sinks: tables that its rows reach.
        columns: texts of the columns of its states, without filters.
        sides: of a join, texts of its two inputs, in order.
        full_sides: `sides`, with filters.
        side_filters: of a join, conditions of all nodes upstream on each side.
        sink_columns: of a sink, names of the columns of its table.
    """

    node: PlanNode
    kind: str
    operators: tuple[PlannedOperator, ...]
    bare: tuple[PlannedOperator, ...]
    key: tuple[str, ...]
    task: str
    bare_task: str
    inputs: tuple[str, ...]
    bare_inputs: tuple[str, ...]
    filters: tuple[str, ...]
    condition: str
    order: str
    tables: frozenset[str]
    sinks: frozenset[str]
    columns: tuple[str, ...]
    sides: tuple[str, ...]
    full_sides: tuple[str, ...]
    side_filters: tuple[frozenset[str], ...]
    sink_columns: tuple[str, ...]

    @property
    def uid(self) -> str:
        """Uid of the operator with the states, or of the first one."""
        return next((each.uid for each in self.operators if each.states), self.operators[0].uid)

    @property
    def keeps_state(self) -> bool:
        """Whether the node is a source, or has keyed state that is known."""
        return self.is_source or any(each.states for each in self.operators)

    @property
    def is_source(self) -> bool:
        """Whether the node reads a table."""
        return self.node.kind == "table-source-scan"


@dataclass(frozen=True)
class Tie:
    """Nodes of two plans that fit each other equally well, so that no pairs can be chosen.

    Attributes:
        old: uids of the old plan.
        new: uids of the new plan.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]

    def describe(self) -> str:
        """Describe the tie in words."""
        return f"any of {', '.join(self.old)} could be any of {', '.join(self.new)}"


@dataclass(frozen=True)
class NodeMatches:
    """Matches of the nodes of an old plan with those of a new one.

    Attributes:
        pairs: pairs (old, new) of nodes that keep the same state.
        dropped: nodes that only the old plan has.
        added: nodes that only the new plan has.
        ties: nodes without a pair because several nodes fit equally well; neither `dropped` nor `added` has them.
    """

    pairs: tuple[tuple[NodeSignature, NodeSignature], ...]
    dropped: tuple[NodeSignature, ...]
    added: tuple[NodeSignature, ...]
    ties: tuple[Tie, ...]


def list_signatures(plan: Plan) -> tuple[NodeSignature, ...]:
    """Describe the state of every node that may keep state.

    Raises:
        FormatError: a node lacks inputs or fields of its kind.
    """
    stripped = without_filters(plan)
    full, bare = trace_lineage(plan), trace_lineage(stripped)
    operators, bare_operators = _by_node(list_operators(plan)), _by_node(list_operators(stripped))
    tables: dict[int, frozenset[str]] = {}
    filters: dict[int, frozenset[str]] = {}
    chosen: dict[int, frozenset[str]] = {}
    for node in plan.nodes:
        own = {find_table(node)} if node.kind == "table-source-scan" else set()
        tables[node.id] = frozenset(own).union(*(tables[each] for each in node.inputs))
        conditions = find_conditions(node, [full[each] for each in node.inputs])
        above = frozenset[str]().union(*(filters[each] for each in node.inputs))
        filters[node.id] = above.union(conditions)
        chosen[node.id] = above if node.kind in JOINS else filters[node.id]
    sinks = _find_sinks(plan)
    found = []
    for node, plain in zip(plan.nodes, stripped.nodes, strict=True):
        own_operators = operators.get(node.id, ())
        if node.kind in _STATELESS or not own_operators:
            continue
        own_bare = bare_operators[node.id]
        found.append(
            NodeSignature(
                node=node,
                kind=_KINDS.get(node.kind, node.kind),
                operators=own_operators,
                bare=own_bare,
                key=_find_key(plain, own_bare, bare),
                task=describe_node(plan, node, full),
                bare_task=describe_node(stripped, plain, bare),
                inputs=_list_inputs(plan, node, full),
                bare_inputs=_list_inputs(stripped, plain, bare),
                filters=tuple(sorted(chosen[node.id])),
                condition="; ".join([*sorted(filters[node.id] - chosen[node.id]), *_list_null_keys(node)]),
                order=_find_order(plain, bare),
                tables=tables[node.id],
                sinks=sinks[node.id],
                columns=_list_columns(own_bare),
                sides=_list_sides(plain, bare),
                full_sides=_list_sides(node, full),
                side_filters=tuple(filters[each] for each in node.inputs) if node.kind in JOINS else (),
                sink_columns=_list_sink_columns(node),
            )
        )
    return tuple(found)


def _by_node(operators: Iterable[PlannedOperator]) -> Mapping[int, tuple[PlannedOperator, ...]]:
    found: dict[int, tuple[PlannedOperator, ...]] = {}
    for each in operators:
        found[each.node] = (*found.get(each.node, ()), each)
    return found


def _find_sinks(plan: Plan) -> Mapping[int, frozenset[str]]:
    found: dict[int, set[str]] = {each.id: set() for each in plan.nodes}
    for node in reversed(plan.nodes):
        if node.kind == "sink":
            found[node.id].add(find_table(node))
        for each in node.inputs:
            found[each] |= found[node.id]
    return {number: frozenset(each) for number, each in found.items()}


def _list_inputs(plan: Plan, node: PlanNode, lineage: Mapping[int, Lineage]) -> tuple[str, ...]:
    """Return the rows of the inputs as texts: for a second phase, the inputs of its first phase; for a join, sorted."""
    if node.kind in SECOND_PHASES and (base := find_arguments(plan, node, lineage)) is not None:
        return (base.rows,)
    texts = [lineage[each].rows for each in node.inputs]
    return tuple(sorted(texts)) if node.kind in JOINS else tuple(texts)


def _find_key(node: PlanNode, operators: Sequence[PlannedOperator], lineage: Mapping[int, Lineage]) -> tuple[str, ...]:
    if node.kind in JOINS:
        return tuple(sorted(_list_side_keys(node, lineage)))
    if node.kind == "table-source-scan":
        return (find_table(node),)
    key = next((each.key for each in operators if each.key is not None), None)
    return () if key is None else tuple(each.meaning for each in key.columns)


def find_join_spec(node: PlanNode) -> Mapping[str, Any]:
    """Return the specification of a join; empty for other nodes."""
    found = node.mapping("joinSpec") or node.mapping("intervalJoinSpec").get("joinSpec")
    return found if isinstance(found, Mapping) else {}


def _list_side_keys(node: PlanNode, lineage: Mapping[int, Lineage]) -> list[str]:
    spec = find_join_spec(node)
    sides = zip(("leftKeys", "rightKeys"), node.inputs, strict=False)
    return [
        ", ".join(find_column(lineage[number].columns, each) for each in spec.get(name) or ()) for name, number in sides
    ]


def _find_order(node: PlanNode, lineage: Mapping[int, Lineage]) -> str:
    if node.kind in JOINS:
        return "; ".join(sorted(find_join_times(node, [lineage[each] for each in node.inputs])))
    if _KINDS.get(node.kind, node.kind) != "rank" or not node.inputs:
        return ""
    return render_sort(node.mapping("orderBy"), lineage[node.inputs[0]].columns)


def _list_sides(node: PlanNode, lineage: Mapping[int, Lineage]) -> tuple[str, ...]:
    if node.kind not in JOINS:
        return ()
    keys = _list_side_keys(node, lineage)
    return tuple(f"{lineage[each].rows} by {key}" for each, key in zip(node.inputs, keys, strict=True))


def _list_null_keys(node: PlanNode) -> list[str]:
    return ["NULL = NULL"] if any(find_null_keys(find_join_spec(node))) else []


def _list_sink_columns(node: PlanNode) -> tuple[str, ...]:
    table = node.mapping("dynamicTableSink").get("table")
    resolved = table.get("resolvedTable") if isinstance(table, Mapping) else None
    schema = resolved.get("schema") if isinstance(resolved, Mapping) else None
    columns = list_mappings(schema.get("columns")) if isinstance(schema, Mapping) else ()
    names = tuple(str(each.get("name")) for each in columns if each.get("kind", "PHYSICAL") != "COMPUTED")
    return names if len(names) >= len(node.columns) else node.columns


def _list_columns(operators: Sequence[PlannedOperator]) -> tuple[str, ...]:
    states = [state for each in operators for state in each.states]
    columns = [column.meaning for state in states for row in state.rows for column in row.columns]
    return tuple(sorted([*columns, *(each.meaning for each in states if each.meaning)]))


_Round = Callable[[NodeSignature], Hashable]


def _identity(each: NodeSignature) -> tuple[Hashable, ...]:
    return (each.kind, each.key, each.inputs, each.task, frozenset(each.full_sides))


# Properties by which nodes are matched, round after round: all in the first round, then fewer, to match changed nodes.
_ROUNDS: Sequence[_Round] = (
    lambda each: (*_identity(each), each.columns, each.sinks, each.node.kind),
    lambda each: (*_identity(each), each.columns, each.sinks),
    lambda each: (*_identity(each), each.columns),
    lambda each: (*_identity(each), each.sinks),
    _identity,
    lambda each: (each.kind, each.key, each.bare_inputs, each.bare_task, each.columns, each.sinks),
    lambda each: (each.kind, each.key, each.bare_inputs, each.bare_task, each.columns),
    lambda each: (each.kind, each.key, each.bare_inputs, each.bare_task, each.sinks),
    lambda each: (each.kind, each.key, each.bare_inputs, each.bare_task),
    lambda each: (each.kind, each.key, each.bare_inputs, each.sinks),
    lambda each: (each.kind, each.key, each.bare_inputs),
    lambda each: (each.kind, each.key, each.tables, each.sinks),
    lambda each: (each.kind, each.key, each.tables),
    lambda each: (each.kind, each.key, each.sinks) if each.key else None,
    lambda each: (each.kind, each.key) if each.key else None,
    # The key may differ here: `compare_plans` refuses such a pair, with the change of the key as the reason.
    lambda each: (each.kind, each.bare_inputs, each.sinks) if not each.is_source else None,
    lambda each: (each.kind, each.tables, each.sinks) if not each.is_source else None,
)
_EXACT_ROUNDS = 3
"""Number of the first rounds, which compare all properties: nodes that are equal in all of them may be paired in any
way."""


def match_nodes(
    old: Sequence[NodeSignature], new: Sequence[NodeSignature], given: Mapping[str, str] | None = None
) -> NodeMatches:
    """Find the pairs of nodes that keep the same state.

    Args:
        old: nodes of the old plan.
        new: nodes of the new plan.
        given: maps the uid of an operator of the old plan to the uid of the new operator that keeps its state.

    Raises:
        UsageError: a given uid is in no plan, or the operators are of different kinds.
    """
    pairs = _match_given(old, new, given or {})
    ties: list[tuple[list[NodeSignature], list[NodeSignature]]] = []
    left = [each for each in old if not any(each is one for one, _ in pairs)]
    right = [each for each in new if not any(each is one for _, one in pairs)]
    for number, describe in enumerate(_ROUNDS):
        for some, others in _group(left, right, describe):
            found = _pair(some, others, all_equal=number < _EXACT_ROUNDS)
            pairs += found
            some = [each for each in some if not any(each is one for one, _ in found)]
            others = [each for each in others if not any(each is one for _, one in found)]
            if some and others and any(each.keeps_state for each in (*some, *others)):
                ties.append((some, others))
        gone = {id(each) for pair in pairs for each in pair} | {id(each) for tie in ties for one in tie for each in one}
        left = [each for each in left if id(each) not in gone]
        right = [each for each in right if id(each) not in gone]
    order = {id(each): index for index, each in enumerate(new)}
    return NodeMatches(
        pairs=tuple(sorted(pairs, key=lambda pair: order[id(pair[1])])),
        dropped=tuple(left),
        added=tuple(right),
        ties=tuple(Tie(tuple(each.uid for each in some), tuple(each.uid for each in others)) for some, others in ties),
    )


def _match_given(
    old: Sequence[NodeSignature], new: Sequence[NodeSignature], given: Mapping[str, str]
) -> list[tuple[NodeSignature, NodeSignature]]:
    pairs = []
    for one, other in given.items():
        before, after = _find_uid(old, one, "old"), _find_uid(new, other, "new")
        if before.kind != after.kind:
            raise UsageError(
                f"{one} cannot keep its state in {other}: {before.node.kind} is not {after.node.kind}",
                hint="Name operators of one kind",
            )
        pairs.append((before, after))
    for side, which in ((0, "old"), (1, "new")):
        counts = Counter(pair[side].uid for pair in pairs)
        for uid, count in counts.items():
            if count > 1:
                raise UsageError(
                    f"{uid} of the {which} plan is matched {count} times; match each operator at most once"
                )
    return pairs


def _find_uid(nodes: Sequence[NodeSignature], uid: str, which: str) -> NodeSignature:
    for each in nodes:
        if any(uid == one.uid for one in each.operators):
            return each
    names = ", ".join(each.uid for each in nodes)
    raise UsageError(f"the {which} plan has no operator {uid} to match", hint=f"It has {names}")


def _group(
    old: Sequence[NodeSignature], new: Sequence[NodeSignature], describe: _Round
) -> Iterable[tuple[list[NodeSignature], list[NodeSignature]]]:
    """Yield groups of old and new nodes for which `describe` returns the same value."""
    some: dict[Hashable, list[NodeSignature]] = {}
    others: dict[Hashable, list[NodeSignature]] = {}
    for groups, nodes in ((some, old), (others, new)):
        for each in nodes:
            if (text := describe(each)) is not None:
                groups.setdefault(text, []).append(each)
    for text, found in some.items():
        if text in others:
            yield found, others[text]


def _pair(
    old: list[NodeSignature], new: list[NodeSignature], *, all_equal: bool
) -> list[tuple[NodeSignature, NodeSignature]]:
    """Pair the nodes of a group: single nodes, else equal nodes in order, else the nodes that share most columns."""
    if len(old) == len(new) == 1 or (all_equal and len(old) == len(new)):
        return list(zip(old, new, strict=True))
    if all_equal:
        # Equal nodes have equal states, so it does not matter which of them are paired.
        return list(zip(old, new, strict=False))
    pairs = []
    old, new = [*old], [*new]
    while old and new:
        scores = sorted(
            ((_count_shared(one, other), m, n) for m, one in enumerate(old) for n, other in enumerate(new)),
            reverse=True,
        )
        best = scores[0]
        rivals = [each for each in scores[1:] if each[0] == best[0] and (each[1] == best[1] or each[2] == best[2])]
        if rivals or (best[0] == 0 and len(scores) > 1):
            break
        pairs.append((old.pop(best[1]), new.pop(best[2])))
    return pairs


def _count_shared(old: NodeSignature, new: NodeSignature) -> int:
    return (Counter(old.columns) & Counter(new.columns)).total()
