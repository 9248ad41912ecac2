"""Values of an old serializer as those of a new one, as Flink's serializers read and write them.

What `TypeSerializer.deserialize` of the restored serializer and `serialize` of the new one do together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.backends.avro_resolution import make_resolution
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.value_codecs import Value
    from state_pipelines.codecs.layout_context import LayoutContext
    from state_pipelines.serializers.tree import Serializer

Convert: TypeAlias = "Callable[[Value], Value]"

_JAVA_DEFAULTS = {
    BasicKind.BOOLEAN: False,
    BasicKind.BYTE: 0,
    BasicKind.SHORT: 0,
    BasicKind.CHAR: "\0",
    BasicKind.INT: 0,
    BasicKind.LONG: 0,
    BasicKind.FLOAT: 0.0,
    BasicKind.DOUBLE: 0.0,
}
"""Values of fields that a class has and an old value lacks; primitives and their classes have one serializer."""


class ValueConversion:
    """Makes conversions between serializers that Flink's rules call compatible after migration.

    Args:
        layouts: what layouts depend on.
        now: epoch milliseconds, the last access of values that get TTL.
    """

    def __init__(self, layouts: LayoutContext, now: Callable[[], int]) -> None:
        self._layouts = layouts
        self._now = now

    def find(self, old: Serializer, new: Serializer) -> Convert:
        """The conversion of one value.

        Raises:
            UnsupportedError: none is known.
        """
        old, new = _unwrap(old), _unwrap(new)
        if old == new:
            return _keep
        match old, new:
            case tree.Ttl(), tree.Ttl():
                inner = self.find(old.inner, new.inner)
                return lambda value: value | {"value": inner(value["value"])}
            case tree.Ttl(), _:
                inner = self.find(old.inner, new)
                return lambda value: inner(value["value"])
            case _, tree.Ttl():
                inner = self.find(old, new.inner)
                return lambda value: {"last_access": self._now(), "value": inner(value)}
            case tree.Nullable(), tree.Nullable():
                return _lift(self.find(old.inner, new.inner))
            case tree.ListOf() | tree.SetOf() | tree.GenericArray() | tree.LinkedListOf(), _ if type(new) is type(old):
                element = _lift(self.find(old.element, new.element))
                return lambda value: [element(each) for each in value]
            case tree.MapOf(), tree.MapOf():
                key, each_value = _lift(self.find(old.key, new.key)), _lift(self.find(old.value, new.value))
                return lambda value: [(key(one), each_value(other)) for one, other in value]
            case tree.Tuple() | tree.Row(), _ if type(new) is type(old) and len(old.fields) == len(new.fields):
                return self._find_positional(old.fields, new.fields)
            case tree.Either(), tree.Either():
                left, right = self.find(old.left, new.left), self.find(old.right, new.right)
                return lambda value: (
                    value
                    | {
                        "left": left(value["left"]) if value["is_left"] else None,
                        "right": None if value["is_left"] else right(value["right"]),
                    }
                )
            case tree.Pojo(), tree.Pojo():
                return self._find_pojo(old, new)
            case tree.Avro(), tree.Avro():
                return make_resolution(old.schema_json, new.schema_json).convert
            case (tree.Enum(), tree.Enum()) | (tree.Kryo(), tree.Kryo()):
                # The values are the same; a constant that is gone does not fit the new serializer.
                return _keep
            case _ if derive_layout(old, self._layouts) == derive_layout(new, self._layouts):
                return _keep
            case _:
                raise UnsupportedError(
                    f"no conversion is known from {describe(old)} to {describe(new)}",
                    hint="Migrate the snapshot, which takes SQL expressions",
                )

    def _find_positional(self, old: tuple[Serializer, ...], new: tuple[Serializer, ...]) -> Convert:
        fields = {f"f{index}": _lift(self.find(*pair)) for index, pair in enumerate(zip(old, new, strict=True))}
        return lambda value: value | {name: convert(value[name]) for name, convert in fields.items()}

    def _find_pojo(self, old: tree.Pojo, new: tree.Pojo) -> Convert:
        classes = {old.pojo_class: self._find_fields(old, new)}
        after = {each.class_name: each.serializer for each in (*new.registered, *new.non_registered)}
        for each in (*old.registered, *old.non_registered):
            target = after.get(each.class_name)
            if isinstance(each.serializer, tree.Pojo) and isinstance(target, tree.Pojo):
                classes[each.class_name] = self._find_fields(each.serializer, target)

        def convert(value: Value) -> Value:
            if value is None:
                return None
            change = classes.get(value["class"])
            if change is None:
                raise ValueRangeError(f"an object of {value['class']} does not fit {new.pojo_class}")
            return {"class": value["class"]} | change(value)

        return convert

    def _find_fields(self, old: tree.Pojo, new: tree.Pojo) -> Convert:
        known = {field.name: field.serializer for field in old.fields}
        kept: dict[str, Convert] = {}
        added: dict[str, Value] = {}
        for field in new.fields:
            before, after = known.get(field.name), field.serializer
            if before is not None and after is not None:
                kept[field.name] = _lift(self.find(before, after))
            else:
                added[field.name] = _JAVA_DEFAULTS.get(after.kind) if isinstance(after, tree.Basic) else None
        names = [field.name for field in new.fields]
        return lambda value: {name: kept[name](value[name]) if name in kept else added[name] for name in names}


def _unwrap(serializer: Serializer) -> Serializer:
    while isinstance(serializer, tree.TtlAware):
        serializer = serializer.inner
    return serializer


def _keep(value: Value) -> Value:
    return value


def _lift(convert: Convert) -> Convert:
    """The conversion of a value that may be null."""
    return convert if convert is _keep else lambda value: None if value is None else convert(value)
