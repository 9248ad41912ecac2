"""Pairs of queries as people write them: state is exact only where it is what the new query would have made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.sql_check import SqlCheckReport
from state_pipelines.sql import read_plan
from state_pipelines.sql.comparison import compare_plans
from state_pipelines.sql.lineage import render_expression
from state_pipelines.sql.verdict import Binding, Verdict
from tests.sql.changed_plans import compare_pair, find_operator, read_pairs
from tests.sql.recorded_pairs import unpack
from tests.sql.small_plans import aggregate, call, make_plan, scan

if TYPE_CHECKING:
    from state_pipelines.sql.verdict import PlanComparison

CARRIED, COMPUTED, EMPTY = Verdict.CARRIED, Verdict.COMPUTED, Verdict.EMPTY
DROPPED, REFUSED = Verdict.DROPPED, Verdict.REFUSED

EXPECTED = {
    # Constants of IN, NOT IN and BETWEEN are in a field of their own.
    "in-ints": (CARRIED, False),
    "not-in-strings": (CARRIED, False),
    "between": (CARRIED, False),
    "date-between": (CARRIED, False),
    "case-in": (EMPTY, False),
    "filter-in-swap": (CARRIED, True),
    "distinct-filter-in": (COMPUTED, True),
    "semi-constant": (CARRIED, False),
    # A table that is joined with itself.
    "selfjoin-filters-exchanged": (CARRIED, True),
    "selfjoin-filter-moved": (REFUSED, False),
    "selfjoin-agg-exchanged": (REFUSED, False),
    "three-selfjoin-all": (CARRIED, True),
    "three-selfjoin-swap": (CARRIED, True),
    "semi-then-self": (DROPPED, False),
    "selfjoin-pk-add": (EMPTY, False),
    "agg-join-one-table-swap": (CARRIED, True),
    "dims-twice-reordered": (REFUSED, False),
    # A cast that loses digits or the end of a text.
    "lossy-cast": (EMPTY, False),
    "lossy-cast-max": (EMPTY, False),
    "lossy-cast-row": (EMPTY, False),
    # Branches of a UNION whose filters change places.
    "union-weights": (CARRIED, False),
    "union-weights-const": (CARRIED, False),
    "union-reordered": (CARRIED, True),
    # Other texts of the same query.
    "cte-view-alias": (CARRIED, True),
    "minibatch-twophase-swap": (CARRIED, True),
    "ttl-hint-exchanged": (CARRIED, True),
    "two-level-add": (EMPTY, False),
    "having": (CARRIED, True),
    "global-agg": (CARRIED, True),
    "filter-agg": (EMPTY, False),
    "sum-distinct": (COMPUTED, True),
    # Repeated rows, and rows of a function.
    "rollup-swap": (CARRIED, True),
    "rollup-add": (EMPTY, False),
    "grouping-sets": (CARRIED, False),
    "unnest-add": (EMPTY, False),
    # Ranks whose rows get numbers, or lose them.
    "top-unnumbered": (COMPUTED, True),
    "top-numbered": (CARRIED, True),
    # Joins with another condition.
    "not-distinct-from": (CARRIED, False),
    "left-on-to-where": (REFUSED, False),
    "interval-bounds": (CARRIED, False),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdict_of_a_pair(name: str) -> None:
    found = compare_pair(name)
    assert (found.verdict, found.exact, found.ties) == (*EXPECTED[name], ())


def test_extremes_that_take_back_rows_are_made_for_flink_2_only(tmp_path: Path) -> None:
    for name, refused in (("retract-extremes-of-distinct", True), ("retract-max-swap", False)):
        pair = unpack(name, tmp_path)
        old, new = (read_plan(Path(each).read_text()) for each in (pair.old, pair.new))
        assert compare_plans(old, new).verdict is not REFUSED
        found = compare_plans(old, replace(new, flink_version="1.20"))
        assert (found.verdict is REFUSED) == refused
        reasons = [text for each in found.operators for text in each.reasons]
        assert any("which is known of Flink 2 only" in each for each in reasons) == refused


def _point(value: int, kind: str = "CLOSED") -> dict[str, object]:
    return {"value": value, "boundType": kind}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"ranges": [{"lower": _point(1), "upper": _point(1)}, {"lower": _point(3), "upper": _point(3)}]}, "{1, 3}"),
        ({"ranges": [{"lower": _point(1), "upper": _point(5, "OPEN")}]}, "{[1..5)}"),
        (
            {"ranges": [{"upper": _point(1, "OPEN")}, {"lower": _point(1, "OPEN")}], "nullAs": "UNKNOWN"},
            "{(..1), (1..)}",
        ),
        ({"ranges": [{}], "nullAs": "FALSE"}, '{(..)} {"nullAs": "FALSE"}'),
    ],
)
def test_values_that_are_searched_are_part_of_the_text(value: dict[str, object], text: str) -> None:
    assert render_expression({"kind": "LITERAL", "sarg": value, "type": "INT NOT NULL"}, ()) == text


def test_a_literal_with_a_value_in_another_field_is_not_nothing() -> None:
    texts = {render_expression({"kind": "LITERAL", "later": each, "type": "INT"}, ()) for each in (1, 2)}
    assert len(texts) == 2


def test_exchanged_sides_of_one_table_are_a_silent_swap() -> None:
    states = find_operator(compare_pair("selfjoin-filters-exchanged"), "join").states
    assert {each.name: each.old and each.old.name for each in states} == {
        "left-records": "right-records",
        "right-records": "left-records",
    }
    assert all("would be taken" in each.swap for each in states)


def test_filters_of_a_side_are_named_with_it() -> None:
    (reason,) = find_operator(compare_pair("semi-constant"), "join").reasons
    assert "{'a', 'b'}) of customers by customers.id to" in reason


def test_a_third_table_of_one_name_has_texts_of_its_own() -> None:
    (state,) = find_operator(compare_pair("three-selfjoin-all"), "group-aggregate").states
    moves = {each.meaning: (each.old, each.new) for each in state.columns}
    assert moves == {"SUM(events.x)": (0, 0), "SUM(third events.x)": (2, 1), "SUM(other events.x)": (1, 2)}


def test_a_new_column_of_one_side_is_not_taken_for_that_of_the_other() -> None:
    (state,) = find_operator(compare_pair("selfjoin-pk-add"), "group-aggregate").states
    assert [(each.meaning, each.verdict) for each in state.columns] == [
        ("SUM(other customers.credit)", CARRIED),
        ("SUM(customers.credit)", EMPTY),
    ]


def _report(name: str) -> SqlCheckReport:
    """A report on a savepoint with all operators of the old plan, by the hashes of their uids."""
    comparison: PlanComparison = compare_pair(name)
    found = [each.old for each in comparison.operators if each.old is not None]
    uids = [each.uid for each in found if each.kind != "table-source-scan" or each.transformation == "source"]
    return SqlCheckReport(comparison, Binding({uid: compute_operator_id(uid).hex() for uid in uids}, (), (), ()), ())


def test_operators_that_exchange_their_uids_are_a_silent_swap() -> None:
    assert _report("sets-exchanged").swaps == (
        "6_group-aggregate: the state of aggregate(orders where (orders.status = 'a')) by (orders.customer) would be "
        "taken for that of aggregate(orders where (orders.status = 'b')) by (orders.customer)",
        "10_group-aggregate: the state of aggregate(orders where (orders.status = 'b')) by (orders.customer) would be "
        "taken for that of aggregate(orders where (orders.status = 'a')) by (orders.customer)",
    )


def test_sources_that_exchange_their_uids_are_a_silent_swap() -> None:
    first, second = _report("source-exchanged").swaps
    assert first.endswith("_source: offsets of events would be taken for those of orders")
    assert second.endswith("_source: offsets of orders would be taken for those of events")


def test_a_restore_that_fails_is_no_silent_swap() -> None:
    report = _report("minibatch-twophase-swap")
    assert any(state.swap for each in report.comparison.operators for state in each.states)
    assert report.swaps == ()


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("INT", "INT NOT NULL", CARRIED),
        ("VARCHAR(5)", "VARCHAR(9)", CARRIED),
        ("INT", "BIGINT", COMPUTED),
        ("BIGINT", "INT", REFUSED),
        ("INT", "VARCHAR(9)", REFUSED),
    ],
)
def test_the_type_of_a_key_counts(old: str, new: str, verdict: Verdict) -> None:
    before, after = (
        read_plan(make_plan(scan(1, row=f"ROW<`id` {of}, `amount` BIGINT>"), aggregate(2, [0], call("SUM", 1))))
        for of in (old, new)
    )
    found = find_operator(compare_plans(before, after), "group-aggregate")
    assert found.verdict is verdict
    assert ("by which state is kept" in "; ".join(found.reasons)) is (verdict is not CARRIED)


def test_the_same_key_in_another_order_is_named_so() -> None:
    (reason,) = find_operator(compare_pair("key-order"), "group-aggregate").reasons
    assert reason.startswith("the columns of the key change their order from orders.customer / orders.seller to")


def test_another_class_of_a_function_is_another_function() -> None:
    def plan(of: str) -> str:
        name = "`default_catalog`.`default_database`.`score`"
        own = {"catalogName": name, "class": of, "argList": [1], "filterArg": -1, "type": "BIGINT"}
        return make_plan(scan(1), aggregate(2, [0], own))

    before, same, other = (read_plan(plan(f"com.acme.{each}")) for each in ("First", "First", "Second"))
    assert compare_plans(before, same).verdict is CARRIED
    assert compare_plans(before, other).verdict is REFUSED


def test_all_pairs_are_judged() -> None:
    others = {"sets-exchanged", "source-exchanged", "key-order"}
    assert {*read_pairs()} == {*EXPECTED} | others
