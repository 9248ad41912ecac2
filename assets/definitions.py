"""The definitions of the code location; importing them touches nothing but the revisions."""

from __future__ import annotations

import dagster as dg

from assets.compatibility import compatibility_report
from assets.conversion import converted_savepoint
from assets.inventory import snapshot_inventory
from assets.jobs import convert_snapshot, migrate_snapshot, rescale_path, rescale_snapshot
from assets.key_groups import key_group_balance
from assets.migration import migrated_savepoint
from assets.requests import rescale_requests
from assets.rescaling import rescaled_savepoint
from assets.sensors import new_snapshots
from assets.tables import state_tables
from resources import ExpectationsResource, MigrationResource, SparkResource, StorageResource

defs = dg.Definitions(
    assets=[
        snapshot_inventory,
        key_group_balance,
        state_tables,
        compatibility_report,
        migrated_savepoint,
        converted_savepoint,
        rescaled_savepoint,
    ],
    jobs=[migrate_snapshot, convert_snapshot, rescale_snapshot, rescale_path],
    sensors=[new_snapshots, rescale_requests],
    resources={
        "storage": StorageResource.from_environment(),
        "spark": SparkResource.from_environment(),
        "migration": MigrationResource.from_environment(),
        "expectations": ExpectationsResource(),
    },
    # All steps of a run in one process, so that they share one Spark session.
    executor=dg.in_process_executor,
)
