"""The file `JOB.yaml`: a Flink job with the program that runs and the program that is to run.

    name: orders
    cluster: {rest: "http://flink:8081"}    # where the job runs (`flink.connections`)
    job: orders                             # name or id of the job at the cluster; by default `name`
    results: s3://bucket/results            # new savepoints, and the records of upgrades
    roots: [s3://bucket/savepoints]         # directories of retention, in which savepoints are pinned
    migrations: migrations                  # revisions; left out: none
    target_release: "2.2"
    upgrade:
      savepoints: s3://bucket/savepoints    # as the cluster names it
      old: {jar: orders-1.jar, entry_class: com.acme.Orders, arguments: [--topic, orders], parallelism: 4}
      new: {jar: orders-2.jar, entry_class: com.acme.Orders, parallelism: 4, max_parallelism: 256}
      cluster: {rest: "http://flink-2:8081"} # where the new program runs; by default where the old one does
      automatic: [compatible, migrated]     # no approval needed for these; see `Need`
      checkpoints: 2                        # completed ones after which the upgrade is done
      rehearsal: {cluster: {rest: "http://test:8081"}, arguments: [--idle]}   # restores there; left out: nowhere

The file of a job of Dagster (`type: state_pipelines.dagster.FlinkJobComponent` with `attributes`) is read, too, if it
has no templates. JSON is YAML, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import MissingFileError, UsageError, Where, at
from state_pipelines.flink.cluster import RestoreMode, SavepointFormat, Submission
from state_pipelines.operations.check.check import BACKENDS, parse_release
from state_pipelines.operations.migration.history import HEAD
from state_pipelines.operations.retention.policy import parse_duration
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage import read_file, resolve
from state_pipelines.storage.documents import parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Need(StrEnum):
    """Results of a check that the policy of a job may accept without an approval.

    `partial`: state is dropped or starts empty. `undetermined`: the check cannot tell. `repeated`: the last upgrade to
    this very program went back.
    """

    COMPATIBLE = "compatible"
    MIGRATED = "migrated"
    RESCALED = "rescaled"
    CONVERTED = "converted"
    PARTIAL = "partial"
    UNDETERMINED = "undetermined"
    REPEATED = "repeated"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that a cluster can run.

    One of `jar`, `plan` and `image` says what runs.

    Attributes:
        jar: path of its jar from here; empty without one.
        plan: path of a query from here: a compiled plan (`.json`) or a script (`.sql`); empty without one.
        match: by uid of an operator of the old query, that of the new one which keeps its state, for ties.
        backfill: by name of a column that starts empty, a Parquet table with its values.
        image: image of its container.
        entry_class: its main class; empty for that of the manifest of the jar.
        arguments: of the program.
        parallelism: of the job; None for the default of the cluster.
        max_parallelism: number of key groups to which the savepoint is rescaled; None to leave it as it is.
        backend: state backend of the new program, `hashmap` or `rocksdb`; None where either may be.
        allow_non_restored_state: the restore may drop the state of operators that the program lacks.
        configuration: options of Flink for the job.
    """

    jar: str = ""
    plan: str = ""
    image: str = ""
    entry_class: str = ""
    arguments: tuple[str, ...] = ()
    parallelism: int | None = None
    max_parallelism: int | None = None
    backend: str | None = None
    allow_non_restored_state: bool = False
    configuration: Mapping[str, str] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    backfill: Mapping[str, str] = field(default_factory=dict)

    def submit(self, snapshot: str, job_id: str) -> Submission:
        """Return what a cluster is asked for: the program from a snapshot, under an id."""
        return Submission(
            jar=self.jar or None,
            image=self.image or None,
            entry_class=self.entry_class or None,
            arguments=self.arguments,
            parallelism=self.parallelism,
            savepoint=snapshot,
            allow_non_restored_state=self.allow_non_restored_state,
            claim_mode=RestoreMode.NO_CLAIM,
            job_id=job_id,
            configuration=self.configuration,
        )

    def describe_command(self, snapshot: str, plan: str = "") -> str:
        """Return the command that starts the program from a snapshot by hand.

        Args:
            snapshot: as the cluster names it.
            plan: the compiled plan of the program, as the cluster names it; empty for that of its description.
        """
        if self.plan:
            run = plan or self.plan
            statements = f"EXECUTE PLAN '{run}';" if run.endswith(".json") else f"the statements of {run}"
            return f"in the SQL client: SET 'execution.state-recovery.path' = '{snapshot}'; {statements}"
        if self.image:
            return (
                f"kubectl: image {self.image}, spec.job.initialSavepointPath: {snapshot}, a new savepointRedeployNonce"
            )
        words = ["flink run -d", f"-s {snapshot}"]
        words += ["-n"] if self.allow_non_restored_state else []
        words += [f"-D{name}={value}" for name, value in self.configuration.items()]
        words += [f"-c {self.entry_class}"] if self.entry_class else []
        words += [f"-p {self.parallelism}"] if self.parallelism else []
        return " ".join((*words, self.jar, *self.arguments))


@dataclass(frozen=True, kw_only=True)
class UpgradeSettings:
    """Settings of the upgrades of a job.

    Attributes:
        savepoints: directory of savepoints as the cluster names it.
        old: the program that runs.
        new: the program that is to run.
        cluster: settings of the cluster of the new program; empty for that of the old one.
        automatic: results that need no approval.
        checkpoints: number of completed checkpoints after which the new job counts as healthy.
        watch_seconds: time in which they must be completed.
        savepoint_seconds: time in which a savepoint must be completed.
        start_seconds: time in which a submitted job must be known to the cluster, and a cancelled one be gone.
        savepoint_format: format of the savepoints.
        drain: whether the sources emit the largest watermark before the job stops.
        rehearsal_cluster: settings of a cluster on which rehearsals restore the new program; empty without one.
        rehearsal_arguments: of the new program there, with which its sources emit nothing; None for its own.
    """

    savepoints: str
    old: Program
    new: Program
    cluster: Mapping[str, Any] = field(default_factory=dict)
    automatic: tuple[Need, ...] = (Need.COMPATIBLE, Need.MIGRATED)
    checkpoints: int = 2
    watch_seconds: float = 600
    savepoint_seconds: float = 600
    start_seconds: float = 120
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    drain: bool = False
    rehearsal_cluster: Mapping[str, Any] = field(default_factory=dict)
    rehearsal_arguments: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class UpgradeRequest:
    """A job and its upgrade, as `JOB.yaml` describes them.

    Attributes:
        name: of the job here.
        cluster: settings of the cluster on which it runs.
        job: its name or id at the cluster.
        results: directory of new savepoints and records.
        settings: of the upgrade.
        roots: directories of retention.
        path_mapping: texts `FROM=TO`.
        allow_roots: directories that snapshots may name files in.
        declarations: texts about the snapshots by kind (`snapshot.declarations.KINDS`).
        migrations: directory of revisions; None without any.
        migrate_to: revision to which the state is migrated.
        target_release: Flink that runs the new program.
        new_job: description (.yaml, .json) or snapshot of the new job.
        job_classes: classes of the new job; None for the jar of the new program.
        file: the file, for messages and commands.
        directory: at which relative paths of the settings of clusters start.
        allow_python: Python files among the migrations may run.
        allow_sql: migrations may have SQL that is more than functions over the row.
    """

    name: str
    cluster: Mapping[str, Any]
    job: str
    results: str
    settings: UpgradeSettings
    roots: tuple[str, ...] = ()
    path_mapping: tuple[str, ...] = ()
    allow_roots: tuple[str, ...] = ()
    declarations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    migrations: str | None = None
    migrate_to: str = HEAD
    target_release: str = "2.2"
    new_job: str | None = None
    job_classes: tuple[str, ...] | None = None
    file: str = "JOB.yaml"
    directory: str = "."
    allow_python: bool = False
    allow_sql: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Paths of the classes of the new job."""
        jar = self.settings.new.jar
        readable = (jar,) if jar and not _is_in_image(jar) else ()
        return readable if self.job_classes is None else self.job_classes

    def describe_change(self) -> dict[str, object]:
        """Return all that decides what an upgrade does, with the contents of files as digests; without secrets.

        Raises:
            UsageError: a jar is not there.
            StateError: a jar or a description cannot be read.
        """
        described = {name: asdict(each) for name, each in (("old", self.settings.old), ("new", self.settings.new))}
        for what, program in described.items():
            jar = str(program["jar"])
            if jar and "://" not in jar and not Path(jar).is_file():
                raise UsageError(f"the jar of the {what} program is not there", where=Where(file=jar))
            program["jar"] = digest_file(jar) if jar and not _is_in_image(jar) else jar
            program["plan"] = _digest_query(str(program["plan"]), what)
            for name in ("match", "backfill"):
                if not program[name]:
                    del program[name]
        return {
            "job": self.name,
            **described,
            "moves": bool(self.settings.cluster),
            "migrate_to": self.migrate_to if self.migrations else None,
            "target_release": self.target_release,
            "new_job": digest_file(self.new_job) if self.new_job and self.new_job.endswith(_FILES) else self.new_job,
            "savepoint_format": str(self.settings.savepoint_format),
            "drain": self.settings.drain,
        }


_FILES = (".yaml", ".yml", ".json")
_QUERIES = (".json", ".sql")
_KINDS = tuple(kind.name for kind in KINDS)
_JOB = {
    *("name", "cluster", "job", "results", "roots", "path_mapping", "allow_roots", *_KINDS),
    *("migrations", "migrate_to", "target_release", "new_job", "job_classes", "upgrade"),
    *("savepoints", "thresholds"),
}
_UPGRADE = {
    *("savepoints", "old", "new", "cluster", "automatic", "checkpoints", "watch", "savepoint_timeout"),
    *("start_timeout", "savepoint_format", "drain", "rehearsal"),
}
_PROGRAM = {
    *("jar", "plan", "image", "configuration", "entry_class", "arguments", "parallelism", "max_parallelism"),
    *("backend", "allow_non_restored_state", "match", "backfill"),
}
_COMPONENT = "FlinkJobComponent"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def load_upgrade_request(path: str | Path) -> UpgradeRequest:
    """Read `JOB.yaml`; relative paths in it start at its directory.

    Raises:
        UsageError: the file is not such a description; names the field.
    """
    with at(file=str(path)):
        try:
            content = parse_yaml(read_given_text(path, "the description of the job"))
        except yaml.YAMLError as error:
            raise UsageError(f"the description of the job is not YAML: {error}") from None
        return replace(parse_upgrade_request(content, Path(path).absolute().parent), file=str(path))


def parse_upgrade_request(content: object, directory: Path) -> UpgradeRequest:
    """Check the content of a `JOB.yaml`.

    Args:
        content: the parsed file.
        directory: at which relative paths start.

    Raises:
        UsageError: it is no description of an upgrade; names the field.
    """
    body = _require_mapping(content, "the description of the job")
    is_component = str(body.get("type", "")).endswith(_COMPONENT)
    if is_component:
        # Fields of the other assets of the job do not matter here.
        body = {
            name: value
            for name, value in _require_mapping(body.get("attributes"), "attributes").items()
            if name in _JOB
        }
    _refuse_unknown(body, _JOB, "the description of the job")
    _refuse_templates(body)
    name = _require_text(body, "name", "the description of the job")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a job: use letters, digits, `_`, `-` and `.`")
    return UpgradeRequest(
        name=name,
        cluster=_require_mapping(body.get("cluster"), "cluster"),
        directory=str(directory),
        job=str(body.get("job") or name),
        results=_resolve(directory, _require_text(body, "results", "the description of the job")),
        settings=parse_settings(body.get("upgrade"), directory),
        roots=_list_paths(body, "roots", directory),
        path_mapping=_list_texts(body, "path_mapping"),
        allow_roots=_list_paths(body, "allow_roots", directory),
        declarations={
            kind: _list_paths(body, kind, directory) if kind in _PATHS else _list_texts(body, kind) for kind in _KINDS
        },
        migrations=_find_path(body, "migrations", directory),
        migrate_to=str(body.get("migrate_to") or HEAD),
        target_release=_read_release(body.get("target_release", "2.2")),
        new_job=_find_path(body, "new_job", directory),
        job_classes=None if body.get("job_classes") is None else _list_paths(body, "job_classes", directory),
    )


_PATHS = ("classes", "protos", "thrifts", "plans")
"""Declarations that are paths of files."""


def parse_settings(content: object, directory: Path) -> UpgradeSettings:
    """Check the entry `upgrade` of a job.

    Raises:
        UsageError: a field is unknown, missing or has another type.
    """
    body = _require_mapping(content, "upgrade")
    _refuse_unknown(body, _UPGRADE, "upgrade")
    automatic = _list_texts(body, "automatic") if "automatic" in body else (Need.COMPATIBLE, Need.MIGRATED)
    for each in automatic:
        if each not in tuple(Need):
            raise UsageError(f"upgrade.automatic names {each!r}", hint=f"Choose from {', '.join(Need)}")
    rehearsal = _require_mapping(body.get("rehearsal") or {}, "upgrade.rehearsal")
    _refuse_unknown(rehearsal, ("cluster", "arguments"), "upgrade.rehearsal")
    old, new = (_read_program(body.get(name), f"upgrade.{name}", directory) for name in ("old", "new"))
    if bool(old.plan) is not bool(new.plan):
        raise UsageError(
            "one of upgrade.old and upgrade.new is a query, and the other is not",
            hint="A query takes the state of a query: give the plan or script of both",
        )
    chosen = str(body.get("savepoint_format", "canonical")).upper()
    if chosen not in tuple(SavepointFormat):
        known = ", ".join(SavepointFormat).lower()
        raise UsageError(f"upgrade.savepoint_format is {chosen.lower()!r}", hint=f"Choose from {known}")
    return UpgradeSettings(
        savepoints=_require_text(body, "savepoints", "upgrade"),
        old=old,
        new=new,
        cluster=_require_mapping(body.get("cluster") or {}, "upgrade.cluster"),
        automatic=tuple(Need(each) for each in automatic),
        checkpoints=_read_number(body.get("checkpoints", 2), "upgrade.checkpoints"),
        watch_seconds=_read_seconds(body, "watch", 600),
        savepoint_seconds=_read_seconds(body, "savepoint_timeout", 600),
        start_seconds=_read_seconds(body, "start_timeout", 120),
        savepoint_format=SavepointFormat(chosen),
        drain=_read_flag(body, "drain", "upgrade"),
        rehearsal_cluster=_require_mapping(rehearsal.get("cluster") or {}, "upgrade.rehearsal.cluster"),
        rehearsal_arguments=_list_texts(rehearsal, "arguments") if "arguments" in rehearsal else None,
    )


def resolve_programs(body: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the entry `upgrade` of a job with the paths of its programs resolved against a directory."""
    resolved = dict(body)
    for name in ("old", "new"):
        program = body.get(name)
        if isinstance(program, dict):
            paths = {key: program[key] for key in ("jar", "plan") if isinstance(program.get(key), str)}
            tables = {"backfill": _resolve_values(program, "backfill", directory)} if program.get("backfill") else {}
            resolved[name] = {**program, **{key: _resolve(directory, path) for key, path in paths.items()}, **tables}
    return resolved


def digest_file(path: str) -> str:
    """Return the SHA-256 of a file, 16 hexadecimal digits.

    Raises:
        StateError: the file cannot be read.
    """
    return hashlib.sha256(read_file(resolve(path))).hexdigest()[:16]


def fingerprint(content: object) -> str:
    """Return 16 hexadecimal digits that change with a value that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_program(content: object, what: str, directory: Path) -> Program:
    body = _require_mapping(content, what)
    _refuse_unknown(body, _PROGRAM, what)
    backend = body.get("backend")
    if backend is not None and backend not in [str(each) for each in BACKENDS]:
        raise UsageError(f"{what}.backend is {backend!r}", hint=f"Choose from {', '.join(BACKENDS)}")
    numbers = {
        name: None if body.get(name) is None else _read_number(body[name], f"{what}.{name}")
        for name in ("parallelism", "max_parallelism")
    }
    plan = _find_path(body, "plan", directory) or ""
    if plan and not plan.endswith(_QUERIES):
        raise UsageError(
            f"{what}.plan is {plan}", hint="It is the file of a compiled plan (.json) or of a script (.sql)"
        )
    given = [name for name in ("jar", "plan", "image") if body.get(name)]
    if len(given) != 1:
        found = f"names {' and '.join(given)}" if given else "names none"
        raise UsageError(f"{what} {found}: a program is one of jar, plan and image")
    configuration = _require_mapping(body.get("configuration") or {}, f"{what}.configuration")
    return Program(
        jar=_find_path(body, "jar", directory) or "",
        plan=plan,
        match={name: str(uid) for name, uid in _require_mapping(body.get("match") or {}, f"{what}.match").items()},
        backfill=_resolve_values(body, "backfill", directory),
        image=str(body.get("image") or ""),
        configuration={name: str(value) for name, value in configuration.items()},
        entry_class=str(body.get("entry_class") or ""),
        arguments=_list_texts(body, "arguments"),
        backend=backend,
        allow_non_restored_state=_read_flag(body, "allow_non_restored_state", what),
        **numbers,
    )


def _is_in_image(jar: str) -> bool:
    """Whether a jar is in the image of the job, so that it cannot be read from here."""
    return jar.startswith("local:")


def _digest_query(plan: str, what: str) -> str:
    if not plan:
        return ""
    try:
        # The ending says how it is started.
        return f"{digest_file(plan)}{Path(plan).suffix}"
    except MissingFileError as error:
        raise UsageError(f"the query of the {what} program is not there", where=Where(file=plan)) from error


def _resolve_values(body: Mapping[str, Any], name: str, directory: Path) -> dict[str, str]:
    found = _require_mapping(body.get(name) or {}, name)
    return {column: _resolve(directory, str(table)) for column, table in found.items()}


def _require_mapping(content: object, what: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        found = "missing" if content is None else f"not a mapping but a {type(content).__name__}"
        raise UsageError(f"{what} is {found}", hint="docs/upgrading.md shows a whole file")
    return {str(name): value for name, value in content.items()}


def _refuse_unknown(body: Mapping[str, Any], known: Collection[str], what: str) -> None:
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise UsageError(
            f"unknown entries {', '.join(unknown)} in {what}", hint=f"Known are {', '.join(sorted(known))}"
        )


def _refuse_templates(body: Mapping[str, Any]) -> None:
    found = [name for name, value in body.items() if "{{" in json.dumps(value, default=str)]
    if found:
        raise UsageError(
            f"{', '.join(found)} has a template, which only Dagster resolves",
            hint="Write the value itself, or run the Dagster job",
        )


def _require_text(body: Mapping[str, Any], name: str, what: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} is missing in {what}" if value is None else f"{name} in {what} is not text")
    return value


def _list_texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name) or ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or any(isinstance(each, dict | list) for each in values):
        raise UsageError(f"{name} is not a list of texts")
    return tuple(str(each) for each in values)


def _list_paths(body: Mapping[str, Any], name: str, directory: Path) -> tuple[str, ...]:
    return tuple(_resolve(directory, each) for each in _list_texts(body, name))


def _find_path(body: Mapping[str, Any], name: str, directory: Path) -> str | None:
    value = body.get(name)
    return _resolve(directory, str(value)) if value else None


def _resolve(directory: Path, path: str) -> str:
    return path if ":/" in path or Path(path).is_absolute() else str(directory / path)


def _read_number(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{what} is {value!r}, not a positive number")
    return value


def _read_seconds(body: Mapping[str, Any], name: str, default: float) -> float:
    if name not in body:
        return default
    return parse_duration(str(body[name]), f"upgrade.{name}").total_seconds()


def _read_flag(body: Mapping[str, Any], name: str, what: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"{name} in {what} is {value!r}, not true or false")
    return value


def _read_release(value: object) -> str:
    if isinstance(value, float):
        raise UsageError('target_release is a number, of which YAML drops zeros: write it in quotes, such as "1.20"')
    parse_release(str(value))
    return str(value)
