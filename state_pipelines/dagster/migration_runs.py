"""Runs of `migrate_snapshot`: which a snapshot had, and which failed ones are requested again.

They migrate by the revisions of a Flink job, or to its new query.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets import savepoints, snapshots
from state_pipelines.dagster.failures import ERROR_TAG, read_outcome
from state_pipelines.dagster.jobs import MIGRATE, SQL_REPORT
from state_pipelines.dagster.sql_queries import QUERIES, are_queries_equal, identify_queries
from state_pipelines.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.snapshot import Snapshot

PARTITION_TAG = "dagster/partition"
RUN_KEY_TAG = "dagster/run_key"
WILL_RETRY_TAG = "dagster/will_retry"
"""Tag of a failed run that Dagster itself retries (`run_retries` of the instance)."""

_OVERLAP = 600
"""Seconds for which failures are looked at again: databases and daemons have clocks of their own."""

_MOST_FAILURES = 50
_MOST_MATERIALIZATIONS = 20

_CODE_VERSION_TAG = "dagster/code_version"
"""Tag by which Dagster keeps the code version of a materialisation: here that of the revisions."""

_TRANSIENT = frozenset({StorageError.__name__})


@dataclass(frozen=True)
class FailedRun:
    """A failed run of a migration.

    Attributes:
        key: partition key of the snapshot.
        run: the run.
        attempt: its number among the runs of this snapshot by the same revisions or queries, from 1.
        next_attempt: number of the next run; None if there is none.
    """

    key: str
    run: dg.DagsterRun
    attempt: int
    next_attempt: int | None


class MigrationRuns:
    """The runs of a Flink job that migrate snapshots.

    Args:
        job: the Flink job.
        instance: the Dagster instance.
    """

    def __init__(self, job: FlinkJob, instance: dg.DagsterInstance) -> None:
        self._job = job
        self._instance = instance

    @cached_property
    def _version(self) -> str:
        """Version of the revisions or of both queries; these files are read only when the version is needed."""
        return self._job.revisions.version if self._job.new_query is None else identify_queries(self._job)

    def explain_target(self, snapshot: Snapshot) -> str:
        """Return why there is nothing to migrate in a snapshot; empty where a run has to be requested.

        With a new query, the run decides: it compiles both queries, which takes longer than a tick has.

        Raises:
            StateError: the revisions or queries cannot be read, or the revision of the snapshot cannot be derived.
        """
        if self._job.new_query is not None:
            return "new_query is the query that runs, nothing to do" if are_queries_equal(self._job) else ""
        if self._job.revisions.plan(snapshot):
            return ""
        return f"already at {self._job.revisions.name_target()}, nothing to do"

    def make_request(self, key: str, attempt: int) -> dg.RunRequest:
        """Return the request of a run that migrates, without the state tables, which automation writes later."""
        names = [snapshots.COMPATIBILITY_REPORT, savepoints.MIGRATED_SAVEPOINT]
        names += [] if self._job.new_query is None else [SQL_REPORT]
        assets = [self._job.key(each) for each in names]
        return dg.RunRequest(run_key=self._name(key, attempt), partition_key=key, asset_selection=assets)

    def decide(self, key: str) -> tuple[int | None, str]:
        """Return the number of the run to be requested for a snapshot, or None and the reason why there is none.

        A materialisation by the same revisions shows that the snapshot is migrated, whoever has launched its run, and
        even if runs were deleted or the code location was renamed.
        """
        if migrated := self._describe_migrated(key):
            return None, migrated
        runs = self._list(key)
        attempts = [each for run in runs if (each := self._count(key, run)) is not None]
        if not attempts:
            return 1, ""
        newest = runs[0]
        name = f"{key}: run {newest.run_id[:8]}"
        if not newest.is_finished:
            return None, f"{name} is {newest.status.value.lower()}"
        if newest.is_success:
            return None, self._explain_migrated(key, newest.run_id)
        return max(attempts) + 1, ""

    def _describe_migrated(self, key: str) -> str:
        """Name the run that has migrated the snapshot by the same revisions or queries; empty if there is none."""
        asset = self._job.key(savepoints.MIGRATED_SAVEPOINT)
        records = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[key])
        found = self._instance.fetch_materializations(records, limit=_MOST_MATERIALIZATIONS).records
        target = self._job.revisions.name_target()
        for each in found:
            event = each.asset_materialization
            if event is not None and self._job.new_query is not None:
                if QUERIES in event.metadata and event.metadata[QUERIES].value == self._version:
                    return self._explain_migrated(key, each.run_id)
                continue
            if event is None or (event.tags or {}).get(_CODE_VERSION_TAG) != self._version:
                continue
            # Skip runs that were configured for another target revision than that of the job.
            if "revision" not in event.metadata or event.metadata["revision"].value == target:
                return self._explain_migrated(key, each.run_id)
        return ""

    def _explain_migrated(self, key: str, run_id: str) -> str:
        return (
            f"{key}: run {run_id[:8]} has migrated it {self._describe_way()}: for another run launch "
            f"{self._job.prefix(MIGRATE)} for its partition"
        )

    def _describe_way(self) -> str:
        return "by the same revisions" if self._job.new_query is None else "for the same queries"

    def list_failures(self, since: float | None) -> tuple[float, Sequence[FailedRun]]:
        """Return the time of the newest failed run, and the failures that call for a decision.

        Args:
            since: time of the newest failed run at the tick before, in seconds of the epoch; None at the first tick,
                which only returns the time.
        """
        name = self._job.prefix(MIGRATE)
        failed = [dg.DagsterRunStatus.FAILURE]
        if since is None:
            filters = dg.RunsFilter(job_name=name, statuses=failed)
            records = self._instance.get_run_records(filters, limit=1, order_by="update_timestamp")
            return (records[0].update_timestamp.timestamp() if records else 0.0), ()
        after = datetime.fromtimestamp(max(since - _OVERLAP, 0), UTC)
        records = self._instance.get_run_records(
            dg.RunsFilter(job_name=name, statuses=failed, updated_after=after),
            limit=_MOST_FAILURES,
            order_by="update_timestamp",
            ascending=True,
        )
        last = max([since, *(each.update_timestamp.timestamp() for each in records)])
        return last, [failure for each in records if (failure := self._describe(each.dagster_run)) is not None]

    def explain_retry(self, failure: FailedRun) -> str:
        """Explain whether a failed run is requested again, and why."""
        name = f"{failure.key}: run {failure.run.run_id[:8]} failed"
        if failure.next_attempt is not None:
            return f"{name} without an error of the state, and is requested again (attempt {failure.next_attempt})"
        return (
            f"{name}, the last of {failure.attempt} attempts: launch {self._job.prefix(MIGRATE)} for its partition "
            "when the cause is removed"
        )

    def _describe(self, run: dg.DagsterRun) -> FailedRun | None:
        """Return a failed run to decide on; None if the sensor did not request it, or no repetition is needed."""
        key = run.tags.get(PARTITION_TAG)
        attempt = None if key is None else self._count(key, run)
        retries = self._job.watch.retries
        if key is None or attempt is None or not retries or self._is_explained(run):
            return None
        if self._list(key)[0].run_id != run.run_id:
            return None
        return FailedRun(key, run, attempt, attempt + 1 if attempt <= retries else None)

    def _is_explained(self, run: dg.DagsterRun) -> bool:
        """Return whether to request no repetition: the state or a check would fail again, or Dagster retries it."""
        if run.tags.get(WILL_RETRY_TAG, "").lower() == "true":
            return True
        error = run.tags.get(ERROR_TAG)
        if error is not None:
            return error not in _TRANSIENT
        return bool(read_outcome(self._instance, run).failed_checks)

    def _list(self, key: str) -> Sequence[dg.DagsterRun]:
        """Return the runs for a snapshot, whoever has launched them, newest first."""
        filters = dg.RunsFilter(job_name=self._job.prefix(MIGRATE), tags={PARTITION_TAG: key})
        return self._instance.get_runs(filters)

    def _name(self, key: str, attempt: int) -> str:
        name = f"{key}-{self._version}"
        return name if attempt == 1 else f"{name}#{attempt}"

    def _count(self, key: str, run: dg.DagsterRun) -> int | None:
        """Return the number of a run by its run key; None if the sensor did not request it for these revisions."""
        name, _, number = run.tags.get(RUN_KEY_TAG, "").partition(f"{self._name(key, 1)}#")
        if number:
            return int(number) if not name and number.isascii() and number.isdigit() else None
        return 1 if name == self._name(key, 1) else None
