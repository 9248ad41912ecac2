"""Plans that confirm an earlier one, while jobs write checkpoints and others change the roots in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import StateError
from state_pipelines.operations.retention import ApplyLimits, PathKind, apply_plan, pin_snapshot, plan_retention
from state_pipelines.operations.retention.application import PlanChangedError
from state_pipelines.operations.retention.policy import read_planned_paths
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.operations.retention.tree import Tree, make_tree, write_checkpoint
from tests.operations.retention.trees import rewrite, set_age

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.operations.retention import ApplyResult, RetentionPlan

POLICY = {"checkpoints": {"last": 3}}
FAST = ApplyLimits(paths_per_second=1e9)
OLD = datetime.now(UTC) - timedelta(days=5)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return make_tree(tmp_path, counts=(6, 4, 4))


@pytest.fixture
def first(tree: Tree) -> RetentionPlan:
    """The plan that somebody agrees to."""
    return plan_retention(tree.roots, POLICY)


def apply(tree: Tree, first: RetentionPlan, **options: Any) -> ApplyResult:
    return apply_plan(
        tree.roots, POLICY, fingerprint=first.fingerprint, **{"planned": first.delete, "limits": FAST, **options}
    )


def state_files(tree: Tree) -> set[str]:
    return {str(path) for path in tree.files() if "_retention" not in path.parts}


def files_of(plan: RetentionPlan) -> set[str]:
    return {each.path for each in plan.delete if each.kind is not PathKind.DIRECTORY}


def write_next(tree: Tree, job: str = "second", time: datetime = OLD) -> Path:
    return write_checkpoint(tree, job, 100 + len(tree.snapshots), time).path


@pytest.mark.slow
def test_a_checkpoint_written_meanwhile_changes_nothing_of_the_agreed_plan(tree: Tree, first: RetentionPlan) -> None:
    before = state_files(tree)
    new = write_next(tree)
    written = state_files(tree) - before
    by_now = plan_retention(tree.roots, POLICY)
    assert files_of(by_now) > files_of(first)
    result = apply(tree, first)
    assert (result.finished, result.fingerprint) == (True, first.fingerprint)
    assert state_files(tree) == before - files_of(first) | written
    assert sum(state.to_arrow().num_rows for each in open_snapshot(str(new)).operators for state in each.states) == 60


@pytest.mark.slow
def test_what_could_go_since_then_goes_with_the_next_plan(tree: Tree, first: RetentionPlan) -> None:
    write_next(tree)
    apply(tree, first)
    second = plan_retention(tree.roots, POLICY)
    assert [each.delete for each in second.snapshots].count(True) == 1
    assert apply(tree, second).paths == len(second.delete)


@pytest.mark.slow
def test_without_the_paths_of_the_plan_its_fingerprint_must_be_that_of_now(tree: Tree, first: RetentionPlan) -> None:
    write_next(tree)
    before = state_files(tree)
    with pytest.raises(PlanChangedError, match=first.fingerprint):
        apply(tree, first, planned=None)
    assert state_files(tree) == before


def refuse(tree: Tree, first: RetentionPlan, reason: str) -> None:
    """Apply a plan, which must be refused for a reason, and delete nothing."""
    before = state_files(tree)
    with pytest.raises(PlanChangedError, match=reason) as caught:
        apply(tree, first)
    assert first.fingerprint in str(caught.value)
    assert state_files(tree) == before


@pytest.mark.slow
def test_nothing_goes_when_a_new_checkpoint_references_a_path_of_the_plan(tree: Tree, first: RetentionPlan) -> None:
    orphan = min(each.path for each in first.delete if each.kind is PathKind.SHARED)
    new = write_next(tree)
    shared = min(str(path) for path in tree.snapshots[-1].files - tree.snapshots[-1].own)
    rewrite(new / "_metadata", lambda path: path.replace(shared, orphan))
    refuse(tree, first, f"{orphan} would stay now: referenced by {new}")


@pytest.mark.slow
def test_nothing_goes_that_a_snapshot_outside_the_plan_needs(tree: Tree, first: RetentionPlan) -> None:
    # By now the policy drops the new snapshot too, but its `_metadata` is not in the agreed plan and stays.
    orphan = min(each.path for each in first.delete if each.kind is PathKind.SHARED)
    new = write_checkpoint(tree, "second", 1, OLD - timedelta(days=20)).path
    shared = min(str(path) for path in tree.snapshots[-1].files - tree.snapshots[-1].own)
    rewrite(new / "_metadata", lambda path: path.replace(shared, orphan))
    set_age(new / "_metadata", timedelta(days=25))
    assert {str(new / "_metadata"), orphan} <= files_of(plan_retention(tree.roots, POLICY))
    refuse(tree, first, f"{orphan} would stay now: referenced by {new}")


def pin(tree: Tree, first: RetentionPlan) -> None:
    victim = next(each.path for each in first.snapshots if each.delete)
    pin_snapshot(resolve(str(tree.checkpoints)), victim.removeprefix(f"{tree.checkpoints}/"), reason="keep me")


def damage_metadata(tree: Tree, first: RetentionPlan) -> None:
    (tree.of("third")[-1].path / "_metadata").write_bytes(b"damaged")


def lose_newest(tree: Tree, first: RetentionPlan) -> None:
    # Of three snapshots that stay, each misses a file, so that the next one is the newest restorable one.
    for snapshot in tree.of("second")[-3:]:
        min(snapshot.own - {snapshot.path / "_metadata"}).unlink()


def link_orphan(tree: Tree, first: RetentionPlan) -> None:
    orphan = min(tree.orphans)
    target = orphan.rename(orphan.with_name("moved"))
    orphan.symlink_to(target)


def touch_orphan(tree: Tree, first: RetentionPlan) -> None:
    min(tree.orphans).write_bytes(b"young again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (pin, "would stay now: pinned: keep me"),
        (damage_metadata, "would stay now: .*see stopped"),
        (lose_newest, "would stay now: newest restorable snapshot of its job"),
        (link_orphan, "would stay now: a symbolic link"),
        (touch_orphan, "would stay now: younger than the minimal age"),
    ],
)
def test_nothing_goes_on_doubt(
    tree: Tree, first: RetentionPlan, change: Callable[[Tree, RetentionPlan], None], reason: str
) -> None:
    change(tree, first)
    refuse(tree, first, reason)


@pytest.mark.slow
def test_paths_that_are_gone_meanwhile_are_no_change(tree: Tree, first: RetentionPlan) -> None:
    # Flink has subsumed a checkpoint of the plan.
    gone = next(each for each in tree.of("first") if str(each.path / "_metadata") in files_of(first))
    for path in gone.own:
        path.unlink()
    gone.path.rmdir()
    assert apply(tree, first).finished
    assert not state_files(tree) & files_of(first)


@pytest.mark.slow
def test_other_paths_than_those_of_the_fingerprint_are_refused(tree: Tree, first: RetentionPlan) -> None:
    before = state_files(tree)
    with pytest.raises(PlanChangedError):
        apply(tree, first, planned=first.delete[:5])
    assert state_files(tree) == before


@pytest.mark.slow
def test_a_second_pass_confirms_the_first_one(tree: Tree, first: RetentionPlan) -> None:
    def wait(seconds: float) -> None:
        write_next(tree)

    confirmed = plan_retention(tree.roots, POLICY, grace=timedelta(hours=1), wait=wait)
    assert confirmed.delete == first.delete
    assert confirmed.fingerprint == first.fingerprint


@pytest.mark.slow
def test_passes_that_never_agree_are_an_error(tree: Tree) -> None:
    def wait(seconds: float) -> None:
        newest = plan_retention(tree.roots, POLICY)
        path = next(each for each in newest.snapshots if each.delete).path
        pin_snapshot(resolve(str(tree.checkpoints)), path.removeprefix(f"{tree.checkpoints}/"))

    with pytest.raises(StateError, match="did not agree"):
        plan_retention(tree.roots, POLICY, grace=timedelta(hours=1), wait=wait)


def test_the_json_form_of_a_plan_gives_its_paths(first: RetentionPlan) -> None:
    import json

    text = json.dumps(first.to_json())
    assert read_planned_paths(text, first.fingerprint) == first.delete
    assert read_planned_paths(text, "0" * 16) is None
    assert read_planned_paths(b"{", first.fingerprint) is None


@pytest.mark.slow
def test_an_interrupted_run_continues_with_its_own_paths(tree: Tree, first: RetentionPlan) -> None:
    assert not apply(tree, first, limits=ApplyLimits(paths=7, paths_per_second=1e9)).finished
    before = state_files(tree)
    write_next(tree)
    written = state_files(tree) - before
    assert apply(tree, first, planned=None).finished
    assert state_files(tree) == before - files_of(first) | written
