"""`OperatorCluster` against a server that speaks the Kubernetes API and validates by the operator's definitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ClusterError, NotFoundError, UnsupportedError, UsageError
from state_pipelines.flink.cluster import (
    CheckpointKind,
    JobStatus,
    SavepointFormat,
    SavepointRequest,
    Submission,
    TriggerStatus,
    find_job,
)
from state_pipelines.flink.connections import connect
from tests.clusters.kubernetes_api import KubernetesApi, write_kubeconfig
from tests.clusters.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.flink.cluster import FlinkCluster

OWN, TRIGGER, NEW = "a" * 32, "b" * 32, "c" * 32
SAVEPOINTS = "s3://bucket/savepoints"


def run(api: KubernetesApi, job_id: str = OWN, state: str = "RUNNING", lifecycle: str = "STABLE", **more: Any) -> None:
    job = {"jobId": job_id, "jobName": "orders job", "state": state, "startTime": "1770000000000", **more}
    reconciled = {"state": "DEPLOYED"}
    status = {"jobStatus": job, "lifecycleState": lifecycle, "reconciliationStatus": reconciled}
    api.report("flinkdeployments", "orders", status)


@pytest.fixture
def api() -> KubernetesApi:
    api = KubernetesApi()
    job = {"jarURI": "local:///jobs/orders-1.jar", "parallelism": 2, "state": "running", "upgradeMode": "savepoint"}
    options = {"execution.checkpointing.savepoint-dir": SAVEPOINTS}
    spec = {"image": "orders:1", "flinkVersion": "v2_2", "job": job, "flinkConfiguration": options}
    created, _ = api.create("flinkdeployments", {"metadata": {"name": "orders"}, "spec": spec})
    assert created == 201
    run(api)
    return api


@pytest.fixture
def settings(api: KubernetesApi, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with serving() as server:
        server.answer = api
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url)
        yield {"kubernetes": "orders", "namespace": "flink", "kubeconfig": str(path)}


@pytest.fixture
def cluster(settings: dict[str, Any]) -> FlinkCluster:
    return connect(settings)


def test_a_deployment_is_one_job(cluster: FlinkCluster) -> None:
    job = find_job(cluster, "orders job")
    assert (job.id, job.status) == (OWN, JobStatus.RUNNING)
    assert cluster.describe().version == "2.2"
    assert cluster.endpoint == "FlinkDeployment flink/orders"
    with pytest.raises(NotFoundError, match="has no job"):
        cluster.read_status(NEW)


@pytest.mark.slow
def test_a_savepoint_is_a_resource_of_its_own(cluster: FlinkCluster, api: KubernetesApi) -> None:
    request = SavepointRequest(SAVEPOINTS, SavepointFormat.NATIVE, trigger_id=TRIGGER)
    # The second request has the same trigger id: there is one resource.
    assert [cluster.trigger_savepoint(OWN, request) for _ in range(2)] == [TRIGGER] * 2
    names = [name for plural, name in api.resources if plural == "flinkstatesnapshots"]
    assert names == [f"state-pipelines-{TRIGGER}"]
    spec = api.resources["flinkstatesnapshots", names[0]]["spec"]
    assert spec["jobReference"] == {"kind": "FlinkDeployment", "name": "orders"}
    assert spec["savepoint"] == {"formatType": "NATIVE", "disposeOnDelete": False, "path": SAVEPOINTS}
    assert cluster.poll_savepoint(OWN, TRIGGER).status is TriggerStatus.IN_PROGRESS
    api.report("flinkstatesnapshots", names[0], {"state": "COMPLETED", "path": f"{SAVEPOINTS}/s-1"})
    assert cluster.poll_savepoint(OWN, TRIGGER).path == f"{SAVEPOINTS}/s-1"
    api.report("flinkstatesnapshots", names[0], {"state": "FAILED", "error": "Checkpoint expired before completing."})
    failed = cluster.poll_savepoint(OWN, TRIGGER)
    assert (failed.status, failed.failure) == (TriggerStatus.FAILED, "Checkpoint expired before completing.")
    with pytest.raises(NotFoundError):
        cluster.poll_savepoint(OWN, NEW)


@pytest.mark.slow
def test_a_checkpoint_is_a_resource_too(cluster: FlinkCluster, api: KubernetesApi) -> None:
    cluster.trigger_checkpoint(OWN, trigger_id=TRIGGER)
    name = f"state-pipelines-{TRIGGER}"
    api.report("flinkstatesnapshots", name, {"state": "COMPLETED", "path": "s3://bucket/checkpoints/x/chk-42"})
    progress = cluster.poll_checkpoint(OWN, TRIGGER)
    assert (progress.status, progress.checkpoint_id) == (TriggerStatus.COMPLETED, 42)
    with pytest.raises(UnsupportedError, match="type CONFIGURED only"):
        cluster.trigger_checkpoint(OWN, CheckpointKind.FULL)


@pytest.mark.slow
def test_an_upgrade_suspends_the_job_and_redeploys_it_from_a_savepoint(
    cluster: FlinkCluster, api: KubernetesApi
) -> None:
    stop = SavepointRequest(SAVEPOINTS, stop=True, trigger_id=TRIGGER)
    cluster.trigger_savepoint(OWN, stop)
    assert api.orders["spec"]["job"]["state"] == "suspended"
    # The operator has not seen it yet: the status is that of before.
    assert cluster.read_status(OWN) is JobStatus.CANCELLING
    assert cluster.poll_savepoint(OWN, TRIGGER).status is TriggerStatus.IN_PROGRESS
    run(api, state="FINISHED", lifecycle="SUSPENDED", upgradeSavepointPath=f"{SAVEPOINTS}/s-2")
    assert cluster.poll_savepoint(OWN, TRIGGER).path == f"{SAVEPOINTS}/s-2"
    assert cluster.read_status(OWN) is JobStatus.FINISHED
    generation = api.orders["metadata"]["generation"]
    cluster.trigger_savepoint(OWN, stop)
    assert api.orders["metadata"]["generation"] == generation

    submission = Submission(
        image="orders:2",
        entry_class="com.acme.Orders",
        arguments=("--topic", "orders"),
        parallelism=4,
        savepoint="s3://bucket/migrated/s-3",
        job_id=NEW,
        configuration={"pipeline.max-parallelism": "256"},
    )
    assert cluster.start(submission) == NEW
    spec = api.orders["spec"]
    assert (spec["image"], spec["flinkConfiguration"]["pipeline.max-parallelism"]) == ("orders:2", "256")
    assert spec["flinkConfiguration"]["execution.checkpointing.savepoint-dir"] == SAVEPOINTS
    assert spec["job"] == {
        "jarURI": "local:///jobs/orders-1.jar",
        "parallelism": 4,
        "state": "running",
        "upgradeMode": "savepoint",
        "allowNonRestoredState": False,
        "initialSavepointPath": "s3://bucket/migrated/s-3",
        "savepointRedeployNonce": 0xCCCCCCCC,
        "entryClass": "com.acme.Orders",
        "args": ["--topic", "orders"],
    }
    generation = api.orders["metadata"]["generation"]
    assert cluster.start(submission) == NEW
    assert api.orders["metadata"]["generation"] == generation
    assert cluster.read_status(NEW) is JobStatus.INITIALIZING
    with pytest.raises(NotFoundError):
        cluster.read_status(OWN)
    run(api, job_id="d" * 32)
    assert [(each.id, each.status) for each in cluster.list_jobs()] == [(NEW, JobStatus.RUNNING)]
    cluster.cancel(NEW)
    assert api.orders["spec"]["job"] | {"state": "suspended", "upgradeMode": "stateless"} == api.orders["spec"]["job"]


@pytest.mark.slow
def test_a_suspension_that_fails_has_the_operators_words(cluster: FlinkCluster, api: KubernetesApi) -> None:
    cluster.trigger_savepoint(OWN, SavepointRequest(stop=True, trigger_id=TRIGGER))
    cause = {"type": "java.io.IOException", "message": "Checkpoint was declined."}
    error = json.dumps({"type": "ReconciliationException", "message": "could not suspend", "throwableList": [cause]})
    api.report("flinkdeployments", "orders", {"jobStatus": {"jobId": OWN, "state": "RUNNING"}, "error": error})
    progress = cluster.poll_savepoint(OWN, TRIGGER)
    assert progress.status is TriggerStatus.FAILED
    assert progress.failure.splitlines()[-1] == "java.io.IOException: Checkpoint was declined."
    assert cluster.read_exceptions(OWN)[0].exception == "ReconciliationException"
    api.report("flinkdeployments", "orders", {"jobStatus": {"jobId": OWN}, "lifecycleState": "SUSPENDED"})
    assert "names no savepoint" in cluster.poll_savepoint(OWN, TRIGGER).failure


@pytest.mark.slow
def test_what_the_operator_cannot_do_is_refused(cluster: FlinkCluster, api: KubernetesApi) -> None:
    before = json.dumps(api.orders)
    with pytest.raises(UnsupportedError, match="does not drain"):
        cluster.trigger_savepoint(OWN, SavepointRequest(stop=True, drain=True))
    with pytest.raises(UsageError, match="not to s3://bucket/elsewhere"):
        cluster.trigger_savepoint(OWN, SavepointRequest("s3://bucket/elsewhere", stop=True))
    with pytest.raises(UsageError, match="in the format CANONICAL, not in NATIVE"):
        cluster.trigger_savepoint(OWN, SavepointRequest(format=SavepointFormat.NATIVE, stop=True))
    with pytest.raises(UsageError, match="is a path of this machine"):
        cluster.start(Submission(jar="orders-2.jar"))
    with pytest.raises(UnsupportedError, match="not plans"):
        cluster.start(Submission(plan="plan.json"))
    with pytest.raises(UnsupportedError, match="only Flink's REST endpoint"):
        cluster.read_load(OWN)
    assert json.dumps(api.orders) == before


def test_what_the_definitions_do_not_allow_is_an_error(cluster: FlinkCluster, api: KubernetesApi) -> None:
    with pytest.raises(ClusterError, match=r"HTTP 422\): invalid"):
        cluster.start(Submission(parallelism="four"))  # type: ignore[arg-type]
    assert api.orders["spec"]["job"]["parallelism"] == 2


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        ((403, {"message": "user me cannot patch"}), ClusterError, "does not let us"),
        ((404, {"message": "the server could not find the requested resource"}), NotFoundError, "could not find"),
        ((500, b"<html>"), ClusterError, "HTTP 500"),
    ],
)
def test_refusals_of_the_api_are_errors(
    cluster: FlinkCluster, api: KubernetesApi, refusal: tuple[int, Any], kind: type[Exception], words: str
) -> None:
    api.refusal = refusal
    with pytest.raises(kind, match=words) as caught:
        cluster.read_status(OWN)
    assert "geh3im" not in str(caught.value)


def test_wrong_settings_are_named(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`kind`"):
        connect({**settings, "kind": "Deployment"})
    with pytest.raises(UsageError, match="no configuration of Kubernetes"):
        connect({**settings, "kubeconfig": str(tmp_path / "none")})
    with pytest.raises(UsageError, match="no configuration of Kubernetes"):
        connect({**settings, "context": "elsewhere"})


def test_flink_itself_is_asked_where_it_is_reached(settings: dict[str, Any]) -> None:
    with serving() as flink:
        counts = {"completed": 3, "failed": 0, "in_progress": 0, "restored": 0}
        flink.on(f"GET /jobs/{OWN}/checkpoints", {"counts": counts, "history": []})
        cluster = connect({**settings, "rest": flink.url})
        assert cluster.read_checkpoints(OWN).completed == 3
