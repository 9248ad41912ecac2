"""A server that speaks the Kubernetes API and validates by the definitions of Flink's operator, and such an operator.

The operator's work goes on while its resources are read: each time by one step.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import yaml

if TYPE_CHECKING:
    from tests.clusters.servers import Received

DEFINITIONS = Path(__file__).parents[1] / "data" / "kubernetes"
PLURALS = ("flinkdeployments", "flinksessionjobs", "flinkstatesnapshots")


def refuse_unknown(schema: Any) -> Any:
    """The schema without other fields than its own, which the API would drop silently."""
    if isinstance(schema, dict):
        schema = {name: refuse_unknown(each) for name, each in schema.items()}
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    return schema


def load_schema(plural: str) -> Any:
    definition = yaml.safe_load((DEFINITIONS / f"{plural}.yaml").read_text())
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1beta1")
    return refuse_unknown({**version["schema"]["openAPIV3Schema"], "type": "object"})


SCHEMAS = {plural: load_schema(plural) for plural in PLURALS}


def merge(content: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(content) if isinstance(content, dict) else {}
    for name, value in patch.items():
        merged[name] = merge(merged.get(name), value)
        if value is None:
            del merged[name]
    return merged


class KubernetesApi:
    """Resources of the operator by collection and name."""

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.refusal: tuple[int, Any] | None = None

    def __call__(self, received: Received) -> Any:
        if self.refusal is not None:
            return self.refusal
        words = received.path.partition("?")[0].strip("/").split("/")
        assert words[:5] == ["apis", "flink.apache.org", "v1beta1", "namespaces", "flink"]
        plural = words[5]
        if received.method == "POST":
            return self.create(plural, received.content)
        resource = self.resources.get((plural, words[6]))
        if resource is None:
            return 404, {"kind": "Status", "message": f'{plural} "{words[6]}" not found', "code": 404}
        if received.method == "PATCH":
            assert received.headers["Content-Type"] == "application/merge-patch+json"
            merged = merge(resource, received.content)
            if merged["spec"] != resource["spec"]:
                merged["metadata"]["generation"] += 1
            return self.store(plural, merged)
        return resource

    def create(self, plural: str, resource: dict[str, Any]) -> Any:
        if (plural, resource["metadata"]["name"]) in self.resources:
            return 409, {"kind": "Status", "message": "already exists", "reason": "AlreadyExists", "code": 409}
        resource["metadata"]["generation"] = 1
        answer = self.store(plural, resource)
        return answer if answer[0] == 422 else (201, resource)

    def store(self, plural: str, resource: dict[str, Any]) -> tuple[int, Any]:
        content = {name: resource[name] for name in ("spec", "status") if name in resource}
        errors = list(jsonschema.Draft202012Validator(SCHEMAS[plural]).iter_errors(content))
        if errors:
            return 422, {"kind": "Status", "message": f"invalid: {errors[0].message}", "code": 422}
        self.resources[plural, resource["metadata"]["name"]] = resource
        return 200, resource

    def report(self, plural: str, name: str, status: dict[str, Any]) -> None:
        """Set the status as the operator does, for the specification as it is."""
        resource = self.resources[plural, name]
        more = {} if plural == "flinkstatesnapshots" else {"observedGeneration": resource["metadata"]["generation"]}
        code, answer = self.store(plural, {**resource, "status": {**status, **more}})
        assert code == 200, answer

    @property
    def orders(self) -> dict[str, Any]:
        """The deployment."""
        return self.resources["flinkdeployments", "orders"]


def write_kubeconfig(path: Path, address: str) -> None:
    """Write the configuration of a client of a server."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": "geh3im-4711"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    path.write_text(json.dumps(kubeconfig))


class OperatedJob:
    """A job of the operator, with the REST endpoint of its Flink.

    Attributes:
        started: program and initial savepoint of each job that was started, in order.
        broken: programs whose jobs fail at once.
    """

    def __init__(self, api: KubernetesApi, plural: str, name: str, snapshot: Path) -> None:
        self.started: list[tuple[str, str]] = []
        self.broken: set[str] = set()
        self._api = api
        self._key = (plural, name)
        self._snapshot = snapshot
        self._number = 0
        self._deploys = False
        self._asked = 0
        self._savepoints: list[str] = []
        self._deploy()

    def answer_api(self, received: Received) -> Any:
        """The answer of the Kubernetes API, after a step of the operator."""
        if received.method == "GET":
            self._reconcile()
        return self._api(received)

    def answer_flink(self, received: Received) -> Any:
        """The answer of Flink's REST endpoint, which knows the job that runs only."""
        path = received.path.partition("?")[0]
        own = f"/jobs/{self._job_id}"
        if not path.startswith(own):
            return 404, {"errors": ["org.apache.flink.runtime.rest.NotFoundException: Job could not be found"]}
        match path.removeprefix(own):
            case "/checkpoints":
                self._asked += 1
                counts = {"completed": self._asked, "failed": 0, "in_progress": 0, "restored": 0}
                return {"counts": counts, "history": [self._describe(each) for each in self._savepoints]}
            case "/exceptions":
                return {"exceptionHistory": {"entries": [], "truncated": False}}
            case "/metrics":
                return [{"id": "numRestarts", "value": "0"}]
            case "/config":
                return {"execution-config": {}}
            case "/checkpoints/config":
                return 404, {"errors": ["Checkpointing is not enabled for this job"]}
            case "":
                return {"jid": self._job_id, "name": "orders", "state": "RUNNING", "vertices": []}
        return 404, {"errors": [path]}

    @property
    def _resource(self) -> dict[str, Any]:
        return self._api.resources[self._key]

    @property
    def _job_id(self) -> str:
        return f"{self._number:032x}"

    @property
    def _job(self) -> dict[str, Any]:
        job: dict[str, Any] = self._resource["spec"]["job"]
        return job

    @property
    def _program(self) -> str:
        return str(self._resource["spec"].get("image") or self._job["jarURI"])

    def _reconcile(self) -> None:
        for (plural, name), each in list(self._api.resources.items()):
            if plural == "flinkstatesnapshots" and "status" not in each:
                path = self._take(each["spec"]["savepoint"]["path"])
                self._api.report(plural, name, {"state": "COMPLETED", "path": path})
        seen = self._resource.get("status", {}).get("observedGeneration", 0)
        if self._deploys:
            self._deploy()
        elif seen < self._resource["metadata"]["generation"]:
            if self._job["state"] == "running":
                # Until it is deployed, the status has the id of the job before.
                self._report("FINISHED", "UPGRADING")
                self._deploys = True
            elif self._job["upgradeMode"] == "savepoint":
                self._report("FINISHED", "SUSPENDED", upgradeSavepointPath=self._take(self._directory))
            else:
                self._report("CANCELED", "SUSPENDED")

    @property
    def _directory(self) -> str:
        return str(self._resource["spec"]["flinkConfiguration"]["execution.checkpointing.savepoint-dir"])

    def _take(self, directory: str) -> str:
        path = f"{directory}/savepoint-{len(self._savepoints)}"
        shutil.copytree(self._snapshot, path)
        self._savepoints.insert(0, path)
        return path

    def _deploy(self) -> None:
        self._deploys = False
        self._number += 1
        self._asked = 0
        self.started.append((self._program, self._job.get("initialSavepointPath", "")))
        if self._program in self.broken:
            error = {"type": "JobException", "message": "the new program is broken", "throwableList": []}
            self._report("FAILED", "FAILED", error=json.dumps(error))
        else:
            self._report("RUNNING", "STABLE")

    def _report(self, state: str, lifecycle: str, *, error: str | None = None, **more: str) -> None:
        job = {"jobId": self._job_id, "jobName": "orders", "state": state, "startTime": "1770000000000", **more}
        status: dict[str, Any] = {"jobStatus": job, "lifecycleState": lifecycle}
        if error is not None:
            status["error"] = error
        self._api.report(*self._key, status)

    def _describe(self, path: str) -> dict[str, Any]:
        number = len(self._savepoints) - self._savepoints.index(path)
        return {
            "id": number,
            "status": "COMPLETED",
            "is_savepoint": True,
            "checkpoint_type": "SAVEPOINT",
            "trigger_timestamp": 1770000000000 + number,
            "end_to_end_duration": 1500,
            "state_size": 1000,
            "num_subtasks": 1,
            "num_acknowledged_subtasks": 1,
            "external_path": path,
            "discarded": False,
        }
