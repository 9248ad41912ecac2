"""Avro in live state: dicts for records, and what fits no schema is refused with a hint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.codecs.avro.avro_records import AvroMap, AvroRecord
from state_pipelines.datastream import KeyedProcessFunction, KeyedProcessOperator, RestoredState, Types, write_savepoint
from state_pipelines.datastream import ValueStateDescriptor as Value
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.operations.auditing import audit_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "article", "type": "string"}, {"name": "price", "type": ["double", "long"]}],
}
SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "com.acme",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "either", "type": ["null", "com.acme.Line", {"type": "map", "values": "string"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "weight", "type": "float"},
    ],
}
ORDER = {
    "id": 7,
    "note": None,
    "lines": [{"article": "a", "price": 3}, {"article": "b", "price": 2.5}],
    "state": "PAID",
    "tags": {"x": 1},
    "either": None,
    "at": 1_700_000_000_000,
    "weight": 2.0,
}
AVRO = Types.AVRO(SCHEMA)


class KeepOrder(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.order = runtime_context.get_state(Value("order", AVRO))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield self.order.value()
        self.order.update(value)


def open_operator(restored: RestoredState | None = None) -> KeyedProcessOperator:
    operator = KeyedProcessOperator(KeepOrder(), lambda value: value["id"], Types.LONG())
    operator.open(restored)
    return operator


def test_a_dict_is_a_record_and_read_as_one(tmp_path: Path) -> None:
    with open_operator() as operator:
        assert operator.process(ORDER) == [None]
        assert operator.process({**ORDER, "note": "second"}) == [ORDER]
        written = write_savepoint(str(tmp_path / "savepoint"), {"orders": [operator]})
    assert not audit_snapshot(written, depth="whole").findings
    (row,) = written.operator("orders").state("order").to_arrow().to_pylist()
    assert row["value"]["note"] == "second"
    assert [each["article"] for each in row["value"]["lines"]] == ["a", "b"]
    again = sp.open_snapshot(written.path, uids=["orders"]).operator("orders")
    with open_operator(RestoredState.of(again)) as operator:
        assert operator.process(ORDER) == [{**ORDER, "note": "second"}]
    # The type that a snapshot names is the same.
    assert Types.of(again.state("order").serializer) == AVRO


def test_a_value_that_could_be_of_two_branches_says_which_one_it_is() -> None:
    record = AvroRecord("com.acme.Line", (("article", "a"), ("price", 1)))
    entries = AvroMap((("article", "a"),))
    for either in (record, entries):
        with open_operator() as operator:
            operator.process({**ORDER, "either": either})
            assert operator.process(ORDER) == [{**ORDER, "either": either}]
    # A dict that only one branch takes needs no name.
    with open_operator() as operator:
        operator.process({**ORDER, "either": {"article": "a", "price": 1}})
        assert operator.process(ORDER) == [{**ORDER, "either": record}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "7"}, r"'7' is not a value of the Avro type long at id. Give an int of 64 bits"),
        ({"id": 1 << 63}, "is not a value of the Avro type long at id"),
        ({"state": "SENT"}, "'SENT' is not a constant of the Avro enum com.acme.State at state. Give one of NEW, PAID"),
        ({"lines": [{"article": "a"}]}, r"at lines\[0\]. It lacks price; give a dict of article, price"),
        ({"lines": "a"}, "'a' is not an array of Avro at lines. Give a list"),
        ({"tags": [1]}, "is not a map of Avro at tags. Give a dict"),
        ({"note": 5}, "5 is not of any branch of the Avro union of null, string at note"),
        ({"either": {"article": 1}}, "is not of any branch of the Avro union of null, com.acme.Line, map at either"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_a_hint(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        AVRO.to_internal_type(ORDER | change)


def test_what_is_no_record_is_refused() -> None:
    for value in (5, None, {**ORDER, "more": 1}):
        with pytest.raises(ValueRangeError, match=r"is not a record of Avro com\.acme\.Order"):
            AVRO.to_internal_type(value)


def test_a_text_that_is_no_schema_is_refused() -> None:
    for text in ("{", json.dumps({"type": "unknown"})):
        with pytest.raises(UsageError, match=r"the Avro schema cannot be parsed.*Give the text of an \.avsc file"):
            Types.AVRO(text)
