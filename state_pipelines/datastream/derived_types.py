"""Types from serializers, their readable text, dataclasses, and schemas of Arrow."""

from __future__ import annotations

import datetime
import decimal
import types
import typing
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from state_pipelines.datastream.avro_types import AvroTypeInfo
from state_pipelines.datastream.durations import Instant
from state_pipelines.datastream.field_types import PojoTypeInfo, RowTypeInfo, TupleTypeInfo
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    EnumTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    SetTypeInfo,
    StoredTypeInfo,
    TypeInformation,
    WrappedTypeInfo,
)
from state_pipelines.errors import UsageError
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

_SCALARS: dict[Any, BasicKind] = {
    bool: BasicKind.BOOLEAN,
    int: BasicKind.LONG,
    float: BasicKind.DOUBLE,
    str: BasicKind.STRING,
    bytes: BasicKind.BYTE_PRIMITIVE_ARRAY,
    decimal.Decimal: BasicKind.BIG_DEC,
    datetime.date: BasicKind.LOCAL_DATE,
    datetime.time: BasicKind.LOCAL_TIME,
    datetime.datetime: BasicKind.LOCAL_DATE_TIME,
    Instant: BasicKind.INSTANT,
}
"""Type of a dataclass field -> kind of the serializer."""

_ARROW: tuple[tuple[Callable[[pa.DataType], bool], BasicKind], ...] = (
    (pa.types.is_boolean, BasicKind.BOOLEAN),
    (pa.types.is_int8, BasicKind.BYTE),
    (pa.types.is_int16, BasicKind.SHORT),
    (pa.types.is_int32, BasicKind.INT),
    (pa.types.is_int64, BasicKind.LONG),
    (pa.types.is_float32, BasicKind.FLOAT),
    (pa.types.is_float64, BasicKind.DOUBLE),
    (pa.types.is_string, BasicKind.STRING),
    (pa.types.is_large_string, BasicKind.STRING),
    (pa.types.is_binary, BasicKind.BYTE_PRIMITIVE_ARRAY),
    (pa.types.is_large_binary, BasicKind.BYTE_PRIMITIVE_ARRAY),
    (pa.types.is_decimal, BasicKind.BIG_DEC),
    (pa.types.is_date32, BasicKind.LOCAL_DATE),
    (pa.types.is_time, BasicKind.LOCAL_TIME),
)


def derive_type(description: Any) -> TypeInformation:
    """Return the type that a description names (see `Types.of`).

    Raises:
        UsageError: it names none.
    """
    match description:
        case TypeInformation():
            return description
        case tree.Serializer():
            return derive_serializer_type(description)
        case str():
            return derive_serializer_type(parse(description))
        case pa.Schema() | pa.DataType():
            return derive_arrow_type(description)
        case type() if is_dataclass(description):
            return derive_dataclass_row(description)
        case _:
            raise UsageError(
                f"{description!r:.80} does not name a type",
                hint="Give a type of Types, a serializer or its text, a dataclass, or a schema of Arrow",
            )


def derive_serializer_type(serializer: tree.Serializer) -> TypeInformation:
    """Return the type of the values of a serializer; those without a form in Python are left as they are stored."""
    derive = derive_serializer_type
    match serializer:
        case tree.Basic(kind=kind):
            found: TypeInformation = BasicTypeInfo(kind)
        case tree.ListOf(element=element):
            found = ListTypeInfo(derive(element))
        case tree.SetOf(element=element):
            found = SetTypeInfo(derive(element))
        case tree.GenericArray(element=element):
            inner = derive(element)
            found = ArrayTypeInfo(inner)
            if isinstance(inner, StoredTypeInfo):
                # The array names the class of its elements, which a serializer of a user does not.
                return WrappedTypeInfo(serializer, found)
        case tree.MapOf(key=key, value=value):
            found = MapTypeInfo(derive(key), derive(value))
        case tree.Tuple(fields=fields, tuple_class=name):
            found = TupleTypeInfo(tuple(map(derive, fields)), name)
        case tree.Row(fields=fields):
            found = RowTypeInfo(tuple(map(derive, fields)))
        case tree.Enum():
            found = EnumTypeInfo(serializer)
        case tree.Nullable(inner=inner):
            found = WrappedTypeInfo(serializer, derive(inner))
        case tree.Avro():
            found = AvroTypeInfo(serializer)
        case tree.Pojo():
            found = _derive_pojo_type(serializer)
        case _:
            found = StoredTypeInfo(serializer)
    # Other releases write other versions and class names; the given serializer is the one to register.
    return found if found.serializer == serializer else WrappedTypeInfo(serializer, found)


def _derive_pojo_type(serializer: tree.Pojo) -> TypeInformation:
    subclasses = (*serializer.registered, *serializer.non_registered)
    is_known = all(each.serializer is not None for each in serializer.fields)
    if not is_known or not all(isinstance(each.serializer, tree.Pojo) for each in subclasses):
        return StoredTypeInfo(serializer)
    fields = tuple(
        (each.name, derive_serializer_type(each.serializer)) for each in serializer.fields if each.serializer
    )
    derived = tuple(_derive_pojo_type(each.serializer) for each in subclasses if isinstance(each.serializer, tree.Pojo))
    flat = [each for of in derived if isinstance(of, PojoTypeInfo) for each in (of, *of.subclasses)]
    return PojoTypeInfo(serializer, fields, tuple(replace(each, subclasses=()) for each in flat))


def derive_dataclass_row(python_class: type) -> RowTypeInfo:
    """Return a Row with the fields of a dataclass; objects of the class are read.

    Raises:
        UsageError: a field has no type in Flink.
    """
    fields = _derive_fields(python_class)
    return RowTypeInfo(tuple(fields.values()), tuple(fields), python_class)


def derive_dataclass_pojo(python_class: type, pojo_class: str) -> PojoTypeInfo:
    """Return a POJO with the fields of a dataclass; objects of the class are read.

    Fields that are lists and maps have the serializers that Flink 2.x gives them; up to 1.20 they are Kryo.

    Raises:
        UsageError: the class is no dataclass, or a field has no type in Flink.
    """
    if not is_dataclass(python_class):
        raise UsageError(f"{python_class.__name__} is not a dataclass", hint="Give a dataclass, or fields by name")
    types = {name: _nullable_collection(each) for name, each in _derive_fields(python_class).items()}
    serializer = build.pojo(pojo_class, {name: each.serializer for name, each in types.items()})
    ordered = tuple((each.name, types[each.name]) for each in serializer.fields)
    return PojoTypeInfo(serializer, ordered, (), python_class)


def _nullable_collection(of: TypeInformation) -> TypeInformation:
    """Return the type that a POJO field of a collection has in Flink 2.x (`TypeExtractor`)."""
    match of:
        case ArrayTypeInfo():
            return of
        case SetTypeInfo():
            inner: TypeInformation = SetTypeInfo(_nullable_collection(of.elem_type))
        case ListTypeInfo(elem_type=element):
            inner = ListTypeInfo(_nullable(_nullable_collection(element)))
        case MapTypeInfo(key_type=key, value_type=value):
            inner = MapTypeInfo(_nullable(_nullable_collection(key)), _nullable_collection(value))
        case _:
            return of
    return _nullable(inner)


def _nullable(of: TypeInformation) -> TypeInformation:
    if isinstance(of, WrappedTypeInfo):
        return of
    return WrappedTypeInfo(build.nullable(of.serializer), of)


def _derive_fields(python_class: type) -> dict[str, TypeInformation]:
    hints = typing.get_type_hints(python_class, include_extras=True)
    found: dict[str, TypeInformation] = {}
    for each in fields(python_class):
        try:
            found[each.name] = _derive_hint(hints[each.name])
        except UsageError as error:
            raise UsageError(f"field {each.name} of {python_class.__name__}: {error.what}", hint=error.hint) from None
    return found


def _derive_hint(hint: Any) -> TypeInformation:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return BasicTypeInfo(_SCALARS[hint])
    if origin is Annotated:
        return derive_type(arguments[1])
    if origin in (typing.Union, types.UnionType):
        chosen = [each for each in arguments if each is not type(None)]
        if len(chosen) == 1:
            return _derive_hint(chosen[0])
    if origin is list:
        return ListTypeInfo(_derive_hint(arguments[0]))
    if origin is set:
        return SetTypeInfo(_derive_hint(arguments[0]))
    if origin is dict:
        return MapTypeInfo(*map(_derive_hint, arguments))
    if origin is tuple and Ellipsis not in arguments:
        return TupleTypeInfo(tuple(map(_derive_hint, arguments)))
    if isinstance(hint, type) and is_dataclass(hint):
        return derive_dataclass_row(hint)
    raise UsageError(
        f"{hint!r} does not say which type of Flink it is", hint="Name it: Annotated[int, Types.INT()], for example"
    )


def derive_arrow_type(schema: pa.Schema | pa.DataType) -> TypeInformation:
    """Return the type of a schema or type of Arrow: structs are Rows, timestamps with a time zone instants.

    Raises:
        UsageError: Flink has no type for it.
    """
    derive = derive_arrow_type
    match schema:
        case pa.Schema() | pa.StructType():
            fields = list(schema)
            return RowTypeInfo(tuple(derive(each.type) for each in fields), tuple(each.name for each in fields))
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return ListTypeInfo(derive(schema.value_type))
        case pa.MapType():
            return MapTypeInfo(derive(schema.key_type), derive(schema.item_type))
        case pa.TimestampType():
            return BasicTypeInfo(BasicKind.LOCAL_DATE_TIME if schema.tz is None else BasicKind.INSTANT)
    for is_kind, kind in _ARROW:
        if is_kind(schema):
            return BasicTypeInfo(kind)
    raise UsageError(f"Arrow's {schema} has no type in Flink", hint="Cast the column to a signed number or to text")
