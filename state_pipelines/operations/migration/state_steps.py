"""Steps on states as a whole: other kinds, several states out of one, sessions, columns of connectors.

Flink keeps the sessions of a key in a state of their own: each with the window that its contents are stored under,
which stays that of its first element while the session grows (`MergingWindowSet`; in SQL
`MergingWindowProcessFunction`). Sessions of one key never touch each other.

Flink restores by class: where a class occurs more than once in a value, all occurrences change or none does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeGuard

from state_pipelines.connectors.registry import find_codec
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.flows import Apply, Flow, SessionRole
from state_pipelines.operations.migration.payload_conversion import (
    convert_by_name,
    find_lost_fields,
    list_columns,
    payload_type,
    resolve_type,
)
from state_pipelines.operations.migration.shapes import adopt_python_payload, make_java_name
from state_pipelines.operations.migration.structs import KnownConnector, PlanContext, open_struct, quote_name
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import LIST_KINDS, BasicKind, StateKind
from state_pipelines.snapshot.operator_state import SPLIT_COLUMN, OperatorListState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from state_pipelines.operations.migration.migration_files import Change
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


def plan_kind(flow: Flow, step: st.Kind, context: PlanContext) -> Flow:
    """Plan a `kind` step: return the flow whose rows are those of another kind of state.

    Raises:
        MigrationError: the step lacks a required entry, or does not fit the state.
    """
    shape = flow.shape
    before = StateKind.VALUE if shape.kind not in (StateKind.LIST, StateKind.MAP) else shape.kind
    if step.to == shape.kind != StateKind.MAP:
        raise MigrationError(f"the state is {step.to} state already")
    _require_user_keys(step, before)
    if step.on_equal != flows.EqualKeys.ERROR and (before, step.to) != (StateKind.MAP, StateKind.MAP):
        raise MigrationError(
            "`on_equal` is only for a map whose user keys are changed: it merges entries whose keys become equal"
        )
    payload = shape.payload
    given = step.payload
    if given.type is not None:
        payload = adopt_python_payload(payload, resolve_type(given.type, context))
    payload_type(payload, context)
    if step.to == StateKind.VALUE and before != StateKind.VALUE and given.expression is None:
        column = "values" if before == StateKind.LIST else "entries"
        raise MigrationError(
            f"the step does not say how the values of a {before} state become one value",
            hint=f"Give an expression over `{column}`",
        )
    map_key = None if step.map_key is None else resolve_type(step.map_key.type, context)
    new = shape.with_kind(step.to, payload, map_key)
    sql = given.expression
    if sql is None and payload != shape.payload:
        sql = convert_by_name(shape.payload, payload, context)
    if sql is None and before == step.to != StateKind.MAP:
        # REDUCING and AGGREGATING state has the same bytes as VALUE state, so values are passed on.
        return Apply(flow, flows.Replace("value"), new)
    if before == step.to == StateKind.VALUE:
        return Apply(flow, flows.Replace(sql or "value", False, step.nondeterministic), new)
    key = None if step.map_key is None else step.map_key.expression
    return Apply(flow, flows.Regroup(sql, key, step.nondeterministic, step.on_equal), new)


def _require_user_keys(step: st.Kind, before: StateKind) -> None:
    """Refuse a `kind` step that loses the user keys of a map without saying so in its `discard`.

    Raises:
        MigrationError: the step makes a list of the values alone, or `discard` names something that is not lost.
    """
    names = set(re.findall(r"\w+", step.payload.expression or ""))
    loses = before == StateKind.MAP and step.to == StateKind.LIST and not names & {"map_key", st.TODO}
    if loses and "map_key" not in step.discard:
        raise MigrationError(
            "a list of the values alone loses the keys of the map",
            hint="Keep them in an `expression`, such as named_struct('f0', map_key, 'f1', value) of a Tuple2, or list "
            "map_key in `discard`",
        )
    unknown = [each for each in step.discard if not loses or each != "map_key"]
    if unknown:
        raise MigrationError(f"`discard` names {', '.join(unknown)}, which the step keeps or the state never had")


def plan_split_target(
    flow: Flow, target: st.SplitTarget, step: st.Split, context: PlanContext
) -> tuple[Flow, set[str]]:
    """Plan one of the states that a state is split into; return its flow, and the fields of the old value that it uses.

    Raises:
        MigrationError: the target names an unknown field.
    """
    shape = flow.shape.with_name(make_java_name(target.name, flow.shape))
    columns = set(list_columns(shape.payload, context))
    if target.fields:
        struct = open_struct(shape.payload, "", context)
        payload, kept = struct.rebuild([struct.find(name) for name in target.fields])
        assert isinstance(payload, tree.Serializer)
        if target.class_name is not None:
            payload = _rename(payload, target.class_name)
        stage: flows.Stage = flows.Project(kept, step.nondeterministic)
        return Apply(flow, stage, shape.with_payload(payload)), set(target.fields)
    assert target.type is not None
    payload = adopt_python_payload(shape.payload, resolve_type(target.type, context))
    payload_type(payload, context)
    if target.expression is None:
        sql = convert_by_name(shape.payload, payload, context)
        used = columns - {each.split(".")[0] for each in find_lost_fields(shape.payload, payload, None, context)}
    else:
        sql = target.expression
        words = set(re.findall(r"\w+", sql))
        used = columns if "value" in words and "value" not in columns else columns & words
    return Apply(flow, flows.Replace(sql, False, step.nondeterministic), shape.with_payload(payload)), used


def _rename(payload: tree.Serializer, class_name: str) -> tree.Serializer:
    if not isinstance(payload, tree.Pojo) or payload.registered or payload.non_registered:
        raise MigrationError(
            "`class` is for a POJO without subclasses", hint=f"Give the `type` of {quote_name(class_name)}"
        )
    fields = tuple(replace(each, declaring_class=class_name) for each in payload.fields)
    return replace(payload, pojo_class=class_name, fields=fields)


DATASTREAM_SET = "merging-window-set"
"""State of the sessions in `WindowOperator`: a list of pairs of a session and the window of its contents."""

SQL_SET = "session-window-mapping"
"""State of the sessions in SQL: a map from sessions to the windows of their contents."""

WINDOW_CONTENTS = "window-contents"
"""State with the contents of windows in `WindowOperator`; other states with windows as namespaces are the trigger's."""

_SQL_CONTENTS = ("window-aggs", "session-window-tvf-acc")
"""States with the contents of windows in SQL. Data views are separate states with the same namespaces."""

_WINDOWS = (BasicKind.TIME_WINDOW, BasicKind.TABLE_TIME_WINDOW)


@dataclass(frozen=True)
class SessionStates:
    """States of an operator that belong to its session windows.

    Attributes:
        windows: name of the state that lists the sessions.
        roles: for each state that belongs to the sessions, by name: its relation to them.
        window: serializer of the windows.
    """

    windows: str
    roles: Mapping[str, SessionRole]
    window: tree.Serializer

    @property
    def is_sql(self) -> bool:
        """Whether these are the states of an operator of SQL."""
        return self.windows == SQL_SET

    @property
    def contents(self) -> tuple[str, ...]:
        """The states that hold the contents of the sessions; a session without an entry in them is empty."""
        return tuple(name for name in (WINDOW_CONTENTS, *_SQL_CONTENTS) if self.roles.get(name) is SessionRole.STORED)

    def require_followed(self, *, nondeterministic: bool) -> None:
        """Refuse a step that changes sessions, if its effect cannot be repeated in all states of the sessions.

        Args:
            nondeterministic: whether the expression of the step may give different values each time, and so for each
                state.

        Raises:
            MigrationError: `nondeterministic` is set, or the windows are of a class whose merging is not known.
        """
        if nondeterministic:
            raise MigrationError(
                f"{', '.join(self.roles)} must change in the same way, but the expression is nondeterministic",
                hint="Use one that gives the same values for the same rows, such as a hash of the key",
            )
        if not isinstance(self.window, tree.Basic) or self.window.kind not in _WINDOWS:
            raise MigrationError(
                f"sessions of windows of {describe(self.window)} cannot change: only their class knows which of them "
                "become one",
                hint="Change other operators only, and let this one begin without state (another uid)",
            )


def find_session_states(shapes: Mapping[str, StateShape]) -> SessionStates | None:
    """Find the states that belong to the session windows of an operator; None if it has no such windows."""
    for name in (DATASTREAM_SET, SQL_SET):
        shape = shapes.get(name)
        window = None if shape is None else _find_window(shape)
        if window is None:
            continue
        roles = {name: SessionRole.SET}
        for other, each in shapes.items():
            if other == name or not each.is_keyed or each.namespace != window:
                continue
            is_stored = each.kind != StateKind.TIMER and (name == SQL_SET or other == WINDOW_CONTENTS)
            roles[other] = SessionRole.STORED if is_stored else SessionRole.SESSION
        return SessionStates(name, roles, window)
    return None


def require_whole_sessions(before: Mapping[str, StateShape], after: Mapping[str, StateShape]) -> None:
    """Refuse to leave sessions without their contents, or contents without their sessions.

    Args:
        before: shapes of the states of an operator.
        after: their shapes after all steps.

    Raises:
        MigrationError: some states of the sessions, but not all, have been dropped, renamed or changed so that Flink's
            operator does not find them.
    """
    old, new = (find_session_states(shapes) for shapes in (before, after))
    if old is None:
        return
    names = (old.windows, *old.contents)
    left = [name for name in names if new is not None and name in (new.windows, *new.contents)]
    if new is None:
        left = [name for name in old.roles if name in after]
    if left and (new is None or set(left) < set(names)):
        gone = [name for name in names if new is None or name not in left]
        raise MigrationError(
            f"{', '.join(left)} would remain without {', '.join(gone)}: sessions and their contents belong together",
            hint="Keep names and kinds of all states of the windows, or drop them all",
        )


def _find_window(shape: StateShape) -> tree.Serializer | None:
    """Return the serializer of the windows if a state has the layout of a state that lists sessions; else None."""
    match shape.kind, shape.payload, shape.map_key:
        case StateKind.LIST, tree.Tuple(fields=(session, stored)), _ if session == stored:
            return session
        case StateKind.MAP, stored, session if session == stored:
            return stored
        case _:
            return None


_PREFIX = f"{SPLIT_COLUMN}."


def names_split(step: st.Step) -> bool:
    """Return whether a step sets a column named `split.…`, as connector state has (or a field of a struct `split`)."""
    return isinstance(step, st.Set) and step.field.startswith(_PREFIX)


def sets_split(step: st.Step, shape: StateShape, context: PlanContext) -> TypeGuard[st.Set]:
    """Return whether a step sets a column of a connector; not if the elements themselves have a field `split`."""
    if not names_split(step) or shape.kind not in LIST_KINDS:
        return False
    return SPLIT_COLUMN not in list_columns(shape.payload, context)


def find_connectors(operator: Operator, changes: Iterable[Change]) -> Iterator[tuple[str, KnownConnector | str]]:
    """Find the connectors of the list states in which changes set a column of a connector; reads the elements.

    Yields (name of the state, its connector or the reason why none is known).

    Raises:
        StateError: the elements cannot be read.
    """
    named = {each.state for each in changes if each.state and any(map(names_split, (*each.upgrade, *each.downgrade)))}
    for state in operator.operator_states if named else ():
        if state.name not in named or not isinstance(state, OperatorListState):
            continue
        found = state.detected
        if found.state is not None:
            yield state.name, KnownConnector(found.state.connector, found.state.kind)
        else:
            yield state.name, found.ambiguity or "no known connector wrote it"


def plan_split_edit(flow: Flow, step: st.Set, connectors: Collection[tuple[str, KnownConnector | str]]) -> Flow:
    """Plan a `set` step on a column of a connector.

    Raises:
        MigrationError: no known connector wrote the state, or that column of the connector cannot be set.
    """
    connector = dict(connectors).get(flows.find_reads(flow)[0])
    if connector is None:
        return flow  # a plan without a snapshot needs serializers only, and this step does not change them
    if isinstance(connector, str):
        raise MigrationError(f"the state has no column {step.field}: {connector}")
    column, edit = step.field.removeprefix(_PREFIX), find_codec(connector.name, connector.kind).edit
    settable = ", ".join(f"{_PREFIX}{each}" for each in edit.columns) if edit else "none"
    if edit is None or column not in edit.columns:
        raise MigrationError(
            f"{step.field} of the {connector.kind} state of {connector.name} cannot be set",
            hint=f"Columns that can be set: {settable}",
        )
    stage = flows.SetSplit(connector.name, connector.kind, column, step.expression, step.nondeterministic)
    return flows.Apply(flow, stage, flow.shape)


_Fields = frozenset[tuple[str, object]]


def require_equal_classes(before: Iterable[tree.Serializer], after: tree.Serializer) -> None:
    """Refuse a value in which a POJO class has different fields at different paths, unless it had them before.

    Flink derives one serializer from the class and uses it at every path, although `PojoSerializerSnapshot` nests a
    snapshot for each path. So values of a field that the class has at some paths only are lost without an error.

    Args:
        before: serializers of the old values that the new value is computed from.
        after: serializer of the new value.

    Raises:
        MigrationError: the fields of a class differ between paths; the message names the paths.
    """
    known = {name for each in before for name, found in _gather(each).items() if len(set(found.values())) > 1}
    for name, found in _gather(after).items():
        if len(set(found.values())) < 2 or name in known:
            continue
        groups: dict[_Fields, list[str]] = {}
        for path, members in found.items():
            groups.setdefault(members, []).append(path or "the value itself")
        groups_text = " but not in ".join(", ".join(paths) for paths in groups.values())
        raise MigrationError(
            f"class {name} changes in {groups_text}; Flink restores by class and would lose values",
            hint="Take the same steps on all of them; `[]` reaches elements and map values, such as `addresses[].zip`",
        )


def _gather(serializer: tree.Serializer) -> dict[str, dict[str, _Fields]]:
    """Gather the fields, with their serializers, of each POJO in a value: by class, then by path."""
    found: dict[str, dict[str, _Fields]] = {}
    for path, node in _walk(serializer, ""):
        if isinstance(node, tree.Pojo):
            members = frozenset((each.name, _strip(each.serializer)) for each in node.fields)
            found.setdefault(node.pojo_class, {}).setdefault(path, members)
    return found


def _strip(member: object) -> object:
    """Replace POJOs inside a serializer by their class names, because `_gather` lists their fields separately."""
    match member:
        case tree.Pojo(pojo_class=name):
            return name
        case tree.Serializer():
            return (type(member), *(_strip(getattr(member, each.name)) for each in fields(member)))
        case tuple():
            return tuple(_strip(each) for each in member)
        case _:
            return member


def _walk(node: tree.Serializer, path: str) -> Iterator[tuple[str, tree.Serializer]]:
    yield path, node
    prefix = f"{path}." if path else ""
    match node:
        case tree.Pojo():
            for field in node.fields:
                if field.serializer is not None:
                    yield from _walk(field.serializer, f"{prefix}{field.name}")
            for subclass in (*node.registered, *node.non_registered):
                # An object of a subclass has the path of the field that is declared with the base class.
                if subclass.serializer is not None:
                    yield from _walk(subclass.serializer, path)
        case tree.Tuple(fields=members) | tree.PositionalRow(fields=members):
            for index, each in enumerate(members):
                yield from _walk(each, f"{prefix}f{index}")
        case tree.ListOf() | tree.SetOf() | tree.GenericArray() | tree.MapOf() | tree.SortedMapOf():
            for each in node.nested:
                yield from _walk(each, f"{path}[]")
        case _:
            for each in node.nested:
                yield from _walk(each, path)


def require_meaning(step: st.Step, shape: StateShape) -> None:
    """Refuse steps that have no meaning for operator state.

    Raises:
        MigrationError: the shape is of operator state, and the step has no meaning for it; the message says why.
    """
    if shape.is_keyed:
        return
    of = f"{shape.kind} state of the operator" if shape.kind != StateKind.BROADCAST else "broadcast state"
    match step:
        case st.TtlStep():
            raise MigrationError(f"{of} cannot have TTL: only keyed state has times of the last access")
        case st.Kind():
            raise MigrationError(
                f"{of} cannot change its kind: the code of the job decides how entries are distributed to subtasks",
                hint="Steps on values, `filter`, `split`, `rename_state` and `drop_state` change it",
            )
        case st.Merge():
            raise MigrationError(
                f"{of} cannot be merged: nothing says which entries of the states belong together",
                hint="Read both states in the new code, and let it merge them",
            )
