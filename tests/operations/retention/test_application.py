from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import IncompatibleError, MissingFileError, StateError, StorageError, UsageError
from state_pipelines.operations.retention import (
    PathKind,
    RetentionPlan,
    application,
    plan_retention,
    survey,
)
from state_pipelines.operations.retention.application import ApplyLimits, ApplyResult, apply_plan
from state_pipelines.operations.retention.own_directory import AuditLog, DeletionOutcome
from state_pipelines.operations.retention.quarantine import list_quarantine, restore_quarantined
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import stat_files
from tests.operations.retention.tree import Tree, TreeSnapshot, make_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import FileEntry, Location

pytestmark = pytest.mark.slow

POLICY = {"checkpoints": {"last": 3}}
FAST = ApplyLimits(paths_per_second=1e9)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return make_tree(tmp_path, counts=(7, 4, 4))


def plan(tree: Tree, policy: dict[str, Any] | None = None) -> RetentionPlan:
    return plan_retention(tree.roots, policy)


def apply(tree: Tree, policy: dict[str, Any] | None = None, **options: Any) -> ApplyResult:
    options.setdefault("fingerprint", plan(tree, policy).fingerprint)
    options.setdefault("limits", FAST)
    return apply_plan(tree.roots, policy, **options)


def read_log(tree: Tree) -> AuditLog:
    return AuditLog(resolve(str(tree.checkpoints / "_retention" / "log")))


def read_whole(snapshot: TreeSnapshot) -> int:
    """The number of all rows of a snapshot."""
    # The savepoint that a job was restored from in CLAIM mode is beside its checkpoints, below another root.
    opened = open_snapshot(str(snapshot.path), allow_roots=[str(each) for each in snapshot.path.parents[:4]])
    return sum(state.to_arrow().num_rows for operator in opened.operators for state in operator.states)


def state_files(tree: Tree) -> set[Path]:
    return {path for path in tree.files() if "_retention" not in path.parts}


def kept_by_policy(tree: Tree) -> list[TreeSnapshot]:
    newest = [each for job in ("first", "second", "third") for each in tree.of(job)[-3:]]
    return [*newest, *tree.of("")]


@pytest.mark.essential
def test_orphans_go_and_nothing_else(tree: Tree) -> None:
    before = state_files(tree)
    result = apply(tree)
    assert before - state_files(tree) == tree.orphans
    assert result.finished
    assert not result.kept


@pytest.mark.essential
def test_a_policy_deletes_snapshots_and_what_only_they_need(tree: Tree) -> None:
    apply(tree, POLICY)
    needed = {file for snapshot in kept_by_policy(tree) for file in snapshot.files}
    assert state_files(tree) == needed | tree.young | tree.foreign


def test_every_snapshot_that_stays_is_read_whole(tree: Tree) -> None:
    apply(tree, POLICY)
    assert {read_whole(snapshot) for snapshot in kept_by_policy(tree)} == {60}


def test_emptied_directories_are_removed(tree: Tree) -> None:
    apply(tree, POLICY)
    assert not [path for path in tree.checkpoints.rglob("chk-*") if not list(path.iterdir())]


@pytest.mark.essential
def test_another_fingerprint_is_refused_and_nothing_is_deleted(tree: Tree) -> None:
    before = tree.files()
    with pytest.raises(IncompatibleError, match=plan(tree).fingerprint):
        apply(tree, fingerprint="0123456789abcdef")
    assert tree.files() == before


def test_the_error_says_what_has_changed_since_the_plan(tree: Tree) -> None:
    old = plan(tree)
    orphan = min(tree.orphans)
    orphan.write_bytes(b"young again")
    with pytest.raises(IncompatibleError, match=f"{orphan.name}.* would stay now"):
        apply(tree, fingerprint=old.fingerprint, planned=old.delete)


def test_a_plan_is_applied_once(tree: Tree) -> None:
    fingerprint = plan(tree, POLICY).fingerprint
    apply(tree, POLICY, fingerprint=fingerprint)
    files = tree.files()
    again = apply(tree, POLICY, fingerprint=fingerprint)
    assert (again.paths, again.finished, tree.files()) == (0, True, files)


def test_intent_of_every_path_is_logged_before_anything_is_deleted(tree: Tree) -> None:
    planned = plan(tree, POLICY)
    apply(tree, POLICY)
    (run,) = read_log(tree).find_runs()
    records = list(run.read())
    intents = [record.path for record in records if record.outcome is DeletionOutcome.INTENDED]
    assert intents == [each.path for each in planned.delete]
    assert [record.outcome for record in records[: len(intents)]] == [DeletionOutcome.INTENDED] * len(intents)


def test_outcome_of_every_path_is_logged(tree: Tree) -> None:
    planned = plan(tree, POLICY)
    apply(tree, POLICY)
    deleted = {record.path: record for record in read_log(tree).read() if record.outcome is DeletionOutcome.DELETED}
    assert set(deleted) == {each.path for each in planned.delete}
    assert sum(record.bytes for record in deleted.values()) == planned.bytes
    assert {record.fingerprint for record in deleted.values()} == {planned.fingerprint}


def test_result_counts_by_kind(tree: Tree) -> None:
    planned = plan(tree, POLICY)
    result = apply(tree, POLICY)
    assert result.done == {kind.value: count for kind, count in planned.count_by_kind().items()}


def test_metadata_goes_before_the_files_it_references(tree: Tree) -> None:
    apply(tree, POLICY, limits=ApplyLimits(paths_per_second=1e9, batch=7))
    order = [record.path for record in read_log(tree).read() if record.outcome is DeletionOutcome.DELETED]
    for snapshot in tree.snapshots:
        metadata = str(snapshot.path / "_metadata")
        if metadata in order:
            files = {str(file) for file in snapshot.files} & set(order)
            assert min(map(order.index, files)) == order.index(metadata)


@pytest.mark.parametrize("log", ["log of retention", "memory"])
def test_the_log_can_be_elsewhere(tree: Tree, tmp_path: Path, log: str) -> None:
    path = "memory://audit" if log == "memory" else str(tmp_path / log)
    apply(tree, audit_log=path)
    assert {record.path for record in AuditLog(resolve(path)).read()} >= {str(path) for path in tree.orphans}
    assert not (tree.checkpoints / "_retention").exists()


def test_a_log_where_files_are_deleted_is_refused(tree: Tree) -> None:
    before = tree.files()
    with pytest.raises(UsageError, match="audit log"):
        apply(tree, POLICY, audit_log=str(tree.of("first")[0].path / "log"))
    assert tree.files() == before


@pytest.mark.parametrize(("kind", "error"), [("checkpoint-file", MissingFileError), ("metadata", StorageError)])
def test_a_file_that_cannot_be_checked_is_tried_again_by_the_next_run(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[StateError]
) -> None:
    planned = plan(tree, POLICY)
    victim = Path(next(each.path for each in planned.delete if each.kind == kind))

    def refuse(locations: Sequence[Location], roots: Sequence[Location]) -> list[FileEntry | StateError | None]:
        states = zip(locations, stat_files(locations, roots), strict=True)
        return [error("access denied") if location.path == str(victim) else state for location, state in states]

    with monkeypatch.context() as patched:
        patched.setattr(application, "stat_files", refuse)
        result = apply(tree, POLICY, fingerprint=planned.fingerprint)
    assert not result.finished
    assert str(victim) in {record.path for record in result.failed}
    assert victim.exists()
    if kind == "metadata":
        assert "could not be checked" in result.stopped
        assert read_whole(tree.of("first")[0]) == 60
    else:
        assert [record.path for record in result.failed] == [str(victim), str(victim.parent)]
    again = apply(tree, POLICY, fingerprint=planned.fingerprint)
    assert again.finished
    assert not again.kept
    assert not victim.parent.exists()
    assert plan(tree, POLICY).delete == ()


def test_a_known_snapshot_that_cannot_be_looked_at_stops_the_run(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tree, POLICY)
    before = state_files(tree)

    def refuse(locations: Sequence[Location]) -> list[FileEntry | StateError | None]:
        return [MissingFileError("access denied"), *stat_files(locations)[1:]]

    with monkeypatch.context() as patched:
        patched.setattr(survey, "stat_files", refuse)
        result = apply(tree, POLICY, fingerprint=planned.fingerprint)
    assert "still exists: access denied" in result.stopped
    assert result.remaining == len(planned.delete)
    assert state_files(tree) == before
    again = apply(tree, POLICY, fingerprint=planned.fingerprint)
    assert again.finished
    assert not again.kept
    assert plan(tree, POLICY).delete == ()


@pytest.mark.parametrize("bad", [{"paths": 0}, {"bytes": -1}, {"paths_per_second": 0}, {"batch": 0}])
def test_limits_that_allow_nothing_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        ApplyLimits(**bad)


def test_limit_of_paths_ends_a_run_and_the_next_ones_finish(tree: Tree) -> None:
    fingerprint = plan(tree, POLICY).fingerprint
    limits = ApplyLimits(paths=20, paths_per_second=1e9)
    results = [apply(tree, POLICY, fingerprint=fingerprint, limits=limits)]
    while not results[-1].finished:
        assert "20 paths" in results[-1].stopped
        results.append(apply(tree, POLICY, fingerprint=fingerprint, limits=limits))
    assert len(results) > 3
    assert all(result.paths <= 20 for result in results)
    needed = {file for snapshot in kept_by_policy(tree) for file in snapshot.files}
    assert state_files(tree) == needed | tree.young | tree.foreign


def test_limit_of_bytes_ends_a_run(tree: Tree) -> None:
    result = apply(tree, POLICY, limits=ApplyLimits(bytes=100_000, paths_per_second=1e9))
    assert "100,000 bytes" in result.stopped
    assert 0 < result.bytes <= 100_000


def test_a_file_above_the_limit_goes_alone(tree: Tree) -> None:
    result = apply(tree, POLICY, limits=ApplyLimits(bytes=1, paths_per_second=1e9))
    assert result.paths == 1


def test_deletion_is_as_slow_as_asked(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    # A clock that stands still: each wait is all the time that the paths so far have to take.
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=waits.append)
    monkeypatch.setattr(application, "time", clock)
    result = apply(tree, limits=ApplyLimits(paths_per_second=0.5, batch=10))
    assert len(waits) > 1
    assert waits == sorted({*waits})
    assert waits[-1] == result.paths / 0.5


def test_a_new_plan_takes_over_what_a_stopped_run_has_left(tree: Tree) -> None:
    # Only `_metadata` files are gone: what they referenced is younger than this floor, but known from the log.
    policy = {**POLICY, "min-age": "5d"}
    apply(tree, policy, limits=ApplyLimits(paths=4, paths_per_second=1e9))
    now = datetime.now(UTC) - timedelta(days=4)
    young = {str(file) for snapshot in tree.snapshots for file in snapshot.own}
    assert not young & {each.path for each in plan_retention(tree.roots, policy, leftovers=(), now=lambda: now).delete}
    planned = plan_retention(tree.roots, policy, now=lambda: now)
    apply_plan(tree.roots, policy, fingerprint=planned.fingerprint, limits=FAST, now=lambda: now)
    gone = {file for snapshot in tree.snapshots if not (snapshot.path / "_metadata").exists() for file in snapshot.own}
    assert gone
    assert not gone & tree.files()
    assert read_log(tree).find_unfinished_runs() == []


class TestChangesMeanwhile:
    """Changes between the plan and the deletion of a file, made when the first batch has been deleted."""

    def apply(self, tree: Tree, change: Any, policy: dict[str, Any] | None = None, batch: int = 5) -> ApplyResult:
        changes = [change]

        def report(done: int, total: int) -> None:
            if changes:
                changes.pop()()

        return apply(tree, policy, limits=ApplyLimits(paths_per_second=1e9, batch=batch), report=report)

    def test_a_changed_file_stays(self, tree: Tree) -> None:
        victim = max(tree.orphans)
        result = self.apply(tree, lambda: victim.write_bytes(b"something else"))
        assert victim.read_bytes() == b"something else"
        assert [record.path for record in result.kept if record.kind != PathKind.DIRECTORY] == [str(victim)]

    def test_a_file_that_is_gone_is_done(self, tree: Tree) -> None:
        victim = max(tree.orphans)
        result = self.apply(tree, victim.unlink)
        assert result.finished
        assert DeletionOutcome.MISSING in {
            record.outcome for record in read_log(tree).read() if record.path == str(victim)
        }

    def test_a_file_that_a_new_snapshot_references_stays(self, tree: Tree) -> None:
        planned = plan(tree, POLICY)
        old = tree.of("first")[0]
        copy = tree.checkpoints / "restored" / old.path.name
        saved = (old.path / "_metadata").read_bytes()

        def publish() -> None:
            shutil.copytree(old.path, copy)
            (copy / "_metadata").write_bytes(saved)

        self.apply(tree, publish, POLICY, batch=len([each for each in planned.delete if each.kind == "metadata"]))
        assert all(file.exists() for file in old.files - old.own)
        copied = TreeSnapshot(copy, "", 1, old.files, old.own)
        assert read_whole(copied) == 60

    def test_an_unreadable_new_snapshot_stops_the_run(self, tree: Tree) -> None:
        def publish() -> None:
            (tree.checkpoints / "strange").mkdir()
            (tree.checkpoints / "strange" / "_metadata").write_bytes(b"not a snapshot")

        result = self.apply(tree, publish)
        assert "strange" in result.stopped
        assert result.paths == 5
        assert result.remaining

    def test_a_vanished_snapshot_changes_which_ones_stay(self, tree: Tree) -> None:
        newest = [each.path for each in tree.of("first")[-3:]]

        def vanish() -> None:
            for path in newest:
                shutil.rmtree(path)

        # With one path per batch, nearly all snapshots are still there when the newest ones vanish.
        self.apply(tree, vanish, POLICY, batch=1)
        left = [each for each in tree.of("first") if (each.path / "_metadata").exists()]
        assert len(left) == 3
        assert all(read_whole(each) == 60 for each in left)

    def test_a_changed_metadata_file_stops_the_run(self, tree: Tree) -> None:
        planned = [each for each in plan(tree, POLICY).delete if each.kind is PathKind.METADATA]
        victim = Path(planned[-1].path)
        content = victim.read_bytes()
        result = self.apply(tree, lambda: victim.write_bytes(content), POLICY, batch=1)
        assert victim.exists()
        assert "_metadata" in result.stopped
        snapshot = next(each for each in tree.snapshots if each.path == victim.parent)
        assert read_whole(snapshot) == 60


class TestQuarantine:
    def test_files_are_moved_and_can_all_be_restored(self, tree: Tree) -> None:
        before = {path: path.read_bytes() for path in state_files(tree)}
        result = apply(tree, POLICY, quarantine=True)
        assert result.quarantined
        roots = [resolve(root) for root in tree.roots]
        assert {file.original.path for file in list_quarantine(roots)} == {str(path) for path in before} - {
            str(path) for path in state_files(tree)
        }
        restore_quarantined(roots, result.fingerprint, read_log(tree))
        assert {path: path.read_bytes() for path in state_files(tree)} == before
        assert all(read_whole(snapshot) == 60 for snapshot in tree.snapshots)

    def test_quarantined_files_are_not_planned_again(self, tree: Tree) -> None:
        apply(tree, POLICY, quarantine=True)
        assert not plan(tree, POLICY).delete


@pytest.mark.parametrize("is_open", [False, True], ids=["before it is opened", "after it was opened"])
def test_a_kept_snapshot_that_its_job_removes_while_it_is_checked_is_a_reason_to_plan_again(
    tree: Tree, is_open: bool
) -> None:
    removed: list[str] = []

    def open_removed(path: str) -> Snapshot:
        opened = open_snapshot(path) if is_open else None
        shutil.rmtree(path)
        removed.append(path)
        return opened or open_snapshot(path)

    planned = plan(tree, POLICY)
    before = set(tree.checkpoints.rglob("*"))
    with pytest.raises(IncompatibleError, match=r"was removed while it was checked.*plan again"):
        apply(tree, POLICY, open_snapshot=open_removed)
    gone = before - set(tree.checkpoints.rglob("*"))
    assert {str(each) for each in gone} & {each.path for each in planned.delete} == set()
    assert all(str(each).startswith(removed[0]) for each in gone)
