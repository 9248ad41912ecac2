"""Data of serializers that are not Flink's own: layouts that somebody else declares, by node class or by type class.

A family of one's own has two halves. `serializers.registry.register` reads and writes its snapshot as a node of one's
own; `register_layout` says which bytes the values of such a node have, in the public layouts of `codecs.layout`. From
then on scalar codec, columns, tables, `dump` and migrations know them. `register_class_layout` does the second half for
classes that write themselves behind a serializer of Flink's (`Value`, `CopyableValue`, Hadoop `Writable`).
`codecs.jsonlines.register_json` adds a form for `dump` where that of the value itself does not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from state_pipelines.codecs.layout import Layout
from state_pipelines.errors import UsageError
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers import tree
from state_pipelines.serializers.registry import ENTRY_POINT_GROUP

Node = TypeVar("Node", bound=tree.Serializer)
Derive: TypeAlias = Callable[[tree.Serializer], Layout]
"""Gives the layout of a nested serializer."""
LayoutOf: TypeAlias = Callable[[Node, Derive], Layout]


@dataclass(frozen=True)
class _Extension:
    layout_of: LayoutOf[Any]
    fixed_length: bool


_families: dict[type[tree.Serializer], _Extension] = {}
_classes: dict[str, Layout] = {}
_caches: list[Callable[[], None]] = []


def register_layout(node_class: type[Node], *, fixed_length: bool = True) -> Callable[[LayoutOf[Node]], LayoutOf[Node]]:
    """Make the data layout of a family known; decorates the function that derives it from a node.

    Example::

        @register_layout(Money)
        def lay_money(node, derive):
            return Struct((("amount", Primitive("i64")), ("currency", Text())))

    Args:
        node_class: a frozen dataclass, subclass of `tree.Serializer`.
        fixed_length: False when `TypeSerializer.getLength` says -1 although all values have as many bytes; it matters
            for keys and namespaces (`CompositeKeySerializationUtils.isAmbiguousKeyPossible`).

    Raises:
        UsageError: the class is one of Flink's families, is no serializer, or has a layout already.
    """
    if not issubclass(node_class, tree.Serializer) or node_class.__module__ == tree.__name__:
        raise UsageError(
            f"{node_class.__name__} is not a family of one's own",
            hint="Derive a frozen dataclass from state_pipelines.serializers.tree.Serializer",
        )

    def decorate(layout_of: LayoutOf[Node]) -> LayoutOf[Node]:
        if node_class in _families and _families[node_class].layout_of is not layout_of:
            raise UsageError(f"a layout of {node_class.__name__} is registered already")
        _families[node_class] = _Extension(layout_of, fixed_length)
        _forget()
        return layout_of

    return decorate


def register_class_layout(type_class: str, layout: Layout) -> None:
    """Make known what a class writes that goes through `ValueSerializer`, or its kin for copyable and Hadoop classes.

    Args:
        type_class: its binary name, such as `com.acme.Job$Name`.
        layout: what its `write` method writes.

    Raises:
        UsageError: the class has another layout already.
    """
    if _classes.setdefault(type_class, layout) != layout:
        raise UsageError(f"a layout of {type_class} is registered already")
    _forget()


def find_layout(serializer: tree.Serializer, derive: Derive) -> Layout | None:
    """The layout that somebody registered for a serializer, or None."""
    if isinstance(serializer, tree.ClassBound):
        # Its snapshot class is one of Flink's, so nothing has asked for plug-ins yet.
        load_plugins(ENTRY_POINT_GROUP, "serializer")
        return _classes.get(serializer.type_class)
    extension = _families.get(type(serializer))
    return None if extension is None else extension.layout_of(serializer, derive)


def has_fixed_length(serializer: tree.Serializer) -> bool:
    """Whether the length of the data may count as fixed; only the layout knows whether it is."""
    if isinstance(serializer, tree.ClassBound):
        return serializer.kind == "CopyableValue"
    extension = _families.get(type(serializer))
    return extension is None or extension.fixed_length


def on_registration(forget: Callable[[], None]) -> None:
    """Have a cache of derived layouts emptied whenever a layout is registered."""
    _caches.append(forget)


def _forget() -> None:
    for forget in _caches:
        forget()
