from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from state_pipelines.errors import NotFoundError
from state_pipelines.operations.retention.own_directory import AuditLog, AuditRecord, DeletionOutcome
from state_pipelines.operations.retention.policy import PathKind
from state_pipelines.operations.retention.quarantine import (
    list_quarantine,
    purge_quarantine,
    quarantine_location,
    restore_quarantined,
)
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import Location, parse_path_mapping, resolve
from state_pipelines.storage.snapshot_writer import find_snapshots, move_file
from tests.operations.retention.tree import make_tree
from tests.operations.retention.trees import install_job, plan

NOW = datetime(2026, 1, 10, tzinfo=UTC)
PLAN, LATER_PLAN = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def root(tmp_path: Path) -> Location:
    (tmp_path / "root").mkdir()
    return resolve(str(tmp_path / "root"))


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(resolve(str(tmp_path / "log")))


def write(root: Location, name: str, content: str = "x") -> Path:
    path = Path(root.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def quarantine(root: Location, *paths: Path, fingerprint: str = PLAN, since: datetime = NOW) -> None:
    for path in paths:
        location = resolve(str(path))
        move_file(location, quarantine_location(root, location, fingerprint, since), root)


def test_a_moved_file_says_where_it_belongs(root: Location) -> None:
    file = write(root, "job/shared/a", "content")
    quarantine(root, file)
    (found,) = list_quarantine([root])
    assert (found.original.path, found.bytes, found.fingerprint, found.since) == (str(file), 7, PLAN, NOW)
    assert not file.exists()


def test_a_plan_is_restored_by_its_fingerprint(root: Location, log: AuditLog) -> None:
    files = [write(root, name, name) for name in ("job/chk-1/_metadata", "job/chk-1/a", "job/shared/b")]
    other = write(root, "job/shared/c")
    quarantine(root, *files)
    quarantine(root, other, fingerprint=LATER_PLAN)
    restore_quarantined([root], PLAN, log, now=NOW)
    assert [file.read_text() for file in files] == ["job/chk-1/_metadata", "job/chk-1/a", "job/shared/b"]
    assert not other.exists()


def test_a_directory_is_restored_by_its_path(root: Location, log: AuditLog) -> None:
    one, two = write(root, "job/chk-1/a"), write(root, "job/chk-10/a")
    quarantine(root, one, two)
    restore_quarantined([root], str(one.parent), log, now=NOW)
    assert (one.exists(), two.exists()) == (True, False)


def test_a_snapshot_comes_back_with_shared_files_that_a_later_plan_has_moved(tmp_path: Path, log: AuditLog) -> None:
    tree = make_tree(tmp_path, counts=(2, 0, 0))
    root = resolve(str(tree.checkpoints))
    snapshot = tree.of("first")[0]
    before = open_snapshot(str(snapshot.path)).operator("few-states").state("map").to_arrow()
    quarantine(root, *snapshot.own)
    quarantine(root, *(snapshot.files - snapshot.own), fingerprint=LATER_PLAN)
    restore_quarantined([root], str(snapshot.path), log, now=NOW)
    assert open_snapshot(str(snapshot.path)).operator("few-states").state("map").to_arrow().equals(before)


def test_metadata_comes_back_last(root: Location, log: AuditLog) -> None:
    metadata, data = write(root, "job/chk-1/_metadata"), write(root, "job/chk-1/z")
    metadata.write_bytes(b"")
    quarantine(root, data)
    quarantine(root, metadata, fingerprint=LATER_PLAN)
    records = restore_quarantined([root], str(metadata.parent), log, now=NOW)
    assert [record.path for record in records] == [str(data), str(metadata)]


def test_a_file_that_exists_again_is_not_replaced_and_metadata_stays_behind(root: Location, log: AuditLog) -> None:
    metadata, data = write(root, "job/chk-1/_metadata"), write(root, "job/chk-1/a", "old")
    quarantine(root, metadata, data)
    write(root, "job/chk-1/a", "new")
    records = restore_quarantined([root], PLAN, log, now=NOW)
    assert {record.outcome for record in records} == {DeletionOutcome.FAILED}
    assert (data.read_text(), metadata.exists()) == ("new", False)
    assert len(list_quarantine([root])) == 2


def test_unknown_fingerprint_names_those_that_are_there(root: Location, log: AuditLog) -> None:
    quarantine(root, write(root, "job/shared/a"))
    with pytest.raises(NotFoundError, match=PLAN):
        restore_quarantined([root], LATER_PLAN, log, now=NOW)


def test_only_what_is_due_is_purged(root: Location, log: AuditLog) -> None:
    old, young = write(root, "job/shared/a"), write(root, "job/shared/b")
    quarantine(root, old, since=NOW - timedelta(days=8))
    quarantine(root, young, since=NOW - timedelta(days=6), fingerprint=LATER_PLAN)
    records = purge_quarantine([root], timedelta(days=7), log, now=NOW)
    assert [(record.path, record.outcome) for record in records] == [(str(old), DeletionOutcome.PURGED)]
    assert [file.original.path for file in list_quarantine([root])] == [str(young)]


def test_purge_leaves_no_empty_directories(root: Location, log: AuditLog) -> None:
    quarantine(root, write(root, "job/shared/a"))
    purge_quarantine([root], timedelta(0), log, now=NOW)
    assert list(Path(root.path, "_retention").iterdir()) == []


def test_restore_and_purge_are_in_the_audit_log(root: Location, log: AuditLog) -> None:
    quarantine(root, write(root, "job/shared/a"), write(root, "job/shared/b"))
    restore_quarantined([root], f"{root.path}/job/shared/a", log, now=NOW)
    purge_quarantine([root], timedelta(0), log, now=NOW)
    outcomes = {(Path(record.path).name, record.outcome) for record in log.read()}
    assert outcomes == {
        ("a", DeletionOutcome.INTENDED),
        ("a", DeletionOutcome.RESTORED),
        ("b", DeletionOutcome.INTENDED),
        ("b", DeletionOutcome.PURGED),
    }


def test_a_quarantined_snapshot_is_not_found_below_the_root(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, counts=(2, 0, 0))
    root = resolve(str(tree.checkpoints))
    first, second = tree.of("first")
    quarantine(root, *first.own)
    assert [each.location.directory.path for each in find_snapshots(root)] == [str(second.path)]


def test_a_restore_that_was_killed_after_its_moves_is_finished_by_the_next_one(
    root: Location, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(root, "job/shared/a")
    quarantine(root, file)
    kill_restore(root, log, monkeypatch, "append")
    (record,) = restore_quarantined([root], PLAN, log)
    assert (record.path, record.outcome) == (str(file), DeletionOutcome.RESTORED)
    assert not log.find_unfinished_runs()
    with pytest.raises(NotFoundError, match="It was restored before"):
        restore_quarantined([root], PLAN, log)


def test_a_restore_that_was_killed_after_its_last_line_was_done(
    root: Location, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine(root, write(root, "job/shared/a"))
    kill_restore(root, log, monkeypatch, "finish")
    with pytest.raises(NotFoundError, match="It was restored before"):
        restore_quarantined([root], PLAN, log)
    assert not log.find_unfinished_runs()


def test_a_restore_that_was_killed_between_two_moves_is_logged_as_a_whole(
    root: Location, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(root, "job/shared/a"), write(root, "job/shared/b")
    quarantine(root, first, second)
    moves: list[Location] = []

    def move(source: Location, target: Location, root: Location) -> None:
        if moves:
            raise KeyboardInterrupt
        moves.append(target)
        move_file(source, target, root)

    with monkeypatch.context() as patched:
        patched.setattr("state_pipelines.operations.retention.quarantine.move_file", move)
        with pytest.raises(KeyboardInterrupt):
            restore_quarantined([root], PLAN, log)
    records = restore_quarantined([root], PLAN, log)
    assert sorted(record.path for record in records) == [str(first), str(second)]
    assert {record.outcome for record in records} == {DeletionOutcome.RESTORED}
    assert not log.find_unfinished_runs()


def test_a_file_that_is_not_the_restored_one_is_not_logged_as_restored(
    root: Location, log: AuditLog, tmp_path: Path
) -> None:
    file = write(root, "job/shared/a", "old")
    quarantine(root, file)
    write(root, "job/shared/a", "another")
    (failed,) = restore_quarantined([root], PLAN, log)
    assert failed.outcome is DeletionOutcome.FAILED
    purge_quarantine([root], timedelta(0), log)
    with pytest.raises(NotFoundError, match="The quarantines of the roots are empty"):
        restore_quarantined([root], PLAN, log)
    assert all(record.outcome is not DeletionOutcome.RESTORED for record in log.read())


def test_paths_outside_of_the_roots_in_an_unfinished_restore_are_not_looked_for(
    root: Location, log: AuditLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    file = write(root, "job/shared/a")
    quarantine(root, file)
    kill_restore(root, log, monkeypatch, "append")
    (started,) = (tmp_path / "log").rglob("*started.jsonl")
    text = started.read_text()
    started.write_text(text.replace(str(file), str(secret)))
    with pytest.raises(NotFoundError):
        restore_quarantined([root], PLAN, log)


def kill_restore(root: Location, log: AuditLog, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Let a restore end at a call of its run in the audit log."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"state_pipelines.operations.retention.own_directory.AuditRun.{call}", die)
        with pytest.raises(KeyboardInterrupt):
            restore_quarantined([root], PLAN, log)


def test_spellings_of_the_path_of_a_snapshot(root: Location, log: AuditLog, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root.path)
    for spelling in (
        "job/chk-1",
        "./job//chk-1/",
        " job/chk-1/_metadata",
        f"{root.path}/../root/job/chk-1",
        f"file:{root.path}/job/chk-1",
        f"file://{root.path}/job/chk-1/_metadata",
        f"{tmp_path}/link/job/chk-1",
    ):
        files = [write(root, "job/chk-1/_metadata"), write(root, "job/chk-1/a")]
        other = write(root, "job/chk-10/a")
        quarantine(root, *files, other)
        restore_quarantined([root], spelling, log)
        assert [each.exists() for each in (*files, other)] == [True, True, False], spelling
        restore_quarantined([root], "job/chk-10", log)


def outcomes(records: list[AuditRecord]) -> dict[str, tuple[DeletionOutcome, str]]:
    return {Path(each.path).name: (each.outcome, each.detail) for each in records if each.path.endswith("_metadata")}


def quarantine_snapshot(root: Location, job: Path, *, shared: str = PLAN) -> tuple[Path, set[Path]]:
    """Move a checkpoint and what only it needs to the quarantine; the shared files with another plan."""
    first = plan(root.path, policy={"checkpoints": {"last": 1}})
    going = [Path(each.path) for each in first.delete if each.kind is not PathKind.DIRECTORY]
    files = {each for each in going if each.parent.name == "shared"}
    quarantine(root, *(each for each in going if each not in files))
    quarantine(root, *files, fingerprint=shared)
    return job / "chk-2", files


def test_a_restored_snapshot_is_verified(root: Location, log: AuditLog) -> None:
    _, shared = quarantine_snapshot(root, install_job(Path(root.path)), shared=LATER_PLAN)
    assert len(shared) > 1
    # By its plan, the shared files come too; what was deleted meanwhile is named.
    lost = sorted(shared)[0]
    (file,) = [each for each in list_quarantine([root]) if each.original.path == str(lost)]
    Path(file.location.path).unlink()
    records = restore_quarantined([root], PLAN, log)
    outcome, detail = outcomes(records)["_metadata"]
    assert (outcome, lost.name in detail, "does not exist" in detail) == (DeletionOutcome.INCOMPLETE, True, True)
    assert all(each.exists() for each in shared if each != lost)
    assert any(each.outcome is DeletionOutcome.INCOMPLETE for each in log.read())


def test_a_whole_snapshot_is_restored_without_a_remark(root: Location, log: AuditLog) -> None:
    snapshot, _ = quarantine_snapshot(root, install_job(Path(root.path)))
    assert outcomes(restore_quarantined([root], str(snapshot), log)) == {"_metadata": (DeletionOutcome.RESTORED, "")}


def test_a_moved_snapshot_comes_back_whole_and_is_judged_with_a_mapping(root: Location, log: AuditLog) -> None:
    job = install_job(Path(root.path), url="hdfs://elsewhere/flink")
    mapping = [f"hdfs://elsewhere/flink={root.path}"]
    first = plan(root.path, policy={"checkpoints": {"last": 1}}, path_mapping=mapping)
    files = [Path(each.path) for each in first.delete if each.kind is not PathKind.DIRECTORY]
    for fingerprint in (PLAN, LATER_PLAN):
        own = [each for each in files if (each.parent.name == "shared") is (fingerprint == LATER_PLAN)]
        quarantine(root, *own, fingerprint=fingerprint)
    records = restore_quarantined([root], str(job / "chk-2"), log)
    # Without the mapping the names of the files tell, but the snapshot does not say where they are.
    assert all(each.exists() for each in files)
    outcome, detail = outcomes(records)["_metadata"]
    assert (outcome is not DeletionOutcome.FAILED, "elsewhere" in detail) == (True, True)
    quarantine(root, *files)
    records = restore_quarantined([root], PLAN, log, path_mapping=parse_path_mapping(mapping))
    assert outcomes(records) == {"_metadata": (DeletionOutcome.RESTORED, "")}


def test_a_snapshot_that_is_back_gets_the_files_that_it_lacks(root: Location, log: AuditLog) -> None:
    snapshot, shared = quarantine_snapshot(root, install_job(Path(root.path)))
    for file in list_quarantine([root]):
        if Path(file.original.path).parent.name != "shared":
            move_file(file.location, file.original, root)
    records = restore_quarantined([root], str(snapshot), log)
    assert {Path(each.path) for each in records} == shared
    quarantine(root, *shared)
    lost = list_quarantine([root])[0]
    Path(lost.location.path).unlink()
    records = restore_quarantined([root], str(snapshot), log)
    assert outcomes(records)["_metadata"][0] is DeletionOutcome.INCOMPLETE


def test_the_quarantine_of_a_directory_above_is_searched(tmp_path: Path, log: AuditLog) -> None:
    team = resolve(str(tmp_path / "all" / "team"))
    above = resolve(str(tmp_path / "all"))
    quarantine_snapshot(team, install_job(Path(team.path)))
    other = write(above, "other/job/shared/a")
    quarantine(above, other)
    moved = [(each.original, each.location) for each in list_quarantine([team])]
    for original, location in moved:
        move_file(location, quarantine_location(above, original, PLAN, NOW), above)
    (tmp_path / "link").symlink_to(team.path)
    records = restore_quarantined([resolve(str(tmp_path / "link"))], PLAN, log)
    assert len(records) == len(moved)
    assert outcomes(records) == {"_metadata": (DeletionOutcome.RESTORED, "")}
    assert not other.exists()
