"""Rules of POJOs: fields come and go, types stay, registered subclasses keep their tags.

Flink matches fields by name. It knows no renaming: a renamed field is one that went and one that came, and the restore
succeeds without its values. Source: `PojoSerializerSnapshot.resolveSchemaCompatibility`, `PojoFieldUtils`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility.classes import compare_class
from state_pipelines.serializers.compatibility.outcome import Compatibility, Finding, Outcome, combine, single
from state_pipelines.serializers.compatibility.rules import resolve_nested, rule
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import Basic, BasicKind, Pojo, PojoField, PojoSubclass, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterator

FindField = Callable[[str, str], str | None]
"""Finds the class that has a Java field in the new job, by the class that declared it and its name: that class or a
super class, as Flink looks (`PojoFieldUtils`). Empty where none has it, None where the classes are not known."""

_find_field: ContextVar[FindField | None] = ContextVar("Java fields of the new job", default=None)

_PRESENT = "a present field should have its associated new field serializer available."
_UNRESTORED = "field serializer snapshots should be present."
_ZEROS = {
    BasicKind.BYTE: "0",
    BasicKind.SHORT: "0",
    BasicKind.CHAR: "\\u0000",
    BasicKind.INT: "0",
    BasicKind.LONG: "0",
    BasicKind.FLOAT: "0.0",
    BasicKind.DOUBLE: "0.0",
}


@contextmanager
def know_fields(find: FindField) -> Iterator[None]:
    """Let the class files of the new job decide which Java fields Flink finds, in comparisons inside of the block."""
    token = _find_field.set(find)
    try:
        yield
    finally:
        _find_field.reset(token)


@rule.register(Pojo)
def _pojo(old: Pojo, new: Pojo) -> Compatibility:
    if old.pojo_class != new.pojo_class:
        return compare_class(old.pojo_class, new.pojo_class, old, new)
    unresolved = [each for each in (*old.registered, *old.non_registered) if _is_unresolved(each)]
    if unresolved:
        return combine(single(_unresolved_subclass(each)) for each in unresolved)
    return combine([*_compare_fields(old, new), *_compare_subclasses(old, new)])


def _compare_fields(old: Pojo, new: Pojo) -> list[Compatibility]:
    successors = {field.name: field for field in new.fields}
    # Fields that a class no longer had when the snapshot was written again are gone.
    kept = {
        field.name: successors[field.name]
        for field in old.fields
        if field.name in successors and _is_resolved(field) and _is_resolved(successors[field.name])
    }
    down = [name for name, after in kept.items() if after.declaring_class == new.pojo_class]
    moved = [field.name for field in old.fields if field.name in down and field.declaring_class != new.pojo_class]
    owners = {field.name: _find_owner(field) for field in old.fields}
    moved = [
        *(name for name in moved if owners[name] is None),
        *(name for name, after in kept.items() if owners[name] not in (None, after.declaring_class)),
    ]
    added = [field for field in new.fields if field.name not in kept or field.name in moved]
    results = []
    for field in old.fields:
        successor, owner = kept.get(field.name), owners[field.name]
        if field.serializer is None:
            results.append(single(_unreadable(field)))
            continue
        if successor is None or field.name in moved:
            removed = _removed(field, successor, added, is_known=owner == "")
            if owner:
                removed = _left_out(field, owner, removed)
            elif owner is None and not _is_gone(field, old, new):
                removed = _orphaned(field, removed)
            results.append(single(removed))
            continue
        if owner is None and field.declaring_class not in (successor.declaring_class, old.pojo_class):
            results.append(single(_moved(field, successor)))
        if successor.serializer is not None:
            nested = resolve_nested(field.serializer, successor.serializer).within(f".{quote(field.name)}")
            results.append(_swallow_errors(nested))
    return results + [single(_added(field)) for field in added]


def _find_owner(field: PojoField) -> str | None:
    """Return what `FindField` says about the Java field of a field; None where nothing is known."""
    find = _find_field.get()
    return None if find is None or field.declaring_class is None else find(field.declaring_class, field.name)


def _swallow_errors(field: Compatibility) -> Compatibility:
    """Treat unreadable serializers inside a POJO as missing; they fail when the old serializer is restored."""
    findings = (replace(each, error=_UNRESTORED) if each.error else each for each in field.findings)
    return Compatibility(field.outcome, tuple(findings))


def _is_resolved(field: PojoField) -> bool:
    return field.declaring_class is not None and field.serializer is not None


def _unreadable(field: PojoField) -> Finding:
    return Finding(
        path=f".{quote(field.name)}",
        old=None,
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the serializer of the field {quote(field.name)} could not be read when the snapshot was written "
        "again, so its bytes cannot be separated from those of the next field",
        remedy="Go back to a snapshot that was written with the old classes",
        error=_UNRESTORED,
    )


def _is_gone(field: PojoField, old: Pojo, new: Pojo) -> bool:
    """Return whether Flink no longer finds such a Java field.

    It looks in the class that declared the field. A superclass that declares no field of the new POJO may have been
    left by it, and may have the field still.
    """
    owner = field.declaring_class
    return owner in (None, old.pojo_class) or any(each.declaring_class == owner for each in new.fields)


def _orphaned(field: PojoField, removed: Finding) -> Finding:
    owner = field.declaring_class
    return replace(
        removed,
        outcome=Outcome.UNDETERMINED,
        reason=f"the field {quote(field.name)} of {owner} is gone: Flink drops its values if {owner} no longer has it, "
        f"and fails if the class has merely stopped extending {owner}",
        error=_PRESENT,
    )


def _left_out(field: PojoField, owner: str, removed: Finding) -> Finding:
    name = quote(field.name)
    return replace(
        removed,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"{owner} still has the field {name}, but the POJO has it no longer (it is transient or static now, or "
        "its class is no super class any more): Flink finds the Java field and no serializer for it",
        remedy=f"Keep {name} a field of the POJO, or delete or rename the Java field",
        loss=False,
        error=_PRESENT,
    )


def _removed(
    field: PojoField, successor: PojoField | None, added: list[PojoField], *, is_known: bool = False
) -> Finding:
    name = quote(field.name)
    reason = f"the field {name} is gone: Flink drops its values without a word"
    reason += "" if is_known else ", or fails if it is transient now"
    remedy = "Nothing to do if the values may go"
    twins = [quote(each.name) for each in added if each.serializer == field.serializer and each.name != field.name]
    if successor is not None:
        # Flink asks the class that declared the field, then its superclasses, but no subclass.
        reason = (
            f"the field {name} moved from {field.declaring_class} down to {successor.declaring_class}, where Flink "
            "does not look for it: its values are lost without a word"
        )
        remedy = f"Declare {name} where it was, or change its class in a migration"
    elif twins:
        remedy += f"; if it is called {' or '.join(twins)} now, migrate with a rename step, or its values are lost"
    else:
        remedy += "; if it has another name now, migrate with a rename step, or its values are lost"
    return Finding(
        path=f".{name}",
        old=_describe(field.serializer),
        new=None,
        outcome=Outcome.AFTER_MIGRATION,
        reason=reason,
        remedy=remedy,
        loss=True,
    )


def _moved(field: PojoField, successor: PojoField) -> Finding:
    name = quote(field.name)
    return Finding(
        path=f".{name}",
        old=f"{field.declaring_class}#{name}",
        new=f"{successor.declaring_class}#{name}",
        outcome=Outcome.UNDETERMINED,
        reason=f"the field {name} moved from {field.declaring_class} to {successor.declaring_class}: Flink keeps its "
        "values if the second is a superclass of the first, and drops them without a word if not (a renamed class)",
        remedy=f"Make sure that {successor.declaring_class} is a superclass, or change the class in a migration",
        loss=True,
    )


def _added(field: PojoField) -> Finding:
    name = quote(field.name)
    return Finding(
        path=f".{name}",
        old=None,
        new=_describe(field.serializer),
        outcome=Outcome.AFTER_MIGRATION,
        reason=f"the field {name} is new: it is {_java_default(field.serializer)} in every old value "
        "(or what the constructor sets)",
        remedy="Nothing to do if that is right; else migrate with an add step, or a rename step if the field had "
        "another name",
    )


def _java_default(serializer: Serializer | None) -> str:
    kind = serializer.kind if isinstance(serializer, Basic) else None
    if kind == BasicKind.BOOLEAN:
        return "false (null if the field is a Boolean object)"
    return f"{_ZEROS[kind]} (null if the field is an object)" if kind in _ZEROS else "null"


def _compare_subclasses(old: Pojo, new: Pojo) -> list[Compatibility]:
    now = {each.class_name: each.serializer for each in new.registered}
    results = []
    for each in old.registered:
        after = now.get(each.class_name)
        if each.serializer is not None and after is not None:
            results.append(resolve_nested(each.serializer, after).within(f"({each.class_name})"))
    before, after_names = [each.class_name for each in old.registered], [*now]
    if before != after_names[: len(before)]:
        reason = "the order of the registered subclasses changed, or some are no longer registered: Flink keeps the "
        reason += "old tags. The classes must still be on the class path"
        results.append(single(_reconfigured(before, after_names, reason)))
    if old.non_registered:
        names = [each.class_name for each in old.non_registered]
        reason = "the snapshot has serializers of subclasses that are not registered: Flink carries them along. "
        reason += "The classes must still be on the class path"
        results.append(single(_reconfigured(names, [each.class_name for each in new.non_registered], reason)))
    return results


def _reconfigured(before: list[str], after: list[str], reason: str) -> Finding:
    return Finding(
        path="",
        old=", ".join(before) or None,
        new=", ".join(after) or None,
        outcome=Outcome.RECONFIGURED,
        reason=reason,
    )


def _is_unresolved(subclass: PojoSubclass) -> bool:
    return not subclass.resolved or subclass.serializer is None


def _unresolved_subclass(subclass: PojoSubclass) -> Finding:
    return Finding(
        path=f"({subclass.class_name})",
        old=_describe(subclass.serializer),
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the subclass {subclass.class_name} or its serializer was missing when the snapshot was written",
        remedy="Take a new snapshot with the class on the class path",
    )


def _describe(serializer: Serializer | None) -> str | None:
    return None if serializer is None else describe(serializer)
