"""The inventory of a job: every snapshot below its directories, from `_metadata` alone, kept in one Parquet file.

update = update_inventory([resolve("s3://bucket/checkpoints")], resolve("s3://bucket/results/inventory.parquet"))
update.inventory.find("chk-17-1a2b3c@bcb9ffff")
"""

from __future__ import annotations

from state_pipelines.operations.inventory.keys import (
    is_checkpoint_key,
    make_partition_key,
    name_snapshot,
    parse_partition_key,
)
from state_pipelines.operations.inventory.lookup import find_snapshot
from state_pipelines.operations.inventory.previous import find_previous
from state_pipelines.operations.inventory.summary import (
    OperatorSummary,
    SnapshotSummary,
    make_key,
    summarise_snapshot,
)
from state_pipelines.operations.inventory.table import Inventory, read_inventory
from state_pipelines.operations.inventory.updating import InventoryUpdate, update_inventory

__all__ = [
    "Inventory",
    "InventoryUpdate",
    "OperatorSummary",
    "SnapshotSummary",
    "find_previous",
    "find_snapshot",
    "is_checkpoint_key",
    "make_key",
    "make_partition_key",
    "name_snapshot",
    "parse_partition_key",
    "read_inventory",
    "summarise_snapshot",
    "update_inventory",
]
