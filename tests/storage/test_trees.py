from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import NotFoundError, StateError
from state_pipelines.storage import join, resolve
from state_pipelines.storage.listing import list_tree
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.storage import Location

NAMES = ("a/b/c", "a/d", "e", "f/g")


def names(root: Location) -> list[tuple[str, int, bool]]:
    return [(entry.name, entry.size, entry.is_directory) for entry in list_tree(root)]


EXPECTED = [
    ("a", 0, True),
    ("a/b", 0, True),
    ("a/b/c", 1, False),
    ("a/d", 1, False),
    ("e", 1, False),
    ("f", 0, True),
    ("f/g", 1, False),
]


@pytest.fixture
def local(tmp_path: Path) -> Location:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return resolve(str(tmp_path))


@pytest.fixture
def remote() -> Location:
    root = empty_counted()
    for name in NAMES:
        root.filesystem.pipe_file(join(root, name).path, b"x")
    return root


def test_a_local_tree(local: Location) -> None:
    assert names(local) == EXPECTED


def test_a_tree_of_a_file_system_with_directories(remote: Location) -> None:
    assert names(remote) == EXPECTED


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_a_directory_that_does_not_exist(storage: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(storage)
    with pytest.raises(NotFoundError):
        list_tree(join(root, "nothing"))


def test_a_link_is_not_followed(local: Location, tmp_path: Path) -> None:
    (tmp_path / "e").unlink()
    (tmp_path / "e").symlink_to(tmp_path / "a")
    links = [(entry.name, entry.is_link) for entry in list_tree(local) if entry.name.startswith("e")]
    assert links == [("e", True)]


def test_names_of_one_file(local: Location, tmp_path: Path) -> None:
    os.link(tmp_path / "e", tmp_path / "f" / "h")
    found = {entry.name: entry for entry in list_tree(local)}
    assert found["e"].inode == found["f/h"].inode
    assert (found["e"].links, found["a/d"].inode) == (2, None)


def test_a_directory_that_vanishes_is_left_out(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = CountedFileSystem.ls

    def vanish(self: CountedFileSystem, path: str, **options: Any) -> object:
        if path.endswith("/f"):
            raise FileNotFoundError(path)
        return listing(self, path, **options)

    monkeypatch.setattr(CountedFileSystem, "ls", vanish)
    assert names(remote) == EXPECTED[:-1]


def test_a_directory_that_cannot_be_listed_is_an_error(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = CountedFileSystem.ls

    def refuse(self: CountedFileSystem, path: str, **options: Any) -> object:
        if path.endswith("/f"):
            raise PermissionError(13, "Permission denied", path)
        return listing(self, path, **options)

    monkeypatch.setattr(CountedFileSystem, "ls", refuse)
    with pytest.raises(StateError, match="Permission denied"):
        list_tree(remote)
