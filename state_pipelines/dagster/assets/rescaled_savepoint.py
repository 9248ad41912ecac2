"""`rescaled_savepoint`: a new savepoint for another parallelism, other key groups or other operators."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
import yaml
from pydantic import Field, model_validator

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.configurations import FileModeName
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table, round_seconds
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import (
    NameTarget,
    WrittenSavepoint,
    materialize_savepoint,
    name_results,
)
from state_pipelines.errors import UsageError
from state_pipelines.operations.rescale import plan_rescale, run_rescale
from state_pipelines.operations.rescale.rescale_planner import tell_label, tell_number
from state_pipelines.operations.rescale.rescale_proof import DESCRIPTIONS
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, parse_request
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve
from state_pipelines.storage.documents import parse_yaml

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult

NAME = "rescaled_savepoint"

SCRATCH = (
    "Directory (path or URL) of temporary files, which every task must reach. Default: beside the target where that is "
    "local or Spark runs on a cluster, else TMPDIR."
)

TARGET = "Directory of the new savepoint, which must not exist; by default one below the results of the job."

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
        write = partial(write_rescaled, job, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, NAME, expectations, write)

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
    return WrittenSavepoint(result.path, _describe(result), fingerprint, result.notes, result.proof)


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
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(row.after.records for row in result.states),
    }
