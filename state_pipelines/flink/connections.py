"""Connections to clusters by the settings in the description of a job, and clusters that commands of the user reach.

`connect` and `open_job` read the settings `cluster`, one of these:

    cluster: {rest: "http://jobmanager:8081"}

    cluster:
      rest: https://flink.example.com/orders   # Flink's REST endpoint
      token: "${FLINK_TOKEN}"                  # or token_file, or user and password
      headers: {X-Team: orders}
      ca_certificates: ca.pem                  # client_certificate and client_key for mutual TLS
      connect_seconds: 10
      read_seconds: 60
      sql_gateway: http://sql-gateway:8083     # starts plans and scripts of SQL; with the credentials above

    cluster:
      kubernetes: orders                       # name of a FlinkDeployment, or FlinkSessionJob (`kind`)
      namespace: flink
      rest: http://orders-rest.flink:8081      # for statistics of checkpoints and load; may be left out

    cluster:
      commands: {list_jobs: [./flink.sh, jobs], read_status: [./flink.sh, status, "{job_id}"]}
      command_seconds: 600

`${NAME}` in user, password, token and headers is an environment variable, which is read at each request and kept
nowhere.

`CommandCluster`: a cluster that commands of the user speak to, for every deployment that has no other way. A verb is a
command line, which runs without a shell. Words may hold `{job_id}`, `{trigger_id}` and the fields of the verb's
request, which is also the JSON on standard input. The command prints what Flink's REST endpoint answers to the same
(`flink.rest_cluster`), and ends with 0; its standard error is shown where it fails.

| verb | fields | JSON on standard output, as of |
|---|---|---|
| `describe` | | `/overview`, with `web-submit` and `configuration` where known |
| `list_jobs` | | `/jobs/overview` |
| `read_job` | `job_id` | `/jobs/:id` |
| `read_status` | `job_id` | `/jobs/:id/status` |
| `trigger_savepoint` | `job_id`, `trigger_id`, `directory`, `format` | `request-id`, or nothing |
| `stop` | `job_id`, `trigger_id`, `directory`, `format`, `drain` | `request-id`, or nothing |
| `poll_savepoint` | `job_id`, `trigger_id` | `/jobs/:id/savepoints/:trigger` |
| `trigger_checkpoint` | `job_id`, `trigger_id`, `kind` | `request-id`, or nothing |
| `poll_checkpoint` | `job_id`, `trigger_id` | `/jobs/:id/checkpoints/:trigger` |
| `cancel` | `job_id` | nothing |
| `start` | the fields of `Submission` | `jobid` |
| `read_exceptions` | `job_id` | `/jobs/:id/exceptions` |
| `read_checkpoints` | `job_id` | `/jobs/:id/checkpoints` |
| `read_checkpoint` | `job_id`, `checkpoint_id` | `/jobs/:id/checkpoints/details/:checkpoint` |
| `read_load` | `job_id` | `restarts`, `uptime` in milliseconds, `pending-records` by vertex |
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import ClusterError, NotFoundError, UnsupportedError, UsageError, at
from state_pipelines.flink.checkpoint_failures import find_root_cause
from state_pipelines.flink.cluster import CheckpointKind, ClusterOverview, JobDetails, JobLoad, VertexLoad
from state_pipelines.flink.http_client import Credentials, HttpClient, Timeouts
from state_pipelines.flink.kubernetes_operator import PLURALS, OperatorCluster, connect_api
from state_pipelines.flink.rest_cluster import (
    RestCluster,
    SqlGateway,
    read_checkpoint,
    read_checkpoint_progress,
    read_checkpoint_settings,
    read_exceptions,
    read_job,
    read_savepoint_progress,
    read_statistics,
    read_status,
    read_vertex,
    take,
)
from state_pipelines.redaction import redact
from state_pipelines.storage.documents import parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from state_pipelines.flink.cluster import (
        Checkpoint,
        CheckpointProgress,
        CheckpointStatistics,
        FlinkCluster,
        JobFailure,
        JobOverview,
        JobStart,
        JobStatus,
        SavepointProgress,
        SavepointRequest,
        Submission,
    )

VERBS = (
    *("describe", "list_jobs", "read_job", "read_status", "trigger_savepoint", "stop", "poll_savepoint"),
    *("trigger_checkpoint", "poll_checkpoint", "cancel", "start", "read_exceptions", "read_checkpoints"),
    *("read_checkpoint", "read_load"),
)
"""Verbs that may have a command."""

NOT_FOUND = 4
"""Exit code of a command for a job or trigger that is not there."""

_CHANGING = ("trigger_savepoint", "stop", "trigger_checkpoint", "cancel", "start")
_FIELD = re.compile(r"\{([a-z_]+)\}")
_MOST_SHOWN = 500


class CommandCluster:
    """A cluster that is reached by commands of the user.

    Args:
        commands: command line of each verb, as words.
        directory: directory in which the commands run.
        seconds: maximum time of a command.
    """

    def __init__(self, commands: Mapping[str, tuple[str, ...]], directory: Path, seconds: float) -> None:
        self._commands = commands
        self._directory = directory
        self._seconds = seconds

    @property
    def endpoint(self) -> str:
        """The directory of the commands, for messages."""
        return f"the commands in {self._directory}"

    def describe(self) -> ClusterOverview:
        """Describe the cluster."""
        content = self._run("describe", {})
        return ClusterOverview(
            endpoint=self.endpoint,
            version=take(content, "flink-version", str, ""),
            slots_total=_find_number(content, "slots-total"),
            slots_available=_find_number(content, "slots-available"),
            task_managers=_find_number(content, "taskmanagers"),
            can_submit="start" in self._commands,
            configuration=take(content, "configuration", dict, {}),
            sql_obstacle="" if "start" in self._commands else "`commands` has no start",
        )

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return the jobs, newest first."""
        jobs = [read_job(each) for each in take(self._run("list_jobs", {}), "jobs", list)]
        return tuple(sorted(jobs, key=lambda each: each.started.timestamp() if each.started else 0, reverse=True))

    def read_job(self, job_id: str) -> JobDetails:
        """Return a job; its settings are known if the command prints `configuration` and `checkpoints`."""
        content = self._run("read_job", {"job_id": job_id})
        maximum = take(content, "maxParallelism", int, -1)
        settings = content.get("checkpoints")
        return JobDetails(
            job=read_job(content),
            vertices=tuple(read_vertex(each) for each in take(content, "vertices", list, [])),
            max_parallelism=maximum if maximum > 0 else None,
            configuration=take(content, "configuration", dict, {}),
            checkpoints=read_checkpoint_settings(settings) if isinstance(settings, dict) else None,
            plan=take(content, "plan", dict, {}),
        )

    def read_status(self, job_id: str) -> JobStatus:
        """Return the status of a job."""
        return read_status(take(self._run("read_status", {"job_id": job_id}), "status", str))

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        """Ask for a savepoint by the command `trigger_savepoint`, or `stop` if the job is to end."""
        trigger = request.trigger_id or uuid.uuid4().hex
        fields = {**asdict(request), "job_id": job_id, "trigger_id": trigger}
        content = self._run("stop" if request.stop or request.drain else "trigger_savepoint", fields)
        return take(content, "request-id", str, trigger)

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        """Return the progress of a savepoint."""
        return read_savepoint_progress(self._run("poll_savepoint", {"job_id": job_id, "trigger_id": trigger_id}))

    def trigger_checkpoint(
        self, job_id: str, kind: CheckpointKind = CheckpointKind.CONFIGURED, trigger_id: str | None = None
    ) -> str:
        """Ask for a checkpoint."""
        trigger = trigger_id or uuid.uuid4().hex
        content = self._run("trigger_checkpoint", {"job_id": job_id, "trigger_id": trigger, "kind": str(kind)})
        return take(content, "request-id", str, trigger)

    def poll_checkpoint(self, job_id: str, trigger_id: str) -> CheckpointProgress:
        """Return the progress of a checkpoint."""
        return read_checkpoint_progress(self._run("poll_checkpoint", {"job_id": job_id, "trigger_id": trigger_id}))

    def cancel(self, job_id: str) -> None:
        """Ask a job to end."""
        self._run("cancel", {"job_id": job_id})

    def start(self, submission: Submission) -> str:
        """Start a job; the command must not start a second one if a job with the id of the submission exists."""
        job_id = submission.job_id or uuid.uuid4().hex
        return take(self._run("start", {**asdict(submission), "job_id": job_id}), "jobid", str)

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        """Return the last failures of a job."""
        return read_exceptions(self._run("read_exceptions", {"job_id": job_id}))

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        """Return statistics of the checkpoints of a job."""
        return read_statistics(self._run("read_checkpoints", {"job_id": job_id}))

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        """Return a checkpoint with its tasks; commands give no subtasks."""
        del subtasks
        return read_checkpoint(self._run("read_checkpoint", {"job_id": job_id, "checkpoint_id": checkpoint_id}), {})

    def read_load(self, job_id: str) -> JobLoad:
        """Return restarts and lag of a running job."""
        content = self._run("read_load", {"job_id": job_id})
        pending = take(content, "pending-records", dict, {})
        vertices = self.read_job(job_id).vertices
        return JobLoad(
            restarts=_find_number(content, "restarts"),
            uptime_ms=_find_number(content, "uptime"),
            vertices=tuple(VertexLoad(each, pending_records=_find_number(pending, each.id)) for each in vertices),
        )

    def read_start(self, job_id: str) -> JobStart | None:
        """Return None, because no command reports the durations of a start."""
        del job_id
        return None

    def _run(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        words = self._commands.get(verb)
        if words is None:
            raise UnsupportedError(
                f"`commands` of `cluster` has no {verb}", hint=f"Add a command for {verb} to the description of the job"
            )
        command = [_FIELD.sub(lambda match: _show(match, fields), word) for word in words]
        program = shutil.which(command[0], path=None) or str(self._directory / command[0])
        doubt = verb in _CHANGING
        name = f"the command of {verb}"
        try:
            done = subprocess.run(
                [program, *command[1:]],
                cwd=self._directory,
                input=json.dumps(fields, default=str).encode(),
                capture_output=True,
                timeout=self._seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{name} takes longer than {self._seconds:g} s",
                hint="Raise command_seconds",
                transient=True,
                in_doubt=doubt,
            ) from None
        except OSError as error:
            raise ClusterError(
                f"{name} cannot be run: {error.strerror}", hint=f"Check that {command[0]} exists and may be run"
            ) from None
        errors = done.stderr.decode(errors="replace").strip()
        shown = redact(find_root_cause(errors) or "it says nothing on its standard error")[:_MOST_SHOWN]
        if done.returncode == NOT_FOUND:
            raise NotFoundError(f"{name} knows no such job or trigger (exit code {NOT_FOUND}): {shown}")
        if done.returncode:
            raise ClusterError(f"{name} ended with {done.returncode}: {shown}", in_doubt=doubt)
        if not done.stdout.strip():
            return {}
        try:
            content = json.loads(done.stdout)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ClusterError(
                f"{name} prints no JSON object",
                hint="Let it print one JSON object, and nothing else, on its standard output",
                in_doubt=doubt,
            )
        return content


def _show(match: re.Match[str], fields: Mapping[str, Any]) -> str:
    """Return the text of the field that an argument of a command names in braces; other braces stay as they are."""
    if match[1] not in fields:
        return match[0]
    value = fields[match[1]]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    return "" if value is None else str(value)


def _find_number(content: Mapping[str, Any], name: str) -> int | None:
    value = take(content, name, int, -1)
    return value if value >= 0 else None


_TEXTS = ("user", "password", "token")
_FILES = ("token_file", "ca_certificates", "client_certificate", "client_key")
_SECONDS = {"connect_seconds": "connect", "read_seconds": "read"}
_HTTP = {*_TEXTS, *_FILES, *_SECONDS, "headers"}
_KUBERNETES = {"namespace", "kind", "kubeconfig", "context", "rest"}
_KINDS: Mapping[str, Collection[str]] = {
    "kubernetes": {*_KUBERNETES, *_HTTP},
    "rest": {*_HTTP, "sql_gateway"},
    "commands": {"command_seconds"},
}
_DEFAULTS = (("connect_seconds", 10.0), ("read_seconds", 60.0))
_COMPONENT = "FlinkJobComponent"


def connect(settings: Mapping[str, Any], directory: Path | None = None) -> FlinkCluster:
    """Make the cluster that an entry `cluster` describes; no request is sent yet.

    Args:
        settings: the entry.
        directory: directory at which relative paths start; by default the current one.

    Raises:
        UsageError: the entry is wrong; the error names the setting.
    """
    if not isinstance(settings, dict):
        raise UsageError("`cluster` is not a mapping", hint='Such as {rest: "http://jobmanager:8081"}')
    kinds = [name for name in _KINDS if name in settings]
    if "kubernetes" in kinds and "rest" in kinds:
        kinds.remove("rest")
    if len(kinds) != 1:
        found = f"has {' and '.join(kinds)}" if kinds else "names no cluster"
        raise UsageError(f"`cluster` {found}", hint=f"It has one of {', '.join(_KINDS)}")
    kind = kinds[0]
    unknown = sorted(str(name) for name in settings if name not in {kind, *_KINDS[kind]})
    if unknown:
        raise UsageError(
            f"`cluster` has unknown settings {', '.join(unknown)}",
            hint=f"Known settings beside {kind} are {', '.join(sorted(_KINDS[kind]))}",
        )
    start = directory or Path()
    if kind == "commands":
        return _connect_commands(settings, start)
    if kind == "kubernetes":
        return _connect_kubernetes(settings, start)
    rest = make_client(settings, str(settings["rest"]), start)
    address = _read_text(settings, "sql_gateway")
    return RestCluster(rest, SqlGateway(make_client(settings, address, start, "the SQL Gateway")) if address else None)


def _connect_kubernetes(settings: Mapping[str, Any], directory: Path) -> OperatorCluster:
    texts = {name: _read_text(settings, name) for name in ("kubernetes", *_KUBERNETES)}
    kind = texts["kind"] or "FlinkDeployment"
    if kind not in PLURALS:
        raise UsageError(f"`kind` of `cluster` is {kind!r}", hint=f"Choose from {', '.join(PLURALS)}")
    if not texts["kubernetes"]:
        raise UsageError("`kubernetes` of `cluster` names no resource")
    seconds = [_read_seconds(settings, name) if name in settings else default for name, default in _DEFAULTS]
    rest = RestCluster(make_client(settings, texts["rest"], directory)) if texts["rest"] else None
    file = str(directory / texts["kubeconfig"]) if texts["kubeconfig"] else None
    return OperatorCluster(
        connect_api(file, texts["context"] or None),
        texts["kubernetes"],
        texts["namespace"] or "default",
        kind,
        rest,
        (seconds[0], seconds[1]),
    )


def make_client(settings: Mapping[str, Any], endpoint: str, directory: Path, what: str = "Flink") -> HttpClient:
    """Make a client for one endpoint with the credentials and time-outs of an entry `cluster`.

    Raises:
        UsageError: a setting is wrong.
    """
    texts = {name: _read_text(settings, name) for name in (*_TEXTS, *_FILES)}
    files = {name: str(directory / texts[name]) for name in _FILES if texts[name]}
    headers = settings.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(each, str) for pair in headers.items() for each in pair):
        raise UsageError("`headers` of `cluster` is not a mapping of texts", hint="Such as {X-Team: orders}")
    if texts["token"] and texts["token_file"]:
        raise UsageError("`cluster` has token and token_file", hint="Keep one of them")
    if (texts["token"] or texts["token_file"]) and (texts["user"] or texts["password"]):
        raise UsageError("`cluster` has a token and a user", hint="Keep one of them")
    credentials = Credentials(
        user=texts["user"], password=texts["password"], token=texts["token"], headers=dict(headers), **files
    )
    seconds = {field: _read_seconds(settings, name) for name, field in _SECONDS.items() if name in settings}
    return HttpClient(endpoint, credentials, Timeouts(**seconds), what=what)


def _connect_commands(settings: Mapping[str, Any], directory: Path) -> CommandCluster:
    commands = settings["commands"]
    if not isinstance(commands, dict) or not commands:
        raise UsageError("`commands` of `cluster` is not a mapping of verbs to command lines")
    unknown = sorted(str(name) for name in commands if name not in VERBS)
    if unknown:
        raise UsageError(
            f"`commands` of `cluster` has unknown verbs {', '.join(unknown)}", hint=f"Known are {', '.join(VERBS)}"
        )
    words: dict[str, tuple[str, ...]] = {}
    for verb, command in commands.items():
        if isinstance(command, str):
            try:
                command = shlex.split(command)
            except ValueError as error:
                raise UsageError(f"the command of {verb} is not a command line: {error}") from None
        if not isinstance(command, list) or not command or not all(isinstance(each, str) for each in command):
            raise UsageError(f"the command of {verb} is neither a command line nor a list of words")
        words[verb] = tuple(command)
    seconds = _read_seconds(settings, "command_seconds") if "command_seconds" in settings else 600.0
    return CommandCluster(words, directory, seconds)


def _read_text(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "")
    if not isinstance(value, str):
        raise UsageError(f"{name} of `cluster` is not text", hint="Put it in quotes")
    return value


def _read_seconds(settings: Mapping[str, Any], name: str) -> float:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 31:
        raise UsageError(f"{name} of `cluster` is {value!r}, not a number of seconds")
    return float(value)


def open_job(text: str) -> tuple[FlinkCluster, str | None]:
    """Connect to the cluster of a job; also return the name or id of the job there.

    Args:
        text: the description of a job (`cluster`, and `job` or `name`), or the address of a REST endpoint.

    Returns:
        The cluster; the name, or None for an address.

    Raises:
        UsageError: the file is no such description, or the address is wrong.
    """
    cluster, described = open_described(text)
    name = described.get("job") or described.get("name")
    return cluster, str(name) if name else None


def open_described(text: str) -> tuple[FlinkCluster, Mapping[str, Any]]:
    """Connect to the cluster of a job; also return the fields of its description, which are empty for an address.

    Raises:
        UsageError: see `open_job`.
    """
    if text.lower().startswith(("http://", "https://")):
        return connect({"rest": text}), {}
    with at(file=text):
        content, _ = read_description(text)
        if not isinstance(content, dict) or content.get("cluster") is None:
            raise UsageError(
                "the description of the job names no cluster", hint='Add cluster: {rest: "http://jobmanager:8081"}'
            )
        if "{{" in str(content["cluster"]):
            raise UsageError(
                "`cluster` has a template, which only Dagster resolves",
                hint="Write the value itself, and environment variables as ${NAME}",
            )
        return connect(content["cluster"], Path(text).absolute().parent), content


def read_description(path: str | Path) -> tuple[Any, bool]:
    """Read the description of a Flink job, either by itself or in the description of a Dagster job.

    Returns:
        (the parsed file, or its `attributes` if it describes a job of Dagster; whether it describes one).

    Raises:
        UsageError: the file cannot be read, or is not YAML.
    """
    try:
        content = parse_yaml(read_given_text(path, "the description of the job"))
    except yaml.YAMLError as error:
        raise UsageError(f"the description of the job is not YAML: {error}") from None
    if isinstance(content, dict) and str(content.get("type", "")).endswith(_COMPONENT):
        return content.get("attributes"), True
    return content, False
