"""`key_group_balance`: distribution of keyed state over key groups and subtasks, and its hottest keys."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import NEW_SNAPSHOT
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import Cell, make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.balance_charts import render_balance

if TYPE_CHECKING:
    from state_pipelines.operations.balance import Balance, OperatorBalance

NAME = "key_group_balance"
BALANCED = "balanced"

_DIGITS = 4

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("subtask", "int"),
    dg.TableColumn("first key group", "int"),
    dg.TableColumn("last key group", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("keys", "int", description="distinct keys; empty if they cannot be counted"),
]


class BalanceConfig(dg.Config):
    """Configuration of the measurement: its depth, and another parallelism to predict."""

    count: bool = Field(
        default=True,
        description="Read all keyed state to count records and keys; otherwise only measure bytes of key groups.",
    )
    parallelism: int | None = Field(default=None, description="Predict the balance for this parallelism.")
    max_parallelism: int | None = Field(default=None, description="Predict the balance for this max parallelism.")


def build_key_group_balance(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `key_group_balance` of a job."""
    limit = job.thresholds.max_imbalance

    @flink_asset(
        job,
        NAME,
        step=AssetStep.SEE,
        kinds={"flink", "markdown"},
        deps=[flink_job.NAME],
        automation=NEW_SNAPSHOT,
        checks={} if limit is None else {BALANCED: f"The largest subtask has at most {limit} times the mean bytes."},
    )
    def key_group_balance(
        context: dg.AssetExecutionContext, config: BalanceConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Bytes, records and keys per key group and subtask, the skew, and a prediction for another parallelism."""
        snapshot = open_partition(context, job)
        balance = measure_balance(
            snapshot, parallelism=config.parallelism, max_parallelism=config.max_parallelism, count=config.count
        )
        for each in balance.operators:
            if each.error:
                context.log.warning("%s cannot be read: %s", each.label, each.error)
        measured = [each for each in balance.operators if each.now is not None]
        yield dg.MaterializeResult(
            metadata={
                "balance": dg.MetadataValue.md(balance.to_markdown()),
                **({"picture": _draw(balance)} if measured else {}),
                "subtasks": make_table(_COLUMNS, [row for each in measured for row in _list_subtasks(each)]),
                # Numbers, which Dagster plots over snapshots.
                "imbalance": round(balance.imbalance, _DIGITS),
                "idle subtasks": sum(len(each.now.idle) for each in measured if each.now is not None),
                "share of the hottest key group": _find_largest(
                    each.hottest_key_groups[0].share for each in measured if each.hottest_key_groups
                ),
                "share of the hottest key in its subtask": _find_largest(
                    key.share for each in measured for key in each.most_bytes
                ),
                "bytes": sum(each.now.bytes for each in measured if each.now is not None),
                "unreadable": sum(bool(each.error) for each in balance.operators),
                "conflicts of max parallelism": len(balance.conflicts),
                "snapshot": dg.MetadataValue.path(snapshot.path),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

        if limit is not None:
            yield _check_balance(job, balance, limit)

    return key_group_balance


def _find_largest(shares: Iterable[float]) -> float:
    return round(max(shares, default=0.0), _DIGITS)


def _check_balance(job: FlinkJob, balance: "Balance", limit: float) -> dg.AssetCheckResult:
    beyond = {
        each.label: each.now.imbalance
        for each in balance.operators
        if each.now is not None and each.now.imbalance > limit
    }
    return dg.AssetCheckResult(
        asset_key=job.key(NAME),
        check_name=BALANCED,
        passed=not beyond,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "expected": dg.MetadataValue.float(limit),
            "observed": dg.MetadataValue.float(round(balance.imbalance, _DIGITS)),
            "operators": dg.MetadataValue.json(beyond),
        },
    )


def _draw(balance: "Balance") -> dg.MarkdownMetadataValue:
    encoded = base64.b64encode(render_balance(balance, "png")).decode()
    return dg.MetadataValue.md(f"![key groups and subtasks](data:image/png;base64,{encoded})")


def _list_subtasks(operator: "OperatorBalance") -> list[tuple[Cell, ...]]:
    """Return rows of `_COLUMNS`."""
    return [
        (operator.label, each.subtask, *each.key_groups, each.bytes, each.records, each.keys)
        for each in (operator.now.subtasks if operator.now is not None else ())
    ]
