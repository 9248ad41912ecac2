"""Plans with stubs of their tables, and the comparison of a migrated savepoint with the template of its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.proofs import TEMPLATE
from state_pipelines.operations.sql_check import check_plans
from state_pipelines.operations.sql_recomputation import _compare_serializer, compare_with_template, recompute_columns
from state_pipelines.sql import list_operators, load_plan, read_plan
from state_pipelines.sql.templates import stub_tables
from tests.sql.recorded_pairs import NAMES, unpack
from tests.sql.small_plans import make_plan, scan


@pytest.mark.parametrize("name", NAMES)
def test_stubs_keep_operators_and_their_states(name: str, tmp_path: Path) -> None:
    pair = unpack(name, tmp_path)
    stubbed = stub_tables(Path(pair.new).read_text(), "file:///empty", ["csv"])
    found, expected = list_operators(read_plan(stubbed)), list_operators(load_plan(pair.new))
    assert [(each.uid, each.states) for each in found] == [(each.uid, each.states) for each in expected]
    for node in json.loads(stubbed)["nodes"]:
        if "scanTableSource" in node:
            table = node["scanTableSource"]["table"]["resolvedTable"]
            assert table["options"]["path"] == "file:///empty"
            assert len(table["schema"]["columns"]) == len(read_plan(stubbed).by_id[node["id"]].columns)
        if "dynamicTableSink" in node:
            assert node["dynamicTableSink"]["table"]["resolvedTable"]["options"] == {"connector": "blackhole"}


def test_columns_of_sources_are_those_of_the_plan() -> None:
    row = "ROW<`a` DECIMAL(10, 2) NOT NULL, `b, ``c` ROW<`d` INT, `e` VARCHAR(3)>, `f` MAP<INT, BIGINT>>"
    (node,) = json.loads(stub_tables(make_plan(scan(1, "t", row)), "file:///x", ["json", "csv"]))["nodes"]
    table = node["scanTableSource"]["table"]["resolvedTable"]
    assert table["options"]["format"] == "json"
    assert table["schema"]["columns"] == [
        {"name": "a", "dataType": "DECIMAL(10, 2) NOT NULL"},
        {"name": "b, `c", "dataType": "ROW<`d` INT, `e` VARCHAR(3)>"},
        {"name": "f", "dataType": "MAP<INT, BIGINT>"},
    ]


def test_a_type_without_text_has_no_stub() -> None:
    content = json.loads(make_plan(scan(1)))
    content["nodes"][0]["outputType"] = {"type": "ROW", "fields": [{"name": "a", "fieldType": {"type": "RAW"}}]}
    with pytest.raises(UnsupportedError, match="a source has a column of type"):
        stub_tables(json.dumps(content), "file:///x", ["csv"])
    with pytest.raises(UnsupportedError, match="no jar of a format"):
        stub_tables(make_plan(scan(1)), "file:///x", [])


def test_a_savepoint_equals_itself_as_a_template_and_no_other(tmp_path: Path) -> None:
    one, other = unpack("swap", tmp_path).open(), unpack("add-decimal", tmp_path).open()
    (same,) = compare_with_template(one, one)
    assert (same.name, same.ok, same.observed) == (TEMPLATE, True, "1 states have the serializers of the plan")
    (different,) = compare_with_template(one, other)
    assert not different.ok
    assert "the plan has no operator" in different.observed


def test_the_old_rows_are_not_those_of_an_exchange(tmp_path: Path) -> None:
    pair = unpack("swap", tmp_path)
    snapshot = pair.open()
    same, swapped = (check_plans(load_plan(pair.old), load_plan(each), snapshot) for each in (pair.old, pair.new))
    assert recompute_columns(same.comparison, same.binding, snapshot, snapshot) == ()
    report = check_plans(load_plan(pair.old), load_plan(_with_old_numbers(pair.old, pair.new)), snapshot)
    (found,) = recompute_columns(report.comparison, report.binding, snapshot, snapshot)
    assert not found.ok
    assert found.counts is not None
    assert found.counts.differing == found.counts.compared == 20
    assert swapped.swaps != ()


def _with_old_numbers(old: str, new: str) -> str:
    """The new plan under the numbers of the old one, as a file beside it."""
    first = min(node["id"] for node in json.loads(Path(old).read_text())["nodes"])
    content = json.loads(Path(new).read_text())
    offset = first - min(node["id"] for node in content["nodes"])
    for node in content["nodes"]:
        node["id"] += offset
    for edge in content["edges"]:
        edge["source"] += offset
        edge["target"] += offset
    target = Path(new).with_name("renumbered.json")
    target.write_text(json.dumps(content))
    return str(target)


def test_data_types_that_flink_does_not_compare_are_no_difference(tmp_path: Path) -> None:
    found = []
    for pair, name in (("retract-max-swap", "agg0$map"), ("retract-extremes-of-distinct", "distinctAcc_0")):
        operators = unpack(pair, tmp_path).open().operators
        (state,) = (each for operator in operators for each in operator.keyed_states if each.name == name)
        found.append(state.stored_info.serializers)
    # One says that a number of rows may be NULL.
    assert found[0] != found[1]
    assert _compare_serializer(found[0]) == _compare_serializer(found[1])
