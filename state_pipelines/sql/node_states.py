"""The operators and the keyed states of each node of a plan: names, columns, layouts, time to live.

The layouts are those of the operators in `org.apache.flink.table.runtime.operators`. For other nodes it is not known
whether they keep state, and which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.serializers.text import describe_type
from state_pipelines.serializers.tree import StateKind
from state_pipelines.sql.accumulators import (
    MOST_FILTERS,
    UNRESOLVED,
    Accumulator,
    PlannedColumn,
    derive_accumulator,
    make_unique,
)
from state_pipelines.sql.compiled_plans import Plan, PlanNode, list_mappings, read_type, reading_fields
from state_pipelines.sql.lineage import (
    FIRST_PHASES,
    INCREMENTAL,
    PASSED,
    SECOND_PHASES,
    Lineage,
    digest,
    find_arguments,
    trace_lineage,
    walk_up,
)

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import LogicalType

VOID = "VoidNamespace"
SLICE = "Long"
WINDOW = "TableTimeWindow"

UID_FORMAT = "<id>_<transformation>"
"""Default of `table.exec.uid.format`, which a node of a plan may set."""

_NO_TTL = ("0 ms", "0 s")


@dataclass(frozen=True)
class PlannedRow:
    """A row that a state holds: its key, its value, or a row inside of them."""

    columns: tuple[PlannedColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(each.name for each in self.columns)

    def describe(self) -> str:
        """Return the serializer of the row as text, without names."""
        return f"RowData({', '.join(describe_type(each.type) for each in self.columns)})"


@dataclass(frozen=True)
class PlannedState:
    """A keyed state that an operator of a plan has in the job.

    Attributes:
        name: name of the state, as in the snapshot.
        kind: VALUE, LIST or MAP.
        namespace: serializer of the namespace as text.
        template: serializer of the value as text, with `{0}`, `{1}` … in place of the rows.
        rows: the rows inside the value, in order.
        ttl: time to live as the plan says it; None without.
        meaning: description of the values in a view of an accumulator; empty for other states.
        calls: texts of the calls that a view of distinct values serves; the position of a call is its bit in the values
            of the view, or its index among the counts if rows are retracted.
    """

    name: str
    kind: StateKind
    namespace: str
    template: str
    rows: tuple[PlannedRow, ...] = ()
    ttl: str | None = None
    meaning: str = ""
    calls: tuple[str, ...] = ()
    plain_template: str = ""

    def describe(self) -> str:
        """Return the serializer of the value as text, without names of columns."""
        return self.template.format(*(each.describe() for each in self.rows))


@dataclass(frozen=True)
class PlannedOperator:
    """An operator that a node of a plan has in the job, with its states.

    Attributes:
        uid: the uid in the job.
        node: id of its node.
        kind: kind of the node.
        description: description of the node, as EXPLAIN shows it.
        meaning: content of the rows of the node, as an expression over tables.
        columns: each column that the node emits, as text.
        key: columns of the key of its keyed state; None where it is not known.
        states: its keyed states, without timers.
        transformation: name of the operator in its node, the last word of its uid by default.
    """

    uid: str
    node: int
    kind: str
    description: str
    meaning: str
    columns: tuple[str, ...]
    key: PlannedRow | None
    states: tuple[PlannedState, ...]
    transformation: str = ""

    def find_state(self, name: str) -> PlannedState | None:
        """Return the state of a name; None if the operator has no known state of this name."""
        return next((each for each in self.states if each.name == name), None)


def list_operators(plan: Plan) -> tuple[PlannedOperator, ...]:
    """List the operators that the nodes of a plan may have, each with its states.

    A node may have fewer operators in the job: a sink without constraints, for example, has no operator that checks
    them.

    Raises:
        FormatError: a node lacks inputs or fields of its kind.
    """
    lineage = trace_lineage(plan)
    return tuple(operator for node in plan.nodes for operator in _list_of_node(plan, node, lineage))


def _list_of_node(plan: Plan, node: PlanNode, lineage: Mapping[int, Lineage]) -> Iterator[PlannedOperator]:
    template = node.mapping("configuration").get("table.exec.uid.format", UID_FORMAT)
    own = lineage[node.id]
    for name in _TRANSFORMATIONS.get(node.kind, (node.kind,)):
        uid = (
            str(template)
            .replace("<id>", str(node.id))
            .replace("<type>", str(node.content.get("type")))
            .replace("<version>", str(node.version))
            .replace("<transformation>", name)
        )
        key: PlannedRow | None = None
        states: tuple[PlannedState, ...] = ()
        derive = _STATES.get((node.kind, name))
        if derive is not None:
            with reading_fields(node):
                key, states = derive(_NodeView(plan, node, lineage))
        yield PlannedOperator(
            uid=uid,
            node=node.id,
            kind=node.kind,
            description=node.description,
            meaning=own.rows,
            columns=own.columns,
            key=key,
            states=tuple(map(_apply_ttl, states)),
            transformation=name,
        )


@dataclass(frozen=True)
class _NodeView:
    """A node with its plan and the lineage of all nodes, from which its states are derived."""

    plan: Plan
    node: PlanNode
    lineage: Mapping[int, Lineage]

    @cached_property
    def inputs(self) -> tuple[PlannedRow, ...]:
        """Rows of the inputs of the node."""
        return tuple(PlannedRow(_name_columns(each, self.lineage[each.id])) for each in self.plan.inputs_of(self.node))

    @property
    def input(self) -> PlannedRow:
        """Rows of the only input of the node."""
        return self.inputs[0] if self.inputs else PlannedRow(())

    def ttl(self, index: int = 0) -> str | None:
        found = self.node.find_ttl(index)
        return None if found is None or found in _NO_TTL else found


_Derived = tuple["PlannedRow | None", tuple[PlannedState, ...]]


def _name_columns(node: PlanNode, lineage: Lineage) -> tuple[PlannedColumn, ...]:
    types = () if node.row is None else node.row.children
    columns = zip(node.columns, types, lineage.columns, strict=False)
    return tuple(PlannedColumn(name, of, text) for name, of, text in columns)


def _select(row: PlannedRow, indices: Sequence[object]) -> PlannedRow:
    columns = row.columns
    return PlannedRow(
        tuple(
            columns[each] if isinstance(each, int) and 0 <= each < len(columns) else _missing(each) for each in indices
        )
    )


def _missing(index: object) -> PlannedColumn:
    return PlannedColumn(f"?{index}", UNRESOLVED, "")


def _apply_ttl(state: PlannedState) -> PlannedState:
    """Wrap the value of a state with time to live; in a list or map, wrap each element or map value instead."""
    if state.ttl is None:
        return replace(state, plain_template=state.template)
    template = state.template
    match state.kind:
        case StateKind.VALUE:
            template = f"Ttl<{template}>"
        case StateKind.LIST:
            template = f"List<Ttl<{template.removeprefix('List<')[:-1]}>>"
        case StateKind.MAP:
            key, _, value = template.removeprefix("Map<")[:-1].partition(", ")
            template = f"Map<{key}, Ttl<{value}>>"
    return replace(state, template=template, plain_template=state.template)


def _value(name: str, row: PlannedRow, namespace: str = VOID, ttl: str | None = None) -> PlannedState:
    return PlannedState(name, StateKind.VALUE, namespace, "{0}", (row,), ttl)


def _scalar(name: str, of: str = "Long") -> PlannedState:
    return PlannedState(name, StateKind.VALUE, VOID, of)


# States of aggregates.


def _derive_accumulator(view: _NodeView) -> Accumulator | None:
    """Derive the accumulator of an aggregate; a second phase takes unresolved types from the rows of the first one."""
    node = view.node
    base = find_arguments(view.plan, node, view.lineage)
    if base is None:
        return None
    incremental = node.kind == INCREMENTAL
    calls = node.mappings("partialOriginalAggCalls" if incremental else "aggCalls")
    retracts = bool(node.content.get("partialAggNeedRetraction" if incremental else "needRetraction", False))
    given = node.content.get("partialAggCallNeedRetractions" if incremental else "aggCallNeedRetractions")
    retractions = [bool(each) for each in given] if isinstance(given, list) else [retracts] * len(calls)
    retractions = (retractions + [retracts] * len(calls))[: len(calls)]
    counted = node.content.get("indexOfCountStar", -1)
    has_count = isinstance(counted, int) and counted >= 0
    found = derive_accumulator(
        calls,
        base,
        _argument_types(view, base),
        retractions,
        count_rows=(retracts and not has_count) or _counts_windows(node),
    )
    emitted = _find_emitted(view)
    if emitted is None or incremental:
        return found
    if len(emitted) != len(found.columns):
        calls_text = digest([each.meaning for each in found.columns])
        return replace(found, columns=tuple(replace(each, meaning=f"{each.name} of {calls_text}") for each in emitted))
    columns = (
        replace(column, type=of.type) if column.type == UNRESOLVED else column
        for column, of in zip(found.columns, emitted, strict=True)
    )
    return replace(found, columns=tuple(columns))


def _argument_types(view: _NodeView, base: Lineage) -> tuple[LogicalType, ...]:
    """Return the types of the columns to which the arguments of the calls refer."""
    node = view.node
    types: tuple[LogicalType, ...] = ()
    if node.kind in SECOND_PHASES:
        for each in walk_up(view.plan, node):
            if each.kind in FIRST_PHASES:
                source = view.plan.by_id[each.inputs[0]] if each.inputs else None
                types = () if source is None or source.row is None else source.row.children
                break
            if each.kind not in PASSED:
                break
    elif node.inputs:
        types = tuple(each.type for each in view.input.columns)
    return types if len(types) == len(base.columns) else (UNRESOLVED,) * len(base.columns)


def _find_emitted(view: _NodeView) -> tuple[PlannedColumn, ...] | None:
    """Return the buffers that the first phase of an aggregate emits; None for an aggregate of one phase."""
    if view.node.kind not in SECOND_PHASES:
        return None
    for each in walk_up(view.plan, view.node):
        if each.kind in (*FIRST_PHASES, INCREMENTAL) and each.row is not None:
            keys = len(each.indices("finalAggGrouping" if each.kind == INCREMENTAL else "grouping"))
            pairs = list(zip(each.row.names, each.row.children, strict=True))[keys:]
            skipped = ("distinct$", "$slice_end", "$window_end")
            return tuple(PlannedColumn(name, of, name) for name, of in pairs if not name.startswith(skipped))
    return None


def _counts_windows(node: PlanNode) -> bool:
    """Return whether a window aggregate counts rows to detect empty windows, as hopping windows do (`WindowUtil`)."""
    window = node.mapping("windowing").get("window")
    return isinstance(window, Mapping) and window.get("type") == "HoppingWindow"


def _views(found: Accumulator, namespace: str, ttl: str | None, *, retracts: bool) -> Iterator[PlannedState]:
    for index, of, text in found.extremes:
        if internal := _internal_name(of):
            kept = f"Map<External<{internal}>, External<Long>>"
            yield PlannedState(f"agg{index}$map", StateKind.MAP, namespace, kept, (), ttl, f"values of {text}")
    for number, each in enumerate(found.views):
        value = "External<Long>" if len(each.calls) <= (1 if retracts else MOST_FILTERS) else None
        key = _internal_name(each.arguments[0]) if len(each.arguments) == 1 else None
        if key is None:
            key = "{0}"
        rows: tuple[PlannedRow, ...] = ()
        if key == "{0}":
            columns = tuple(PlannedColumn(f"f{n}", of, "") for n, of in enumerate(each.arguments))
            rows = (PlannedRow(columns),)
        counts = value or "External<?>"
        name = f"distinctAcc_{number}"
        kept = f"Map<External<{key}>, {counts}>"
        text, calls = each.column.meaning, each.calls
        yield PlannedState(name, StateKind.MAP, namespace, kept, rows, ttl, text, calls)
        null = f"NULL among {text}"
        yield PlannedState(f"{name}_null_state", StateKind.VALUE, namespace, counts, (), ttl, null, calls)


def _internal_name(of: LogicalType) -> str | None:
    """Return the serializer of a SQL type as text (`InternalSerializers`); None for types that are not listed here."""
    match of.root:
        case "DECIMAL":
            return f"DecimalData({of.length}, {of.scale})"
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            return f"TimestampData({of.length})"
    return _INTERNAL_NAMES.get(of.root)


_INTERNAL_NAMES: Mapping[str, str] = {
    "BIGINT": "Long",
    "BOOLEAN": "Boolean",
    "CHAR": "StringData",
    "DATE": "Int",
    "DOUBLE": "Double",
    "FLOAT": "Float",
    "INTEGER": "Int",
    "INTERVAL_DAY_TIME": "Long",
    "INTERVAL_YEAR_MONTH": "Int",
    "SMALLINT": "Short",
    "TIME_WITHOUT_TIME_ZONE": "Int",
    "TINYINT": "Byte",
    "VARCHAR": "StringData",
}


def _group_aggregate(view: _NodeView) -> _Derived:
    key = _select(view.input, view.node.indices("grouping"))
    found = _derive_accumulator(view)
    if found is None:
        return key, ()
    retracts = bool(view.node.content.get("needRetraction"))
    accumulator = _value("accState", PlannedRow(make_unique(found.row)), VOID, view.ttl())
    return key, (accumulator, *_views(found, VOID, view.ttl(), retracts=retracts))


def _incremental_aggregate(view: _NodeView) -> _Derived:
    """Return the key and the views of an incremental aggregate; its buffers are emitted, not kept."""
    key = _select(view.input, view.node.indices("partialAggGrouping"))
    found = _derive_accumulator(view)
    if found is None:
        return key, ()
    retracts = bool(view.node.content.get("partialAggNeedRetraction"))
    return key, tuple(_views(found, VOID, view.ttl(), retracts=retracts))


def _window_aggregate(view: _NodeView) -> _Derived:
    node = view.node
    key = _select(view.input, node.indices("grouping"))
    found = _derive_accumulator(view)
    window = node.mapping("windowing").get("window")
    is_session = isinstance(window, Mapping) and window.get("type") == "SessionWindow"
    namespace = WINDOW if is_session else SLICE
    mapping = (_SESSIONS,) if is_session else ()
    if found is None:
        return key, mapping
    retracts = bool(node.content.get("needRetraction"))
    states = (
        _value("window-aggs", PlannedRow(make_unique(found.row)), namespace),
        *_views(found, namespace, None, retracts=retracts),
    )
    return key, (*states, *mapping)


_SESSIONS = PlannedState("session-window-mapping", StateKind.MAP, VOID, f"Map<{WINDOW}, {WINDOW}>")


def _group_window_aggregate(view: _NodeView) -> _Derived:
    node = view.node
    key = _select(view.input, node.indices("grouping"))
    window = node.mapping("window")
    mapping = (_SESSIONS,) if window.get("kind") == "SESSION" else ()
    found = _derive_accumulator(view)
    if found is None:
        return key, mapping
    namespace = "CountWindow" if window.get("isTimeWindow") is False else WINDOW
    retracts = bool(node.content.get("needRetraction"))
    states = (
        _value("window-aggs", PlannedRow(make_unique(found.row)), namespace),
        *_views(found, namespace, None, retracts=retracts),
    )
    return key, (*states, *mapping)


def _over_aggregate(view: _NodeView) -> _Derived:
    spec = view.node.mapping("overSpec")
    key = _select(view.input, _fields(spec.get("partition")))
    groups = list_mappings(spec.get("groups"))
    if not groups or not view.node.inputs:
        return key, ()
    source = view.lineage[view.node.inputs[0]]
    constants = list_mappings(spec.get("constants"))
    base = Lineage((*source.columns, *("constant" for _ in constants)), source.rows)
    types = (*(each.type for each in view.input.columns), *(UNRESOLVED for _ in constants))
    calls = list_mappings(groups[0].get("aggCalls"))
    lower = groups[0].get("lowerBound")
    bounded = isinstance(lower, Mapping) and lower.get("kind") == "BOUNDED_WINDOW"
    found = derive_accumulator(calls, base, types, [bounded] * len(calls), count_rows=bounded)
    accumulator = _value("accState", PlannedRow(make_unique(found.row)))
    kept = PlannedState("inputState", StateKind.MAP, VOID, "Map<Long, List<{0}>>", (view.input,))
    views = tuple(_views(found, VOID, None, retracts=bounded))
    sorts = list_mappings(groups[0].get("orderBy", {}).get("fields"))
    by_processing_time = not sorts or _find_time(view, sorts[0].get("index")) == "PROCTIME"
    if not bounded:
        return key, (accumulator, *(() if by_processing_time else (kept,)), *views)
    in_rows = groups[0].get("isRows")
    if by_processing_time:
        times = ["processedCountState", "smallestTSState"] if in_rows else ["cleanupTsState"]
    else:
        times = ["lastTriggeringTsState", "processedCountState" if in_rows else "cleanupTsState"]
    return key, (accumulator, kept, *map(_scalar, times), *views)


def _find_time(view: _NodeView, index: object, side: int = 0) -> str | None:
    """Return ROWTIME or PROCTIME for a time attribute of an input; None for other columns."""
    output = view.plan.by_id[view.node.inputs[side]].content.get("outputType")
    fields = list_mappings(output.get("fields")) if isinstance(output, Mapping) else ()
    if not isinstance(index, int) or not 0 <= index < len(fields):
        return None
    of = fields[index].get("fieldType")
    return str(of.get("kind")) if isinstance(of, Mapping) and "kind" in of else None


# States of joins.


def _join(view: _NodeView) -> _Derived:
    spec = view.node.mapping("joinSpec")
    kind = spec.get("joinType")
    if len(view.inputs) != len(_SIDES):
        return None, ()
    states = []
    counted = {"left": kind in ("LEFT", "FULL", "SEMI", "ANTI"), "right": kind in ("RIGHT", "FULL")}
    for index, (side, row) in enumerate(zip(_SIDES, view.inputs, strict=True)):
        keys = _fields_of(spec, f"{side}Keys")
        unique = [tuple(each) for each in view.node.content.get(f"{side}UpsertKeys") or () if isinstance(each, list)]
        ttl = view.ttl(index)
        name = f"{side}-records"
        value = "Tuple2<{row}, Int>" if counted[side] else "{row}"
        if not unique:
            template = "Map<{0}, Tuple2<Int, Int>>" if counted[side] else "Map<{0}, Int>"
            states.append(PlannedState(name, StateKind.MAP, VOID, template, (row,), ttl))
        elif any(set(each) <= set(keys) for each in unique):
            template = value.replace("{row}", "{0}")
            states.append(PlannedState(name, StateKind.VALUE, VOID, template, (row,), ttl))
        else:
            shortest = min(unique, key=len)
            template = "Map<{0}, " + value.replace("{row}", "{1}") + ">"
            rows = (_select(row, shortest), row)
            states.append(PlannedState(name, StateKind.MAP, VOID, template, rows, ttl))
    return _select(view.inputs[0], _fields_of(spec, "leftKeys")), tuple(states)


_SIDES = ("left", "right")


def _fields_of(spec: Mapping[str, Any], name: str) -> list[int]:
    return [each for each in spec.get(name) or () if isinstance(each, int)]


def _fields(spec: object) -> list[int]:
    return _fields_of(spec, "fields") if isinstance(spec, Mapping) else []


def _interval_join(view: _NodeView) -> _Derived:
    spec = view.node.mapping("intervalJoinSpec").get("joinSpec")
    if len(view.inputs) != len(_SIDES) or not isinstance(spec, Mapping):
        return None, ()
    caches = tuple(
        PlannedState(f"IntervalJoin{side}Cache", StateKind.MAP, VOID, "Map<Long, List<Tuple2<{0}, Boolean>>>", (row,))
        for side, row in zip(("Left", "Right"), view.inputs, strict=True)
    )
    timers = map(_scalar, ("IntervalJoinLeftTimerState", "IntervalJoinRightTimerState"))
    return _select(view.inputs[0], _fields_of(spec, "leftKeys")), (*caches, *timers)


def _temporal_join(view: _NodeView) -> _Derived:
    if len(view.inputs) != len(_SIDES):
        return None, ()
    left, right = view.inputs
    key = _select(left, _fields_of(view.node.mapping("joinSpec"), "leftKeys"))
    if _find_time(view, view.node.content.get("leftTimeAttributeIndex")) != "ROWTIME":
        return key, (_value("right", right),)
    states = (
        PlannedState("left", StateKind.MAP, VOID, "Map<Long, {0}>", (left,)),
        PlannedState("right", StateKind.MAP, VOID, "Map<Long, {0}>", (right,)),
    )
    return key, (*states, *map(_scalar, ("next-index", "timer")))


def _window_join(view: _NodeView) -> _Derived:
    if len(view.inputs) != len(_SIDES):
        return None, ()
    states = tuple(
        PlannedState(f"{side}-records", StateKind.LIST, SLICE, "List<{0}>", (row,))
        for side, row in zip(_SIDES, view.inputs, strict=True)
    )
    return _select(view.inputs[0], _fields_of(view.node.mapping("joinSpec"), "leftKeys")), states


# States of nodes that keep rows of their input unchanged.


def _deduplicate(view: _NodeView) -> _Derived:
    node = view.node
    key = _select(view.input, node.indices("uniqueKeys"))
    if not node.content.get("isRowtime") and not node.content.get("keepLastRow"):
        state = PlannedState("deduplicate-state", StateKind.VALUE, VOID, "Boolean", (), view.ttl())
        return key, (state,)
    return key, (_value("deduplicate-state", view.input, VOID, view.ttl()),)


def _normalize(view: _NodeView) -> _Derived:
    key = _select(view.input, view.node.indices("uniqueKeys"))
    return key, (_value("deduplicate-state", view.input, VOID, view.ttl()),)


def _rank(view: _NodeView) -> _Derived:
    node, row, ttl = view.node, view.input, view.ttl()
    key = _select(row, _fields(node.content.get("partition")))
    order = node.mapping("orderBy")
    sorted_by = _select(row, [each.get("index") for each in list_mappings(order.get("fields"))])
    strategy = node.mapping("rankStrategy")
    limits = node.mapping("rankRange")
    is_first = limits.get("type") == "Constant" and limits.get("end") == 1
    if is_first and strategy.get("type") != "Retract" and not _sorts_by_arrival(view, order):
        return key, (_value("Top1-Rank-State", row, VOID, ttl),)
    match strategy.get("type"):
        case "AppendFast" if _sorts_by_arrival(view, order):
            # The first rows to arrive stay the first ones, so Flink keeps only the number of emitted rows.
            return key, (PlannedState("counterState", StateKind.VALUE, VOID, "Int", (), ttl),)
        case "AppendFast":
            template = "Map<{0}, List<{1}>>"
            state = PlannedState("data-state-with-append", StateKind.MAP, VOID, template, (sorted_by, row), ttl)
        case "UpdateFast":
            unique = _select(row, _fields_of(strategy, "primaryKeys"))
            template = "Map<{0}, Tuple2<{1}, Int>>"
            state = PlannedState("data-state-with-update", StateKind.MAP, VOID, template, (unique, row), ttl)
        case "Retract":
            tree = PlannedState("sorted-map", StateKind.VALUE, VOID, "SortedMap<{0}, Long>", (sorted_by,), ttl)
            template = "Map<{0}, List<{1}>>"
            state = PlannedState("data-state", StateKind.MAP, VOID, template, (sorted_by, row), ttl)
            return key, (state, tree)
        case _:
            return key, ()
    return key, (state,)


def _sorts_by_arrival(view: _NodeView, order: Mapping[str, Any]) -> bool:
    """Return whether an order is by processing time, ascending."""
    fields = list_mappings(order.get("fields"))
    if len(fields) != 1 or not fields[0].get("isAscending"):
        return False
    return _find_time(view, fields[0].get("index")) == "PROCTIME"


def _window_deduplicate(view: _NodeView) -> _Derived:
    key = _select(view.input, view.node.indices("partitionKeys"))
    return key, (_value("window_deduplicate", view.input, SLICE),)


def _window_rank(view: _NodeView) -> _Derived:
    node = view.node
    key = _select(view.input, _fields(node.content.get("partitionSpec")))
    fields = list_mappings(node.mapping("sortSpec").get("fields"))
    sorted_by = _select(view.input, [each.get("index") for each in fields])
    template = "Map<{0}, List<{1}>>"
    return key, (PlannedState("window_rank", StateKind.MAP, SLICE, template, (sorted_by, view.input)),)


def _match(view: _NodeView) -> _Derived:
    key = _select(view.input, _fields(view.node.mapping("matchSpec").get("partition")))
    events = "Map<EventId, Lockable<{0}>>"
    node = "Lockable<SharedBufferNode<SharedBufferEdge<NodeId<EventId>, DeweyNumber>>>"
    return key, (
        PlannedState("nfaStateName", StateKind.VALUE, VOID, "NFAState<DeweyNumber, NodeId<EventId>, EventId>"),
        PlannedState("sharedBuffer-events", StateKind.MAP, VOID, events, (view.input,)),
        PlannedState("sharedBuffer-events-count", StateKind.MAP, VOID, "Map<Long, Int>"),
        PlannedState("sharedBuffer-entries-with-lockable-edges", StateKind.MAP, VOID, f"Map<NodeId<EventId>, {node}>"),
        PlannedState("eventQueuesStateName", StateKind.MAP, VOID, "Map<Long, List<{0}>>", (view.input,)),
    )


def _window_function(view: _NodeView) -> _Derived:
    """Return key and states of a session window table function; windows of other kinds have none."""
    windowing = view.node.mapping("windowing")
    window = windowing.get("window")
    if not isinstance(window, Mapping) or window.get("type") != "SessionWindow":
        return None, ()
    rows = PlannedState("session-window-tvf-acc", StateKind.MAP, WINDOW, "Map<Long, {0}>", (view.input,))
    key = _select(view.input, _fields_of(window, "partitionKeys"))
    return key, (_scalar("session-window-tvf-counter"), rows, _SESSIONS)


def _materialize(view: _NodeView) -> _Derived:
    """Return key and states of `SinkUpsertMaterializer`, or of the operators for ON CONFLICT (Flink 2.3)."""
    table = view.node.mapping("dynamicTableSink").get("table")
    resolved = table.get("resolvedTable") if isinstance(table, Mapping) else None
    schema = resolved.get("schema") if isinstance(resolved, Mapping) else None
    primary = schema.get("primaryKey") if isinstance(schema, Mapping) else None
    needed = view.node.content.get("requireUpsertMaterialize")
    if not needed or not isinstance(primary, Mapping) or not isinstance(schema, Mapping):
        return None, ()
    columns = [each for each in list_mappings(schema.get("columns")) if each.get("kind", "PHYSICAL") == "PHYSICAL"]
    row, ttl = view.input, view.ttl()
    if len(columns) == len(row.columns):
        # The state has the types of the sink's table, such as NOT NULL for the key.
        row = PlannedRow(
            tuple(
                PlannedColumn(str(column.get("name")), read_type(column.get("dataType")), each.meaning)
                for column, each in zip(columns, row.columns, strict=True)
            )
        )
    names = [each.get("name") for each in columns]
    key = _select(row, [names.index(each) for each in primary.get("columns") or () if each in names])
    if view.node.mapping("conflictStrategy").get("behavior") not in (None, "DEDUPLICATE"):
        kept = PlannedState("watermark-buffer", StateKind.MAP, VOID, "Map<SortedLong, List<{0}>>", (row,))
        return key, (kept, _value("current-value", row), _scalar("consolidated-checkpoint-id"))
    return key, (PlannedState("values", StateKind.VALUE, VOID, "List<{0}>", (row,), ttl),)


_STATES: Mapping[tuple[str, str], Callable[[_NodeView], _Derived]] = {
    ("changelog-normalize", "changelog-normalize"): _normalize,
    ("deduplicate", "deduplicate"): _deduplicate,
    ("global-group-aggregate", "global-group-aggregate"): _group_aggregate,
    ("global-window-aggregate", "global-window-aggregate"): _window_aggregate,
    ("group-aggregate", "group-aggregate"): _group_aggregate,
    ("group-window-aggregate", "group-window-aggregate"): _group_window_aggregate,
    (INCREMENTAL, INCREMENTAL): _incremental_aggregate,
    ("interval-join", "interval-join"): _interval_join,
    ("join", "join"): _join,
    ("limit", "rank"): _rank,
    ("match", "match"): _match,
    ("over-aggregate", "over-aggregate"): _over_aggregate,
    ("rank", "rank"): _rank,
    ("sink", "upsert-materialize"): _materialize,
    ("sort-limit", "rank"): _rank,
    ("temporal-join", "temporal-join"): _temporal_join,
    ("window-aggregate", "window-aggregate"): _window_aggregate,
    ("window-deduplicate", "window-deduplicate"): _window_deduplicate,
    ("window-join", "window-join"): _window_join,
    ("window-rank", "window-rank"): _window_rank,
    ("window-table-function", "window"): _window_function,
}
"""Derivations by kind of node and name of the transformation."""

_TRANSFORMATIONS: Mapping[str, tuple[str, ...]] = {
    "exchange": (),
    "interval-join": ("interval-join", "filter-left", "filter-right", "pad-left", "pad-right"),
    "limit": ("rank",),
    "lookup-join": (
        "lookup-join",
        "lookup-join-materialize",
        "lookup-join-key-ordered",
        "partitioner",
        "custom-shuffle",
    ),
    "match": ("match", "timestamp-inserter"),
    "process-table-function": ("process",),
    "sink": (
        "sink",
        "constraint-validator",
        "partitioner",
        "upsert-materialize",
        "timestamp-inserter",
        "watermark-timestamp-assigner",
    ),
    "sort-limit": ("rank",),
    # A connector may add operators under names of its choice (`ProviderContext.generateUid`), such as `kafka`.
    "table-source-scan": ("source", "external-datastream", "kafka"),
    "union": (),
    "window-table-function": ("window",),
}
"""Names of the transformations of a node, by kind of node, where they are not the kind itself (constants
`…_TRANSFORMATION`)."""
