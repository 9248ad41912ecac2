"""`key_group_balance`: how keyed state lies over key groups and subtasks, and its hottest keys."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from assets.inventory import snapshot_inventory
from assets.partitions import open_partition, snapshots
from resources import StorageResource
from state_pipelines.operations.rescaling.balance import measure_balance
from state_pipelines.operations.rescaling.pictures import render_balance

if TYPE_CHECKING:
    from state_pipelines.operations.rescaling.balance_report import Balance, OperatorBalance

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("subtask", "int"),
    dg.TableColumn("first key group", "int"),
    dg.TableColumn("last key group", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("keys", "int", description="distinct keys; empty when they cannot be told apart"),
]


class BalanceConfig(dg.Config):
    """What is measured, and what is predicted."""

    count: bool = Field(
        default=True, description="Read all keyed state for records and keys; otherwise only the bytes of key groups."
    )
    parallelism: int | None = Field(default=None, description="Another parallelism, to be predicted.")
    max_parallelism: int | None = Field(default=None, description="Another number of key groups, to be predicted.")


@dg.asset(
    deps=[snapshot_inventory],
    partitions_def=snapshots,
    group_name="flink_state",
    kinds={"flink", "markdown"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "see"},
)
def key_group_balance(
    context: dg.AssetExecutionContext, config: BalanceConfig, storage: StorageResource
) -> Iterator[dg.MaterializeResult[None]]:
    """Bytes, records and keys of every key group and subtask; the skew, and what another parallelism would change."""
    snapshot = open_partition(storage, context.partition_key)
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
            "subtasks": dg.MetadataValue.table(
                [row for each in measured for row in _list_subtasks(each)], dg.TableSchema(_COLUMNS)
            ),
            # Numbers, so that they chart over snapshots.
            "imbalance": balance.imbalance,
            "idle subtasks": sum(len(each.now.idle) for each in measured if each.now is not None),
            "share of the hottest key group": max(
                (each.hottest_key_groups[0].share for each in measured if each.hottest_key_groups), default=0.0
            ),
            "share of the hottest key in its subtask": max(
                (key.share for each in measured for key in each.most_bytes), default=0.0
            ),
            "bytes": sum(each.now.bytes for each in measured if each.now is not None),
            "unreadable": sum(bool(each.error) for each in balance.operators),
            "conflicts of max parallelism": len(balance.conflicts),
            "snapshot": dg.MetadataValue.path(snapshot.path),
        },
        data_version=dg.DataVersion(snapshot.fingerprint),
    )


def _draw(balance: "Balance") -> dg.MarkdownMetadataValue:
    encoded = base64.b64encode(render_balance(balance, "png")).decode()
    return dg.MetadataValue.md(f"![key groups and subtasks](data:image/png;base64,{encoded})")


def _list_subtasks(operator: "OperatorBalance") -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "operator": operator.label,
                "subtask": each.subtask,
                "first key group": each.key_groups[0],
                "last key group": each.key_groups[1],
                "bytes": each.bytes,
                "records": each.records,
                "keys": each.keys,
            }
        )
        for each in (operator.now.subtasks if operator.now is not None else ())
    ]
