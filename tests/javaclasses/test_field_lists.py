"""Field lists out of class files: what Kryo writes of a class, and what class files do not say."""

from __future__ import annotations

import contextlib
import pickle
import zipfile
from typing import TYPE_CHECKING

import pytest

from state_pipelines import javaclasses
from state_pipelines.codecs.kryo.classes import OBJECT_NAME, ClassDeclaration, JavaType, load_classes
from state_pipelines.errors import StateError, UsageError
from state_pipelines.javaclasses import (
    ENUM_NAME,
    RECORD_NAME,
    ClassDeclarations,
    ClassFieldLists,
    ClassPath,
    GivenClass,
    JavaClass,
    JavaField,
    describe_class,
    load_field_lists,
)
from tests.javaclasses.test_classfile import ENUM, GENERIC, RECORD

if TYPE_CHECKING:
    from pathlib import Path

LONG = JavaType("long")


def field(name: str, **flags: bool) -> JavaField:
    return JavaField(name, LONG, "long", **flags)


def describe(found: JavaClass, *others: JavaClass) -> ClassDeclaration:
    return describe_class(found, ClassPath(tuple(map(GivenClass, (found, *others)))))


def lists_of(*classes: JavaClass) -> ClassFieldLists:
    return ClassFieldLists(ClassDeclarations(ClassPath(tuple(map(GivenClass, classes)))))


def test_fields_are_sorted_by_name_without_static_transient_and_synthetic_ones() -> None:
    fields = (field("b"), field("gone", is_kept=False), field("this$0", is_synthetic=True), field("a", is_public=False))
    assert describe(JavaClass("P", fields=fields)).fields == (("a", LONG), ("b", LONG))


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (JavaClass("P"), "class"),
        (JavaClass("P", is_final=True), "final"),
        (JavaClass("P", is_abstract=True), "interface"),
        (JavaClass("P", parent=None, is_interface=True), "interface"),
        (JavaClass("P", parent=JavaType(RECORD_NAME), is_final=True), "record"),
        (JavaClass("P", parent=JavaType(ENUM_NAME), is_final=True, constants=("A",)), "enum"),
        (JavaClass("P", parent=JavaType(ENUM_NAME), constants=("A",)), "abstract enum"),
        (JavaClass("P", parent=JavaType("java.util.ArrayList")), "list"),
        (JavaClass("P", interfaces=("java.util.Set",)), "set"),
        (JavaClass("P", parent=JavaType("java.util.LinkedHashMap")), "map"),
    ],
)
def test_the_kind_of_a_class(found: JavaClass, kind: str) -> None:
    assert describe(found).kind == kind


def test_a_subclass_of_a_collection_of_the_user_is_a_collection() -> None:
    assert describe(JavaClass("Q", parent=JavaType("P")), JavaClass("P", interfaces=("java.util.List",))).kind == "list"


def test_inherited_fields_come_from_the_class_path() -> None:
    lists = lists_of(
        JavaClass("Q", parent=JavaType("P"), fields=(field("b"),)), JavaClass("P", fields=(field("a"), field("c")))
    )
    found = lists.find("Q")
    assert found is not None
    assert [name for name, _ in found.fields] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ((JavaClass("Q", parent=JavaType("P")),), "its super class P is not among the given classes"),
        ((JavaClass("Q", parent=JavaType("java.util.Date")),), "its super class java.util.Date is not among"),
        ((JavaClass("Q", parent=JavaType("P")), JavaClass("P", parameters=("T",))), "P has type parameters"),
        ((JavaClass("Q", writes_itself=True),), "Q names a Kryo serializer of its own"),
        ((JavaClass("Q", parent=JavaType("Q")),), "extends itself"),
    ],
)
def test_what_class_files_do_not_say_is_not_guessed(classes: tuple[JavaClass, ...], reason: str) -> None:
    lists = lists_of(*classes)
    assert lists.find("Q") is None
    assert reason in lists.explain("Q")


def test_classes_of_the_jdk_are_those_that_kryo_knows() -> None:
    assert lists_of(JavaClass("java.util.Date")).find("java.util.Date") is None


def test_subclasses_of_subclasses() -> None:
    lists = lists_of(JavaClass("P"), JavaClass("R", parent=JavaType("Q")), JavaClass("Q", parent=JavaType("P")))
    assert lists.list_subclasses("P") == ("Q", "R")
    assert lists.list_subclasses(OBJECT_NAME) == ("P", "Q", "R")


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "A.class").write_bytes(GENERIC)
    with zipfile.ZipFile(tmp_path / "e.jar", "w") as jar:
        jar.writestr("E.class", ENUM)
    (tmp_path / "renamed.class").write_bytes(RECORD)
    (tmp_path / "fields.yaml").write_text("R: [declared: int]\ncom.acme.Order: [id: long]\n")
    return [tmp_path / name for name in ("classes", "e.jar", "renamed.class", "fields.yaml")]


def test_directories_jars_class_files_and_field_lists_together(mixed: list[Path]) -> None:
    lists = load_field_lists(mixed)
    found = {name: lists.find(name) for name in ("A", "E", "com.acme.Order", "com.acme.Other")}
    assert {name: each and each.kind for name, each in found.items()} == {
        "A": "class",
        "E": "enum",
        "com.acme.Order": "class",
        "com.acme.Other": None,
    }


def test_a_field_list_goes_before_a_class_file(mixed: list[Path]) -> None:
    found = load_field_lists(mixed).find("R")
    assert found is not None
    assert found.fields == (("declared", JavaType("int")),)


def test_a_pickled_list_reads_the_class_files_again(mixed: list[Path]) -> None:
    lists = load_field_lists(mixed)
    again = pickle.loads(pickle.dumps(lists))
    assert again.find("A") == lists.find("A")
    assert again is pickle.loads(pickle.dumps(lists))


def test_field_lists_alone_are_plain(mixed: list[Path]) -> None:
    assert set(load_field_lists(mixed[3:]).classes) == {"R", "com.acme.Order"}


def test_a_file_that_is_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "job.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="neither a jar, a directory of classes, a class file nor"):
        load_field_lists([tmp_path / "job.bin"])


def test_types_in_each_other_are_bounded() -> None:
    for text in ("List<" * 5000 + "int" + ">" * 5000, "int" + "[]" * 5000):
        with pytest.raises(UsageError, match="nests deeper than 64"):
            load_classes(f"A: {{x: '{text}'}}")


@pytest.mark.slow
def test_super_classes_in_a_line_are_bounded() -> None:
    lines = [f"C{number} extends C{number + 1}: []" for number in range(3000)]
    with pytest.raises(UsageError, match="has more than 256 super classes"):
        load_classes("\n".join(lines))


@pytest.mark.slow
def test_a_class_file_in_a_jar_is_bounded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.jar", "w", zipfile.ZIP_DEFLATED) as jar, jar.open("A.class", "w") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    with pytest.raises(UsageError, match=r"A.class of the jar has more than 16 MiB"):
        load_field_lists([str(tmp_path / "bomb.jar")]).find("A")


def test_the_classes_of_a_jar_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = RECORD
    with zipfile.ZipFile(tmp_path / "many.jar", "w") as jar:
        for number in range(9):
            jar.writestr(f"A{number}.class", compiled)
    lists = load_field_lists([str(tmp_path / "many.jar")])
    monkeypatch.setattr(javaclasses, "MAX_JAR_CLASSES", 9 * len(compiled) - 1)
    with pytest.raises(UsageError, match="the classes of the jar have more than"):
        lists.list_subclasses("A")


@pytest.mark.slow
def test_every_flipped_byte_of_a_jar_is_an_error_of_the_jar_or_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "good.jar", "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr("A.class", b"\xca\xfe\xba\xbe" + bytes(range(256)))
    good = (tmp_path / "good.jar").read_bytes()
    for place in range(len(good)):
        flipped = bytearray(good)
        flipped[place] ^= 1 << place % 8
        (tmp_path / "x.jar").write_bytes(flipped)
        with contextlib.suppress(StateError):
            load_field_lists([str(tmp_path / "x.jar")]).find("A")
