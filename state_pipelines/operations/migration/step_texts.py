"""Steps as the entries of a migration file: the mirror of `parsing`."""

from __future__ import annotations

from typing import Any

from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.step_parser import JAVA_TYPES
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import spell

_PRIMITIVES: dict[str, str] = {word: name for name, word in JAVA_TYPES.items() if name[0].islower()}


def dump_step(step: st.Step) -> dict[str, Any]:
    """The entry of a file that gives `step` again."""
    match step:
        case st.Rename(names=names):
            return {"rename": dict(names)}
        case st.Add():
            body: dict[str, Any] = {"field": step.field, "type": _field_type(step), "expression": step.expression}
            return {"add": body | _flag(step)}
        case st.Cast():
            body = {"field": step.field, "to": _field_type(step)}
            return {"cast": body | _given(expression=step.expression) | _flag(step)}
        case st.Drop(field=field):
            return {"drop": {"field": field}}
        case st.Set():
            return {"set": {"field": step.field, "expression": step.expression} | _flag(step)}
        case st.Reorder(names=names, path=path):
            return {"reorder": {"path": path, "names": list(names)} if path else list(names)}
        case st.Convert(type=of, expression=expression, discard=discard):
            body = (
                {"avro": of.schema_json, "class": of.runtime_class} if isinstance(of, tree.Avro) else {"to": _type(of)}
            )
            return {"convert": body | _given(expression=expression, discard=list(discard)) | _flag(step)}
        case st.RenameClass(names=names):
            return {"rename_class": dict(names)}
        case st.Collections(types=types):
            return {"collections": {name: spell(of) for name, of in types}}
        case st.Filter():
            missing = None if step.keeps_missing else "drop"
            return {"filter": _given(by=step.by, keep=step.keep, missing=missing, reason=step.reason) | _flag(step)}
        case st.TtlStep(action=action, expression=expression, reason=reason):
            return {"ttl": {str(action): expression or reason}}
        case st.Kind():
            return {"kind": _dump_kind(step)}
        case st.RenameState(name=name):
            return {"rename_state": name}
        case st.RenameStates(names=names):
            return {"rename_state": dict(names)}
        case st.Fill():
            body = {"field": step.field, "table": step.table, "keys": dict(step.keys), "value": step.value}
            return {"fill": body}
        case st.CopyState(name=name):
            return {"copy_state": name}
        case st.Columns(columns=columns):
            return {"columns": {each.name: _dump_column(each) for each in columns}}
        case st.DropState(reason=reason):
            return {"drop_state": {"reason": reason}}
        case st.Split(into=into, discard=discard):
            targets = {each.name: _dump_target(each) for each in into}
            return {"split": {"into": targets} | _given(discard=list(discard)) | _flag(step)}
        case st.Merge():
            merged: dict[str, Any] = {"with": list(step.others), "into": step.into, "type": _type(step.type)}
            return {"merge": merged | {"expression": step.expression} | _flag(step)}
        case st.Key():
            body = {"type": _type(step.type), "expression": step.expression}
            return {"key": body | _given(on_equal=dict(step.on_equal)) | _flag(step)}
        case st.Python():
            to = None if step.type is None else _type(step.type)
            return {"python": {"function": step.function, **_given(to=to), "deterministic": step.deterministic}}


def _dump_kind(step: st.Kind) -> dict[str, Any]:
    of = None if step.type is None else _type(step.type)
    body: dict[str, Any] = {"to": str(step.to)}
    if step.key_type is None:
        given = _given(type=of, expression=step.expression, discard=list(step.discard))
        return body | given | _flag(step)
    body["map_key"] = {"type": _type(step.key_type), "expression": step.key_expression}
    if step.on_equal != "error":
        body["map_key"]["on_equal"] = step.on_equal
    return body | _given(value=_given(type=of, expression=step.expression)) | _flag(step)


def _dump_column(column: st.RowColumn) -> dict[str, str] | str:
    if column.type is None:
        return column.expression
    return {"type": column.type.text, "expression": column.expression}


def _dump_target(target: st.SplitTarget) -> dict[str, Any]:
    of = None if target.type is None else _type(target.type)
    given = _given(type=of, expression=target.expression)
    return _given(fields=list(target.fields)) | given | ({"class": target.class_name} if target.class_name else {})


def _given(**entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value not in (None, [], {})}


def _flag(step: Any) -> dict[str, Any]:
    return {"nondeterministic": True} if step.nondeterministic else {}


def _type(of: tree.Serializer) -> str:
    return spell(of)


def _field_type(step: st.Add | st.Cast) -> str:
    if isinstance(step.type, st.SqlType):
        return step.type.text
    text = spell(step.type)
    return _PRIMITIVES[text] if step.required else f"{text}?" if step.nullable else text
