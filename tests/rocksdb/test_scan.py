from __future__ import annotations

import pickle
import random
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from rocksdict import BlockBasedIndexType, BlockBasedOptions, ChecksumType, DataBlockIndexType, DBCompressionType, Rdict

from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.rocksdb import estimate, read_database, scan, split_keys
from state_pipelines.rocksdb.table import open_table
from tests.rocksdb.databases import (
    MERGE,
    PUT,
    append_with_rocksdb,
    list_streams,
    make_options,
    read_directory,
    read_family,
    scan_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocksdict import Options

    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.rocksdb import ColumnFamily

ROWS = [(b"%02d" % (i % 7) + b"long common prefix %05d" % i, b"value %d " % i * (i % 5)) for i in range(3000)]


def fill(directory: Path, options: Options, *rounds: Mapping[bytes, bytes | None]) -> None:
    """One table per round; None deletes."""
    for changes in rounds:
        database = Rdict(str(directory), options)
        for key, value in changes.items():
            if value is None:
                del database[key]
            else:
                database[key] = value
        database.flush()
        database.close()


def family_of(streams: dict[str, StateStream]) -> ColumnFamily:
    return read_database(streams).column_families[0]


def damage(streams: dict[str, StateStream], data: bytes) -> dict[str, StateStream]:
    """The files with other bytes in their only table."""
    (name,) = (name for name in streams if name.endswith(".sst"))
    return {**streams, name: replace(streams[name], data=data)}


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_reads_every_table_format(tmp_path: Path, version: int) -> None:
    fill(tmp_path, make_options(version=version), dict(ROWS))
    assert scan_pairs(read_family(tmp_path)) == sorted(ROWS)


def write_old_format(directory: Path, version: int) -> ColumnFamily:
    """The only table, of format 2, with the footer of format 0 or 1: RocksDB writes neither any more."""
    streams = list_streams(directory)
    (name,) = (name for name in streams if name.endswith(".sst"))
    data = streams[name].data
    footer, end = data[-53:], len(data) - 53
    if version == 0:
        # No type of checksum, and another magic number; the size is in the MANIFEST.
        return family_of(damage(streams, data[:end] + bytes(5) + footer[1:41] + bytes.fromhex("57fb808b247547db")))
    return family_of(damage(streams, data[:end] + footer[:41] + bytes.fromhex("01000000") + footer[45:]))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_reads_tables_of_old_formats(tmp_path: Path, version: int, compression: str) -> None:
    options = make_options(version=2)
    options.set_compression_type(getattr(DBCompressionType, compression)())
    fill(tmp_path, options, dict(ROWS))
    assert scan_pairs(write_old_format(tmp_path, version)) == sorted(ROWS)


@pytest.mark.parametrize("version", [0, 1])
def test_compression_without_sizes_is_refused(tmp_path: Path, version: int) -> None:
    options = make_options(version=2)
    options.set_compression_type(DBCompressionType.lz4())
    fill(tmp_path, options, dict(ROWS))
    with pytest.raises(UnsupportedError, match="compressed by method 4"):
        scan_pairs(write_old_format(tmp_path, version))


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("checksum", ["no_checksum", "crc32c", "xxhash", "xxhash64", "xxh3"])
def test_reads_every_checksum(tmp_path: Path, version: int, checksum: str) -> None:
    fill(tmp_path, make_options(version=version, checksum=getattr(ChecksumType, checksum)()), dict(ROWS))
    assert scan_pairs(read_family(tmp_path)) == sorted(ROWS)


@pytest.mark.parametrize("compression", ["none", "snappy", "zlib", "lz4", "lz4hc", "zstd"])
def test_reads_every_compression(tmp_path: Path, compression: str) -> None:
    options = make_options()
    options.set_compression_type(getattr(DBCompressionType, compression)())
    rows = {**dict(ROWS), b"large": bytes(3 << 20) + random.Random(1).randbytes(1 << 20), b"empty": b""}
    fill(tmp_path, options, rows)
    assert scan_pairs(read_family(tmp_path)) == sorted(rows.items())


def test_another_compression_is_named(tmp_path: Path) -> None:
    options = make_options()
    options.set_compression_type(DBCompressionType.bz2())
    fill(tmp_path, options, dict(ROWS))
    with pytest.raises(UnsupportedError, match="bzip2"):
        scan_pairs(read_family(tmp_path))


@pytest.mark.parametrize("version", [3, 5, 6])
def test_reads_a_two_level_index(tmp_path: Path, version: int) -> None:
    blocks = BlockBasedOptions()
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_metadata_block_size(200)
    blocks.set_block_size(256)
    blocks.set_index_block_restart_interval(4)
    fill(tmp_path, make_options(version=version, blocks=blocks), dict(ROWS))
    assert len(open_table(read_family(tmp_path).files[0]).index) > 100
    assert scan_pairs(read_family(tmp_path)) == sorted(ROWS)


def test_reads_blocks_with_a_hash_index(tmp_path: Path) -> None:
    blocks = BlockBasedOptions()
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    fill(tmp_path, make_options(blocks=blocks), dict(ROWS))
    assert scan_pairs(read_family(tmp_path)) == sorted(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 2000, 8 << 20])
def test_the_newest_version_wins_over_tables_and_levels(tmp_path: Path, window: int) -> None:
    options = make_options()
    chance = random.Random(window)
    for _ in range(5):
        fill(tmp_path, options, {key: chance.choice([value, None, b"new"]) for key, value in chance.sample(ROWS, 1200)})
        if chance.random() < 0.5:
            database = Rdict(str(tmp_path), options)
            database.compact_range(ROWS[0][0], ROWS[chance.randrange(3000)][0])
            database.close()
    expected = read_directory(tmp_path)
    assert len(expected) > 500
    assert scan_pairs(read_family(tmp_path), window=window) == expected


@pytest.mark.parametrize("window", [1, 2000, 8 << 20])
def test_range_deletions_erase_only_what_is_older(tmp_path: Path, window: int) -> None:
    options = make_options()
    keys = sorted(key for key, _ in ROWS)
    fill(tmp_path, options, dict(ROWS))
    for first, last, written in ((10, 900, keys[50:60]), (850, 1000, keys[990:1100]), (0, 2, [])):
        database = Rdict(str(tmp_path), options)
        database.delete_range(keys[first], keys[last])
        for key in written:
            database[key] = b"later"
        database.flush()
        database.close()
    assert any(open_table(file).tombstones for file in read_family(tmp_path).files)
    expected = read_directory(tmp_path)
    assert (keys[55], b"later") in expected
    assert scan_pairs(read_family(tmp_path), window=window) == expected


def test_a_range_deletion_alone_in_its_table(tmp_path: Path) -> None:
    options = make_options()
    fill(tmp_path, options, {b"a": b"1", b"b": b"2", b"c": b"3"})
    database = Rdict(str(tmp_path), options)
    database.delete_range(b"a", b"c")
    database.flush()
    database.close()
    assert scan_pairs(read_family(tmp_path)) == [(b"c", b"3")]


@pytest.mark.parametrize("window", [1, 8 << 20])
def test_merge_operands_are_joined_down_to_the_put(tmp_path: Path, window: int) -> None:
    options = make_options()
    append_with_rocksdb(tmp_path, options, [(PUT, b"a", b"1"), (MERGE, b"b", b"x"), (PUT, b"empty", b"")])
    append_with_rocksdb(tmp_path, options, [(MERGE, b"a", b"2"), (MERGE, b"a", b"3"), (MERGE, b"d", b"gone")])
    fill(tmp_path, options, {b"d": None})
    append_with_rocksdb(tmp_path, options, [(MERGE, b"a", b"4"), (MERGE, b"d", b""), (MERGE, b"empty", b"5")])
    assert len(read_family(tmp_path).files) == 4
    expected = [(b"a", b"1,2,3,4"), (b"b", b"x"), (b"d", b""), (b"empty", b",5")]
    assert read_directory(tmp_path) == expected
    assert scan_pairs(read_family(tmp_path), window=window) == expected


@pytest.mark.parametrize("window", [1, 3000, 8 << 20])
def test_many_operands_of_one_key_fill_several_blocks(tmp_path: Path, window: int) -> None:
    options = make_options()
    for turn in range(3):
        records = [(MERGE, b"k%d" % (i % 3), b"%d %d" % (turn, i) * 9) for i in range(2000)]
        append_with_rocksdb(tmp_path, options, records)
    column_family = read_family(tmp_path)
    assert not open_table(column_family.files[0]).index.has_user_keys
    assert scan_pairs(column_family, window=window) == read_directory(tmp_path)


def test_operands_of_another_operator_are_refused(tmp_path: Path) -> None:
    append_with_rocksdb(tmp_path, make_options(), [(MERGE, b"a", b"1"), (MERGE, b"a", b"2")])
    streams = list_streams(tmp_path)
    (name,) = (name for name in streams if name.endswith(".sst"))
    stream = streams[name]
    # The name stands in the properties, whose checksum follows.
    data = stream.data.replace(b"StringAppendTESTOperator", b"StringAppendXXXXOperator")
    with pytest.raises(FormatError, match="checksum"):
        scan_pairs(family_of(damage(streams, data)))
    # Without checksums; they are named by the first byte of the footer.
    data = data[:-53] + bytes(1) + data[-52:]
    with pytest.raises(UnsupportedError, match="StringAppendXXXXOperator"):
        scan_pairs(family_of(damage(streams, data)))


@pytest.mark.parametrize("window", [1, 1000, 8 << 20])
def test_a_range_is_cut_at_its_keys(tmp_path: Path, window: int) -> None:
    options = make_options()
    fill(tmp_path, options, dict(ROWS), dict(ROWS[::3]))
    expected = sorted(ROWS)
    column_family = read_family(tmp_path)
    for first, last in ((0, 0), (0, 1), (5, 2900), (1000, 1001), (2999, 2999)):
        found = scan_pairs(column_family, expected[first][0], expected[last][0], window=window)
        assert found == expected[first:last]
    assert scan_pairs(column_family, b"05", b"06") == [pair for pair in expected if pair[0][:2] == b"05"]
    assert scan_pairs(column_family, b"x") == []


def test_split_keys_cut_into_parts_of_the_wanted_size(tmp_path: Path) -> None:
    options = make_options()
    options.set_compression_type(DBCompressionType.none())
    fill(tmp_path, options, dict(ROWS), dict(ROWS[1000:]))
    column_family = read_family(tmp_path)
    keys = split_keys(column_family, b"", None, 30_000)
    bounds = [b"", *keys, None]
    parts = list(pairwise(bounds))
    assert [pair for low, high in parts for pair in scan_pairs(column_family, low or b"", high)] == sorted(ROWS)
    assert all(20_000 < estimate(column_family, low or b"", high) < 60_000 for low, high in parts[:-1])


def test_estimate_of_everything_is_the_size_of_the_tables(tmp_path: Path) -> None:
    fill(tmp_path, make_options(), dict(ROWS))
    column_family = read_family(tmp_path)
    assert estimate(column_family) == sum(file.size for file in column_family.files)
    assert estimate(column_family, b"x") == 0


def test_a_column_family_can_be_pickled(tmp_path: Path) -> None:
    fill(tmp_path, make_options(), dict(ROWS[:9]))
    column_family = read_family(tmp_path)
    assert pickle.loads(pickle.dumps(column_family)) == column_family


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, make_options(), dict(ROWS[:300]))
    streams = list_streams(tmp_path)
    (name,) = (name for name in streams if name.endswith(".sst"))
    data = streams[name].data
    chance = random.Random(7)
    blocks = open_table(read_family(tmp_path).files[0]).index
    end = int(blocks.offsets[-1] + blocks.sizes[-1]) + 5
    for position in chance.sample(range(end), 60):
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        with pytest.raises(FormatError):
            list(scan(family_of(damage(streams, bytes(damaged)))))


@pytest.mark.slow
def test_without_checksums_damage_never_leaves_the_buffers(tmp_path: Path) -> None:
    options = make_options(checksum=ChecksumType.no_checksum())
    options.set_compression_type(DBCompressionType.none())
    fill(tmp_path, options, dict(ROWS[:300]))
    streams = list_streams(tmp_path)
    (name,) = (name for name in streams if name.endswith(".sst"))
    data = streams[name].data
    chance = random.Random(7)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] = chance.randrange(256)
        try:
            scan_pairs(family_of(damage(streams, bytes(damaged))))
        except (FormatError, UnsupportedError):
            refused += 1
    assert refused > 50
