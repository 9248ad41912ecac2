"""`failed_runs`: a sensor that reports failed runs of a Flink job in its log and, if configured, to a webhook."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.failures import read_outcome, read_planned_assets
from state_pipelines.dagster.triggers import share_instance

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob

NAME = "failed_runs"

INTERVAL = 60
"""Seconds between two ticks, if somebody gets a message."""

LOG_INTERVAL = 900
"""Seconds between two ticks of a job without a webhook, whose failures are only written to the log of the sensor."""

JOB_TAG = "state-pipelines/flink-job"
"""Tag of runs of other Dagster jobs that this sensor reports too; its value is the name of the Flink job."""

REPORTED_TAG = "state-pipelines/reported"
"""Tag of failed runs that were reported: a digest of the webhook, so that each gets one message per run."""

_TIMEOUT = 10
"""Timeout of the webhook in seconds."""

_LONGEST_TICK = 30
"""Seconds after which a tick reports no further run; Dagster ends it after 60 seconds."""

_MOST_PER_TICK = 50

_REPEATED_FOR = 86_400
"""Seconds for which a message is sent again that the webhook did not accept."""

_SHOWN = 3
_DESCRIPTION = "Reports failed runs of the job in its log and, if the job has a `webhook`, as JSON to its URL."


def build_failed_runs(job: FlinkJob, *, jobs: Collection[str], assets: Collection[dg.AssetKey]) -> dg.SensorDefinition:
    """Build the sensor `failed_runs` of a Flink job.

    Its cursor contains the storage id of the last failure that it has seen, and the failed runs whose messages the
    webhook did not accept, with the time of the first attempt.

    Args:
        job: the Flink job.
        jobs: names of its Dagster jobs.
        assets: keys of its assets.
    """

    @dg.sensor(
        name=job.prefix(NAME),
        minimum_interval_seconds=job.interval(NAME, INTERVAL if job.webhook else LOG_INTERVAL),
        default_status=job.sensor_status,
        description=_DESCRIPTION,
    )
    def failed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        stored: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        reports = _Reports(job, context, frozenset(jobs), frozenset(assets), dict(stored.get("undelivered", {})))
        # `record_id`: the cursor of Dagster's own sensors of failures, as which this one began.
        after = stored.get("after", stored.get("record_id"))
        after = _find_newest(share_instance(context)) if after is None else reports.report_new(after)
        cursor = json.dumps({"after": after, "undelivered": reports.undelivered})
        if reports.undelivered and cursor == context.cursor:
            # The cursor of a failed tick is lost, so this one has none to keep.
            raise _refused(reports.reason)
        context.update_cursor(cursor)
        return dg.SkipReason("; ".join(reports.texts) or "No failed runs")

    return failed_runs


class _Reports:
    """The messages of one tick.

    Attributes:
        undelivered: time of the first attempt, in seconds of the epoch, by id of the run.
        texts: the reported failures.
        reason: why the webhook did not accept the last message that it refused.
    """

    def __init__(
        self,
        job: FlinkJob,
        context: dg.SensorEvaluationContext,
        jobs: frozenset[str],
        assets: frozenset[dg.AssetKey],
        undelivered: dict[str, float],
    ) -> None:
        self._job = job
        self._context = context
        self._instance = share_instance(context)
        self._jobs = jobs
        self._assets = assets
        self._deadline = time.monotonic() + _LONGEST_TICK
        self.undelivered = undelivered
        self.texts: list[str] = []
        self.reason = ""

    def report_new(self, after: int) -> int:
        """Report failed runs, first those whose message was not accepted; return the id of the last failure."""
        for run_id in list(self.undelivered):
            run = self._instance.get_run_by_id(run_id)
            if run is None:
                del self.undelivered[run_id]
            elif time.monotonic() < self._deadline:
                self._report(run)
        wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
        found = self._instance.fetch_run_status_changes(wanted, limit=_MOST_PER_TICK, ascending=True)
        for record in found.records:
            if time.monotonic() > self._deadline:
                break
            run = self._instance.get_run_by_id(record.run_id)
            if run is not None and self._is_watched(run):
                self._report(run)
            after = record.storage_id
        return after

    def _is_watched(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is one of the Flink job: by its tag, its Dagster job, or its assets and checks.

        Materialisations from the UI, automation and backfills have the hidden job `__ASSET_JOB`. One run may contain
        assets of several Flink jobs; those with a failed step report it, or all of them where no step has failed.
        """
        if _is_elsewhere(self._context, run):
            return False
        if run.tags.get(JOB_TAG) == self._job.name or run.job_name in self._jobs:
            return True
        planned = read_planned_assets(self._instance, run.run_id)
        if not any(self._assets & keys for keys in planned.values()):
            return False
        outcome = read_outcome(self._instance, run)
        failed = {key for step in outcome.failed_steps for key in planned.get(step, ())}
        repository = self._context.repository_def
        watching = set() if repository is None else {sensor.name for sensor in repository.sensor_defs}
        others = {key for key in failed - self._assets if f"{key.path[0]}_{NAME}" in watching}
        return not others or not failed.isdisjoint(self._assets)

    def _report(self, run: dg.DagsterRun) -> None:
        """Post the message of a failed run, and log it at the first attempt; each webhook gets one."""
        # The run as it is now: the sensor of another Flink job may have reported it.
        mark = _digest(self._job.webhook)
        reported = run.tags.get(REPORTED_TAG, "").split()
        if mark in reported:
            self.undelivered.pop(run.run_id, None)
            return
        message = describe_failure(self._job, self._instance, run)
        text = str(message["text"])
        if run.run_id not in self.undelivered:
            self._context.log.error("%s", text)
        if self._job.webhook is not None:
            try:
                post(self._job.webhook, message)
            except dg.Failure as failure:
                self._keep(run, str(failure.description))
                return
        self.undelivered.pop(run.run_id, None)
        self._instance.add_run_tags(run.run_id, {REPORTED_TAG: " ".join((*reported, mark))})
        self.texts.append(text)

    def _keep(self, run: dg.DagsterRun, reason: str) -> None:
        """Keep a message that was not accepted for the next tick, for a day."""
        first = self.undelivered.setdefault(run.run_id, time.time())
        self.reason = reason
        if time.time() - first > _REPEATED_FOR:
            del self.undelivered[run.run_id]
            reason = f"{reason}; it was tried for a day, and is not tried again"
        self._context.log.error("Run %s is not reported: %s", run.run_id, reason)
        self.texts.append(f"run {run.run_id[:8]} is not reported: {reason}")


def describe_failure(job: FlinkJob, instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, object]:
    """Return the message on a failed run: `text` for chat services, the other fields for programs."""
    outcome = read_outcome(instance, run)
    planned = read_planned_assets(instance, run.run_id)
    failed = sorted({key.to_user_string() for step in outcome.failed_steps for key in planned.get(step, ())})
    every = sorted({key.to_user_string() for keys in planned.values() for key in keys})
    snapshot = run.tags.get("dagster/partition")
    # The hidden job of runs of automation and of the button *Materialize* has a name that says nothing.
    name = _shorten(failed or every) if run.job_name.startswith("__") else run.job_name
    subject = f"{name} failed" + (f" for {snapshot}" if snapshot else "")
    return {
        "text": f"{subject}: {outcome.error}",
        "flink_job": job.name,
        "job": run.job_name,
        "run": run.run_id,
        "backfill": run.tags.get("dagster/backfill"),
        "snapshot": snapshot,
        "failed_assets": failed,
        "error": outcome.error,
        "failed_checks": dict(outcome.failed_checks),
    }


def post(url: str, message: Mapping[str, object]) -> None:
    """Post a message as JSON.

    Raises:
        dg.Failure: the webhook cannot be reached or rejects the message. The reason does not contain the URL, which may
            contain a secret.
    """
    data = json.dumps(message, default=str).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(f"the webhook did not accept the message: {error.code}") from None
    except (OSError, ValueError) as error:
        raise _refused(f"the webhook did not accept the message: {type(error).__name__}") from None


def _refused(reason: str) -> dg.Failure:
    # Without the whole error, which may contain the URL.
    return dg.Failure(reason)


def _find_newest(instance: dg.DagsterInstance) -> int:
    """Return the storage id of the newest failure: those before the first tick are not reported."""
    newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return newest[0].storage_id if newest else 0


def _is_elsewhere(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    """Return whether a run is one of another code location, whose sensors report it."""
    here, there = context.code_location_origin, run.remote_job_origin
    if here is None or there is None:
        return False
    return here.location_name != there.repository_origin.code_location_origin.location_name


def _digest(webhook: str | None) -> str:
    return "log" if webhook is None else hashlib.sha256(webhook.encode()).hexdigest()[:12]


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
