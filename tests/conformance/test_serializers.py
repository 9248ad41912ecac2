"""The data of Flink's own serializer upgrade tests mean what those tests say, and are written as they were.

The values are those of `testDataMatcher` in the `…UpgradeTest` of each serializer (`TypeSerializerUpgradeTestBase`).
"""

from __future__ import annotations

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.avro import AvroRecord
from state_pipelines.codecs.java import ObjectValue, TypedValue, Undecoded, java_value
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.serializers.registry import read_snapshot, write_snapshot

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
CASES = sorted(path.parent for path in Path(FIXTURES, "flink/serializers").glob("*/*/test-data")) if FIXTURES else []
DOCS = Path(__file__).parents[2] / "docs/serializers.md"

_RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
_POJOS = f"{_RUNTIME}PojoSerializerUpgradeTestSpecifications$"
_DOG = f"{_RUNTIME}kryo.KryoPojosForMigrationTests$Dog"
# What a user declares of the class behind Kryo; its fields are not in the snapshot.
CONTEXT = LayoutContext(kryo_version=2, classes=load_classes(f"{_DOG}: [name: String]"))


def floats(start: float) -> list[float]:
    return [float(np.float32(start) + np.float32(step)) for step in range(10)]


def pojo(class_name: str, /, **fields: Any) -> dict[str, Any]:
    return {"class": class_name, **fields}


DIGITS = "123456789012345678901234567890123456"
ADDRESS = AvroRecord(
    name="org.apache.flink.formats.avro.generated.Address",
    fields=(("num", 239), ("street", "Baker Street"), ("city", "London"), ("state", "London"), ("zip", "NW1 6XE")),
)
DOG = ObjectValue(_DOG, (("name", "Hasso"),))
GORDON = {"age": 7, "favoriteColor": "BLUE", "married": False, "name": "gt"}
RECORD = {"id": 911108, "name": "Gordon"}
EVENT = {"id": 42, "timestamp": 42}
SUBCLASS_A = pojo(f"{_POJOS}StaticSchemaPojoSubclassA", **GORDON, subclassField=911108)
SUBCLASS_B = pojo(f"{_POJOS}StaticSchemaPojoSubclassB", **GORDON, subclassField=True)
TTL = {"last_access": 13, "value": "hello Gordon"}

KNOWN: dict[str, Any] = {
    "arraylist-serializer": ["Apache", "Flink"],
    "big-dec-serializer": Decimal(f"{DIGITS}.789"),
    "big-int-serializer": int(DIGITS),
    "boolean-primitive-array-serializer": [True, False],
    "boolean-serializer": True,
    "boolean-value-serializer": True,
    "buffer-entry-serializer": {"joined": False, "element": "hello"},
    "byte-primitive-array-serializer": bytes(range(10)),
    "byte-serializer": 42,
    "byte-value-array-serializer": bytes([123, 89]),
    "byte-value-serializer": 42,
    "char-primitive-array-serializer": [*range(10)],
    "char-serializer": "\uffff",
    "char-value-array-serializer": [23, 34, 45],
    "char-value-serializer": "*",
    "date-serializer": 1580382960,
    "dewey-number-serializer": [42],
    "double-primitive-array-serializer": floats(0.1),
    "double-serializer": 12345.6789,
    "double-value-array-serializer": [1.2, 3.4],
    "double-value-serializer": 12345.6789,
    "either-serializer": {"is_left": True, "left": "ApacheFlink", "right": None},
    "enum-serializer": "EMMA",
    "enum-serializerreconfig": "EMMA",
    "event-id-serializer": EVENT,
    "float-primitive-array-serializer": floats(0.2),
    "float-serializer": float(np.float32(123.456)),
    "float-value-array-serializer": [float(np.float32(1.2)), float(np.float32(3.4))],
    "float-value-serializer": float(np.float32(123.456)),
    "generic-array-serializer": ["Apache", "Flink"],
    "generic-avro-serializer": ADDRESS,
    "global-window-serializer": {},
    "int-primitive-array-serializer": [*range(10)],
    "int-serializer": 123456,
    "int-value-array-serializer": [123, 456],
    "int-value-serializer": 123456,
    "java-serializer": 26,
    "kryo-type-serializer-changed-registration-order": DOG,
    "kryo-type-serializer-empty-config": DOG,
    "kryo-type-serializer-unrelated-config-after-restore": DOG,
    "linked-list-serializer": [42, -42, 0, 2**63 - 1, -(2**63)],
    "list-serializer": ["Apache", "Flink"],
    "list-view-serializer": ["ApacheFlink"],
    "lockable-type-serializer": {"reference_count": 10, "element": "flink"},
    "long-primitive-array-serializer": [*range(10)],
    "long-serializer": 1234567890,
    "long-value-array-serializer": [123, 456],
    "long-value-serializer": 1234567890,
    "long-value-with-proper-hash-code-serializer": 12345,
    "map-serializer": [(0, "0"), (1, "1"), (2, "2")],
    "map-view-serializer": [(1, "1")],
    "nfa-state-serializer": {"partial": [], "completed": []},
    "node-id-serializer": {"event": EVENT, "page": "ciao"},
    "null-value-array-serializer": [None, None],
    "null-value-serializer": None,
    "nullable-not-padded-serializer": None,
    "nullable-padded-serializer": None,
    "pojo-serializer-identical-schema": pojo(
        f"{_POJOS}StaticSchemaPojo", age=27, favoriteColor="BLUE", married=False, name="Gordon"
    ),
    "pojo-serializer-record-migration": RECORD,
    "pojo-serializer-to-record": RECORD,
    "pojo-serializer-with-different-field-types": pojo("TestPojoWithDifferentFieldType", fieldValue=911108),
    "pojo-serializer-with-different-field-types-in-registered-subclass": pojo(
        "TestPojoSubclassWithDifferentFieldType", **GORDON, fieldValue=911108
    ),
    "pojo-serializer-with-different-subclass-registration-order": SUBCLASS_B,
    "pojo-serializer-with-missing-registered-subclass": SUBCLASS_B,
    "pojo-serializer-with-modified-schema": pojo(
        "TestPojoWithModifiedSchema", age=27, height=172.8, id=911108, name="Gordon"
    ),
    "pojo-serializer-with-modified-schema-in-registered-subclass": pojo(
        "SublassPojo", baseFieldA=911108, baseFieldB="Gordon", subclassFieldC=True, subclassFieldD=66.7
    ),
    "pojo-serializer-with-new-and-missing-registered-subclasses": SUBCLASS_B,
    "pojo-serializer-with-new-registered-subclass": SUBCLASS_A,
    "pojo-serializer-with-non-registered-subclass": SUBCLASS_A,
    "row-serializer": {"row_kind": "+I", "f0": None, "f1": 42, "f2": "My string.", "f3": None},
    "shared-buffer-edge-serializer": {"target": {"event": EVENT, "page": "page"}, "version": [42]},
    "short-primitive-array-serializer": [*range(10)],
    "short-serializer": 123,
    "short-value-array-serializer": [123, 456],
    "short-value-serializer": 123,
    "specific-avro-serializer": ADDRESS,
    "sql-date-serializer": 1580382960,
    "sql-time-serializer": 1580382960,
    "sql-timestamp-serializer": {"millis": 1580382960, "nanos": 960000000},
    "stream-element-serializer": {"case": "record", "value": {"timestamp": 123456, "value": "key"}},
    "string-array-serializer": [*"0123456789"],
    "string-serializer": DIGITS,
    "string-value-array-serializer": ["123", "456"],
    "string-value-serializer": DIGITS,
    "time-window-serializer": {"start": 12345, "end": 67890},
    "timer-serializer": {"timestamp": 12345, "key": "key", "namespace": 678},
    "ttl-aware-serializer-string-value": "hello Gordon",
    "ttl-aware-serializer-ttl-value": TTL,
    "ttl-serializer": TTL,
    "tuple-serializer": {"f0": "hello Gordon", "f1": "ciao", "f2": 14},
    "two-phase-commit-sink-state-serializer": {
        "pending": {"transaction": 12, "started": 1523467890},
        "committing": [{"transaction": 123, "started": 1567234890}],
        "context": "flink",
    },
    "union-serializer-one": {"case": "one", "value": "flink"},
    "union-serializer-two": {"case": "two", "value": 23456},
    "void-namespace-serializer": None,
}
"""Case -> value, the same in all releases."""

UNREADABLE = {
    "copyable-value-serializer": "the class writes itself, and nothing says what",
    "value-serializer": "the class writes itself, and nothing says what",
    "writeable-serializer": "the class writes itself, and nothing says what",
    "kryo-custom-type-serializer-changed-registration-order": "the class has a Kryo serializer of its own",
}
"""Cases whose bytes are kept as they are -> why."""

RENUMBERED = {"kryo-type-serializer-changed-registration-order": (b"\x0d", b"\x58")}
"""Data with the class ids of a JVM without Flink's streaming runtime: written with the ids that every job has."""

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
needs_fixtures = pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)


def name_of(case: Path) -> str:
    return case.name.rpartition("-")[0]


def shown(value: Any, name: str) -> Any:
    """Without what only the release or the library decides."""
    if isinstance(value, TypedValue):
        return java_value(value.value)  # type: ignore[arg-type]
    if name in ("pojo-serializer-record-migration", "pojo-serializer-to-record"):
        return {key: item for key, item in value.items() if key != "class"}
    if name == "row-serializer":
        return {**value, "row_kind": value["row_kind"] or "+I"}
    return value


def test_a_case_is_known_or_listed_not_both() -> None:
    assert not KNOWN.keys() & UNREADABLE


def test_the_documentation_lists_the_same_unreadable_cases() -> None:
    section = DOCS.read_text().split("## What stays bytes")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE)) == UNREADABLE


@needs_fixtures
def test_there_are_cases() -> None:
    assert len(CASES) > 200


@each_case
def test_every_case_is_known_or_listed(case: Path) -> None:
    assert name_of(case) in KNOWN.keys() | UNREADABLE


@each_case
def test_the_data_mean_the_value_or_are_kept(case: Path) -> None:
    data = (case / "test-data").read_bytes()
    layout = derive_layout(read_snapshot(Reader((case / "serializer-snapshot").read_bytes())), CONTEXT)
    reader = Reader(data, str(case))
    value = read_value(layout, reader)
    reader.expect_end("the value")
    if name_of(case) in UNREADABLE:
        assert isinstance(value, Undecoded)
        assert value.raw == data
    else:
        assert shown(value, name_of(case)) == KNOWN[name_of(case)]


@each_case
def test_snapshot_and_data_are_written_byte_for_byte(case: Path) -> None:
    stored, data = (case / "serializer-snapshot").read_bytes(), (case / "test-data").read_bytes()
    serializer = read_snapshot(Reader(stored))
    layout = derive_layout(serializer, CONTEXT)
    snapshot, values = Writer(), Writer()
    write_snapshot(snapshot, serializer)
    write_value(layout, values, read_value(layout, Reader(data)))
    if name_of(case) in RENUMBERED:
        before, after = RENUMBERED[name_of(case)]
        assert data.startswith(before)
        data = after + data.removeprefix(before)
    assert (snapshot.getvalue(), values.getvalue()) == (stored, data)
