"""What a killed command has left is recognized, and removed where that is asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

pytestmark = pytest.mark.slow

DESCRIPTION = """
operators:
  - uid: customers
    key: String
    parallelism: 1
    states:
      - {name: total, rows: rows.parquet, type: Long}
"""
KILLED = """
import os, sys
from state_pipelines.cli import main
from state_pipelines.storage.snapshot_writer import SnapshotWriter

SnapshotWriter.publish = lambda *_: os._exit(9)
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of a conversion that ended without a chance to clear up."""
    target = tmp_path_factory.mktemp("killed") / "new"
    command = ["convert", str(orders().path), "--out", str(target), "--processes", "1"]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert done.returncode == 9
    assert len(list(target.iterdir())) > 1
    return target


@pytest.fixture
def left(killed: Path, tmp_path: Path) -> Path:
    """A copy of that target."""
    return shutil.copytree(killed, tmp_path / "new")


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


@pytest.mark.parametrize(
    "beside", ["_metadata", "directory/file", "notes.txt", "01234567-89ab-cdef-0123-456789abcdef.parquet"]
)
def test_a_marker_beside_something_else_does_not_help(call: Callable[..., Called], left: Path, beside: str) -> None:
    (left / beside).parent.mkdir(exist_ok=True)
    (left / beside).touch()
    assert convert(call, left, "--discard-partial").code == 2
    assert (left / beside).exists()


@pytest.mark.parametrize("name", ["_metadata.pending", "_metadata.pending.0123456789abcdef0123456789abcdef.pending"])
def test_a_writer_that_has_just_begun_is_recognized(call: Callable[..., Called], tmp_path: Path, name: str) -> None:
    target = tmp_path / "new"
    target.mkdir()
    (target / name).touch()
    assert convert(call, target, "--discard-partial").code == 0
    assert (target / "_metadata").exists()


def test_files_of_the_rocksdb_format_are_recognized(call: Callable[..., Called], left: Path) -> None:
    for name in ("meta", "0", "17"):
        (left / f"01234567-89ab-cdef-0123-456789abcdef-{name}").touch()
    assert convert(call, left, "--discard-partial").code == 0


@pytest.mark.parametrize("content", ["_metadata", "notes.txt"])
def test_temporary_files_beside_a_target_that_is_taken_stay(
    call: Callable[..., Called], tmp_path: Path, content: str
) -> None:
    target, scratch = tmp_path / "new", tmp_path / ".new-01234567-89ab-cdef-0123-456789abcdef"
    target.mkdir()
    (target / content).touch()
    scratch.mkdir()
    assert convert(call, target, "--discard-partial").code == 2
    assert scratch.exists()


def test_temporary_files_of_a_target_that_is_not_there_stay(call: Callable[..., Called], tmp_path: Path) -> None:
    # A write through Spark has its temporary files before it has its target.
    scratch = tmp_path / ".new-01234567-89ab-cdef-0123-456789abcdef"
    scratch.mkdir()
    assert convert(call, tmp_path / "new", "--discard-partial").code == 0
    assert scratch.exists()


def test_without_a_target_nothing_can_be_removed(call: Callable[..., Called]) -> None:
    called = call("rescale", orders().path, "--parallelism", "3", "--dry-run", "--discard-partial")
    assert called.code == 2
    assert "a dry run removes nothing" in called.err


def test_temporary_files_of_another_target_stay(call: Callable[..., Called], tmp_path: Path) -> None:
    other = tmp_path / ".new-copy-01234567-89ab-cdef-0123-456789abcdef"
    other.mkdir()
    assert convert(call, tmp_path / "new", "--discard-partial").code == 0
    assert other.exists()


def run(call: Callable[..., Called], command: str, target: Path, *options: str) -> Called:
    """Run a command that writes a snapshot of two operators, in one process."""
    source = str(orders().path)
    if command == "bootstrap":
        pq.write_table(pa.table({"state_key": ["a"], "value": [1]}), target.with_name("rows.parquet"))
        source = str(target.with_name("new.yaml"))
        target.with_name("new.yaml").write_text(DESCRIPTION)
    asked = ["--parallelism", "3"] if command == "rescale" else []
    return call(command, source, "--out", target, "--processes", "1", *asked, *options)


@pytest.mark.parametrize("command", ["rescale", "bootstrap"])
def test_other_commands_remove_it_too(call: Callable[..., Called], left: Path, command: str) -> None:
    refused = run(call, command, left)
    assert refused.code == 2
    assert "the files of a command that was killed" in refused.err
    assert run(call, command, left, "--discard-partial").code == 0
    assert (left / "_metadata").exists()


@pytest.mark.parametrize("command", ["convert", "rescale", "bootstrap"])
def test_a_dry_run_refuses_a_target_that_is_taken(call: Callable[..., Called], tmp_path: Path, command: str) -> None:
    target = tmp_path / "new"
    target.mkdir()
    assert run(call, command, target, "--dry-run").code == 0
    (target / "_metadata").touch()
    called = run(call, command, target, "--dry-run")
    assert called.code == 2
    assert "the target holds something already" in called.err


@pytest.mark.parametrize("options", [["--dry-run"], ["--move"]])
def test_a_dry_run_removes_nothing(call: Callable[..., Called], left: Path, options: list[str]) -> None:
    before = sorted(left.iterdir())
    called = convert(call, left, "--discard-partial", *options)
    assert called.code == 2
    assert "a dry run" in called.err
    assert sorted(left.iterdir()) == before


def test_a_rehearsal_of_a_rescaling_needs_no_target(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rescaled").mkdir()
    (tmp_path / "rescaled" / "file").touch()
    assert call("rescale", orders().path, "--parallelism", "3", "--dry-run", "--processes", "1").code == 0
