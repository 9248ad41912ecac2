"""Assets that write a snapshot, and their maker: migrated, converted, rescaled, bootstrapped, and those of a stream.

`migrated_savepoint` follows the pending revisions, `rescaled_savepoint` has another parallelism, other key groups or
operators, `converted_savepoint` another format, and `bootstrapped_savepoint` new states out of tables, from which a
Flink job starts.

Each is a `SavepointMaker`, which says what is written, and what differs from the others; the asset and the op are
built from it. A savepoint is materialised with the results of its proof, or not at all. Dagster knows the columns of a
migrated savepoint with their types and the columns of the old snapshot that they come from.
"""

# No `from __future__ import annotations`: Dagster compares the annotations of functions as classes, not as text.

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import dagster as dg
import yaml
from pydantic import Field, model_validator

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.dagster.assets import snapshots, state_tables
from state_pipelines.dagster.assets.snapshots import MigrationConfig
from state_pipelines.dagster.flink_asset import (
    NO_METADATA,
    AssetStep,
    FileModeName,
    flink_asset,
    list_changed,
    make_config,
)
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_settings import StreamSettings, load_function
from state_pipelines.dagster.metadata_values import (
    ExpectationsResource,
    describe_numbers,
    expect_none,
    list_texts,
    make_table,
    round_seconds,
)
from state_pipelines.dagster.partitions import FLINK_JOB, open_partition
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
from state_pipelines.operations.inventory import make_partition_key
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
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.spark import KeyedProcessResult, MigrationResult
    from state_pipelines.spark.sql_migration import SqlMigration

_Config = TypeVar("_Config", bound=dg.Config)


@dataclass(frozen=True)
class SavepointRun(Generic[_Config]):
    """Arguments of a run that writes a savepoint.

    Attributes:
        job: the Flink job.
        config: configuration of the run.
        spark: resource that runs the tasks.
        id: id of the run.
        source: the snapshot that is read; None for a savepoint that is not derived from one.
        key: partition key of the snapshot that is read.
        suffix: suffix of the names of results, if a run has the same op twice.
    """

    job: FlinkJob
    config: _Config
    spark: SparkResource
    id: str
    source: Snapshot | None = None
    key: str = "savepoint"
    suffix: str = ""

    def name_target(self, purpose: str) -> str:
        """Return the directory of the new savepoint, below the results of the job.

        Each run has a directory of its own, because a snapshot is never overwritten.

        Args:
            purpose: such as the name of a revision.
        """
        return self.job.storage.name_result(self.key, f"{purpose}{self.suffix}", self.id)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that is read."""
        assert self.source is not None
        return self.source


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


def describe_savepoint(
    result: "BootstrapResult | ConversionResult | MigrationResult | RescaleResult | SqlMigration",
    snapshot: Snapshot,
    details: Mapping[str, Any],
    *,
    bytes: int,
    rows: int,
    notes: Sequence[str] = (),
) -> WrittenSavepoint:
    """Describe a savepoint that was written, with the metadata common to all savepoints.

    Args:
        result: of the operation.
        snapshot: the new savepoint, opened.
        details: metadata that only this operation has.
        bytes: size of what was written.
        rows: number of entries that were written.
        notes: further notes, after those of the result.
    """
    path = result.path or snapshot.path
    all_notes = [*result.notes, *notes]
    metadata = {
        "path": dg.MetadataValue.path(path),
        **details,
        "notes": list_texts(all_notes),
        "bytes": bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": rows,
    }
    return WrittenSavepoint(path, metadata, snapshot.fingerprint, all_notes, result.proof)


def show_proof(proof: ProofReport | None) -> dg.MarkdownMetadataValue:
    """Return a proof as metadata; an empty text where there is none."""
    return dg.MetadataValue.md("" if proof is None else proof.to_markdown())


class SavepointMaker(ABC, Generic[_Config]):
    """A way to write a savepoint, from which its asset and its op are built.

    A subclass overrides `write`, and whatever differs from other savepoints; its docstring describes the asset.

    Attributes:
        name: name of the asset, without the prefix of the job.
        config: class of the configuration of a run.
        op_text: description of the op.
        kinds: technologies, shown as icons.
        deps: names of upstream assets of the same job.
        step: tag for filters in the UI.
        pool: name of the asset whose concurrency pool this one shares; None for the pool of Spark.
        is_derived: whether it is derived from the snapshot of a partition; otherwise the asset has no partitions.
        is_always_written: whether each run writes a savepoint.
        checks: descriptions of blocking checks by name; a run omits those that do not apply.
    """

    name: ClassVar[str]
    config: ClassVar[type[dg.Config]]
    op_text: ClassVar[str] = ""
    kinds: ClassVar[set[str]] = {"flink", "spark"}
    deps: ClassVar[Sequence[str]] = (FLINK_JOB,)
    step: ClassVar[AssetStep] = AssetStep.CHANGE
    pool: ClassVar[str | None] = None
    is_derived: ClassVar[bool] = True
    is_always_written: ClassVar[bool] = True
    checks: ClassVar[Mapping[str, str]]

    @abstractmethod
    def write(self, run: SavepointRun[_Config]) -> WrittenSavepoint | None:
        """Write and prove the savepoint; None if there is nothing to write.

        Raises:
            ProofError: the proof failed, and there is no new savepoint.
            UsageError: the configuration does not fit the snapshot or the job.
        """

    def applies(self, job: FlinkJob) -> bool:
        """Return whether a job has the asset."""
        return True

    def list_checks(self, job: FlinkJob) -> Mapping[str, str]:
        """Return the checks of a job's asset, by default `checks`."""
        return self.checks

    def find_version(self, job: FlinkJob) -> str | None:
        """Return the version of inputs that Dagster does not know, such as revisions; None without such inputs."""
        return None

    def describe(self, job: FlinkJob) -> Mapping[str, object]:
        """Return metadata for the definition of the asset, by default none."""
        return NO_METADATA

    def build(self, job: FlinkJob) -> dg.AssetsDefinition:
        """Build the asset of a job."""

        def materialize(
            context: dg.AssetExecutionContext,
            config: self.config,  # type: ignore[name-defined]
            spark: SparkResource,
            expectations: ExpectationsResource,
        ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
            run = SavepointRun(job, config, spark, context.run.run_id)
            if self.is_derived:
                run = replace(run, source=open_partition(context, job), key=context.partition_key)
            yield from self._materialize(context, run, expectations)

        materialize.__doc__ = type(self).__doc__
        return flink_asset(
            job,
            self.name,
            step=self.step,
            kinds=self.kinds,
            deps=self.deps,
            checks=self.list_checks(job),
            writes=True,
            pool=self.pool,
            partitioned=self.is_derived,
            output_required=self.is_always_written,
            code_version=self.find_version(job),
            metadata=self.describe(job),
        )(materialize)

    def _materialize(
        self, context: dg.AssetExecutionContext, run: SavepointRun[_Config], expectations: ExpectationsResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Write a savepoint; yield its materialisation and the results of its checks.

        When the proof fails, nothing is materialised: only the checks are yielded, then the error is raised again.
        """
        key = run.job.key(self.name)
        title = context.partition_key if context.has_partition_key else run.id[:8]

        def judge(proof: ProofReport) -> Iterator[dg.AssetCheckResult]:
            return expectations.judge(proof, key, data_docs=run.job.data_docs, title=title)

        try:
            savepoint = self.write(run)
        except ProofError as error:
            if isinstance(error.report, ProofReport):
                yield from judge(error.report)
            raise
        if savepoint is None:
            context.log.info("There is nothing to change: nothing was written.")
            return
        for note in savepoint.notes:
            context.log.warning(note)
        derived = {"derived from": context.partition_key} if context.has_partition_key else {}
        yield dg.MaterializeResult(
            asset_key=key,
            metadata={**savepoint.metadata, "dagster/uri": savepoint.path, **derived},
            data_version=dg.DataVersion(savepoint.fingerprint),
        )
        if savepoint.proof is not None:
            yield from judge(savepoint.proof)


def describe_columns(job: FlinkJob, result: "MigrationResult") -> dict[str, object]:
    """Return schema and lineage of the columns of a migrated savepoint, named `operator.state.column`.

    The upstream columns are those of the asset `state_tables`, or of `flink_job` if the job has no tables.
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


class RescaledSavepoint(SavepointMaker[RescaleConfig]):
    """A savepoint with the same state for other subtasks, key groups or operators, published only if proven."""

    name = RESCALED_SAVEPOINT
    config = RescaleConfig
    checks = RESCALE_DESCRIPTIONS
    op_text = "Change parallelism, max parallelism or operators. Returns the new savepoint."

    def write(self, run: SavepointRun[RescaleConfig]) -> WrittenSavepoint:
        """Rescale a snapshot."""
        from state_pipelines.spark.tasks import uses_other_machines

        config = run.config
        target = resolve(config.target or run.name_target("rescaled"))
        files = FileMode(config.files)
        plan = plan_rescale(run.snapshot, target, config.parse(), open_other=run.job.storage.open, files=files)
        is_shared = uses_other_machines(run.spark.session)
        result = run_rescale(plan, run.spark.run_tasks, scratch=config.scratch or None, is_shared=is_shared)
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
        details = {
            "operators": make_table(_RESCALED_COLUMNS, rows),
            "dropped": list(result.plan.dropped),
            "files written": result.files_written,
            "files taken over": result.files_taken,
        }
        records = sum(row.after.records for row in result.states)
        return describe_savepoint(result, open_snapshot(result.path), details, bytes=result.bytes, rows=records)


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


class ConvertedSavepoint(SavepointMaker[ConversionConfig]):
    """A savepoint with the same state in another format, published only if it reads back equal."""

    name = CONVERTED_SAVEPOINT
    config = ConversionConfig
    checks = CHECKS
    op_text = "Convert to another format. Returns the new savepoint."

    def write(self, run: SavepointRun[ConversionConfig]) -> WrittenSavepoint:
        """Convert a snapshot to another format."""
        config = run.config
        result = convert(
            run.snapshot,
            config.target or run.name_target(config.format),
            config.format,
            compress=config.compress,
            in_flight=config.in_flight,
            files=config.files,
            run=run.spark.run_tasks,
        )
        return _describe_converted(result, {"format": config.format})


def _describe_converted(result: "ConversionResult", details: Mapping[str, str]) -> WrittenSavepoint:
    rows = [(operator, state, digest.records, digest.bytes) for operator, state, digest in result.states]
    numbers = {
        "states": make_table(_CONVERTED_COLUMNS, rows),
        "subtasks": result.converted,
        "copied files": result.copied,
    }
    records = sum(digest.records for *_, digest in result.states)
    snapshot = open_snapshot(result.path)
    return describe_savepoint(result, snapshot, {**details, **numbers}, bytes=result.bytes, rows=records)


MIGRATED_SAVEPOINT = "migrated_savepoint"


class MigrationRunConfig(MigrationConfig):
    """The revisions of a migration, and where its temporary files go."""

    scratch: str = Field(default="", description=SCRATCH)


_PROOF = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)


class MigratedSavepoint(SavepointMaker[MigrationRunConfig]):
    """A savepoint after the pending revisions: changed states are rewritten, all others copied as bytes.

    If the proof fails, nothing is published, and the checks show why. For a snapshot without pending revisions the
    step succeeds without a result.
    """

    name = MIGRATED_SAVEPOINT
    config = MigrationRunConfig
    kinds: ClassVar = {"flink", "spark", "greatexpectations"}
    deps = (snapshots.COMPATIBILITY_REPORT,)
    is_always_written = False
    op_text = (
        "Apply the pending revisions of the job. Returns the new savepoint, or the snapshot itself if none are pending."
    )

    def applies(self, job: FlinkJob) -> bool:
        """Return whether the job has revisions."""
        return job.migrations is not None

    def list_checks(self, job: FlinkJob) -> Mapping[str, str]:
        """Return the checks that the revisions of the job need.

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

    def find_version(self, job: FlinkJob) -> str | None:
        """Return the version of the revisions."""
        return job.revisions.version

    def describe(self, job: FlinkJob) -> Mapping[str, object]:
        """Return code references to the revisions, if they are local files."""
        directory = job.revisions.load()
        if directory is None or not is_local(resolve(directory.path)):
            return NO_METADATA
        with warnings.catch_warnings():
            # Uses a beta feature of Dagster 1.13; the dependencies pin this release.
            warnings.simplefilter("ignore", dg.BetaWarning)
            references: list[dg.LocalFileCodeReference | dg.UrlCodeReference] = [
                dg.LocalFileCodeReference(file_path=each.path, label=each.revision) for each in directory.revisions
            ]
            return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}

    def write(self, run: SavepointRun[MigrationRunConfig]) -> WrittenSavepoint | None:
        """Apply the pending revisions of a snapshot; None if there are none.

        Raises:
            ProofError: the proof failed, and there is no new savepoint.
            MigrationError: the revision of the snapshot cannot be derived from its serializers.
        """
        job, config = run.job, run.config
        chain = job.revisions.plan(run.snapshot, config.from_revision, config.to)
        if not chain:
            return None
        # Importing Spark takes seconds.
        from state_pipelines.spark import migrate
        from state_pipelines.spark.expectations import find_project, load_suites

        revision = job.revisions.name_target(config.to)
        result = migrate(
            run.snapshot,
            chain,
            run.name_target(revision),
            suites=() if job.expectations is None else load_suites(job.expectations),
            project=None if job.expectations is None else find_project(job.expectations, job.data_docs),
            # The people who deploy the code also choose the directory of revisions, so its SQL and Python are trusted.
            allow_sql=True,
            allow_python=True,
            spark=run.spark.session,
            scratch=config.scratch or None,
        )
        proof = result.proof
        details = {
            "proof": show_proof(proof),
            "revision": revision,
            "applied": [f"{direction} {each.revision}" for each, direction in chain],
            **({"data docs": dg.MetadataValue.url(proof.data_docs)} if proof and proof.data_docs else {}),
            **describe_columns(job, result),
        }
        return describe_savepoint(result, result.snapshot, details, bytes=result.snapshot.file_size, rows=result.rows)


BOOTSTRAPPED_SAVEPOINT = "bootstrapped_savepoint"

_BOOTSTRAPPED_COLUMNS = [dg.TableColumn("operator"), dg.TableColumn("state"), dg.TableColumn("entries", "int")]


class BootstrapConfig(make_config(BootstrapRequest)):  # type: ignore[misc]
    """Format of the new savepoint, and the snapshot on top of which it is written."""


class BootstrappedSavepoint(SavepointMaker[BootstrapConfig]):
    """A first savepoint of the job: its states out of tables, published only if they read back equal."""

    name = BOOTSTRAPPED_SAVEPOINT
    config = BootstrapConfig
    checks = BOOTSTRAP_DESCRIPTIONS
    deps = ()
    is_derived = False
    op_text = "Write a first savepoint with the states of the field `bootstrap` of the job. Returns it."

    def applies(self, job: FlinkJob) -> bool:
        """Return whether the job has the field `bootstrap`."""
        return job.bootstrap is not None

    def write(self, run: SavepointRun[BootstrapConfig]) -> WrittenSavepoint:
        """Write a savepoint with the states of the field `bootstrap`.

        Raises:
            ProofError: the proof failed, and there is no new savepoint.
            UsageError: the job has no field `bootstrap`, or it does not fit.
        """
        job = run.job
        if job.bootstrap is None:
            hint = "Set the field bootstrap in the YAML of the job"
            raise UsageError(f"the job {job.name} has no new states", hint=hint)
        result = _bootstrap(job, job.bootstrap, run.name_target("bootstrapped"), run.config, run.spark)
        rows = [(operator, state, entries) for (operator, state), entries in result.entries.items()]
        details = {"proof": show_proof(result.proof), "states": make_table(_BOOTSTRAPPED_COLUMNS, rows)}
        entries = sum(result.entries.values())
        return describe_savepoint(result, result.snapshot, details, bytes=result.bytes, rows=entries)


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
        deps=(),
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
            # Report the checkpoints of the earlier batches: they are complete although this batch has failed.
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
    """Return the settings of the stream that a job runs on Spark.

    Raises:
        UsageError: the job has none.
    """
    if job.stream is None:
        raise UsageError(
            f"the job {job.name} has no stream that could take checkpoints on Spark",
            hint="Set the field stream in the YAML of the job: its definition, FILE.py:FUNCTION, and its directory",
        )
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
    """Yield the results of the asset's checks from the audit of a checkpoint; undetermined findings are warnings."""
    grave = [each for each in report.findings if each.severity in (Severity.ERROR, Severity.UNDETERMINED)]
    for name, (properties, _) in CHECKPOINT_CHECKS.items():
        found = [each for each in grave if each.property in properties]
        is_error = any(each.severity is Severity.ERROR for each in found)
        details = {"sample": list_texts([str(each) for each in found[:_SAMPLE]], "*")} if found else {}
        yield expect_none(name, len(found), details, is_error=is_error)


def _count_entries(balance: "Balance") -> int:
    for each in balance.operators:
        if each.error:
            raise StateError(
                f"the checkpoint was taken, but cannot be read: {each.error}", where=Where(operator=each.uid)
            )
    return sum(state.records or 0 for each in balance.operators for state in each.states)


def _report(job: FlinkJob, taken: "list[KeyedProcessResult]") -> Iterator[Any]:
    """Yield an event for each checkpoint of a run, although later ones may have replaced the first ones."""
    for each in taken:
        yield dg.AssetMaterialization(job.key(CHECKPOINT), metadata=_describe(each))


def _describe(result: "KeyedProcessResult") -> dict[str, Any]:
    """Return numbers of a checkpoint, which Dagster plots; without sizes and duration if an earlier run took it."""
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


class StreamSavepoint(SavepointMaker[SavepointFormatConfig]):
    """A savepoint with the state of the newest checkpoint of the stream, published only if it reads back equal."""

    name = SAVEPOINT
    config = SavepointFormatConfig
    checks = CHECKS
    deps = (CHECKPOINT,)
    step = AssetStep.RUN
    # Shared with the runs of the stream: they remove old checkpoints, perhaps the one that is being read.
    pool = CHECKPOINT
    is_derived = False
    op_text = "Write a savepoint with the state of the newest checkpoint of the stream. Returns it."

    def applies(self, job: FlinkJob) -> bool:
        """Return whether the job has a stream."""
        return job.stream is not None

    def write(self, run: SavepointRun[SavepointFormatConfig]) -> WrittenSavepoint:
        """Write a savepoint with the state of the newest checkpoint of the stream.

        Raises:
            ProofError: the proof failed, and there is no new savepoint.
            NotFoundError: there is no checkpoint yet.
            UsageError: the job has no stream.
        """
        storage, format = run.job.storage, run.config.format
        stream = require_stream(run.job)
        newest = storage.find_newest(stream.checkpoints)
        flink_id = parent(resolve(newest.path)).name
        # Named as by Flink, with digits of the run id in place of random ones.
        name = f"savepoint-{flink_id[:6]}-{run.id.replace('-', '')[:12]}"
        target = str(join(resolve(stream.savepoints), name))
        result = convert(storage.open(newest.path), target, format, run=run.spark.run_tasks)
        return _describe_converted(result, {"format": format, "checkpoint": newest.key})


MAKERS: tuple[SavepointMaker[Any], ...] = (
    ConvertedSavepoint(),
    RescaledSavepoint(),
    MigratedSavepoint(),
    BootstrappedSavepoint(),
    StreamSavepoint(),
)
"""Ways to write a savepoint that a job has, as far as they apply to it."""
