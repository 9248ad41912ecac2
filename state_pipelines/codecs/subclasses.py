"""Subclasses of POJOs that the serializer of a state does not list.

The heap backend writes objects of a subclass without listing the class in the serializer of the state. That of another
state may list it. Else the layout follows from a declaration: the fields of the base class as the
snapshot has them and the declared ones, sorted by name, each with the serializer that Flink derives from its Java type
(`TypeExtractor`, `PojoTypeInfo`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import java_order
from state_pipelines.codecs.kryo.field_lists import ARRAY, PRIMITIVES, FieldLists, JavaType
from state_pipelines.serializers import build
from state_pipelines.serializers.tree import BasicKind, Enum, Kryo, Pojo, PojoField, PojoSubclass, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.layout_context import LayoutContext

_BASIC = {
    **{name: BasicKind(name.capitalize()) for name in PRIMITIVES},
    **{
        f"java.lang.{name}": BasicKind(name)
        for name in ("Boolean", "Byte", "Short", "Long", "Float", "Double", "String", "Void")
    },
    "java.lang.Integer": BasicKind.INT,
    "java.lang.Character": BasicKind.CHAR,
    "java.math.BigDecimal": BasicKind.BIG_DEC,
    "java.math.BigInteger": BasicKind.BIG_INT,
    "java.util.Date": BasicKind.DATE,
    "java.sql.Date": BasicKind.SQL_DATE,
    "java.sql.Time": BasicKind.SQL_TIME,
    "java.sql.Timestamp": BasicKind.SQL_TIMESTAMP,
    "java.time.Instant": BasicKind.INSTANT,
    "java.time.LocalDate": BasicKind.LOCAL_DATE,
    "java.time.LocalTime": BasicKind.LOCAL_TIME,
    "java.time.LocalDateTime": BasicKind.LOCAL_DATE_TIME,
}
_FIRST_KRYO_WITH_COLLECTIONS = 5


def find_subclasses(pojo: Pojo, context: LayoutContext) -> tuple[PojoSubclass, ...]:
    """Return the non-registered subclasses that may occur in a field of a POJO class, by name."""
    found = {each.class_name: each for each in pojo.non_registered}
    for each in dict(context.subclasses).get(pojo.pojo_class, ()):
        found.setdefault(each.class_name, each)
    if context.classes is not None:
        for each in declare_subclasses(pojo, context.classes, context.kryo_version):
            found.setdefault(each.class_name, each)
    # Sorted, since every subtask lists the classes in the order in which it met them.
    return tuple(found[name] for name in sorted(found))


def complete(serializer: Serializer, context: LayoutContext) -> Serializer:
    """Return `serializer` with the subclasses that its POJOs do not list themselves."""
    changes: dict[str, Any] = {
        each.name: _complete_member(getattr(serializer, each.name), context) for each in fields(serializer)
    }
    whole = replace(serializer, **changes)
    return replace(whole, non_registered=find_subclasses(whole, context)) if isinstance(whole, Pojo) else whole


def _complete_member(member: object, context: LayoutContext) -> object:
    match member:
        case Serializer():
            return complete(member, context)
        case PojoField(serializer=Serializer() as inner) | PojoSubclass(serializer=Serializer() as inner):
            return replace(member, serializer=complete(inner, context))
        case tuple():
            return tuple(_complete_member(each, context) for each in member)
        case _:
            return member


def declare_subclasses(pojo: Pojo, classes: FieldLists, kryo_version: int) -> tuple[PojoSubclass, ...]:
    """Declared classes that extend the class of `pojo`, directly or not, and that it does not list.

    Args:
        pojo: serializer of the base class.
        classes: declarations of the user; classes with `extends` count.
        kryo_version: 2 for snapshots of Flink 1.x, where fields of collection types go through Kryo.
    """
    listed = {each.class_name for each in (*pojo.registered, *pojo.non_registered)}
    return tuple(
        PojoSubclass(class_name=name, serializer=_extend(pojo, name, classes, kryo_version))
        for name in classes.list_subclasses(pojo.pojo_class)
        if name not in listed
    )


def _extend(pojo: Pojo, name: str, classes: FieldLists, kryo_version: int) -> Pojo:
    types = _Types(pojo, classes, kryo_version)
    members = {field.name: field for field in pojo.fields}
    declared = classes.classes[name]
    while declared.name != pojo.pojo_class:
        for member, of in declared.fields:
            field = PojoField(name=member, declaring_class=declared.name, serializer=types.serializer(of))
            members.setdefault(member, field)
        if declared.base not in classes.classes:
            break
        declared = classes.classes[declared.base]
    ordered = sorted(members.values(), key=lambda field: java_order(field.name))
    return Pojo(pojo_class=name, fields=tuple(ordered))


class _Types:
    """From Java types to serializers, by the example of a serializer of the same job."""

    def __init__(self, pojo: Pojo, classes: FieldLists, kryo_version: int) -> None:
        self.classes = classes
        self.collections = kryo_version >= _FIRST_KRYO_WITH_COLLECTIONS
        nodes = list(_walk(pojo))
        self.known: dict[str, Serializer] = {each.pojo_class: each for each in nodes if isinstance(each, Pojo)}
        self.known |= {each.enum_class: each for each in nodes if isinstance(each, Enum)}
        # The registrations, which give classes their ids, are those of the whole job.
        kryo = next((each for each in nodes if isinstance(each, Kryo)), None)
        self.registrations = () if kryo is None else kryo.registrations

    def serializer(self, of: JavaType) -> Serializer:
        if (kind := _BASIC.get(of.name)) is not None:
            return build.basic(kind)
        if of.name == ARRAY:
            return self._array(of.arguments[0])
        arguments = [self.serializer(each) for each in of.arguments] if self.collections else []
        match of.name, arguments:
            case ("java.util.List", [element]):
                return build.nullable(build.list_of(build.nullable(element)))
            case ("java.util.Set", [element]):
                return build.nullable(build.set_of(element))
            case ("java.util.Map", [key, value]):
                return build.nullable(build.map_of(build.nullable(key), value))
        if of.name in self.known:
            return self.known[of.name]
        declared = self.classes.find(of.name)
        if declared is not None and declared.constants:
            return build.enum(of.name, *declared.constants)
        return Kryo(type_class=of.name, registrations=self.registrations)

    def _array(self, component: JavaType) -> Serializer:
        if component.name in PRIMITIVES:
            return build.basic(f"{component.name.capitalize()}PrimitiveArray")
        if component.name == "java.lang.String":
            return build.basic(BasicKind.STRING_ARRAY)
        return build.generic_array(component.name, self.serializer(component))


def _walk(serializer: Serializer) -> Iterator[Serializer]:
    yield serializer
    for nested in serializer.nested:
        yield from _walk(nested)
