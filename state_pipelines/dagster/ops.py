"""Ops and the jobs around them: operations on snapshots, pins, partitions of snapshots.

Each op is about the Flink job that is the resource `flink_job`. The assets of the job call the same functions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import dagster as dg
from pydantic import Field, model_validator

from state_pipelines.dagster.assets import retention, snapshots
from state_pipelines.dagster.assets.retention import find_roots, open_log
from state_pipelines.dagster.assets.savepoints import (
    TARGET,
    BootstrappedSavepoint,
    CheckpointConfig,
    ConvertedSavepoint,
    MigratedSavepoint,
    RescaledSavepoint,
    SavepointMaker,
    SavepointRun,
    StreamSavepoint,
    WrittenSavepoint,
    describe_checkpoint,
    get_snapshot,
    take_checkpoints,
)
from state_pipelines.dagster.assets.snapshots import MigrationConfig, describe_report, judge_snapshot, list_reasons
from state_pipelines.dagster.flink_asset import NON_EMPTY_TEXT, checked_op, make_config, make_op_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table, round_seconds
from state_pipelines.dagster.partitions import check_name, take_name
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import IncompatibleError, ProofError, StateError, UsageError, Where
from state_pipelines.keyed.keys import KeyText
from state_pipelines.operations.auditing import Depth, audit_snapshot
from state_pipelines.operations.auditing.report import AuditRequest
from state_pipelines.operations.check.check import CheckVerdict
from state_pipelines.operations.erase import plan_erasure, require_searched, run_erasure, search_below
from state_pipelines.operations.inventory import make_partition_key
from state_pipelines.operations.key_search import KeySearch
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.operations.requests import PinRequest, RestoreRequest
from state_pipelines.operations.retention import AuditRecord, DeletionOutcome, list_quarantine, restore_quarantined
from state_pipelines.operations.retention.own_directory import pin_restored, pin_snapshot, unpin_snapshot
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import METADATA_FILE, Location, parent, resolve

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.spark import KeyedProcessResult

PIN = "pin_snapshot"
RESTORE = "restore_snapshot"

_BACK = (DeletionOutcome.RESTORED, DeletionOutcome.INCOMPLETE)
_SHOWN = 10


@dataclass(frozen=True)
class Restored:
    """Files and snapshots that came back from the quarantine of retention.

    Attributes:
        snapshots: paths of the snapshots, each now in the pin file, so that retention keeps it.
        files: number of files that were moved back.
        bytes: their size.
        problems: files that could not be moved back, and files that snapshots still lack.
        doubts: why it is unknown whether a snapshot is complete.
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
    """Return the path of a snapshot that is given by the name of its directory; any other text unchanged."""
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


# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.


PRUNE_PARTITIONS = "prune_partitions"

_PARTITION_JOBS_SHOWN = 100


class PruneConfig(dg.Config):
    """Whether to remove partitions or only list them, and whether the results of the job were moved."""

    apply: bool = Field(default=False, description="Remove the partitions; by default they are only listed.")
    results_moved: bool = Field(
        default=False,
        description="The job has the same name and another directory of results than before; by default that is taken "
        "for another job.",
    )


def build_prune_partitions(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `prune_partitions` of a Flink job."""

    @checked_op(job, name=job.op(PRUNE_PARTITIONS), tags=job.tags)
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        """List the partitions of deleted snapshots, or remove them."""
        if config.results_moved:
            take_name(context.instance, job)
        check_name(context.instance, job)
        update = job.storage.update_inventory()
        name = str(job.partitions.name)
        partitions = context.instance.get_dynamic_partitions(name)
        keys = update.find_prunable(partitions)
        if update.missing_roots:
            context.log.warning(
                "No partition is removed, because a root does not exist: %s", ", ".join(update.missing_roots)
            )
        if config.apply:
            for key in keys:
                context.instance.delete_dynamic_partition(name, key)
        context.log.info("%d partitions %s", len(keys), "removed" if config.apply else "could be removed")
        foreign = update.find_foreign(partitions)
        if foreign:
            context.log.warning(
                "%d partitions stay, because this job has never listed their snapshots: %s",
                len(foreign),
                ", ".join(foreign[:_PARTITION_JOBS_SHOWN]),
            )
        context.add_output_metadata(
            {
                "partitions": len(keys),
                "removed": len(keys) if config.apply else 0,
                "keys": keys[:_PARTITION_JOBS_SHOWN],
                "foreign": foreign[:_PARTITION_JOBS_SHOWN],
            }
        )

    return make_op_job(
        job, PRUNE_PARTITIONS, prune, "Removes the partitions of deleted snapshots; without `apply` it only lists them."
    )


REGISTER_SNAPSHOT = "register_snapshot"


class RegisterConfig(dg.Config):
    """The snapshots to register."""

    paths: list[str] = Field(
        min_length=1, description="Paths or URLs of snapshot directories, or of their `_metadata` files."
    )


def register_paths(job: FlinkJob, instance: dg.DagsterInstance, paths: Sequence[str]) -> list[str]:
    """Open each snapshot, and add it to the inventory and to the partitions; return the partition keys.

    Raises:
        StateError: a snapshot cannot be opened; nothing was added.
        UsageError: the name of the job belongs to another one.
    """
    check_name(instance, job)
    snapshots = [job.storage.open(path) for path in paths]
    directories = [str(parent(each.location.metadata)) for each in snapshots]
    partitions = instance.get_dynamic_partitions(str(job.partitions.name))
    inventory = job.storage.update_inventory(register=directories, partitions=partitions).inventory
    keys_by_path = {each.path: each.key for each in inventory}
    keys = [
        keys_by_path.get(directory) or make_partition_key(snapshot)
        for directory, snapshot in zip(directories, snapshots, strict=True)
    ]
    instance.add_dynamic_partitions(str(job.partitions.name), keys)
    return keys


def build_register_snapshot(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `register_snapshot` of a Flink job."""

    @checked_op(job, name=job.op(REGISTER_SNAPSHOT), tags=job.tags)
    def register(context: dg.OpExecutionContext, config: RegisterConfig) -> list[str]:
        """Add partitions for snapshots. Fails, and adds none, if one cannot be opened."""
        keys = register_paths(job, context.instance, config.paths)
        for path, key in zip(config.paths, keys, strict=True):
            context.log.info("%s has the partition %s", path, key)
        context.add_output_metadata({"partitions": keys})
        return keys

    return make_op_job(
        job,
        REGISTER_SNAPSHOT,
        register,
        "Adds partitions for snapshots at any path, also outside the roots, so that jobs can run for them.",
    )


# No `from __future__ import annotations`: Dagster reads the annotations of configurations as classes.


_COLUMNS = [
    dg.TableColumn("snapshot"),
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("key", "int", description="index in `keys` of the run configuration"),
    dg.TableColumn("entries", "int"),
]


class KeysConfig(dg.Config):
    """The keys to look for."""

    keys: list[str] = Field(
        min_length=1,
        description="Keys: plain text for String keys, otherwise JSON, as for `state-pipelines erase --key`.",
    )
    root: str = Field(default="", description="Also search all snapshots below this directory for the keys.")


class ErasureConfig(KeysConfig):
    """The keys to erase."""

    target: str = Field(default="", description=TARGET)
    strict: bool = Field(default=True, description="Fail, and write nothing, if some state cannot be searched.")


def find_keys(job: FlinkJob, snapshot: Snapshot, config: KeysConfig, spark: SparkResource) -> dict[str, Any]:
    """Search a snapshot, and the other snapshots in the configuration, for keys; return metadata. Writes nothing."""
    plan = plan_erasure(snapshot, _parse_keys(config), run=spark.run_tasks)
    return _describe([plan.search, *_search_others(job, config, spark)], None)


def erase_keys(
    job: FlinkJob, snapshot: Snapshot, config: ErasureConfig, spark: SparkResource, target: str
) -> tuple[str | None, dict[str, Any]]:
    """Erase keys from every operator keyed by them.

    Args:
        job: the Flink job.
        snapshot: the snapshot.
        config: keys, and the directory whose snapshots are searched too.
        spark: runs the tasks.
        target: directory of the new snapshot.

    Returns:
        the path of the new snapshot, None if no state has the keys; and metadata.

    Raises:
        StateError: some state cannot be searched, or the target exists.
    """
    plan = plan_erasure(snapshot, _parse_keys(config), target, run=spark.run_tasks)
    if config.strict:
        require_searched(plan)
    result = run_erasure(plan, spark.run_tasks)
    searches = [plan.search, *_search_others(job, config, spark)]
    return None if result is None else result.path, _describe(searches, result)


def _parse_keys(config: KeysConfig) -> list[KeyText]:
    return [KeyText(each) for each in config.keys]


def _search_others(job: FlinkJob, config: KeysConfig, spark: SparkResource) -> list[KeySearch]:
    if not config.root:
        return []
    return list(search_below(config.root, _parse_keys(config), open_other=job.storage.open, run=spark.run_tasks))


def _describe(searches: Sequence[KeySearch], result: "RescaleResult | None") -> dict[str, Any]:
    rows = [
        (search.path, found.operator, found.state, found.key, found.entries)
        for search in searches
        for found in search.found
    ]
    metadata: dict[str, Any] = {
        "found": make_table(_COLUMNS, rows),
        "snapshots that hold the keys": [search.path for search in searches if search.found],
        "not searched": [
            f"{search.path}{operator and f', operator {operator}'}: {reason}"
            for search in searches
            for operator, reason in search.unsearched
        ],
    }
    if result is not None:
        metadata |= {
            "path": dg.MetadataValue.path(result.path),
            "files written": result.files_written,
            "files taken over": result.files_taken,
            "bytes": result.bytes,
            "seconds": round_seconds(result.seconds),
        }
    return metadata


class SnapshotPath(str):
    """Path or URL of a snapshot; as an input also the name of its directory, its partition key, or `latest`."""

    __slots__ = ()


@dg.dagster_type_loader(NON_EMPTY_TEXT)
def _load_path(context: object, text: str) -> SnapshotPath:
    return SnapshotPath(text)


@dg.dagster_type_loader(NON_EMPTY_TEXT)
def _load_text(context: object, text: str) -> str:
    return text


dg.make_python_type_usable_as_dagster_type(
    SnapshotPath,
    dg.DagsterType(
        name="SnapshotPath",
        type_check_fn=lambda _, value: isinstance(value, str) and bool(value.strip()),
        typing_type=SnapshotPath,
        loader=_load_path,
        description="Path or URL of a snapshot; as an input also the name of its directory, its partition key, or "
        "latest.",
    ),
)

FINGERPRINT = dg.DagsterType(
    name="PlanFingerprint",
    type_check_fn=lambda _, value: isinstance(value, str) and bool(value.strip()),
    typing_type=str,
    loader=_load_text,
    description="Fingerprint of a retention plan, as retention_plan shows it.",
)


class VerifyConfig(make_config(AuditRequest)):  # type: ignore[misc]
    """Depth of the audit."""


class PinConfig(make_config(PinRequest)):  # type: ignore[misc]
    """Reason of a pin, or its removal."""

    unpin: bool = Field(default=False, description="Remove the pin.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.unpin and self.reason:
            raise ValueError("reason has no effect with unpin, it is why a snapshot is pinned: leave one out")
        return self


class RestoreConfig(make_config(RestoreRequest)):  # type: ignore[misc]
    """The snapshots that come back from quarantine."""

    snapshot: str = Field(
        min_length=1,
        description="Name or path of the directory of the snapshot, or the fingerprint of the plan that was applied.",
    )


@checked_op()
def check(
    context: dg.OpExecutionContext,
    config: MigrationConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Fail if Flink would refuse the state in the new job, with the pending revisions. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    report = judge_snapshot(flink_job, opened, config)
    context.add_output_metadata(describe_report(report, opened))
    verdict = report.migrated.verdict
    if verdict is CheckVerdict.INCOMPATIBLE:
        reasons = "; ".join(list_reasons(report)[:_SHOWN])
        raise IncompatibleError(
            f"Flink would refuse the state in the new job: {reasons}", where=Where(file=opened.path)
        )
    if not report.ok:
        context.log.warning("The verdict is %s", verdict)
    return SnapshotPath(opened.path)


@checked_op()
def verify(
    context: dg.OpExecutionContext, config: VerifyConfig, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Fail if the snapshot is damaged, so that Flink could not restore it. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    report = audit_snapshot(opened, Depth(config.depth))
    context.add_output_metadata(snapshots.describe_audit(report))
    for finding in report.findings[:_SHOWN]:
        context.log.warning("%s: %s", finding.severity, finding)
    if not report.restorable:
        raise snapshots.make_damage_error(report)
    return SnapshotPath(opened.path)


@checked_op()
def erase(
    context: dg.OpExecutionContext,
    config: ErasureConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Erase keys from every operator keyed by them. Returns the new snapshot, or the same if no state has the keys."""
    opened = _open(context, flink_job, snapshot)
    target = config.target or _make_run(context, config, flink_job, spark, opened).name_target("erased")
    path, metadata = erase_keys(flink_job, opened, config, spark, target)
    _report_search(context, metadata)
    if path is None:
        context.log.info("No state contains the keys: nothing was written")
    return SnapshotPath(path or opened.path)


@checked_op()
def search(
    context: dg.OpExecutionContext,
    config: KeysConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Report which states and snapshots contain keys; nothing is written. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    _report_search(context, find_keys(flink_job, opened, config, spark))
    return SnapshotPath(opened.path)


@checked_op(out=dg.Out(SnapshotPath, is_required=False, description="None without new input."))
def checkpoint(
    context: dg.OpExecutionContext,
    config: CheckpointConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
) -> Iterator[dg.Output[SnapshotPath]]:
    """Process the input of the stream that is there. Returns the newest checkpoint."""
    taken: list[KeyedProcessResult] = []
    take_checkpoints(flink_job, spark, taken.append)
    if not taken:
        context.log.info("There is no new input: no checkpoint was taken.")
        return
    metadata = describe_checkpoint(taken[-1], config, spark)
    yield dg.Output(SnapshotPath(get_snapshot(taken[-1]).path), metadata=metadata)


@checked_op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(FINGERPRINT))
def plan_retention(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob]) -> str:
    """Plan which snapshots and files go; nothing is deleted. Returns the fingerprint of the plan."""
    plan, metadata = retention.store_plan(flink_job, context.log)
    context.add_output_metadata(metadata)
    return plan.fingerprint


@checked_op(ins={"fingerprint": dg.In(FINGERPRINT)}, out=dg.Out(dg.Nothing))
def apply_retention(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], fingerprint: str) -> None:
    """Plan again, and delete or quarantine exactly the paths of the plan, if it has the same fingerprint."""
    result, metadata = retention.apply_fingerprint(flink_job, fingerprint, context.log)
    context.add_output_metadata(metadata)
    if result.finished:
        retention.report_applied(context.instance, flink_job, fingerprint, context.run.run_id)


@checked_op()
def pin(
    context: dg.OpExecutionContext, config: PinConfig, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Pin the snapshot, so that retention never deletes it, or remove the pin. Returns the snapshot."""
    path = _find(context, flink_job, snapshot)
    change_pin(flink_job, path, reason=config.reason, unpin=config.unpin)
    context.log.info("%s is %s", path, "no longer pinned" if config.unpin else "pinned")
    context.add_output_metadata({"snapshot": dg.MetadataValue.path(path), "pinned": not config.unpin})
    return SnapshotPath(path)


@checked_op()
def restore(
    context: dg.OpExecutionContext, config: RestoreConfig, flink_job: dg.ResourceParam[FlinkJob]
) -> list[SnapshotPath]:
    """Move a snapshot, or those of a plan, back from quarantine, and pin them. Returns the snapshots that are back."""
    reason = f"{config.reason} (run {context.run.run_id[:8]})"
    restored = restore_snapshots(flink_job, config.snapshot, reason=reason)
    for doubt in restored.doubts:
        context.log.warning("It is unknown whether a restored snapshot is complete: %s", doubt)
    context.add_output_metadata(
        {
            "snapshots": list_texts(restored.snapshots),
            "files": restored.files,
            "bytes": restored.bytes,
            "pinned": len(restored.snapshots),
        }
    )
    if restored.problems:
        raise StateError(
            f"the restore from quarantine is incomplete: {'; '.join(restored.problems[:_SHOWN])}",
            hint="Files that were moved back stay, and their snapshots are pinned",
        )
    return [SnapshotPath(each) for each in restored.snapshots]


@checked_op()
def register(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Add a partition for the snapshot, so that assets can be materialised for it. Returns the snapshot."""
    path = _open(context, flink_job, snapshot).path
    (key,) = register_paths(flink_job, context.instance, [path])
    context.log.info("%s has the partition %s", path, key)
    context.add_output_metadata({"partition": key})
    return SnapshotPath(path)


def _find(context: dg.OpExecutionContext, job: FlinkJob, snapshot: str) -> str:
    """Return the path of a snapshot that is given by its path, its name, its partition key, or `latest`."""
    return snapshot if "/" in snapshot else job.storage.find_named(snapshot, warn=context.log.warning)[1]


def _open(context: dg.OpExecutionContext, job: FlinkJob, snapshot: str) -> Snapshot:
    return job.storage.open(_find(context, job, snapshot))


def _report_search(context: dg.OpExecutionContext, metadata: Mapping[str, Any]) -> None:
    for text in metadata["not searched"]:
        context.log.warning("not searched: %s", text)
    context.add_output_metadata(metadata)


_Config = TypeVar("_Config", bound=dg.Config)


def _make_run(
    context: dg.OpExecutionContext, config: _Config, job: FlinkJob, spark: SparkResource, source: Snapshot | None
) -> SavepointRun[_Config]:
    """Return the arguments of an op that writes a savepoint; a job may use an op twice."""
    run, alias = SavepointRun(job, config, spark, context.run.run_id), context.op_handle.name
    if source is None:
        return run
    suffix = "" if alias == context.op_def.name else f"-{alias}"
    return replace(run, source=source, key=make_partition_key(source), suffix=suffix)


def publish_savepoint(
    context: dg.OpExecutionContext, snapshot: Snapshot | None, write: Callable[[], WrittenSavepoint | None]
) -> SnapshotPath:
    """Write a savepoint; return its path, or that of the snapshot if there is nothing to write.

    Raises:
        ProofError: the proof failed; the failure of the step shows it, the failed checks first.
    """
    try:
        savepoint = write()
    except ProofError as error:
        if isinstance(error.report, ProofReport):
            failed = [f"{each.name}: expected {each.expected}; {each.observed}" for each in error.report.failed]
            error.details["failed checks"] = "\n".join(failed)
            error.details["proof"] = error.report.to_markdown()
        raise
    if savepoint is None:
        assert snapshot is not None
        context.log.info("There is nothing to change: nothing was written.")
        context.add_output_metadata({"path": dg.MetadataValue.path(snapshot.path)})
        return SnapshotPath(snapshot.path)
    for note in savepoint.notes:
        context.log.warning(note)
    context.add_output_metadata(savepoint.metadata)
    return SnapshotPath(savepoint.path)


def build_savepoint_op(name: str, maker: SavepointMaker[Any], **options: Any) -> dg.OpDefinition:
    """Build the op that writes a savepoint, and returns its path.

    Args:
        name: of the op.
        maker: writes the savepoint; the op has its configuration, and an input for the snapshot that it reads.
        options: further arguments of `dg.op`.
    """
    write: Callable[..., SnapshotPath]
    if maker.is_derived:

        def write(
            context: dg.OpExecutionContext,
            config: maker.config,  # type: ignore[name-defined]
            flink_job: dg.ResourceParam[FlinkJob],
            spark: SparkResource,
            snapshot: SnapshotPath,
        ) -> SnapshotPath:
            run = _make_run(context, config, flink_job, spark, _open(context, flink_job, snapshot))
            return publish_savepoint(context, run.snapshot, lambda: maker.write(run))
    else:

        def write(
            context: dg.OpExecutionContext,
            config: maker.config,  # type: ignore[name-defined]
            flink_job: dg.ResourceParam[FlinkJob],
            spark: SparkResource,
        ) -> SnapshotPath:
            run = _make_run(context, config, flink_job, spark, None)
            return publish_savepoint(context, None, lambda: maker.write(run))

    return checked_op(name=name, description=maker.op_text, **options)(write)


migrate = build_savepoint_op("migrate", MigratedSavepoint())
rescale = build_savepoint_op("rescale", RescaledSavepoint())
convert = build_savepoint_op("convert", ConvertedSavepoint())
bootstrap = build_savepoint_op("bootstrap", BootstrappedSavepoint())
savepoint = build_savepoint_op("savepoint", StreamSavepoint(), ins={"after": dg.In(dg.Nothing)})
