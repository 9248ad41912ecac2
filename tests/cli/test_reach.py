"""A crafted `_metadata` that names a file of somebody else: no command shows it, copies it or says what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.references import list_references, replace_stream_handles
from state_pipelines.metadata.stream_handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.metadata.stream_handles import StreamStateHandle
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
    metadata = broken / "_metadata"

    def name_secret(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, RelativeFileStateHandle):
            return FileStateHandle(f"file:{secret}", handle.size)
        return handle

    read = read_metadata(metadata.read_bytes(), str(metadata))
    metadata.write_bytes(write_metadata(replace_stream_handles(read, name_secret)))
    return broken


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump"],
        ["read", "--operator", "orders", "--state", "quantities"],
        ["convert", "--format", "keep", "--out", "OUT"],
        ["convert", "--format", "keep", "--files", "link", "--out", "OUT"],
        ["convert", "--format", "keep", "--files", "reference", "--out", "OUT"],
        ["convert", "--out", "OUT"],
        ["rescale", "--parallelism", "1", "--out", "OUT"],
        ["inspect", "--count"],
        ["verify", "--depth", "whole"],
    ],
    ids=" ".join,
)
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
