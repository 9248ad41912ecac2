"""Retention of a large tree, and runs that are killed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.retention import ApplyLimits, PathKind, apply_plan, plan_retention
from state_pipelines.snapshot import open_snapshot
from tests.operations.retention.tree import Tree, TreeSnapshot, make_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

POLICY = {"checkpoints": {"last": 3}, "savepoints": {"last": 2}}
FAST = ApplyLimits(paths_per_second=1e9)
ROWS = 60


class Killed(BaseException):
    """As sudden as a signal: nothing catches it."""


def read_whole(snapshot: TreeSnapshot) -> int:
    opened = open_snapshot(str(snapshot.path), allow_roots=[str(each) for each in snapshot.path.parents[:4]])
    return sum(state.to_arrow().num_rows for operator in opened.operators for state in operator.states)


def state_files(tree: Tree) -> set[Path]:
    return {path for path in tree.files() if "_retention" not in path.parts}


def needed_by(snapshots: Iterable[TreeSnapshot]) -> set[Path]:
    return {file for snapshot in snapshots for file in snapshot.files}


@pytest.mark.slow
def test_a_tree_of_many_snapshots(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, counts=(60, 36, 20))
    assert len(tree.snapshots) == 120
    orphans = {each.path for each in plan_retention(tree.roots).delete if each.kind is not PathKind.DIRECTORY}
    assert orphans == {str(path) for path in tree.orphans}

    policy = {"checkpoints": {"last": 10}}
    kept = [each for job in ("first", "second", "third") for each in tree.of(job)[-10:]] + tree.of("")
    planned = plan_retention(tree.roots, policy)
    going = {each.path for each in planned.delete if each.kind is not PathKind.DIRECTORY}
    expected = state_files(tree) - needed_by(kept) - tree.young - tree.foreign
    assert going == {str(path) for path in expected}

    result = apply_plan(tree.roots, policy, fingerprint=planned.fingerprint, limits=FAST)
    assert result.finished
    assert state_files(tree) == needed_by(kept) | tree.young | tree.foreign
    assert {read_whole(each) for each in kept} == {ROWS}


class TestKilled:
    """Runs that end at a deletion, right before it or right after it; by a signal: `tests.robustness`."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Tree:
        return make_tree(tmp_path, counts=(5, 3, 3))

    @pytest.fixture
    def kept(self, tree: Tree) -> list[TreeSnapshot]:
        policy_kept = {each.path for each in plan_retention(tree.roots, POLICY).snapshots if not each.delete}
        kept = [each for each in tree.snapshots if str(each.path) in policy_kept]
        assert {each.job for each in kept} == {"first", "second", "third", ""}
        assert len(kept) < len(tree.snapshots)
        return kept

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("again", "quarantine", "every"),
        [("the same fingerprint", False, 19), ("a new plan", False, 29), ("the same fingerprint", True, 29)],
        ids=["same fingerprint", "new plans", "quarantine"],
    )
    def test_at_deletions(
        self,
        tree: Tree,
        kept: list[TreeSnapshot],
        again: str,
        *,
        quarantine: bool,
        every: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        fingerprint = plan_retention(tree.roots, POLICY).fingerprint
        first = {each.path for each in plan_retention(tree.roots, POLICY).delete if each.kind is not PathKind.DIRECTORY}
        killed = patch_deletions(monkeypatch, every)
        runs = 0
        while True:
            runs += 1
            try:
                result = apply_plan(
                    tree.roots, POLICY, fingerprint=fingerprint, quarantine=quarantine, limits=ApplyLimits(batch=20)
                )
            except Killed:
                assert all(file.exists() for file in needed_by(kept))
                if again == "a new plan":
                    fingerprint = plan_retention(tree.roots, POLICY).fingerprint
                continue
            assert result.finished
            break
        # At each of these paths a run ended once before the deletion, and once after it.
        assert len(killed) == len(first) // every
        assert runs == 2 * len(killed) + 1
        assert state_files(tree) == needed_by(kept) | tree.young | tree.foreign
        assert {read_whole(each) for each in kept} == {ROWS}
        assert not plan_retention(tree.roots, POLICY).delete


def patch_deletions(monkeypatch: pytest.MonkeyPatch, every: int) -> set[str]:
    """Kill runs at deletions and moves: a first run before the path, the next one after it.

    Args:
        monkeypatch: of the test.
        every: of so many paths one is killed at.

    Returns:
        The paths at which runs are killed, filled as they come.
    """
    seen: set[str] = set()
    killed: set[str] = set()

    def wrap(original: Any) -> Any:
        def call(*names: Any, **descriptors: int) -> Any:
            if not descriptors:
                return original(*names)
            path = str(Path(f"/proc/self/fd/{next(iter(descriptors.values()))}").readlink() / names[0])
            if path not in seen:
                seen.add(path)
                if len(seen) % every == 0:
                    killed.add(path)
                    raise Killed
            original(*names, **descriptors)
            if path in killed:
                raise Killed
            return None

        return call

    monkeypatch.setattr(os, "unlink", wrap(os.unlink))
    monkeypatch.setattr(os, "rename", wrap(os.rename))
    return killed


def test_the_tree_is_the_same_every_time(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    trees = [make_tree(tmp_path / name, counts=(3, 2, 2), now=now) for name in ("a", "b")]
    names = [{path.relative_to(tree.checkpoints.parent) for path in tree.files()} for tree in trees]
    assert names[0] == names[1]
