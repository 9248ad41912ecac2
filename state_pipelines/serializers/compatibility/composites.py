"""Rules of serializers bound to a class or to parameters, of composites with outer data, and of the table runtime.

For composites whose outer data are not compared `compare_nested` suffices. SQL types must be unchanged, nothing
evolves.
Source: `SimpleTypeSerializerSnapshot`, `GenericTypeSerializerSnapshot`, `EnumSerializerSnapshot`,
`ScalaEnumSerializerSnapshot`; coders of Beam; `ProtobufTypeSerializerSnapshot` of flink-datastream-protobuf.
`resolveOuterSchemaCompatibility` of `GenericArraySerializerSnapshot`, `NullableSerializerSnapshot`,
`RowSerializerSnapshot`, `LinkedListSerializerSnapshot`, `TwoPhaseCommitSinkFunction`, `NFAStateSerializerSnapshot` and
the Scala serializers, and `resolveSchemaCompatibility` of those of flink-scala-api. `TupleSerializerSnapshot` and
`ExternalSerializerSnapshot` do not compare their outer data. `RowDataSerializerSnapshot`,
`BinaryRowDataSerializerSnapshot`, `ArrayDataSerializerSnapshot`, `MapDataSerializerSnapshot`,
`DecimalSerializerSnapshot`, `TimestampDataSerializerSnapshot`, `SortedMapSerializerSnapshot`,
`RowDataKeySerializerSnapshot`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from state_pipelines.serializers import scala
from state_pipelines.serializers.beam import BeamSerializer
from state_pipelines.serializers.compatibility.rules import (
    SAME,
    Compatibility,
    Outcome,
    SerializerDifference,
    combine,
    compare_nested,
    differ,
    list_paths,
    list_steps,
    resolve_nested,
    rule,
    single,
)
from state_pipelines.serializers.table_runtime import ROW_VERSION_WITH_NAMES
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import (
    ArrayData,
    Basic,
    BinaryRow,
    CaseClass,
    CaseObject,
    ClassBound,
    Coproduct,
    Decimal,
    Enum,
    GenericArray,
    LinkedListOf,
    MapData,
    Mapped,
    Nullable,
    PositionalRow,
    Protobuf,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    RowData,
    RowDataKey,
    ScalaCollection,
    ScalaEnum,
    ScalaMap,
    Serializer,
    SortedMapOf,
    TimestampData,
    Tuple,
    VariantKind,
    Variants,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.serializers.tree import LogicalType


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


def _removed_constant(enum_class: str, constant: str) -> SerializerDifference:
    return SerializerDifference(
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
            SerializerDifference(
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
    padding = SerializerDifference(
        path="",
        old=f"padding {old.padding}",
        new=f"padding {new.padding}",
        outcome=Outcome.INCOMPATIBLE,
        reason="a null is followed by another number of zero bytes",
        remedy="Keep the padding, or change it in a migration",
    )
    return compare_nested(old, new, padding)


@rule.register(PositionalRow)
def _row(old: PositionalRow, new: PositionalRow) -> Compatibility:
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
        builder = SerializerDifference(
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
    order = SerializerDifference(
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


def _flag_differs(what: str, before: bool) -> SerializerDifference:
    return SerializerDifference(
        path="",
        old=f"{what}: {_yes_or_no(before)}",
        new=f"{what}: {_yes_or_no(not before)}",
        outcome=Outcome.AFTER_MIGRATION,
        reason="the two forms have other bytes; Flink reads the one and writes the other",
    )


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _class_differs(before: str, after: str, word: str) -> SerializerDifference:
    return SerializerDifference(
        path="",
        old=before,
        new=after,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the {word} must stay the same; Flink knows no renaming of classes",
        remedy="Change the class name in a migration",
    )


COMPARE_PLANS = (
    "Compare the plans of both queries (COMPILE PLAN, EXPLAIN): the operator must have the same columns and aggregates "
    "in the same order"
)
# Views of aggregates are numbered in the order of the query (`AggsHandlerCodeGenerator`, `DistinctAggCodeGen`).
_VIEW = re.compile(r"distinctAcc_\d+|agg\d+\$\w+")
_REMEDY = "Keep the query and its types, or migrate the state"


@rule.register(RowData)
@rule.register(PythonRow)
def _row_data(old: RowData | PythonRow, new: RowData | PythonRow) -> Compatibility:
    if old.types == new.types:
        return compare_nested(old, new)
    pairs = enumerate(zip_longest(old.types, new.types))
    return combine(single(_type_differs(f".f{index}", *pair)) for index, pair in pairs if pair[0] != pair[1])


def find_renamed_fields(old: Serializer, new: Serializer, path: str) -> Iterator[SerializerDifference]:
    """Yield the fields of SQL rows that have another name at the same position, which Flink does not notice.

    Args:
        old: as the snapshot holds it.
        new: as the new job has it.
        path: path of both in the serializer of the state.
    """
    if isinstance(old, RowData) and isinstance(new, RowData) and old.names is not None and new.names is not None:
        for index, (before, after) in enumerate(zip(old.names, new.names, strict=False)):
            if before != after:
                yield SerializerDifference(
                    path=f"{path}.f{index}",
                    old=before,
                    new=after,
                    outcome=Outcome.INCOMPATIBLE,
                    reason="the fields have different names, and Flink takes the fields of SQL rows by position",
                    remedy="Keep the order of the columns, or `rename` or `reorder` them in a migration",
                    unnoticed=True,
                )
    if len(old.nested) == len(new.nested):
        for step, nested_old, nested_new in zip(list_steps(old), old.nested, new.nested, strict=True):
            yield from find_renamed_fields(nested_old, nested_new, path + step)


def find_exchangeable_columns(node: Serializer, path: str, *, compares_names: bool) -> Iterator[SerializerDifference]:
    """Yield the SQL rows in which several columns have one type, so that only their positions tell them apart.

    Args:
        node: as the snapshot holds it.
        path: its path.
        compares_names: `find_renamed_fields` compares the columns of rows with names.
    """
    for where, each in list_paths(node, path):
        if not isinstance(each, RowData) or (compares_names and each.names is not None):
            continue
        columns: dict[LogicalType, list[str]] = {}
        for name, of in zip(each.columns, each.types, strict=True):
            columns.setdefault(of, []).append(name)
        groups = [f"{', '.join(names)} ({describe_type(of)})" for of, names in columns.items() if len(names) > 1]
        if groups:
            yield _exchangeable(where, f"columns of one type apart: {'; '.join(groups)}")


def find_exchangeable_views(states: Mapping[str, Serializer]) -> Iterator[SerializerDifference]:
    """Yield the views of the aggregates of an operator that have one type, so that only numbers tell them apart.

    Args:
        states: serializers of the values by state name.
    """
    views: dict[Serializer, list[str]] = {}
    for name, each in states.items():
        if _VIEW.fullmatch(name):
            views.setdefault(each, []).append(name)
    for names in views.values():
        if len(names) > 1:
            yield _exchangeable(names[0], f"views of aggregates of one type apart: {', '.join(names)}")


def _exchangeable(path: str, what: str) -> SerializerDifference:
    return SerializerDifference(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.AS_IS,
        reason=f"only their positions tell {what}. A query that exchanges two of them restores without an error and "
        "gives wrong values",
        remedy=COMPARE_PLANS,
        unnoticed=True,
    )


def find_named_rows(node: Serializer, path: str) -> Iterator[SerializerDifference]:
    """Yield the SQL rows whose snapshot has version 4, whose last bytes Flink up to 2.3 reads as the next snapshot."""
    if isinstance(node, RowData) and node.snapshot_version >= ROW_VERSION_WITH_NAMES:
        yield SerializerDifference(
            path=path,
            old=describe(node),
            new=None,
            outcome=Outcome.INCOMPATIBLE,
            reason=f"version {node.snapshot_version} of the snapshot of a SQL row came after Flink 2.3, which does not "
            "check the version and reads the bytes after the snapshot from the wrong offset",
            remedy="Restore with a newer Flink",
            error="The error depends on the bytes that follow",
        )
        return
    for step, each in zip(list_steps(node), node.nested, strict=False):
        yield from find_named_rows(each, path + step)


@rule.register(ArrayData)
@rule.register(PythonArray)
def _array_data(old: ArrayData | PythonArray, new: ArrayData | PythonArray) -> Compatibility:
    if old.element_type == new.element_type:
        return SAME
    return single(_type_differs("[]", old.element_type, new.element_type))


@rule.register(MapData)
@rule.register(PythonMap)
def _map_data(old: MapData | PythonMap, new: MapData | PythonMap) -> Compatibility:
    pairs = {"{key}": (old.key_type, new.key_type), "{value}": (old.value_type, new.value_type)}
    return combine(single(_type_differs(step, *pair)) for step, pair in pairs.items() if pair[0] != pair[1])


@rule.register(BinaryRow)
def _binary_row(old: BinaryRow, new: BinaryRow) -> Compatibility:
    return _compare_parameters(old, new, (old.num_fields,), (new.num_fields,))


@rule.register(Decimal)
@rule.register(PythonDecimal)
def _decimal(old: Decimal | PythonDecimal, new: Decimal | PythonDecimal) -> Compatibility:
    return _compare_parameters(old, new, (old.precision, old.scale), (new.precision, new.scale))


@rule.register(TimestampData)
def _timestamp(old: TimestampData, new: TimestampData) -> Compatibility:
    return _compare_parameters(old, new, (old.precision,), (new.precision,))


@rule.register(RowDataKey)
def _row_data_key(old: RowDataKey, new: RowDataKey) -> Compatibility:
    return resolve_nested(old.inner, new.inner)


@rule.register(SortedMapOf)
def _sorted_map(old: SortedMapOf, new: SortedMapOf) -> Compatibility:
    if old.comparator != new.comparator:
        return differ(
            old,
            new,
            outcome=Outcome.UNDETERMINED,
            reason="the comparators were serialized to different bytes, and only Java can compare them",
            remedy="Make sure that the comparator has not changed",
        )
    nested = combine(
        resolve_nested(before, after).within(step)
        for step, before, after in zip(("{key}", "{value}"), old.nested, new.nested, strict=True)
    )
    # Flink compares only the comparators; it does detect those that it cannot read.
    unnoticed = tuple(
        replace(each, unnoticed=each.outcome is not Outcome.AS_IS and not each.error) for each in nested.findings
    )
    return Compatibility(nested.outcome, unnoticed)


def _compare_parameters(
    old: Serializer, new: Serializer, before: tuple[int, ...], after: tuple[int, ...]
) -> Compatibility:
    if before == after:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason="SQL types do not evolve: the parameters must stay the same",
        remedy=_REMEDY,
    )


def _type_differs(path: str, before: LogicalType | None, after: LogicalType | None) -> SerializerDifference:
    reason = "SQL types do not evolve, nullability included"
    if before is None or after is None:
        reason = "rows of SQL state gain and lose no fields"
    return SerializerDifference(
        path=path,
        old=None if before is None else describe_type(before),
        new=None if after is None else describe_type(after),
        outcome=Outcome.INCOMPATIBLE,
        reason=reason,
        remedy=_REMEDY,
    )
