"""The proof of a rescaling, judged by Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.spark.expectations import import_expectations, judge
from state_pipelines.spark.reports import ProofCheck, ProofReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.operations.rescaling.proof import RescaleProof

ENTRIES = "entries_kept"
CONTENTS = "contents_kept"
PLACES = "key_groups_in_range"
HASHES = "key_groups_match_key_hash"

_CHECKS = {
    ENTRIES: ("every state has as many entries as before, less what was to go", "entries <> expected_entries"),
    CONTENTS: ("the bytes of every entry are those that were there", "content <> expected_content"),
    PLACES: ("every entry lies in a key group of its subtask", "misplaced > 0"),
    HASHES: ("every key lies in the key group that its hash gives", "misfiled > 0"),
}
_SCHEMA = (
    "operator string, state string, expected_entries long, entries long, expected_content string, content string, "
    "misplaced long, misfiled long"
)


def judge_rescaling(spark: SparkSession, proof: RescaleProof) -> ProofReport:
    """Let Great Expectations judge the counts and digests of both sides, one row per state.

    Args:
        spark: the active session.
        proof: what was counted.
    """
    expectations = import_expectations()
    suite = [
        expectations.UnexpectedRowsExpectation(unexpected_rows_query=f"SELECT * FROM {{batch}} WHERE {wrong}")
        for _, wrong in _CHECKS.values()
    ]
    judgements = judge(_make_table(spark, proof), "rescaling", suite)
    total = sum(row.after.records for row in proof.rows)
    hashed = sum(row.misfiled is not None for row in proof.rows)
    checks = []
    for (name, (description, _)), judgement in zip(_CHECKS.items(), judgements, strict=True):
        observed = f"{judgement.observed or 0} of {len(proof.rows)} states differ"
        if judgement.success:
            observed = f"{total:,} entries of {len(proof.rows)} states"
            if name == HASHES:
                observed = f"{hashed} states with new key groups" if hashed else "key groups are those of before"
        checks.append(
            ProofCheck(
                name, judgement.success, description, judgement.expectation, "no such state", observed, judgement.sample
            )
        )
    operators = ", ".join(dict.fromkeys(row.operator for row in proof.rows))
    return ProofReport(operators, f"{len(proof.rows)} states", total, 0, tuple(checks))


def _make_table(spark: SparkSession, proof: RescaleProof) -> DataFrame:
    rows = [
        (
            row.operator,
            row.state,
            row.before.records,
            row.after.records,
            f"{row.before.bytes} {row.before.content:016x}",
            f"{row.after.bytes} {row.after.content:016x}",
            row.misplaced,
            row.misfiled or 0,
        )
        for row in proof.rows
    ]
    return spark.createDataFrame(rows, _SCHEMA)
