"""`RestCluster`: session and application clusters through Flink's REST endpoint, 1.20 to 2.3.

Sources: the message headers of `org.apache.flink.runtime.rest.messages` and of `org.apache.flink.runtime.webmonitor`.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from state_pipelines.errors import ClusterError, NotFoundError, StateError, UnsupportedError, UsageError, Where
from state_pipelines.flink.cluster import (
    CheckpointKind,
    CheckpointProgress,
    ClusterOverview,
    JobDetails,
    JobLoad,
    JobOverview,
    JobStart,
    JobStatus,
    RestoreMode,
    SavepointProgress,
    VertexLoad,
)
from state_pipelines.flink.rest_values import (
    read_checkpoint,
    read_checkpoint_progress,
    read_checkpoint_settings,
    read_configuration,
    read_exceptions,
    read_job,
    read_savepoint_progress,
    read_start,
    read_statistics,
    read_status,
    read_subtasks,
    read_vertex,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.flink.cluster import (
        Checkpoint,
        CheckpointStatistics,
        JobFailure,
        JobVertex,
        SavepointRequest,
        Submission,
    )
    from state_pipelines.flink.http_client import HttpClient
    from state_pipelines.flink.sql_gateway import SqlGateway

_ID = re.compile(r"[0-9a-fA-F]{32}")
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_MOST_EXCEPTIONS = 20
_DUPLICATE = ("DuplicateJobSubmissionException", "DuplicateApplicationSubmissionException")
# States of a job in which nothing of it is left to be cancelled.
_CONFLICT = 409
_RATIOS = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")
_PENDING = ".pendingRecords"


class RestCluster:
    """A cluster with a REST endpoint.

    Args:
        client: requests to the endpoint.
        gateway: starts jobs of SQL there; None without one.
    """

    def __init__(self, client: HttpClient, gateway: SqlGateway | None = None) -> None:
        self._client = client
        self._gateway = gateway

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """The address of the REST endpoint, without secrets."""
        return self._client.endpoint

    def describe(self) -> ClusterOverview:
        """The cluster with its slots and configuration."""
        overview = self._client.get("/overview")
        features = take(self._client.get("/config"), "features", dict, {})
        return ClusterOverview(
            endpoint=self.endpoint,
            version=take(overview, "flink-version", str, ""),
            slots_total=take(overview, "slots-total", int),
            slots_available=take(overview, "slots-available", int),
            task_managers=take(overview, "taskmanagers", int),
            can_submit=bool(features.get("web-submit")),
            configuration=read_configuration(self._client.get("/jobmanager/config")),
            sql_obstacle=self._find_sql_obstacle(),
        )

    def _find_sql_obstacle(self) -> str:
        if self._gateway is None:
            return "it has no SQL Gateway (sql_gateway beside rest)"
        try:
            self._gateway.read_version()
        except StateError as error:
            return str(error)
        return ""

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """The jobs that it knows, newest first."""
        jobs = [read_job(each) for each in take(self._client.get("/jobs/overview"), "jobs", list)]
        return tuple(sorted(jobs, key=lambda each: each.started.timestamp() if each.started else 0, reverse=True))

    def read_job(self, job_id: str) -> JobDetails:
        """A job with its tasks and settings."""
        path = _job_path(job_id)
        details = self._client.get(path)
        execution = take(self._client.get(f"{path}/config"), "execution-config", dict, {})
        maximum = take(details, "maxParallelism", int, -1)
        return JobDetails(
            job=read_job(details),
            vertices=_in_order(details),
            max_parallelism=maximum if maximum > 0 else None,
            configuration=read_configuration(
                [{"key": name, "value": value} for name, value in take(execution, "user-config", dict, {}).items()]
                + [{"key": name, "value": value} for name, value in execution.items() if name != "user-config"]
            ),
            checkpoints=self._read_checkpoint_settings(path),
            plan=take(details, "plan", dict, {}),
        )

    def _read_checkpoint_settings(self, path: str) -> Any:
        answer = self._client.send("GET", f"{path}/checkpoints/config", is_idempotent=True, accepted=(404,))
        # 404: `Checkpointing is not enabled for this job`.
        return read_checkpoint_settings(answer.content) if answer.status < 300 else None

    def read_status(self, job_id: str) -> JobStatus:
        """The status of a job."""
        return read_status(take(self._client.get(f"{_job_path(job_id)}/status"), "status", str))

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        """Ask for a savepoint, and for the end of the job where the request says so; return the trigger id."""
        trigger = _check_id(request.trigger_id, "trigger id") or uuid.uuid4().hex
        body: dict[str, object] = {"formatType": str(request.format), "triggerId": trigger}
        path = _job_path(job_id)
        if request.stop or request.drain:
            path, body = f"{path}/stop", body | {"drain": request.drain}
            body |= {"targetDirectory": request.directory} if request.directory else {}
        else:
            path, body = f"{path}/savepoints", body | {"cancel-job": False}
            body |= {"target-directory": request.directory} if request.directory else {}
        # Flink answers a second request with the same trigger id with the first one (`CompletedOperationCache`).
        answer = self._client.send("POST", path, body, is_idempotent=True)
        return take(answer.content, "request-id", str)

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        """Progress of a savepoint."""
        trigger = _check_id(trigger_id, "trigger id")
        return read_savepoint_progress(self._client.get(f"{_job_path(job_id)}/savepoints/{trigger}"))

    def trigger_checkpoint(
        self, job_id: str, kind: CheckpointKind = CheckpointKind.CONFIGURED, trigger_id: str | None = None
    ) -> str:
        """Ask for a checkpoint; return the trigger id."""
        trigger = _check_id(trigger_id, "trigger id") or uuid.uuid4().hex
        body = {"checkpointType": str(kind), "triggerId": trigger}
        answer = self._client.send("POST", f"{_job_path(job_id)}/checkpoints", body, is_idempotent=True)
        return take(answer.content, "request-id", str)

    def poll_checkpoint(self, job_id: str, trigger_id: str) -> CheckpointProgress:
        """Progress of a checkpoint that was asked for."""
        trigger = _check_id(trigger_id, "trigger id")
        return read_checkpoint_progress(self._client.get(f"{_job_path(job_id)}/checkpoints/{trigger}"))

    def cancel(self, job_id: str) -> None:
        """Ask a job to end; nothing happens to a job that has ended."""
        path = _job_path(job_id)
        answer = self._client.send(
            "PATCH", path, query={"mode": "cancel"}, is_idempotent=True, accepted=(404, _CONFLICT)
        )
        # A job that has ended is a conflict, or is not found; `read_status` raises if it was never there.
        if answer.status >= 300 and not self.read_status(job_id).is_terminal:
            raise ClusterError(
                f"Flink at {self.endpoint} does not cancel job {job_id} (HTTP {answer.status})",
                hint="Look at the status of the job, then cancel it again",
            )

    def start(self, submission: Submission) -> str:
        """Upload the jar unless it is there, and run it, or start the SQL; return the id of the job.

        The submission has an id, so that a repetition starts no second job.
        """
        is_sql = submission.plan is not None or submission.script is not None
        if submission.jar is None and (self._gateway is None or not is_sql):
            raise UnsupportedError(
                "a REST endpoint of Flink runs jars only",
                hint="Name the jar of the job, or for SQL the address of the SQL Gateway: `cluster: {rest: …, "
                "sql_gateway: …}`",
            )
        job_id = (_check_id(submission.job_id, "job id") or uuid.uuid4().hex).lower()
        if submission.job_id is not None and self._is_known(job_id):
            return job_id
        if submission.jar is None:
            assert self._gateway is not None
            self._gateway.start(submission, job_id)
            return job_id
        jar = self._upload(Path(submission.jar))
        body = _make_submission(submission, job_id)
        try:
            answer = self._client.send("POST", f"/jars/{quote(jar)}/run", body, is_idempotent=True)
        except ClusterError as error:
            if any(name in error.details.get("flink", "") for name in _DUPLICATE):
                return job_id
            if error.is_in_doubt and self._is_known(job_id):
                return job_id
            raise _explain_submission(error, submission) from None
        return take(answer.content, "jobid", str)

    def _is_known(self, job_id: str) -> bool:
        try:
            self.read_status(job_id)
        except NotFoundError:
            return False
        return True

    def _upload(self, jar: Path) -> str:
        """Upload a jar under a name with its digest; return the id that Flink gives it."""
        try:
            with jar.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        except OSError as error:
            raise UsageError(f"the jar cannot be read: {error.strerror}", where=Where(file=str(jar))) from None
        name = f"{_NOT_OF_A_NAME.sub('-', jar.stem)[:100]}-{digest}.jar"
        try:
            known = take(self._client.get("/jars"), "files", list)
        except NotFoundError:
            raise UnsupportedError(
                f"Flink at {self.endpoint} takes no jars: it is an application cluster, or web.submit.enable is false",
                hint="Start the job the way it was deployed (`cluster: {kubernetes: …}` or `{commands: …}`)",
            ) from None
        for each in known:
            if each.get("name") == name and each.get("entry") is not None:
                return take(each, "id", str)
        # A second upload is a second file, nothing else.
        answer = self._client.send("POST", "/jars/upload", is_idempotent=True, upload=(name, jar))
        return take(answer.content, "filename", str).replace("\\", "/").rpartition("/")[2]

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        """The last failures of a job, newest first."""
        return read_exceptions(self._client.get(f"{_job_path(job_id)}/exceptions", {"maxExceptions": _MOST_EXCEPTIONS}))

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        """Statistics of the checkpoints of a job.

        Raises:
            NotFoundError: the job takes none.
        """
        return read_statistics(self._client.get(f"{_job_path(job_id)}/checkpoints"))

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        """One checkpoint of the history with its tasks, and with their subtasks where asked for."""
        path = f"{_job_path(job_id)}/checkpoints/details/{int(checkpoint_id)}"
        content = self._client.get(path)
        details: dict[str, Any] = {}
        if subtasks:
            for vertex in take(content, "tasks", dict, {}):
                # 404: the checkpoint has left the history meanwhile.
                answer = self._client.send(
                    "GET", f"{path}/subtasks/{quote(vertex)}", is_idempotent=True, accepted=(404,)
                )
                details[vertex] = read_subtasks(answer.content) if answer.status < 300 else ()
        return read_checkpoint(content, details)

    def read_load(self, job_id: str) -> JobLoad:
        """Restarts, backpressure and lag of a running job."""
        path = _job_path(job_id)
        numbers = _read_metrics(
            self._client.get(f"{path}/metrics", {"get": "numRestarts,fullRestarts,uptime"}), "value"
        )
        restarts = numbers.get("numRestarts", numbers.get("fullRestarts"))
        uptime = numbers.get("uptime")
        vertices = _in_order(self._client.get(path))
        return JobLoad(
            restarts=None if restarts is None else int(restarts),
            uptime_ms=None if uptime is None or uptime < 0 else int(uptime),
            vertices=tuple(self._read_vertex_load(path, each) for each in vertices),
        )

    def read_start(self, job_id: str) -> JobStart | None:
        """Durations of the last start of a running job; None before all its tasks run."""
        path = _job_path(job_id)
        vertices = _in_order(self._client.get(path))
        return read_start([self._client.get(f"{path}/vertices/{quote(each.id)}/subtasktimes") for each in vertices])

    def _read_vertex_load(self, path: str, vertex: JobVertex) -> VertexLoad:
        metrics = f"{path}/vertices/{quote(vertex.id)}/subtasks/metrics"
        names = [take(each, "id", str) for each in self._client.get(metrics)]
        highest = _read_metrics(self._client.get(metrics, {"get": ",".join(_RATIOS), "agg": "max"}), "max")
        pending = [each for each in names if each.endswith(_PENDING) or each == _PENDING[1:]]
        lag: dict[str, float] = {}
        if pending:
            lag = _read_metrics(self._client.get(metrics, {"get": ",".join(pending), "agg": "sum"}), "sum")
        marks = self._client.get(f"{path}/vertices/{quote(vertex.id)}/watermarks")
        lowest = min((mark for each in marks if (mark := _number(each.get("value"))) is not None), default=None)
        ratios = [None if (value := highest.get(name)) is None else round(value / 1000, 4) for name in _RATIOS]
        return VertexLoad(
            vertex=vertex,
            busy_ratio=ratios[0],
            backpressured_ratio=ratios[1],
            pending_records=int(sum(lag.values())) if lag else None,
            watermark_ms=None if lowest is None or lowest <= -(1 << 63) else int(lowest),
        )

    def read_parallelism(self, job_id: str) -> dict[str, tuple[int, int]]:
        """Lowest and highest parallelism that the adaptive scheduler may give each task of a job."""
        content = self._client.get(f"{_job_path(job_id)}/resource-requirements")
        bounds: dict[str, tuple[int, int]] = {}
        for vertex, each in content.items():
            limits = take(each, "parallelism", dict)
            bounds[vertex] = (take(limits, "lowerBound", int), take(limits, "upperBound", int))
        return bounds

    def change_parallelism(self, job_id: str, bounds: Mapping[str, tuple[int, int]]) -> None:
        """Change the parallelism that the adaptive scheduler may give tasks; the job goes on with its state."""
        body = {
            vertex: {"parallelism": {"lowerBound": lowest, "upperBound": highest}}
            for vertex, (lowest, highest) in bounds.items()
        }
        self._client.send("PUT", f"{_job_path(job_id)}/resource-requirements", body, is_idempotent=True)


def _check_id(text: str | None, what: str) -> str | None:
    if text is not None and not _ID.fullmatch(text):
        raise UsageError(f"{text!r} is not a {what}", hint="Ids are 32 hexadecimal digits")
    return text


def _job_path(job_id: str) -> str:
    return f"/jobs/{_check_id(job_id, 'job id')}"


def _in_order(details: Mapping[str, Any]) -> tuple[JobVertex, ...]:
    return tuple(read_vertex(each) for each in take(details, "vertices", list))


def _make_submission(submission: Submission, job_id: str) -> dict[str, object]:
    body: dict[str, object] = {"jobId": job_id, "programArgsList": list(submission.arguments)}
    if submission.entry_class is not None:
        body["entryClass"] = submission.entry_class
    if submission.parallelism is not None:
        body["parallelism"] = submission.parallelism
    if submission.savepoint is not None:
        body |= {"savepointPath": submission.savepoint, "claimMode": str(submission.claim_mode)}
        body["allowNonRestoredState"] = submission.allow_non_restored_state
    elif submission.claim_mode is not RestoreMode.NO_CLAIM or submission.allow_non_restored_state:
        raise UsageError("a job that starts without a snapshot has neither a claim mode nor state to leave out")
    if submission.configuration:
        body["flinkConfiguration"] = dict(submission.configuration)
    return body


def _explain_submission(error: ClusterError, submission: Submission) -> ClusterError:
    """The error of a submission, with what to do about usual causes."""
    words = error.details.get("flink", "")
    hint = error.hint
    if "Cannot find checkpoint or savepoint" in words or "Could not find checkpoint or savepoint" in words:
        hint = f"The cluster does not reach {submission.savepoint}: name it as the task managers see it"
    elif "NoResourceAvailableException" in words:
        hint = "Add task managers or slots, or start it with a lower parallelism"
    elif "ProgramInvocationException" in words or "ClassNotFoundException" in words:
        hint = f"Look at the main class of {submission.jar}, its arguments and its dependencies"
    explained = ClusterError(error.what, where=error.where, hint=hint, transient=error.transient)
    explained.is_in_doubt, explained.details = error.is_in_doubt, error.details
    return explained


def _read_metrics(content: object, field: str) -> dict[str, float]:
    values: dict[str, float] = defaultdict(float)
    for each in content if isinstance(content, list) else ():
        number = _number(each.get(field)) if isinstance(each, dict) else None
        if number is not None:
            values[take(each, "id", str)] = number
    return dict(values)


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if number == number else None
