"""`check`: columns and aggregates of SQL state that two queries can exchange without Flink or `check` noticing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.check.check import CheckReport, CheckVerdict, check_jobs
from state_pipelines.operations.check.check_report import Action
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject, describe_job
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.serializers.tree import LogicalType, RowData, Serializer, StateKind
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def row(*types: str) -> RowData:
    """A row of BIGINT, DOUBLE, …; `BIGINT!` is NOT NULL."""
    known = tuple(LogicalType(root=each.removesuffix("!"), nullable=not each.endswith("!")) for each in types)
    return RowData(snapshot_class=ROW, types=known, fields=tuple(LONG for _ in types))


ROW = "org.apache.flink.table.runtime.typeutils.RowDataSerializer$RowDataSerializerSnapshot"
LONG, INT = build.basic("Long"), build.basic("Int")
KEY = row("BIGINT")
SUMS = row("BIGINT", "DOUBLE", "BIGINT", "DOUBLE", "BOOLEAN")


def value(node: Serializer, name: str = "accState", kind: StateKind = StateKind.VALUE) -> JobState:
    if kind is StateKind.SPLIT_DISTRIBUTE:
        return JobState(name, kind, {Subject.ELEMENT: node})
    return JobState(name, kind, {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: node})


def judge(*states: JobState, key: Serializer = KEY, **options: bool) -> CheckReport:
    operator = JobOperator("0" * 32, "3_group-aggregate", 1, 128, key, states)
    old = JobDescription("old", (operator,), metadata_version=6, kryo_version=5)
    return check_jobs(old, replace(old, name="new"), **options)  # type: ignore[arg-type]


def warnings(report: CheckReport) -> list[SerializerDifference]:
    return [finding for check in report.checks for finding in check.findings]


def test_columns_of_one_type_are_named_by_position() -> None:
    report = judge(value(SUMS))
    (finding,) = warnings(report)
    assert "f0, f2 (BIGINT); f1, f3 (DOUBLE)" in finding.reason
    assert (finding.path, finding.outcome, finding.unnoticed) == ("value", Outcome.AS_IS, True)
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert report.checks[-1].action is Action.ADVICE
    assert any("`check` does not read queries" in note for note in report.notes)
    assert "f0, f2" in report.to_markdown()


@pytest.mark.parametrize(
    ("state", "path"),
    [
        (value(build.map_of(SUMS, INT), "left-records", StateKind.MAP), "map_key"),
        (value(build.map_of(SUMS, build.tuple_of(INT, INT)), "right-records", StateKind.MAP), "map_key"),
        (value(build.map_of(LONG, build.list_of(SUMS)), "data-state", StateKind.MAP), "map_value[]"),
        (value(build.list_of(SUMS), "values", StateKind.LIST), "element"),
        (value(build.ttl(SUMS)), "value"),
    ],
)
def test_rows_in_every_kind_of_state(state: JobState, path: str) -> None:
    assert [each.path for each in warnings(judge(state))] == [path]


def test_keys_count_too() -> None:
    report = judge(value(LONG), key=row("BIGINT", "BIGINT"))
    assert [each.path for each in warnings(report)] == ["key"]


@pytest.mark.parametrize("node", [row("BIGINT", "DOUBLE"), row("BIGINT", "BIGINT!"), build.tuple_of(LONG, LONG)])
def test_other_types_are_told_apart(node: Serializer) -> None:
    report = judge(value(node))
    assert warnings(report) == []
    assert report.notes == ()


def test_names_tell_columns_apart_where_they_are_compared() -> None:
    named = value(replace(SUMS, names=("a", "b", "c", "d", "e")))
    assert "a, c (BIGINT)" in warnings(judge(named))[0].reason
    assert warnings(judge(named, row_names=True)) == []
    assert len(warnings(judge(value(SUMS), row_names=True))) == 1


def test_views_of_one_type_are_numbered() -> None:
    view = build.map_of(LONG, LONG)
    states = [value(view, f"distinctAcc_{number}", StateKind.MAP) for number in range(2)]
    report = judge(*states, value(build.map_of(INT, LONG), "distinctAcc_2", StateKind.MAP))
    (finding,) = warnings(report)
    assert "distinctAcc_0, distinctAcc_1." in finding.reason
    assert warnings(judge(states[0])) == []


def test_the_same_queries_and_lists_of_rows_have_no_warning() -> None:
    assert warnings(judge(value(SUMS, "sink-results", StateKind.SPLIT_DISTRIBUTE))) == []
    job = JobDescription(
        "old", (JobOperator("0" * 32, "op", 1, 128, KEY, (value(SUMS),)),), metadata_version=6, kryo_version=5
    )
    assert warnings(check_jobs(job, job)) == []
    assert warnings(check_jobs(job, replace(job, name="new", metadata_version=None))) == []


def test_aggregates_of_a_query_of_flinks_own_tests(fixtures: Path) -> None:
    path = fixtures / "flink/sql/stream-exec-group-aggregate_1--group-aggregate-simple/savepoint"
    old = describe_job(open_snapshot(str(path)))
    report = check_jobs(old, replace(old, name="another query"), target="1.20")
    assert [each.reason.partition(". ")[0] for each in warnings(report)] == [
        "only their positions tell columns of one type apart: f0, f1, f2 (BIGINT)"
    ]
