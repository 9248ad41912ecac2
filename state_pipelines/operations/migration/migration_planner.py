"""Planner of migrations: the states of an operator and a chain of revisions as one data flow per new state.

Everything that can be refused is refused here, before any data are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.serializer_layouts import complete, keep_undecodable
from state_pipelines.errors import MigrationError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.fields import (
    apply_field_step,
    find_null_check,
    plan_columns,
    set_column,
    take_collections,
)
from state_pipelines.operations.migration.flows import Apply, Flow, OperatorPlan, Read, Stage, StateMerge
from state_pipelines.operations.migration.migration_files import Change, Migration, RowExpectation
from state_pipelines.operations.migration.payload_conversion import (
    convert_by_name,
    convert_fields,
    find_lost_fields,
    follows_protocol,
    list_columns,
    payload_type,
    rename_classes,
    resolve_type,
)
from state_pipelines.operations.migration.shapes import (
    adopt_python_payload,
    explain_unread,
    find_java_name,
    make_java_name,
    wrap_python_key,
)
from state_pipelines.operations.migration.state_steps import (
    SessionStates,
    find_connectors,
    find_session_states,
    plan_kind,
    plan_split_edit,
    plan_split_target,
    require_equal_classes,
    require_meaning,
    require_whole_sessions,
    sets_split,
)
from state_pipelines.operations.migration.step_types import extract_like
from state_pipelines.operations.migration.steps import Direction
from state_pipelines.operations.migration.structs import PlanContext, known_sql_types, open_struct
from state_pipelines.serializers import tree
from state_pipelines.serializers.beam import BeamSerializer
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import KEYED_KINDS, LIST_KINDS, OPERATOR_KINDS, StateKind, walk
from state_pipelines.snapshot.state import python_name

if TYPE_CHECKING:
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.snapshot_files import SnapshotFiles

Chain = Sequence[tuple[Migration, Direction]]
"""Revisions in the order in which they are applied, each with its direction."""

_MIGRATED = (*KEYED_KINDS, *OPERATOR_KINDS)
_ALL = ""


def plan_migrations(
    shapes: Mapping[str, StateShape],
    chain: Chain,
    *,
    operators: Collection[str] | None = None,
    context: PlanContext | None = None,
) -> OperatorPlan:
    """Plan the migration of the states of an operator along a chain of revisions, and the way back.

    Args:
        shapes: shapes of the states, see `find_shapes`.
        chain: the revisions, each with its direction.
        operators: names that changes use for this operator; None if all changes are about it.
        context: planning context.

    Raises:
        MigrationError: a step does not fit, is ambiguous, or destroys something without saying so.
    """
    context = context or PlanContext()
    planner = _Planner(shapes, context)
    plan = planner.run(chain, operators)
    reason = next(iter(planner.impossible.values()), "")
    if set(planner.impossible) >= set(shapes):
        return replace(plan, reason=reason, impossible=planner.impossible)
    turned = [
        (migration, Direction.UPGRADE if direction == Direction.DOWNGRADE else Direction.DOWNGRADE)
        for migration, direction in reversed(chain)
    ]
    try:
        # The proof compares the restored values with the old ones, so nulls need no refusal here.
        returning = _Planner(plan.new_shapes, replace(plan.context, permits_null=True))
        back = returning.run(turned, operators, possible=True)
    except MigrationError as error:
        if planner.impossible:
            # A downgrade of another change may need fields or states that a change without a downgrade has removed.
            # Then no state of the operator can be restored.
            return replace(plan, reason=reason, impossible=dict.fromkeys(shapes, reason))
        error.what = f"the opposite migration does not fit: {error.what}"
        raise
    gone = sorted(set(shapes) - set(back.states) - set(plan.dropped) - set(planner.impossible))
    if gone:
        raise MigrationError(
            f"the opposite migration does not restore state {', '.join(gone)}",
            hint="Add steps to it that do, or say why there is no downgrade (`downgrade: {impossible: reason}`)",
        )
    returned = {name: flow for name, flow in back.states.items() if name in shapes and name not in planner.impossible}
    back = replace(back, states=returned)
    return replace(plan, back=back, reason=reason, impossible=planner.impossible)


def _chosen(migration: Migration, operators: Collection[str] | None) -> list[Change]:
    return [each for each in migration.changes if operators is None or each.operator in operators]


def find_subject(change: Change, direction: Direction) -> str:
    """Return the name of the state that the steps of a direction start from; empty for changes of a whole operator.

    A downgrade starts from the name that the state has after the upgrade.
    """
    name = change.state or _ALL
    if direction == Direction.UPGRADE:
        return name
    for step in change.upgrade:
        match step:
            case st.RenameState(name=new) | st.Merge(into=new):
                name = new
            case st.Split(into=targets):
                name = targets[0].name
    return name


@contextmanager
def _hint_at_columns(shape: StateShape, context: PlanContext) -> Iterator[None]:
    """Add a hint to an error about a value without fields: the steps that can change such state."""
    try:
        yield
    except MigrationError as error:
        payload = shape.payload
        if isinstance(payload, tree.Basic) and shape.kind in LIST_KINDS:
            error.hint = (
                "If a connector wrote the state, `set` changes the columns that `read` shows, such as `split.offset` "
                "of Kafka; for other values, use `convert`"
            )
        elif isinstance(payload, tree.Declared | BeamSerializer):
            names = ", ".join(list_columns(payload, context))
            error.hint = (
                f"`set` changes its values ({names}), `filter` drops entries; its fields are those of its class"
            )
        raise


class _Planner:
    """Plan of one operator in the making: the flows of its states, to which the steps of revisions are added."""

    def __init__(self, shapes: Mapping[str, StateShape], context: PlanContext) -> None:
        self.shapes = shapes
        # The subclasses of POJOs that any state of the snapshot lists: `_complete` adds them to the POJOs that steps
        # change. `context` is without subclasses, since steps may rename them in these POJOs.
        self.given = context.layouts
        self.notes: list[str] = []
        self.context = replace(context, layouts=replace(context.layouts, subclasses=()))
        self.states: dict[str, Flow] = {name: Read(name, shape) for name, shape in shapes.items()}
        self.dropped: dict[str, str] = {}
        self.losses: dict[str, dict[str, str]] = {}
        self.expectations: dict[str, tuple[RowExpectation, ...]] = {}
        self.impossible: dict[str, str] = {}
        self._known_fields: set[str] = set()

    def run(self, chain: Chain, operators: Collection[str] | None, *, possible: bool = False) -> OperatorPlan:
        """Apply a chain of revisions to the states; with `possible`, leave out downgrades that are impossible."""
        for migration, direction in chain:
            changes = _chosen(migration, operators)
            for change in changes if direction == Direction.UPGRADE else reversed(changes):
                if not (possible and direction == Direction.DOWNGRADE and change.impossible):
                    self._change(change, direction, migration)
        self._require_equal_classes()
        require_whole_sessions(self.shapes, {name: flow.shape for name, flow in self.states.items()})
        keys = {flow.shape.key for flow in self.states.values() if flow.shape.is_keyed}
        return OperatorPlan(
            shapes=self.shapes,
            states=self.states,
            dropped=self.dropped,
            key=next(iter(keys), None),
            losses=self.losses,
            expectations=self.expectations,
            context=self.context,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _require_equal_classes(self) -> None:
        for name, flow in self.states.items():
            if flow.shape.kind in _MIGRATED and not isinstance(flow, Read):
                reads = [each for each in flows.walk_flow(flow) if isinstance(each, Read)]
                with at(state=name):
                    require_equal_classes([each.shape.payload for each in reads], flow.shape.payload)

    def _change(self, change: Change, direction: Direction, migration: Migration) -> None:
        subject = find_java_name(find_subject(change, direction), self.states)
        where = {"operator": change.operator, "state": subject or None, "file": migration.path or None}
        with at(**where):
            if subject != _ALL:
                self._find(subject)
            if change.impossible and direction == Direction.UPGRADE:
                touched = self.states.values() if subject == _ALL else self._touched(subject, change)
                for flow in touched:
                    self.impossible.update(dict.fromkeys(flows.find_reads(flow), change.impossible))
            self._check_losses(change, subject, before=True)
            for number, step in enumerate(change.steps(direction), 1):
                with at(path=f"{direction} {number}"):
                    subject = self._step(subject, step)
                self.states = {
                    name: flows.name_step(flow, f"{direction} {number}") for name, flow in self.states.items()
                }
            self._check_losses(change, subject, before=False)
        if change.expectations and direction == Direction.UPGRADE and subject in self.states:
            self.expectations[subject] = (*self.expectations.get(subject, ()), *change.expectations)

    def _find(self, name: str) -> Flow:
        if name not in self.states:
            known = ", ".join(self.states) or "none"
            raise MigrationError(f"the operator has no state {name}", hint=f"It has {known}")
        flow = self.states[name]
        if flow.shape.kind not in _MIGRATED:
            raise UnsupportedError(f"{flow.shape.kind} state cannot be migrated")
        return flow

    def _touched(self, subject: str, change: Change) -> list[Flow]:
        named = [name for step in change.upgrade if isinstance(step, st.Merge) for name in step.others]
        others = [find_java_name(name, self.states) for name in named]
        return [self.states[name] for name in (subject, *others) if name in self.states]

    def _check_losses(self, change: Change, subject: str, *, before: bool) -> None:
        """Record the declared losses of a change under the name of the state; refuse losses of unknown fields.

        It is called before and after the steps, because the name and the fields of the state may change.
        """
        if subject in self.states:
            flow = self.states[subject]
            self._known_fields = set() if before else self._known_fields
            self._known_fields |= {"value", "ttl_last_access", *list_columns(flow.shape.payload, self.context)}
            self.losses.setdefault(subject, {}).update({loss.field: loss.reason for loss in change.losses})
        if before or subject == _ALL:
            return
        for loss in change.losses:
            if loss.field.split(".")[0].rstrip("[]") not in self._known_fields:
                names = ", ".join(sorted(self._known_fields - {"value", "ttl_last_access"}))
                raise MigrationError(f"the declared loss {loss.field} is no field", hint=f"The fields are {names}")

    def _note(self, subject: str, fields: Collection[str], reason: str) -> None:
        self.losses.setdefault(subject, {}).update(dict.fromkeys(fields, reason))

    def _step(self, subject: str, step: st.Step) -> str:
        """Apply a step to the state `subject`, or to the whole operator; return the name of the state afterwards."""
        if isinstance(step, st.Key):
            self._rekey(step)
            return subject
        if isinstance(step, st.Filter) and step.by is not None:
            self._filter_keys(step, step.by)
            return subject
        if isinstance(step, st.RenameStates):
            self._rename_states(dict(step.names))
            return subject
        flow = self._find(subject)
        require_meaning(step, flow.shape)
        if not isinstance(step, st.RenameState | st.DropState):
            flow = self._complete(flow)
        match step:
            case st.RenameState(name=name):
                name = make_java_name(name, flow.shape)
                self._require_free(name)
                renamed = replace(flow, shape=flow.shape.with_name(name))
                self.states = {name if each == subject else each: old for each, old in self.states.items()}
                self.states[name] = renamed
                for kept in (self.losses, self.expectations):
                    if subject in kept:
                        kept[name] = kept[subject]  # type: ignore[assignment]
                return name
            case st.CopyState(name=name):
                name = make_java_name(name, flow.shape)
                self._require_free(name)
                self.states[name] = replace(flow, shape=flow.shape.with_name(name))
                return subject
            case st.DropState(reason=reason):
                del self.states[subject]
                self.dropped[subject] = reason
                return subject
            case st.Split(into=targets):
                subject = self._split(subject, flow, step)
                for target in targets:
                    self._refuse_nulls(make_java_name(target.name, flow.shape), flow, target.expression)
                return subject
            case st.Merge():
                into = self._merge(subject, flow, step)
                self._refuse_nulls(into, flow, step.expression)
                return into
            case st.Convert() | st.Kind():
                self.states[subject] = self._apply(subject, flow, step)
                self._refuse_nulls(subject, flow, step.expression)
                return subject
            case st.Python(function=function):
                self.states[subject] = self._apply(subject, flow, step)
                self._refuse_nulls(subject, flow, str(function))
                return subject
            case _:
                self.states[subject] = self._apply(subject, flow, step)
                return subject

    def _rename_states(self, names: Mapping[str, str]) -> None:
        """Give several states other names at once."""
        found = {find_java_name(old, self.states): new for old, new in names.items()}
        for old in found:
            self._find(old)
        news = {old: make_java_name(new, self.states[old].shape) for old, new in found.items()}
        for new in news.values():
            if new not in news:
                self._require_free(new)
        self.states = {
            news.get(name, name): replace(flow, shape=flow.shape.with_name(news[name])) if name in news else flow
            for name, flow in self.states.items()
        }
        self.losses = {news.get(name, name): each for name, each in self.losses.items()}
        self.expectations = {news.get(name, name): each for name, each in self.expectations.items()}

    def _refuse_nulls(self, name: str, old: Flow, computed: str | None) -> None:
        """Add a stage to state `name` that fails for nulls that Flink cannot restore.

        Values of `old` that are carried over, not computed by the SQL `computed`, may have nulls.
        """
        flow, payload = self.states[name], old.shape.payload
        inner = payload.inner if isinstance(payload, tree.Nullable) else payload
        carried = computed is None and isinstance(inner, tree.Pojo)
        carried |= computed in (None, "value") and flow.shape.payload == payload
        context = replace(self.context, permits_null=True) if carried else self.context
        check = find_null_check(flow.shape.payload, context)
        if check is not None:
            self.states[name] = Apply(flow, check, flow.shape)

    def _complete(self, flow: Flow) -> Flow:
        """Add to the POJOs of an unchanged state the subclasses that only other states of the snapshot list."""
        if not isinstance(flow, Read) or flow.shape.kind not in _MIGRATED:
            return flow
        return replace(flow, shape=flow.shape.with_payload(complete(flow.shape.payload, self.given)))

    def _apply(self, subject: str, flow: Flow, step: st.Step) -> Flow:
        shape, context = flow.shape, self.context
        stage: Stage
        match step:
            case st.Set() if sets_split(step, shape, context):
                return plan_split_edit(flow, step, context.connectors)
            case st.Set() if (columns := set_column(shape.payload, step, context)) is not None:
                return Apply(flow, flows.Project(columns, step.nondeterministic), shape)
            case st.Set(field="value", expression=made) if not list_columns(shape.payload, context):
                return Apply(flow, flows.Replace(made, False, step.nondeterministic), shape)
            case st.Fill():
                open_struct(shape.payload, "", context).find(step.field)
                return Apply(flow, flows.TableFill(step.field, step.table, step.keys, step.value), shape)
            case st.Columns():
                payload, stage = plan_columns(shape.payload, step, context)
                return Apply(flow, stage, self._with_payload(shape, payload))
            case st.Rename() | st.Add() | st.Cast() | st.Drop() | st.Set() | st.Reorder():
                with _hint_at_columns(shape, context):
                    payload, columns = apply_field_step(shape.payload, step, context)
                stage = flows.Project(columns, getattr(step, "nondeterministic", False))
                return Apply(flow, stage, self._with_payload(shape, payload))
            case st.Collections(types=types):
                payload, columns = take_collections(shape.payload, types, context)
                return Apply(flow, flows.Project(columns), self._with_payload(shape, payload))
            case st.Convert():
                return self._convert(subject, flow, step)
            case st.RenameClass(names=names):
                payload, sql = rename_classes(shape.payload, names, context)
                renamed = shape.with_payload(payload)
                return replace(flow, shape=renamed) if sql is None else Apply(flow, flows.Replace(sql), renamed)
            case st.Filter():
                return self._filter(subject, flow, step)
            case st.TtlStep():
                return self._ttl(subject, flow, step)
            case st.Kind():
                return plan_kind(flow, step, context)
            case st.Python(function=function, type=of):
                new = shape
                if of is not None:
                    new = self._with_payload(shape, adopt_python_payload(shape.payload, resolve_type(of, context)))
                return Apply(flow, flows.Call(function, nondeterministic=not step.deterministic), new)
            case _:
                raise UsageError(f"{type(step).__name__} is no step on a state")

    def _with_payload(self, shape: StateShape, payload: tree.Serializer) -> StateShape:
        payload_type(payload, self.context)  # raises an error if values have no Arrow type
        return shape.with_payload(payload)

    def _convert(self, subject: str, flow: Flow, step: st.Convert) -> Flow:
        shape = flow.shape
        new = adopt_python_payload(shape.payload, resolve_type(step.type, self.context))
        extracted = extract_like(step.type)
        # The note below is about serializers that Flink extracts from Java's types. For SQL rows it extracts none.
        is_row = any(isinstance(each, tree.RowData) for each in walk(step.type))
        if extracted != step.type and not is_row:
            self.notes.append(
                f"state {subject} becomes {describe(new)}; from Java's types Flink 2.x makes {describe(extracted)}, "
                "which does not restore it: convert to that, or let the job name the type (`Types.LIST`, `Types.MAP`)"
            )
        lost = find_lost_fields(shape.payload, new, step.expression, self.context)
        hidden = sorted(set(lost) - set(step.discard))
        if hidden:
            raise MigrationError(
                f"{describe(new)} cannot store {', '.join(hidden)}", hint="List them in `discard` if they may go"
            )
        unknown = sorted(set(step.discard) - set(lost))
        if unknown:
            raise MigrationError(f"`discard` names {', '.join(unknown)}, which the value keeps or never had")
        self._note(subject, step.discard, "discarded by `convert`")
        if step.expression is None and follows_protocol(shape.payload, new, self.context):
            return Apply(flow, flows.Reserialize(), self._with_payload(shape, new))
        columns = None if step.expression else convert_fields(shape.payload, new, self.context)
        if columns is not None:
            return Apply(flow, flows.Project(columns), self._with_payload(shape, new))
        sql = step.expression or convert_by_name(shape.payload, new, self.context)
        over_null = step.expression is not None and not list_columns(shape.payload, self.context)
        stage = flows.Replace(sql, over_null, step.nondeterministic)
        return Apply(flow, stage, self._with_payload(shape, new))

    def _ttl(self, subject: str, flow: Flow, step: st.TtlStep) -> Flow:
        shape, time = flow.shape, step.enable or step.shift
        if shape.ttl == (step.enable is not None):
            raise MigrationError(f"the state has {'' if shape.ttl else 'no '}TTL already")
        if step.disable is not None:
            self._note(subject, ["ttl_last_access"], step.disable)
        return Apply(flow, flows.SetAccessTime(time), shape.with_ttl(enabled=time is not None))

    def _require_free(self, name: str) -> None:
        if name in self.states:
            raise MigrationError(f"there is a state {name} already", hint="Rename or drop that one first")

    def _put(self, olds: Collection[str], news: Mapping[str, Flow]) -> None:
        """Replace old states by new ones, which take the position of the first old one in the order of the states."""
        states: dict[str, Flow] = {}
        placed = False
        for name, flow in self.states.items():
            if name not in olds:
                states[name] = flow
            elif not placed:
                states.update(news)
                placed = True
        self.states = states

    def _split(self, subject: str, flow: Flow, step: st.Split) -> str:
        used: set[str] = set()
        news: dict[str, Flow] = {}
        for target in step.into:
            name = make_java_name(target.name, flow.shape)
            if name != subject:
                self._require_free(name)
            with at(state=name):
                news[name], fields = plan_split_target(flow, target, step, self.context)
            used |= fields
        names = [name for name in list_columns(flow.shape.payload, self.context) if name not in ("class", "row_kind")]
        hidden = sorted(set(names) - used - set(step.discard))
        if hidden:
            raise MigrationError(
                f"none of the new states has {', '.join(hidden)}", hint="List them in `discard` if they may go"
            )
        self._note(subject, step.discard, "discarded by `split`")
        self._put([subject], news)
        return next(iter(news))

    def _merge(self, subject: str, flow: Flow, step: st.Merge) -> str:
        others = [find_java_name(name, self.states) for name in step.others]
        flows = {subject: flow} | {name: self._complete(self._find(name)) for name in others}
        into = make_java_name(step.into, flow.shape)
        for each in flows.values():
            require_meaning(step, each.shape)
        if into not in flows:
            self._require_free(into)
        kinds = {
            (StateKind.VALUE if each.shape.kind in KEYED_KINDS[3:] else each.shape.kind) for each in flows.values()
        }
        is_beside = flow.shape.kind == StateKind.MAP and kinds == {StateKind.MAP, StateKind.VALUE}
        if (len(kinds) > 1 and not is_beside) or kinds == {StateKind.LIST}:
            raise MigrationError(
                f"states of kind {', '.join(sorted(kinds))} have no common entries to merge",
                hint="`kind` makes VALUE states of them first",
            )
        for name, each in flows.items():
            for what, one, other in (
                ("namespace", flow.shape.namespace, each.shape.namespace),
                ("user key", flow.shape.map_key, each.shape.map_key),
            ):
                is_entry = what == "user key" and each.shape.kind != StateKind.MAP and is_beside
                if one != other and not is_entry:
                    raise MigrationError(f"{subject} and {name} have different serializers of the {what}")
        payload = adopt_python_payload(flow.shape.payload, resolve_type(step.type, self.context))
        shape = self._with_payload(flow.shape.with_name(into), payload)
        kind = StateKind.MAP if is_beside else next(iter(kinds))
        shape = shape.with_kind(kind, shape.payload, shape.map_key)
        # If values are joined to a map, the result has the access times of the entries of the map.
        shape = shape.with_ttl(enabled=flow.shape.ttl if is_beside else any(each.shape.ttl for each in flows.values()))
        # The user's SQL names the state of a Python function as the Python code does, without PyFlink's prefix.
        named = tuple((python_name(each.shape.info) or name, each) for name, each in flows.items())
        merged = StateMerge(named, step.expression, shape, step.nondeterministic, own_keys=step.own_keys)
        self._put(list(flows), {into: merged})
        return into

    def _filter_keys(self, step: st.Filter, by: str) -> None:
        keyed = self._list_keyed()
        name = find_java_name(by, keyed)
        if name not in keyed or keyed[name].shape.kind == StateKind.TIMER:
            states = ", ".join(each for each, flow in keyed.items() if flow.shape.kind != StateKind.TIMER)
            raise MigrationError(
                f"`by` names {by}, which is no keyed state", hint=f"Keyed states are {states or 'none'}"
            )
        stage = flows.KeepKeys(
            self._complete(keyed[name]), step.keep, step.reason, step.missing != "drop", step.nondeterministic
        )
        for each, flow in keyed.items():
            flow = self._complete(flow)
            self.states[each] = Apply(flow, stage, flow.shape)

    def _list_keyed(self) -> dict[str, Flow]:
        """Return all keyed states and timers: a step on keys changes all of them.

        Raises:
            MigrationError: there are none.
            UnsupportedError: a state is of a kind whose key cannot be changed.
        """
        keyed = {name: flow for name, flow in self.states.items() if flow.shape.is_keyed}
        if not keyed:
            raise MigrationError("the operator has no keyed state, whose key could change")
        for name, flow in keyed.items():
            if flow.shape.kind not in (*KEYED_KINDS, StateKind.TIMER):
                raise UnsupportedError(f"the key of {flow.shape.kind} state cannot be changed", where=Where(state=name))
        return keyed

    def _rekey(self, step: st.Key) -> None:
        shapes = {name: flow.shape for name, flow in self.states.items()}
        key, sql = wrap_python_key(resolve_type(step.type, self.context), step.expression, shapes)
        kind = payload_type(key, self.context)
        try:
            hash_codes(key, pa.array([], kind))
        except (UnsupportedError, UsageError) as error:
            raise MigrationError(
                f"{describe(key)} cannot be a key here: {error.what}",
                hint="Flink derives the key group of a key from its hashCode(), which must be known",
            ) from None
        keyed = self._list_keyed()
        rules = {find_java_name(name, keyed): rule for name, rule in step.on_equal}
        unknown = sorted(set(rules) - set(keyed))
        if unknown:
            raise MigrationError(f"`on_equal` names {', '.join(unknown)}", hint=f"States are {', '.join(keyed)}")
        sessions = find_session_states({name: flow.shape for name, flow in keyed.items()})
        if sessions is not None:
            sessions.require_followed(nondeterministic=step.nondeterministic)
            if sessions.windows in rules:
                raise MigrationError(
                    f"`on_equal` names {sessions.windows}, whose sessions are merged as in Flink where they overlap",
                    hint=f"Name the contents: {', '.join(sessions.contents) or 'there are none'}",
                )
        for name, flow in keyed.items():
            flow = self._complete(flow)
            followed = _follow(sessions, name, keyed)
            stage = flows.Rekey(sql, rules.get(name, flows.EqualKeys.ERROR), step.nondeterministic, followed)
            self.states[name] = Apply(flow, stage, flow.shape.with_key(key))

    def _filter(self, subject: str, flow: Flow, step: st.Filter) -> Flow:
        """Apply a `filter` step; leave out the entries in other states of sessions that lose all their contents."""
        filtered = Apply(flow, flows.Keep(step.keep, step.reason, step.nondeterministic), flow.shape)
        sessions = find_session_states({name: each.shape for name, each in self.states.items()})
        if sessions is None or subject not in (sessions.windows, *sessions.contents):
            return filtered
        if subject == sessions.windows:
            raise MigrationError(
                f"{subject} cannot be filtered: a session is dropped when all its contents are",
                hint=f"Filter {', '.join(sessions.contents) or 'another state'}",
            )
        sessions.require_followed(nondeterministic=step.nondeterministic)
        before = dict(self.states)
        others = [name for name in sessions.roles if name != subject]
        for name in others:
            followed = _follow(sessions, name, before)
            assert followed is not None
            stage = flows.Follow(followed, flow, filtered, step.reason)
            self.states[name] = Apply(before[name], stage, before[name].shape)
        self.notes.append(
            f"sessions whose contents in {subject} are all left out are dropped, with their entries in "
            f"{', '.join(others)}"
        )
        return filtered


def _follow(sessions: SessionStates | None, name: str, states: Mapping[str, Flow]) -> flows.Sessions | None:
    """Return the sessions that the rows of a state belong to; None if they belong to none."""
    role = None if sessions is None else sessions.roles.get(name)
    if sessions is None or role is None:
        return None
    return flows.Sessions(states[sessions.windows], role)


def describe_copied(flow: Read, own: StateMetaInfo, before: StateShape) -> StateMetaInfo:
    """Return the meta info for a state whose records are copied as bytes.

    Args:
        flow: the flow of the state.
        own: meta info in the file of one subtask; it is kept unless the migration changes names in the serializers.
        before: shape of the state that the migration was planned with.
    """
    if flow.shape.info == replace(before.info, name=flow.shape.name):
        return replace(own, name=flow.shape.name)
    return flow.shape.info


def make_context(snapshot: SnapshotFiles, shapes: Mapping[str, StateShape]) -> PlanContext:
    """Make the planning context of a snapshot, for states with the given shapes."""
    serializers = [*snapshot.list_keyed_serializers()]
    serializers += [serializer for shape in shapes.values() for _, serializer in shape.info.serializers]
    nodes = [node for serializer in serializers for node in walk(serializer)]
    kryos = tuple(dict.fromkeys(node for node in nodes if isinstance(node, tree.Kryo)))
    declared = tuple(dict.fromkeys(node for node in nodes if isinstance(node, tree.Declared)))
    layouts = keep_undecodable(snapshot.layout_context)
    return PlanContext(layouts, tuple(known_sql_types(nodes).items()), kryos, declared)


def find_changes(migration: Migration, operator: Operator) -> tuple[Change, ...]:
    """Return the changes of a migration that are for the given operator."""
    snapshot, own = operator.snapshot, operator.metadata.operator_id
    return tuple(each for each in migration.changes if snapshot.find_operator(each.operator).operator_id == own)


def plan_operator(operator: Operator, shapes: Mapping[str, StateShape], chain: Chain) -> OperatorPlan:
    """Plan the migration of an operator of a snapshot; see `plan_migrations`.

    Raises:
        MigrationError: as `plan_migrations`.
    """
    changes = [change for migration, _ in chain for change in find_changes(migration, operator)]
    called = {change.operator for change in changes}
    try:
        context = make_context(operator.snapshot, shapes)
        context = replace(context, connectors=tuple(find_connectors(operator, changes)))
        return plan_migrations(shapes, chain, operators=called, context=context)
    except StateError as error:
        error.where = replace(error.where, operator=operator.label)
        if unread := explain_unread(operator):
            error.hint = f"{error.hint}; its operator state cannot be read ({unread})".removeprefix("; ")
        raise
