"""Planning: survey the roots, decide about snapshots, then about files."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import StateError, Where
from state_pipelines.operations.retention.decisions import YOUNG, YOUNG_SNAPSHOT, FileJudge, JobIndex, decide, kind_of
from state_pipelines.operations.retention.own_directory import (
    DeletionOutcome,
    find_leftovers,
    is_fingerprint,
    locate_pins,
    open_audit_log,
)
from state_pipelines.operations.retention.policy import (
    PathKeys,
    PathKind,
    RetentionPlan,
    RetentionPolicy,
    SnapshotVerdict,
    compute_fingerprint,
    load_policy,
    parse_policy,
)
from state_pipelines.operations.retention.references import (
    ReferenceReader,
    SnapshotReferences,
    StoredReferences,
    Unreadable,
)
from state_pipelines.operations.retention.survey import open_roots, require_whole_jobs, survey
from state_pipelines.storage import METADATA_FILE, Location, PathMapping, parse_path_mapping, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from state_pipelines.operations.retention.decisions import Decision
    from state_pipelines.operations.retention.own_directory import AuditLog, Leftovers
    from state_pipelines.operations.retention.policy import PlannedPath
    from state_pipelines.operations.retention.survey import FoundPin, Root, Survey

_SHOWN = 3


def plan_retention(
    roots: str | Location | Sequence[str | Location],
    policy: RetentionPolicy | Mapping[str, Any] | str | Path | None = None,
    *,
    min_age: timedelta | None = None,
    grace: timedelta | None = None,
    confirm: Sequence[PlannedPath] | None = None,
    path_mapping: PathMapping | Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    audit_log: str | Location | None = None,
    leftovers: Leftovers | None = None,
    references: str | Location | None = None,
    now: Callable[[], datetime] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> RetentionPlan:
    """Plan which snapshots and files below some roots go, and which stay; nothing is written or deleted.

    A plan can confirm an earlier one: only paths of the earlier plan can go. It has the fingerprint of the earlier plan
    exactly when each of these paths would still go, or is gone already. Snapshots that were written meanwhile count as
    references; what could go because of them is left to a later plan.

    Args:
        roots: directories of checkpoints and savepoints, of any number of jobs.
        policy: which snapshots stay: a policy, its mapping, or its YAML file; without one only orphans go.
        min_age: nothing younger goes; replaces the policy's.
        grace: time between two passes, of which the second confirms the first; replaces the policy's.
        confirm: the paths that an earlier plan deletes, in its order.
        path_mapping: current directories of those that snapshots name, also as texts `FROM=TO`.
        storage_options: options of the file systems of roots that are given as text.
        audit_log: directory of the audit log; by default `_retention/log` below the first root.
        leftovers: path, size and time of files that an interrupted application of a plan was deleting; they go unless
            something references them. By default those of the audit log.
        references: a file that keeps the references of snapshots on remote storages from plan to plan. Only snapshots
            that are new, or whose `_metadata` has another size or time, are read; then the file is replaced. Without
            this argument all snapshots are read, as `apply_plan` always does.
        now: returns the current time.
        wait: called with the seconds of the grace period.

    Raises:
        NotFoundError: a root does not exist.
        UsageError: the policy is wrong, or no root is given.
        StateError: a root cannot be listed, or changes so much that two passes do not agree.
    """
    given = {"min_age": min_age, "grace": grace}
    rules = open_policy(policy).model_copy(update={name: each for name, each in given.items() if each is not None})
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    keys = PathKeys(rules.equal_schemes, rules.equal_authorities)
    listed = [roots] if isinstance(roots, str | Location) else list(roots)
    opened, notes = open_roots(listed, keys, storage_options)
    require_whole_jobs(opened)
    mapping = mapping.allow(each.location.url for each in opened)
    if isinstance(audit_log, str):
        audit_log = resolve(audit_log, **(storage_options or {}))
    log = open_audit_log(opened[0].location, audit_log)
    if leftovers is None:
        leftovers = find_leftovers(log)
    if isinstance(references, str):
        references = resolve(references, **(storage_options or {}))
    store = None
    if references is not None:
        store = StoredReferences(references, keys, mapping, (each.key for each in opened))
        store.load()
    planner = _Planner(opened, notes, rules, ReferenceReader(keys, mapping, store), now or _now, leftovers, log)
    looked = planner.survey()
    plan = planner.plan(looked, confirm)
    seconds = rules.grace.total_seconds()
    if not seconds:
        return plan
    # The first pass is above. Its plan holds if the next pass, a grace period later, would still delete all its paths.
    # If it would not, because the roots have changed, the plan of the next pass replaces it. One more pass may confirm
    # the new plan.
    for _ in range(2):
        wait(seconds)
        looked = planner.survey()
        confirmed = planner.plan(looked, plan.delete if confirm is None else confirm)
        if confirmed.fingerprint == plan.fingerprint:
            # Paths that vanished between the passes do not count for the fingerprint of a new plan. The fingerprint of
            # an earlier plan (`confirm`) stays as it is.
            return confirmed if confirm is not None else planner.identify(confirmed, confirmed.delete)
        plan = planner.plan(looked, confirm)
    raise StateError(
        f"three passes, {seconds:g} s apart, did not agree on what to delete: the roots keep changing",
        where=Where(file=opened[0].path),
        hint="Plan with a higher --min-age, so that only files go that nothing changes any more",
    )


class _Planner:
    def __init__(
        self,
        roots: tuple[Root, ...],
        notes: Sequence[str],
        policy: RetentionPolicy,
        reader: ReferenceReader,
        clock: Callable[[], datetime],
        leftovers: Leftovers,
        log: AuditLog,
    ) -> None:
        self.paths = tuple(root.path for root in roots)
        self.roots, self.notes, self.policy, self.reader, self.clock = roots, notes, policy, reader, clock
        self.log = log
        # Compare keys instead of paths, because the interrupted run may have spelled the roots in another way.
        self.leftovers = frozenset((reader.keys.key(path), size, time) for path, size, time in leftovers)

    def survey(self) -> Survey:
        """List the roots and read their snapshots."""
        found = survey(self.roots, self.reader, self.clock, self.notes)
        self.reader.save()
        return found

    def plan(self, found: Survey, confirm: Sequence[PlannedPath] | None) -> RetentionPlan:
        """Make the plan for a survey. If there are paths to confirm, it deletes no others."""
        lost, notes = self._find_lost_pins(found)
        stopped, reasons = _find_stops(found, lost)
        index = JobIndex(found, found.time, self.policy.min_age)
        candidates = None if confirm is None else frozenset(each.path for each in confirm)
        decisions = decide(found, index, self.policy, stopped, candidates)
        judge = FileJudge(found, index, decisions, self.policy, stopped, self.leftovers, candidates)
        judge.judge()
        plan = RetentionPlan(
            roots=self.paths,
            fingerprint="",
            delete=tuple(judge.delete),
            keep=tuple(judge.keep),
            unknown=tuple(judge.unknown),
            stopped=reasons,
            created=found.time,
            snapshots=_make_verdicts(found, index, decisions),
            notes=(
                *found.notes,
                *notes,
                *self._note_runs_above(found),
                *_note_outside_files(found),
                *_note_links(found),
                *_note_others(found, judge.delete),
                *self._note_young(judge, decisions),
            ),
            linked_bytes=_count_linked_bytes(found, judge.delete),
            price=self.policy.price,
            currency=self.policy.currency,
        )
        return self.identify(plan, plan.delete if confirm is None else _confirm(plan, confirm, found))

    def _find_lost_pins(self, found: Survey) -> tuple[list[FoundPin], list[str]]:
        """Find the pins without a snapshot.

        A pin with tags does not count if the audit log says that retention itself has deleted its snapshot.

        Returns:
            (the pins, notes about those that do not count).
        """
        tagged = [each for each in found.lost_pins if each.pin.tags]
        if not tagged:
            return found.lost_pins, []
        logs = {each.directory: each for each in (self.log, *map(open_audit_log, self._find_log_roots(found)))}
        names = {each.pin.path.rpartition("/")[2] for each in tagged}
        removed = {
            self.reader.keys.key(record.path).rpartition("/")[0]
            for log in logs.values()
            for record in log.read_about(names)
            if record.kind == PathKind.METADATA
            and record.outcome in (DeletionOutcome.DELETED, DeletionOutcome.QUARANTINED)
        }
        explained = [each for each in tagged if any(map(each.covers, removed))]
        notes = [
            f"{locate_pins(each.directory)}, line {each.pin.line}: {each.pin.path} has tags, and retention has deleted "
            "it since; remove the entry with --unpin"
            for each in explained
        ]
        return [each for each in found.lost_pins if each not in explained], notes

    def _find_log_roots(self, found: Survey) -> list[Location]:
        return [*(each.location for each in self.roots), *found.above]

    def _note_runs_above(self, found: Survey) -> list[str]:
        return [
            f"an application of the plan {run.name} of {above} has not finished; see {run.directory}"
            for above in found.above
            for run in open_audit_log(above).find_unfinished_runs()
            if is_fingerprint(run.name)
        ]

    def _note_young(self, judge: FileJudge, decisions: Mapping[str, Decision]) -> list[str]:
        """Return a note if the plan deletes nothing because all files that could be deleted are too young."""
        files = sum(each.reason == YOUNG for each in judge.keep)
        snapshots = sum(each.reasons == (YOUNG_SNAPSHOT,) for each in decisions.values())
        if judge.delete or not (files or snapshots):
            return []
        return [
            f"nothing is old enough to go: {snapshots:,} snapshots and {files:,} files that could go are younger than "
            f"the minimal age of {self.policy.min_age}, or of unknown age"
        ]

    def identify(self, plan: RetentionPlan, delete: Sequence[PlannedPath] | None = None) -> RetentionPlan:
        """Return the plan with its fingerprint, computed from `delete`, by default from the paths that it deletes."""
        policy = self.policy.to_json()
        return replace(
            plan, fingerprint=compute_fingerprint(self.paths, policy, plan.delete if delete is None else delete)
        )


def _confirm(plan: RetentionPlan, earlier: Sequence[PlannedPath], found: Survey) -> list[PlannedPath]:
    """List the paths of an earlier plan that `plan` still deletes, with current size and time, or that are gone.

    If these are all paths of the earlier plan, and unchanged, they give its fingerprint.
    """
    going = {each.path: each for each in plan.delete}
    present = {each.path for each in (*found.files.values(), *found.directories.values(), *found.links)}
    return [
        each
        for each in (going.get(path.path, path) for path in earlier)
        if each.path in going or each.path not in present
    ]


def open_policy(policy: RetentionPolicy | Mapping[str, Any] | str | Path | None) -> RetentionPolicy:
    """Read a policy from its mapping or YAML file; None is the empty policy.

    Raises:
        UsageError: it is not a valid policy; the error names the field.
    """
    if policy is None:
        return RetentionPolicy()
    if isinstance(policy, RetentionPolicy):
        return policy
    return load_policy(policy) if isinstance(policy, str | Path) else parse_policy(dict(policy))


def _now() -> datetime:
    return datetime.now(UTC)


def _find_stops(found: Survey, lost_pins: Sequence[FoundPin]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Find the roots whose files may be needed by references or pins that are not known.

    Returns:
        (keys of these roots, reasons).
    """
    reasons: list[str] = []
    stopped: set[str] = set()
    for each in lost_pins:
        # A pin without a snapshot may be a misspelled path below any of the roots, so all of them are blocked.
        stopped.update(root.key for root in found.roots)
        reasons.append(
            f"{locate_pins(each.directory)}, line {each.pin.line}: no snapshot is at the pinned path "
            f"{each.pin.path!r}. Correct the path, or remove the pin with --unpin"
        )
    readings = {each.path: each.reading for each in found.snapshots.values()}
    readings |= {each.path: each.reading for each in found.neighbours}
    for path, reading in sorted(readings.items()):
        if isinstance(reading, Unreadable):
            # The snapshot may reference files below any of the roots: its job may have claimed a snapshot there.
            stopped.update(root.key for root in found.roots)
            reasons.append(
                f"{path}/_metadata cannot be read, so the files that it needs are not known: {reading.reason}. "
                "Repair it, or move its directory out of the root"
            )
    for link in found.links:
        if link.name == METADATA_FILE:
            stopped.update(root.key for root in found.roots)
            reasons.append(f"{link.path} is a symbolic link, and links are not followed. Put the file in its place")
    referenced: set[str] = set()
    outside: dict[str, tuple[str, str]] = {}
    for neighbour in found.neighbours:
        if isinstance(neighbour.reading, SnapshotReferences):
            referenced |= neighbour.reading.files.keys()
    for snapshot in found.snapshots.values():
        if isinstance(snapshot.reading, SnapshotReferences):
            referenced |= snapshot.reading.files.keys()
            for key in snapshot.reading.files:
                if key not in found.files and not found.is_inside(key):
                    text = snapshot.reading.texts.get(key, key)
                    outside.setdefault(key.rpartition("/")[2], (snapshot.path, text))
    for file in sorted(found.files.values(), key=lambda each: each.key) if outside else ():
        if file.key not in referenced and file.name in outside and file.root.key not in stopped:
            path, text = outside[file.name]
            stopped.add(file.root.key)
            reasons.append(
                f"{path} references {text}, which is outside all roots, while {file.path} has the same name: this may "
                "be one storage under two names. Use --map FROM=TO, --equal-scheme or --equal-authority, or add the "
                "root"
            )
    return frozenset(stopped), tuple(reasons)


def _note_outside_files(found: Survey) -> list[str]:
    outside: dict[str, int] = {}
    for snapshot in found.snapshots.values():
        if isinstance(snapshot.reading, SnapshotReferences):
            number = sum(key not in found.files and not found.is_inside(key) for key in snapshot.reading.files)
            if number:
                outside[snapshot.path] = number
    notes = [
        f"{path} references {outside[path]:,} files outside all roots; they are not looked at"
        for path in sorted(outside)[:_SHOWN]
    ]
    if len(outside) > _SHOWN:
        notes.append(f"so do {len(outside) - _SHOWN:,} more snapshots")
    return notes


def _note_links(found: Survey) -> list[str]:
    if not found.links:
        return []
    shown = ", ".join(sorted(link.path for link in found.links)[:_SHOWN])
    more = f" and {len(found.links) - _SHOWN:,} more" if len(found.links) > _SHOWN else ""
    return [f"links are not followed, so references of snapshots that they lead to are not known: {shown}{more}"]


def _note_others(found: Survey, delete: Sequence[PlannedPath]) -> list[str]:
    """Return a note that references are known only of snapshots below the roots and of those beside them.

    Return no note if the plan deletes no data file: only data files could be needed by snapshots elsewhere.
    """
    if all(each.kind in (PathKind.METADATA, PathKind.TEMPORARY, PathKind.DIRECTORY) for each in delete):
        return []
    looked = f" and of the {len(found.neighbours):,} beside them" if found.neighbours else ""
    return [
        f"references are known of the snapshots below the roots{looked}. Jobs that were restored from these with CLAIM "
        "and write elsewhere, such as to another bucket, may need files that go: give their directories as ROOTs too"
    ]


def _make_verdicts(found: Survey, index: JobIndex, decisions: Mapping[str, Decision]) -> tuple[SnapshotVerdict, ...]:
    verdicts = []
    for snapshot in sorted(found.snapshots.values(), key=lambda each: each.path):
        reading = snapshot.reading
        own = {file.key for file in snapshot.files}
        references = reading.files.keys() if isinstance(reading, SnapshotReferences) else ()
        others = [found.files[key] for key in references if key not in own and key in found.files]
        decision = decisions[snapshot.key]
        verdicts.append(
            SnapshotVerdict(
                path=snapshot.path,
                job=index.snapshot_jobs[snapshot.key].name,
                kind=kind_of(snapshot),
                checkpoint_id=reading.checkpoint_id if isinstance(reading, SnapshotReferences) else None,
                modified=snapshot.modified,
                delete=decision.delete,
                reasons=decision.reasons,
                bytes=sum(file.entry.size for file in snapshot.files),
                shared_bytes=sum(file.entry.size for file in others),
                restorable=snapshot.restorable,
                tags=tuple(sorted(snapshot.tags)),
            )
        )
    return tuple(verdicts)


def _count_linked_bytes(found: Survey, delete: Sequence[PlannedPath]) -> int:
    """Count the bytes of deleted files that free no space.

    If some hard links to a file stay, none of its deleted names frees space. If all are deleted, only one of them does.
    """
    inodes: dict[tuple[int, int], list[int]] = {}
    going = {path.path for path in delete}
    links: dict[tuple[int, int], int] = {}
    for file in found.files.values():
        if file.entry.inode is not None and file.path in going:
            inodes.setdefault(file.entry.inode, []).append(file.entry.size)
            links[file.entry.inode] = file.entry.links
    return sum(sum(sizes) if len(sizes) < links[inode] else sum(sizes) - sizes[0] for inode, sizes in inodes.items())
