"""Random layouts, random values of them, and the form that `pyarrow.array` takes of such a value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import NANOS_OF_DAY
from state_pipelines.codecs.programs import smallest_size

MAX_DEPTH = 3
ROW_KINDS = ("+I", "-U", "+U", "-D")
NUMBERS = {
    "i8": st.integers(-(1 << 7), (1 << 7) - 1),
    "i16": st.integers(-(1 << 15), (1 << 15) - 1),
    "u16": st.integers(0, (1 << 16) - 1),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1),
    "i64": st.integers(-(1 << 63), (1 << 63) - 1),
}
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    **NUMBERS,
    "bool": st.booleans(),
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
}
LONGS = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
DAYS = NUMBERS["i32"]
NANOS = st.integers(0, NANOS_OF_DAY - 1)
LOGICALS: dict[str, st.SearchStrategy[Any]] = {
    "char": st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]),
    "ordered_i64": NUMBERS["i64"],
    "date_millis": st.none() | LONGS,
    "local_date": st.none() | DAYS,
    "local_time": st.none() | NANOS,
    "local_date_time": st.none() | st.fixed_dictionaries({"date": DAYS, "nano_of_day": NANOS}),
    "sql_timestamp": st.none() | st.fixed_dictionaries({"millis": LONGS, "nanos": NUMBERS["i32"]}),
    "instant": st.none() | st.fixed_dictionaries({"epoch_second": LONGS, "nano": NUMBERS["i32"]}),
}
BIG_INTEGERS = st.none() | st.sampled_from((0, 1, 10, -1, 127, 128, -128, -129)) | st.integers(-(1 << 300), 1 << 300)
BIG_DECIMALS = st.none() | st.builds(
    lambda unscaled, scale: Decimal((int(unscaled < 0), Decimal(abs(unscaled)).as_tuple().digits, -scale)),
    st.integers(-(1 << 200), 1 << 200),
    st.integers(-40, 40) | NUMBERS["i32"],
)
TEXTS = st.text(max_size=20)
NULLABLE_TEXTS = st.none() | TEXTS
BYTES = st.binary(max_size=20)
COUNTS = st.integers(0, 3)
NAMES = st.sampled_from(("a", "b", "city", "f0", "größe", "zip"))


def leaves() -> st.SearchStrategy[lay.Layout]:
    """Layouts without others inside."""
    return st.one_of(
        st.sampled_from(lay.PrimitiveKind).map(lay.Primitive),
        st.sampled_from(sorted(LOGICALS)).map(lay.LogicalKind).map(lay.Logical),
        st.booleans().map(lay.Text),
        st.booleans().map(lay.Sized),
        st.sampled_from(
            (
                lay.BigInteger(),
                lay.BigDecimal(),
                lay.Constant(b"\0"),
                lay.Constant(b""),
                lay.Constant(b"\x2a", empty=True),
                lay.Constants(("RED", "GREEN", "BLUE")),
            )
        ),
    )


def layouts(depth: int = MAX_DEPTH) -> st.SearchStrategy[lay.Layout]:
    """Layouts of values that know where they end."""
    if depth == 0:
        return leaves()
    inner = layouts(depth - 1)
    fields = st.lists(st.tuples(NAMES, inner), max_size=4, unique_by=lambda each: each[0]).map(tuple)
    return st.one_of(
        leaves(),
        st.builds(lay.Struct, fields),
        st.builds(lay.Optional, inner, st.sampled_from((0, 1)), st.sampled_from((0, 0, 9))),
        st.builds(lay.Sequence, inner),
        st.builds(lay.Mapping, inner.filter(_has_values), inner),
        st.builds(lay.Masked, fields, st.booleans()),
        st.builds(lay.Choice, inner, inner),
        st.builds(lay.MeasuredKey, inner),
        st.builds(lay.Framed, inner),
        st.builds(lay.NullMasked, inner.filter(_has_values), st.booleans()),
        tagged(inner),
        pojos(inner),
    )


def span_bound_layouts() -> st.SearchStrategy[lay.Layout]:
    """Layouts of values that end where their bytes end."""
    return st.one_of(
        st.builds(lay.Delimited, layouts(2).filter(lambda each: smallest_size(each) > 0)),
        st.builds(lay.Optional, layouts(2), rest_is_null=st.just(True)),
        st.just(lay.Rest()),
    )


def tagged(inner: st.SearchStrategy[lay.Layout]) -> st.SearchStrategy[lay.Tagged]:
    """Layouts of one of several values."""
    cases = st.lists(
        st.tuples(st.integers(0, 127), NAMES, inner), min_size=1, max_size=3, unique_by=lambda each: each[0]
    )
    unique = cases.filter(lambda each: len({name for _, name, _ in each}) == len(each))
    return st.builds(lay.Tagged, unique.map(tuple), st.sampled_from((1, 4)))


@st.composite
def pojos(draw: st.DrawFn, inner: st.SearchStrategy[lay.Layout]) -> lay.PojoObject:
    """POJO classes, half of them with registered and non-registered subclasses."""
    pool = draw(st.dictionaries(NAMES, inner, max_size=5))
    subset = st.lists(st.sampled_from(sorted(pool)), unique=True) if pool else st.just([])

    def fields() -> tuple[tuple[str, lay.Layout], ...]:
        return tuple((name, pool[name]) for name in draw(subset))

    tags = draw(st.lists(st.sampled_from((None, 0, 1, 200)), max_size=3))
    unique = [tag for index, tag in enumerate(tags) if tag is None or tag not in tags[:index]]
    variants = [
        lay.PojoVariant(f"com.acme.Sub{index}", tag, lay.PojoObject(f"com.acme.Sub{index}", fields()))
        for index, tag in enumerate(unique)
    ]
    return lay.PojoObject("com.acme.Base", fields(), tuple(variants))


def _has_values(layout: lay.Layout) -> bool:
    """Whether values can be something else than None, as keys of Arrow maps have to."""
    match layout:
        case lay.Constant(empty=empty):
            return empty
        case lay.Optional(inner=inner) | lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner):
            return _has_values(inner)
        case _:
            return True


KNOWN_ENDS = layouts()
"""Layouts of values that know where they end."""
SPAN_BOUND = span_bound_layouts()
"""Layouts of values that end where their bytes end."""
ALL_LAYOUTS = KNOWN_ENDS | SPAN_BOUND


def draw_value(draw: st.DrawFn, layout: lay.Layout) -> Any:
    """A value of `layout` as the scalar codec has it.

    Drawn piece by piece: strategies made for each new layout would take longer than the tests.
    """
    match layout:
        case lay.Primitive(kind=kind):
            return draw(PRIMITIVES[kind])
        case lay.Logical(name=logical):
            return draw(LOGICALS[logical])
        case lay.Text(nullable=nullable):
            return draw(NULLABLE_TEXTS if nullable else TEXTS)
        case lay.Sized(text=text):
            return draw(TEXTS if text else BYTES)
        case lay.Rest():
            return draw(BYTES)
        case lay.BigInteger():
            return draw(BIG_INTEGERS)
        case lay.BigDecimal():
            return draw(BIG_DECIMALS)
        case lay.Constant(empty=empty):
            return {} if empty else None
        case lay.Constants(names=names):
            return draw(st.sampled_from(names))
        case lay.Struct(fields=fields):
            return {name: draw_value(draw, child) for name, child in fields}
        case lay.Optional(inner=inner):
            return draw_nullable(draw, inner)
        case lay.Sequence(element=element) | lay.Delimited(element=element):
            return [draw_value(draw, element) for _ in range(draw(COUNTS))]
        case lay.Mapping(key=key, value=value):
            entries = [(draw_value(draw, key), draw_value(draw, value)) for _ in range(draw(COUNTS))]
            return [entry for entry in entries if entry[0] is not None]
        case lay.Masked(fields=fields, kind=kind):
            children = {name: draw_nullable(draw, child) for name, child in fields}
            return {"row_kind": draw(st.sampled_from(ROW_KINDS)) if kind else None, **children}
        case lay.Choice(left=left, right=right):
            is_left = draw(st.booleans())
            sides = {"left": draw_value(draw, left) if is_left else None}
            return {"is_left": is_left, **sides, "right": None if is_left else draw_value(draw, right)}
        case lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner):
            return draw_value(draw, inner)
        case lay.NullMasked(element=element, mask=mask):
            one = draw_nullable if mask else draw_value
            return [one(draw, element) for _ in range(draw(COUNTS))]
        case lay.Tagged(cases=cases):
            _, name, child = draw(st.sampled_from(cases))
            return {"case": name, "value": draw_value(draw, child)}
        case lay.PojoObject(variants=variants):
            classes = [None, layout, *(variant.layout for variant in variants)]
            of = draw(st.sampled_from(classes))
            if not isinstance(of, lay.PojoObject):
                return None
            return {"class": of.class_name, **{name: draw_nullable(draw, child) for name, child in of.fields}}
    raise NotImplementedError(layout)  # A new layout needs a case above.


def draw_nullable(draw: st.DrawFn, layout: lay.Layout) -> Any:
    """None, or a value."""
    return None if draw(st.booleans()) else draw_value(draw, layout)


@st.composite
def cases(
    draw: st.DrawFn, of: st.SearchStrategy[lay.Layout] | None = None, max_size: int = 5
) -> tuple[lay.Layout, list[Any]]:
    """A layout and some values of it."""
    layout = draw(ALL_LAYOUTS if of is None else of)
    return layout, [draw_value(draw, layout) for _ in range(draw(st.integers(1, max_size)))]


def to_arrow_value(layout: lay.Layout, value: Any) -> Any:
    """A value of the scalar codec as `pyarrow.array` takes it for the type of the columnar codec."""
    if value is None:
        return None
    match layout:
        case lay.BigInteger() | lay.BigDecimal():
            return str(value)
        case lay.Logical(name=lay.LogicalKind.LOCAL_DATE_TIME):
            return {"date": value["date"], "time": value["nano_of_day"]}
        case lay.Struct(fields=fields):
            return {name: to_arrow_value(child, value[name]) for name, child in fields}
        case lay.Optional(inner=inner) | lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner):
            return to_arrow_value(inner, value)
        case lay.NullMasked(element=element):
            return [to_arrow_value(element, each) for each in value]
        case lay.Tagged(cases=cases):
            names = {name: None for _, name, child in cases if not isinstance(child, lay.Constant) or child.empty}
            child = next(each for _, name, each in cases if name == value["case"])
            content = {value["case"]: to_arrow_value(child, value["value"])} if value["case"] in names else {}
            return {"case": value["case"], **names, **content}
        case lay.Sequence(element=element) | lay.Delimited(element=element):
            return [to_arrow_value(element, each) for each in value]
        case lay.Mapping(key=key, value=item):
            return [(to_arrow_value(key, each), to_arrow_value(item, other)) for each, other in value]
        case lay.Masked(fields=fields, kind=kind):
            row = {"row_kind": value["row_kind"]} if kind else {}
            return row | {name: to_arrow_value(child, value[name]) for name, child in fields}
        case lay.Choice(left=left, right=right):
            return {
                "is_left": value["is_left"],
                "left": to_arrow_value(left, value["left"]),
                "right": to_arrow_value(right, value["right"]),
            }
        case lay.PojoObject(fields=fields, variants=variants):
            every = dict(fields)
            for variant in variants:
                assert isinstance(variant.layout, lay.PojoObject)
                every.update(variant.layout.fields)
            row = {"class": value["class"]} if variants else {}
            return row | {name: to_arrow_value(child, value.get(name)) for name, child in every.items()}
    return value
