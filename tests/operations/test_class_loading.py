"""`check`: serializer snapshot classes that a release of Flink does not have, and those that nothing here knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.check.check import CheckReport, CheckVerdict, check, check_jobs, parse_release
from state_pipelines.operations.check.check_report import Action
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject, describe_job
from state_pipelines.operations.jobs.new_job import describe_upgraded_job
from state_pipelines.serializers import build
from state_pipelines.serializers.beam import BeamSerializer, Coder
from state_pipelines.serializers.snapshot_classes import CLASSES_FILE, find_releases, list_releases
from state_pipelines.serializers.tree import Opaque, Serializer, StateKind
from state_pipelines.snapshot import open_snapshot
from tests.flink.make_flink_classes import RELEASES, find_serializers, format_classes
from tests.snapshots import CASES, SQL, Case

if TYPE_CHECKING:
    from pathlib import Path

COMMON = "org.apache.flink.api.common.typeutils."
CONFIG = f"{COMMON}ParameterlessTypeSerializerConfig"
LONG = f"{COMMON}base.LongSerializer$LongSerializerSnapshot"
MONEY = "com.acme.MoneySnapshot"


def opaque(name: str) -> Opaque:
    return Opaque(snapshot_class=name, snapshot_version=1, unknown_class=name, raw=b"1")


def job_of(value: Serializer, *, key: Serializer | None = None, kryo_version: int = 2) -> JobDescription:
    state = JobState("s", StateKind.VALUE, {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: value})
    operator = JobOperator("0" * 32, "orders", 1, 128, key or build.basic("Long"), (state,))
    return JobDescription("old", (operator,), metadata_version=2, kryo_version=kryo_version)


def upgrade(old: JobDescription, target: str) -> CheckReport:
    return check_jobs(old, describe_upgraded_job(old, parse_release(target)), target=target)


def test_the_table_has_the_releases_that_its_program_reads() -> None:
    assert list_releases() == tuple(parse_release(version) for version, _ in RELEASES)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        (LONG, (1, 9), (2, 3)),
        (CONFIG, (1, 9), (1, 16)),
        (f"{COMMON}base.SetSerializerSnapshot", (2, 0), (2, 3)),
        ("org.apache.flink.api.scala.typeutils.ScalaCaseClassSerializerSnapshot", (1, 9), (1, 20)),
        ("org.apache.flink.table.runtime.typeutils.RowDataSerializer$RowDataSerializerSnapshot", (1, 11), (2, 3)),
    ],
)
def test_the_releases_that_have_a_class(name: str, first: tuple[int, int], last: tuple[int, int]) -> None:
    found = find_releases(name)
    assert (found[0], found[-1]) == (first, last)
    assert found == tuple(each for each in list_releases() if first <= each <= last)


@pytest.mark.parametrize("name", [MONEY, "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"])
def test_classes_outside_of_the_distribution_are_not_in_the_table(name: str) -> None:
    assert find_releases(name) == ()


def test_the_table_is_written_as_it_is_read() -> None:
    versions = [version for version, _ in RELEASES]
    names = [line.partition("\t")[0] for line in CLASSES_FILE.read_text().splitlines()[1:]]
    classes = {
        version: [each for each in names if parse_release(version) in find_releases(each)] for version in versions
    }
    assert format_classes(classes) == CLASSES_FILE.read_text()
    assert format_classes({"1.0.0": ["A"], "1.1.0": ["B"], "1.2.0": ["A", "B"]}).splitlines()[1:] == [
        "A\t0,2",
        "B\t1-2",
    ]


def test_serializers_are_found_by_their_ancestors() -> None:
    root = f"{COMMON}TypeSerializerSnapshot"
    ancestors = {
        "Base": (frozenset({root}), True),
        "Mine": (frozenset({"Base"}), False),
        "Other": (frozenset({"java.lang.Object"}), False),
    }
    assert list(find_serializers(ancestors)) == ["Mine"]


@pytest.mark.parametrize("target", ["1.17", "1.20", "2.0", "2.3"])
def test_a_class_that_flink_has_removed_fails_the_restore(target: str) -> None:
    report = upgrade(job_of(opaque(CONFIG)), target)
    (found,) = (each for each in report.checks if each.state)
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    assert (found.subject, found.action) == (Subject.SNAPSHOT_CLASS, Action.CHANGE_JOB)
    assert found.error.startswith(f"Could not find class '{CONFIG}' in classpath. TypeSerializerConfigSnapshot and")
    assert "Restore with Flink 1.16" in found.remedy


def test_a_class_that_flink_has_added_fails_the_restore_in_an_older_one() -> None:
    bitmap = build.basic("Bitmap")
    assert upgrade(job_of(bitmap, kryo_version=5), "2.3").verdict is CheckVerdict.FULLY_COMPATIBLE
    report = upgrade(job_of(bitmap, kryo_version=5), "2.2")
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    assert "Flink 2.3 has it" in report.checks[-1].reason
    assert report.checks[-1].remedy == "Restore with Flink 2.3 or newer"
    assert report.checks[-1].error.endswith("BitmapSerializerSnapshot' in classpath.")


def test_the_class_may_be_that_of_keys_or_inside_of_another_serializer() -> None:
    assert upgrade(job_of(build.basic("Long"), key=opaque(CONFIG)), "2.2").verdict is CheckVerdict.INCOMPATIBLE
    inside = build.list_of(build.tuple_of(build.basic("Long"), opaque(CONFIG)))
    assert upgrade(job_of(inside), "1.20").verdict is CheckVerdict.INCOMPATIBLE


def test_flink_loads_the_classes_of_states_that_the_job_does_not_register() -> None:
    old = job_of(opaque(CONFIG))
    (operator,) = old.operators
    new = JobDescription("new", (JobOperator(operator.id, "orders", 1, 128, operator.key, ()),))
    assert check_jobs(old, new, target="1.20").verdict is CheckVerdict.INCOMPATIBLE
    assert check_jobs(old, new, target="1.16").verdict is CheckVerdict.PARTIALLY_COMPATIBLE


@pytest.mark.parametrize("name", [MONEY, CONFIG])
def test_a_class_that_nothing_reads_is_open(name: str) -> None:
    report = upgrade(job_of(opaque(name)), "1.16")
    assert report.verdict is CheckVerdict.TO_BE_DETERMINED
    (finding,) = report.checks[-1].findings
    assert name in finding.reason
    assert "test run on Flink 1.16" in finding.remedy


def test_a_job_that_ran_on_the_target_has_the_class() -> None:
    old = job_of(opaque(MONEY))
    assert check_jobs(old, job_of(opaque(MONEY)), target="1.20").verdict is CheckVerdict.FULLY_COMPATIBLE
    assert check_jobs(old, job_of(opaque(MONEY)), target="2.2").verdict is CheckVerdict.TO_BE_DETERMINED


def test_a_class_of_a_library_is_open_where_the_major_release_changes() -> None:
    coder = "org.apache.beam.runners.flink.translation.types.CoderTypeSerializer$LegacySnapshot"
    schema = '{"type": "record", "name": "R", "fields": []}'
    for name, node, expected in (
        (
            coder,
            BeamSerializer(snapshot_class=coder, coder=Coder("VoidCoder"), java=b""),
            CheckVerdict.TO_BE_DETERMINED,
        ),
        ("flink-avro", build.avro("org.apache.avro.generic.GenericRecord", schema), CheckVerdict.FULLY_COMPATIBLE),
    ):
        assert upgrade(job_of(node), "1.20").verdict is CheckVerdict.FULLY_COMPATIBLE, name
        assert upgrade(job_of(node), "2.2").verdict is expected, name


def test_releases_without_known_classes() -> None:
    old = job_of(build.basic("Long"))
    assert upgrade(old, "1.8").verdict is CheckVerdict.TO_BE_DETERMINED
    assert upgrade(old, "3.0").verdict is CheckVerdict.TO_BE_DETERMINED
    newer = upgrade(old, "2.9")
    assert newer.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert any("The classes of Flink 2.9 are not known" in note for note in newer.notes)
    assert upgrade(job_of(opaque(CONFIG)), "2.9").verdict is CheckVerdict.INCOMPATIBLE


@pytest.mark.parametrize("case", [*CASES[::7], *SQL], ids=str)
def test_flink_has_the_classes_that_it_wrote(case: Case) -> None:
    release = parse_release(case.version)
    job = describe_job(case.open())
    names = {node.snapshot_class for operator in job.operators for node in operator.list_serializers()}
    assert [each for each in names if find_releases(each) and release not in find_releases(each)] == []


@pytest.mark.parametrize("target", ["1.17", "1.20", "2.2", "2.3"])
def test_savepoints_of_flink_1_7_do_not_restore_after_1_16(wild2: Path, target: str) -> None:
    savepoints = sorted((wild2 / "apache+flink" / "older").glob("*1.7*"))
    assert savepoints
    for path in savepoints:
        snapshot = open_snapshot(str(path))
        assert upgrade(describe_job(snapshot), target).verdict is CheckVerdict.INCOMPATIBLE
        assert check(snapshot, snapshot, target=target).verdict is CheckVerdict.INCOMPATIBLE
        assert upgrade(describe_job(snapshot), "1.16").verdict is CheckVerdict.TO_BE_DETERMINED
