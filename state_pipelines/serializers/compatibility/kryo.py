"""Rules of Kryo: the class, and registrations whose order gives the ids in the data.

Source: `KryoSerializerSnapshot`, `LinkedOptionalMap.mergeRightIntoLeft`. Whether the *data* can be read is a
separate question: between Flink 1.x and 2.x they cannot, and no snapshot stores it (`find_kryo`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility.classes import compare_class
from state_pipelines.serializers.compatibility.outcome import Compatibility, Finding, Outcome, combine, single
from state_pipelines.serializers.compatibility.rules import list_paths, rule
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Kryo, KryoRegistration, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterator

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
            Finding(
                path="",
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


def _missing(registration: KryoRegistration, word: str) -> Finding:
    return Finding(
        path="",
        old=registration.class_name,
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the {word} {registration.class_name} or its serializer was missing when the snapshot was written, and "
        "the new job does not register it",
        remedy=f"Register {registration.class_name} with its serializer in the new job",
    )


def _replaced(registration: KryoRegistration, word: str) -> Finding:
    return Finding(
        path="",
        old=None,
        new=registration.class_name,
        outcome=Outcome.AS_IS,
        reason=f"the {word} {registration.class_name} or its serializer was missing when the snapshot was written; the "
        "new job registers it, which does for RocksDB, but the heap backend needs the old serializer and fails",
        remedy="Restore with RocksDB, or go back to a snapshot that was written with the class",
        error=f"Missing value for the key '{registration.class_name}'",
    )


def _changed(registration: KryoRegistration, word: str) -> Finding:
    return Finding(
        path="",
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


def refuse_other_kryo(path: str, node: Kryo, written_by: int, read_by: int) -> Finding:
    """Make the finding for Kryo data that another major version of Kryo reads."""
    return Finding(
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
