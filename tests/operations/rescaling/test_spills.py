from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.errors import FormatError, ProofError
from state_pipelines.keyed.canonical import RUN, Block, join_blocks
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.rescale.records import Gather, Shuffle
from state_pipelines.operations.write import spills
from state_pipelines.operations.write.spills import (
    BATCH,
    BLOCK,
    SpilledBlock,
    SpilledRange,
    choose_batch,
    cut_windows,
    find_blocks,
    merge_blocks,
    open_spills,
    read_spill,
)
from state_pipelines.storage import exists, file_size, join, read_file, read_range, resolve
from tests.operations.rescaling.keyed_files import (
    HEADER,
    RECORDS,
    TOTAL,
    Hasher,
    Record,
    alarm,
    context,
    count,
    expect,
    group_of,
    items,
    read,
    reopen,
    value,
    write,
)
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operations.write.keyed_rewrite import WrittenFile
    from state_pipelines.operations.write.spills import Spill
    from state_pipelines.storage import Location

OLD = 16
ALL = tuple((each, each) for each in range(4))
MIXED = [
    *(value(f"k{number}", number) for number in range(80)),
    *(items(f"k{number}", number, 7) for number in range(80)),
    *(count(f"k{number % 9}", f"name{number}", None if number % 5 else number) for number in range(80)),
    *(alarm(f"k{number}", number) for number in range(80)),
]
HOT = [
    *(count("hot", f"user{number}", number) for number in range(500)),
    *(alarm("hot", number) for number in range(200)),
    *(value(f"k{number}", number) for number in range(50)),
]


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return resolve(str(tmp_path))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which temporary directories are made."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def shuffle(
    records: Iterable[Record],
    new: int,
    target: Location,
    *,
    source: Location,
    merges: bool = False,
    block: int = BLOCK,
    batch: int = BATCH,
    hasher: Any = None,
) -> Spill:
    file = write(source, OLD, records)
    return Shuffle("op", file, ALL, new, target, hasher or Hasher(), merges=merges, block=block, batch=batch).run()


def gather(
    found: Sequence[Spill],
    new: int,
    directory: Location,
    *,
    parallelism: int = 2,
    batch: int = 1 << 20,
    header: KeyedHeader = HEADER,
) -> list[WrittenFile]:
    written = []
    for subtask in range(min(parallelism, new)):
        key_groups = compute_key_group_range(subtask, min(parallelism, new), new)
        target = join(directory, f"new-{subtask}")
        written.append(
            Gather(
                "op", subtask, header, key_groups, (tuple(found),), context(new), target, hasher=Hasher(), batch=batch
            ).run()
        )
    return written


def contents(directory: Location, written: list[WrittenFile]) -> list[bytes]:
    return [read_file(join(directory, f"new-{each.subtask}")) for each in written]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(RECORDS, min_size=1, max_size=3),
    new=st.sampled_from([1, 7, 128, 300]),
    block=st.sampled_from([1, 100, 1 << 20]),
    batch=st.sampled_from([60, 400, 1 << 20]),
    compressed=st.booleans(),
)
def test_files_are_the_same_whether_blocks_are_merged_or_not(
    *, parts: list[list[Record]], new: int, block: int, batch: int, compressed: bool
) -> None:
    header = replace(HEADER, compressed=compressed)
    # Where snappy chunks end depends on the pieces in which a key group that is not held is read.
    joined = 1 << 20 if compressed else batch
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for merges in (False, True):
            place = join(resolve(directory), str(merges))
            made = [
                shuffle(
                    records,
                    new,
                    join(place, f"spill-{number}"),
                    source=join(place, f"old-{number}"),
                    merges=merges,
                    block=block,
                    batch=batch,
                )
                for number, records in enumerate(parts)
            ]
            if merges:
                assert all(len(each.blocks) == bool(records) for each, records in zip(made, parts, strict=True))
                assert all(find_blocks(each.location) == each.blocks for each in made)
            written = gather(made, new, place, batch=joined, header=header)
            found.append((written, contents(place, written), [each.states for each in made]))
    assert found[0] == found[1]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("records", [MIXED, HOT], ids=["mixed", "hot"])
def test_many_blocks_become_one(records: list[Record], compressed: bool, place: Location) -> None:
    header = replace(HEADER, compressed=compressed)
    plain = shuffle(records, 300, join(place, "plain"), source=join(place, "old"), block=900)
    target = join(place, "merged")
    (block,) = merge_blocks(plain.location, plain.blocks, target, 300, 700)
    assert len(plain.blocks) > 5
    assert find_blocks(target) == (block,)
    (found,) = read_spill(target, [block], KeyGroupRange(0, 300))
    pairs = list(zip(found.runs["key_group"].tolist(), found.runs["state"].tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    merged = replace(plain, location=target, blocks=(block,))
    written = gather([merged], 300, place, batch=700, header=header)
    files = [
        reopen(
            join(place, f"new-{each.subtask}"),
            compute_key_group_range(each.subtask, 2, 300),
            each.size,
            each.offsets,
            300,
        )
        for each in written
    ]
    assert read(files, 300) == expect(records, 300)


def test_a_single_block_stays_what_it_is(place: Location) -> None:
    plain = shuffle(MIXED, 300, join(place, "plain"), source=join(place, "old"))
    assert merge_blocks(plain.location, plain.blocks, join(place, "merged"), 300, 500) == plain.blocks
    assert read_file(join(place, "merged")) == read_file(plain.location)


def test_a_spill_without_blocks_stays_what_it_is(place: Location) -> None:
    plain = shuffle([], 300, join(place, "plain"), source=join(place, "old"))
    assert merge_blocks(plain.location, (), join(place, "merged"), 300) == ()
    assert read_file(join(place, "merged")) == read_file(plain.location)


def test_sums_of_hashes_stay_what_they_are(place: Location) -> None:
    plain = shuffle(MIXED, 300, join(place, "plain"), source=join(place, "old"), block=900)
    blocks = merge_blocks(plain.location, plain.blocks, join(place, "merged"), 300)
    (merged,) = read_spill(join(place, "merged"), blocks, KeyGroupRange(0, 300))
    before = np.concatenate([each.runs for each in read_spill(plain.location, plain.blocks, KeyGroupRange(0, 300))])
    for name in ("records", "bytes", "digest", "content"):
        for run in merged.runs:
            mine = before[(before["key_group"] == run["key_group"]) & (before["state"] == run["state"])]
            assert int(run[name]) == sum(mine[name].tolist()) % (1 << 64)


def test_no_more_than_two_windows_are_held(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shuffle(HOT, 300, join(place, "plain"), source=join(place, "old"), block=20_000)
    sizes: list[int] = []
    joined: list[int] = []

    def note_read(location: Location, start: int, end: int) -> bytes:
        sizes.append(end - start)
        return read_range(location, start, end)

    def note_block(blocks: list[Block]) -> Block:
        joined.append(sum(len(each.data) for each in blocks))
        return join_blocks(blocks)

    monkeypatch.setattr(spills, "read_range", note_read)
    monkeypatch.setattr(spills, "join_blocks", note_block)
    merge_blocks(plain.location, plain.blocks, join(place, "merged"), 300, 3000)
    assert max(sizes) <= 2 * 3000
    assert max(joined) <= 2 * 3000
    assert sum(joined) < sum(block.size for block in plain.blocks) // 2


def test_indexes_are_held_in_parts(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shuffle(MIXED, 300, join(place, "plain"), source=join(place, "old"), block=500)
    held: list[int] = []

    def note(location: Location, blocks: Sequence[SpilledBlock], key_groups: KeyGroupRange) -> list[SpilledRange]:
        found = list(read_spill(location, blocks, key_groups))
        held.append(sum(each.runs.nbytes for each in found))
        return found

    monkeypatch.setattr(spills, "read_spill", note)
    merge_blocks(plain.location, plain.blocks, join(place, "merged"), 300, 2000)
    assert sum(held) == sum(block.runs for block in plain.blocks) * RUN.itemsize
    assert max(held) <= 2 * 2000 < sum(held) // 2


def flip(location: Location, position: int) -> None:
    path = Path(location.path)
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("column", ["key_group", "offset", "size", "last"])
def test_a_damaged_index_is_refused(column: str, place: Location) -> None:
    spill = shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), block=5000)
    block = spill.blocks[1]
    assert RUN.fields is not None
    kind, offset = RUN.fields[column][:2]
    # The top byte of a number: far away from what it should be.
    run = block.start + block.size + block.runs // 2 * RUN.itemsize
    flip(spill.location, run + offset + kind.itemsize - 1)
    with pytest.raises(FormatError, match="the index of a spill is damaged") as caught:
        merge_blocks(spill.location, spill.blocks, join(place, "merged"), 300)
    assert caught.value.where.file == str(spill.location)
    with pytest.raises(FormatError, match="the index of a spill is damaged"):
        gather([spill], 300, place)


def test_a_damaged_directory_is_refused(place: Location) -> None:
    spill = shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), block=5000)
    block = spill.blocks[1]
    directory = block.start + block.size + block.runs * RUN.itemsize
    for position in (directory, directory + 15, directory + 150 * 16, directory + 300 * 16 + 8):
        flip(spill.location, position)
        with pytest.raises(FormatError, match="of a spill is damaged") as caught:
            merge_blocks(spill.location, spill.blocks, join(place, "merged"), 300)
        assert caught.value.where.file == str(spill.location)
        flip(spill.location, position)
    assert merge_blocks(spill.location, spill.blocks, join(place, "merged"), 300)


def test_a_spill_that_was_cut_off_is_refused(place: Location) -> None:
    spill = shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), block=5000)
    path = Path(spill.location.path)
    path.write_bytes(path.read_bytes()[: spill.blocks[-1].start + 10])
    with pytest.raises(FormatError, match="The file was cut off or changed") as caught:
        merge_blocks(spill.location, spill.blocks, join(place, "merged"), 300)
    assert caught.value.where.file == str(spill.location)


def test_damaged_data_come_to_light_although_blocks_were_merged(place: Location) -> None:
    spill = shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), block=5000)
    block = spill.blocks[0]
    (found,) = read_spill(spill.location, [block], KeyGroupRange(0, 300))
    run = found.runs[found.runs["state"] == TOTAL][0]
    flip(spill.location, int(run["offset"] + run["size"]) - 1)
    blocks = merge_blocks(spill.location, spill.blocks, join(place, "merged"), 300)
    merged = replace(spill, location=join(place, "merged"), blocks=blocks)
    with pytest.raises(ProofError, match="the new file has other records of total than expected"):
        gather([merged], 300, place)


@pytest.mark.parametrize("merges", [False, True])
def test_what_an_attempt_that_died_has_left_is_replaced(merges: bool, place: Location, scratch: Path) -> None:
    options: dict[str, Any] = {"merges": merges, "block": 5000}
    fresh = shuffle(MIXED, 300, join(place, "fresh"), source=join(place, "old"), **options)
    for name, directory in (("near", place), ("far", empty_counted())):
        target = join(directory, "spill")
        target.filesystem.pipe_file(target.path, b"half")
        spill = shuffle(MIXED, 300, target, source=join(place, name), **options)
        assert find_blocks(target) == spill.blocks == fresh.blocks
        assert read_file(target) == read_file(fresh.location)
    assert not list(scratch.iterdir())


class Failing(Hasher):
    """Gives up when some keys are hashed."""

    def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> npt.NDArray[np.int32]:
        raise FormatError("no more")


def test_nothing_is_left_of_a_spill_that_could_not_be_written(place: Location, scratch: Path) -> None:
    with pytest.raises(FormatError, match="no more"):
        shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), merges=True, hasher=Failing())
    assert not list(scratch.iterdir())
    assert not exists(join(place, "spill"))


def is_data(spill: Spill, start: int, end: int) -> bool:
    return any(block.start <= start and end <= block.start + block.size for block in spill.blocks)


@pytest.mark.parametrize("records", [MIXED, HOT], ids=["mixed", "hot"])
@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("batch", [300, 1 << 20])
def test_each_block_of_a_remote_spill_is_read_once(
    records: list[Record], merges: bool, batch: int, place: Location, scratch: Path
) -> None:
    far, near = (
        [
            shuffle(
                records[number::3],
                300,
                join(directory, f"spill-{number}"),
                source=join(place, f"old-{name}-{number}"),
                merges=merges,
                block=500,
            )
            for number in range(3)
        ]
        for name, directory in (("far", empty_counted()), ("near", place))
    )
    CountedFileSystem.reads.clear()
    key_groups = KeyGroupRange(group_of("hot", 300) // 75 * 75, 75)
    written = []
    for number, found in enumerate((far, near)):
        target = join(place, f"new-{number}")
        piece = Gather("op", 1, HEADER, key_groups, (tuple(found),), context(300), target, batch=batch)
        written.append(piece.run())
    assert written[0] == written[1]
    assert read_file(join(place, "new-0")) == read_file(join(place, "new-1"))
    assert sum(number for _, number in written[0].records) > 10

    blocks = sum(len(spill.blocks) for spill in far)
    assert blocks == 3 if merges else blocks > 9
    by_path = {spill.location.path: spill for spill in far}
    data = [each for each in CountedFileSystem.reads if is_data(by_path[each[0]], *each[1:])]
    assert 0 < len(data) <= blocks
    assert len(CountedFileSystem.reads) <= 3 * blocks
    wanted = sum(each.size for spill in far for each in read_spill(spill.location, spill.blocks, key_groups))
    assert sum(end - start for _, start, end in data) == wanted
    assert not list(scratch.iterdir())


def test_a_large_share_of_a_block_is_read_in_pieces(
    place: Location, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = shuffle(HOT, 300, join(empty_counted(), "spill"), source=join(place, "old"))
    near = shuffle(HOT, 300, join(place, "spill"), source=join(place, "more"))
    monkeypatch.setattr(spills, "BATCH", 1000)
    CountedFileSystem.reads.clear()
    key_groups = KeyGroupRange(0, 300)
    with open_spills([[far]], key_groups) as ((source, found),):
        assert (source, found.size) == (0, near.blocks[0].size)
        (same,) = read_spill(near.location, near.blocks, key_groups)
        copied = found.read(key_groups)
        assert copied.data.tobytes() == same.read(key_groups).data.tobytes()
        assert (copied.runs == same.read(key_groups).runs).all()
        assert file_size(found.location) == found.size
        assert Path(found.location.path).is_relative_to(scratch)
    data = [end - start for _, start, end in CountedFileSystem.reads if is_data(far, start, end)]
    assert sorted(data)[1:] == [1000] * (near.blocks[0].size // 1000)
    assert not list(scratch.iterdir())


def test_nothing_is_left_on_this_machine_of_a_remote_spill_that_is_damaged(place: Location, scratch: Path) -> None:
    remote = empty_counted()
    spill = shuffle(MIXED, 300, join(remote, "spill"), source=join(place, "old"), block=500)
    raw = bytearray(read_file(spill.location))
    block = spill.blocks[3]
    for position, message in (
        (block.start + block.size + 3, "the index of a spill is damaged"),
        (block.start + block.size + block.runs * RUN.itemsize, "the directory of a spill is damaged"),
    ):
        raw[position] ^= 0xFF
        remote.filesystem.pipe_file(spill.location.path, bytes(raw))
        raw[position] ^= 0xFF
        with pytest.raises(FormatError, match=message) as caught:
            gather([spill], 300, place)
        assert caught.value.where.file == str(spill.location)
        assert not list(scratch.iterdir())
    remote.filesystem.pipe_file(spill.location.path, bytes(raw))
    assert [each.subtask for each in gather([spill], 300, place)] == [0, 1]


def test_data_that_cannot_be_fetched_leave_nothing_on_this_machine(
    place: Location, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = shuffle(MIXED, 300, join(empty_counted(), "spill"), source=join(place, "old"), block=500)
    lost = spill.blocks[2]

    def lose(location: Location, start: int, end: int) -> bytes:
        if location == spill.location and lost.start <= start < lost.start + lost.size:
            raise FormatError("lost on the way")
        return read_range(location, start, end)

    monkeypatch.setattr(spills, "read_range", lose)
    with pytest.raises(FormatError, match="lost on the way") as caught:
        gather([spill], 300, place)
    assert caught.value.where.operator == "op"
    assert not list(scratch.iterdir())


def test_spills_of_this_machine_are_read_where_they_lie(place: Location, scratch: Path) -> None:
    spill = shuffle(MIXED, 300, join(place, "spill"), source=join(place, "old"), block=500)
    with open_spills([[], [spill]], KeyGroupRange(10, 20)) as found:
        assert {source for source, _ in found} == {1}
        assert {each.location for _, each in found} == {spill.location}
        assert not list(scratch.iterdir())


def make_range(*sizes: int) -> SpilledRange:
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return SpilledRange(resolve("nowhere"), KeyGroupRange(5, len(sizes)), np.empty(0, RUN), bounds)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([(0, 0, 0)], []),
        ([(4, 4, 4)], [(5, 2, False), (7, 1, False)]),
        ([(2, 2, 2), (2, 2, 2)], [(5, 2, False), (7, 1, False)]),
        ([(0, 0, 20), (0, 0, 1)], [(7, 1, True)]),
        ([(1, 0, 21, 0, 1)], [(5, 2, False), (7, 1, True), (9, 1, False)]),
        ([(0, 20, 0)], [(6, 1, False)]),
    ],
)
def test_windows_hold_what_there_is_once(sizes: list[tuple[int, ...]], expected: list[tuple[int, int, bool]]) -> None:
    windows = cut_windows([make_range(*each) for each in sizes], 10)
    assert [(each.start, each.number, is_large) for each, is_large in windows] == expected


@pytest.mark.parametrize(("blocks", "mebibytes"), [(0, 16), (1, 16), (512, 16), (1024, 32), (2048, 64), (100_000, 64)])
def test_windows_grow_with_the_blocks(blocks: int, mebibytes: int) -> None:
    assert choose_batch(blocks) == mebibytes << 20
