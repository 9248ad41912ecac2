"""The same job on a newer Flink: what its classes become there, and what Flink 2 no longer has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.operations.check.check import CheckVerdict, check_jobs
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject, describe_job
from state_pipelines.operations.jobs.new_job import describe_upgraded_job
from state_pipelines.operations.migration.drafting import draft_from_report, explain_missing
from state_pipelines.operations.migration.migration_files import Change, Migration
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Kryo, Serializer, StateKind
from state_pipelines.snapshot import declare, open_snapshot

SHOP = Path(__file__).resolve().parents[2] / "examples" / "upgrade" / "savepoint"
POJO = build.pojo("a.Order", {"tags": Kryo(type_class="java.util.List"), "note": Kryo(type_class="a.Note")})
CLASSES = "a.Order: [tags: List<String>, note: a.Note]\na.Note: [text: String]"


def job_of(*states: JobState, label: str = "orders", kryo_version: int | None = 2) -> JobDescription:
    operator = JobOperator("1" * 32, label, 2, 128, build.basic("String"), states)
    return JobDescription("old", (operator,), metadata_version=4, kryo_version=kryo_version)


def value(node: Serializer, name: str = "order") -> JobState:
    return JobState(name, StateKind.VALUE, {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: node})


def elements(name: str, node: Serializer) -> JobState:
    return JobState(name, StateKind.UNION, {Subject.ELEMENT: node})


def test_without_classes_serializers_stay_as_they_are() -> None:
    old = job_of(value(POJO))
    new = describe_upgraded_job(old, (2, 3))
    assert new.operators == old.operators
    assert any("--classes JAR" in note for note in new.notes)


def test_collections_of_pojos_get_their_serializers_and_kryo_classes_stay_kryo() -> None:
    old = replace(job_of(value(POJO)), classes=load_classes(CLASSES))
    (operator,) = describe_upgraded_job(old, (2, 3)).operators
    expected = "Pojo<a.Order>(note: Kryo<a.Note>, tags: Nullable<List<Nullable<String>>>)"
    assert describe(operator.states[0].serializers[Subject.VALUE]) == expected


def test_on_the_same_line_nothing_changes() -> None:
    old = replace(job_of(value(POJO)), classes=load_classes(CLASSES))
    report = check_jobs(old, describe_upgraded_job(old, (1, 20)), target="1.20")
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE


def test_what_kryo_2_wrote_is_refused_on_flink_2() -> None:
    old = job_of(value(POJO))
    report = check_jobs(old, describe_upgraded_job(old, (2, 3)), target="2.3")
    paths = {finding.path for check in report.checks for finding in check.findings}
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    assert paths == {"value.tags", "value.note"}


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (elements("topic-partition-offset-states", build.basic("Long")), "FlinkKafkaConsumer"),
        (elements("next-transactional-id-hint-v2", build.basic("Long")), "FlinkKafkaProducer"),
        (elements("Kinesis-Stream-Shard-State", build.basic("Long")), "FlinkKinesisConsumer"),
        (value(Kryo(snapshot_class="org.apache.flink.api.scala.typeutils.X", type_class="")), "Scala"),
    ],
)
def test_what_flink_2_no_longer_has(state: JobState, name: str) -> None:
    old = job_of(state)
    (check,) = [
        each
        for each in check_jobs(old, describe_upgraded_job(old, (2, 3)), target="2.3").checks
        if each.subject is Subject.STATE
    ]
    assert check.outcome is Outcome.INCOMPATIBLE
    assert name in check.reason
    same_line = check_jobs(old, describe_upgraded_job(old, (1, 20)), target="1.20")
    assert same_line.verdict is CheckVerdict.FULLY_COMPATIBLE


def test_a_state_of_that_name_that_is_not_of_an_operator() -> None:
    old = job_of(value(build.basic("Long"), "topic-partition-offset-states"))
    assert check_jobs(old, describe_upgraded_job(old, (2, 3)), target="2.3").ok


def test_operators_without_known_uid_are_named() -> None:
    old = job_of(value(build.basic("Long")), label="1" * 32)
    assert any("1" * 32 in note for note in check_jobs(old, describe_upgraded_job(old, (2, 3)), target="2.3").notes)
    named = job_of(value(build.basic("Long")))
    assert not check_jobs(named, describe_upgraded_job(named, (2, 3)), target="2.3").notes


def test_what_a_draft_leaves_out_is_said_with_the_reason() -> None:
    (path,) = SHOP.iterdir()
    snapshot = open_snapshot(str(path), declare({"uids": ["customers", "views"]}))
    old = describe_job(snapshot)
    new = describe_upgraded_job(old, (2, 3))
    draft = draft_from_report(snapshot, new, check_jobs(old, new, target="2.3"), "r")
    assert draft.migration.changes == ()
    assert [remark.partition(": not drafted: ")[0] for remark in draft.remarks] == [
        "customers / visits",
        "customers / customer",
    ]


def test_a_field_that_a_draft_leaves_to_kryo_is_said() -> None:
    # Flink 2 keeps Kryo for collections of collections.
    declared = load_classes(
        "com.acme.shop.Customer: [name: String, tags: List<String>, articles: 'Map<String, List<Long>>']"
    )
    (path,) = SHOP.iterdir()
    snapshot = open_snapshot(str(path), uids=["customers"], classes=declared)
    old = describe_job(snapshot)
    new = describe_upgraded_job(old, (2, 3))
    draft = draft_from_report(snapshot, new, check_jobs(old, new, target="2.3"), "r")
    assert [each.state for each in draft.migration.changes] == ["customer"]
    assert any("customers / customer: value.articles is left as it is" in remark for remark in draft.remarks)


def test_fields_in_elements_of_lists_are_named_as_the_check_names_them() -> None:
    declared = load_classes("com.acme.shop.Visit: [page: String, millis: long, articles: List<String>]")
    (path,) = SHOP.iterdir()
    snapshot = open_snapshot(str(path), uids=["customers"], classes=declared)
    old = describe_job(snapshot)
    kept = {"page": build.basic("String"), "millis": build.basic("Long"), "articles": Kryo(type_class="java.util.List")}
    visits = JobState(
        "visits",
        StateKind.LIST,
        {
            Subject.NAMESPACE: build.VOID_NAMESPACE,
            Subject.VALUE: build.list_of(build.pojo("com.acme.shop.Visit", kept)),
        },
    )
    new = replace(old, operators=tuple(replace(each, states=(visits,)) for each in old.operators if each.states))
    report = check_jobs(old, new, target="2.3")
    finding = SerializerDifference(
        path="element.articles",
        old=None,
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason="why",
        unnoticed=True,
    )
    checks = tuple(
        replace(each, findings=(finding,)) if each.state == "visits" and each.subject is Subject.ELEMENT else each
        for each in report.checks
    )
    drafted = Migration("r", None, "", (Change("customers", "visits", (), (), impossible="not asked"),))
    remarks = list(explain_missing(replace(report, checks=checks), new, drafted, ()))
    assert any("customers / visits: element.articles is left as it is: why" in remark for remark in remarks)
