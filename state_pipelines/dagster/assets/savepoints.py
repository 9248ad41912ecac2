"""Assets that write a snapshot: migrated, converted, rescaled, bootstrapped, and those of a stream that runs here.

`migrated_savepoint` follows the pending revisions, `rescaled_savepoint` has another parallelism, other key groups or
operators, `converted_savepoint` another format, and `bootstrapped_savepoint` new states out of tables, from which a
Flink job starts.

Savepoints that runs write: materialised with the results of their proof, or not at all, and with their columns. Dagster
knows the columns of a new savepoint with their types and the columns of the old snapshot that they come from.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
import yaml
from pydantic import Field, model_validator

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.dagster.assets import snapshots, state_tables
from state_pipelines.dagster.assets.snapshots import MigrationConfig
from state_pipelines.dagster.flink_asset import AssetStep, FileModeName, flink_asset, list_changed, make_config
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_settings import StreamSettings, load_function
from state_pipelines.dagster.metadata_values import (
    ExpectationsResource,
    describe_numbers,
    list_texts,
    make_table,
    round_seconds,
)
from state_pipelines.dagster.partitions import FLINK_JOB, make_partition_key, open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.datastream.functions import combine_metrics
from state_pipelines.errors import ProofError, StateError, UsageError, Where
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.bootstrap.bootstrap import DESCRIPTIONS as BOOTSTRAP_DESCRIPTIONS
from state_pipelines.operations.bootstrap.bootstrap import BootstrapRequest, plan_bootstrap
from state_pipelines.operations.bootstrap.new_states import NewOperator
from state_pipelines.operations.bootstrap.parquet_rows import ParquetRows, load_bootstrap
from state_pipelines.operations.convert import DESCRIPTION, READS_BACK, ConversionRequest, convert
from state_pipelines.operations.migration.flows import trace_columns
from state_pipelines.operations.models import parse_choice
from state_pipelines.operations.proofs import DESCRIPTIONS as PROOF_DESCRIPTIONS
from state_pipelines.operations.proofs import (
    KEY_HASHES,
    KEY_SETS,
    KEYS_UNITED,
    OWN,
    READ_BACK,
    ROUND_TRIP,
    ROW_COUNTS,
    SOURCE_WHOLE,
    STATES_AGREE,
    SUITES,
    ProofReport,
)
from state_pipelines.operations.rescale import plan_rescale, run_rescale
from state_pipelines.operations.rescale.rescale import tell_label, tell_number
from state_pipelines.operations.rescale.rescale_proof import DESCRIPTIONS as RESCALE_DESCRIPTIONS
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, parse_request
from state_pipelines.operations.write.keyed_rewrite import Format, NewFormat
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import join, parent, resolve
from state_pipelines.storage.documents import parse_yaml
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from state_pipelines.operations.auditing import AuditReport
    from state_pipelines.operations.balance import Balance
    from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult
    from state_pipelines.operations.convert import ConversionResult
    from state_pipelines.operations.migration import Direction, Migration
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.spark import KeyedProcessResult, MigrationResult

NameTarget = Callable[[str], str]
"""Returns the directory of a new savepoint, by its purpose, such as the name of a revision."""


@dataclass(frozen=True)
class WrittenSavepoint:
    """A savepoint that a run has published.

    Attributes:
        path: path or URL of its directory.
        metadata: of the materialisation.
        fingerprint: of the new savepoint.
        notes: what a person should know about it; logged as warnings.
        proof: the proof that it passed; None for copied files, which have none.
    """

    path: str
    metadata: Mapping[str, Any]
    fingerprint: str
    notes: Sequence[str]
    proof: ProofReport | None


def materialize_savepoint(
    context: dg.AssetExecutionContext,
    job: FlinkJob,
    asset: str,
    expectations: ExpectationsResource,
    write: Callable[[], WrittenSavepoint | None],
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Write a savepoint; yield its materialisation and the results of its checks.

    When the proof fails, nothing is materialised: only the checks are yielded, then the error is raised again.

    Args:
        context: of the run.
        job: the Flink job.
        asset: name of the asset, without the job.
        expectations: judges the proof.
        write: writes and proves the savepoint; None if there is nothing to write.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
    """
    key = job.key(asset)
    title = context.partition_key if context.has_partition_key else context.run.run_id[:8]

    def judge(proof: ProofReport) -> Iterator[dg.AssetCheckResult]:
        return expectations.judge(proof, key, data_docs=job.data_docs, title=title)

    try:
        savepoint = write()
    except ProofError as error:
        if isinstance(error.report, ProofReport):
            yield from judge(error.report)
        raise
    if savepoint is None:
        context.log.info("There is nothing to change: nothing was written.")
        return
    for note in savepoint.notes:
        context.log.warning(note)
    yield dg.MaterializeResult(
        asset_key=key,
        metadata={**savepoint.metadata, **_locate(context, savepoint)},
        data_version=dg.DataVersion(savepoint.fingerprint),
    )
    if savepoint.proof is not None:
        yield from judge(savepoint.proof)


def name_results(context: dg.AssetExecutionContext, job: FlinkJob) -> NameTarget:
    """Return a function that names the savepoint of a run, below the results of the job.

    Each run has its own directory, because a snapshot is never overwritten.
    """
    key, run_id = context.partition_key, context.run.run_id
    return lambda purpose: job.storage.name_result(key, purpose, run_id)


def _locate(context: dg.AssetExecutionContext, savepoint: WrittenSavepoint) -> dict[str, Any]:
    """Return where the savepoint is, and the snapshot that it is derived from."""
    derived = {"derived from": context.partition_key} if context.has_partition_key else {}
    return {"dagster/uri": savepoint.path, **derived}


def describe_columns(job: FlinkJob, result: "MigrationResult") -> dict[str, object]:
    """Return schema and lineage of the columns of a migrated savepoint, named `operator.state.column`.

    The columns before are those of `state_tables`, or of `flink_job` where the job has no tables.
    """
    columns = [
        column
        for operator in result.snapshot.operators
        for state in operator.survey().states
        for column in state_tables.name_columns(f"{operator.label}.{state.name}", state.schema)
    ]
    source = job.key(FLINK_JOB if job.tables is None else state_tables.STATE_TABLES)
    lineage = {new: [dg.TableColumnDep(source, name) for name in old] for new, old in _trace(result)}
    changed = tuple(f"{operator}.{state}." for operator, plan in result.plans.items() for state in plan.changed)
    for column in columns:
        if not column.name.startswith(changed):
            lineage[column.name] = [dg.TableColumnDep(source, column.name)]
    return {
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }


def _trace(result: "MigrationResult") -> Iterator[tuple[str, list[str]]]:
    for operator, plan in result.plans.items():
        for state, flow in plan.changed.items():
            for new, old in trace_columns(flow, plan.context).items():
                yield f"{operator}.{state}.{new}", sorted(f"{operator}.{'.'.join(each)}" for each in old)


# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.


RESCALED_SAVEPOINT = "rescaled_savepoint"

SCRATCH = (
    "Directory (path or URL) of temporary files, which every task must reach. Default: beside the target where that is "
    "local or Spark runs on a cluster, else TMPDIR."
)

TARGET = "Directory of the new savepoint, which must not exist; by default one below the results of the job."

_RESCALED_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("parallelism"),
    dg.TableColumn("max parallelism"),
    dg.TableColumn("keyed state", description="how it was moved"),
    dg.TableColumn("operator state", description="how it was moved"),
    dg.TableColumn("hash", description="hashCode of key classes, and its evidence"),
]


class RescaleConfig(make_config(RescaleRequest)):  # type: ignore[misc]
    """Changes of the new savepoint; `request` supports all of them."""

    request: str = Field(
        default="", description="Further changes in YAML, in the format of `state-pipelines rescale --request`."
    )
    files: FileModeName = Field(default="copy", description="Treatment of unchanged files.")
    target: str = Field(default="", description=TARGET)
    scratch: str = Field(default="", description=SCRATCH)

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.parse()
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self

    def parse(self) -> RescaleRequest:
        """Return the request.

        Raises:
            UsageError: the request is invalid or empty.
        """
        try:
            content = parse_yaml(self.request) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"request is not YAML: {' '.join(str(error).split())}") from None
        given = list_changed(self, RescaleRequest)
        for name, value in given.items() if isinstance(content, dict) else ():
            if content.get(name, value) != value:
                raise UsageError(f"{name} is {value}, and {content[name]} in request", hint=f"Leave one {name} out")
        # The run may be on another machine, which cannot read files of keys.
        request = parse_request(content | given if isinstance(content, dict) else content, directory=None)
        if request.is_empty:
            raise UsageError("the configuration changes nothing", hint="Set parallelism, max_parallelism or request")
        return request


def build_rescaled_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `rescaled_savepoint` of a job."""

    @flink_asset(
        job,
        RESCALED_SAVEPOINT,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark"},
        deps=[FLINK_JOB],
        checks=RESCALE_DESCRIPTIONS,
        writes=True,
    )
    def rescaled_savepoint(
        context: dg.AssetExecutionContext,
        config: RescaleConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the same state for other subtasks, key groups or operators, published only if proven."""
        snapshot = open_partition(context, job)
        write = partial(write_rescaled, job, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, RESCALED_SAVEPOINT, expectations, write)

    return rescaled_savepoint


def write_rescaled(
    job: FlinkJob, snapshot: Snapshot, config: RescaleConfig, spark: SparkResource, name_target: NameTarget
) -> WrittenSavepoint:
    """Rescale a snapshot.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        UsageError: the request does not fit the snapshot.
    """
    from state_pipelines.spark.tasks import uses_other_machines

    target = resolve(config.target or name_target("rescaled"))
    plan = plan_rescale(snapshot, target, config.parse(), open_other=job.storage.open, files=FileMode(config.files))
    is_shared = uses_other_machines(spark.session)
    result = run_rescale(plan, spark.run_tasks, scratch=config.scratch or None, is_shared=is_shared)
    fingerprint = open_snapshot(result.path).fingerprint
    return WrittenSavepoint(result.path, _describe_rescaled(result), fingerprint, result.notes, result.proof)


def _describe_rescaled(result: "RescaleResult") -> dict[str, Any]:
    rows = [
        (
            tell_label(change),
            tell_number(*change.parallelism),
            tell_number(*change.max_parallelism),
            change.keyed_text,
            change.operator_state.value,
            "; ".join(change.hashes),
        )
        for change in result.plan.changes
    ]
    return {
        "path": dg.MetadataValue.path(result.path),
        "operators": make_table(_RESCALED_COLUMNS, rows),
        "dropped": list(result.plan.dropped),
        "notes": list_texts(result.notes),
        "files written": result.files_written,
        "files taken over": result.files_taken,
        "bytes": result.bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(row.after.records for row in result.states),
    }


CONVERTED_SAVEPOINT = "converted_savepoint"

CHECKS = {READS_BACK: DESCRIPTION, SOURCE_WHOLE: PROOF_DESCRIPTIONS[SOURCE_WHOLE]}
"""Descriptions of the checks by name; a conversion that only copies files has none."""

_CONVERTED_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
]


class ConversionConfig(make_config(ConversionRequest)):  # type: ignore[misc]
    """Format and location of the new savepoint."""

    target: str = Field(default="", description=TARGET)


def build_converted_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `converted_savepoint` of a job."""

    @flink_asset(
        job,
        CONVERTED_SAVEPOINT,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark"},
        deps=[FLINK_JOB],
        checks=CHECKS,
        writes=True,
    )
    def converted_savepoint(
        context: dg.AssetExecutionContext,
        config: ConversionConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the same state in another format, published only if it reads back equal."""
        snapshot = open_partition(context, job)
        write = partial(write_converted, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, CONVERTED_SAVEPOINT, expectations, write)

    return converted_savepoint


def write_converted(
    snapshot: Snapshot, config: ConversionConfig, spark: SparkResource, name_target: NameTarget
) -> WrittenSavepoint:
    """Convert a snapshot to another format.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        UsageError: the options do not fit the snapshot.
    """
    result = convert(
        snapshot,
        config.target or name_target(config.format),
        config.format,
        compress=config.compress,
        in_flight=config.in_flight,
        files=config.files,
        run=spark.run_tasks,
    )
    metadata = describe_conversion(result, config.format)
    return WrittenSavepoint(result.path, metadata, open_snapshot(result.path).fingerprint, result.notes, result.proof)


def describe_conversion(result: "ConversionResult", format: str) -> dict[str, Any]:
    """Return the numbers, states and notes of a conversion as metadata."""
    rows = [(operator, state, digest.records, digest.bytes) for operator, state, digest in result.states]
    return {
        "path": dg.MetadataValue.path(result.path),
        "format": format,
        "states": make_table(_CONVERTED_COLUMNS, rows),
        "notes": list_texts(result.notes),
        "subtasks": result.converted,
        "copied files": result.copied,
        "bytes": result.bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(digest.records for *_, digest in result.states),
    }


MIGRATED_SAVEPOINT = "migrated_savepoint"


class MigrationRunConfig(MigrationConfig):
    """The revisions of a migration, and where its temporary files go."""

    scratch: str = Field(default="", description=SCRATCH)


_PROOF = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)


def list_checks(job: FlinkJob) -> dict[str, str]:
    """Return descriptions of the checks by name, as far as the revisions of the job need them.

    Revisions are read when the code location is loaded, so it must be reloaded after a new revision.

    Raises:
        MigrationError: a revision is invalid.
        NotFoundError: the target revision does not exist.
    """
    directory = job.revisions.load()
    revisions = () if directory is None else directory.revisions
    changes = [change for each in revisions for change in each.changes]
    names = [*_PROOF, KEYS_UNITED, SOURCE_WHOLE, STATES_AGREE]
    names += [OWN] if any(change.expectations for change in changes) else []
    names += [SUITES] if job.expectations is not None else []
    if all(change.impossible for change in changes):
        names.remove(ROUND_TRIP)
    return {name: PROOF_DESCRIPTIONS[name] for name in names}


def build_migrated_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `migrated_savepoint` of a job."""

    @flink_asset(
        job,
        MIGRATED_SAVEPOINT,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark", "greatexpectations"},
        deps=[snapshots.COMPATIBILITY_REPORT],
        checks=list_checks(job),
        writes=True,
        # Without pending revisions, there is nothing to write.
        output_required=False,
        code_version=job.revisions.version,
        metadata=_refer_to_revisions(job),
    )
    def migrated_savepoint(
        context: dg.AssetExecutionContext,
        config: MigrationRunConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint after the pending revisions: changed states are rewritten, all others copied as bytes.

        If the proof fails, nothing is published, and the checks show why. For a snapshot without pending revisions the
        step succeeds without a result.
        """
        snapshot = open_partition(context, job)
        write = partial(write_migrated, job, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, MIGRATED_SAVEPOINT, expectations, write)

    return migrated_savepoint


def write_migrated(
    job: FlinkJob, snapshot: Snapshot, config: MigrationRunConfig, spark: SparkResource, name_target: NameTarget
) -> WrittenSavepoint | None:
    """Apply the pending revisions of a snapshot; None if there are none.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        MigrationError: the revision of the snapshot cannot be derived from its serializers.
    """
    chain = job.revisions.plan(snapshot, config.from_revision, config.to)
    if not chain:
        return None
    # Importing Spark takes seconds.
    from state_pipelines.spark import migrate
    from state_pipelines.spark.expectations import find_project, load_suites

    revision = job.revisions.name_target(config.to)
    result = migrate(
        snapshot,
        chain,
        name_target(revision),
        suites=() if job.expectations is None else load_suites(job.expectations),
        project=None if job.expectations is None else find_project(job.expectations, job.data_docs),
        # The directory of revisions is configured, as the code of the deployment is.
        allow_sql=True,
        allow_python=True,
        spark=spark.session,
        scratch=config.scratch or None,
    )
    metadata = _describe_migrated(result, revision, chain) | describe_columns(job, result)
    return WrittenSavepoint(result.path, metadata, result.snapshot.fingerprint, result.notes, result.proof)


def _refer_to_revisions(job: FlinkJob) -> dict[str, object]:
    """Return code references to the revisions, if they are local files."""
    directory = job.revisions.load()
    if directory is None or not is_local(resolve(directory.path)):
        return {}
    with warnings.catch_warnings():
        # A beta feature of Dagster 1.13, to which the dependencies are pinned.
        warnings.simplefilter("ignore", dg.BetaWarning)
        references: list[dg.LocalFileCodeReference | dg.UrlCodeReference] = [
            dg.LocalFileCodeReference(file_path=each.path, label=each.revision) for each in directory.revisions
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}


def _describe_migrated(
    result: "MigrationResult", revision: str, chain: list[tuple["Migration", "Direction"]]
) -> dict[str, Any]:
    proof = result.proof
    return {
        "path": dg.MetadataValue.path(result.path),
        "proof": dg.MetadataValue.md(proof.to_markdown() if proof else ""),
        "revision": revision,
        "applied": [f"{direction} {each.revision}" for each, direction in chain],
        "notes": list_texts(result.notes),
        "bytes": result.snapshot.file_size,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(proof),
        **({"data docs": dg.MetadataValue.url(proof.data_docs)} if proof and proof.data_docs else {}),
        "dagster/row_count": result.rows,
    }


BOOTSTRAPPED_SAVEPOINT = "bootstrapped_savepoint"

_BOOTSTRAPPED_COLUMNS = [dg.TableColumn("operator"), dg.TableColumn("state"), dg.TableColumn("entries", "int")]


class BootstrapConfig(make_config(BootstrapRequest)):  # type: ignore[misc]
    """Format of the new savepoint, and the snapshot on top of which it is written."""


def build_bootstrapped_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `bootstrapped_savepoint` of a job with the field `bootstrap`."""

    @flink_asset(
        job,
        BOOTSTRAPPED_SAVEPOINT,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark"},
        checks=BOOTSTRAP_DESCRIPTIONS,
        writes=True,
        partitioned=False,
    )
    def bootstrapped_savepoint(
        context: dg.AssetExecutionContext,
        config: BootstrapConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A first savepoint of the job: its states out of tables, published only if they read back equal."""
        write = partial(write_bootstrapped, job, config, spark, context.run.run_id)
        yield from materialize_savepoint(context, job, BOOTSTRAPPED_SAVEPOINT, expectations, write)

    return bootstrapped_savepoint


def write_bootstrapped(job: FlinkJob, config: BootstrapConfig, spark: SparkResource, run_id: str) -> WrittenSavepoint:
    """Write a savepoint with the states of the field `bootstrap`.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        UsageError: the job has no field `bootstrap`, or it does not fit.
    """
    if job.bootstrap is None:
        raise UsageError(f"the job {job.name} has no new states", hint="Set the field bootstrap in the YAML of the job")
    # Each run has its own directory, because a snapshot is never overwritten.
    target = job.storage.name_result("savepoint", "bootstrapped", run_id)
    result = _bootstrap(job, job.bootstrap, target, config, spark)
    return WrittenSavepoint(
        result.path, _describe_bootstrapped(result), result.snapshot.fingerprint, result.notes, result.proof
    )


def _bootstrap(
    job: FlinkJob, definition: str, target: str, config: BootstrapConfig, spark: SparkResource
) -> "BootstrapResult":
    from state_pipelines.spark import bootstrap  # Importing Spark takes seconds.
    from state_pipelines.spark.tasks import uses_other_machines

    format, files = parse_choice(Format, config.format, "format"), FileMode(config.files)
    base = None if config.base is None else job.storage.open(config.base)
    classes = job.job_classes or job.classes
    if ":" in definition and definition.rpartition(":")[0].endswith(".py"):
        return bootstrap(
            target,
            _load_operators(definition, spark),
            base=base,
            format=format,
            files=files,
            spark=spark.session,
            classes=classes or None,
            flink_version=config.flink_version,
        )
    description = load_bootstrap(definition)
    location = resolve(target)
    plan = plan_bootstrap(
        location,
        description.operators,
        ParquetRows(spark.run_tasks),
        base=base,
        format=format,
        files=files,
        layouts=description.make_layouts(base, classes, config.flink_version),
    )
    with SnapshotTransaction(location, spark.run_tasks, is_shared=uses_other_machines(spark.session)) as transaction:
        return plan.run(transaction)


def _load_operators(definition: str, spark: SparkResource) -> Sequence[NewOperator]:
    operators = load_function(definition)(spark.session)
    if not isinstance(operators, list | tuple) or not all(isinstance(each, NewOperator) for each in operators):
        raise UsageError(
            f"the function returns {type(operators).__name__}, and no list of NewOperator",
            where=Where(file=definition),
            hint="Return [NewOperator(uid, [NewState(…)]), …]",
        )
    return operators


def _describe_bootstrapped(result: "BootstrapResult") -> dict[str, Any]:
    rows = [(operator, state, entries) for (operator, state), entries in result.entries.items()]
    return {
        "path": dg.MetadataValue.path(result.path),
        "proof": dg.MetadataValue.md(result.proof.to_markdown() if result.proof else ""),
        "states": make_table(_BOOTSTRAPPED_COLUMNS, rows),
        "notes": list_texts(result.notes),
        "bytes": result.bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(result.entries.values()),
    }


# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.


CHECKPOINT = "checkpoint"

CHECKPOINT_CHECKS = {
    "restorable": (
        frozenset(Property),
        "The newest checkpoint can be restored, as far as its bytes show; `restore_audit` says more.",
    ),
    "files_present": (
        {Property.FILES, Property.SIZES},
        "Every file that it names exists, with the size that its state handle records.",
    ),
    "key_groups_covered": (
        {Property.KEY_GROUPS, Property.OFFSETS},
        "Every key group is held by exactly one subtask, at an offset inside its file.",
    ),
}
"""The properties of the newest checkpoint of a run that a check is about, and its description."""

_SAMPLE = 10
_FAILURES = [dg.TableColumn(name) for name in ("reason", "message", "cause", "remedy")]
_METRICS = [dg.TableColumn("metric"), dg.TableColumn("kind"), dg.TableColumn("values")]


class CheckpointConfig(dg.Config):
    """The numbers of the checkpoint that are reported."""

    count: bool = Field(default=True, description="Read the newest checkpoint again, to count its entries.")


def build_checkpoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `checkpoint` of a job with a stream."""

    @flink_asset(
        job,
        CHECKPOINT,
        step=AssetStep.RUN,
        kinds={"flink", "spark"},
        partitioned=False,
        writes=True,
        pool=CHECKPOINT,
        checks={name: text for name, (_, text) in CHECKPOINT_CHECKS.items()},
        # Without new input there is no checkpoint.
        output_required=False,
    )
    def checkpoint(
        context: dg.AssetExecutionContext, config: CheckpointConfig, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        """The checkpoints of the stream: a run processes the input that is there, and takes one after each batch.

        If a batch fails, its checkpoint does too: the step shows Flink's reason, and the next run repeats the batch.
        Failures that the options tolerate are shown beside the checkpoint that follows them.
        """
        taken: list[KeyedProcessResult] = []
        try:
            take_checkpoints(job, spark, taken.append)
        except Exception:
            # Checkpoints of earlier batches are complete.
            yield from _report(job, taken)
            raise
        if not taken:
            context.log.info("There is no new input: no checkpoint was taken.")
            return
        *earlier, last = taken
        yield from _report(job, earlier)
        snapshot = get_snapshot(last)
        yield dg.MaterializeResult(
            asset_key=job.key(CHECKPOINT),
            metadata=describe_checkpoint(last, config, spark),
            data_version=dg.DataVersion(snapshot.fingerprint),
            check_results=list(_check(audit_snapshot(snapshot, Depth.SAMPLE))),
        )

    return checkpoint


def require_stream(job: FlinkJob) -> StreamSettings:
    """Return the stream of a job.

    Raises:
        UsageError: it has none.
    """
    if job.stream is None:
        raise UsageError(f"the job {job.name} has no stream", hint="Set the field stream in the YAML of the job")
    return job.stream


def take_checkpoints(
    job: FlinkJob, spark: SparkResource, on_checkpoint: "Callable[[KeyedProcessResult], None]"
) -> None:
    """Process the input of the stream that is there, and take a checkpoint after each batch.

    Raises:
        UsageError: the job has no stream.
    """
    from state_pipelines.spark.micro_batches import process_available  # Importing Spark takes seconds.

    stream = require_stream(job)
    process_available(
        spark.session,
        load_function(stream.definition),
        checkpoints=stream.checkpoints,
        progress=stream.progress,
        options=stream.options,
        on_checkpoint=on_checkpoint,
        from_snapshot=None if stream.from_snapshot is None else job.storage.open(stream.from_snapshot),
        metrics=stream.metrics,
    )


def describe_checkpoint(result: "KeyedProcessResult", config: CheckpointConfig, spark: SparkResource) -> dict[str, Any]:
    """Return the numbers of the newest checkpoint of a run as metadata."""
    snapshot = get_snapshot(result)
    metadata = _describe(result) | {"snapshot": make_partition_key(snapshot)}
    if config.count:
        metadata["entries"] = _count_entries(measure_balance(snapshot, run=spark.run_tasks))
    return metadata


def _check(report: "AuditReport") -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks; what cannot be judged is a warning."""
    grave = [each for each in report.findings if each.severity in (Severity.ERROR, Severity.UNDETERMINED)]
    for name, (properties, _) in CHECKPOINT_CHECKS.items():
        found = [each for each in grave if each.property in properties]
        is_error = any(each.severity is Severity.ERROR for each in found)
        yield dg.AssetCheckResult(
            check_name=name,
            passed=not found,
            severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
            metadata={
                "expected": 0,
                "observed": len(found),
                **({"sample": list_texts([str(each) for each in found[:_SAMPLE]], "*")} if found else {}),
            },
        )


def _count_entries(balance: "Balance") -> int:
    for each in balance.operators:
        if each.error:
            raise StateError(
                f"the checkpoint was taken, but cannot be read: {each.error}", where=Where(operator=each.uid)
            )
    return sum(state.records or 0 for each in balance.operators for state in each.states)


def _report(job: FlinkJob, taken: "list[KeyedProcessResult]") -> Iterator[Any]:
    """Yield an event for each of these checkpoints, which later ones may have replaced."""
    for each in taken:
        yield dg.AssetMaterialization(job.key(CHECKPOINT), metadata=_describe(each))


def _describe(result: "KeyedProcessResult") -> dict[str, Any]:
    """Return numbers of a checkpoint, which Dagster plots; none of its run where an earlier run had taken it."""
    snapshot = get_snapshot(result)
    numbers: dict[str, Any] = {"checkpoint id": snapshot.metadata.checkpoint_id}
    if result.state_size:
        numbers |= {
            "duration in ms": result.duration,
            "bytes": result.state_size,
            "new bytes": result.persisted_size,
        }
    if result.postponed:
        numbers["postponed"] = FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message
        numbers["postponed by ms"] = result.postponed
    if result.failures:
        rows = [tuple(each.describe().values()) for each in result.failures]
        numbers |= {"failed before": len(rows), "failures": make_table(_FAILURES, rows)}
    return {"path": dg.MetadataValue.path(snapshot.path), **numbers, **_describe_metrics(result)}


def _describe_metrics(result: "KeyedProcessResult") -> dict[str, Any]:
    """Return the metrics of the function over all subtasks: a table, and the counts, which Dagster plots."""
    combined = combine_metrics(result.metrics)
    if not combined:
        return {}
    rows = [
        (
            each.name,
            each.kind,
            each.error or ", ".join(f"{name} {number:,.6g}" for name, number in each.numbers.items()),
        )
        for each in combined
    ]
    counts = {f"metric {each.name}": each.numbers["count"] for each in combined if each.kind in ("counter", "meter")}
    return {"metrics": make_table(_METRICS, rows), **counts}


def get_snapshot(result: "KeyedProcessResult") -> "Snapshot":
    """Return the snapshot of a checkpoint that was taken."""
    assert result.snapshot is not None
    return result.snapshot


SAVEPOINT = "savepoint"


class SavepointFormatConfig(dg.Config):
    """The format of the savepoint."""

    format: NewFormat = Field(
        default="canonical", description="Format of keyed state; every backend of Flink restores canonical."
    )


def build_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `savepoint` of a job with a stream."""

    @flink_asset(
        job,
        SAVEPOINT,
        step=AssetStep.RUN,
        kinds={"flink", "spark"},
        deps=[CHECKPOINT],
        checks=CHECKS,
        writes=True,
        # A run of the stream removes old checkpoints, also the one that is read here.
        pool=CHECKPOINT,
        partitioned=False,
    )
    def savepoint(
        context: dg.AssetExecutionContext,
        config: SavepointFormatConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the state of the newest checkpoint of the stream, published only if it reads back equal."""
        write = partial(write_savepoint, job, config, spark, context.run.run_id)
        yield from materialize_savepoint(context, job, SAVEPOINT, expectations, write)

    return savepoint


def write_savepoint(
    job: FlinkJob, config: SavepointFormatConfig, spark: SparkResource, run_id: str
) -> WrittenSavepoint:
    """Write a savepoint with the state of the newest checkpoint of the stream.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        NotFoundError: there is no checkpoint yet.
        UsageError: the job has no stream.
    """
    stream = require_stream(job)
    newest = job.storage.find_newest(stream.checkpoints)
    flink_id = parent(resolve(newest.path)).name
    # Named as by Flink, with digits of the run id in place of random ones.
    name = f"savepoint-{flink_id[:6]}-{run_id.replace('-', '')[:12]}"
    target = str(join(resolve(stream.savepoints), name))
    result = convert(job.storage.open(newest.path), target, config.format, run=spark.run_tasks)
    metadata = describe_conversion(result, config.format) | {"checkpoint": newest.key}
    return WrittenSavepoint(result.path, metadata, open_snapshot(result.path).fingerprint, result.notes, result.proof)
