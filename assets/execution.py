"""Running the job for one snapshot in this process, without a server: quietly, with its outcome as plain values."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.definitions import defs
from assets.jobs import migrate_snapshot
from assets.partitions import make_partition_key, snapshots
from resources import MigrationResource, StorageResource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class CheckOutcome:
    """One asset check.

    Attributes:
        name: of the check.
        passed: whether it did.
        description: what it says.
        observed: what was seen.
    """

    name: str
    passed: bool
    description: str
    observed: str


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        success: whether every step succeeded.
        metadata: of each asset that was materialised, by its name.
        checks: in the order in which they ran.
        failures: why steps failed.
    """

    success: bool
    metadata: Mapping[str, Mapping[str, Any]]
    checks: tuple[CheckOutcome, ...]
    failures: tuple[str, ...]


def run_job(snapshot: Snapshot, *, home: Path, storage: StorageResource, migrations: str) -> Outcome:
    """Run `migrate_snapshot` for one snapshot; logs and warnings of Dagster stay silent.

    Args:
        snapshot: lies below the directory that `storage` watches.
        home: `DAGSTER_HOME`, which must exist; keeps the history that the UI shows.
        storage: the directories.
        migrations: the directory of revisions.
    """
    os.environ["DAGSTER_HOME"] = str(home)
    key = make_partition_key(snapshot)
    resources = {**(defs.resources or {}), "storage": storage, "migration": MigrationResource(migrations=migrations)}
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), dg.DagsterInstance.get() as instance:
        warnings.simplefilter("ignore")
        instance.add_dynamic_partitions(str(snapshots.name), [key])
        result = defs.resolve_job_def(migrate_snapshot.name).execute_in_process(
            instance=instance,
            partition_key=key,
            raise_on_error=False,
            resources=resources,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        logging.disable(logging.NOTSET)
        return _read_outcome(result)


def _read_outcome(result: dg.ExecuteInProcessResult) -> Outcome:
    metadata = {
        event.asset_key.to_user_string(): {name: value.value for name, value in event.materialization.metadata.items()}
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
    ]
    failures = []
    for event in result.get_step_failure_events():
        error = event.step_failure_data.error
        while error is not None and error.cause is not None:
            error = error.cause
        failures.append(f"{event.step_key}: {error.message.strip() if error else 'failed'}")
    return Outcome(result.success, metadata, tuple(checks), tuple(failures))
