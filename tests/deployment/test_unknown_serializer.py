"""Assets over a snapshot of five operators, one of which has a serializer that nothing reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from assets.inventory import snapshot_inventory
from assets.partitions import make_partition_key, snapshots
from assets.tables import state_tables
from resources import SparkResource
from tests.snapshots import UNKNOWN

if TYPE_CHECKING:
    from tests.deployment.conftest import Deployment

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def metadata(deployment: Deployment) -> dict[str, dict[str, Any]]:
    (case,) = [each for each in UNKNOWN if each.case == "canonical"]
    target = Path(deployment.storage.snapshots, "unknown", case.path.name)
    shutil.copytree(case.path, target)
    key = make_partition_key(deployment.storage.open(str(target)))
    deployment.instance.add_dynamic_partitions(str(snapshots.name), [key])
    result = dg.materialize(
        [snapshot_inventory, state_tables],
        partition_key=key,
        instance=deployment.instance,
        resources={"storage": deployment.storage, "spark": SparkResource()},
    )
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
    found = {}
    for name in ("snapshot_inventory", "state_tables"):
        (event,) = result.asset_materializations_for_node(name)
        found[name] = {label: value.value for label, value in event.metadata.items()}
    return found


def test_the_inventory_lists_every_state(metadata: dict[str, dict[str, Any]]) -> None:
    rows = [each.data for each in metadata["snapshot_inventory"]["states"].records]
    names = {(each["operator"], each["state"]) for each in rows}
    assert names >= {("purses", "purse"), ("purses", "visits"), ("tallies", "tally"), ("log", "numbers")}
    assert metadata["snapshot_inventory"]["unreadable"] == 0


def test_every_state_has_a_table_and_one_holds_bytes(metadata: dict[str, dict[str, Any]]) -> None:
    rows = {
        (each.data["operator"], each.data["state"]): each.data for each in metadata["state_tables"]["tables"].records
    }
    assert [place for place, row in rows.items() if row["undecoded"]] == [("purses", "purse")]
    assert {place: rows[place]["rows"] for place in (("purses", "purse"), ("rates", "rates"))} == {
        ("purses", "purse"): 12,
        ("rates", "rates"): 6,
    }
    assert metadata["state_tables"]["unread"] == []
