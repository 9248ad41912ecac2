"""Steps as entries of a migration file: a mapping of the name of the step to what `steps` declares for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from state_pipelines.codecs.avro import parse_avro_schema
from state_pipelines.errors import MigrationError, StateError, Where
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.step_types import JAVA_PRIMITIVES, JAVA_TYPES, make_literal
from state_pipelines.operations.migration.structs import compact_schema
from state_pipelines.operations.models import Refusal
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import avro
from state_pipelines.serializers.tree import StateKind
from state_pipelines.storage.documents import read_given_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

_FLAGS = ("required", "nullable")
"""Fields of `Add` and `Cast` that are no entries of a file: they follow from the text of the type."""


@dataclass(frozen=True)
class _Entry:
    """Entry of a migration file for a kind of step.

    Attributes:
        name: name of the step in the file.
        kind: class of the step.
        whole: for an entry whose content is the value of one field (`rename_state: NAME`): the name of that field in
            the class. Empty for an entry that names its fields (`drop: {field: NAME}`).
        noun: noun for the elements of a `whole` that is a mapping, for the error if it is empty.
    """

    name: str
    kind: Any
    whole: str = ""
    noun: str = ""


_ENTRIES = (
    _Entry("rename", st.Rename, "names", "field"),
    _Entry("add", st.Add),
    _Entry("cast", st.Cast),
    _Entry("drop", st.Drop),
    _Entry("set", st.Set),
    _Entry("reorder", st.Reorder),
    _Entry("columns", st.Columns, "columns", "column"),
    _Entry("convert", st.Convert),
    _Entry("rename_class", st.RenameClass, "names", "class"),
    _Entry("collections", st.Collections, "types", "field"),
    _Entry("fill", st.Fill),
    _Entry("filter", st.Filter),
    _Entry("ttl", st.TtlStep),
    _Entry("kind", st.Kind),
    _Entry("rename_state", st.RenameState, "name"),
    _Entry("rename_state", st.RenameStates, "names", "state"),
    _Entry("copy_state", st.CopyState, "name"),
    _Entry("drop_state", st.DropState),
    _Entry("split", st.Split),
    _Entry("merge", st.Merge),
    _Entry("key", st.Key),
    _Entry("python", st.Python),
)
STEPS = tuple(dict.fromkeys(each.name for each in _ENTRIES))
"""Names of steps."""


@cache
def _adapt(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse_step(step: object, where: str, directory: Path) -> st.Step:
    """Make a step of a migration from its entry in a migration file.

    Args:
        step: the entry, as YAML is parsed.
        where: position of the entry in the file, for errors.
        directory: directory of schema files.

    Raises:
        MigrationError: the entry is no valid step.
    """
    if not isinstance(step, dict) or len(step) != 1:
        raise MigrationError("a step is a mapping with one entry", where=Where(path=where))
    (name, body), *_ = step.items()
    entries = [each for each in _ENTRIES if each.name == name]
    if not entries:
        raise MigrationError(
            f"`{name}` is not a step", where=Where(path=where), hint=f"Steps are {', '.join(sorted(STEPS))}"
        )
    entry = next((each for each in entries if isinstance(body, _find_type(each))), None)
    if name == "reorder" and isinstance(body, list):
        entry, body = entries[0], {"names": body}
    if entry is None:
        words: dict[type, str] = {dict: "a mapping", str: "a name"}
        taken = [*(["a list"] if name == "reorder" else []), *(words[_find_type(each)] for each in entries)]
        raise MigrationError(f"`{name}` takes {' or '.join(taken)}", where=Where(path=where))
    try:
        body = _read_body(entry, _name_by_texts(body), directory)
        made = _adapt(entry.kind).validate_python({entry.whole: body} if entry.whole else body)
        return _complete(entry, made, body)
    except ValidationError as error:
        raise explain(error, where, body, entry.whole) from None
    except MigrationError as error:
        error.where = replace(error.where, path=", ".join(filter(None, (where, error.where.path))))
        raise


def _find_type(entry: _Entry) -> type:
    return str if entry.whole == "name" else dict


def _name_by_texts(content: Any) -> Any:
    """Convert the keys of mappings to text, because YAML parses some names as numbers."""
    if not isinstance(content, dict):
        return content
    return {str(name): _name_by_texts(value) for name, value in content.items()}


def _read_body(entry: _Entry, body: Any, directory: Path) -> Any:
    """Replace the shorthands of an entry (`default`, `avro`) by the fields of the step."""
    unknown = [name for name in _FLAGS if entry.kind in (st.Add, st.Cast) and name in body]
    if unknown:
        raise MigrationError(f"unknown entries {', '.join(unknown)}")
    if entry.kind is st.Add:
        if ("expression" in body) == ("default" in body):
            raise MigrationError("`add` takes either an expression or a default")
        if "default" in body:
            rest = {name: value for name, value in body.items() if name != "default"}
            return rest | {"expression": make_literal(body["default"])}
    if entry.kind is st.Convert:
        if ("to" in body) == ("avro" in body):
            raise MigrationError("`convert` takes either `to` or `avro`")
        if "avro" in body:
            rest = {name: value for name, value in body.items() if name not in ("avro", "class")}
            return rest | {"to": _read_avro(body["avro"], body.get("class"), directory)}
    return body


def _read_avro(given: object, class_name: object, directory: Path) -> tree.Serializer:
    """Make the Avro serializer for a schema: its JSON, or a file below the directory of the migration file."""
    try:
        if isinstance(given, str) and given.lstrip().startswith("{"):
            schema = given
        else:
            file = directory / str(given)
            if not file.resolve().is_relative_to(directory.resolve()):
                raise MigrationError(
                    f"the schema {file} is not below the directory of the migration file", hint="Copy it there"
                )
            schema = read_given_text(file, f"the schema {given}")
    except StateError as error:
        raise MigrationError(error.what, hint=error.hint) from None
    try:
        parse_avro_schema(schema)
    except StateError as error:
        raise MigrationError(f"{given} is not an Avro schema: {error.what}") from None
    if isinstance(class_name, dict | list):
        raise MigrationError("`class` is not text")
    name = str(class_name) if class_name else "org.apache.avro.generic.GenericRecord"
    return avro(name, compact_schema(schema))


def _complete(entry: _Entry, made: st.Step, body: Any) -> st.Step:
    """Check rules that the annotations of fields cannot express, and set the flags that follow from a type's text."""
    if entry.noun and not getattr(made, entry.whole):
        raise MigrationError(f"`{entry.name}` names no {entry.noun}")
    match made:
        case st.Add() | st.Cast():
            text = str(body["type" if isinstance(made, st.Add) else "to"])
            return replace(made, required=text in JAVA_PRIMITIVES, nullable=text.endswith("?"))
        case st.Filter(by=None, missing=str()):
            raise MigrationError(
                "`missing` is about keys without an entry in the state of `by`", hint="Add `by: STATE`"
            )
        case st.TtlStep() if len(body) != 1:
            raise MigrationError("`ttl` takes one of enable, disable and shift")
        case st.TtlStep(enable=None, disable=None, shift=None):
            raise MigrationError(f"`{next(iter(body))}` has no value")
        case st.Kind(to=StateKind.MAP):
            _refuse(body, "type", "expression", "discard")
            if made.map_key is None:
                raise MigrationError("`map_key` is missing")
        case st.Kind():
            _refuse(body, "map_key", "value")
        case st.RenameStates(names=names) if len({new for _, new in names}) < len(names):
            raise MigrationError("`rename_state` gives one new name to several states")
        case st.Fill(keys=()):
            raise MigrationError("`keys` is empty")
        case st.Merge(others=()):
            raise MigrationError("`with` is empty")
        case st.Split(into=targets):
            if not targets:
                raise MigrationError("`into` is empty")
            for each in targets:
                if bool(each.fields) == ("type" in body["into"][each.name]):
                    raise MigrationError("a state takes either `fields` or `type`", where=Where(path=each.name))
    return made


def _refuse(body: Mapping[str, Any], *names: str) -> None:
    unknown = sorted(name for name in names if name in body)
    if unknown:
        raise MigrationError(f"unknown entries {', '.join(unknown)}")


def explain(error: ValidationError, where: str, body: object, whole: str = "") -> MigrationError:
    """Make an error with the position of a mistake in a file from an error of pydantic.

    Args:
        error: the error of pydantic.
        where: position of the entry that was validated.
        body: content of the entry.
        whole: name of the field, if the content is the value of a single one (see `_Entry`); else empty.
    """
    errors = error.errors(include_url=False)
    unknown = [each for each in errors if each["type"] == "unexpected_keyword_argument"]
    first = (unknown or errors)[0]
    *parents, last = _name_location(first["loc"], {whole: body} if whole else body)
    parents = [each for each in parents if each != whole]
    position = Where(path=", ".join([where, *parents]))
    if unknown:
        names = sorted(str(each["loc"][-1]) for each in unknown if each["loc"][:-1] == first["loc"][:-1])
        return MigrationError(f"unknown entries {', '.join(names)}", where=position)
    what, hint = _word(first, last)
    return MigrationError(what, where=position, hint=hint)


def _word(error: ErrorDetails, name: str) -> tuple[str, str]:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing" if name == "deterministic":
            hint = "`deterministic: true`: the function gives the same rows for the same input; `false`: not always"
            return "`python` does not say whether its function is deterministic", hint
        case "missing" | "string_type":
            return f"`{name}` is missing", ""
        case "bool_type":
            return f"`{name}` is true or false", ""
        case "tuple_type":
            return f"`{name}` is not a list", ""
        case "dict_type" | "dataclass_type":
            return f"`{name}` is not a mapping", ""
        case "literal_error":
            return f"`{name}` is {error['input']}", f"Write {context['expected']}".replace("'", "")
        case _ if isinstance(refusal := context.get("error"), Refusal):
            return refusal.error.what, refusal.error.hint
        case _:
            return f"`{name}`: {error['msg']}", ""


def _name_location(location: Sequence[int | str], body: object) -> list[str]:
    """Return the names on the path to a value in an entry.

    A mapping in the file is validated as a list of its entries. So pydantic's location names an entry by the name of
    the mapping and an index. This function replaces both by the name of the entry.
    """
    names: list[str] = []
    last: int | str = ""
    for each in location:
        if isinstance(each, str):
            names.append(each)
            body = body.get(each) if isinstance(body, Mapping) else None
        elif isinstance(body, Mapping) and isinstance(last, str):
            names[-1] = list(body)[each]
            body = body[names[-1]]
        # A second number is an index in a pair (name, value), and is left out.
        last = each
    return names or [""]


_PRIMITIVES: dict[str, str] = {word: name for name, word in JAVA_TYPES.items() if name[0].islower()}


def dump_step(step: st.Step) -> dict[str, Any]:
    """Return the entry of a file that `parse_step` turns into `step`."""
    entry = next(each for each in _ENTRIES if each.kind is type(step))
    body = _adapt(entry.kind).dump_python(step, by_alias=True, exclude_defaults=True)
    match step:
        case st.Add() | st.Cast():
            name = "type" if isinstance(step, st.Add) else "to"
            if isinstance(step.type, tree.Serializer):
                body[name] = _PRIMITIVES[body[name]] if step.required else f"{body[name]}{'?' * step.nullable}"
            body = {name: value for name, value in body.items() if name not in _FLAGS}
        case st.Convert(type=tree.Avro() as of):
            rest = {name: value for name, value in body.items() if name != "to"}
            body = {"avro": of.schema_json, "class": of.runtime_class} | rest
        case st.Reorder(path=""):
            body = body["names"]
        case st.Split():
            names = [each.name for each in step.into]
            body["into"] = dict(zip(names, body["into"], strict=True))
    return {entry.name: body[entry.whole] if entry.whole else body}


def make_schema() -> dict[str, Any]:
    """Make the JSON schema of a step, with the definitions that it refers to under `$defs`."""
    names: dict[str, list[_Entry]] = {}
    for entry in _ENTRIES:
        names.setdefault(entry.name, []).append(entry)
    definitions: dict[str, Any] = {}
    options = []
    for name, entries in names.items():
        schemas = [_make_schema(each, definitions) for each in entries]
        found = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        options.append(make_object({name: found}, name))
    return {"anyOf": options, "$defs": definitions}


def _make_schema(entry: _Entry, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _adapt(entry.kind).json_schema()
    definitions |= schema.pop("$defs", {})
    own = {name: each for name, each in schema["properties"].items() if name not in _FLAGS}
    required = schema.get("required", [])
    if entry.whole:
        return {**own[entry.whole], "title": schema["title"], "description": schema["description"]}
    if entry.kind is st.Add:
        own["default"] = {"description": "A literal, in place of an expression."}
        required = ["field", "type"]
    elif entry.kind is st.Convert:
        own["avro"] = {"type": "string", "description": "An Avro schema or a file with it, in place of `to`."}
        own["class"] = {"type": "string", "description": "Class of the Avro records."}
        required = []
    elif entry.kind is st.Split:
        target = definitions.pop(st.SplitTarget.__name__)
        fields = {name: each for name, each in target["properties"].items() if name != st.ENTRY_NAME}
        inner = make_object(fields) | {"description": target["description"]}
        own["into"] = {"type": "object", "additionalProperties": inner, "description": own["into"]["description"]}
    made = make_object(own, *required) | {"title": schema["title"], "description": schema["description"]}
    return {"anyOf": [own["names"], made]} if entry.kind is st.Reorder else made


def make_object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Make the JSON schema of a mapping with these entries and no others; `required` are names of required ones."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
