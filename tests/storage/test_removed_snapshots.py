from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from state_pipelines.storage import resolve, snapshot_writer
from state_pipelines.storage.snapshot_writer import is_removed

if TYPE_CHECKING:
    from pathlib import Path


def make_checkpoints(root: Path, numbers: dict[str, float]) -> None:
    """Checkpoints with an age in seconds."""
    for name, age in numbers.items():
        metadata = root / name / "_metadata"
        metadata.parent.mkdir()
        metadata.write_bytes(b"")
        os.utime(metadata, (time.time() - age, time.time() - age))


def test_without_metadata_it_is_gone(tmp_path: Path) -> None:
    assert is_removed(resolve(str(tmp_path / "chk-3")))


def test_one_that_is_not_published_yet_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "_metadata.pending").touch()
    assert not is_removed(resolve(str(tmp_path)))


@pytest.mark.parametrize(
    "numbers",
    [{"chk-3": 0}, {"chk-3": 0, "chk-2": 0}, {"chk-3": 900, "chk-4": 600}, {"chk-3": 0, "savepoint-1": 0}],
    ids=["alone", "an older one", "one of ten minutes ago", "no checkpoint"],
)
def test_without_a_newer_checkpoint_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: dict[str, float]
) -> None:
    make_checkpoints(tmp_path, numbers)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    assert not is_removed(resolve(str(tmp_path / "chk-3")))


def test_it_waits_for_a_removal_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoints(tmp_path, {"chk-3": 1, "chk-4": 0})
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "chk-3/_metadata").unlink())
    assert is_removed(resolve(str(tmp_path / "chk-3")))


@pytest.mark.slow
def test_a_damaged_checkpoint_beside_a_new_one_stays_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoints(tmp_path, {"chk-3": 1, "chk-4": 0})
    monkeypatch.setattr(snapshot_writer, "_LONGEST_WAIT", 0.2)
    assert not is_removed(resolve(str(tmp_path / "chk-3")))
