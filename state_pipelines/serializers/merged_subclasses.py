"""One serializer for values of two that differ only in the subclasses of POJOs that each has met.

A `PojoSerializer` lists the subclasses that it has met without registration. Their objects are written with the class
name, so that values of both can be stored under one serializer that lists all (`PojoSerializerSnapshot`,
`nonRegisteredSubclassSerializers`). Subtasks of one job often differ so: each lists the classes that it has met.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.serializers.tree import Pojo, PojoField, PojoSubclass, Serializer

if TYPE_CHECKING:
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

_Node = TypeVar("_Node", bound=Serializer | PojoField | PojoSubclass)


def join_infos(first: StateMetaInfo, second: StateMetaInfo) -> StateMetaInfo | None:
    """Merge the meta infos of a state; None if they differ in more than subclasses."""
    others = dict(second.serializers)
    joined = []
    for role, serializer in first.serializers:
        found = join_serializers(serializer, others[role]) if role in others else None
        if found is None:
            return None
        joined.append((role, found))
    whole = replace(first, serializers=tuple(joined))
    # In the order of the first one; all else must be equal.
    return whole if replace(second, serializers=whole.serializers) == whole and len(joined) == len(others) else None


def join_serializers(first: Serializer, second: Serializer) -> Serializer | None:
    """Merge the subclasses of two serializers, those of the first one first; None if they differ otherwise."""
    return _join(first, second)


def _join(first: _Node, second: _Node) -> _Node | None:
    if first == second:
        return first
    if type(first) is not type(second):
        return None
    changes: dict[str, Any] = {}
    for each in fields(first):
        one, other = getattr(first, each.name), getattr(second, each.name)
        if isinstance(first, Pojo) and each.name == "non_registered":
            found = _join_subclasses(one, other)
        else:
            found = _join_values(one, other)
        if found is None and one != other:
            return None
        changes[each.name] = found
    return replace(first, **changes)


def _join_values(one: Any, other: Any) -> Any:
    """None when they cannot be joined, or both are None."""
    if isinstance(one, Serializer | PojoField | PojoSubclass):
        return _join(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        joined = [_join_values(left, right) for left, right in zip(one, other, strict=True)]
        if any(value is None and left is not None for value, left in zip(joined, one, strict=True)):
            return None
        return tuple(joined)
    return one if one == other else None


def _join_subclasses(
    first: tuple[PojoSubclass, ...], second: tuple[PojoSubclass, ...]
) -> tuple[PojoSubclass, ...] | None:
    joined = {each.class_name: each for each in first}
    for each in second:
        found = _join(joined.get(each.class_name, each), each)
        if found is None:
            return None
        joined[each.class_name] = found
    return tuple(joined.values())
