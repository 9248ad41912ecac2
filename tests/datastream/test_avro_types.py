"""Avro in live state: dicts for records, and what fits no schema is refused with a hint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.codecs.avro import AvroMap, AvroRecord
from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    RestoredState,
    TaskInfo,
    Types,
    write_savepoint,
)
from state_pipelines.datastream import ValueStateDescriptor as Value
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.auditing import audit_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext, TypeInformation

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


class CopyOrders(KeyedProcessFunction):
    """Emits the values of a key, or stores those that it gets: a record, a list and a map of them, all as dicts."""

    def __init__(self, record: TypeInformation) -> None:
        self.record = record

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(Value("v_avro", self.record))
        self.list = runtime_context.get_list_state(ListStateDescriptor("l_avro", self.record))
        self.map = runtime_context.get_map_state(MapStateDescriptor("m_avro", Types.LONG(), self.record))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        key, content = value
        if content is None:
            yield key, (self.value.value(), list(self.list.get()), dict(self.map.items()))
            return
        record, records, entries = content
        self.value.update(record)
        self.list.update(records)
        for number, each in entries.items():
            self.map.put(number, each)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format"), [("avro-hashmap-native", "heap"), ("avro-rocksdb-canonical", "canonical")])
def test_dicts_give_the_bytes_of_flinks_serializer(fixtures: Path, tmp_path: Path, name: str, format: str) -> None:
    # flink-avro itself wrote the snapshot; a function without state gets its values as dicts.
    (path,) = (fixtures / "made" / "2.2.1" / name).glob("savepoint-*")
    old = sp.open_snapshot(str(path)).operator("op-avro")
    record = Types.of(old.state("v_avro").serializer)
    keys = sorted(set(old.state("v_avro").to_arrow()["state_key"].to_pylist()))

    def make() -> KeyedProcessOperator:
        task = TaskInfo(index=0, parallelism=1, max_parallelism=128)
        return KeyedProcessOperator(CopyOrders(record), lambda value: value[0], Types.LONG(), task=task)

    reader = make()
    reader.open(RestoredState.of(old))
    with reader:
        found = [each for key in keys for each in reader.process((key, None))]
    assert all(isinstance(content[0], dict) for _, content in found)
    with make() as writer:
        for each in found:
            writer.process(each)
        written = write_savepoint(str(tmp_path / "savepoint"), {"op-avro": [writer]}, format=format)
    new = written.operator("op-avro")
    for state in ("v_avro", "l_avro", "m_avro"):
        one, other = (
            sorted(map(str, each.state(state).to_arrow(TableOptions(raw=True)).drop_columns("subtask").to_pylist()))
            for each in (old, new)
        )
        assert len(one) > 100
        assert one == other
