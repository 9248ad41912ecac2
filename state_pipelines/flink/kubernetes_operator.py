"""`OperatorCluster`: a job of Flink's Kubernetes operator, through the Kubernetes API.

A `FlinkDeployment` or `FlinkSessionJob` is one job, whose id the operator chooses. So that a start is idempotent, the
id that the caller chooses is an annotation of the resource, and the nonce that makes the operator redeploy follows from
it. Savepoints and checkpoints of a running job are `FlinkStateSnapshot` resources, named after their triggers. What
only Flink itself knows (statistics of checkpoints, load) is asked of its REST endpoint, where that is reached.

Sources: `FlinkDeploymentSpec`, `JobSpec`, `CommonStatus`, `AbstractJobReconciler` of the operator.
"""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import ClusterError, NotFoundError, StateError, UnsupportedError, UsageError
from state_pipelines.flink.checkpoint_failures import list_causes
from state_pipelines.flink.cluster import (
    CheckpointKind,
    CheckpointProgress,
    ClusterOverview,
    JobDetails,
    JobFailure,
    JobOverview,
    JobStart,
    JobStatus,
    SavepointProgress,
    TriggerStatus,
)
from state_pipelines.flink.rest_cluster import read_status, take
from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.flink.cluster import (
        Checkpoint,
        CheckpointStatistics,
        FlinkCluster,
        JobLoad,
        SavepointRequest,
        Submission,
    )

_T = TypeVar("_T")
GROUP, VERSION = "flink.apache.org", "v1beta1"
PLURALS = {"FlinkDeployment": "flinkdeployments", "FlinkSessionJob": "flinksessionjobs"}
"""Kinds of resources that are one job, with the names of their collections."""

JOB_ID = "state-pipelines/job-id"
"""Annotation with the job id that the caller has chosen for the last start."""

STOP_ID = "state-pipelines/stop-id"
"""Annotation with the trigger id of the last stop."""

_SNAPSHOTS = "flinkstatesnapshots"
_SAVEPOINT_DIRECTORIES = ("execution.checkpointing.savepoint-dir", "state.savepoints.dir")
_SAVEPOINT_FORMAT = "kubernetes.operator.savepoint.format.type"
_CHECKPOINT = re.compile(r"chk-(\d+)/?$")
_SNAPSHOT_STATES = {
    "COMPLETED": TriggerStatus.COMPLETED,
    "FAILED": TriggerStatus.FAILED,
    "ABANDONED": TriggerStatus.FAILED,
}


class OperatorCluster:
    """A job that Flink's Kubernetes operator runs.

    Args:
        api: `kubernetes.client.CustomObjectsApi`.
        name: name of the resource.
        namespace: namespace of the resource.
        kind: `FlinkDeployment` or `FlinkSessionJob`.
        rest: Flink's own REST endpoint, for what only Flink knows; None if it cannot be reached.
        seconds: time-outs of a request: to connect, and to read.
    """

    def __init__(
        self,
        api: Any,
        name: str,
        namespace: str,
        kind: str = "FlinkDeployment",
        rest: FlinkCluster | None = None,
        seconds: tuple[float, float] = (10, 60),
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._kind = kind
        self._rest = rest
        self._seconds = seconds

    @property
    def endpoint(self) -> str:
        """Kind, namespace and name of the resource, for messages."""
        return f"{self._kind} {self._namespace}/{self._name}"

    def describe(self) -> ClusterOverview:
        """Describe the deployment, with the configuration in its specification."""
        resource = self._read()
        spec, status = _take(resource, "spec"), _take(resource, "status")
        version = str(spec.get("flinkVersion", "")).removeprefix("v").replace("_", ".")
        options = {str(name): str(value) for name, value in _take(spec, "flinkConfiguration").items()}
        return ClusterOverview(
            endpoint=self.endpoint,
            version=str(_take(status, "clusterInfo").get("flink-version") or version),
            slots_total=None,
            slots_available=None,
            task_managers=None,
            can_submit=True,
            configuration={name: redact(value) for name, value in sorted(options.items())},
            sql_obstacle="the operator starts jars only",
            stop_directory=_find_savepoint_directory(options),
        )

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return the job of the resource; empty before the operator has deployed it."""
        resource = self._read()
        job = self._describe_job(resource)
        return (job,) if job.id else ()

    def _describe_job(self, resource: Mapping[str, Any]) -> JobOverview:
        status = _take(_take(resource, "status"), "jobStatus")
        started = str(status.get("startTime") or "")
        return JobOverview(
            id=_find_annotation(resource, JOB_ID) or str(status.get("jobId") or ""),
            name=str(status.get("jobName") or self._name),
            status=_find_status(resource),
            started=datetime.fromtimestamp(int(started) / 1000, UTC) if started.isdecimal() else None,
        )

    def read_job(self, job_id: str) -> JobDetails:
        """Return the job; its tasks and settings are known only if Flink's REST endpoint is reached."""
        resource = self._find(job_id)
        job = self._describe_job(resource)
        own = self._find_own_id(resource)
        if self._rest is not None and own and _is_deployed(resource):
            details = self._rest.read_job(own)
            return JobDetails(
                job, details.vertices, details.max_parallelism, details.configuration, details.checkpoints, details.plan
            )
        options = _take(_take(resource, "spec"), "flinkConfiguration")
        shown = {str(name): redact(str(value)) for name, value in options.items()}
        return JobDetails(job, (), None, shown, None, {})

    def read_status(self, job_id: str) -> JobStatus:
        """Return the status of the job; INITIALIZING until the operator has seen the last request to start it."""
        return _find_status(self._find(job_id))

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        """Create a `FlinkStateSnapshot`, or suspend the job with a savepoint; return the trigger id."""
        trigger = (request.trigger_id or uuid.uuid4().hex).lower()
        resource = self._find(job_id)
        if not (request.stop or request.drain):
            savepoint: dict[str, object] = {"formatType": str(request.format), "disposeOnDelete": False}
            savepoint |= {"path": request.directory} if request.directory else {}
            self._create_snapshot(trigger, {"savepoint": savepoint})
            return trigger
        if request.drain:
            raise UnsupportedError(
                f"Flink's Kubernetes operator does not drain the job of {self.endpoint} when it suspends it",
                hint="Stop without draining, which is right for a job that goes on from the savepoint",
            )
        self._require_options(resource, request)
        if _find_annotation(resource, STOP_ID) != trigger:
            body = {"spec": {"job": {"state": "suspended", "upgradeMode": "savepoint"}}}
            self._patch({**body, "metadata": {"annotations": {STOP_ID: trigger}}})
        return trigger

    def _require_options(self, resource: Mapping[str, Any], request: SavepointRequest) -> None:
        """Refuse a directory or format other than the configured one, which the operator uses to suspend a job."""
        options = _take(_take(resource, "spec"), "flinkConfiguration")
        directory = _find_savepoint_directory(options)
        if request.directory and request.directory.rstrip("/") != directory.rstrip("/"):
            raise UsageError(
                f"Flink's Kubernetes operator would write the savepoint of {self.endpoint} to "
                f"{directory or 'no directory, since none is configured'}, not to {request.directory}",
                hint=f"Set {_SAVEPOINT_DIRECTORIES[0]} in its flinkConfiguration first, or ask for the configured "
                "directory",
            )
        chosen = str(options.get(_SAVEPOINT_FORMAT, "CANONICAL")).upper()
        if chosen != str(request.format):
            raise UsageError(
                f"Flink's Kubernetes operator would write the savepoint of {self.endpoint} in the format {chosen}, "
                f"not in {request.format}",
                hint=f"Set {_SAVEPOINT_FORMAT} in its flinkConfiguration first, or ask for the configured format",
            )

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        """Return the progress of a savepoint, which may be the one that the job was suspended with."""
        resource = self._find(job_id)
        if _find_annotation(resource, STOP_ID) == trigger_id.lower():
            return _read_suspension(resource)
        status, path, failure = self._poll_snapshot(trigger_id)
        return SavepointProgress(status, path, failure)

    def trigger_checkpoint(
        self, job_id: str, kind: CheckpointKind = CheckpointKind.CONFIGURED, trigger_id: str | None = None
    ) -> str:
        """Create a `FlinkStateSnapshot` for a checkpoint; the operator takes only those of the configured kind."""
        self._find(job_id)
        if kind is not CheckpointKind.CONFIGURED:
            raise UnsupportedError(
                f"Flink's Kubernetes operator triggers checkpoints of the type {CheckpointKind.CONFIGURED} only, "
                f"not {kind}"
            )
        trigger = (trigger_id or uuid.uuid4().hex).lower()
        self._create_snapshot(trigger, {"checkpoint": {}})
        return trigger

    def poll_checkpoint(self, job_id: str, trigger_id: str) -> CheckpointProgress:
        """Return the progress of a checkpoint."""
        self._find(job_id)
        status, path, failure = self._poll_snapshot(trigger_id)
        found = _CHECKPOINT.search(path)
        return CheckpointProgress(status, int(found[1]) if found else None, failure)

    def _create_snapshot(self, trigger: str, spec: Mapping[str, object]) -> None:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "FlinkStateSnapshot",
            "metadata": {"name": _name_snapshot(trigger), "namespace": self._namespace},
            "spec": {"jobReference": {"kind": self._kind, "name": self._name}, "backoffLimit": 0, **spec},
        }
        # If the name exists (409), an earlier request with the same trigger id has created the snapshot.
        self._call(
            lambda seconds: self._api.create_namespaced_custom_object(
                GROUP, VERSION, self._namespace, _SNAPSHOTS, body, _request_timeout=seconds
            ),
            "create a FlinkStateSnapshot",
            accepted=(409,),
        )

    def _poll_snapshot(self, trigger_id: str) -> tuple[TriggerStatus, str, str]:
        name = _name_snapshot(trigger_id.lower())
        resource = self._call(
            lambda seconds: self._api.get_namespaced_custom_object(
                GROUP, VERSION, self._namespace, _SNAPSHOTS, name, _request_timeout=seconds
            ),
            f"read FlinkStateSnapshot {name}",
        )
        status = _take(resource, "status")
        state = _SNAPSHOT_STATES.get(str(status.get("state")), TriggerStatus.IN_PROGRESS)
        failure = redact(str(status.get("error") or f"the snapshot was {str(status.get('state')).lower()}"))
        path = str(status.get("path") or "")
        return state, path if state is TriggerStatus.COMPLETED else "", failure if state is TriggerStatus.FAILED else ""

    def cancel(self, job_id: str) -> None:
        """Suspend the job without a savepoint."""
        self._find(job_id)
        self._patch({"spec": {"job": {"state": "suspended", "upgradeMode": "stateless"}}})

    def start(self, submission: Submission) -> str:
        """Redeploy the job from a savepoint, or start it; return its id, which is an annotation of the resource."""
        job_id = (submission.job_id or uuid.uuid4().hex).lower()
        resource = self._read()
        if _find_annotation(resource, JOB_ID) == job_id:
            return job_id
        if submission.plan is not None or submission.script is not None:
            raise UnsupportedError(
                "Flink's Kubernetes operator starts jars, not plans or scripts of SQL",
                hint="Give the plan to a runner in a jar as its argument",
            )
        if submission.jar is not None and "://" not in submission.jar:
            raise UsageError(
                f"Flink's Kubernetes operator fetches the jar itself, and {submission.jar} is a path of this machine",
                hint="Name an address that its pods reach, such as local:///jobs/job.jar in the image or https://…",
            )
        job: dict[str, object] = {"state": "running", "allowNonRestoredState": submission.allow_non_restored_state}
        job |= {"upgradeMode": "savepoint"}
        if submission.savepoint is not None:
            job |= {"initialSavepointPath": submission.savepoint, "savepointRedeployNonce": int(job_id[:8], 16)}
        else:
            job |= {"upgradeMode": "stateless"}
        job |= {"jarURI": submission.jar} if submission.jar is not None else {}
        job |= {"entryClass": submission.entry_class} if submission.entry_class is not None else {}
        job |= {"args": list(submission.arguments)} if submission.arguments else {}
        job |= {"parallelism": submission.parallelism} if submission.parallelism is not None else {}
        spec: dict[str, object] = {"job": job}
        if submission.configuration:
            spec["flinkConfiguration"] = dict(submission.configuration)
        if submission.image is not None:
            if self._kind != "FlinkDeployment":
                raise UsageError("a FlinkSessionJob has no image", hint="Name the jar of the job")
            spec["image"] = submission.image
        self._patch({"metadata": {"annotations": {JOB_ID: job_id}}, "spec": spec})
        return job_id

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        """Return the error that the operator reports, and the failures that Flink reports if it is reached."""
        resource = self._find(job_id)
        failures: list[JobFailure] = []
        error = str(_take(resource, "status").get("error") or "")
        # Until the operator has observed the change, its error is about the job before the change.
        if error and _is_observed(resource):
            kind, stack = _read_error(error)
            failures.append(JobFailure(datetime.now(UTC), kind, stack))
        own = self._find_own_id(resource)
        if self._rest is not None and own and _is_deployed(resource):
            failures += self._rest.read_exceptions(own)
        return tuple(failures)

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        """Return statistics of the checkpoints from Flink's REST endpoint."""
        return self._ask_flink(job_id, lambda rest, own: rest.read_checkpoints(own))

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        """Return a checkpoint from Flink's REST endpoint."""
        return self._ask_flink(job_id, lambda rest, own: rest.read_checkpoint(own, checkpoint_id, subtasks=subtasks))

    def read_load(self, job_id: str) -> JobLoad:
        """Return restarts, backpressure and lag from Flink's REST endpoint."""
        return self._ask_flink(job_id, lambda rest, own: rest.read_load(own))

    def read_start(self, job_id: str) -> JobStart | None:
        """Return None: pods start before the job, and Flink does not know how long they take."""
        del job_id
        return None

    def _ask_flink(self, job_id: str, ask: Callable[[FlinkCluster, str], _T]) -> _T:
        resource = self._find(job_id)
        own = self._find_own_id(resource)
        if self._rest is None:
            raise UnsupportedError(
                f"the Kubernetes API has no details of the job of {self.endpoint}; only Flink's REST endpoint has them",
                hint="Add `rest` beside `kubernetes`: the address of the service NAME-rest",
            )
        if not own or not _is_deployed(resource):
            raise NotFoundError(
                f"{self.endpoint} runs no job yet", hint="Try again once the operator has deployed the job"
            )
        return ask(self._rest, own)

    @staticmethod
    def _find_own_id(resource: Mapping[str, Any]) -> str:
        """Return the id that the operator has given the job."""
        return str(_take(_take(resource, "status"), "jobStatus").get("jobId") or "")

    def _find(self, job_id: str) -> dict[str, Any]:
        """Read the resource; raise if its job has another id."""
        resource = self._read()
        chosen = _find_annotation(resource, JOB_ID)
        # The resource describes only the job that was started last; earlier jobs are not found any more.
        if job_id.lower() != (chosen or self._find_own_id(resource).lower()):
            raise NotFoundError(
                f"{self.endpoint} has no job {job_id}", hint="Look whether somebody else has changed the resource"
            )
        return resource

    def _read(self) -> dict[str, Any]:
        return self._call(
            lambda seconds: self._api.get_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURALS[self._kind], self._name, _request_timeout=seconds
            ),
            "read the resource",
        )

    def _patch(self, body: Mapping[str, object]) -> None:
        # A merge patch with absolute values has the same effect if it arrives several times.
        self._call(
            lambda seconds: self._api.patch_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURALS[self._kind], self._name, body, _request_timeout=seconds
            ),
            "change the resource",
        )

    def _call(
        self, call: Callable[[tuple[float, float]], Any], what: str, accepted: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Call the Kubernetes API, and return its answer.

        Raises:
            ClusterError: the API cannot be reached or refuses the call.
            NotFoundError: there is no such resource.
        """
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = call(self._seconds)
        except ApiException as error:
            status = int(error.status or 0)
            if status in accepted:
                return {}
            raise self._refuse(status, _read_message(error), what) from None
        except (HTTPError, OSError) as error:
            raise ClusterError(
                f"the Kubernetes API cannot be reached to {what} ({self.endpoint}): {type(error).__name__}",
                hint="Check the context and the network; the request may have been carried out",
                transient=True,
                in_doubt=not what.startswith("read"),
            ) from None
        if not isinstance(answer, dict):
            raise ClusterError(f"the Kubernetes API does not answer with a resource ({self.endpoint})")
        return answer

    def _refuse(self, status: int, message: str, what: str) -> StateError:
        if status == 404:
            return NotFoundError(
                f"the Kubernetes API cannot {what}, {self.endpoint}: not found: {message}",
                hint="Check name and namespace, and whether the operator's resource definitions (CRDs) are installed",
            )
        if status in (401, 403):
            return ClusterError(
                f"the Kubernetes API does not let us {what}, {self.endpoint} (HTTP {status}): {message}",
                hint="Give the account get, patch and create of flinkdeployments, flinksessionjobs and "
                "flinkstatesnapshots in flink.apache.org",
            )
        return ClusterError(
            f"the Kubernetes API refuses to {what}, {self.endpoint} (HTTP {status}): {message}",
            hint="The installed resource definitions (CRDs) of the operator may be too old" if status == 422 else "",
            transient=status in (429, 500, 502, 503, 504),
            in_doubt=status in (500, 502, 504) and not what.startswith("read"),
        )


def connect_api(kubeconfig: str | None = None, context: str | None = None) -> Any:
    """Connect to the Kubernetes API of a kubeconfig, or of the pod in which this process runs.

    Raises:
        UsageError: the Kubernetes client is not installed, or there is neither a kubeconfig nor a pod.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise UsageError(
            "the Kubernetes client is not installed", hint="pip install 'state-pipelines[kubernetes]'"
        ) from None
    try:
        if kubeconfig is None and context is None:
            try:
                settings = client.Configuration()
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
                return client.CustomObjectsApi(client.ApiClient(settings))
            except config.ConfigException:
                pass
        made = config.new_client_from_config(config_file=kubeconfig, context=context)  # type: ignore[no-untyped-call]
        return client.CustomObjectsApi(made)
    except (config.ConfigException, OSError) as error:
        raise UsageError(
            f"there is no configuration of Kubernetes: {error}", hint="Name kubeconfig and context in `cluster`"
        ) from None


def _take(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    return take(content, name, dict, {})


def _find_savepoint_directory(options: Mapping[str, Any]) -> str:
    return next((str(options[name]) for name in _SAVEPOINT_DIRECTORIES if options.get(name)), "")


def _find_annotation(resource: Mapping[str, Any], name: str) -> str:
    return str(_take(_take(resource, "metadata"), "annotations").get(name) or "")


def _is_observed(resource: Mapping[str, Any]) -> bool:
    """Return whether the operator has seen the last change of the specification."""
    generation = _take(resource, "metadata").get("generation")
    return generation is None or (_take(resource, "status").get("observedGeneration") or 0) >= generation


def _is_deployed(resource: Mapping[str, Any]) -> bool:
    """Return whether the job id in the status belongs to the job that is specified now, not to the one before."""
    return _find_status(resource) not in (JobStatus.INITIALIZING, JobStatus.CANCELLING)


def _find_status(resource: Mapping[str, Any]) -> JobStatus:
    status = _take(resource, "status")
    wanted = str(_take(_take(resource, "spec"), "job").get("state") or "running")
    state = str(_take(status, "jobStatus").get("state") or "")
    if not _is_observed(resource):
        # The status still describes the job as it was before the change.
        return JobStatus.INITIALIZING if wanted == "running" else JobStatus.CANCELLING
    lifecycle = str(status.get("lifecycleState") or "")
    if lifecycle == "FAILED":
        return JobStatus.FAILED
    if lifecycle == "UPGRADING" or _take(status, "reconciliationStatus").get("state") == "UPGRADING":
        return JobStatus.INITIALIZING if wanted == "running" else JobStatus.CANCELLING
    if lifecycle == "SUSPENDED":
        found = read_status(state) if state else JobStatus.FINISHED
        return found if found.is_terminal else JobStatus.FINISHED
    return read_status(state) if state else JobStatus.INITIALIZING


def _read_suspension(resource: Mapping[str, Any]) -> SavepointProgress:
    """Return the progress of the savepoint with which a job is suspended."""
    status = _take(resource, "status")
    job = _take(status, "jobStatus")
    error = str(status.get("error") or "")
    if not _is_observed(resource):
        return SavepointProgress(TriggerStatus.IN_PROGRESS)
    if status.get("lifecycleState") == "SUSPENDED":
        last = _take(_take(job, "savepointInfo"), "lastSavepoint").get("location")
        path = str(job.get("upgradeSavepointPath") or last or "")
        if path:
            return SavepointProgress(TriggerStatus.COMPLETED, path)
        return SavepointProgress(
            TriggerStatus.FAILED, failure="the job is suspended, and the operator names no savepoint"
        )
    if error:
        return SavepointProgress(TriggerStatus.FAILED, failure="\n".join(list_causes(_read_error(error)[1])))
    return SavepointProgress(TriggerStatus.IN_PROGRESS)


def _read_error(error: str) -> tuple[str, str]:
    """Return class and stack of an error in a status (`FlinkResourceException` as JSON, or text)."""
    try:
        content = json.loads(error)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "", redact(error)
    causes = [each for each in content.get("throwableList") or () if isinstance(each, dict)]
    chain = [content, *causes]
    stack = "\nCaused by: ".join(f"{each.get('type', '')}: {each.get('message', '')}" for each in chain)
    return str(content.get("type") or ""), redact(stack)


def _read_message(error: Any) -> str:
    try:
        content = json.loads(error.body or "")
    except (ValueError, TypeError):
        content = None
    message = content.get("message") if isinstance(content, dict) else None
    return redact(str(message or error.reason or "no message"))[:1000]


def _name_snapshot(trigger: str) -> str:
    return f"state-pipelines-{trigger}"
