"""`requests`: a sensor that carries out each request file once, and writes a result file beside it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.request_runs import JOBS, UNPARTITIONED, plan_run
from state_pipelines.dagster.run_outcomes import read_outcome
from state_pipelines.errors import MissingFileError, NotFoundError, StateError, UsageError
from state_pipelines.operations.requests import RequestFile, RequestStatus, describe_result, list_requests
from state_pipelines.storage import read_file, resolve
from state_pipelines.storage.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.jobs import AnyJob
    from state_pipelines.operations.requests import Request

NAME = "requests"

REQUEST_TAG = "state-pipelines/request"
"""Run tag with the name and the mark of the request file."""

_RUNNING, _DONE = "running", "done"


def build_requests(job: FlinkJob, jobs: Sequence[AnyJob]) -> dg.SensorDefinition:
    """Build the sensor `requests` of a Flink job.

    Its cursor contains, for each request file, the mark of its content and whether its run has ended.

    Args:
        job: the Flink job.
        jobs: its Dagster jobs.

    Raises:
        UsageError: the job has no directory for requests.
    """
    if job.requests is None:
        raise UsageError("the job has no directory for requests", hint="Set the field requests in the YAML of the job")
    directory = job.requests

    @dg.sensor(
        name=job.prefix(NAME),
        # None that needs resources: Dagster copies sensors of such jobs, and logs a beta warning for each.
        jobs=[each for each in jobs if each.name in {job.prefix(name) for name in JOBS}],
        minimum_interval_seconds=30,
        default_status=job.sensor_status,
        description="Runs each request file once, and writes its result beside it.",
    )
    def requests(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tick = _Tick(job, context, json.loads(context.cursor) if context.cursor else {})
        for file in list_requests(resolve(directory)):
            tick.handle(file)
        return tick.finish(directory)

    return requests


class _Tick:
    """One evaluation of the sensor."""

    def __init__(self, job: FlinkJob, context: dg.SensorEvaluationContext, known: Mapping[str, list[str]]) -> None:
        self.job = job
        self.context = context
        self.known = known
        self.cursor: dict[str, list[str]] = {}
        self.runs: list[dg.RunRequest] = []
        self.keys: list[str] = []
        self.reasons: list[str] = []

    def handle(self, file: RequestFile) -> None:
        """Start the run of a new file, or write the result of a finished run."""
        mark, state = self.known.get(file.name, ["", ""])
        if mark == file.mark:
            self.cursor[file.name] = [mark, self._report(file) if state == _RUNNING else state]
            return
        if _has_result(file):
            self.cursor[file.name] = [file.mark, _DONE]
            return
        try:
            self._start(file, file.read())
            self.cursor[file.name] = [file.mark, _RUNNING]
        except NotFoundError as error:
            # The snapshot may appear later, so the next tick reads the file again.
            self.reasons.append(f"{file.name} waits: {error}")
        except StateError as error:
            self.reasons.append(f"{file.name}: {error}")
            state = self._write(file, describe_result(file, RequestStatus.REFUSED, finished=_now(), error=str(error)))
            self.cursor[file.name] = [file.mark, state]

    def finish(self, directory: str) -> dg.SensorResult:
        """Return the runs and partitions that this tick requests."""
        reason = "; ".join(self.reasons) or f"No new requests in {directory}"
        keys = list(dict.fromkeys(self.keys))
        return dg.SensorResult(
            run_requests=self.runs,
            dynamic_partitions_requests=[self.job.partitions.build_add_request(keys)] if keys else [],
            skip_reason=None if self.runs else reason,
            cursor=json.dumps(self.cursor),
        )

    def _start(self, file: RequestFile, request: Request) -> None:
        name, config = plan_run(self.job, request)
        key = None
        if request.snapshot is not None:
            key, _ = self.job.storage.find_named(request.snapshot)
            self.keys.append(key)
        tag = _make_tag(file)
        self.runs.append(
            dg.RunRequest(
                run_key=tag,
                job_name=self.job.prefix(name),
                partition_key=None if request.operation in UNPARTITIONED else key,
                run_config=config,
                tags={REQUEST_TAG: tag},
            )
        )

    def _report(self, file: RequestFile) -> str:
        """Write the result if the run has finished; return the new state of the file."""
        filters = dg.RunsFilter(tags={REQUEST_TAG: _make_tag(file)})
        # A re-execution from the UI has the same tag; the newest run counts.
        run = next(iter(self.context.instance.get_runs(filters, limit=1)), None)
        if run is None or not run.is_finished:
            return _RUNNING
        outcome = read_outcome(self.context.instance, run)
        content = describe_result(
            file,
            RequestStatus.SUCCEEDED if outcome.success else RequestStatus.FAILED,
            finished=_now(),
            run=run.run_id,
            error=outcome.error,
            failed_checks=outcome.failed_checks,
            results=outcome.materialized,
        )
        return self._write(file, content, _RUNNING)

    def _write(self, file: RequestFile, content: bytes, otherwise: str = _DONE) -> str:
        """Write a result file; return the new state, or `otherwise` if it cannot be written."""
        try:
            replace_file(file.result, content)
        except StateError as error:
            self.context.log.error("The result of %s cannot be written: %s", file.name, error)
            self.reasons.append(str(error))
            return otherwise
        return _DONE


def _make_tag(file: RequestFile) -> str:
    return f"{file.name}@{file.mark}"


def _has_result(file: RequestFile) -> bool:
    """Return whether there is a result of this content already, as after the cursor was cleared."""
    try:
        content = json.loads(read_file(file.result))
    except (MissingFileError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("mark") == file.mark


def _now() -> datetime:
    return datetime.now(UTC)
