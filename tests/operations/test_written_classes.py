"""Classes that serializers write and no snapshot describes: Kryo's, and subclasses of POJOs that are not listed."""

from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.kryo.classes import FieldLists, JavaType
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, JavaField, list_fields
from state_pipelines.operations.check.class_checks import DataClasses, WrittenClasses
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.serializers.tree import Kryo, KryoRegistration, Serializer

ITEM = "a.Item: [name: String, price: int]"
OTHER = "a.Item: [name: String, price: long]"
NOTHING = DataClasses(frozenset())


def kryo(name: str) -> Kryo:
    return Kryo(type_class=name)


def judge(
    node: Serializer,
    old: str | FieldLists = "",
    new: str | FieldLists = "",
    data: DataClasses | None = None,
    *,
    lists_subclasses: bool = True,
    changed: bool = False,
    same_code: bool = False,
) -> list[SerializerDifference]:
    before, after = (each if isinstance(each, FieldLists) else load_classes(each or "{}") for each in (old, new))
    known = WrittenClasses(before, after, same_code=same_code)
    return list(known.judge("value", node, data, lists_subclasses=lists_subclasses, changed=changed))


def outcomes(findings: list[SerializerDifference]) -> list[tuple[str, Outcome]]:
    return [(each.path, each.outcome) for each in findings]


UNDETERMINED, INCOMPATIBLE = Outcome.UNDETERMINED, Outcome.INCOMPATIBLE


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", [("value", UNDETERMINED)]),
        (ITEM, "", [("value", UNDETERMINED)]),
        ("", ITEM, [("value", UNDETERMINED)]),
        (ITEM, OTHER, [("value", INCOMPATIBLE)]),
        (ITEM, ITEM, []),
    ],
)
def test_a_class_of_kryo_is_known_and_the_same_or_not(old: str, new: str, expected: list[tuple[str, Outcome]]) -> None:
    assert outcomes(judge(kryo("a.Item"), old, new)) == expected


def test_what_differs_is_said() -> None:
    (finding,) = judge(kryo("a.Item"), ITEM, "a.Item: [name: String, count: int]")
    assert "the fields differ (price is gone, count is new) of a.Item" in finding.reason
    assert finding.unnoticed


def test_the_same_code_writes_the_same_fields() -> None:
    assert judge(kryo("a.Item"), same_code=True) == []


def test_a_class_that_a_field_holds_counts_too() -> None:
    order = "a.Order: [item: a.Item]"
    findings = judge(kryo("a.Order"), f"{order}\n{ITEM}", f"{order}\n{OTHER}")
    assert outcomes(findings) == [("value", INCOMPATIBLE)]
    assert "a.Item" in findings[0].reason


def test_elements_of_a_list_in_a_pojo_are_those_of_the_java_field() -> None:
    order = "a.Order: [items: List<a.Item>]"
    pojo = build.pojo("a.Order", {"items": kryo("java.util.List")})
    assert outcomes(judge(pojo, f"{order}\n{ITEM}", f"{order}\n{OTHER}")) == [("value.items", INCOMPATIBLE)]
    assert judge(pojo, f"{order}\n{ITEM}", f"{order}\n{ITEM}") == []


@pytest.mark.parametrize("name", ["java.util.List", "java.util.HashMap", "java.lang.Object", "java.io.Serializable"])
def test_what_may_hold_any_class_is_looked_into(name: str) -> None:
    (finding,) = judge(kryo(name))
    assert finding.outcome is UNDETERMINED
    assert "--scan" in finding.remedy
    assert judge(kryo(name), data=NOTHING) == []
    assert outcomes(judge(kryo(name), data=DataClasses(frozenset({"a.Item"})))) == [("value", UNDETERMINED)]
    assert judge(kryo(name), ITEM, ITEM, DataClasses(frozenset({"a.Item", "java.util.ArrayList"}))) == []


def test_values_that_cannot_be_decoded_leave_it_open() -> None:
    (finding,) = judge(kryo("java.util.List"), data=DataClasses(frozenset(), ("a.B is unknown",)))
    assert finding.outcome is UNDETERMINED
    assert "a.B is unknown" in finding.reason


@pytest.mark.parametrize("name", ["java.time.LocalDate", "java.util.UUID", "java.math.MathContext"])
def test_classes_of_the_jdk_are_those_of_the_jdk(name: str) -> None:
    assert judge(kryo(name)) == []


POJO = build.pojo("a.Base", {"id": build.basic("Long")})


def class_files(*classes: JavaClass) -> FieldLists:
    return list_fields(ClassPath(tuple(map(GivenClass, classes))))


BASE = JavaClass("a.Base", fields=(JavaField("id", JavaType("long"), "long"),))
DERIVED = JavaClass("a.Derived", parent=JavaType("a.Base"), fields=(JavaField("n", JavaType("int"), "int"),))
WIDER = JavaClass("a.Derived", parent=JavaType("a.Base"), fields=(JavaField("n", JavaType("long"), "long"),))


def test_subclasses_that_a_pojo_does_not_list_are_looked_for() -> None:
    (finding,) = judge(POJO, lists_subclasses=False)
    assert finding.outcome is UNDETERMINED
    assert "the data may hold subclasses of a.Base that the snapshot does not list" in finding.reason


def test_rocksdb_lists_the_class_of_every_object() -> None:
    assert judge(POJO, lists_subclasses=True) == []


def test_class_files_say_that_there_is_no_subclass() -> None:
    assert judge(POJO, new=class_files(BASE), lists_subclasses=False) == []


def test_class_files_say_which_subclasses_there_are() -> None:
    (finding,) = judge(POJO, new=class_files(BASE, DERIVED), lists_subclasses=False)
    assert "(a.Derived)" in finding.reason


@pytest.mark.parametrize(
    ("new", "changed", "expected"),
    [
        (class_files(BASE, DERIVED), False, []),
        (class_files(BASE, DERIVED), True, [INCOMPATIBLE]),
        (class_files(BASE, WIDER), False, [INCOMPATIBLE]),
        (FieldLists(), False, [UNDETERMINED]),
    ],
)
def test_a_subclass_in_the_data(new: FieldLists, changed: bool, expected: list[Outcome]) -> None:
    data = DataClasses(frozenset({"a.Base", "a.Derived"}))
    old = class_files(BASE, DERIVED)
    findings = judge(POJO, old, new, data, lists_subclasses=False, changed=changed)
    assert [each.outcome for each in findings] == expected


def test_data_without_subclasses_are_fine() -> None:
    assert judge(POJO, data=DataClasses(frozenset({"a.Base"})), lists_subclasses=False) == []


def registration(name: str, serializer: str) -> KryoRegistration:
    writer = Writer()
    writer.utf(name)
    writer.i32(1)
    writer.utf(serializer)
    return KryoRegistration(class_name=name, resolved=True, value=writer.getvalue())


def test_the_java_serializer_of_kryo_is_named_with_that_of_flink() -> None:
    serializer = "com.esotericsoftware.kryo.serializers.JavaSerializer"
    node = Kryo(type_class="a.Item", registrations=(registration("a.Item", serializer),))
    (finding,) = judge(node, same_code=True)
    assert finding.outcome is UNDETERMINED
    assert "ClassNotFoundException" in finding.reason
    assert "org.apache.flink.api.java.typeutils.runtime.kryo.JavaSerializer" in finding.remedy


def test_a_class_of_the_java_serializer_that_a_state_does_not_hold() -> None:
    serializer = "com.esotericsoftware.kryo.serializers.JavaSerializer"
    node = Kryo(type_class="java.util.UUID", registrations=(registration("a.Item", serializer),))
    assert judge(node) == []


def test_a_class_with_another_serializer_is_not_written_field_by_field() -> None:
    node = Kryo(type_class="a.Item", registrations=(registration("a.Item", "a.ItemSerializer"),))
    assert judge(node) == []
