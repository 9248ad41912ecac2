"""Types and defaults as migration files spell them.

They may be collections, which Flink 2.x extracts from Java's generic types and Flink 1.x gives to Kryo.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import list_of, map_of, nullable, set_of
from state_pipelines.serializers.python_types import parse_python_type
from state_pipelines.serializers.table_runtime import is_sql_word, parse_sql_type
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SqlType:
    """A SQL type of the table runtime, such as `BIGINT`: the type of a field of a `RowData`.

    Attributes:
        text: name of the type, such as `describe_type` writes.
    """

    text: str


FieldType = tree.Serializer | SqlType

JAVA_COLLECTIONS = {
    "java.util.List": 1,
    "java.util.Collection": 1,
    "java.lang.Iterable": 1,
    "java.util.Set": 1,
    "java.util.Map": 2,
}
"""Generic types that have serializers of their own since Flink 2.0, and their numbers of type arguments."""


def make_collection(name: str, arguments: Sequence[tree.Serializer]) -> tree.Serializer:
    """Make the serializer that Flink 2.x extracts from a generic type (`TypeExtractor`, `NullableListTypeInfo`).

    Args:
        name: one of `JAVA_COLLECTIONS`.
        arguments: serializers of the type arguments. If one of them is a collection itself, Flink treats the outer
            type as a generic type, which Kryo serializes.
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
    """Return a serializer in which all collections have the serializers that Flink 2.x extracts from Java's types."""
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
"""Names of types in Java, each with the kind of Flink's serializer for it."""

JAVA_PRIMITIVES = frozenset({"boolean", "byte", "short", "char", "int", "long", "float", "double"})
"""Types of Java fields that cannot be null: Flink fails when it restores a null into such a field."""

_SQL_WORD = re.compile(
    r"(BOOLEAN|TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL|CHAR|VARCHAR|STRING|BINARY|VARBINARY|BYTES|DATE|TIME"
    r"|TIMESTAMP|TIMESTAMP_LTZ|ARRAY|MAP|ROW|MULTISET)\b[^a-z]*"
)
_KRYO = re.compile(r"Kryo<\s*`?([\w.$\[;]+)`?\s*>")
_DECLARED = re.compile(r"Declared<\s*`?([\w.$]+)`?\s*>\s*(?:\((.*)\))?", re.DOTALL)
_GENERIC = re.compile(r"([\w.]+)<(.+)>", re.DOTALL)

_PYTHON_TYPE = re.compile(
    r"Types\.|(ROW|TUPLE|ARRAY|PRIMITIVE_ARRAY|MAP)<|PICKLED|(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|BOOLEAN|STRING"
    r"|BYTES|DECIMAL|DATE|TIME|TIMESTAMP|INSTANT)\b"
)
"""Types of PyFlink (see `serializers.python_types`)."""


def parse_field_type(text: str) -> FieldType:
    """Parse the type of a field: that of a serializer, or a SQL type in capitals."""
    if text.startswith("Types."):
        return _parse_python(text)
    if _SQL_WORD.fullmatch(text) or _names_sql_type(text):
        return SqlType(text)
    return parse_type(text)


def parse_column_type(text: str) -> SqlType:
    """Parse the SQL type of a column of a row.

    Raises:
        MigrationError: the text is no SQL type.
    """
    if not _names_sql_type(text):
        raise MigrationError(f"{text!r} is no SQL type")
    return SqlType(text)


def _names_sql_type(text: str) -> bool:
    try:
        parse_sql_type(text)
    except StateError:
        return False
    return text.lstrip()[:1].isupper() and is_sql_word(re.split(r"\W", text.strip(), maxsplit=1)[0])


def _drop_labels(node: Any) -> Any:
    """Return the serializer without names of columns: migrations name columns by position."""
    if isinstance(node, tree.RowData):
        node = replace(node, labels=None)
    if isinstance(node, tuple):
        return tuple(map(_drop_labels, node))
    if not isinstance(node, tree.Serializer) or isinstance(node, tree.Pojo):
        return node
    return replace(node, **{each.name: _drop_labels(getattr(node, each.name)) for each in fields(node) if each.init})


def parse_type(text: str, *, collections: bool = False) -> tree.Serializer:
    """Parse a type of a migration file to a serializer.

    It may be a type of Java such as `int`, a generic type such as `java.util.List<Long>`, the readable form of a
    serializer, `Kryo<CLASS>`, `Declared<CLASS>` or a type of PyFlink.

    Args:
        text: the type; a `?` after it is ignored here.
        collections: whether the text is that of a collection: `ELEMENT` is a list, and `KEY, VALUE` a map.

    Raises:
        MigrationError: the text is no type.
    """
    plain = text.strip().removesuffix("?")
    if kryo := _KRYO.fullmatch(plain):
        return tree.Kryo(type_class=kryo[1])
    if declared := _DECLARED.fullmatch(plain):
        # `resolve_type` replaces this later by the serializer of the class in the snapshot that is migrated.
        return tree.Declared(
            snapshot_class=declared[1], unknown_class=declared[1], raw=None, layout=(declared[2] or "").strip()
        )
    if (generic := _GENERIC.fullmatch(plain)) and generic[1] in JAVA_COLLECTIONS:
        arguments = [parse_type(each) for each in _split_arguments(generic[2])]
        if len(arguments) != JAVA_COLLECTIONS[generic[1]]:
            raise MigrationError(f"{text!r} has the wrong number of type arguments, {len(arguments)}")
        return make_collection(generic[1], arguments)
    plain = plain.removeprefix("java.lang.") if plain.count(".") == 2 else plain
    word = re.compile(rf"(?<![\w.#`$])({'|'.join(JAVA_TYPES)})(?![\w.:#`$])")
    try:
        if not collections:
            if _PYTHON_TYPE.match(plain):
                return _parse_python(plain)
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
            return _parse_python(plain)
        raise MigrationError(f"{text!r} is not a type: {error.what}") from None


def _parse_python(text: str) -> tree.Serializer:
    try:
        return parse_python_type(text)
    except StateError as error:
        raise MigrationError(error.what, hint=error.hint) from None


def _split_arguments(text: str) -> list[str]:
    """Split type arguments at the commas outside of brackets."""
    found, depth = [""], 0
    for each in text:
        depth += (each in "<(") - (each in ">)")
        if each == "," and not depth:
            found.append("")
        else:
            found[-1] += each
    return [each.strip() for each in found]


def make_literal(value: object) -> str:
    """Make the Spark SQL literal of a default value.

    Raises:
        MigrationError: there is no literal for the value.
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
            raise MigrationError("a default is a number, text, true, false or null", hint="Use an expression")
