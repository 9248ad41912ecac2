"""The job `register_snapshot`: snapshots outside the roots."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.dagster.conftest import SAVEPOINTS, build

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg

    from tests.dagster.conftest import Deployment


def register(deployment: Deployment, *paths: Path) -> dg.ExecuteInProcessResult:
    return (
        build(deployment.job)
        .resolve_job_def("shop_register_snapshot")
        .execute_in_process(
            instance=deployment.instance,
            raise_on_error=False,
            run_config={"ops": {deployment.job.op("register_snapshot"): {"config": {"paths": list(map(str, paths))}}}},
        )
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return shutil.copytree(SAVEPOINTS["1.20"], tmp_path / "elsewhere" / SAVEPOINTS["1.20"].name)


@pytest.mark.parametrize("name", ["", "_metadata"], ids=["directory", "metadata file"])
def test_any_snapshot_can_be_materialised(deployment: Deployment, elsewhere: Path, name: str) -> None:
    result = register(deployment, elsewhere / name)
    assert result.success
    (key,) = result.output_for_node(deployment.job.op("register_snapshot"))
    assert deployment.instance.has_dynamic_partition("shop_snapshots", key)
    assert deployment.materialize(["key_group_balance"], key).success


def test_a_path_without_a_snapshot_fails_and_registers_nothing(deployment: Deployment, tmp_path: Path) -> None:
    before = deployment.instance.get_dynamic_partitions("shop_snapshots")
    result = register(deployment, tmp_path / "nothing")
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert data.metadata["file"].value == str(tmp_path / "nothing")
    assert deployment.instance.get_dynamic_partitions("shop_snapshots") == before
