"""Jobs."""

from __future__ import annotations

import dagster as dg

from assets.compatibility import compatibility_report
from assets.conversion import converted_savepoint
from assets.inventory import snapshot_inventory
from assets.migration import migrated_savepoint
from assets.rescaling import rescale_op, rescaled_savepoint
from assets.tables import state_tables

migrate_snapshot = dg.define_asset_job(
    "migrate_snapshot",
    selection=[snapshot_inventory, state_tables, compatibility_report, migrated_savepoint],
    description="Everything for one snapshot: inventory, tables, report, migrated savepoint with its proof.",
)

convert_snapshot = dg.define_asset_job(
    "convert_snapshot",
    selection=[converted_savepoint],
    description="One snapshot in another format, as the configuration of the run says; canonical by default.",
)

rescale_snapshot = dg.define_asset_job(
    "rescale_snapshot",
    selection=[rescaled_savepoint],
    description="One snapshot for other parallelism, key groups or operators, as the configuration of the run says.",
)


@dg.job(description="Any snapshot, by its path, for other parallelism, key groups or operators.")
def rescale_path() -> None:
    """One op; its configuration says the paths."""
    rescale_op()
