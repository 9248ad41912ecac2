"""The plan of a migration as a data flow: one per new state, with no engine in it.

A flow starts at states of the snapshot (`Read`); every `Apply` does one thing to the rows; `Merge` joins states by key.
Each node knows the shape of what comes out. SQL sees the fields of the payload, `value` (the whole payload),
`state_key`, `state_namespace`, `map_key`, `list_index` and `ttl_last_access`; a field hides what has its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.connectors.registry import ConnectorStateKind
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.structs import Columns


class EqualKeys(StrEnum):
    """Rule for values that get the same key; any other text is a SQL aggregate."""

    ERROR = "error"
    FIRST = "first"
    """By the old key."""
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
class Stamp:
    """Times of the last access by SQL; None takes them away."""

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
    """Its namespaces are the windows that contents are stored under."""
    SESSION = "session"
    """Its namespaces are sessions: timers, and state of triggers."""


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
class Fill:
    """A field of the payload gets the values of a table, see `steps.Fill`."""

    field: str
    table: str
    keys: tuple[tuple[str, str], ...]
    value: str


Stage = Fill | Project | Replace | Reserialize | Keep | KeepKeys | Stamp | Regroup | Rekey | Follow | Call | SetSplit


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
class Merge:
    """States joined by key and namespace (and user key); `sql` is over columns named like `inputs`."""

    inputs: tuple[tuple[str, Flow], ...]
    sql: str
    shape: StateShape
    nondeterministic: bool = False
    step: str = field(default="", compare=False)


Flow = Read | Apply | Merge


def walk_flow(flow: Flow, *, beside: bool = False) -> Iterator[Flow]:
    """The flow and all that it comes from, last first; with `beside` also the flows that its stages look at."""
    yield flow
    match flow:
        case Apply(input=inner, stage=stage):
            for each in (inner, *(list_beside(stage) if beside else ())):
                yield from walk_flow(each, beside=beside)
        case Merge(inputs=inputs):
            for _, inner in inputs:
                yield from walk_flow(inner, beside=beside)


def list_beside(stage: Stage) -> tuple[Flow, ...]:
    """The flows that a stage looks at beside its input: sessions that the rows follow, the state that keeps keys."""
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
    """The flow with a step for all nodes that have none yet."""
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
    aligned = (Fill, Project, Replace, Reserialize, Stamp, Keep, KeepKeys, SetSplit)
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
    """Whether the bytes of keys stay: no other key, no change from or to a map."""
    for each in walk_flow(flow):
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
    if isinstance(flow, Merge):
        yield flow.sql
    if not isinstance(flow, Apply):
        return
    match flow.stage:
        case Fill(keys=keys):
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
        case Stamp(sql=str(sql)):
            yield sql
