"""`rescaled_savepoint`: the same state for other parallelism, other key groups or other operators."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml
from pydantic import Field

from assets.checks import specify_checks
from assets.inventory import snapshot_inventory
from assets.partitions import open_partition, snapshots
from resources import ExpectationsResource, SparkResource, StorageResource
from state_pipelines.errors import ProofError, UsageError
from state_pipelines.operations.publishing import FileMode
from state_pipelines.operations.rescaling import plan_rescale, run_rescale
from state_pipelines.operations.rescaling.change_texts import tell_label, tell_number
from state_pipelines.operations.rescaling.proof import RescaleProof
from state_pipelines.operations.rescaling.request import RescaleRequest, parse_request
from state_pipelines.snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.rescaling import RescaleResult

KEY = dg.AssetKey("rescaled_savepoint")

PROOF = {
    "entries_kept": "Every state has as many entries as before, less what was to go.",
    "contents_kept": "The bytes of every entry are those that were there.",
    "key_groups_in_range": "Every entry lies in a key group of its subtask.",
    "key_groups_match_key_hash": "Every key lies in the key group that its hash gives.",
}
"""The checks of a rescaling."""

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("parallelism"),
    dg.TableColumn("max parallelism"),
    dg.TableColumn("keyed state", description="how it was moved"),
    dg.TableColumn("operator state", description="how it was moved"),
    dg.TableColumn("hash", description="hashCode of classes in the keys, and what proves it"),
]


class RescaleConfig(dg.Config):
    """What the new snapshot is to be; a request can say all of it."""

    parallelism: int | None = Field(default=None, description="Subtasks of all operators; by default as it is.")
    max_parallelism: int | None = Field(default=None, description="Key groups of all operators; by default as it is.")
    request: str = Field(
        default="", description="The rest in YAML, as `state-pipelines rescale --request` takes it from a file."
    )
    files: str = Field(default=FileMode.COPY.value, description="Files that stay as they are: copy, link or reference.")

    def parse(self) -> RescaleRequest:
        """The request.

        Raises:
            UsageError: it is not one, or `files` is not a word that is known.
        """
        _ = self.file_mode
        try:
            content = yaml.safe_load(self.request) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"the request is not YAML: {error}") from None
        numbers = {"parallelism": self.parallelism, "max_parallelism": self.max_parallelism}
        given = {name: number for name, number in numbers.items() if number is not None}
        _refuse_key_files(content)
        request = parse_request(content | given if isinstance(content, dict) else content)
        if request.is_empty:
            raise UsageError("nothing is asked for", hint="Say parallelism, max_parallelism or a request")
        return request

    @property
    def file_mode(self) -> FileMode:
        """What becomes of files that stay as they are.

        Raises:
            UsageError: `files` is not a word that is known.
        """
        try:
            return FileMode(self.files)
        except ValueError:
            known = ", ".join(each.value for each in FileMode)
            raise UsageError(f"files is {self.files!r}", hint=f"Choose from {known}") from None


def _refuse_key_files(content: object) -> None:
    # A run may be on another machine than the request, so that nothing says where a file of keys lies.
    operators = content.get("operators") if isinstance(content, dict) else None
    for name, body in operators.items() if isinstance(operators, dict) else ():
        for choice in ("keep_keys", "drop_keys") if isinstance(body, dict) else ():
            if isinstance(body.get(choice), dict):
                raise UsageError(
                    f"{choice} of operators.{name} names a file, which a run does not look for",
                    hint=f"Write the keys into the request, such as {choice}: [alice, bob]",
                )


class PathConfig(RescaleConfig):
    """A snapshot that need not lie below the watched directory."""

    snapshot: str = Field(description="Its path or URL.")
    target: str = Field(description="Directory of the new snapshot, which must not exist.")


@dg.asset(
    key=KEY,
    deps=[snapshot_inventory],
    partitions_def=snapshots,
    check_specs=specify_checks(KEY, PROOF, snapshots),
    pool="rescaled_savepoint",
    group_name="flink_state",
    kinds={"flink", "spark", "greatexpectations"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "change"},
)
def rescaled_savepoint(
    context: dg.AssetExecutionContext,
    config: RescaleConfig,
    storage: StorageResource,
    spark: SparkResource,
    expectations: ExpectationsResource,
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """The same state for other subtasks, key groups or operators; without its proof there is no savepoint."""
    from state_pipelines.spark.rescaling import judge_rescaling  # starting Spark takes seconds, so nobody else pays

    snapshot = open_partition(storage, context.partition_key)
    # Every run writes a savepoint of its own: a snapshot is never overwritten.
    target = storage.place_result(f"{context.partition_key}-rescaled-{context.run.run_id[:8]}")
    try:
        result = _rescale(snapshot, target, config, storage, spark)
    except ProofError as error:
        if isinstance(error.report, RescaleProof):
            yield from expectations.report(judge_rescaling(spark.session, error.report), KEY)
        raise dg.Failure(str(error), allow_retries=False) from error
    for note in result.notes:
        context.log.warning(note)
    yield dg.MaterializeResult(
        asset_key=KEY,
        metadata=_describe(result),
        data_version=dg.DataVersion(open_snapshot(result.path).fingerprint),
    )
    assert result.proof is not None
    yield from expectations.report(judge_rescaling(spark.session, result.proof), KEY)


@dg.op(name="rescale")
def rescale_op(
    context: dg.OpExecutionContext, config: PathConfig, storage: StorageResource, spark: SparkResource
) -> str:
    """Rescale any snapshot that the storage reaches; gives the path of the new one."""
    result = _rescale(storage.open(config.snapshot), config.target, config, storage, spark)
    for note in result.notes:
        context.log.warning(note)
    context.add_output_metadata(_describe(result))
    return result.path


def _rescale(
    snapshot: Snapshot, target: str, config: RescaleConfig, storage: StorageResource, spark: SparkResource
) -> "RescaleResult":
    from state_pipelines.spark.tasks import run_tasks
    from state_pipelines.storage import resolve

    plan = plan_rescale(snapshot, resolve(target), config.parse(), open_other=storage.open, files=config.file_mode)
    return run_rescale(plan, partial(run_tasks, spark.session))


def _describe(result: "RescaleResult") -> dict[str, Any]:
    rows = [
        dg.TableRecord(
            {
                "operator": tell_label(change),
                "parallelism": tell_number(*change.parallelism),
                "max parallelism": tell_number(*change.max_parallelism),
                "keyed state": change.keyed,
                "operator state": change.operator_state,
                "hash": "; ".join(change.hashes),
            }
        )
        for change in result.plan.changes
    ]
    return {
        "path": dg.MetadataValue.path(result.path),
        "operators": dg.MetadataValue.table(rows, dg.TableSchema(_COLUMNS)),
        "dropped": list(result.plan.dropped),
        "notes": dg.MetadataValue.md("\n".join(f"- {note}" for note in result.notes)),
        "files written": result.files_written,
        "files taken over": result.files_taken,
        "bytes": result.bytes,
        "seconds": result.seconds,
        "dagster/row_count": sum(row.after.records for row in result.proof.rows) if result.proof else 0,
    }
