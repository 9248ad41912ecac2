"""Batches of one application of a plan: checked, deleted or moved, and logged together."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError, MissingFileError, StateError, StorageError
from state_pipelines.operations.retention.audit_log import AuditRecord, AuditRun, Outcome
from state_pipelines.operations.retention.plan import PathKind, PlannedPath
from state_pipelines.operations.retention.quarantine import quarantine_location
from state_pipelines.storage import FileEntry, exists, join
from state_pipelines.storage.deletion import delete_files, is_same_time, move_files, remove_empty_directory, stat_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from state_pipelines.operations.retention.apply_context import ApplyContext
    from state_pipelines.operations.retention.survey import Root
    from state_pipelines.storage import Location


class DeletionBatches:
    """The batches of one run.

    Attributes:
        numbers: paths that are gone now, by kind.
        sizes: bytes that are gone now, by kind.
        kept: paths that were not deleted.
        failed: paths that the storage did not let go.
        stopped: why the run ends before the plan is done.
    """

    def __init__(self, context: ApplyContext, run: AuditRun, since: datetime, total: int) -> None:
        """Prepare a run over `total` paths."""
        self._context = context
        self._run = run
        self._since = since
        self._total = total
        self._began = time.monotonic()
        self._handled = 0
        # Key of every file that a snapshot of after the plan references, and that snapshot.
        self._needed: dict[str, str] = {}
        self.numbers: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.kept: list[AuditRecord] = []
        self.failed: list[AuditRecord] = []
        self.stopped = ""

    @property
    def paths(self) -> int:
        """Number of paths that are gone now."""
        return sum(self.numbers.values())

    @property
    def bytes(self) -> int:
        """Bytes that are gone now."""
        return sum(self.sizes.values())

    @property
    def remaining(self) -> int:
        """Number of paths that were not reached."""
        return self._total - self._handled

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.remaining and not self.failed

    def drop_unplanned(self, left: Iterable[AuditRecord], planned: set[str]) -> None:
        """Log what an interrupted run was going to delete and the plan of now keeps, or no longer finds."""
        now = self._context.clock()
        dropped = [record for record in left if record.path not in planned]
        states = self._stat(dropped)
        records = [
            record.with_outcome(Outcome.MISSING, now)
            if state is None
            else record.with_outcome(Outcome.KEPT, now, "the plan of now keeps it")
            for record, state in zip(dropped, states, strict=True)
        ]
        self.kept += [record for record in records if record.outcome is Outcome.KEPT]
        self._run.append(records)

    def delete(self, todo: list[PlannedPath]) -> None:
        """Delete paths in their order until all are handled or something stops the run."""
        context = self._context
        while todo and not self.stopped:
            batch = self._take(todo)
            if not batch:
                return
            try:
                needed, vanished = context.watch.look()
            except IncompatibleError as error:
                self.stopped = str(error)
                return
            self._needed.update(needed)
            if vanished and any(each.kind is PathKind.METADATA for each in todo):
                # The plan may keep a snapshot because of one that has vanished: decide again which ones stay.
                plan = context.make_plan(
                    frozenset((each.path, each.bytes, each.modified) for each in todo), todo, timedelta(0)
                )
                allowed = {(each.path, each.bytes) for each in plan.delete}
                self._keep(
                    [each for each in todo if (each.path, each.bytes) not in allowed], "the plan of now keeps it"
                )
                todo = [each for each in todo if (each.path, each.bytes) in allowed]
                continue
            todo = todo[len(batch) :]
            self._delete_batch(batch)
            if context.report is not None:
                context.report(self._handled, self._total)
            self._wait()

    def _take(self, todo: Sequence[PlannedPath]) -> list[PlannedPath]:
        """The next paths within the limits; without any, `stopped` says why."""
        limits = self._context.limits
        batch: list[PlannedPath] = []
        paths, size = self.paths, self.bytes
        for each in todo[: limits.batch]:
            paths, size = paths + 1, size + each.bytes
            reached = ""
            if limits.paths is not None and paths > limits.paths:
                reached = f"the limit of {limits.paths:,} paths per run is reached"
            # A file that is larger than the limit goes in a run of its own.
            elif limits.bytes is not None and size > limits.bytes and paths > 1:
                reached = f"the limit of {limits.bytes:,} bytes per run is reached"
            if reached:
                self.stopped = "" if batch else reached
                break
            batch.append(each)
        return batch

    def _delete_batch(self, batch: Sequence[PlannedPath]) -> None:
        fine = self._check([each for each in batch if each.kind is not PathKind.DIRECTORY])
        # Without `_metadata` a directory is no snapshot any more, whatever of its data is still there.
        metadata = [each for each in fine if each.kind is PathKind.METADATA]
        if not self._delete_files(metadata):
            self.stopped = "a _metadata file could not be deleted, and what it references must stay"
        if self.stopped:
            return
        self._delete_files([each for each in fine if each.kind is not PathKind.METADATA])
        for each in batch:
            if each.kind is PathKind.DIRECTORY:
                self._remove_directory(each)

    def _check(self, files: Sequence[PlannedPath]) -> list[PlannedPath]:
        """The files that are as planned and that no new snapshot needs; the others are logged."""
        states = self._stat(files)
        fine, missing = [], []
        failed: list[tuple[PlannedPath, str]] = []
        for each, state in zip(files, states, strict=True):
            owner = self._needed.get(self._context.key(each.path))
            if state is None:
                missing.append(each)
                continue
            if owner is not None:
                reason = f"the new snapshot {owner} needs it"
            elif isinstance(state, StorageError | MissingFileError):
                failed.append((each, str(state)))
                continue
            elif isinstance(state, StateError):
                reason = str(state)
            elif not _is_as_planned(state, each):
                reason = f"it has changed: {state.size:,} bytes, written {state.modified}"
            else:
                fine.append(each)
                continue
            self._keep([each], reason)
            if each.kind is PathKind.METADATA:
                self.stopped = "a _metadata file is not as planned, and what it references must stay"
        self._log(missing, Outcome.MISSING)
        self._fail(failed)
        if any(each.kind is PathKind.METADATA for each, _ in failed):
            self.stopped = "a _metadata file could not be checked, and what it references must stay"
        return fine if not self.stopped else []

    def _delete_files(self, files: Sequence[PlannedPath]) -> bool:
        """Delete or move files; returns whether all of them are gone."""
        context = self._context
        located = [self._locate(each.path) for each in files]
        locations = [location for _, location in located]
        if context.quarantine:
            name, since = self._run.name, self._since
            errors = move_files(
                [
                    (location, quarantine_location(root.location, location, name, since), root.location)
                    for root, location in located
                ]
            )
        else:
            errors = delete_files(locations, [root.location for root, _ in located])
        results = list(zip(files, locations, errors, strict=True))
        context.watch.forget(location for _, location, error in results if error is None)
        gone = [each for each, _, error in results if error is None]
        self._log(gone, Outcome.QUARANTINED if context.quarantine else Outcome.DELETED)
        self._fail([(each, str(error)) for each, _, error in results if error is not None])
        return len(gone) == len(files)

    def _remove_directory(self, directory: PlannedPath) -> None:
        root, location = self._locate(directory.path)
        if remove_empty_directory(location, root.location):
            self._log([directory], Outcome.DELETED)
        elif not exists(location):
            self._log([directory], Outcome.MISSING)
        elif any(each.path.startswith(f"{directory.path}/") for each in self.failed):
            self._fail([(directory, "files of it could not be deleted")])
        else:
            self._keep([directory], "the directory is not empty, or the storage removes only whole directories")

    def _keep(self, files: Sequence[PlannedPath], reason: str) -> None:
        now = self._context.clock()
        records = [to_record(each, self._run.name, now, Outcome.KEPT, reason) for each in files]
        self.kept += records
        self._handled += len(records)
        self._run.append(records)

    def _fail(self, files: Sequence[tuple[PlannedPath, str]]) -> None:
        """Log paths that are still there, each with the reason: the next run of the plan tries them again."""
        now = self._context.clock()
        records = [to_record(each, self._run.name, now, Outcome.FAILED, reason) for each, reason in files]
        self.failed += records
        self._handled += len(records)
        self._run.append(records)

    def _log(self, files: Sequence[PlannedPath], outcome: Outcome) -> None:
        now = self._context.clock()
        for each in files:
            self.numbers[each.kind.value] += 1
            self.sizes[each.kind.value] += each.bytes
        self._handled += len(files)
        self._run.append([to_record(each, self._run.name, now, outcome) for each in files])

    def _wait(self) -> None:
        """Wait until the rate is below the limit."""
        ahead = self.paths / self._context.limits.paths_per_second - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)

    def _stat(self, files: Sequence[PlannedPath | AuditRecord]) -> list[FileEntry | StateError | None]:
        located = [self._locate(each.path) for each in files]
        return stat_files([location for _, location in located], [root.location for root, _ in located])

    def _locate(self, path: str) -> tuple[Root, Location]:
        # No root of a plan is inside another one.
        root = next(root for root in self._context.roots if path.startswith(root.path + "/"))
        return root, join(root.location, path[len(root.path) + 1 :])


def to_record(each: PlannedPath, fingerprint: str, now: datetime, outcome: Outcome, detail: str = "") -> AuditRecord:
    """The line of the audit log for a path of a plan."""
    return AuditRecord(
        each.path, each.bytes, each.kind.value, each.reason, each.modified, fingerprint, outcome, now, detail
    )


def _is_as_planned(state: FileEntry, planned: PlannedPath) -> bool:
    if state.size != planned.bytes:
        return False
    # A storage without times gives none in the plan either.
    return planned.modified is None or is_same_time(state.modified, planned.modified)
