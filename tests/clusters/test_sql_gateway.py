"""The SQL Gateway in front of a cluster, against answers that its sources describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ClusterError, UnsupportedError
from state_pipelines.flink.cluster import Submission
from state_pipelines.flink.connections import connect
from state_pipelines.flink.http_client import HttpClient
from state_pipelines.flink.rest_cluster import RestCluster, SqlGateway
from tests.clusters.servers import BREAK, Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB, SAVEPOINT = "c" * 32, "s3://bucket/savepoint-1"
RESULT = "GET /v3/sessions/s-1/operations/o-1/result/0"
STARTED = {"resultType": "PAYLOAD", "jobID": JOB, "results": {"columns": [], "data": []}}
SCRIPT = "SET 'parallelism.default' = '3'; CREATE TABLE t (a INT); INSERT INTO t VALUES (1);"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        server.on("GET /api_versions", {"versions": ["V1", "V2", "V3"]})
        server.on("GET /info", {"productName": "Apache Flink", "version": "2.2.1"})
        server.on("POST /v3/sessions", {"sessionHandle": "s-1"})
        server.on("POST /v3/sessions/s-1/statements", {"operationHandle": "o-1"})
        server.on("DELETE /v3/sessions/s-1", {"status": "CLOSED"})
        server.on(RESULT, STARTED)
        # Flink itself.
        server.on(f"GET /jobs/{JOB}/status", (404, {"errors": ["Job could not be found"]}))
        yield server


@pytest.fixture
def cluster(server: Server) -> RestCluster:
    def hurry(seconds: float) -> None:
        del seconds

    gateway = SqlGateway(HttpClient(server.url, what="the SQL Gateway", sleep=hurry), sleep=hurry)
    return RestCluster(HttpClient(server.url, sleep=hurry), gateway)


def list_statements(server: Server) -> list[str]:
    return [each.content["statement"] for each in server.received if each.path.endswith("/statements")]


@pytest.mark.slow
def test_a_plan_is_started_from_a_snapshot_under_an_id(server: Server, cluster: RestCluster) -> None:
    submission = Submission(
        plan="s3://bucket/it's.json",
        savepoint=SAVEPOINT,
        parallelism=2,
        allow_non_restored_state=True,
        job_id=JOB,
        configuration={"pipeline.name": "totals", "$internal.pipeline.job-id": "another"},
    )
    server.on(RESULT, {"resultType": "NOT_READY"}, STARTED)
    assert cluster.start(submission) == JOB
    (opened,) = (each.content for each in server.received if each.path == "/v3/sessions")
    options = opened["properties"]
    assert options["execution.state-recovery.path"] == SAVEPOINT
    assert options["execution.state-recovery.ignore-unclaimed-state"] == "true"
    assert (options["parallelism.default"], options["pipeline.name"]) == ("2", "totals")
    # The job has the id of the submission, whatever else is asked for.
    assert options["$internal.pipeline.job-id"] == JOB
    assert list_statements(server) == ["EXECUTE PLAN 's3://bucket/it''s.json'"]
    # The session is closed, and nothing is polled any more.
    assert server.received[-1].method == "DELETE"


@pytest.mark.slow
def test_a_script_is_carried_out_statement_by_statement(server: Server, cluster: RestCluster) -> None:
    cluster.start(Submission(script=SCRIPT, savepoint=SAVEPOINT, job_id=JOB))
    assert list_statements(server) == ["CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)"]
    (opened,) = (each.content for each in server.received if each.path == "/v3/sessions")
    assert opened["properties"]["parallelism.default"] == "3"


@pytest.mark.slow
def test_several_inserts_are_one_job(server: Server, cluster: RestCluster) -> None:
    script = "EXECUTE STATEMENT SET BEGIN INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); END;"
    cluster.start(Submission(script=script, job_id=JOB))
    (statement,) = list_statements(server)
    words = "EXECUTE STATEMENT SET BEGIN INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); END"
    assert statement.split() == words.split()


def test_a_job_that_is_there_is_not_started_again(server: Server, cluster: RestCluster) -> None:
    server.on(f"GET /jobs/{JOB}/status", {"status": "RUNNING"})
    assert cluster.start(Submission(plan="plan.json", job_id=JOB)) == JOB
    assert not list_statements(server)


DUPLICATE = "org.apache.flink.runtime.client.DuplicateJobSubmissionException: Job has already been submitted."
FAILED = "java.lang.Exception: outer\n\tat A.b(A.java:1)\nCaused by: java.io.FileNotFoundException: plan.json"


@pytest.mark.slow
def test_a_second_job_with_the_id_is_the_first_one(server: Server, cluster: RestCluster) -> None:
    server.on(RESULT, (500, {"errors": ["Internal server error.", f"<Exception on server side:\n{DUPLICATE}\n>"]}))
    assert cluster.start(Submission(plan="plan.json", job_id=JOB)) == JOB


@pytest.mark.slow
def test_a_statement_that_fails_has_flinks_reason(server: Server, cluster: RestCluster) -> None:
    server.on(RESULT, (500, {"errors": ["Internal server error.", f"<Exception on server side:\n{FAILED}\n>"]}))
    with pytest.raises(ClusterError, match="FileNotFoundException: plan") as caught:
        cluster.start(Submission(plan="/plan.json", job_id=JOB))
    assert not caught.value.is_in_doubt
    assert server.received[-1].method == "DELETE"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [BREAK, (404, {"errors": ["Not found"]}), (500, {"errors": ["Session 's-1' does not exist."]})],
)
def test_a_gateway_that_has_forgotten_a_statement_leaves_it_in_doubt(
    server: Server, cluster: RestCluster, answer: Any
) -> None:
    server.on(RESULT, answer)
    with pytest.raises(ClusterError, match=r"gives no result of .EXECUTE PLAN") as caught:
        cluster.start(Submission(plan="plan.json", job_id=JOB))
    assert caught.value.is_in_doubt


def test_a_statement_whose_answer_is_lost_is_sent_once(server: Server, cluster: RestCluster) -> None:
    server.on("POST /v3/sessions/s-1/statements", BREAK)
    with pytest.raises(ClusterError) as caught:
        cluster.start(Submission(plan="plan.json", job_id=JOB))
    assert caught.value.is_in_doubt
    assert len(list_statements(server)) == 1


@pytest.mark.slow
def test_a_gateway_that_gives_another_id_is_an_error(server: Server, cluster: RestCluster) -> None:
    rows = {"columns": [{"name": "job id"}], "data": [{"kind": "INSERT", "fields": ["d" * 32]}]}
    server.on(RESULT, {"resultType": "PAYLOAD", "results": rows})
    with pytest.raises(ClusterError, match=f"started job {'d' * 32} instead of {JOB}"):
        cluster.start(Submission(plan="plan.json", job_id=JOB))


def test_another_service_is_no_gateway(server: Server, cluster: RestCluster) -> None:
    server.on("GET /api_versions", {"versions": ["V9"]})
    with pytest.raises(ClusterError, match="has none of the API versions V4"):
        cluster.start(Submission(plan="plan.json", job_id=JOB))


@pytest.mark.slow
def test_a_cluster_says_why_it_starts_no_sql(server: Server) -> None:
    server.on("GET /overview", {"flink-version": "2.2.1", "slots-total": 1, "slots-available": 1, "taskmanagers": 1})
    server.on("GET /config", {"features": {"web-submit": True}})
    server.on("GET /jobmanager/config", [])
    assert "sql_gateway beside rest" in connect({"rest": server.url}).describe().sql_obstacle
    assert connect({"rest": server.url, "sql_gateway": server.url}).describe().sql_obstacle == ""
    server.on("GET /info", (403, {"errors": ["no"]}))
    assert "denies access" in connect({"rest": server.url, "sql_gateway": server.url}).describe().sql_obstacle
    with pytest.raises(UnsupportedError, match="runs jars only"):
        connect({"rest": server.url}).start(Submission(plan="plan.json"))
