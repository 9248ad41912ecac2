from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.errors import FormatError, ProofError, UsageError
from state_pipelines.keyed.canonical import RUN, open_canonical
from state_pipelines.keyed.digests import sum_digests
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.keyed.keys import KeyFilter
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.rescale.records import Collect, Gather, InputFiles, Shuffle
from state_pipelines.operations.rescale.snapshot_merge import align_headers
from state_pipelines.operations.write.spills import BLOCK, find_blocks, read_spill
from state_pipelines.serializers import tree
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, resolve
from tests.operations.rescaling.keyed_files import (
    COUNTS,
    HEADER,
    ITEMS,
    KEYS,
    RECORDS,
    TIMERS,
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
    text,
    value,
    write,
)
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from state_pipelines.keyed.canonical import CanonicalFile
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operations.rescale.snapshot_merge import StatePairs
    from state_pipelines.operations.write.keyed_rewrite import WrittenFile
    from state_pipelines.operations.write.spills import Spill
    from state_pipelines.storage import Location

ALL: StatePairs = tuple((each, each) for each in range(4))
MAXIMA = st.sampled_from([1, 2, 7, 127, 128, 129, 300, 1024])


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return resolve(str(tmp_path))


def shuffle(
    file: KeyedFile, old: int, new: int, target: Location, *, block: int = BLOCK, key_filter: KeyFilter | None = None
) -> Spill:
    return Shuffle("op", file, ALL, new, target, Hasher(), key_filter, block=block).run()


def gather(
    spills: tuple[Spill, ...],
    parallelism: int,
    new: int,
    directory: Location,
    *,
    batch: int = 1 << 20,
    header: KeyedHeader = HEADER,
) -> list[tuple[WrittenFile, CanonicalFile]]:
    result = []
    for subtask in range(parallelism):
        key_groups = compute_key_group_range(subtask, parallelism, new)
        target = join(directory, f"new-{subtask}")
        piece = Gather("op", subtask, header, key_groups, (spills,), context(new), target, hasher=Hasher(), batch=batch)
        written = piece.run()
        result.append((written, reopen(target, key_groups, written.size, written.offsets, new)))
    return result


def opened(results: list[tuple[WrittenFile, CanonicalFile]]) -> list[CanonicalFile]:
    return [file for _, file in results]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    records=RECORDS,
    old=MAXIMA,
    new=MAXIMA,
    parallelism=st.integers(1, 5),
    block=st.sampled_from([1, 100, 1 << 20]),
    batch=st.sampled_from([1, 60, 1 << 20]),
    compressed=st.booleans(),
)
def test_records_come_to_the_groups_of_their_hashes_and_back(
    *, records: list[Record], old: int, new: int, parallelism: int, block: int, batch: int, compressed: bool
) -> None:
    header = replace(HEADER, compressed=compressed)
    with tempfile.TemporaryDirectory() as directory:
        there, back = join(resolve(directory), "there"), join(resolve(directory), "back")
        file = write(join(there, "old"), old, records, header)
        spill = shuffle(file, old, new, join(there, "spill"), block=block)
        moved = opened(gather((spill,), min(parallelism, new), new, there, batch=batch, header=header))
        assert read(moved, new) == expect(records, new)
        spills = tuple(
            shuffle(each, new, old, join(back, f"spill-{number}"), block=block) for number, each in enumerate(moved)
        )
        again = opened(gather(spills, 1, old, back, batch=batch, header=header))
        assert read(again, old) == expect(records, old) == read([file], old)


@pytest.mark.slow
@given(RECORDS, st.sampled_from([(128, 129), (129, 128), (1024, 96)]))
@settings(max_examples=20, deadline=None)
def test_digests_tell_that_nothing_is_lost(records: list[Record], maxima: tuple[int, int]) -> None:
    old, new = maxima
    with tempfile.TemporaryDirectory() as directory:
        place = resolve(directory)
        file = write(join(place, "old"), old, records)
        before = digest_states(file, file.key_groups)
        spill = shuffle(file, old, new, join(place, "spill"))
        results = gather((spill,), 3, new, place)
    after = sum_digests(written.states for written, _ in results)
    assert after == spill.states
    assert {name: each.without_key_groups for name, each in after.items()} == {
        name: each.without_key_groups for name, each in before.items()
    }
    assert sum(each.records for each in after.values()) == len(records)


def test_largest_max_parallelism(place: Location) -> None:
    records = [value(f"k{number}", number) for number in range(100)]
    spill = shuffle(write(join(place, "old"), 1, records), 1, 32768, join(place, "spill"))
    assert read(opened(gather((spill,), 2, 32768, place)), 32768) == expect(records, 32768)


def test_key_group_larger_than_a_block_and_a_batch(place: Location) -> None:
    records = [count("hot", f"user{number}", number) for number in range(500)]
    records += [value(f"k{number}", number) for number in range(50)] + [items("hot", *range(300))]
    for compressed in (False, True):
        header = replace(HEADER, compressed=compressed)
        directory = join(place, str(compressed))
        spill = shuffle(write(join(directory, "old"), 4, records, header), 4, 300, join(directory, "spill"), block=1000)
        assert len(spill.blocks) > 5
        assert read(opened(gather((spill,), 2, 300, directory, batch=700, header=header)), 300) == expect(records, 300)


def test_every_range_of_key_groups_is_one_range_of_bytes_per_block(place: Location) -> None:
    records = [value(f"k{number}", number) for number in range(300)] + [alarm(f"k{n}", n) for n in range(300)]
    spill = shuffle(write(join(place, "old"), 8, records), 8, 64, join(place, "spill"), block=5000)
    ranges = list(read_spill(spill.location, find_blocks(spill.location), KeyGroupRange(10, 20)))
    assert len(ranges) == len(spill.blocks)
    found = 0
    for each in ranges:
        ends = each.runs["offset"] + each.runs["size"]
        assert (each.runs["offset"][1:] == ends[:-1]).all()
        assert (each.bounds[0], each.bounds[-1]) == (each.runs["offset"][0], ends[-1])
        found += int(each.runs["records"].sum())
    assert found == sum(10 <= group_of(each.user_key, 64) < 30 for each in records)


def test_spill_of_an_attempt_that_died_is_replaced(place: Location) -> None:
    Path(place.path, "spill").write_bytes(b"half")
    Path(place.path, "new-0").write_bytes(b"half")
    records = [value("a", 1)]
    spill = shuffle(write(join(place, "old"), 4, records), 4, 8, join(place, "spill"))
    assert read(opened(gather((spill,), 1, 8, place)), 8) == expect(records, 8)


def test_subtask_without_records_gets_a_header_alone(place: Location) -> None:
    spill = shuffle(write(join(place, "old"), 4, []), 4, 8, join(place, "spill"))
    ((written, file),) = gather((spill,), 1, 8, place)
    assert (spill.blocks, written.offsets, file.header) == ((), (0,) * 8, HEADER)


def test_parts_of_a_file_and_pieces_of_work_travel(place: Location) -> None:
    records = [value(f"k{number}", number) for number in range(200)]
    file = write(join(place, "old"), 16, records)
    pieces = [
        Shuffle("op", split, ALL, 5, join(place, f"spill-{number}"), Hasher())
        for number, split in enumerate(file.split(500))
    ]
    assert len(pieces) > 3
    spills = pickle.loads(pickle.dumps(tuple(pickle.loads(pickle.dumps(piece)).run() for piece in pieces)))
    assert read(opened(gather(spills, 2, 5, place)), 5) == expect(records, 5)


def test_only_the_wanted_key_groups_of_a_source_move(place: Location) -> None:
    records = [value(f"k{number}", number) for number in range(100)]
    file = write(join(place, "old"), 8, records)
    wanted = KeyGroupRange(2, 3)
    piece = Shuffle("op", file, ALL, 4, join(place, "spill"), Hasher(), key_groups=wanted)
    moved = opened(gather((piece.run(),), 1, 4, place))
    assert read(moved, 4) == expect([each for each in records if group_of(each.user_key, 8) in wanted], 4)


def test_states_get_the_ids_of_the_new_header(place: Location) -> None:
    records = [value("a", 1), alarm("b", 2), items("a", 5), count("c", "x", None)]
    header = replace(HEADER, states=(HEADER.states[TIMERS], HEADER.states[COUNTS]))
    pairs = ((COUNTS, 1), (TIMERS, 0))
    file = write(join(place, "old"), 4, records)
    spill = Shuffle("op", file, pairs, 300, join(place, "spill"), Hasher()).run()
    kept = [each for each in records if each.state in (COUNTS, TIMERS)]
    assert read(opened(gather((spill,), 2, 300, place, header=header)), 300) == expect(kept, 300)
    assert {name: each.records for name, each in spill.states.items()} == {
        "counts": 1,
        "_timer_state/event_user-timers": 1,
    }


@dataclass(frozen=True)
class Wrong(Hasher):
    """Thinks of every key but one what is right."""

    key: str = ""

    def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> npt.NDArray[np.int32]:
        codes = super().hash_keys(records, skip=skip)
        for row, start in enumerate(records.key_starts.tolist()):
            if records.data[start : start + len(self.key) + 1].tobytes() == text(self.key):
                codes[row] += 1
        return codes


@pytest.mark.parametrize("make", [lambda key: value(key, 1), lambda key: alarm(key, 1)], ids=["value", "timer"])
def test_wrong_hash_is_caught_before_anything_moves(place: Location, make: object) -> None:
    records = [make(f"k{number}") for number in range(50)]  # type: ignore[operator]
    file = write(join(place, "old"), 128, records)
    piece = Shuffle("count-words", file, ALL, 256, join(place, "spill"), Wrong(key="k17"))
    with pytest.raises(ProofError, match=rf"the key 'k17' is in key group {group_of('k17', 128)} of 128") as caught:
        piece.run()
    name = HEADER.states[records[0].state].name
    assert (caught.value.where.operator, caught.value.where.state) == ("count-words", name)


def test_written_keys_must_lie_where_the_hash_puts_them(place: Location) -> None:
    spill = shuffle(write(join(place, "old"), 4, [value("k1", 1)]), 4, 128, join(place, "spill"))
    piece = Gather(
        "op", 0, HEADER, KeyGroupRange(0, 128), ((spill,),), context(128), join(place, "new"), hasher=Wrong(key="k1")
    )
    with pytest.raises(ProofError, match="'k1' is in key group"):
        piece.run()


def test_change_of_a_spill_is_caught(place: Location) -> None:
    spill = shuffle(write(join(place, "old"), 4, [value("k1", 1), value("k2", 5)]), 4, 8, join(place, "spill"))
    path = Path(spill.location.path)
    raw = bytearray(path.read_bytes())
    raw[spill.blocks[0].size - 1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ProofError, match="the new file has other records of total than expected"):
        gather((spill,), 1, 8, place)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 20, (3).to_bytes(8, "little")])
def test_file_that_is_no_spill_is_refused(raw: bytes, place: Location) -> None:
    Path(place.path, "spill").write_bytes(raw)
    with pytest.raises(FormatError, match="not a spill"):
        find_blocks(join(place, "spill"))


def test_spill_says_where_its_blocks_lie(place: Location) -> None:
    records = [value(f"k{number}", number) for number in range(100)]
    spill = shuffle(write(join(place, "old"), 4, records), 4, 8, join(place, "spill"), block=200)
    assert len(spill.blocks) > 3
    assert find_blocks(spill.location) == spill.blocks


def test_damaged_directory_is_refused(place: Location) -> None:
    spill = shuffle(write(join(place, "old"), 4, [value("k1", 1)]), 4, 8, join(place, "spill"))
    path = Path(spill.location.path)
    end = spill.blocks[0].start + spill.blocks[0].size + spill.blocks[0].runs * RUN.itemsize + 9 * 16
    raw = bytearray(path.read_bytes())
    raw[end - 8 : end] = b"\xff" * 8
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="directory of a spill"):
        gather((spill,), 1, 8, place)


def test_max_parallelism_stays_without_hashes(place: Location) -> None:
    file = write(join(place, "old"), 4, [value("k1", 1)])
    with pytest.raises(UsageError, match="without the hashes"):
        Shuffle("op", file, ALL, 8, join(place, "spill"), None).run()
    spill = Shuffle("op", file, ALL, 4, join(place, "spill"), None).run()
    assert read(opened(gather((spill,), 2, 4, place)), 4) == read([file], 4)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(records=RECORDS, keys=st.frozensets(KEYS, max_size=6), keep=st.booleans(), shuffled=st.booleans())
def test_filter_keeps_or_drops_keys(*, records: list[Record], keys: frozenset[str], keep: bool, shuffled: bool) -> None:
    key_filter = KeyFilter(frozenset(map(text, keys)), keep)
    kept = [each for each in records if (each.user_key in keys) == keep]
    with tempfile.TemporaryDirectory() as directory:
        place = resolve(directory)
        file = write(join(place, "old"), 16, records)
        before = digest_states(file, file.key_groups)
        if shuffled:
            spill = shuffle(file, 16, 300, join(place, "spill"), key_filter=key_filter)
            assert read(opened(gather((spill,), 2, 300, place)), 300) == expect(kept, 300)
            states, dropped = spill.states, spill.dropped
        else:
            written, new = collect([(file,)], 16, join(place, "new"), key_filter=key_filter)
            assert read([new], 16) == expect(kept, 16)
            states, dropped = written.states, written.dropped
            assert sum_digests([states, dropped]) == before
        together = sum_digests([states, dropped])
        assert {name: each.content for name, each in together.items()} == {
            name: each.content for name, each in before.items()
        }


def collect(
    sources: list[tuple[KeyedFile, ...]],
    max_parallelism: int,
    target: Location,
    *,
    key_groups: KeyGroupRange | None = None,
    key_filter: KeyFilter | None = None,
    batch: int = 1 << 20,
) -> tuple[WrittenFile, CanonicalFile]:
    key_groups = key_groups or KeyGroupRange(0, max_parallelism)
    header, pairs = align_headers([file.header for files in sources for file in files])
    each_pairs = iter(pairs)
    given = tuple(InputFiles(files, tuple(next(each_pairs) for _ in files), key_filter) for files in sources)
    piece = Collect("op", 0, header, key_groups, given, context(max_parallelism), target, batch=batch)
    written = pickle.loads(pickle.dumps(piece)).run()
    return written, reopen(target, key_groups, written.size, written.offsets, max_parallelism)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(records=RECORDS, batch=st.sampled_from([1, 200, 1 << 20]), compressed=st.booleans())
def test_files_with_other_headers_are_collected(records: list[Record], batch: int, compressed: bool) -> None:
    reversed_header = replace(HEADER, states=HEADER.states[::-1], compressed=compressed)
    turned = [replace(each, state=3 - each.state) for each in records]
    first, second = compute_key_group_range(0, 2, 10), compute_key_group_range(1, 2, 10)
    with tempfile.TemporaryDirectory() as directory:
        place = resolve(directory)
        left = write(join(place, "left"), 10, records, key_groups=first)
        right = write(join(place, "right"), 10, turned, reversed_header, second)
        whole, file = collect([(left, right)], 10, join(place, "whole"), batch=batch)
        assert file.header == HEADER
        assert read([file], 10) == expect(records, 10)
        middle = KeyGroupRange(3, 4)
        part, file = collect([(right, left)], 10, join(place, "part"), key_groups=middle, batch=batch)
        inside = [each for each in records if group_of(each.user_key, 10) in middle]
        assert read([file], 10) == expect(inside, 10)
    assert sum(each.records for each in whole.states.values()) == len(records)
    assert sum(records for _, records in part.records) == len(inside)


def test_collected_states_must_be_those_of_the_header(place: Location) -> None:
    file = write(join(place, "old"), 4, [value("a", 1)])
    source = InputFiles((file,), (((TOTAL, ITEMS),),))
    with pytest.raises(UsageError, match="is that of another state"):
        Collect("op", 0, HEADER, KeyGroupRange(0, 4), (source,), context(4), join(place, "new")).run()


def test_snapshot_of_another_max_parallelism_is_not_collected(place: Location) -> None:
    file = write(join(place, "old"), 4, [value("a", 1)])
    source = InputFiles((file,), (ALL,))
    with pytest.raises(UsageError, match="must be sorted by new key group first"):
        Collect("op", 0, HEADER, KeyGroupRange(0, 8), (source,), context(8), join(place, "new")).run()


@dataclass(frozen=True)
class Forgetful:
    """A file whose key groups come without what `scan` gives of timers."""

    file: CanonicalFile

    @property
    def header(self) -> KeyedHeader:
        return self.file.header

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.file.key_groups

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def context(self) -> RecordContext:
        return self.file.context

    def scan(self, *arguments: object) -> object:
        return self.file.scan(*arguments)  # type: ignore[arg-type]

    def scan_key_groups(self, *arguments: object) -> object:
        for key_group, runs in self.file.scan_key_groups(*arguments):  # type: ignore[arg-type]
            yield key_group, [run for run in runs if run[0] != TIMERS]


def test_records_that_reading_loses_are_noticed(place: Location) -> None:
    file = Forgetful(write(join(place, "old"), 4, [value("a", 1), alarm("a", 1)]))
    source = InputFiles((file,), (ALL,))  # type: ignore[arg-type]
    with pytest.raises(ProofError, match="a second reading of _timer_state/event_user-timers found other records"):
        Collect("op", 0, HEADER, KeyGroupRange(0, 4), (source,), context(4), join(place, "new")).run()


HASHABLE = ["session-windows", "tumbling-windows", "composite-types", "array-types", "basic-types", "ttl-states"]


@pytest.mark.parametrize("label", HASHABLE)
@pytest.mark.parametrize("new", [96, 700])
def test_savepoints_of_flink(label: str, new: int, place: Location) -> None:
    (operator,) = [each for each in types().open().operators if each.label == label]
    files = [file for _, file in operator.keyed_files]
    old = operator.record_context
    header, pairs = align_headers([file.header for file in files])
    hasher = Hasher(header.key_serializer)

    def move(sources: list[KeyedFile], after: int, name: str) -> list[CanonicalFile]:
        context = replace(old, max_parallelism=after)
        spills = []
        for number, (file, states) in enumerate(zip(sources, pairs, strict=True)):
            target = join(place, f"{name}-{number}")
            spills.append(Shuffle(label, file, states, after, target, hasher).run())
        moved = []
        for subtask in range(2):
            key_groups = compute_key_group_range(subtask, 2, after)
            target = join(place, f"{name}-new-{subtask}")
            piece = Gather(label, subtask, header, key_groups, (tuple(spills),), context, target, hasher=hasher)
            written = piece.run()
            stream = StateStream(str(target), written.size, location=target)
            moved.append(open_canonical(stream, key_groups, written.offsets, context))
        return moved

    moved = move([*files], new, "there")
    back = move([*moved], old.max_parallelism, "back")
    assert read(back, old.max_parallelism) == read(files, old.max_parallelism)
    assert len(read(moved, new)) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "main-rocksdb-native",
        "avro-hashmap-native",
    ],
)
def test_states_of_every_format_move(name: str, fixtures: Path, place: Location) -> None:
    moved = 0
    for metadata in sorted((fixtures / "made" / "2.2.1" / name).rglob("_metadata")):
        mapping = f"file:/flink-data={fixtures / 'made'}"
        for operator in open_snapshot(str(metadata.parent), path_mapping=[mapping]).operators:
            files = [file for _, file in operator.keyed_files]
            if not files or not _is_hashable(files[0].header.key_serializer):
                continue
            old = operator.record_context
            header, pairs = align_headers([file.header for file in files])
            before = sum_digests(digest_states(file, file.key_groups) for file in files)
            directory = join(place, operator.label.replace("/", "-"))
            source = InputFiles(tuple(files), pairs)
            key_groups = KeyGroupRange(0, old.max_parallelism)
            collected = Collect("op", 0, header, key_groups, (source,), old, join(directory, "all"), batch=1000).run()
            assert collected.states == before
            hasher, new = Hasher(header.key_serializer), replace(old, max_parallelism=200)
            spills = tuple(
                Shuffle("op", file, states, 200, join(directory, str(number)), hasher).run()
                for number, (file, states) in enumerate(zip(files, pairs, strict=True))
            )
            everything, target = KeyGroupRange(0, 200), join(directory, "new")
            written = Gather("op", 0, header, everything, (spills,), new, target, hasher=hasher).run()
            assert {state: each.without_key_groups for state, each in written.states.items()} == {
                state: each.without_key_groups for state, each in before.items()
            }
            moved += sum(each.records for each in before.values())
    assert moved > 0


def _is_hashable(serializer: tree.Serializer) -> bool:
    return isinstance(serializer, tree.Basic | tree.Tuple)
