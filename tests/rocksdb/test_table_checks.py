"""Tables whose checksums are right, and which leave out blocks or entries, or contradict the MANIFEST."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import TableCache
from state_pipelines.rocksdb.manifest import TableFile
from state_pipelines.rocksdb.scans import verify_table
from state_pipelines.rocksdb.table import open_table
from tests.rocksdb.databases import Pairs, scan_pairs
from tests.rocksdb.forged_tables import forge_table, make_family, write_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.rocksdb import ColumnFamily

ROWS = [(b"key %05d" % number, b"value %d" % number * 5) for number in range(1500)]
FIRST, LAST = ROWS[0][0], ROWS[-1][0]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    data = write_table(tmp_path_factory.mktemp("database"), ROWS)
    assert len(open_table(make_family(data, FIRST, LAST).files[0]).index) > 5
    return data


def verify(column_family: ColumnFamily, *, whole: bool = True) -> int:
    return sum(verify_table(file, TableCache(), whole=whole) for file in column_family.files)


def refuse(column_family: ColumnFamily, match: str, *, sample: bool = True) -> None:
    """Check that every reader refuses a table; one that only looks at some of it, where it can know."""
    with pytest.raises(FormatError, match=match):
        scan_pairs(column_family)
    with pytest.raises(FormatError, match=match):
        verify(column_family)
    if sample:
        with pytest.raises(FormatError, match=match):
            verify(column_family, whole=False)
        with pytest.raises(FormatError, match=match):
            scan_pairs(column_family, ROWS[750][0], ROWS[751][0])


@pytest.mark.parametrize("alignment", [1, 4, 4096])
def test_a_table_that_only_has_its_blocks_elsewhere_is_read(table: bytes, alignment: int) -> None:
    # RocksDB pads blocks with zeros where `block_align` is on.
    column_family = make_family(forge_table(table, alignment=alignment), FIRST, LAST)
    assert scan_pairs(column_family) == ROWS
    assert verify(column_family) == len(ROWS)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda index: index[1:], "leaves out .* bytes before its data block 0"),
        (lambda index: [*index[:2], *index[3:]], "leaves out .* bytes before its data block 2"),
        (lambda index: index[:-1], "names .* data blocks, the properties"),
        (lambda _: [], "names 0 data blocks"),
    ],
)
def test_an_index_that_leaves_out_blocks_is_refused(table: bytes, edit: Callable[[Pairs], Pairs], match: str) -> None:
    refuse(make_family(forge_table(table, index=edit), FIRST, LAST), match)


def test_a_block_that_leaves_out_an_entry_is_refused_where_the_table_is_read_whole(table: bytes) -> None:
    def leave_out(blocks: list[Pairs]) -> list[Pairs]:
        return [*blocks[:2], [*blocks[2][:3], *blocks[2][4:]], *blocks[3:]]

    refuse(make_family(forge_table(table, blocks=leave_out), FIRST, LAST), "hold 1499 entries", sample=False)


@pytest.mark.parametrize("window", [1, 8 << 20])
def test_entries_of_a_table_are_counted_over_all_chunks_of_a_scan(table: bytes, window: int) -> None:
    def leave_out(blocks: list[Pairs]) -> list[Pairs]:
        return [*blocks[:2], blocks[2][:-1], *blocks[3:]]

    column_family = make_family(forge_table(table, blocks=leave_out), FIRST, LAST)
    for end in (None, LAST + b"\0"):
        with pytest.raises(FormatError, match="hold 1499 entries"):
            scan_pairs(column_family, end=end, window=window)


@pytest.mark.parametrize("block", [0, 2, -1])
def test_a_block_without_entries_is_refused(table: bytes, block: int) -> None:
    def empty(blocks: list[Pairs]) -> list[Pairs]:
        blocks[block] = []
        return blocks

    column_family = make_family(forge_table(table, blocks=empty), FIRST, LAST)
    refuse(column_family, "does not have the layout", sample=False)


@pytest.mark.parametrize("number", [1, 700])
def test_bounds_that_are_narrower_than_the_table_are_refused(table: bytes, number: int) -> None:
    # Within the first and the last block, and beyond.
    for column_family in (make_family(table, ROWS[number][0], LAST), make_family(table, FIRST, ROWS[-1 - number][0])):
        refuse(column_family, "outside the bounds", sample=number > 1)


@pytest.mark.parametrize("number", [1, 700])
def test_the_scan_of_some_keys_notices_narrower_bounds(table: bytes, number: int) -> None:
    with pytest.raises(FormatError, match="outside the bounds"):
        scan_pairs(make_family(table, ROWS[number][0], LAST), b"", ROWS[900][0])
    with pytest.raises(FormatError, match="outside the bounds"):
        scan_pairs(make_family(table, FIRST, ROWS[-1 - number][0]), ROWS[100][0], None)


def test_bounds_that_are_wider_than_the_table_are_read(table: bytes) -> None:
    assert scan_pairs(make_family(table, b"a", b"z")) == ROWS


def test_a_separator_below_keys_of_its_block_loses_none_of_them(table: bytes) -> None:
    first_keys: list[bytes] = []

    def note(blocks: list[Pairs]) -> list[Pairs]:
        first_keys.extend(block[0][0] for block in blocks)
        return blocks

    def lower(index: Pairs) -> Pairs:
        return [*index[:2], (first_keys[2], index[2][1]), *index[3:]]

    column_family = make_family(forge_table(table, blocks=note, index=lower), FIRST, LAST)
    with pytest.raises(FormatError, match="in other blocks than its index says"):
        scan_pairs(column_family, window=1)
    with pytest.raises(FormatError, match="in other blocks than its index says"):
        scan_pairs(column_family, b"", ROWS[400][0], window=1)


@pytest.mark.parametrize("window", [1, 8 << 20])
def test_a_block_that_its_separator_hides_is_noticed(table: bytes, window: int) -> None:
    def hide(index: Pairs) -> Pairs:
        return [*index[:2], (index[1][0], index[2][1]), *index[3:]]

    column_family = make_family(forge_table(table, index=hide), FIRST, LAST)
    with pytest.raises(FormatError, match="in other blocks than its index says"):
        verify(column_family)
    with pytest.raises(FormatError, match="in other blocks than its index says"):
        scan_pairs(column_family, b"", ROWS[400][0], window=window)


def test_a_table_of_another_column_family_is_refused(tmp_path: Path) -> None:
    data = write_table(tmp_path, ROWS, "other")
    file = make_family(data, FIRST, LAST).files[0]
    with pytest.raises(FormatError, match="written for column family 'other', the MANIFEST lists it in 'default'"):
        open_table(file)
    assert len(open_table(replace(file, column_family="other")).index) > 5
    assert len(open_table(replace(file, column_family="")).index) > 5


def test_an_error_names_the_file_and_where_the_block_is_missing(table: bytes) -> None:
    stream = StateStream("shared/1", 0, data=forge_table(table, index=lambda index: index[1:]))
    file = TableFile(1, 6, len(stream.data), FIRST, LAST + b"\0", 0, 99, replace(stream, size=len(stream.data)))
    with pytest.raises(FormatError, match="file shared/1, offset 0"):
        open_table(file)
