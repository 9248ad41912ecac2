"""Surrogate layouts, which kernels run instead of layouts that only the scalar codec reads.

Where the shape of a value does not follow from its serializer (Kryo, Java objects), a surrogate is used: that of
the natural type where the class is known (see `kryo_columns`), else text, the JSON of the value as `dump` prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.beam import beam_layouts as beam
from state_pipelines.codecs.java.typed_values import Undecoded
from state_pipelines.codecs.json.json_lines import dumps, to_json
from state_pipelines.codecs.kryo.kryo_columns import find_kryo
from state_pipelines.codecs.programs.program import compile_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonType

if TYPE_CHECKING:
    from state_pipelines.codecs.layout import Layout

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Surrogate:
    """A surrogate layout and the conversions of its values.

    Attributes:
        layout: the layout that the kernels run.
        read: converts a value of the scalar codec (not null) to one of `layout`; UnsupportedError if it does not fit.
        write: the inverse of `read`; UnsupportedError if there is none.
    """

    layout: Layout
    read: Change
    write: Change


def find_surrogate(layout: Layout) -> Surrogate | None:
    """Return the surrogate of a layout; None if the kernels run the layout itself."""
    match layout:
        case lay.Dynamic():
            return None if runs(layout) else _wrap_unknown(_find_dynamic(layout))
        case beam.VarFramed(inner=inner):
            return find_surrogate(inner) or Surrogate(inner, _same, _same)
        case beam.Counted(element=element):
            return _or_itself(lay.Sequence(element))
        case beam.VarTagged(cases=cases):
            return _or_itself(lay.Tagged(cases, width=4))
        case _ if type(layout) in _BEAM_LEAVES:
            return Surrogate(_BEAM_LEAVES[type(layout)](layout), _same, _same)
        case lay.Opaque():
            return Surrogate(lay.Struct(((lay.OPAQUE_FIELD, lay.Sized()),)), _same, _same)
        case (
            lay.Optional(inner=inner) | lay.Marked(inner=inner) | lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner)
        ):
            found = find_surrogate(inner)
            return found and Surrogate(replace(layout, inner=found.layout), found.read, found.write)
        case lay.Sequence(element=element) | lay.Delimited(element=element) | lay.NullMasked(element=element):
            found = find_surrogate(element)
            return found and Surrogate(replace(layout, element=found.layout), _each(found.read), _each(found.write))
        case lay.Struct(fields=fields) | lay.Masked(fields=fields):
            return _find_fields(layout, fields)
        case lay.Mapping(key=key, value=value):
            return _find_mapping(key, value)
        case lay.Choice(left=left, right=right):
            found = _find_fields(lay.Struct((("left", left), ("right", right))), (("left", left), ("right", right)))
            if found is None:
                return None
            sides = dict(found.layout.fields)  # type: ignore[attr-defined]
            return Surrogate(lay.Choice(sides["left"], sides["right"]), found.read, found.write)
        case lay.Tagged():
            return _find_cases(layout)
        case lay.PojoObject():
            return _find_pojo(layout)
        case _:
            return None


def _or_itself(layout: Layout) -> Surrogate:
    return find_surrogate(layout) or Surrogate(layout, _same, _same)


_I64 = lay.Primitive(lay.PrimitiveKind.I64)
_PANE = (
    ("first", lay.Primitive(lay.PrimitiveKind.BOOL)),
    ("last", lay.Primitive(lay.PrimitiveKind.BOOL)),
    ("timing", lay.Text()),
    ("index", _I64),
    ("on_time_index", _I64),
)
_BEAM_LEAVES: dict[type[Layout], Callable[[Any], Layout]] = {
    beam.VarNumber: lambda layout: lay.Primitive(lay.PrimitiveKind(f"i{layout.bits}")),
    beam.VarSized: lambda layout: lay.Text() if layout.text else lay.Sized(),
    beam.VarInteger: lambda layout: lay.BigInteger(),
    beam.VarDecimal: lambda layout: lay.BigDecimal(),
    beam.IntervalWindow: lambda layout: lay.Struct((("start", _I64), ("end", _I64))),
    beam.Pane: lambda layout: lay.Struct(_PANE),
    beam.AvroBinary: lambda layout: lay.Dynamic(tree.Avro(runtime_class="", schema_json=layout.schema_json)),
}


def runs(layout: Layout) -> bool:
    """Return whether the kernels run a layout."""
    try:
        compile_layout(layout)
    except UnsupportedError:
        return False
    return True


def _find_dynamic(layout: lay.Dynamic) -> Surrogate:
    if isinstance(layout.serializer, tree.Kryo):
        layout_in, read, write = find_kryo(layout)
        return Surrogate(layout_in, read, write)
    serializer = layout.serializer
    name = "pickles" if isinstance(serializer, PythonType) else f"values of {type(serializer).__name__}"

    def refuse(value: Any) -> Any:
        raise UnsupportedError(
            f"{name} are JSON text in tables, which is not written back",
            hint="Keep the bytes of these values as they are",
        )

    return Surrogate(lay.Text(), lambda value: dumps(to_json(serializer, value)), refuse)  # type: ignore[arg-type]


def _wrap_unknown(found: Surrogate) -> Surrogate:
    def read(value: Any) -> Any:
        if isinstance(value, Undecoded):
            raise UnsupportedError(value.reason)
        return found.read(value)

    # An own null flag: these values may be null even where the layout around them has no nulls.
    return Surrogate(lay.Optional(found.layout), read, found.write)


def nullable(change: Change) -> Change:
    """`change`, with None for None."""
    return lambda value: None if value is None else change(value)


def _each(change: Change) -> Change:
    one = nullable(change)
    return lambda values: [one(value) for value in values]


def _find_fields(layout: Layout, fields: tuple[tuple[str, Layout], ...]) -> Surrogate | None:
    found = {name: surrogate for name, child in fields if (surrogate := find_surrogate(child)) is not None}
    if not found:
        return None
    changed = tuple((name, found[name].layout if name in found else child) for name, child in fields)
    reads = {name: nullable(each.read) for name, each in found.items()}
    writes = {name: nullable(each.write) for name, each in found.items()}
    new = lay.Struct(changed) if isinstance(layout, lay.Struct) else replace(layout, fields=changed)  # type: ignore[call-arg]
    return Surrogate(new, _change_fields(reads), _change_fields(writes))


def _change_fields(changes: dict[str, Change]) -> Change:
    def change(value: Any) -> Any:
        return {name: changes[name](item) if name in changes else item for name, item in value.items()}

    return change


def _find_mapping(key: Layout, value: Layout) -> Surrogate | None:
    found = (find_surrogate(key), find_surrogate(value))
    if found == (None, None):
        return None
    keys, values = (each or Surrogate(layout, _same, _same) for each, layout in zip(found, (key, value), strict=True))

    def along(first: Change, second: Change) -> Change:
        first, second = nullable(first), nullable(second)
        return lambda entries: [(first(name), second(item)) for name, item in entries]

    new = lay.Mapping(keys.layout, values.layout)
    return Surrogate(new, along(keys.read, values.read), along(keys.write, values.write))


def _same(value: Any) -> Any:
    return value


def _find_cases(layout: lay.Tagged) -> Surrogate | None:
    found = {name: each for _, name, child in layout.cases if (each := find_surrogate(child)) is not None}
    if not found:
        return None
    cases = tuple((tag, name, found[name].layout if name in found else child) for tag, name, child in layout.cases)

    def along(changes: dict[str, Change]) -> Change:
        return lambda value: {**value, "value": changes.get(value["case"], lambda item: item)(value["value"])}

    reads = {name: nullable(each.read) for name, each in found.items()}
    writes = {name: nullable(each.write) for name, each in found.items()}
    return Surrogate(replace(layout, cases=cases), along(reads), along(writes))


def _find_pojo(layout: lay.PojoObject) -> Surrogate | None:
    """Return every class of its own; a subclass that is no POJO becomes one with a single field, its short name."""
    own = _find_fields(lay.Struct(layout.fields), layout.fields)
    others = [find_surrogate(variant.layout) for variant in layout.variants]
    if own is None and not any(others):
        return None
    reads: dict[str, Change] = {}
    writes: dict[str, Change] = {}
    if own is not None:
        reads[layout.class_name], writes[layout.class_name] = own.read, own.write
    variants = []
    for variant, found in zip(layout.variants, others, strict=True):
        inner = found.layout if found else variant.layout
        if found is not None:
            reads[variant.class_name], writes[variant.class_name] = found.read, found.write
        if not isinstance(inner, lay.PojoObject):
            short = variant.class_name.replace("$", ".").rpartition(".")[2]
            inner = lay.PojoObject(variant.class_name, ((short, inner),))
            reads[variant.class_name] = _enclose(variant.class_name, short, found.read if found else None)
            writes[variant.class_name] = _disclose(short, found.write if found else None)
        variants.append(replace(variant, layout=inner))
    fields = own.layout.fields if own else layout.fields  # type: ignore[attr-defined]

    def read(value: Any) -> Any:
        name = value.get("class") if isinstance(value, dict) else getattr(value, "class_name", None)
        if name is None:
            raise UnsupportedError(f"the class of {value!r:.80} is not known")
        return reads.get(name, lambda item: item)(value)

    def write(value: Any) -> Any:
        return writes.get(value.get("class", layout.class_name), lambda item: item)(value)

    return Surrogate(lay.PojoObject(layout.class_name, fields, tuple(variants)), read, write)


def _enclose(class_name: str, short: str, change: Change | None) -> Change:
    return lambda value: {"class": class_name, short: change(value) if change else value}


def _disclose(short: str, change: Change | None) -> Change:
    return lambda value: change(value[short]) if change and value[short] is not None else value[short]
