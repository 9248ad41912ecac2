"""States that become other states: another kind, or several out of one."""

from __future__ import annotations

import re
from dataclasses import replace

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.flows import Apply, Flow
from state_pipelines.operations.migration.payload_conversion import (
    convert_by_name,
    find_lost_fields,
    list_columns,
    payload_type,
    resolve_type,
)
from state_pipelines.operations.migration.python_values import adopt_python_payload, make_java_name
from state_pipelines.operations.migration.struct_serializers import open_struct
from state_pipelines.operations.migration.structs import PlanContext, quote_name
from state_pipelines.serializers import tree
from state_pipelines.serializers.registered_states import StateKind


def plan_kind(flow: Flow, step: st.Kind, context: PlanContext) -> Flow:
    """The rows of a flow as another kind of state.

    Raises:
        MigrationError: the step lacks a required entry.
    """
    shape = flow.shape
    before = StateKind.VALUE if shape.kind not in (StateKind.LIST, StateKind.MAP) else shape.kind
    if step.to == shape.kind != StateKind.MAP:
        raise MigrationError(f"the state is {step.to} state already")
    _require_user_keys(step, before)
    if step.on_equal != flows.EqualKeys.ERROR and (before, step.to) != (StateKind.MAP, StateKind.MAP):
        raise MigrationError("`on_equal` is about user keys of a map that become the same")
    payload = shape.payload
    if step.type is not None:
        payload = adopt_python_payload(payload, resolve_type(step.type, context))
    payload_type(payload, context)
    if step.to == StateKind.VALUE and before != StateKind.VALUE and step.expression is None:
        column = "values" if before == StateKind.LIST else "entries"
        raise MigrationError(
            f"what happens to the many values of a {before} state is not said",
            hint=f"Give an expression over `{column}`",
        )
    map_key = None if step.key_type is None else resolve_type(step.key_type, context)
    new = shape.with_kind(step.to, payload, map_key)
    sql = step.expression
    if sql is None and payload != shape.payload:
        sql = convert_by_name(shape.payload, payload, context)
    if sql is None and before == step.to != StateKind.MAP:
        # REDUCING and AGGREGATING state holds what VALUE state holds, in the same bytes.
        return Apply(flow, flows.Replace("value"), new)
    if before == step.to == StateKind.VALUE:
        return Apply(flow, flows.Replace(sql or "value", False, step.nondeterministic), new)
    return Apply(flow, flows.Regroup(sql, step.key_expression, step.nondeterministic, step.on_equal), new)


def _require_user_keys(step: st.Kind, before: StateKind) -> None:
    """Refuse to lose the user keys of a map without a word.

    Raises:
        MigrationError: the step makes a list of the values alone, or discards what there is not.
    """
    names = set(re.findall(r"\w+", step.expression or ""))
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
    """One of the states that a state becomes, and the fields of the old payload that it takes.

    Raises:
        MigrationError: the part names an unknown field.
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
