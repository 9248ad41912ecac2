"""Values of an old serializer as those of a new one, as Flink's serializers read and write them.

What `TypeSerializer.deserialize` of the restored serializer and `serialize` of the new one do together. Families of
Flink have rules of their own. Of other families a registered conversion counts (`codecs.layout.register_conversion`);
without one, values are carried over where both layouts hold the same kind of values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro import make_resolution
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.layout import Convert, OpaqueValues, PrimitiveKind, find_conversion
from state_pipelines.codecs.programs import Encoded
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from state_pipelines.codecs.layout import Layout, LayoutContext
    from state_pipelines.serializers.tree import Serializer

Value: TypeAlias = Any

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

_INTEGERS = frozenset({PrimitiveKind.I8, PrimitiveKind.I16, PrimitiveKind.U16, PrimitiveKind.I32, PrimitiveKind.I64})


class ValueConversion:
    """Makes conversions between serializers that Flink's rules call compatible after migration.

    Args:
        layouts: context from which the layouts of both serializers follow.
        now: returns the time in epoch milliseconds that becomes the last access of values that get TTL.
    """

    def __init__(self, layouts: LayoutContext, now: Callable[[], int]) -> None:
        self._layouts = layouts
        self._now = now

    def find(self, old: Serializer, new: Serializer) -> Convert:
        """Return a function that converts a value of the old serializer to one of the new serializer.

        Raises:
            UnsupportedError: none is known.
        """
        old, new = _unwrap(old), _unwrap(new)
        if old == new:
            return _keep
        registered = find_conversion(old, new, self.find)
        if registered is not None:
            return registered
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
            case tree.Tuple() | tree.PositionalRow(), _ if type(new) is type(old) and len(old.fields) == len(
                new.fields
            ):
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
                # The values stay the same; writing fails for an enum constant that the new serializer lacks.
                return _keep
            case _:
                return self._find_by_layout(old, new)

    def _find_by_layout(self, old: Serializer, new: Serializer) -> Convert:
        nested = {}
        for before, after in zip(old.nested, new.nested, strict=False):
            layouts = derive_layout(before, self._layouts), derive_layout(after, self._layouts)
            if before != after and layouts[0] != layouts[1]:
                nested[layouts] = self.find(before, after)
        found = _compare_layouts(derive_layout(old, self._layouts), derive_layout(new, self._layouts), nested)
        if found is None:
            raise UnsupportedError(
                f"no conversion is known from {describe(old)} to {describe(new)}",
                hint="Register one with state_pipelines.codecs.layout.register_conversion, or migrate the "
                "snapshot, which takes SQL expressions",
            )
        return found

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
    """Extend a conversion to convert None to None."""
    return convert if convert is _keep else lambda value: None if value is None else convert(value)


def find_payload_conversion(old: Serializer, new: Serializer, layouts: LayoutContext) -> Convert:
    """Return a function that converts values nested in others from one serializer to another; null stays null.

    It cannot add TTL, because a nested value has no last access.

    Raises:
        UnsupportedError: none is known.
    """
    plain = replace(layouts, opaque_values=OpaqueValues.NONE)
    return _lift(ValueConversion(plain, _refuse_time).find(old, new))


def _refuse_time() -> int:
    raise UnsupportedError("TTL cannot be added to a value nested in another one, which has no time of last access")


def convert_column(array: pa.Array, old: Serializer, new: Serializer, layouts: LayoutContext) -> pa.Array:
    """Convert the values of a column from one serializer to another, as Flink does.

    Args:
        array: the values, as the old serializer's codec decodes them.
        old: serializer of the values.
        new: serializer of the converted values.
        layouts: context from which the layouts of both serializers follow.

    Raises:
        UnsupportedError: no conversion is known, or a value cannot be decoded.
        ValueRangeError: a value does not fit the new serializer.
    """
    convert = find_payload_conversion(old, new, layouts)
    plain = replace(layouts, opaque_values=OpaqueValues.NONE)
    before, after = (lay.Optional(derive_layout(each, plain)) for each in (old, new))
    encoded = plan_columns(lay.Optional(derive_layout(old, layouts))).encode(array)
    data = encoded.data
    writer, ends = Writer(), []
    for start, stop in zip(encoded.starts.tolist(), encoded.stops.tolist(), strict=True):
        write_value(after, writer, convert(read_value(before, Reader(data[start:stop].tobytes()))))
        ends.append(len(writer))
    found = Encoded(np.frombuffer(writer.getvalue(), np.uint8), np.array(ends, np.int64))
    columns = plan_columns(lay.Optional(derive_layout(new, layouts)))
    return columns.decode(found.data, found.starts, found.stops).array


def _compare_layouts(old: Layout, new: Layout, nested: dict[tuple[Layout, Layout], Convert]) -> Convert | None:
    """Return the conversion between values of two layouts that hold the same kind of values; None if they do not.

    Args:
        old: layout of the old data.
        new: layout of the new data.
        nested: conversions of nested serializers, by their old and new layout.
    """
    if old == new:
        return _keep
    if (old, new) in nested:
        return _lift(nested[old, new])
    match old, new:
        case lay.Primitive(kind=before), lay.Primitive(kind=after):
            widens = (before, after) == (PrimitiveKind.F32, PrimitiveKind.F64)
            return _keep if widens or {before, after} <= _INTEGERS else None
        case (lay.Optional() | lay.Marked(), lay.Optional() | lay.Marked()) if type(old) is type(new):
            inner = _compare_layouts(old.inner, new.inner, nested)
            return None if inner is None else _lift(inner)
        case _, lay.Optional(inner=after):
            return _compare_layouts(old, after, nested)
        case lay.Struct(fields=olds), lay.Struct(fields=news):
            return _compare_fields(dict(olds), dict(news), nested)
        case lay.Masked(fields=olds), lay.Masked(fields=news) if old.kind == new.kind:
            return _compare_fields(dict(olds), dict(news), nested)
        case (lay.Sequence() | lay.NullMasked() | lay.Delimited(), lay.Sequence() | lay.NullMasked() | lay.Delimited()):
            element = _compare_layouts(old.element, new.element, nested)
            if element is None or element is _keep:
                return element
            each = _lift(element)
            return lambda value: [each(one) for one in value]
        case lay.Mapping(), lay.Mapping():
            key = _compare_layouts(old.key, new.key, nested)
            item = _compare_layouts(old.value, new.value, nested)
            if key is None or item is None:
                return None
            one_key, one_item = _lift(key), _lift(item)
            return lambda value: [(one_key(one), one_item(other)) for one, other in value]
        case lay.Choice(), lay.Choice():
            return _compare_fields(
                {"left": old.left, "right": old.right}, {"left": new.left, "right": new.right}, nested
            )
        case lay.Tagged(cases=olds), lay.Tagged(cases=news):
            return _compare_cases(olds, news, nested)
        case lay.Framed(inner=before), _:
            return _compare_layouts(before, new, nested)
        case _, lay.Framed(inner=after):
            return _compare_layouts(old, after, nested)
        case _ if _is_text(old) and _is_text(new):
            return _keep
    return None


def _compare_fields(
    olds: dict[str, Layout], news: dict[str, Layout], nested: dict[tuple[Layout, Layout], Convert]
) -> Convert | None:
    """Return the conversion of a struct; None if fields were added or removed, which it cannot convert."""
    if olds.keys() != news.keys():
        return None
    changes: dict[str, Convert] = {}
    for name, after in news.items():
        found = _compare_layouts(olds[name], after, nested)
        if found is None:
            return None
        if found is not _keep:
            changes[name] = _lift(found)
    return lambda value: value | {name: change(value[name]) for name, change in changes.items()}


def _compare_cases(
    olds: tuple[tuple[int, str, Layout], ...],
    news: tuple[tuple[int, str, Layout], ...],
    nested: dict[tuple[Layout, Layout], Convert],
) -> Convert | None:
    after = {name: layout for _, name, layout in news}
    changes: dict[str, Convert] = {}
    for _, name, before in olds:
        found = _compare_layouts(before, after[name], nested) if name in after else None
        if found is None:
            return None
        changes[name] = _lift(found)
    return lambda value: value | {"value": changes[value["case"]](value["value"])}


def _is_text(layout: Layout) -> bool:
    return isinstance(layout, lay.Text | lay.JavaText) or (isinstance(layout, lay.Sized) and layout.text)
