"""What a killed command has left is recognized, and removed where that is asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

KILLED = """
import os, sys
from state_pipelines.cli import main
from state_pipelines.storage.snapshot_writer import SnapshotWriter

SnapshotWriter.publish = lambda *_: os._exit(9)
main(sys.argv[1:])
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The target of a conversion that ended without a chance to clear up."""
    target = tmp_path / "new"
    command = ["convert", str(orders().path), "--out", str(target), "--processes", "1"]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert done.returncode == 9
    assert len(list(target.iterdir())) > 1
    return target


def convert(call: Callable[..., Called], target: Path, *options: str) -> Called:
    return call("convert", orders().path, "--out", target, "--processes", "1", *options)


def test_the_error_says_what_it_is_and_what_to_do(call: Callable[..., Called], left: Path) -> None:
    before = sorted(left.iterdir())
    called = convert(call, left)
    assert called.code == 2
    assert "the files of a command that was killed, or still runs; it is no snapshot" in called.err
    assert "--discard-partial" in called.err
    assert sorted(left.iterdir()) == before


def test_it_is_removed_where_that_is_asked_for(call: Callable[..., Called], left: Path) -> None:
    count = len(list(left.iterdir()))
    spills = left.with_name(f".{left.name}-01234567-89ab-cdef-0123-456789abcdef")
    spills.mkdir()
    (spills / "spill").touch()
    called = convert(call, left, "--discard-partial")
    assert called.code == 0
    assert f"{count + 1} files and directories of a killed command were removed" in called.err
    assert (left / "_metadata").exists()
    assert not (left / "_metadata.pending").exists()
    assert not spills.exists()


@pytest.mark.parametrize("content", ["_metadata", "other", "_metadata.pending/inside"])
def test_nothing_else_is_removed(call: Callable[..., Called], tmp_path: Path, content: str) -> None:
    target = tmp_path / "new"
    (target / content).parent.mkdir(parents=True)
    (target / content).touch()
    called = convert(call, target, "--discard-partial")
    assert called.code == 2
    assert "the target holds something already" in called.err
    assert (target / content).exists()


@pytest.mark.parametrize("beside", ["_metadata", "directory/file"])
def test_a_marker_beside_something_else_does_not_help(call: Callable[..., Called], left: Path, beside: str) -> None:
    (left / beside).parent.mkdir(exist_ok=True)
    (left / beside).touch()
    assert convert(call, left, "--discard-partial").code == 2
    assert (left / beside).exists()
