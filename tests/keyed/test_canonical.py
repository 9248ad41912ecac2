from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.snappy_frames import iter_chunks
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.canonical import CanonicalFile, open_canonical
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.sections import NO_SECTION
from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsSavepointStateHandle
from state_pipelines.metadata.streams import StateStream, read_whole_stream
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.keyed.canonical_files import Run, make_canonical, make_header, rewrite
from tests.serializers.literals import LONG_CLASS, RUNTIME, composite, i32, outer, utf, versioned
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, FIXTURES, NO_FIXTURES, Savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.record_layout import KeyedRecords

HEADER = b"".join(
    [
        bytes.fromhex("00000006 00"),
        # the keys are a Tuple1<Long>
        outer(
            f"{RUNTIME}TupleSerializerSnapshot",
            3,
            composite(2, utf("org.apache.flink.api.java.tuple.Tuple1"), versioned(LONG_CLASS, 3)),
        ),
        bytes.fromhex("0001"),
        utf("state-name") + i32(0),
        i32(1) + utf("KEYED_STATE_TYPE") + utf("VALUE"),
        i32(2),
        utf("VALUE_SERIALIZER") + outer(LONG_CLASS, 3),
        utf("NAMESPACE_SERIALIZER")
        + outer("org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot", 3),
    ]
)
SECTION = bytes.fromhex("0000 0000000a 81 0000000000000003 00 00000008 0000000000000003 ffff")
LITERAL = HEADER + SECTION
FOUR = KeyGroupRange(0, 4)
OFFSETS = (NO_SECTION, len(HEADER), NO_SECTION, NO_SECTION)


def context(prefix: int) -> RecordContext:
    return RecordContext({1: 128, 2: 1024}[prefix], LayoutContext())


def open_bytes(
    data: bytes, offsets: Sequence[int] = OFFSETS, key_groups: KeyGroupRange = FOUR, prefix: int = 1
) -> CanonicalFile:
    return open_canonical(StateStream("savepoint/file", len(data), data=data), key_groups, offsets, context(prefix))


def unpack(records: KeyedRecords) -> list[tuple[bytes, bytes]]:
    data = records.data.tobytes()
    spans = zip(records.key_starts, records.key_ends, records.value_starts, records.value_ends, strict=True)
    return [(data[a:b], data[c:d]) for a, b, c, d in spans]


def read_all(file: CanonicalFile, *, window: int = 1 << 20) -> list[Run]:
    """Records by key group and state, in the order of the file."""
    runs: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    everything = range(len(file.header.states))
    for state_id, records in file.scan(everything, window=window):
        for key_group, record in zip(records.key_groups.tolist(), unpack(records), strict=True):
            runs.setdefault((key_group, state_id), []).append(record)
    return [(*place, records) for place, records in runs.items()]


def test_the_header_ends_where_the_first_section_begins() -> None:
    assert len(HEADER) == 505


def test_a_file_of_flink_is_read() -> None:
    file = open_bytes(LITERAL)
    assert [state.name for state in file.header.states] == ["state-name"]
    assert read_all(file) == [(1, 0, [(bytes.fromhex("0000000000000003 00"), bytes.fromhex("0000000000000003"))])]


def test_a_file_of_flink_is_written_byte_for_byte() -> None:
    file = open_bytes(LITERAL)
    again = rewrite(file)
    assert again.stream.data == LITERAL
    assert again.sections == file.sections


def test_with_more_than_128_key_groups_the_prefix_takes_two_bytes() -> None:
    section = bytes.fromhex("0000 00000003 012c 6b 00000001 76 00000003 812c 6c 00000000 ffff")
    file = open_bytes(HEADER + section, (len(HEADER), NO_SECTION), KeyGroupRange(300, 2), prefix=2)
    assert read_all(file) == [(300, 0, [(b"k", b"v"), (b"l", b"")])]


def test_sections_may_be_compressed() -> None:
    runs: list[Run] = [(0, 0, [(b"k" * 1000, b"v" * 200_000)]), (3, 0, [(b"l", b"w"), (b"m", b"")])]
    file = make_canonical(make_header(compressed=True), FOUR, 1, runs)
    assert file.stream.size < 100_000
    assert read_all(file) == runs


def test_a_file_without_records_has_no_sections() -> None:
    file = open_bytes(HEADER, (NO_SECTION,) * 4)
    assert file.sections == ()
    assert read_all(file) == []
    assert rewrite(file).stream.data == HEADER


def test_only_the_wanted_states_are_found() -> None:
    runs: list[Run] = [(0, 0, [(b"a", b"1")]), (0, 1, [(b"a", b"2")]), (0, 2, [(b"a", b"3")])]
    file = make_canonical(make_header(states=3), FOUR, 1, runs)
    found = list(file.scan([1]))
    assert [(state_id, unpack(records)) for state_id, records in found] == [(1, [(b"a", b"2")])]


def test_only_the_wanted_key_groups_are_found() -> None:
    runs: list[Run] = [(key_group, 0, [(b"a", b"1")]) for key_group in FOUR]
    file = make_canonical(make_header(), FOUR, 1, runs)
    groups = [records.key_groups.tolist() for _, records in file.scan([0], KeyGroupRange(1, 2))]
    assert groups == [[1, 2]]


def test_states_of_a_section_come_in_the_order_of_the_file() -> None:
    runs: list[Run] = [(0, 1, [(b"a", b"2")]), (0, 0, [(b"a", b"1")])]
    file = make_canonical(make_header(states=2), FOUR, 1, runs)
    ((_, found),) = file.scan_key_groups(FOUR)
    assert [state_id for state_id, _ in found] == [1, 0]


def test_key_groups_come_in_order_wherever_their_sections_lie() -> None:
    runs: list[Run] = [(3, 0, [(b"a", b"1")]), (0, 0, [(b"b", b"2")])]
    file = make_canonical(make_header(), FOUR, 1, runs)
    assert [key_group for key_group, _ in file.scan_key_groups(FOUR)] == [0, 3]


RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=90)), min_size=1, max_size=8)
SECTIONS = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.integers(0, 2), RECORDS, min_size=1, max_size=3), max_size=4
)


@pytest.mark.slow
@given(sections=SECTIONS, prefix=st.sampled_from([1, 2]), compressed=st.booleans(), window=st.integers(1, 64))
def test_records_are_read_whatever_the_window(
    sections: dict[int, dict[int, list[tuple[bytes, bytes]]]], prefix: int, compressed: bool, window: int
) -> None:
    runs = [(key_group, state, found) for key_group, states in sections.items() for state, found in states.items()]
    file = make_canonical(make_header(states=3, compressed=compressed), FOUR, prefix, runs)
    assert read_all(file, window=window) == runs


def test_a_large_section_is_read_in_windows() -> None:
    records = [(b"%04d" % number, bytes(number % 50)) for number in range(1000)]
    file = make_canonical(make_header(), FOUR, 1, [(2, 0, records)])
    pieces = [records for _, records in file.scan([0], window=1000)]
    assert len(pieces) > 20
    assert max(len(piece.data) for piece in pieces) == 1000
    assert [record for piece in pieces for record in unpack(piece)] == records


def test_a_record_larger_than_the_window_is_read() -> None:
    records = [(b"a", b"1"), (b"b", b"2" * 100_000), (b"c", b"3")] * 3
    file = make_canonical(make_header(), FOUR, 1, [(2, 0, records)])
    assert read_all(file, window=1000) == [(2, 0, records)]


def test_every_truncation_is_told_with_file_and_offset() -> None:
    for end in range(len(LITERAL)):
        with pytest.raises(FormatError) as caught:
            read_all(open_bytes(LITERAL[:end]))
        assert caught.value.where.file == "savepoint/file"
        assert caught.value.where.offset is not None


def test_every_truncation_of_a_compressed_file_is_told_with_file_and_offset() -> None:
    file = make_canonical(make_header(compressed=True), FOUR, 1, [(1, 0, [(b"key", b"value" * 20)])])
    whole = read_whole_stream(file.stream)
    offsets = [file.sections[0].start if group == 1 else NO_SECTION for group in FOUR]
    for end in range(file.sections[0].start, len(whole)):
        with pytest.raises(FormatError) as caught:
            read_all(open_bytes(whole[:end], offsets))
        assert caught.value.where.file == "savepoint/file"
        assert caught.value.where.offset is not None


@pytest.mark.slow
def test_truncations_are_found_in_windows_too() -> None:
    file = make_canonical(make_header(), FOUR, 1, [(1, 0, [(b"key", bytes(20))] * 50)])
    whole = read_whole_stream(file.stream)
    offsets = [file.sections[0].start if group == 1 else NO_SECTION for group in FOUR]
    for end in range(file.sections[0].start + 1, len(whole)):
        with pytest.raises(FormatError) as caught:
            read_all(open_bytes(whole[:end], offsets), window=30)
        assert caught.value.where.offset is not None
        assert file.sections[0].start <= caught.value.where.offset <= end


def test_a_file_shorter_than_its_handle_says_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LITERAL[:-5])
    stream = StateStream(str(path), len(LITERAL), location=resolve(str(path)))
    with pytest.raises(FormatError, match="file"):
        read_all(open_canonical(stream, FOUR, OFFSETS, context(1)))


@pytest.mark.parametrize(
    ("section", "message", "offset"),
    [
        ("0000 0000000a 82 0000000000000003 00 00000008 0000000000000003 ffff", "another key group", 2),
        ("0001 0000000a 81 0000000000000003 00 00000008 0000000000000003 ffff", "state id", 2),
        ("0000 0000000a 81 0000000000000003 00 00000008 0000000000000003 0007", "state id", 30),
        ("0000 7fffffff 81 0000000000000003 00 00000008 0000000000000003 ffff", "length", 2),
        ("0000 00000000 81 0000000000000003 00 00000008 0000000000000003 ffff", "length", 2),
        ("0000 ffffffff 81 0000000000000003 00 00000008 0000000000000003 ffff", "length", 2),
        ("0000 0000000a 81 0000000000000003 00 7fffffff 0000000000000003 ffff", "length", 2),
        ("0000 0000000a 81 0000000000000003 00 80000000 0000000000000003 ffff", "length", 2),
        ("0000 0000000a 01 0000000000000003 00 00000008 0000000000000003", "end mark", 28),
    ],
)
def test_broken_sections_are_told(section: str, message: str, offset: int) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_all(open_bytes(HEADER + bytes.fromhex(section)))
    assert (caught.value.where.file, caught.value.where.offset) == ("savepoint/file", len(HEADER) + offset)


@pytest.mark.parametrize("offset", [len(LITERAL), len(LITERAL) + 1, 1 << 40, -1])
def test_an_offset_outside_the_file_is_an_error(offset: int) -> None:
    with pytest.raises(FormatError, match="key group 1 is outside") as caught:
        open_bytes(LITERAL, (NO_SECTION, offset, NO_SECTION, NO_SECTION))
    assert caught.value.where.file == "savepoint/file"


@pytest.mark.parametrize("offset", [1, 100, len(HEADER) - 1])
def test_an_offset_inside_the_header_is_an_error(offset: int) -> None:
    with pytest.raises(FormatError):
        open_bytes(LITERAL, (NO_SECTION, offset, NO_SECTION, NO_SECTION))


def test_an_offset_behind_the_first_section_leaves_bytes_unread() -> None:
    with pytest.raises(FormatError, match="header"):
        open_bytes(LITERAL + SECTION, (NO_SECTION, len(LITERAL), NO_SECTION, NO_SECTION))


@pytest.mark.slow
@given(position=st.integers(len(HEADER), len(LITERAL) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_never_crashes(position: int, byte: int) -> None:
    data = bytearray(LITERAL)
    data[position] = byte
    try:
        ((_, _, ((_, value),)),) = read_all(open_bytes(bytes(data)))
    except FormatError:
        return
    assert len(value) == 8


def find_files(path: Path) -> Iterator[CanonicalFile]:
    """Every canonical file of a snapshot."""
    snapshot = open_snapshot(str(path))
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, KeyGroupsSavepointStateHandle):
                file = snapshot.handles.open_keyed(handle, operator.record_context)
                assert isinstance(file, CanonicalFile)
                assert file is not None
                yield file


def decompress(file: CanonicalFile) -> list[tuple[int, bytes]]:
    whole = read_whole_stream(file.stream)
    return [
        (each.key_group, b"".join(chunk.data for chunk in iter_chunks(whole, each.start, each.end)))
        for each in sorted(file.sections, key=lambda each: each.key_group)
    ]


def assert_rewrites(path: Path) -> int:
    count = 0
    for file in find_files(path):
        again = rewrite(file)
        if file.header.compressed:
            assert decompress(again) == decompress(file)
        else:
            assert again.stream.data == read_whole_stream(file.stream)
            assert again.sections == file.sections
        count += 1
    return count


@pytest.mark.parametrize("savepoint", ALL_TYPES + ALL_ORDERS, ids=str)
def test_files_of_flink_rewrite_byte_for_byte(savepoint: Savepoint) -> None:
    assert assert_rewrites(savepoint.path) > 2


@pytest.mark.slow
@pytest.mark.skipif(not FIXTURES, reason=NO_FIXTURES)
def test_files_of_the_fixtures_rewrite_byte_for_byte() -> None:
    count = 0
    for metadata in sorted(Path(FIXTURES or "").rglob("_metadata")):
        try:
            count += assert_rewrites(metadata.parent)
        except UnsupportedError:
            # A serializer of the user's that the tree does not read.
            continue
    assert count > 100
