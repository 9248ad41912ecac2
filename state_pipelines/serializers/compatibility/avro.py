"""Rules of Avro: schema resolution with the new schema as reader and the old one as writer.

Source: `AvroSerializerSnapshot`, and Avro's `SchemaCompatibility`, which looks at the simple names of records, enums
and fixed types, at aliases, defaults, promotions and branches of unions, and at no logical type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from state_pipelines.serializers.compatibility.outcome import SAME, Compatibility, Finding, Outcome, combine, single
from state_pipelines.serializers.compatibility.rules import rule
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Avro

if TYPE_CHECKING:
    from collections.abc import Callable

GENERIC_RECORD = "org.apache.avro.generic.GenericRecord"

_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
# Attributes that the equality of two schemas in Java ignores.
_NOT_COMPARED = frozenset({"doc", "aliases"})
_REMEDY = "Keep the schema readable (a default, an alias), or change it in a migration"


@dataclass
class _Pair:
    """Two schemas with their named types, and the pairs of named types that are being compared."""

    writer_types: dict[str, dict[str, object]] = field(default_factory=dict)
    reader_types: dict[str, dict[str, object]] = field(default_factory=dict)
    visiting: set[tuple[str, str]] = field(default_factory=set)


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
    """Return the attributes that `Schema.equals` compares: all but documentation."""
    if isinstance(schema, dict):
        # `EnumSchema.equals` leaves out the default of the enum; ascending is the order of fields that name none.
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
        # Every branch may have been written, so that all must be readable.
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
    """Simple names are the same, or an alias of the reader is the full name of the writer."""
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


def _after_migration(path: str, old: object, new: object, reason: str, *, loss: bool = False) -> Finding:
    remedy = "Nothing to do if the values may go; if the field has another name now, add an alias"
    return Finding(
        path=path,
        old=_show(old),
        new=_show(new),
        outcome=Outcome.AFTER_MIGRATION,
        reason=reason,
        remedy=remedy if loss else "",
        loss=loss,
    )


def _mismatch(old: object, new: object, reason: str, path: str = "") -> Finding:
    return Finding(
        path=path, old=_show(old), new=_show(new), outcome=Outcome.INCOMPATIBLE, reason=reason, remedy=_REMEDY
    )


def _renamed(writer: dict[str, object], reader: dict[str, object]) -> Finding:
    return _mismatch(writer, reader, f"{_show(writer)} became {_show(reader)} without an alias")


def _class_renamed(old: Avro, new: Avro) -> Finding:
    return Finding(
        path="",
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


def _class_needed(old: Avro, new: Avro) -> Finding:
    return Finding(
        path="",
        old=old.runtime_class,
        new=new.runtime_class,
        outcome=Outcome.AS_IS,
        reason=f"the class {old.runtime_class} must still be on the class path, or the old snapshot cannot be read",
        remedy="Keep the class on the class path, or change the class in a migration",
    )


def _unreadable(old: Avro, new: Avro, error: Exception) -> Finding:
    return Finding(
        path="",
        old=describe(old),
        new=describe(new),
        outcome=Outcome.UNDETERMINED,
        reason=f"a schema cannot be parsed: {error!r}",
        remedy="Repair the schema",
    )
