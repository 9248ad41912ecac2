"""Columns of a plan are traced to the columns of its tables, through whatever lies between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.sql import load_plan, read_plan
from state_pipelines.sql.lineage import Lineage, trace_lineage
from tests.sql.small_plans import SOURCE, aggregate, call, exchange, join, make_plan, ref, scan

if TYPE_CHECKING:
    from pathlib import Path


def trace(*nodes: dict[str, Any], edges: list[tuple[int, int]] | None = None) -> Lineage:
    """The lineage of the last node."""
    return trace_lineage(read_plan(make_plan(*nodes, edges=edges)))[nodes[-1]["id"]]


def calc(number: int, projection: list[dict[str, Any]], row: str, condition: object = None) -> dict[str, Any]:
    return {
        "id": number,
        "type": "stream-exec-calc_1",
        "projection": projection,
        "condition": condition,
        "outputType": row,
    }


def test_an_aggregate_is_one_of_table_columns() -> None:
    found = trace(scan(1), exchange(2), aggregate(3, [0], call("SUM", 1), call("COUNT", of="BIGINT NOT NULL")))
    assert found.columns == ("src.id", "SUM(src.amount) by (src.id)", "COUNT(*) by (src.id)")
    assert found.rows == "aggregate(src) by (src.id)"


def test_projections_ids_and_mini_batches_do_not_matter() -> None:
    plain = trace(scan(1), exchange(2), aggregate(3, [0], call("SUM", 1)))
    row = "ROW<`amount` BIGINT, `id` BIGINT>"
    batch = {"id": 8, "type": "stream-exec-mini-batch-assigner_1", "outputType": SOURCE}
    moved = trace(scan(7), batch, calc(9, [ref(1), ref(0)], row), exchange(10, row), aggregate(11, [1], call("SUM", 0)))
    assert moved == plain


def test_swapped_arguments_are_seen() -> None:
    first = trace(scan(1), aggregate(2, [0], call("SUM", 1), call("SUM", 0)))
    second = trace(scan(1), aggregate(2, [0], call("SUM", 0), call("SUM", 1)))
    assert first.columns != second.columns
    assert set(first.columns) == set(second.columns)


def test_a_filter_is_part_of_the_rows() -> None:
    condition = {
        "kind": "CALL",
        "syntax": "BINARY",
        "internalName": "$>$1",
        "operands": [ref(1), {"kind": "LITERAL", "value": 5, "type": "INT NOT NULL"}],
    }
    columns = [ref(each) for each in range(4)]
    found = trace(scan(1), calc(2, columns, SOURCE, condition), aggregate(3, [0], call("SUM", 1)))
    assert found.rows == "aggregate(src where (src.amount > 5)) by (src.id)"


def test_branches_of_a_union_may_have_any_order() -> None:
    def union(*tables: str) -> Lineage:
        node = {"id": 3, "type": "stream-exec-union_1", "outputType": SOURCE}
        return trace(scan(1, tables[0]), scan(2, tables[1]), node, edges=[(1, 3), (2, 3)])

    assert union("a", "b") == union("b", "a")
    assert union("a", "b").columns[0] == "union(a.id, b.id)"


def test_two_phases_mean_what_one_means() -> None:
    partial = "ROW<`id` BIGINT, `sum$0` BIGINT>"
    local = {
        "id": 2,
        "type": "stream-exec-local-group-aggregate_1",
        "grouping": [0],
        "aggCalls": [call("SUM", 1)],
        "outputType": partial,
    }
    second = {**aggregate(4, [0], call("SUM", 1)), "type": "stream-exec-global-group-aggregate_1"}
    assert trace(scan(1), local, exchange(3, partial), second) == trace(scan(1), aggregate(2, [0], call("SUM", 1)))


def test_sides_of_a_self_join_differ() -> None:
    found = trace(scan(1), scan(2), join(3, SOURCE, SOURCE), edges=[(1, 3), (2, 3)])
    assert found.columns[0] == "src.id"
    assert found.columns[4] == "other src.id"
    assert len({*found.columns}) == len(found.columns)


def test_a_node_that_is_not_known_changes_with_all_of_its_fields() -> None:
    def unknown(option: int) -> Lineage:
        node = {"id": 2, "type": "stream-exec-something-new_1", "option": option, "outputType": SOURCE}
        return trace(scan(1), node)

    assert unknown(1) == unknown(1)
    assert set(unknown(1).columns).isdisjoint(unknown(2).columns)


def test_long_expressions_stay_short_and_different() -> None:
    def nested(last: int) -> Lineage:
        columns = [ref(each) for each in range(4)]
        concat = {"kind": "CALL", "internalName": "$CONCAT$1", "operands": [ref(3), ref(3)]}
        nodes = [scan(1), *(calc(each, [*columns[:3], concat], SOURCE) for each in range(2, 30))]
        return trace(*nodes, calc(30, [*columns[:3], {**concat, "operands": [ref(3), ref(last)]}], SOURCE))

    assert all(len(each) < 2000 for each in nested(3).columns)
    assert nested(3).columns[3] != nested(2).columns[3]


def test_every_node_of_flinks_plans_has_as_many_texts_as_columns(fixtures: Path) -> None:
    for path in sorted((fixtures / "flink/sql").glob("*/plan/*.json")):
        plan = load_plan(str(path))
        found = trace_lineage(plan)
        for node in plan.nodes:
            assert len(found[node.id].columns) == len(node.columns), (path.name, node.id)
            assert not any("?" in each.split("'")[0] for each in found[node.id].columns), (path.name, node.id)
            if node.kind != "match":
                assert (
                    "opaque" not in found[node.id].rows
                    or "lookup" in path.name
                    or "correlate" in path.name
                    or ("match" in path.name)
                )


def lookup(number: int, key: int, row: str) -> dict[str, Any]:
    source = {"table": {"identifier": "`default_catalog`.`default_database`.`prices`"}}
    return {
        "id": number,
        "type": "stream-exec-lookup-join_1",
        "joinType": "INNER",
        "joinCondition": None,
        "temporalTable": {
            "lookupTableSource": source,
            "outputType": "ROW<`name` VARCHAR(20), `price` BIGINT>",
        },
        "lookupKeys": {"0": {"type": "FieldRef", "index": key}},
        "projectionOnTemporalTable": [ref(1)],
        "filterOnTemporalTable": None,
        "outputType": row,
    }


def test_a_looked_up_column_is_one_of_its_table_wherever_the_key_is() -> None:
    wide = trace(scan(1), lookup(2, 3, f"{SOURCE[:-1]}, `price` BIGINT>"))
    kept = "ROW<`id` BIGINT, `name` VARCHAR(20) NOT NULL"
    narrow = trace(scan(1), calc(2, [ref(0), ref(3)], f"{kept}>"), lookup(3, 1, f"{kept}, `price` BIGINT>"))
    assert wide.rows == narrow.rows == "lookup-join INNER(src; prices; prices.name = src.name)"
    assert (wide.columns[-1], narrow.columns[-1]) == ("prices.price", "prices.price")
    other = trace(scan(1), lookup(2, 0, f"{SOURCE[:-1]}, `price` BIGINT>"))
    assert other.rows == "lookup-join INNER(src; prices; prices.name = src.id)"
