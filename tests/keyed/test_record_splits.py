"""Parts of a state, cut inside key groups, against the state as a whole."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import STREAM_ID, compress_chunks
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError
from state_pipelines.keyed.canonical import CanonicalFile, open_canonical
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.heap import HeapFile, HeapWriter, open_heap
from state_pipelines.keyed.keyed_file import RecordContext, choose_least, combine_files
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.keyed.sections import NO_SECTION, Section
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import DatabaseWriter, read_database
from state_pipelines.rocksdb.writer import DEFAULT_COLUMN_FAMILY
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.spark.splits import StateOptions, split_state
from state_pipelines.storage import join as join_location
from state_pipelines.storage.reading import BUDGET, FIRST_REQUESTS, REQUESTS
from tests.keyed.canonical_files import Run, make_canonical, make_header, make_section
from tests.rocksdb.databases import list_streams, to_entries
from tests.snapshot.savepoints import orders
from tests.snapshots import MADE, OWN, Case
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state_pipelines.keyed.keyed_file import KeyedFile

FOUR = KeyGroupRange(0, 4)
CONTEXT = RecordContext(128, LayoutContext())
WIDE = RecordContext(1024, LayoutContext())
Row = tuple[int, bytes, bytes]


def rows(pieces: Iterable[KeyedRecords]) -> list[Row]:
    """Key group, key and value of records, in their order."""
    found = []
    for records in pieces:
        data = records.data.tobytes()
        spans = zip(records.key_starts, records.key_ends, records.value_starts, records.value_ends, strict=True)
        for group, (a, b, c, d) in zip(records.key_groups.tolist(), spans, strict=True):
            found.append((group, data[a:b], data[c:d]))
    return found


def scan(file: KeyedFile, state_id: int) -> list[Row]:
    return rows(records for _, records in file.scan([state_id]))


def split(file: KeyedFile, state_id: int, size: int, least: int = 0) -> list[list[Row]]:
    """The rows of each part; parts travel to other processes."""
    splits = pickle.loads(pickle.dumps([*file.split_records(state_id, size, least)]))
    return [scan(each, number) for each, number in splits]


def join(splits: list[list[Row]]) -> list[Row]:
    return [row for split in splits for row in split]


LARGER = ("main-hashmap-native", "main-rocksdb-native", "compressed-hashmap-canonical")
WRITTEN = [each for each in [*OWN, *MADE] if each.version.startswith("2.2") and (each in OWN or each.case in LARGER)]

RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=90)), min_size=1, max_size=12)
SECTIONS = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.integers(0, 2), RECORDS, min_size=1, max_size=3), min_size=1, max_size=4
)


def make_chunked(runs: list[Run], context: RecordContext, chunk: int, *, narrowed: bool) -> CanonicalFile:
    """A canonical file of small snappy chunks, or (`chunk` 0) plain; `narrowed` leaves the first key group out."""
    header = make_header(states=3, compressed=chunk > 0)
    writer = Writer()
    write_keyed_header(writer, header)
    data, offsets = writer.getvalue(), dict.fromkeys(FOUR, NO_SECTION)
    for key_group in dict.fromkeys(run[0] for run in runs):
        offsets[key_group] = len(data)
        section = make_section([run for run in runs if run[0] == key_group], context.prefix)
        if chunk:
            cuts = range(0, len(section), chunk)
            section = STREAM_ID + b"".join(compress_chunks(section[start : start + chunk]) for start in cuts)
        data += section
    if narrowed:
        offsets[runs[0][0]] = NO_SECTION
    stream = StateStream("savepoint/file", len(data), data=data)
    return open_canonical(stream, FOUR, tuple(offsets.values()), context, narrowed=narrowed)


@pytest.mark.slow
@given(
    sections=SECTIONS,
    context=st.sampled_from([CONTEXT, WIDE]),
    chunk=st.sampled_from([0, 1, 7, 100, 1 << 16]),
    size=st.integers(1, 200),
    least=st.integers(0, 300),
    narrowed=st.booleans(),
)
def test_parts_of_a_canonical_file_are_the_file(
    sections: dict[int, dict[int, list[tuple[bytes, bytes]]]],
    context: RecordContext,
    chunk: int,
    size: int,
    least: int,
    narrowed: bool,
) -> None:
    runs: list[Run] = [(group, state, found) for group, states in sections.items() for state, found in states.items()]
    file = make_chunked(runs, context, chunk, narrowed=narrowed)
    for state_id in range(3):
        whole = scan(file, state_id)
        assert join(split(file, state_id, size, least)) == whole
        assert narrowed or len(whole) == sum(len(found) for _, state, found in runs if state == state_id)


def make_skewed(*, compressed: bool = False) -> CanonicalFile:
    """Three states in key group 2, one with nearly all records."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 20_000)
    large = [(b"%06d" % number, b"%x" % value) for number, value in enumerate(numbers.tolist())]
    runs: list[Run] = [(0, 0, large[:5]), (2, 1, large[:9]), (2, 0, large), (2, 2, large[:7]), (3, 0, large[:6])]
    return make_canonical(make_header(states=3, compressed=compressed), FOUR, 1, runs)


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_pieces_are_even(compressed: bool) -> None:
    file = make_skewed(compressed=compressed)
    (large,) = (each.size for each in file.sections if each.key_group == 2)
    first, *pieces, last = split(file, 0, large // 20, least=large // 10)
    assert {row[0] for row in first} == {0}
    assert {row[0] for row in last} == {3}
    assert 20 <= len(pieces) <= 21
    assert {row[0] for span in pieces for row in span} == {2}
    assert min(map(len, pieces)) > 800
    assert max(map(len, pieces)) < 1200


@pytest.mark.slow
def test_a_state_with_few_records_in_a_large_key_group_is_one_small_part() -> None:
    file = make_skewed()
    ((split, _),) = file.split_records(1, 1000, 2000, KeyGroupRange(2, 1))
    assert isinstance(split, CanonicalFile)
    assert split.sections[0].size < 1000
    assert len(scan(split, 1)) == 9
    assert scan(split, 0) == []


@pytest.mark.slow
def test_key_groups_that_are_not_large_stay_whole() -> None:
    file = make_skewed()
    assert [split for split, _ in file.split_records(0, 1000, 1 << 30)] == [*file.split(1000)]


@pytest.mark.slow
def test_only_the_wanted_key_groups_are_split() -> None:
    splits = [*make_skewed().split_records(0, 1000, 2000, KeyGroupRange(3, 1))]
    assert [scan(*each)[0][0] for each in splits] == [3]


@pytest.mark.slow
def test_the_places_that_were_found_are_kept_but_do_not_travel() -> None:
    file = make_skewed()

    def find_sections(file: CanonicalFile) -> list[tuple[Section, ...]]:
        splits = (split for split, _ in file.split_records(0, 1000, 2000))
        return [each.sections for each in splits if isinstance(each, CanonicalFile)]

    found = find_sections(file)
    assert len(found) > 100
    gone = replace(file, stream=replace(file.stream, data=b""))
    assert find_sections(gone) == found
    assert len(pickle.dumps(gone)) < 2500


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_a_piece_is_read_in_windows(compressed: bool) -> None:
    file = make_skewed(compressed=compressed)
    ((split, _),) = file.split_records(0, 1 << 30, 2000, KeyGroupRange(2, 1))
    assert isinstance(split, CanonicalFile)
    pieces = [records for _, records in split.scan([0], window=5000)]
    assert len(pieces) > (8 if compressed else 100)
    assert max(len(span.data) for span in pieces) <= (5000 + (1 << 16) if compressed else 5000)
    assert len(rows(pieces)) == 20_000


def store_remotely(file: CanonicalFile) -> CanonicalFile:
    """The same file on a storage that counts requests; none is counted yet."""
    place = join_location(empty_counted(), "file")
    place.filesystem.pipe_file(place.path, file.stream.data)
    CountedFileSystem.requests.clear()
    return replace(file, stream=StateStream("file", file.stream.size, location=place))


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_windows_of_a_large_key_group_are_read_ahead(compressed: bool) -> None:
    file = make_skewed(compressed=compressed)
    remote = store_remotely(file)

    def wait(number: int, operation: str, path: str) -> None:
        # The first ones are read while the number ahead still grows.
        if number == 2 * REQUESTS:
            CountedFileSystem.gather = {"read": REQUESTS}

    CountedFileSystem.rule = wait
    large = KeyGroupRange(2, 1)
    found = rows(records for _, records in remote.scan([0], large, window=2000))
    assert found == rows(records for _, records in file.scan([0], large, window=2000))
    assert CountedFileSystem.most == REQUESTS
    (section,) = (each for each in file.sections if each.key_group == 2)
    spans = sorted((start, end) for _, start, end in CountedFileSystem.reads)
    assert [spans[0][0], *(end for _, end in spans)] == [*range(section.start, section.end, 2000), section.end]
    assert BUDGET.held == 0


@pytest.mark.slow
def test_a_reader_that_stops_has_read_few_blocks() -> None:
    file = make_skewed()
    remote = store_remotely(file)
    found = remote.scan([0], KeyGroupRange(2, 1), window=2000)
    assert len(next(found)[1])
    del found
    assert len(CountedFileSystem.requests) <= FIRST_REQUESTS
    assert BUDGET.held == 0


def test_every_truncation_is_told_with_file_and_offset() -> None:
    runs: list[Run] = [(1, 0, [(b"key", bytes(20))] * 9), (1, 1, [(b"other", b"")])]
    for compressed in (False, True):
        file = make_canonical(make_header(states=2, compressed=compressed), FOUR, 1, runs)
        start = file.sections[0].start
        for end in range(start + 1, file.stream.size, 3):
            stream = StateStream("savepoint/file", end, data=file.stream.data[:end])
            short = open_canonical(stream, FOUR, [start if group == 1 else NO_SECTION for group in FOUR], CONTEXT)
            with pytest.raises(FormatError) as caught:
                split(short, 0, 10)
            assert caught.value.where.file == "savepoint/file"
            assert caught.value.where.offset is not None


def test_bytes_behind_the_end_mark_are_told() -> None:
    file = make_canonical(make_header(), FOUR, 1, [(3, 0, [(b"key", bytes(20))] * 9)])
    stream = StateStream("savepoint/file", file.stream.size + 1, data=file.stream.data + b"\0")
    offsets = [NO_SECTION] * 3 + [file.sections[0].start]
    with pytest.raises(FormatError, match="left over") as caught:
        split(open_canonical(stream, FOUR, offsets, CONTEXT), 0, 10)
    assert caught.value.where.offset == file.stream.size


@pytest.mark.slow
def test_a_piece_that_ends_inside_a_record_is_told() -> None:
    splits = [split for split, _ in make_skewed().split_records(0, 1000, 2000)]
    split = splits[3]
    assert isinstance(split, CanonicalFile)
    section = split.sections[0]
    assert section.span is not None
    broken = replace(section, span=replace(section.span, stop=section.span.stop - 1))
    with pytest.raises(FormatError, match="do not end where a record ends"):
        scan(replace(split, sections=(broken,)), 0)


def make_heap(number: int, *, compressed: bool) -> HeapFile:
    """Values, lists and maps of `number` keys in key group 1."""
    header = KeyedHeader(
        compressed=compressed,
        key_serializer=basic("Int"),
        states=(
            keyed_state("value", "VALUE", basic("String"), VOID_NAMESPACE),
            keyed_state("list", "LIST", list_of(basic("Short")), VOID_NAMESPACE),
            keyed_state("map", "MAP", map_of(basic("Byte"), basic("Int")), VOID_NAMESPACE),
        ),
    )
    keys = [each.to_bytes(4, "big") + b"\0" for each in range(number)]
    texts = [b"%c" % (1 + each % 40) + b"x" * (each % 40) for each in range(number)]
    lists = [b",".join(item.to_bytes(2, "big") for item in range(1 + each % 5)) for each in range(number)]
    maps = [(key + bytes([item]), b"\0" + bytes(4)) for key in keys for item in range(3)]
    pairs = ([*zip(keys, texts, strict=True)], [*zip(keys, lists, strict=True)], maps)
    runs = [(state_id, make_records(each)) for state_id, each in enumerate(pairs)]
    writer = HeapWriter(output := io.BytesIO(), header, KeyGroupRange(0, 3), CONTEXT)
    for key_group in range(3):
        few = [(state_id, records.cut(0, 6)) for state_id, records in runs]
        writer.write_key_group(key_group, runs if key_group == 1 else few)
    data = output.getvalue()
    return open_heap(StateStream("checkpoint/file", len(data), data=data), KeyGroupRange(0, 3), writer.offsets, CONTEXT)


def make_records(pairs: Iterable[tuple[bytes, bytes]]) -> KeyedRecords:
    entries = to_entries([*pairs])
    groups = np.zeros(len(entries.key_starts), np.int32)
    spans = (entries.key_starts, entries.key_ends, entries.value_starts, entries.value_ends)
    return KeyedRecords(groups, entries.data, *spans, 0, "file")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [1, 50, 1000, 20_000])
@pytest.mark.parametrize("state_id", [0, 1, 2])
def test_parts_of_a_heap_file_are_the_file(state_id: int, size: int, compressed: bool) -> None:
    file = make_heap(400, compressed=compressed)
    splits = split(file, state_id, size)
    assert join(splits) == scan(file, state_id)
    assert size > 1 or len(splits) > 100


@pytest.mark.slow
def test_pieces_of_a_heap_file_are_even() -> None:
    file = make_heap(20_000, compressed=False)
    _, *pieces, _ = split(file, 0, 50_000, least=100_000)
    assert len(pieces) > 8
    assert max(map(len, pieces)) < 1.3 * min(map(len, pieces))


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_truncations_of_a_heap_file_are_told(compressed: bool) -> None:
    file = make_heap(30, compressed=compressed)
    offsets = [each.start for each in file.sections]
    for end in range(offsets[2] + 1, file.stream.size, 5):
        stream = StateStream("checkpoint/file", end, data=file.stream.data[:end])
        with pytest.raises(FormatError) as caught:
            split(open_heap(stream, KeyGroupRange(0, 3), offsets, CONTEXT), 2, 20)
        assert caught.value.where.file == "checkpoint/file"


def make_database(directory: Path, number: int) -> RocksFile:
    """Values of `number` keys in key group 1, and of a few in the others."""
    infos = tuple(keyed_state(name, "VALUE", basic("Long"), VOID_NAMESPACE) for name in ("large", "small"))
    names = [info.name for info in infos]
    with DatabaseWriter(directory, names) as database:
        for key_group in range(3):
            keys = [bytes([key_group]) + b"%08d" % each for each in range(number if key_group == 1 else 10)]
            database.write("large", to_entries([(key, b"%08x" % hash(key)) for key in keys]))
            database.write("small", to_entries([(key, b"small") for key in keys[:5]]))
        database.finish()
    families = {each.name: each for each in read_database(list_streams(directory)).column_families}
    assert families.keys() == {DEFAULT_COLUMN_FAMILY, *names}
    header = KeyedHeader(key_serializer=basic("String"), states=infos)
    return RocksFile("meta", header, KeyGroupRange(0, 3), tuple(families[name] for name in names), CONTEXT)


@pytest.mark.slow
def test_parts_of_a_database_are_the_database(tmp_path: Path) -> None:
    file = make_database(tmp_path / "db", 50_000)
    for size in (1, 5_000, 50_000, 1 << 30):
        for state_id in (0, 1):
            assert join(split(file, state_id, size)) == scan(file, state_id)
    size = sum(each.size for each in file.column_families[0].files)
    pieces = [each for each in split(file, 0, size // 10, least=size // 5) if len(each) > 10]
    assert len(pieces) > 7
    assert max(map(len, pieces)) < 8000


@pytest.mark.slow
def test_the_state_of_two_files_is_cut_where_it_lies(tmp_path: Path) -> None:
    database, timers = make_database(tmp_path / "db", 20_000), make_skewed()
    states = tuple(replace(info, name=f"other-{info.name}") for info in timers.header.states)
    file = combine_files([database, replace(timers, header=replace(timers.header, states=states))])
    for state_id in range(5):
        splits = split(file, state_id, 10_000)
        assert sorted(join(splits)) == sorted(scan(file, state_id))
        assert state_id not in (0, 2) or len(splits) > 10


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN, ids=str)
def test_parts_of_what_flink_wrote_are_the_whole(case: Case) -> None:
    for operator in case.open_told().operators:
        for state in operator.keyed_states:
            # The largest of the subtasks will do.
            subtask_state = max(state.subtask_states, key=lambda each: len(each.file.key_groups))
            whole = rows(subtask_state.records())
            splits = subtask_state.file.split_records(subtask_state.state_id, 150 if case in OWN else 6000, 0)
            assert join([scan(file, number) for file, number in splits]) == whole


@pytest.mark.slow
def test_a_key_group_is_cut_when_it_is_much_larger_than_a_part_and_than_the_others() -> None:
    file = make_skewed()
    total = sum(each.size for each in file.sections)
    assert choose_least([(file, 0)], 10) == total // 32
    assert choose_least([(file.with_context(RecordContext(8, LayoutContext())), 0)], 10) == total // 16
    assert choose_least([(file, 0), (file, 0)], 10, KeyGroupRange(2, 2)) > total // 16
    assert choose_least([(file, 0)], total) == 2 * total


def test_a_split_gives_the_same_rows_whatever_is_wanted_of_them() -> None:
    state = orders().open().operator("orders").state("quantities")
    assert isinstance(state, KeyedState)
    options = StateOptions.parse({"operatorId": "orders", "stateVarName": "quantities", "splitSize": "100"})
    largest = int(np.bincount(np.concatenate([each["key_group"] for each in state.batches()])).argmax())
    options = replace(options, key_groups=KeyGroupRange(largest, 1))
    splits = [*split_state(state, options)]
    assert len(splits) > 1
    expected = [row["map_key"] for batch in state.batches(key_groups=options.key_groups) for row in batch.to_pylist()]
    for columns in (None, ("map_key",)):
        wanted = [replace(split, options=replace(split.options, columns=columns)) for split in splits]
        assert [key for split in wanted for batch in split.read() for key in batch["map_key"].to_pylist()] == expected
