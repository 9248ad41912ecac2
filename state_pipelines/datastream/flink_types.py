"""`Types`: Flink's types by PyFlink's names (`pyflink.common.typeinfo.Types`), and types from other descriptions."""

from __future__ import annotations

import datetime
import decimal
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord, AvroSchema, parse_avro_schema
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    EnumTypeInfo,
    GivenTypeInfo,
    Instant,
    ListTypeInfo,
    MapTypeInfo,
    Row,
    RowKind,
    SetTypeInfo,
    StoredTypeInfo,
    TypeInformation,
    WrappedTypeInfo,
    read_nullable,
)
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, ValueRangeError
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.text import describe, parse
from state_pipelines.serializers.tree import ARRAYS, PRIMITIVES, BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from state_pipelines.serializers.tree import Avro, Pojo, Serializer

_CLASS = "class"
_ROW_KINDS = {str(kind): kind for kind in RowKind} | {None: RowKind.INSERT}


@dataclass(frozen=True)
class TupleTypeInfo(TypeInformation):
    """Tuples (`TupleSerializer`): tuples in Python, a dict of `f0`, `f1`, … in the scalar codec.

    Attributes:
        field_types: one to 25.
        tuple_class: a subclass of Java's TupleN; default Flink's own.
    """

    field_types: tuple[TypeInformation, ...]
    tuple_class: str | None = None

    @cached_property
    def serializer(self) -> Serializer:
        """`TupleSerializer`."""
        return build.tuple_of(*(each.serializer for each in self.field_types), tuple_class=self.tuple_class)

    @property
    def java_class(self) -> str:
        """The class of the tuple."""
        return self.tuple_class or f"org.apache.flink.api.java.tuple.Tuple{len(self.field_types)}"

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.field_types)

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a tuple, list or Row."""
        if not isinstance(obj, (tuple, list, Row)) or len(obj) != len(self.field_types):
            raise ValueRangeError(f"{obj!r:.80} is not a tuple of {len(self.field_types)} values")
        pairs = zip(self.field_types, obj, strict=True)
        return {f"f{index}": each.to_internal_type(value) for index, (each, value) in enumerate(pairs)}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a tuple."""
        return tuple(each.from_internal_type(obj[f"f{index}"]) for index, each in enumerate(self.field_types))


@dataclass(frozen=True)
class RowTypeInfo(TypeInformation):
    """Rows (`RowSerializer`); the serializer stores neither names nor a Python class.

    Attributes:
        field_types: types of the fields.
        field_names: default `f0`, `f1`, …
        python_class: a dataclass; reads return its objects instead of rows.
    """

    field_types: tuple[TypeInformation, ...]
    field_names: tuple[str, ...] = ()
    python_class: type | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.field_names:
            object.__setattr__(self, "field_names", tuple(f"f{index}" for index in range(len(self.field_types))))
        if len(set(self.field_names)) != len(self.field_types):
            raise UsageError(
                f"{len(self.field_types)} fields of a Row need as many different names, not "
                f"{', '.join(self.field_names)}"
            )

    java_class = "org.apache.flink.types.Row"

    @cached_property
    def serializer(self) -> Serializer:
        """`RowSerializer`."""
        return build.row(*(each.serializer for each in self.field_types))

    def get_field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self.field_names)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self.field_types)

    def get_field_index(self, field_name: str) -> int:
        """Return the index of a field; -1 if there is none of that name."""
        return self.field_names.index(field_name) if field_name in self.field_names else -1

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Row, dict, tuple, list or dataclass object; its fields are matched by name if it has names."""
        kind = str(obj.get_row_kind() if isinstance(obj, Row) else RowKind.INSERT)
        values = _field_values(obj, self.field_names)
        converted = {
            f"f{index}": None if value is None else each.to_internal_type(value)
            for index, (each, value) in enumerate(zip(self.field_types, values, strict=True))
        }
        return {"row_kind": kind, **converted}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a Row with names, or to an object of the dataclass."""
        values = [read_nullable(each, obj[f"f{index}"]) for index, each in enumerate(self.field_types)]
        if self.python_class is not None:
            return self.python_class(**dict(zip(self.field_names, values, strict=True)))
        row = Row.of_kind(_ROW_KINDS[obj["row_kind"]], *values)
        row.set_field_names(self.field_names)
        return row


@dataclass(frozen=True)
class PojoTypeInfo(GivenTypeInfo):
    """POJOs (`PojoSerializer`): rows with names, or objects of a dataclass.

    Attributes:
        stored: the serializer.
        fields: name and type, in the order of the serializer.
        subclasses: types of the subclasses; values then have the name of their class in the field `class`.
        python_class: a dataclass; reads return its objects instead of rows.
    """

    stored: Pojo
    fields: tuple[tuple[str, TypeInformation], ...]
    subclasses: tuple[PojoTypeInfo, ...] = ()
    python_class: type | None = field(default=None, compare=False)

    @property
    def java_class(self) -> str:
        """The class of the POJO."""
        return self.stored.pojo_class

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Row with names, a dict or a dataclass object."""
        if obj is None:
            return None
        chosen = self._find_class(_class_of(obj) or self.java_class)
        names = tuple(name for name, _ in chosen.fields)
        pairs = zip(chosen.fields, _field_values(obj, names, named=True), strict=True)
        values = {name: None if value is None else each.to_internal_type(value) for (name, each), value in pairs}
        return {_CLASS: chosen.java_class, **values}

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a Row with names, or to an object of the dataclass."""
        if obj is None:
            return None
        chosen = self._find_class(obj[_CLASS])
        values = {name: read_nullable(each, obj[name]) for name, each in chosen.fields}
        if chosen.python_class is not None:
            return chosen.python_class(**values)
        if self.subclasses:
            values = {_CLASS: obj[_CLASS], **values}
        row = Row(*values.values())
        row.set_field_names(tuple(values))
        return row

    def _find_class(self, name: str) -> PojoTypeInfo:
        for each in (self, *self.subclasses):
            if each.java_class == name:
                return each
        raise ValueRangeError(
            f"{name} is neither {self.java_class} nor a subclass that its serializer lists",
            hint="Types.of(serializer, stored=True) reads and writes objects of classes that are declared elsewhere",
        )


def _class_of(obj: Any) -> str | None:
    if isinstance(obj, Mapping):
        return obj.get(_CLASS)
    if isinstance(obj, Row) and _CLASS in obj.as_dict():
        return str(obj[_CLASS])
    return None


def _field_values(obj: Any, names: Sequence[str], *, named: bool = False) -> Sequence[Any]:
    """Return the values of the fields in the order of `names`.

    Raises:
        ValueRangeError: `obj` has other fields.
    """
    given = _named_values(obj)
    if given is not None:
        given.pop(_CLASS, None) if _CLASS not in names else None
        if given.keys() == set(names):
            return [given[name] for name in names]
    elif not named and isinstance(obj, (Row, tuple, list)) and len(obj) == len(names):
        return list(obj)
    raise ValueRangeError(f"{obj!r:.80} does not have the fields {', '.join(names)}")


def _named_values(obj: Any) -> dict[str, Any] | None:
    """Return the values of a dict, a Row with names or a dataclass object by name; None if the object has no names."""
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, Row) and obj._fields is not None:
        return obj.as_dict()
    if is_dataclass(obj) and not isinstance(obj, type):
        return {each.name: getattr(obj, each.name) for each in fields(obj)}
    return None


_STORED = (AvroRecord, AvroEnum, AvroMap, AvroBranch)
_TEXTS = ("string", "enum")
_DICTS = ("record", "map", "error")


@dataclass(frozen=True)
class AvroTypeInfo(GivenTypeInfo):
    """Avro records (`AvroSerializer`).

    Records and maps are dicts, and enums are the names of their constants. Logical types are not converted: a
    `timestamp-millis` is a number. In a union in which a dict or a text fits several branches, values are `AvroRecord`,
    `AvroMap` or `AvroEnum`; these are accepted everywhere.

    Attributes:
        stored: the serializer.
    """

    stored: Avro

    @cached_property
    def schema(self) -> AvroSchema:
        """The schema of the values."""
        return parse_avro_schema(self.stored.schema_json)

    @property
    def java_class(self) -> str:
        """The generated class, or `GenericRecord`."""
        return self.stored.runtime_class

    def to_internal_type(self, obj: Any) -> Any:
        """Convert dicts to records and maps, and names of constants to enums."""
        return self._write(self.schema.root, obj, "")

    def from_internal_type(self, obj: Any) -> Any:
        """Convert records and maps to dicts, enums to names of constants."""
        return self._read(self.schema.root, obj)

    def _resolve(self, reference: object) -> tuple[str, Any]:
        """Return the kind of a schema node, such as record or union, and the node; a type name is looked up."""
        node: Any = self.schema.resolve(reference)
        if isinstance(node, list):
            return "union", node
        while isinstance(node, dict) and isinstance(node["type"], dict | list):
            return self._resolve(node["type"])
        return (node["type"], node) if isinstance(node, dict) else (node, node)

    def _write(self, reference: object, value: Any, path: str) -> Any:
        kind, node = self._resolve(reference)
        if isinstance(value, AvroRecord | AvroMap | AvroEnum | AvroBranch):
            return value
        if kind == "union":
            return self._write_branch(node, value, path)
        if kind in ("record", "error"):
            return self._write_record(node, value, path)
        if kind == "map":
            if not isinstance(value, Mapping):
                raise _refuse(value, path, "a map of Avro", "Give a dict with texts as keys")
            entries = ((str(key), self._write(node["values"], item, f"{path}[{key!r}]")) for key, item in value.items())
            return AvroMap(tuple(entries))
        if kind == "array":
            if not isinstance(value, list | tuple):
                raise _refuse(value, path, "an array of Avro", "Give a list")
            return [self._write(node["items"], each, f"{path}[{index}]") for index, each in enumerate(value)]
        if kind == "enum":
            if value not in node["symbols"]:
                hint = f"Give one of {', '.join(node['symbols'])}"
                raise _refuse(value, path, f"a constant of the Avro enum {node['name']}", hint)
            return AvroEnum(node["name"], value)
        if not _is_primitive(kind, node, value):
            raise _refuse(
                value, path, f"a value of the Avro type {kind}", _HINTS.get(kind, "See the schema of the state")
            )
        return float(value) if kind in ("float", "double") else value

    def _write_record(self, node: Any, value: Any, path: str) -> AvroRecord:
        names = [each["name"] for each in node["fields"]]
        if not isinstance(value, Mapping):
            raise _refuse(value, path, f"a record of Avro {node['name']}", f"Give a dict of {', '.join(names)}")
        if set(value) != set(names):
            missing, unknown = (
                [each for each in names if each not in value],
                [each for each in value if each not in names],
            )
            what = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(map(str, unknown))}"] * bool(
                unknown
            )
            hint = f"It {' and '.join(what)}; give a dict of {', '.join(names)}"
            raise _refuse(value, path, f"a record of Avro {node['name']}", hint)
        fields = (
            (each["name"], self._write(each["type"], value[each["name"]], f"{path}.{each['name']}"))
            for each in node["fields"]
        )
        return AvroRecord(node["name"], tuple(fields))

    def _write_branch(self, union: list[object], value: Any, path: str) -> Any:
        """Convert a value to the branch of a union that accepts it; of several branches to the first.

        Raises:
            ValueRangeError: no branch accepts the value, or several do and it is a dict or could be an enum.
        """
        if value is None and "null" in (self._resolve(each)[0] for each in union):
            return None
        found = [(each, converted) for each in union if (converted := self._try(each, value, path)) is not None]
        if isinstance(value, int):
            # An int goes to a float or double branch only if no int or long branch accepts it.
            found.sort(key=lambda pair: isinstance(pair[1], float))
        if not found:
            names = ", ".join(self._name(each) for each in union)
            raise _refuse(value, path, f"of any branch of the Avro union of {names}", "Give a value of one of them")
        kinds = [self._resolve(each)[0] for each, _ in found]
        if len(found) > 1 and (isinstance(value, Mapping) or "enum" in kinds):
            names = ", ".join(self._name(each) for each, _ in found)
            raise _refuse(
                value,
                path,
                f"of one branch alone: it can be {names}",
                "Give AvroRecord(name, fields), AvroMap(entries) or AvroEnum(name, symbol) of "
                "state_pipelines.codecs.avro",
            )
        return found[0][1]

    def _try(self, reference: object, value: Any, path: str) -> Any:
        try:
            return self._write(reference, value, path)
        except ValueRangeError:
            return None

    def _name(self, reference: object) -> str:
        kind, node = self._resolve(reference)
        return str(node["name"]) if isinstance(node, dict) and "name" in node else kind

    def _read(self, reference: object, value: Any) -> Any:
        kind, node = self._resolve(reference)
        if isinstance(value, AvroBranch):
            return value
        if kind == "union":
            kinds = [self._resolve(each)[0] for each in node]
            alike = _DICTS if isinstance(value, AvroRecord | AvroMap) else _TEXTS
            if isinstance(value, _STORED) and sum(each in alike for each in kinds) > 1:
                return value
            return self._read_branch(node, value)
        match value:
            case AvroRecord(fields=fields):
                types = {each["name"]: each["type"] for each in node["fields"]}
                return {name: self._read(types[name], item) for name, item in fields}
            case AvroMap(entries=entries):
                return {name: self._read(node["values"], item) for name, item in entries}
            case AvroEnum(symbol=symbol):
                return symbol
            case list():
                return [self._read(node["items"], each) for each in value]
        return value

    def _read_branch(self, union: list[object], value: Any) -> Any:
        wanted = {AvroRecord: ("record", "error"), AvroMap: ("map",), AvroEnum: ("enum",), list: ("array",)}
        kinds = wanted.get(type(value), ())
        for each in union:
            kind, node = self._resolve(each)
            if kind in kinds and (not isinstance(value, AvroRecord | AvroEnum) or node["name"] == value.name):
                return self._read(each, value)
        return value


_HINTS = {
    "int": "Give an int of 32 bits",
    "long": "Give an int of 64 bits; a timestamp is the number that its logical type says",
    "string": "Give a str",
    "bytes": "Give bytes",
    "boolean": "Give True or False",
    "null": "Give None",
}


def _is_primitive(kind: str, node: Any, value: Any) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return is_int and -(1 << 31) <= value < 1 << 31
        case "long":
            return is_int and -(1 << 63) <= value < 1 << 63
        case "float" | "double":
            return isinstance(value, float) or is_int
        case "fixed":
            return isinstance(value, bytes) and len(value) == node["size"]
        case "bytes":
            return isinstance(value, bytes)
    return isinstance(value, str)


def _refuse(value: Any, path: str, wanted: str, hint: str) -> ValueRangeError:
    at = f" at {path.removeprefix('.')}" if path else ""
    return ValueRangeError(f"{value!r:.80} is not {wanted}{at}", hint=hint)


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
        UsageError: the description names no type.
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
    """Return the type of the values of a serializer.

    If no Python type corresponds to it, values stay as the scalar codec reads them.
    """
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
                # Only the array's serializer knows the element class: `found.serializer` may fail to derive it.
                return WrappedTypeInfo(serializer, found)
        case tree.MapOf(key=key, value=value):
            found = MapTypeInfo(derive(key), derive(value))
        case tree.Tuple(fields=fields, tuple_class=name):
            found = TupleTypeInfo(tuple(map(derive, fields)), name)
        case tree.PositionalRow(fields=fields):
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
    # A type derives the serializer of one Flink release. If the given one differs, for example in its snapshot
    # version, register the given one.
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
    """Return a Row type with the fields of a dataclass; reads return objects of the class.

    Raises:
        UsageError: a field has no type in Flink.
    """
    fields = _derive_fields(python_class)
    return RowTypeInfo(tuple(fields.values()), tuple(fields), python_class)


def derive_dataclass_pojo(python_class: type, pojo_class: str) -> PojoTypeInfo:
    """Return a POJO type with the fields of a dataclass; reads return objects of the class.

    Fields that are collections get the serializers of Flink 2.x; up to 1.20, Flink serializes such fields with Kryo.

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
    """Return the nullable type that Flink 2.x gives a list, set or map in a POJO (`TypeExtractor`); others as is."""
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
    """Return Flink's type for a schema or type of Arrow: structs become Rows, timestamps with a time zone instants.

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


GENERIC_RECORD = "org.apache.avro.generic.GenericRecord"


class Types:
    """Types under their names in PyFlink; each stands for the serializer that Java Flink uses for the type.

    `Types.LONG()` reads and writes what a Java job with `Types.LONG` has in its state.
    """

    STRING = partial(BasicTypeInfo, BasicKind.STRING)
    """Text; may be None."""

    BYTE = partial(BasicTypeInfo, BasicKind.BYTE)
    """Whole numbers of 8 bits."""

    BOOLEAN = partial(BasicTypeInfo, BasicKind.BOOLEAN)
    """True and False."""

    SHORT = partial(BasicTypeInfo, BasicKind.SHORT)
    """Whole numbers of 16 bits."""

    INT = partial(BasicTypeInfo, BasicKind.INT)
    """Whole numbers of 32 bits."""

    LONG = partial(BasicTypeInfo, BasicKind.LONG)
    """Whole numbers of 64 bits."""

    FLOAT = partial(BasicTypeInfo, BasicKind.FLOAT)
    """Floating-point numbers of 32 bits."""

    DOUBLE = partial(BasicTypeInfo, BasicKind.DOUBLE)
    """Floating-point numbers of 64 bits."""

    CHAR = partial(BasicTypeInfo, BasicKind.CHAR)
    """Text of one UTF-16 unit."""

    BIG_INT = partial(BasicTypeInfo, BasicKind.BIG_INT)
    """Whole numbers of any size; may be None."""

    BIG_DEC = partial(BasicTypeInfo, BasicKind.BIG_DEC)
    """`decimal.Decimal` with its scale; may be None."""

    INSTANT = partial(BasicTypeInfo, BasicKind.INSTANT)
    """`Instant`: seconds and nanoseconds since 1970; may be None."""

    SQL_DATE = partial(BasicTypeInfo, BasicKind.SQL_DATE)
    """`datetime.date`; Java's `java.sql.Date` at midnight of UTC; may be None."""

    SQL_TIME = partial(BasicTypeInfo, BasicKind.SQL_TIME)
    """`datetime.time` in milliseconds; Java's `java.sql.Time` in UTC; may be None."""

    SQL_TIMESTAMP = partial(BasicTypeInfo, BasicKind.SQL_TIMESTAMP)
    """`datetime.datetime` in UTC; Java's `java.sql.Timestamp`; may be None."""

    LOCAL_DATE = partial(BasicTypeInfo, BasicKind.LOCAL_DATE)
    """`datetime.date`; Java's `java.time.LocalDate`; may be None."""

    LOCAL_TIME = partial(BasicTypeInfo, BasicKind.LOCAL_TIME)
    """`datetime.time`; Java's `java.time.LocalTime`; may be None."""

    LOCAL_DATE_TIME = partial(BasicTypeInfo, BasicKind.LOCAL_DATE_TIME)
    """`datetime.datetime` without time zone; Java's `java.time.LocalDateTime`; may be None."""

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Refuse: pickles are never loaded.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Types.PICKLED_BYTE_ARRAY() is not supported: loading a pickle runs code that its writer chose",
            hint="Name the type of the values, or use Types.PRIMITIVE_ARRAY(Types.BYTE()) and convert bytes yourself",
        )

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Rows by position; fields may be None, a row may not.

        Args:
            field_types: of the fields.
        """
        return RowTypeInfo(tuple(field_types))

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Rows with names, which the serializer does not store; fields may be None, a row may not.

        Args:
            field_names: of the fields.
            field_types: of the fields.
        """
        return RowTypeInfo(tuple(field_types), tuple(field_names))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Tuples of 1 to 25 fields, which may not be None unless their type may.

        Args:
            field_types: of the fields.
        """
        return TupleTypeInfo(tuple(field_types))

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of Java's primitive types: bytes for BYTE, otherwise lists.

        Args:
            element_type: BOOLEAN, BYTE, SHORT, CHAR, INT, LONG, FLOAT or DOUBLE.

        Raises:
            UsageError: Java has no primitive type for the elements.
        """
        if not isinstance(element_type, BasicTypeInfo) or element_type.kind not in PRIMITIVES:
            raise UsageError(
                f"{element_type} is not a primitive type of Java",
                hint="Use Types.BASIC_ARRAY or Types.OBJECT_ARRAY",
            )
        return BasicTypeInfo(BasicKind(f"{element_type.kind}PrimitiveArray"))

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of boxed numbers or text (`Integer[]`, `String[]`); elements may be None.

        Args:
            element_type: as for PRIMITIVE_ARRAY, or STRING.

        Raises:
            UsageError: another type of elements.
        """
        if not isinstance(element_type, BasicTypeInfo) or element_type.kind not in (*PRIMITIVES, BasicKind.STRING):
            raise UsageError(f"{element_type} is not a basic type of Java", hint="Use Types.OBJECT_ARRAY")
        return (
            BasicTypeInfo(BasicKind.STRING_ARRAY)
            if element_type.kind == BasicKind.STRING
            else ArrayTypeInfo(element_type)
        )

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of objects; elements may be None.

        Args:
            element_type: of the elements.
        """
        return ArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """Dicts; values may be None.

        Args:
            key_type_info: of the keys, whose values must be hashable in Python.
            value_type_info: of the values.
        """
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """Lists.

        Args:
            element_type_info: of the elements.
        """
        return ListTypeInfo(element_type_info)

    @staticmethod
    def POJO(pojo_class: str, fields: Mapping[str, TypeInformation] | type) -> TypeInformation:
        """Objects of a Java class (`PojoSerializer`); not part of PyFlink.

        Args:
            pojo_class: binary name of the class.
            fields: name -> type of the fields, and reads return Rows; or a dataclass, and reads return its objects.
        """
        if isinstance(fields, type):
            return derive_dataclass_pojo(fields, pojo_class)
        serializer = build.pojo(pojo_class, {name: each.serializer for name, each in fields.items()})
        return PojoTypeInfo(serializer, tuple((each.name, fields[each.name]) for each in serializer.fields))

    @staticmethod
    def AVRO(schema: str | Mapping[str, Any], runtime_class: str = GENERIC_RECORD) -> TypeInformation:
        """Records of Avro (`AvroSerializer`), which are dicts; not part of PyFlink.

        Args:
            schema: JSON text of the schema, or the parsed JSON object.
            runtime_class: binary name of the generated class; default `GenericRecord`.

        Raises:
            UsageError: `schema` is no schema of Avro.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        try:
            parse_avro_schema(text)
        except FormatError as error:
            raise UsageError(
                error.what.replace("of the snapshot ", ""), hint="Give the text of an .avsc file"
            ) from None
        return AvroTypeInfo(build.avro(runtime_class, text))

    @staticmethod
    def of(description: Any, *, stored: bool = False) -> TypeInformation:
        """Make a type from another description; not part of PyFlink.

        Args:
            description: a type; a serializer; the text of one, as `state-pipelines inspect` prints it; a dataclass (a
                Row); a schema or type of Arrow.
            stored: give values as `state-pipelines dump` does, without conversion to Python types: nanoseconds, and
                dates outside the years 1 to 9999, can then be read.

        Raises:
            UsageError: the description names no type.
        """
        of = derive_type(description)
        return StoredTypeInfo(of.serializer) if stored else of


def check_key_type(serializer: Serializer, hashed_classes: Collection[str] = ()) -> None:
    """Refuse key types that Flink refuses too: their `hashCode` may differ for equal values.

    These are arrays, enums, and POJOs that do not override `hashCode`.

    Args:
        serializer: of the keys.
        hashed_classes: POJO classes that override `hashCode`, because the user gives an expression for it.

    Raises:
        UsageError: the keys are of such a type.
    """
    found = [describe(each) for each in _find_unsupported(serializer, hashed_classes)]
    if found:
        raise UsageError(
            f"Type {describe(serializer)} cannot be used as key. Contained UNSUPPORTED key types: {', '.join(found)}. "
            "Look at the keyBy() documentation for the conditions a type has to satisfy in order to be eligible for a "
            "key.",
            hint="Use the fields as a Tuple or Row; for a POJO with its own hashCode, give that in `hashes`",
        )


def _find_unsupported(serializer: Serializer, hashed_classes: Collection[str]) -> Iterator[Serializer]:
    """Find unsupported types; like Flink, inside tuples and rows only."""
    match serializer:
        case tree.Tuple(fields=fields) | tree.PositionalRow(fields=fields):
            for each in fields:
                yield from _find_unsupported(each, hashed_classes)
        case tree.Enum() | tree.ScalaEnum() | tree.GenericArray():
            yield serializer
        case tree.Basic(kind=kind) if kind in ARRAYS:
            yield serializer
        case tree.Pojo(pojo_class=name) if name not in hashed_classes:
            yield serializer
