"""Runs of `migrate_snapshot` in the current process, without a server or log output; used by the demo."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.builder import build_flink_job
from state_pipelines.dagster.jobs import MIGRATE
from state_pipelines.dagster.partitions import make_partition_key
from state_pipelines.dagster.run_outcomes import NOT_EVALUATED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one asset check.

    Attributes:
        name: of the check.
        passed: whether it passed.
        description: of the check.
        observed: the observed value.
    """

    name: str
    passed: bool
    description: str
    observed: str


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        success: whether every step succeeded.
        metadata: metadata of each materialised asset, by its name without the job.
        checks: results of checks, in execution order.
        failures: messages of failed steps.
    """

    success: bool
    metadata: Mapping[str, Mapping[str, Any]]
    checks: tuple[CheckOutcome, ...]
    failures: tuple[str, ...]


def migrate_snapshot(job: FlinkJob, snapshot: Snapshot, *, home: Path) -> Outcome:
    """Run the job `migrate_snapshot` for one snapshot, with logs and warnings of Dagster switched off.

    Args:
        job: the Flink job.
        snapshot: a snapshot below its roots.
        home: directory for `DAGSTER_HOME`, which must exist; it keeps the history that the UI shows.
    """
    os.environ["DAGSTER_HOME"] = str(home)
    key = make_partition_key(snapshot)
    shared = dg.Definitions(executor=dg.in_process_executor)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), dg.DagsterInstance.get() as instance:
            warnings.simplefilter("ignore")
            instance.add_dynamic_partitions(str(job.partitions.name), [key])
            defs = dg.Definitions.merge(build_flink_job(job), shared)
            result = defs.resolve_job_def(job.prefix(MIGRATE)).execute_in_process(
                instance=instance,
                partition_key=key,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            return _read_outcome(result)
    finally:
        logging.disable(logging.NOTSET)


def _read_outcome(result: dg.ExecuteInProcessResult) -> Outcome:
    metadata = {
        event.asset_key.path[-1]: {name: value.value for name, value in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }
    checks = [
        CheckOutcome(
            each.check_name,
            each.passed,
            each.description or each.check_name.replace("_", " "),
            str(each.metadata["observed"].value) if "observed" in each.metadata else "",
        )
        for each in result.get_asset_check_evaluations()
        if NOT_EVALUATED not in each.metadata
    ]
    failures = []
    for event in result.get_step_failure_events():
        error = event.step_failure_data.error
        while error is not None and error.cause is not None:
            error = error.cause
        failures.append(f"{event.step_key}: {error.message.strip() if error else 'failed'}")
    return Outcome(result.success, metadata, tuple(checks), tuple(failures))
