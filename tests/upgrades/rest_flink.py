"""Flink's REST endpoint in front of a cluster in memory, whose requests a test can disturb."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import ClusterError, NotFoundError
from state_pipelines.flink.cluster import SavepointRequest, Submission, TriggerStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.flink.cluster import Checkpoint, JobOverview
    from tests.clusters.servers import Received
    from tests.upgrades.memory_cluster import MemoryCluster

_JOB = re.compile(r"/jobs/([0-9a-f]{32})(/[^?]*)?")


@dataclass
class RestFlink:
    """The endpoint.

    Attributes:
        cluster: the cluster in memory.
        disturbances: an expression for `METHOD /path`, how many requests of it get another answer (None: all), the
            answer (as of `servers.Server`), and whether the request has its effect all the same.
        on_stop: called after a job was stopped.
    """

    cluster: MemoryCluster
    disturbances: list[tuple[str, int | None, Any, bool]] = field(default_factory=list)
    on_stop: Callable[[], object] = lambda: None

    def answer(self, received: Received) -> Any:
        """The answer to a request."""
        request = f"{received.method} {received.path}"
        for number, (pattern, times, content, has_effect) in enumerate(self.disturbances):
            if re.match(pattern, request):
                left = None if times is None else times - 1
                self.disturbances[number : number + 1] = [] if left == 0 else [(pattern, left, content, has_effect)]
                if has_effect:
                    self._answer(received)
                return content
        return self._answer(received)

    def _answer(self, received: Received) -> Any:
        path = received.path.partition("?")[0]
        found = _JOB.fullmatch(path)
        try:
            if found is not None:
                return self._answer_job(received, found[1], found[2] or "")
            return self._answer_cluster(received, path)
        except NotFoundError as error:
            return 404, {"errors": [str(error)]}
        except ClusterError as error:
            return 400, {"errors": [str(error)]}

    def _answer_cluster(self, received: Received, path: str) -> Any:
        if path == "/overview":
            return {"flink-version": self.cluster.version, "slots-total": 4, "slots-available": 2, "taskmanagers": 1}
        if path == "/config":
            return {"features": {"web-submit": True}}
        if path == "/jobmanager/config":
            return []
        if path == "/jobs/overview":
            return {"jobs": [_describe(each) for each in self.cluster.list_jobs()]}
        if path == "/jars":
            return {"files": []}
        if path == "/jars/upload":
            name = re.search(rb'filename="([^"]+)"', received.body)
            assert name is not None
            return {"filename": f"/uploads/{name[1].decode()}"}
        run = re.fullmatch(r"/jars/(.+)-[0-9a-f]{16}\.jar/run", path)
        assert run is not None, path
        body = received.content
        submission = Submission(f"{run[1]}.jar", savepoint=body["savepointPath"], job_id=body["jobId"])
        return {"jobid": self.cluster.start(submission)}

    def _answer_job(self, received: Received, job: str, rest: str) -> Any:
        cluster = self.cluster
        if received.method == "PATCH":
            cluster.cancel(job)
            return {}
        if rest in ("/savepoints", "/stop"):
            body = received.content
            directory = body.get("target-directory") or body.get("targetDirectory")
            wanted = SavepointRequest(directory, stop=rest == "/stop", trigger_id=body["triggerId"])
            trigger = cluster.trigger_savepoint(job, wanted)
            if wanted.stop:
                self.on_stop()
            return {"request-id": trigger}
        if rest.startswith("/savepoints/"):
            progress = cluster.poll_savepoint(job, rest.rpartition("/")[2])
            if progress.status is TriggerStatus.IN_PROGRESS:
                return {"status": {"id": "IN_PROGRESS"}}
            operation = {"failure-cause": {"class": progress.failure}} if progress.failure else {}
            return {"status": {"id": "COMPLETED"}, "operation": operation or {"location": progress.path}}
        answers: dict[str, Callable[[], Any]] = {
            "": lambda: {**_describe(cluster.read_job(job).job), "vertices": [], "plan": {}},
            "/config": lambda: {"execution-config": {}},
            "/status": lambda: {"status": str(cluster.read_status(job))},
            "/checkpoints": lambda: self._describe_checkpoints(job),
            "/exceptions": lambda: {"exceptionHistory": {"entries": self._list_failures(job)}},
            "/metrics": lambda: [{"id": "numRestarts", "value": str(cluster.jobs[job].restarts)}],
        }
        if rest not in answers:
            return 404, {"errors": [f"Unable to load requested file {received.path}."]}
        return answers[rest]()

    def _describe_checkpoints(self, job: str) -> dict[str, Any]:
        found = self.cluster.read_checkpoints(job)
        restored = {"restored": {"id": 1, "external_path": found.restored_path}} if found.restored_path else {}
        counts = {"completed": found.completed, "failed": 0, "in_progress": 0, "restored": 0}
        return {"counts": counts, "latest": restored, "history": [_describe_checkpoint(each) for each in found.history]}

    def _list_failures(self, job: str) -> list[dict[str, Any]]:
        return [
            {"exceptionName": each.exception, "stacktrace": each.stack, "timestamp": 1}
            for each in self.cluster.read_exceptions(job)
        ]


def _describe(job: JobOverview) -> dict[str, Any]:
    return {"jid": job.id, "name": job.name, "state": str(job.status), "start-time": 1}


def _describe_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "status": str(checkpoint.status),
        "is_savepoint": True,
        "trigger_timestamp": int(checkpoint.triggered.timestamp() * 1000),
        "end_to_end_duration": checkpoint.duration_ms,
        "state_size": checkpoint.state_size,
        "external_path": checkpoint.path,
    }
