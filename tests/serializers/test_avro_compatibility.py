"""Avro's schema resolution as Flink applies it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, resolve

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer

AS_IS, AFTER_MIGRATION = Outcome.AS_IS, Outcome.AFTER_MIGRATION
INCOMPATIBLE, UNDETERMINED = Outcome.INCOMPATIBLE, Outcome.UNDETERMINED


def outcome(old: Serializer, new: Serializer) -> Outcome:
    return resolve(old, new).outcome


def avro(*fields: object, name: str = "User", runtime_class: str | None = None, **more: object) -> Serializer:
    schema = {"type": "record", "name": name, "namespace": "com.acme", "fields": list(fields), **more}
    return build.avro(runtime_class or "org.apache.avro.generic.GenericRecord", json.dumps(schema))


def field(kind: object, name: str = "x", **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def fixed(size: int) -> dict[str, object]:
    return {"type": "fixed", "name": "F", "size": size}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (avro(field("int")), avro(field("int")), AS_IS),
        (avro(field("int")), avro(field("int", doc="text")), AS_IS),
        (avro(field("int")), avro(field("long")), AFTER_MIGRATION),
        (avro(field("long")), avro(field("int")), INCOMPATIBLE),
        (avro(field("float")), avro(field("double")), AFTER_MIGRATION),
        (avro(field("string")), avro(field("bytes")), AFTER_MIGRATION),
        (avro(field("boolean")), avro(field("int")), INCOMPATIBLE),
        (avro(), avro(field("int", default=0)), AFTER_MIGRATION),
        (avro(), avro(field("int")), INCOMPATIBLE),
        (avro(field("int")), avro(), AFTER_MIGRATION),
        (avro(field("int")), avro(field("int", "y", aliases=["x"])), AFTER_MIGRATION),
        (avro(field("int")), avro(field("int", "y")), INCOMPATIBLE),
        (avro(field("int", "a"), field("int", "b")), avro(field("int", "b"), field("int", "a")), AFTER_MIGRATION),
        (avro(field("int")), avro(field(["null", "int"])), AFTER_MIGRATION),
        (avro(field(["null", "int"])), avro(field("int")), INCOMPATIBLE),
        (avro(field(["null", "int"])), avro(field(["null", "long", "string"])), AFTER_MIGRATION),
        (avro(field(["null", "int"])), avro(field(["null", "string"])), INCOMPATIBLE),
        (avro(field(enum("A", "B"))), avro(field(enum("A", "B", "C"))), AFTER_MIGRATION),
        (avro(field(enum("A", "B"))), avro(field(enum("A"))), INCOMPATIBLE),
        (avro(field(enum("A", "B"))), avro(field(enum("A", default="A"))), AFTER_MIGRATION),
        (avro(field(fixed(4))), avro(field(fixed(8))), INCOMPATIBLE),
        (avro(field(array("int"))), avro(field(array("long"))), AFTER_MIGRATION),
        (avro(field(array("int"))), avro(field(array("string"))), INCOMPATIBLE),
        (avro(), avro(name="Person"), INCOMPATIBLE),
        (avro(), avro(name="Person", aliases=["User"]), AFTER_MIGRATION),
        (avro(), avro(namespace="org.other"), AFTER_MIGRATION),
        (avro(field(["null", "com.acme.User"])), avro(field(["null", "com.acme.User"])), AS_IS),
        (
            avro(field(["null", "com.acme.User"])),
            avro(field(["null", "com.acme.User"]), field("int", "n", default=1)),
            AFTER_MIGRATION,
        ),
        (avro(field(enum("A", "B"))), avro(field(enum("A", "B", default="A"))), AS_IS),
        (avro(field("int")), avro(field("int", order="ascending")), AS_IS),
        (avro(field("int")), avro(field("int", order="descending")), AFTER_MIGRATION),
        (avro(field("int"), field("int", "y")), avro(field("int", "y", aliases=["x"])), INCOMPATIBLE),
        (avro(field(fixed(4))), avro(field({**fixed(4), "name": "G"})), INCOMPATIBLE),
        (avro(field(fixed(4))), avro(field({**fixed(4), "name": "G", "aliases": ["F"]})), AFTER_MIGRATION),
        (
            avro(field("bytes")),
            avro(field({"type": "bytes", "logicalType": "decimal", "precision": 4})),
            AFTER_MIGRATION,
        ),
        (avro(runtime_class="com.acme.User"), avro(runtime_class="com.acme.Person"), INCOMPATIBLE),
        (avro(runtime_class="com.acme.User"), avro(), AS_IS),
    ],
)
def test_avro_resolves_with_the_new_schema_as_reader(old: Serializer, new: Serializer, expected: Outcome) -> None:
    assert outcome(old, new) is expected


FIRST = field("string", "first")
OPTIONAL_LAST = field(["null", "string"], "last", default=None)
REQUIRED_LAST = field("string", "last")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (avro(FIRST, name="name"), avro(FIRST, name="name"), AS_IS),
        (avro(FIRST, OPTIONAL_LAST, name="name"), avro(FIRST, name="name"), AFTER_MIGRATION),
        (avro(FIRST, name="name"), avro(FIRST, OPTIONAL_LAST, name="name"), AFTER_MIGRATION),
        (avro(FIRST, OPTIONAL_LAST, name="name"), avro(FIRST, REQUIRED_LAST, name="name"), INCOMPATIBLE),
        (avro(FIRST), avro(FIRST, runtime_class="com.acme.User"), AS_IS),
        (avro(field("string", "x" * 65536)), avro(field("string", "x" * 65536)), AS_IS),
    ],
)
def test_the_cases_of_flinks_own_test(old: Serializer, new: Serializer, expected: Outcome) -> None:
    assert outcome(old, new) is expected


def test_a_generated_class_keeps_its_namespace() -> None:
    old = avro(field("int"), namespace="com.acme", runtime_class="com.acme.User")
    new = avro(field("int"), namespace="org.acme", runtime_class="org.acme.User")
    (finding,) = resolve(old, new).findings
    assert finding.outcome is INCOMPATIBLE
    assert finding.error.startswith("Unable to find the class 'com.acme.User'")


def test_avro_names_the_field_inside() -> None:
    inner = {"type": "record", "name": "In", "fields": [field("long")]}
    other = {"type": "record", "name": "In", "fields": [field("int")]}
    old, new = avro(field({"type": "array", "items": inner})), avro(field({"type": "array", "items": other}))
    assert [finding.path for finding in resolve(old, new).findings] == ["value.x[].x"]


def test_avro_fields_that_go_are_a_loss() -> None:
    assert [finding.loss for finding in resolve(avro(field("int")), avro()).findings] == [True]


def test_a_schema_that_is_none_is_undetermined() -> None:
    assert outcome(avro(), build.avro("org.apache.avro.generic.GenericRecord", "{}")) is UNDETERMINED
