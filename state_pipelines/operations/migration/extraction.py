"""Collections in the types of migration files, and those that Flink 2.x extracts from Java's generic types."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.serializers import tree
from state_pipelines.serializers.build import list_of, map_of, nullable, set_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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
