"""Families of users, as Flink's serializer protocol has them, and what is asked of them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Compatibility, Outcome, register_successor, resolve
from state_pipelines.serializers.registry import read_snapshot, register, register_simple, write_snapshot
from state_pipelines.serializers.tree import Serializer
from tests.serializers.custom_families import BOX, LEVEL, PLAIN, SUCCESSOR, Box, Level, Plain, Successor
from tests.serializers.literals import LONG, STRING, composite, i32, outer, utf

if TYPE_CHECKING:
    from state_pipelines.serializers.snapshot_classes import Head

STRINGS = build.basic("String")


def read(data: bytes) -> Serializer:
    return read_snapshot(Reader(data))


def written(node: Serializer) -> bytes:
    writer = Writer()
    write_snapshot(writer, node)
    return writer.getvalue()


def level(number: int, version: int = 2) -> Level:
    return Level(snapshot_class=LEVEL, snapshot_version=version, level=number)


def box(unit: int, inner: Serializer = STRINGS) -> Box:
    return Box(snapshot_class=BOX, outer_version=3, unit=unit, inner=inner)


# Versions


def test_the_reader_gets_the_version_that_was_written() -> None:
    assert read(outer(LEVEL, 1)) == level(1, version=1)
    assert read(outer(LEVEL, 2, i32(7))) == level(7)


def test_an_old_snapshot_is_written_in_its_own_version() -> None:
    assert written(read(outer(LEVEL, 1))) == outer(LEVEL, 1)


def test_a_version_of_later_code_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"version 3 of compat\.LevelSerializer"):
        read(outer(LEVEL, 3, i32(7)))


# Simple and composite snapshots


def test_a_simple_snapshot_has_no_body() -> None:
    assert written(read(outer(PLAIN, 3))) == outer(PLAIN, 3)


def test_a_simple_serializer_is_compatible_with_itself_alone() -> None:
    plain = Plain(snapshot_class=PLAIN)
    assert resolve(plain, plain).outcome is Outcome.AS_IS
    assert resolve(plain, build.basic("Long")).outcome is Outcome.INCOMPATIBLE


def test_a_composite_has_outer_data_of_its_own_version_and_nested_snapshots() -> None:
    data = outer(BOX, 3, composite(3, i32(4), STRING))
    assert read(data) == box(4)
    assert written(box(4)) == data


def test_a_composite_with_another_number_of_nested_snapshots_is_refused() -> None:
    with pytest.raises(FormatError, match="1 nested serializers expected, 2 found"):
        read(outer(BOX, 3, composite(3, i32(4), STRING, LONG)))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (box(1), box(1), Outcome.AS_IS),
        (box(1), box(2), Outcome.AFTER_MIGRATION),
        (box(1), box(3), Outcome.INCOMPATIBLE),
        (box(1, level(1)), box(1, level(2)), Outcome.RECONFIGURED),
        (box(1, level(1)), box(2, level(2)), Outcome.AFTER_MIGRATION),
        (box(1, level(1)), box(2, level(4)), Outcome.INCOMPATIBLE),
        (box(1, level(1)), box(1, level(3)), Outcome.AFTER_MIGRATION),
    ],
)
def test_outer_data_and_nested_serializers_are_combined(old: Box, new: Box, expected: Outcome) -> None:
    assert resolve(old, new).outcome is expected


@pytest.mark.parametrize(
    ("number", "expected"), [(1, "AS_IS"), (2, "RECONFIGURED"), (3, "AFTER_MIGRATION"), (4, "INCOMPATIBLE")]
)
def test_a_rule_has_four_answers(number: int, expected: str) -> None:
    assert resolve(level(1), level(number)).outcome.name == expected


# One snapshot class in the place of another


def test_a_new_snapshot_class_accepts_the_one_whose_place_it_takes() -> None:
    new = Successor(snapshot_class=SUCCESSOR, snapshot_version=1)
    assert resolve(level(2), new).outcome is Outcome.AFTER_MIGRATION
    assert resolve(level(1), new).outcome is Outcome.INCOMPATIBLE
    assert resolve(new, level(2)).outcome is Outcome.INCOMPATIBLE


def test_it_is_asked_inside_containers_too() -> None:
    new = build.list_of(Successor(snapshot_class=SUCCESSOR, snapshot_version=1))
    assert resolve(build.list_of(level(2)), new).outcome is Outcome.AFTER_MIGRATION


def test_only_one_comparison_judges_a_succession() -> None:
    with pytest.raises(UsageError, match="registered already"):
        register_successor(LEVEL, SUCCESSOR)(lambda old, new: Compatibility(Outcome.AS_IS))


# What Flink advises


def write_nothing(writer: Writer, node: Serializer) -> None:
    """An empty body."""


@pytest.mark.parametrize("name", ["com/acme/Money", "com.acme.", "com.acme.Money Snapshot", ""])
def test_a_snapshot_class_has_a_binary_name(name: str) -> None:
    with pytest.raises(UsageError, match="not the binary name of a Java class"):
        register(name, write=write_nothing)


@pytest.mark.parametrize("name", ["com.acme.Money$1", "com.acme.Money$1Local", "com.acme.Money$$Lambda$14"])
def test_a_snapshot_class_is_found_by_its_name(name: str) -> None:
    with pytest.raises(UsageError, match="anonymous or local class"):
        register(name, write=write_nothing)


def test_a_serializer_has_one_snapshot_class() -> None:
    register_simple("com.acme.One$A", serializer="com.acme.One")(Plain)
    with pytest.raises(UsageError, match=r"has the snapshot class com.acme.One\$A already"):
        register_simple("com.acme.One$B", serializer="com.acme.One")(Plain)


def test_several_snapshot_classes_are_no_snapshot_class_of_a_serializer() -> None:
    def read_two(reader: Reader, head: Head) -> Plain:
        return Plain(**head.marks)

    with pytest.raises(UsageError, match="has one snapshot class, not 2"):
        register("com.acme.Two$A", "com.acme.Two$B", write=write_nothing, serializer="com.acme.Two")(read_two)


def test_two_serializers_do_not_share_a_snapshot_class() -> None:
    def read_shared(reader: Reader, head: Head) -> Plain:
        return Plain(**head.marks)

    register("com.acme.Shared", write=write_nothing, serializer="com.acme.First")(read_shared)
    with pytest.raises(UsageError, match=r"com.acme.Second cannot share it"):
        register("com.acme.Shared", write=write_nothing, serializer="com.acme.Second")(read_shared)


def test_two_families_do_not_share_a_node() -> None:
    register_simple("com.acme.Twin")(Plain)
    read(outer(PLAIN, 3))
    with pytest.raises(UsageError, match="share the node Plain"):
        read(outer("com.acme.Twin", 3))


def test_a_node_keeps_the_class_and_the_version_that_were_read() -> None:
    @register("com.acme.Forgetful", write=write_nothing)
    def read_forgetful(reader: Reader, head: Head) -> Level:
        return level(1)

    with pytest.raises(UsageError, match=r"made a node of version 2 of compat\.LevelSerializer"):
        read(outer("com.acme.Forgetful", 1))


def test_a_node_compares_by_value() -> None:
    class Loose(Serializer):
        """No dataclass of its own, and mutable."""

        __dataclass_params__ = None

    @register("com.acme.Loose", write=write_nothing)
    def read_loose(reader: Reader, head: Head) -> Loose:
        return Loose(**head.marks)

    with pytest.raises(UsageError, match="no frozen dataclass"):
        read(outer("com.acme.Loose", 1))


@dataclass(frozen=True, kw_only=True)
class Blob(Serializer):
    body: bytes


def write_blob(writer: Writer, node: Blob) -> None:
    writer.take(node.body)


@register("com.acme.Blob", write=write_blob)
def read_blob(reader: Reader, head: Head) -> Blob:
    return Blob(**head.marks, body=reader.take(reader.remaining))


@pytest.mark.parametrize(
    ("body", "kind"),
    [(bytes.fromhex("aced0005740002") + b"hi", "Java objects"), (pickle.dumps({"currency": "EUR"}), "pickled objects")],
)
def test_a_snapshot_is_no_serialized_object(body: bytes, kind: str) -> None:
    with pytest.raises(UsageError, match=f"com.acme.Blob consists of {kind}"):
        written(Blob(snapshot_class="com.acme.Blob", body=body))


def test_names_and_values_are_no_serialized_object() -> None:
    data = outer("com.acme.Blob", 1, utf("EUR") + i32(2))
    assert written(read(data)) == data


def test_a_java_class_that_writes_objects_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Stream(Blob):
        """Its Java class uses `ObjectOutputStream`."""

    @register("com.acme.Stream", write=write_blob, java_objects=True)
    def read_stream(reader: Reader, head: Head) -> Stream:
        return Stream(**head.marks, body=reader.take(reader.remaining))

    data = outer("com.acme.Stream", 1, bytes.fromhex("aced0005740002") + b"hi")
    assert written(read(data)) == data
