from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.binary.snappy_frames import compress
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError
from state_pipelines.keyed.canonical import open_canonical
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.heap import HeapFile, HeapWriter, open_heap
from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records
from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsSavepointStateHandle, KeyGroupsStateHandle
from state_pipelines.metadata.streams import StateStream
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot import Operator, open_snapshot
from tests.keyed.test_canonical import HEADER, unpack
from tests.snapshot.savepoints import TYPES, types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.serializers import tree

CONTEXT = RecordContext(4, LayoutContext())
ONE = KeyGroupRange(1, 1)
GUEST = load_classes("types.Guest extends types.Person: [visits: int]")
# Flink 1.20: key group 1, state 0 with one entry: void namespace, the key Tuple1(3), the value 3.
SECTION = bytes.fromhex("00000001 0000 00000001 00 0000000000000003 0000000000000003")


def open_bytes(
    data: bytes, offsets: Sequence[int], key_groups: KeyGroupRange = ONE, context: RecordContext = CONTEXT
) -> HeapFile:
    return open_heap(StateStream("checkpoint/file", len(data), data=data), key_groups, offsets, context)


def read_all(file: KeyedFile) -> dict[tuple[int, int], list[tuple[bytes, bytes]]]:
    """Records by key group and state, sorted."""
    found: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    for key_group, runs in file.scan_key_groups(file.key_groups):
        for state_id, records in runs:
            found.setdefault((key_group, state_id), []).extend(unpack(records))
    return {place: sorted(records) for place, records in found.items()}


def write(file: KeyedFile, header: KeyedHeader, context: RecordContext) -> HeapFile:
    output = io.BytesIO()
    writer = HeapWriter(output, header, file.key_groups, context)
    found = dict(file.scan_key_groups(file.key_groups))
    for key_group in file.key_groups:
        writer.write_key_group(key_group, found.get(key_group, []))
    assert writer.size == len(output.getvalue())
    return open_bytes(output.getvalue(), writer.offsets, file.key_groups, context)


def read_section(state_type: str, value: tree.Serializer, entries: str) -> list[tuple[bytes, bytes]]:
    """The records of entries of a state whose keys are Bytes."""
    infos = (keyed_state("state", state_type, value, VOID_NAMESPACE),)
    empty = HeapWriter(output := io.BytesIO(), KeyedHeader(key_serializer=basic("Byte"), states=infos), ONE, CONTEXT)
    data = output.getvalue() + bytes.fromhex("00000001 0000" + entries)
    return read_all(open_bytes(data, (empty.size,))).get((1, 0), [])


def test_entries_become_records_of_the_canonical_form() -> None:
    file = open_bytes(HEADER + SECTION, (len(HEADER),))
    assert read_all(file) == {(1, 0): [(bytes.fromhex("0000000000000003 00"), bytes.fromhex("0000000000000003"))]}


def test_a_file_of_flink_is_written_byte_for_byte() -> None:
    file = open_bytes(HEADER + SECTION, (len(HEADER),))
    assert write(file, file.header, CONTEXT).stream.data == HEADER + SECTION


def test_elements_of_a_list_get_their_delimiter() -> None:
    found = read_section("LIST", list_of(basic("Short")), "00000001  00 07  00000002 0001 0002")
    assert found == [(b"\x07\0", bytes.fromhex("0001 2c 0002"))]


def test_a_map_becomes_a_record_per_entry() -> None:
    found = read_section("MAP", map_of(basic("Byte"), basic("Byte")), "00000001  00 07  00000002 01 00 05 02 01")
    assert found == [(b"\x07\0\x01", b"\0\x05"), (b"\x07\0\x02", b"\x01")]


def test_key_and_namespace_of_unknown_length_get_their_lengths() -> None:
    infos = (keyed_state("state", "VALUE", basic("Byte"), basic("String")),)
    writer = HeapWriter(output := io.BytesIO(), KeyedHeader(key_serializer=basic("String"), states=infos), ONE, CONTEXT)
    data = output.getvalue() + bytes.fromhex("00000001 0000 00000001 036e73 046b6579 05")
    found = read_all(open_bytes(data, (writer.size,)))
    assert found == {(1, 0): [(bytes.fromhex("046b6579 04 036e73 03"), b"\x05")]}


def test_a_section_of_another_key_group_is_an_error() -> None:
    with pytest.raises(FormatError, match="the section of key group 2 does not begin with its number"):
        read_all(open_bytes(HEADER + SECTION, (len(HEADER),), KeyGroupRange(2, 1)))


def test_a_section_that_ends_early_is_an_error() -> None:
    with pytest.raises(FormatError, match="1 entries do not fit in the 16 bytes left") as caught:
        read_all(open_bytes(HEADER + SECTION[:-1], (len(HEADER),)))
    assert caught.value.where.offset == len(HEADER) + 10
    assert caught.value.where.state == "state-name"


def test_bytes_behind_the_last_state_are_an_error() -> None:
    with pytest.raises(FormatError, match="key group 1"):
        read_all(open_bytes(HEADER + SECTION + b"\0", (len(HEADER),)))


def keyed_files(release: str, variant: str) -> Iterator[tuple[Operator, KeyedFile]]:
    savepoint = types(release, variant)
    for operator in open_snapshot(str(savepoint.path), uids=savepoint.uids, classes=GUEST).operators:
        for subtask in operator.metadata.subtasks:
            file = operator.snapshot.handles.open_keyed(subtask.managed_keyed_state, operator.record_context)
            if file is not None:
                yield operator, file


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(each.relative_to(TYPES).parts for each in TYPES.glob("*/heap-native*")))
@pytest.mark.parametrize("compressed", [False, True])
def test_what_flink_wrote_is_written_and_read_again(case: tuple[str, str], compressed: bool) -> None:
    count = 0
    for operator, file in keyed_files(case[0].removeprefix("flink-"), case[1]):
        assert isinstance(file, HeapFile)
        found = read_all(file)
        again = write(file, replace(file.header, compressed=compressed), operator.record_context)
        assert read_all(again) == found
        count += sum(map(len, found.values()))
    assert count > 100


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.20", "2.2"])
@pytest.mark.parametrize("variant", ["heap", "rocksdb"])
def test_canonical_records_go_into_a_heap_file_and_come_back(release: str, variant: str) -> None:
    for operator, file in keyed_files(release, variant):
        found = read_all(file)
        # The heap backend writes bytes behind the flag of a null that nobody reads.
        shortened = {
            (group, state): [
                (key, value[:1] if file.header.states[state].state_type == "MAP" and value[0] else value)
                for key, value in records
            ]
            for (group, state), records in found.items()
        }
        assert read_all(write(file, file.header, operator.record_context)) == shortened


def test_splits_cover_all_key_groups_once() -> None:
    for _, file in keyed_files("2.2", "heap-native"):
        parts = list(file.split(1 << 10))
        groups = [section.key_group for split in parts if isinstance(split, HeapFile) for section in split.sections]
        assert groups == list(file.key_groups)
        assert len(parts) > 1


def test_only_the_wanted_state_and_key_groups_are_found() -> None:
    files = keyed_files("2.2", "heap-native")
    _, file = next(each for each in files if read_all(each[1]))
    everything = read_all(file)
    state_id = max(state for _, state in everything)
    wanted = KeyGroupRange(file.key_groups.start, 20)
    found: list[KeyedRecords] = [each for _, each in file.scan([state_id], wanted)]
    expected = [
        record for (group, state), run in everything.items() if state == state_id and group in wanted for record in run
    ]
    assert sorted(record for records in found for record in unpack(records)) == sorted(expected)


def test_a_count_that_does_not_fit_is_an_error_before_anything_is_allocated() -> None:
    data = HEADER + SECTION[:6] + bytes.fromhex("7fffffff") + SECTION[10:]
    with pytest.raises(FormatError, match="2147483647 entries do not fit in the 17 bytes left"):
        read_all(open_bytes(data, (len(HEADER),)))


def test_a_list_without_elements_has_no_record() -> None:
    # As in Flink: the next element that RocksDB appends to a value without bytes would get a delimiter in front.
    entries = "00000002  00 07  00000000  00 08  00000001 0001"
    assert read_section("LIST", list_of(basic("Short")), entries) == [(b"\x08\0", b"\0\x01")]


def test_a_map_value_without_a_flag_is_an_error() -> None:
    infos = (keyed_state("state", "MAP", map_of(basic("Byte"), basic("Byte")), VOID_NAMESPACE),)
    header = KeyedHeader(key_serializer=basic("Byte"), states=infos)
    nothing = np.zeros(1, np.int64)
    key = np.frombuffer(b"\x07\0\x01", np.uint8)
    records = KeyedRecords(np.ones(1, np.int32), key, nothing, nothing + 3, nothing + 3, nothing + 3, 0, "file")
    with pytest.raises(FormatError, match="no byte that says whether its value is null"):
        HeapWriter(io.BytesIO(), header, ONE, CONTEXT).write_key_group(1, [(0, records)])


def test_records_in_the_same_bytes_are_put_together_without_copying_them() -> None:
    data = np.arange(8, dtype=np.uint8)
    a, b, c, d = (np.array([each], np.int64) for each in range(4))
    pieces = [KeyedRecords(np.full(1, group, np.int32), data, a, b, c, d, 100, "file") for group in (1, 2)]
    both = concat_records(pieces)
    assert both.data is data
    assert (both.key_groups.tolist(), both.key_starts.tolist(), both.offset) == ([1, 2], [0, 0], 100)


def test_records_in_different_bytes_are_shifted() -> None:
    a, b, c, d = (np.array([each], np.int64) for each in range(4))
    pieces = [KeyedRecords(np.ones(1, np.int32), np.full(4, each, np.uint8), a, b, c, d, 0, "file") for each in (5, 6)]
    both = concat_records(pieces)
    assert both.data.tolist() == [5] * 4 + [6] * 4
    assert both.key_starts.tolist() == [0, 4]


@pytest.mark.parametrize("variant", ["heap", "heap-native", "heap-snappy"])
@pytest.mark.parametrize("wanted", [KeyGroupRange(0, 30), KeyGroupRange(10, 25)])
def test_a_handle_that_names_only_some_key_groups_of_its_stream_is_read(variant: str, wanted: KeyGroupRange) -> None:
    for operator in types("2.2", variant).open(classes=GUEST).operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if not isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
                continue
            groups = handle.key_groups.intersect(wanted)
            if not len(groups):
                continue
            handles, context = operator.snapshot.handles, operator.record_context
            whole = handles.open_keyed(handle, context)
            assert whole is not None
            first = groups.start - handle.key_groups.start
            offsets = handle.offsets[first : first + len(groups)]
            opened = open_heap if isinstance(whole, HeapFile) else open_canonical
            part = opened(handles.open_stream(handle.delegate), groups, offsets, context, narrowed=True)
            expected = {place: run for place, run in read_all(whole).items() if place[0] in groups}
            assert read_all(part) == expected


SECTIONS = {
    # Bytes as keys; state 0 has Shorts, state 1 Bytes. The states come in either order.
    0: "0000 00000002 00 07 0001  00 08 0002   0001 00000001 00 07 05",
    1: "0001 00000002 00 09 06  00 0a 07       0000 00000001 00 09 0003",
    2: "0000 00000000                          0001 00000000",
    3: "0000 00000000                          0001 00000001 00 0b 08",
}
EXPECTED = {
    (0, 0): [(b"\x07\0", b"\0\x01"), (b"\x08\0", b"\0\x02")],
    (0, 1): [(b"\x07\0", b"\x05")],
    (1, 0): [(b"\x09\0", b"\0\x03")],
    (1, 1): [(b"\x09\0", b"\x06"), (b"\x0a\0", b"\x07")],
    (3, 1): [(b"\x0b\0", b"\x08")],
}


def open_sections(changed: dict[int, str] | None = None, *, compressed: bool = False) -> HeapFile:
    """A file of `SECTIONS`, some of them changed."""
    infos = tuple(
        keyed_state(name, "VALUE", basic(kind), VOID_NAMESPACE)
        for name, kind in (("shorts", "Short"), ("bytes", "Byte"))
    )
    groups = KeyGroupRange(0, len(SECTIONS))
    header = KeyedHeader(key_serializer=basic("Byte"), states=infos, compressed=compressed)
    HeapWriter(output := io.BytesIO(), header, groups, CONTEXT)
    data, offsets = output.getvalue(), []
    for key_group, blocks in {**SECTIONS, **(changed or {})}.items():
        offsets.append(len(data))
        raw = bytes.fromhex(blocks)
        data += key_group.to_bytes(4, "big") + (compress(raw) if compressed else raw)
    return open_bytes(data, offsets, groups)


def scan(file: HeapFile, state_id: int, key_groups: KeyGroupRange | None = None) -> list[tuple[int, bytes, bytes]]:
    return [
        (key_group, *record)
        for _, records in file.scan([state_id], key_groups)
        for key_group, record in zip(records.key_groups.tolist(), unpack(records), strict=True)
    ]


def expect(state_id: int) -> list[tuple[int, bytes, bytes]]:
    return [(group, *record) for (group, state), run in EXPECTED.items() if state == state_id for record in run]


@pytest.mark.parametrize("compressed", [False, True])
def test_sections_with_their_states_in_different_orders_are_read(compressed: bool) -> None:
    file = open_sections(compressed=compressed)
    assert read_all(file) == EXPECTED
    assert [[state for state, _ in runs] for _, runs in file.scan_key_groups(file.key_groups)] == [
        [0, 1],
        [1, 0],
        [1],
    ]
    assert [scan(file, state_id) for state_id in (0, 1)] == [expect(0), expect(1)]


@pytest.mark.parametrize("compressed", [False, True])
def test_blocks_that_are_known_of_some_sections_help_with_all(compressed: bool) -> None:
    file = open_sections(compressed=compressed)
    assert scan(file, 1, KeyGroupRange(1, 1)) == expect(1)[1:3]
    assert scan(file, 0, KeyGroupRange(0, 2)) == expect(0)
    assert [scan(file, state_id) for state_id in (1, 0, 1)] == [expect(1), expect(0), expect(1)]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("section", "what", "position"),
    [
        ("0000 00000001 00 09", "1 entries do not fit in the 2 bytes left", 6),
        ("0000 00000000 0002 00000001 00", "key group 1: 1 entries of state 2, which is not in the header", 6),
        ("0000 80000000 0001 00000000", "key group 1: -2147483648 entries of state 0", 0),
        ("0000 00000000 0001 0000", "key group 1: the section ends before its states do", 6),
        (SECTIONS[1] + "ffff", "key group 1: 2 bytes are left over after the last state", 22),
    ],
)
def test_an_error_among_many_sections_names_its_place(section: str, what: str, position: int, compressed: bool) -> None:
    file = open_sections({1: section}, compressed=compressed)
    with pytest.raises(FormatError, match=what) as caught:
        read_all(file)
    first = 0 if compressed else file.sections[1].start + 4
    assert (caught.value.where.file, caught.value.where.offset) == (file.name, first + position)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_record_that_does_not_fit_is_counted_in_its_section(compressed: bool) -> None:
    infos = (keyed_state("maps", "MAP", map_of(basic("Byte"), basic("Byte")), VOID_NAMESPACE),)
    header = KeyedHeader(key_serializer=basic("Byte"), states=infos, compressed=compressed)
    HeapWriter(output := io.BytesIO(), header, KeyGroupRange(0, 2), CONTEXT)
    data, offsets = output.getvalue(), []
    for key_group, size in enumerate((0, 9)):
        offsets.append(len(data))
        raw = bytes.fromhex("0000 00000002") + bytes.fromhex("00 07 00000000") + b"\0\x08" + size.to_bytes(4, "big")
        data += key_group.to_bytes(4, "big") + (compress(raw) if compressed else raw)
    file = open_bytes(data, offsets, KeyGroupRange(0, 2))
    with pytest.raises(FormatError, match="record 1: ") as caught:
        read_all(file)
    place = caught.value.where
    assert (place.state, place.path) == ("maps", "value.value")
    assert place.offset == (0 if compressed else offsets[1] + 4) + 14
