"""Serializers of a user that migrate: those of `tests/flink/java/migrating`, registered the way a user does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.json import register_json, to_json
from state_pipelines.codecs.layout import (
    JavaText,
    Layout,
    Primitive,
    PrimitiveKind,
    Struct,
    register_conversion,
    register_layout,
)
from state_pipelines.serializers.compatibility import (
    Compatibility,
    Outcome,
    SerializerDifference,
    compare_nested,
    rule,
)
from state_pipelines.serializers.registry import register, register_composite_with_outer
from state_pipelines.serializers.tree import Composite, Serializer

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.codecs.json import Json
    from state_pipelines.codecs.layout import Derive
    from state_pipelines.serializers.snapshot_classes import CompositeMarks, Head

COUNTER = "migrating.CounterSerializer$CounterSnapshot"
PRICE = "migrating.PriceSerializer$PriceSnapshot"
CRATE = "migrating.CrateSerializer$CrateSnapshot"
_I32, _I64 = Primitive(PrimitiveKind.I32), Primitive(PrimitiveKind.I64)


def grow(before: int, after: int) -> SerializerDifference:
    outcome = Outcome.AFTER_MIGRATION if before < after else Outcome.INCOMPATIBLE
    return SerializerDifference(path="", old=str(before), new=str(after), outcome=outcome, reason="the number changed")


@dataclass(frozen=True, kw_only=True)
class Counter(Serializer):
    """A whole number of `width` bytes, 4 or 8; it may grow."""

    snapshot_class: str = COUNTER
    snapshot_version: int = 1
    width: int


def write_counter(writer: Writer, node: Counter) -> None:
    writer.i32(node.width)


@register(COUNTER, write=write_counter, serializer="migrating.CounterSerializer")
def read_counter(reader: Reader, head: Head) -> Counter:
    head.expect(1)
    return Counter(**head.marks, width=reader.i32())


@register_layout(Counter)
def lay_counter(node: Counter, derive: Derive) -> Layout:
    return _I32 if node.width == 4 else _I64


@rule.register
def compare_counter(old: Counter, new: Counter) -> Compatibility:
    if old.width == new.width:
        return Compatibility(Outcome.AS_IS, ())
    finding = grow(old.width, new.width)
    return Compatibility(finding.outcome, (finding,))


@dataclass(frozen=True, kw_only=True)
class Price(Serializer):
    """Cents of version 1; of version 2 an amount and its currency."""

    snapshot_class: str = PRICE
    snapshot_version: int


def write_price(writer: Writer, node: Price) -> None:
    """The snapshot has a version and no content."""


@register(PRICE, write=write_price, serializer="migrating.PriceSerializer")
def read_price(reader: Reader, head: Head) -> Price:
    head.expect(1, 2)
    return Price(**head.marks)


@register_layout(Price)
def lay_price(node: Price, derive: Derive) -> Layout:
    return _I64 if node.snapshot_version == 1 else Struct((("cents", _I64), ("currency", JavaText())))


@rule.register
def compare_price(old: Price, new: Price) -> Compatibility:
    if old == new:
        return Compatibility(Outcome.AS_IS, ())
    finding = grow(old.snapshot_version, new.snapshot_version)
    return Compatibility(finding.outcome, (finding,))


@register_conversion(Price, Price)
def convert_price(old: Price, new: Price, find: object) -> Callable[[Any], Any]:
    return lambda cents: {"cents": cents, "currency": "EUR"}


@dataclass(frozen=True, kw_only=True)
class Crate(Composite):
    """A composite with outer data: a label in the snapshot, a number and some content in the data."""

    snapshot_class: str = CRATE
    snapshot_version: int = 3
    outer_version: int = 1
    label: str
    content: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        return (self.content,)


def read_label(reader: Reader, version: int) -> str:
    return reader.utf()


def write_label(writer: Writer, node: Crate) -> None:
    writer.utf(node.label)


@register_composite_with_outer(
    CRATE, arity=1, read_outer=read_label, write_outer=write_label, serializer="migrating.CrateSerializer"
)
def build_crate(marks: CompositeMarks, nested: tuple[Serializer, ...], label: str) -> Crate:
    return Crate(**marks, label=label, content=nested[0])


@register_layout(Crate)
def lay_crate(node: Crate, derive: Derive) -> Layout:
    return Struct((("number", _I32), ("content", derive(node.content))))


@register_json(Crate)
def show_crate(node: Crate, value: Any) -> Json:
    content = to_json(node.content, value["content"])
    return {"@class": "migrating.Crate", "number": value["number"], "content": content}


@rule.register
def compare_crate(old: Crate, new: Crate) -> Compatibility:
    if old.label == new.label:
        return compare_nested(old, new)
    finding = SerializerDifference(
        path="", old=old.label, new=new.label, outcome=Outcome.INCOMPATIBLE, reason="the label changed"
    )
    return compare_nested(old, new, finding)
