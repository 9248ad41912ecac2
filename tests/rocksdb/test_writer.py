from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.errors import TargetExistsError, UsageError
from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import Database, DatabaseWriter, read_database
from state_pipelines.rocksdb.table import open_table
from state_pipelines.rocksdb.writer import COMPRESSIONS, list_files
from tests.rocksdb.databases import read_with_rocksdb, scan_pairs, to_entries

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [(b"%06d" % i, b"value %d" % i * (i % 4)) for i in range(5000)]
ODD_NAME = 'a "state]\n# of ü'


def read(files: list[Path]) -> Database:
    streams = {path.name: StateStream(path.name, path.stat().st_size, data=path.read_bytes()) for path in files}
    return read_database(streams)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_is_written_is_read(tmp_path: Path, compression: str) -> None:
    with DatabaseWriter(tmp_path / "db", ["first", ODD_NAME, "empty"], compression=compression) as writer:
        writer.write("first", to_entries(ROWS[:3000]))
        writer.write("first", to_entries(ROWS[3000:]))
        writer.write(ODD_NAME, to_entries([(b"k", b"")]))
        files = writer.finish()
    expected = {"default": [], "first": ROWS, ODD_NAME: [(b"k", b"")], "empty": []}
    assert {column_family.name: scan_pairs(column_family) for column_family in read(files).column_families} == expected
    assert read_with_rocksdb({path.name: path.read_bytes() for path in files}, list(expected)) == expected


def test_large_families_have_several_tables(tmp_path: Path) -> None:
    with DatabaseWriter(tmp_path, ["first"], table_size=5_000) as writer:
        writer.write("first", to_entries(ROWS))
        files = writer.finish()
    column_family = read(files).column_families[1]
    assert len(column_family.files) > 3
    assert scan_pairs(column_family) == ROWS


def test_only_the_files_of_a_handle_are_listed(tmp_path: Path) -> None:
    with DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("first", to_entries(ROWS))
        names = [path.name for path in writer.finish()]
    assert [name.rstrip("0123456789") for name in names if not name.endswith(".sst")] == [
        "CURRENT",
        "MANIFEST-",
        "OPTIONS-",
    ]
    assert len(names) == 4


def test_a_directory_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("first", to_entries(ROWS))
        files = writer.finish()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        patched.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionError):
            list_files(tmp_path)
    assert list_files(tmp_path) == files


def test_tables_have_the_format_that_flink_reads(tmp_path: Path) -> None:
    with DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("first", to_entries(ROWS))
        files = writer.finish()
    (file,) = read(files).column_families[1].files
    assert file.stream.data[-12:-8] == b"\x05\0\0\0"
    assert file.stream.data[-53] == 1
    assert open_table(file).merge_operator == "StringAppendTESTOperator"


def test_keys_must_ascend_in_a_batch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="key 1 "), DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("first", to_entries([(b"b", b""), (b"b", b"")]))


def test_keys_must_ascend_from_batch_to_batch(tmp_path: Path) -> None:
    with DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("first", to_entries([(b"b", b"")]))
        with pytest.raises(UsageError, match="key 0 "):
            writer.write("first", to_entries([(b"a", b"")]))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError), DatabaseWriter(tmp_path, ["first"]) as writer:
        writer.write("second", to_entries(ROWS))
    assert list(tmp_path.iterdir()) == []


def test_families_come_by_turns(tmp_path: Path) -> None:
    with DatabaseWriter(tmp_path, ["a", "b"]) as writer:
        for key in (b"1", b"2"):
            for column_family in "ab":
                writer.write(column_family, to_entries([(key, column_family.encode())]))
        files = writer.finish()
    found = {each.name: scan_pairs(each) for each in read(files).column_families}
    assert found == {"default": [], "a": [(b"1", b"a"), (b"2", b"a")], "b": [(b"1", b"b"), (b"2", b"b")]}


@pytest.mark.parametrize("names", [["default"], ["a", "a"]])
def test_names_must_be_distinct(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError, match="distinct"):
        DatabaseWriter(tmp_path, names)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetExistsError):
        DatabaseWriter(tmp_path, [])


def test_an_empty_batch_is_nothing(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    with DatabaseWriter(tmp_path, ["a"]) as writer:
        entries = to_entries([(b"", b"")])
        writer.write("a", type(entries)(entries.data, none, none, none, none))
        assert scan_pairs(read(writer.finish()).column_families[1]) == []
