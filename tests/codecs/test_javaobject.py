"""Values of `JavaSerializer`: streams that Java wrote, and streams that are not what their classes say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaFieldDesc,
    JavaObject,
    JavaString,
)
from state_pipelines.codecs.java import ArrayValue, ObjectValue, java_value, read_java_object, write_java_object
from state_pipelines.codecs.json import value_json
from state_pipelines.errors import FormatError, UnsupportedError

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
LINES = (Path(__file__).parent / "java_vectors.tsv").read_text(encoding="utf-8").splitlines()
VECTORS = pytest.mark.parametrize(
    ("raw", "expected"), [pytest.param(*line.split("\t")[1:], id=line.split("\t")[0]) for line in LINES[1:]]
)


@VECTORS
def test_streams_of_java_are_read(raw: str, expected: str) -> None:
    assert value_json(java_value(read_java_object(Reader(bytes.fromhex(raw))))) == json.loads(expected)


@VECTORS
def test_streams_of_java_are_written_again(raw: str, expected: str) -> None:
    writer = Writer()
    write_java_object(writer, read_java_object(Reader(bytes.fromhex(raw))))
    assert (writer.getvalue().hex(), bool(expected)) == (raw, True)


def java_object(name: str, **fields: object) -> JavaObject:
    signature = JavaString("Ljava/lang/Object;")
    desc = JavaClassDesc(name, 1, 2, tuple(JavaFieldDesc("L", field, signature) for field in fields))
    return JavaObject(desc, (JavaClassData(tuple(fields.values())),))  # type: ignore[arg-type]


def test_object_of_an_unknown_class_goes_by_its_fields() -> None:
    assert java_value(java_object("a.B", x=JavaString("y"))) == ObjectValue("a.B", (("x", "y"),))


@pytest.mark.parametrize("name", ["java.lang.Integer", "java.math.BigDecimal", "java.util.Date", "java.time.Ser"])
def test_object_that_did_not_write_what_its_class_says_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        java_value(java_object(name))


def stream_of(content: JavaContent) -> Reader:
    writer = Writer()
    write_java_object(writer, content)
    return Reader(writer.getvalue())


def test_few_objects_do_not_stand_for_a_giant_tree() -> None:
    value = java_object("a.B", x=None, y=None)
    for _ in range(40):
        value = java_object("a.B", x=value, y=value)
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read_java_object(stream_of(value))


OBJECTS = JavaClassDesc("[Ljava.lang.Object;", 1, 2)
BYTES = JavaArray(JavaClassDesc("[B", 1, 2), b"x" * 100_000)


@pytest.mark.parametrize(
    "repeated",
    [
        pytest.param(BYTES, id="bytes"),
        pytest.param(JavaString("x" * 60_000), id="text"),
        pytest.param(JavaArray(JavaClassDesc("[J", 1, 2), (1,) * 100_000), id="numbers"),
        pytest.param(JavaEnum(JavaClassDesc("a.E", 1, 18), JavaString("x" * 60_000)), id="constant"),
        pytest.param(
            java_object("java.util.BitSet", bits=JavaArray(JavaClassDesc("[J", 1, 2), (-1,) * 10_000)), id="bits"
        ),
    ],
)
def test_repeated_data_count_by_their_size(repeated: JavaContent) -> None:
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read_java_object(stream_of(JavaArray(OBJECTS, (repeated,) * 5_000)))


def test_the_names_of_a_class_count_for_each_object() -> None:
    one = java_object("a." + "B" * 60_000, x=None)
    many = tuple(JavaObject(one.class_desc, one.class_data) for _ in range(5_000))
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read_java_object(stream_of(JavaArray(OBJECTS, many)))


def test_references_that_lead_too_deep_are_refused() -> None:
    values: list[JavaContent] = [None]
    for _ in range(400):
        values.append(JavaArray(OBJECTS, (values[-1],)))
    with pytest.raises(UnsupportedError, match="101 levels deep"):
        read_java_object(stream_of(JavaArray(OBJECTS, tuple(values))))


def test_an_object_that_is_mentioned_often_is_read() -> None:
    shared = java_object("com.example.Account", owner=JavaString("a name of some length"), number=JavaString("12345"))
    value = java_value(read_java_object(stream_of(JavaArray(OBJECTS, (shared,) * 5_000))))
    assert isinstance(value, ArrayValue)
    assert len(value.items) == 5_000


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("release", ["1.11", "1.17", "1.20"])
def test_data_of_flinks_own_tests_are_read(release: str) -> None:
    path = Path(FIXTURES or "", f"flink/serializers/flink-runtime/java-serializer-{release}/test-data")
    assert java_value(read_java_object(Reader(path.read_bytes()))) == 26
