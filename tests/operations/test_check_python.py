"""`check` on states of Python functions: declared types decide, for Flink compares byte arrays only."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.javaclasses import ClassPath
from state_pipelines.operations.check.check import check, check_jobs
from state_pipelines.operations.check.check_report import CheckVerdict
from state_pipelines.operations.jobs.job_state import declare_type, describe_job, extract_types
from state_pipelines.snapshot import open_snapshot
from tests.conformance.test_pyflink import SAVEPOINT, open_typed

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.check.check_report import CheckReport


def check_type(place: str, text: str) -> CheckReport:
    """The savepoint, with declared types, against a job that has another type in one state."""
    old = describe_job(open_typed())
    return check_jobs(old, declare_type(old, place, text, extract_types(old, ClassPath(()), (2, 2))))


def test_the_same_types_restore() -> None:
    assert check_type("states/typed", "Types.ROW_NAMED(['n', 's'], [Types.LONG(), Types.STRING()])").verdict is (
        CheckVerdict.FULLY_COMPATIBLE
    )
    assert check_type("states/map", "MAP<STRING, BIGINT>").verdict is CheckVerdict.FULLY_COMPATIBLE


def test_a_field_more_does_not_restore() -> None:
    report = check_type("states/typed", "ROW<n BIGINT, s STRING, grade INT>")

    assert report.verdict is CheckVerdict.INCOMPATIBLE
    (finding,) = [finding for each in report.checks for finding in each.findings]
    assert (finding.old, finding.new) == ("ROW<n BIGINT, s STRING>", "ROW<n BIGINT, s STRING, grade INT>")


def test_other_values_of_a_map_and_elements_of_a_list_do_not_restore() -> None:
    assert check_type("states/map", "MAP<STRING, INT>").verdict is CheckVerdict.INCOMPATIBLE
    assert check_type("states/items", "ListState<ROW<sku STRING>>").verdict is CheckVerdict.INCOMPATIBLE


def test_a_type_of_one_side_alone_tells_nothing() -> None:
    old = describe_job(open_snapshot(str(SAVEPOINT)))
    new = declare_type(old, "states/typed", "ROW<n BIGINT>", extract_types(old, ClassPath(()), (2, 2)))

    assert check_jobs(old, new).verdict is CheckVerdict.TO_BE_DETERMINED


def test_two_jobs_without_declared_types_are_undetermined(tmp_path: Path) -> None:
    other = shutil.copytree(SAVEPOINT, tmp_path / "other")

    assert check(open_snapshot(str(SAVEPOINT)), open_snapshot(str(other))).verdict is CheckVerdict.TO_BE_DETERMINED
    assert check(open_snapshot(str(SAVEPOINT)), open_snapshot(str(SAVEPOINT))).verdict is CheckVerdict.FULLY_COMPATIBLE


def test_states_that_the_new_job_leaves_alone_need_no_declaration() -> None:
    old = describe_job(open_typed("states.typed=ROW<n BIGINT, s STRING>"))
    new = declare_type(old, "states/typed", "ROW<n BIGINT, s STRING>", extract_types(old, ClassPath(()), (2, 2)))

    assert check_jobs(old, replace(new, name="new", metadata_version=None)).verdict is CheckVerdict.FULLY_COMPATIBLE
