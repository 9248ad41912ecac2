"""Plans over an S3 server that read only what has changed since an earlier plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.s3_server import S3Server, start_objects
from state_pipelines.metadata import list_references, write_metadata
from state_pipelines.metadata.handles import RelativeFileStateHandle
from state_pipelines.operations.retention import RetentionPlan, plan_retention
from state_pipelines.storage import Location, join, resolve
from tests.operations.inventory.trees import JOB, flink_metadata, put

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOTS = 20
MANY = 80
LATER = datetime.now(UTC) + timedelta(days=30)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    objects: dict[str, bytes] = {}
    for number in range(getattr(request, "param", SNAPSHOTS)):
        directory = f"store/flink/{JOB}/chk-{number}"
        objects[f"{directory}/_metadata"] = write_metadata(replace(flink_metadata(), checkpoint_id=number))
    for reference in list_references(flink_metadata()):
        if isinstance(reference.handle, RelativeFileStateHandle):
            # Of the first snapshot, so that it can be restored.
            name = f"store/flink/{JOB}/chk-0/{reference.handle.relative_path}"
            objects[name] = bytes(reference.handle.size)
    with start_objects(objects, datetime(2026, 1, 1, tzinfo=UTC)) as server:
        yield server


@pytest.fixture
def root(server: S3Server) -> Location:
    return resolve("s3://store/flink", **server.options)


def plan(
    root: Location, server: S3Server, *, stored: bool = True, more: dict[str, object] | None = None
) -> tuple[RetentionPlan, list[str]]:
    """A plan, and the snapshots whose `_metadata` it has read."""
    file = join(root, "_retention", "references.parquet") if stored else None
    server.clear()
    policy: dict[str, object] = {"checkpoints": {"last": 3}} | (more or {})
    given = None if file is None else file.url
    made = plan_retention(root, policy, references=given, storage_options=server.options, now=lambda: LATER)
    paths = [path for method, path, *_ in server.requests if method == "GET" and path.endswith("/_metadata")]
    return made, sorted(path.split("/")[-2] for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("server", [MANY], indirect=True)
def test_only_new_snapshots_are_read(root: Location, server: S3Server) -> None:
    expected, read = plan(root, server, stored=False)
    assert len(read) == MANY
    assert [each.restorable for each in expected.snapshots].count(True) == 1
    assert plan(root, server) == (expected, read)
    assert plan(root, server) == (expected, [])
    # The stored references, the pins, the audit log, and what lists all.
    assert len(server.requests) < 20
    put(root, f"{JOB}/chk-200", 200)
    made, read = plan(root, server)
    assert read == ["chk-200"]
    assert made == plan(root, server, stored=False)[0]


@pytest.mark.slow
def test_a_snapshot_whose_files_have_changed_is_judged_again(root: Location, server: S3Server) -> None:
    plan(root, server)
    (file, *_) = [each for each in root.filesystem.find(join(root, JOB, "chk-0").path) if "_metadata" not in each]
    root.filesystem.rm_file(file)
    made, read = plan(root, server)
    assert read == ["chk-0"]
    assert not any(each.restorable for each in made.snapshots)


@pytest.mark.slow
def test_a_deleted_snapshot_is_no_reference(root: Location, server: S3Server) -> None:
    plan(root, server)
    root.filesystem.rm_file(join(root, JOB, "chk-7", "_metadata").path)
    made, read = plan(root, server)
    assert (len(made.snapshots), read) == (SNAPSHOTS - 1, [])


@pytest.mark.slow
@pytest.mark.parametrize("change", ["damage", "kind", "settings"])
def test_references_that_do_not_count_are_read_again(root: Location, server: S3Server, change: str) -> None:
    expected, _ = plan(root, server)
    if change == "settings":
        assert len(plan(root, server, more={"equal-authorities": [["store", "other"]]})[1]) == SNAPSHOTS
        return
    file = join(root, "_retention", "references.parquet").path
    root.filesystem.pipe_file(file, b"PAR1 is not one" if change == "damage" else change_kinds(root, file))
    assert plan(root, server) == (expected, sorted(f"chk-{number}" for number in range(SNAPSHOTS)))
    assert plan(root, server) == (expected, [])


def change_kinds(root: Location, file: str) -> bytes:
    table = pq.read_table(pa.BufferReader(root.filesystem.cat_file(file)))
    kinds = table.schema.get_field_index("kind")
    changed = table.set_column(kinds, table.schema.field(kinds), pa.array(["ch3ckpoint"] * len(table)))
    sink = pa.BufferOutputStream()
    pq.write_table(changed, sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written
