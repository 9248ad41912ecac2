"""Outcomes of comparisons of serializers, the dispatch of rules by family, and the rules of TTL and Python values.

Up to 1.20 the serializers of state with and without TTL are different families. Since 2.0 Flink wraps both sides of
keyed state before it compares them, so that TTL can be switched on and off; the content of the snapshot is unchanged.
Of Python functions Flink compares byte arrays, and PyFlink compares nothing, so that declared types decide.
Source: `TtlAwareSerializerSnapshot`, `TtlAwareSerializerSnapshotWrapper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UsageError
from state_pipelines.serializers import beam, build, composites, scala
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.serializers.snapshot_classes import is_flinks
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import (
    Basic,
    CaseClass,
    Composite,
    Coproduct,
    GenericArray,
    Kryo,
    LinkedListOf,
    ListOf,
    MapOf,
    Nullable,
    Opaque,
    Pojo,
    PositionalRow,
    ScalaCollection,
    ScalaMap,
    Serializer,
    SetOf,
    Ttl,
    TtlAware,
    Tuple,
    VariantKind,
    Variants,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(StrEnum):
    """The result of reading old bytes with a new serializer, named as in `TypeSerializerSchemaCompatibility`.

    The order is that of precedence: of several outcomes the last one wins. `UNDETERMINED` is ours: Flink would know,
    because it runs the user's code.
    """

    AS_IS = "compatibleAsIs"
    RECONFIGURED = "compatibleWithReconfiguredSerializer"
    AFTER_MIGRATION = "compatibleAfterMigration"
    UNDETERMINED = "undetermined"
    INCOMPATIBLE = "incompatible"


_PRECEDENCE = {outcome: rank for rank, outcome in enumerate(Outcome)}


@dataclass(frozen=True, kw_only=True)
class SerializerDifference:
    """One difference.

    Attributes:
        path: to the field, such as `value.address.zip`, `value.tags[]`, `value.prices{key}`.
        old: the old side in readable form; None when there is nothing on that side.
        new: the new side.
        outcome: the outcome of this difference alone.
        reason: why.
        remedy: what to do; empty if nothing is needed.
        loss: the restore drops values although it succeeds.
        unnoticed: Flink does not see the difference, restores, and then reads wrong values or fails while reading.
        error: the error of Flink, if it is not the usual one for an incompatible serializer.
    """

    path: str
    old: str | None
    new: str | None
    outcome: Outcome
    reason: str
    remedy: str = ""
    loss: bool = False
    unnoticed: bool = False
    error: str = ""


@dataclass(frozen=True)
class Compatibility:
    """The outcome for one pair of serializers, and its findings; without findings it is as-is."""

    outcome: Outcome
    findings: tuple[SerializerDifference, ...] = ()

    def within(self, step: str) -> Compatibility:
        """Return the findings with `step` prepended to their paths."""
        if not step:
            return self
        return Compatibility(self.outcome, tuple(replace(each, path=step + each.path) for each in self.findings))


SAME = Compatibility(Outcome.AS_IS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome that takes precedence; as-is if there are none (`CompositeTypeSerializerUtil`)."""
    return max(outcomes, key=_PRECEDENCE.__getitem__, default=Outcome.AS_IS)


def combine(compatibilities: Iterable[Compatibility]) -> Compatibility:
    """Return one comparison made of several."""
    compatibilities = tuple(compatibilities)
    return Compatibility(
        worst(each.outcome for each in compatibilities),
        tuple(finding for each in compatibilities for finding in each.findings),
    )


def single(finding: SerializerDifference) -> Compatibility:
    """Return a comparison with one finding."""
    return Compatibility(finding.outcome, (finding,))


def differ(
    old: Serializer,
    new: Serializer,
    *,
    outcome: Outcome,
    reason: str,
    remedy: str = "",
    unnoticed: bool = False,
    error: str = "",
) -> Compatibility:
    """Return a comparison with one finding about two serializers as a whole; arguments as of `SerializerDifference`."""
    return single(
        SerializerDifference(
            path="",
            old=describe(old),
            new=describe(new),
            outcome=outcome,
            reason=reason,
            remedy=remedy,
            unnoticed=unnoticed,
            error=error,
        )
    )


# Families that got another snapshot class over time and still read the old one.
_RENAMED = {
    "org.apache.flink.api.java.typeutils.runtime.EitherSerializerSnapshot": composites.EITHER,
    beam.LEGACY: beam.UNVERSIONED,
}
_SAME_DATA = frozenset({composites.LIST, composites.ARRAY_LIST})
"""Different snapshot classes with the same bytes; Flink takes one for the other since 1.19."""
_SCALA_1, _SCALA_2 = "org.apache.flink.api.scala.typeutils.", "org.apache.flink.table.api.typeutils."


Compare = Callable[[Any, Any], Compatibility]
_successors: dict[tuple[str, str], Compare] = {}


def resolve(old: Serializer, new: Serializer, path: str = "value") -> Compatibility:
    """Compare the serializer of a snapshot with the one that is to read it.

    Args:
        old: as the snapshot holds it.
        new: as the new job has it.
        path: path of the two serializers; the prefix of the paths of findings.
    """
    return resolve_nested(old, new).within(path)


def resolve_nested(old: Serializer, new: Serializer) -> Compatibility:
    """Like `resolve`, with paths relative to the two serializers."""
    if isinstance(old, Opaque) or isinstance(new, Opaque):
        return _compare_opaque(old, new)
    if isinstance(new, PythonValue):
        # Its snapshot is that of plain bytes.
        return rule.dispatch(PythonValue)(old, new)
    if _identify(old) != _identify(new):
        succeed = _successors.get((old.snapshot_class, new.snapshot_class))
        return succeed(old, new) if succeed else compare_unlike(old, new)
    return rule(old, new)


def register_successor(old_class: str, new_class: str) -> Callable[[Compare], Compare]:
    """Register the comparison of a snapshot class with the class that it replaces; a decorator.

    Without this, serializers of different families are incompatible. In Flink since 1.19 it is the new snapshot class
    that accepts the old one in `resolveSchemaCompatibility(oldSerializerSnapshot)`; up to 1.18 the old one accepted the
    new serializer in `resolveSchemaCompatibility(newSerializer)`. The comparison here is the same for both.

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
    """Compare two serializers of the same family (registered by family); paths of findings are relative.

    Composites without a rule of their own follow `CompositeTypeSerializerSnapshot`; outer data of classes that are not
    Flink's are undetermined where they differ, since `resolveOuterSchemaCompatibility` decides. For other families
    nothing is known.
    """
    if isinstance(old, Composite):
        return compare_nested(old, new, *_compare_outer(old, new))
    if old == new:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.UNDETERMINED,
        reason=f"no rule is registered for {name_serializer(old)}",
        remedy="Register one with state_pipelines.serializers.compatibility.rule.register",
    )


def _compare_outer(old: Serializer, new: Serializer) -> Iterator[SerializerDifference]:
    """Yield the outer data that differ: all fields of the node but versions and nested serializers."""
    if is_flinks(old.snapshot_class):
        return
    for each in fields(old):
        before, after = getattr(old, each.name), getattr(new, each.name)
        if before == after or each.name in ("snapshot_version", "outer_version") or _holds_serializers(before):
            continue
        yield SerializerDifference(
            path="",
            old=f"{each.name}: {before}",
            new=f"{each.name}: {after}",
            outcome=Outcome.UNDETERMINED,
            reason=f"the outer data of {name_serializer(old)} differ, and no rule compares them",
            remedy="Register a rule with state_pipelines.serializers.compatibility.rule.register",
        )


def _holds_serializers(value: object) -> bool:
    return isinstance(value, Serializer) or (isinstance(value, tuple) and any(map(_holds_serializers, value)))


def compare_nested(old: Serializer, new: Serializer, *outer: SerializerDifference) -> Compatibility:
    """Return the rule of composites: the number of nested serializers, then each of them.

    Args:
        old: the old composite.
        new: the new one, of the same family.
        outer: the findings on the outer data.
    """
    if len(old.nested) != len(new.nested):
        return differ(
            old,
            new,
            outcome=Outcome.INCOMPATIBLE,
            reason=f"{name_serializer(old)} had {len(old.nested)} fields and has {len(new.nested)} now; "
            "it cannot gain or lose any",
            remedy="Change the fields in a migration",
        )
    compatibilities = [single(finding) for finding in outer]
    for step, before, after in zip(list_steps(old), old.nested, new.nested, strict=True):
        compatibilities.append(resolve_nested(before, after).within(step))
    return combine(compatibilities)


def list_paths(node: Serializer, path: str) -> Iterator[tuple[str, Serializer]]:
    """Yield a serializer and all that it contains, each with its path; `path` is that of the first."""
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
    """Return the step of a path to each nested serializer."""
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
    """Compare two serializers of different families: incompatible unless their bytes are the same."""
    if {old.snapshot_class, new.snapshot_class} == _SAME_DATA:
        return compare_nested(old, new)
    reason, remedy = _explain(old, new)
    unnoticed = _is_unnoticed(old, new)
    if unnoticed:
        reason += "; Flink since 1.19 does not compare the families of composites and takes the old bytes as they are"
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason=reason,
        remedy=remedy,
        unnoticed=unnoticed,
    )


def name_serializer(node: Serializer) -> str:
    """Simple name of the serializer class, such as LongSerializer."""
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
    """Return whether Flink detects no difference: for composites it compares only the outer data."""
    if not isinstance(old, Composite) or not isinstance(new, Composite) or len(old.nested) != len(new.nested):
        return False
    # The snapshot class of a user may look at the family of the old one.
    if (
        isinstance(new, _COMPARES_OUTER)
        or new.snapshot_class in scala.CASE_CLASSES
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
    return differ(
        old,
        new,
        outcome=Outcome.UNDETERMINED,
        reason=f"the snapshots differ, and only {unknown} knows whether its data stay readable",
        remedy="Register a reader for the class with state_pipelines.serializers.registry.register",
    )


def wrap_ttl_aware(serializer: Serializer) -> Serializer:
    """Return the value serializer of a keyed state as Flink 2 compares it: lists by element, maps by value."""
    match serializer:
        case ListOf(snapshot_class=composites.LIST):
            return replace(serializer, element=_wrap(serializer.element))
        case MapOf(snapshot_class=composites.MAP):
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
    return combine([single(_switched(old, new)), resolve_nested(_value(old), _value(new))])


def _value(node: TtlAware) -> Serializer:
    return node.inner.inner if isinstance(node.inner, Ttl) else node.inner


def _switched(old: TtlAware, new: TtlAware) -> SerializerDifference:
    reason = "TTL was switched on: every entry counts as accessed at the time of the restore"
    if old.ttl_enabled:
        reason = "TTL was switched off: the times of the last access are dropped"
    return SerializerDifference(
        path="",
        old=describe(old.inner),
        new=describe(new.inner),
        outcome=Outcome.AFTER_MIGRATION,
        reason=reason,
    )


@rule.register(PythonValue)
def compare_python_values(old: Serializer, new: Serializer) -> Compatibility:
    """Compare two serializers, at least one of which has a declared type.

    A coder of PyFlink reads the bytes of another one without a word, or fails on the first value.
    """
    if not isinstance(old, PythonValue) or not isinstance(new, PythonValue):
        side = "new job" if isinstance(old, PythonValue) else "snapshot"
        return differ(
            old,
            new,
            outcome=Outcome.UNDETERMINED,
            reason=f"the type of this state of a Python function is not declared for the {side}",
            remedy="Declare it: --python-types for the snapshots, --type for the new job",
        )
    if old.type == new.type:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason="the type of this state of a Python function changed: PyFlink reads old bytes with the new coder",
        remedy="Migrate the state (`state-pipelines migrate`), or keep the type",
        unnoticed=True,
    )
