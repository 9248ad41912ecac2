"""Copies that are written together with files, and found by the URL of the file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from state_pipelines.storage import create_file, join, resolve
from state_pipelines.storage.files import record_files
from state_pipelines.storage.reading import (
    find_copy,
    link_copy,
    remove_other_copies,
    take_copy,
    write_copies,
)

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.storage import Location

CONTENT = b"first part, second part"


def write(location: Location) -> None:
    with create_file(location) as file:
        file.write(CONTENT[:12])
        file.write(CONTENT[12:])


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return join(resolve(str(tmp_path / "files")), "a")


@pytest.mark.parametrize("storage", ["local", "memory"])
def test_a_file_and_its_copy_are_written_together(tmp_path: Path, copies: Path, storage: str) -> None:
    location = resolve(f"memory://{tmp_path}/a" if storage == "memory" else str(tmp_path / "a"))
    with write_copies(copies), record_files(resolve(location.url.rpartition("/")[0])) as recorder:
        write(location)
    copy = find_copy(copies, location.url, len(CONTENT))
    assert copy is not None
    assert copy.read_bytes() == CONTENT
    assert recorder.files["a"].size == len(CONTENT)
    assert copy.suffix == f".{recorder.files['a'].checksum}"


def test_after_the_block_nothing_is_copied(copies: Path, location: Location) -> None:
    with write_copies(copies):
        pass
    write(location)
    assert find_copy(copies, location.url, len(CONTENT)) is None


@pytest.mark.parametrize("damage", [CONTENT.replace(b"first", b"other"), CONTENT[:-1]])
def test_a_copy_of_other_bytes_is_not_found(copies: Path, location: Location, damage: bytes) -> None:
    with write_copies(copies):
        write(location)
    (copy,) = copies.iterdir()
    copy.write_bytes(damage)
    assert find_copy(copies, location.url, len(CONTENT)) is None
    assert find_copy(copies, location.url, len(damage)) is None


def test_a_file_that_fails_has_no_copy(copies: Path, location: Location) -> None:
    with write_copies(copies), pytest.raises(TypeError), create_file(location) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert list(copies.iterdir()) == []


def test_a_file_is_written_where_its_copy_cannot_be(
    tmp_path: Path, location: Location, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in the way").touch()
    with caplog.at_level(logging.WARNING), write_copies(tmp_path / "in the way" / "copies"):
        write(location)
    assert f"no local copy of {location.url}" in caplog.text
    assert (tmp_path / "files" / "a").read_bytes() == CONTENT


def test_a_copy_is_in_another_directory_too_and_others_go(tmp_path: Path, copies: Path, location: Location) -> None:
    other, later = join(resolve(str(tmp_path / "files")), "b"), tmp_path / "later"
    with write_copies(copies):
        write(location)
        write(other)
    copy = find_copy(copies, location.url, len(CONTENT))
    assert copy is not None
    later.mkdir()
    take_copy(copy, later)
    assert find_copy(later, location.url, len(CONTENT)) == later / copy.name
    remove_other_copies(copies, [other.url])
    assert find_copy(copies, location.url, len(CONTENT)) is None
    assert find_copy(copies, other.url, len(CONTENT)) is not None
    assert find_copy(later, location.url, len(CONTENT)) is not None


def test_a_linked_copy_counts_with_its_size(tmp_path: Path, copies: Path) -> None:
    copies.mkdir()
    (tmp_path / "table").write_bytes(CONTENT)
    link_copy(tmp_path / "table", copies, "s3://bucket/table")
    assert find_copy(copies, "s3://bucket/table", len(CONTENT)) is not None
    assert find_copy(copies, "s3://bucket/table", 1) is None
    remove_other_copies(copies, ["s3://bucket/table"])
    assert find_copy(copies, "s3://bucket/table", len(CONTENT)) is not None
