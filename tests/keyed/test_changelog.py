from __future__ import annotations

import gzip
import json
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.binary.writer import Writer
from state_pipelines.codecs.scalar.codec import write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.changelog.change_data import AHEAD, Lookahead
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    DataChange,
    MetadataChange,
    Operation,
    read_change_set,
    read_data_change,
    read_metadata_change,
    write_change_set,
    write_change_stream,
    write_data_change,
    write_metadata_change,
)
from state_pipelines.keyed.changelog.key_serializer_search import find_key_serializer, find_written_serializers
from state_pipelines.keyed.changelog.reader import ChangelogFile, find_bases, open_changelog
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_group_assignment import assign_key_group
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.metadata.keyed_handles import (
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    StateChange,
)
from state_pipelines.metadata.stream_handles import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from state_pipelines.metadata.streams import StateStream, open_stream
from state_pipelines.operations.dump import dump_state
from state_pipelines.serializers.build import TIME_WINDOW, VOID_NAMESPACE, basic, list_of, map_of, pojo, timer, tuple_of
from state_pipelines.serializers.state_meta_info import KEYED_STATE_TYPE, keyed_state, priority_queue
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedPart, KeyedState
from state_pipelines.storage import resolve
from tests.keyed.canonical_files import Record, make_canonical
from tests.serializers.literals import LONG_CLASS, i32, outer, utf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.canonical.reader import CanonicalFile
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot

LONG, STRING, INT = basic("Long"), basic("String"), basic("Int")
VOID_CLASS = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"
META_INFO = b"".join(
    [
        utf("state-name") + i32(0),
        i32(1) + utf("KEYED_STATE_TYPE") + utf("VALUE"),
        i32(2),
        utf("VALUE_SERIALIZER") + outer(LONG_CLASS, 3),
        utf("NAMESPACE_SERIALIZER") + outer(VOID_CLASS, 3),
    ]
)
METADATA = b"\x08" + i32(7) + META_INFO + bytes.fromhex("00 00 0003 00")
ALL = KeyGroupRange(0, 128)
CONTEXT = RecordContext(128, LayoutContext())

VALUE = keyed_state("value", "VALUE", STRING, VOID_NAMESPACE)
LIST = keyed_state("list", "LIST", list_of(INT), TIME_WINDOW)
SUM = keyed_state("sum", "REDUCING", LONG, TIME_WINDOW)
MAP = keyed_state("map", "MAP", map_of(STRING, LONG), VOID_NAMESPACE)
TIMERS = priority_queue("_timer_state/event_user-timers", timer(LONG, VOID_NAMESPACE))

Records = dict[str, dict[tuple[int, bytes], bytes]]


def encode(serializer: Serializer, value: object) -> bytes:
    writer = Writer()
    write_value(derive_layout(serializer, CONTEXT.layouts), writer, value)
    return writer.getvalue()


def long(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def window(start: int) -> bytes:
    return long(start) + long(start + 10)


def metadata(info: StateMetaInfo, state_id: int) -> StateChange:
    return StateChange(METADATA_KEY_GROUP, write_metadata_change(MetadataChange(info=info, state_id=state_id)))


def change(key_group: int, operation: Operation, payload: bytes, state_id: int = 0) -> StateChange:
    return StateChange(key_group, write_data_change(DataChange(operation, state_id, payload)))


def inline(handle: StreamStateHandle) -> StateStream:
    assert isinstance(handle, ByteStreamStateHandle)
    return StateStream(handle.handle_name, len(handle.data), data=handle.data)


def in_memory(changes: Sequence[StateChange], key_groups: KeyGroupRange = ALL) -> InMemoryChangelogStateHandle:
    return InMemoryChangelogStateHandle(key_groups, 0, len(changes), tuple(changes), "log")


def in_file(sets: Sequence[Sequence[StateChange]], *, compressed: bool) -> ChangelogStateHandleStream:
    data, offsets = write_change_stream(sets, compressed=compressed)
    streams = tuple(ChangelogStream(offset, ByteStreamStateHandle("dstl/file", data)) for offset in offsets)
    return ChangelogStateHandleStream(ALL, streams, len(data), len(data), "log", "filesystem")


def open_log(
    *logs: InMemoryChangelogStateHandle | ChangelogStateHandleStream,
    bases: Sequence[KeyedFile] = (),
    key_groups: KeyGroupRange = ALL,
    key: Serializer | None = LONG,
) -> ChangelogFile:
    handle = ChangelogStateBackendHandle(key_groups, 0, (), tuple(logs), 1, "backend", 1)
    return open_changelog(handle, bases, inline, key_serializer=key)


def make_base(
    info: StateMetaInfo,
    records: Iterable[tuple[int, bytes, bytes]],
    key: Serializer = LONG,
    key_groups: KeyGroupRange = ALL,
) -> CanonicalFile:
    groups: dict[int, list[Record]] = {}
    for key_group, key_bytes, value in records:
        groups.setdefault(key_group, []).append((key_bytes, value))
    runs = [(key_group, 0, groups[key_group]) for key_group in sorted(groups)]
    return make_canonical(KeyedHeader(key_serializer=key, states=(info,)), key_groups, 1, runs, name="base")


def read(file: KeyedFile, key_groups: KeyGroupRange | None = None, **options: int) -> Records:
    states = file.header.states
    found: Records = {info.name: {} for info in states}
    for state_id, records in file.scan(range(len(states)), CONTEXT, key_groups, **options):
        assert records.key_groups.tolist() == sorted(records.key_groups.tolist())
        data = records.data.tobytes()
        for row in range(len(records)):
            key = (int(records.key_groups[row]), data[records.key_starts[row] : records.key_ends[row]])
            assert key not in found[states[state_id].name]
            found[states[state_id].name][key] = data[records.value_starts[row] : records.value_ends[row]]
    return found


def replay_one(info: StateMetaInfo, changes: Sequence[StateChange], **options: Any) -> dict[tuple[int, bytes], bytes]:
    return read(open_log(in_memory([metadata(info, 0), *changes]), **options))[info.name]


class TestBytes:
    def test_a_change_of_metadata_names_the_state_behind_an_id(self) -> None:
        found = read_metadata_change(METADATA)
        assert (found.version, found.state_id, found.info.name) == (7, 3, "state-name")
        assert (found.ttl_config, found.default_value) == (None, None)

    @pytest.mark.parametrize(
        "tail",
        [
            bytes.fromhex("00 00 0003 00"),
            bytes.fromhex("01 aced000570 00 0003 00"),
            bytes.fromhex("00 01 000000000000002a 0003 00"),
            bytes.fromhex("01 aced000570 01 000000000000002a 0003 00"),
        ],
    )
    def test_changes_of_metadata_are_written_as_they_were_read(self, tail: bytes) -> None:
        raw = b"\x08" + i32(6) + META_INFO + tail
        assert write_metadata_change(read_metadata_change(raw)) == raw

    def test_a_default_value_reaches_up_to_the_state_id(self) -> None:
        raw = b"\x08" + i32(6) + META_INFO + bytes.fromhex("00 01 000000000000002a 0003 00")
        assert read_metadata_change(raw).default_value == long(42)

    def test_a_change_of_metadata_of_another_kind_is_refused(self) -> None:
        with pytest.raises(FormatError, match="code of KEY_VALUE"):
            read_metadata_change(METADATA[:-1] + b"\x03")

    def test_priority_queues_have_neither_ttl_nor_default_value(self) -> None:
        raw = write_metadata_change(MetadataChange(info=TIMERS, state_id=1))
        assert raw[-3:] == bytes.fromhex("0001 03")
        assert read_metadata_change(raw) == MetadataChange(info=TIMERS, state_id=1)

    def test_a_change_of_data(self) -> None:
        raw = bytes.fromhex("01 0002 0000000000000003 00 0000000000000003")
        found = read_data_change(raw)
        assert found == DataChange(Operation.SET, 2, raw[3:])
        assert write_data_change(found) == raw

    def test_a_change_set_holds_changes_by_key_group(self) -> None:
        raw = bytes.fromhex("00000002 00000001ffffffff 00000001 aa 00000002 00000007 00000001 bb 00000000")
        changes = read_change_set(Reader(raw))
        assert changes == (StateChange(-1, b"\xaa"), StateChange(7, b"\xbb"), StateChange(7, b""))
        writer = Writer()
        write_change_set(writer, changes)
        assert writer.getvalue() == raw

    def test_positions_of_change_sets_do_not_count_the_first_byte(self) -> None:
        data, offsets = write_change_stream([[], [StateChange(1, b"abc")]])
        assert data == b"\0" + i32(0) + i32(1) + i32(1) + i32(1) + i32(3) + b"abc"
        assert offsets == (0, 4)

    def test_the_first_byte_says_that_the_rest_is_compressed(self) -> None:
        data, _ = write_change_stream([[StateChange(1, b"abc")]], compressed=True)
        assert data[:11] == b"\x01\xff\x06\x00\x00sNaPpY"


class TestReplay:
    def test_the_last_value_of_a_key_stays(self) -> None:
        key = long(3) + b"\0"
        changes = [change(5, Operation.SET, key + encode(STRING, text)) for text in ("a", "b", "c")]
        assert replay_one(VALUE, changes) == {(5, key): encode(STRING, "c")}

    def test_a_cleared_value_is_gone(self) -> None:
        key = long(3) + b"\0"
        changes = [change(5, Operation.SET, key + b"\2a"), change(5, Operation.CLEAR, key)]
        assert replay_one(VALUE, changes) == {}

    def test_values_of_the_base_that_have_no_changes_stay(self) -> None:
        keys = [long(each) + b"\0" for each in range(3)]
        base = make_base(VALUE, [(5, key, b"\2a") for key in keys])
        changes = [change(5, Operation.CLEAR, keys[0]), change(5, Operation.SET, keys[1] + b"\2b")]
        assert replay_one(VALUE, changes, bases=[base]) == {(5, keys[1]): b"\2b", (5, keys[2]): b"\2a"}

    def test_states_without_changes_are_those_of_the_base(self) -> None:
        base = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")])
        assert read(open_log(bases=[base]))["value"] == {(5, long(1) + b"\0"): b"\2a"}

    def test_elements_go_behind_those_of_the_base(self) -> None:
        scope = long(1) + window(0)
        base = make_base(LIST, [(5, scope, i32(1) + b"," + i32(2))])
        changes = [
            change(5, Operation.ADD_ELEMENT, scope + i32(3)),
            change(5, Operation.ADD, scope + i32(2) + i32(4) + i32(5)),
        ]
        expected = b",".join(i32(each) for each in range(1, 6))
        assert replay_one(LIST, changes, bases=[base]) == {(5, scope): expected}

    @pytest.mark.parametrize("operation", [Operation.SET, Operation.SET_INTERNAL])
    def test_a_whole_list_takes_the_place_of_the_old_one(self, operation: Operation) -> None:
        scope = long(1) + window(0)
        changes = [
            change(5, Operation.ADD_ELEMENT, scope + i32(3)),
            change(5, operation, scope + i32(2) + i32(7) + i32(8)),
        ]
        assert replay_one(LIST, changes) == {(5, scope): i32(7) + b"," + i32(8)}

    def test_an_empty_list_is_no_list(self) -> None:
        scope = long(1) + window(0)
        changes = [change(5, Operation.ADD_ELEMENT, scope + i32(3)), change(5, Operation.SET, scope + i32(0))]
        assert replay_one(LIST, changes) == {}

    @pytest.mark.parametrize(
        ("operation", "payload", "left"),
        [
            (Operation.ADD_ELEMENT, i32(3), i32(3)),
            (Operation.ADD, i32(2) + i32(3) + i32(4), i32(3) + b"," + i32(4)),
            (Operation.ADD, i32(0), None),
            (Operation.CLEAR, b"", None),
        ],
    )
    def test_an_empty_list_in_the_base_has_no_element(
        self, operation: Operation, payload: bytes, left: bytes | None
    ) -> None:
        scope = long(1) + window(0)
        base = make_base(LIST, [(5, scope, b"")])
        found = replay_one(LIST, [change(5, operation, scope + payload)], bases=[base])
        assert found == ({} if left is None else {(5, scope): left})

    @pytest.mark.parametrize(
        ("target", "source", "left"), [(b"", i32(2), i32(2)), (i32(1), b"", i32(1)), (b"", b"", None)]
    )
    def test_empty_lists_are_merged_without_delimiters(self, target: bytes, source: bytes, left: bytes | None) -> None:
        key = long(1)
        base = make_base(LIST, [(5, key + window(0), target), (5, key + window(1), source)])
        changes = [change(5, Operation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1))]
        expected = {} if left is None else {(5, key + window(0)): left}
        assert replay_one(LIST, changes, bases=[base]) == expected

    def test_merged_lists_go_behind_the_list_of_the_target(self) -> None:
        key = long(1)
        base = make_base(LIST, [(5, key + window(0), i32(1)), (5, key + window(1), i32(2)), (5, key + window(3), b"")])
        changes = [
            change(5, Operation.ADD_ELEMENT, key + window(2) + i32(3)),
            change(5, Operation.MERGE_NS, key + window(0) + window(0) + i32(2) + window(2) + window(1)),
        ]
        expected = {(5, key + window(0)): i32(1) + b"," + i32(3) + b"," + i32(2), (5, key + window(3)): b""}
        assert replay_one(LIST, changes, bases=[base]) == expected

    def test_merged_values_that_are_set_afterwards_need_no_function(self) -> None:
        key = long(1)
        changes = [
            change(5, Operation.SET_INTERNAL, key + window(0) + long(1)),
            change(5, Operation.SET_INTERNAL, key + window(1) + long(2)),
            change(5, Operation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1)),
            change(5, Operation.SET_INTERNAL, key + window(0) + long(3)),
        ]
        assert replay_one(SUM, changes) == {(5, key + window(0)): long(3)}
        with pytest.raises(UnsupportedError, match="takes the user's function") as error:
            replay_one(SUM, changes[:-1])
        assert error.value.where.state == "sum"
        assert "savepoint" in error.value.hint

    def test_one_value_is_merged_by_moving_it(self) -> None:
        key = long(1)
        base = make_base(SUM, [(5, key + window(1), long(2))])
        changes = [change(5, Operation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1))]
        assert replay_one(SUM, changes, bases=[base]) == {(5, key + window(0)): long(2)}

    def test_a_merge_without_sources_changes_nothing(self) -> None:
        key = long(1)
        base = make_base(SUM, [(5, key + window(0), long(2))])
        changes = [change(5, Operation.MERGE_NS, key + window(0) + window(0) + i32(0))]
        assert replay_one(SUM, changes, bases=[base]) == {(5, key + window(0)): long(2)}

    def test_entries_of_a_map_are_records_with_a_null_flag(self) -> None:
        scope = long(1) + b"\0"
        base = make_base(MAP, [(5, scope + b"\2a", b"\0" + long(1)), (5, scope + b"\2b", b"\0" + long(2))])
        changes = [
            change(5, Operation.ADD_OR_UPDATE_ELEMENT, scope + b"\2a" + long(7)),
            change(5, Operation.REMOVE_ELEMENT, scope + b"\2b"),
            change(5, Operation.ADD, scope + i32(2) + b"\2c\0" + long(3) + b"\2d\1"),
        ]
        expected = {b"\2a": b"\0" + long(7), b"\2c": b"\0" + long(3), b"\2d": b"\1"}
        assert replay_one(MAP, changes, bases=[base]) == {(5, scope + key): value for key, value in expected.items()}

    def test_clearing_a_map_takes_what_came_before_and_no_other_map(self) -> None:
        scope, other = long(1) + b"\0", long(2) + b"\0"
        base = make_base(MAP, [(5, scope + b"\2a", b"\0" + long(1)), (5, other + b"\2a", b"\0" + long(2))])
        changes = [
            change(5, Operation.ADD_OR_UPDATE_ELEMENT, scope + b"\2b" + long(3)),
            change(5, Operation.CLEAR, scope),
            change(5, Operation.ADD_OR_UPDATE_ELEMENT, scope + b"\2c" + long(4)),
        ]
        expected = {(5, other + b"\2a"): b"\0" + long(2), (5, scope + b"\2c"): b"\0" + long(4)}
        assert replay_one(MAP, changes, bases=[base]) == expected

    def test_timers_are_added_and_removed(self) -> None:
        timers = [bytes.fromhex("80") + bytes(7) + long(each) + b"\0" for each in range(4)]
        base = make_base(TIMERS, [(5, timers[0], b""), (5, timers[1], b"")])
        changes = [
            change(5, Operation.REMOVE_ELEMENT, timers[0]),
            change(5, Operation.ADD_ELEMENT, i32(2) + timers[2] + timers[3]),
            change(5, Operation.REMOVE_ELEMENT, timers[3]),
            change(5, Operation.REMOVE_ELEMENT, timers[2]),
            change(5, Operation.ADD_ELEMENT, i32(1) + timers[2]),
        ]
        assert replay_one(TIMERS, changes, bases=[base]) == {(5, timers[1]): b"", (5, timers[2]): b""}

    def test_ambiguous_keys_get_their_lengths(self) -> None:
        info = keyed_state("value", "VALUE", LONG, STRING)
        changes = [change(5, Operation.SET, bytes.fromhex("046b6579 036e73") + long(1))]
        expected = {(5, bytes.fromhex("046b6579 04 036e73 03")): long(1)}
        assert replay_one(info, changes, key=STRING) == expected

    def test_state_ids_are_those_of_their_log(self) -> None:
        key = long(1) + b"\0"
        other = keyed_state("other", "VALUE", STRING, VOID_NAMESPACE)
        logs = [
            in_memory([metadata(VALUE, 0), change(5, Operation.SET, key + b"\2a")]),
            in_memory([metadata(other, 0), change(5, Operation.SET, key + b"\2b")]),
        ]
        assert read(open_log(*logs)) == {"value": {(5, key): b"\2a"}, "other": {(5, key): b"\2b"}}

    def test_changes_of_other_key_groups_do_not_count(self) -> None:
        changes = [change(group, Operation.SET, long(group) + b"\0\2a") for group in (3, 4, 5)]
        found = replay_one(VALUE, changes, key_groups=KeyGroupRange(4, 1))
        assert found == {(4, long(4) + b"\0"): b"\2a"}

    def test_records_of_a_base_outside_the_handle_do_not_count(self) -> None:
        base = make_base(VALUE, [(group, long(group) + b"\0", b"\2a") for group in (3, 4, 5)])
        found = read(open_log(bases=[base], key_groups=KeyGroupRange(4, 1)))
        assert found["value"] == {(4, long(4) + b"\0"): b"\2a"}


LOW, HIGH = KeyGroupRange(0, 64), KeyGroupRange(64, 64)


class TestBases:
    """After a change of parallelism there are several."""

    def test_each_gives_its_key_groups(self) -> None:
        low = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")], key_groups=LOW)
        high = make_base(VALUE, [(70, long(2) + b"\0", b"\2b")], key_groups=HIGH)
        found = read(open_log(bases=[high, low]))["value"]
        assert found == {(5, long(1) + b"\0"): b"\2a", (70, long(2) + b"\0"): b"\2b"}

    def test_several_that_hold_a_key_group_are_refused(self) -> None:
        whole = make_base(VALUE, [(5, long(1) + b"\0", b"\2a"), (70, long(2) + b"\0", b"\2a")])
        high = make_base(VALUE, [(70, long(2) + b"\0", b"\2b")], key_groups=HIGH)
        with pytest.raises(UnsupportedError, match="several materialized states hold key group 64") as error:
            open_log(bases=[high, whole])
        assert "next materialization" in error.value.hint

    def test_key_groups_outside_the_handle_do_not_count(self) -> None:
        whole = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")])
        high = make_base(VALUE, [(70, long(2) + b"\0", b"\2b")], key_groups=HIGH)
        found = read(open_log(bases=[high, whole], key_groups=LOW))["value"]
        assert found == {(5, long(1) + b"\0"): b"\2a"}


class TestErrors:
    def test_a_state_id_that_nothing_explains(self) -> None:
        with pytest.raises(FormatError, match="state id 9"):
            replay_one(VALUE, [change(5, Operation.SET, long(1) + b"\0\2a", state_id=9)])

    def test_a_type_that_no_state_has(self) -> None:
        wrong = replace(VALUE, options=((KEYED_STATE_TYPE, "VALUe"),))
        with pytest.raises(FormatError, match="a state of type UNKNOWN"):
            replay_one(wrong, [change(5, Operation.SET, long(1) + b"\0\2a")])

    def test_an_operation_of_another_kind_of_state_names_the_place(self) -> None:
        log = in_file([[metadata(VALUE, 0), change(5, Operation.ADD, long(1) + b"\0\2a")]], compressed=False)
        with pytest.raises(FormatError, match="operation 3 is none of a VALUE state") as error:
            read(open_log(log))
        assert error.value.where.file == "dstl/file"
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        assert error.value.where.offset == len(data) - 3 - len(long(1) + b"\0\2a")

    def test_a_change_that_is_cut_off(self) -> None:
        with pytest.raises(FormatError) as error:
            replay_one(VALUE, [change(5, Operation.SET, long(1)[:5])])
        assert error.value.where.state == "value"

    def test_a_change_set_that_is_cut_off(self) -> None:
        log = in_file([[metadata(VALUE, 0), change(5, Operation.SET, long(1) + b"\0\2a")]], compressed=False)
        (each,) = log.streams
        assert isinstance(each.handle, ByteStreamStateHandle)
        short = ChangelogStream(0, ByteStreamStateHandle("dstl/file", each.handle.data[:-1]))
        with pytest.raises(FormatError, match="beyond its change set"):
            read(open_log(ChangelogStateHandleStream(ALL, (short,), 0, 0, "log")))

    def test_a_first_byte_that_is_no_flag(self) -> None:
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", b"\x02\0\0\0\0"))
        with pytest.raises(FormatError, match="does not begin with 02"):
            open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log"))

    def test_timers_that_fired_in_flink_1_14(self) -> None:
        with pytest.raises(UnsupportedError, match="not which one"):
            replay_one(TIMERS, [change(5, Operation.METADATA, b"")])

    def test_a_state_whose_serializer_changed_since_the_base(self) -> None:
        base = make_base(keyed_state("value", "VALUE", LONG, VOID_NAMESPACE), [(5, long(1) + b"\0", long(1))])
        with pytest.raises(UnsupportedError, match="other serializers"):
            replay_one(VALUE, [change(5, Operation.SET, long(2) + b"\0\2a")], bases=[base])

    def test_without_a_base_the_key_serializer_must_come_from_elsewhere(self) -> None:
        file = open_log(in_memory([metadata(VALUE, 0)]), key=None)
        assert file.states == (VALUE,)
        with pytest.raises(UnsupportedError, match="nothing has been materialized"):
            _ = file.header


KEYS = st.integers(0, 3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.text(max_size=3)),
        st.tuples(st.just("clear"), KEYS, st.just("")),
        st.tuples(st.just("put"), KEYS, st.text(max_size=2)),
        st.tuples(st.just("remove"), KEYS, st.text(max_size=2)),
        st.tuples(st.just("clear map"), KEYS, st.just("")),
        st.tuples(st.just("add"), KEYS, st.just("")),
        st.tuples(st.just("clear list"), KEYS, st.just("")),
    ),
    max_size=30,
)


class TestAgainstADictionary:
    @given(
        OPERATIONS, st.integers(1, 7), st.sampled_from(["memory", "plain", "compressed"]), st.sampled_from([1, 1 << 20])
    )
    def test_a_log_replays_to_what_a_dictionary_holds(
        self, operations: list[tuple[str, int, str]], size: int, storage: str, budget: int
    ) -> None:
        values: dict[tuple[int, bytes], bytes] = {}
        maps: dict[tuple[int, bytes], bytes] = {}
        lists: dict[tuple[int, bytes], list[bytes]] = {}
        changes: list[StateChange] = []
        for number, (name, key, text) in enumerate(operations):
            group, scope, raw = 10 * key, long(key) + b"\0", encode(STRING, text)
            list_scope = long(key) + window(0)
            match name:
                case "set":
                    changes.append(change(group, Operation.SET, scope + raw, 0))
                    values[group, scope] = raw
                case "clear":
                    changes.append(change(group, Operation.CLEAR, scope, 0))
                    values.pop((group, scope), None)
                case "put":
                    changes.append(change(group, Operation.ADD_OR_UPDATE_ELEMENT, scope + raw + long(number), 1))
                    maps[group, scope + raw] = b"\0" + long(number)
                case "remove":
                    changes.append(change(group, Operation.REMOVE_ELEMENT, scope + raw, 1))
                    maps.pop((group, scope + raw), None)
                case "clear map":
                    changes.append(change(group, Operation.CLEAR, scope, 1))
                    maps = {each: value for each, value in maps.items() if not each[1].startswith(scope)}
                case "add":
                    changes.append(change(group, Operation.ADD_ELEMENT, list_scope + i32(number), 2))
                    lists.setdefault((group, list_scope), []).append(i32(number))
                case _:
                    changes.append(change(group, Operation.CLEAR, list_scope, 2))
                    lists.pop((group, list_scope), None)
        sets = [changes[start : start + size] for start in range(0, len(changes), size)]
        sets = [[metadata(VALUE, 0), metadata(MAP, 1), metadata(LIST, 2)], *sets]
        if storage == "memory":
            file = open_log(*map(in_memory, sets))
        else:
            file = open_log(in_file(sets, compressed=storage == "compressed"))
        expected: Records = {
            "value": values,
            "map": maps,
            "list": {key: b",".join(elements) for key, elements in lists.items()},
        }
        assert read(file, window=budget) == expected
        by_group = Counter(group for state in expected.values() for group, _ in state)
        scanned = {
            group: sum(len(records) for _, records in runs) for group, runs in file.scan_key_groups(CONTEXT, ALL)
        }
        assert scanned == by_group


class TestParts:
    def make(self) -> ChangelogFile:
        base = make_base(VALUE, [(group, long(group) + b"\0", b"\2a") for group in range(0, 128, 2)])
        changes = [change(group, Operation.SET, long(group) + b"\0\2b") for group in range(0, 128, 3)]
        return open_log(in_file([[metadata(VALUE, 0), *changes]], compressed=True), bases=[base])

    def test_parts_hold_what_the_file_holds(self) -> None:
        file = self.make()
        parts = list(file.split(300, CONTEXT))
        assert len(parts) > 2
        found: Records = {"value": {}}
        for part in parts:
            found["value"] |= read(part)["value"]
        assert found == read(file)
        assert sum(len(read(part)["value"]) for part in parts) == len(found["value"])

    def test_a_file_goes_to_other_processes(self) -> None:
        file = self.make()
        assert read(pickle.loads(pickle.dumps(file))) == read(file)

    def test_there_are_not_more_than_the_bytes_make_up(self) -> None:
        file = self.make()
        (base,), size = file.bases, file.log.size
        assert len(list(file.split(size + 1, CONTEXT))) == len(list(base.split(size + 1, CONTEXT)))
        assert len(list(file.split(10 * size, CONTEXT))) == 1
        assert len(list(replace(file, bases=()).split(size + 1, CONTEXT))) == 1
        assert len(list(replace(file, bases=()).split(size // 3, CONTEXT))) == 4

    def test_nothing_has_no_parts(self) -> None:
        assert list(open_log().split(100, CONTEXT)) == []

    def test_logs_of_a_changed_parallelism_have_the_size_of_their_files(self) -> None:
        log = in_file([[metadata(VALUE, 0)], [change(5, Operation.SET, long(1) + b"\0\2b")]], compressed=False)
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        assert open_log(replace(log, size=0)).log.size == len(data)

    def test_key_groups_can_be_chosen(self) -> None:
        assert {group for group, _ in read(self.make(), KeyGroupRange(6, 3))["value"]} == {6, 8}


class TestStreams:
    """Change sets in a file: the first states the state, the others have changes of each key group."""

    def write(self, folder: Path, *, compressed: bool) -> tuple[Path, ChangelogFile]:
        noise = random.Random(1)
        texts = ["".join(chr(each & 0x7F) for each in noise.randbytes(20_000)) for _ in range(8)]
        values = [encode(STRING, text) for text in texts]
        sets = [
            [change(group, Operation.SET, long(group) + b"\0" + value) for group, value in enumerate(values)]
            for _ in range(3)
        ]
        data, offsets = write_change_stream([[metadata(VALUE, 0)], *sets], compressed=compressed)
        path = folder / "changes"
        path.write_bytes(data)
        streams = tuple(ChangelogStream(each, FileStateHandle(str(path), len(data) - 1)) for each in offsets)
        log = ChangelogStateHandleStream(ALL, streams, len(data), len(data), "log", "filesystem")
        handle = ChangelogStateBackendHandle(ALL, 0, (), (log,), 1, "backend", 1)
        return path, open_changelog(
            handle, [], lambda each: open_stream(each, resolve(str(folder))), key_serializer=LONG
        )

    @pytest.mark.parametrize("compressed", [False, True])
    def test_only_the_changes_of_the_wanted_key_groups_are_read(self, tmp_path: Path, compressed: bool) -> None:
        path, file = self.write(tmp_path, compressed=compressed)
        wanted = KeyGroupRange(4, 1)
        expected = read(file, wanted)
        assert [group for group, _ in expected["value"]] == [4]
        # Key group 0 in the last change set, some chunks before key group 4.
        others = read(file, KeyGroupRange(0, 1))
        data = bytearray(path.read_bytes())
        place = file.log.sets[-1].offset + 2_000
        data[place : place + 1_000] = bytes(1_000)
        path.write_bytes(data)
        assert read(file, wanted) == expected
        if compressed:
            with pytest.raises(FormatError, match="snappy chunk is damaged"):
                read(file, KeyGroupRange(0, 1))
        else:
            assert read(file, KeyGroupRange(0, 1)) != others

    def test_opening_a_compressed_stream_decodes_the_metadata_alone(self, tmp_path: Path) -> None:
        path, file = self.write(tmp_path, compressed=True)
        expected = file.states
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(8)
        path.write_bytes(data)
        handle = FileStateHandle(str(path), len(data) - 1)
        log = ChangelogStateHandleStream(ALL, (ChangelogStream(0, handle),), 0, 0, "log", "filesystem")
        backend = ChangelogStateBackendHandle(ALL, 0, (), (log,), 1, "backend", 1)
        opened = open_changelog(
            backend, [], lambda each: open_stream(each, resolve(str(tmp_path))), key_serializer=LONG
        )
        assert opened.states == expected
        with pytest.raises(FormatError, match="snappy chunk is damaged"):
            read(file)

    def test_where_things_lie_is_looked_up_once(self, tmp_path: Path) -> None:
        path, file = self.write(tmp_path, compressed=True)
        sizes = file.log.sizes(ALL).tolist()
        assert sizes[:9] == [sizes[0]] * 8 + [0]
        path.unlink()
        (part, *_) = file.split(1000, CONTEXT)
        assert part.log.sizes(ALL).tolist() == sizes

    def test_where_things_lie_does_not_go_to_other_processes(self, tmp_path: Path) -> None:
        _, file = self.write(tmp_path, compressed=True)
        before = pickle.dumps(replace(file.log))
        file.log.sizes(ALL)
        assert pickle.dumps(file.log) == before

    @pytest.mark.parametrize("compressed", [False, True])
    def test_changes_longer_than_what_is_read_at_once(self, compressed: bool) -> None:
        texts = [b"\2a", encode(STRING, "b" * (AHEAD + 5)), b"\2c"]
        changes = [change(5, Operation.SET, long(each) + b"\0" + text) for each, text in enumerate(texts)]
        found = read(open_log(in_file([[metadata(VALUE, 0)], changes, changes], compressed=compressed)))["value"]
        assert found == {(5, long(each) + b"\0"): text for each, text in enumerate(texts)}

    def test_metadata_longer_than_what_is_read_at_once(self) -> None:
        infos = [keyed_state(f"{each:05}" + "n" * 100, "VALUE", LONG, VOID_NAMESPACE) for each in range(600)]
        log = in_file([[metadata(info, number) for number, info in enumerate(infos)]], compressed=True)
        assert open_log(log).states == tuple(infos)

    def test_a_group_may_come_twice_in_a_change_set(self) -> None:
        key = long(1) + b"\0"
        texts = (b"\2a", b"\2b", b"\2c")
        raw = [write_data_change(DataChange(Operation.SET, 0, key + text)) for text in texts]
        group = [
            i32(len(those)) + i32(5) + b"".join(i32(len(each)) + each for each in those) for those in (raw[:2], raw[2:])
        ]
        meta = metadata(VALUE, 0).change
        data = b"\0" + i32(3) + i32(1) + i32(-1) + i32(len(meta)) + meta + b"".join(group)
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data))
        file = open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log"))
        assert read(file) == {"value": {(5, key): b"\2c"}}

    def test_a_group_without_its_key_group(self) -> None:
        meta = metadata(VALUE, 0).change
        data = b"\0" + i32(2) + i32(1) + i32(-1) + i32(len(meta)) + meta + i32(0) + b"\0"
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data))
        with pytest.raises(FormatError, match="beyond its change set"):
            read(open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log")))

    def test_a_chunk_that_is_cut_off(self) -> None:
        log = in_file([[metadata(VALUE, 0)]], compressed=True)
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        short = ChangelogStream(0, ByteStreamStateHandle("dstl/file", data[:-1]))
        with pytest.raises(FormatError, match="cut off") as error:
            open_log(ChangelogStateHandleStream(ALL, (short,), 0, 0, "log"))
        assert error.value.where.offset == 1 + len(STREAM_ID)

    @given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50))), st.integers(1, 60))
    def test_looking_ahead_changes_no_bytes(self, data: bytes, takes: list[tuple[int, int]], ahead: int) -> None:
        flat = np.frombuffer(data, np.uint8)
        lookahead = Lookahead(lambda start, end: flat[start:end], len(data), ahead)
        for start, size in takes:
            if start <= len(data):
                assert lookahead.take(start, size).tobytes() == data[start : start + size]
                held = lookahead.take_held(start).tobytes()
                assert data[start:].startswith(held)
                assert bool(held) == (start < len(data))


def key_group_of(value: int | str) -> int:
    if isinstance(value, str):
        code = 0
        for char in value:
            code = (31 * code + ord(char)) & 0xFFFFFFFF
        return assign_key_group(code, 128)
    return assign_key_group((value ^ value >> 32) & 0xFFFFFFFF, 128)


def keyed_log(key: Serializer, keys: Sequence[int | str]) -> ChangelogFile:
    changes = [change(key_group_of(each), Operation.SET, encode(key, each) + b"\0" + long(1)) for each in keys]
    info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
    return open_log(in_memory([metadata(info, 0), *changes]), key=None)


def pair_log(pairs: Sequence[tuple[str, int]]) -> ChangelogFile:
    """Changes of keys of type Tuple2<String, Int>."""
    key = tuple_of(STRING, INT)
    changes = []
    for text, number in pairs:
        group = assign_key_group((31 * ord(text) + number) & 0xFFFFFFFF, 128)
        changes.append(change(group, Operation.SET, encode(key, {"f0": text, "f1": number}) + b"\0" + long(1)))
    info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
    return open_log(in_memory([metadata(info, 0), *changes]), key=None)


class TestKeySerializers:
    @pytest.mark.parametrize(
        ("key", "keys"),
        [(LONG, range(20)), (INT, range(20)), (STRING, [f"key {each}" for each in range(20)])],
        ids=["Long", "Int", "String"],
    )
    def test_basic_types_are_found_by_parsing_and_hashing(self, key: Serializer, keys: Sequence[int | str]) -> None:
        found = find_key_serializer([keyed_log(key, list(keys))], CONTEXT)
        assert found.serializer == key
        assert (found.keys, found.changes, found.hashed) == (20, 20, True)

    def test_an_operation_that_does_not_exist_is_an_error_of_the_file(self) -> None:
        changes = [StateChange(key_group_of(7), b"\x0e\0\0" + long(7) + b"\0" + long(1))]
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        with pytest.raises(FormatError, match="14 is not an operation on state"):
            find_key_serializer([open_log(in_memory([metadata(info, 0), *changes]), key=None)], CONTEXT)

    def test_the_evidence_names_types_that_fit_as_well(self) -> None:
        found = find_key_serializer([keyed_log(LONG, list(range(20)))], CONTEXT)
        assert found.evidence == (
            "Long: basic type; fits 20 changes of 20 keys, whose hashes give their key groups; so do Double, Date"
        )

    def test_tuples_of_basic_types_are_found(self) -> None:
        found = find_key_serializer([pair_log([(chr(97 + each), 7 * each) for each in range(20)])], CONTEXT)
        assert found.serializer == tuple_of(STRING, INT)
        assert found.evidence == (
            "Tuple2<String, Int>: tuple of basic types; fits 20 changes of 20 keys, whose hashes give their key groups"
        )

    def test_tuples_need_the_proof_of_many_keys(self) -> None:
        with pytest.raises(UnsupportedError, match="no type of keys that is known here"):
            find_key_serializer([pair_log([("a", 1), ("b", 2)])], CONTEXT)

    def test_types_that_other_operators_use_come_first(self) -> None:
        double = basic("Double")
        found = find_key_serializer([keyed_log(LONG, list(range(20)))], CONTEXT, [STRING, double])
        assert found.serializer == double

    def test_a_type_whose_hashes_give_other_key_groups_does_not_fit(self) -> None:
        changes = [change(7, Operation.SET, long(each) + b"\0" + long(1)) for each in range(20)]
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        file = open_log(in_memory([metadata(info, 0), *changes]), key=None)
        with pytest.raises(UnsupportedError, match="no type of keys that is known here"):
            find_key_serializer([file], CONTEXT)

    def test_timers_say_it(self) -> None:
        key = tuple_of(STRING, INT)
        element = timer(key, VOID_NAMESPACE)
        raw = encode(key, {"f0": "a", "f1": 1})
        group = assign_key_group(31 * 97 + 1, 128)
        changes = [change(group, Operation.ADD_ELEMENT, i32(1) + bytes(8) + raw + b"\0")]
        log = in_memory([metadata(priority_queue("_timer_state/event_a", element), 0), *changes])
        file = open_log(log, key=None)
        found = find_key_serializer([file], CONTEXT)
        assert (found.serializer, found.hashed) == (key, True)
        assert [serializer for serializer, _ in find_written_serializers([file])] == [key]

    def test_materialized_state_of_another_subtask_says_it(self) -> None:
        base = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")], basic("Double"))
        files = [keyed_log(LONG, list(range(5))), open_log(bases=[base])]
        assert find_key_serializer(files, CONTEXT).serializer == basic("Double")

    def test_what_materialized_state_says_is_final(self) -> None:
        base = make_base(VALUE, [(5, bytes.fromhex("046b6579 00"), b"\2a")], STRING)
        files = [keyed_log(LONG, list(range(5))), open_log(bases=[base])]
        with pytest.raises(UnsupportedError, match="no type of keys"):
            find_key_serializer(files, CONTEXT)

    def test_types_without_a_known_hash_are_tried_by_parsing(self) -> None:
        key = pojo("com.acme.Key", {"id": LONG})
        raw = b"\2\0" + long(7) + b"\0"
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        file = open_log(in_memory([metadata(info, 0), change(5, Operation.SET, raw + long(1))]), key=None)
        found = find_key_serializer([file], CONTEXT, [STRING, key])
        assert (found.serializer, found.hashed) == (key, False)
        assert found.evidence.endswith("the hash of such keys is not known")


TYPES = Path(__file__).resolve().parents[1] / "data" / "types"
MADE = sorted(TYPES.glob("flink-*/changelog-*"))


def open_operators(snapshot: Snapshot, given: dict[str, Serializer]) -> dict[str, list[KeyedState]]:
    """The keyed states behind changelog handles; key serializers are found, or else taken from `given`."""
    opened: dict[str, list[tuple[int, ChangelogFile]]] = {}
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, ChangelogStateBackendHandle):
                bases = [base for each in handle.materialized if (base := snapshot.handles.open_keyed(each))]
                file = open_changelog(
                    handle, bases, lambda each: open_stream(each, snapshot.location.directory, snapshot.path_mapping)
                )
                opened.setdefault(operator.label, []).append((subtask.index, file))
    serializers = [
        each for files in opened.values() for _, file in files for i in file.states for _, each in i.serializers
    ]
    subclasses = collect_subclasses(serializers)
    snapshot.layout_context = LayoutContext(snapshot.kryo_version, subclasses, snapshot.classes)
    told = [each for files in opened.values() for each, _ in find_written_serializers([file for _, file in files])]
    states: dict[str, list[KeyedState]] = {}
    for label, files in opened.items():
        operator = snapshot.operator(label)
        key = given.get(label)
        if key is None:
            key = find_key_serializer([file for _, file in files], operator.record_context, told).serializer
        parts: dict[str, list[KeyedPart]] = {}
        for subtask_index, file in files:
            known = file if file.key_serializer else replace(file, key_serializer=key)
            for state_id, info in enumerate(known.states):
                parts.setdefault(info.name, []).append(KeyedPart(subtask_index, known, state_id))
        states[label] = [KeyedState(operator, tuple(each)) for each in parts.values()]
    return states


def count_lines(lines: Iterable[dict[str, Any]], skipped: frozenset[str] = frozenset()) -> Counter[str]:
    volatile = ("subtask", "ttl_ts")
    return Counter(
        json.dumps({name: value for name, value in line.items() if name not in volatile}, sort_keys=True)
        for line in lines
        if line["kind"] in ("keyed", "timer") and line["op"] not in skipped
    )


def read_expected(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "expected.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("folder", MADE, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_checkpoints_of_flink_hold_what_it_read_itself(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    snapshot = open_snapshot(
        str(folder / case["snapshot"]), path_mapping=[f"file:{case['written']}={folder}"], uids=case["uids"]
    )
    states = open_operators(snapshot, {})
    found = count_lines(line for each in states.values() for state in each for line in dump_state(state))
    assert found == count_lines(read_expected(folder))
    assert found.total() > 30


@pytest.mark.parametrize(
    "folder", [each for each in MADE if "materialized" in each.name], ids=lambda each: each.parts[-2]
)
def test_a_base_that_comes_twice_is_read_once(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    snapshot = open_snapshot(
        str(folder / case["snapshot"]), path_mapping=[f"file:{case['written']}={folder}"], uids=case["uids"]
    )
    checked = 0
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if not isinstance(handle, ChangelogStateBackendHandle):
                continue
            for base in handle.materialized:
                again = replace(base, checkpoint_id=99) if isinstance(base, IncrementalRemoteKeyedStateHandle) else base
                assert find_bases(replace(handle, materialized=(base, again))) == (base,)
                checked += 1
            twice = replace(handle, materialized=handle.materialized * 2)
            once, file = (snapshot.handles.open_keyed(each) for each in (handle, twice))
            assert isinstance(once, ChangelogFile)
            assert isinstance(file, ChangelogFile)
            assert read(file) == read(once)
    assert checked


# Classes behind Kryo, which no snapshot describes, and windows that the expected entries leave out.
UNDESCRIBED = frozenset({"op-kryo", "win-session"})


UNMATERIALIZED = "made/2.2.1/changelog-rocksdb-checkpoint"


def open_unmaterialized(fixtures: Path, key_serializers: Iterable[str] = ()) -> Snapshot:
    folder = fixtures / UNMATERIALIZED
    case = json.loads((folder / "params.json").read_text())
    written = case["conf"]["dstl.dfs.base-path"].removesuffix("/changelog").replace("///", "/")
    return open_snapshot(
        str(folder / case["snapshot"]),
        declare({"key_serializers": key_serializers}),
        path_mapping=[f"{written}={folder}"],
    )


def test_a_checkpoint_before_the_first_materialization(fixtures: Path) -> None:
    folder = fixtures / UNMATERIALIZED
    canonical = open_snapshot(str(next((fixtures / "made/2.2.1/main-rocksdb-canonical").rglob("_metadata")).parent))
    given = {label: _key_of(canonical, label) for label in ("op-agg", "op-pojokey")}
    snapshot = open_unmaterialized(fixtures)
    states = open_operators(snapshot, given)
    snapshot.layout_context = canonical.layout_context
    expected = count_lines(read_expected(folder), UNDESCRIBED)
    lines = [line for each in states.values() for state in each for line in dump_state(state)]
    assert count_lines(lines, UNDESCRIBED) == expected
    assert expected.total() > 9000
    windows = [line for state in canonical.operator("win-session").states for line in dump_state(state)]
    assert count_lines(line for line in lines if line["op"] == "win-session") == count_lines(windows)


def test_keys_that_are_tuples_are_found_in_a_checkpoint_of_flink(fixtures: Path) -> None:
    snapshot = open_unmaterialized(fixtures)
    state = snapshot.operator("op-agg").states[0]
    assert isinstance(state, KeyedState)
    assert state.key_serializer == tuple_of(STRING, INT)
    with pytest.raises(UnsupportedError, match="--key-serializer OPERATOR=TYPE"):
        _ = snapshot.operator("op-pojokey").states


def test_keys_that_the_caller_describes_are_read(fixtures: Path) -> None:
    folder = fixtures / UNMATERIALIZED
    canonical = open_snapshot(str(next((fixtures / "made/2.2.1/main-rocksdb-canonical").rglob("_metadata")).parent))
    text = f"op-pojokey={describe(_key_of(canonical, 'op-pojokey'))}"
    snapshot = open_unmaterialized(fixtures, [text])
    states = [each for each in snapshot.operator("op-pojokey").states if isinstance(each, KeyedState)]
    lines = [line for each in states for line in dump_state(each)]
    assert count_lines(lines) == count_lines(each for each in read_expected(folder) if each["op"] == "op-pojokey")


def _key_of(snapshot: Snapshot, label: str) -> Serializer:
    return next(state for state in snapshot.operator(label).states if isinstance(state, KeyedState)).key_serializer
