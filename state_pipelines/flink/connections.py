"""The entry `cluster` of a job's description: where the job runs, and how that cluster is reached.

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
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, at
from state_pipelines.flink.commands import VERBS, CommandCluster
from state_pipelines.flink.http_client import Credentials, HttpClient, Timeouts
from state_pipelines.flink.kubernetes_operator import PLURALS, OperatorCluster, connect_api
from state_pipelines.flink.rest_cluster import RestCluster
from state_pipelines.flink.sql_gateway import SqlGateway
from state_pipelines.storage.documents import parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from state_pipelines.flink.cluster import FlinkCluster

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
    """The cluster of an entry `cluster`; nothing is sent yet.

    Args:
        settings: the entry.
        directory: at which relative paths start; by default the current one.

    Raises:
        UsageError: the entry is wrong; names the setting.
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
            hint=f"Known beside {kind} are {', '.join(sorted(_KINDS[kind]))}",
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
    """A client for one endpoint with the credentials and time-outs of an entry `cluster`.

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
    """The cluster of a job, and the name or id of the job there.

    Args:
        text: the description of a job (`cluster`, and `job` or `name`), or the address of a REST endpoint.

    Returns:
        The cluster; the name, or None for an address.

    Raises:
        UsageError: the file is no such description, or the address none.
    """
    cluster, described = open_described(text)
    name = described.get("job") or described.get("name")
    return cluster, str(name) if name else None


def open_described(text: str) -> tuple[FlinkCluster, Mapping[str, Any]]:
    """The cluster of a job, and the fields of its description; none for an address.

    Raises:
        UsageError: as `open_job`.
    """
    if text.lower().startswith(("http://", "https://")):
        return connect({"rest": text}), {}
    with at(file=text):
        try:
            content = parse_yaml(read_given_text(text, "the description of the job"))
        except yaml.YAMLError as error:
            raise UsageError(f"the description of the job is not YAML: {error}") from None
        if isinstance(content, dict) and str(content.get("type", "")).endswith(_COMPONENT):
            content = content.get("attributes")
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
