"""`rescaled_savepoint`: a new savepoint for another parallelism, other key groups or other operators."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.failures import reporting_failures
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_resources import using_resources_of
from state_pipelines.dagster.metadata_values import list_texts, make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import WrittenSavepoint, materialize_savepoint
from state_pipelines.errors import UsageError
from state_pipelines.operations.rescale import plan_rescale, run_rescale
from state_pipelines.operations.rescale.change_texts import tell_label, tell_number
from state_pipelines.operations.rescale.proof_report import DESCRIPTIONS
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, parse_request
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage.yaml_documents import parse_yaml

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult

NAME = "rescaled_savepoint"

SCRATCH = (
    "Directory (path or URL) of temporary files, which every task must reach. Default: beside the target where that is "
    "local or Spark runs on a cluster, else TMPDIR."
)

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("parallelism"),
    dg.TableColumn("max parallelism"),
    dg.TableColumn("keyed state", description="how it was moved"),
    dg.TableColumn("operator state", description="how it was moved"),
    dg.TableColumn("hash", description="hashCode of key classes, and its evidence"),
]


class RescaleConfig(dg.Config):
    """Changes of the new savepoint; `request` supports all of them."""

    parallelism: int | None = Field(default=None, description="Parallelism of all operators; by default unchanged.")
    max_parallelism: int | None = Field(
        default=None, description="Max parallelism of all operators; by default unchanged."
    )
    request: str = Field(
        default="", description="Further changes in YAML, in the format of `state-pipelines rescale --request`."
    )
    files: str = Field(default=FileMode.COPY.value, description="Unchanged files: copy, link or reference.")
    scratch: str = Field(default="", description=SCRATCH)

    def parse(self) -> RescaleRequest:
        """Return the request.

        Raises:
            UsageError: the request is invalid or empty, or `files` is not one of the choices.
        """
        _ = self.file_mode
        try:
            content = parse_yaml(self.request) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"request is not YAML: {' '.join(str(error).split())}") from None
        numbers = {"parallelism": self.parallelism, "max_parallelism": self.max_parallelism}
        given = {name: number for name, number in numbers.items() if number is not None}
        _refuse_key_files(content)
        for name, number in given.items() if isinstance(content, dict) else ():
            if content.get(name, number) != number:
                raise UsageError(f"{name} is {number}, and {content[name]} in request", hint=f"Leave one {name} out")
        request = parse_request(content | given if isinstance(content, dict) else content)
        if request.is_empty:
            raise UsageError("the configuration changes nothing", hint="Set parallelism, max_parallelism or request")
        return request

    @property
    def file_mode(self) -> FileMode:
        """The choice for files that stay as they are.

        Raises:
            UsageError: `files` is not one of the choices.
        """
        try:
            return FileMode(self.files)
        except ValueError:
            known = ", ".join(each.value for each in FileMode)
            raise UsageError(f"files is {self.files!r}", hint=f"Choose from {known}") from None


def _refuse_key_files(content: object) -> None:
    # The run may be on another machine, which cannot read the file.
    operators = content.get("operators") if isinstance(content, dict) else None
    for name, body in operators.items() if isinstance(operators, dict) else ():
        for choice in ("keep_keys", "drop_keys") if isinstance(body, dict) else ():
            if isinstance(body.get(choice), dict):
                raise UsageError(
                    f"{choice} of operators.{name} names a file, which runs do not support",
                    hint=f"Write the keys into the request, such as {choice}: [alice, bob]",
                )


class PathConfig(RescaleConfig):
    """Any snapshot, also outside the roots."""

    snapshot: str = Field(description="Path or URL of the snapshot.")
    target: str = Field(description="Directory of the new savepoint, which must not exist.")


def build_rescaled_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `rescaled_savepoint` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark"},
        deps=[flink_job.NAME],
        checks=DESCRIPTIONS,
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
        # Each run has its own directory, because a snapshot is never overwritten.
        target = job.storage.name_result(context.partition_key, "rescaled", context.run.run_id)

        def write() -> WrittenSavepoint:
            result = _rescale(snapshot, target, config, job, spark)
            fingerprint = open_snapshot(result.path).fingerprint
            return WrittenSavepoint(_describe(result), fingerprint, result.notes, result.proof)

        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return rescaled_savepoint


def build_rescale_op(job: FlinkJob) -> dg.OpDefinition:
    """Build the op `rescale` of a job, which takes any snapshot by its path."""

    @dg.op(name=job.prefix("rescale"))
    @using_resources_of(job.name)
    @reporting_failures
    def rescale(context: dg.OpExecutionContext, config: PathConfig, spark: SparkResource) -> str:
        """Rescale any snapshot. Returns the path of the new savepoint."""
        result = _rescale(job.storage.open(config.snapshot), config.target, config, job, spark)
        for note in result.notes:
            context.log.warning(note)
        context.add_output_metadata(_describe(result))
        return result.path

    return rescale


def _rescale(
    snapshot: Snapshot, target: str, config: RescaleConfig, job: FlinkJob, spark: SparkResource
) -> "RescaleResult":
    from state_pipelines.spark.tasks import uses_other_machines
    from state_pipelines.storage import resolve

    plan = plan_rescale(snapshot, resolve(target), config.parse(), open_other=job.storage.open, files=config.file_mode)
    return run_rescale(
        plan, spark.run_tasks, scratch=config.scratch or None, is_shared=uses_other_machines(spark.session)
    )


def _describe(result: "RescaleResult") -> dict[str, Any]:
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
        "operators": make_table(_COLUMNS, rows),
        "dropped": list(result.plan.dropped),
        "notes": list_texts(result.notes),
        "files written": result.files_written,
        "files taken over": result.files_taken,
        "bytes": result.bytes,
        "seconds": result.seconds,
        **describe_numbers(result.proof),
        "dagster/row_count": sum(row.after.records for row in result.states),
    }
