"""`check`: will the state of a snapshot restore in a new job? The answer before anything is deployed.

Source: `Checkpoints.loadAndValidateCheckpoint`, `StateAssignmentOperation`, `RocksDBKeyedStateBackend`,
`HeapKeyedStateBackend`, `DefaultOperatorStateBackend`, `RegisteredKeyValueStateBackendMetaInfo`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.classes import FieldLists
from state_pipelines.errors import UsageError
from state_pipelines.javaclasses.classpath import ClassFieldLists
from state_pipelines.keyed.key_groups import compute_default_max_parallelism
from state_pipelines.operations.check.check_report import Action, CheckReport, MigrationCheckReport, StateCheck, Verdict
from state_pipelines.operations.check.class_loading import judge_loading, note_release
from state_pipelines.operations.check.data_classes import scan_snapshot
from state_pipelines.operations.check.flink_upgrade import judge_removed, list_unnamed_operators
from state_pipelines.operations.check.python_states import judge_undeclared
from state_pipelines.operations.check.restore_errors import (
    explain_max_parallelism,
    explain_missing_operator,
    explain_parallelism,
)
from state_pipelines.operations.check.restore_rules import Restore, judge_subjects
from state_pipelines.operations.check.snapshot_classes import judge_snapshot_classes
from state_pipelines.operations.check.written_classes import WrittenClasses
from state_pipelines.operations.jobs.flink_config import FLINK_2, StateBackend, parse_release
from state_pipelines.operations.jobs.job_state import Job, JobOperator, JobState, StateGroup, Subject, describe_job
from state_pipelines.operations.jobs.migrated_job import migrate_job
from state_pipelines.operations.jobs.state_classes import ClassStatus
from state_pipelines.operations.migration import Direction, Migration
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.compatibility.composites import COMPARE_PLANS, find_exchangeable_views
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.snapshot import ensure_open, open_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from state_pipelines.operations.check.data_classes import DataClasses
    from state_pipelines.operations.jobs.state_classes import StateClasses
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.serializers.compatibility import Finding
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot

__all__ = [
    "Action",
    "CheckReport",
    "MigrationCheckReport",
    "StateCheck",
    "Verdict",
    "check",
    "check_jobs",
    "check_migration",
    "check_serializers",
    "parse_release",
]

BACKENDS = tuple(StateBackend)

# The first release that writes, and so the first that reads, each metadata version.
_METADATA_VERSIONS = {(1, 3): 2, (1, 11): 3, (1, 16): 4, (2, 0): 5, (2, 2): 6, (2, 4): 7}


def check(
    old: Snapshot | str,
    new: Snapshot | Job | str,
    *,
    target: str = "2.2",
    backend: str | None = None,
    allow_non_restored_state: bool = False,
    scan: bool | None = None,
    row_names: bool = False,
) -> CheckReport:
    """Check whether a new job can restore the state of a snapshot.

    Args:
        old: the snapshot to restore, or its path.
        new: a snapshot of the new job (of a test run, say) or its path, of which only the serializers and the
            parallelism count; or the new job as `job_files.load_job` or `retyped_job.replace_classes` describe it.
        target: release of Flink that is to run the new job, such as 1.20 or 2.2.
        backend: hashmap or rocksdb; None judges by the stricter one, which is rocksdb.
        allow_non_restored_state: the restore may drop the state of operators that the new job lacks
            (`--allowNonRestoredState`, `execution.state-recovery.ignore-unclaimed-state`).
        scan: decode the data for classes that no serializer snapshot describes; None: of small snapshots only.
        row_names: fields of SQL rows must keep their names, where the snapshots hold them; Flink does not compare them.

    Raises:
        UsageError: no such release or backend.
        StateError: a snapshot is corrupt. Unsupported state leads to the verdict `to be determined` instead.
    """
    if isinstance(new, Job):
        old, described = ensure_open(old), new
    else:
        old, test_run = open_together(old, new)
        described = describe_job(test_run)
    return check_jobs(
        describe_job(old),
        described,
        target=target,
        backend=backend,
        allow_non_restored_state=allow_non_restored_state,
        find_data=scan_snapshot(old, scan=scan),
        row_names=row_names,
    )


def check_migration(
    snapshot: Snapshot,
    migration: Migration | Chain,
    *,
    target: str = "2.2",
    backend: str | None = None,
    new: Callable[[Job], Job] | None = None,
) -> MigrationCheckReport:
    """Check a snapshot against the job that migrations are for: as it is, and with them applied.

    Args:
        snapshot: the old state.
        migration: an upgrade; or several migrations, each with its direction, in the order of their application.
        target: as of `check`.
        backend: as of `check`.
        new: describes the new job, given the migrated old one; by default it is the job that the migrations make.

    Raises:
        MigrationError: a migration does not fit the state.
        NotFoundError: the snapshot has no such operator.
        UsageError, StateError: as `check`.
    """
    chain: Chain = [(migration, Direction.UPGRADE)] if isinstance(migration, Migration) else migration
    old = describe_job(snapshot)
    migrated = migrate_job(old, snapshot, chain)
    job = migrated if new is None else new(migrated)
    return MigrationCheckReport(
        check_jobs(old, job, target=target, backend=backend), check_jobs(migrated, job, target=target, backend=backend)
    )


def check_jobs(
    old: Job,
    new: Job,
    *,
    target: str = "2.2",
    backend: str | None = None,
    allow_non_restored_state: bool = False,
    find_data: Callable[[str, str], DataClasses | None] | None = None,
    row_names: bool = False,
) -> CheckReport:
    """Check descriptions of two jobs, as `check` does snapshots.

    Args:
        old: the job that took the snapshot.
        new: the new job.
        target: as of `check`.
        backend: as of `check`.
        allow_non_restored_state: as of `check`.
        find_data: gives the classes in the data of a state, by operator id and state name (`scan_snapshot`); without it
            classes that no serializer snapshot describes are not judged.
        row_names: as of `check`.
    """
    restore = replace(_plan_restore(target, backend, old.kryo_version), row_names=row_names)
    # Of a job that took a snapshot on the same line of Flink the classes are known to be there.
    is_observed = new.kryo_version == restore.kryo_version
    has_files = isinstance(new.classes, ClassFieldLists)
    restore = replace(
        restore,
        other_queries=new.metadata_version is not None and new.name != old.name,
        new_classes=None if new.keeps_classes else new.classes,
        observed=is_observed or not (new.keeps_classes or has_files or restore.crosses),
    )
    if find_data is not None:
        restore = replace(restore, classes=_know_classes(old, new, restore), find_data=find_data)
    checks = [*_check_metadata(old, restore)]
    successors = {operator.id: operator for operator in new.operators}
    for operator in old.operators:
        successor = successors.pop(operator.id, None)
        if successor is not None:
            checks += _check_operator(operator, successor, old, restore, is_observed=is_observed)
            # The old job with other code has all other types as they are.
            if new.metadata_version is not None and new.name != old.name:
                checks += judge_undeclared(operator, successor)
        elif operator.has_state:
            checks.append(_missing_operator(operator, old, allowed=allow_non_restored_state))
    if isinstance(new.classes, ClassFieldLists):
        checks += judge_snapshot_classes(old, new.classes.class_path)
    checks += (_assumed(each, new) for each in new.state_classes if each.status is ClassStatus.ASSUMED)
    for added in successors.values():
        checks += (_starts_empty(added, state) for state in added.states)
    notes = list(_list_notes(old, new, restore))
    if any(COMPARE_PLANS in check.remedy for check in checks):
        notes.append(
            "`check` does not read queries: where columns or aggregates of one type are named below, the verdict holds "
            "if the plans of both queries have them in the same order"
        )
    return CheckReport(
        old=old.name,
        new=new.name,
        target=target,
        backend=backend,
        checks=tuple(checks),
        notes=tuple(notes),
        classes=new.state_classes,
    )


def check_serializers(
    operator: str,
    state: str,
    old: Mapping[Subject, Serializer],
    new: Mapping[Subject, Serializer],
    *,
    kind: str = StateKind.VALUE,
    target: str = "2.2",
    backend: str | None = None,
    kryo_version: int | None = None,
    row_names: bool = False,
) -> tuple[StateCheck, ...]:
    """Check the serializers of one state.

    Args:
        operator: label of the operator.
        state: state name.
        old: serializers of the snapshot by subject; `VALUE` of LIST and MAP state holds the whole list or map.
        new: serializers of the new job.
        kind: VALUE, LIST, MAP, REDUCING, AGGREGATING, TIMER, SPLIT_DISTRIBUTE, UNION or BROADCAST.
        target: release of Flink.
        backend: hashmap, rocksdb or None.
        kryo_version: major version of Kryo that wrote the old state; None when it is that of the target.
        row_names: as of `check`.

    Raises:
        UsageError: no such release or backend, or the two sides do not have the same subjects.
    """
    if old.keys() != new.keys():
        names = ", ".join(sorted(old.keys() ^ new.keys()))
        raise UsageError(f"both sides need the same subjects, only one has {names}")
    restore = replace(_plan_restore(target, backend, kryo_version), row_names=row_names)
    return tuple(
        judge_subjects(operator, JobState(state, StateKind(kind), old), JobState(state, StateKind(kind), new), restore)
    )


def _plan_restore(target: str, backend: str | None, kryo_version: int | None) -> Restore:
    release = parse_release(target)
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"{backend!r} is not a state backend", hint=f"Known: {', '.join(BACKENDS)}")
    return Restore(release, None if backend is None else StateBackend(backend), kryo_version)


def _know_classes(old: Job, new: Job, restore: Restore) -> WrittenClasses:
    return WrittenClasses(
        old.classes or FieldLists(),
        new.classes or FieldLists(),
        same_code=new.keeps_classes or (new.name == old.name and new.classes in (None, old.classes)),
        same_kryo=old.kryo_version in (None, restore.kryo_version),
    )


def _check_metadata(old: Job, restore: Restore) -> Iterator[StateCheck]:
    newest = max((version for since, version in _METADATA_VERSIONS.items() if since <= restore.release), default=0)
    if old.metadata_version is None or old.metadata_version <= newest:
        return
    yield StateCheck(
        operator=None,
        state=None,
        kind="",
        subject=Subject.SNAPSHOT,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the snapshot has metadata version {old.metadata_version}, the target reads up to {newest}",
        remedy="Restore with a newer Flink, or write the snapshot in an older metadata version",
        error=f"Unrecognized checkpoint version number: {old.metadata_version}",
    )


def _list_notes(old: Job, new: Job, restore: Restore) -> Iterator[str]:
    yield from new.notes
    if new.state_classes:
        yield (
            "The types of keys and states come from code that `check` does not read: class files show what the "
            "classes of the snapshot became, not whether a key or a state has another type now"
        )
    yield from note_release(restore.release)
    if new.keeps_classes and old.metadata_version is not None:
        yield from list_unnamed_operators(old)
    if new.kryo_version is not None and new.kryo_version != restore.kryo_version:
        yield (
            f"The new job is described by a snapshot of another major release than {restore}: serializers that the "
            "target makes otherwise (collection fields of POJOs) are compared as that snapshot has them"
        )


def _check_operator(
    old: JobOperator, new: JobOperator, job: Job, restore: Restore, *, is_observed: bool
) -> Iterator[StateCheck]:
    yield from _check_max_parallelism(old, new, job)
    for side, operator in (("old", old), ("new", new)):
        if operator.unread:
            yield _unread(old, f"the {side} state cannot be read: {operator.unread}")
    if old.unread or new.unread:
        return
    if old.key is not None and new.key is not None:
        keys = (
            JobState("", StateKind.UNKNOWN, {Subject.KEY: old.key}),
            JobState("", StateKind.UNKNOWN, {Subject.KEY: new.key}),
        )
        unloadable = judge_loading(old, keys[0], restore.release)
        yield from judge_subjects(old.label, *keys, restore, old) if unloadable is None else (unloadable,)
    crosses = restore.release >= FLINK_2 and restore.crosses and not is_observed
    successors = {(state.group, state.name): state for state in new.states}
    for state in old.states:
        successor = successors.pop((state.group, state.name), None)
        removed = judge_removed(old, state) if crosses and successor is not None else None
        unloadable = removed or judge_loading(old, state, restore.release)
        if successor is not None and successor.kind != state.kind:
            yield _other_kind(old, state, successor)
        elif unloadable is not None:
            yield unloadable
        elif successor is None:
            yield _missing_state(old, new, state)
        else:
            yield from judge_subjects(old.label, state, successor, restore, old)
    yield from (_starts_empty(old, state) for state in successors.values())
    if restore.other_queries:
        whole = {
            state.name: state.serializers[Subject.VALUE] for state in old.states if Subject.VALUE in state.serializers
        }
        yield from (_exchangeable(old, names) for names in find_exchangeable_views(whole))


def _check_max_parallelism(old: JobOperator, new: JobOperator, job: Job) -> Iterator[StateCheck]:
    before, after = old.max_parallelism, new.max_parallelism
    if before == after and new.parallelism <= before:
        return
    outcome, error = Outcome.AS_IS, ""
    reason = f"the max parallelism was {before} and is {after}, which looks like Flink's own choice for parallelism "
    reason += f"{new.parallelism}: Flink takes over {before}, unless the job sets {after} itself"
    remedy = "Nothing to do, or set the max parallelism of the job to that of the snapshot"
    if new.parallelism > before:
        outcome = Outcome.INCOMPATIBLE
        reason = f"the parallelism {new.parallelism} is higher than the max parallelism {before} of the snapshot"
        remedy = f"Run with parallelism {before} at most, or write the snapshot with another max parallelism"
        error = explain_parallelism(old.id, before, new.parallelism)
    elif new.sets_max_parallelism or after != compute_default_max_parallelism(new.parallelism):
        outcome = Outcome.INCOMPATIBLE
        reason = f"the max parallelism was {before} and the job sets it to {after}"
        remedy = f"Set the max parallelism to {before}, or write the snapshot with another max parallelism"
        error = explain_max_parallelism(job.name, old.id, before, after)
    yield StateCheck(
        operator=old.label,
        state=None,
        kind="",
        subject=Subject.OPERATOR,
        outcome=outcome,
        reason=reason,
        remedy=remedy,
        error=error,
    )


def _unread(old: JobOperator, reason: str) -> StateCheck:
    return StateCheck(
        operator=old.label,
        state=None,
        kind="",
        subject=Subject.OPERATOR,
        outcome=Outcome.UNDETERMINED,
        reason=reason,
        remedy="Take a canonical savepoint, or register readers for serializers that are not known",
    )


def _exchangeable(operator: JobOperator, finding: Finding) -> StateCheck:
    return StateCheck(
        operator=operator.label,
        state=None,
        kind="",
        subject=Subject.OPERATOR,
        outcome=finding.outcome,
        findings=(finding,),
        remedy=finding.remedy,
    )


def _assumed(state: StateClasses, job: Job) -> StateCheck:
    kinds = {each.name: str(each.kind) for each in job.find(state.operator).states}
    names = [name for name, _ in state.assumed]
    moved = [f"{name} may be {' or '.join(others)} now" for name, others in state.assumed if others]
    return StateCheck(
        operator=state.operator,
        state=state.state or None,
        kind=kinds.get(state.state, ""),
        subject=Subject.STATE if state.state else Subject.KEY,
        outcome=Outcome.UNDETERMINED,
        reason=f"not among the given classes and assumed unchanged: {', '.join(names)}"
        + "".join(f"; {each}" for each in moved),
        remedy="Give all jars of the new job (--job-classes, repeatable). If a class has another name or package now, "
        "Flink does not find the old one: keep it, or write a migration with a `rename_class` step",
    )


def _missing_operator(old: JobOperator, job: Job, *, allowed: bool) -> StateCheck:
    reason = "the new job has no such operator: Flink refuses the restore without `--allowNonRestoredState`"
    if allowed:
        reason = "the new job has no such operator: its state is dropped, as non-restored state is allowed"
    return StateCheck(
        operator=old.label,
        state=None,
        kind="",
        subject=Subject.OPERATOR,
        outcome=Outcome.AS_IS if allowed else Outcome.INCOMPATIBLE,
        reason=reason,
        remedy="Nothing to do if the state is no longer needed"
        if allowed
        else "Give the operator its old uid, or restore with --allowNonRestoredState, which drops its state",
        error="" if allowed else explain_missing_operator(job.name, old.id),
        partial=allowed,
    )


def _missing_state(old: JobOperator, new: JobOperator, state: JobState) -> StateCheck:
    reason = "the new job does not register it: Flink carries it along unread into every later snapshot"
    if state.group is StateGroup.KEYED and new.key is None:
        reason = "the new operator has no keyed state: Flink drops this one without a word"
    return StateCheck(
        operator=old.label,
        state=state.name,
        kind=str(state.kind),
        subject=Subject.STATE,
        outcome=Outcome.AS_IS,
        reason=reason,
        remedy="Nothing to do if the state is no longer needed; if it has another name now, rename it in a migration",
        partial=True,
    )


def _starts_empty(operator: JobOperator, state: JobState) -> StateCheck:
    return StateCheck(
        operator=operator.label,
        state=state.name,
        kind=str(state.kind),
        subject=Subject.STATE,
        outcome=Outcome.AS_IS,
        reason="the snapshot has no such state: it starts empty",
        remedy="Nothing to do if that is right; if the state had another name, or the operator another uid, migrate",
        partial=True,
    )


def _other_kind(old: JobOperator, before: JobState, after: JobState) -> StateCheck:
    what = "state assignment modes" if before.group is StateGroup.LIST else "key/value state types"
    return StateCheck(
        operator=old.label,
        state=before.name,
        kind=str(before.kind),
        subject=Subject.STATE,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the state was {before.kind} and is {after.kind} now",
        remedy=f"Keep the state {before.kind}, give the new one another name, or change the kind in a migration",
        error=f"Incompatible {what}. Was [{before.kind}], registered with [{after.kind}].",
    )
