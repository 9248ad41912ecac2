"""Serializers as text, such as `Map<String, Pojo<com.acme.Order>(amountCents: Long, id: String)>`.

`describe` writes any tree; `parse` reads the trees that `build` makes. The text does not contain versions and Java
streams. `spell` is `describe` with families of one's own as their snapshots, which `parse` reads too. Names that hold
other characters than letters, digits and `_ $ . [ ;` are quoted with backticks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import Writer
from state_pipelines.serializers import containers, scala
from state_pipelines.serializers.beam import BeamSerializer, Coder
from state_pipelines.serializers.registry import is_custom, write_nested
from state_pipelines.serializers.snapshot_frames import write_head
from state_pipelines.serializers.text_parsing import PLAIN_NAME, parse
from state_pipelines.serializers.tree import (
    ArrayData,
    Avro,
    Basic,
    BinaryRow,
    CaseClass,
    CaseObject,
    ClassBound,
    Coproduct,
    Decimal,
    Declared,
    Enum,
    External,
    GenericArray,
    Kryo,
    LinkedListOf,
    ListOf,
    LogicalType,
    MapData,
    MapOf,
    Mapped,
    Nullable,
    Opaque,
    Pojo,
    PojoField,
    PojoSubclass,
    Protobuf,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    Row,
    RowData,
    ScalaCollection,
    ScalaEnum,
    ScalaMap,
    Serializer,
    SetOf,
    SortedMapOf,
    TimestampData,
    Ttl,
    TtlAware,
    Tuple,
    Variants,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["describe", "describe_type", "parse", "quote", "spell"]

UNRESOLVED = "?"

_SQL_WORDS = {
    "INTEGER": "INT",
    "TIME_WITHOUT_TIME_ZONE": "TIME",
    "TIMESTAMP_WITHOUT_TIME_ZONE": "TIMESTAMP",
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE": "TIMESTAMP_LTZ",
    "TIMESTAMP_WITH_TIME_ZONE": "TIMESTAMP_TZ",
    "STRUCTURED_TYPE": "STRUCTURED",
    "DISTINCT_TYPE": "DISTINCT",
}


@singledispatch
def describe(serializer: Serializer) -> str:
    """Return the readable form of a serializer.

    Nodes without a text form (also those of plug-ins) are the name of the node and its nested serializers; a plug-in
    may register another form: `describe.register`.
    """
    return _generic(type(serializer).__name__, map(describe, serializer.nested))


def spell(serializer: Serializer) -> str:
    """Return the readable form with serializers that are not Flink's as their snapshots, so that it can be parsed.

    Example: `Map<String, Snapshot<com.acme.MoneySerializer$Snap>(1, 0x0003455552)>`.
    """
    return describe(_spell_custom(serializer))


@dataclass(frozen=True, kw_only=True)
class _Spelled(Serializer):
    """A serializer that is described by a text."""

    text: str


_WRITTEN_AS_SNAPSHOTS = (CaseClass, CaseObject, Coproduct, Mapped, Protobuf, ScalaCollection, ScalaMap)


def _spell_custom(node: Any) -> Any:
    if isinstance(node, tuple):
        return tuple(map(_spell_custom, node))
    if not is_dataclass(node) or isinstance(node, type):
        return node
    if isinstance(node, _WRITTEN_AS_SNAPSHOTS) or (isinstance(node, Serializer) and is_custom(node)):
        writer = Writer()
        write_nested(writer, node)
        head = Writer()
        write_head(head, node.snapshot_class, node.snapshot_version)
        body = writer.getvalue()[len(head.getvalue()) :]
        text = f"{node.snapshot_version}, 0x{body.hex()}" if body else f"{node.snapshot_version}"
        return _Spelled(snapshot_class=node.snapshot_class, text=f"Snapshot<{quote(node.snapshot_class)}>({text})")
    changes = {each.name: _spell_custom(getattr(node, each.name)) for each in fields(node)}
    return replace(node, **changes)


def describe_type(kind: LogicalType) -> str:
    """The readable form of a SQL type, such as `DECIMAL(10, 2) NOT NULL` or `ROW<id BIGINT, name VARCHAR(20)>`."""
    word = _SQL_WORDS.get(kind.root, kind.root)
    numbers = [str(number) for number in (kind.length, kind.scale) if number is not None]
    text = f"{word}({', '.join(numbers)})" if numbers else word
    if kind.class_name is not None:
        text += f"({quote(kind.class_name)})"
    if kind.names:
        fields = zip(kind.names, kind.children, strict=True)
        text += f"<{', '.join(f'{quote(name)} {describe_type(child)}' for name, child in fields)}>"
    elif kind.children:
        text = _generic(text, map(describe_type, kind.children))
    return text if kind.nullable else f"{text} NOT NULL"


def quote(name: str) -> str:
    """Return a name, in backticks where it would not read back as one word."""
    return name if PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _generic(word: str, arguments: Iterable[str]) -> str:
    text = ", ".join(arguments)
    return f"{word}<{text}>" if text else word


def _call(word: str, class_name: str, arguments: Iterable[str]) -> str:
    return f"{word}<{quote(class_name)}>({', '.join(arguments)})"


@describe.register
def _spelled(node: _Spelled) -> str:
    return node.text


@describe.register
def _basic(node: Basic) -> str:
    return str(node.kind)


@describe.register
def _list(node: ListOf) -> str:
    return _generic("ArrayList" if node.snapshot_class == containers.ARRAY_LIST else "List", [describe(node.element)])


@describe.register
def _set(node: SetOf) -> str:
    return _generic("Set", [describe(node.element)])


@describe.register
def _map(node: MapOf) -> str:
    return _generic("NullAwareMap" if node.null_keys else "Map", map(describe, node.nested))


@describe.register
def _generic_array(node: GenericArray) -> str:
    return _call("Array", node.component_class, [describe(node.element)])


@describe.register
def _tuple(node: Tuple) -> str:
    plain = f"Tuple{len(node.fields)}"
    if node.tuple_class == f"org.apache.flink.api.java.tuple.{plain}":
        return _generic(plain, map(describe, node.fields))
    word = "CaseClass" if node.snapshot_class in scala.CASE_CLASSES else "Tuple"
    return _call(word, node.tuple_class, map(describe, node.fields))


@describe.register
def _case_class(node: CaseClass) -> str:
    return _call("CaseClass", node.case_class, map(describe, node.fields))


@describe.register
def _coproduct(node: Coproduct) -> str:
    cases = zip(node.cases, node.serializers, strict=True)
    return f"Coproduct({', '.join(f'{quote(name)}: {describe(each)}' for name, each in cases)})"


@describe.register
def _scala_collection(node: ScalaCollection) -> str:
    word = node.serializer_class.rpartition(".")[2].removesuffix("Serializer")
    return _generic(f"Scala{word}", [describe(node.element)])


@describe.register
def _mapped(node: Mapped) -> str:
    return _call("Mapped", node.mapper, [describe(node.inner)])


@describe.register
def _case_object(node: CaseObject) -> str:
    return _call("CaseObject", node.object_class, ())


@describe.register
def _row(node: Row) -> str:
    word = "Row" if node.supports_row_kind else "RowWithoutKind"
    return f"{word}({', '.join(f'f{index}: {describe(field)}' for index, field in enumerate(node.fields))})"


@describe.register
def _nullable(node: Nullable) -> str:
    padding = [f"padding {node.padding}"] if node.padding else []
    return _generic("Nullable", [describe(node.inner), *padding])


@describe.register
def _enum(node: Enum) -> str:
    return _call("Enum", node.enum_class, map(quote, node.constants))


@describe.register
def _scala_enum(node: ScalaEnum) -> str:
    return _call("ScalaEnum", node.enum_class, (f"{quote(name)} = {number}" for name, number in node.constants))


@describe.register
def _pojo(node: Pojo) -> str:
    entries = [_pojo_field(node, field) for field in node.fields]
    entries += [_pojo_subclass("registered", subclass) for subclass in node.registered]
    entries += [_pojo_subclass("subclass", subclass) for subclass in node.non_registered]
    return _call("Pojo", node.pojo_class, entries)


def _pojo_field(node: Pojo, field: PojoField) -> str:
    owner = ""
    if field.declaring_class is None:
        owner = f"{UNRESOLVED}#"
    elif field.declaring_class != node.pojo_class:
        owner = f"{quote(field.declaring_class)}#"
    return f"{owner}{quote(field.name)}: {_resolved(field.serializer)}"


def _pojo_subclass(word: str, subclass: PojoSubclass) -> str:
    mark = "" if subclass.resolved else f"{UNRESOLVED}#"
    return f"{word} {mark}{quote(subclass.class_name)}: {_resolved(subclass.serializer)}"


def _resolved(serializer: Serializer | None) -> str:
    return UNRESOLVED if serializer is None else describe(serializer)


@describe.register
def _kryo(node: Kryo) -> str:
    return f"Kryo<{quote(node.type_class)}>"


@describe.register
def _protobuf(node: Protobuf) -> str:
    return f"Protobuf<{quote(node.message_class)}>"


@describe.register
def _avro(node: Avro) -> str:
    record = _avro_name(node.schema_json)
    if not record or record == node.runtime_class:
        return f"Avro<{quote(node.runtime_class)}>"
    return _call("Avro", node.runtime_class, [quote(record)])


def _avro_name(schema_json: str) -> str:
    """Full name of a named schema; empty when it has none or is no JSON."""
    try:
        schema = json.loads(schema_json)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return ""
    name: str = schema["name"]
    namespace = schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


@describe.register
def _beam(node: BeamSerializer) -> str:
    return _generic("Beam", [_coder(node.coder)])


def _coder(coder: Coder) -> str:
    return _generic(
        quote(coder.simple_name), (_coder(each) for name, each in coder.components if name != "windowsCoder")
    )


@describe.register
def _class_bound(node: ClassBound) -> str:
    return f"{node.kind}<{quote(node.type_class)}>"


@describe.register
def _opaque(node: Opaque) -> str:
    return f"Opaque<{quote(node.unknown_class)}>"


@describe.register
def _declared(node: Declared) -> str:
    return f"Declared<{quote(node.unknown_class)}>({node.layout})"


@describe.register
def _ttl(node: Ttl) -> str:
    return _generic("Ttl", [describe(node.inner)])


@describe.register
def _ttl_aware(node: TtlAware) -> str:
    return _generic("TtlAware", ["enabled" if node.ttl_enabled else "disabled", describe(node.inner)])


@describe.register
def _variants(node: Variants) -> str:
    return _generic(str(node.kind), map(describe, node.serializers))


@describe.register
def _row_data(node: RowData) -> str:
    types = [*map(describe_type, node.types)]
    names = node.names if node.labels is None else node.labels
    if names is not None:
        types = [f"{quote(name)}: {each}" for name, each in zip(names, types, strict=True)]
    return f"RowData({', '.join(types)})"


@describe.register
def _binary_row(node: BinaryRow) -> str:
    return f"BinaryRowData({node.num_fields})"


@describe.register
def _array_data(node: ArrayData) -> str:
    return _generic("ArrayData", [describe_type(node.element_type)])


@describe.register
def _map_data(node: MapData) -> str:
    return _generic("MapData", [describe_type(node.key_type), describe_type(node.value_type)])


@describe.register
def _decimal(node: Decimal) -> str:
    return f"DecimalData({node.precision}, {node.scale})"


@describe.register
def _timestamp(node: TimestampData) -> str:
    return f"TimestampData({node.precision})"


@describe.register
def _python_row(node: PythonRow) -> str:
    return f"PythonRow({', '.join(map(describe_type, node.types))})"


@describe.register
def _python_array(node: PythonArray) -> str:
    return _generic("PythonArray", [describe_type(node.element_type)])


@describe.register
def _python_map(node: PythonMap) -> str:
    return _generic("PythonMap", [describe_type(node.key_type), describe_type(node.value_type)])


@describe.register
def _python_decimal(node: PythonDecimal) -> str:
    return f"PythonDecimal({node.precision}, {node.scale})"


@describe.register
def _linked_list(node: LinkedListOf) -> str:
    return _generic("LinkedList", [describe(node.element)])


@describe.register
def _sorted_map(node: SortedMapOf) -> str:
    return _generic("SortedMap", map(describe, node.nested))


@describe.register
def _external(node: External) -> str:
    return _generic("External", [describe(node.inner)])
