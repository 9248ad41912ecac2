"""Cursors that are kept in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.triggers import load_cursor, share_instance, store_cursor
from state_pipelines.errors import FormatError

if TYPE_CHECKING:
    from typing import Any

LONG = {"seen": [f"{number:012x}" for number in range(200)], "failures": 1.5}


@pytest.fixture
def job(tmp_path: Path) -> FlinkJob:
    return FlinkJob(name="shop", roots=(str(tmp_path),), results=str(tmp_path / "results"))


def list_cursors(job: FlinkJob) -> list[Path]:
    return sorted(Path(job.results).rglob("cursors/*"))


def load(job: FlinkJob, cursor: str | None, sensor: str = "new_snapshots") -> dict[str, Any]:
    with dg.build_sensor_context(cursor=cursor) as context:
        return load_cursor(job, sensor, context)


def store(job: FlinkJob, before: str | None, content: dict[str, Any], sensor: str = "new_snapshots") -> str:
    with dg.build_sensor_context(cursor=before) as context:
        return store_cursor(job, sensor, context, content)


def test_a_short_cursor_is_its_content(job: FlinkJob) -> None:
    cursor = store(job, None, {"seen": ["a"]})
    assert json.loads(cursor) == {"seen": ["a"]} == load(job, cursor)
    assert load(job, None) == load(job, "") == {}
    assert list_cursors(job) == []


def test_the_instance_stores_the_digest_of_a_long_one_and_the_file_is_written_when_it_changes(job: FlinkJob) -> None:
    first = store(job, json.dumps(LONG), LONG)
    assert len(first) < 60
    assert load(job, first) == LONG
    (file,) = list_cursors(job)
    written = file.stat().st_mtime_ns
    assert store(job, first, LONG) == first
    assert file.stat().st_mtime_ns == written
    other = store(job, None, LONG, sensor="requests")
    second = store(job, first, LONG | {"failures": 2.5})
    # Dagster may not have stored the second one.
    assert load(job, first) == LONG
    assert load(job, second) == LONG | {"failures": 2.5}
    third = store(job, second, LONG | {"failures": 3.5})
    assert len(list_cursors(job)) == 3
    assert load(job, third)["failures"] == 3.5
    assert load(job, other, sensor="requests") == LONG


def test_a_file_that_is_gone_is_a_cleared_cursor_and_one_that_was_changed_is_an_error(job: FlinkJob) -> None:
    cursor = store(job, None, LONG)
    (file,) = list_cursors(job)
    file.write_text("{}")
    with pytest.raises(FormatError, match="the file of the cursor was changed"):
        load(job, cursor)
    file.unlink()
    assert load(job, cursor) == {}


def test_ticks_share_an_instance_that_was_opened_once(tmp_path: Path) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir()
    two.mkdir()
    with dg.DagsterInstance.local_temp(str(one)) as instance, dg.DagsterInstance.local_temp(str(two)) as other:
        contexts = [dg.build_sensor_context(instance_ref=instance.get_ref()) for _ in range(2)]
        shared = [share_instance(each) for each in contexts]
        assert shared[0] is shared[1]
        assert shared[0].root_directory == instance.root_directory
        assert share_instance(dg.build_sensor_context(instance=other)) is other
        assert share_instance(dg.build_sensor_context(instance_ref=other.get_ref())) is not shared[0]
