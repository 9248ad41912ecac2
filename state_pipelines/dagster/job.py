"""`FlinkJob`: the description of a Flink job, from which its assets, jobs and sensors are built."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import dagster as dg
from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from state_pipelines.dagster.job_settings import (
    RetentionSettings,
    Revisions,
    StreamSettings,
    Watch,
    parsed_by,
    split_function,
)
from state_pipelines.dagster.resources import ResourceSettings
from state_pipelines.dagster.storage import RENEWAL, JobStorage
from state_pipelines.dagster.translation import (
    DEFAULT_TRANSLATOR,
    AssetTranslator,
    Conditions,
    Translation,
    parse_condition,
)
from state_pipelines.errors import UsageError, Where
from state_pipelines.flink.health import HealthLimits, parse_limits
from state_pipelines.operations.jobs.flink_config import CHECKPOINTS, FlinkConfig, load_flink_config
from state_pipelines.operations.jobs.new_job import NewCode
from state_pipelines.operations.migration.history import HEAD
from state_pipelines.operations.retention.policy import RetentionPolicy, parse_duration, parse_policy, parse_size
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage import PathMapping, parse_path_mapping
from state_pipelines.storage.resolution import scoped_storage_options
from state_pipelines.upgrades.savepoint_policy import parse_savepoint_policy
from state_pipelines.upgrades.upgrade_request import UpgradeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def _split_by(separator: str) -> BeforeValidator:
    """Return a validator that splits a string, such as the value of an environment variable, into a list."""

    def split(value: object) -> object:
        if not isinstance(value, str):
            return value
        return [stripped for each in value.split(separator) if (stripped := each.strip())]

    return BeforeValidator(split)


def _empty_to_none(value: object) -> object:
    return None if value == "" else value


def _parse_lives(ttl: dict[str, str]) -> dict[str, timedelta]:
    """Parse the time to live of states by name; the empty name stands for all others."""
    return {"" if name == "*" else name: parse_duration(text, name) for name, text in ttl.items()}


def _resolve_against(directory: Path, path: str) -> str:
    return path if "://" in path or Path(path).is_absolute() else str((directory / path).resolve())


_PATHS = (
    *("roots", "results", "tables", "requests", "classes", "protos", "thrifts", "plans", "jars", "migrations"),
    "allow_roots",
    *("flink_config", "new_job", "new_query", "job_classes", "expectations", "data_docs", "bootstrap"),
)

_LIST = WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})
_Texts = Annotated[tuple[str, ...], _split_by(";"), _LIST]
_Names = Annotated[tuple[str, ...], _split_by(","), _LIST]
_Policy = Annotated[dict[str, Any], parsed_by(parse_policy)]
_Lives = Annotated[dict[str, str], parsed_by(_parse_lives)]
_Upgrade = Annotated[dict[str, Any], parsed_by(partial(UpgradeSettings.parse, subject="upgrade"))]
_Savepoints = Annotated[dict[str, Any], parsed_by(parse_savepoint_policy)]
_Size = Annotated[str | int, parsed_by(parse_size)]
_DEFAULTS = HealthLimits()
_Optional = Annotated[str | None, BeforeValidator(_empty_to_none)]
_SensorName = Literal[
    "new_snapshots",
    "automation",
    "table_automation",
    "failed_runs",
    "requests",
    "agreed_plans",
    "new_input",
    "new_program",
    "job_health",
    "new_query",
]


class Thresholds(dg.Model):
    """Limits of one job, beyond which checks warn. A limit that is not set has no check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_imbalance: float | None = Field(
        default=None, ge=1, description="Maximal ratio of the largest subtask of an operator to the mean, in bytes."
    )
    max_hours_without_savepoint: float | None = Field(
        default=None, gt=0, description="Maximal age in hours of the newest savepoint that can be read."
    )

    max_minutes_without_checkpoint: float | None = Field(
        default=None,
        gt=0,
        description="Maximal age in minutes of the newest checkpoint of the running job; by default three intervals "
        "and the time-out of its checkpoints.",
    )
    max_failed_checkpoints: float = Field(
        default=_DEFAULTS.max_failed_checkpoints,
        ge=0,
        le=1,
        description="Maximal share of failed checkpoints, of those that Flink still shows.",
    )
    max_checkpoint_share: float = Field(
        default=_DEFAULTS.max_checkpoint_share,
        gt=0,
        description="Maximal median duration of checkpoints, as a share of their interval.",
    )
    max_state_size: _Size | None = Field(
        default=None, description="Size that the state of the running job must not reach, such as 200GiB."
    )
    hours_to_max_state_size: float = Field(
        default=_DEFAULTS.hours_to_max_state_size,
        gt=0,
        description="Hours in which the state, as it grows, must not reach max_state_size.",
    )
    max_hours_without_inventory: float | None = Field(
        default=None, gt=0, description="Maximal age in hours of the inventory, its freshness policy."
    )

    @property
    def savepoint_limit(self) -> timedelta | None:
        """`max_hours_without_savepoint` as a duration."""
        hours = self.max_hours_without_savepoint
        return None if hours is None else timedelta(hours=hours)

    @property
    def limits(self) -> HealthLimits:
        """Limits of the running job."""
        fields = {name: getattr(self, name) for name in HealthLimits.__dataclass_fields__}
        return parse_limits(fields)


class TableSettings(dg.Model):
    """Tables of states, with an asset for each state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str = Field(description="Directory of the tables.")
    per: Literal["snapshot", "state"] = Field(
        default="snapshot", description="`state`: an asset for each state, downstream of `state_tables`."
    )
    states: _Names = Field(
        default=(),
        description="States that have an asset, as OPERATOR/STATE; by default those of the newest snapshot of the "
        "inventory when the code location is loaded.",
    )

    @field_validator("states")
    @classmethod
    def _check_states(cls, states: tuple[str, ...]) -> tuple[str, ...]:
        for each in states:
            if not all(each.rpartition("/")):
                raise ValueError(f"{each!r} names no state: write OPERATOR/STATE, such as orders/order")
        return states


class FlinkJob(dg.Model):
    """A Flink job: the directories of its snapshots, information that they do not store, and policies.

    A list may also be one string, such as the value of an environment variable.
    """

    # Hide the values in errors, because they may be secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=False, hide_input_in_errors=True)

    name: str = Field(
        description="Prefix of asset keys, jobs and sensors, and group of the assets: letters, digits and _."
    )
    description: str = Field(default="", description="Shown at the Flink job in the asset graph.")
    roots: _Texts = Field(
        default=(),
        description="Directories of checkpoints and savepoints, which are searched 4 levels deep. By default those of "
        "flink_config.",
    )
    storage_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Options of fsspec by root, such as {s3://bucket: {key: …}}. Environment variables `${NAME}` are "
        "replaced when the storage is opened, so that no secret is stored.",
    )
    flink_config: _Optional = Field(
        default=None,
        description="Flink's config.yaml (or flink-conf.yaml): directories, num-retained, interval and TTL.",
    )
    results: str = Field(description="Directory for new savepoints and reports.")
    tables: Annotated[str | TableSettings | None, BeforeValidator(_empty_to_none)] = Field(
        default=None,
        description="Directory for the tables of states, or {directory: …, per: state}; no tables by default.",
    )
    requests: _Optional = Field(default=None, description="Directory of request files; none by default.")
    path_mapping: _Names = Field(
        default=(), description="`FROM=TO` for moved directories that snapshots refer to by absolute paths."
    )
    allow_roots: _Texts = Field(
        default=(),
        description="Directories that snapshots may name files in, besides `roots`, `results` and their own.",
    )
    uids: _Names = Field(default=(), description="Uids of operators, for snapshots before Flink 2.0.")
    classes: _Texts = Field(default=(), description="Jars, directories, class files and field lists of the old job.")
    key_serializers: _Texts = Field(default=(), description="`OPERATOR=TYPE`: keys of changelog state.")
    connectors: _Texts = Field(default=(), description="`OPERATOR=NAME`: connectors of ambiguous list states.")
    python_types: _Texts = Field(default=(), description="`OPERATOR.STATE=TYPE` or YAML files, for PyFlink.")
    serializers: _Texts = Field(
        default=(), description="`CLASS=LAYOUT` for custom serializers: class of the snapshot and layout of the values."
    )
    protos: _Texts = Field(default=(), description="Descriptor sets of Protobuf messages inside Kryo.")
    thrifts: _Texts = Field(default=(), description="Thrift files of structs inside Kryo.")
    plans: _Texts = Field(default=(), description="Compiled plans of SQL, which name operators and columns.")
    jars: _Texts = Field(
        default=(), description="Jars of connectors, formats and functions, for scripts in `plans` and `new_query`."
    )
    migrations: _Optional = Field(default=None, description="Directory of revisions; none by default.")
    expectations: _Optional = Field(
        default=None, description="Directory of suites of Great Expectations (docs/expectations.md); none by default."
    )
    data_docs: _Optional = Field(
        default=None, description="Local directory for validation results and data docs of suites; none by default."
    )
    migrate_to: str = Field(default=HEAD, description="Target revision of migrations: head, base or a name.")
    target_release: str = Field(
        default="2.2", description="Flink release that will restore the new savepoints, in quotes."
    )
    new_job: _Optional = Field(
        default=None,
        description="Description (.yaml, .json) or snapshot of the new job; by default the migrated old job.",
    )
    job_classes: _Texts = Field(default=(), description="Jars, directories and field lists of the new job's classes.")
    new_query: _Optional = Field(
        default=None,
        description="Script (.sql) or compiled plan (.json) that is to take over the state of the one in `plans` "
        "(docs/sql.md).",
    )
    cluster: dict[str, Any] | None = Field(
        default=None,
        description="Cluster of the running job, such as {rest: 'http://jobmanager:8081'} (docs/upgrading.md).",
    )
    job: _Optional = Field(default=None, description="Name or id of the job at the cluster; by default `name`.")
    upgrade: _Upgrade | None = Field(
        default=None, description="The program that runs and the one that is to run (docs/upgrading.md)."
    )
    savepoints: _Savepoints | None = Field(
        default=None,
        description="Savepoints to take of the running job, such as {canonical: monthly, native: daily} "
        "(docs/running-jobs.md).",
    )
    stream: StreamSettings | None = Field(
        default=None, description="A stream of this job that runs on Spark, with its state in Flink's format."
    )
    bootstrap: _Optional = Field(
        default=None,
        description="New states of a first savepoint: a YAML file as for `state-pipelines bootstrap`, or "
        "FILE.py:FUNCTION, which gets the Spark session and returns the operators.",
    )
    retention: _Policy | None = Field(default=None, description="Retention policy, as in a policy file.")
    retention_runs: RetentionSettings = Field(
        default_factory=RetentionSettings,
        description="When retention is planned, and whether plans are applied manually or by `apply: scheduled`.",
    )
    resources: ResourceSettings = Field(
        default_factory=ResourceSettings,
        description="Spark and the judge of proofs: fields of the job's own resources, or keys of those that the code "
        "location defines.",
    )
    automation: Conditions = Field(
        default_factory=dict,
        description="When assets are materialised automatically, by name: a cron expression, new_snapshot, eager, "
        "on_missing, every_ten_minutes or never. Others keep their default.",
    )
    translation: Translation = Field(
        default_factory=Translation, description="Prefix of the keys, group and descriptions of the assets."
    )
    thresholds: Thresholds = Field(default_factory=Thresholds, description="Limits beyond which checks warn.")
    watch: Watch = Field(default_factory=Watch, description="Settings of the sensor for new snapshots.")
    ttl: _Lives = Field(
        default_factory=dict,
        description="Time to live by OPERATOR/STATE or STATE, such as {sessions: 7d}; * for all others. Snapshots do "
        "not store it; profiles need it to show when entries expire.",
    )
    # A Literal: the texts of `dg.DefaultSensorStatus` are upper case.
    sensors: Literal["running", "stopped"] = Field(default="running", description="Initial status of the sensors.")
    intervals: dict[_SensorName, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Seconds between two ticks of a sensor, by its name without that of the job. Others keep their "
        "default: a short one costs CPU all the time.",
    )
    webhook: _Optional = Field(
        default=None, description="URL to which failed runs are posted as JSON; none by default."
    )
    owners: _Names = Field(default=(), description="Owners of the assets: e-mail addresses and `team:NAME`.")
    tags: dict[str, str] = Field(default_factory=dict, description="Tags of the assets and of runs.")

    # The same object for all jobs, so that equal jobs stay equal.
    _translator: AssetTranslator = PrivateAttr(default_factory=lambda: DEFAULT_TRANSLATOR)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: use letters, digits and _, such as orders_v2")
        return name

    @field_validator("intervals")
    @classmethod
    def _check_intervals(cls, intervals: dict[str, int]) -> dict[str, int]:
        if (seconds := intervals.get("new_snapshots", 0)) > RENEWAL.total_seconds():
            raise ValueError(
                f"new_snapshots: {seconds} s is too long: {RENEWAL.total_seconds():.0f} at most, as its ticks tell "
                "other code locations that this one runs the job"
            )
        return intervals

    @field_validator("bootstrap")
    @classmethod
    def _check_bootstrap(cls, text: str | None) -> str | None:
        if text is not None and not text.endswith((".yaml", ".yml")):
            try:
                split_function(text)
            except UsageError as error:
                raise ValueError(f"{error}, or a YAML file") from None
        return text

    @field_validator("data_docs")
    @classmethod
    def _check_data_docs(cls, directory: str | None) -> str | None:
        if directory is not None and "://" in directory:
            raise ValueError(
                f"{directory} is a URL, and Great Expectations writes data docs to local directories only: give one of "
                "them, such as a volume that a web server shows"
            )
        return directory

    @field_validator("target_release", mode="before")
    @classmethod
    def _check_release(cls, release: object) -> object:
        if isinstance(release, float):
            raise ValueError('write the release in quotes, such as "1.20": without quotes, YAML reads the number 1.2')
        return release

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """The initial status of the sensors; the UI can change it."""
        return dg.DefaultSensorStatus(self.sensors.upper())

    @property
    def declarations(self) -> dict[str, tuple[str, ...]]:
        """Declarations about the snapshots, as texts by kind (`snapshot.declarations.KINDS`)."""
        found = {kind.name: getattr(self, kind.name) for kind in KINDS}
        # `parse_plans` compiles a SQL script with the jars in the same list.
        return found | {"plans": (*self.plans, *self.jars)}

    @model_validator(mode="after")
    def _check_roots(self) -> Self:
        if not self.roots and self.flink_config is None and self.stream is None:
            raise PydanticCustomError("no_roots", "there are no roots: set roots or flink_config")
        return self

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        if self.upgrade is not None and self.cluster is None:
            raise PydanticCustomError("no_cluster", "upgrade has no effect without cluster: set both, or none")
        if self.savepoints is not None and self.cluster is None:
            raise PydanticCustomError("no_cluster", "savepoints has no effect without cluster: set both, or none")
        return self

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        if self.new_query is not None and len(self.plans) != 1:
            raise PydanticCustomError("no_query", "new_query needs the running query: set plans to its one file")
        if self.jars and not self.plans:
            raise PydanticCustomError("no_script", "jars has no effect without plans: set both, or none")
        if self.new_query is not None and self.migrations is not None:
            raise PydanticCustomError("two_changes", "migrations and new_query exclude each other: set one of them")
        return self

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.migrate_to != HEAD and self.migrations is None:
            raise PydanticCustomError("no_migrations", "migrate_to has no effect without migrations: set both, or none")
        return self

    @property
    def flink(self) -> FlinkConfig:
        """The configuration of Flink in `flink_config`, or an empty one.

        Raises:
            StateError: the file cannot be read or parsed.
        """
        return FlinkConfig() if self.flink_config is None else load_flink_config(self.flink_config)

    @property
    def all_roots(self) -> tuple[str, ...]:
        """The directories of checkpoints and savepoints: `roots`, or those of `flink_config`; and those of the stream.

        Raises:
            UsageError: `flink_config` names none.
        """
        return (*self._given_roots, *self._own_roots)

    @property
    def _own_roots(self) -> tuple[str, ...]:
        return () if self.stream is None else (self.stream.checkpoints, self.stream.savepoints)

    @property
    def _given_roots(self) -> tuple[str, ...]:
        if self.roots or self.flink_config is None:
            return self.roots
        flink = self.flink
        found = tuple(dict.fromkeys(filter(None, (flink.checkpoints, flink.savepoints))))
        if not found:
            raise UsageError(
                "the configuration of Flink names no directory for snapshots",
                where=Where(file=self.flink_config),
                hint=f"Set roots in the description of the job, or {CHECKPOINTS[0]} in the configuration",
            )
        return found

    @property
    def policy(self) -> RetentionPolicy:
        """The retention policy; `num-retained` is that of `flink_config` unless the policy sets it."""
        retention = dict(self.retention or {})
        is_set = not {"num-retained", "num_retained"}.isdisjoint(retention)
        if not is_set and (retained := self.flink.num_retained) is not None:
            retention["num-retained"] = retained
        return parse_policy(retention)

    @property
    def lives(self) -> dict[str, timedelta]:
        """Time to live by state, from `ttl` and `table.exec.state.ttl`; the empty name stands for all other states."""
        declared = _parse_lives(self.ttl)
        ttl = self.flink.ttl
        return {"": ttl, **declared} if ttl else declared

    @property
    def new_code(self) -> NewCode:
        """The classes of the new job."""
        return NewCode(self.job_classes, (), ())

    @property
    def reach(self) -> PathMapping:
        """Current locations of moved directories, and the directories that snapshots may name files in."""
        return parse_path_mapping(self.path_mapping).allow((*self.all_roots, self.results, *self.allow_roots))

    @property
    def storage(self) -> JobStorage:
        """The directories of the job."""
        return JobStorage(
            roots=self._given_roots,
            own_roots=self._own_roots,
            results=self.results,
            tables=self.tables.directory if isinstance(self.tables, TableSettings) else self.tables,
            requests=self.requests,
            job=self.name,
            path_mapping=self.reach,
            declarations=self.declarations,
        )

    @property
    def revisions(self) -> Revisions:
        """The migrations of the job."""
        return Revisions(self.migrations, self.migrate_to)

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of the job: one per snapshot."""
        return dg.DynamicPartitionsDefinition(name=f"{self.name}_snapshots")

    def using_storage(self) -> AbstractContextManager[None]:
        """Return a context manager that applies the storage options of the job, as in its assets, ops and sensors."""
        return scoped_storage_options(self.storage_options, processes=True)

    def beside(self, directory: Path) -> FlinkJob:
        """Return the job with its relative paths resolved against a directory, that of the YAML file."""
        changed: dict[str, object] = {}
        for name in _PATHS:
            value = getattr(self, name)
            if isinstance(value, str):
                changed[name] = _resolve_against(directory, value)
            elif isinstance(value, TableSettings):
                directory_of_tables = _resolve_against(directory, value.directory)
                changed[name] = value.model_copy(update={"directory": directory_of_tables})
            elif value is not None:
                changed[name] = tuple(_resolve_against(directory, each) for each in value)
        if self.stream is not None:
            changed["stream"] = self.stream.model_copy(
                update={
                    name: _resolve_against(directory, value)
                    for name in ("definition", "directory", "from_snapshot", "input")
                    if (value := getattr(self.stream, name)) is not None
                }
            )
        if self.upgrade is not None:
            settings = UpgradeSettings.parse(self.upgrade, "upgrade", directory=directory)
            changed["upgrade"] = settings.model_dump(exclude_unset=True)
        return FlinkJob(**{**self.model_dump(), **changed})

    def translated_by(self, translator: AssetTranslator) -> FlinkJob:
        """Return the job with a translator of its assets."""
        job = self.model_copy()
        job._translator = translator
        return job

    def key(self, asset: str) -> dg.AssetKey:
        """Return the key of an asset of this job."""
        return self._translate(dg.AssetSpec(dg.AssetKey([self.name, asset]), group_name=self.name), asset).key

    def specify(self, asset: str, *, tags: Mapping[str, str] | None = None, **attributes: Any) -> dg.AssetSpec:
        """Return the specification of an asset of this job, after the translation.

        Args:
            asset: its name, without the job.
            tags: besides those of the job.
            attributes: further ones of `dg.AssetSpec`, also instead of the default ones.

        Raises:
            UsageError: the translator derives the new key from more than the old key. Jobs and sensors know only the
                old key, and would not find the asset.
        """
        all_tags = {**(tags or {}), **self.tags}
        attributes = {"group_name": self.name, "owners": list(self.owners), "tags": all_tags, **attributes}
        if asset in self.automation:
            attributes["automation_condition"] = parse_condition(self.automation[asset])
        spec = self._translate(dg.AssetSpec(dg.AssetKey([self.name, asset]), **attributes), asset)
        if spec.key != (key := self.key(asset)):
            raise UsageError(
                f"get_asset_spec returns the key {spec.key.to_user_string()} for an asset, and {key.to_user_string()} "
                "for a specification that has nothing but its key",
                hint="Derive the key from `spec.key` only",
            )
        return spec

    def _translate(self, spec: dg.AssetSpec, asset: str) -> dg.AssetSpec:
        return self._translator.get_asset_spec(self.translation.apply(spec, asset))

    def execute(self, context: dg.AssetExecutionContext, run: Callable[[], Iterator[object]]) -> Iterator[object]:
        """Run the step of an asset by the translator's `execute`."""
        yield from self._translator.execute(context, run)

    def interval(self, sensor: str, default: int) -> int:
        """Return the seconds between two ticks of a sensor: that of the field `intervals`, or the default."""
        return next((seconds for name, seconds in self.intervals.items() if name == sensor), default)

    def prefix(self, name: str) -> str:
        """Return the name of a job, sensor, schedule or pool of this job."""
        return f"{self.name}_{name}"

    def op(self, asset: str) -> str:
        """Return the name of the op of an asset, as used in run configurations."""
        return f"{self.name}__{asset}"
