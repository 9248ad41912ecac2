from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import NotFoundError
from state_pipelines.operations.inventory import Inventory, find_previous, update_inventory
from state_pipelines.storage import join, resolve
from tests.operations.inventory.trees import JOB, OTHER_JOB, put, put_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.storage import Location


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return resolve(str(tmp_path / "root"))


def place(root: Location, path: str, seconds: int) -> str:
    """Put a snapshot; returns its key."""
    directory = put(root, path, seconds)
    os.utime(join(directory, "_metadata").path, (seconds, seconds))
    (key,) = (each.key for each in update_inventory([root]).inventory if each.path == str(directory))
    return key


def previous(root: Location, key: str) -> str | None:
    found = find_previous(update_inventory([root]).inventory, key)
    return None if found is None else found.key


def test_the_newest_older_one_of_the_same_flink_job(root: Location) -> None:
    place(root, f"{JOB}/chk-1", 1000)
    expected = place(root, f"{JOB}/chk-2", 2000)
    place(root, f"{OTHER_JOB}/chk-9", 2500)
    this = place(root, f"{JOB}/chk-3", 3000)
    place(root, f"{JOB}/chk-4", 4000)
    assert previous(root, this) == expected


def test_a_savepoint_follows_checkpoints_of_its_job(root: Location) -> None:
    expected = place(root, f"{JOB}/chk-2", 2000)
    this = place(root, f"savepoint-{JOB[:6]}-0123456789ab", 3000)
    assert previous(root, this) == expected


def test_a_job_that_was_started_again_follows_its_predecessor(root: Location) -> None:
    expected = place(root, f"{OTHER_JOB}/chk-9", 2000)
    this = place(root, f"{JOB}/chk-10", 3000)
    assert previous(root, this) == expected


def test_the_first_snapshot_has_none(root: Location) -> None:
    this = place(root, f"{JOB}/chk-1", 1000)
    place(root, f"{JOB}/chk-2", 2000)
    assert previous(root, this) is None


def test_an_unreadable_snapshot_is_none(root: Location) -> None:
    expected = place(root, f"{JOB}/chk-1", 1000)
    broken = put_bytes(root, f"{JOB}/chk-2", b"broken")
    os.utime(join(broken, "_metadata").path, (2000, 2000))
    this = place(root, f"{JOB}/chk-3", 3000)
    assert previous(root, this) == expected


def test_a_copy_is_not_older_than_itself(root: Location) -> None:
    first = place(root, "a/savepoint-x", 1000)
    data = root.filesystem.cat_file(join(root, "a", "savepoint-x", "_metadata").path)
    copy = put_bytes(root, "b/savepoint-x", data)
    os.utime(join(copy, "_metadata").path, (2000, 2000))
    assert previous(root, first) is None


def test_a_key_must_be_known() -> None:
    with pytest.raises(NotFoundError, match="chk-1@00000000"):
        find_previous(Inventory(), "chk-1@00000000")
