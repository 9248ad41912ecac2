"""Serializers of new state: given as text, as a tree or as a dataclass, or inferred from the type of a column."""

from __future__ import annotations

import datetime
import types
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from state_pipelines.errors import UsageError
from state_pipelines.serializers.build import basic, list_of, map_of, pojo, row
from state_pipelines.serializers.kryo import KryoConfig
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import BasicKind, Serializer

GivenType = Serializer | str | type
"""A type as users give it: a serializer, its readable text, or a dataclass with the attribute `java_class`."""

JAVA_CLASS = "java_class"
"""Attribute of a dataclass: the binary name of the POJO class that it stands for."""

_ARROW_KINDS = {
    pa.bool_(): BasicKind.BOOLEAN,
    pa.int8(): BasicKind.BYTE,
    pa.int16(): BasicKind.SHORT,
    pa.int32(): BasicKind.INT,
    pa.int64(): BasicKind.LONG,
    pa.float32(): BasicKind.FLOAT,
    pa.float64(): BasicKind.DOUBLE,
    pa.string(): BasicKind.STRING,
    pa.large_string(): BasicKind.STRING,
    pa.binary(): BasicKind.BYTE_PRIMITIVE_ARRAY,
    pa.large_binary(): BasicKind.BYTE_PRIMITIVE_ARRAY,
    pa.date32(): BasicKind.LOCAL_DATE,
}

_PYTHON_KINDS: dict[object, str] = {
    str: BasicKind.STRING,
    int: BasicKind.LONG,
    float: BasicKind.DOUBLE,
    bool: BasicKind.BOOLEAN,
    bytes: BasicKind.BYTE_PRIMITIVE_ARRAY,
    datetime.date: BasicKind.LOCAL_DATE,
}


def resolve_type(given: GivenType | None, column: pa.DataType | None, name: str) -> Serializer:
    """The serializer of a column.

    Args:
        given: what the user gives; None to infer it.
        column: Arrow type of the column; None where there is none.
        name: of the column, for errors.

    Raises:
        UsageError: the text is no serializer, the dataclass no POJO, or nothing follows from the type of the column.
    """
    if isinstance(given, Serializer):
        return given
    if isinstance(given, str):
        return _parse(given)
    if given is not None:
        return type_of_dataclass(given)
    if column is None:
        raise UsageError(f"the type of {name} is not known", hint="Give it, such as String or List<Long>")
    return infer_type(column, name)


def _parse(text: str) -> Serializer:
    """Parse a type; registrations of Kryo are those of a job without entries in `pipeline.serialization-config`."""
    return parse(text, KryoConfig().configure)


def infer_type(column: pa.DataType, name: str) -> Serializer:
    """The serializer that Flink chooses for the Java values of a column; a struct becomes a Row.

    Raises:
        UsageError: Java has several types for such values.
    """
    if column in _ARROW_KINDS:
        return basic(_ARROW_KINDS[column])
    if pa.types.is_struct(column):
        return row(*(infer_type(each.type, f"{name}.{each.name}") for each in column))
    if pa.types.is_list(column) or pa.types.is_large_list(column):
        return list_of(infer_type(column.value_type, f"{name}[]"))
    if pa.types.is_map(column):
        return map_of(infer_type(column.key_type, f"{name}{{key}}"), infer_type(column.item_type, f"{name}{{value}}"))
    hint = "Give its serializer as text, as `state-pipelines inspect` prints it"
    if pa.types.is_timestamp(column):
        hint = (
            "Java has several types for it: Instant, SqlTimestamp, LocalDateTime, or a Long of milliseconds; give one"
        )
    elif pa.types.is_decimal(column):
        hint = "Give BigDec and the value as text (CAST(… AS STRING)), or DecimalData of SQL"
    raise UsageError(f"no serializer follows from the type {column} of {name}", hint=hint)


def type_of_dataclass(given: type) -> Serializer:
    """The POJO serializer of a dataclass with the attribute `java_class`.

    Types of fields: `str`, `int` (Long), `float` (Double), `bool`, `bytes`, `date`, such a dataclass, any of them
    `| None`, or `Annotated[…, "Int"]` with the text of a serializer.

    Raises:
        UsageError: it is not such a dataclass, or the serializer of a field does not follow from its type.
    """
    name = getattr(given, JAVA_CLASS, None)
    if not is_dataclass(given) or not isinstance(name, str):
        raise UsageError(
            f"{given!r} is no type of state",
            hint=f"Give the text of a serializer, or a dataclass with the class attribute {JAVA_CLASS}",
        )
    hints = get_type_hints(given, include_extras=True)
    return pojo(name, {each.name: _type_of_hint(hints[each.name], f"{name}.{each.name}") for each in fields(given)})


def _type_of_hint(hint: Any, name: str) -> Serializer:
    if get_origin(hint) is Annotated:
        texts = [each for each in hint.__metadata__ if isinstance(each, str)]
        return _parse(texts[0]) if texts else _type_of_hint(get_args(hint)[0], name)
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [each for each in get_args(hint) if each is not type(None)]
        if len(kinds) == 1:
            return _type_of_hint(kinds[0], name)
    if hint in _PYTHON_KINDS:
        return basic(_PYTHON_KINDS[hint])
    if isinstance(hint, type) and is_dataclass(hint):
        return type_of_dataclass(hint)
    raise UsageError(
        f"no serializer follows from the type {hint} of {name}",
        hint='Say it: Annotated[…, "Nullable<List<Nullable<Long>>>"], for example',
    )
