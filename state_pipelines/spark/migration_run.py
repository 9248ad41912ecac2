"""Migration of the states of a snapshot in Spark, proven before they are published.

Remote state files that a migration reads several times are copied to this machine first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, UsageError, Where, at
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.metadata import list_references
from state_pipelines.metadata.streams import StateCategory, StreamRole, copy_stream, open_stream
from state_pipelines.operations.migration import Direction, Migration, ValuePlan
from state_pipelines.operations.migration import flows as flowing
from state_pipelines.operations.migration.drafting import refuse_drafts
from state_pipelines.operations.migration.flows import Apply, Read
from state_pipelines.operations.migration.migration_files import load_migration
from state_pipelines.operations.migration.migration_planner import describe_copied, plan_operator
from state_pipelines.operations.migration.shapes import carry_declared_pickles, find_shapes, number_columns, redeclare
from state_pipelines.operations.proofs import ProofCheck, ProofReport, combine_reports
from state_pipelines.operations.write.keyed_rewrite import (
    FileRewrite,
    RecordRewrite,
    WrittenFile,
    complete_rewrites,
    make_file_name,
)
from state_pipelines.operations.write.publication import NewFile, replace_operator_state, replace_rewritten
from state_pipelines.operations.write.transaction import SnapshotTransaction, check_source_whole
from state_pipelines.snapshot import Operator, Snapshot
from state_pipelines.snapshot.checks import check_database_keys, check_elements
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.snapshot.snapshot_files import explain_older_ranges
from state_pipelines.spark.analysis import analyse_plans, differ_by_case, require_expressions, require_permitted
from state_pipelines.spark.expectations import check_expectations, check_suites, run_suites
from state_pipelines.spark.flows import StateFrames
from state_pipelines.spark.operator_state import OperatorStateWork
from state_pipelines.spark.proof import prove_plan
from state_pipelines.spark.proof_rows import check_invariants
from state_pipelines.spark.record_encoding import (
    EncodedState,
    PlannedRewrite,
    RecordSpillWriter,
    StateEncoding,
    combine_written,
    plan_encoding,
)
from state_pipelines.spark.session import case_sensitive, create_session
from state_pipelines.spark.tasks import count_cores, run_tasks, uses_other_machines
from state_pipelines.storage import join, resolve
from state_pipelines.storage.locations import Threads, is_local
from state_pipelines.storage.snapshot_writer import require_outside

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.operations.write.spills import StateSpill
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.spark.expectations import Suite
    from state_pipelines.spark.proof_rows import ExpectedDigests
    from state_pipelines.storage import Location

_FILES = 4
"""Number of files that are copied at the same time, each by several requests."""

_READ = (
    StateCategory.MANAGED_KEYED,
    StateCategory.RAW_KEYED,
    StateCategory.MANAGED_OPERATOR,
)


def copy_operators(snapshot: Snapshot, operators: Collection[bytes], scratch: Location) -> dict[str, Location]:
    """Copy the remote state files of some operators into a directory of this machine.

    Slices of merged files are not copied: the rest of such a file belongs to other subtasks or checkpoints.

    Args:
        snapshot: the snapshot; it need not be published.
        operators: ids of the operators.
        scratch: the directory.

    Returns:
        Location of each copy by URL of its file, for `Snapshot.with_copies`; empty where `scratch` is not local.

    Raises:
        StateError: a file cannot be read, or its copy not be written.
    """
    if not is_local(scratch):
        return {}
    wanted: dict[str, StateStream] = {}
    for reference in list_references(snapshot.metadata):
        if reference.operator.operator_id not in operators or reference.category not in _READ:
            continue
        holds_changes = reference.role is StreamRole.CHANGES
        directory = snapshot.location.directory
        stream = open_stream(reference.handle, directory, snapshot.path_mapping, holds_changes=holds_changes)
        if stream.location is None or stream.is_segment or is_local(stream.location):
            continue
        known = wanted.setdefault(stream.location.url, stream)
        if stream.size > known.size:
            wanted[stream.location.url] = stream
    copies = {url: join(scratch, make_file_name()) for url in wanted}
    with Threads(_FILES) as pool:
        for done in [pool.submit(copy_stream, stream, copies[url]) for url, stream in wanted.items()]:
            done.result()
    return copies


Judge = Callable[[Snapshot], Sequence[ProofCheck]]
"""Function that checks a migrated snapshot before it is published."""


@dataclass(frozen=True)
class MigrationResult:
    """Result of a migration.

    Attributes:
        path: the new savepoint.
        snapshot: the new savepoint, opened.
        rows: rewritten records.
        plans: by label of the operator, what happened to its states.
        proof: of all states together; None when it was not asked for.
        proofs: one per operator; of its keyed state and of its operator state, where both change.
        seconds: wall time.
        notes: what users should know, see `note_plans`.
    """

    path: str
    snapshot: Snapshot
    rows: int
    plans: dict[str, OperatorPlan]
    proof: ProofReport | None
    seconds: float
    proofs: tuple[ProofReport, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> ValuePlan:
        """Return the payload before and after a migration that changes a single state.

        Raises:
            UsageError: the migration does not change exactly one state, or the changed state has not exactly one old
                state.
        """
        changed = [(plan, flow) for plan in self.plans.values() for flow in plan.changed.values()]
        if len(changed) != 1 or len(sources := flowing.find_reads(changed[0][1])) != 1:
            raise UsageError(
                f"`plan` is for one changed state, made of one old state, and the migration changes {len(changed)}",
                hint="Use `plans`, which has the plan of each operator",
            )
        plan, flow = changed[0]
        return ValuePlan(plan.shapes[sources[0]].payload, flow.shape.payload, ())


@dataclass
class _Work:
    """Plans of the migration of one operator, and what has been written so far.

    Attributes:
        plan: plan of its keyed states and timers.
        whole: plan of all its states, keyed and operator state.
        unkeyed: the migration of its operator state (list and broadcast states).
        prove: digest the rows while they are written, for the proof.
        expected: by new name, digests of the expected rows.
        bytes: size of the new files.
    """

    operator: Operator
    plan: OperatorPlan
    reader: StateFrames
    whole: OperatorPlan
    unkeyed: OperatorStateWork
    prove: bool
    expected: dict[str, ExpectedDigests] = field(default_factory=dict)
    bytes: int = 0

    @property
    def touched(self) -> bool:
        return bool(self.plan.dropped) or any(
            not isinstance(flow, Read) or flow.shape != self.plan.shapes[flow.state] or flow.state != name
            for name, flow in self.plan.states.items()
        )


def migrate(
    snapshot: Snapshot | str,
    migration: Migration | Chain | str,
    target: str,
    *,
    direction: Direction | str = Direction.UPGRADE,
    prove: bool = True,
    suites: Sequence[Suite] = (),
    project: str | Path | None = None,
    allow_sql: bool = False,
    allow_python: bool = False,
    spark: SparkSession | None = None,
    scratch: str | None = None,
    judge: Judge | None = None,
) -> MigrationResult:
    """Write a new savepoint with migrated states; all other state is copied as bytes.

    Args:
        snapshot: the old snapshot, or its path; it is not changed.
        migration: a migration, or the path of its file; or a chain of migrations with their directions in the order of
            their application, as `RevisionDirectory.between` returns it.
        target: directory of the new savepoint, which must not exist.
        direction: `upgrade` or `downgrade`; for a single migration.
        prove: read the result back and verify it before it is published.
        suites: expectations of the job (`suites.load_suites`) that the rows of changed operators must meet too.
        project: directory of a Great Expectations project, which keeps the results of suites and builds data docs.
        allow_sql: allow SQL that is more than functions over the row (`analysis`).
        allow_python: allow a Python file as `migration`, and Python functions that migrations name. Functions that are
            given as objects need no permission.
        spark: the session; default the active one, or a new local one (`spark.create_session`).
        scratch: directory (path or URL) of temporary files; see `ScratchDirectory` for the default. On this machine it
            also gets copies of the changed operators' files where they are remote, since they are read several times.
        judge: further checks of the result for its proof.

    Raises:
        MigrationError: a migration does not fit the states, does more than is allowed, or Spark refuses an expression.
        UnsupportedError: a state has no columnar layout.
        UsageError: the session does not run ANSI SQL, or the target is inside the snapshot.
        TargetExistsError: the target exists.
        ProofError: the proof failed; its `report` says how, and nothing is left at the target.
        StateError: the snapshot cannot be read.
    """
    snapshot = number_columns(ensure_open(snapshot))
    require_outside(resolve(target), snapshot.location.directory)
    if isinstance(migration, str):
        migration = load_migration(migration, allow_python=allow_python)
    spark = spark or create_session("state-pipelines")
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        # Without ANSI mode, a cast that overflows silently gives null.
        raise UsageError("the session does not run ANSI SQL", hint="Set spark.sql.ansi.enabled to true")
    if direction not in tuple(Direction):
        raise UsageError(f"the direction is {direction!r}", hint=f"Choose from {', '.join(Direction)}")
    chain: Chain = [(migration, Direction(direction))] if isinstance(migration, Migration) else migration
    planned = plan_snapshot(snapshot, chain)
    with case_sensitive(spark) if differ_by_case(planned) else nullcontext():
        return _migrate(
            spark,
            snapshot,
            chain,
            planned,
            target,
            prove=prove,
            suites=suites,
            project=project,
            allow_sql=allow_sql,
            allow_python=allow_python,
            scratch=scratch,
            judge=judge,
        )


def _migrate(
    spark: SparkSession,
    snapshot: Snapshot,
    chain: Chain,
    planned: list[tuple[Operator, OperatorPlan]],
    target: str,
    *,
    prove: bool,
    suites: Sequence[Suite],
    project: str | Path | None,
    allow_sql: bool,
    allow_python: bool,
    scratch: str | None,
    judge: Judge | None,
) -> MigrationResult:
    started = time.monotonic()
    if prove:
        check_expectations(planned, allow_sql=allow_sql)
        check_suites(suites)
    for operator, plan in planned:
        _require_readable(operator, plan.keyed)
    require_expressions(spark, chain)
    require_permitted(spark, planned, allow_sql=allow_sql, allow_python=allow_python)
    analyse_plans(spark, planned)
    notes = note_plans(snapshot, planned)
    is_shared, location, run = uses_other_machines(spark), resolve(target), partial(run_tasks, spark)
    works: list[_Work] = []
    try:
        with SnapshotTransaction(location, run, scratch=scratch, is_shared=is_shared) as transaction:
            ids = {operator.metadata.operator_id for operator, _ in planned}
            if not is_shared:
                planned = _read_copies(snapshot, planned, copy_operators(snapshot, ids, transaction.scratch))
            works += [_prepare(spark, *each, prove=prove) for each in planned]
            result, rows = _write(spark, snapshot, works, transaction)
            copies = copy_operators(result, ids, transaction.scratch) if prove and not is_shared else {}
            read_back = result.with_copies(copies)
            proofs = tuple(report for work in works for report in _prove(spark, work, read_back)) if prove else ()
            proof = combine_reports(proofs) if proofs else None
            if proof is not None:
                proof = _add_source(run, works, proof)
                changed = {work.operator.id for work in works if work.whole.changed}
                judged = run_suites(spark, read_back, suites, project=project, operators=changed, title=location.name)
                own = () if judge is None else judge(read_back)
                proof = replace(proof, checks=(*proof.checks, *own, *judged.checks), data_docs=judged.data_docs)
            # The frames are released before the commit, because nothing may fail once the result is published.
            for work in works:
                work.reader.release()
            transaction.commit(proof)
    finally:
        for work in works:
            work.reader.release()
    plans = {work.operator.label: work.whole for work in works}
    seconds = time.monotonic() - started
    return MigrationResult(result.path, result, rows, plans, proof, seconds, proofs, notes)


def _read_copies(
    snapshot: Snapshot, planned: Sequence[tuple[Operator, OperatorPlan]], copies: dict[str, Location]
) -> list[tuple[Operator, OperatorPlan]]:
    """Return the plans with operators that read their files from local copies."""
    if not copies:
        return list(planned)
    copied = snapshot.with_copies(copies)
    return [(Operator(copied, operator.metadata, operator.uid), plan) for operator, plan in planned]


def note_plans(snapshot: Snapshot, plans: Sequence[tuple[Operator, OperatorPlan]]) -> tuple[str, ...]:
    """List notes for users before a migration: notes of the plans, and notes about the snapshot.

    Those about the snapshot tell of key groups that an older Flink assigned to other subtasks than Flink does now
    (`explain_older_ranges`), and of elements in the files of operator state that no handle lists, so that they would
    be lost (`check_elements`).

    Raises:
        FormatError: `_metadata` does not fit files of operator state or databases.
    """
    for operator in snapshot.operators:
        check_database_keys(operator)
    elements = [note for operator in snapshot.operators for note in check_elements(operator)]
    older = (explain_older_ranges(operator.metadata, operator.label) for operator in snapshot.operators)
    planned = (f"operator {operator.label}: {note}" for operator, plan in plans for note in plan.notes)
    return (*(note for note in older if note is not None), *elements, *planned)


def plan_snapshot(snapshot: Snapshot, chain: Chain) -> list[tuple[Operator, OperatorPlan]]:
    """Plan a chain of revisions for each operator that it names.

    Raises:
        MigrationError: a step does not fit; NotFoundError: the snapshot has no such operator or state.
    """
    operators: dict[str, Operator] = {}
    snapshot = carry_declared_pickles(number_columns(snapshot))
    refuse_drafts(chain)
    for migration, direction in chain:
        for change in migration.changes:
            operator = snapshot.operator(change.operator)
            operators.setdefault(operator.id, operator)
            change.steps(direction)
    plans = []
    for operator in operators.values():
        with at(operator=operator.label):
            plans.append((operator, plan_operator(operator, find_shapes(operator), chain)))
    return plans


def _require_readable(operator: Operator, plan: OperatorPlan) -> None:
    """Refuse states without columns, and timers that cannot follow their keys, before anything is copied."""
    for name in plan.changed:
        reads = [each for each in flowing.walk_flow(plan.states[name], beside=True) if isinstance(each, Read)]
        for read in reads:
            with at(operator=operator.label, state=read.state):
                operator.state(read.state).layout  # type: ignore[attr-defined]  # noqa: B018 - raises when there is none
    follows = any(shape.key != plan.key for shape in plan.shapes.values())
    nodes = (each for flow in plan.states.values() for each in flowing.walk_flow(flow))
    follows |= any(isinstance(each, Apply) and isinstance(each.stage, flowing.KeepKeys) for each in nodes)
    if follows and any(file.holds_raw_timers for _, file in operator.keyed_files):
        raise MigrationError(
            "the migration changes or removes keys, which is not possible for timers in raw keyed state",
            where=Where(operator=operator.label),
            hint="`convert` the snapshot into a canonical savepoint first",
        )


def _prepare(spark: SparkSession, operator: Operator, whole: OperatorPlan, *, prove: bool) -> _Work:
    plan = whole.keyed
    walks = (flowing.walk_flow(flow, beside=True) for flow in plan.changed.values())
    used = [name for walk in walks for name in {each.state for each in walk if isinstance(each, Read)}]
    shared = frozenset(name for name in used if used.count(name) > 1)
    reader = StateFrames(spark, operator, shared=shared)
    unkeyed = OperatorStateWork(spark, operator, whole.unkeyed, prove)
    return _Work(operator, plan, reader, whole, unkeyed, prove)


def _write(
    spark: SparkSession, snapshot: Snapshot, works: Sequence[_Work], transaction: SnapshotTransaction
) -> tuple[Snapshot, int]:
    metadata, rows, target, scratch = snapshot.metadata, 0, transaction.target, transaction.scratch
    for work in works:
        handles, records = work.unkeyed.write(target, scratch)
        metadata = replace_operator_state(metadata, work.operator.metadata.operator_id, handles)
        rows += records
        if not work.touched:
            continue
        encodings = {name: _plan_encoding(work, name, scratch) for name in work.plan.changed}
        rewrites = {name: each.plan_rewrite() for name, each in encodings.items()} if _has_files(spark, work) else {}
        planned = {name: each for name, each in rewrites.items() if each is not None}
        spills = {name: _encode(work, each) for name, each in encodings.items() if name not in planned}
        rows += sum(spill.records for each in spills.values() for spill in each)
        files = complete_rewrites(work.operator, _plan_files(work, spills, planned, target), target)
        written = transaction.run(files, "the new files cannot be written")
        rows += sum(_take_results(work, planned, written))
        work.bytes = sum(each.size for each in written)
        new = [NewFile(rewrite, each) for rewrite, each in zip(files, written, strict=True)]
        metadata = replace_rewritten(metadata, work.operator.metadata.operator_id, new)
    shapes = {work.operator.metadata.operator_id: work.whole.new_shapes for work in works}
    declarations = redeclare(snapshot.declarations, shapes)
    return transaction.stage(metadata, snapshot, declarations=declarations, changed=shapes.keys()), rows


def _has_files(spark: SparkSession, work: _Work) -> bool:
    """Return whether there is a file for each core of the session, so that tasks of one file each use all cores."""
    return sum(not file.holds_raw_timers for _, file in work.operator.keyed_files) >= count_cores(spark)


def _plan_encoding(work: _Work, name: str, directory: Location) -> StateEncoding:
    flow = work.plan.changed[name]
    operator = work.operator
    assert flow.shape.key is not None
    layouts = work.plan.row_layouts
    layout = derive_keyed_layout(flow.shape.info, flow.shape.key, operator.max_parallelism, layouts)
    writer = RecordSpillWriter(RecordEncoder(layout, name), directory, operator.label)
    with at(operator=operator.label, state=name):
        return plan_encoding(work.reader, work.plan, name, writer, prove=work.prove)


def _encode(work: _Work, encoding: StateEncoding) -> tuple[StateSpill, ...]:
    with at(operator=work.operator.label, state=encoding.name):
        return _keep_expected(work, encoding.name, encoding.encode()).spills


def _keep_expected(work: _Work, name: str, encoded: EncodedState) -> EncodedState:
    if encoded.expected is not None:
        work.expected[name] = encoded.expected
    return encoded


def _take_results(work: _Work, planned: Mapping[str, PlannedRewrite], files: Sequence[WrittenFile]) -> Iterator[int]:
    """Keep the digests of states that were written without spills; yield the number of records of each."""
    for name, rewrite in planned.items():
        found = combine_written(file.results[name] for file in files if name in file.results)
        _keep_expected(work, name, rewrite.pack(found))
        yield sum(file.states[name].records for file in files if name in file.states)


def _plan_files(
    work: _Work,
    spills: Mapping[str, tuple[StateSpill, ...]],
    planned: Mapping[str, PlannedRewrite],
    target: Location,
) -> list[FileRewrite]:
    """Plan the new file of each subtask that has a changed state; subtasks whose file stays as it is are left out."""
    operator, plan = work.operator, work.plan
    files: dict[int, KeyedFile] = {subtask: file for subtask, file in operator.keyed_files if not file.holds_raw_timers}
    rekeyed = any(shape.key != plan.key for shape in plan.shapes.values())
    rewrites = []
    for subtask in range(operator.parallelism):
        file = files.get(subtask)
        if file is None and not rekeyed:
            continue
        held = {info.name: number for number, info in enumerate(file.header.states)} if file is not None else {}
        infos: list[StateMetaInfo] = []
        copied: list[tuple[int, int]] = []
        encoded: list[tuple[int, tuple[StateSpill, ...]]] = []
        rewritten: list[tuple[int, int, RecordRewrite]] = []
        for name, flow in plan.states.items():
            present = rekeyed or any(source in held for source in flowing.find_reads(flow))
            if not present or (isinstance(flow, Read) and flow.state not in held):
                continue
            if isinstance(flow, Read):
                assert file is not None
                copied.append((len(infos), held[flow.state]))
                infos.append(describe_copied(flow, file.header.states[held[flow.state]], plan.shapes[flow.state]))
                continue
            if name in planned:
                rewritten.append((len(infos), held[planned[name].source], planned[name].rewrite))
            else:
                encoded.append((len(infos), spills[name]))
            infos.append(flow.shape.info)
        if file is not None and tuple(infos) == file.header.states and not encoded and not rewritten:
            continue
        rewrites.append(
            FileRewrite(
                subtask=subtask,
                base=file,
                header=_make_header(file, tuple(infos), plan),
                copied=tuple(copied),
                encoded=tuple(encoded),
                key_groups=compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)
                if file is None or rekeyed
                else file.key_groups,
                context=operator.record_context,
                target=join(target, make_file_name()),
                rewritten=tuple(rewritten),
            )
        )
    return rewrites


def _make_header(file: KeyedFile | None, infos: tuple[StateMetaInfo, ...], plan: OperatorPlan) -> KeyedHeader:
    assert plan.key is not None or file is not None
    if file is None:
        assert plan.key is not None
        return KeyedHeader(key_serializer=plan.key, states=infos)
    rekeyed = any(shape.key != plan.key for shape in plan.shapes.values())
    key = plan.key if rekeyed and plan.key is not None else file.header.key_serializer
    return replace(file.header, key_serializer=key, states=infos)


def _prove(spark: SparkSession, work: _Work, result: Snapshot) -> list[ProofReport]:
    before, after = work.operator, result.operator(work.operator.id)
    keyed, unkeyed = work.plan, work.unkeyed.plan
    reports = []
    if keyed.changed or not unkeyed.changed:
        report = prove_plan(spark, before, after, keyed, work.expected)
        agreement = check_invariants(spark, before, after, keyed) if keyed.changed else None
        checks = (*report.checks, *([] if agreement is None else [agreement]))
        reports.append(replace(report, checks=checks, bytes=work.bytes))
    if unkeyed.changed:
        reports.append(prove_plan(spark, before, after, unkeyed, work.unkeyed.expected))
    return reports


def _add_source(run: Runner, works: Sequence[_Work], proof: ProofReport) -> ProofReport:
    """Add to a proof the check that all records of the old files were read, if old subtasks share files."""
    operators = [work.operator for work in works if work.touched]
    check = check_source_whole(operators, run)
    return proof if check is None else replace(proof, checks=(*proof.checks, check))
