"""A crafted `_metadata` that names a file of somebody else: no command shows it, copies it or says what is in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import list_references, replace_stream_handles
from state_pipelines.operations.auditing import file_checks
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from tests.cli.conftest import Called

SECRET = b"root:x:0:0:the secret of this machine\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET * 200_000)
    return path


@pytest.fixture
def crafted(broken: Path, secret: Path) -> Path:
    """The savepoint with all its files named as the secret."""
    name_files(broken, f"file:{secret}")
    return broken


def name_files(savepoint: Path, name: str) -> None:
    """Give all files of a savepoint one name."""
    metadata = savepoint / "_metadata"

    def rename(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        return FileStateHandle(name, handle.size) if isinstance(handle, RelativeFileStateHandle) else handle

    read = read_metadata(metadata.read_bytes(), str(metadata))
    metadata.write_bytes(write_metadata(replace_stream_handles(read, rename)))


COMMANDS = [
    ["dump"],
    ["read", "--operator", "orders", "--state", "quantities"],
    ["convert", "--format", "keep", "--out", "OUT"],
    ["convert", "--format", "keep", "--files", "link", "--out", "OUT"],
    ["convert", "--format", "keep", "--files", "reference", "--out", "OUT"],
    ["convert", "--out", "OUT"],
    ["rescale", "--parallelism", "1", "--out", "OUT"],
    ["inspect", "--count"],
    ["verify", "--depth", "whole"],
    ["verify", "--json"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("scheme", ["HTTP://", "https://", "s3://", "s3:/"])
def test_names_of_files_show_no_passwords_and_no_signatures(
    call: Callable[..., Called], broken: Path, tmp_path: Path, arguments: list[str], scheme: str
) -> None:
    name_files(broken, f"{scheme}user:hunter2@host/a{'' if scheme == 's3:/' else '?signature=hunter2'}")
    command, *options = (str(tmp_path / "out") if each == "OUT" else each for each in arguments)
    called = call(command, broken, *options)
    text = called.out + called.err
    assert "hunter2" not in text
    assert "host/a" in text


def test_moved_files_are_not_looked_for_in_the_root_of_the_file_system(
    call: Callable[..., Called], broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However deep the snapshot lies, the search would reach the root.
    monkeypatch.setattr(file_checks, "_MOST_ABOVE", 50)
    name_files(broken, f"FILE://{os.__file__}")
    called = call("verify", broken)
    assert "outside the directories that the snapshot may name" in called.out
    assert "A file of this name is in" not in called.out


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_file_of_somebody_else_stays_unread(
    call: Callable[..., Called], crafted: Path, tmp_path: Path, arguments: list[str]
) -> None:
    command, *options = (str(tmp_path / "out") if each == "OUT" else each for each in arguments)
    called = call(command, crafted, *options)
    assert called.code != 0 or command == "inspect"
    assert "root:x" not in called.out + called.err
    assert "--allow-root" in called.out + called.err
    assert not (tmp_path / "out").exists()


def test_an_allowed_root_lets_a_file_be_copied_but_only_the_named_bytes(
    call: Callable[..., Called], crafted: Path, secret: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert call("convert", crafted, "--format", "keep", "--out", out, "--allow-root", secret.parent).code == 0
    handles = [each.handle for each in list_references(open_snapshot(str(crafted)).metadata)]
    named = max(each.size for each in handles if isinstance(each, FileStateHandle))
    assert [each.stat().st_size for each in out.glob("[!_]*")] == [named]
