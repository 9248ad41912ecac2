"""A server that speaks the REST protocol of Flink's SQL Gateway, whose own classes are not in the package of Flink.

Statements are carried out by Flink's planner in a Java process, and jobs run on a session cluster.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from state_pipelines.sql.planner import start_java
from tests.clusters.servers import Received, serving
from tests.flink.harness import install_libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flink.clusters import RunningCluster


class Gateway:
    """Sessions and their operations, by numbers.

    Attributes:
        statements: everything that was carried out, in order.
    """

    def __init__(self, java: Any, cluster: RunningCluster) -> None:
        self.statements: list[str] = []
        self._java = java
        self._cluster = cluster
        self._sessions: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def answer(self, received: Received) -> Any:
        """The answer to a request, as `SqlGatewayRestEndpoint` gives it."""
        match received.method, *received.path.strip("/").split("/"):
            case "GET", "api_versions":
                return {"versions": ["V1", "V2"]}
            case "GET", "info":
                return {"productName": "Apache Flink", "version": self._cluster.version}
            case "POST", "v2", "sessions":
                name = f"session-{len(self._sessions)}"
                self._sessions[name] = self._open(received.content["properties"])
                return {"sessionHandle": name}
            case "POST", "v2", "sessions", session, "statements":
                name = f"operation-{len(self._results)}"
                self._results[name] = self._execute(self._sessions[session], received.content["statement"])
                return {"operationHandle": name}
            case "GET", "v2", "sessions", _, "operations", operation, "result", "0":
                return self._results[operation]
            case "DELETE", "v2", "sessions", session:
                del self._sessions[session]
                self._sessions[f"closed {session}"] = None
                return {"status": "CLOSED"}
        return 404, {"errors": [f"Unable to load requested file {received.path}."]}

    def _open(self, properties: dict[str, str]) -> Any:
        configuration = self._java.org.apache.flink.configuration.Configuration()
        address = urlsplit(self._cluster.url)
        target = {"execution.target": "remote", "rest.address": address.hostname, "rest.port": str(address.port)}
        for key, value in {**target, **properties}.items():
            configuration.setString(key, value)
        api = self._java.org.apache.flink.table.api
        settings = api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration)
        return api.TableEnvironment.create(settings.build())

    def _execute(self, environment: Any, statement: str) -> Any:
        self.statements.append(statement)
        try:
            result = environment.executeSql(statement)
        except Py4JJavaError as error:
            return 500, {"errors": ["Internal server error.", f"<Exception on server side:\n{error}\n>"]}
        client = result.getJobClient()
        job = str(client.get().getJobID()) if client.isPresent() else None
        return {"resultType": "PAYLOAD", "jobID": job, "results": {"columns": [], "data": []}}


@contextmanager
def running_gateway(cluster: RunningCluster) -> Iterator[tuple[Gateway, str]]:
    """Run a gateway in front of a cluster during the block; give it with its address."""
    with start_java(install_libraries(cluster.version).jars) as java, serving() as server:
        gateway = Gateway(java, cluster)
        server.answer = gateway.answer
        yield gateway, server.url
