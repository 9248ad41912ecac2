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
    """Rule for values that get the same key: raise an error, or keep one of them.

    A rule that is any other text is an SQL expression that aggregates these values.
    """

    ERROR = "error"
    FIRST = "first"
    """The value of the smallest old key."""
    LAST = "last"


@dataclass(frozen=True)
class Project:
    """Stage that computes all fields of a value, list element or map value by SQL; null stays null."""

    columns: Columns
    nondeterministic: bool = False


@dataclass(frozen=True)
class Replace:
    """Stage that computes the whole value, list element or map value by SQL.

    Null stays null, unless `over_null` is set: then the SQL is evaluated for null, too.
    """

    sql: str
    over_null: bool = False
    nondeterministic: bool = False


@dataclass(frozen=True)
class Reserialize:
    """Stage that migrates values as Flink does: the restored serializer reads them, the new one writes them."""


@dataclass(frozen=True)
class Keep:
    """Stage that keeps only the rows for which the SQL is true."""

    sql: str
    reason: str
    nondeterministic: bool = False


@dataclass(frozen=True)
class KeepKeys:
    """Stage that keeps only the rows of some keys: those for which another state has a row that meets a condition.

    Attributes:
        by: the flow of the other state, as it is before the step.
        sql: condition over the rows of `by`.
        reason: why the rows of other keys are left out.
        keeps_missing: whether the rows of keys without any row in `by` are kept.
    """

    by: Flow
    sql: str
    reason: str
    keeps_missing: bool = True
    nondeterministic: bool = False


@dataclass(frozen=True)
class SetAccessTime:
    """Stage that sets `ttl_last_access` to the value of an SQL expression; None removes the times of a state."""

    sql: str | None


@dataclass(frozen=True)
class Regroup:
    """Stage that makes state of one kind from state of another kind, such as LIST from VALUE (see `steps.Kind`).

    The shapes of the input flow and of the resulting flow give the kinds. `rule` says what happens to values of a map
    that get the same user key.
    """

    sql: str | None
    key_sql: str | None = None
    nondeterministic: bool = False
    rule: EqualKeys | str = EqualKeys.ERROR


class SessionRole(StrEnum):
    """Relation of a state to the sessions of its operator (`MergingWindowSet`)."""

    SET = "set"
    """The state that lists the sessions, each with the window under which its contents are stored."""
    STORED = "stored"
    """State with the contents of sessions; its namespaces are the windows under which they are stored."""
    SESSION = "session"
    """State whose namespaces are sessions: timers, and state of triggers."""


@dataclass(frozen=True)
class Sessions:
    """The sessions of an operator, for a stage whose rows belong to sessions and change with them.

    Attributes:
        windows: flow of the state that lists the sessions, under the same keys as the rows of the stage.
        role: relation of the stage's state to the sessions.
    """

    windows: Flow
    role: SessionRole


@dataclass(frozen=True)
class Rekey:
    """Stage that computes another key; `rule` says what happens to values that get the same key.

    Sessions that get the same key and overlap are merged into one. If `sessions` is set, a row that belongs to a merged
    session is moved to the session that results.
    """

    sql: str
    rule: EqualKeys | str = EqualKeys.ERROR
    nondeterministic: bool = False
    sessions: Sessions | None = None


@dataclass(frozen=True)
class Follow:
    """Stage that leaves out the rows of sessions that have lost all their contents to a filter on another state.

    Attributes:
        before: flow of the contents of the sessions before the filter.
        after: flow of the contents after the filter.
        reason: reason of the filter.
    """

    sessions: Sessions
    before: Flow
    after: Flow
    reason: str


@dataclass(frozen=True)
class Call:
    """Stage that calls a function of the user with record batches."""

    function: str | Callable[..., Any]
    nondeterministic: bool = True


@dataclass(frozen=True)
class SetSplit:
    """Stage that sets a column of a list state that a connector wrote, such as the offset of a Kafka split.

    Attributes:
        connector: name of the connector.
        kind: kind of the state.
        column: name of the column; an element has one value of it for each of its splits.
        sql: SQL of the new value, over `split`, the stored element and the other columns of its row.
    """

    connector: str
    kind: ConnectorStateKind
    column: str
    sql: str
    nondeterministic: bool = False


@dataclass(frozen=True)
class TableFill:
    """Stage that sets a field of a value, list element or map value to values of a table; see `steps.Fill`."""

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
    """Flow that reads a state of the snapshot.

    Its `shape` differs from the stored one at most in names, so that the bytes of the records are the same.

    Attributes:
        state: its name in the snapshot.
    """

    state: str
    shape: StateShape


@dataclass(frozen=True)
class Apply:
    """Flow that applies a stage to the rows of another flow.

    Attributes:
        step: the step of the migration that the stage comes from, such as `upgrade 2`, for errors.
    """

    input: Flow
    stage: Stage
    shape: StateShape
    step: str = field(default="", compare=False)


@dataclass(frozen=True)
class StateMerge:
    """Flow that joins states by key and namespace, and maps also by user key.

    `sql` computes the new value; each input is a column under its name in `inputs`. VALUE states may be joined to a
    MAP state, which is then the first input: each entry of the map gets the value of its key. `own_keys` leaves out
    keys that the first input does not have.
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
    """Yield a flow and its inputs, recursively, the flow itself first.

    With `beside`, also yield the flows that stages read besides their input (see `list_beside`).
    """
    yield flow
    match flow:
        case Apply(input=inner, stage=stage):
            for each in (inner, *(list_beside(stage) if beside else ())):
                yield from walk_flow(each, beside=beside)
        case StateMerge(inputs=inputs):
            for _, inner in inputs:
                yield from walk_flow(inner, beside=beside)


def list_beside(stage: Stage) -> tuple[Flow, ...]:
    """List the flows that a stage reads besides its input: sessions with their contents, or a state to filter by."""
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
    """Set `step` in the outer nodes of a flow, down to the first ones that already have a step."""
    if isinstance(flow, Read) or flow.step:
        return flow
    if isinstance(flow, Apply):
        return replace(flow, input=name_step(flow.input, step), step=step)
    return replace(flow, inputs=tuple((name, name_step(each, step)) for name, each in flow.inputs), step=step)


def find_reads(flow: Flow) -> tuple[str, ...]:
    """Return the names of the states of the snapshot that a flow reads."""
    return tuple(dict.fromkeys(each.state for each in walk_flow(flow) if isinstance(each, Read)))


def is_aligned(flow: Flow) -> bool:
    """Whether every row of the flow comes from one row of one state, under the same key."""
    aligned = (TableFill, Project, Replace, Reserialize, SetAccessTime, Keep, KeepKeys, SetSplit)
    nodes = walk_flow(flow)
    return all(
        isinstance(each, Read) or (isinstance(each, Apply) and isinstance(each.stage, aligned)) for each in nodes
    )


def find_filters(flow: Flow) -> tuple[Keep | KeepKeys | Follow, ...]:
    """Return the stages of a flow that leave rows out."""
    stages = (each.stage for each in walk_flow(flow) if isinstance(each, Apply))
    return tuple(each for each in stages if isinstance(each, Keep | KeepKeys | Follow))


def keeps_rows(flow: Flow) -> bool:
    """Whether the flow has exactly one row for each row of a single old state, under the same key."""
    return is_aligned(flow) and not find_filters(flow)


def keeps_keys(flow: Flow) -> bool:
    """Whether keys can be copied as bytes, because no step has to decode them.

    Steps decode keys if they set another key, turn state of another kind into a map or a map into another kind, or join
    values to a map.
    """
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
    """Whether a step of the flow is marked `nondeterministic`: it may give different rows when it runs again."""
    stages = (each.stage if isinstance(each, Apply) else each for each in walk_flow(flow, beside=True))
    return any(getattr(each, "nondeterministic", False) for each in stages)


def names_column(flow: Flow, name: str) -> bool:
    """Whether any SQL of the flow names a column."""
    return any(re.search(rf"\b{name}\b", sql) for each in walk_flow(flow) for sql in list_sqls(each))


def list_sqls(flow: Flow) -> Iterator[str]:
    """Yield the SQL expressions of one node, without those of its inputs."""
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
        shapes: shapes of the old states, by name.
        states: flows of the new states by new name, in the order of the old states.
        dropped: names of states that are dropped, each with the reason.
        key: serializer of the keys after the migration.
        losses: by old or new name of a state, the fields that a round trip does not restore, each with the reason.
        expectations: expectations on the rows of the new states, by new name.
        back: plan of the opposite migration, from the new shapes to the old states; None if no state can be restored.
        reason: why `back` is None or lacks some states.
        impossible: old names of the states that cannot be restored, each with the reason.
        context: context that the plan was made in.
        notes: remarks to show to the user before anything is written.
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
        """Context for layouts of rows between stages: values that cannot be decoded stay bytes."""
        return keep_all_opaque(self.context.layouts)

    @property
    def keyed(self) -> OperatorPlan:
        """The plan reduced to keyed state and timers."""
        return _select(self, keyed=True)

    @property
    def unkeyed(self) -> OperatorPlan:
        """The plan reduced to list and broadcast state."""
        return _select(self, keyed=False)

    @property
    def new_shapes(self) -> dict[str, StateShape]:
        """Shapes of the new states, by new name."""
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
    """An old state that the opposite migration restores.

    Attributes:
        old: name of the state.
        shape: shape in which the migration reads its rows.
        way: the flow of the opposite migration, which computes the state from new states.
        lost: dotted paths of its fields that are not restored, each with the reason.
        kept: whether the migration leaves out some rows of the state. Then a proof compares only the rows that the
            migration keeps.
    """

    old: str
    shape: StateShape
    way: Flow
    lost: Mapping[str, str]
    kept: bool = False


@dataclass(frozen=True)
class RoundTrip:
    """Round trip of one new state: the old states that are computed back from it and compared.

    Attributes:
        returns: the old states that are compared.
        note: why no old state is compared, as text for people; empty if some are.
    """

    returns: tuple[Return, ...] = ()
    note: str = ""


def plan_round_trips(plan: OperatorPlan) -> dict[str, RoundTrip]:
    """Plan the round trips that a proof makes, by new name of a changed state; each old state is in one trip only."""
    judged: set[str] = set()
    trips = {}
    for name, flow in plan.changed.items():
        trips[name] = trip = _plan(plan, name, flow, judged)
        judged.update(each.old for each in trip.returns)
    return trips


def find_losses(plan: OperatorPlan, name: str, flow: Flow) -> dict[str, str]:
    """Collect the losses that are declared for a new state or for the old states that it is made of.

    Returns the reasons by dotted path.
    """
    names = [name, *find_reads(flow)]
    return {field: reason for each in names for field, reason in plan.losses.get(each, {}).items()}


def describe_losses(plan: OperatorPlan) -> str:
    """Describe all declared losses of states that change, for people; empty if there are none."""
    lost = dict(each for name, flow in plan.changed.items() for each in find_losses(plan, name, flow).items())
    return "; ".join(f"{field}: {reason}" for field, reason in lost.items())


def describe_filters(plan: OperatorPlan) -> str:
    """Describe why rows of states that change are left out, for people; empty if none are."""
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
        return RoundTrip(note="the timers that are kept have no values to compare")
    if kept:
        # Rows that the migration leaves out cannot be restored. The rows that it keeps can be compared only if each new
        # row is computed from one old row, and that old row is restored from it.
        way = plan.back.states.get(sources[0])
        alone = way is not None and len(sources) == 1 and find_reads(way) == (name,)
        if way is None or not alone or not (is_aligned(flow) and is_aligned(way) and keeps_rows(way)):
            return RoundTrip(
                note="values are not compared: rows were left out, and new rows need not come from one old row"
            )
    shapes = {each.state: each.shape for each in walk_flow(flow) if isinstance(each, Read)}
    found = [
        Return(old, shapes[old], way, find_losses(plan, old, way) | losses, kept)
        for old, way in ways.items()
        if old not in judged
    ]
    return RoundTrip(tuple(found), "" if found else "values are compared as those of another state of the same rows")


Column = tuple[str, str]
"""(name of a state, name of a column of its table); columns of fields of the payload are named like `value.amount`."""

_Lineage = dict[str, frozenset[Column]]
_WHOLE = "value"
_KEY = "state_key"
_AROUND = (_KEY, "state_namespace", "map_key", "list_index", "ttl_last_access")


def trace_columns(flow: Flow, context: PlanContext) -> Mapping[str, frozenset[Column]]:
    """Find the old columns that each column of a new state is computed from.

    The SQL of stages is searched for names of fields. If a stage sees the whole value, its result is taken to depend on
    all fields.

    Args:
        flow: flow of the new state.
        context: context that the plan was made in.
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
    """Find the old columns of each field of the value; the name of the field is empty for a value without fields."""
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
    """Find the old columns from which the fields that `sql` names are computed; `before` has these by field.

    `value` stands for all fields, unless there is a field of that name.
    """
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
