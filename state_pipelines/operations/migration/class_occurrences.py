"""Classes that occur more than once in a value: Flink restores by class, so all of them change or none does."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.serializers import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Fields = frozenset[tuple[str, object]]


def require_equal_classes(before: Iterable[tree.Serializer], after: tree.Serializer) -> None:
    """Refuse a value in which a POJO class has different fields at different paths, unless it had them before.

    Flink makes one serializer of the class and reads it at every path with that (`PojoSerializerSnapshot` nests a
    snapshot for each): values of a field that the class has at some paths only are lost without an error.

    Args:
        before: serializers of the values that it is made of.
        after: its serializer afterwards.

    Raises:
        MigrationError: a class differs; names the paths.
    """
    known = {name for each in before for name, found in _gather(each).items() if len(set(found.values())) > 1}
    for name, found in _gather(after).items():
        if len(set(found.values())) < 2 or name in known:
            continue
        groups: dict[_Fields, list[str]] = {}
        for path, members in found.items():
            groups.setdefault(members, []).append(path or "the value itself")
        groups_text = " but not in ".join(", ".join(paths) for paths in groups.values())
        raise MigrationError(
            f"class {name} changes in {groups_text}; Flink restores by class and would lose values",
            hint="Take the same steps on all of them; `[]` reaches elements and map values, such as `addresses[].zip`",
        )


def _gather(serializer: tree.Serializer) -> dict[str, dict[str, _Fields]]:
    """Gather fields and their serializers, by POJO class and path in the value."""
    found: dict[str, dict[str, _Fields]] = {}
    for path, node in _walk(serializer, ""):
        if isinstance(node, tree.Pojo):
            members = frozenset((each.name, _strip(each.serializer)) for each in node.fields)
            found.setdefault(node.pojo_class, {}).setdefault(path, members)
    return found


def _strip(member: object) -> object:
    """Replace POJOs in a serializer by their class names; they are compared on their own."""
    match member:
        case tree.Pojo(pojo_class=name):
            return name
        case tree.Serializer():
            return (type(member), *(_strip(getattr(member, each.name)) for each in fields(member)))
        case tuple():
            return tuple(_strip(each) for each in member)
        case _:
            return member


def _walk(node: tree.Serializer, path: str) -> Iterator[tuple[str, tree.Serializer]]:
    yield path, node
    prefix = f"{path}." if path else ""
    match node:
        case tree.Pojo():
            for field in node.fields:
                if field.serializer is not None:
                    yield from _walk(field.serializer, f"{prefix}{field.name}")
            for subclass in (*node.registered, *node.non_registered):
                # Its objects have the path of an object of the base class.
                if subclass.serializer is not None:
                    yield from _walk(subclass.serializer, path)
        case tree.Tuple(fields=members) | tree.Row(fields=members):
            for index, each in enumerate(members):
                yield from _walk(each, f"{prefix}f{index}")
        case tree.ListOf() | tree.SetOf() | tree.GenericArray() | tree.MapOf() | tree.SortedMapOf():
            for each in node.nested:
                yield from _walk(each, f"{path}[]")
        case _:
            for each in node.nested:
                yield from _walk(each, path)
