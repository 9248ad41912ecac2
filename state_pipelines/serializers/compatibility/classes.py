"""Rules of serializers bound to a class or to parameters: basic types, enums, Value and Writable classes.

Source: `SimpleTypeSerializerSnapshot`, `GenericTypeSerializerSnapshot`, `EnumSerializerSnapshot`,
`ScalaEnumSerializerSnapshot`; coders of Beam; `ProtobufTypeSerializerSnapshot` of flink-datastream-protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.beam import BeamSerializer
from state_pipelines.serializers.compatibility.outcome import (
    SAME,
    Compatibility,
    Finding,
    Outcome,
    combine,
    differ,
    single,
)
from state_pipelines.serializers.compatibility.rules import rule
from state_pipelines.serializers.tree import Basic, ClassBound, Enum, Protobuf, ScalaEnum

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer


def compare_class(before: str, after: str, old: Serializer, new: Serializer) -> Compatibility:
    """Return same class name, or incompatible."""
    if before == after:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the class {before} became {after}; Flink knows no renaming of classes or packages",
        remedy="Change the class name in a migration, or keep the old name",
    )


@rule.register(Basic)
def _basic(old: Basic, new: Basic) -> Compatibility:
    # The kinds are equal, or another rule would apply; there is nothing else to compare.
    return SAME


@rule.register(ClassBound)
def _class_bound(old: ClassBound, new: ClassBound) -> Compatibility:
    return compare_class(old.type_class, new.type_class, old, new)


@rule.register(Protobuf)
def _protobuf(old: Protobuf, new: Protobuf) -> Compatibility:
    if old.message_class != new.message_class:
        return compare_class(old.message_class, new.message_class, old, new)
    if (old.message_name, old.descriptors) != (new.message_name, new.descriptors):
        return differ(
            old,
            new,
            outcome=Outcome.INCOMPATIBLE,
            reason=f"the descriptors of {old.message_name} changed, and the serializer accepts none but those it wrote",
            remedy="Keep the .proto files as they were",
        )
    if new.max_message_size < old.max_message_size or new.recursion_limit < old.recursion_limit:
        return differ(
            old,
            new,
            outcome=Outcome.INCOMPATIBLE,
            reason=f"messages may have {old.max_message_size:,} bytes and a depth of {old.recursion_limit}, and the "
            f"new serializer reads {new.max_message_size:,} bytes and a depth of {new.recursion_limit}",
            remedy="Do not lower the limits of messages",
        )
    return SAME


@rule.register(Enum)
def _enum(old: Enum, new: Enum) -> Compatibility:
    if old.enum_class != new.enum_class:
        return compare_class(old.enum_class, new.enum_class, old, new)
    if old.constants == new.constants:
        return SAME
    removed = [constant for constant in old.constants if constant not in new.constants]
    if removed:
        return combine(single(_removed_constant(old.enum_class, constant)) for constant in removed)
    added = [constant for constant in new.constants if constant not in old.constants]
    return differ(
        old,
        new,
        outcome=Outcome.RECONFIGURED,
        reason=f"the constants {', '.join(added)} are new" if added else "the order of the constants changed",
    )


def _removed_constant(enum_class: str, constant: str) -> Finding:
    return Finding(
        path="",
        old=constant,
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the constant {constant} is gone, so Flink cannot read the old snapshot",
        remedy=f"Keep {constant} in the enum, or replace it in a migration",
        error=f"Could not create a restore serializer for enum class {enum_class}. "
        "Probably because an enum value was removed.",
    )


@rule.register(ScalaEnum)
def _scala_enum(old: ScalaEnum, new: ScalaEnum) -> Compatibility:
    if old.enum_class != new.enum_class:
        return compare_class(old.enum_class, new.enum_class, old, new)
    now = dict(new.constants)
    moved = [(name, number) for name, number in old.constants if now.get(name) != number]
    return combine(
        single(
            Finding(
                path="",
                old=f"{name} = {number}",
                new=f"{name} = {now[name]}" if name in now else None,
                outcome=Outcome.INCOMPATIBLE,
                reason="the data are ids, so a constant must keep its own",
                remedy="Add new constants at the end, or migrate",
            )
        )
        for name, number in moved
    )


@rule.register(BeamSerializer)
def _beam(old: BeamSerializer, new: BeamSerializer) -> Compatibility:
    # Which coder wrote the bytes of keys may be known on one side alone.
    unknown = old.coder.is_key_bytes and new.coder.is_key_bytes and not (old.coder.components and new.coder.components)
    if unknown or old.coder == new.coder:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason="the coder is another one; Beam compares no coders and reads the old bytes with the new one",
        remedy="Keep the coder of the old pipeline",
        unnoticed=True,
    )
