"""Checks of custom serializer families against Flink's requirements on snapshot classes.

Flink's documentation ("Custom Serialization for Managed State", implementation notes and best practices): a snapshot
class is found by its name, so it is no anonymous or local class; each serializer has a snapshot class of its own; a
snapshot holds no Java objects. Families of Flink's own classes are exempt: some of them deviate.
"""

from __future__ import annotations

import re

from state_pipelines.errors import UsageError
from state_pipelines.serializers.tree import Serializer

_FLINK = "org.apache.flink."
JAVA_STREAM = bytes.fromhex("aced0005")
"""First bytes of a stream of `ObjectOutputStream`."""

_ANONYMOUS = re.compile(r"\$\$Lambda|\$\d")
_PICKLE = re.compile(rb"\x80[\x02-\x05].*\.", re.DOTALL)

_snapshot_classes: dict[str, str] = {}


def is_flinks(snapshot_class: str) -> bool:
    """Return whether a class is one of Flink's own, by its package."""
    return snapshot_class.startswith(_FLINK)


def check_name(snapshot_class: str) -> None:
    """Refuse a name by which Java does not find a snapshot class.

    Raises:
        UsageError: not a binary class name, or that of an anonymous or local class or of a lambda.
    """
    if "/" in snapshot_class or not all(each.replace("$", "_").isidentifier() for each in snapshot_class.split(".")):
        raise UsageError(
            f"{snapshot_class!r} is not the binary name of a Java class",
            hint="Write it as Class.getName() gives it: com.acme.MoneySerializer$MoneySerializerSnapshot",
        )
    if _ANONYMOUS.search(snapshot_class):
        raise UsageError(
            f"{snapshot_class} is an anonymous or local class: Flink makes snapshots by name, with a public "
            "constructor without arguments, and the name changes with the next class that is written",
            hint="Give the snapshot a public static class of its own",
        )


def claim_serializer(serializer: str, snapshot_classes: tuple[str, ...]) -> None:
    """Note the one snapshot class of a serializer class.

    Raises:
        UsageError: the serializer has another snapshot class, or several are named; or another serializer has this one.
    """
    if len(snapshot_classes) != 1:
        raise UsageError(
            f"{serializer} has one snapshot class, not {len(snapshot_classes)}",
            hint="Register what replaces an earlier snapshot class on its own, and say with "
            "compatibility.register_successor what it makes of the earlier one",
        )
    (snapshot_class,) = snapshot_classes
    taken = _snapshot_classes.get(serializer, snapshot_class)
    if taken != snapshot_class:
        raise UsageError(f"{serializer} has the snapshot class {taken} already, and can have no second one")
    owner = next((each for each, name in _snapshot_classes.items() if name == snapshot_class), serializer)
    if owner != serializer:
        raise UsageError(
            f"{snapshot_class} is the snapshot class of {owner}: {serializer} cannot share it",
            hint="Give each serializer a snapshot class of its own, which can then change on its own",
        )
    _snapshot_classes[serializer] = snapshot_class


def check_node(snapshot_class: str, version: int, node: object) -> None:
    """Refuse a node that would be written or compared as another family than the one read.

    Raises:
        UsageError: it is no node, names another snapshot class or version, or does not compare by value.
    """
    if not isinstance(node, Serializer):
        raise UsageError(
            f"the reader of version {version} of {snapshot_class} returned {type(node).__name__}, which is no node",
            hint="Return a frozen dataclass that is a subclass of state_pipelines.serializers.tree.Serializer",
        )
    if is_flinks(snapshot_class):
        return
    if (node.snapshot_class, node.snapshot_version) != (snapshot_class, version):
        raise UsageError(
            f"the reader of version {version} of {snapshot_class} made a node of version {node.snapshot_version} of "
            f"{node.snapshot_class}",
            hint="Build the node with **head.marks",
        )
    parameters = getattr(type(node), "__dataclass_params__", None)
    if parameters is None or not (parameters.frozen and parameters.eq):
        raise UsageError(
            f"{type(node).__name__}, the node of {snapshot_class}, is no frozen dataclass; snapshots compare by value",
            hint="Decorate it with @dataclass(frozen=True, kw_only=True)",
        )


def check_body(snapshot_class: str, body: bytes) -> None:
    """Refuse a snapshot that is a serialized object of the language that wrote it.

    Raises:
        UsageError: the body is a stream of Java objects or a pickle.
    """
    if is_flinks(snapshot_class):
        return
    kind = "Java objects" if body.startswith(JAVA_STREAM) else "pickled objects" if _PICKLE.fullmatch(body) else ""
    if kind:
        raise UsageError(
            f"the snapshot {snapshot_class} consists of {kind}, which no other version of the code can be sure to read",
            hint="Write names and values (utf, i32, nested snapshots). If the Java class does write objects, register "
            "its reader with java_objects=True",
        )
