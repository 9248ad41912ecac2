"""Erasure of keys: a new snapshot without them, and the snapshots that still hold them."""

# Without the import of `annotations`: Dagster reads those of configurations.

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets.rescaled_savepoint import TARGET
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import make_table, round_seconds
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.keyed.keys import KeyText
from state_pipelines.operations.erase import plan_erasure, require_searched, run_erasure, search_below
from state_pipelines.operations.key_search import KeySearch
from state_pipelines.snapshot import Snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult

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
    """Search a snapshot for keys, and perhaps others; return metadata. Nothing is written."""
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
