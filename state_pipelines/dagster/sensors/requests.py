"""`requests`: a sensor that carries out each request file once, and writes a result file beside it."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.failures import read_outcome, to_tag
from state_pipelines.dagster.flink_asset import SKIPPED_TAG, documented
from state_pipelines.dagster.migration_runs import PARTITION_TAG
from state_pipelines.dagster.partitions import find_name_conflict
from state_pipelines.dagster.request_runs import JOBS, UNPARTITIONED, plan_run
from state_pipelines.dagster.triggers import load_cursor, share_instance, store_cursor
from state_pipelines.dagster.upgrading import WAITING_TAG
from state_pipelines.errors import StateError, StorageError, UsageError
from state_pipelines.operations.requests import Operation, RequestFile, RequestStatus, describe_result, list_requests
from state_pipelines.storage import resolve
from state_pipelines.storage.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.jobs import AnyJob
    from state_pipelines.operations.inventory import Inventory
    from state_pipelines.operations.requests import Request
    from state_pipelines.storage import Location

NAME = "requests"

INTERVAL = 30
"""Seconds between two ticks."""

REQUEST_TAG = "state-pipelines/request"
"""Run tag with the Flink job, and the name and mark of the request file."""

PASSED_OVER_TAG = "state-pipelines/passed-over"
"""Run tag with the newer snapshots that `latest` has passed over, and why."""

MOST_PER_TICK = 50
"""Maximal number of requests that one tick reads; their runs are one message of gRPC."""

SECONDS = 20
"""Time after which a tick reads no further request; Dagster ends it after 60 seconds."""

LOST_AFTER = 3600
"""Seconds after which a request fails whose run does not exist."""

_WAITING, _RUNNING, _DONE = "waiting", "running", "done"
_SHOWN = 10
_LONGEST_REASON = 1000


def build_requests(job: FlinkJob, jobs: Sequence[AnyJob]) -> dg.SensorDefinition:
    """Build the sensor `requests` of a Flink job.

    Its cursor contains, for each request file, its mark, its state (waiting, running or done), and for a running one
    when the run was requested, in seconds of the epoch.

    Args:
        job: the Flink job.
        jobs: its Dagster jobs.

    Raises:
        UsageError: the job has no directory for requests.
    """
    if job.requests is None:
        raise UsageError("the job has no directory for requests", hint="Set the field requests in the YAML of the job")
    directory = job.requests

    @documented(
        job,
        _decorate,
        name=job.prefix(NAME),
        jobs=[each for each in jobs if each.name in {job.prefix(name) for name in JOBS}],
        minimum_interval_seconds=job.interval(NAME, INTERVAL),
        default_status=job.sensor_status,
    )
    def requests(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Runs each request file once, and writes its result beside it."""
        if conflict := find_name_conflict(share_instance(context), job):
            return dg.SkipReason(conflict)
        tick = _Tick(job, context, load_cursor(job, NAME, context))
        tick.evaluate(resolve(directory))
        return tick.finish(directory)

    return requests


class _RequestSensor(dg.SensorDefinition):
    """A sensor of jobs that need resources."""

    def with_updated_jobs(self, new_jobs: Sequence[Any]) -> dg.SensorDefinition:
        """Return the sensor with jobs that have their resources, without the warning about an option of the copy."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return super().with_updated_jobs(new_jobs)


def _decorate(**options: Any) -> Callable[[Callable[..., Any]], dg.SensorDefinition]:
    return lambda function: _RequestSensor(evaluation_fn=function, **options)


class _Tick:
    """One evaluation of the sensor, in which no file prevents the others from being evaluated."""

    def __init__(self, job: FlinkJob, context: dg.SensorEvaluationContext, known: Mapping[str, list[Any]]) -> None:
        self.job = job
        self.context = context
        self.instance = share_instance(context)
        self.known = known
        self.cursor: dict[str, list[Any]] = {}
        self.runs: list[dg.RunRequest] = []
        self.keys: list[str] = []
        self.reasons: list[str] = []
        self.found: dict[str, tuple[str, str]] = {}

    def evaluate(self, directory: Location) -> None:
        """Write the results of finished runs, and start the runs of new and of waiting files."""
        pending = []
        for file in list_requests(directory):
            mark, state, *since = known = self.known.get(file.name, ["", ""])
            if mark != file.mark or state == _WAITING:
                pending.append(file)
                continue
            self.cursor[file.name] = known
            if state == _RUNNING:
                with self._explaining(file):
                    self._report(file, *since)
        contents = self._read(self._order(pending))
        # A file that was replaced has another mark than its content; the next tick reads it.
        current = set(list_requests(directory)) if contents else set()
        for file, content in contents:
            with self._explaining(file):
                if file not in current:
                    self._explain(file, "waits, because it was changed or removed while it was read")
                elif isinstance(content, StateError):
                    self._refuse(file, content)
                else:
                    self._start(file, content)

    def finish(self, directory: str) -> dg.SensorResult:
        """Return the runs and partitions that this tick requests."""
        reason = "; ".join(self.reasons[:_SHOWN]) or f"No new requests in {directory}"
        keys = list(dict.fromkeys(self.keys))
        return dg.SensorResult(
            run_requests=self.runs,
            dynamic_partitions_requests=[self.job.partitions.build_add_request(keys)] if keys else [],
            skip_reason=None if self.runs else reason,
            cursor=store_cursor(self.job, NAME, self.context, self.cursor),
        )

    def _order(self, files: Sequence[RequestFile]) -> list[RequestFile]:
        """Sort files so that the waiting ones come after the new ones, first those that were read longest ago."""
        waiting = {name: index for index, (name, (_, state, *_)) in enumerate(self.known.items()) if state == _WAITING}
        return sorted(files, key=lambda file: waiting.get(file.name, -1))

    def _read(self, files: Sequence[RequestFile]) -> list[tuple[RequestFile, Request | StateError]]:
        """Return the requests of some files, or why they are refused, until the time is over."""
        contents: list[tuple[RequestFile, Request | StateError]] = []
        deadline = time.monotonic() + SECONDS
        for count, file in enumerate(files):
            if count and (len(contents) >= MOST_PER_TICK or time.monotonic() > deadline):
                self.reasons.append(f"{len(files) - count} requests wait for the next tick")
                # Those that have not been read keep their places before those that have.
                left = {each.name: self.known[each.name] for each in files[count:] if each.name in self.known}
                self.cursor = {**left, **self.cursor}
                break
            self.cursor[file.name] = [file.mark, _WAITING]
            with self._explaining(file):
                if file.has_result():
                    # As after the cursor was cleared.
                    self.cursor[file.name] = [file.mark, _DONE]
                    continue
                try:
                    contents.append((file, file.read()))
                except StorageError:
                    raise
                except StateError as error:
                    contents.append((file, error))
        return contents

    @cached_property
    def _inventory(self) -> Inventory | StateError:
        # A storage that fails is not asked again for each request.
        try:
            return self.job.storage.update_inventory(budget=SECONDS).inventory
        except StateError as error:
            return error

    def _start(self, file: RequestFile, request: Request) -> None:
        try:
            name, config = plan_run(self.job, request)
        except UsageError as error:
            self._refuse(file, error)
            return
        key, passed_over = None, ""
        # What is in quarantine is not in the inventory.
        if request.snapshot is not None and request.operation is not Operation.RESTORE:
            key, passed_over = self._find(request.snapshot)
            self.keys.append(key)
            if passed_over:
                self._explain(file, passed_over)
        tag = self._make_tag(file)
        self.runs.append(
            dg.RunRequest(
                run_key=tag,
                job_name=self.job.prefix(name),
                partition_key=None if request.operation in UNPARTITIONED else key,
                run_config=config,
                tags={REQUEST_TAG: tag, **({PASSED_OVER_TAG: to_tag(passed_over)} if passed_over else {})},
            )
        )

        self.cursor[file.name] = [file.mark, _RUNNING, int(time.time())]

    def _find(self, name: str) -> tuple[str, str]:
        """Return the partition key of a snapshot, and which newer ones `latest` has passed over; once for each name."""
        # A snapshot that does not exist may appear later.
        if isinstance(self._inventory, StateError):
            raise self._inventory
        if name not in self.found:
            warnings: list[str] = []
            key, _ = self.job.storage.find_named(name, self._inventory, warnings.append)
            for each in warnings:
                self.context.log.warning("%s", each)
            self.found[name] = key, "; ".join(warnings)
        return self.found[name]

    def _refuse(self, file: RequestFile, error: StateError) -> None:
        self._explain(file, str(error))
        self._write(file, describe_result(file, RequestStatus.REFUSED, finished=_now(), error=str(error)))

    def _report(self, file: RequestFile, since: float = math.inf) -> None:
        """Write the result if the run has finished."""
        filters = dg.RunsFilter(tags={REQUEST_TAG: self._make_tag(file)})
        # A re-execution from the UI has the same tag; the newest run counts.
        run = next(iter(self.instance.get_runs(filters, limit=1)), None)
        if run is None and time.time() - since > LOST_AFTER:
            error = "the run does not exist: it was deleted, or could not be created. Change the file to run it again"
            self._explain(file, error)
            self._write(file, describe_result(file, RequestStatus.FAILED, finished=_now(), error=error))
        if run is None or not run.is_finished:
            return
        outcome = read_outcome(self.instance, run)
        skipped = run.tags.get(SKIPPED_TAG, "")
        if mark := run.tags.get(WAITING_TAG, ""):
            skipped = f"the plan waits for an approval: ask for it again with approve: {mark!r}"
        content = describe_result(
            file,
            RequestStatus.SUCCEEDED if outcome.success and not skipped else RequestStatus.FAILED,
            finished=_now(),
            run=run.run_id,
            error=outcome.error or skipped,
            snapshot=run.tags.get(PARTITION_TAG),
            passed_over=run.tags.get(PASSED_OVER_TAG),
            failed_checks=outcome.failed_checks,
            results=outcome.materialized,
        )
        self._write(file, content)

    def _write(self, file: RequestFile, content: bytes) -> None:
        """Write a result file; the next tick tries it again if the storage refuses."""
        try:
            replace_file(file.result, content)
        except StateError as error:
            self._explain(file, f"its result cannot be written: {error}")
        else:
            self.cursor[file.name] = [file.mark, _DONE]

    @contextmanager
    def _explaining(self, file: RequestFile) -> Iterator[None]:
        """Turn an exception into a reason: the next tick evaluates the file again, and this one all others."""
        try:
            yield
        except StateError as error:
            self._explain(file, f"waits: {error}")
        except Exception as error:
            # Whatever it is, it concerns one file.
            self.context.log.exception("A request cannot be evaluated")
            self._explain(file, f"waits: {type(error).__name__}, see the log of the tick")

    def _explain(self, file: RequestFile, reason: str) -> None:
        name = file.name if file.name.isprintable() else ascii(file.name)
        # Databases store UTF-8, which names of files need not be.
        text = f"{name}: {reason}".encode(errors="backslashreplace").decode()
        self.reasons.append(text[:_LONGEST_REASON])

    def _make_tag(self, file: RequestFile) -> str:
        return f"{self.job.name}/{file.name}@{file.mark}"


def _now() -> datetime:
    return datetime.now(UTC)
