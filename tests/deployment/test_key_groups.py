"""The asset `key_group_balance`, without Spark."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from assets.inventory import snapshot_inventory
from assets.key_groups import key_group_balance

if TYPE_CHECKING:
    from tests.deployment.conftest import Deployment


def materialize(deployment: Deployment, key: str, **config: Any) -> dict[str, Any]:
    result = dg.materialize(
        [snapshot_inventory, key_group_balance],
        selection=[key_group_balance],
        partition_key=key,
        instance=deployment.instance,
        resources={"storage": deployment.storage},
        run_config={"ops": {"key_group_balance": {"config": config}}},
    )
    (event,) = result.asset_materializations_for_node("key_group_balance")
    return {name: value.value for name, value in event.metadata.items()}


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


def test_subtasks_are_a_table(deployment: Deployment, key: str) -> None:
    rows = [each.data for each in materialize(deployment, key)["subtasks"].records]
    assert [(each["operator"], each["subtask"], each["keys"]) for each in rows] == [
        ("revenue-per-minute", 0, 3),
        ("revenue-per-minute", 1, 4),
        ("orders", 0, 103),
        ("orders", 1, 97),
    ]


def test_numbers_chart_over_snapshots(deployment: Deployment, key: str) -> None:
    metadata = materialize(deployment, key)
    assert metadata["imbalance"] == pytest.approx(1876 / 1617)
    assert metadata["share of the hottest key group"] == pytest.approx(546 / 3234)
    assert metadata["share of the hottest key in its subtask"] == pytest.approx(462 / 1358)
    names = ("bytes", "idle subtasks", "unreadable", "conflicts of max parallelism")
    assert [metadata[name] for name in names] == [3234 + 57045, 0, 0, 0]


def test_the_picture_and_the_prediction_are_there(deployment: Deployment, key: str) -> None:
    metadata = materialize(deployment, key, parallelism=7, max_parallelism=64)
    head, _, picture = metadata["picture"].removesuffix(")").partition("base64,")
    assert head == "![key groups and subtasks](data:image/png;"
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "| predicted | 7 | 64 |" in metadata["balance"]


def test_without_count_there_are_bytes_alone(deployment: Deployment, key: str) -> None:
    rows = [each.data for each in materialize(deployment, key, count=False)["subtasks"].records]
    assert {each["keys"] for each in rows} == {None}
    assert all(each["bytes"] for each in rows)
