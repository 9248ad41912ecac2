"""The serializers that `tests/flink/java/compat` has as a user's own, registered the way a user does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility import (
    Compatibility,
    Outcome,
    SerializerDifference,
    compare_nested,
    register_successor,
    rule,
)
from state_pipelines.serializers.registry import register, register_composite_with_outer, register_simple
from state_pipelines.serializers.tree import Composite, Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_classes import CompositeMarks, Head

LEVEL = "compat.LevelSerializer$LevelSerializerSnapshot"
OLD_STYLE = "compat.OldStyleSerializer$OldStyleSerializerSnapshot"
SUCCESSOR = "compat.SuccessorSerializer$SuccessorSerializerSnapshot"
PLAIN = "compat.PlainSerializer$PlainSerializerSnapshot"
BOX = "compat.BoxSerializer$BoxSerializerSnapshot"
OUTCOMES = (Outcome.AS_IS, Outcome.RECONFIGURED, Outcome.AFTER_MIGRATION)


def differ(before: int, after: int, outcome: Outcome) -> SerializerDifference:
    return SerializerDifference(path="", old=str(before), new=str(after), outcome=outcome, reason="the number changed")


@dataclass(frozen=True, kw_only=True)
class Level(Serializer):
    """A serializer whose level says what comes of a restore."""

    level: int


def write_level(writer: Writer, node: Level) -> None:
    if node.snapshot_version > 1:
        writer.i32(node.level)


@register(LEVEL, write=write_level, serializer="compat.LevelSerializer")
def read_level(reader: Reader, head: Head) -> Level:
    head.expect(1, 2)
    return Level(**head.marks, level=1 if head.version == 1 else reader.i32())


@rule.register
def compare_level(old: Level, new: Level) -> Compatibility:
    step = new.level - old.level
    outcome = OUTCOMES[step] if 0 <= step < len(OUTCOMES) else Outcome.INCOMPATIBLE
    return Compatibility(outcome, () if step == 0 else (differ(old.level, new.level, outcome),))


@dataclass(frozen=True, kw_only=True)
class OldStyle(Serializer):
    """The same; its Java class has only the method of releases up to 1.18."""

    level: int


def write_old_style(writer: Writer, node: OldStyle) -> None:
    writer.i32(node.level)


@register(OLD_STYLE, write=write_old_style, serializer="compat.OldStyleSerializer")
def read_old_style(reader: Reader, head: Head) -> OldStyle:
    head.expect(2)
    return OldStyle(**head.marks, level=reader.i32())


@rule.register
def compare_old_style(old: OldStyle, new: OldStyle) -> Compatibility:
    before, after = (Level(snapshot_class=LEVEL, snapshot_version=2, level=each.level) for each in (old, new))
    return compare_level(before, after)


@dataclass(frozen=True, kw_only=True)
class Successor(Serializer):
    """What takes the place of `Level`."""


def write_successor(writer: Writer, node: Successor) -> None:
    """Its snapshot has no content."""


@register(SUCCESSOR, write=write_successor, serializer="compat.SuccessorSerializer")
def read_successor(reader: Reader, head: Head) -> Successor:
    head.expect(1)
    return Successor(**head.marks)


@register_successor(LEVEL, SUCCESSOR)
def succeed_level(old: Level, new: Successor) -> Compatibility:
    outcome = Outcome.AFTER_MIGRATION if old.level == 2 else Outcome.INCOMPATIBLE
    return Compatibility(outcome, (differ(old.level, 0, outcome),))


@register_simple(PLAIN, serializer="compat.PlainSerializer")
@dataclass(frozen=True, kw_only=True)
class Plain(Serializer):
    """A serializer without parameters."""


@dataclass(frozen=True, kw_only=True)
class Box(Composite):
    """A composite with outer data."""

    unit: int
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        return (self.inner,)


def read_unit(reader: Reader, version: int) -> int:
    return reader.i32()


def write_unit(writer: Writer, node: Box) -> None:
    writer.i32(node.unit)


@register_composite_with_outer(
    BOX, arity=1, read_outer=read_unit, write_outer=write_unit, serializer="compat.BoxSerializer"
)
def build_box(marks: CompositeMarks, nested: tuple[Serializer, ...], unit: int) -> Box:
    return Box(**marks, unit=unit, inner=nested[0])


@rule.register
def compare_box(old: Box, new: Box) -> Compatibility:
    if old.unit == new.unit:
        return compare_nested(old, new)
    outcome = Outcome.AFTER_MIGRATION if new.unit == old.unit + 1 else Outcome.INCOMPATIBLE
    return compare_nested(old, new, differ(old.unit, new.unit, outcome))
