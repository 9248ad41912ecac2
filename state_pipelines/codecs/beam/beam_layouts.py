"""Layouts of Beam's coders, and how they are derived from a coder.

All data are in the nested context, in which values are self-delimiting. Coders of users and those that are not
listed here have no layout: their values stay bytes.
Source: repository apache/beam, packages `org.apache.beam.sdk.coders`, `org.apache.beam.sdk.transforms.windowing`,
`org.apache.beam.sdk.util` (`WindowedValue`), `org.apache.beam.runners.core` (`TimerInternals`),
`org.apache.beam.sdk.io.kafka`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.extensions import register_layout
from state_pipelines.codecs.layout import Layout
from state_pipelines.serializers import tree
from state_pipelines.serializers.beam import BYTE_BUFFER_CODER, KEY_CODER, BeamSerializer, Coder
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import BasicKind


@dataclass(frozen=True)
class VarNumber(Layout):
    """`VarInt`: two's complement of 32 or 64 bits as 7-bit groups, low group first."""

    bits: int = 64


@dataclass(frozen=True)
class VarSized(Layout):
    """A `VarInt` length, then bytes (UTF-8 with `text`)."""

    text: bool = False


@dataclass(frozen=True)
class VarFramed(Layout):
    """A `VarInt` length, then a value that uses exactly that many bytes (`LengthPrefixCoder`)."""

    inner: Layout


@dataclass(frozen=True)
class VarInteger(Layout):
    """`BigIntegerCoder`: a `VarInt` length, then two's complement bytes."""


@dataclass(frozen=True)
class VarDecimal(Layout):
    """`BigDecimalCoder`: a `VarInt` scale, then the unscaled `VarInteger`."""


@dataclass(frozen=True)
class Counted(Layout):
    """`IterableLikeCoder`: an i32 count and the elements, or -1 and blocks of a `VarInt` count, up to an empty one."""

    element: Layout


@dataclass(frozen=True)
class VarTagged(Layout):
    """A `VarInt` tag and the value that it selects, like `layout.Tagged`."""

    cases: tuple[tuple[int, str, Layout], ...]


@dataclass(frozen=True)
class IntervalWindow(Layout):
    """`IntervalWindowCoder`: its end, then its length; the value has `start` and `end` in epoch milliseconds."""


@dataclass(frozen=True)
class Pane(Layout):
    """`PaneInfoCoder`: a byte of flags, then no, one or two indices."""


@dataclass(frozen=True)
class AvroBinary(Layout):
    """Avro's binary encoding (`AvroCoder`), unlike that of Flink's `AvroSerializer`."""

    schema_json: str


_INSTANT = lay.Logical(lay.LogicalKind.ORDERED_I64)
_TEXT, _BYTES = VarSized(text=True), VarSized()
_INT, _LONG = VarNumber(32), VarNumber(64)
_SDK = "org.apache.beam.sdk."
_CODERS = f"{_SDK}coders."
_WINDOWING = f"{_SDK}transforms.windowing."
_TIMERS = "org.apache.beam.runners.core.TimerInternals$"
_TAGGED_KV = "org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator$TaggedKvCoder"
_HEADERS = ("headers", Counted(lay.Struct((("key", _TEXT), ("value", _BYTES)))))

SIMPLE_CODERS: dict[str, Layout] = {
    f"{_CODERS}StringUtf8Coder": _TEXT,
    f"{_CODERS}TextualIntegerCoder": _TEXT,
    f"{_CODERS}StringDelegateCoder": _TEXT,
    f"{_CODERS}ByteArrayCoder": _BYTES,
    f"{_CODERS}BitSetCoder": _BYTES,
    BYTE_BUFFER_CODER: _BYTES,
    f"{_CODERS}VarIntCoder": _INT,
    f"{_CODERS}VarLongCoder": _LONG,
    f"{_CODERS}BigEndianShortCoder": lay.Primitive(lay.PrimitiveKind.I16),
    f"{_CODERS}BigEndianIntegerCoder": lay.Primitive(lay.PrimitiveKind.I32),
    f"{_CODERS}BigEndianLongCoder": lay.Primitive(lay.PrimitiveKind.I64),
    f"{_CODERS}ByteCoder": lay.Primitive(lay.PrimitiveKind.I8),
    f"{_CODERS}BooleanCoder": lay.Primitive(lay.PrimitiveKind.BOOL),
    f"{_CODERS}FloatCoder": lay.Primitive(lay.PrimitiveKind.F32),
    f"{_CODERS}DoubleCoder": lay.Primitive(lay.PrimitiveKind.F64),
    f"{_CODERS}BigIntegerCoder": VarInteger(),
    f"{_CODERS}BigDecimalCoder": VarDecimal(),
    f"{_CODERS}VoidCoder": lay.Constant(b""),
    f"{_CODERS}InstantCoder": _INSTANT,
    f"{_CODERS}DurationCoder": _LONG,
    f"{_WINDOWING}GlobalWindow$Coder": lay.Constant(b"", empty=True),
    f"{_WINDOWING}IntervalWindow$IntervalWindowCoder": IntervalWindow(),
    f"{_WINDOWING}PaneInfo$PaneInfoCoder": Pane(),
    f"{_SDK}io.range.OffsetRange$Coder": lay.Struct((("from", _LONG), ("to", _LONG))),
    f"{_SDK}io.kafka.TopicPartitionCoder": lay.Struct((("topic", _TEXT), ("partition", _INT))),
    f"{_TIMERS}TimerDataCoder": lay.Struct(
        (("timer_id", _TEXT), ("namespace", _TEXT), ("timestamp", _INSTANT), ("domain", _TEXT))
    ),
    f"{_TIMERS}TimerDataCoderV2": lay.Struct(
        (
            ("timer_id", _TEXT),
            ("timer_family_id", _TEXT),
            ("namespace", _TEXT),
            ("timestamp", _INSTANT),
            ("output_timestamp", _INSTANT),
            ("domain", _TEXT),
        )
    ),
}
"""Layouts of the coders without other coders inside."""

Derive: TypeAlias = Callable[[str], Layout]
"""Gives the layout of the coder in a field."""
Fields: TypeAlias = tuple[tuple[str, Layout], ...]


def _windowed(inner: Derive) -> Layout:
    fields = (
        ("timestamp", _INSTANT),
        ("windows", inner("windowsCoder")),
        ("pane", Pane()),
        ("value", inner("valueCoder")),
    )
    return lay.Struct(fields)


def _kafka_record(inner: Derive) -> Layout:
    fields = ("topic", _TEXT), ("partition", _INT), ("offset", _LONG), ("timestamp", _LONG), ("timestamp_type", _INT)
    return lay.Struct((*fields, _HEADERS, ("kv", inner("kvCoder"))))


def _producer_record(inner: Derive) -> Layout:
    return lay.Struct((("topic", _TEXT), ("partition", _INT), ("timestamp", _LONG), _HEADERS, ("kv", inner("kvCoder"))))


def _key_value(inner: Derive) -> Layout:
    return lay.Struct((("key", inner("keyCoder")), ("value", inner("valueCoder"))))


def _mapping(inner: Derive) -> Layout:
    return lay.Mapping(inner("keyCoder"), inner("valueCoder"))


def _counted(inner: Derive) -> Layout:
    return Counted(inner("elementCoder"))


COMPOSITE_CODERS: dict[str, Callable[[Derive], Layout]] = {
    f"{_CODERS}KvCoder": _key_value,
    f"{_CODERS}NullableCoder": lambda inner: lay.Optional(inner("valueCoder"), null_flag=0),
    f"{_CODERS}DelegateCoder": lambda inner: inner("coder"),
    f"{_CODERS}LengthPrefixCoder": lambda inner: VarFramed(inner("valueCoder")),
    **{f"{_CODERS}{kind}Coder": _counted for kind in ("Iterable", "Collection", "List", "Set", "Deque")},
    f"{_CODERS}MapCoder": _mapping,
    f"{_CODERS}SortedMapCoder": _mapping,
    f"{_SDK}util.WindowedValue$FullWindowedValueCoder": _windowed,
    f"{_SDK}util.WindowedValue$ParamWindowedValueCoder": lambda inner: inner("valueCoder"),
    f"{_SDK}util.WindowedValue$ValueOnlyWindowedValueCoder": lambda inner: inner("valueCoder"),
    f"{_SDK}values.TimestampedValue$TimestampedValueCoder": lambda inner: lay.Struct(
        (("value", inner("valueCoder")), ("timestamp", _INSTANT))
    ),
    f"{_SDK}values.ValueWithRecordId$ValueWithRecordIdCoder": lambda inner: lay.Struct(
        (("value", inner("valueCoder")), ("id", _BYTES))
    ),
    f"{_SDK}io.kafka.KafkaRecordCoder": _kafka_record,
    f"{_SDK}io.kafka.ProducerRecordCoder": _producer_record,
}
"""Functions that make the layout of a coder from the layouts of the coders nested in it, by coder class."""

_AVRO = re.compile(r"org\.apache\.beam\.sdk\.(extensions\.avro\.)?coders\.Avro(Generic|Specific|Reflect)?Coder(\$\w+)?")
TAGGED_CODERS = frozenset({_TAGGED_KV, f"{_SDK}transforms.join.UnionCoder"})
"""Coders that write a number and then a value with the coder of that number."""


@register_layout(BeamSerializer, fixed_length=False)
def lay_beam(node: BeamSerializer, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    """Return the layout of the data of a Beam serializer."""
    return derive_coder(node.coder, derive)


def derive_coder(coder: Coder, derive: Callable[[tree.Serializer], Layout] = lay.Dynamic) -> Layout:
    """Return the layout of the data that a coder writes.

    Args:
        coder: the coder.
        derive: gives the layout of values whose bytes depend on their classes.
    """
    if coder.class_name == f"{_CODERS}SerializableCoder":
        return derive(basic(BasicKind.JAVA_OBJECT))
    if coder.is_key_bytes and coder.components:
        # A key coder that the state beside the keys names (`keyed.beam_keys`).
        return VarFramed(_inside(coder, KEY_CODER, derive))
    simple = SIMPLE_CODERS.get(coder.class_name)
    if simple is not None:
        return simple
    composite = COMPOSITE_CODERS.get(coder.class_name)
    if composite is not None:
        return composite(lambda name: _inside(coder, name, derive))
    if coder.class_name in TAGGED_CODERS and all(name.isdigit() for name, _ in coder.components):
        cases = ((int(name), f"tag_{name}", derive_coder(each, derive)) for name, each in coder.components)
        return VarTagged(tuple(cases))
    if _AVRO.fullmatch(coder.class_name) and coder.detail:
        return AvroBinary(coder.detail)
    return _bind(coder, derive)


def _inside(coder: Coder, name: str, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    component = coder.component(name)
    return _bind(coder, derive) if component is None else derive_coder(component, derive)


def _bind(coder: Coder, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    kind = tree.ClassBoundKind.CODER
    return derive(tree.ClassBound(snapshot_class="", kind=kind, type_class=coder.class_name))
