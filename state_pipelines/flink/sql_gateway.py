"""`SqlGateway`: jobs of SQL, which only Flink's SQL Gateway starts, through its REST endpoint of any version.

A start is one session, whose options say from which snapshot and under which id the job starts. The session is closed
again; the job goes on. Sources: `SqlGatewayRestEndpoint` with its message headers, `FetchResultsHandler`, and
`PipelineExecutorUtils` for the option of the id.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from state_pipelines.errors import ClusterError, NotFoundError, StateError
from state_pipelines.flink.cluster import POLL_SECONDS
from state_pipelines.flink.rest_values import take
from state_pipelines.sql.scripts import parse_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.flink.cluster import Submission
    from state_pipelines.flink.http_client import HttpClient

_VERSIONS = ("V4", "V3", "V2", "V1")
"""Versions of the endpoint (`SqlGatewayRestAPIVersion`), of which the newest common one is spoken."""

_JOB_ID = "$internal.pipeline.job-id"
_DUPLICATE = ("DuplicateJobSubmissionException", "DuplicateApplicationSubmissionException")
# Of a gateway that has started again since (`SessionManagerImpl.getSession`).
_NO_SESSION = re.compile(r"Session '[^']*' does not exist")
_SECONDS = 300.0
"""Time in which a statement must be carried out: a planner that has just started takes long for its first one."""


class SqlGateway:
    """A SQL Gateway in front of a cluster.

    Args:
        client: requests to its endpoint.
        sleep: waits between two polls.
        clock: seconds that only grow.
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
        """Its address, without secrets."""
        return self._client.endpoint

    def read_version(self) -> str:
        """Return the release of Flink that it is of.

        Raises:
            ClusterError: it cannot be reached.
        """
        return take(self._client.get("/info"), "version", str, "")

    def start(self, submission: Submission, job_id: str) -> None:
        """Start the job of a compiled plan or of a script, under an id; a repetition starts no second job.

        Raises:
            ClusterError: the gateway cannot be reached, or a statement fails, with Flink's reason.
            UsageError: the script is not one of one job.
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
        # A session that nobody knows because its answer was lost ends by itself.
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
                hint="Cancel that job, and start the program by hand: this gateway sets aside the id of a job",
                in_doubt=True,
            )

    def _choose_version(self) -> str:
        known = take(self._client.get("/api_versions"), "versions", list, [])
        names = {str(each).upper() for each in known}
        for each in _VERSIONS:
            if each in names:
                return each.lower()
        raise ClusterError(
            f"the SQL Gateway at {self.endpoint} speaks none of {', '.join(_VERSIONS)}",
            hint="Look whether sql_gateway is the address of its REST endpoint",
        )

    def _execute(self, session: str, statement: str) -> str:
        """Carry out a statement; return the id of the job that it started, empty without one.

        Raises:
            ClusterError: it failed, or takes too long.
        """
        # Definitions that are there already fail: what may have been carried out is not sent again.
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
    """Yield the options of the session, last those that nothing may change."""
    yield from submission.configuration.items()
    if submission.parallelism is not None:
        yield "parallelism.default", str(submission.parallelism)
    if submission.savepoint is not None:
        ignores = str(submission.allow_non_restored_state).lower()
        # The names before Flink 1.20 and 2.0: each release takes no notice of those that it does not have.
        yield "execution.savepoint.path", submission.savepoint
        yield "execution.state-recovery.path", submission.savepoint
        yield "execution.savepoint.ignore-unclaimed-state", ignores
        yield "execution.state-recovery.ignore-unclaimed-state", ignores
        yield "execution.state-recovery.claim-mode", str(submission.claim_mode)
    yield "execution.attached", "false"
    yield _JOB_ID, job_id


def _find_job(content: dict[str, Any]) -> str:
    """The id of a job in the rows of a result, as of a statement that has started one."""
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
