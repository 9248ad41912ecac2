"""Retention policies: which snapshots of a job stay; and plans: the paths to delete or keep, each with the reason."""

from __future__ import annotations

import hashlib
import json
import os.path
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.operations.models import Items, OperationModel, list_names, parsed
from state_pipelines.storage.documents import find_equal_names, parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state_pipelines.metadata.checkpoint import SnapshotKind

Equalities = tuple[tuple[str, ...], ...]
"""Groups of schemes, or of authorities, that name the same storage."""

EQUAL_SCHEMES: Equalities = (
    ("s3", "s3a", "s3n", "s3p"),
    ("gs", "gcs"),
    ("abfs", "abfss", "wasb", "wasbs", "az"),
    ("file", "local"),
)
"""Groups of schemes by which Flink, Hadoop and fsspec name the same storage."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
# The default port of a name node (`HdfsClientConfigKeys.DFS_NAMENODE_RPC_PORT_DEFAULT`).
_HDFS_PORT = ":8020"


@dataclass(frozen=True)
class PathKeys:
    """Computes keys of paths, by which they are compared: all spellings of a path or URL have the same key.

    Attributes:
        equal_schemes: groups of schemes that name the same storage, in addition to `EQUAL_SCHEMES`.
        equal_authorities: groups of authorities (host and port, or bucket) that name the same storage.
    """

    equal_schemes: Equalities = ()
    equal_authorities: Equalities = ()
    _directories: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _schemes(self) -> dict[str, str]:
        return _merge((*EQUAL_SCHEMES, *self.equal_schemes))

    @cached_property
    def _authorities(self) -> dict[str, str]:
        return _merge(self.equal_authorities)

    def key(self, path: str) -> str:
        """Return the key of a path or URL: the same text for all spellings that name the same file."""
        match = _URL.fullmatch(path)
        scheme, authority, inner = ("file", "", path) if match is None else (match[1].lower(), match[2] or "", match[3])
        scheme = self._schemes.get(scheme, scheme)
        inner = _clean(inner)
        if scheme == "file":
            return "file:" + self._resolve_links(inner)
        if scheme == "abfs":
            # fsspec writes `container@account.dfs.core.windows.net` as `container`: leave out the account.
            authority = authority.partition("@")[0]
        elif scheme == "hdfs":
            authority = authority.removesuffix(_HDFS_PORT)
        authority = authority.lower()
        return f"{scheme}://{self._authorities.get(authority, authority)}{inner}"

    def directory_key(self, path: str) -> str:
        """Return the key of a directory. Unlike `key`, this follows a symbolic link that is the directory itself."""
        return self.key(f"{path.rstrip('/')}/_").rpartition("/")[0]

    def refresh(self) -> bool:
        """Resolve the symbolic links in all known paths of directories again; return whether a target has changed."""
        known = dict(self._directories)
        self._directories.clear()
        return any(self._follow(directory) != found for directory, found in known.items())

    def _resolve_links(self, path: str) -> str:
        # Follow links in the path of the directory, since a snapshot may name its files by them. If the file itself is
        # a link, do not follow it: the link and its target have different keys.
        directory, _, name = path.rpartition("/")
        return f"{self._follow(directory)}/{name}"

    def _follow(self, directory: str) -> str:
        if directory not in self._directories:
            self._directories[directory] = os.path.realpath(directory or "/").rstrip("/")
        return self._directories[directory]


def parse_equalities(texts: tuple[str, ...] | list[str]) -> Equalities:
    """Parse groups of equal names from texts such as `s3=oss`.

    Raises:
        UsageError: a text is not names that are separated by `=`.
    """
    groups = []
    for text in texts:
        names = tuple(name.strip().lower() for name in text.split("="))
        if len(names) < 2 or not all(names):
            raise UsageError(
                f"{text!r} is not a group of names of one storage",
                hint="Write the names with = between them, for example s3=oss",
            )
        groups.append(names)
    return tuple(groups)


def _clean(path: str) -> str:
    path = re.sub(r"/{2,}", "/", path) if "//" in path else path
    if "/." in path:
        path = posixpath.normpath(path)
    path = path.rstrip("/")
    return path if path.startswith("/") or not path else "/" + path


def _merge(groups: Equalities) -> dict[str, str]:
    names: dict[str, str] = {}
    for group in groups:
        # Join groups that have a name in common.
        known = {names[name] for name in group if name in names}
        first = min(known) if known else group[0].lower()
        for name, other in list(names.items()):
            if other in known:
                names[name] = first
        names.update({name.lower(): first for name in group})
    return names


MIN_AGE = timedelta(days=3)
"""Age below which nothing is deleted, unless a policy or an option says otherwise."""

FOREVER = -1
"""Number of snapshots to keep that stands for all of them."""

PERIODS = ("hourly", "daily", "weekly", "monthly", "yearly")
"""Options that keep the newest snapshot of each hour, day, week, month or year."""

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
    **dict.fromkeys(("mo", "month", "months"), 30 * 86_400),
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_SIZES = {"": 1, "b": 1, "bytes": 1}
for _index, _letter in enumerate("kmgtp", 1):
    # As in Flink's `MemorySize`, all units are powers of 1024, also `kb`.
    _SIZES.update(dict.fromkeys((_letter, _letter + "b", _letter + "ib"), 1 << 10 * _index))


class SnapshotFormat(StrEnum):
    """Format of a checkpoint or savepoint, as a policy names it."""

    INCREMENTAL = "incremental"
    FULL = "full"
    CANONICAL = "canonical"
    NATIVE = "native"


class _PolicyModel(OperationModel):
    """A mapping of a policy; names have hyphens or underscores."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), ser_json_timedelta="float")

    @model_validator(mode="before")
    @classmethod
    def _unify_names(cls, content: object) -> object:
        if not isinstance(content, dict):
            return content
        for name, value in content.items():
            # Elsewhere a null means that a field is left out. Here that could drop a rule that keeps snapshots, and the
            # policy would delete more, so a null is refused.
            if value is None:
                raise ValueError(f"gives no value for {name}: write one, or leave the field out")
        if (equal := find_equal_names(map(str, content), cls._unify)) is not None:
            raise ValueError(f"has {equal[0]} and {equal[1]}, which are the same field: leave one of them out")
        return {cls._unify(str(name)): value for name, value in content.items()}

    @staticmethod
    def _unify(name: str) -> str:
        return name.replace("_", "-")


def parse_duration(value: object, field: str = "duration") -> timedelta:
    """Parse a duration from text such as `3d`, `12 h`, `90min` or `2 weeks`; a month (`mo`) has 30 days.

    Raises:
        UsageError: the text is not a duration, or is ambiguous (`m`).
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(str(value).lower()) if isinstance(value, int | str) and value is not True else None
    if match is not None and match[2] == "m":
        hint = f"Write {match[1]}min for minutes, or {match[1]}mo for months of 30 days"
        raise _wrong(field, f"{value!r} may be minutes or months", hint)
    if match is None or (match[2] not in _UNITS and float(match[1])):
        raise _wrong(field, f"{value!r} is not a duration", "Write a number and a unit, such as 3d, 12h or 30min")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS.get(match[2], 1))
    except OverflowError:
        raise _wrong(field, f"{value!r} is too long", "Durations go up to some million years") from None


def parse_size(value: object, field: str = "size") -> int:
    """Parse a number of bytes, or text such as `500 GiB`; all units are powers of 1024, as in Flink.

    Raises:
        UsageError: the value is not a size.
    """
    match = _SIZE.fullmatch(str(value).lower()) if isinstance(value, int | str) and value is not True else None
    if match is None or match[2] not in _SIZES:
        raise _wrong(field, f"{value!r} is not a size", "Write a number and a unit, such as 500GiB")
    return int(float(match[1]) * _SIZES[match[2]])


def _wrong(field: str, what: str, hint: str) -> UsageError:
    return UsageError(what, where=Where(path=field or None), hint=hint)


def _parse_number(value: object) -> object:
    if value == "all":
        return FOREVER
    if value == FOREVER:
        raise ValueError(f"is {value}, not a number of snapshots: write a whole number from 0 on, or all")
    return value


Duration = Annotated[timedelta, parsed(parse_duration)]
"""A duration, as `parse_duration` reads it."""

_Number = Annotated[int, Field(ge=FOREVER), BeforeValidator(_parse_number)]
_Text = Annotated[str, Field(min_length=1)]
_Names = Annotated[
    tuple[str, ...], Items, Field(min_length=2), AfterValidator(lambda names: tuple(map(str.lower, names)))
]
_Groups = Annotated[tuple[_Names, ...], Items]


class KeepRule(_PolicyModel):
    """The snapshots of one job that stay: those that any option keeps, by `operations.retention.decisions`."""

    last: _Number | None = None
    """The newest ones, or all."""

    within: Duration | None = None
    """Those younger than this."""

    hourly: _Number | None = None
    """Newest snapshot of each of the newest hours that have one; likewise the other periods."""

    daily: _Number | None = None
    """See `hourly`."""

    weekly: _Number | None = None
    """See `hourly`; weeks begin on Monday."""

    monthly: _Number | None = None
    """See `hourly`."""

    yearly: _Number | None = None
    """See `hourly`."""

    tags: Annotated[tuple[str, ...], Items] = ()
    """Those with one of these tags."""

    max_size: Annotated[int, parsed(parse_size)] | None = None
    """Bytes that the kept snapshots of a job may have together, files in common counted once; the oldest go until the
    rest fits. Alone, it keeps as many as fit."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set:
            known = ", ".join(list_names(type(self)))
            raise ValueError(f"has no option that says what to keep: give one of {known}, or write all or none")
        return self

    @staticmethod
    def _unify(name: str) -> str:
        # Also accept names as restic and borg write them, such as keep-daily.
        return _PolicyModel._unify(name).removeprefix("keep-")

    @property
    def keeps_by_budget_only(self) -> bool:
        """Whether `max_size` is the only option."""
        return self.to_json().keys() == {"max_size"}

    def to_json(self) -> dict[str, object]:
        """The options that are set, for JSON; durations in seconds."""
        return self.model_dump(mode="json", exclude_defaults=True)


def _open_keep(value: object) -> object:
    words: dict[object, object] = {"all": {"last": "all"}, "none": {"last": 0}}
    return words.get(value, value) if isinstance(value, str) else value


_Keep = Annotated[KeepRule, BeforeValidator(_open_keep)]


class RuleConditions(_PolicyModel):
    """Conditions on a snapshot; every one that is given must hold."""

    kind: Literal["checkpoint", "savepoint"] | None = None
    """Kind of the snapshot."""

    format: Annotated[SnapshotFormat, Field(strict=False)] | None = None
    """Format of the snapshot."""

    job: _Text | None = None
    """Pattern of job ids, such as `3319*`."""

    path: _Text | None = None
    """Pattern of paths of snapshots, such as `*/manual/*`."""

    tag: _Text | None = None
    """A tag that the snapshot has."""

    def hold(
        self, *, kind: SnapshotKind, formats: frozenset[SnapshotFormat], job: str, path: str, tags: frozenset[str]
    ) -> bool:
        """Whether the conditions hold for a snapshot."""
        return (
            (self.kind is None or self.kind == kind)
            and (self.format is None or self.format in formats)
            and (self.job is None or fnmatchcase(job, self.job))
            and (self.path is None or fnmatchcase(path, self.path))
            and (self.tag is None or self.tag in tags)
        )


class PolicyRule(_PolicyModel):
    """A rule, and the snapshots that it is for."""

    match: RuleConditions = RuleConditions()
    """The snapshots; all by default."""

    keep: _Keep
    """The snapshots of these that stay: options, or all, or none."""

    def to_json(self) -> dict[str, object]:
        """The rule, for JSON."""
        match = self.match.model_dump(mode="json", exclude_defaults=True)
        return {"match": match, "keep": self.keep.to_json()}


class RetentionPolicy(_PolicyModel):
    """A policy; an empty one deletes no snapshots, only orphans."""

    min_age: Duration = MIN_AGE
    """Nothing younger is deleted."""

    grace: Duration = timedelta(0)
    """Time between the two passes of a plan; zero for one pass."""

    num_retained: Annotated[int, Field(ge=1)] = 1
    """Newest completed checkpoints that stay while their job may run, as Flink's
    `execution.checkpointing.num-retained`."""

    keep: _Keep | None = None
    """Snapshots that stay, of those that no other rule is for."""

    checkpoints: _Keep | None = None
    """Checkpoints that stay, of those that none of `rules` is for."""

    savepoints: _Keep | None = None
    """Savepoints that stay, of those that none of `rules` is for."""

    rules: Annotated[tuple[PolicyRule, ...], Items] = ()
    """Rules that come before the others; see `ordered_rules`."""

    equal_schemes: _Groups = ()
    """Schemes that name one storage, in groups."""

    equal_authorities: _Groups = ()
    """Authorities that name one storage, in groups."""

    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Money for one GiB and month."""

    currency: _Text = "USD"
    """Currency of `price`."""

    @property
    def ordered_rules(self) -> dict[str, PolicyRule]:
        """All rules by their names in the policy; the first one that matches a snapshot decides about it.

        A snapshot that none matches stays.
        """
        found = {f"rules[{index}]": rule for index, rule in enumerate(self.rules)}
        if self.checkpoints is not None:
            found["checkpoints"] = PolicyRule(match=RuleConditions(kind="checkpoint"), keep=self.checkpoints)
        if self.savepoints is not None:
            found["savepoints"] = PolicyRule(match=RuleConditions(kind="savepoint"), keep=self.savepoints)
        return found if self.keep is None else {**found, "keep": PolicyRule(keep=self.keep)}

    def to_json(self) -> dict[str, object]:
        """The rules that decide about deletion, for JSON; equal for equivalent policies."""
        others = {"min_age", "num_retained", "equal_schemes", "equal_authorities"}
        rules = [rule.to_json() for rule in self.ordered_rules.values()]
        return {"rules": rules, **self.model_dump(mode="json", include=others)}


def load_policy(path: str | Path) -> RetentionPolicy:
    """Read a policy from a YAML file.

    Raises:
        UsageError: the file cannot be read or is not a valid policy; the error names the field.
    """
    with at(file=str(path)):
        try:
            content = parse_yaml(read_given_text(path, "the policy"))
        except yaml.YAMLError as error:
            raise UsageError(f"the policy is not YAML: {error}") from None
        return parse_policy(content)


def parse_policy(content: object) -> RetentionPolicy:
    """Make a policy from a mapping, as the YAML file has it.

    Raises:
        UsageError: the mapping is not a valid policy; the error names the field.
    """
    return RetentionPolicy.parse(content, "the retention policy")


class PathKind(StrEnum):
    """Role of a path below a root of checkpoints or savepoints."""

    METADATA = "metadata"
    """The `_metadata` file of a snapshot."""
    CHECKPOINT_FILE = "checkpoint-file"
    """A data file in the directory of a completed checkpoint."""
    SAVEPOINT_FILE = "savepoint-file"
    """A data file in the directory of a completed savepoint."""
    SHARED = "shared"
    """A file in a `shared` directory."""
    TASK_OWNED = "task-owned"
    """A file in a `taskowned` directory."""
    CHANGELOG = "changelog"
    """A file of logged changes in a `dstl` directory."""
    INCOMPLETE_CHECKPOINT = "incomplete-checkpoint"
    """A file in a `chk-N` directory without `_metadata`."""
    INCOMPLETE_SAVEPOINT = "incomplete-savepoint"
    """A file in a savepoint directory without `_metadata`."""
    MANIFEST = "manifest"
    """A manifest of this package, if nothing else is left of its snapshot: for instance, Flink has claimed it."""
    TEMPORARY = "temporary"
    """An unfinished file: a `_metadata` that is being written, or a temporary file of this package."""
    DIRECTORY = "directory"
    """A directory that is empty, or will be once the paths before it in the plan are deleted. Only empty directories
    are removed."""
    OTHER = "other"
    """A file with a name that Flink does not write, or outside its directories."""


@dataclass(frozen=True, slots=True)
class PlannedPath:
    """A path of a plan, with the reason why it is deleted or kept.

    Attributes:
        path: path or URL of the file or directory. It begins with the root as the user has spelled it.
        bytes: size of the file; 0 for a directory.
        kind: role of the path.
        reason: the reason, for people.
        modified: time of the last change as listed; None if the storage gives no times, and for directories.
    """

    path: str
    bytes: int
    kind: PathKind
    reason: str
    modified: datetime | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values for JSON."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "kind": self.kind.value,
            "reason": self.reason,
            "modified": _format(self.modified),
        }


@dataclass(frozen=True, slots=True)
class SnapshotVerdict:
    """The decision about one snapshot.

    Attributes:
        path: directory of the snapshot.
        job: job id, or a text that stands for the job if its id is not known (`JobFiles.name`).
        kind: kind of the snapshot.
        checkpoint_id: checkpoint id; None if `_metadata` cannot be read.
        modified: time at which `_metadata` was written.
        delete: whether the snapshot is deleted.
        reasons: why it is deleted or kept, the strongest reason first.
        bytes: size of the files in its directory.
        shared_bytes: size of all other files below the roots that it references.
        restorable: whether `_metadata` is readable and every referenced file exists with its recorded size; None if
            that is not known, because referenced files are outside all roots.
        tags: tags that pin files give the snapshot.
    """

    path: str
    job: str
    kind: SnapshotKind
    checkpoint_id: int | None
    modified: datetime | None
    delete: bool
    reasons: tuple[str, ...]
    bytes: int
    shared_bytes: int
    restorable: bool | None
    tags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The values, for JSON."""
        return {
            "path": self.path,
            "job": self.job,
            "kind": self.kind,
            "checkpoint_id": self.checkpoint_id,
            "modified": _format(self.modified),
            "delete": self.delete,
            "reasons": list(self.reasons),
            "bytes": self.bytes,
            "shared_bytes": self.shared_bytes,
            "restorable": self.restorable,
            "tags": list(self.tags),
        }


@dataclass(frozen=True)
class RetentionPlan:
    """Plan of retention. Nothing is deleted until somebody applies the plan, which is named by its fingerprint.

    Attributes:
        roots: the directories that were searched, as given, without a slash at the end.
        fingerprint: hash of the roots, the policy and the paths in `delete` with sizes and times; it does not depend on
            the time of the plan. If the plan confirms an earlier one (see `plan_retention`), the hash includes the
            paths of the earlier plan that are gone by now.
        delete: paths to delete, in the order of deletion: all `_metadata` files, then other files, then directories.
        keep: files that stay, sorted by path.
        unknown: links, and files that Flink does not write, sorted by path; they stay.
        stopped: references or pins that are not known, as text. Files that they may need are not deleted, such as
            shared files. Empty if all are known.
        created: time of the survey for the plan.
        snapshots: the decision about every snapshot, sorted by path.
        notes: what a person should know before applying the plan.
        linked_bytes: bytes of `delete` that free no space, because the files have other hard links.
        price: money for one GiB and month, or None.
        currency: currency of `price`.
    """

    roots: tuple[str, ...]
    fingerprint: str
    delete: tuple[PlannedPath, ...]
    keep: tuple[PlannedPath, ...]
    unknown: tuple[PlannedPath, ...]
    stopped: tuple[str, ...]
    created: datetime
    snapshots: tuple[SnapshotVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    linked_bytes: int = 0
    price: float | None = None
    currency: str = "USD"

    @property
    def bytes(self) -> int:
        """Bytes of storage that the plan frees."""
        return sum(each.bytes for each in self.delete) - self.linked_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of files that stay, including unknown files."""
        return sum(each.bytes for each in self.keep) + sum(each.bytes for each in self.unknown)

    @property
    def monthly_saving(self) -> float | None:
        """Money per month that the plan saves; None without a price."""
        return None if self.price is None else self.bytes / (1 << 30) * self.price

    def count_by_kind(self) -> dict[PathKind, tuple[int, int]]:
        """Number and bytes of the paths to delete, by kind."""
        numbers: Counter[PathKind] = Counter()
        sizes: Counter[PathKind] = Counter()
        for each in self.delete:
            numbers[each.kind] += 1
            sizes[each.kind] += each.bytes
        return {kind: (numbers[kind], sizes[kind]) for kind in PathKind if numbers[kind]}

    def to_json(self) -> dict[str, object]:
        """The plan, for JSON."""
        return {
            "fingerprint": self.fingerprint,
            "roots": list(self.roots),
            "created": _format(self.created),
            "bytes": self.bytes,
            "kept_bytes": self.kept_bytes,
            "by_kind": {
                kind.value: {"paths": number, "bytes": size} for kind, (number, size) in self.count_by_kind().items()
            },
            "monthly_saving": self.monthly_saving,
            "currency": None if self.price is None else self.currency,
            "stopped": list(self.stopped),
            "notes": list(self.notes),
            "delete": [each.to_json() for each in self.delete],
            "keep": [each.to_json() for each in self.keep],
            "unknown": [each.to_json() for each in self.unknown],
            "snapshots": [each.to_json() for each in self.snapshots],
        }


def compute_fingerprint(roots: Iterable[str], policy: object, delete: Iterable[PlannedPath]) -> str:
    """Compute the fingerprint of a plan: the first 16 hexadecimal digits of a SHA-256.

    Args:
        roots: directories of the plan.
        policy: the policy as a JSON value.
        delete: paths to delete, in order.
    """
    digest = hashlib.sha256(json.dumps([sorted(roots), policy], sort_keys=True).encode())
    for each in delete:
        line = json.dumps([each.path, each.bytes, each.kind.value, _format(each.modified)])
        digest.update(b"\n" + line.encode())
    return digest.hexdigest()[:16]


def _format(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def read_planned_paths(content: bytes | str, fingerprint: str) -> tuple[PlannedPath, ...] | None:
    """Read the paths that a plan deletes from its JSON form.

    Args:
        content: the JSON text of `RetentionPlan.to_json`.
        fingerprint: fingerprint that the plan must have.

    Returns:
        The paths in the order of deletion; None if the text is not a plan, or one with another fingerprint.
    """
    try:
        plan = json.loads(content)
        if plan["fingerprint"] != fingerprint:
            return None
        return tuple(map(_parse_planned, plan["delete"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _parse_planned(each: dict[str, Any]) -> PlannedPath:
    if not (isinstance(each["path"], str) and isinstance(each["reason"], str) and type(each["bytes"]) is int):
        raise TypeError("not the path of a plan")
    modified = None if each["modified"] is None else datetime.fromisoformat(each["modified"])
    return PlannedPath(each["path"], each["bytes"], PathKind(each["kind"]), each["reason"], modified)
