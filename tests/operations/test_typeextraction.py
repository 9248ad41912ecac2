"""Type extraction: against what Flink itself made of the same classes, and rules one by one on declared classes."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.kryo.classes import JavaType, parse_type
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, JavaField, JavaMethod, open_class_path
from state_pipelines.operations.jobs.type_extraction import TypeExtraction, UnresolvedType, carry_over
from state_pipelines.serializers.text import describe, parse
from state_pipelines.serializers.tree import Kryo, Pojo

CLASSES = Path(__file__).parents[1] / "data" / "classes"
EXPECTED = json.loads((CLASSES / "expected.json").read_text(encoding="utf-8"))
RELEASES = {"1.20": (1, 20), "2.2": (2, 2)}
SCHEMA = '{"type": "record", "name": "Offer", "fields": []}'


def declare(text: str, release: str = "2.2", **known: object) -> TypeExtraction:
    return TypeExtraction(open_class_path([], load_classes(text)), RELEASES[release], **known)  # type: ignore[arg-type]


def extract(text: str, name: str, release: str = "2.2") -> str:
    return describe(declare(text, release).extract(parse_type(name)))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: there is no javac on the PATH")
    target = tmp_path_factory.mktemp("classes")
    sources = [str(each) for folder in ("src", "stubs") for each in (CLASSES / folder).rglob("*.java")]
    subprocess.run(["javac", "-nowarn", "-Xlint:none", "-g:none", "-d", str(target), *sources], check=True)
    return target


@pytest.mark.parametrize("release", RELEASES)
def test_every_field_is_what_flink_makes_of_it(compiled: Path, release: str) -> None:
    extraction = TypeExtraction(open_class_path([compiled]), RELEASES[release])
    everything = extraction.extract(JavaType("x.All"))
    assert isinstance(everything, Pojo)
    found = {each.name: describe(each.serializer) for each in everything.fields if each.serializer is not None}
    expected = {name: text for name, text in EXPECTED[release].items() if not name.startswith("x.")}
    assert found == expected


@pytest.mark.parametrize("release", RELEASES)
def test_every_class_is_what_flink_makes_of_it(compiled: Path, release: str) -> None:
    extraction = TypeExtraction(open_class_path([compiled]), RELEASES[release])
    expected = {name: text for name, text in EXPECTED[release].items() if name.startswith("x.")}
    assert {name: describe(extraction.extract(JavaType(name))) for name in expected} == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("1.20", "Pojo<P>(id: Long, tags: Kryo<java.util.List>)"),
        ("2.2", "Pojo<P>(id: Long, tags: Nullable<List<Nullable<String>>>)"),
    ],
)
def test_collections_of_pojos_depend_on_the_release(release: str, expected: str) -> None:
    assert extract("class P: {id: long, tags: List<String>}", "P", release) == expected


def test_a_declared_subclass_names_the_owner_of_each_field() -> None:
    text = "Base: [a: int]\nSub extends Base: [b: int]"
    assert extract(text, "Sub") == "Pojo<Sub>(Base#a: Int, b: Int)"


def test_declared_enums_records_and_interfaces() -> None:
    text = "enum E: [A, B]\nrecord R: [x: int]\ninterface I: []"
    assert [extract(text, name) for name in "ERI"] == ["Enum<E>(A, B)", "Pojo<R>(x: Int)", "Kryo<I>"]


def test_records_are_kryo_before_1_19() -> None:
    extraction = TypeExtraction(open_class_path([], load_classes("record R: [x: int]")), (1, 18))
    # The fields of a declared record are public, but it has no default constructor.
    assert describe(extraction.extract(JavaType("R"))) == "Kryo<R>"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "Pojo<P>(a: Int)"),
        ({"is_public": False}, "Kryo<P>"),
        ({"methods": ()}, "Kryo<P>"),
        ({"methods": (), "is_abstract": True}, "Pojo<P>(a: Int)"),
        ({"methods": (JavaMethod("<init>", (), "void", is_public=False),)}, "Kryo<P>"),
        ({"fields": (JavaField("a", JavaType("int"), "int", is_public=False),)}, "Kryo<P>"),
        ({"fields": (JavaField("a", JavaType("int"), "int", is_kept=False),)}, "Kryo<P>"),
        ({"has_factory": True}, "Unresolved<P>"),
    ],
)
def test_what_makes_a_pojo(change: dict[str, object], expected: str) -> None:
    constructor = JavaMethod("<init>", (), "void", is_public=True)
    plain = {"fields": (JavaField("a", JavaType("int"), "int"),), "methods": (constructor,)}
    found = JavaClass("P", **{**plain, **change})  # type: ignore[arg-type]
    extraction = TypeExtraction(ClassPath((GivenClass(found),)), (2, 2))
    assert describe(extraction.extract(JavaType("P"))) == expected


PRIVATE = JavaField("a", JavaType("int"), "int", is_public=False)
GETTER = JavaMethod("getA", (), "int", is_public=True)
SETTER = JavaMethod("setA", ("int",), "void", is_public=True)
NULLARY = JavaMethod("<init>", (), "void", is_public=True)


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        ({}, "", ""),
        ({"is_public": False}, "the class is not public", "Make it public"),
        (
            {"methods": (NULLARY, GETTER)},
            "the field a is not public and has a getter but",
            "or give it a setter",
        ),
        ({"methods": (NULLARY, SETTER)}, "a setter but no public getter", "or give it a getter"),
        ({"methods": (NULLARY,)}, "neither a public getter nor a public setter", "a getter and a setter"),
        ({"methods": (NULLARY, GETTER), "fields": (replace(PRIVATE, is_final=True),)}, "the final field a", "a setter"),
        ({"methods": (GETTER, SETTER)}, "it has no constructor without arguments", "Give it a public one"),
        (
            {"methods": (replace(NULLARY, is_public=False), GETTER, SETTER)},
            "its constructor without arguments is not public",
            "Give it a public one",
        ),
        ({"fields": ()}, "it has no fields", "Give it one"),
        ({"fields": (PRIVATE, PRIVATE)}, "the field a is declared twice", "Rename"),
        ({"methods": (NULLARY, GETTER, SETTER, replace(SETTER, name="readObject"))}, "a method readObject", "Remove"),
        ({"parent": JavaType("java.util.Date")}, "its super class java.util.Date", "in a field"),
        ({"is_interface": True}, "it is an interface", "Use a class"),
        ({"parent": JavaType("b.Unknown"), "methods": (NULLARY,)}, "", ""),
    ],
)
def test_why_a_class_is_no_pojo(change: dict[str, Any], reason: str, remedy: str) -> None:
    plain: dict[str, Any] = {"fields": (PRIVATE,), "methods": (NULLARY, GETTER, SETTER)}
    found = JavaClass("P", **{**plain, **change})
    problem = TypeExtraction(ClassPath((GivenClass(found),)), (2, 2)).find_pojo_problem("P")
    assert (problem is None) == (not reason)
    if problem is not None:
        assert reason in problem.reason
        assert remedy in problem.remedy


def test_the_schema_of_a_class_that_avro_generated() -> None:
    base = JavaType("org.apache.avro.specific.SpecificRecordBase")
    found = JavaClass("Offer", parent=base, schema_json=SCHEMA)
    extraction = TypeExtraction(ClassPath((GivenClass(found),)), (2, 2))
    assert describe(extraction.extract(JavaType("Offer"))) == "Avro<Offer>"


def test_a_class_that_is_not_there_is_taken_over_with_a_note() -> None:
    old = parse("Pojo<P>(q: Pojo<Q>(a: Int))")
    carried, subclasses = carry_over(iter([old]))
    extraction = declare("P: [q: Q, r: R]", carried=carried, subclasses=subclasses)
    assert describe(extraction.extract(JavaType("P"))) == "Pojo<P>(q: Pojo<Q>(a: Int), r: Unresolved<R>)"
    assert extraction.assumed == {"Q"}


def test_a_class_in_a_list_of_its_own_is_nothing_that_flink_2_extracts() -> None:
    text = "Node: [kids: List<Node>]"
    assert "Unresolved<Node>" in extract(text, "Node")
    assert extract(text, "Node", "1.20") == "Pojo<Node>(kids: Kryo<java.util.List>)"


def test_a_class_with_type_parameters_needs_arguments() -> None:
    found = declare("Box<T>: [content: T]").extract(JavaType("Box"))
    assert isinstance(found, UnresolvedType)
    assert "Box<" in found.remedy
    assert extract("Box<T>: [content: T]", "Box<String>") == "Pojo<Box>(content: String)"


def test_registered_subclasses_come_from_the_configuration() -> None:
    text = "P: [a: int]\nGift extends P: [b: int]\nOther: [c: int]"
    found = declare(text, registered=("Other", "Gift")).extract(JavaType("P"))
    assert describe(found) == "Pojo<P>(a: Int, registered Gift: Pojo<Gift>(P#a: Int, b: Int))"


def test_registered_subclasses_come_from_the_snapshot() -> None:
    old = parse("Pojo<P>(a: Int, registered Gift: Pojo<Gift>(P#a: Int))")
    carried, subclasses = carry_over(iter([old]))
    found = declare("P: [a: int]", carried=carried, subclasses=subclasses).extract(JavaType("P"))
    assert describe(found) == "Pojo<P>(a: Int, registered Gift: Pojo<Gift>(P#a: Int))"


def test_factories_of_the_configuration() -> None:
    assert isinstance(declare("P: [a: int]", factories=frozenset({"P"})).extract(JavaType("P")), UnresolvedType)


def test_kryo_keeps_the_registrations_of_the_snapshot() -> None:
    old = Kryo(type_class="java.util.UUID", snapshot_version=2, registrations=())
    extraction = declare("P: [id: java.util.UUID]", carried={"java.util.UUID": old})
    found = extraction.extract(JavaType("P"))
    assert isinstance(found, Pojo)
    assert found.fields[0].serializer is old
