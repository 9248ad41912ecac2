"""The inventory of snapshots on an S3 server on this machine, stored there too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_objects, start_s3
from state_pipelines.errors import NotFoundError
from state_pipelines.metadata import write_metadata
from state_pipelines.operations.inventory import find_snapshot, read_inventory, update_inventory
from state_pipelines.storage import join, resolve
from tests.operations.inventory.trees import JOB, flink_metadata, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.storage import Location


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as started:
        yield started


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> Location:
    root = resolve(f"s3://{tmp_path.name.replace('_', '-').lower()}", **server.options)
    root.filesystem.mkdir(root.path)
    return root


@pytest.mark.slow
def test_updates_and_look_ups(bucket: Location) -> None:
    root, store = join(bucket, "checkpoints"), join(bucket, "results", "inventory.parquet")
    put(root, f"{JOB}/chk-1", 1)
    put(root, f"{JOB}/chk-2", 2)
    first = update_inventory([root], store)
    assert (len(first.new), len(update_inventory([root], store).new)) == (2, 0)
    put(root, f"{JOB}/chk-3", 3)
    assert [each.checkpoint_id for each in update_inventory([root], store).new] == [3]
    keys = read_inventory(store).keys
    assert {find_snapshot(key, [root], store).checkpoint_id for key in keys} == {1, 2, 3}


@pytest.mark.slow
def test_a_deleted_snapshot_is_gone(bucket: Location) -> None:
    root, store = join(bucket, "checkpoints"), join(bucket, "results", "inventory.parquet")
    directory = put(root, f"{JOB}/chk-1", 1)
    put(root, f"{JOB}/chk-2", 2)
    (key,) = (each.key for each in update_inventory([root], store).new if each.checkpoint_id == 1)
    root.filesystem.rm(directory.path, recursive=True)
    with pytest.raises(NotFoundError, match="is gone"):
        find_snapshot(key, [root], store)
    assert update_inventory([root], store).gone == (key,)


@pytest.mark.slow
def test_an_update_reads_only_the_metadata_of_new_snapshots() -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    content = write_metadata(flink_metadata())
    old = {f"store/flink/{JOB}/chk-{number}/_metadata": content for number in range(200)}
    with start_objects(
        {**old, **{f"store/flink/{JOB}/shared/{number:04}": b"state" for number in range(2000)}}
    ) as server:
        root, store = resolve("s3://store/flink", **server.options), resolve("s3://store/own/i", **server.options)

        def update() -> tuple[int, int]:
            """Number of snapshots that an update opened, and of requests below the root that were no listings."""
            server.clear()
            found = len(update_inventory([root], store).new)
            others = [path for _, path, *_ in server.requests if "list-type=2" not in path and "/own/" not in path]
            assert all(path.endswith("/_metadata") for path in others)
            return found, len(others)

        assert update() == (200, 200)
        # The inventory is read; whether the root exists is one listing, and one page has all but the shared files.
        assert update() == (0, 0)
        assert len(server.requests) <= 4
        put(root, f"{JOB}/chk-200", 200)
        assert update() == (1, 1)
