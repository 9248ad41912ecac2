"""Outcomes of runs as plain values, for the result files of requests and for alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


NOT_EVALUATED = "not evaluated"
"""Metadata of a check that a failed step did not evaluate: why."""

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
_OUTCOMES = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.STEP_OUTPUT,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.STEP_FAILURE,
}
_PLANS = {dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED}
_LONGEST = 1000
_LONGEST_REASON = 10_000


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a finished run.

    Attributes:
        success: whether all steps succeeded.
        materialized: plain metadata (text, numbers, paths) of materialised or observed assets and op outputs, by name.
        failed_checks: observed values of failed asset checks, by check name; none of those that a failed step did not
            evaluate.
        error: messages of failed steps, one per line; empty on success.
        failed_steps: keys of failed steps.
    """

    success: bool
    materialized: Mapping[str, Mapping[str, object]]
    failed_checks: Mapping[str, str]
    error: str
    failed_steps: frozenset[str] = frozenset()


def read_outcome(instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunOutcome:
    """Read the outcome of a finished run from its events."""
    materialized: dict[str, Mapping[str, object]] = {}
    failed: dict[str, str] = {}
    errors: list[str] = []
    failed_steps: set[str] = set()
    for event in _list_events(instance, run.run_id, _OUTCOMES):
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            materialization = event.step_materialization_data.materialization
            materialized[materialization.asset_key.to_user_string()] = select_plain(materialization.metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
            observation = event.asset_observation_data.asset_observation
            materialized[observation.asset_key.to_user_string()] = select_plain(observation.metadata)
        elif event.event_type is dg.DagsterEventType.STEP_OUTPUT:
            metadata = select_plain(event.step_output_data.metadata)
            if metadata and event.step_key is not None:
                materialized.setdefault(event.step_key, metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if not check.passed and NOT_EVALUATED not in check.metadata:
                observed = check.metadata.get("observed")
                failed[check.check_name] = "" if observed is None else str(observed.value)[:_LONGEST]
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE:
            failed_steps.add(str(event.step_key))
            # Exceptions of clients and of Spark may quote URLs and options.
            errors.append(f"{event.step_key}: {redact(read_reason(event))[:_LONGEST_REASON]}")
    success = run.status is dg.DagsterRunStatus.SUCCESS
    if not success and not errors:
        errors.append(f"the run ended with the status {run.status.value.lower()}, but no step failed")
    return RunOutcome(success, materialized, failed, "\n".join(errors), frozenset(failed_steps))


def read_planned_assets(instance: dg.DagsterInstance, run_id: str) -> dict[str, set[dg.AssetKey]]:
    """Return the assets that each step of a run materialises or checks, whoever has launched it."""
    planned: dict[str, set[dg.AssetKey]] = {}
    for event in _list_events(instance, run_id, _PLANS):
        if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
            key: dg.AssetKey | None = event.asset_check_planned_data.asset_key
        else:
            key = event.asset_key
        if key is not None:
            planned.setdefault(str(event.step_key), set()).add(key)
    return planned


def read_reason(event: dg.DagsterEvent) -> str:
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


def _list_events(
    instance: dg.DagsterInstance, run_id: str, wanted: set[dg.DagsterEventType]
) -> Iterator[dg.DagsterEvent]:
    for entry in instance.all_logs(run_id, of_type=wanted):
        if entry.dagster_event is not None:
            yield entry.dagster_event
