from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from rocksdict import DBCompressionType, Rdict

from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import ColumnFamily, TableCache, read_database, scan
from state_pipelines.rocksdb.scans import READ_SIZE
from state_pipelines.storage import Location
from tests.rocksdb.databases import make_options, to_pairs

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.rocksdb import TableFile


class CountingFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of this machine as those of a remote storage; the reads of each are counted."""

    cachable = False
    protocol = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.files = LocalFileSystem()
        self.reads: list[str] = []
        self.sizes: list[int] = []

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return dict(self.files.info(path, **options))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self.reads.append(path.rpartition("/")[2])
        data = bytes(self.files.cat_file(path, start, end, **options))
        self.sizes.append(len(data))
        return data


def make_database(
    directory: Path, rows: int, tables: int = 1, value: int = 80
) -> tuple[CountingFileSystem, ColumnFamily]:
    options = make_options()
    options.set_compression_type(DBCompressionType.none())
    for table in range(tables):
        database = Rdict(str(directory), options)
        for row in range(rows):
            database[b"%02d key %08d" % (table, row)] = b"%08d" % row * (value // 8)
        database.flush()
        database.close()
    filesystem = CountingFileSystem()
    streams = {
        path.name: StateStream(path.name, path.stat().st_size, location=Location(filesystem, str(path)))
        for path in directory.iterdir()
        if path.suffix == ".sst" or path.name.startswith(("CURRENT", "MANIFEST"))
    }
    column_family = read_database(streams).column_families[0]
    filesystem.reads.clear()
    filesystem.sizes.clear()
    return filesystem, column_family


def count_rows(column_family: ColumnFamily, tables: TableCache | None = None, start: bytes = b"") -> int:
    return sum(len(entries) for entries in scan(column_family, start, tables=tables))


def test_a_database_is_opened_with_two_reads(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 10)
    streams = {
        path.name: StateStream(path.name, path.stat().st_size, location=Location(filesystem, str(path)))
        for path in tmp_path.iterdir()
    }
    read_database({name: each for name, each in streams.items() if not name.endswith(".log")})
    assert sorted(name.partition("-")[0] for name in filesystem.reads) == ["CURRENT", "MANIFEST"]
    assert len(column_family.files) == 1


def test_a_small_table_is_read_at_once(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 400)
    assert column_family.files[0].size < 1 << 16
    assert count_rows(column_family) == 400
    assert len(filesystem.reads) == 1


def test_a_larger_table_takes_one_read_to_open_and_one_for_its_data(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 20_000)
    assert 1 << 20 < column_family.files[0].size < 8 << 20
    assert count_rows(column_family) == 20_000
    assert len(filesystem.reads) == 2


def test_neighbouring_blocks_are_read_together_however_small_the_window(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 20_000)
    windows = list(scan(column_family, window=100_000))
    assert len(windows) > 20
    assert sum(map(len, windows)) == 20_000
    assert len(filesystem.reads) == 2


@pytest.mark.slow
def test_a_large_table_is_read_in_a_few_large_pieces_and_no_byte_twice(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 20_000, value=800)
    assert count_rows(column_family) == 20_000
    (size,) = (file.size for file in column_family.files)
    tail, *data = filesystem.sizes
    assert (tail, len(data)) == (size // 64, -(-size // READ_SIZE))
    assert size - tail < sum(data) < size


@pytest.mark.slow
def test_no_more_is_read_than_the_range_wants(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 20_000)
    found = [
        pair for entries in scan(column_family, b"00 key 00000100", b"00 key 00000110") for pair in to_pairs(entries)
    ]
    assert len(found) == 10
    tail, data = filesystem.sizes
    assert (tail, data < 3 * 4096) == (1 << 16, True)


@pytest.mark.slow
def test_the_index_of_a_table_of_many_blocks_is_in_what_opening_reads(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 9000, value=4096)
    tables = TableCache()
    tables.open(column_family.files[0])
    assert len(filesystem.reads) == 1


def test_kept_tables_are_not_opened_again(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 400, tables=3)
    tables = TableCache()
    assert [count_rows(column_family, tables) for _ in range(3)] == [1200] * 3
    assert sorted(filesystem.reads) == sorted(file.stream.name for file in column_family.files)


def test_the_entries_are_the_same_with_kept_tables(tmp_path: Path) -> None:
    _, column_family = make_database(tmp_path, 3000, tables=2)
    tables = TableCache()
    first, second = (
        [pair for entries in scan(column_family, tables=tables) for pair in to_pairs(entries)] for _ in range(2)
    )
    assert first == second == [pair for entries in scan(column_family) for pair in to_pairs(entries)]


def test_tables_used_least_recently_go_first(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 400, tables=3)
    first, second, third = column_family.files
    held = max(each.size for each in column_family.files) + 4096
    tables = TableCache(2 * held)
    for file in (first, second, first, third):
        tables.open(file)
    filesystem.reads.clear()
    for file in (first, third, second):
        tables.open(file)
    assert filesystem.reads == [second.stream.name]


def test_a_table_larger_than_the_bound_is_opened_but_not_kept(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 400)
    tables = TableCache(1)
    assert [count_rows(column_family, tables) for _ in range(2)] == [400, 400]
    assert len(filesystem.reads) == 2


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    tables = TableCache()
    files: list[TableFile] = []
    for rows in (10, 20):
        (directory := tmp_path / str(rows)).mkdir()
        _, column_family = make_database(directory, rows)
        (file,) = column_family.files
        stream = StateStream("000008.sst", file.size, data=(directory / file.stream.name).read_bytes())
        files.append(replace(file, stream=stream))
    sizes = [count_rows(ColumnFamily(0, "default", (file,)), tables) for file in files]
    assert sizes == [10, 20]


def test_a_copy_in_another_process_starts_empty(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 10)
    tables = TableCache()
    tables.open(column_family.files[0])
    pickle.loads(pickle.dumps(tables)).open(column_family.files[0])
    assert len(filesystem.reads) == 2


def test_threads_that_want_one_table_read_it_once(tmp_path: Path) -> None:
    filesystem, column_family = make_database(tmp_path, 400)
    tables, together = TableCache(), Barrier(4, timeout=20)

    def open_table(_: int) -> int:
        together.wait()
        return id(tables.open(column_family.files[0]))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(open_table, range(4)))) == 1
    assert len(filesystem.reads) == 1
