"""Rules of compatibility of serializers: their registry, their results, and those of basic and composite serializers.

* `resolve`, `rule`, `compare_nested`: the outcome for two serializers, by a rule per node class. For composites whose
  outer data are not compared `compare_nested` suffices.
* `wrap_ttl_aware`: TTL. Up to 1.20 the serializers of state with and without TTL are different. Since 2.0 Flink wraps
  both serializers of keyed state before it compares them, so that TTL can be switched on and off; the content of the
  snapshot is unchanged. Source: `TtlAwareSerializerSnapshot`, `TtlAwareSerializerSnapshotWrapper`.
* `compare_python_values`: of Python functions Flink compares byte arrays, and PyFlink compares nothing, so that
  declared types decide.
* `compare_class`: serializers bound to a class or to parameters. Source: `SimpleTypeSerializerSnapshot`,
  `GenericTypeSerializerSnapshot`, `EnumSerializerSnapshot`, `ScalaEnumSerializerSnapshot`; coders of Beam;
  `ProtobufTypeSerializerSnapshot` of flink-datastream-protobuf.
* Composites with outer data. Source: `resolveOuterSchemaCompatibility` of `GenericArraySerializerSnapshot`,
  `NullableSerializerSnapshot`, `RowSerializerSnapshot`, `LinkedListSerializerSnapshot`, `TwoPhaseCommitSinkFunction`,
  `NFAStateSerializerSnapshot` and the Scala serializers, and `resolveSchemaCompatibility` of those of flink-scala-api.
  `TupleSerializerSnapshot` and `ExternalSerializerSnapshot` do not compare their outer data.
* The table runtime: SQL types must be unchanged, nothing evolves. Source: `RowDataSerializerSnapshot`,
  `BinaryRowDataSerializerSnapshot`, `ArrayDataSerializerSnapshot`, `MapDataSerializerSnapshot`,
  `DecimalSerializerSnapshot`, `TimestampDataSerializerSnapshot`, `SortedMapSerializerSnapshot`,
  `RowDataKeySerializerSnapshot`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import singledispatch
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UsageError
from state_pipelines.serializers import beam, build, java_types
from state_pipelines.serializers.beam import BeamSerializer
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.serializers.snapshot_classes import is_flinks
from state_pipelines.serializers.table_runtime import ROW_VERSION_WITH_NAMES
from state_pipelines.serializers.text import describe, describe_type, quote
from state_pipelines.serializers.tree import (
    ArrayData,
    Basic,
    BinaryRow,
    CaseClass,
    CaseObject,
    ClassBound,
    Composite,
    Coproduct,
    Decimal,
    Enum,
    GenericArray,
    Kryo,
    LinkedListOf,
    ListOf,
    MapData,
    MapOf,
    Mapped,
    Nullable,
    Opaque,
    Pojo,
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
    SetOf,
    SortedMapOf,
    TimestampData,
    Ttl,
    TtlAware,
    Tuple,
    VariantKind,
    Variants,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.serializers.tree import LogicalType


class Outcome(StrEnum):
    """The result of reading old bytes with a new serializer, named as in `TypeSerializerSchemaCompatibility`.

    The constants have the order of precedence: of several outcomes, the last one wins. Flink has no `UNDETERMINED`: it
    runs the user's code, which this package cannot.
    """

    AS_IS = "compatibleAsIs"
    RECONFIGURED = "compatibleWithReconfiguredSerializer"
    AFTER_MIGRATION = "compatibleAfterMigration"
    UNDETERMINED = "undetermined"
    INCOMPATIBLE = "incompatible"


_PRECEDENCE = {outcome: rank for rank, outcome in enumerate(Outcome)}


@dataclass(frozen=True, kw_only=True)
class SerializerDifference:
    """A difference between two serializers, with its consequence.

    Attributes:
        path: path to the field, such as `value.address.zip`, `value.tags[]`, `value.prices{key}`; empty for the whole.
        old: readable text of what the old serializer has; None if it has nothing there.
        new: the same for the new serializer.
        outcome: the outcome of this difference alone.
        reason: why the difference has this outcome.
        remedy: what the user can do; empty if nothing is needed.
        loss: the restore drops values although it succeeds.
        unnoticed: Flink does not see the difference, restores, and then reads wrong values or fails while reading.
        error: Flink's error message, unless it is the usual one for an incompatible serializer.
    """

    path: str = ""
    old: str | None = None
    new: str | None = None
    outcome: Outcome
    reason: str
    remedy: str = ""
    loss: bool = False
    unnoticed: bool = False
    error: str = ""


@dataclass(frozen=True)
class Compatibility:
    """The outcome for an old and a new serializer, and its findings; without findings, the outcome is `AS_IS`."""

    outcome: Outcome
    findings: tuple[SerializerDifference, ...] = ()

    def within(self, step: str) -> Compatibility:
        """Return the findings with `step` prepended to their paths."""
        if not step:
            return self
        return Compatibility(self.outcome, tuple(replace(each, path=step + each.path) for each in self.findings))


SAME = Compatibility(Outcome.AS_IS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome that takes precedence, `AS_IS` for no outcomes (`CompositeTypeSerializerUtil`)."""
    return max(outcomes, key=_PRECEDENCE.__getitem__, default=Outcome.AS_IS)


def combine(compatibilities: Iterable[Compatibility]) -> Compatibility:
    """Merge the results of several comparisons: all findings, and the outcome that takes precedence."""
    compatibilities = tuple(compatibilities)
    return Compatibility(
        worst(each.outcome for each in compatibilities),
        tuple(finding for each in compatibilities for finding in each.findings),
    )


def single(finding: SerializerDifference) -> Compatibility:
    """Return the result of a comparison that has one finding."""
    return Compatibility(finding.outcome, (finding,))


def differ(
    old: Serializer, new: Serializer, outcome: Outcome, reason: str, remedy: str = "", *, unnoticed: bool = False
) -> Compatibility:
    """Return the result of a comparison with one finding about two whole serializers (see `SerializerDifference`)."""
    before, after = describe(old), describe(new)
    return single(
        SerializerDifference(old=before, new=after, outcome=outcome, reason=reason, remedy=remedy, unnoticed=unnoticed)
    )


# Snapshot classes that were replaced: old class -> the class that reads its snapshots now.
_RENAMED = {
    "org.apache.flink.api.java.typeutils.runtime.EitherSerializerSnapshot": java_types.EITHER,
    beam.LEGACY: beam.UNVERSIONED,
}
_SAME_DATA = frozenset({java_types.LIST, java_types.ARRAY_LIST})
"""Snapshot classes of different serializers that write the same bytes; since 1.19, each accepts the other."""
_SCALA_1, _SCALA_2 = "org.apache.flink.api.scala.typeutils.", "org.apache.flink.table.api.typeutils."


Compare = Callable[[Any, Any], Compatibility]
_successors: dict[tuple[str, str], Compare] = {}


def resolve(old: Serializer, new: Serializer, path: str = "value") -> Compatibility:
    """Compare the serializer of a snapshot with the one that is to read it.

    Args:
        old: serializer of the snapshot.
        new: serializer of the new job.
        path: path of the two serializers, with which the paths of all findings begin.
    """
    return resolve_nested(old, new).within(path)


def resolve_nested(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers like `resolve`, with paths of findings relative to these serializers."""
    if isinstance(old, Opaque) or isinstance(new, Opaque):
        return _compare_opaque(old, new)
    if isinstance(new, PythonValue):
        # The snapshot class is that of plain byte arrays, so it does not select the rule; the class of the node does.
        return rule.dispatch(PythonValue)(old, new)
    if _identify(old) != _identify(new):
        succeed = _successors.get((old.snapshot_class, new.snapshot_class))
        return succeed(old, new) if succeed else compare_unlike(old, new)
    return rule(old, new)


def register_successor(old_class: str, new_class: str) -> Callable[[Compare], Compare]:
    """Register the comparison of a snapshot class with the class that it replaces; a decorator.

    Without this, serializers with different snapshot classes are incompatible. In Flink since 1.19, the new snapshot
    class accepts the old one in `resolveSchemaCompatibility(oldSerializerSnapshot)`; up to 1.18, the old one accepts
    the new serializer in `resolveSchemaCompatibility(newSerializer)`. The comparison here is the same for both.

    Args:
        old_class: binary name of the snapshot class in the snapshot.
        new_class: binary name of the snapshot class of the new serializer.

    Raises:
        UsageError: the pair has a comparison already.
    """

    def decorate(compare: Compare) -> Compare:
        if _successors.setdefault((old_class, new_class), compare) is not compare:
            raise UsageError(f"the comparison of {new_class} with {old_class} is registered already")
        return compare

    return decorate


@singledispatch
def rule(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers of the same kind; paths of findings are relative to them.

    Rules are registered per class of nodes (`rule.register`). Composites without a rule follow
    `CompositeTypeSerializerSnapshot`. If the outer data of a user's composite differ, the outcome is undetermined,
    since its `resolveOuterSchemaCompatibility` decides. Other serializers without a rule are undetermined unless equal.
    """
    if isinstance(old, Composite):
        return compare_nested(old, new, *_compare_outer(old, new))
    if old == new:
        return SAME
    remedy = "Register one with state_pipelines.serializers.compatibility.rule.register"
    return differ(old, new, Outcome.UNDETERMINED, f"no rule is registered for {name_serializer(old)}", remedy)


def _compare_outer(old: Serializer, new: Serializer) -> Iterator[SerializerDifference]:
    """Yield a finding for each difference in the outer data: all fields but versions and nested serializers."""
    if is_flinks(old.snapshot_class):
        return
    for each in fields(old):
        before, after = getattr(old, each.name), getattr(new, each.name)
        if before == after or each.name in ("snapshot_version", "outer_version") or _holds_serializers(before):
            continue
        yield SerializerDifference(
            old=f"{each.name}: {before}",
            new=f"{each.name}: {after}",
            outcome=Outcome.UNDETERMINED,
            reason=f"the parameters of {name_serializer(old)} differ, and no rule compares them",
            remedy="Register a rule with state_pipelines.serializers.compatibility.rule.register",
        )


def _holds_serializers(value: object) -> bool:
    return isinstance(value, Serializer) or (isinstance(value, tuple) and any(map(_holds_serializers, value)))


def compare_nested(old: Serializer, new: Serializer, *outer: SerializerDifference) -> Compatibility:
    """Compare two composites: the number of nested serializers, then each of them.

    Args:
        old: the old composite.
        new: the new composite, of the same kind.
        outer: findings about the outer data, which become part of the result.
    """
    if len(old.nested) != len(new.nested):
        reason = (
            f"{name_serializer(old)} had {len(old.nested)} fields and has {len(new.nested)} now; "
            "it cannot gain or lose any"
        )
        return differ(old, new, Outcome.INCOMPATIBLE, reason, "Change the fields in a migration")
    compatibilities = [single(finding) for finding in outer]
    for step, before, after in zip(list_steps(old), old.nested, new.nested, strict=True):
        compatibilities.append(resolve_nested(before, after).within(step))
    return combine(compatibilities)


def list_paths(node: Serializer, path: str) -> Iterator[tuple[str, Serializer]]:
    """Yield a serializer and all serializers nested in it, each with its path; `path` is the path of `node`."""
    yield path, node
    if isinstance(node, Pojo):
        for field in node.fields:
            if field.serializer is not None:
                yield from list_paths(field.serializer, f"{path}.{quote(field.name)}")
        for subclass in (*node.registered, *node.non_registered):
            if subclass.serializer is not None:
                yield from list_paths(subclass.serializer, f"{path}({subclass.class_name})")
        return
    for step, nested in zip(list_steps(node), node.nested, strict=True):
        yield from list_paths(nested, f"{path}{step}")


def list_steps(node: Serializer) -> tuple[str, ...]:
    """Return the step that leads from a serializer to each nested one in paths, such as `[]` or `{key}`."""
    match node:
        case ListOf() | SetOf() | GenericArray() | LinkedListOf() | ScalaCollection():
            return ("[]",)
        case MapOf() | ScalaMap():
            return ("{key}", "{value}")
        case Coproduct(cases=cases):
            return tuple(f".{quote(each)}" for each in cases)
        case CaseClass(fields=members):
            return tuple(f".f{index}" for index in range(len(members)))
        case Ttl():
            return (".timestamp", "")
        case Variants(
            kind=VariantKind.SCALA_OPTION | VariantKind.LOCKABLE | VariantKind.BUFFER_ENTRY | VariantKind.STREAM_ELEMENT
        ):
            return ("",)
        case Variants(kind=VariantKind.TRAVERSABLE):
            return ("[]",)
        case _ if len(node.nested) == 1 and not isinstance(node, Tuple | PositionalRow):
            return ("",)
        case _:
            return _FIELD_STEPS.get(type(node).__name__) or tuple(f".f{index}" for index in range(len(node.nested)))


_FIELD_STEPS = {"Either": (".left", ".right"), "Timer": (".key", ".namespace"), "SortedMapOf": ("{key}", "{value}")}


def compare_unlike(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers of different classes: incompatible unless they write the same bytes."""
    if {old.snapshot_class, new.snapshot_class} == _SAME_DATA:
        return compare_nested(old, new)
    reason, remedy = _explain(old, new)
    unnoticed = _is_unnoticed(old, new)
    if unnoticed:
        reason += "; Flink since 1.19 does not notice that a composite serializer became another one, and takes the "
        reason += "old bytes as they are"
    return differ(old, new, Outcome.INCOMPATIBLE, reason, remedy, unnoticed=unnoticed)


def name_serializer(node: Serializer) -> str:
    """Return the simple name of the class of a serializer, such as LongSerializer."""
    if isinstance(node, Basic):
        return f"{node.kind}Serializer"
    simple = node.snapshot_class.rpartition(".")[2].rpartition("$")[2]
    return simple.removesuffix("V2").removesuffix("Snapshot") or type(node).__name__


def _identify(node: Serializer) -> object:
    if isinstance(node, Basic):
        return node.kind
    return type(node), _RENAMED.get(node.snapshot_class, node.snapshot_class)


def _explain(old: Serializer, new: Serializer) -> tuple[str, str]:
    names = f"{name_serializer(old)} became {name_serializer(new)}"
    match old, new:
        case Basic(), Basic():
            return f"{names}; Flink converts no value from one type to another", f"Cast to {new.kind} in a migration"
        case Kryo(), Nullable(inner=ListOf() | SetOf() | MapOf()):
            return (
                f"{names}: collection fields of POJOs are Kryo in Flink 1.x and no longer in 2.x",
                "Change the field to the serializer of Flink 2.x in a migration",
            )
        case (Ttl(), _) | (_, Ttl()):
            state = "off" if isinstance(old, Ttl) else "on"
            return (
                f"{names}: TTL was switched {state}, which Flink cannot do here with existing state",
                f"Switch TTL {state} in a migration, or leave it as it was",
            )
        case (Nullable(inner=inner), _) if inner == new:
            return f"{names}: the value no longer has a null flag", "Change the serializer in a migration"
        case (_, Nullable(inner=inner)) if inner == old:
            return f"{names}: the value got a null flag", "Change the serializer in a migration"
        case (Kryo(), Pojo()) | (Pojo(), Kryo()):
            return (
                f"{names}: the class {'became' if isinstance(new, Pojo) else 'is no longer'} a POJO to Flink",
                "Change the serializer family in a migration",
            )
        case _ if old.snapshot_class.startswith(_SCALA_1) and new.snapshot_class.startswith(_SCALA_2):
            return f"{names}: the Scala serializers moved to {_SCALA_2[:-1]}", "Change the serializer in a migration"
        case _:
            return f"{names}, which reads other bytes", "Change the serializer family in a migration"


_COMPARES_OUTER = (GenericArray, Nullable, PositionalRow, LinkedListOf)


def _is_unnoticed(old: Serializer, new: Serializer) -> bool:
    """Return whether Flink misses the difference: for composites it compares only the outer data."""
    if not isinstance(old, Composite) or not isinstance(new, Composite) or len(old.nested) != len(new.nested):
        return False
    # A snapshot class that is not Flink's may check which class wrote the old snapshot and so notice the difference:
    # then the finding is not `unnoticed`.
    if (
        isinstance(new, _COMPARES_OUTER)
        or new.snapshot_class in java_types.CASE_CLASSES
        or not is_flinks(new.snapshot_class)
    ):
        return False
    if isinstance(new, Variants) and (new.kind in Variants.FLAGGED or new.kind == VariantKind.TRAVERSABLE):
        return False
    nested = (resolve_nested(*pair).outcome for pair in zip(old.nested, new.nested, strict=True))
    return all(outcome not in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED) for outcome in nested)


def _compare_opaque(old: Serializer, new: Serializer) -> Compatibility:
    if old == new:
        return SAME
    unknown = ", ".join(sorted({each.unknown_class for each in (old, new) if isinstance(each, Opaque)}))
    reason = f"the snapshots differ, and only {unknown} knows whether its data stay readable"
    remedy = "Register a reader for the class with state_pipelines.serializers.registry.register"
    return differ(old, new, Outcome.UNDETERMINED, reason, remedy)


def wrap_ttl_aware(serializer: Serializer) -> Serializer:
    """Return the value serializer of a keyed state as Flink 2 compares it: lists by element, maps by value."""
    match serializer:
        case ListOf(snapshot_class=java_types.LIST):
            return replace(serializer, element=_wrap(serializer.element))
        case MapOf(snapshot_class=java_types.MAP):
            return replace(serializer, value=_wrap(serializer.value))
        case _:
            return _wrap(serializer)


def _wrap(serializer: Serializer) -> Serializer:
    if isinstance(serializer, TtlAware):
        return serializer
    return build.ttl_aware(serializer, ttl_enabled=isinstance(serializer, Ttl))


@rule.register(TtlAware)
def _ttl_aware(old: TtlAware, new: TtlAware) -> Compatibility:
    if old.ttl_enabled == new.ttl_enabled:
        return resolve_nested(old.inner, new.inner)
    reason = "TTL was switched on: every entry counts as accessed at the time of the restore"
    if old.ttl_enabled:
        reason = "TTL was switched off: the times of the last access are dropped"
    switched = differ(old.inner, new.inner, Outcome.AFTER_MIGRATION, reason)
    return combine([switched, resolve_nested(_value(old), _value(new))])


def _value(node: TtlAware) -> Serializer:
    return node.inner.inner if isinstance(node.inner, Ttl) else node.inner


@rule.register(PythonValue)
def compare_python_values(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers of state of a Python function; the user has declared the type of at least one.

    PyFlink does not compare coders: the new one reads wrong values from old bytes, or fails on the first value.
    """
    if not isinstance(old, PythonValue) or not isinstance(new, PythonValue):
        side = "new job" if isinstance(old, PythonValue) else "snapshot"
        reason = f"the type of this state of a Python function is not declared for the {side}"
        remedy = "Declare it: --python-types for the snapshots, --type for the new job"
        return differ(old, new, Outcome.UNDETERMINED, reason, remedy)
    if old.type == new.type:
        return SAME
    reason = "the type of this state of a Python function changed: PyFlink reads old bytes with the new coder"
    remedy = "Migrate the state (`state-pipelines migrate`), or keep the type"
    return differ(old, new, Outcome.INCOMPATIBLE, reason, remedy, unnoticed=True)


def compare_class(before: str, after: str, old: Serializer, new: Serializer) -> Compatibility:
    """Compare two class names; different names are incompatible."""
    if before == after:
        return SAME
    reason = f"the class {before} became {after}; Flink knows no renaming of classes or packages"
    return differ(old, new, Outcome.INCOMPATIBLE, reason, "Change the class name in a migration, or keep the old name")


@rule.register(Basic)
def _basic(old: Basic, new: Basic) -> Compatibility:
    # Both have the same snapshot class, and such a snapshot stores nothing that could differ.
    return SAME


@rule.register(ClassBound)
def _class_bound(old: ClassBound, new: ClassBound) -> Compatibility:
    return compare_class(old.type_class, new.type_class, old, new)


@rule.register(Protobuf)
def _protobuf(old: Protobuf, new: Protobuf) -> Compatibility:
    if old.message_class != new.message_class:
        return compare_class(old.message_class, new.message_class, old, new)
    if (old.message_name, old.descriptors) != (new.message_name, new.descriptors):
        reason = f"the descriptors of {old.message_name} changed, and the serializer accepts none but those it wrote"
        return differ(old, new, Outcome.INCOMPATIBLE, reason, "Keep the .proto files as they were")
    if new.max_message_size < old.max_message_size or new.recursion_limit < old.recursion_limit:
        reason = (
            f"messages may have {old.max_message_size:,} bytes and a depth of {old.recursion_limit}, and the "
            f"new serializer reads {new.max_message_size:,} bytes and a depth of {new.recursion_limit}"
        )
        return differ(old, new, Outcome.INCOMPATIBLE, reason, "Do not lower the limits of messages")
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
    reason = f"the constants {', '.join(added)} are new" if added else "the order of the constants changed"
    return differ(old, new, Outcome.RECONFIGURED, reason)


def _removed_constant(enum_class: str, constant: str) -> SerializerDifference:
    return SerializerDifference(
        old=constant,
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
    # The coder of the keys inside the key bytes may be known in one of the serializers only. Then the coders cannot be
    # compared, and count as the same.
    unknown = old.coder.is_key_bytes and new.coder.is_key_bytes and not (old.coder.components and new.coder.components)
    if unknown or old.coder == new.coder:
        return SAME
    reason = "the coder is another one; Beam compares no coders and reads the old bytes with the new one"
    return differ(old, new, Outcome.INCOMPATIBLE, reason, "Keep the coder of the old pipeline", unnoticed=True)


_FLAGS = {
    VariantKind.TWO_PHASE_COMMIT: "whether a transaction may be null",
    VariantKind.NFA_STATE: "whether previous timestamps are kept",
}


@rule.register(GenericArray)
def _generic_array(old: GenericArray, new: GenericArray) -> Compatibility:
    return compare_nested(old, new, *_compare_names(old.component_class, new.component_class, "component class"))


@rule.register(Nullable)
def _nullable(old: Nullable, new: Nullable) -> Compatibility:
    if old.padding == new.padding:
        return compare_nested(old, new)
    padding = SerializerDifference(
        old=f"padding {old.padding}",
        new=f"padding {new.padding}",
        outcome=Outcome.INCOMPATIBLE,
        reason="a null is followed by another number of zero bytes",
        remedy="Keep the padding, or change it in a migration",
    )
    return compare_nested(old, new, padding)


@rule.register(PositionalRow)
def _row(old: PositionalRow, new: PositionalRow) -> Compatibility:
    outer = _compare_flags(old.supports_row_kind, new.supports_row_kind, "the row kind is stored")
    return compare_nested(old, new, *outer)


@rule.register(LinkedListOf)
def _linked_list(old: LinkedListOf, new: LinkedListOf) -> Compatibility:
    return compare_nested(old, new, *_compare_flags(old.has_null_mask, new.has_null_mask, "nulls are marked in a mask"))


@rule.register(Tuple)
def _tuple(old: Tuple, new: Tuple) -> Compatibility:
    if old.snapshot_class not in java_types.CASE_CLASSES:
        return compare_nested(old, new)
    return compare_nested(old, new, *_compare_names(old.tuple_class, new.tuple_class, "case class"))


@rule.register(Variants)
def _variants(old: Variants, new: Variants) -> Compatibility:
    if old.text != new.text:
        builder = SerializerDifference(
            old=old.text,
            new=new.text,
            outcome=Outcome.INCOMPATIBLE,
            reason="the collection is built by other code",
            remedy="Keep the collection type, or change it in a migration",
        )
        return compare_nested(old, new, builder)
    if old.kind in Variants.FLAGGED:
        return compare_nested(old, new, *_compare_flags(old.flag, new.flag, _FLAGS[old.kind]))
    return compare_nested(old, new)


@rule.register(CaseClass)
def _case_class(old: CaseClass, new: CaseClass) -> Compatibility:
    return compare_nested(old, new, *_compare_names(old.case_class, new.case_class, "case class"))


@rule.register(Coproduct)
def _coproduct(old: Coproduct, new: Coproduct) -> Compatibility:
    """Compare sealed traits. Flink does not notice other or reordered subtypes; up to version 2 it notices nothing."""
    kept = new.classes[: len(old.classes)] == old.classes
    if kept and new.snapshot_version >= _FIRST_COMPARED_COPRODUCT:
        return compare_nested(old, new)
    if kept:
        # New subtypes at the end do not change the indices of the others.
        return _unnoticed(compare_nested(old, replace(new, serializers=new.serializers[: len(old.classes)])))
    order = SerializerDifference(
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
    # A Scala object has no bytes in the data, and its serializer is compatible with every snapshot.
    return combine(())


def _unnoticed(compatibility: Compatibility) -> Compatibility:
    """Mark findings as unnoticed by Flink, because the enclosing serializer always answers *compatible as is*."""
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


def _compare_flags(before: bool | None, after: bool | None, what: str) -> Iterator[SerializerDifference]:
    if before != after:
        words = {True: "yes", False: "no", None: "no"}
        yield SerializerDifference(
            old=f"{what}: {words[before]}",
            new=f"{what}: {words[after]}",
            outcome=Outcome.AFTER_MIGRATION,
            reason="the setting changes the bytes: Flink reads them by the old setting and writes them by the new one",
        )


def _compare_names(before: str, after: str, word: str) -> Iterator[SerializerDifference]:
    if before != after:
        reason = f"the {word} must stay the same; Flink knows no renaming of classes"
        remedy = "Change the class name in a migration"
        yield SerializerDifference(old=before, new=after, outcome=Outcome.INCOMPATIBLE, reason=reason, remedy=remedy)


COMPARE_PLANS = (
    "Compare the plans of both queries (COMPILE PLAN, EXPLAIN): the operator must have the same columns and aggregates "
    "in the same order"
)
# Names of the states that hold data views (`MapView`, `ListView`) of aggregates; the numbers follow the order of the
# aggregates in the query (`AggsHandlerCodeGenerator`, `DistinctAggCodeGen`).
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
        old: serializer of the snapshot.
        new: serializer of the new job.
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
        node: serializer of the snapshot.
        path: path of `node` in the serializer of the state.
        compares_names: leave out rows whose snapshot has field names, because `find_renamed_fields` compares these.
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
    """Yield the data views of an operator's aggregates that have the same type, so only numbers in their names differ.

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
    reason = (
        f"only their positions tell {what}. A query that exchanges two of them restores without an error and "
        "gives wrong values"
    )
    return SerializerDifference(path=path, outcome=Outcome.AS_IS, reason=reason, remedy=COMPARE_PLANS, unnoticed=True)


def find_named_rows(node: Serializer, path: str) -> Iterator[SerializerDifference]:
    """Yield the SQL rows with snapshot version 4, which Flink up to 2.3 misreads: it does not know their last bytes."""
    if isinstance(node, RowData) and node.snapshot_version >= ROW_VERSION_WITH_NAMES:
        yield SerializerDifference(
            path=path,
            old=describe(node),
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
@rule.register(Decimal)
@rule.register(PythonDecimal)
@rule.register(TimestampData)
def _sql_parameters(old: Serializer, new: Serializer) -> Compatibility:
    if all(getattr(old, name, None) == getattr(new, name, None) for name in ("num_fields", "precision", "scale")):
        return SAME
    return differ(old, new, Outcome.INCOMPATIBLE, "SQL types do not evolve: the parameters must stay the same", _REMEDY)


@rule.register(RowDataKey)
def _row_data_key(old: RowDataKey, new: RowDataKey) -> Compatibility:
    return resolve_nested(old.inner, new.inner)


@rule.register(SortedMapOf)
def _sorted_map(old: SortedMapOf, new: SortedMapOf) -> Compatibility:
    if old.comparator != new.comparator:
        reason = "the comparators were serialized to different bytes, and only Java can compare them"
        return differ(old, new, Outcome.UNDETERMINED, reason, "Make sure that the comparator has not changed")
    nested = combine(
        resolve_nested(before, after).within(step)
        for step, before, after in zip(("{key}", "{value}"), old.nested, new.nested, strict=True)
    )
    # Flink compares only the comparators. It does not notice that nested serializers differ, unless one is unreadable.
    unnoticed = tuple(
        replace(each, unnoticed=each.outcome is not Outcome.AS_IS and not each.error) for each in nested.findings
    )
    return Compatibility(nested.outcome, unnoticed)


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
