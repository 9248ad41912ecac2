"""Proofs as suites of Great Expectations: the numbers of a report, judged, kept and shown in data docs.

The proof itself compares records without Great Expectations (`spark/proof.py`). Here each of its checks is a few
expectations on the numbers of records that it compared, so that a team sees proofs where it sees its other suites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.spark.expectations import import_expectations
from state_pipelines.spark.suites import define_batch, open_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from great_expectations.expectations.expectation import Expectation

    from state_pipelines.operations.proofs import ProofCheck, ProofReport

_SOURCE = "proofs"
_HOLDS = "holds"


def judge_report(
    report: ProofReport, name: str, *, project: str | Path | None = None, title: str = ""
) -> dict[str, tuple[str, ...]]:
    """Judge the numbers of a report by a suite of Great Expectations.

    Args:
        report: the report of a migration, rescaling or conversion.
        name: of the suite, validation definition and checkpoint, such as `orders.migrated_savepoint`.
        project: directory of a project of Great Expectations that keeps results and data docs; None keeps nothing.
        title: name of the run in data docs.

    Returns:
        For each check the expectations that its numbers do not meet; empty for a check that holds.

    Raises:
        UsageError: Great Expectations is not installed.
    """
    import_expectations()
    import great_expectations as gx
    import pandas as pd
    from great_expectations.checkpoint import UpdateDataDocsAction

    context = open_context(project)
    columns = {column: [value] for check in report.checks for column, value in _list_numbers(check)}
    suite = gx.ExpectationSuite(
        name=name, expectations=[each for check in report.checks for each in _list_expectations(check)]
    )
    batch = define_batch(context.data_sources.add_or_update_pandas(_SOURCE), name)
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add_or_update(suite))
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            actions=[UpdateDataDocsAction(name="update data docs")] if project is not None else [],
        )
    )
    result = checkpoint.run(
        batch_parameters={"dataframe": pd.DataFrame(columns)}, run_id=gx.RunIdentifier(run_name=title or name)
    )
    (validated,) = result.run_results.values()
    unmet: dict[str, list[str]] = {check.name: [] for check in report.checks}
    for each in validated.results:
        config = each.expectation_config
        if config is not None and not each.success:
            unmet[config.kwargs["column"].partition(" ")[0]].append(f"{config.type} of {config.kwargs['column']!r}")
    return {check: tuple(texts) for check, texts in unmet.items()}


def _list_numbers(check: ProofCheck) -> Iterator[tuple[str, Any]]:
    """Columns of a check, named by the check and the number."""
    yield f"{check.name} {_HOLDS}", check.ok
    if check.counts is not None:
        for number, value in check.counts.to_numbers().items():
            yield f"{check.name} {number}", value


def _list_expectations(check: ProofCheck) -> Iterator[Expectation]:
    import great_expectations.expectations as gxe
    from great_expectations.expectations.metadata_types import FailureSeverity

    severity = FailureSeverity.CRITICAL if check.blocking else FailureSeverity.WARNING
    yield gxe.ExpectColumnValuesToBeInSet(
        column=f"{check.name} {_HOLDS}", value_set=[True], severity=severity, notes=check.description
    )
    if check.counts is not None:
        for number in check.counts.to_numbers():
            if number != "rows compared":
                yield gxe.ExpectColumnValuesToBeBetween(
                    column=f"{check.name} {number}", min_value=0, max_value=0, severity=severity
                )
