"""Requests and bytes of operations that write, counted by the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import generate
from state_pipelines.errors import FormatError
from state_pipelines.operations.convert import convert
from state_pipelines.operations.inspect import StateReport, inspect
from state_pipelines.operations.rescale import RescaleRequest, plan_rescale, run_rescale
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import Location
from tests.snapshot.savepoints import TYPES
from tests.storages import CountedFileSystem, Fault, LostRequest, empty_counted

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

KEYS = 20_000
TARGET = "counted:///results/new"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical snapshot of two states in two files."""
    target = tmp_path_factory.mktemp("generated") / "savepoint"
    generate(str(target), KEYS)
    return target


def put(directory: Path) -> int:
    """Put a snapshot to `/job/savepoint`; its bytes."""
    root = empty_counted()
    for path in directory.iterdir():
        root.filesystem.pipe_file(f"/job/savepoint/{path.name}", path.read_bytes())
    CountedFileSystem.requests.clear()
    CountedFileSystem.written.clear()
    return sum(path.stat().st_size for path in directory.iterdir())


def rescale(
    *, prove: bool, scratch: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None
) -> None:
    snapshot = open_snapshot("counted:///job/savepoint")
    target = Location(snapshot.location.directory.filesystem, "/results/new")
    run_rescale(
        plan_rescale(snapshot, target, RescaleRequest(parallelism=parallelism, max_parallelism=max_parallelism)),
        prove=prove,
        scratch=scratch,
    )


def counts(snapshot: Snapshot) -> list[list[StateReport]]:
    return [operator.states for operator in inspect(snapshot, count=True).operators]


def count_read() -> int:
    return sum(end - start for _, start, end in CountedFileSystem.reads)


def count_written() -> int:
    return sum(size for _, size in CountedFileSystem.written)


def test_another_parallelism_reads_and_writes_once(directory: Path) -> None:
    size = put(directory)
    rescale(prove=False, parallelism=3)
    assert count_read() <= 1.05 * size
    assert count_written() <= 1.05 * size


@pytest.mark.parametrize("number", [64, 1024])
def test_another_max_parallelism_reads_and_writes_once(directory: Path, number: int) -> None:
    size = put(directory)
    rescale(prove=False, max_parallelism=number)
    assert count_read() <= 1.1 * size
    # A longer prefix of key groups makes records longer.
    assert count_written() <= 1.05 * size


@pytest.mark.parametrize("number", [64, 1024])
def test_the_proof_of_moved_records_reads_only_the_new_files(directory: Path, number: int) -> None:
    size = put(directory)
    rescale(prove=False, max_parallelism=number)
    alone = count_read()
    put(directory)
    rescale(prove=True, max_parallelism=number)
    assert count_read() - alone <= 1.05 * size


def test_the_proof_of_copied_key_groups_reads_each_side_once(directory: Path) -> None:
    size = put(directory)
    rescale(prove=False, parallelism=3)
    alone = count_read()
    put(directory)
    rescale(prove=True, parallelism=3)
    assert count_read() - alone <= 2.05 * size


def test_no_temporary_file_is_written_to_the_storage(directory: Path) -> None:
    put(directory)
    rescale(prove=True, max_parallelism=64)
    assert {path.rpartition("/")[0] for path, _ in CountedFileSystem.written} == {"/results/new"}


def test_temporary_files_go_where_the_user_says(directory: Path) -> None:
    put(directory)
    rescale(prove=True, max_parallelism=64, scratch="counted:///scratch")
    assert any(path.startswith("/scratch/.new-") for path, _ in CountedFileSystem.written)
    assert not [path for path in CountedFileSystem.store if path.startswith("/scratch/")]


@pytest.mark.slow
def test_a_file_that_is_longer_than_its_handle_says_is_cut_and_a_shorter_one_refused() -> None:
    (directory,) = (TYPES / "flink-2.2" / "rocksdb-native").glob("savepoint-*")
    put(directory)
    store = CountedFileSystem.store
    longest = max((path for path in store if not path.endswith("_metadata")), key=lambda path: store[path].size)
    content = store[longest].getvalue()
    CountedFileSystem().pipe_file(longest, content + b"more")
    path = convert(open_snapshot("counted:///job/savepoint"), TARGET, "keep").path
    sizes = {store[each].size for each in store if each.startswith("/results/new/")}
    assert {len(content), len(content) + 4} & sizes == {len(content)}
    assert counts(open_snapshot(path)) == counts(open_snapshot(str(directory)))
    CountedFileSystem().pipe_file(longest, content[:-1])
    with pytest.raises(FormatError, match=f"the file has {len(content) - 1} bytes"):
        convert(open_snapshot("counted:///job/savepoint"), "counted:///results/short", "keep")
    assert not [each for each in store if each.startswith("/results/short/")]


@pytest.mark.slow
def test_a_copy_that_the_storage_has_lost_is_made_again() -> None:
    (directory,) = (TYPES / "flink-2.2" / "rocksdb-native").glob("savepoint-*")
    put(directory)
    lost: list[int] = []

    def lose_one(number: int, operation: str, _: str) -> Fault | None:
        if operation != "copy" or lost:
            return None
        lost.append(number)
        return LostRequest()

    CountedFileSystem.rule = lose_one
    path = convert(open_snapshot("counted:///job/savepoint"), TARGET, "keep").path
    assert lost
    assert counts(open_snapshot(path)) == counts(open_snapshot(str(directory)))


def test_files_that_stay_are_copied_by_the_storage_many_at_a_time() -> None:
    (directory,) = (TYPES / "flink-2.2" / "rocksdb-native").glob("savepoint-*")
    size = put(directory)
    snapshot = open_snapshot("counted:///job/savepoint")
    CountedFileSystem.requests.clear()
    CountedFileSystem.gather = {"copy": 16}
    result = convert(snapshot, TARGET, "keep")
    operations = [operation for operation, _ in CountedFileSystem.requests]
    assert result.copied > 50
    assert operations.count("copy") == result.copied
    # All else is for the target, its metadata and the headers.
    assert len(operations) <= result.copied + 20
    assert CountedFileSystem.most >= 16
    assert count_read() < 0.1 * size
    assert count_written() < 0.1 * size
