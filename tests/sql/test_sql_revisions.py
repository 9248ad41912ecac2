"""The steps of a changed query lead to the states of its plan, for recorded plans and savepoints of Flink."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from state_pipelines.errors import IncompatibleError, UsageError
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.migration import Direction, dump_migration, parse_migration
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.migration_planner import plan_operator
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.migration.sql_revisions import SqlRevision, draft_sql_revision
from state_pipelines.operations.rescale.rescale_request import edit_operators
from state_pipelines.operations.sql_check import check_plans
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.sql import list_operators, load_plan
from tests.flink.migrated_queries import PAIRS, VARIANTS, choose_options
from tests.sql.recorded_pairs import NAMES, RecordedPair, unpack

UNPLANNED = {"already-emitted-state-boolean", "waiting-to-emit-on-timer"}
"""States of the first row by event time that plans do not list."""


def draft(pair: RecordedPair, backfill: dict[str, str] | None = None) -> SqlRevision:
    snapshot = pair.open()
    report = check_plans(load_plan(pair.old), load_plan(pair.new), snapshot)
    return draft_sql_revision(report.comparison, report.binding, snapshot, "changed", backfill)


def test_routes_and_pairs_meet_each_backend_and_width() -> None:
    widths = {}
    for number, pair in enumerate(PAIRS):
        options = [choose_options(pair, number + route) for route in range(4)]
        assert {each.get("state.backend.type", "hashmap") for each in options} == {"hashmap", "rocksdb"}
        widths[pair.name] = {each.get("parallelism.default", "1") for each in options}
        assert widths[pair.name] == ({"1"} if pair.ordered else {"1", "3"})
    for route in range(4):
        options = [choose_options(pair, number + route) for number, pair in enumerate(PAIRS)]
        assert len({json.dumps(each, sort_keys=True) for each in options}) == len(VARIANTS)


def test_views_of_functions_follow_their_calls(tmp_path: Path) -> None:
    # call 1 becomes call 2, and AVG has two columns
    moved = find_steps(draft(unpack("function-view", tmp_path)))
    assert st.RenameStates((("agg0$texts", "agg1$texts"),)) in moved
    # call 3 becomes call 2, where another function was dropped
    moved = find_steps(draft(unpack("function-drop", tmp_path)))
    assert st.RenameStates((("agg2$texts", "agg1$texts"),)) in moved


def test_the_view_of_a_function_that_is_not_called_goes(tmp_path: Path) -> None:
    pair = unpack("function-view", tmp_path)
    content = json.loads(Path(pair.new).read_text())
    aggregate = next(each for each in content["nodes"] if each["type"].startswith("stream-exec-group-aggregate"))
    (average,) = (each for each in aggregate["aggCalls"] if each.get("internalName") == "$AVG$1")
    aggregate["aggCalls"] = [average]
    aggregate["aggCallNeedRetractions"] = [False]
    Path(pair.new).write_text(json.dumps(content))
    assert st.DropState("the new query does not call the function") in find_steps(draft(pair))


def find_steps(revision: SqlRevision) -> list[st.Step]:
    assert revision.migration is not None
    return [step for change in revision.migration.changes for step in change.upgrade]


@pytest.mark.parametrize("name", NAMES)
def test_states_after_the_steps_are_those_of_the_new_plan(name: str, tmp_path: Path) -> None:
    pair = unpack(name, tmp_path)
    revision = draft(pair)
    edited = edit_operators(pair.open(), revision.operators, {}).snapshot
    by_id = {each.metadata.operator_id: each for each in edited.operators}
    compared = 0
    for planned in list_operators(load_plan(pair.new)):
        operator = by_id.get(compute_operator_id(planned.uid))
        if operator is None or not planned.states:
            continue
        shapes = find_shapes(operator)
        changed = revision.migration is not None and planned.uid in {
            each.operator for each in revision.migration.changes
        }
        if changed and revision.migration is not None:
            shapes = dict(plan_operator(operator, shapes, [(revision.migration, Direction.UPGRADE)]).new_shapes)
        keyed = {key: each for key, each in shapes.items() if each.is_keyed and each.kind is not StateKind.TIMER}
        known = {each for each in keyed if not re.fullmatch(r"agg\d+\$texts", each)}
        assert known <= {each.name for each in planned.states} | UNPLANNED
        for state in planned.states:
            if state.name in keyed:
                # Plans do not say the types of accumulators of functions of the user.
                pattern = ".+".join(map(re.escape, state.describe().split("?")))
                assert re.fullmatch(pattern, describe(keyed[state.name].info.value_serializer))
                assert keyed[state.name].key is not None
                compared += 1
    # The first row by event time has no other states than those that plans do not list.
    assert compared or name == "dedup-rowtime-swap"


@pytest.mark.parametrize("name", NAMES)
def test_revisions_are_read_as_they_are_written(name: str, tmp_path: Path) -> None:
    revision = draft(unpack(name, tmp_path))
    if revision.migration is not None:
        assert parse_migration(dump_migration(revision.migration)) == revision.migration


def test_shifted_numbers_are_renames_alone(tmp_path: Path) -> None:
    revision = draft(unpack("ids", tmp_path))
    assert revision.migration is None
    assert all(each.uid for each in revision.operators.operators.values() if not each.drop)


def test_exchanged_aggregates_are_columns_in_another_order(tmp_path: Path) -> None:
    (step,) = find_steps(draft(unpack("swap", tmp_path)))
    assert step == st.Columns((st.RowColumn("sum_k", "f1"), st.RowColumn("sum_amount", "f0")))


@pytest.mark.parametrize(
    ("name", "by_time"), [("over-rows", False), ("over-time-rows", True), ("over-time-range", True)]
)
def test_rows_after_the_watermark_are_not_in_the_window_of_an_over(name: str, by_time: bool, tmp_path: Path) -> None:
    (merge,) = (each for each in find_steps(draft(unpack(name, tmp_path))) if isinstance(each, st.Merge))
    assert ("filter(folded_inputState, each -> each.f0 <= coalesce(folded_time, 0L))" in merge.expression) is by_time
    assert ("folded_time" in merge.others) is by_time


def test_exchanged_views_exchange_their_names(tmp_path: Path) -> None:
    steps = find_steps(draft(unpack("swap-distinct", tmp_path)))
    renames = next(each for each in steps if isinstance(each, st.RenameStates))
    assert dict(renames.names)["distinctAcc_0"] == "distinctAcc_1"
    assert dict(renames.names)["distinctAcc_1"] == "distinctAcc_0"


def test_rows_that_are_counted_add_up_without_a_column(tmp_path: Path) -> None:
    kinds = [each for each in find_steps(draft(unpack("join-drop", tmp_path))) if isinstance(each, st.Kind)]
    assert kinds
    assert {each.on_equal for each in kinds} == {"CAST(sum(value) AS INT)"}


def test_a_backfill_fills_the_column_that_starts_empty(tmp_path: Path) -> None:
    pair = unpack("add-sum", tmp_path)
    for name in ("sum_amount", "r2"):
        fill = find_steps(draft(pair, {name: "sums.parquet"}))[-1]
        assert isinstance(fill, st.Fill)
        assert (fill.field, fill.keys, fill.value) == ("f1", (("f0", "cid"),), name)
        assert fill.table.endswith("/sums.parquet")
    with pytest.raises(UsageError, match="no column that starts empty is called count"):
        draft(pair, {"count": "sums.parquet"})


def test_a_backfill_does_not_fill_windows(tmp_path: Path) -> None:
    pair, more = unpack("window-swap", tmp_path), unpack("window-drop", tmp_path)
    snapshot = pair.open()
    report = check_plans(load_plan(pair.old), load_plan(more.old), snapshot)
    assert draft_sql_revision(report.comparison, report.binding, snapshot, "changed").migration is not None
    with pytest.raises(IncompatibleError, match="has no values of max_note for each window"):
        draft_sql_revision(report.comparison, report.binding, snapshot, "changed", {"max_note": "notes.parquet"})


def test_operators_that_are_named_keep_the_state(tmp_path: Path) -> None:
    pair = unpack("two-queries", tmp_path)
    old, new = ([each.uid for each in list_operators(load_plan(path)) if each.states] for path in (pair.old, pair.new))
    snapshot = pair.open()
    crossed = check_plans(load_plan(pair.old), load_plan(pair.new), snapshot, match={old[0]: new[1]})
    with pytest.raises(IncompatibleError, match="the grouping key changes"):
        draft_sql_revision(crossed.comparison, crossed.binding, snapshot, "changed")
    straight = check_plans(load_plan(pair.old), load_plan(pair.new), snapshot, match=dict(zip(old, new, strict=True)))
    assert draft_sql_revision(straight.comparison, straight.binding, snapshot, "changed") == draft(pair)


def test_a_time_to_live_that_is_switched_on_is_a_literal(tmp_path: Path) -> None:
    pair = unpack("swap", tmp_path)
    content = json.loads(Path(pair.old).read_text())
    for node in content["nodes"]:
        for state in node.get("state", ()):
            state["ttl"] = "3600000 ms"
    with_ttl = Path(pair.folder, "ttl.json")
    with_ttl.write_text(json.dumps(content))
    snapshot = pair.open()
    report = check_plans(load_plan(pair.old), load_plan(str(with_ttl)), snapshot)
    assert report.obstacle == ""
    (step,) = find_steps(draft_sql_revision(report.comparison, report.binding, snapshot, "changed"))
    assert isinstance(step, st.TtlStep)
    assert re.fullmatch(r"TIMESTAMP '[\d-]+ [\d:]+\+00:00'", step.enable or "")


def test_a_savepoint_of_another_query_is_refused(tmp_path: Path) -> None:
    pair, other = unpack("swap", tmp_path), unpack("join-swap", tmp_path)
    snapshot = other.open()
    report = check_plans(load_plan(pair.old), load_plan(pair.new), snapshot)
    with pytest.raises(UsageError, match="the old query has no such operator"):
        draft_sql_revision(report.comparison, report.binding, snapshot, "changed")


def test_numbers_of_rows_of_several_distinct_calls_move_with_them(tmp_path: Path) -> None:
    pair = unpack("retract-marks", tmp_path)
    assert st.Set("value", "array(value[1], value[0])") in find_steps(draft(pair))
    content = json.loads(Path(pair.new).read_text())
    node = next(
        each
        for each in content["nodes"]
        if each["type"].startswith("stream-exec-group-aggregate") and each["needRetraction"]
    )
    # One call has its number as a BIGINT, and not in a list.
    node["aggCalls"] = [each for each in node["aggCalls"] if each.get("filterArg", -1) < 0]
    node["aggCallNeedRetractions"] = [True] * len(node["aggCalls"])
    Path(pair.new).write_text(json.dumps(content))
    with pytest.raises(IncompatibleError, match="for 2 DISTINCT calls, and the layout for 1 cannot be made") as caught:
        draft(pair)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Keep the DISTINCT calls of the column, or start the new query without state")
