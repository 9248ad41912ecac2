"""Retention policies: which snapshots of a job stay; and plans: the paths to delete or keep, each with the reason."""

from __future__ import annotations

import hashlib
import json
import os.path
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.redaction import redact
from state_pipelines.storage.documents import find_equal_names, parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Equalities = tuple[tuple[str, ...], ...]
"""Groups of words that mean the same."""

EQUAL_SCHEMES: Equalities = (
    ("s3", "s3a", "s3n", "s3p"),
    ("gs", "gcs"),
    ("abfs", "abfss", "wasb", "wasbs", "az"),
    ("file", "local"),
)
"""Schemes by which Flink, Hadoop and fsspec name one storage."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
# The default port of a name node (`HdfsClientConfigKeys.DFS_NAMENODE_RPC_PORT_DEFAULT`).
_HDFS_PORT = ":8020"


@dataclass(frozen=True)
class PathKeys:
    """Rules by which paths are compared.

    Attributes:
        equal_schemes: groups of schemes that name one storage, besides `EQUAL_SCHEMES`.
        equal_authorities: groups of authorities (host and port, bucket) that name one storage.
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
        """The one spelling of a path or URL; equal for paths that name the same file."""
        match = _URL.fullmatch(path)
        scheme, authority, inner = ("file", "", path) if match is None else (match[1].lower(), match[2] or "", match[3])
        scheme = self._schemes.get(scheme, scheme)
        inner = _clean(inner)
        if scheme == "file":
            return "file:" + self._resolve_links(inner)
        if scheme == "abfs":
            # `container@account.dfs.core.windows.net` is what fsspec writes as `container`.
            authority = authority.partition("@")[0]
        elif scheme == "hdfs":
            authority = authority.removesuffix(_HDFS_PORT)
        authority = authority.lower()
        return f"{scheme}://{self._authorities.get(authority, authority)}{inner}"

    def directory_key(self, path: str) -> str:
        """The one spelling of a directory, which may itself be a link."""
        return self.key(f"{path.rstrip('/')}/_").rpartition("/")[0]

    def refresh(self) -> bool:
        """Follow the links of known directories again; returns whether one leads elsewhere now."""
        known = dict(self._directories)
        self._directories.clear()
        return any(self._follow(directory) != found for directory, found in known.items())

    def _resolve_links(self, path: str) -> str:
        # A snapshot may name files by a directory that is a link; the file itself is never followed.
        directory, _, name = path.rpartition("/")
        return f"{self._follow(directory)}/{name}"

    def _follow(self, directory: str) -> str:
        if directory not in self._directories:
            self._directories[directory] = os.path.realpath(directory or "/").rstrip("/")
        return self._directories[directory]


def parse_equalities(texts: tuple[str, ...] | list[str]) -> Equalities:
    """Groups from texts such as `s3=oss`.

    Raises:
        UsageError: a text has another form.
    """
    groups = []
    for text in texts:
        names = tuple(name.strip().lower() for name in text.split("="))
        if len(names) < 2 or not all(names):
            raise UsageError(f"{text!r} does not name two that are equal", hint="Write A=B, for example s3=oss")
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
        # Groups that share a name are one.
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
"""Number of snapshots that keeps all of them."""

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
    # As Flink's `MemorySize`: all of them are powers of 1024.
    _SIZES.update(dict.fromkeys((_letter, _letter + "b", _letter + "ib"), 1 << 10 * _index))

KINDS = (SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT)
"""Kinds that a policy distinguishes."""


class SnapshotFormat(StrEnum):
    """Format of a checkpoint or savepoint, as a policy names it."""

    INCREMENTAL = "incremental"
    FULL = "full"
    CANONICAL = "canonical"
    NATIVE = "native"


@dataclass(frozen=True)
class KeepRule:
    """The snapshots of one job that stay: those that any of the options keeps.

    Attributes:
        last: the newest ones; `FOREVER` for all.
        within: those younger than this.
        hourly: newest snapshot of each of the newest hours that have one; likewise the other periods.
        daily: see `hourly`.
        weekly: see `hourly`; weeks begin on Monday.
        monthly: see `hourly`.
        yearly: see `hourly`.
        tags: those with one of these tags.
        max_size: bytes that the kept snapshots of a job may have together, files in common counted once; the oldest go
            until the rest fits. Alone, it keeps as many as fit.
    """

    last: int | None = None
    within: timedelta | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None
    tags: tuple[str, ...] = ()
    max_size: int | None = None

    @property
    def keeps_by_budget_only(self) -> bool:
        """Whether `max_size` is the only option."""
        return self == KeepRule(max_size=self.max_size)

    def to_json(self) -> dict[str, object]:
        """The options that are set, for JSON."""
        found: dict[str, object] = {
            name: value for name in ("last", *PERIODS, "max_size") if (value := getattr(self, name)) is not None
        }
        if self.within is not None:
            found["within"] = self.within.total_seconds()
        if self.tags:
            found["tags"] = list(self.tags)
        return found


@dataclass(frozen=True)
class PolicyRule:
    """A rule and the snapshots that it is for; every condition that is given must hold.

    Attributes:
        keep: what stays.
        kind: one of `KINDS`.
        format: format of the snapshot.
        job: pattern of job ids, such as `3319*`.
        path: pattern of paths of snapshots, such as `*/manual/*`.
        tag: a tag that the snapshot has.
        name: where the rule is in the policy, for reasons.
    """

    keep: KeepRule
    kind: SnapshotKind | None = None
    format: SnapshotFormat | None = None
    job: str | None = None
    path: str | None = None
    tag: str | None = None
    name: str = "keep"

    def matches(
        self, *, kind: SnapshotKind, formats: frozenset[SnapshotFormat], job: str, path: str, tags: frozenset[str]
    ) -> bool:
        """Whether the rule is for a snapshot."""
        return (
            (self.kind is None or self.kind == kind)
            and (self.format is None or self.format in formats)
            and (self.job is None or fnmatchcase(job, self.job))
            and (self.path is None or fnmatchcase(path, self.path))
            and (self.tag is None or self.tag in tags)
        )

    def to_json(self) -> dict[str, object]:
        """The rule, for JSON."""
        conditions = {name: getattr(self, name) for name in _MATCH if getattr(self, name) is not None}
        return {"match": conditions, "keep": self.keep.to_json()}


@dataclass(frozen=True)
class RetentionPolicy:
    """A policy; an empty one deletes no snapshots, only orphans.

    Attributes:
        rules: the first one that matches a snapshot decides about it; a snapshot that none matches stays.
        min_age: nothing younger is deleted.
        grace: time between the two passes of a plan; zero for one pass.
        num_retained: newest completed checkpoints that stay while their job may run, as Flink's
            `execution.checkpointing.num-retained`.
        equal_schemes: schemes that name one storage, in groups.
        equal_authorities: authorities that name one storage, in groups.
        price: money for one GiB and month.
        currency: of `price`.
    """

    rules: tuple[PolicyRule, ...] = ()
    min_age: timedelta = MIN_AGE
    grace: timedelta = timedelta(0)
    num_retained: int = 1
    equal_schemes: Equalities = ()
    equal_authorities: Equalities = ()
    price: float | None = None
    currency: str = "USD"

    def to_json(self) -> dict[str, object]:
        """The rules that decide about deletion, for JSON; equal for equivalent policies."""
        return {
            "rules": [rule.to_json() for rule in self.rules],
            "min_age": self.min_age.total_seconds(),
            "num_retained": self.num_retained,
            "equal_schemes": [list(group) for group in self.equal_schemes],
            "equal_authorities": [list(group) for group in self.equal_authorities],
        }


_POLICY = (
    *("min-age", "grace", "num-retained", "keep", "checkpoints", "savepoints", "rules"),
    *("equal-schemes", "equal-authorities", "price", "currency"),
)
_KEEP = ("last", "within", *PERIODS, "tags", "max-size")
_MATCH = ("kind", "format", "job", "path", "tag")


def load_policy(path: str | Path) -> RetentionPolicy:
    """Read a policy from a YAML file.

    Raises:
        UsageError: the file cannot be read or is not a policy; names the field.
    """
    with at(file=str(path)):
        try:
            content = parse_yaml(read_given_text(path, "the policy"))
        except yaml.YAMLError as error:
            raise UsageError(f"the policy is not YAML: {error}") from None
        return parse_policy(content)


def parse_policy(content: object) -> RetentionPolicy:
    """A policy from a mapping as in the YAML file.

    Raises:
        UsageError: it is not a policy; names the field.
    """
    body = _open(content, _POLICY, "")
    policy = RetentionPolicy()
    if "min-age" in body:
        policy = replace(policy, min_age=_duration(body["min-age"], "min-age"))
    if "grace" in body:
        policy = replace(policy, grace=_duration(body["grace"], "grace"))
    if "num-retained" in body:
        policy = replace(policy, num_retained=_number(body["num-retained"], "num-retained", least=1))
    if "price" in body:
        policy = replace(policy, price=parse_price(body["price"], "price"))
    if "currency" in body:
        policy = replace(policy, currency=_text(body["currency"], "currency"))
    return replace(
        policy,
        rules=_parse_rules(body),
        equal_schemes=_groups(body.get("equal-schemes"), "equal-schemes"),
        equal_authorities=_groups(body.get("equal-authorities"), "equal-authorities"),
    )


def parse_duration(value: object, field: str = "duration") -> timedelta:
    """A duration from text such as `3d`, `12 h`, `90min` or `2 weeks`; a month (`mo`) has 30 days.

    Raises:
        UsageError: it has another form.
    """
    return _duration(value, field)


def parse_price(value: object, field: str) -> float:
    """A price, zero or more.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _wrong(field, f"{value!r} is not a price", "Write money per GiB and month, such as 0.023")
    return float(value)


def _parse_rules(body: Mapping[str, Any]) -> tuple[PolicyRule, ...]:
    listed = body.get("rules") or []
    if not isinstance(listed, list):
        raise _wrong(
            "rules", f"{redact(repr(listed))[:60]} is not a list", "Write each rule as an entry with match and keep"
        )
    rules = [_parse_rule(rule, f"rules[{index}]") for index, rule in enumerate(listed)]
    rules += [
        PolicyRule(_parse_keep(body[f"{kind}s"], f"{kind}s"), kind=kind, name=f"{kind}s")
        for kind in KINDS
        if f"{kind}s" in body
    ]
    if "keep" in body:
        rules.append(PolicyRule(_parse_keep(body["keep"], "keep")))
    return tuple(rules)


def _parse_rule(content: object, field: str) -> PolicyRule:
    body = _open(content, ("match", "keep"), field)
    if "keep" not in body:
        raise _wrong(field, "the rule says nothing of what it keeps", "Add keep: with options, or keep: all")
    match = _open(body.get("match"), _MATCH, f"{field}.match")
    for name, known in (("kind", KINDS), ("format", tuple(SnapshotFormat))):
        if name in match and match[name] not in known:
            raise _wrong(f"{field}.match.{name}", f"{match[name]!r} is not known", f"Choose from {', '.join(known)}")
    conditions: dict[str, Any] = {name: _text(value, f"{field}.match.{name}") for name, value in match.items()}
    for name, enum in (("kind", SnapshotKind), ("format", SnapshotFormat)):
        if name in conditions:
            conditions[name] = enum(conditions[name])
    return PolicyRule(_parse_keep(body["keep"], f"{field}.keep"), **conditions, name=field)


def _parse_keep(content: object, field: str) -> KeepRule:
    if content == "all":
        return KeepRule(last=FOREVER)
    if content == "none":
        return KeepRule(last=0)
    if isinstance(content, dict):
        # restic and borg write keep-daily.
        _require_once(content, lambda name: _unify(name).removeprefix("keep-"), field)
        content = {str(name).removeprefix("keep-").removeprefix("keep_"): value for name, value in content.items()}
    body = _open(content, _KEEP, field)
    if not body:
        raise _wrong(field, "nothing is said of what stays", f"Give one of {', '.join(_KEEP)}, or write all or none")
    numbers = {
        name: FOREVER if body[name] == "all" else _number(body[name], f"{field}.{name}")
        for name in ("last", *PERIODS)
        if name in body
    }
    tags = body.get("tags", [])
    if isinstance(tags, str):
        tags = [tags]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong(f"{field}.tags", f"{redact(repr(tags))[:60]} is not a list of tags", "Write tags: [release]")
    return KeepRule(
        **numbers,
        within=_duration(body["within"], f"{field}.within") if "within" in body else None,
        tags=tuple(tags),
        max_size=parse_size(body["max-size"], f"{field}.max-size") if "max-size" in body else None,
    )


def parse_size(value: object, field: str = "size") -> int:
    """Bytes from a number or text such as `500 GiB`; all units are powers of 1024, as in Flink.

    Raises:
        UsageError: it has another form.
    """
    match = _SIZE.fullmatch(str(value).lower()) if isinstance(value, int | str) and value is not True else None
    if match is None or match[2] not in _SIZES:
        raise _wrong(field, f"{value!r} is not a size", "Write a number and a unit, such as 500GiB")
    return int(float(match[1]) * _SIZES[match[2]])


def _duration(value: object, field: str) -> timedelta:
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


def _number(value: object, field: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(field, f"{value!r} is not a number of snapshots", f"Write a whole number from {least} on")
    return value


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(field, f"{value!r} is not text", "Put it into quotes")
    return value


def _groups(value: object, field: str) -> Equalities:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(group, list) and len(group) > 1 and all(isinstance(name, str) for name in group) for group in value
    ):
        raise _wrong(field, f"{redact(repr(value))[:60]} is not a list of groups", "Write for example [[s3, oss]]")
    return tuple(tuple(name.lower() for name in group) for group in value)


def _open(content: object, known: tuple[str, ...], field: str) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _wrong(field, f"{redact(repr(content))[:60]} is not a mapping", f"It knows {', '.join(known)}")
    _require_once(content, _unify, field)
    body = {_unify(str(name)): value for name, value in content.items()}
    for name in body:
        if name not in known:
            raise _wrong(f"{field}.{name}".lstrip("."), "there is no such field", f"There are {', '.join(known)}")
    return body


def _unify(name: str) -> str:
    return name.replace("_", "-")


def _require_once(content: Mapping[Any, Any], unify: Callable[[str], str], field: str) -> None:
    names = find_equal_names(map(str, content), unify)
    if names is not None:
        what = f"{names[0]} and {names[1]} are the same field"
        raise _wrong(f"{field}.{names[1]}".lstrip("."), what, "Leave one of them out")


def _wrong(field: str, what: str, hint: str) -> UsageError:
    # Options of the command line are no fields of a policy.
    prefix = "" if field.startswith("--") else "retention policy: "
    return UsageError(f"{prefix}{what}", where=Where(path=field or None), hint=hint)


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
    """The manifest of this package where nothing else is left of a snapshot, for instance one that Flink claimed."""
    TEMPORARY = "temporary"
    """An unfinished file: an in-progress `_metadata`, or staging files of this package."""
    DIRECTORY = "directory"
    """A directory that is empty, or empty once the paths before it are deleted; never removed with content."""
    OTHER = "other"
    """A file with a name that Flink does not write, or outside its directories."""


@dataclass(frozen=True, slots=True)
class PlannedPath:
    """A path of a plan, with the reason why it goes or stays.

    Attributes:
        path: the path below its root, spelled as the root is; `storage.resolve` takes it.
        bytes: size of the file; 0 for a directory.
        kind: role of the path.
        reason: the reason, for people.
        modified: time of the last change as listed; None when the storage does not say, and for directories.
    """

    path: str
    bytes: int
    kind: PathKind
    reason: str
    modified: datetime | None = None

    def to_json(self) -> dict[str, object]:
        """The values, for JSON."""
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
        path: its directory.
        job: job id, or the directory that stands for the job.
        kind: checkpoint or savepoint.
        checkpoint_id: its id; None when `_metadata` cannot be read.
        modified: when `_metadata` was written.
        delete: it goes.
        reasons: why it goes or stays; the first is the strongest.
        bytes: size of the files in its directory.
        shared_bytes: size of all other files that it references.
        restorable: `_metadata` is readable and every referenced file is there with its recorded size; None for files
            outside all roots, which are not looked at.
        tags: tags of the snapshot.
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
    """A plan: nothing is deleted before it is applied by its fingerprint.

    Attributes:
        roots: the directories that were searched, as given, without a slash at the end.
        fingerprint: identity of roots, policy and `delete` with sizes and times; independent of the clock. Of a plan
            that confirms an earlier one (see `plan_retention`), also of those of its paths that are gone meanwhile.
        delete: paths to delete, in the order of deletion: `_metadata` of a snapshot first, its data next, directories
            last.
        keep: files that stay, by path.
        unknown: files and links with other names, by path; they stay.
        stopped: why shared files and others that an unknown reference may need are not deleted; empty when nothing
            stops them.
        created: when the plan was made.
        snapshots: the decision about every snapshot, by path.
        notes: what a person should know before the plan is applied.
        linked_bytes: bytes in `delete` that free nothing: other hard links keep them, or they count twice.
        price: money for one GiB and month, or None.
        currency: of `price`.
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
        """Bytes that are freed; each file counts once."""
        return sum(each.bytes for each in self.delete) - self.linked_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay, unknown files included."""
        return sum(each.bytes for each in self.keep) + sum(each.bytes for each in self.unknown)

    @property
    def monthly_saving(self) -> float | None:
        """Money per month for the bytes that are freed; None without a price."""
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
    """Identity of a plan (SHA-256, 16 hexadecimal digits).

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
        fingerprint: of the plan that is wanted.

    Returns:
        the paths in the order of deletion; None when the text is not that of a plan, or of another fingerprint.
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
