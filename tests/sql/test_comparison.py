"""Changed queries: which state each operator of the new one keeps, and what becomes of every column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.sql import load_plan, read_plan
from state_pipelines.sql.comparison import compare_plans
from state_pipelines.sql.conversions import Derivation
from state_pipelines.sql.matching import list_signatures, match_nodes
from state_pipelines.sql.verdict import Verdict
from tests.sql.changed_plans import changed_plan, compare, find_operator, read_changed, shift
from tests.sql.small_plans import make_plan, scan

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.sql import Plan
    from state_pipelines.sql.verdict import ColumnVerdict, PlanComparison

CARRIED, COMPUTED, EMPTY = Verdict.CARRIED, Verdict.COMPUTED, Verdict.EMPTY
DROPPED, REFUSED = Verdict.DROPPED, Verdict.REFUSED


@pytest.mark.parametrize("name", sorted(read_changed()))
def test_the_same_query_with_other_numbers_is_a_rename(name: str) -> None:
    found = compare_plans(changed_plan(name), shift(name, 7))
    assert found.ties == ()
    assert found.sinks == ()
    assert (found.verdict, found.exact) == (CARRIED, True)
    for each in found.operators:
        assert each.is_same, each
        assert each.renamed, each


@pytest.mark.parametrize(
    ("old", "new", "kind", "verdict", "exact"),
    [
        # Reordered and removed aggregates.
        ("sums", "sums_swapped", "group-aggregate", CARRIED, True),
        ("sums", "sums_one", "group-aggregate", CARRIED, True),
        ("distinct", "distinct_swapped", "group-aggregate", CARRIED, True),
        ("distinct", "distinct_one", "group-aggregate", CARRIED, True),
        # AVG from SUM and COUNT, and back.
        ("sum_count", "average", "group-aggregate", COMPUTED, True),
        ("average", "sum_count", "group-aggregate", COMPUTED, True),
        ("count_need", "sum_need_count", "group-aggregate", COMPUTED, True),
        ("count_nullable", "count_rows", "group-aggregate", EMPTY, False),
        # Functions of a column under DISTINCT.
        ("distinct", "distinct_maximum", "group-aggregate", COMPUTED, True),
        ("distinct", "distinct_sum", "group-aggregate", COMPUTED, True),
        # Another new aggregate; in a window; in a bounded OVER.
        ("sums", "sums_third", "group-aggregate", EMPTY, False),
        ("window", "window_more", "window-aggregate", EMPTY, False),
        ("over", "over_more", "over-aggregate", COMPUTED, True),
        ("over", "over_new", "over-aggregate", EMPTY, False),
        ("over_unbounded", "over_unbounded_more", "over-aggregate", EMPTY, False),
        ("over", "over_longer", "over-aggregate", CARRIED, False),
        # Mini-batch and two phases.
        ("sums", "sums_batched", "group-aggregate", CARRIED, True),
        ("sums_batched", "sums", "group-aggregate", CARRIED, True),
        # Longer texts, wider numbers.
        ("plain", "wide", "deduplicate", CARRIED, True),
        ("quantity", "quantity_wide", "group-aggregate", COMPUTED, True),
        # Columns of rows.
        ("last", "last_column", "deduplicate", EMPTY, False),
        ("join_name", "join_city", "join", EMPTY, False),
        ("join_rows", "join_rows_column", "join", REFUSED, False),
        ("join_rows_column", "join_rows", "join", CARRIED, True),
        ("join_city", "join_name", "join", CARRIED, True),
        ("join_name", "join_exchanged", "join", CARRIED, True),
        # TopN.
        ("top3", "top2", "rank", COMPUTED, True),
        ("top2", "top3", "rank", CARRIED, False),
        ("retract_top3", "retract_top5", "rank", CARRIED, True),
        ("top3", "top1", "rank", COMPUTED, True),
        ("top1", "top3", "rank", COMPUTED, False),
        ("top3", "top3_total", "rank", REFUSED, False),
        ("ranked_one", "ranked_sums", "rank", REFUSED, False),
        # Filters and expressions.
        ("sums", "sums_filtered", "group-aggregate", CARRIED, False),
        ("join_name", "join_filtered", "join", CARRIED, False),
        ("sums", "sums_expression", "group-aggregate", EMPTY, False),
        # Input that takes back rows.
        ("counts", "counts_deduplicated", "group-aggregate", COMPUTED, False),
        ("sums", "sums_deduplicated", "group-aggregate", REFUSED, False),
        ("maximum", "maximum_retracting", "group-aggregate", REFUSED, False),
        # Outer joins.
        ("join_name", "join_left", "join", COMPUTED, False),
        ("join_left", "join_name", "join", COMPUTED, False),
        ("join_left_condition", "join_left_other", "join", REFUSED, False),
        ("join_semi", "join_anti", "join", CARRIED, False),
        ("interval", "interval_longer", "interval-join", CARRIED, False),
        # Keys, windows, patterns, other rows.
        ("sums", "sums_by_oid", "group-aggregate", REFUSED, False),
        ("join_name", "join_other_key", "join", REFUSED, False),
        ("window", "window_longer", "window-aggregate", REFUSED, False),
        ("pattern", "pattern_other", "match", REFUSED, False),
        ("first_arrival", "last_arrival", "deduplicate", REFUSED, False),
        ("distinct", "distinct_split", "global-group-aggregate", REFUSED, False),
        # Time to live.
        ("sum_count_ttl", "average_ttl", "group-aggregate", EMPTY, False),
        ("sums_ttl", "sums", "group-aggregate", CARRIED, False),
        ("sums", "sums_ttl", "group-aggregate", CARRIED, False),
    ],
)
def test_verdicts_of_changes(old: str, new: str, kind: str, verdict: Verdict, exact: bool) -> None:
    found = find_operator(compare(old, new), kind)
    assert (found.verdict, found.exact) == (verdict, exact)
    if verdict is REFUSED:
        assert found.reasons or any(each.reason or any(c.reason for c in each.columns) for each in found.states)


def columns(comparison: PlanComparison, kind: str, state: str) -> dict[str, ColumnVerdict]:
    (found,) = (each for each in find_operator(comparison, kind).states if each.name == state)
    return {each.meaning: each for each in found.columns}


def swaps(comparison: PlanComparison) -> dict[str, str]:
    return {state.name: state.swap for each in comparison.operators for state in each.states if state.swap}


@pytest.mark.parametrize(
    ("old", "new", "state", "text"),
    [
        ("sums", "sums_swapped", "accState", "SUM(o.amount) would be taken for SUM(o.total)"),
        (
            "distinct",
            "distinct_swapped",
            "distinctAcc_0",
            "the distinct values of o.amount would be taken for the dist",
        ),
        ("join", "join_swapped", "left-records", "k.cid would be taken for k.total"),
        ("last", "last_swapped", "deduplicate-state", "UPPER(o.note) would be taken for LOWER(o.title)"),
        ("sum_count", "average", "accState", "SUM(o.amount) would be taken for sum of AVG(o.amount)"),
        (
            "filtered_counts",
            "filtered_counts_swapped",
            "distinctAcc_0",
            "distinct values of COUNT(DISTINCT o.amount) FILTER",
        ),
    ],
)
def test_swaps_of_equal_types_are_called_so(old: str, new: str, state: str, text: str) -> None:
    assert swaps(compare(old, old)) == {}
    assert text in swaps(compare(old, new))[state]


def test_swapped_columns_say_where_they_were() -> None:
    found = columns(compare("sums", "sums_swapped"), "aggregate", "accState")
    assert {name: (each.old, each.new) for name, each in found.items()} == {
        "SUM(o.total)": (1, 0),
        "SUM(o.amount)": (0, 1),
    }


def test_views_follow_their_columns() -> None:
    found = find_operator(compare("distinct", "distinct_swapped"), "aggregate")
    names = {each.new.name: each.old.name for each in found.states if each.new and each.old}
    assert names == {
        "accState": "accState",
        "distinctAcc_0": "distinctAcc_1",
        "distinctAcc_0_null_state": "distinctAcc_1_null_state",
        "distinctAcc_1": "distinctAcc_0",
        "distinctAcc_1_null_state": "distinctAcc_0_null_state",
    }


def test_bits_of_a_view_follow_their_calls() -> None:
    found = find_operator(compare("filtered_counts", "filtered_counts_swapped"), "aggregate")
    assert {each.name: each.bits for each in found.states if each.bits} == {
        "distinctAcc_0": (1, 0),
        "distinctAcc_0_null_state": (1, 0),
    }
    more = find_operator(compare("distinct", "distinct_sum"), "aggregate")
    assert {each.name: each.bits for each in more.states if each.bits}["distinctAcc_1"] == (0, 0)


def test_derivations_name_their_sources() -> None:
    average = columns(compare("sum_count", "average"), "aggregate", "accState")
    assert average["sum of AVG(o.amount)"].derivation is Derivation.SUM_OR_ZERO
    assert [each.sources for each in average.values()] == [(0,), (1,)]
    back = columns(compare("average", "sum_count"), "aggregate", "accState")["SUM(o.amount)"]
    assert (back.derivation, back.sources) == (Derivation.SUM_OR_NULL, (0, 1))
    assert "number of values in AVG(o.amount)" in back.reason
    folded = columns(compare("distinct", "distinct_maximum"), "aggregate", "accState")["MAX(o.total)"]
    assert (folded.derivation, folded.view) == (Derivation.FOLD_MAX, "distinctAcc_1")
    wide = columns(compare("quantity", "quantity_wide"), "aggregate", "accState")["SUM(CAST(o.qty AS BIGINT))"]
    assert (wide.derivation, wide.sources) == (Derivation.WIDEN, (0,))


def test_nothing_computed_from_state_with_time_to_live_is_exact() -> None:
    found = columns(compare("sum_count_ttl", "average_ttl"), "aggregate", "accState")["sum of AVG(o.amount)"]
    assert (found.verdict, found.exact) == (COMPUTED, False)
    assert "time to live (1 d)" in found.reason
    new = columns(compare("sum_count_ttl", "average_ttl"), "aggregate", "accState")["SUM(o.total)"]
    assert new.reason == "partial until rows from before are older than the time to live (1 d)"


def test_changes_are_said_in_words() -> None:
    filtered = find_operator(compare("sums", "sums_filtered"), "aggregate")
    assert filtered.reasons == (
        "the filter changes from none to (o.qty > 5): rows from before the savepoint stay as the old filter chose them",
    )
    window = columns(compare("window", "window_more"), "window-aggregate", "window-aggs")["SUM(o.total)"]
    assert window.reason == "partial until the windows that are open now have ended"
    expression = columns(compare("sums", "sums_expression"), "aggregate", "accState")["SUM((o.amount * 2))"]
    assert expression.reason.startswith("SUM(o.amount) of the old query has another expression")
    key = find_operator(compare("sums", "sums_by_oid"), "aggregate")
    assert "the grouping key changes from o.cid to o.oid" in key.reasons[0]
    assert "bootstrap" in key.reasons[0]


def test_a_new_operator_above_an_old_one_starts_empty() -> None:
    found = compare("counts", "counts_deduplicated")
    above = find_operator(found, "deduplicate")
    assert (above.old, above.verdict, above.exact) == (None, EMPTY, False)
    assert any("do not emit their rows again" in each for each in above.reasons)
    aggregate = find_operator(found, "group-aggregate")
    assert any("come from other tables" in each for each in aggregate.reasons)


def test_sinks_say_which_columns_change() -> None:
    found = compare("sums", "sums_swapped").sinks
    assert [(each.table, each.column) for each in found] == [("t2", "a"), ("t2", "b")]
    assert compare("sums", "sums_batched").sinks == ()


def test_offsets_of_a_table_that_is_not_read_any_more_are_dropped() -> None:
    found = compare("join_name", "sums")
    dropped = [each for each in found.operators if each.new is None and each.old and each.old.kind.endswith("scan")]
    assert {each.old.meaning for each in dropped if each.old} == {"k", "c"}
    assert all("its offsets are dropped" in each.reasons[0] for each in dropped)


def test_asynchronous_state_is_refused() -> None:
    from dataclasses import replace

    settings = {"table.exec.async-state.enabled": "true"}
    new = replace(changed_plan("sums"), settings=settings)
    found = find_operator(compare_plans(changed_plan("sums"), new), "aggregate")
    assert found.verdict is REFUSED
    assert "table.exec.async-state.enabled" in found.reasons[0]
    assert find_operator(compare_plans(new, new), "aggregate").verdict is CARRIED


def test_ties_are_resolved_by_names() -> None:
    old, new = changed_plan("two_sinks_tie"), changed_plan("two_sinks_other")
    found = compare_plans(old, new)
    assert found.verdict is Verdict.UNDETERMINED
    (tie,) = found.ties
    assert (len(tie.old), len(tie.new)) == (2, 2)
    given = compare_plans(old, new, {tie.old[0]: tie.new[1]})
    assert given.ties == ()
    pairs = {each.old.uid: each.new.uid for each in given.operators if each.old and each.new}
    assert (pairs[tie.old[0]], pairs[tie.old[1]]) == (tie.new[1], tie.new[0])
    with pytest.raises(UsageError, match="the new plan has no operator 99_rank"):
        compare_plans(old, new, {tie.old[0]: "99_rank"})
    with pytest.raises(UsageError, match="cannot keep its state"):
        compare_plans(old, new, {tie.old[0]: "1_source"})
    with pytest.raises(UsageError, match="2 times"):
        compare_plans(old, new, dict.fromkeys(tie.old, tie.new[0]))


def _join_in_interval(left: list[str], time: str) -> Plan:
    """A plan with an interval join whose left side has some columns; the first one is the key."""
    rows = [f"ROW<{', '.join(f'`{each}` TIMESTAMP(3)' for each in columns)}>" for columns in (left, ["id", "ts"])]
    spec = {"joinType": "INNER", "leftKeys": [0], "rightKeys": [0]}
    times = {"leftTimeIndex": left.index(time), "rightTimeIndex": 1}
    bounds = {"isEventTime": True, "leftLowerBound": -5, "leftUpperBound": 5, **times}
    node = {
        "id": 3,
        "type": "stream-exec-interval-join_1",
        "intervalJoinSpec": {"joinSpec": spec, "windowBounds": bounds},
        "outputType": f"{rows[0][:-1]}, {rows[1].removeprefix('ROW<')}",
        "description": "IntervalJoin",
    }
    return read_plan(make_plan(scan(1, "l", rows[0]), scan(2, "r", rows[1]), node, edges=[(1, 3), (2, 3)]))


def test_times_of_joins_are_columns_and_not_their_positions() -> None:
    old = _join_in_interval(["id", "a", "ts"], "ts")
    fewer = find_operator(compare_plans(old, _join_in_interval(["id", "ts"], "ts")), "interval-join")
    assert (fewer.verdict, fewer.exact, fewer.reasons) == (CARRIED, True, ())
    other = find_operator(compare_plans(old, _join_in_interval(["id", "ts", "a"], "a")), "interval-join")
    assert other.verdict is REFUSED
    assert "the times of the join change from l.ts; r.ts to l.a; r.ts" in other.reasons[0]


def test_time_to_live_that_changes_is_said() -> None:
    (state,) = find_operator(compare("sums_ttl", "sums"), "aggregate").states
    assert state.reason == "time to live changes from 1 d to none, and entries that have expired are missing"


@pytest.mark.slow
def test_equal_plans_match_and_others_do_not_in_all_pairs_of_changes() -> None:
    signatures = {name: list_signatures(changed_plan(name)) for name in read_changed()}
    for old, before in signatures.items():
        for new, after in signatures.items():
            found = match_nodes(before, after)
            if old == new:
                assert (found.dropped, found.added, found.ties) == ((), (), ())
            matched = [each for pair in found.pairs for each in pair]
            assert len({id(each) for each in matched}) == (len(found.pairs) if old == new else 2 * len(found.pairs))
            for one, other in found.pairs:
                assert one.kind == other.kind
                if one.is_source:
                    assert one.tables == other.tables
                if old == new:
                    assert one.node.id == other.node.id


@pytest.mark.slow
def test_releases_compile_one_script_to_equal_operators() -> None:
    import gzip
    import json

    from state_pipelines.sql import read_plan
    from tests.sql.test_recorded_plans import RECORDED

    plans = [read_plan(json.dumps(json.loads(gzip.decompress(each.read_bytes()))["plan"])) for each in RECORDED]
    for old in plans:
        for new in plans:
            found = compare_plans(old, new)
            kept = [each for each in found.operators if (each.old or each.new).kind != "sink"]  # type: ignore[union-attr]
            assert [each for each in kept if not each.is_same] == []


@pytest.mark.slow
def test_plans_of_flink_are_equal_to_themselves_alone(fixtures: Path) -> None:
    plans = {each.parts[-3]: load_plan(str(each)) for each in sorted((fixtures / "flink/sql").glob("*/plan/*.json"))}
    signatures = {name: list_signatures(each) for name, each in plans.items()}
    for old, before in signatures.items():
        for new, after in signatures.items():
            found = match_nodes(before, after)
            if old == new:
                assert all(one is other for one, other in found.pairs)
                assert len(found.pairs) == len(before)
            for one, other in found.pairs:
                assert one.kind == other.kind
    for name, plan in plans.items():
        found_self = compare_plans(plan, plan)
        assert all(each.is_same for each in found_self.operators), name
        assert found_self.exact, name


def test_a_sink_that_keeps_rows_gets_a_column_where_it_knows_the_key() -> None:
    found = compare("upsert", "upsert_more")
    (sink,) = (each for each in found.operators if each.new and each.new.transformation == "upsert-materialize")
    assert sink.verdict is EMPTY


def _edit(name: str, kind: str, **content: object) -> Plan:
    """A plan of which the only node of a kind has other fields."""
    import json

    plan = json.loads(json.dumps(read_changed()[name]))
    (node,) = (each for each in plan["nodes"] if each["type"].startswith(f"stream-exec-{kind}_"))
    node.update(content)
    return read_plan(json.dumps(plan))


def test_a_rank_by_floating_point_numbers_does_not_choose_rows() -> None:
    import json

    old, new = (json.loads(json.dumps(read_changed()[each])) for each in ("top3", "top2"))
    before, after = (read_plan(json.dumps(each).replace("`amount` BIGINT", "`amount` DOUBLE")) for each in (old, new))
    (state,) = find_operator(compare_plans(before, after), "rank").states
    assert state.verdict is REFUSED
    assert "the first ones by amount cannot be chosen outside Flink" in state.reason


def test_a_rank_that_does_not_take_back_rows_any_more_keeps_the_first_ones() -> None:
    node = {"rankStrategy": {"type": "Retract"}}
    found = find_operator(compare_plans(_edit("top3", "rank", **node), changed_plan("top3")), "rank")
    rows = next(each for each in found.states if each.new is not None)
    assert rows.first is not None
    assert (rows.verdict, rows.first.limit) == (COMPUTED, 3)
    back = find_operator(compare_plans(changed_plan("top3"), _edit("top3", "rank", **node)), "rank")
    assert back.verdict is REFUSED


def test_an_over_with_fewer_rows_keeps_the_last_ones() -> None:
    fewer = find_operator(compare("over_longer", "over"), "over-aggregate")
    assert (fewer.verdict, fewer.exact) == (COMPUTED, True)
    found = {each.name: each for each in fewer.states}
    assert {name: each.derivation for name, each in found.items() if each.derivation is not None} == {
        "inputState": Derivation.LAST_ROWS,
        "processedCountState": Derivation.LAST_ROWS,
    }
    assert {each.last for each in found.values()} == {3}
    assert {each.derivation for each in found["accState"].columns} == {Derivation.FOLD_ROWS}
    longer = find_operator(compare("over", "over_longer"), "over-aggregate")
    assert {each.last for each in longer.states} == {None}


def test_an_over_with_other_states_is_refused() -> None:
    unbounded = find_operator(compare("over", "over_unbounded"), "over-aggregate")
    assert unbounded.verdict is REFUSED
    assert "processedCountState" in unbounded.reasons[0]


def test_options_of_a_source_are_said() -> None:
    import json

    from state_pipelines.sql import read_plan

    content = json.loads(json.dumps(read_changed()["sums"]))
    content["nodes"][0]["scanTableSource"]["table"]["resolvedTable"]["options"]["topic"] = "other"
    found = find_operator(compare_plans(changed_plan("sums"), read_plan(json.dumps(content))), "group-aggregate")
    assert found.is_same
    sources = [
        each for each in compare_plans(changed_plan("sums"), read_plan(json.dumps(content))).operators if each.reasons
    ]
    assert all("topic from none to other" in each.reasons[0] for each in sources)
    assert sources
    assert all(each.exact for each in sources)


def test_functions_that_no_plan_describes_are_carried_or_refused() -> None:
    import json

    from state_pipelines.sql import read_plan

    content = json.loads(json.dumps(read_changed()["sums"]))
    (node,) = (each for each in content["nodes"] if each["type"].startswith("stream-exec-group-aggregate"))
    call = node["aggCalls"][0]
    call.pop("internalName", None)
    call["systemName"] = "mine"
    changed = read_plan(json.dumps(content))
    assert find_operator(compare_plans(changed, changed), "group-aggregate").is_same
    found = find_operator(compare_plans(changed_plan("sums"), changed), "group-aggregate")
    assert found.verdict is REFUSED
    (state,) = found.states
    (refused,) = (each for each in state.columns if each.verdict is REFUSED)
    assert "no plan describes the accumulator of the function" in refused.reason
    back = find_operator(compare_plans(changed, changed_plan("sums")), "group-aggregate")
    assert back.verdict is EMPTY


def _call(plan: str, function: str, **content: object) -> dict[str, object]:
    """The first aggregate call of a plan, with another function."""
    node = next(each for each in read_changed()[plan]["nodes"] if "group-aggregate" in each["type"])
    return {**node["aggCalls"][0], "name": "other", "internalName": f"${function}$1", **content}


def test_an_extreme_that_takes_back_rows_needs_the_values_of_another_call() -> None:
    name = "maximum_retracting"
    maximum, minimum = _call(name, "MAX"), _call(name, "MIN")
    both = _edit(name, "group-aggregate", aggCalls=[minimum, maximum], aggCallNeedRetractions=[True, True])
    found = find_operator(compare_plans(changed_plan(name), both), "group-aggregate")
    assert (found.verdict, found.exact) == (COMPUTED, True)
    states = {each.name: each for each in found.states}
    column = next(each for each in states["accState"].columns if each.meaning.startswith("MIN("))
    assert (column.derivation, column.view) == (Derivation.FOLD_MIN, "agg0$map")
    # The values of the call that stays get its new position, and are copied for the other one.
    sources = {each: states[each].old.name for each in ("agg0$map", "agg1$map")}  # type: ignore[union-attr]
    assert sources == {"agg0$map": "agg0$map", "agg1$map": "agg0$map"}
    assert [states[each].derivation for each in sources] == [Derivation.COPY_VALUES, None]

    count = _call(name, "COUNT", argList=[], type="BIGINT NOT NULL")
    alone = _edit(name, "group-aggregate", aggCalls=[count], aggCallNeedRetractions=[True])
    refused = find_operator(compare_plans(alone, both), "group-aggregate")
    assert refused.verdict is REFUSED
    (state,) = (each for each in refused.states if each.name == "accState")
    reasons = [each.reason for each in state.columns if each.verdict is REFUSED]
    assert len(reasons) == 2
    assert all("no state has their values; keep MAX, MIN or COUNT(DISTINCT …)" in each for each in reasons)


def test_marks_of_distinct_values_are_no_numbers_of_rows() -> None:
    counted = [
        _call("maximum", "COUNT", argList=[], type="BIGINT NOT NULL"),
        _call("maximum", "COUNT", distinct=True, type="BIGINT NOT NULL"),
    ]

    def plan(*, retracts: bool) -> Plan:
        fields = {"aggCalls": counted, "aggCallNeedRetractions": [retracts] * 2, "needRetraction": retracts}
        return _edit("maximum", "group-aggregate", **fields)

    for one, other in ((False, True), (True, False)):
        found = find_operator(compare_plans(plan(retracts=one), plan(retracts=other)), "group-aggregate")
        views = {each.name: each for each in found.states if each.name.startswith("distinctAcc")}
        assert {each.verdict for each in views.values()} == {REFUSED}
        assert all(
            "with counts of rows if the input has retractions, and with a bit for each call if not" in each.reason
            for each in views.values()
        )
