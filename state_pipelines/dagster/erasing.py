"""The op of the job `erase_keys`: a new snapshot without some keys, and the snapshots that still hold them."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.failures import reporting_failures
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_resources import using_resources_of
from state_pipelines.dagster.metadata_values import make_table
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import UsageError
from state_pipelines.keyed.keys.key_values import KeyText
from state_pipelines.operations.erase.key_erasure import plan_erasure, run_erasure, search_below
from state_pipelines.operations.erase.key_search import KeySearch

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult

_COLUMNS = [
    dg.TableColumn("snapshot"),
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("key", "int", description="index in `keys` of the run configuration"),
    dg.TableColumn("entries", "int"),
]


class ErasureConfig(dg.Config):
    """The keys to erase, and the snapshot."""

    keys: list[str] = Field(
        description="Keys to erase: plain text for String keys, otherwise JSON, as for `state-pipelines erase --key`."
    )
    snapshot: str = Field(description="Path or URL of the snapshot.")
    target: str = Field(
        default="",
        description="Directory of the new snapshot, which must not exist; without it, the run only reports the keys.",
    )
    root: str = Field(default="", description="Also search all snapshots below this directory for the keys.")


def build_erase_op(job: FlinkJob) -> dg.OpDefinition:
    """Build the op `erase` of a job, which takes any snapshot by its path."""

    @dg.op(name=job.prefix("erase"), pool=job.prefix("erase"))
    @using_resources_of(job.name)
    @reporting_failures
    def erase(context: dg.OpExecutionContext, config: ErasureConfig, spark: SparkResource) -> str:
        """Erase keys from every operator keyed by them. Returns the path of the new snapshot, or an empty text."""
        if not config.keys:
            raise UsageError("`keys` is empty", hint="Give at least one key in `keys`")
        keys = [KeyText(each) for each in config.keys]
        plan = plan_erasure(job.storage.open(config.snapshot), keys, config.target or None, run=spark.run_tasks)
        result = run_erasure(plan, spark.run_tasks) if config.target else None
        searches = [plan.search]
        if config.root:
            searches += search_below(config.root, keys, open_other=job.storage.open, run=spark.run_tasks)
        for search in searches:
            for operator, reason in search.unsearched:
                where = f"{search.path}, operator {operator}" if operator else search.path
                context.log.warning(f"{where}: not searched: {reason}")
        if result is None:
            context.log.info(
                "No state contains the keys" if config.target else "Nothing was written, because `target` is not set"
            )
        context.add_output_metadata(_describe(searches, result))
        return "" if result is None else result.path

    return erase


def _describe(searches: Iterable[KeySearch], result: "RescaleResult | None") -> dict[str, Any]:
    every = list(searches)
    rows = [
        (search.path, found.operator, found.state, found.key, found.entries)
        for search in every
        for found in search.found
    ]
    metadata: dict[str, Any] = {
        "found": make_table(_COLUMNS, rows),
        "snapshots that hold the keys": [search.path for search in every if search.found],
        "not searched": [f"{search.path}: {reason}" for search in every for _, reason in search.unsearched],
    }
    if result is not None:
        metadata |= {
            "path": dg.MetadataValue.path(result.path),
            "files written": result.files_written,
            "files taken over": result.files_taken,
            "bytes": result.bytes,
            "seconds": result.seconds,
        }
    return metadata
