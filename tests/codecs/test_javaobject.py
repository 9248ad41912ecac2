"""Values of `JavaSerializer`: streams that Java wrote, and streams that are not what their classes say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from state_pipelines.binary.java_values import JavaClassData, JavaClassDesc, JavaField, JavaObject, JavaString
from state_pipelines.binary.reader import Reader
from state_pipelines.binary.writer import Writer
from state_pipelines.codecs.java.serialized_objects import java_value, read_java_object, write_java_object
from state_pipelines.codecs.java.typed_values import ObjectValue
from state_pipelines.codecs.json.json_values import value_json
from state_pipelines.errors import FormatError

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
    desc = JavaClassDesc(name, 1, 2, tuple(JavaField("L", field, signature) for field in fields))
    return JavaObject(desc, (JavaClassData(tuple(fields.values())),))  # type: ignore[arg-type]


def test_object_of_an_unknown_class_goes_by_its_fields() -> None:
    assert java_value(java_object("a.B", x=JavaString("y"))) == ObjectValue("a.B", (("x", "y"),))


@pytest.mark.parametrize("name", ["java.lang.Integer", "java.math.BigDecimal", "java.util.Date", "java.time.Ser"])
def test_object_that_did_not_write_what_its_class_says_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        java_value(java_object(name))


def test_few_objects_do_not_stand_for_a_giant_tree() -> None:
    value = java_object("a.B", x=None, y=None)
    for _ in range(40):
        value = java_object("a.B", x=value, y=value)
    with pytest.raises(FormatError, match="unfolds to more than"):
        java_value(value)


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("release", ["1.11", "1.17", "1.20"])
def test_data_of_flinks_own_tests_are_read(release: str) -> None:
    path = Path(FIXTURES or "", f"flink/serializers/flink-runtime/java-serializer-{release}/test-data")
    assert java_value(read_java_object(Reader(path.read_bytes()))) == 26
