"""Flink's own upgrade tests: what the new side is, and what comes of it, their specifications say."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Reader
from state_pipelines.operations.check.check import check_serializers
from state_pipelines.operations.jobs.job_state import Subject
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.registry import read_snapshot
from state_pipelines.serializers.tree import Kryo, KryoRegistration, Pojo, PojoField, Serializer

if TYPE_CHECKING:
    from collections.abc import Callable

AS_IS, RECONFIGURED, AFTER_MIGRATION = (
    Outcome.AS_IS,
    Outcome.RECONFIGURED,
    Outcome.AFTER_MIGRATION,
)
INCOMPATIBLE = Outcome.INCOMPATIBLE
LONG, STRING = build.basic("Long"), build.basic("String")

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
SPECIFICATIONS = "org.apache.flink.api.java.typeutils.runtime.PojoSerializerUpgradeTestSpecifications$"
STATIC = f"{SPECIFICATIONS}StaticSchemaPojo"


def static_pojo(*subclasses: str) -> Pojo:
    fields: dict[str, Serializer] = {
        "name": STRING,
        "age": build.basic("Int"),
        "married": build.basic("Boolean"),
        "favoriteColor": build.enum(f"{STATIC}$Color", "RED", "BLUE", "GREEN"),
    }
    kinds = {"A": "Int", "B": "Boolean", "C": "Double"}
    registered = {
        f"{STATIC}Subclass{letter}": build.pojo(
            f"{STATIC}Subclass{letter}",
            {**fields, "subclassField": build.basic(kinds[letter])},
            declared_by=dict.fromkeys(fields, STATIC),
        )
        for letter in subclasses
    }
    return build.pojo(STATIC, fields, registered=registered)


def same(old: Serializer) -> Serializer:
    return old


def modified_schema(old: Serializer) -> Serializer:
    color = build.enum("TestPojoWithModifiedSchema$Color", "RED", "BLUE", "GREEN")
    kinds = {"name": STRING, "age": build.basic("Int"), "favoriteColor": color, "married": build.basic("Boolean")}
    return build.pojo("TestPojoWithModifiedSchema", kinds)


def subclass_with(name: str, serializer: Serializer) -> Callable[[Serializer], Serializer]:
    def change(old: Serializer) -> Serializer:
        assert isinstance(old, Pojo)
        (registered,) = old.registered
        subclass = registered.serializer
        assert isinstance(subclass, Pojo)
        kept = tuple(each for each in subclass.fields if each.name not in (name, "subclassFieldD"))
        added = PojoField(name=name, declaring_class=subclass.pojo_class, serializer=serializer)
        return replace(old, registered=(replace(registered, serializer=replace(subclass, fields=(*kept, added))),))

    return change


def kryo_with(*names: str, v2: bool = False) -> Callable[[Serializer], Serializer]:
    """The registrations of the old side and unrelated ones, in another order."""

    def change(old: Serializer) -> Serializer:
        assert isinstance(old, Kryo)
        known = {each.class_name.rpartition("$")[2]: each for each in old.registrations}
        dog = known.get("Dog")
        if v2 and dog is not None and dog.value is not None:
            known["Dog"] = replace(dog, value=dog.value.replace(b"DogKryo", b"DogV2Kryo"))
        unrelated = KryoRegistration(class_name="", resolved=True, value=b"")
        picked = (known.get(name, replace(unrelated, class_name=name)) for name in ("Animal", *names, "Array"))
        return replace(old, registrations=tuple(picked))

    return change


UPGRADES: dict[str, tuple[Callable[[Serializer], Serializer], Outcome]] = {
    "pojo-serializer-identical-schema": (lambda _: static_pojo(), AS_IS),
    "pojo-serializer-with-modified-schema": (modified_schema, AFTER_MIGRATION),
    "pojo-serializer-with-different-field-types": (
        lambda _: build.pojo("TestPojoWithDifferentFieldType", {"fieldValue": STRING}),
        INCOMPATIBLE,
    ),
    "pojo-serializer-with-modified-schema-in-registered-subclass": (
        subclass_with("subclassFieldE", LONG),
        AFTER_MIGRATION,
    ),
    "pojo-serializer-with-different-field-types-in-registered-subclass": (
        subclass_with("fieldValue", STRING),
        INCOMPATIBLE,
    ),
    "pojo-serializer-with-non-registered-subclass": (lambda _: static_pojo(), RECONFIGURED),
    "pojo-serializer-with-different-subclass-registration-order": (lambda _: static_pojo("B", "A"), RECONFIGURED),
    "pojo-serializer-with-missing-registered-subclass": (lambda _: static_pojo("B"), RECONFIGURED),
    "pojo-serializer-with-new-registered-subclass": (lambda _: static_pojo("A"), RECONFIGURED),
    "pojo-serializer-with-new-and-missing-registered-subclasses": (lambda _: static_pojo("B", "C"), RECONFIGURED),
    "kryo-type-serializer-empty-config": (same, AS_IS),
    "kryo-type-serializer-unrelated-config-after-restore": (kryo_with("DummyClassOne", "DummyClassTwo"), RECONFIGURED),
    "kryo-type-serializer-changed-registration-order": (
        kryo_with("DummyClassOne", "Dog", "DummyClassTwo", "Cat", "Parrot"),
        RECONFIGURED,
    ),
    "kryo-custom-type-serializer-changed-registration-order": (
        kryo_with("DummyClassOne", "DummyClassTwo", "Cat", "Dog", "Parrot", v2=True),
        RECONFIGURED,
    ),
    "enum-serializer": (same, AS_IS),
    "enum-serializerreconfig": (
        lambda _: build.enum("TestEnumSerializerReconfig", "FOO", "BAR", "PETER", "PAULA", "NATHANIEL", "EMMA"),
        RECONFIGURED,
    ),
    "row-serializer": (lambda _: build.row(STRING, LONG, STRING, STRING), AS_IS),
    "ttl-aware-serializer-ttl-value": (lambda _: build.ttl_aware(STRING, ttl_enabled=False), AFTER_MIGRATION),
    "ttl-aware-serializer-string-value": (
        lambda _: build.ttl_aware(build.ttl(STRING), ttl_enabled=True),
        AFTER_MIGRATION,
    ),
}
# What Flink 1.20 writes stands for the new side of the other cases.
CURRENT = "1.20"
OLDER_FORMS = {"two-phase-commit-sink-state-serializer-1.11": AFTER_MIGRATION}
SPECIAL = ("pojo-", "kryo-", "enum-", "ttl-aware-")
SNAPSHOTS = sorted(Path(FIXTURES, "flink/serializers").glob("*/*/serializer-snapshot")) if FIXTURES else []


def read(path: Path) -> Serializer:
    return read_snapshot(Reader(path.read_bytes(), str(path)))


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("path", SNAPSHOTS, ids=[path.parent.name for path in SNAPSHOTS])
def test_upgrade_tests_of_flink(path: Path) -> None:
    old = read(path)
    case, _, _ = path.parent.name.rpartition("-")
    if case in UPGRADES:
        upgrade, expected = UPGRADES[case]
        new = upgrade(old)
    else:
        # Their specifications build the same serializer on both sides.
        new = read(path.parents[1] / f"{case}-{CURRENT}" / path.name)
        expected = OLDER_FORMS.get(path.parent.name, AS_IS)
    assert resolve(old, new).outcome is expected
    (checked,) = check_serializers(case, "state", {Subject.VALUE: old}, {Subject.VALUE: new}, target="2.2")
    assert checked.outcome is expected


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
def test_every_upgrade_that_is_not_the_same_on_both_sides_is_there() -> None:
    cases = {path.parent.name.rpartition("-")[0] for path in SNAPSHOTS}
    assert cases >= UPGRADES.keys()
    assert {case for case in cases if case.startswith(SPECIAL)} == {
        case for case in UPGRADES if case.startswith(SPECIAL)
    }
