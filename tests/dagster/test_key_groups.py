"""The asset `key_group_balance`, without Spark."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.dagster.job import Thresholds

if TYPE_CHECKING:
    from tests.dagster.conftest import Deployment


def materialize(deployment: Deployment, key: str, **config: Any) -> dict[str, Any]:
    result = deployment.materialize(["key_group_balance"], key, key_group_balance=config)
    (event,) = result.asset_materializations_for_node("shop__key_group_balance")
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
    assert metadata["imbalance"] == pytest.approx(1876 / 1617, abs=1e-4)
    assert metadata["share of the hottest key group"] == pytest.approx(546 / 3234, abs=1e-4)
    assert metadata["share of the hottest key in its subtask"] == pytest.approx(462 / 1358, abs=1e-4)
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


@pytest.mark.parametrize(("limit", "passed"), [(1.1, False), (1.5, True)])
def test_a_limit_of_the_job_is_a_check(deployment: Deployment, key: str, limit: float, passed: bool) -> None:
    limited = deployment.change(thresholds=Thresholds(max_imbalance=limit))
    (check,) = limited.materialize(["key_group_balance"], key).get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("balanced", passed)
    assert check.metadata["observed"].value == pytest.approx(1876 / 1617, abs=1e-4)


def test_without_a_limit_there_is_no_check(deployment: Deployment, key: str) -> None:
    assert deployment.materialize(["key_group_balance"], key).get_asset_check_evaluations() == []
