"""Jobs."""

from __future__ import annotations

import dagster as dg

from assets.compatibility import compatibility_report
from assets.conversion import converted_savepoint
from assets.inventory import snapshot_inventory
from assets.migration import migrated_savepoint
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
