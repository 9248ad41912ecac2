"""The marker by which two code locations, or two instances, see that they run one job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.sensors import build_new_snapshots
from state_pipelines.dagster.storage import LEASE, RENEWAL, Owner, describe_owner, is_due, take_marker
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from state_pipelines.storage import Location

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Owner("first instance", "shop", "another-host", 7)
OTHERS = (replace(ONE, location="shop-copy"), replace(ONE, instance="second instance"))


@pytest.fixture
def marker(tmp_path: Path) -> Location:
    return resolve(str(tmp_path / "results/reports/shop/owner.json"))


@pytest.mark.parametrize("other", OTHERS, ids=["location", "instance"])
def test_another_one_waits_until_the_marker_is_old(marker: Location, other: Owner) -> None:
    assert take_marker(marker, ONE, NOW) == ""
    refused = take_marker(marker, other, NOW + LEASE - timedelta(minutes=2))
    assert "another code location runs this job with the same results: shop on another-host, process 7" in refused
    assert "takes over in 2 min" in refused
    assert take_marker(marker, other, NOW + LEASE) == ""
    assert take_marker(marker, ONE, NOW + LEASE)


def test_a_location_keeps_its_marker_in_a_new_process(marker: Location) -> None:
    take_marker(marker, ONE, NOW)
    assert take_marker(marker, replace(ONE, host="moved", pid=8), NOW) == ""
    assert json.loads(Path(marker.path).read_text())["pid"] == 8


def test_a_process_of_this_machine_that_has_ended_does_not_hold_the_marker(marker: Location) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    take_marker(marker, replace(ONE, host=socket.gethostname(), pid=ended.pid), NOW)
    assert take_marker(marker, OTHERS[0], NOW) == ""
    take_marker(marker, replace(OTHERS[0], host=socket.gethostname(), pid=os.getpid()), NOW)
    assert take_marker(marker, ONE, NOW)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"instance": 1}'])
def test_a_broken_marker_is_replaced(marker: Location, content: str) -> None:
    Path(marker.path).parent.mkdir(parents=True)
    Path(marker.path).write_text(content)
    assert take_marker(marker, ONE, NOW) == ""


def test_the_marker_is_renewed_now_and_then() -> None:
    assert is_due(None, NOW)
    assert not is_due(NOW.isoformat(), NOW + RENEWAL / 2)
    assert is_due(NOW.isoformat(), NOW + RENEWAL)
    assert is_due(NOW.isoformat(), NOW - RENEWAL)


def test_two_instances_with_the_same_results_do_not_both_add_partitions(tmp_path: Path) -> None:
    job = FlinkJob(name="shop", roots=(str(tmp_path),), results=str(tmp_path / "results"))
    sensor = build_new_snapshots(job)
    with dg.DagsterInstance.ephemeral() as one, dg.DagsterInstance.ephemeral() as two:
        assert describe_owner(one, "").instance != describe_owner(two, "").instance
        results = []
        for instance in (one, two, one):
            with dg.build_sensor_context(instance=instance) as context:
                results.append(sensor(context))
    assert [isinstance(each, dg.SensorResult) for each in results] == [True, False, True]
    assert isinstance(results[1], dg.SkipReason)
    assert "of another Dagster instance" in str(results[1].skip_message)
