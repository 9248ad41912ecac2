"""The plan of a migration as a data flow: one per new state, with no engine in it.

A flow starts at states of the snapshot (`Read`); every `Apply` does one thing to the rows; `StateMerge` joins states by
key. Each node knows the shape of its output. SQL sees the fields of the payload, `value` (the whole payload),
`state_key`, `state_namespace`, `map_key`, `list_index` and `ttl_last_access`; a field hides what has its name.

The plan of an operator has its flows and the way back: the old states that a proof compares with downgraded new ones.
The lineage of a new column is the old columns that it is computed from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.serializer_layouts import keep_all_opaque
from state_pipelines.operations.migration.payload_conversion import list_columns
from state_pipelines.operations.migration.structs import PlanContext
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.connectors.registry import ConnectorStateKind
    from state_pipelines.operations.migration.migration_files import RowExpectation
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.structs import Columns
    from state_pipelines.serializers import tree


class EqualKeys(StrEnum):
    """Rule for values that get the same key; any other text is a SQL aggregate."""

    ERROR = "error"
    FIRST = "first"
    """The value of the smallest old key."""
    LAST = "last"


@dataclass(frozen=True)
class Project:
    """Other fields, given by SQL over the present ones; null stays null."""

    columns: Columns
    nondeterministic: bool = False


@dataclass(frozen=True)
class Replace:
    """Another payload. `over_null`: the SQL says what happens to null, else null stays null."""

    sql: str
    over_null: bool = False
    nondeterministic: bool = False


@dataclass(frozen=True)
class Reserialize:
    """Another payload as Flink makes it: the restored serializer reads the values, the new one writes them."""


@dataclass(frozen=True)
class Keep:
    """Only the rows for which the SQL is true."""

    sql: str
    reason: str
    nondeterministic: bool = False


@dataclass(frozen=True)
class KeepKeys:
    """Only the rows of keys for which SQL over another state is true for one of its rows.

    Attributes:
        by: the flow of the other state, as it is before the step.
        sql: over its rows.
        reason: why the others go.
        keeps_missing: whether keys without a row in `by` stay.
    """

    by: Flow
    sql: str
    reason: str
    keeps_missing: bool = True
    nondeterministic: bool = False


@dataclass(frozen=True)
class SetAccessTime:
    """The step that sets `ttl_last_access` to the value of an SQL expression; None removes the times of a state."""

    sql: str | None


@dataclass(frozen=True)
class Regroup:
    """Another kind of state, see `steps.Kind`; the kinds are those of the shapes before and after.

    `rule` says what happens to values of a map that get the same user key.
    """

    sql: str | None
    key_sql: str | None = None
    nondeterministic: bool = False
    rule: EqualKeys | str = EqualKeys.ERROR


class SessionRole(StrEnum):
    """Relation of a state to the sessions of its operator (`MergingWindowSet`)."""

    SET = "set"
    """The sessions themselves, each with the window that its contents are stored under."""
    STORED = "stored"
    """State whose namespaces are the windows that contents are stored under."""
    SESSION = "session"
    """State whose namespaces are sessions: timers, and state of triggers."""


@dataclass(frozen=True)
class Sessions:
    """The sessions of an operator, which another state of it follows.

    Attributes:
        windows: flow of the sessions, under the same keys as the rows of the stage.
        role: relation of the state to them.
    """

    windows: Flow
    role: SessionRole


@dataclass(frozen=True)
class Rekey:
    """Another key; `rule` says what happens to payloads that get the same.

    Sessions that get the same key and meet become one session; the rows of states with `sessions` follow.
    """

    sql: str
    rule: EqualKeys | str = EqualKeys.ERROR
    nondeterministic: bool = False
    sessions: Sessions | None = None


@dataclass(frozen=True)
class Follow:
    """Only the rows of sessions whose contents were not all left out.

    Attributes:
        before: contents of the sessions before a filter.
        after: the contents that it leaves.
        reason: of the filter.
    """

    sessions: Sessions
    before: Flow
    after: Flow
    reason: str


@dataclass(frozen=True)
class Call:
    """A function of the user over record batches."""

    function: str | Callable[..., Any]
    nondeterministic: bool = True


@dataclass(frozen=True)
class SetSplit:
    """Another value in a column of the connector that wrote a list state.

    Attributes:
        connector: its name.
        kind: kind of the state.
        column: of the splits of an element.
        sql: over `split`, and over the payload and what is around it.
    """

    connector: str
    kind: ConnectorStateKind
    column: str
    sql: str
    nondeterministic: bool = False


@dataclass(frozen=True)
class TableFill:
    """A field of the payload gets the values of a table, see `steps.Fill`."""

    field: str
    table: str
    keys: tuple[tuple[str, str], ...]
    value: str


Stage = (
    TableFill
    | Project
    | Replace
    | Reserialize
    | Keep
    | KeepKeys
    | SetAccessTime
    | Regroup
    | Rekey
    | Follow
    | Call
    | SetSplit
)


@dataclass(frozen=True)
class Read:
    """A state of the snapshot. Its shape may differ in names only, so that the bytes are the same.

    Attributes:
        state: its name in the snapshot.
    """

    state: str
    shape: StateShape


@dataclass(frozen=True)
class Apply:
    """A stage over the rows of a flow.

    Attributes:
        step: the step of the migration that it comes from, such as `upgrade 2`, for errors.
    """

    input: Flow
    stage: Stage
    shape: StateShape
    step: str = field(default="", compare=False)


@dataclass(frozen=True)
class StateMerge:
    """States joined by key and namespace (and user key); `sql` is over columns named like `inputs`.

    VALUE states may be joined to a MAP state, which is the first input then: each entry of the map gets the value of
    its key. `own_keys` leaves out keys that the first input does not have.
    """

    inputs: tuple[tuple[str, Flow], ...]
    sql: str
    shape: StateShape
    nondeterministic: bool = False
    step: str = field(default="", compare=False)
    own_keys: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether the rows are the entries of a map state, to which the values of other states are joined by key."""
        first, *others = (each.shape.kind for _, each in self.inputs)
        return first == StateKind.MAP and StateKind.MAP not in others


Flow = Read | Apply | StateMerge


def walk_flow(flow: Flow, *, beside: bool = False) -> Iterator[Flow]:
    """Yield the flow and its inputs, recursively, the flow first; with `beside` also flows that its stages look up."""
    yield flow
    match flow:
        case Apply(input=inner, stage=stage):
            for each in (inner, *(list_beside(stage) if beside else ())):
                yield from walk_flow(each, beside=beside)
        case StateMerge(inputs=inputs):
            for _, inner in inputs:
                yield from walk_flow(inner, beside=beside)


def list_beside(stage: Stage) -> tuple[Flow, ...]:
    """List the flows that a stage reads besides its input: sessions that rows follow, a state that filters by key."""
    match stage:
        case Rekey(sessions=Sessions(windows=windows)):
            return (windows,)
        case Follow(sessions=Sessions(windows=windows), before=before, after=after):
            return (windows, before, after)
        case KeepKeys(by=by):
            return (by,)
        case _:
            return ()


def name_step(flow: Flow, step: str) -> Flow:
    """Return the flow with `step` as the name of the step in all nodes that do not name one yet."""
    if isinstance(flow, Read) or flow.step:
        return flow
    if isinstance(flow, Apply):
        return replace(flow, input=name_step(flow.input, step), step=step)
    return replace(flow, inputs=tuple((name, name_step(each, step)) for name, each in flow.inputs), step=step)


def find_reads(flow: Flow) -> tuple[str, ...]:
    """The states of the snapshot that a flow reads."""
    return tuple(dict.fromkeys(each.state for each in walk_flow(flow) if isinstance(each, Read)))


def is_aligned(flow: Flow) -> bool:
    """Whether every row of the flow comes from one row of one state, under the same key."""
    aligned = (TableFill, Project, Replace, Reserialize, SetAccessTime, Keep, KeepKeys, SetSplit)
    nodes = walk_flow(flow)
    return all(
        isinstance(each, Read) or (isinstance(each, Apply) and isinstance(each.stage, aligned)) for each in nodes
    )


def find_filters(flow: Flow) -> tuple[Keep | KeepKeys | Follow, ...]:
    """The stages of a flow that leave rows out."""
    stages = (each.stage for each in walk_flow(flow) if isinstance(each, Apply))
    return tuple(each for each in stages if isinstance(each, Keep | KeepKeys | Follow))


def keeps_rows(flow: Flow) -> bool:
    """Whether the flow is aligned and no row is left out."""
    return is_aligned(flow) and not find_filters(flow)


def keeps_keys(flow: Flow) -> bool:
    """Whether the bytes of keys stay and are enough: no other key, no change from or to a map, no values beside one."""
    for each in walk_flow(flow):
        if isinstance(each, StateMerge) and each.is_beside:
            return False
        if isinstance(each, Apply):
            if isinstance(each.stage, Rekey):
                return False
            if isinstance(each.stage, Regroup) and StateKind.MAP in (each.shape.kind, each.input.shape.kind):
                return False
    return True


def is_nondeterministic(flow: Flow) -> bool:
    """Whether the author allows that the flow gives other rows each time."""
    stages = (each.stage if isinstance(each, Apply) else each for each in walk_flow(flow, beside=True))
    return any(getattr(each, "nondeterministic", False) for each in stages)


def names_column(flow: Flow, name: str) -> bool:
    """Whether any SQL of the flow names a column."""
    return any(re.search(rf"\b{name}\b", sql) for each in walk_flow(flow) for sql in list_sqls(each))


def list_sqls(flow: Flow) -> Iterator[str]:
    """The SQL of one node."""
    if isinstance(flow, StateMerge):
        yield flow.sql
    if not isinstance(flow, Apply):
        return
    match flow.stage:
        case TableFill(keys=keys):
            yield from (field if "." in field else f"state_key.{field}" for field, _ in keys)
        case Project(columns=columns):
            yield from (sql for _, sql in columns)
        case Regroup(sql=sql, key_sql=key_sql, rule=rule):
            yield from filter(None, (sql, key_sql))
            if rule not in tuple(EqualKeys):
                yield rule
        case Rekey(sql=sql, rule=rule):
            yield sql
            if rule not in tuple(EqualKeys):
                yield rule
        case Replace(sql=sql) | Keep(sql=sql) | KeepKeys(sql=sql) | SetSplit(sql=sql):
            yield sql
        case SetAccessTime(sql=str(sql)):
            yield sql


@dataclass(frozen=True)
class OperatorPlan:
    """Migration plan of the states of one operator.

    Attributes:
        shapes: before.
        states: by new name, in the order of the old ones.
        dropped: states that go, and why.
        key: serializer of the keys afterwards.
        losses: by state (its name then or now) the fields that do not come back, and why.
        expectations: by new name.
        back: the way back to the old states, over the new shapes; None when there is none at all.
        reason: why there is no way back, or none for all states.
        impossible: the states that have none (old names), and why.
        context: what the plan was made with.
        notes: for the user, before anything is written.
    """

    shapes: Mapping[str, StateShape]
    states: Mapping[str, Flow]
    dropped: Mapping[str, str]
    key: tree.Serializer | None
    losses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    expectations: Mapping[str, tuple[RowExpectation, ...]] = field(default_factory=dict)
    back: OperatorPlan | None = None
    reason: str = ""
    impossible: Mapping[str, str] = field(default_factory=dict)
    context: PlanContext = field(default_factory=PlanContext)
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, Flow]:
        """The states whose rows are rewritten; all others are copied as bytes."""
        return {name: flow for name, flow in self.states.items() if not isinstance(flow, Read)}

    @property
    def row_layouts(self) -> LayoutContext:
        """Context of the layouts of rows, in which opaque values are passed on as bytes."""
        return keep_all_opaque(self.context.layouts)

    @property
    def keyed(self) -> OperatorPlan:
        """The flows of keyed state and timers."""
        return _select(self, keyed=True)

    @property
    def unkeyed(self) -> OperatorPlan:
        """The flows of list and broadcast state."""
        return _select(self, keyed=False)

    @property
    def new_shapes(self) -> dict[str, StateShape]:
        """The shapes afterwards."""
        return {name: flow.shape for name, flow in self.states.items()}


def _select(plan: OperatorPlan, *, keyed: bool) -> OperatorPlan:
    names = {name for name, shape in plan.shapes.items() if shape.is_keyed == keyed}
    others = plan.shapes.keys() - names
    impossible = {name: reason for name, reason in plan.impossible.items() if name in names}
    back = None if plan.back is None or (impossible and names <= impossible.keys()) else _select(plan.back, keyed=keyed)
    return replace(
        plan,
        shapes={name: shape for name, shape in plan.shapes.items() if name in names},
        states={name: flow for name, flow in plan.states.items() if flow.shape.is_keyed == keyed},
        dropped={name: reason for name, reason in plan.dropped.items() if name not in others},
        back=back,
        reason=next(iter(impossible.values()), plan.reason if plan.back is None else ""),
        impossible=impossible,
    )


@dataclass(frozen=True)
class Return:
    """An old state that the way back makes again.

    Attributes:
        old: its name.
        shape: of its rows, as the way there reads them.
        way: the flow that makes it of new states.
        lost: dotted paths of its payload that do not come back, each with the reason.
        kept: only those old rows count that were not left out on the way there.
    """

    old: str
    shape: StateShape
    way: Flow
    lost: Mapping[str, str]
    kept: bool = False


@dataclass(frozen=True)
class RoundTrip:
    """Round trip of one new state.

    Attributes:
        returns: the old states that are judged together with it.
        note: why none is, for people.
    """

    returns: tuple[Return, ...] = ()
    note: str = ""


def plan_round_trips(plan: OperatorPlan) -> dict[str, RoundTrip]:
    """Find the round trip of each state that changes, by new name; no old state is judged twice."""
    judged: set[str] = set()
    trips = {}
    for name, flow in plan.changed.items():
        trips[name] = trip = _plan(plan, name, flow, judged)
        judged.update(each.old for each in trip.returns)
    return trips


def find_losses(plan: OperatorPlan, name: str, flow: Flow) -> dict[str, str]:
    """Declared losses between a state and its origins: dotted paths and reasons."""
    names = [name, *find_reads(flow)]
    return {field: reason for each in names for field, reason in plan.losses.get(each, {}).items()}


def describe_losses(plan: OperatorPlan) -> str:
    """All that is declared to be lost of the states that change, for people; empty where nothing is."""
    lost = dict(each for name, flow in plan.changed.items() for each in find_losses(plan, name, flow).items())
    return "; ".join(f"{field}: {reason}" for field, reason in lost.items())


def describe_filters(plan: OperatorPlan) -> str:
    """Why rows of the states that change are left out, for people; empty where none are."""
    return "; ".join(dict.fromkeys(each.reason for flow in plan.changed.values() for each in find_filters(flow)))


def _plan(plan: OperatorPlan, name: str, flow: Flow, judged: set[str]) -> RoundTrip:
    sources = find_reads(flow)
    ends = [plan.impossible[old] for old in sources if old in plan.impossible]
    if ends or plan.back is None:
        return RoundTrip(note=f"there is no way back: {'; '.join(dict.fromkeys(ends)) or plan.reason}")
    losses = find_losses(plan, name, flow)
    ways = {old: way for old, way in plan.back.states.items() if name in find_reads(way) and old in sources}
    kept = bool(find_filters(flow))
    if kept and flow.shape.kind == StateKind.TIMER:
        return RoundTrip(note="the timers that are left have no values")
    if kept:
        # Dropped rows do not come back; the remaining ones are known only where each has a single origin.
        way = plan.back.states.get(sources[0])
        alone = way is not None and len(sources) == 1 and find_reads(way) == (name,)
        if way is None or not alone or not (is_aligned(flow) and is_aligned(way) and keeps_rows(way)):
            return RoundTrip(note="not judged, since rows were left out before other rows were made from them")
    shapes = {each.state: each.shape for each in walk_flow(flow) if isinstance(each, Read)}
    found = [
        Return(old, shapes[old], way, find_losses(plan, old, way) | losses, kept)
        for old, way in ways.items()
        if old not in judged
    ]
    return RoundTrip(tuple(found), "" if found else "judged with another state that the same rows became")


Column = tuple[str, str]
"""A column of a table: name of its state, and its own; fields of the payload are named like `value.amount`."""

_Lineage = dict[str, frozenset[Column]]
_WHOLE = "value"
_KEY = "state_key"
_AROUND = (_KEY, "state_namespace", "map_key", "list_index", "ttl_last_access")


def trace_columns(flow: Flow, context: PlanContext) -> Mapping[str, frozenset[Column]]:
    """Return the old columns of each new column of a state's table.

    SQL is searched for names of fields; where a stage sees the whole payload, its result depends on all fields.

    Args:
        flow: of the new state.
        context: what the plan was made with.
    """
    payload = _trace(flow, context)
    column = flow.shape.column
    named = {f"{column}.{name}" if name else column: old for name, old in payload.items()}
    reads = find_reads(flow)
    if not flow.shape.is_keyed:
        return named
    key = frozenset((state, _KEY) for state in reads)
    for each in walk_flow(flow):
        if isinstance(each, Apply) and isinstance(each.stage, Rekey):
            key |= _find_named(each.stage.sql, _trace(each.input, context), each.input)
    return {_KEY: key, **named}


def _trace(flow: Flow, context: PlanContext) -> _Lineage:
    """Return the old columns by new field of the payload; the empty name stands for a payload without fields."""
    names = _list_fields(flow.shape, context)
    match flow:
        case Read(state=state, shape=shape):
            return {name: frozenset({(state, _name(shape, name))}) for name in names}
        case StateMerge(inputs=inputs):
            every = [old for _, each in inputs for old in _trace(each, context).values()]
            return dict.fromkeys(names, frozenset().union(*every))
        case Apply(input=inner, stage=Project(columns=columns)):
            before = _trace(inner, context)
            return {name: _find_named(sql, before, inner) for name, sql in columns}
        case Apply(
            input=inner,
            stage=Keep() | KeepKeys() | Follow() | SetAccessTime() | Rekey() | Reserialize() | Regroup(sql=None),
        ):
            before = _trace(inner, context)
            whole = frozenset().union(*before.values())
            return {name: before.get(name, whole) for name in names}
        case Apply(input=inner):
            return dict.fromkeys(names, frozenset().union(*_trace(inner, context).values()))


def _find_named(sql: str, before: Mapping[str, frozenset[Column]], flow: Flow) -> frozenset[Column]:
    """Return the old columns of the fields that SQL names; `value` is the whole payload unless it is a field."""
    words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", sql)))
    found = [old for name, old in before.items() if name in words]
    if _WHOLE in words and _WHOLE not in before:
        found += before.values()
    around = {(state, name) for name in _AROUND if name in words and name not in before for state in find_reads(flow)}
    return frozenset(around).union(*found)


def _list_fields(shape: StateShape, context: PlanContext) -> Iterable[str]:
    return list_columns(shape.payload, context) or ("",)


def _name(shape: StateShape, field: str) -> str:
    return f"{shape.column}.{field}" if field else shape.column
