from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.programs import Encoded
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.raw_timers import (
    NEVER_STARTED,
    InternalTimersSnapshot,
    NotTimersError,
    find_raw_sections,
    move_timestamps,
    open_raw_timers,
    read_raw_timers,
)
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.sections import read_sections
from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsStateHandle
from state_pipelines.metadata.streams import StateStream, read_whole_stream
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.snapshot import open_snapshot
from tests.keyed.raw_sections import write_raw_sections, write_raw_timers
from tests.serializers.literals import LONG, STRING, i32, utf, versioned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.raw_timers import RawTimersFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

CONTEXT = LayoutContext(5)
RECORDS = RecordContext(128, CONTEXT)
VOID = versioned("org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot", 3)
KRYO = versioned("org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot", 2)
HEAD = bytes.fromhex("f1cd859f 00000002")
USER_TIMERS = utf("user-timers") + LONG + VOID
EVENT = bytes.fromhex("0000000000000007 00 0000018bcfe56800")
PROCESSING = bytes.fromhex("0000000000000009 00 ffffffffffffffff")
SECTION = HEAD + i32(1) + USER_TIMERS + i32(1) + EVENT + i32(1) + PROCESSING
# The key is of a class that is not registered: class id, number of the name, the name, a new object, a field.
KRYO_SECTION = (
    HEAD
    + i32(1)
    + utf("user-timers")
    + (KRYO + utf("com.acme.Key") + b"".join(bytes.fromhex("000004f2c69a3d70 00000000") for _ in range(3)) + VOID)
    + i32(1)
    + bytes.fromhex("01 00 636f6d2e61636d652e4b65f9 01 02 00 0000000000000001")
    + i32(0)
)
EMPTY_SECTION = HEAD + i32(1) + USER_TIMERS + i32(0) + i32(0)


def stream(data: bytes) -> StateStream:
    return StateStream("raw", len(data), data=data)


def opened(data: bytes, offsets: tuple[int, ...], start: int = 0) -> RawTimersFile:
    file = open_raw_timers(stream(data), KeyGroupRange(start, len(offsets)), offsets, RECORDS)
    assert file is not None
    return file


def test_a_section_names_its_services() -> None:
    (service,) = read_raw_timers(SECTION, CONTEXT)
    assert (service.name, service.key, service.namespace) == ("user-timers", basic("Long"), VOID_NAMESPACE)


def test_a_timer_becomes_timestamp_with_flipped_sign_then_key_and_namespace() -> None:
    (service,) = read_raw_timers(SECTION, CONTEXT)
    assert service.event.data.tobytes() == bytes.fromhex("8000018bcfe56800 0000000000000007 00")
    assert service.processing.data.tobytes() == bytes.fromhex("7fffffffffffffff 0000000000000009 00")


def test_timers_of_any_length_are_told_apart() -> None:
    timers = b"".join(bytes([len(key) + 1]) + key + b"\0" + bytes(8) for key in (b"", b"a", b"long key"))
    data = HEAD + i32(1) + utf("t") + STRING + VOID + i32(3) + timers + i32(0)
    (service,) = read_raw_timers(data, CONTEXT)
    assert service.event.stops.tolist() == [10, 21, 39]


def test_a_key_without_columnar_form_is_told_apart_too() -> None:
    body = utf("java.lang.Object") + b"".join(bytes.fromhex("000004f2c69a3d70 00000000") for _ in range(3))
    # Kryo 5: class id 1 (+ 2), a new object, ASCII with the top bit of the last character set.
    timers = bytes.fromhex("03 01 61e2 00 0000000000000001 03 01 6162e3 00 0000000000000002")
    data = HEAD + i32(1) + utf("t") + KRYO + body + VOID + i32(2) + timers + i32(0)
    (service,) = read_raw_timers(data, CONTEXT)
    assert service.event.data.tobytes().hex(" ", -4) == ("80000000 00000001 030161e2 00800000 00000000 02030161 62e300")


def test_several_services_follow_one_another() -> None:
    data = HEAD + i32(2) + USER_TIMERS + i32(1) + EVENT + i32(0) + utf("other") + LONG + VOID + i32(0) + i32(0)
    assert [service.name for service in read_raw_timers(data, CONTEXT)] == ["user-timers", "other"]


def test_what_is_not_timers_is_told_from_timers_that_are_not_read() -> None:
    with pytest.raises(NotTimersError):
        read_raw_timers(b"\x07" * 40, CONTEXT)
    with pytest.raises(UnsupportedError, match=r"com\.acme\.Key") as caught:
        read_raw_timers(KRYO_SECTION, CONTEXT)
    assert not isinstance(caught.value, NotTimersError)
    assert "--classes" in caught.value.hint


def test_no_service_is_no_timers() -> None:
    assert read_raw_timers(HEAD + i32(0), CONTEXT) == ()


def test_a_section_is_written_as_it_was_read() -> None:
    assert write_raw_timers(read_raw_timers(SECTION, CONTEXT)) == SECTION


def test_bytes_behind_the_timers_are_an_error() -> None:
    with pytest.raises(FormatError, match="1 bytes are left over after the timers"):
        read_raw_timers(SECTION + b"\0", CONTEXT)


@pytest.mark.parametrize("cut", [6, 20, len(SECTION) - 20, len(SECTION) - 3])
def test_a_section_that_ends_early_is_an_error(cut: int) -> None:
    with pytest.raises(FormatError):
        read_raw_timers(SECTION[:cut], CONTEXT)


def test_a_count_that_cannot_be_true_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(FormatError, match="a count of 2147483647 does not fit"):
        read_raw_timers(HEAD + i32(1) + USER_TIMERS + i32(0x7FFFFFFF) + EVENT, CONTEXT)


def test_java_serializers_of_old_releases_are_told_apart() -> None:
    with pytest.raises(UnsupportedError, match=r"timers whose serializers are Java objects: .* older than 1\.8"):
        read_raw_timers(bytes.fromhex("f1cd859f 00000001 00000001") + USER_TIMERS, CONTEXT)


def test_the_form_without_version_is_told_apart() -> None:
    data = i32(1) + utf("user-timers") + bytes.fromhex("aced0005 7372") + bytes(20)
    with pytest.raises(UnsupportedError, match=r"timers without a version: .* older than 1\.8"):
        read_raw_timers(data, CONTEXT)


@pytest.mark.parametrize("data", [bytes(4), bytes.fromhex("f1cd859f 00000001 00000000")])
def test_old_forms_without_services_are_no_timers(data: bytes) -> None:
    assert read_raw_timers(data, CONTEXT) == ()


def test_a_version_of_the_future_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 3"):
        read_raw_timers(bytes.fromhex("f1cd859f 00000003 00000001") + USER_TIMERS, CONTEXT)


def test_raw_keyed_state_of_an_operator_of_its_own_is_not_timers() -> None:
    with pytest.raises(UnsupportedError, match="is not timers"):
        read_raw_timers(b"something else", CONTEXT)


def test_raw_keyed_state_that_is_not_timers_keeps_its_bytes() -> None:
    raw = stream(b"abcdef")
    sections = find_raw_sections(raw, KeyGroupRange(5, 3), (0, NEVER_STARTED, 4))
    assert [(each.key_group, read_sections(raw, each.start, each.end)) for each in sections] == [
        (5, b"abcd"),
        (7, b"ef"),
    ]


def test_a_key_group_that_was_never_started_has_no_section() -> None:
    file = opened(SECTION, (NEVER_STARTED, 0))
    assert [section.key_group for section in file.sections] == [1]


def test_an_offset_outside_the_stream_is_an_error() -> None:
    with pytest.raises(FormatError, match="outside the 3 bytes"):
        find_raw_sections(stream(b"abc"), KeyGroupRange(0, 1), (4,))


def test_a_stream_without_services_holds_no_timers() -> None:
    data = HEAD + i32(0)
    assert open_raw_timers(stream(data), KeyGroupRange(0, 1), (0,), RECORDS) is None


def test_services_become_timer_states_of_the_canonical_format() -> None:
    states = opened(SECTION, (0,)).header.states
    assert [info.name for info in states] == ["_timer_state/event_user-timers", "_timer_state/processing_user-timers"]
    assert all(info.element == tree.Timer(key=basic("Long"), namespace=VOID_NAMESPACE) for info in states)


def test_the_first_key_group_with_services_says_which_there_are() -> None:
    none = HEAD + i32(0)
    assert len(opened(none + SECTION, (0, len(none))).header.states) == 2


def test_timers_come_state_by_state_with_their_key_groups() -> None:
    file = opened(SECTION + EMPTY_SECTION + SECTION, (0, len(SECTION), len(SECTION + EMPTY_SECTION)), 40)
    found = {state_id: records.key_groups.tolist() for state_id, records in file.scan([0, 1])}
    assert found == {0: [40, 42], 1: [40, 42]}


def test_only_the_wanted_states_and_key_groups_come() -> None:
    file = opened(SECTION + SECTION, (0, len(SECTION)))
    ((state_id, records),) = file.scan([1], KeyGroupRange(1, 1))
    assert (state_id, records.key_groups.tolist()) == (1, [1])
    assert records.data.tobytes() == bytes.fromhex("7fffffffffffffff 0000000000000009 00")


def test_small_windows_give_the_same_timers() -> None:
    file = opened(SECTION + SECTION, (0, len(SECTION)))
    assert sum(len(records) for _, records in file.scan([0, 1], window=1)) == 4


def test_key_groups_come_one_after_the_other() -> None:
    file = opened(SECTION + SECTION, (0, len(SECTION)))
    found = [(group, [state for state, _ in runs]) for group, runs in file.scan_key_groups(file.key_groups)]
    assert found == [(0, [0, 1]), (1, [0, 1])]


def test_key_groups_in_another_order_are_refused() -> None:
    with pytest.raises(FormatError, match="the timers of key group 0 come after those of key group 1"):
        opened(SECTION + SECTION, (len(SECTION), 0))


def test_parts_hold_the_key_groups_between_them() -> None:
    file = opened(SECTION + SECTION, (0, len(SECTION)))
    assert [[each.key_group for each in part.sections] for part in file.split(1)] == [[0], [1]]


def test_a_key_group_with_another_service_is_an_error() -> None:
    other = HEAD + i32(1) + utf("other") + LONG + VOID + i32(0) + i32(0)
    with pytest.raises(FormatError, match="key group 1 has timers of 'other'"):
        list(opened(SECTION + other, (0, len(SECTION))).scan([0]))


def test_an_error_names_the_place_in_the_file() -> None:
    data = SECTION + SECTION[:-1] + b"\0\0"
    file = opened(data, (0, len(SECTION)))
    with pytest.raises(FormatError) as error:
        list(file.scan([0]))
    assert (error.value.where.file, error.value.where.offset) == ("raw", len(data) - 1)


def test_sections_are_put_together_as_they_were() -> None:
    sections = {4: SECTION, 6: EMPTY_SECTION}
    data, offsets = write_raw_sections(sections, KeyGroupRange(4, 3))
    assert (data, offsets) == (SECTION + EMPTY_SECTION, (0, NEVER_STARTED, len(SECTION)))


def test_a_timer_without_room_for_its_timestamp_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 8 bytes"):
        move_timestamps(np.zeros(7, np.uint8), np.array([0]), np.array([7]))


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=5))
def test_timers_survive_writing_and_reading(timers: list[tuple[str, int]]) -> None:
    elements = []
    for key, timestamp in timers:
        units = key.encode("utf-16-le", "surrogatepass")
        text = bytes([len(units) // 2 + 1]) + b"".join(
            _varint(int.from_bytes(units[i : i + 2], "little")) for i in range(0, len(units), 2)
        )
        elements.append(((timestamp + (1 << 63)).to_bytes(8, "big")) + text + b"\0")
    encoded = Encoded(
        np.frombuffer(b"".join(elements), np.uint8), np.cumsum([len(e) for e in elements], dtype=np.int64)
    )
    none = Encoded(np.zeros(0, np.uint8), np.zeros(0, np.int64))
    services = (InternalTimersSnapshot("t", basic("String"), VOID_NAMESPACE, encoded, none),)
    (found,) = read_raw_timers(write_raw_timers(services), CONTEXT)
    assert found.event.data.tobytes() == encoded.data.tobytes()
    assert found.event.stops.tolist() == encoded.stops.tolist()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def raw_handles(path: Path) -> Iterator[tuple[str, StateStream, KeyGroupsStateHandle]]:
    snapshot = open_snapshot(str(path))
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.raw_keyed_state
            if isinstance(handle, KeyGroupsStateHandle):
                yield operator.label, snapshot.handles.open_stream(handle), handle


def heap_timers(fixtures: Path) -> Path:
    case = fixtures / "made" / "2.2.1" / "heaptimers-rocksdb-checkpoint"
    return case / str(json.loads((case / "params.json").read_text())["snapshot"])


@pytest.mark.slow
def test_the_timers_of_a_checkpoint_are_those_that_the_job_set(fixtures: Path) -> None:
    path = heap_timers(fixtures)
    with gzip.open(path.parent.parent / "expected.jsonl.gz", "rt") as lines:
        expected = sorted(line.strip() for line in lines if line.startswith('{"kind":"timer"'))
    found = []
    for operator, raw, handle in raw_handles(path):
        file = open_raw_timers(raw, handle.key_groups, handle.offsets, RECORDS)
        assert file is not None
        for state_id, records in file.scan(range(len(file.header.states))):
            info = file.header.states[state_id]
            domain, _, service = info.name.removeprefix("_timer_state/").partition("_")
            layout = derive_keyed_layout(info, file.header.key_serializer, 128, CONTEXT).key
            element = info.element
            assert isinstance(element, tree.Timer)
            for row in range(len(records)):
                reader = Reader(records.data.tobytes(), "", int(records.key_starts[row]), int(records.key_ends[row]))
                value = read_value(layout, reader)
                assert isinstance(value, dict)
                reader.expect_end("the timer")
                line = {"kind": "timer", "op": operator, "service": service, "domain": domain}
                rest = {
                    "kg": int(records.key_groups[row]),
                    "key": to_json(element.key, value["state_key"]),
                    "ns": to_json(element.namespace, value["state_namespace"]),
                    "ts": value["timestamp"],
                }
                found.append(json.dumps({**line, **rest}, separators=(",", ":")))
    # What the job knows of its timers leaves out the session windows.
    sessions = [line for line in found if '"op":"win-session"' in line]
    assert sorted(set(found).difference(sessions)) == expected
    assert (len(found), len(sessions)) == (1779, 438)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "stateful-udf-migration-itcase-flink1.8-rocksdb-savepoint",
        "stateful-broadcast-udf-migration-itcase-flink1.8-rocksdb-savepoint",
        "heaptimers",
    ],
)
def test_streams_of_flink_are_written_byte_for_byte(fixtures: Path, name: str) -> None:
    path = heap_timers(fixtures) if name == "heaptimers" else fixtures / "flink" / "snapshots" / name
    count = 0
    for _, raw, handle in raw_handles(path):
        sections = find_raw_sections(raw, handle.key_groups, handle.offsets)
        written = {
            each.key_group: write_raw_timers(read_raw_timers(read_sections(raw, each.start, each.end), CONTEXT))
            for each in sections
        }
        assert write_raw_sections(written, handle.key_groups) == (read_whole_stream(raw), handle.offsets)
        count += 1
    assert count


@pytest.mark.slow
def test_raw_timers_are_byte_for_byte_those_of_a_canonical_savepoint(fixtures: Path) -> None:
    case = fixtures / "made" / "2.2.1" / "main-rocksdb-canonical"
    savepoint = open_snapshot(str(case / str(json.loads((case / "params.json").read_text())["snapshot"])))
    canonical, raw = set(), set()
    for operator in savepoint.operators:
        for subtask in operator.metadata.subtasks:
            file = savepoint.handles.open_keyed(subtask.managed_keyed_state, RECORDS)
            if file is not None:
                timers = [
                    i
                    for i, info in enumerate(file.header.states)
                    if info.backend_type is BackendStateType.PRIORITY_QUEUE
                ]
                canonical |= {(operator.label, *each) for each in elements(file, timers)}
    for label, content, handle in raw_handles(heap_timers(fixtures)):
        found = open_raw_timers(content, handle.key_groups, handle.offsets, RECORDS)
        assert found is not None
        raw |= {(label, *each) for each in elements(found, range(len(found.header.states)))}
    assert raw == canonical


def elements(file: KeyedFile, state_ids: Sequence[int]) -> Iterator[tuple[StateMetaInfo, int, bytes]]:
    for state_id, records in file.scan(state_ids):
        for row in range(len(records)):
            data = records.data[records.key_starts[row] : records.key_ends[row]].tobytes()
            yield file.header.states[state_id], int(records.key_groups[row]), data
