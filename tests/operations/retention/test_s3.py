"""Plans over an S3 server on this machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.operations.retention import pin_snapshot, plan_retention, read_pins
from state_pipelines.storage import join, resolve
from tests.operations.retention.trees import JOB, UUIDS, deleted, install_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.operations.retention import RetentionPlan
    from state_pipelines.storage import Location

LATER = datetime.now(UTC) + timedelta(days=30)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as started:
        yield started


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> Location:
    """A bucket with the checkpoints of a job, whose files say `s3a`."""
    root = resolve(f"s3://{tmp_path.name.replace('_', '-').lower()}/flink", **server.options)
    job = install_job(tmp_path, url=f"s3a://{root.path}")
    root.filesystem.mkdir(root.path.partition("/")[0])
    root.filesystem.put(str(job), join(root, JOB).path, recursive=True)
    return root


def plan(root: Location, policy: object = None) -> RetentionPlan:
    return plan_retention(root, policy, now=lambda: LATER)  # type: ignore[arg-type]


@pytest.mark.slow
def test_objects_named_by_another_scheme_stay(bucket: Location) -> None:
    result = plan(bucket)
    assert (deleted(result), result.stopped) == ([], ())
    assert [snapshot.restorable for snapshot in result.snapshots] == [True, True]


@pytest.mark.slow
def test_orphans_go_by_their_url(bucket: Location) -> None:
    names = [f"{JOB}/shared/{UUIDS[0]}", f"{JOB}/chk-1/{UUIDS[1]}"]
    for name in names:
        bucket.filesystem.pipe_file(join(bucket, name).path, b"state")
    result = plan(bucket)
    assert sorted(deleted(result)) == sorted(f"s3://{bucket.path}/{name}" for name in names)
    assert all(resolve(path.path, **bucket.filesystem.storage_options).path for path in result.delete)


@pytest.mark.slow
def test_marks_of_directories_are_not_unknown_files(bucket: Location) -> None:
    bucket.filesystem.pipe_file(join(bucket, JOB, "taskowned", "").path, b"")
    result = plan(bucket)
    assert (deleted(result), result.unknown) == ([], ())


@pytest.mark.slow
def test_a_policy_deletes_a_checkpoint_without_directories(bucket: Location) -> None:
    result = plan(bucket, {"checkpoints": {"last": 1}})
    assert deleted(result)[0] == f"s3://{bucket.path}/{JOB}/chk-2/_metadata"
    assert {path.kind for path in result.delete} == {"metadata", "checkpoint-file", "shared"}


@pytest.mark.slow
def test_pins_are_objects(bucket: Location) -> None:
    pin_snapshot(bucket, f"{JOB}/chk-2", reason="why")
    assert [pin.reason for pin in read_pins(bucket)] == ["why"]
    assert deleted(plan(bucket, {"checkpoints": {"last": 1}})) == []


@pytest.mark.slow
def test_keys_that_only_begin_like_the_root_are_not_below_it(bucket: Location) -> None:
    other = f"{bucket.path}2/{JOB}/shared/{UUIDS[0]}"
    bucket.filesystem.pipe_file(other, b"state")
    result = plan(bucket)
    assert (deleted(result), result.unknown) == ([], ())
