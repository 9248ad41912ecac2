"""`RestCluster`: a cluster through Flink's REST API; and `SqlGateway`: jobs of SQL.

* `read_status`, `read_job`, `read_statistics` and others: the values in the answers of the REST API.
* `SqlGateway`: jobs of SQL, which only Flink's SQL Gateway starts, through its REST endpoint of any version. A start is
  one session, whose options say from which snapshot and under which id the job starts. The session is closed again; the
  job goes on. Source: `SqlGatewayRestEndpoint` with its message headers, `FetchResultsHandler`, and
  `PipelineExecutorUtils` for the option of the id.
* `RestCluster`: the requests. Source: the message headers of `org.apache.flink.runtime.rest.messages` and of
  `org.apache.flink.runtime.webmonitor`.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import quote

from state_pipelines.errors import ClusterError, NotFoundError, StateError, UnsupportedError, UsageError, Where
from state_pipelines.flink.checkpoint_failures import list_causes
from state_pipelines.flink.cluster import (
    POLL_SECONDS,
    Checkpoint,
    CheckpointKind,
    CheckpointProgress,
    CheckpointSettings,
    CheckpointStatistics,
    CheckpointStatus,
    CheckpointSubtask,
    CheckpointTask,
    ClusterOverview,
    JobDetails,
    JobFailure,
    JobLoad,
    JobOverview,
    JobStart,
    JobStatus,
    JobVertex,
    RestoreMode,
    SavepointProgress,
    TriggerStatus,
    VertexLoad,
)
from state_pipelines.redaction import is_secret_name, redact
from state_pipelines.sql.scripts import parse_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.flink.cluster import SavepointRequest, Submission
    from state_pipelines.flink.http_client import HttpClient

_T = TypeVar("_T")
_HIDDEN = "******"
_REQUIRED: Any = object()


@overload
def take(content: object, name: str, kind: type[_T]) -> _T: ...
@overload
def take(content: object, name: str, kind: type[_T], default: _T) -> _T: ...
def take(content: object, name: str, kind: type[Any], default: Any = _REQUIRED) -> Any:
    """Return a field of a JSON answer, after checking its type.

    Raises:
        ClusterError: the field has another type, or is missing and has no default.
    """
    value = content.get(name) if isinstance(content, dict) else None
    if value is None and default is not _REQUIRED:
        return default
    if kind is int and isinstance(value, float):
        value = int(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ClusterError(
            f"the field {name} of the answer is missing, or not what Flink's REST endpoint gives",
            hint="Flink 1.20 to 2.3 are known: look whether the address is that of another service",
        )
    return value


def _number(content: object, name: str) -> int | None:
    value = take(content, name, int, -1)
    return value if value >= 0 else None


def _time(content: object, name: str) -> datetime | None:
    millis = take(content, name, int, -1)
    return datetime.fromtimestamp(millis / 1000, UTC) if 0 < millis < 1 << 47 else None


def read_status(text: str) -> JobStatus:
    """Convert the name of a job's status."""
    try:
        return JobStatus(text)
    except ValueError:
        raise ClusterError(
            f"the job has the status {text!r}, which is not known", hint="Flink 1.20 to 2.3 are known"
        ) from None


def read_job(content: Mapping[str, Any]) -> JobOverview:
    """Convert a job in the JSON of `JobDetails` or `JobDetailsInfo`."""
    tasks = content.get("tasks") or content.get("status-counts") or {}
    return JobOverview(
        id=take(content, "jid", str),
        name=take(content, "name", str),
        status=read_status(take(content, "state", str)),
        started=_time(content, "start-time"),
        ended=_time(content, "end-time"),
        tasks={name.upper(): number for name, number in tasks.items() if number and name != "total"},
    )


def read_vertex(content: Mapping[str, Any]) -> JobVertex:
    """Convert a task in the JSON of `JobDetailsInfo`."""
    maximum = take(content, "maxParallelism", int, -1)
    return JobVertex(
        id=take(content, "id", str),
        name=take(content, "name", str),
        parallelism=take(content, "parallelism", int),
        max_parallelism=maximum if maximum > 0 else None,
        status=take(content, "status", str),
    )


def read_start(tasks: Sequence[Mapping[str, Any]]) -> JobStart | None:
    """Compute the durations of a start from `SubtasksTimesInfo` of each task; None before all subtasks run."""
    scheduled, running, restores = list[int](), list[int](), list[int]()
    subtasks = [take(task, "subtasks", list) for task in tasks]
    for each in (each for task in subtasks for each in task):
        times = take(each, "timestamps", dict)
        begun, restoring, runs = (take(times, name, int, 0) for name in ("SCHEDULED", "INITIALIZING", "RUNNING"))
        if not 0 < begun <= runs:
            return None
        scheduled.append(begun)
        running.append(runs)
        restores.append(runs - restoring if 0 < restoring <= runs else 0)
    if not running:
        return None
    seconds = (max(running) - min(scheduled)) / 1000
    return JobStart(seconds, max(restores) / 1000, max(map(len, subtasks)))


def read_configuration(content: object) -> dict[str, str]:
    """Convert options in JSON to values by key; the values of secrets are hidden."""
    options: dict[str, str] = {}
    for each in content if isinstance(content, list) else ():
        name, value = take(each, "key", str), str(each.get("value", ""))
        options[name] = _HIDDEN if is_secret_name(name) else redact(value)
    return dict(sorted(options.items()))


def read_checkpoint_settings(content: Mapping[str, Any]) -> CheckpointSettings:
    """Convert the settings of checkpoints from the JSON of `CheckpointConfigInfo`."""
    interval = _number(content, "interval")
    kept = take(content, "externalization", dict, {})
    return CheckpointSettings(
        mode=take(content, "mode", str, "").lower(),
        # An interval of Long.MAX_VALUE means that there are no periodic checkpoints.
        interval_ms=None if interval is None or interval >= (1 << 63) - 1 else interval,
        timeout_ms=_number(content, "timeout"),
        min_pause_ms=_number(content, "min_pause"),
        max_concurrent=_number(content, "max_concurrent"),
        tolerable_failures=_number(content, "tolerable_failed_checkpoints"),
        is_retained=bool(kept.get("enabled")) and not kept.get("delete_on_cancellation", True),
        is_unaligned=take(content, "unaligned_checkpoints", bool, False),
        backend=take(content, "state_backend", str, ""),
        storage=take(content, "checkpoint_storage", str, ""),
    )


def _read_operation(content: Mapping[str, Any]) -> tuple[TriggerStatus, dict[str, Any], str]:
    """Return status, result and failure of an asynchronous operation (`AsynchronousOperationResult`)."""
    status = take(take(content, "status", dict), "id", str)
    if status == "IN_PROGRESS":
        return TriggerStatus.IN_PROGRESS, {}, ""
    operation = take(content, "operation", dict)
    # `SavepointInfo` and `CheckpointInfo` have different names for this field.
    failure = operation.get("failure-cause", operation.get("failureCause"))
    if failure is not None:
        stack = take(failure, "stack-trace", str, "") or take(failure, "class", str, "")
        return TriggerStatus.FAILED, {}, redact("\n".join(list_causes(stack)))
    return TriggerStatus.COMPLETED, operation, ""


def read_savepoint_progress(content: Mapping[str, Any]) -> SavepointProgress:
    """Convert the progress of a savepoint (`SavepointInfo`)."""
    status, operation, failure = _read_operation(content)
    path = take(operation, "location", str) if status is TriggerStatus.COMPLETED else ""
    return SavepointProgress(status, path, failure)


def read_checkpoint_progress(content: Mapping[str, Any]) -> CheckpointProgress:
    """Convert the progress of a checkpoint (`CheckpointInfo`)."""
    status, operation, failure = _read_operation(content)
    number = take(operation, "checkpointId", int) if status is TriggerStatus.COMPLETED else None
    return CheckpointProgress(status, number, failure)


def read_exceptions(content: Mapping[str, Any]) -> tuple[JobFailure, ...]:
    """Convert the failures in `JobExceptionsInfoWithHistory`."""
    history = take(take(content, "exceptionHistory", dict, {}), "entries", list, [])
    failures = [
        JobFailure(
            time=_time(each, "timestamp") or datetime.fromtimestamp(0, UTC),
            exception=take(each, "exceptionName", str, ""),
            stack=redact(take(each, "stacktrace", str, "")),
            task=take(each, "taskName", str, ""),
            location=take(each, "endpoint", str, "") or take(each, "location", str, ""),
        )
        for each in history
    ]
    return tuple(sorted(failures, key=lambda each: each.time, reverse=True))


def read_statistics(content: Mapping[str, Any]) -> CheckpointStatistics:
    """Convert the statistics of a job from the JSON of `CheckpointingStatistics`."""
    counts = take(content, "counts", dict)
    latest = take(content, "latest", dict, {})
    restored, completed = take(latest, "restored", dict, {}), take(latest, "completed", dict, {})
    savepoint = take(latest, "savepoint", dict, {})
    history = [read_checkpoint(each, {}) for each in take(content, "history", list, [])]
    return CheckpointStatistics(
        completed=take(counts, "completed", int),
        failed=take(counts, "failed", int),
        in_progress=take(counts, "in_progress", int),
        restored=take(counts, "restored", int),
        restored_path=take(restored, "external_path", str, ""),
        restored_id=take(restored, "id", int) if restored else None,
        history=tuple(sorted(history, key=lambda each: each.id, reverse=True)),
        latest_completed=read_checkpoint(completed, {}) if completed else None,
        latest_savepoint=read_checkpoint(savepoint, {}) if savepoint else None,
    )


def read_checkpoint(content: Mapping[str, Any], details: Mapping[str, tuple[CheckpointSubtask, ...]]) -> Checkpoint:
    """Convert the JSON of `CheckpointStatistics`; `details` has the subtasks of some tasks, by id of the vertex."""
    name = take(content, "status", str)
    if name not in CheckpointStatus.__members__:
        raise ClusterError(
            f"a checkpoint has the status {name!r}, which is not known", hint="Flink 1.20 to 2.3 are known"
        )
    return Checkpoint(
        id=take(content, "id", int),
        status=CheckpointStatus(name),
        is_savepoint=take(content, "is_savepoint", bool, False),
        kind=take(content, "checkpoint_type", str, ""),
        triggered=_time(content, "trigger_timestamp") or datetime.fromtimestamp(0, UTC),
        duration_ms=_number(content, "end_to_end_duration"),
        state_size=_number(content, "state_size"),
        written_size=_number(content, "checkpointed_size"),
        processed_data=_number(content, "processed_data"),
        persisted_data=_number(content, "persisted_data"),
        subtasks=take(content, "num_subtasks", int, 0),
        acknowledged=take(content, "num_acknowledged_subtasks", int, 0),
        path=_path(take(content, "external_path", str, "")),
        failed=_time(content, "failure_timestamp"),
        failure=redact(take(content, "failure_message", str, "")),
        is_discarded=take(content, "discarded", bool, False),
        tasks=tuple(
            CheckpointTask(
                vertex_id=vertex,
                status=take(each, "status", str, ""),
                subtasks=take(each, "num_subtasks", int, 0),
                acknowledged=take(each, "num_acknowledged_subtasks", int, 0),
                duration_ms=_number(each, "end_to_end_duration"),
                state_size=_number(each, "state_size"),
                written_size=_number(each, "checkpointed_size"),
                details=details.get(vertex, ()),
            )
            for vertex, each in take(content, "tasks", dict, {}).items()
        ),
    )


def _path(text: str) -> str:
    # A checkpoint in memory has a text in angle brackets instead of a path (`CompletedCheckpointStats`).
    return "" if text.startswith("<") else text


def read_subtasks(content: Mapping[str, Any]) -> tuple[CheckpointSubtask, ...]:
    """Convert the subtasks in the JSON of `TaskCheckpointStatisticsWithSubtaskDetails`."""
    subtasks = []
    for each in take(content, "subtasks", list, []):
        durations = take(each, "checkpoint", dict, {})
        alignment = take(each, "alignment", dict, {})
        subtasks.append(
            CheckpointSubtask(
                index=take(each, "index", int),
                is_completed=take(each, "status", str, "") == "completed",
                acknowledged=_time(each, "ack_timestamp"),
                duration_ms=_number(each, "end_to_end_duration"),
                sync_ms=_number(durations, "sync"),
                async_ms=_number(durations, "async"),
                alignment_ms=_number(alignment, "duration"),
                start_delay_ms=_number(each, "start_delay"),
                state_size=_number(each, "state_size"),
                written_size=_number(each, "checkpointed_size"),
                is_unaligned=take(each, "unaligned_checkpoint", bool, False),
                is_aborted=take(each, "aborted", bool, False),
            )
        )
    return tuple(sorted(subtasks, key=lambda each: each.index))


_VERSIONS = ("V4", "V3", "V2", "V1")
"""Supported versions of the gateway's REST API (`SqlGatewayRestAPIVersion`); the newest that both know is used."""

_JOB_ID = "$internal.pipeline.job-id"
_DUPLICATE = ("DuplicateJobSubmissionException", "DuplicateApplicationSubmissionException")
# Answer of a gateway that does not know the session, because it has restarted (`SessionManagerImpl.getSession`).
_NO_SESSION = re.compile(r"Session '[^']*' does not exist")
_SECONDS = 300.0
"""Seconds within which a statement must be carried out: a planner that has just started needs long for its first
one."""


class SqlGateway:
    """A SQL Gateway in front of a cluster.

    Args:
        client: requests to its endpoint.
        sleep: waits between two polls.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._clock = clock

    @property
    def endpoint(self) -> str:
        """The address of the gateway, without secrets."""
        return self._client.endpoint

    def read_version(self) -> str:
        """Return the release of Flink to which the gateway belongs.

        Raises:
            ClusterError: the gateway cannot be reached.
        """
        return take(self._client.get("/info"), "version", str, "")

    def start(self, submission: Submission, job_id: str) -> None:
        """Start the job of a compiled plan or of a script, under an id; a repetition starts no second job.

        Raises:
            ClusterError: the gateway cannot be reached, or a statement fails, with Flink's reason.
            UsageError: the script does not define exactly one job.
        """
        version = self._choose_version()
        options = dict(_list_options(submission, job_id))
        statements = [f"EXECUTE PLAN {_quote(submission.plan)}"] if submission.plan is not None else []
        if submission.script is not None:
            script = parse_script(submission.script)
            options = {**script.settings, **options}
            inserts = ";\n".join(each.text for each in script.inserts)
            is_set = len(script.inserts) > 1
            statements = [
                *(f"ADD JAR {_quote(each)}" for each in script.jars),
                *(each.text for each in script.definitions),
                f"EXECUTE STATEMENT SET BEGIN\n{inserts};\nEND" if is_set else inserts,
            ]
        # If the answer is lost, the session that was opened is unknown here; it times out.
        opened = self._client.send("POST", f"/{version}/sessions", {"properties": options}, is_idempotent=True)
        session = f"/{version}/sessions/{quote(take(opened.content, 'sessionHandle', str))}"
        try:
            found = ""
            for each in statements:
                found = self._execute(session, each)
        except ClusterError as error:
            if not any(name in error.details.get("flink", "") for name in _DUPLICATE):
                raise
            found = job_id
        finally:
            with suppress(StateError):
                self._client.send("DELETE", session, is_idempotent=True)
        if found and found != job_id:
            raise ClusterError(
                f"the SQL Gateway at {self.endpoint} started job {found} instead of {job_id}",
                hint="Cancel that job, and start the program by hand: this gateway ignores the job id of a request",
                in_doubt=True,
            )

    def _choose_version(self) -> str:
        known = take(self._client.get("/api_versions"), "versions", list, [])
        names = {str(each).upper() for each in known}
        for each in _VERSIONS:
            if each in names:
                return each.lower()
        raise ClusterError(
            f"the SQL Gateway at {self.endpoint} has none of the API versions {', '.join(_VERSIONS)}",
            hint="Look whether sql_gateway is the address of its REST endpoint",
        )

    def _execute(self, session: str, statement: str) -> str:
        """Carry out a statement; return the id of the job that it started, empty without one.

        Raises:
            ClusterError: the statement failed, or takes too long.
        """
        # A definition fails if it has been carried out before, so a statement whose answer was lost is not repeated.
        answer = self._client.send("POST", f"{session}/statements", {"statement": statement}, is_idempotent=False)
        operation = quote(take(answer.content, "operationHandle", str))
        deadline = self._clock() + _SECONDS
        while True:
            try:
                content = self._client.get(f"{session}/operations/{operation}/result/0")
            except (ClusterError, NotFoundError) as error:
                is_forgotten = isinstance(error, NotFoundError) or _NO_SESSION.search(error.what) is not None
                if not is_forgotten and not getattr(error, "transient", False):
                    raise
                raise ClusterError(
                    f"the SQL Gateway at {self.endpoint} gives no result of {statement[:60]!r}: {error}",
                    hint="It may have been carried out: look at the jobs of the cluster",
                    transient=True,
                    in_doubt=True,
                ) from None
            if take(content, "resultType", str, "") != "NOT_READY":
                return str(content.get("jobID") or _find_job(content))
            if self._clock() >= deadline:
                raise ClusterError(
                    f"the SQL Gateway at {self.endpoint} has not carried out {statement[:60]!r} after {_SECONDS:g} s",
                    hint="Look at its log, and at the free slots of the cluster",
                    transient=True,
                    in_doubt=True,
                )
            self._sleep(POLL_SECONDS)


def _list_options(submission: Submission, job_id: str) -> Iterator[tuple[str, str]]:
    """Yield the options of the session; options at the end override those of the submission."""
    yield from submission.configuration.items()
    if submission.parallelism is not None:
        yield "parallelism.default", str(submission.parallelism)
    if submission.savepoint is not None:
        ignores = str(submission.allow_non_restored_state).lower()
        # The names of these options before Flink 1.20 and 2.0 are set as well, because each release ignores unknown
        # names.
        yield "execution.savepoint.path", submission.savepoint
        yield "execution.state-recovery.path", submission.savepoint
        yield "execution.savepoint.ignore-unclaimed-state", ignores
        yield "execution.state-recovery.ignore-unclaimed-state", ignores
        yield "execution.state-recovery.claim-mode", str(submission.claim_mode)
    yield "execution.attached", "false"
    yield _JOB_ID, job_id


def _find_job(content: dict[str, Any]) -> str:
    """Return the id of a job from the rows of a result, if the statement has started a job; else an empty text."""
    results = take(content, "results", dict, {})
    names = [str(each.get("name", "")).lower() for each in take(results, "columns", list, [])]
    rows = take(results, "data", list, [])
    if "job id" not in names or not rows:
        return ""
    fields = take(rows[0], "fields", list, [])
    index = names.index("job id")
    return str(fields[index]) if index < len(fields) else ""


def _quote(text: str | None) -> str:
    return "'" + str(text).replace("'", "''") + "'"


_ID = re.compile(r"[0-9a-fA-F]{32}")
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_MOST_EXCEPTIONS = 20
# HTTP status with which Flink refuses to cancel a job that has ended already.
_CONFLICT = 409
_RATIOS = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")
_PENDING = ".pendingRecords"


class RestCluster:
    """A cluster that is reached by its REST endpoint.

    Args:
        client: requests to the endpoint.
        gateway: SQL Gateway that starts SQL jobs on the cluster; None without one.
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
        """Describe the cluster with its slots and configuration."""
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
        """Return the jobs that the cluster knows, newest first."""
        jobs = [read_job(each) for each in take(self._client.get("/jobs/overview"), "jobs", list)]
        return tuple(sorted(jobs, key=lambda each: each.started.timestamp() if each.started else 0, reverse=True))

    def read_job(self, job_id: str) -> JobDetails:
        """Return a job with its tasks and settings."""
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
        """Return the status of a job."""
        return read_status(take(self._client.get(f"{_job_path(job_id)}/status"), "status", str))

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        """Ask for a savepoint, and for the end of the job if the request says so; return the trigger id."""
        trigger = _check_id(request.trigger_id, "trigger id") or uuid.uuid4().hex
        body: dict[str, object] = {"formatType": str(request.format), "triggerId": trigger}
        path = _job_path(job_id)
        if request.stop or request.drain:
            path, body = f"{path}/stop", body | {"drain": request.drain}
            body |= {"targetDirectory": request.directory} if request.directory else {}
        else:
            path, body = f"{path}/savepoints", body | {"cancel-job": False}
            body |= {"target-directory": request.directory} if request.directory else {}
        # Flink answers a second request with the same trigger id like the first one (`CompletedOperationCache`).
        answer = self._client.send("POST", path, body, is_idempotent=True)
        return take(answer.content, "request-id", str)

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        """Return the progress of a savepoint."""
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
        """Return the progress of a checkpoint that was asked for."""
        trigger = _check_id(trigger_id, "trigger id")
        return read_checkpoint_progress(self._client.get(f"{_job_path(job_id)}/checkpoints/{trigger}"))

    def cancel(self, job_id: str) -> None:
        """Ask a job to end; a job that has ended stays as it is."""
        path = _job_path(job_id)
        answer = self._client.send(
            "PATCH", path, query={"mode": "cancel"}, is_idempotent=True, accepted=(404, _CONFLICT)
        )
        # For a job that has ended, Flink answers 409 or 404; `read_status` raises if it never existed.
        if answer.status >= 300 and not self.read_status(job_id).is_terminal:
            raise ClusterError(
                f"Flink at {self.endpoint} does not cancel job {job_id} (HTTP {answer.status})",
                hint="Look at the status of the job, then cancel it again",
            )

    def start(self, submission: Submission) -> str:
        """Start a job from a jar, which is uploaded unless Flink has it, or from SQL; return its id.

        If the submission has a job id, a repetition starts no second job.
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
        """Upload a jar, unless Flink has it, under a name with its digest; return the id that Flink gives it."""
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
        # The upload may be repeated, because a repetition only leaves a second file.
        answer = self._client.send("POST", "/jars/upload", is_idempotent=True, upload=(name, jar))
        return take(answer.content, "filename", str).replace("\\", "/").rpartition("/")[2]

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        """Return the last failures of a job, newest first."""
        return read_exceptions(self._client.get(f"{_job_path(job_id)}/exceptions", {"maxExceptions": _MOST_EXCEPTIONS}))

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        """Return statistics of the checkpoints of a job.

        Raises:
            NotFoundError: the job takes no checkpoints.
        """
        return read_statistics(self._client.get(f"{_job_path(job_id)}/checkpoints"))

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        """Return a checkpoint of the history with its tasks, and with their subtasks where asked for."""
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
        """Return restarts, backpressure and lag of a running job."""
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
        """Return the durations of the last start of a running job; None before all its tasks run."""
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
        lowest = min((mark for each in marks if (mark := _parse_number(each.get("value"))) is not None), default=None)
        ratios = [None if (value := highest.get(name)) is None else round(value / 1000, 4) for name in _RATIOS]
        return VertexLoad(
            vertex=vertex,
            busy_ratio=ratios[0],
            backpressured_ratio=ratios[1],
            pending_records=int(sum(lag.values())) if lag else None,
            watermark_ms=None if lowest is None or lowest <= -(1 << 63) else int(lowest),
        )

    def read_parallelism(self, job_id: str) -> dict[str, tuple[int, int]]:
        """Return the lowest and highest parallelism that the adaptive scheduler may give each task of a job."""
        content = self._client.get(f"{_job_path(job_id)}/resource-requirements")
        bounds: dict[str, tuple[int, int]] = {}
        for vertex, each in content.items():
            limits = take(each, "parallelism", dict)
            bounds[vertex] = (take(limits, "lowerBound", int), take(limits, "upperBound", int))
        return bounds

    def change_parallelism(self, job_id: str, bounds: Mapping[str, tuple[int, int]]) -> None:
        """Change the parallelism that the adaptive scheduler may give tasks; the job continues with its state."""
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
        raise UsageError(
            "claim_mode and allow_non_restored_state have no effect on a job that starts without a savepoint",
            hint="Give savepoint, or leave them out",
        )
    if submission.configuration:
        body["flinkConfiguration"] = dict(submission.configuration)
    return body


def _explain_submission(error: ClusterError, submission: Submission) -> ClusterError:
    """Make the error for a failed submission, with advice on usual causes."""
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
        number = _parse_number(each.get(field)) if isinstance(each, dict) else None
        if number is not None:
            values[take(each, "id", str)] = number
    return dict(values)


def _parse_number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if number == number else None
