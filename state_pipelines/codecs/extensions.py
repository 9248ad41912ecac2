"""Data of serializers that are not Flink's own: layouts that somebody else declares, by node class or by type class.

A custom serializer family has two halves. `serializers.registry.register` reads and writes its snapshot as a custom
node; `register_layout` gives the data layout of such a node, in the public layouts of `codecs.layout`. From
then on scalar codec, columns, tables, `dump` and migrations know them. `register_class_layout` does the second half for
classes that write themselves under a serializer of Flink's (`Value`, `CopyableValue`, Hadoop `Writable`).
`codecs.json.json_lines.register_json` adds a form for `dump` where that of the value itself does not do.
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


_extensions: dict[type[tree.Serializer], _Extension] = {}
_classes: dict[str, Layout] = {}
_caches: list[Callable[[], None]] = []


def register_layout(node_class: type[Node], *, fixed_length: bool = True) -> Callable[[LayoutOf[Node]], LayoutOf[Node]]:
    """Register the data layout of a serializer family; decorates the function that derives it from a node.

    Example::

        @register_layout(Money)
        def lay_money(node, derive):
            return Struct((("amount", Primitive(PrimitiveKind.I64)), ("currency", Text())))

    Args:
        node_class: a frozen dataclass, subclass of `tree.Serializer`.
        fixed_length: False when `TypeSerializer.getLength` returns -1 although the size is constant; it matters for
            keys and namespaces (`CompositeKeySerializationUtils.isAmbiguousKeyPossible`).

    Raises:
        UsageError: the class is one of Flink's families, is no serializer, or has a layout already.
    """
    if not issubclass(node_class, tree.Serializer) or tree.is_built_in(node_class):
        raise UsageError(
            f"{node_class.__name__} is not a custom serializer family",
            hint="Derive a frozen dataclass from state_pipelines.serializers.tree.Serializer",
        )

    def decorate(layout_of: LayoutOf[Node]) -> LayoutOf[Node]:
        if node_class in _extensions and _extensions[node_class].layout_of is not layout_of:
            raise UsageError(f"a layout of {node_class.__name__} is registered already")
        _extensions[node_class] = _Extension(layout_of, fixed_length)
        _forget()
        return layout_of

    return decorate


def register_class_layout(type_class: str, layout: Layout) -> None:
    """Register the layout of a class that writes itself (`Value`, `CopyableValue`, Hadoop `Writable`).

    Args:
        type_class: its binary name, such as `com.acme.Job$Name`.
        layout: layout of the bytes that its `write` method writes.

    Raises:
        UsageError: the class has another layout already.
    """
    if _classes.setdefault(type_class, layout) != layout:
        raise UsageError(f"a layout of {type_class} is registered already")
    _forget()


def find_layout(serializer: tree.Serializer, derive: Derive) -> Layout | None:
    """Return the layout that somebody registered for a serializer, or None."""
    if isinstance(serializer, tree.ClassBound):
        # Its snapshot class is Flink's own, so plug-ins may not be loaded yet.
        load_plugins(ENTRY_POINT_GROUP, "serializer")
        return _classes.get(serializer.type_class)
    extension = _extensions.get(type(serializer))
    return None if extension is None else extension.layout_of(serializer, derive)


def has_fixed_length(serializer: tree.Serializer) -> bool:
    """Return whether the family allows a fixed length of its data; the layout decides."""
    if isinstance(serializer, tree.ClassBound):
        return serializer.kind is tree.ClassBoundKind.COPYABLE_VALUE
    extension = _extensions.get(type(serializer))
    return extension is None or extension.fixed_length


def on_registration(forget: Callable[[], None]) -> None:
    """Have a cache of derived layouts emptied whenever a layout is registered."""
    _caches.append(forget)


def _forget() -> None:
    for forget in _caches:
        forget()
