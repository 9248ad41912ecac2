"""Values of a retention plan: the paths to delete, the paths that stay, and the reason of each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.metadata.checkpoint import SnapshotKind


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
