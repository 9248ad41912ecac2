"""Rules of composite serializers whose outer data are compared; for the others `compare_nested` suffices.

Source: `resolveOuterSchemaCompatibility` of `GenericArraySerializerSnapshot`, `NullableSerializerSnapshot`,
`RowSerializerSnapshot`, `LinkedListSerializerSnapshot`, `TwoPhaseCommitSinkFunction`, `NFAStateSerializerSnapshot` and
the Scala serializers, and `resolveSchemaCompatibility` of those of flink-scala-api. `TupleSerializerSnapshot` and
`ExternalSerializerSnapshot` do not compare their outer data.
"""

from __future__ import annotations

from dataclasses import replace

from state_pipelines.serializers import scala
from state_pipelines.serializers.compatibility.outcome import Compatibility, Finding, Outcome, combine, single
from state_pipelines.serializers.compatibility.rules import compare_nested, rule
from state_pipelines.serializers.tree import (
    CaseClass,
    CaseObject,
    Coproduct,
    GenericArray,
    LinkedListOf,
    Mapped,
    Nullable,
    Row,
    ScalaCollection,
    ScalaMap,
    Serializer,
    Tuple,
    VariantKind,
    Variants,
)

_FLAGS = {
    VariantKind.TWO_PHASE_COMMIT: "whether a transaction may be null",
    VariantKind.NFA_STATE: "whether previous timestamps are kept",
}


@rule.register(GenericArray)
def _generic_array(old: GenericArray, new: GenericArray) -> Compatibility:
    if old.component_class == new.component_class:
        return compare_nested(old, new)
    return compare_nested(old, new, _class_differs(old.component_class, new.component_class, "component class"))


@rule.register(Nullable)
def _nullable(old: Nullable, new: Nullable) -> Compatibility:
    if old.padding == new.padding:
        return compare_nested(old, new)
    padding = Finding(
        path="",
        old=f"padding {old.padding}",
        new=f"padding {new.padding}",
        outcome=Outcome.INCOMPATIBLE,
        reason="a null is followed by another number of zero bytes",
        remedy="Keep the padding, or change it in a migration",
    )
    return compare_nested(old, new, padding)


@rule.register(Row)
def _row(old: Row, new: Row) -> Compatibility:
    if old.supports_row_kind == new.supports_row_kind:
        return compare_nested(old, new)
    return compare_nested(old, new, _flag_differs("the row kind is stored", old.supports_row_kind))


@rule.register(LinkedListOf)
def _linked_list(old: LinkedListOf, new: LinkedListOf) -> Compatibility:
    if old.has_null_mask == new.has_null_mask:
        return compare_nested(old, new)
    return compare_nested(old, new, _flag_differs("nulls are marked in a mask", old.has_null_mask))


@rule.register(Tuple)
def _tuple(old: Tuple, new: Tuple) -> Compatibility:
    if old.snapshot_class not in scala.CASE_CLASSES or old.tuple_class == new.tuple_class:
        return compare_nested(old, new)
    return compare_nested(old, new, _class_differs(old.tuple_class, new.tuple_class, "case class"))


@rule.register(Variants)
def _variants(old: Variants, new: Variants) -> Compatibility:
    if old.text != new.text:
        builder = Finding(
            path="",
            old=old.text,
            new=new.text,
            outcome=Outcome.INCOMPATIBLE,
            reason="the collection is built by other code",
            remedy="Keep the collection type, or change it in a migration",
        )
        return compare_nested(old, new, builder)
    if old.kind in Variants.FLAGGED and old.flag != new.flag:
        return compare_nested(old, new, _flag_differs(_FLAGS[old.kind], bool(old.flag)))
    return compare_nested(old, new)


@rule.register(CaseClass)
def _case_class(old: CaseClass, new: CaseClass) -> Compatibility:
    if old.case_class == new.case_class:
        return compare_nested(old, new)
    return compare_nested(old, new, _class_differs(old.case_class, new.case_class, "case class"))


@rule.register(Coproduct)
def _coproduct(old: Coproduct, new: Coproduct) -> Compatibility:
    """Compare sealed traits; up to version 2 of the snapshot, and the order of the subtypes, without Flink's notice."""
    kept = new.classes[: len(old.classes)] == old.classes
    if kept and new.snapshot_version >= _FIRST_COMPARED_COPRODUCT:
        return compare_nested(old, new)
    if kept:
        # Subtypes that are added at the end change no index.
        return _unnoticed(compare_nested(old, replace(new, serializers=new.serializers[: len(old.classes)])))
    order = Finding(
        path="",
        old=", ".join(old.classes),
        new=", ".join(new.classes),
        outcome=Outcome.INCOMPATIBLE,
        reason="values hold the index of their subtype, and the subtypes are others or in another order now; the "
        "serializer does not compare them",
        remedy="Keep the subtypes in their order and add new ones at the end (their order is that of their names)",
        unnoticed=True,
    )
    return single(order)


@rule.register(ScalaCollection)
@rule.register(ScalaMap)
@rule.register(Mapped)
def _taken_as_is(old: Serializer, new: Serializer) -> Compatibility:
    return _unnoticed(compare_nested(old, new))


@rule.register(CaseObject)
def _case_object(old: CaseObject, new: CaseObject) -> Compatibility:
    # No bytes are stored, and the serializer accepts every snapshot.
    return combine(())


def _unnoticed(compatibility: Compatibility) -> Compatibility:
    """Findings inside of a serializer that answers *compatible as is* whatever its nested serializers say."""
    return combine(
        single(
            replace(
                each,
                outcome=Outcome.INCOMPATIBLE,
                reason=f"{each.reason}; the serializer around it takes the old bytes as they are",
                unnoticed=True,
            )
            if each.outcome in (Outcome.INCOMPATIBLE, Outcome.AFTER_MIGRATION)
            else each
        )
        for each in compatibility.findings
    )


_FIRST_COMPARED_COPRODUCT = 3


def _flag_differs(what: str, before: bool) -> Finding:
    return Finding(
        path="",
        old=f"{what}: {_yes_or_no(before)}",
        new=f"{what}: {_yes_or_no(not before)}",
        outcome=Outcome.AFTER_MIGRATION,
        reason="the two forms have other bytes; Flink reads the one and writes the other",
    )


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _class_differs(before: str, after: str, word: str) -> Finding:
    return Finding(
        path="",
        old=before,
        new=after,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the {word} must stay the same; Flink knows no renaming of classes",
        remedy="Change the class name in a migration",
    )
