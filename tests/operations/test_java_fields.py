"""Java fields in the classes of the new job: transient and moved ones, and primitive ones where data hold nulls."""

from __future__ import annotations

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.kryo.classes import FieldLists, JavaType
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, JavaField, list_fields
from state_pipelines.operations.check.class_checks import DataClasses, judge_nulls, look_up_fields
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Compatibility, Outcome, SerializerDifference, resolve
from state_pipelines.serializers.compatibility.objects import know_fields
from state_pipelines.serializers.tree import Kryo, Serializer

LONG, INT = build.basic("Long"), build.basic("Int")
PRESENT = "a present field should have its associated new field serializer available."


def field(name: str, *, is_kept: bool = True) -> JavaField:
    return JavaField(name, JavaType("long"), "long", is_kept=is_kept)


def class_files(*classes: JavaClass) -> FieldLists:
    return list_fields(ClassPath(tuple(map(GivenClass, classes))))


def compare(old: Serializer, new: Serializer, classes: FieldLists) -> Compatibility:
    with know_fields(look_up_fields(classes)):
        return resolve(old, new)


OLD = build.pojo("a.P", {"x": LONG, "y": LONG})
NEW = build.pojo("a.P", {"x": LONG})


def test_a_field_that_became_transient_fails_the_restore() -> None:
    found = compare(OLD, NEW, class_files(JavaClass("a.P", fields=(field("x"), field("y", is_kept=False)))))
    (finding,) = found.findings
    assert (found.outcome, finding.path, finding.error) == (Outcome.INCOMPATIBLE, "value.y", PRESENT)
    assert "transient" in finding.reason


def test_a_field_that_is_gone_is_known_to_be_gone() -> None:
    found = compare(OLD, NEW, class_files(JavaClass("a.P", fields=(field("x"),))))
    (finding,) = found.findings
    assert found.outcome is Outcome.AFTER_MIGRATION
    assert finding.loss
    assert "transient" not in finding.reason


@pytest.mark.parametrize("classes", [class_files(), load_classes("a.P: [x: long]")], ids=["no class", "field list"])
def test_what_the_classes_do_not_say_stays_as_snapshots_have_it(classes: FieldLists) -> None:
    assert compare(OLD, NEW, classes) == resolve(OLD, NEW)
    assert "transient" in resolve(OLD, NEW).findings[0].reason


BELOW = build.pojo("a.Sub", {"x": LONG, "y": LONG}, declared_by={"x": "a.Base"})
MIDDLE = build.pojo("a.Sub", {"x": LONG, "y": LONG}, declared_by={"x": "a.Middle"})
FLAT = build.pojo("a.Sub", {"x": LONG, "y": LONG})
SUB = JavaClass("a.Sub", parent=JavaType("a.Base"), fields=(field("y"),))


def test_a_field_that_moved_to_a_super_class_keeps_its_values() -> None:
    line = class_files(
        SUB,
        JavaClass("a.Base", parent=JavaType("a.Middle")),
        JavaClass("a.Middle", fields=(field("x"),)),
    )
    assert resolve(BELOW, MIDDLE).outcome is Outcome.UNDETERMINED
    assert compare(BELOW, MIDDLE, line) == Compatibility(Outcome.AS_IS)


def test_a_field_that_moved_to_a_subclass_loses_its_values() -> None:
    line = class_files(
        JavaClass("a.Sub", parent=JavaType("a.Base"), fields=(field("x"), field("y"))), JavaClass("a.Base")
    )
    found = compare(BELOW, FLAT, line)
    assert found.outcome is Outcome.AFTER_MIGRATION
    assert [each.loss for each in found.findings] == [True, False]
    middle = class_files(
        SUB, JavaClass("a.Base"), JavaClass("a.Middle", parent=JavaType("a.Base"), fields=(field("x"),))
    )
    assert compare(BELOW, MIDDLE, middle).outcome is Outcome.AFTER_MIGRATION


def test_a_super_class_that_was_left_still_has_its_field() -> None:
    old = build.pojo("a.Sub", {"x": LONG, "y": LONG}, declared_by={"x": "a.Base"})
    new = build.pojo("a.Sub", {"y": LONG})
    assert resolve(old, new).outcome is Outcome.UNDETERMINED
    left = class_files(JavaClass("a.Sub", fields=(field("y"),)), JavaClass("a.Base", fields=(field("x"),)))
    assert compare(old, new, left).outcome is Outcome.INCOMPATIBLE
    emptied = class_files(JavaClass("a.Sub", fields=(field("y"),)), JavaClass("a.Base"))
    assert compare(old, new, emptied).outcome is Outcome.AFTER_MIGRATION


def test_a_field_of_both_classes_is_that_of_the_first() -> None:
    # The class that declared it still has it, transient, and a subclass declares it, too.
    both = class_files(
        JavaClass("a.Sub", parent=JavaType("a.Base"), fields=(field("x"), field("y"))),
        JavaClass("a.Base", fields=(field("x", is_kept=False),)),
    )
    assert compare(BELOW, FLAT, both).outcome is Outcome.INCOMPATIBLE


BOXED, PRIMITIVE = load_classes("a.P: [n: Integer, s: String]"), load_classes("a.P: [n: int, s: String]")
POJO = build.pojo("a.P", {"n": INT, "s": build.basic("String")})
CLEAN = DataClasses(frozenset({"a.P"}), null_fields=frozenset({("a.P", "s"), ("a.Q", "n")}))
NULLS = DataClasses(frozenset({"a.P"}), null_fields=frozenset({("a.P", "n")}))


def judge(
    node: Serializer, data: DataClasses | None, old: FieldLists | None = None, new: FieldLists = PRIMITIVE
) -> list[SerializerDifference]:
    return list(judge_nulls("value", node, old or load_classes("{}"), new, data))


@pytest.mark.parametrize("old", [None, BOXED])
def test_a_field_that_became_primitive_is_open_until_the_data_are_read(old: FieldLists | None) -> None:
    (finding,) = judge(POJO, None, old)
    assert (finding.path, finding.outcome) == ("value", Outcome.UNDETERMINED)
    assert "the field n of a.P is primitive" in finding.reason
    assert "--scan" in finding.remedy
    assert judge(POJO, CLEAN, old) == []
    (finding,) = judge(POJO, NULLS, old)
    assert (finding.path, finding.outcome, finding.unnoticed) == ("value.n", Outcome.INCOMPATIBLE, True)


def test_a_field_that_was_primitive_holds_no_nulls() -> None:
    assert judge(POJO, None, PRIMITIVE) == judge(POJO, NULLS, PRIMITIVE) == []
    assert judge(POJO, None, PRIMITIVE, BOXED) == judge(POJO, None, None, BOXED) == []


@pytest.mark.parametrize("name", ["boolean", "byte", "char", "short", "int", "long", "float", "double"])
def test_every_primitive_type(name: str) -> None:
    pojo = build.pojo("a.P", {"n": build.basic(name.capitalize())})
    assert [each.path for each in judge(pojo, NULLS, None, load_classes(f"a.P: [n: {name}]"))] == ["value.n"]


@pytest.mark.parametrize(
    ("node", "path"),
    [
        (build.list_of(POJO), "value[].n"),
        (build.map_of(POJO, INT), "value{key}.n"),
        (build.map_of(INT, POJO), "value{value}.n"),
        (build.tuple_of(INT, POJO), "value.f1.n"),
        (build.either(INT, POJO), "value.right.n"),
        (build.row(INT, POJO), "value.f1.n"),
        (build.nullable(POJO), "value.n"),
        (build.pojo("a.Q", {"p": POJO}), "value.p.n"),
        (build.pojo("a.Q", {"p": LONG}, registered={"a.P": POJO}), "value(a.P).n"),
        (build.ttl(POJO), "value.n"),
        (build.generic_array("a.P", POJO), "value[].n"),
    ],
)
def test_pojos_inside_of_other_serializers(node: Serializer, path: str) -> None:
    assert [each.path for each in judge(node, NULLS)] == [path]
    assert [each.outcome for each in judge(node, None)] == [Outcome.UNDETERMINED]


def test_inherited_fields_and_subclasses_that_are_not_listed() -> None:
    sub = build.pojo("a.S", {"n": INT}, declared_by={"n": "a.P"})
    data = DataClasses(frozenset({"a.S"}), null_fields=frozenset({("a.S", "n")}))
    new = load_classes("a.P: [n: int]\na.S extends a.P: [m: int]")
    assert [each.path for each in judge(sub, data, None, new)] == ["value.n"]
    assert [each.path for each in judge(POJO, data, None, new)] == ["value(a.S).n"]
    # Kryo's classes are compared field by field with the old ones.
    assert judge(build.tuple_of(POJO, Kryo(type_class="a.S")), data, None, new) == []


def test_values_that_cannot_be_decoded_leave_it_open() -> None:
    (finding,) = judge(POJO, DataClasses(frozenset(), ("a.B is unknown",)))
    assert finding.outcome is Outcome.UNDETERMINED
    assert "a.B is unknown" in finding.reason
