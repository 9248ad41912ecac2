"""Serializers of Acme's Flink jobs: how their snapshots and their data look.

`MoneySerializer<T>` writes an amount in cents and a note of any type; its snapshot holds the currency and the
serializer of the note. `TestSerializer` is the user-defined serializer of Flink's own migration test: it writes longs.
`Station` writes itself, behind Flink's `ValueSerializer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from state_pipelines.codecs.json import register_json, to_json
from state_pipelines.codecs.layout import (
    JavaText,
    Layout,
    Optional,
    Primitive,
    PrimitiveKind,
    Struct,
    register_class_layout,
    register_layout,
)
from state_pipelines.serializers.compatibility import Compatibility, compare_class, compare_nested, rule
from state_pipelines.serializers.registry import read_nested, register, write_nested
from state_pipelines.serializers.tree import Serializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.codecs.json import Json
    from state_pipelines.codecs.layout import Derive
    from state_pipelines.serializers.snapshot_classes import Head


# 1. The node: what the snapshot stores, as a frozen value.
@dataclass(frozen=True, kw_only=True)
class Money(Serializer):
    """`com.acme.MoneySerializer`."""

    currency: str
    note: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The serializer of the note."""
        return (self.note,)


# 2. The snapshot: what `writeSnapshot` writes behind class name and version, and its mirror.
def write_money(writer: Writer, node: Money) -> None:
    """Mirror of `read_money`."""
    writer.utf(node.currency)
    write_nested(writer, node.note)


@register("com.acme.MoneySerializer$MoneySerializerSnapshot", write=write_money, serializer="com.acme.MoneySerializer")
def read_money(reader: Reader, head: Head) -> Money:
    """Read the currency, then the snapshot of the nested serializer."""
    head.expect(1)
    return Money(**head.marks, currency=reader.utf(), note=read_nested(reader))


# 3. The data: what `serialize` writes, said in layouts. Scalar codec, columns, tables and migrations follow from it.
@register_layout(Money)
def lay_money(node: Money, derive: Derive) -> Layout:
    """The amount in cents, a flag that is 1 when there is no note, the note."""
    return Struct((("cents", Primitive(PrimitiveKind.I64)), ("note", Optional(derive(node.note)))))


# 4. If wanted: another form in `dump` than that of the value (here a dict of `cents` and `note`).
@register_json(Money)
def show_money(node: Money, value: object) -> Json:
    """`{"@money": [cents, currency], "note": …}`."""
    parts = cast("Mapping[str, int]", value)
    return {"@money": [parts["cents"], node.currency], "note": to_json(node.note, parts["note"])}


# 5. If wanted: what `resolveSchemaCompatibility` says, for `check`. Without it, anything but equal is undetermined.
@rule.register
def compare_money(old: Money, new: Money) -> Compatibility:
    """The currency must stay; the note may do what its serializer may do."""
    if old.currency != new.currency:
        return compare_class(old.currency, new.currency, old, new)
    return compare_nested(old, new)


@dataclass(frozen=True, kw_only=True)
class TestLong(Serializer):
    """`TypeSerializerSnapshotMigrationITCase$TestSerializer`."""

    payload: str


def write_test_long(writer: Writer, node: TestLong) -> None:
    """Mirror of `read_test_long`."""
    writer.utf(node.payload)


@register(
    "org.apache.flink.test.migration.TypeSerializerSnapshotMigrationITCase$TestSerializerSnapshot",
    write=write_test_long,
)
def read_test_long(reader: Reader, head: Head) -> TestLong:
    """Read the text that the test configures."""
    head.expect(1)
    return TestLong(**head.marks, payload=reader.utf())


@register_layout(TestLong)
def lay_test_long(node: TestLong, derive: Derive) -> Layout:
    """A long, as `LongSerializer` writes it."""
    return Primitive(PrimitiveKind.I64)


# A class that writes itself needs no node: the snapshot names the class, the layout is all that is missing.
register_class_layout("com.acme.Station", Struct((("name", JavaText()), ("height", Primitive(PrimitiveKind.F64)))))
