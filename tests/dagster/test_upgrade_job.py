"""The job `upgrade` of this repository's deployment, judged without Spark."""

from __future__ import annotations

import dagster as dg

from assets.definitions import defs
from state_pipelines.operations.inventory import make_partition_key
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import ROOT


def test_its_migration_takes_the_state_to_flink_2() -> None:
    (savepoint,) = (ROOT / "examples" / "upgrade" / "savepoint").glob("savepoint-*")
    key = make_partition_key(open_snapshot(str(savepoint)))
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("upgrade_snapshots", [key])
        result = dg.materialize(
            [defs.resolve_assets_def(dg.AssetKey(["upgrade", "compatibility_report"]))],
            partition_key=key,
            instance=instance,
        )
    (event,) = result.asset_materializations_for_node("upgrade__compatibility_report")
    assert event.metadata["without the migration"].value == "incompatible"
    assert event.metadata["with the migration"].value == "fully compatible"
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
