"""Rules of Java objects: fields and subclasses of POJOs, registrations of Kryo, schema resolution of Avro.

Flink matches fields of POJOs by name. It knows no renaming: a renamed field is one that went and one that came, and the
restore succeeds without its values. Kryo compares the class, and registrations, whose order gives the ids in the data.
Whether the *data* of Kryo can be read is a separate question: between Flink 1.x and 2.x they cannot, and no snapshot
stores it (`find_kryo`). Avro resolves the new schema as reader with the old one as writer.
Source: `PojoSerializerSnapshot.resolveSchemaCompatibility`, `PojoFieldUtils`, `KryoSerializerSnapshot`,
`LinkedOptionalMap.mergeRightIntoLeft`, `AvroSerializerSnapshot`, and Avro's `Outcome`, which looks at the
simple names of records, enums and fixed types, at aliases, defaults, promotions and branches of unions, and at no
logical type.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from state_pipelines.serializers.compatibility.rules import (
    SAME,
    Compatibility,
    Outcome,
    SerializerDifference,
    combine,
    compare_class,
    list_paths,
    resolve_nested,
    rule,
    single,
)
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import (
    Avro,
    Basic,
    BasicKind,
    Kryo,
    KryoRegistration,
    Pojo,
    PojoField,
    PojoSubclass,
    Serializer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

GENERIC_RECORD = "org.apache.avro.generic.GenericRecord"

_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
# Attributes that Avro's `Schema.equals` ignores.
_NOT_COMPARED = frozenset({"doc", "aliases"})
_REMEDY = "Keep the schema readable (a default, an alias), or change it in a migration"


@dataclass
class _Pair:
    """Named types of the two schemas of a comparison, and the pairs of named types whose comparison has begun."""

    writer_types: dict[str, dict[str, object]] = dataclasses.field(default_factory=dict)
    reader_types: dict[str, dict[str, object]] = dataclasses.field(default_factory=dict)
    visiting: set[tuple[str, str]] = dataclasses.field(default_factory=set)


@rule.register(Avro)
def _avro(old: Avro, new: Avro) -> Compatibility:
    if old.runtime_class != new.runtime_class and GENERIC_RECORD not in (old.runtime_class, new.runtime_class):
        return single(_class_renamed(old, new))
    pair = _Pair()
    try:
        writer, reader = _parse(old, pair.writer_types), _parse(new, pair.reader_types)
    except (ValueError, KeyError, TypeError, RecursionError, SchemaParseException, UnknownType) as error:
        return single(_unreadable(old, new, error))
    notes = [single(_class_needed(old, new))] if _needs_class(old, new) else []
    if _normalize(writer) == _normalize(reader):
        return combine(notes)
    resolution = _compare(writer, reader, pair)
    if resolution.outcome is Outcome.INCOMPATIBLE:
        return resolution
    if not resolution.findings:
        resolution = single(_after_migration("", old, new, "the schemas differ, and the new one reads the old data"))
    return combine([*notes, resolution])


def _parse(node: Avro, named: dict[str, dict[str, object]]) -> object:
    return fastavro.parse_schema(json.loads(node.schema_json), named_schemas=named, _write_hint=False)


def _normalize(schema: object) -> object:
    """Return a schema reduced to the attributes that `Schema.equals` compares."""
    if isinstance(schema, dict):
        # `EnumSchema.equals` ignores the default of the enum. A field without an order is equal to an ascending one.
        skipped = _NOT_COMPARED | ({"default"} if schema.get("type") == "enum" and "symbols" in schema else set())
        kept = {key: _normalize(value) for key, value in schema.items() if key not in skipped}
        if kept.get("order") == "ascending":
            del kept["order"]
        return kept["type"] if kept.keys() == {"type"} else kept
    return [_normalize(each) for each in schema] if isinstance(schema, list) else schema


def _compare(writer: object, reader: object, pair: _Pair) -> Compatibility:
    writer, reader = _look_up(writer, pair.writer_types), _look_up(reader, pair.reader_types)
    writer_kind, reader_kind = _kind(writer), _kind(reader)
    if isinstance(writer, list):
        # The old data may have values of every branch, so the new schema must read all of them.
        return combine(_compare_branch(branch, reader, pair) for branch in writer)
    if isinstance(reader, list):
        results = [_compare(writer, branch, pair) for branch in reader]
        fitting = [result for result in results if result.outcome is not Outcome.INCOMPATIBLE]
        return fitting[0] if fitting else single(_mismatch(writer, reader, "no branch of the union reads it"))
    if writer_kind == reader_kind and isinstance(writer, dict) and isinstance(reader, dict):
        compare = _COMPARE.get(writer_kind)
        return compare(writer, reader, pair) if compare else SAME
    if writer_kind == reader_kind:
        return SAME
    if writer_kind in _PROMOTIONS.get(reader_kind, ()):
        promoted = f"Avro promotes {writer_kind} to {reader_kind}"
        return single(_after_migration("", writer, reader, promoted))
    return single(_mismatch(writer, reader, f"Avro does not read {writer_kind} as {reader_kind}"))


def _compare_branch(branch: object, reader: object, pair: _Pair) -> Compatibility:
    if isinstance(reader, list) and not any(
        _compare(branch, each, pair).outcome is not Outcome.INCOMPATIBLE for each in reader
    ):
        return single(_mismatch(branch, reader, "the branch of the union is gone"))
    return _compare(branch, reader, pair)


def _compare_array(writer: dict[str, object], reader: dict[str, object], pair: _Pair) -> Compatibility:
    return _compare(writer["items"], reader["items"], pair).within("[]")


def _compare_map(writer: dict[str, object], reader: dict[str, object], pair: _Pair) -> Compatibility:
    return _compare(writer["values"], reader["values"], pair).within("{value}")


def _compare_fixed(writer: dict[str, object], reader: dict[str, object], pair: _Pair) -> Compatibility:
    if not _same_name(writer, reader):
        return single(_renamed(writer, reader))
    if writer["size"] == reader["size"]:
        return SAME
    return single(_mismatch(writer, reader, f"fixed of {writer['size']} bytes became {reader['size']} bytes"))


def _compare_enum(writer: dict[str, object], reader: dict[str, object], pair: _Pair) -> Compatibility:
    if not _same_name(writer, reader):
        return single(_renamed(writer, reader))
    old, new = _strings(writer["symbols"]), _strings(reader["symbols"])
    removed = [symbol for symbol in old if symbol not in new]
    if removed and "default" not in reader:
        reason = f"the symbols {', '.join(removed)} are gone and the enum has no default"
        return single(_mismatch(writer, reader, reason))
    if removed:
        reason = f"the symbols {', '.join(removed)} become the default {reader['default']}"
        return single(_after_migration("", writer, reader, reason, loss=True))
    return SAME if old == new else single(_after_migration("", writer, reader, "the symbols changed"))


def _compare_record(writer: dict[str, object], reader: dict[str, object], pair: _Pair) -> Compatibility:
    if not _same_name(writer, reader):
        return single(_renamed(writer, reader))
    visit = (str(writer["name"]), str(reader["name"]))
    if visit in pair.visiting:
        return SAME
    pair.visiting.add(visit)
    try:
        return _compare_fields(_fields(writer), _fields(reader), pair)
    finally:
        pair.visiting.discard(visit)


_COMPARE: dict[str, Callable[[dict[str, object], dict[str, object], _Pair], Compatibility]] = {
    "array": _compare_array,
    "map": _compare_map,
    "fixed": _compare_fixed,
    "enum": _compare_enum,
    "record": _compare_record,
    "error": _compare_record,
}


def _compare_fields(old: dict[str, dict[str, object]], new: dict[str, dict[str, object]], pair: _Pair) -> Compatibility:
    results: list[Compatibility] = []
    taken: set[str] = set()
    for name, after in new.items():
        sources = [each for each in (name, *_strings(after.get("aliases", ()))) if each in old]
        source = sources[0] if sources else None
        if len(sources) > 1:
            reason = f"the field {name} reads {' and '.join(sources)} by its aliases, and Avro allows one"
            results.append(single(_mismatch(None, after["type"], reason, path=f".{name}")))
            taken.update(sources)
        elif source is not None:
            taken.add(source)
            results.append(_compare(old[source]["type"], after["type"], pair).within(f".{name}"))
            if source != name:
                results.append(single(_after_migration(f".{name}", source, name, f"an alias of {source}")))
        elif "default" in after:
            reason = f"the field {name} is new: old values get the default {json.dumps(after['default'])}"
            results.append(single(_after_migration(f".{name}", None, after["type"], reason)))
        else:
            reason = f"the field {name} is new and has no default"
            results.append(single(_mismatch(None, after["type"], reason, path=f".{name}")))
    for name, before in old.items():
        if name not in taken:
            reason = f"the field {name} is gone: Flink drops its values without a word"
            results.append(single(_after_migration(f".{name}", before["type"], None, reason, loss=True)))
    return combine(results)


def _look_up(schema: object, named: dict[str, dict[str, object]]) -> object:
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        return _look_up(schema["type"], named)
    return schema


def _kind(schema: object) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _fields(record: dict[str, object]) -> dict[str, dict[str, object]]:
    fields = record["fields"]
    return {each["name"]: each for each in fields} if isinstance(fields, list) else {}


def _strings(values: object) -> list[str]:
    return [str(each) for each in values] if isinstance(values, list | tuple) else []


def _same_name(writer: dict[str, object], reader: dict[str, object]) -> bool:
    """Return whether two named types match: by simple name, or as an alias of the reader is the writer's full name."""
    name = str(writer["name"])
    if name.rpartition(".")[2] == str(reader["name"]).rpartition(".")[2]:
        return True
    namespace = str(reader["name"]).rpartition(".")[0]
    aliases = (alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in _strings_of(reader))
    return name in aliases


def _strings_of(reader: dict[str, object]) -> list[str]:
    return _strings(reader.get("aliases", ()))


def _show(schema: object) -> str | None:
    if schema is None or isinstance(schema, str):
        return schema
    if isinstance(schema, Avro):
        return describe(schema)
    if isinstance(schema, list):
        return f"union<{', '.join(_show(each) or '' for each in schema)}>"
    if isinstance(schema, dict) and "name" in schema:
        return f"{_kind(schema)} {schema['name']}"
    return _kind(schema)


def _after_migration(path: str, old: object, new: object, reason: str, *, loss: bool = False) -> SerializerDifference:
    remedy = "Nothing to do if the values of the field may be dropped; if the field has another name now, add an alias"
    return SerializerDifference(
        path=path,
        old=_show(old),
        new=_show(new),
        outcome=Outcome.AFTER_MIGRATION,
        reason=reason,
        remedy=remedy if loss else "",
        loss=loss,
    )


def _mismatch(old: object, new: object, reason: str, path: str = "") -> SerializerDifference:
    return SerializerDifference(
        path=path,
        old=_show(old),
        new=_show(new),
        outcome=Outcome.INCOMPATIBLE,
        reason=reason,
        remedy=_REMEDY,
    )


def _renamed(writer: dict[str, object], reader: dict[str, object]) -> SerializerDifference:
    return _mismatch(writer, reader, f"{_show(writer)} became {_show(reader)} without an alias")


def _class_renamed(old: Avro, new: Avro) -> SerializerDifference:
    return SerializerDifference(
        old=describe(old),
        new=describe(new),
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the class {old.runtime_class} became {new.runtime_class}; generated classes cannot be renamed",
        remedy="Keep the class and its namespace, or change the class name in a migration",
        error=f"Unable to find the class '{old.runtime_class}' which is used to deserialize the elements of this "
        "serializer. Were the class was moved or renamed?",
    )


def _needs_class(old: Avro, new: Avro) -> bool:
    return old.runtime_class != new.runtime_class and old.runtime_class != GENERIC_RECORD


def _class_needed(old: Avro, new: Avro) -> SerializerDifference:
    return SerializerDifference(
        old=old.runtime_class,
        new=new.runtime_class,
        outcome=Outcome.AS_IS,
        reason=f"the class {old.runtime_class} must still be on the class path, or the old snapshot cannot be read",
        remedy="Keep the class on the class path, or change the class in a migration",
    )


def _unreadable(old: Avro, new: Avro, error: Exception) -> SerializerDifference:
    return SerializerDifference(
        old=describe(old),
        new=describe(new),
        outcome=Outcome.UNDETERMINED,
        reason=f"a schema cannot be parsed: {error!r}",
        remedy="Repair the schema",
    )


_COLLECTIONS = frozenset(f"java.util.{name}" for name in ("Collection", "List", "Map", "Set"))
_MAPS = {
    "registrations": "registered class",
    "default_serializers": "class with a default serializer",
    "default_serializer_classes": "class with a default serializer class",
}


@rule.register(Kryo)
def _kryo(old: Kryo, new: Kryo) -> Compatibility:
    if old.type_class != new.type_class:
        return compare_class(old.type_class, new.type_class, old, new)
    compatibilities: list[Compatibility] = []
    for attribute, word in _MAPS.items():
        compatibilities += _compare_registrations(getattr(old, attribute), getattr(new, attribute), word)
    return combine(compatibilities)


def _compare_registrations(
    old: tuple[KryoRegistration, ...], new: tuple[KryoRegistration, ...], word: str
) -> Iterator[Compatibility]:
    now = {each.class_name: each for each in new}
    for each in old:
        after = now.get(each.class_name)
        if not _is_present(each) and (after is None or not _is_present(after)):
            yield single(_missing(each, word))
        elif not _is_present(each):
            yield single(_replaced(each, word))
        elif after is not None and None not in (each.value, after.value) and each.value != after.value:
            yield single(_changed(each, word))
    before, names = [each.class_name for each in old], [*now]
    if before != names[: len(before)]:
        yield single(
            SerializerDifference(
                old=", ".join(before),
                new=", ".join(names) or None,
                outcome=Outcome.RECONFIGURED,
                reason=_reordered(word, [name for name in before if name not in now]),
            )
        )


def _reordered(word: str, gone: list[str]) -> str:
    reason = f"the order of each {word} changed: Flink keeps the old ids and puts new classes after them"
    if gone:
        reason += f". It is incompatible if {', '.join(gone)} or its serializer is no longer on the class path"
    return reason


def _is_present(registration: KryoRegistration) -> bool:
    return registration.resolved and registration.value is not None


def _missing(registration: KryoRegistration, word: str) -> SerializerDifference:
    reason = (
        f"the {word} {registration.class_name} or its serializer was missing when the snapshot was written, and "
        "the new job does not register it"
    )
    remedy = f"Register {registration.class_name} with its serializer in the new job"
    return SerializerDifference(old=registration.class_name, outcome=Outcome.INCOMPATIBLE, reason=reason, remedy=remedy)


def _replaced(registration: KryoRegistration, word: str) -> SerializerDifference:
    return SerializerDifference(
        new=registration.class_name,
        outcome=Outcome.AS_IS,
        reason=f"the {word} {registration.class_name} or its serializer was missing when the snapshot was written; the "
        "new job registers it, which is enough for RocksDB, but the heap backend needs the old serializer and fails",
        remedy="Restore with RocksDB, or go back to a snapshot that was written with the class",
        error=f"Missing value for the key '{registration.class_name}'",
    )


def _changed(registration: KryoRegistration, word: str) -> SerializerDifference:
    return SerializerDifference(
        old=registration.class_name,
        new=registration.class_name,
        outcome=Outcome.AS_IS,
        reason=f"the {word} {registration.class_name} has another Kryo serializer now, which must read the bytes of "
        "the old one: Flink does not check it",
        remedy="Make sure that the new Kryo serializer reads the old bytes",
    )


def find_kryo(serializer: Serializer, path: str = "value") -> Iterator[tuple[str, Kryo]]:
    """Yield every Kryo serializer with its path."""
    return ((where, node) for where, node in list_paths(serializer, path) if isinstance(node, Kryo))


def refuse_other_kryo(path: str, node: Kryo, written_by: int, read_by: int) -> SerializerDifference:
    """Make the finding for data of one major version of Kryo that another major version would read."""
    return SerializerDifference(
        path=path,
        old=f"{describe(node)} written by Kryo {written_by}",
        new=f"read by Kryo {read_by}",
        outcome=Outcome.INCOMPATIBLE,
        reason=f"Kryo {read_by} does not read the data of Kryo {written_by}; the snapshots look alike, so Flink fails "
        "while reading or reads wrong values",
        remedy=_advise(node),
        unnoticed=True,
    )


def _advise(node: Kryo) -> str:
    name = node.type_class
    if name in _COLLECTIONS:
        return (
            f"Migrate {name} with `collections: {{FIELD: ELEMENT}}` in fields of POJOs, else with `convert`; the "
            "classes of the job give the element types (--classes). Where Flink 2 keeps Kryo (elements that have type "
            "arguments themselves), change the type of the field in the new job"
        )
    if name.startswith("org.apache.avro."):
        return "Give the state Avro's type information (`GenericRecordAvroTypeInfo`) in the new job, and `convert` it"
    if name.startswith(("java.", "javax.")):
        return f"Use a type that Flink has a serializer for instead of {name}, and `convert` or `cast` in a migration"
    return (
        f"Make {name} a POJO in the new job (public, with a public constructor without arguments, fields public or "
        "with getters and setters), give its class by --job-classes, and `convert` in a migration"
    )


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
    """Use the class files of the new job to find Java fields, in all comparisons inside the `with` block."""
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
    return combine([*_compare_fields_pojo(old, new), *_compare_subclasses(old, new)])


def _compare_fields_pojo(old: Pojo, new: Pojo) -> list[Compatibility]:
    successors = {field.name: field for field in new.fields}
    # Unresolved fields count as removed: when the snapshot was last written, the class no longer had them.
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
            results.append(single(_unreadable_pojo(field)))
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
    """Return the class in which Flink finds a Java field; empty if no class has it, None if that is not known."""
    find = _find_field.get()
    return None if find is None or field.declaring_class is None else find(field.declaring_class, field.name)


def _swallow_errors(field: Compatibility) -> Compatibility:
    """Replace the errors in the findings about a POJO field by the error that Flink reports.

    Flink treats an unreadable serializer inside a POJO as missing, and fails when it restores the POJO serializer.
    """
    findings = (replace(each, error=_UNRESTORED) if each.error else each for each in field.findings)
    return Compatibility(field.outcome, tuple(findings))


def _is_resolved(field: PojoField) -> bool:
    return field.declaring_class is not None and field.serializer is not None


def _unreadable_pojo(field: PojoField) -> SerializerDifference:
    return SerializerDifference(
        path=f".{quote(field.name)}",
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the serializer of the field {quote(field.name)} could not be read when the snapshot was written "
        "again, so its bytes cannot be separated from those of the next field",
        remedy="Go back to a snapshot that was written with the old classes",
        error=_UNRESTORED,
    )


def _is_gone(field: PojoField, old: Pojo, new: Pojo) -> bool:
    """Return whether Flink certainly no longer finds a removed Java field.

    Flink looks in the class that declared the field. A superclass that declares no field of the new POJO may have
    stopped being a superclass, and may still have the field.
    """
    owner = field.declaring_class
    return owner in (None, old.pojo_class) or any(each.declaring_class == owner for each in new.fields)


def _orphaned(field: PojoField, removed: SerializerDifference) -> SerializerDifference:
    owner = field.declaring_class
    return replace(
        removed,
        outcome=Outcome.UNDETERMINED,
        reason=f"the field {quote(field.name)} of {owner} is gone: Flink drops its values if {owner} no longer has it, "
        f"and fails if the class has merely stopped extending {owner}",
        error=_PRESENT,
    )


def _left_out(field: PojoField, owner: str, removed: SerializerDifference) -> SerializerDifference:
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
) -> SerializerDifference:
    name = quote(field.name)
    reason = f"the field {name} is gone: Flink drops its values without a word"
    reason += "" if is_known else ", or fails if it is transient now"
    remedy = "Nothing to do if the values of the field may be dropped"
    twins = [quote(each.name) for each in added if each.serializer == field.serializer and each.name != field.name]
    if successor is not None:
        # Flink looks for the field in the class that declared it and in superclasses of that class, not in subclasses.
        reason = (
            f"the field {name} moved from {field.declaring_class} down to {successor.declaring_class}, where Flink "
            "does not look for it: its values are lost without a word"
        )
        remedy = f"Declare {name} where it was, or change its class in a migration"
    elif twins:
        remedy += f"; if it is called {' or '.join(twins)} now, migrate with a rename step, or its values are lost"
    else:
        remedy += "; if it has another name now, migrate with a rename step, or its values are lost"
    return SerializerDifference(
        path=f".{name}",
        old=_describe(field.serializer),
        outcome=Outcome.AFTER_MIGRATION,
        reason=reason,
        remedy=remedy,
        loss=True,
    )


def _moved(field: PojoField, successor: PojoField) -> SerializerDifference:
    name = quote(field.name)
    return SerializerDifference(
        path=f".{name}",
        old=f"{field.declaring_class}#{name}",
        new=f"{successor.declaring_class}#{name}",
        outcome=Outcome.UNDETERMINED,
        reason=f"the field {name} moved from {field.declaring_class} to {successor.declaring_class}: Flink keeps its "
        "values if the second is a superclass of the first, and drops them without a word if not (a renamed class)",
        remedy=f"Make sure that {successor.declaring_class} is a superclass, or change the class in a migration",
        loss=True,
    )


def _added(field: PojoField) -> SerializerDifference:
    name = quote(field.name)
    return SerializerDifference(
        path=f".{name}",
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


def _reconfigured(before: list[str], after: list[str], reason: str) -> SerializerDifference:
    return SerializerDifference(
        old=", ".join(before) or None,
        new=", ".join(after) or None,
        outcome=Outcome.RECONFIGURED,
        reason=reason,
    )


def _is_unresolved(subclass: PojoSubclass) -> bool:
    return not subclass.resolved or subclass.serializer is None


def _unresolved_subclass(subclass: PojoSubclass) -> SerializerDifference:
    return SerializerDifference(
        path=f"({subclass.class_name})",
        old=_describe(subclass.serializer),
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the subclass {subclass.class_name} or its serializer was missing when the snapshot was written",
        remedy="Take a new snapshot with the class on the class path",
    )


def _describe(serializer: Serializer | None) -> str | None:
    return None if serializer is None else describe(serializer)
