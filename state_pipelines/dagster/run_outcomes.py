"""Outcomes of runs as plain values, for the result files of requests and for alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import DagsterEvent

_PLAIN = (
    dg.TextMetadataValue,
    dg.IntMetadataValue,
    dg.FloatMetadataValue,
    dg.BoolMetadataValue,
    dg.PathMetadataValue,
    dg.UrlMetadataValue,
    dg.TimestampMetadataValue,
    dg.NullMetadataValue,
)
_LONGEST = 1000
_LONGEST_REASON = 10_000


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a finished run.

    Attributes:
        success: whether all steps succeeded.
        materialized: plain metadata (text, numbers, paths) of materialised assets and op outputs, by name.
        failed_checks: observed values of failed asset checks, by check name.
        error: messages of failed steps, one per line; empty on success.
    """

    success: bool
    materialized: Mapping[str, Mapping[str, object]]
    failed_checks: Mapping[str, str]
    error: str


def read_outcome(instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunOutcome:
    """Read the outcome of a finished run from its events."""
    materialized: dict[str, Mapping[str, object]] = {}
    failed: dict[str, str] = {}
    errors: list[str] = []
    for event in _list_events(instance, run.run_id):
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            materialization = event.step_materialization_data.materialization
            materialized[materialization.asset_key.to_user_string()] = select_plain(materialization.metadata)
        elif event.event_type is dg.DagsterEventType.STEP_OUTPUT:
            metadata = select_plain(event.step_output_data.metadata)
            if metadata and event.step_key is not None:
                materialized.setdefault(event.step_key, metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if not check.passed:
                observed = check.metadata.get("observed")
                failed[check.check_name] = "" if observed is None else str(observed.value)[:_LONGEST]
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE:
            # Exceptions of clients and of Spark may quote URLs and options.
            errors.append(f"{event.step_key}: {redact(read_reason(event))[:_LONGEST_REASON]}")
    success = run.status is dg.DagsterRunStatus.SUCCESS
    if not success and not errors:
        errors.append(f"the run ended with the status {run.status.value.lower()}, but no step failed")
    return RunOutcome(success, materialized, failed, "\n".join(errors))


def read_reason(event: DagsterEvent) -> str:
    """Return why a step failed: the description of its `dg.Failure`, or the message of the innermost cause."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "the step failed without a message"


def select_plain(metadata: Mapping[str, dg.MetadataValue]) -> dict[str, object]:
    """Return the text, numbers and paths of metadata; tables, Markdown and long texts are left out."""
    plain: dict[str, object] = {}
    for name, value in metadata.items():
        if isinstance(value, _PLAIN) and not (isinstance(value.value, str) and len(value.value) > _LONGEST):
            plain[name] = value.value
    return plain


def _list_events(instance: dg.DagsterInstance, run_id: str) -> Iterator[DagsterEvent]:
    wanted = {
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.STEP_OUTPUT,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
        dg.DagsterEventType.STEP_FAILURE,
    }
    for entry in instance.all_logs(run_id, of_type=wanted):
        if entry.dagster_event is not None:
            yield entry.dagster_event
