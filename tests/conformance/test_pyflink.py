"""Savepoints of PyFlink: the states of Python functions under their names, with the values that the job gave them."""

from __future__ import annotations

import datetime
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError, UsageError
from state_pipelines.keyed.keys import KeyText
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import PythonReport, inspect
from state_pipelines.snapshot import declare, open_snapshot

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot

DATA = Path(__file__).parents[1] / "data" / "pyflink"
SAVEPOINT = DATA / "canonical"
TYPES = str(DATA / "types.yaml")
KEYS = 12
LAST_ROUND = 24

KINDS = {
    "pickled": "VALUE",
    "typed": "VALUE",
    "all": "VALUE",
    "ttl": "VALUE",
    "plain": "VALUE",
    "list": "LIST",
    "items": "LIST",
    "map": "MAP",
    "pairs": "MAP",
    "sum": "REDUCING",
    "average": "AGGREGATING",
}

WILD_TYPES = (
    "py-op.pickled=Types.PICKLED_BYTE_ARRAY()",
    "py-op.typed=ROW<n BIGINT, s STRING>",
    "py-op.ttl=Types.LONG()",
    "py-op.list=ListState<STRING>",
    "py-op.map=MAP<STRING, BIGINT>",
    "py-op.red=ReducingState<BIGINT>",
    "py-op.agg=AggregatingState<TUPLE<BIGINT, BIGINT>>",
)


def open_typed(*texts: str) -> Snapshot:
    return open_snapshot(str(SAVEPOINT), declare({"python_types": texts or (TYPES,)}))


def dump_state(snapshot: Snapshot, operator: str, state: str) -> list[dict[str, Any]]:
    return [dict(line) for line in dump(snapshot, operator=operator, state=state)]


def values(snapshot: Snapshot, operator: str, state: str) -> dict[Any, Any]:
    """The values that `dump` shows of a state, by key and user key."""
    found: dict[Any, Any] = {}
    for line in dump_state(snapshot, operator, state):
        found[str(line["key"]["@row"][0]), str(line.get("ukey"))] = line["value"]
    return found


def test_states_go_by_their_python_name_and_kind() -> None:
    states = {each.label: each for each in open_typed().operator("states").keyed_states if each.python_name}

    assert {name: state.kind for name, state in states.items()} == KINDS
    assert states["typed"].name == "python-state-typed"


def test_inspect_shows_declared_types_and_the_java_state() -> None:
    report = next(each for each in inspect(open_typed()).operators if each.uid == "states")
    typed = next(each for each in report.states if each.name == "typed")

    assert (typed.kind, typed.value) == ("VALUE", "ROW<n BIGINT, s STRING>")
    assert typed.python == PythonReport("python-state-typed", "List<BytePrimitiveArray>", None)


def test_inspect_guesses_what_nobody_declares() -> None:
    report = next(each for each in inspect(open_snapshot(str(SAVEPOINT))).operators if each.uid == "states")
    guesses = {each.name: each.python.guess for each in report.states if each.python}

    assert guesses == {
        "pickled": "ValueState<PICKLED_BYTE_ARRAY>",
        "typed": "",
        "all": "",
        "ttl": "ValueState<BIGINT>",
        "plain": "ValueState<DOUBLE>",
        "list": "ListState<STRING>",
        "items": "",
        "map": "MapState<STRING, BIGINT>",
        "pairs": "",
        "sum": "ValueState<BIGINT>",
        "average": "",
    }


def test_undeclared_states_are_bytes_and_pickles_are_shown_beside_them() -> None:
    lines = dump_state(open_snapshot(str(SAVEPOINT)), "states", "pickled")
    line = next(each for each in lines if each["key"] == {"@row": ["key-0"], "@kind": "+I"})

    assert line["type"] == "LIST"
    assert line["java_state"] == "python-state-pickled"
    (value,), (guess,) = line["value"], line["guess"]
    assert set(value) == {"@bytes"}
    assert guess["number"] == LAST_ROUND


def test_the_java_name_finds_a_state_as_well() -> None:
    operator = open_typed().operator("states")

    assert operator.state("python-state-typed").label == operator.state("typed").label == "typed"


def test_pickles_are_shown_by_their_literals() -> None:
    found = values(open_typed(), "states", "pickled")

    assert found["key-3", "None"] == {
        "key": "key-3",
        "number": 27,
        "parts": [1, 2.5, None, True, {"@tuple": [{"@bytes": "78"}, {"@set": ["y"]}]}],
    }


def test_rows_are_shown_by_field() -> None:
    found = values(open_typed(), "states", "typed")

    assert found == {
        (f"key-{key}", "None"): {"@row": {"n": key + LAST_ROUND, "s": f"s{key + LAST_ROUND}"}, "@kind": "+I"}
        for key in range(KEYS)
    }


def test_every_type_of_pyflink_is_decoded() -> None:
    found = values(open_typed(), "states", "all")["key-0", "None"]["@row"]

    assert found == {
        "tiny": -104,
        "flag": True,
        "small": -24,
        "whole": 24_000,
        "large": 24 * 10**12,
        "single": 6.0,
        "double": 3.0,
        "letter": "é24",
        "big": -(2**60) + 24,
        "exact": {"@dec": "36.50"},
        "instant": {"@instant": [10**9 + 24, 5]},
        "day": {"@date": "2024-02-25"},
        "clock": {"@time": "12:30:24.250000000"},
        "moment": {"@ts": [1_709_251_164_125, 0]},
        "raw": {"@bytes": "00ff18"},
        "ints": [24, -1],
        "words": ["a", None, "ü"],
        "longs": [24, None],
        "scores": {"@map": [["x", 1.5], ["y", None]]},
        "pair": {"@tuple": [24, "p"]},
        "inner": {"@row": {"a": None, "b": "in"}, "@kind": "+I"},
        "anything": {"k": [1, {"@tuple": [2.5, None]}], "s": {"@set": ["one"]}, "b": {"@bytes": "01"}},
    }


def test_fields_that_are_none_are_null() -> None:
    found = values(open_typed(), "states", "all")["key-2", "None"]["@row"]

    assert set(found.values()) == {None}


def test_lists_lose_the_borders_of_bundles() -> None:
    found = values(open_typed(), "states", "list")

    assert found["key-5", "None"] == ["x5", "y5", "x17", "y17", "x29", "y29"]


def test_lists_with_time_to_live_have_the_time_of_each_element() -> None:
    lines = dump_state(open_typed(), "states", "items")

    assert all(len(line["value"]) == len(line["ttl_ts"]) == 3 for line in lines)
    assert lines[0]["value"][0]["@row"].keys() == {"sku", "amount"}


def test_maps_reduced_and_aggregated_values() -> None:
    snapshot = open_typed()

    assert values(snapshot, "states", "map")["key-1", "m1"] == 25
    assert values(snapshot, "states", "pairs")["key-1", "{'@tuple': [13, 'p']}"]["@row"] == {
        "sku": "sku",
        "amount": None,
    }
    assert values(snapshot, "states", "sum")["key-1", "None"] == 1 + 13 + 25
    assert values(snapshot, "states", "average")["key-1", "None"] == {"@tuple": [1 + 13 + 25, 3]}


def test_broadcast_state_is_decoded() -> None:
    lines = dump_state(open_typed(), "rules", "rules")

    assert [(line["subtask"], line["ukey"], line["value"]["@row"]["amount"]) for line in lines] == [
        (subtask, f"rule-{number}", number) for subtask in range(2) for number in range(2)
    ]


@pytest.mark.parametrize("operator", ["by-long", "by-tuple", "by-row", "by-pickle"])
def test_keys_of_every_type(operator: str) -> None:
    table = open_typed().operator(operator).state("value").to_arrow()

    assert sorted(table.column("value").to_pylist()) == sorted(f"v{number}" for number in range(KEYS))
    assert len(set(map(str, table.column("state_key").to_pylist()))) == KEYS


def test_keys_that_look_like_pickles_have_their_literals_beside_them() -> None:
    lines = dump_state(open_typed(), "by-pickle", "value")

    assert {line["value"]: line["key_guess"] for line in lines} == {
        f"v{number}": {"@tuple": ["p", number]} for number in range(KEYS)
    }
    assert "key_guess" not in dump_state(open_typed(), "by-long", "value")[0]


def test_tables_have_columns_of_the_declared_types() -> None:
    table = open_typed().operator("states").state("all").to_arrow()
    row = next(each for each in table.to_pylist() if each["state_key"]["f0"] == "key-0")["value"]

    assert row["day"] == datetime.date(2024, 2, 25)
    assert row["clock"] == datetime.time(12, 30, 24, 250_000)
    assert row["scores"] == [("x", 1.5), ("y", None)]
    assert row["anything"].startswith('{"k":[1,{"@tuple"')


def test_tables_of_lists_have_a_row_per_python_element() -> None:
    table = open_typed().operator("states").state("items").to_arrow()
    rows = defaultdict(list)
    for each in table.to_pylist():
        rows[each["state_key"]["f0"]].append((each["list_index"], each["list_value"]["amount"]))

    assert rows["key-7"] == [(0, 7), (1, 19), (2, 31)]
    assert table.column("ttl_last_access").null_count == 0


def test_the_table_of_all_states_has_the_python_names() -> None:
    table = open_typed().operator("states").to_arrow()

    assert set(KINDS) <= set(table.column_names)
    assert table.num_rows == KEYS


def test_a_type_alone_tells_values_from_lists() -> None:
    operator = open_typed("states.typed=ROW<n BIGINT, s STRING>", "states.list=STRING").operator("states")

    assert (operator.state("typed").kind, operator.state("list").kind) == ("VALUE", "LIST")


def test_the_list_type_of_a_descriptor_is_that_of_its_elements() -> None:
    state = open_typed("states.list=Types.LIST(Types.STRING())").operator("states").state("list")

    assert state.kind == "LIST"
    assert state.to_arrow().column("list_value")[0].as_py().startswith("x")


def test_a_map_that_is_declared_as_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="map is map state"):
        open_typed("states.map=ValueState<BIGINT>").operator("states").state("map").to_arrow()


def test_a_type_that_does_not_fit_names_the_state_and_the_option() -> None:
    snapshot = open_typed("states.typed=ValueState<ROW<s STRING>>")

    with pytest.raises(FormatError, match=r"python-state-typed.*--python-types"):
        snapshot.operator("states").state("typed").to_arrow()
    last = dump_state(snapshot, "states", "typed")[-1]
    assert last["kind"] == "unread"
    assert "--python-types" in last["error"]


def test_a_key_is_found_by_the_only_field_of_its_row() -> None:
    operator = open_typed().operator("states")
    tables = [
        operator.state("typed").to_arrow(TableOptions(key=key))
        for key in (KeyText("key-3"), {"row_kind": "+I", "f0": "key-3"})
    ]

    assert [table.column("value").to_pylist()[0]["n"] for table in tables] == [27, 27]


def test_dump_and_tables_agree_on_every_state() -> None:
    snapshot = open_typed()
    for state in snapshot.operator("states").keyed_states:
        if state.python_name:
            lines = dump_state(snapshot, "states", state.label)
            elements = sum(len(line["value"]) if state.kind == "LIST" else 1 for line in lines)
            assert state.to_arrow().num_rows == elements, state.label


def test_a_savepoint_that_nobody_of_us_made(wild: Path) -> None:
    (path,) = (wild / "pyflink-2.2.1" / "process-hashmap-canonical").glob("savepoint-*")
    snapshot = open_snapshot(str(path), declare({"python_types": WILD_TYPES}))
    key = ("key-21", "None")

    assert values(snapshot, "py-op", "pickled")[key] == {"k": "key-21", "v": 1_001_421}
    assert values(snapshot, "py-op", "typed")[key] == {"@row": {"n": 1_001_421, "s": "s1001421"}, "@kind": "+I"}
    assert values(snapshot, "py-op", "ttl")[key] == 1_001_421
    # Both halves of the source: 21, 121, … 921 and 1000021, … 1001421, in the order in which they came.
    numbers = [*range(21, 1000, 100), *range(1_000_021, 1_001_500, 100)]
    assert sorted(values(snapshot, "py-op", "list")[key]) == sorted(f"x{number}" for number in numbers)
    assert values(snapshot, "py-op", "map")["key-21", "m0"] == 1_001_421
    assert values(snapshot, "py-op", "red")[key] == sum(numbers)
    assert values(snapshot, "py-op", "agg")[key] == {"@tuple": [sum(numbers), len(numbers)]}
