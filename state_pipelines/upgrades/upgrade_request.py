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
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model, model_validator

from state_pipelines.errors import MissingFileError, UsageError, Where, at
from state_pipelines.flink.cluster import RestoreMode, SavepointFormat, Submission
from state_pipelines.flink.connections import read_description
from state_pipelines.operations.check.check import parse_release
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.migration.history import HEAD
from state_pipelines.operations.models import Items, OperationModel, Refusal, Subjects, list_names, parsed
from state_pipelines.operations.retention.policy import Duration
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage import read_file, resolve


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


def _to_word(value: object) -> object:
    return value if value is None or isinstance(value, dict | list) else str(value)


def _resolve(path: str, info: ValidationInfo) -> str:
    """Resolve a path against the directory of the file; without a file, the path stays as it is."""
    directory = (info.context or {}).get("directory")
    return path if directory is None or ":/" in path or Path(path).is_absolute() else str(directory / path)


def _check_query(plan: str) -> str:
    if not plan.endswith(_QUERIES):
        raise ValueError(f"is {plan}, which is neither a compiled plan (.json) nor a script (.sql)")
    return plan


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a job: use letters, digits, `_`, `-` and `.`")
    return name


def _read_release(value: object) -> str:
    if isinstance(value, float):
        raise ValueError('is a number, of which YAML drops zeros: write it in quotes, such as "1.20"')
    parse_release(str(value))
    return str(value)


_FILES = (".yaml", ".yml", ".json")
_QUERIES = (".json", ".sql")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_Word = Annotated[str, BeforeValidator(_to_word)]
_Words = Annotated[tuple[_Word, ...], Items]
_Path = Annotated[_Word, AfterValidator(_resolve)]
_Paths = Annotated[tuple[_Path, ...], Items]
_Settings = Annotated[dict[str, Any], Subjects]
_Positive = Annotated[int, Field(ge=1)]


class _Entry(OperationModel):
    """Base class of the entries of `JOB.yaml`; a field with an empty text counts as left out."""

    left_out: ClassVar[tuple[object, ...]] = (None, "")


class Program(_Entry):
    """A program that a cluster can run: one of `jar`, `plan` and `image` says what runs."""

    jar: _Path = ""
    """Path of its jar from here; empty without one."""

    plan: Annotated[_Path, AfterValidator(_check_query)] = ""
    """Path of a query from here: a compiled plan (`.json`) or a script (`.sql`); empty without one."""

    image: _Word = ""
    """Image of its container."""

    entry_class: _Word = ""
    """Its main class; empty for that of the manifest of the jar."""

    arguments: _Words = ()
    """Arguments of the program."""

    parallelism: _Positive | None = None
    """Parallelism of the job; by default that of the cluster."""

    max_parallelism: _Positive | None = None
    """Number of key groups to which the savepoint is rescaled; by default it stays as it is."""

    backend: Annotated[StateBackend, Field(strict=False)] | None = None
    """State backend of the new program; by default either may be."""

    allow_non_restored_state: bool = False
    """The restore may drop the state of operators that the program lacks."""

    configuration: Annotated[dict[str, _Word], Subjects] = Field(default_factory=dict)
    """Options of Flink for the job."""

    match: Annotated[dict[str, _Word], Subjects] = Field(default_factory=dict)
    """By uid of an operator of the old query, that of the new one which keeps its state, for ties."""

    backfill: Annotated[dict[str, _Path], Subjects] = Field(default_factory=dict)
    """By name of a column that starts empty, a Parquet table with its values."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in ("jar", "plan", "image") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"names {' and '.join(given) or 'none'}: a program is one of jar, plan and image")
        return self

    def submit(self, snapshot: str, job_id: str) -> Submission:
        """Make the request with which a cluster starts the program from a snapshot, under an id."""
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
            snapshot: path of the snapshot, as the cluster names it.
            plan: path of the compiled plan, as the cluster names it; empty for `plan` of the program.
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


class RehearsalSettings(_Entry):
    """Restores of the new program by rehearsals."""

    cluster: _Settings = Field(default_factory=dict)
    """Settings of the cluster; empty without one."""

    arguments: _Words | None = None
    """Arguments of the program there, with which its sources emit nothing; by default its own."""


class UpgradeSettings(_Entry):
    """Settings of the upgrades of a job."""

    savepoints: str
    """Directory of savepoints as the cluster names it."""

    old: Program
    """The program that runs."""

    new: Program
    """The program that is to run."""

    cluster: _Settings = Field(default_factory=dict)
    """Settings of the cluster of the new program; empty for that of the old one."""

    automatic: Annotated[tuple[Annotated[Need, Field(strict=False)], ...], Items] = (Need.COMPATIBLE, Need.MIGRATED)
    """Results that need no approval."""

    checkpoints: _Positive = 2
    """Number of completed checkpoints after which the new job counts as healthy."""

    watch: Duration = timedelta(minutes=10)
    """Time in which they must be completed."""

    savepoint_timeout: Duration = timedelta(minutes=10)
    """Time in which a savepoint must be completed."""

    start_timeout: Duration = timedelta(minutes=2)
    """Time in which a submitted job must be known to the cluster, and a cancelled one be gone."""

    savepoint_format: Annotated[SavepointFormat, Field(strict=False)] = SavepointFormat.CANONICAL
    """Format of the savepoints."""

    drain: bool = False
    """The sources emit the largest watermark before the job stops."""

    rehearsal: RehearsalSettings = RehearsalSettings()
    """Restores of the new program by rehearsals; by default none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.old.plan) is not bool(self.new.plan):
            hint = "A query restores state of queries only: name a `plan` (.json or .sql) for both, or for none"
            raise Refusal(UsageError("one of old and new is a query, and the other is not", hint=hint))
        return self


# Declarations that are paths of files.
_FILE_KINDS = ("classes", "protos", "thrifts", "plans")
_kinds: dict[str, Any] = {
    kind.name: (_Paths if kind.name in _FILE_KINDS else _Words, Field(default=(), description=kind.help))
    for kind in KINDS
}
_Declared: Any = create_model("_Declared", __base__=_Entry, **_kinds)


class JobFile(_Declared, _Entry):  # type: ignore[misc]
    """The entries of `JOB.yaml`."""

    name: Annotated[str, AfterValidator(_check_name)]
    """Name of the job here."""

    cluster: _Settings
    """Settings of the cluster on which it runs."""

    job: _Word = ""
    """Its name or id at the cluster; by default `name`."""

    results: Annotated[str, AfterValidator(_resolve)]
    """Directory of new savepoints and records."""

    settings: UpgradeSettings = Field(validation_alias="upgrade")
    """Settings of its upgrades."""

    roots: _Paths = ()
    """Directories of retention."""

    path_mapping: _Words = ()
    """Texts `FROM=TO`: where directories are here that snapshots name."""

    allow_roots: _Paths = ()
    """Directories that snapshots may name files in."""

    migrations: _Path | None = None
    """Directory of revisions; by default the state is not migrated."""

    migrate_to: _Word = HEAD
    """Revision to which the state is migrated."""

    target_release: Annotated[str, parsed(_read_release)] = "2.2"
    """Flink that runs the new program."""

    new_job: _Path | None = None
    """Description (.yaml, .json) or snapshot of the new job."""

    job_classes: _Paths | None = None
    """Classes of the new job; by default the jar of the new program."""

    savepoints: Any = None
    """Policy of savepoints (`savepoint_policy.SavepointPolicy`)."""

    thresholds: Any = None
    """Limits of the health of the job (`flink.health.HealthLimits`)."""


class UpgradeRequest(JobFile):
    """A job and its upgrade, as `JOB.yaml` describes them, with what the caller says of its file and code."""

    file: str = "JOB.yaml"
    """The file, for messages and commands."""

    directory: str = "."
    """Directory at which relative paths of the settings of clusters start."""

    allow_python: bool = False
    """Python files among the migrations may run."""

    allow_sql: bool = False
    """Migrations may have SQL that is more than functions over the row."""

    @property
    def declarations(self) -> dict[str, tuple[str, ...]]:
        """Texts about the snapshots by kind (`snapshot.declarations.KINDS`)."""
        return {kind.name: getattr(self, kind.name) for kind in KINDS}

    @property
    def new_classes(self) -> tuple[str, ...]:
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
        described = {name: getattr(self.settings, name).model_dump() for name in ("old", "new")}
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


def load_upgrade_request(path: str | Path) -> UpgradeRequest:
    """Read `JOB.yaml`; relative paths in it start at its directory.

    Raises:
        UsageError: the file is not such a description; names the field.
    """
    with at(file=str(path)):
        content, is_component = read_description(path)
        if is_component and isinstance(content, dict):
            # In the description of a Dagster job, ignore the fields that only other assets use.
            content = {name: value for name, value in content.items() if name in list_names(JobFile)}
        _refuse_templates(content)
        return parse_upgrade_request(content, Path(path).absolute().parent, file=str(path))


def parse_upgrade_request(content: object, directory: Path, **given: Any) -> UpgradeRequest:
    """Check the content of a `JOB.yaml`.

    Args:
        content: the parsed file.
        directory: directory at which relative paths start.
        given: fields that the request has besides those of the file.

    Raises:
        UsageError: the content is no description of an upgrade; the error names the field.
    """
    found = JobFile.parse(content, "the description of the job", directory=directory)
    fields = {**dict(found), "job": found.job or found.name, "directory": str(directory), **given}
    return UpgradeRequest(**fields)


def digest_file(path: str) -> str:
    """Return the SHA-256 of a file, 16 hexadecimal digits.

    Raises:
        StateError: the file cannot be read.
    """
    return hashlib.sha256(read_file(resolve(path))).hexdigest()[:16]


def fingerprint(content: object) -> str:
    """Return a digest of a value that JSON can hold, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _is_in_image(jar: str) -> bool:
    """Return whether a jar is in the image of the job, so that it cannot be read from here."""
    return jar.startswith("local:")


def _digest_query(plan: str, what: str) -> str:
    if not plan:
        return ""
    try:
        # The suffix says whether the query is started as a compiled plan or as a script.
        return f"{digest_file(plan)}{Path(plan).suffix}"
    except MissingFileError as error:
        raise UsageError(f"the query of the {what} program is not there", where=Where(file=plan)) from error


def _refuse_templates(content: object) -> None:
    entries: dict[object, object] = content if isinstance(content, dict) else {}
    found = [str(name) for name, value in entries.items() if "{{" in json.dumps(value, default=str)]
    if found:
        raise UsageError(
            f"{', '.join(found)} has a template, which only Dagster resolves",
            hint="Write the value itself, or run the Dagster job",
        )
