from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest

from state_pipelines.errors import FormatError
from state_pipelines.keyed.sections import parse_header
from state_pipelines.metadata import list_references, read_metadata, write_metadata
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import open_snapshot
from tests.snapshot.large import write_incremental_checkpoint, write_keyed_savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    if filesystem.exists("/many-handles"):
        filesystem.rm("/many-handles", recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize(("operators", "subtasks", "files"), [(2, 5, 40), (1, 100, 1000)])
def test_metadata_with_many_files_is_written_as_it_was_read(
    operators: int, subtasks: int, files: int, tmp_path: Path
) -> None:
    write_incremental_checkpoint(tmp_path / "checkpoint", operators, subtasks, files)
    data = (tmp_path / "checkpoint" / "_metadata").read_bytes()
    metadata = read_metadata(data)
    assert len(list_references(metadata)) == operators * subtasks * (files + 4)
    assert write_metadata(metadata) == data


def test_subtasks_share_the_header_whose_bytes_they_share(tmp_path: Path) -> None:
    write_keyed_savepoint(tmp_path / "savepoint", 1, 5)
    operator = open_snapshot(str(tmp_path / "savepoint")).operator("operator-0")
    assert len({id(file.header) for _, file in operator.keyed_files}) == 1


def test_objects_of_one_operator_open_its_files_once(tmp_path: Path) -> None:
    write_keyed_savepoint(tmp_path / "savepoint", 2, 3)
    snapshot = open_snapshot(str(tmp_path / "savepoint"))
    for listed in snapshot.operators:
        named = snapshot.operator(listed.id)
        assert named is not listed
        for other in (listed, listed.readable):
            assert [id(file) for _, file in other.keyed_files] == [id(file) for _, file in named.keyed_files]
    found = [id(file) for each in snapshot.operators for _, file in each.keyed_files]
    assert len(set(found)) == len(found) > 1


def test_an_error_in_a_header_names_its_own_file(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with pytest.raises(FormatError, match=name):
            parse_header(bytes(8), name)


def test_headers_on_a_remote_storage_are_read_side_by_side(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    write_keyed_savepoint(tmp_path / "savepoint", 2, 20)
    memory.put(str(tmp_path / "savepoint"), "/many-handles", recursive=True)
    local = inspect(open_snapshot(str(tmp_path / "savepoint")), count=False)
    remote = inspect(open_snapshot("memory://many-handles"), count=False)
    assert remote.operators == local.operators
