from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import CheckpointMetadata, read_metadata
from state_pipelines.operations.retention import PathKind, references
from state_pipelines.storage import SnapshotWriter, resolve
from tests.operations.retention.trees import (
    DATA,
    INCREMENTAL,
    JOB,
    NATIVE,
    OLD,
    OTHER_JOB,
    UUIDS,
    deleted,
    install_job,
    install_savepoint,
    kept_reason,
    plan,
    put,
    rewrite,
    set_age,
)

if TYPE_CHECKING:
    from pathlib import Path

TREES = sorted(path for path in DATA.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.parent.name}-{tree.name}")
def test_what_flink_references_stays(tree: Path) -> None:
    result = plan(tree, min_age=timedelta(0), path_mapping=[f"file:/flink-data/types={DATA}"])
    # Materializations that ended after the last checkpoint are orphans that Flink itself has left.
    left = 2 if tree.name.endswith("materialized") else 0
    assert [path.kind for path in result.delete] == [PathKind.TASK_OWNED] * left
    assert all(snapshot.restorable for snapshot in result.snapshots)
    assert {each.path.rpartition("/")[2] for each in result.unknown} <= {"case.json", "expected.jsonl.gz"}


def test_an_unreferenced_shared_file_goes(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0])
    result = plan(tmp_path)
    assert [(path.path, path.bytes, path.kind) for path in result.delete] == [(str(orphan), 5, PathKind.SHARED)]


def test_referenced_files_stay_with_their_referrer(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    result = plan(tmp_path)
    shared = sorted((job / "shared").iterdir())
    assert shared
    assert all(str(job) in kept_reason(result, file) for file in shared)


def test_an_unreferenced_file_younger_than_the_floor_stays(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0], age=timedelta(days=2))
    assert deleted(plan(tmp_path)) == []
    assert deleted(plan(tmp_path, min_age=timedelta(days=1))) == [str(orphan)]


def test_a_file_from_the_future_stays_without_a_floor(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0], age=timedelta(days=-1))
    assert deleted(plan(tmp_path, min_age=timedelta(0))) == []


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "000012.sst", UUIDS[0].upper(), UUIDS[0] + ".bak", UUIDS[0][:-1], "." + UUIDS[0], "_SUCCESS"],
)
def test_names_that_flink_does_not_write_are_unknown(tmp_path: Path, name: str) -> None:
    job = install_job(tmp_path)
    file = put(job / "shared" / name)
    result = plan(tmp_path)
    assert (deleted(result), [each.path for each in result.unknown]) == ([], [str(file)])


@pytest.mark.parametrize("directory", ["", "archive", f"{OTHER_JOB}/other", f"{JOB}/shared/sub"])
def test_random_names_elsewhere_are_unknown(tmp_path: Path, directory: str) -> None:
    install_job(tmp_path)
    file = put(tmp_path / directory / UUIDS[0])
    result = plan(tmp_path)
    assert (deleted(result), [each.path for each in result.unknown]) == ([], [str(file)])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{JOB}/taskowned/{UUIDS[0]}", PathKind.TASK_OWNED),
        (f"{JOB}/shared/job_{JOB}_op_7032eacd2f45f7a3bb4d1ebe95d70871_1_2/{UUIDS[0]}", PathKind.SHARED),
        (f"{JOB}/taskowned/job_{JOB}_tm_127_0_0_1_42-1a2b/{UUIDS[0]}", PathKind.TASK_OWNED),
        (f"changelog/{JOB}/dstl/{UUIDS[0]}", PathKind.CHANGELOG),
        (f"{JOB}/shared/op_AsyncKeyed_5cc8a169__1_2__attempt_0/db/{UUIDS[0]}", PathKind.SHARED),
        (f"{JOB}/chk-1/{UUIDS[0]}", PathKind.INCOMPLETE_CHECKPOINT),
        (f"{JOB}/chk-3/._metadata.inprogress.{UUIDS[0]}", PathKind.TEMPORARY),
        (f"{JOB}/chk-3/__metadata_tmp_{UUIDS[0]}", PathKind.TEMPORARY),
        (f"savepoint-66118e-0123456789ab/{UUIDS[0]}", PathKind.INCOMPLETE_SAVEPOINT),
        ("target/_metadata.pending", PathKind.TEMPORARY),
        ("migrated/_state-pipelines.json", PathKind.MANIFEST),
        ("savepoint-66118e-0123456789ab/_state-pipelines.json", PathKind.MANIFEST),
    ],
)
def test_every_place_of_flink_has_orphans(tmp_path: Path, name: str, kind: PathKind) -> None:
    install_job(tmp_path)
    orphan = put(tmp_path / name)
    result = plan(tmp_path)
    files = [(path.path, path.kind) for path in result.delete if path.kind is not PathKind.DIRECTORY]
    assert files == [(str(orphan), kind)]


def test_data_beside_a_pending_metadata_is_staging(tmp_path: Path) -> None:
    files = [put(tmp_path / "new" / name) for name in (UUIDS[0], "_metadata.pending")]
    result = plan(tmp_path)
    assert deleted(result) == [*sorted(map(str, files)), str(tmp_path / "new")]


def test_files_of_a_killed_rocksdb_writer_go(tmp_path: Path) -> None:
    names = (f"{UUIDS[0]}-0", f"{UUIDS[0]}-meta", "_metadata.pending")
    files = [put(tmp_path / "new" / name) for name in names]
    assert deleted(plan(tmp_path)) == [*sorted(map(str, files)), str(tmp_path / "new")]


def test_a_manifest_does_not_make_its_neighbours_temporary(tmp_path: Path) -> None:
    # What Flink leaves of a snapshot that it claimed: later checkpoints, also of other roots, may name the tables.
    for name in (UUIDS[0], "_state-pipelines.json"):
        put(tmp_path / "migrated" / name)
    assert deleted(plan(tmp_path)) == []


def test_a_manifest_alone_goes_with_its_directory(tmp_path: Path) -> None:
    # What Flink leaves of a snapshot that it claimed, once none of its checkpoints needs the files.
    manifest = put(tmp_path / "migrated" / "_state-pipelines.json")
    assert deleted(plan(tmp_path)) == [str(manifest), str(manifest.parent)]


@pytest.mark.parametrize("name", ["notes.txt", "_metadata", "more/notes.txt"])
def test_a_manifest_beside_something_else_stays(tmp_path: Path, name: str) -> None:
    put(tmp_path / "migrated" / "_state-pipelines.json")
    put(tmp_path / "migrated" / name)
    assert deleted(plan(tmp_path)) == []


def test_a_young_manifest_stays(tmp_path: Path) -> None:
    put(tmp_path / "migrated" / "_state-pipelines.json", age=timedelta())
    assert deleted(plan(tmp_path)) == []


def test_a_manifest_above_a_snapshot_is_not_alone(tmp_path: Path) -> None:
    put(tmp_path / "migrated" / "_state-pipelines.json")
    install_savepoint(tmp_path / "migrated")
    assert deleted(plan(tmp_path)) == []


def test_what_a_killed_writer_has_written_is_staging(tmp_path: Path) -> None:
    # Nothing of the block's end runs in a process that is killed.
    writer = SnapshotWriter(resolve(str(tmp_path / "new"))).__enter__()
    writer.write_file(UUIDS[0], b"state")
    set_age(tmp_path, OLD)
    assert [path.kind for path in plan(tmp_path).delete] == [PathKind.TEMPORARY] * 2 + [PathKind.DIRECTORY]


def test_spilled_parts_of_an_unfinished_write_go(tmp_path: Path) -> None:
    put(tmp_path / f".target-{UUIDS[0]}" / "0" / "part-1")
    assert deleted(plan(tmp_path))[0].endswith("/0/part-1")


def test_an_incomplete_checkpoint_goes_with_its_directory(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    file = put(job / "chk-1" / UUIDS[0])
    assert deleted(plan(tmp_path)) == [str(file), str(job / "chk-1")]


def test_an_unknown_file_keeps_its_directory(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    file = put(job / "chk-1" / UUIDS[0])
    put(job / "chk-1" / "notes.txt")
    assert deleted(plan(tmp_path)) == [str(file)]


def test_one_young_file_keeps_an_incomplete_checkpoint(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    put(job / "chk-1" / UUIDS[0])
    put(job / "chk-1" / UUIDS[1], age=timedelta(hours=1))
    assert deleted(plan(tmp_path)) == []


@pytest.mark.parametrize(("number", "goes"), [(1, True), (4, False)])
def test_of_a_job_that_may_run_only_superseded_incomplete_checkpoints_go(
    tmp_path: Path, number: int, goes: bool
) -> None:
    job = install_job(tmp_path)
    put(job / f"chk-{number}" / UUIDS[0])
    put(job / "shared" / UUIDS[1], age=timedelta(minutes=1))
    assert bool(deleted(plan(tmp_path))) is goes


def test_of_a_job_that_may_run_uploads_after_the_newest_checkpoint_stay(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    set_age(job / "chk-3" / "_metadata", timedelta(days=10))
    before = put(job / "shared" / UUIDS[0], age=timedelta(days=11))
    put(job / "shared" / UUIDS[1], age=timedelta(days=9))
    put(job / "shared" / UUIDS[2], age=timedelta(minutes=1))
    assert deleted(plan(tmp_path)) == [str(before)]


def test_merged_files_beside_ones_that_a_task_writes_stay(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    set_age(job / "chk-3" / "_metadata", timedelta(days=1))
    merged = f"job_{JOB}_op_7032eacd2f45f7a3bb4d1ebe95d70871"
    put(job / "shared" / f"{merged}_0_2" / UUIDS[0])
    put(job / "shared" / f"{merged}_0_2" / UUIDS[1], age=timedelta(days=1))
    idle = put(job / "shared" / f"{merged}_1_2" / UUIDS[2])
    assert deleted(plan(tmp_path)) == [str(idle)]


def test_an_open_forst_database_of_an_unsettled_job_stays_without_a_floor(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    set_age(job / "chk-3", timedelta(days=1))
    put(job / "shared" / "op_AsyncKeyed_5cc8a169__1_2__attempt_0" / "db" / UUIDS[0])
    assert deleted(plan(tmp_path, min_age=timedelta(0))) == []


def test_a_temporary_file_in_a_kept_snapshot_goes(tmp_path: Path) -> None:
    savepoint = install_savepoint(tmp_path)
    file = put(savepoint / f"._metadata.inprogress.{UUIDS[0]}")
    assert deleted(plan(tmp_path)) == [str(file)]


def test_unreferenced_data_in_a_kept_snapshot_stays(tmp_path: Path) -> None:
    savepoint = install_savepoint(tmp_path)
    file = put(savepoint / UUIDS[0])
    result = plan(tmp_path)
    assert deleted(result) == []
    assert "snapshot that stays" in kept_reason(result, file)


def test_claimed_files_of_a_savepoint_without_metadata_stay(tmp_path: Path) -> None:
    job = install_job(tmp_path / "checkpoints")
    claimed = put(tmp_path / "savepoints" / "savepoint-66118e-0123456789ab" / UUIDS[0], bytes(2000))
    abandoned = put(claimed.parent / UUIDS[1])
    shared = min((job / "shared").iterdir())
    for metadata in job.glob("chk-*/_metadata"):
        rewrite(metadata, lambda path: str(claimed) if path.endswith(shared.name) else path)
    result = plan(tmp_path / "checkpoints", tmp_path / "savepoints")
    assert set(deleted(result)) == {str(shared), str(abandoned)}
    assert str(job) in kept_reason(result, claimed)


def test_a_job_references_files_of_another_one(tmp_path: Path) -> None:
    first = install_job(tmp_path, job=OTHER_JOB)
    second = install_job(tmp_path)
    for metadata in second.glob("chk-*/_metadata"):
        rewrite(metadata, lambda path: path.replace(JOB, OTHER_JOB))
    for file in (second / "shared").iterdir():
        file.unlink()
    for checkpoint in first.glob("chk-*/_metadata"):
        checkpoint.unlink()
    result = plan(tmp_path)
    assert not [path for path in deleted(result) if "/shared/" in path]


def test_names_that_only_begin_alike_are_different_jobs(tmp_path: Path) -> None:
    one, other = tmp_path / "job1", tmp_path / "job10"
    job = install_job(one)
    install_job(other, job=OTHER_JOB)
    # What job10 references at the same relative path does not keep a file of job1.
    orphan = put(job / "shared" / UUIDS[0])
    assert deleted(plan(one)) == [str(orphan)]


@pytest.mark.parametrize(
    ("root", "written"),
    [
        ("{}", "file:{}"),
        ("file://{}", "file:{}"),
        ("{}", "file://{}"),
        ("{}/", "file://localhost{}"),
        ("{}", "{}/"),
        ("{}/./", "{}/x/.."),
    ],
)
def test_spellings_of_a_local_path_are_one(tmp_path: Path, root: str, written: str) -> None:
    install_job(tmp_path, url=written.format(tmp_path))
    result = plan(root.format(tmp_path))
    assert deleted(result) == []
    assert result.stopped == ()
    assert all(snapshot.restorable for snapshot in result.snapshots)


def test_a_reference_through_a_linked_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    install_job(tmp_path / "real", url=f"file:{tmp_path}/alias")
    result = plan(tmp_path / "real")
    assert (deleted(result), result.stopped) == ([], ())


def test_a_root_that_is_a_link_is_searched(tmp_path: Path) -> None:
    job = install_job(tmp_path / "real")
    put(job / "shared" / UUIDS[0])
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    assert deleted(plan(tmp_path / "alias")) == [f"{tmp_path}/alias/{JOB}/shared/{UUIDS[0]}"]


def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "shared" / UUIDS[0])
    job = install_job(tmp_path / "root")
    (job / "shared" / UUIDS[1]).symlink_to(outside)
    (tmp_path / "root" / OTHER_JOB).symlink_to(tmp_path / "outside")
    result = plan(tmp_path / "root")
    assert deleted(result) == []
    assert [each.path for each in result.unknown] == sorted(
        [str(job / "shared" / UUIDS[1]), str(tmp_path / "root" / OTHER_JOB)]
    )
    assert str(tmp_path / "root" / OTHER_JOB) in result.notes[0]


def test_a_linked_metadata_stops_what_it_may_need(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    metadata = job / "chk-2" / "_metadata"
    metadata.rename(tmp_path / "elsewhere")
    metadata.symlink_to(tmp_path / "elsewhere")
    put(job / "shared" / UUIDS[0])
    result = plan(tmp_path)
    assert (deleted(result), str(metadata) in result.stopped[0]) == ([], True)


def test_hard_links_count_once_all_names_go(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    one = put(job / "shared" / UUIDS[0], b"12345678")
    os.link(one, job / "shared" / UUIDS[1])
    result = plan(tmp_path)
    assert (len(result.delete), result.bytes) == (2, 8)


def test_a_hard_link_elsewhere_keeps_the_bytes(tmp_path: Path) -> None:
    job = install_job(tmp_path / "root")
    os.link(put(job / "shared" / UUIDS[0], b"12345678"), tmp_path / "copy")
    assert plan(tmp_path / "root").bytes == 0


@pytest.mark.slow
def test_a_tree_known_by_another_prefix_stops_deletion(tmp_path: Path) -> None:
    job = install_job(tmp_path, url="hdfs://nameservice/flink")
    put(job / "shared" / UUIDS[0])
    result = plan(tmp_path)
    assert deleted(result) == []
    assert "outside all roots" in result.stopped[0]
    mapped = plan(tmp_path, path_mapping=[f"hdfs://nameservice/flink={tmp_path}"])
    assert deleted(mapped) == [str(job / "shared" / UUIDS[0])]


def test_a_copy_of_a_referenced_file_stays(tmp_path: Path) -> None:
    job = install_job(tmp_path / "checkpoints")
    name = min(file.name for file in (job / "shared").iterdir())
    copy = put(tmp_path / "checkpoints" / OTHER_JOB / "shared" / name)
    result = plan(tmp_path / "checkpoints")
    assert deleted(result) == []
    assert "may be its copy" in kept_reason(result, copy)


@pytest.mark.parametrize("damage", [b"", b"not metadata", None])
def test_an_unreadable_metadata_stops_what_it_may_need(tmp_path: Path, damage: bytes | None) -> None:
    job = install_job(tmp_path)
    put(job / "shared" / UUIDS[0])
    put(job / "taskowned" / UUIDS[1])
    put(job / "chk-1" / UUIDS[2])
    temporary = put(job / "chk-2" / f"._metadata.inprogress.{UUIDS[3]}")
    metadata = job / "chk-3" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-40] if damage is None else damage)
    result = plan(tmp_path)
    assert deleted(result) == [str(temporary)]
    assert str(metadata) in result.stopped[0]


def test_an_unreadable_metadata_below_one_root_stops_the_others(tmp_path: Path) -> None:
    job = install_job(tmp_path / "one")
    put(job / "shared" / UUIDS[0])
    put(tmp_path / "two" / "savepoint-123456-123456789abc" / "_metadata", b"damaged")
    assert deleted(plan(tmp_path / "one", tmp_path / "two")) == []


def test_state_of_a_write_ahead_sink_keeps_task_owned_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint = install_savepoint(tmp_path, NATIVE)
    states = [
        state.state_name
        for operator in read(savepoint).operator_states
        for subtask in operator.subtasks
        if subtask.managed_operator_state is not None
        for state in subtask.managed_operator_state.states
    ]
    put(tmp_path / JOB / "taskowned" / UUIDS[0])
    assert len(deleted(plan(tmp_path))) > 0
    monkeypatch.setattr(references, "_WRITE_AHEAD_STATE", states[0])
    assert deleted(plan(tmp_path)) == []


def read(snapshot: Path) -> CheckpointMetadata:
    return read_metadata((snapshot / "_metadata").read_bytes())


def test_empty_directories_of_a_job_that_is_gone_go(tmp_path: Path) -> None:
    for name in ("chk-7", "shared", "taskowned"):
        (tmp_path / OTHER_JOB / name).mkdir(parents=True)
    set_age(tmp_path / OTHER_JOB, OLD)
    assert deleted(plan(tmp_path))[-1] == str(tmp_path / OTHER_JOB)
    assert len(deleted(plan(tmp_path))) == 4


def test_empty_directories_of_a_job_that_stays_stay(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    (job / "taskowned").mkdir(exist_ok=True)
    set_age(job, OLD)
    assert deleted(plan(tmp_path)) == []


def test_young_empty_directories_stay(tmp_path: Path) -> None:
    (tmp_path / OTHER_JOB / "chk-1").mkdir(parents=True)
    assert deleted(plan(tmp_path)) == []


def test_the_directory_of_retention_is_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path / "_retention" / "quarantine" / "shared" / UUIDS[0])
    put(tmp_path / "_retention" / "quarantine" / "chk-1" / "_metadata", b"not read")
    result = plan(tmp_path)
    assert (result.delete, result.keep, result.unknown, result.stopped) == ((), (), (), ())


def test_a_root_inside_another_is_searched_once(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphan = put(job / "shared" / UUIDS[0])
    result = plan(tmp_path, job, str(tmp_path) + "/")
    assert (deleted(result), result.roots) == ([str(orphan)], (str(tmp_path),))


def test_the_directory_of_one_job_is_a_root(tmp_path: Path) -> None:
    job = install_job(tmp_path)
    orphans = [put(job / "shared" / UUIDS[0]), put(job / "chk-1" / UUIDS[1])]
    assert set(deleted(plan(job))) == {*map(str, orphans), str(job / "chk-1")}


def test_checkpoints_without_a_directory_per_job(tmp_path: Path) -> None:
    install_job(tmp_path, job="flat")
    orphans = [put(tmp_path / "flat" / "shared" / UUIDS[0]), put(tmp_path / "flat" / "chk-1" / UUIDS[1])]
    result = plan(tmp_path / "flat")
    assert set(deleted(result)) == {*map(str, orphans), str(tmp_path / "flat" / "chk-1")}
    assert {snapshot.job for snapshot in result.snapshots} == {f"file:{tmp_path}/flat"}


def test_what_an_interrupted_application_was_deleting_goes(tmp_path: Path) -> None:
    file = put(tmp_path / "migrated" / UUIDS[0], age=timedelta(0))
    status = file.stat()
    leftover = (str(file), status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
    assert deleted(plan(tmp_path)) == []
    assert deleted(plan(tmp_path, leftovers={leftover})) == [str(file)]


def test_incremental_source_has_shared_files() -> None:
    assert len(list((INCREMENTAL / "shared").iterdir())) > 5
