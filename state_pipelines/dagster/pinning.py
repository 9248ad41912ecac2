"""Pins of snapshots, and snapshots that come back from quarantine, which are pinned too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.dagster.assets.applied_retention import open_log
from state_pipelines.dagster.assets.retention_plan import find_roots
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.retention import DeletionOutcome, list_quarantine, restore_quarantined
from state_pipelines.operations.retention.own_directory import pin_restored, pin_snapshot, unpin_snapshot
from state_pipelines.storage import METADATA_FILE, Location, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.retention import AuditRecord

PIN = "pin_snapshot"
RESTORE = "restore_snapshot"

_BACK = (DeletionOutcome.RESTORED, DeletionOutcome.INCOMPLETE)
_SHOWN = 10


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Attributes:
        snapshots: paths of the snapshots that are back, each of which is pinned.
        files: number of files that are back.
        bytes: their size.
        problems: files that could not be moved, and what snapshots lack.
        doubts: why it cannot be seen whether a snapshot is complete.
    """

    snapshots: Sequence[str]
    files: int
    bytes: int
    problems: Sequence[str]
    doubts: Sequence[str]


def change_pin(job: FlinkJob, path: str, *, reason: str = "", unpin: bool = False) -> None:
    """Add a snapshot to the pin file of its root, or remove it.

    Raises:
        UsageError: the snapshot is not below a root of the job, or is not pinned.
    """
    root, relative = _split(path, [resolve(each) for each in (*job.storage.searched_roots, *find_roots(job))])
    if unpin:
        unpin_snapshot(root, relative)
    else:
        pin_snapshot(root, relative, reason=reason)


def restore_snapshots(job: FlinkJob, what: str, *, reason: str) -> Restored:
    """Move files back from the quarantine, and pin the snapshots that are back, so that the next plan keeps them.

    Args:
        job: the Flink job.
        what: name or path of the directory of a snapshot, or the fingerprint of an applied plan.
        reason: of the pins.

    Raises:
        NotFoundError: nothing of this name is in quarantine.
        UsageError: several snapshots have this name.
    """
    roots = [resolve(each) for each in find_roots(job)]
    records = restore_quarantined(roots, _find_quarantined(roots, what), open_log(job), path_mapping=job.reach)
    back = [each for each in records if each.outcome in _BACK]
    snapshots = pin_restored(roots, records, reason=reason)
    is_problem = [each.outcome in (DeletionOutcome.FAILED, DeletionOutcome.INCOMPLETE) for each in records]
    return Restored(
        snapshots,
        len(back),
        sum(each.bytes for each in back),
        [_explain(each) for each, wrong in zip(records, is_problem, strict=True) if wrong],
        [_explain(each) for each, wrong in zip(records, is_problem, strict=True) if each.detail and not wrong],
    )


def _explain(record: AuditRecord) -> str:
    return f"{record.path}: {record.detail}"


def _find_quarantined(roots: Sequence[Location], what: str) -> str:
    """Return the path of a snapshot that is given by the name of its directory; any other text as it is."""
    if "/" in what:
        return what
    suffix = f"/{what}/{METADATA_FILE}"
    originals = {str(each.original) for each in list_quarantine(roots)}
    found = sorted(each.removesuffix(f"/{METADATA_FILE}") for each in originals if each.endswith(suffix))
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} snapshots in quarantine have the name {what}",
            hint=f"Choose from {', '.join(found[:_SHOWN])}",
        )
    return found[0] if found else what


def _split(path: str, roots: Sequence[Location]) -> tuple[Location, str]:
    """Return the root of a snapshot, and its path relative to the root."""
    for root in roots:
        start = f"{str(root).rstrip('/')}/"
        if path.startswith(start):
            return root, path[len(start) :]
    raise UsageError(
        "the snapshot is not below a root of the job",
        where=Where(file=path),
        hint="It needs no pin: retention deletes nothing outside the roots",
    )
