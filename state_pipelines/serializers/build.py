"""Serializer trees from scratch, with the snapshot classes and versions that Flink 1.20 and 2.2 write.

Both releases write the same, except for types that one of them lacks: `set_of` and the collection fields of POJOs need
2.x (see `nullable`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import java_order
from state_pipelines.errors import UsageError
from state_pipelines.serializers import java_types
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers import java_types as enums
from state_pipelines.serializers.tree import (
    Avro,
    Basic,
    BasicKind,
    Either,
    Enum,
    GenericArray,
    ListOf,
    MapOf,
    Nullable,
    Pojo,
    PojoField,
    PojoSubclass,
    PositionalRow,
    Serializer,
    SetOf,
    Timer,
    Ttl,
    TtlAware,
    Tuple,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_TUPLE_PACKAGE = "org.apache.flink.api.java.tuple."
_MAX_TUPLE = 25


def basic(kind: str) -> Basic:
    """Return a serializer without parameters.

    Args:
        kind: a `BasicKind`, or its text as users write it, such as Long or IntPrimitiveArray.

    Raises:
        UsageError: no such kind.
    """
    if kind not in basics.SNAPSHOT_CLASSES:
        raise UsageError(f"{kind!r} is not a basic serializer", hint=f"Known: {', '.join(basics.SNAPSHOT_CLASSES)}")
    known = BasicKind(kind)
    return Basic(snapshot_class=basics.SNAPSHOT_CLASSES[known], snapshot_version=basics.CURRENT_VERSION, kind=known)


VOID_NAMESPACE = basic(BasicKind.VOID_NAMESPACE)
TIME_WINDOW = basic(BasicKind.TIME_WINDOW)
GLOBAL_WINDOW = basic(BasicKind.GLOBAL_WINDOW)


def list_of(element: Serializer) -> ListOf:
    """Return a `ListSerializer`, which is also the value serializer of LIST state."""
    return ListOf(snapshot_class=java_types.LIST, outer_version=1, element=element)


def array_list_of(element: Serializer) -> ListOf:
    """Return an `ArrayListSerializer` (heap backend and operator state), which writes the same bytes as `list_of`."""
    return ListOf(snapshot_class=java_types.ARRAY_LIST, outer_version=1, element=element)


def set_of(element: Serializer) -> SetOf:
    """Return a `SetSerializer` (since Flink 2.0)."""
    return SetOf(snapshot_class=java_types.SET, outer_version=1, element=element)


def map_of(key: Serializer, value: Serializer) -> MapOf:
    """Return a `MapSerializer`, which is also the value serializer of MAP state."""
    return MapOf(snapshot_class=java_types.MAP, outer_version=1, key=key, value=value)


def null_aware_map_of(key: Serializer, value: Serializer) -> MapOf:
    """Return a `NullAwareMapSerializer` of the table runtime, whose keys may be null as well."""
    return MapOf(snapshot_class=java_types.NULL_AWARE_MAP, outer_version=1, key=key, value=value, null_keys=True)


def generic_array(component_class: str, element: Serializer) -> GenericArray:
    """Return a `GenericArraySerializer`; `component_class` is a binary name such as java.lang.String."""
    return GenericArray(
        snapshot_class=java_types.GENERIC_ARRAY, outer_version=1, component_class=component_class, element=element
    )


def tuple_of(*fields: Serializer, tuple_class: str | None = None) -> Tuple:
    """Return a `TupleSerializer`.

    Args:
        fields: one to 25 field serializers.
        tuple_class: a subclass of TupleN; by default Flink's own class.

    Raises:
        UsageError: no field, or more than 25.
    """
    if not 1 <= len(fields) <= _MAX_TUPLE:
        raise UsageError(
            f"a tuple has 1 to {_MAX_TUPLE} fields, not {len(fields)}", hint="Tuple0 is a basic serializer"
        )
    name = tuple_class or f"{_TUPLE_PACKAGE}Tuple{len(fields)}"
    return Tuple(snapshot_class=java_types.TUPLE, outer_version=2, tuple_class=name, fields=fields)


def either(left: Serializer, right: Serializer) -> Either:
    """Return a `JavaEitherSerializer`."""
    return Either(snapshot_class=java_types.EITHER, outer_version=1, left=left, right=right)


def nullable(inner: Serializer, padding: int = 0) -> Nullable:
    """Return a `NullableSerializer`.

    Since 2.0 a POJO field of type List, Map or Set is `nullable(list_of(nullable(element)))`,
    `nullable(map_of(nullable(key), value))` or `nullable(set_of(element))`; up to 1.20 Kryo serializes such fields.

    Args:
        inner: the wrapped serializer.
        padding: zero bytes after a null, which keep the length fixed.
    """
    return Nullable(snapshot_class=java_types.NULLABLE, outer_version=2, inner=inner, padding=padding)


def row(*fields: Serializer, supports_row_kind: bool = True) -> PositionalRow:
    """Return a `RowSerializer`, which knows fields by position only."""
    return PositionalRow(
        snapshot_class=java_types.ROW, outer_version=4, fields=fields, supports_row_kind=supports_row_kind
    )


def enum(enum_class: str, *constants: str) -> Enum:
    """Return an `EnumSerializer`, given the constants in the order of the Java enum."""
    return Enum(snapshot_class=enums.ENUM, enum_class=enum_class, constants=constants)


def pojo(
    pojo_class: str,
    fields: Mapping[str, Serializer],
    *,
    declared_by: Mapping[str, str] | None = None,
    registered: Mapping[str, Serializer] | None = None,
    non_registered: Mapping[str, Serializer] | None = None,
) -> Pojo:
    """Return a `PojoSerializer`, also for Java records.

    Args:
        pojo_class: binary class name.
        fields: field name -> serializer, in any order; the snapshot sorts them by name as Java does.
        declared_by: field name -> class that declares it, for inherited fields.
        registered: registered subclass -> serializer, in the order of their tags.
        non_registered: other subclass -> serializer.
    """
    owners = declared_by or {}
    return Pojo(
        pojo_class=pojo_class,
        fields=tuple(
            PojoField(name=name, declaring_class=owners.get(name, pojo_class), serializer=fields[name])
            for name in sorted(fields, key=java_order)
        ),
        registered=_subclasses(registered),
        non_registered=_subclasses(non_registered),
    )


def avro(runtime_class: str, schema_json: str) -> Avro:
    """Return an `AvroSerializer`; `runtime_class` is a generated class or org.apache.avro.generic.GenericRecord."""
    return Avro(snapshot_version=3, runtime_class=runtime_class, schema_json=schema_json)


def ttl(inner: Serializer) -> Ttl:
    """Return a `TtlSerializer`: a timestamp before the value. In lists and maps, it wraps the element or value."""
    return Ttl(timestamp=basic(BasicKind.LONG), inner=inner)


def ttl_aware(inner: Serializer, *, ttl_enabled: bool) -> TtlAware:
    """Return a `TtlAwareSerializer` (2.x); with TTL enabled, `inner` is a `ttl` serializer."""
    return TtlAware(
        snapshot_class="org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot",
        ttl_enabled=ttl_enabled,
        inner=inner,
    )


def timer(key: Serializer, namespace: Serializer) -> Timer:
    """Return a `TimerSerializer`, the element serializer of the priority queues of timers."""
    return Timer(key=key, namespace=namespace)


def _subclasses(serializers: Mapping[str, Serializer] | None) -> tuple[PojoSubclass, ...]:
    return tuple(PojoSubclass(class_name=name, serializer=each) for name, each in (serializers or {}).items())
