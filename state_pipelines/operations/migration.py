"""Migrations: what a file says is to be done with the values of a state, and what becomes of their serializer.

A migration file is YAML: `revision`, `description`, `operator`, `state`, `upgrade` and `downgrade` (lists of steps) and
`loss` (fields that a downgrade cannot bring back, with the reason). A step is one of

    - rename: {old: new, ...}
    - add: {field: name, type: Integer, expression: "SQL"}      # or `default: value`
    - cast: {field: name, to: Double, expression: "SQL"}        # without expression: CAST(name AS type)
    - drop: {field: name}

Expressions are Spark SQL over the fields as the steps before have left them, and over the columns `state_key`,
`state_namespace` and `map_key`. Types are Flink's (`text.parse`) or Java's (`Integer`, `String`, `long`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from state_pipelines.errors import MigrationError, StateError, Where
from state_pipelines.serializers import tree
from state_pipelines.serializers.metainfo import VALUE_SERIALIZER, StateMetaInfo
from state_pipelines.serializers.text import parse

JAVA_TYPES = {
    "boolean": "Boolean",
    "byte": "Byte",
    "short": "Short",
    "char": "Char",
    "Character": "Char",
    "int": "Int",
    "Integer": "Int",
    "long": "Long",
    "float": "Float",
    "double": "Double",
    "BigInteger": "BigInt",
    "BigDecimal": "BigDec",
}
"""Names that Java programmers write, and the word of Flink's serializer for each."""

JAVA_PRIMITIVES = frozenset({"boolean", "byte", "short", "char", "int", "long", "float", "double"})
"""Types of Java fields that cannot be null; Flink fails to set one to null."""

UPGRADE = "upgrade"
DOWNGRADE = "downgrade"


@dataclass(frozen=True)
class Rename:
    """Fields get other names; their bytes stay."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Add:
    """A new field with the value of an expression (a literal when the file gives a default).

    Attributes:
        required: the type is a primitive of Java, which has no null.
    """

    field: str
    type: tree.Serializer
    expression: str
    required: bool = False


@dataclass(frozen=True)
class Cast:
    """A field gets another type; without expression by SQL's CAST. `required` as of `Add`."""

    field: str
    type: tree.Serializer
    expression: str | None
    required: bool = False


@dataclass(frozen=True)
class Drop:
    """A field goes."""

    field: str


Step = Rename | Add | Cast | Drop


@dataclass(frozen=True)
class Loss:
    """A field whose values a downgrade does not bring back, and why that is accepted."""

    field: str
    reason: str


@dataclass(frozen=True)
class Migration:
    """A migration file.

    Attributes:
        revision: its name in the history of the job.
        operator: uid, id or name.
        state: state name.
        losses: fields that upgrade and downgrade together do not bring back.
        fingerprint: SHA-256 of the file, 16 hexadecimal digits.
        path: the file.
    """

    revision: str
    description: str
    operator: str
    state: str
    upgrade: tuple[Step, ...]
    downgrade: tuple[Step, ...]
    losses: tuple[Loss, ...]
    fingerprint: str
    path: str

    def steps(self, direction: str) -> tuple[Step, ...]:
        """The steps of `UPGRADE` or `DOWNGRADE`."""
        return self.upgrade if direction == UPGRADE else self.downgrade

    def opposite(self, direction: str) -> tuple[Step, ...]:
        """The steps that take the other direction back."""
        return self.downgrade if direction == UPGRADE else self.upgrade


@dataclass(frozen=True)
class Projection:
    """What one step makes of the fields: (name, SQL over the fields before it), in the new order."""

    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ValuePlan:
    """What a chain of steps makes of a value.

    Attributes:
        old: the serializer of the value (element, map value).
        new: its serializer afterwards.
        projections: one per step.
    """

    old: tree.Pojo
    new: tree.Pojo
    projections: tuple[Projection, ...]


def load_migration(path: str | Path) -> Migration:
    """Read a migration file.

    Raises:
        MigrationError: the file is not a migration; names the file and the place in it.
    """
    where = Where(file=str(path))
    try:
        raw = Path(path).read_bytes()
        content = yaml.safe_load(raw)
    except OSError as error:
        raise MigrationError(f"the migration file cannot be read: {error.strerror}", where=where) from None
    except yaml.YAMLError as error:
        raise MigrationError(f"the migration file is not YAML: {error}", where=where) from None
    if not isinstance(content, dict):
        raise MigrationError("the migration file is not a mapping", where=where)
    try:
        return _parse_migration(content, hashlib.sha256(raw).hexdigest()[:16], str(path))
    except StateError as error:
        if error.where.file is None:
            error.where = replace(error.where, file=str(path))
        raise


def plan_value(serializer: tree.Serializer, steps: tuple[Step, ...]) -> ValuePlan:
    """What `steps` make of values that `serializer` writes.

    Raises:
        MigrationError: the serializer is not a POJO, or a step does not fit its fields.
    """
    if not isinstance(serializer, tree.Pojo):
        raise MigrationError(
            f"steps on fields need a POJO, the state holds a {type(serializer).__name__}",
            hint="Migrate states whose value, element or map value is a POJO",
        )
    if serializer.registered or serializer.non_registered:
        raise MigrationError(f"{serializer.pojo_class} has subclasses, which steps do not reach yet")
    fields = {each.name: each for each in serializer.fields}
    projections = []
    for number, step in enumerate(steps, 1):
        try:
            fields, projection = _apply(step, fields, serializer.pojo_class)
        except MigrationError as error:
            error.where = replace(error.where, path=f"step {number}")
            raise
        projections.append(projection)
    ordered = tuple(sorted(fields.values(), key=lambda each: each.name))
    return ValuePlan(serializer, replace(serializer, fields=ordered), tuple(projections))


def payload_serializer(info: StateMetaInfo) -> tree.Serializer:
    """The serializer that steps work on: of the value, the list element, or the map value; inside TTL, if any."""
    value: tree.Serializer = info.value_serializer
    if info.state_type == "LIST":
        value = info.element
    elif isinstance(value, tree.MapOf):
        value = value.value
    return value.inner if isinstance(value, tree.Ttl | tree.TtlAware) else value


def replace_payload(info: StateMetaInfo, payload: tree.Serializer) -> StateMetaInfo:
    """`info` with another payload serializer (see `payload_serializer`)."""
    old = info.value_serializer
    new = _replace_inside(old, payload_serializer(info), payload)
    serializers = tuple((key, new if key == VALUE_SERIALIZER else each) for key, each in info.serializers)
    return replace(info, serializers=serializers)


def _replace_inside(node: tree.Serializer, old: tree.Serializer, new: tree.Serializer) -> tree.Serializer:
    if node is old:
        return new
    match node:
        case tree.ListOf(element=element):
            return replace(node, element=_replace_inside(element, old, new))
        case tree.MapOf(value=value):
            return replace(node, value=_replace_inside(value, old, new))
        case tree.Ttl(inner=inner) | tree.TtlAware(inner=inner):
            return replace(node, inner=_replace_inside(inner, old, new))
        case _:
            return node


def _apply(
    step: Step, fields: dict[str, tree.PojoField], pojo_class: str
) -> tuple[dict[str, tree.PojoField], Projection]:
    columns = {name: quote_name(name) for name in fields}
    after = dict(fields)
    match step:
        case Rename(names=names):
            for old, _ in names:
                _require(old, fields)
            renamed = dict(names)
            after = {renamed.get(name, name): each for name, each in fields.items()}
            columns = {renamed.get(name, name): quote_name(name) for name in fields}
            if len(after) != len(fields):
                raise MigrationError("a field would get the name of another one", hint="Drop that one first")
            after = {name: replace(each, name=name) for name, each in after.items()}
        case Add(field=name):
            if name in fields:
                raise MigrationError(f"there is a field {name} already", hint="Use `cast` to change it")
            after[name] = tree.PojoField(name=name, declaring_class=pojo_class, serializer=step.type)
            columns[name] = _required(step.expression, step)
        case Cast(field=name):
            _require(name, fields)
            after[name] = replace(fields[name], serializer=step.type)
            columns[name] = _required(step.expression or quote_name(name), step)
        case Drop(field=name):
            _require(name, fields)
            del after[name], columns[name]
    return after, Projection(tuple(columns.items()))


def _require(name: str, fields: Mapping[str, object]) -> None:
    if name not in fields:
        raise MigrationError(f"there is no field {name}", hint=f"The fields are {', '.join(sorted(fields))}")


def _required(sql: str, step: Add | Cast) -> str:
    if not step.required:
        return sql
    message = f"field {step.field} is a primitive and cannot be null"
    return f"coalesce({sql}, raise_error('{message}'))"


def quote_name(name: str) -> str:
    """A column name for Spark SQL, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _parse_migration(content: dict[str, Any], fingerprint: str, path: str) -> Migration:
    known = {"revision", "description", "operator", "state", "upgrade", "downgrade", "loss"}
    unknown = sorted(str(name) for name in content if name not in known)
    if unknown:
        raise MigrationError(f"unknown entries {', '.join(unknown)}", hint=f"Known are {', '.join(sorted(known))}")
    if not isinstance(content.get("loss") or [], list):
        raise MigrationError("`loss` is not a list")
    losses = tuple(
        Loss(_text(each, "field", f"loss {number}"), _text(each, "reason", f"loss {number}"))
        for number, each in enumerate(content.get("loss") or (), 1)
    )
    return Migration(
        revision=_text(content, "revision", "the file"),
        description=str(content.get("description", "")),
        operator=_text(content, "operator", "the file"),
        state=_text(content, "state", "the file"),
        upgrade=_parse_steps(content, UPGRADE),
        downgrade=_parse_steps(content, DOWNGRADE),
        losses=losses,
        fingerprint=fingerprint,
        path=path,
    )


def _parse_steps(content: dict[str, Any], direction: str) -> tuple[Step, ...]:
    steps = content.get(direction)
    if not isinstance(steps, list) or not steps:
        raise MigrationError(f"`{direction}` is not a list of steps")
    return tuple(_parse_step(step, f"{direction} {number}") for number, step in enumerate(steps, 1))


def _parse_step(step: object, place: str) -> Step:
    if not isinstance(step, dict) or len(step) != 1:
        raise MigrationError("a step is a mapping with one entry", where=Where(path=place))
    (kind, body), *_ = step.items()
    if not isinstance(body, dict):
        raise MigrationError(f"`{kind}` takes a mapping", where=Where(path=place))
    match kind:
        case "rename":
            if not body:
                raise MigrationError("`rename` names no field", where=Where(path=place))
            return Rename(tuple((str(old), str(new)) for old, new in body.items()))
        case "add":
            _allow(body, {"field", "type", "expression", "default"}, place)
            if ("expression" in body) == ("default" in body):
                raise MigrationError("`add` takes either an expression or a default", where=Where(path=place))
            expression = str(body["expression"]) if "expression" in body else _literal(body["default"], place)
            kind = _text(body, "type", place)
            return Add(_text(body, "field", place), _type(kind, place), expression, kind in JAVA_PRIMITIVES)
        case "cast":
            _allow(body, {"field", "to", "expression"}, place)
            sql = body.get("expression")
            field = _text(body, "field", place)
            kind = _text(body, "to", place)
            return Cast(field, _type(kind, place), None if sql is None else str(sql), kind in JAVA_PRIMITIVES)
        case "drop":
            _allow(body, {"field"}, place)
            return Drop(_text(body, "field", place))
        case _:
            raise MigrationError(
                f"`{kind}` is not a step", where=Where(path=place), hint="Steps are rename, add, cast and drop"
            )


def _allow(body: dict[str, Any], names: set[str], place: str) -> None:
    unknown = sorted(str(name) for name in body if name not in names)
    if unknown:
        raise MigrationError(f"unknown entries {', '.join(unknown)}", where=Where(path=place))


def _text(body: Mapping[str, Any], name: str, place: str) -> str:
    value = body.get(name) if isinstance(body, Mapping) else None
    if value is None or isinstance(value, dict | list):
        raise MigrationError(f"`{name}` is missing", where=Where(path=place))
    return str(value)


def _type(text: str, place: str) -> tree.Serializer:
    try:
        return parse(JAVA_TYPES.get(text.removesuffix("?"), text.removesuffix("?")))
    except StateError as error:
        raise MigrationError(f"{text!r} is not a type: {error.what}", where=Where(path=place)) from None


def _literal(value: object, place: str) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return f"{value!r}D"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case _:
            raise MigrationError(
                "a default is a number, text, true, false or null", where=Where(path=place), hint="Use an expression"
            )
