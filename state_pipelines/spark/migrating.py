"""Migrating the states of a snapshot in Spark, proven before they are published."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, ProofError, UsageError, Where, at
from state_pipelines.keyed.assignment import compute_key_group_range
from state_pipelines.keyed.encoding import RecordEncoder
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.raw_timers import RawTimersFile
from state_pipelines.keyed.records import derive_keyed_layout
from state_pipelines.operations.migration import UPGRADE, Migration, ValuePlan
from state_pipelines.operations.migration import flows as flowing
from state_pipelines.operations.migration.drafts import refuse_drafts
from state_pipelines.operations.migration.flows import Read
from state_pipelines.operations.migration.planning import Chain, describe_copied, plan_operator
from state_pipelines.operations.migration.python_values import carry_declared_pickles, redeclare
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.own_files import publish_snapshot
from state_pipelines.operations.publishing import (
    NewFile,
    make_file_name,
    place_operator_state,
    place_rewrites,
    plan_copies,
)
from state_pipelines.operations.rewriting import FileRewrite, PartFile, complete_rewrites
from state_pipelines.snapshot import Snapshot
from state_pipelines.spark.analysis import analyse_plans
from state_pipelines.spark.encoding import PartWriter
from state_pipelines.spark.flows import StateReader
from state_pipelines.spark.operator_proof import prove_operator_states
from state_pipelines.spark.operator_state import OperatorStateWork
from state_pipelines.spark.proof import prove_plan
from state_pipelines.spark.reports import ProofReport, combine_reports
from state_pipelines.spark.state_encoding import encode_state
from state_pipelines.spark.tasks import run_tasks
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, SnapshotWriter, join, resolve
from state_pipelines.storage.files import remove_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.keyed.files import KeyedFile
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.migration.plans import OperatorPlan
    from state_pipelines.serializers.metainfo import StateMetaInfo
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.meant import Meant
    from state_pipelines.storage import Location

PARTS = "_parts"
"""Directory of part files inside the target while it is being written."""


@dataclass(frozen=True)
class MigrationResult:
    """What a migration did.

    Attributes:
        path: the new savepoint.
        snapshot: the new savepoint, opened.
        rows: records that were encoded anew.
        plans: by label of the operator, what became of its states.
        proof: of all states together; None when it was not asked for.
        proofs: one per operator; of its keyed state and of its operator state, where both change.
        seconds: wall time.
    """

    path: str
    snapshot: Snapshot
    rows: int
    plans: dict[str, OperatorPlan]
    proof: ProofReport | None
    seconds: float
    proofs: tuple[ProofReport, ...] = ()

    @property
    def plan(self) -> ValuePlan:
        """The payload before and after, of a migration that changes one state.

        Raises:
            UsageError: it changes several, or makes another number of states.
        """
        changed = [(plan, flow) for plan in self.plans.values() for flow in plan.changed.values()]
        if len(changed) != 1 or len(sources := flowing.find_reads(changed[0][1])) != 1:
            raise UsageError(f"the migration changes {len(changed)} states, not one", hint="Look at `plans`")
        plan, flow = changed[0]
        return ValuePlan(plan.shapes[sources[0]].payload, flow.shape.payload, ())


@dataclass
class _Work:
    """One operator while it is migrated.

    Attributes:
        plan: of its keyed states.
        whole: of all its states.
        unkeyed: the work on its operator state.
        prove: whether what is written will be proven.
        meant: by new name, what is meant by what is written.
    """

    operator: Operator
    plan: OperatorPlan
    reader: StateReader
    whole: OperatorPlan
    unkeyed: OperatorStateWork
    prove: bool
    meant: dict[str, Meant] = field(default_factory=dict)

    @property
    def touched(self) -> bool:
        return bool(self.plan.dropped) or any(
            not isinstance(flow, Read) or flow.shape != self.plan.shapes[flow.state] or flow.state != name
            for name, flow in self.plan.states.items()
        )


def migrate(
    spark: SparkSession,
    snapshot: Snapshot,
    migration: Migration | Chain,
    target: str,
    *,
    direction: str = UPGRADE,
    prove: bool = True,
) -> MigrationResult:
    """Write a new savepoint in which the states are as the migrations say; all else is copied as bytes.

    Args:
        spark: the session.
        snapshot: the old snapshot; it is not touched.
        migration: what to do: a migration, or several, each with its direction, in the order of their application.
        target: directory of the new savepoint, which must not exist.
        direction: `upgrade` or `downgrade`, of a single migration.
        prove: read the result back and judge it before it is published.

    Raises:
        MigrationError: a migration does not fit the states, or Spark refuses an expression.
        UnsupportedError: a state has no columnar form.
        UsageError: the session does not run ANSI SQL.
        TargetExistsError: there is something at the target.
        ProofError: the proof failed; its `report` says how, and nothing is left at the target.
    """
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        # Without it a cast that overflows gives null without a word.
        raise UsageError("the session does not run ANSI SQL", hint="Set spark.sql.ansi.enabled to true")
    started = time.monotonic()
    chain: Chain = [(migration, direction)] if isinstance(migration, Migration) else migration
    planned = plan_snapshot(snapshot, chain)
    works = [_prepare(spark, *each, prove=prove) for each in planned]
    analyse_plans(spark, planned)
    try:
        with SnapshotWriter(resolve(target)) as writer:
            new, rows = _write(spark, snapshot, works, writer)
            location = SnapshotLocation(writer.target, writer.locate(METADATA_FILE))
            shapes = {work.operator.metadata.operator_id: work.whole.new_shapes for work in works}
            result = Snapshot(location, new, snapshot.path_mapping, redeclare(snapshot.declarations, shapes))
            proofs = tuple(report for work in works for report in _prove(spark, work, result)) if prove else ()
            publish_snapshot(writer, new)
    finally:
        for work in works:
            work.reader.release()
    proof = combine_reports(proofs) if proofs else None
    plans = {work.operator.label: work.whole for work in works}
    return MigrationResult(result.path, result, rows, plans, proof, time.monotonic() - started, proofs)


def plan_snapshot(snapshot: Snapshot, chain: Chain) -> list[tuple[Operator, OperatorPlan]]:
    """What a chain of revisions makes of each operator that it names.

    Raises:
        MigrationError: a step does not fit; NotFoundError: the snapshot has no such operator or state.
    """
    operators: dict[str, Operator] = {}
    snapshot = carry_declared_pickles(snapshot)
    refuse_drafts(chain)
    for migration, direction in chain:
        for change in migration.changes:
            operator = snapshot.operator(change.operator)
            operators.setdefault(operator.id, operator)
            change.steps(direction)
    plans = []
    for operator in operators.values():
        for change in chain[0][0].changes if len(chain) == 1 else ():
            if change.state and chain[0][1] == UPGRADE and snapshot.operator(change.operator).id == operator.id:
                operator.state(change.state)  # says which states there are
        with at(operator=operator.label):
            plans.append((operator, plan_operator(operator, find_shapes(operator), chain)))
    return plans


def _prepare(spark: SparkSession, operator: Operator, whole: OperatorPlan, *, prove: bool) -> _Work:
    plan = whole.keyed
    for name in plan.changed:
        for source in flowing.find_reads(plan.states[name]):
            with at(operator=operator.label, state=source):
                operator.state(source).layout  # type: ignore[attr-defined]  # noqa: B018 - raises when there is none
    rekeyed = any(shape.key != plan.key for shape in plan.shapes.values())
    if rekeyed and any(isinstance(file, RawTimersFile) for _, file in operator.keyed_files):
        raise MigrationError(
            "timers in raw keyed state cannot follow another key",
            where=Where(operator=operator.label),
            hint="`convert` the snapshot into a canonical savepoint first",
        )
    used = [source for flow in plan.changed.values() for source in flowing.find_reads(flow)]
    shared = frozenset(name for name in used if used.count(name) > 1)
    reader = StateReader(spark, operator, shared=shared)
    unkeyed = OperatorStateWork(spark, operator, whole.unkeyed, prove)
    return _Work(operator, plan, reader, whole, unkeyed, prove)


def _write(
    spark: SparkSession, snapshot: Snapshot, works: Sequence[_Work], writer: SnapshotWriter
) -> tuple[CheckpointMetadata, int]:
    directory = join(writer.target, PARTS)
    metadata, rows = snapshot.metadata, 0
    for work in works:
        handles, records = work.unkeyed.write(writer.target, directory)
        metadata = place_operator_state(metadata, work.operator.metadata.operator_id, handles)
        rows += records
        if not work.touched:
            continue
        parts = {name: _encode(work, name, directory) for name in work.plan.changed}
        rows += sum(part.records for each in parts.values() for part in each)
        rewrites = complete_rewrites(work.operator, _plan_files(work, parts, writer.target), writer.target)
        written = run_tasks(spark, rewrites, "the new files cannot be written")
        files = [NewFile(rewrite, each) for rewrite, each in zip(rewrites, written, strict=True)]
        metadata = place_rewrites(metadata, work.operator.metadata.operator_id, files)
    metadata, copies = plan_copies(snapshot, metadata, writer.target)
    run_tasks(spark, copies, "the files that stay cannot be copied")
    remove_directory(directory)
    return metadata, rows


def _encode(work: _Work, name: str, directory: Location) -> tuple[PartFile, ...]:
    flow = work.plan.changed[name]
    operator = work.operator
    assert flow.shape.key is not None
    layouts = work.plan.row_layouts
    layout = derive_keyed_layout(flow.shape.info, flow.shape.key, operator.max_parallelism, layouts)
    writer = PartWriter(RecordEncoder(layout, name), directory, operator.label)
    with at(operator=operator.label, state=name):
        encoded = encode_state(work.reader, work.plan, name, writer, prove=work.prove)
    if encoded.meant is not None:
        work.meant[name] = encoded.meant
    return encoded.parts


def _plan_files(work: _Work, parts: dict[str, tuple[PartFile, ...]], target: Location) -> list[FileRewrite]:
    """The new file of every subtask that has a state which changes."""
    operator, plan = work.operator, work.plan
    files: dict[int, KeyedFile] = {
        subtask: file for subtask, file in operator.keyed_files if not isinstance(file, RawTimersFile)
    }
    rekeyed = any(shape.key != plan.key for shape in plan.shapes.values())
    rewrites = []
    for subtask in range(operator.parallelism):
        file = files.get(subtask)
        if file is None and not rekeyed:
            continue
        held = {info.name: number for number, info in enumerate(file.header.states)} if file is not None else {}
        infos: list[StateMetaInfo] = []
        copied: list[tuple[int, int]] = []
        encoded: list[tuple[int, tuple[PartFile, ...]]] = []
        for name, flow in plan.states.items():
            present = rekeyed or any(source in held for source in flowing.find_reads(flow))
            if not present or (isinstance(flow, Read) and flow.state not in held):
                continue
            if isinstance(flow, Read):
                assert file is not None
                copied.append((len(infos), held[flow.state]))
                infos.append(describe_copied(flow, file.header.states[held[flow.state]], plan.shapes[flow.state]))
            else:
                encoded.append((len(infos), parts[name]))
                infos.append(flow.shape.info)
        if file is not None and tuple(infos) == file.header.states and not encoded:
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
        reports.append(_require(prove_plan(spark, before, after, keyed, work.meant), keyed))
    if unkeyed.changed:
        reports.append(_require(prove_operator_states(spark, before, after, unkeyed, work.unkeyed.meant), unkeyed))
    return reports


def _require(report: ProofReport, plan: OperatorPlan) -> ProofReport:
    if not report.ok:
        failed = ", ".join(check.name for check in report.checks if not check.ok)
        names = list(plan.changed)
        raise ProofError(
            f"the proof failed ({failed}); nothing was published",
            where=Where(operator=report.operator, state=names[0] if len(names) == 1 else None),
            report=report,
        )
    return report
