"""Settings of a job in its YAML: streams, functions, retention.

Fields are validated with the messages of the parsers that read them later. Python functions are named as
`FILE.py:FUNCTION`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import dagster as dg
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator

from state_pipelines.checkpoints.options import CheckpointOptions, parse_options
from state_pipelines.errors import MigrationError, UsageError, Where
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.jobs.flink_config import INTERVAL
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.retention import ApplyLimits
from state_pipelines.operations.retention.policy import parse_duration, parse_size
from state_pipelines.storage import join, resolve
from state_pipelines.storage.documents import run_python_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import timedelta

    from state_pipelines.operations.inventory import SnapshotSummary
    from state_pipelines.operations.migration import Direction, Migration
    from state_pipelines.snapshot import Snapshot


def parsed_by(parse: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that refuses what a parser refuses with a `UsageError`; the value stays as it is."""

    def check(value: object) -> object:
        try:
            parse(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(check)


# Texts, not members of `SnapshotKind`: `unknown` cannot be chosen, and pydantic's message lists the choices.
Kind = Literal["savepoint", "checkpoint"]
_Age = Annotated[str, parsed_by(partial(parse_duration, field="min_age"))]


_Period = Annotated[str, parsed_by(partial(parse_duration, field="checkpoints"))]


def _to_tuple(value: object) -> object:
    return tuple(each.strip() for each in value.split(",")) if isinstance(value, str) else value


def _to_kinds(value: object) -> object:
    """Split a text, and accept plurals: `savepoints` is what people write."""
    found = _to_tuple(value)
    if not isinstance(found, list | tuple):
        return found
    return tuple(each.removesuffix("s") if isinstance(each, str) else each for each in found)


class Watch(dg.Model):
    """Settings of the sensor `new_snapshots`; the inventory lists all snapshots regardless."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: Annotated[tuple[Kind, ...], BeforeValidator(_to_kinds)] = Field(
        default=("savepoint", "checkpoint"), description="Kinds of snapshots that get a partition."
    )
    checkpoints: _Period = Field(
        default="1h",
        description="Of the checkpoints, the newest one in each such time gets a partition; with 0s, all of them.",
    )
    migrate: Annotated[tuple[Kind, ...], BeforeValidator(_to_kinds)] = Field(
        default=("savepoint",),
        description="Kinds that are migrated automatically when revisions are pending.",
    )
    include: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=("*",), description="Patterns of directories, such as */release-*/*; `*` also matches `/`."
    )
    exclude: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=(), description="Patterns of directories to ignore."
    )
    since: Literal["now", "newest", "all"] = Field(
        default="newest",
        description="Snapshots with which the job begins, of those that exist at the first tick: none (now), the "
        "newest of each kind (newest), or all.",
    )
    retries: int = Field(
        default=2,
        ge=0,
        description="Number of further runs that a migration gets if its run fails without an error of the state, such "
        "as when its worker was killed.",
    )
    min_age: _Age = Field(default="0s", description="Minimal age of `_metadata`, such as 5min.")
    seconds: float = Field(
        default=10, gt=0, description="Time limit of one tick in seconds; the rest waits for the next tick."
    )

    def matches_kind(self, kind: str) -> bool:
        """Return whether snapshots of a kind get a partition; also those of an unknown kind, as before Flink 1.16."""
        return kind in (*self.kinds, SnapshotKind.UNKNOWN)

    def matches(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot passes the filters, apart from `min_age`."""
        if not self.matches_kind(summary.kind):
            return False
        path = summary.path
        return any(fnmatchcase(path, each) for each in self.include) and not any(
            fnmatchcase(path, each) for each in self.exclude
        )

    def is_too_young(self, summary: SnapshotSummary, now: datetime) -> bool:
        """Return whether a snapshot has to wait because of `min_age`."""
        return summary.modified is not None and now - summary.modified < parse_duration(self.min_age)

    def samples(self, summary: SnapshotSummary, taken: Iterable[datetime]) -> bool:
        """Return whether a snapshot gets a partition by `checkpoints`, the minimum time between sampled checkpoints.

        Args:
            summary: of the snapshot.
            taken: times of the checkpoints that have a partition.
        """
        written = summary.modified
        if summary.kind is not SnapshotKind.CHECKPOINT or written is None:
            return True
        period = parse_duration(self.checkpoints)
        return all(abs(written - each) >= period for each in taken)

    def migrates(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot is migrated automatically; also if its kind is unknown, as before Flink 1.16."""
        return summary.kind in (*self.migrate, SnapshotKind.UNKNOWN)


@dataclass
class Beginning:
    """Point in time at which a job begins, for savepoints and for checkpoints: older snapshots get no partition.

    It is the time of a snapshot, chosen among those that exist when the sensor `new_snapshots` runs for the first time,
    or again after its cursor was cleared. The chosen snapshot gets a partition, except with `since: now`. Snapshots
    that already have a partition are never passed over, so that they are evaluated again after the cursor was cleared.

    Attributes:
        since: the setting `since`.
        partitions: partition keys that the job has.
        reached: time of the chosen snapshot, by kind (savepoint or checkpoint); if the time is None, it is unknown, and
            all snapshots of the kind are passed over.
    """

    since: str
    partitions: Collection[str]
    reached: dict[SnapshotKind, datetime | None] = field(default_factory=dict)

    def start(self, summaries: Iterable[SnapshotSummary]) -> None:
        """Choose without opening snapshots: for each kind the newest snapshot that has a partition.

        For a kind without partitions, `since: now` passes over all snapshots that exist; otherwise nothing is chosen.

        Args:
            summaries: the readable snapshots, newest first.
        """
        found = list(summaries)
        for each in found:
            if each.key in self.partitions:
                self.accept(each)
        if self.since == "now":
            for kind in SnapshotKind:
                self.reached.setdefault(kind, found[0].modified if found else None)

    def accept(self, summary: SnapshotSummary) -> None:
        """Begin with this snapshot, unless the job has begun with a newer one of its kind."""
        if self.since != "all":
            self.reached.setdefault(summary.kind, summary.modified)

    def passes_over(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot gets no partition, because it is not newer than the chosen one of its kind."""
        if summary.kind not in self.reached or summary.key in self.partitions:
            return False
        first = self.reached[summary.kind]
        return first is None or summary.modified is None or summary.modified <= first

    def is_open(self, summary: SnapshotSummary) -> bool:
        """Return whether no snapshot of this kind is chosen yet, so that newer ones must be decided first."""
        return self.since != "all" and summary.kind not in self.reached and summary.key not in self.partitions

    def to_json(self) -> dict[str, str | None]:
        """Return `reached` for the cursor."""
        return {kind.value: None if time is None else time.isoformat() for kind, time in self.reached.items()}

    def resume(self, texts: dict[str, str | None]) -> None:
        """Set `reached` from the cursor."""
        self.reached = {
            SnapshotKind(kind): None if text is None else datetime.fromisoformat(text) for kind, text in texts.items()
        }


def find_stranger(uids: Sequence[str], snapshot: Snapshot) -> str:
    """Return why a snapshot is not one of a job, or an empty text if it may be.

    Args:
        uids: declared uids of the job; without any, every snapshot may be one of the job.
        snapshot: the snapshot, opened with these uids, so that hashes are resolved.
    """
    labels = {operator.label for operator in snapshot.operators}
    if not uids or not labels or labels & set(uids):
        return ""
    return f"not a snapshot of this job: it has none of the operators {', '.join(sorted(uids))}"


def split_function(text: str) -> tuple[str, str]:
    """Split FILE.py:FUNCTION into file and name.

    Raises:
        UsageError: it has another form.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{text} names no function", hint="Write FILE.py:FUNCTION, such as stream.py:sum_orders")
    return file, name


def load_function(text: str) -> Callable[..., object]:
    """Run the file, and return the function.

    Raises:
        UsageError: the file cannot be run, or defines no such function.
    """
    file, name = split_function(text)
    found = run_python_file(file, name)
    if not callable(found):
        raise UsageError(f"{name} is {type(found).__name__}, not a function", where=Where(file=file))
    return found


_Definition = Annotated[str, parsed_by(split_function)]
_MINUTE, _HOUR_MINUTES, _DAY_HOURS = 60_000, 60, 24


class StreamSettings(dg.Model):
    """A stream: its Python function, its directory, when its input is processed, and Flink's options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition: _Definition = Field(
        description="FILE.py:FUNCTION. The function gets the Spark session and keyed_batches, and returns the writer "
        "of the stream. The file is run, as the code of the deployment is."
    )
    directory: str = Field(
        description="Directory of its checkpoints, savepoints and metrics, and what it has read: each job has its own."
    )
    from_snapshot: str | None = Field(
        default=None, description="Snapshot with the state of the first batch; none by default."
    )
    input: str | None = Field(
        default=None,
        description="Directory, or pattern of files in one, such as s3://lake/orders/*.parquet: new files start a run.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Flink's options by key; a run starts every execution.checkpointing.interval.",
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        try:
            parsed = parse_options(options)
            if parsed.interval is not None:
                to_cron(parsed.interval)
        except UsageError as error:
            raise ValueError(str(error)) from None
        if (parsed.directory, parsed.restore_path) != (None, None):
            raise ValueError(
                "the directory of checkpoints and the snapshot to restore are no options here: set directory and "
                "from_snapshot"
            )
        return options

    @property
    def parsed(self) -> CheckpointOptions:
        """The options that are about checkpoints."""
        return parse_options(self.options)

    @property
    def cron(self) -> str | None:
        """The cron expression of the checkpoint interval; None without one."""
        interval = self.parsed.interval
        return None if interval is None else to_cron(interval)

    @property
    def checkpoints(self) -> str:
        """Directory of checkpoints."""
        return self._resolve("checkpoints")

    @property
    def savepoints(self) -> str:
        """Directory of savepoints."""
        return self._resolve("savepoints")

    @property
    def metrics(self) -> str:
        """Directory of the metrics of its function, a file for each checkpoint."""
        return self._resolve("metrics")

    @property
    def progress(self) -> str:
        """Directory of the progress of the query in its input, outside of the directories with snapshots."""
        return self._resolve("query")

    def _resolve(self, name: str) -> str:
        return str(join(resolve(self.directory), name))


def to_cron(interval: int) -> str:
    """Return the cron expression of an interval.

    Args:
        interval: milliseconds.

    Raises:
        UsageError: cron has no such interval.
    """
    minutes, rest = divmod(interval, _MINUTE)
    hours, odd = divmod(minutes, _HOUR_MINUTES)
    if not rest and minutes and minutes < _HOUR_MINUTES and not _HOUR_MINUTES % minutes:
        return "* * * * *" if minutes == 1 else f"*/{minutes} * * * *"
    if not rest and not odd and hours and hours <= _DAY_HOURS and not _DAY_HOURS % hours:
        return {1: "0 * * * *", _DAY_HOURS: "0 0 * * *"}.get(hours, f"0 */{hours} * * *")
    raise UsageError(
        f"{INTERVAL[0]} is {interval} ms, which no schedule has",
        hint="Choose minutes that divide an hour or hours that divide a day, such as 1 min, 10 min or 6 h",
    )


NONE = "none"
"""Placeholder for the version and target of a job without migrations."""


@dataclass(frozen=True)
class Revisions:
    """The revisions of a Flink job.

    Attributes:
        directory: path or URL of the directory of revisions; None without migrations.
        to: target revision: head, base or a name.
    """

    directory: str | None
    to: str

    def load(self) -> RevisionDirectory | None:
        """Read the directory of revisions; return None for a job without one.

        Raises:
            MigrationError: a file is not a valid revision, or the revisions do not form one line.
            NotFoundError: the revision `to` does not exist.
        """
        if self.directory is None:
            return None
        directory = RevisionDirectory(self.directory, allow_python=True)
        directory.locate(self.to)
        return directory

    @property
    def version(self) -> str:
        """Version of the migrations for Dagster.

        It is the fingerprint of the directory of revisions (16 hexadecimal digits), then the revision that snapshots
        are migrated to; `NONE` without revisions.
        """
        directory = self.load()
        return NONE if directory is None else f"{directory.fingerprint}-{self.to}"

    def plan(
        self, snapshot: Snapshot, start: str | None = None, to: str | None = None
    ) -> list[tuple[Migration, Direction]]:
        """Return the pending revisions of a snapshot in order, each with its direction.

        Args:
            snapshot: the snapshot.
            start: the revision of the snapshot; None to derive it from its serializers.
            to: target revision, if it differs from that of the job.

        Raises:
            MigrationError: the revision cannot be derived from the serializers.
            NotFoundError: the revision `start` or `to` does not exist.
        """
        directory = self.load()
        if directory is None:
            return []
        if start is None:
            position = directory.current(snapshot)
            if position.revision is None:
                changed = {each.operator for each in directory.revisions}
                if not changed & {operator.label for operator in snapshot.operators}:
                    names = ", ".join(sorted(changed))
                    raise MigrationError(
                        f"not a snapshot of this job: it has none of the operators that the revisions change: {names}"
                    )
                hint = "Give its revision as `from_revision` in the run configuration"
                raise MigrationError(position.explain(), hint=hint)
            start = position.revision
        return directory.between(start, to or self.to)

    def name_target(self, to: str | None = None) -> str:
        """Return the name of the target revision, or of the revision `to`."""
        directory = self.load()
        return NONE if directory is None else directory.name(directory.locate(to or self.to))


_Duration = Annotated[str, parsed_by(parse_duration)]
_Size = Annotated[str | int, parsed_by(parse_size)]


class PlanApplication(StrEnum):
    """Trigger of the application of a retention plan."""

    MANUAL = "manual"
    SCHEDULED = "scheduled"


class RetentionSettings(dg.Model):
    """Settings of the schedule of retention plans and of their application."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    apply: PlanApplication = Field(
        default=PlanApplication.MANUAL,
        description="manual: a plan is applied only by a run with its fingerprint. scheduled: a plan is applied "
        "automatically if a second plan, after the grace period, has the same fingerprint.",
    )
    roots: tuple[str, ...] = Field(
        default=(),
        description="Directories to plan together, instead of the roots of the job: all whose snapshots may share "
        "files, such as those of jobs that were restored with CLAIM.",
    )
    grace: _Duration = Field(
        default="1h", description="Time between the two plans with `apply: scheduled`, such as 6h."
    )
    max_paths: int | None = Field(default=None, gt=0, description="Maximal number of paths that one run deletes.")
    max_bytes: _Size | None = Field(
        default=None, description="Maximal size of the files that one run deletes, such as 1TiB."
    )
    paths_per_second: float = Field(default=500, gt=0, description="Maximal number of paths deleted per second.")
    quarantine: _Duration | None = Field(
        default=None,
        description="Time in quarantine before files are deleted, such as 7d; by default they are deleted at once.",
    )
    audit_log: str | None = Field(
        default=None, description="Directory of the audit log; by default _retention/log below the first root."
    )
    cron: str = Field(default="0 3 * * *", description="Cron expression of the nightly plan, in UTC.")

    @property
    def grace_period(self) -> timedelta:
        """`grace` as a duration."""
        return parse_duration(self.grace)

    @property
    def quarantine_period(self) -> timedelta | None:
        """`quarantine` as a duration."""
        return None if self.quarantine is None else parse_duration(self.quarantine)

    @property
    def limits(self) -> ApplyLimits:
        """Limits of one run that applies a retention plan."""
        size = None if self.max_bytes is None else parse_size(self.max_bytes)
        return ApplyLimits(paths=self.max_paths, bytes=size, paths_per_second=self.paths_per_second)
