"""Names, columns and layouts of the states of each node of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.metadata import compute_operator_id
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.sql import PlannedOperator, PlannedState, list_operators, load_plan, read_plan
from tests.sql.small_plans import SOURCE, aggregate, call, exchange, join, make_plan, scan

if TYPE_CHECKING:
    from pathlib import Path

COUNT = call("COUNT", of="BIGINT NOT NULL")


def operators(*nodes: dict[str, Any], edges: list[tuple[int, int]] | None = None) -> dict[str, PlannedOperator]:
    return {each.uid: each for each in list_operators(read_plan(make_plan(*nodes, edges=edges)))}


def accumulator(*calls: dict[str, Any], **others: Any) -> PlannedState:
    state = operators(scan(1), exchange(2), aggregate(3, [0], *calls, **others))["3_group-aggregate"].find_state(
        "accState"
    )
    assert state is not None
    return state


def test_uids_are_number_and_transformation() -> None:
    found = operators(scan(1), exchange(2), aggregate(3, [0], COUNT))
    assert {"1_source", "3_group-aggregate"} <= found.keys()
    assert not any(uid.startswith("2_") for uid in found)


def test_a_node_may_have_a_form_of_uids() -> None:
    node = aggregate(3, [0], COUNT, configuration={"table.exec.uid.format": "<type>_<id>_<version>_<transformation>"})
    assert "stream-exec-group-aggregate_1_3_1_group-aggregate" in operators(scan(1), node)


@pytest.mark.parametrize(
    ("calls", "names", "text"),
    [
        ([COUNT, call("SUM", 1)], ("count", "sum_amount"), "RowData(BIGINT, BIGINT)"),
        ([call("SUM", 1), COUNT], ("sum_amount", "count"), "RowData(BIGINT, BIGINT)"),
        ([call("AVG", 2, of="INT")], ("avg_qty_sum", "avg_qty_count"), "RowData(BIGINT, BIGINT)"),
        ([call("MAX", 3, of="VARCHAR(20)")], ("max_name",), "RowData(VARCHAR(20))"),
        ([call("SUM", 1), call("SUM", 1)], ("sum_amount", "sum_amount_2"), "RowData(BIGINT, BIGINT)"),
        (
            [call("COUNT", 3, of="BIGINT NOT NULL", distinct=True), call("SUM", 1)],
            ("count_distinct_name", "sum_amount", "distinct_name"),
            "RowData(BIGINT, BIGINT, RAW(org.apache.flink.table.api.dataview.MapView))",
        ),
        ([{**call("MINE", 1), "systemName": "mine"}], ("mine_amount",), "RowData(?)"),
    ],
)
def test_buffers_of_an_aggregate(calls: list[dict[str, Any]], names: tuple[str, ...], text: str) -> None:
    state = accumulator(*calls)
    assert state.rows[0].names == names
    assert state.describe() == text


def test_buffers_say_what_they_hold() -> None:
    state = accumulator(call("AVG", 2, of="INT"), COUNT)
    assert [each.meaning for each in state.rows[0].columns] == [
        "sum of AVG(src.qty)",
        "number of values in AVG(src.qty)",
        "COUNT(*)",
    ]


def test_retraction_counts_values_and_rows() -> None:
    assert accumulator(call("SUM", 1), needRetraction=True).rows[0].names == ("sum_amount", "sum_amount_count", "count")
    assert accumulator(call("SUM", 1), COUNT, needRetraction=True).rows[0].names == (
        "sum_amount",
        "sum_amount_count",
        "count",
    )


def test_views_of_distinct_arguments_are_states() -> None:
    calls = [call("COUNT", 3, distinct=True), call("SUM", 1, distinct=True), call("MAX", 1, distinct=True)]
    found = operators(scan(1), aggregate(2, [0], *calls))["2_group-aggregate"]
    assert {each.name: each.describe() for each in found.states if each.name != "accState"} == {
        "distinctAcc_0": "Map<External<StringData>, External<Long>>",
        "distinctAcc_0_null_state": "External<Long>",
        "distinctAcc_1": "Map<External<Long>, External<Long>>",
        "distinctAcc_1_null_state": "External<Long>",
    }


def test_time_to_live() -> None:
    state = accumulator(COUNT, state=[{"index": 0, "ttl": "1 h", "name": "groupAggregateState"}])
    assert (state.ttl, state.describe()) == ("1 h", "Ttl<RowData(BIGINT)>")
    assert accumulator(COUNT).ttl is None


ROW = "RowData(BIGINT, BIGINT, INT, VARCHAR(20) NOT NULL)"


@pytest.mark.parametrize(
    ("kind", "keys", "left", "right"),
    [
        ("INNER", [], f"Map<{ROW}, Int>", f"Map<{ROW}, Ttl<Int>>"),
        ("LEFT", [[0]], f"Tuple2<{ROW}, Int>", f"Ttl<{ROW}>"),
        ("FULL", [[1, 2], [3]], f"Map<RowData(VARCHAR(20) NOT NULL), Tuple2<{ROW}, Int>>", ""),
        ("SEMI", [[1]], f"Map<RowData(BIGINT), Tuple2<{ROW}, Int>>", f"Map<RowData(BIGINT), Ttl<{ROW}>>"),
        ("RIGHT", [], f"Map<{ROW}, Int>", f"Map<{ROW}, Ttl<Tuple2<Int, Int>>>"),
    ],
)
def test_layouts_of_a_join(kind: str, keys: list[list[int]], left: str, right: str) -> None:
    node = join(3, SOURCE, SOURCE, kind=kind, leftUpsertKeys=keys, rightUpsertKeys=keys)
    if kind == "SEMI":
        node["outputType"] = SOURCE
    found = operators(scan(1), scan(2), node, edges=[(1, 3), (2, 3)])["3_join"]
    first, second = found.states
    assert first.describe() == left
    assert not right or second.describe() == right
    assert (first.ttl, second.ttl) == (None, "1 d")


def rank(strategy: dict[str, Any], end: int) -> PlannedOperator:
    node = {
        "id": 2,
        "type": "stream-exec-rank_1",
        "rankType": "ROW_NUMBER",
        "partition": {"fields": [0]},
        "orderBy": {"fields": [{"index": 1, "isAscending": True, "nullIsLast": False}]},
        "rankRange": {"type": "Constant", "start": 1, "end": end},
        "rankStrategy": strategy,
        "outputType": SOURCE,
    }
    return operators(scan(1), node)["2_rank"]


def test_layouts_of_a_rank() -> None:
    def states(operator: PlannedOperator) -> dict[str, str]:
        return {each.name: each.describe() for each in operator.states}

    assert states(rank({"type": "AppendFast"}, 1)) == {"Top1-Rank-State": ROW}
    assert states(rank({"type": "AppendFast"}, 3)) == {"data-state-with-append": f"Map<RowData(BIGINT), List<{ROW}>>"}
    assert states(rank({"type": "UpdateFast", "primaryKeys": [3]}, 3)) == {
        "data-state-with-update": f"Map<RowData(VARCHAR(20) NOT NULL), Tuple2<{ROW}, Int>>"
    }
    assert states(rank({"type": "Retract"}, 1)) == {
        "data-state": f"Map<RowData(BIGINT), List<{ROW}>>",
        "sorted-map": "SortedMap<RowData(BIGINT), Long>",
    }


# Accumulators of functions whose types a plan does not say, and their views; operators without a name of Flink's rule.
UNSAID = {
    "stream-exec-group-aggregate_1--group-aggregate-udf-with-merge-mini-batch": {"agg1$map", "agg1$list"},
}
UNNAMED = {"stream-exec-interval-join_1--interval-join-negative-interval": 2}


def matches(planned: str, stored: str) -> bool:
    """Whether texts are equal but for the types that a plan does not say, each of which is one field."""
    first, *others = planned.split("?")
    if not others:
        return planned == stored
    return stored.startswith(first) and stored.endswith(others[-1])


@pytest.mark.slow
def test_plans_say_what_the_savepoints_of_flink_hold(fixtures: Path) -> None:
    compared = named = count = 0
    for folder in sorted((fixtures / "flink/sql").iterdir()):
        (path,) = (folder / "plan").glob("*.json")
        planned = {compute_operator_id(each.uid): each for each in list_operators(load_plan(str(path)))}
        unnamed = 0
        for operator in open_snapshot(str(folder / "savepoint")).operators:
            count += 1
            own = planned.get(operator.metadata.operator_id)
            if own is None:
                unnamed += 1
                continue
            named += 1
            keyed = [each for each in operator.states if isinstance(each, KeyedState) and each.kind != StateKind.TIMER]
            for state in keyed:
                found = own.find_state(state.name)
                if found is None:
                    assert state.name in UNSAID.get(folder.name, ()), (folder.name, own.uid, state.name)
                    continue
                assert own.key is not None
                assert own.key.describe() == describe(state.key_serializer)
                assert found.kind == state.kind
                assert found.namespace == describe(state.info.namespace_serializer)
                assert matches(found.describe(), describe(state.info.value_serializer)), (folder.name, own.uid)
                compared += 1
            if keyed:
                assert {each.name for each in own.states} <= {each.name for each in keyed}, (folder.name, own.uid)
        assert unnamed == UNNAMED.get(folder.name, 0), folder.name
    assert (compared, named, count) >= (99, 367, 369)
