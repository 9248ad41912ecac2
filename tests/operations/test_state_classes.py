"""`check --job-classes`: what the given classes say about each state, and classes that they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.kryo.classes import JavaType
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, JavaField, JavaMethod, list_fields
from state_pipelines.operations.check.check import CheckReport, CheckVerdict, check_jobs
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject
from state_pipelines.operations.jobs.new_job import NewCode
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.tree import Kryo, Serializer, StateKind

if TYPE_CHECKING:
    from pathlib import Path

LONG = build.basic("Long")
ORDER = build.pojo("com.acme.Order", {"id": LONG})
ORDER_CLASS = "com.acme.Order: [id: long]"


def job_of(key: Serializer = LONG, **states: Serializer) -> JobDescription:
    described = tuple(
        JobState(name, StateKind.VALUE, {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: each})
        for name, each in states.items()
    )
    return JobDescription(
        "old", (JobOperator("0" * 32, "orders", 1, 128, key, described),), metadata_version=6, kryo_version=5
    )


def judge(old: JobDescription, classes: str, folder: Path, *types: str) -> CheckReport:
    file = folder / "classes.yaml"
    file.write_text(classes)
    return check_jobs(old, NewCode((str(file),), types, ()).describe(old, (2, 2), None))


def statuses(report: CheckReport) -> dict[str, str]:
    return {each.state or "key": str(each.status) for each in report.classes}


def test_every_state_has_a_status(tmp_path: Path) -> None:
    old = job_of(order=ORDER, other=build.list_of(build.enum("com.acme.Color", "RED")), count=LONG)
    report = judge(old, ORDER_CLASS, tmp_path)
    assert statuses(report) == {
        "key": "not described by class files",
        "order": "class found",
        "other": "assumed unchanged",
        "count": "not described by class files",
    }
    assert report.verdict is CheckVerdict.TO_BE_DETERMINED
    (unseen,) = (each for each in report.checks if each.outcome is Outcome.UNDETERMINED)
    assert (unseen.state, unseen.subject) == ("other", Subject.STATE)
    assert "com.acme.Color" in unseen.reason
    assert report.to_json()["classes"][1] == {  # type: ignore[index]
        "operator": "orders",
        "state": "order",
        "status": "class found",
        "found": ["com.acme.Order"],
        "assumed": [],
    }
    assert "assumed unchanged: orders/other" in report.to_markdown()


def test_all_classes_found(tmp_path: Path) -> None:
    report = judge(job_of(order=ORDER), ORDER_CLASS, tmp_path)
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert any("come from code that `check` does not read" in note for note in report.notes)


@pytest.mark.parametrize(
    "old",
    [
        job_of(ORDER),
        job_of(order=ORDER),
        job_of(order=build.tuple_of(LONG, ORDER)),
        job_of(order=build.pojo("com.acme.Basket", {"order": ORDER})),
        job_of(order=build.tuple_of(LONG, tuple_class="com.acme.Pair")),
        job_of(order=build.avro("com.acme.Record", '{"type": "record", "name": "Record", "fields": []}')),
        job_of(order=Kryo(type_class="com.acme.Thing")),
    ],
)
def test_a_class_that_is_not_given_is_open(old: JobDescription, tmp_path: Path) -> None:
    report = judge(old, "com.acme.Basket: [order: com.acme.Order]", tmp_path)
    assert report.verdict is CheckVerdict.TO_BE_DETERMINED


def test_classes_of_libraries_need_not_be_given(tmp_path: Path) -> None:
    node = build.tuple_of(build.enum("java.time.Month", "MAY"), Kryo(type_class="java.util.List"))
    report = judge(job_of(value=node, pojo=ORDER), ORDER_CLASS, tmp_path)
    assert statuses(report)["value"] == "not described by class files"


def test_a_type_that_is_given_otherwise_needs_no_class(tmp_path: Path) -> None:
    report = judge(job_of(order=ORDER, other=ORDER), "com.acme.X: []", tmp_path, "orders/order=long")
    assert statuses(report)["order"] == "given by --type or --avro"
    assert statuses(report)["other"] == "assumed unchanged"


def test_a_class_of_the_same_name_in_another_package_is_named(tmp_path: Path) -> None:
    moved = "b.Base: []\nb.Order extends b.Base: [id: long]"
    report = judge(job_of(order=ORDER), moved, tmp_path)
    (unseen,) = (each for each in report.checks if each.outcome is Outcome.UNDETERMINED)
    assert "com.acme.Order may be b.Order now" in unseen.reason
    assert "a `rename_class` step" in unseen.remedy


def test_a_lost_pojo_is_explained_by_its_class() -> None:
    methods = (
        JavaMethod("<init>", (), "void", is_public=True),
        JavaMethod("getId", (), "long", is_public=True),
    )
    private = JavaClass(
        "com.acme.Order", fields=(JavaField("id", JavaType("long"), "long", is_public=False),), methods=methods
    )
    classes = list_fields(ClassPath((GivenClass(private),)))
    new = job_of(order=Kryo(type_class="com.acme.Order"))
    report = check_jobs(job_of(order=ORDER), JobDescription("new", new.operators, classes=classes))
    (finding,) = (each for check in report.checks for each in check.findings)
    assert finding.outcome is Outcome.INCOMPATIBLE
    assert "the field id is not public and has a getter but no public setter" in finding.reason
    assert finding.remedy == "Make id public, or give it a setter, so that com.acme.Order stays a POJO"
