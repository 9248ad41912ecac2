"""Directories that somebody exchanges for symbolic links after a path was checked, and before it is used."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import OutOfReachError
from state_pipelines.operations.convert import Removal, convert
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import Location, PathMapping, join, read_file, resolve
from state_pipelines.storage.files import copy_file, open_file
from state_pipelines.storage.reading import read_range
from state_pipelines.storage.resolution import locate_named, open_parent
from state_pipelines.storage.snapshot_writer import (
    delete_files,
    link_file,
    move_file,
    remove_empty_directory,
    stat_files,
)
from tests.operations.retention.trees import NATIVE, install_savepoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINK = "a directory of this path is a symbolic link"


@pytest.fixture
def root(tmp_path: Path) -> Location:
    """A root with the file `deep/job/file`, and the same names outside of it with other content."""
    for above in ("root/deep", "outside"):
        (tmp_path / above / "job").mkdir(parents=True)
        (tmp_path / above / "job" / "file").write_bytes(above.encode())
    return resolve(str(tmp_path / "root"))


@pytest.fixture
def file(root: Location) -> Location:
    return join(root, "deep", "job", "file")


def exchange(directory: Path, other: Path) -> None:
    """Put a link to another directory in the place of one."""
    directory.rename(directory.with_name("away"))
    directory.symlink_to(other)


@pytest.fixture(params=["job", "deep"])
def exchanged(request: pytest.FixtureRequest, root: Location, tmp_path: Path) -> Path:
    """The file outside, to which the path of the one in the root leads now."""
    if request.param == "job":
        exchange(tmp_path / "root/deep/job", tmp_path / "outside/job")
    else:
        exchange(tmp_path / "root/deep", tmp_path / "outside")
    return tmp_path / "outside/job/file"


def test_nothing_is_deleted_behind_a_link(root: Location, file: Location, exchanged: Path) -> None:
    (error,) = delete_files([file], [root])
    assert isinstance(error, OutOfReachError)
    assert LINK in str(error)
    assert exchanged.exists()


def test_nothing_is_measured_behind_a_link(root: Location, file: Location, exchanged: Path) -> None:
    (error,) = stat_files([file], [root])
    assert isinstance(error, OutOfReachError), exchanged


def test_nothing_is_moved_from_behind_a_link(root: Location, file: Location, exchanged: Path) -> None:
    with pytest.raises(OutOfReachError, match=LINK):
        move_file(file, join(root, "here"), root)
    assert exchanged.exists()


def test_nothing_is_moved_to_behind_a_link(root: Location, file: Location, exchanged: Path) -> None:
    own = join(root, "own")
    with open(own.path, "wb"):  # noqa: PTH123
        pass
    with pytest.raises(OutOfReachError, match=LINK):
        move_file(own, join(root, "deep", "job", "new", "own"), root)
    assert not (exchanged.parent / "new").exists()
    assert os.path.exists(own.path)  # noqa: PTH110


def test_no_directory_is_removed_behind_a_link(root: Location, file: Location, exchanged: Path) -> None:
    exchanged.unlink()
    inner = exchanged.parent / "empty"
    inner.mkdir()
    assert not remove_empty_directory(join(root, "deep", "job", "empty"), root)
    assert inner.exists()


def test_without_links_all_of_it_is_done(root: Location, file: Location) -> None:
    move_file(file, join(root, "a", "b", "file"), root)
    moved = join(root, "a", "b", "file")
    assert stat_files([file, moved], [root, root])[0] is None
    assert delete_files([moved, moved], [root, root]) == [None, None]
    assert remove_empty_directory(join(root, "a", "b"), root)


def test_a_root_may_be_reached_by_a_link(root: Location, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root.path)
    linked = resolve(str(tmp_path / "link"))
    assert delete_files([join(linked, "deep", "job", "file")], [linked]) == [None]
    assert not (tmp_path / "root/deep/job/file").exists()


@pytest.mark.parametrize("path", ["../outside/job/file", "deep/../../outside/job/file", "", "."])
def test_paths_that_leave_the_root_are_refused(root: Location, path: str) -> None:
    with pytest.raises(OutOfReachError), open_parent(Location(root.filesystem, f"{root.path}/{path}"), root):
        pass


READS: dict[str, Callable[[Location, Location], object]] = {
    "whole": lambda file, _: read_file(file),
    "range": lambda file, _: read_range(file, 0, 4),
    "open": lambda file, _: open_file(file),
    "copy": copy_file,
    "link": link_file,
    "in another process": lambda file, _: read_file(pickle.loads(pickle.dumps(file))),
}


@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_elsewhere_once_it_is_open_is_refused(
    read: str, root: Location, file: Location, tmp_path: Path
) -> None:
    named = locate_named("deep/job/file", root, PathMapping(), relative=True, handle="RelativeFileStateHandle")
    new = resolve(str(tmp_path / "new"))
    READS[read](named, new)
    (tmp_path / "new").unlink(missing_ok=True)
    exchange(tmp_path / "root/deep/job", tmp_path / "outside/job")
    with pytest.raises(OutOfReachError, match="a RelativeFileStateHandle names a file outside the directories"):
        READS[read](named, new)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_linked_file_is_another_name_of_what_its_link_leads_to(tmp_path: Path) -> None:
    """Files of a snapshot may be absolute links to each other, which are gone once the snapshot was moved."""
    old = install_savepoint(tmp_path / "old", NATIVE)
    equal: dict[bytes, list[Path]] = {}
    for path in sorted(old.iterdir()):
        equal.setdefault(path.read_bytes(), []).append(path)
    links = [(other, first) for first, *others in equal.values() for other in others]
    assert links
    for other, first in links:
        other.unlink()
        other.symlink_to(first)
    before, entries = len(list(old.iterdir())), list(dump(open_snapshot(str(old))))
    result = convert(open_snapshot(str(old)), str(tmp_path / "new"), "keep", files="link", move=True)
    assert result.removed == before
    assert not old.exists()
    assert not [each for each in (tmp_path / "new").iterdir() if each.is_symlink()]
    assert list(dump(open_snapshot(str(tmp_path / "new")))) == entries


def test_a_snapshot_that_is_exchanged_before_it_is_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, victim = install_savepoint(tmp_path / "team"), install_savepoint(tmp_path / "victim")
    run = Removal.run

    def exchanging(self: Removal) -> int:
        exchange(old, victim)
        return run(self)

    monkeypatch.setattr(Removal, "run", exchanging)
    count = len(list(victim.iterdir()))
    with pytest.raises(OutOfReachError, match=LINK):
        convert(open_snapshot(str(old)), str(tmp_path / "new"), "keep", move=True)
    assert len(list(victim.iterdir())) == count
    assert (tmp_path / "new" / "_metadata").exists()
