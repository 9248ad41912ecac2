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
Convert: TypeAlias = Callable[[Any], Any]
"""Turns a value of an old serializer into one of a new serializer."""
FindConversion: TypeAlias = Callable[[tree.Serializer, tree.Serializer], Convert]
"""Gives the conversion between nested serializers."""
ConversionOf: TypeAlias = Callable[[Any, Any, FindConversion], Convert]


@dataclass(frozen=True)
class _Extension:
    layout_of: LayoutOf[Any]
    fixed_length: bool


_extensions: dict[type[tree.Serializer], _Extension] = {}
_classes: dict[str, Layout] = {}
_conversions: dict[tuple[type[tree.Serializer], type[tree.Serializer]], ConversionOf] = {}
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
    """Register the layout of a class that writes itself, or that has a Kryo serializer of its own.

    Args:
        type_class: its binary name, such as `com.acme.Job$Name`.
        layout: layout of the bytes that its `write` method writes (`Value`, `CopyableValue`, Hadoop `Writable`), or its
            Kryo serializer.

    Raises:
        UsageError: the class has another layout already.
    """
    if _classes.setdefault(type_class, layout) != layout:
        raise UsageError(f"a layout of {type_class} is registered already")
    _forget()


def register_conversion(
    old_class: type[tree.Serializer], new_class: type[tree.Serializer]
) -> Callable[[ConversionOf], ConversionOf]:
    """Register how values change where a rule answers *after migration*; decorates the function that finds it.

    It is what `deserialize` of the restored serializer and `serialize` of the new one do together. Without it, values
    stay as they are, which needs layouts of the same kinds of values: numbers may become wider, nested serializers may
    change as their own rules allow.

    Example::

        @register_conversion(Cents, Amount)
        def convert_cents(old, new, find):
            return lambda value: {"amount": value, "currency": new.currency}

    The function gets the old node, the new node, and a function that gives the conversion between two nested ones. The
    conversion takes and returns values of the scalar codec: those of the layouts of both nodes.

    Args:
        old_class: class of the nodes in snapshots.
        new_class: class of the nodes of the new job; may be the same.

    Raises:
        UsageError: both are families of Flink, or the pair has a conversion already.
    """
    if tree.is_built_in(old_class) and tree.is_built_in(new_class):
        raise UsageError(f"{old_class.__name__} and {new_class.__name__} are both families of Flink")

    def decorate(conversion_of: ConversionOf) -> ConversionOf:
        if _conversions.setdefault((old_class, new_class), conversion_of) is not conversion_of:
            names = f"{old_class.__name__} to {new_class.__name__}"
            raise UsageError(f"a conversion from {names} is registered already")
        return conversion_of

    return decorate


def find_conversion(old: tree.Serializer, new: tree.Serializer, find: FindConversion) -> Convert | None:
    """Return the conversion that somebody registered for two serializers, or None."""
    conversion_of = _conversions.get((type(old), type(new)))
    return None if conversion_of is None else conversion_of(old, new, find)


def find_class_layout(type_class: str) -> Layout | None:
    """Return the layout that somebody registered for a class that writes itself, or that Kryo has a serializer for."""
    load_plugins(ENTRY_POINT_GROUP, "serializer")
    return _classes.get(type_class)


def find_layout(serializer: tree.Serializer, derive: Derive) -> Layout | None:
    """Return the layout that somebody registered for a serializer, or None."""
    if isinstance(serializer, tree.ClassBound):
        # Its snapshot class is Flink's own, so plug-ins may not be loaded yet.
        return find_class_layout(serializer.type_class)
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
