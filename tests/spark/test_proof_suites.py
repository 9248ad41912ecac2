"""Proofs as suites of Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.proofs import ProofCheck, ProofReport, RecordCounts
from state_pipelines.spark.expectations import judge_report

if TYPE_CHECKING:
    from pathlib import Path


def make_report(*checks: ProofCheck) -> ProofReport:
    return ProofReport("orders", "order", 10, 4, checks)


def make_check(name: str, counts: RecordCounts | None, *, ok: bool = True) -> ProofCheck:
    return ProofCheck(name, ok, "", "", "", counts)


def test_the_numbers_of_a_proof_that_holds_meet_their_expectations() -> None:
    report = make_report(make_check("round_trip", RecordCounts(10)), make_check("source_read_whole", None))
    assert judge_report(report, "orders.migrated_savepoint") == {"round_trip": (), "source_read_whole": ()}


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        ("differing", RecordCounts(10, differing=1)),
        ("missing", RecordCounts(10, missing=1)),
        ("unexpected", RecordCounts(10, unexpected=1)),
    ],
)
def test_every_number_of_differences_is_expected_to_be_zero(number: str, counts: RecordCounts) -> None:
    judged = judge_report(make_report(make_check("round_trip", counts), make_check("key_sets", RecordCounts(10))), "s")
    assert judged["key_sets"] == ()
    (unmet,) = judged["round_trip"]
    assert unmet == f"expect_column_values_to_be_between of 'round_trip rows {number}'"


def test_a_check_that_does_not_hold_is_not_met_whatever_its_numbers() -> None:
    judged = judge_report(make_report(make_check("source_read_whole", None, ok=False)), "s")
    assert judged == {"source_read_whole": ("expect_column_values_to_be_in_set of 'source_read_whole holds'",)}


def test_results_are_kept_in_the_data_docs_of_a_project(tmp_path: Path) -> None:
    report = make_report(make_check("round_trip", RecordCounts(10)))
    for title in ("first", "second"):
        judge_report(report, "orders.migrated_savepoint", project=tmp_path, title=title)
    pages = [path for path in tmp_path.rglob("*.html") if "validations" in path.parts]
    assert len(pages) == 2
    assert "round_trip rows differing" in pages[0].read_text(encoding="utf-8")
