"""Serializers of flink-scala-api: snapshots of both forms, values, compatibility."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.hashing import parse_hash_expression
from state_pipelines.operations.rescale import rescale
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.java_types import (
    CASE_CLASS,
    COLLECTION,
    COPRODUCT,
    MAPPED,
    MUTABLE_MAP,
    PACKAGE,
    SCALA_MAP,
)
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.text import describe, parse, spell
from state_pipelines.serializers.tree import (
    CaseClass,
    CaseObject,
    Coproduct,
    Mapped,
    ScalaCollection,
    ScalaMap,
    Serializer,
)

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext

STRING, INT, LONG, BYTES = map(build.basic, ("String", "Int", "Long", "BytePrimitiveArray"))
CASH = CaseClass(
    snapshot_class=CASE_CLASS, outer_version=3, case_class="acme.Pay$Cash", fields=(STRING, INT), immutable=True
)
CARD = replace(CASH, case_class="acme.Pay$Card", fields=(STRING, LONG), immutable=False)
FREE = CaseObject(
    snapshot_class=f"{PACKAGE}ScalaCaseObjectSerializer$ScalaCaseObjectSerializerSnapshot",
    snapshot_version=1,
    object_class="acme.Pay$Free$",
)


def pay(version: int, *kinds: CaseClass | CaseObject) -> Coproduct:
    names = tuple(each.object_class if isinstance(each, CaseObject) else each.case_class for each in kinds)
    outer = 3 if version == 3 else version
    marks = {"snapshot_class": COPRODUCT, "snapshot_version": version, "outer_version": outer}
    return Coproduct(**marks, classes=names, serializers=kinds)  # type: ignore[arg-type]


def list_of(element: Serializer, version: int, kind: str = "List") -> ScalaCollection:
    return ScalaCollection(
        snapshot_class=COLLECTION,
        snapshot_version=version,
        serializer_class=f"{PACKAGE}{kind}Serializer",
        element_class="acme.Pay",
        element=element,
    )


def mapped(version: int) -> Mapped:
    mapper = "org.apache.flinkx.api.mapper.UuidMapper"
    return Mapped(snapshot_class=MAPPED, snapshot_version=version, mapper=mapper, inner=BYTES)


def map_of(version: int, key: Serializer, value: Serializer, snapshot_class: str = SCALA_MAP) -> ScalaMap:
    return ScalaMap(snapshot_class=snapshot_class, snapshot_version=version, key=key, value=value)


UNVERSIONED = replace(CASH, fields=(map_of(1, mapped(1), list_of(pay(1, CASH, CARD, FREE), 1)),))
VERSIONED = replace(CASH, fields=(map_of(2, mapped(2), list_of(pay(2, CASH, CARD, FREE), 2)),))
COMPOSITE = replace(CASH, fields=(map_of(1, mapped(2), list_of(pay(3, CASH, CARD, FREE), 2), MUTABLE_MAP),))
FORMS = pytest.mark.parametrize("node", [UNVERSIONED, VERSIONED, COMPOSITE], ids=["unversioned", "versioned", "latest"])

ONE_PAYMENT = bytes.fromhex("00000001 00000001 00000002 abcd 00000002 01 00000002 0261 0000000000000007 02")
"""One field; one entry; two bytes; a list of two: the second subtype with two fields, the third without bytes."""


def encode(node: Serializer) -> bytes:
    writer = Writer()
    write_nested(writer, node)
    return writer.getvalue()


def decode(node: Serializer, raw: bytes) -> object:
    reader = Reader(raw)
    value = read_value(derive_layout(node, LayoutContext()), reader)
    reader.expect_end("the value")
    return value


@FORMS
def test_snapshots_are_read_as_they_are_written(node: CaseClass) -> None:
    reader = Reader(encode(node))
    assert read_nested(reader) == node
    reader.expect_end("the snapshot")


def test_an_unversioned_snapshot_has_no_versions_and_the_class_of_a_mapped_serializer() -> None:
    raw = encode(map_of(1, mapped(1), INT))
    expected = Writer()
    expected.utf(SCALA_MAP)
    expected.i32(1)
    expected.utf(MAPPED)
    expected.utf("org.apache.flinkx.api.mapper.UuidMapper")
    expected.utf("org.apache.flink.api.common.typeutils.base.array.BytePrimitiveArraySerializer")
    expected.utf("org.apache.flink.api.common.typeutils.base.IntSerializer$IntSerializerSnapshot")
    assert raw == expected.getvalue()


@FORMS
def test_values_are_read_one_at_a_time_and_in_columns_and_written_back(node: CaseClass) -> None:
    payments = [{"case": "Card", "value": {"f0": "a", "f1": 7}}, {"case": "Free", "value": {}}]
    value = decode(node, ONE_PAYMENT)
    assert value == {"f0": [(b"\xab\xcd", payments)]}
    writer = Writer()
    write_value(derive_layout(node, LayoutContext()), writer, value)
    assert writer.getvalue() == ONE_PAYMENT

    columns = plan_columns(derive_layout(node, LayoutContext()))
    data = np.frombuffer(ONE_PAYMENT, np.uint8)
    array = columns.decode(data, np.array([0]), np.array([len(data)])).array
    ((key, (card, free)),) = array.to_pylist()[0]["f0"]
    assert (key, card["case"], card["Card"], card["Cash"]) == (b"\xab\xcd", "Card", {"f0": "a", "f1": 7}, None)
    assert free["case"] == "Free"
    encoded = columns.encode(array)
    assert bytes(encoded.data[: encoded.stops[0]]) == ONE_PAYMENT


def test_null_has_minus_one_field_and_a_mark_of_its_own_in_a_sealed_trait() -> None:
    raw = bytes.fromhex("ffffffff")
    assert decode(CASH, raw) is None
    columns = plan_columns(derive_layout(CASH, LayoutContext()))
    array = columns.decode(np.frombuffer(raw, np.uint8), np.array([0]), np.array([4])).array
    assert array.to_pylist() == [None]
    encoded = columns.encode(array)
    assert bytes(encoded.data[: encoded.stops[0]]) == raw
    assert decode(pay(3, CASH, CARD), b"\x80") == {"case": "null", "value": None}
    with pytest.raises(FormatError, match="128 is not a known tag"):
        decode(pay(2, CASH, CARD), b"\x80")


def test_values_without_the_number_of_fields_are_refused() -> None:
    raw = bytes.fromhex("00000000 00000004 00000000 00000003 00000001 0574657374")
    node = replace(CASH, fields=(LONG, LONG, INT, STRING))
    with pytest.raises(FormatError, match="the number before a value is 0, not 4 "):
        decode(node, raw)
    columns = plan_columns(derive_layout(node, LayoutContext()))
    with pytest.raises(FormatError):
        columns.decode(np.frombuffer(raw, np.uint8), np.array([0]), np.array([len(raw)]))


def test_a_case_class_without_fields_is_not_decoded_as_releases_differ() -> None:
    assert isinstance(decode(replace(CASH, fields=()), bytes(4)), Undecoded)
    with pytest.raises(UnsupportedError):
        decode(list_of(replace(CASH, fields=()), 2), bytes.fromhex("00000002 00000000 00000000"))


def test_readable_text_and_json() -> None:
    text = "Coproduct(Cash: CaseClass<acme.Pay$Cash>(String, Int), Free: CaseObject<acme.Pay$Free$>())"
    assert describe(list_of(pay(2, CASH, FREE), 2, "Vector")) == f"ScalaVector<{text}>"
    assert to_json(UNVERSIONED, decode(UNVERSIONED, ONE_PAYMENT)) == {
        "@tuple": [
            {
                "@map": [
                    [
                        {"@bytes": "abcd"},
                        [{"case": "Card", "value": {"@tuple": ["a", 7]}}, {"case": "Free", "value": {}}],
                    ]
                ]
            }
        ]
    }
    assert parse(spell(VERSIONED)) == VERSIONED


@pytest.mark.parametrize(
    ("old", "new", "outcome", "unnoticed"),
    [
        (CASH, replace(CASH, immutable=False), Outcome.AS_IS, False),
        (CASH, CARD, Outcome.INCOMPATIBLE, False),
        (list_of(INT, 2), list_of(LONG, 2), Outcome.INCOMPATIBLE, True),
        (map_of(2, STRING, INT), map_of(2, STRING, LONG), Outcome.INCOMPATIBLE, True),
        (mapped(2), replace(mapped(2), inner=STRING), Outcome.INCOMPATIBLE, True),
        (mapped(2), replace(mapped(2), mapper="acme.Other"), Outcome.AS_IS, False),
        (FREE, replace(FREE, object_class="acme.Pay$Gratis$"), Outcome.AS_IS, False),
        (pay(2, CASH), pay(2, CASH, CARD), Outcome.AS_IS, False),
        (pay(2, CASH), pay(3, CASH, CARD), Outcome.INCOMPATIBLE, False),
        (pay(3, CASH, CARD), pay(3, CARD, CASH), Outcome.INCOMPATIBLE, True),
        (pay(2, CASH, CARD), pay(2, CASH), Outcome.INCOMPATIBLE, True),
    ],
)
def test_compatibility(old: Serializer, new: Serializer, outcome: Outcome, unnoticed: bool) -> None:
    found = resolve(old, new)
    assert found.outcome is outcome
    assert any(each.unnoticed for each in found.findings) is unnoticed


def test_a_snapshot_and_a_value_that_the_library_wrote(wild2: Path) -> None:
    path = wild2 / "flink-extended+flink-scala-api/serializers/old-serializer-snapshot/serializer-snapshot"
    raw = path.read_bytes()
    reader = Reader(raw)
    node = read_nested(reader)
    assert encode(node) == raw[: reader.position]
    value = read_value(derive_layout(node, LayoutContext()), reader)
    reader.expect_end("the value")
    uuid = bytes.fromhex("4daf2791abbe420f9594f57ded1fee8c")
    assert value == {"f0": [(uuid, [{"case": "SimpleClass2", "value": {"f0": "a", "f1": 1}}])]}


class KeepNumber(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.number.update(value["f1"])


@pytest.mark.parametrize("scheme", ["scala212", "scala213"])
def test_the_hash_of_case_classes_in_keys_is_found_in_the_snapshot(tmp_path: Path, scheme: str) -> None:
    # The release of Scala decides, and only the key groups say which one it was.
    operator = KeyedProcessOperator(
        KeepNumber(),
        lambda value: value,
        Types.of(CASH, stored=True),
        hashes={"acme.Pay$Cash": parse_hash_expression(f"{scheme}(f0, f1)")},
    )
    with operator:
        for number in range(40):
            operator.process({"f0": f"key-{number}", "f1": number * 7 - 3})
        snapshot = write_savepoint(str(tmp_path / "old"), {"payments": [operator]})
    result = rescale(snapshot, str(tmp_path / "new"), max_parallelism=96)
    assert [text for each in result.plan.changes for text in each.hashes if f"{scheme}(f0, f1)" in text]
    assert result.proof is not None
    assert result.proof.ok
