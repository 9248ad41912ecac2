"""Entries of a migration file: steps out of them, and steps as them.

Types in entries may be collections, which Flink 2.x extracts from Java's generic types and Flink 1.x gives to Kryo.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, cast

from state_pipelines.codecs.avro import parse_avro_schema
from state_pipelines.errors import MigrationError, StateError, Where
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.structs import compact_schema
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import avro, list_of, map_of, nullable, set_of
from state_pipelines.serializers.python_types import parse_python_type
from state_pipelines.serializers.table_runtime import is_sql_word, parse_sql_type
from state_pipelines.serializers.text import parse, spell
from state_pipelines.serializers.tree import BasicKind, StateKind
from state_pipelines.storage.documents import read_given_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

JAVA_COLLECTIONS = {
    "java.util.List": 1,
    "java.util.Collection": 1,
    "java.lang.Iterable": 1,
    "java.util.Set": 1,
    "java.util.Map": 2,
}
"""Generic types that have serializers of their own since Flink 2.0, and how many arguments they take."""


def make_collection(name: str, arguments: Sequence[tree.Serializer]) -> tree.Serializer:
    """Make the serializer that Flink 2.x extracts from a generic type (`TypeExtractor`, `NullableListTypeInfo`).

    Args:
        name: one of `JAVA_COLLECTIONS`.
        arguments: serializers of its type arguments. Where one is a collection itself, Flink takes the outer one for a
            generic type, which goes through Kryo.
    """
    bare = [each.inner if isinstance(each, tree.Nullable) else each for each in arguments]
    if any(_is_collection(each) for each in bare):
        return tree.Kryo(type_class=name)
    if name == "java.util.Map":
        return nullable(map_of(nullable(bare[0]), arguments[1]))
    if name == "java.util.Set":
        return nullable(set_of(arguments[0]))
    return nullable(list_of(nullable(bare[0])))


def extract_like(node: tree.Serializer) -> tree.Serializer:
    """The serializer with all collections in it as Flink 2.x extracts them from Java's types."""
    bare = node.inner if isinstance(node, tree.Nullable) else node
    match bare:
        case tree.ListOf(element=element):
            return make_collection("java.util.List", [extract_like(element)])
        case tree.SetOf(element=element):
            return make_collection("java.util.Set", [extract_like(element)])
        case tree.MapOf(key=key, value=value):
            return make_collection("java.util.Map", [extract_like(key), extract_like(value)])
    changes: dict[str, Any] = {each.name: _extract_member(getattr(node, each.name)) for each in fields(node)}
    return replace(node, **changes)


def _extract_member(member: object) -> object:
    match member:
        case tree.Serializer():
            return extract_like(member)
        case (
            tree.PojoField(serializer=tree.Serializer() as inner)
            | tree.PojoSubclass(serializer=tree.Serializer() as inner)
        ):
            return replace(member, serializer=extract_like(inner))
        case tuple():
            return tuple(_extract_member(each) for each in member)
        case _:
            return member


def _is_collection(node: tree.Serializer) -> bool:
    if isinstance(node, tree.Kryo):
        return node.type_class in JAVA_COLLECTIONS
    return isinstance(node, tree.ListOf | tree.SetOf | tree.MapOf)


JAVA_TYPES = {
    "boolean": BasicKind.BOOLEAN,
    "byte": BasicKind.BYTE,
    "short": BasicKind.SHORT,
    "char": BasicKind.CHAR,
    "Character": BasicKind.CHAR,
    "int": BasicKind.INT,
    "Integer": BasicKind.INT,
    "long": BasicKind.LONG,
    "float": BasicKind.FLOAT,
    "double": BasicKind.DOUBLE,
    "BigInteger": BasicKind.BIG_INT,
    "BigDecimal": BasicKind.BIG_DEC,
}
"""Names that Java programmers write, and the word of Flink's serializer for each."""

JAVA_PRIMITIVES = frozenset({"boolean", "byte", "short", "char", "int", "long", "float", "double"})
"""Types of Java fields that cannot be null; Flink fails to set one to null."""

_SQL_WORD = re.compile(
    r"(BOOLEAN|TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL|CHAR|VARCHAR|STRING|BINARY|VARBINARY|BYTES|DATE|TIME"
    r"|TIMESTAMP|TIMESTAMP_LTZ|ARRAY|MAP|ROW|MULTISET)\b[^a-z]*"
)
_KRYO = re.compile(r"Kryo<\s*`?([\w.$\[;]+)`?\s*>")
_DECLARED = re.compile(r"Declared<\s*`?([\w.$]+)`?\s*>\s*(?:\((.*)\))?", re.DOTALL)
_GENERIC = re.compile(r"([\w.]+)<(.+)>", re.DOTALL)
_ALWAYS = "nondeterministic"


def parse_step(step: object, where: str, directory: Path) -> st.Step:
    """A step of a file.

    Args:
        step: as YAML gives it.
        where: for errors.
        directory: of schema files.

    Raises:
        MigrationError: the step is not one.
    """
    if not isinstance(step, dict) or len(step) != 1:
        raise MigrationError("a step is a mapping with one entry", where=Where(path=where))
    (name, body), *_ = step.items()
    if name not in _STEPS:
        raise MigrationError(
            f"`{name}` is not a step", where=Where(path=where), hint=f"Steps are {', '.join(sorted(_STEPS))}"
        )
    parse_body, kinds = _STEPS[name]
    if not isinstance(body, kinds):
        words: dict[type, str] = {dict: "a mapping", list: "a list", str: "a name"}
        raise MigrationError(f"`{name}` takes {' or '.join(words[each] for each in kinds)}", where=Where(path=where))
    return parse_body(_Body(body, name, where, directory))


class _Body:
    """The entry under the name of a step."""

    def __init__(self, content: Any, name: str, where: str, directory: Path) -> None:
        self.content = content
        self.name = name
        self.where = where
        self.directory = directory

    def error(self, what: str, hint: str = "") -> MigrationError:
        return MigrationError(what, where=Where(path=self.where), hint=hint)

    def allow(self, *names: str) -> None:
        unknown = sorted(str(name) for name in self.content if name not in names)
        if unknown:
            raise self.error(f"unknown entries {', '.join(unknown)}")

    def text(self, name: str) -> str:
        return take_text(self.content, name, self.where)

    def maybe(self, name: str) -> str | None:
        return self.text(name) if self.content.get(name) is not None else None

    def names(self, name: str) -> tuple[str, ...]:
        given = self.content.get(name) or []
        if not isinstance(given, list):
            raise self.error(f"`{name}` is not a list")
        return tuple(str(each) for each in given)

    def flag(self, name: str) -> bool:
        given = self.content.get(name, False)
        if not isinstance(given, bool):
            raise self.error(f"`{name}` is true or false")
        return given

    def serializer(self, name: str) -> tree.Serializer:
        return parse_type(self.text(name), self.where)

    def maybe_serializer(self, name: str) -> tree.Serializer | None:
        return self.serializer(name) if self.content.get(name) is not None else None

    def inner(self, name: str, content: object) -> _Body:
        if not isinstance(content, dict):
            raise self.error(f"`{name}` is not a mapping")
        return _Body(content, name, f"{self.where}, {name}", self.directory)


def _rename(body: _Body) -> st.Step:
    if not body.content:
        raise body.error("`rename` names no field")
    for new in map(str, body.content.values()):
        if not new or not new.isprintable():
            raise body.error(f"{new!a} is not a name")
    return st.Rename(tuple((str(old), str(new)) for old, new in body.content.items()))


def _add(body: _Body) -> st.Step:
    body.allow("field", "type", "expression", "default", _ALWAYS)
    if ("expression" in body.content) == ("default" in body.content):
        raise body.error("`add` takes either an expression or a default")
    given = "expression" in body.content
    expression = str(body.content["expression"]) if given else make_literal(body.content["default"], body.where)
    kind = body.text("type")
    of = parse_field_type(kind, body.where)
    optional = kind.endswith("?")
    return st.Add(body.text("field"), of, expression, kind in JAVA_PRIMITIVES, optional, body.flag(_ALWAYS))


def _cast(body: _Body) -> st.Step:
    body.allow("field", "to", "expression", _ALWAYS)
    field, kind = body.text("field"), body.text("to")
    of = parse_field_type(kind, body.where)
    required, optional = kind in JAVA_PRIMITIVES, kind.endswith("?")
    return st.Cast(field, of, body.maybe("expression"), required, optional, body.flag(_ALWAYS))


def _drop(body: _Body) -> st.Step:
    body.allow("field")
    return st.Drop(body.text("field"))


def _set(body: _Body) -> st.Step:
    body.allow("field", "expression", _ALWAYS)
    return st.Set(body.text("field"), body.text("expression"), body.flag(_ALWAYS))


def _reorder(body: _Body) -> st.Step:
    if isinstance(body.content, list):
        return st.Reorder(tuple(str(each) for each in body.content))
    body.allow("path", "names")
    return st.Reorder(body.names("names"), body.maybe("path") or "")


def _convert(body: _Body) -> st.Step:
    body.allow("to", "avro", "class", "expression", "discard", _ALWAYS)
    if ("to" in body.content) == ("avro" in body.content):
        raise body.error("`convert` takes either `to` or `avro`")
    of = body.serializer("to") if "to" in body.content else _read_avro(body)
    return st.Convert(of, body.maybe("expression"), body.names("discard"), body.flag(_ALWAYS))


def _read_avro(body: _Body) -> tree.Serializer:
    given = body.content["avro"]
    try:
        text = given if isinstance(given, str) and given.lstrip().startswith("{") else None
        schema = text if text is not None else read_given_text(_locate_schema(body), f"the schema {given}")
    except StateError as error:
        raise body.error(error.what) from None
    try:
        parse_avro_schema(schema)
    except StateError as error:
        raise body.error(f"{given} is not an Avro schema: {error.what}") from None
    return avro(body.maybe("class") or "org.apache.avro.generic.GenericRecord", compact_schema(schema))


def _locate_schema(body: _Body) -> Path:
    """Return the file of a schema, which is below the directory of the migration file: others are not its to read."""
    file = body.directory / str(body.content["avro"])
    if not file.resolve().is_relative_to(body.directory.resolve()):
        raise body.error(f"the schema {file} is not below the directory of the migration file", "Copy it there")
    return file


def _rename_class(body: _Body) -> st.Step:
    if not body.content:
        raise body.error("`rename_class` names no class")
    return st.RenameClass(tuple((str(old), str(new)) for old, new in body.content.items()))


def _collections(body: _Body) -> st.Step:
    if not body.content:
        raise body.error("`collections` names no field")
    return st.Collections(
        tuple((str(name), parse_type(str(of), body.where, collections=True)) for name, of in body.content.items())
    )


def _filter(body: _Body) -> st.Step:
    body.allow("keep", "reason", "by", "missing", _ALWAYS)
    by, missing = body.maybe("by"), body.maybe("missing")
    if missing is not None and by is None:
        raise body.error("`missing` is about keys without an entry in the state of `by`", "Add `by: STATE`")
    if missing not in (None, "keep", "drop"):
        raise body.error(f"`missing` is {missing}", "Write keep (the default) or drop")
    return st.Filter(body.text("keep"), body.text("reason"), body.flag(_ALWAYS), by, missing != "drop")


def _ttl(body: _Body) -> st.Step:
    body.allow(*st.TtlAction)
    if len(body.content) != 1:
        raise body.error("`ttl` takes one of enable, disable and shift")
    ((name, given),) = body.content.items()
    action = st.TtlAction(name)
    if action is st.TtlAction.DISABLE:
        return st.TtlStep(action, reason=body.text(action))
    if isinstance(given, datetime):
        # Dates of YAML without a zone are UTC.
        moment = given if given.tzinfo else given.replace(tzinfo=UTC)
        return st.TtlStep(action, f"TIMESTAMP '{moment.isoformat(' ')}'")
    if isinstance(given, date):
        return st.TtlStep(action, f"TIMESTAMP '{given.isoformat()} 00:00:00+00:00'")
    return st.TtlStep(action, body.text(action))


def _kind(body: _Body) -> st.Step:
    body.allow("to", "type", "expression", "discard", "map_key", "value", _ALWAYS)
    word = body.text("to").upper()
    if word not in (StateKind.VALUE, StateKind.LIST, StateKind.MAP):
        raise body.error(f"{word} is not a kind of state", "Kinds are VALUE, LIST and MAP")
    to = StateKind(word)
    if to != StateKind.MAP:
        body.allow("to", "type", "expression", "discard", _ALWAYS)
        of, expression = body.maybe_serializer("type"), body.maybe("expression")
        return st.Kind(to, of, expression, None, None, body.flag(_ALWAYS), body.names("discard"))
    body.allow("to", "map_key", "value", _ALWAYS)
    key = body.inner("map_key", body.content.get("map_key"))
    key.allow("type", "expression", "on_equal")
    value = body.inner("value", body.content.get("value") or {})
    value.allow("type", "expression")
    return st.Kind(
        to,
        value.maybe_serializer("type"),
        value.maybe("expression"),
        key.serializer("type"),
        key.text("expression"),
        body.flag(_ALWAYS),
        on_equal=key.maybe("on_equal") or "error",
    )


def _rename_state(body: _Body) -> st.Step:
    if not isinstance(body.content, dict):
        return st.RenameState(body.content)
    names = tuple((str(old), str(new)) for old, new in body.content.items())
    if not names or len({new for _, new in names}) < len(names):
        raise body.error("`rename_state` takes other names by old name, each once")
    return st.RenameStates(names)


def _copy_state(body: _Body) -> st.Step:
    return st.CopyState(body.content)


def _columns(body: _Body) -> st.Step:
    columns = []
    for name, given in body.content.items():
        each = body.inner(str(name), {"expression": given} if not isinstance(given, dict) else given)
        each.allow("type", "expression")
        text = each.maybe("type")
        if text is not None and not _names_sql_type(text):
            raise each.error(f"{text!r} is no SQL type")
        columns.append(st.RowColumn(str(name), each.text("expression"), None if text is None else st.SqlType(text)))
    if not columns:
        raise body.error("`columns` names no column")
    return st.Columns(tuple(columns))


def _fill(body: _Body) -> st.Step:
    body.allow("field", "table", "keys", "value")
    keys = body.inner("keys", body.content.get("keys")).content
    if not keys:
        raise body.error("`keys` names no field of the key")
    pairs = tuple((str(field), str(column)) for field, column in keys.items())
    return st.Fill(body.text("field"), body.text("table"), pairs, body.text("value"))


def _drop_state(body: _Body) -> st.Step:
    body.allow("reason")
    return st.DropState(body.text("reason"))


def _split(body: _Body) -> st.Step:
    body.allow("into", "discard", _ALWAYS)
    into = body.content.get("into")
    if not isinstance(into, dict) or not into:
        raise body.error("`into` is not a mapping of states")
    return st.Split(
        tuple(_split_target(str(name), body.inner(str(name), each)) for name, each in into.items()),
        body.names("discard"),
        body.flag(_ALWAYS),
    )


def _split_target(name: str, body: _Body) -> st.SplitTarget:
    body.allow("fields", "type", "expression", "class")
    if bool(body.content.get("fields")) == ("type" in body.content):
        raise body.error("a part takes either `fields` or `type`")
    fields = body.names("fields")
    return st.SplitTarget(name, fields, body.maybe_serializer("type"), body.maybe("expression"), body.maybe("class"))


def _merge(body: _Body) -> st.Step:
    body.allow("with", "into", "type", "expression", "own_keys", _ALWAYS)
    others = body.names("with")
    if not others:
        raise body.error("`with` names no state")
    into, of, expression = body.text("into"), body.serializer("type"), body.text("expression")
    return st.Merge(others, into, of, expression, body.flag(_ALWAYS), body.flag("own_keys"))


def _key(body: _Body) -> st.Step:
    body.allow("type", "expression", "on_equal", _ALWAYS)
    rules = body.inner("on_equal", body.content.get("on_equal") or {}).content
    on_equal = tuple((str(name), str(rule)) for name, rule in rules.items())
    return st.Key(body.serializer("type"), body.text("expression"), on_equal, body.flag(_ALWAYS))


def _python(body: _Body) -> st.Step:
    body.allow("function", "to", "deterministic")
    function = body.content.get("function")
    if not callable(function):
        function = body.text("function")
        module, _, name = function.partition(":")
        if not module or not name:
            raise body.error(f"{function!r} is not of the form module:name")
    if "deterministic" not in body.content:
        raise body.error(
            "`python` does not say whether its function is deterministic",
            "`deterministic: true` means that it gives the same for the same rows, `false` that it need not",
        )
    return st.Python(function, body.maybe_serializer("to"), body.flag("deterministic"))


_STEPS: dict[str, tuple[Callable[[_Body], st.Step], tuple[type, ...]]] = {
    "rename": (_rename, (dict,)),
    "add": (_add, (dict,)),
    "cast": (_cast, (dict,)),
    "drop": (_drop, (dict,)),
    "set": (_set, (dict,)),
    "reorder": (_reorder, (list, dict)),
    "columns": (_columns, (dict,)),
    "convert": (_convert, (dict,)),
    "rename_class": (_rename_class, (dict,)),
    "collections": (_collections, (dict,)),
    "fill": (_fill, (dict,)),
    "filter": (_filter, (dict,)),
    "ttl": (_ttl, (dict,)),
    "kind": (_kind, (dict,)),
    "rename_state": (_rename_state, (str, dict)),
    "copy_state": (_copy_state, (str,)),
    "drop_state": (_drop_state, (dict,)),
    "split": (_split, (dict,)),
    "merge": (_merge, (dict,)),
    "key": (_key, (dict,)),
    "python": (_python, (dict,)),
}


def take_text(body: object, name: str, where: str) -> str:
    """The text under `name`.

    Raises:
        MigrationError: there is none.
    """
    value = body.get(name) if isinstance(body, Mapping) else None
    if value is None or isinstance(value, dict | list):
        raise MigrationError(f"`{name}` is missing", where=Where(path=where))
    return str(value)


_PYTHON_TYPE = re.compile(
    r"Types\.|(ROW|TUPLE|ARRAY|PRIMITIVE_ARRAY|MAP)<|PICKLED|(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|BOOLEAN|STRING"
    r"|BYTES|DECIMAL|DATE|TIME|TIMESTAMP|INSTANT)\b"
)
"""Types of PyFlink (see `serializers.python_types`)."""


def parse_field_type(text: str, where: str) -> st.FieldType:
    """The type of a field: a serializer, or a SQL type in capitals."""
    if text.startswith("Types."):
        return _parse_python(text, where)
    if _SQL_WORD.fullmatch(text) or _names_sql_type(text):
        return st.SqlType(text)
    return parse_type(text, where)


def _names_sql_type(text: str) -> bool:
    try:
        parse_sql_type(text)
    except StateError:
        return False
    return text.lstrip()[:1].isupper() and is_sql_word(re.split(r"\W", text.strip(), maxsplit=1)[0])


def _drop_labels(node: Any) -> Any:
    """The serializer without names of columns, which migrations number."""
    if isinstance(node, tree.RowData):
        node = replace(node, labels=None)
    if isinstance(node, tuple):
        return tuple(map(_drop_labels, node))
    if not isinstance(node, tree.Serializer) or isinstance(node, tree.Pojo):
        return node
    return replace(node, **{each.name: _drop_labels(getattr(node, each.name)) for each in fields(node) if each.init})


def parse_type(text: str, where: str, *, collections: bool = False) -> tree.Serializer:
    """A type of a file: Java's word, a generic type, the readable form of a serializer, `Kryo<c>`, `Declared<c>`.

    Args:
        text: the type; a `?` after it is ignored here.
        where: for errors.
        collections: bare `ELEMENT` and `KEY, VALUE` stand for a list and a map of them.

    Raises:
        MigrationError: it is none.
    """
    plain = text.strip().removesuffix("?")
    if kryo := _KRYO.fullmatch(plain):
        return tree.Kryo(type_class=kryo[1])
    if declared := _DECLARED.fullmatch(plain):
        # Its snapshot is that of the snapshot that is migrated (`resolve_type`).
        return tree.Declared(
            snapshot_class=declared[1], unknown_class=declared[1], raw=None, layout=(declared[2] or "").strip()
        )
    if (generic := _GENERIC.fullmatch(plain)) and generic[1] in JAVA_COLLECTIONS:
        arguments = [parse_type(each, where) for each in _split_arguments(generic[2])]
        if len(arguments) != JAVA_COLLECTIONS[generic[1]]:
            raise MigrationError(f"{text!r} has {len(arguments)} type arguments", where=Where(path=where))
        return make_collection(generic[1], arguments)
    plain = plain.removeprefix("java.lang.") if plain.count(".") == 2 else plain
    word = re.compile(rf"(?<![\w.#`$])({'|'.join(JAVA_TYPES)})(?![\w.:#`$])")
    try:
        if not collections:
            if _PYTHON_TYPE.match(plain):
                return _parse_python(plain, where)
            return cast("tree.Serializer", _drop_labels(parse(JAVA_TYPES.get(plain, plain))))
        plain = word.sub(lambda found: JAVA_TYPES[found[1]], plain)
        if re.match(r"(List|Set|Map)<", plain):
            return parse(plain)
        try:
            return parse(f"List<{plain}>")
        except StateError:
            return parse(f"Map<{plain}>")
    except StateError as error:
        if _PYTHON_TYPE.match(plain):
            return _parse_python(plain, where)
        raise MigrationError(f"{text!r} is not a type: {error.what}", where=Where(path=where)) from None


def _parse_python(text: str, where: str) -> tree.Serializer:
    try:
        return parse_python_type(text)
    except StateError as error:
        raise MigrationError(error.what, where=Where(path=where), hint=error.hint) from None


def _split_arguments(text: str) -> list[str]:
    """Type arguments, at the commas that no brackets enclose."""
    found, depth = [""], 0
    for each in text:
        depth += (each in "<(") - (each in ">)")
        if each == "," and not depth:
            found.append("")
        else:
            found[-1] += each
    return [each.strip() for each in found]


def make_literal(value: object, where: str) -> str:
    """A default as Spark SQL.

    Raises:
        MigrationError: there is no literal for it.
    """
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return f"{value!r}D" if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case _:
            raise MigrationError(
                "a default is a number, text, true, false or null", where=Where(path=where), hint="Use an expression"
            )


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
            own = {"own_keys": True} if step.own_keys else {}
            return {"merge": merged | {"expression": step.expression} | own | _flag(step)}
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
