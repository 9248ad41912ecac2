"""What plans delete, against names found in the raw bytes of `_metadata` files."""

from __future__ import annotations

import os
import random
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from state_pipelines.operations.retention import PathKind, RetentionPlan, parse_policy
from tests.operations.retention.trees import DATA, UUIDS, deleted, plan, put

NAME = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
JOBS = ("rocksdb-incremental", "rocksdb-file-merging", "changelog-rocksdb-materialized", "heap", "rocksdb-native")


def find_names(metadata: Path) -> set[str]:
    """Names of files in a `_metadata` file, found without reading its structure."""
    return {name.decode() for name in NAME.findall(metadata.read_bytes())}


def make_tree(root: Path, choice: random.Random) -> None:
    """Jobs of two releases with snapshots of random ages, some broken, and orphans between them."""
    for version in ("flink-1.20", "flink-2.2"):
        for name in choice.sample(JOBS, 3):
            shutil.copytree(DATA / version / name, root / version / name)
    for number, directory in enumerate(sorted(path for path in root.rglob("shared") if path.is_dir())):
        put(directory / UUIDS[number])
        put(directory.parent / f"chk-{choice.randint(0, 9)}x" / UUIDS[number])
    now = datetime.now(UTC).timestamp()
    for path in root.rglob("*"):
        age = choice.uniform(0, 60) * 86_400
        os.utime(path, (now - age, now - age))


def make_policy(choice: random.Random) -> dict[str, object]:
    options = {"last": choice.randint(0, 2), "daily": choice.randint(0, 3), "within": f"{choice.randint(0, 40)}d"}
    return {"keep": dict(choice.sample(sorted(options.items()), choice.randint(1, 3)))}


def plan_tree(root: Path, seed: int) -> RetentionPlan:
    choice = random.Random(seed)
    make_tree(root, choice)
    policy = parse_policy(make_policy(choice))
    mapping = [f"file:/flink-data/types={root}"]
    return plan(root, policy=policy, min_age=timedelta(days=choice.choice((0, 3, 20))), path_mapping=mapping)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_nothing_that_a_kept_snapshot_names_goes(tmp_path: Path, seed: int) -> None:
    result = plan_tree(tmp_path, seed)
    gone = set(deleted(result))
    kept = [path for path in tmp_path.rglob("_metadata") if str(path) not in gone]
    assert kept
    needed = {name for metadata in kept for name in find_names(metadata)}
    assert {path for path in gone if path.rpartition("/")[2] in needed} == set()
    assert result.stopped == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_every_file_is_in_one_list(tmp_path: Path, seed: int) -> None:
    result = plan_tree(tmp_path, seed)
    listed = [each.path for each in result.delete if each.kind is not PathKind.DIRECTORY]
    listed += [each.path for each in result.keep] + [each.path for each in result.unknown]
    assert sorted(listed) == sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_second_plan_after_the_first_has_nothing_old_to_delete(tmp_path: Path, seed: int) -> None:
    first = plan_tree(tmp_path, seed)
    for path in first.delete:
        if Path(path.path).is_dir():
            Path(path.path).rmdir()
        else:
            Path(path.path).unlink()
    second = plan(tmp_path, min_age=timedelta(0), path_mapping=[f"file:/flink-data/types={tmp_path}"])
    kept = {snapshot.path for snapshot in first.snapshots if not snapshot.delete}
    assert {snapshot.path for snapshot in second.snapshots} == kept
    whole = {snapshot.path: snapshot.restorable for snapshot in first.snapshots}
    assert {snapshot.path: snapshot.restorable for snapshot in second.snapshots} == {path: whole[path] for path in kept}
