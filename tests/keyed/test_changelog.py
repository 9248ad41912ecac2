"""Changes, and what states are after them."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.changelog.changes import (
    MetadataChange,
    StateChangeOperation,
    read_metadata_change,
    write_change_set,
    write_change_stream,
    write_metadata_change,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    KeyGroupRange,
    LoggedChange,
)
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import KEYED_STATE_TYPE, keyed_state
from tests.keyed.changelogs import (
    ALL,
    LIST,
    LONG,
    MAP,
    META_INFO,
    METADATA,
    STRING,
    SUM,
    TIMERS,
    VALUE,
    Records,
    change,
    encode,
    in_file,
    in_memory,
    long,
    make_base,
    metadata,
    open_log,
    read,
    replay_one,
    window,
)
from tests.serializers.literals import i32

if TYPE_CHECKING:
    from state_pipelines.keyed.changelog.reader import ChangelogFile


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

    def test_a_change_set_holds_changes_by_key_group(self) -> None:
        raw = bytes.fromhex("00000002 00000001ffffffff 00000001 aa 00000002 00000007 00000001 bb 00000000")
        writer = Writer()
        write_change_set(writer, (LoggedChange(-1, b"\xaa"), LoggedChange(7, b"\xbb"), LoggedChange(7, b"")))
        assert writer.getvalue() == raw

    def test_positions_of_change_sets_do_not_count_the_first_byte(self) -> None:
        data, offsets = write_change_stream([[], [LoggedChange(1, b"abc")]])
        assert data == b"\0" + i32(0) + i32(1) + i32(1) + i32(1) + i32(3) + b"abc"
        assert offsets == (0, 4)

    def test_the_first_byte_says_that_the_rest_is_compressed(self) -> None:
        data, _ = write_change_stream([[LoggedChange(1, b"abc")]], compressed=True)
        assert data[:11] == b"\x01\xff\x06\x00\x00sNaPpY"


class TestReplay:
    def test_the_last_value_of_a_key_stays(self) -> None:
        key = long(3) + b"\0"
        changes = [change(5, StateChangeOperation.SET, key + encode(STRING, text)) for text in ("a", "b", "c")]
        assert replay_one(VALUE, changes) == {(5, key): encode(STRING, "c")}

    def test_a_cleared_value_is_gone(self) -> None:
        key = long(3) + b"\0"
        changes = [change(5, StateChangeOperation.SET, key + b"\2a"), change(5, StateChangeOperation.CLEAR, key)]
        assert replay_one(VALUE, changes) == {}

    def test_values_of_the_base_that_have_no_changes_stay(self) -> None:
        keys = [long(each) + b"\0" for each in range(3)]
        base = make_base(VALUE, [(5, key, b"\2a") for key in keys])
        changes = [
            change(5, StateChangeOperation.CLEAR, keys[0]),
            change(5, StateChangeOperation.SET, keys[1] + b"\2b"),
        ]
        assert replay_one(VALUE, changes, bases=[base]) == {(5, keys[1]): b"\2b", (5, keys[2]): b"\2a"}

    def test_states_without_changes_are_those_of_the_base(self) -> None:
        base = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")])
        assert read(open_log(bases=[base]))["value"] == {(5, long(1) + b"\0"): b"\2a"}

    def test_elements_go_behind_those_of_the_base(self) -> None:
        scope = long(1) + window(0)
        base = make_base(LIST, [(5, scope, i32(1) + b"," + i32(2))])
        changes = [
            change(5, StateChangeOperation.ADD_ELEMENT, scope + i32(3)),
            change(5, StateChangeOperation.ADD, scope + i32(2) + i32(4) + i32(5)),
        ]
        expected = b",".join(i32(each) for each in range(1, 6))
        assert replay_one(LIST, changes, bases=[base]) == {(5, scope): expected}

    @pytest.mark.parametrize("operation", [StateChangeOperation.SET, StateChangeOperation.SET_INTERNAL])
    def test_a_whole_list_takes_the_place_of_the_old_one(self, operation: StateChangeOperation) -> None:
        scope = long(1) + window(0)
        changes = [
            change(5, StateChangeOperation.ADD_ELEMENT, scope + i32(3)),
            change(5, operation, scope + i32(2) + i32(7) + i32(8)),
        ]
        assert replay_one(LIST, changes) == {(5, scope): i32(7) + b"," + i32(8)}

    def test_an_empty_list_is_no_list(self) -> None:
        scope = long(1) + window(0)
        changes = [
            change(5, StateChangeOperation.ADD_ELEMENT, scope + i32(3)),
            change(5, StateChangeOperation.SET, scope + i32(0)),
        ]
        assert replay_one(LIST, changes) == {}

    @pytest.mark.parametrize(
        ("operation", "payload", "left"),
        [
            (StateChangeOperation.ADD_ELEMENT, i32(3), i32(3)),
            (StateChangeOperation.ADD, i32(2) + i32(3) + i32(4), i32(3) + b"," + i32(4)),
            (StateChangeOperation.ADD, i32(0), None),
            (StateChangeOperation.CLEAR, b"", None),
        ],
    )
    def test_an_empty_list_in_the_base_has_no_element(
        self, operation: StateChangeOperation, payload: bytes, left: bytes | None
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
        changes = [change(5, StateChangeOperation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1))]
        expected = {} if left is None else {(5, key + window(0)): left}
        assert replay_one(LIST, changes, bases=[base]) == expected

    def test_merged_lists_go_behind_the_list_of_the_target(self) -> None:
        key = long(1)
        base = make_base(LIST, [(5, key + window(0), i32(1)), (5, key + window(1), i32(2)), (5, key + window(3), b"")])
        changes = [
            change(5, StateChangeOperation.ADD_ELEMENT, key + window(2) + i32(3)),
            change(5, StateChangeOperation.MERGE_NS, key + window(0) + window(0) + i32(2) + window(2) + window(1)),
        ]
        expected = {(5, key + window(0)): i32(1) + b"," + i32(3) + b"," + i32(2), (5, key + window(3)): b""}
        assert replay_one(LIST, changes, bases=[base]) == expected

    def test_merged_values_that_are_set_afterwards_need_no_function(self) -> None:
        key = long(1)
        changes = [
            change(5, StateChangeOperation.SET_INTERNAL, key + window(0) + long(1)),
            change(5, StateChangeOperation.SET_INTERNAL, key + window(1) + long(2)),
            change(5, StateChangeOperation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1)),
            change(5, StateChangeOperation.SET_INTERNAL, key + window(0) + long(3)),
        ]
        assert replay_one(SUM, changes) == {(5, key + window(0)): long(3)}
        with pytest.raises(UnsupportedError, match="needs the user's function") as error:
            replay_one(SUM, changes[:-1])
        assert error.value.where.state == "sum"
        assert "savepoint" in error.value.hint

    def test_one_value_is_merged_by_moving_it(self) -> None:
        key = long(1)
        base = make_base(SUM, [(5, key + window(1), long(2))])
        changes = [change(5, StateChangeOperation.MERGE_NS, key + window(0) + window(0) + i32(1) + window(1))]
        assert replay_one(SUM, changes, bases=[base]) == {(5, key + window(0)): long(2)}

    def test_a_merge_without_sources_changes_nothing(self) -> None:
        key = long(1)
        base = make_base(SUM, [(5, key + window(0), long(2))])
        changes = [change(5, StateChangeOperation.MERGE_NS, key + window(0) + window(0) + i32(0))]
        assert replay_one(SUM, changes, bases=[base]) == {(5, key + window(0)): long(2)}

    def test_entries_of_a_map_are_records_with_a_null_flag(self) -> None:
        scope = long(1) + b"\0"
        base = make_base(MAP, [(5, scope + b"\2a", b"\0" + long(1)), (5, scope + b"\2b", b"\0" + long(2))])
        changes = [
            change(5, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, scope + b"\2a" + long(7)),
            change(5, StateChangeOperation.REMOVE_ELEMENT, scope + b"\2b"),
            change(5, StateChangeOperation.ADD, scope + i32(2) + b"\2c\0" + long(3) + b"\2d\1"),
        ]
        expected = {b"\2a": b"\0" + long(7), b"\2c": b"\0" + long(3), b"\2d": b"\1"}
        assert replay_one(MAP, changes, bases=[base]) == {(5, scope + key): value for key, value in expected.items()}

    def test_clearing_a_map_takes_what_came_before_and_no_other_map(self) -> None:
        scope, other = long(1) + b"\0", long(2) + b"\0"
        base = make_base(MAP, [(5, scope + b"\2a", b"\0" + long(1)), (5, other + b"\2a", b"\0" + long(2))])
        changes = [
            change(5, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, scope + b"\2b" + long(3)),
            change(5, StateChangeOperation.CLEAR, scope),
            change(5, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, scope + b"\2c" + long(4)),
        ]
        expected = {(5, other + b"\2a"): b"\0" + long(2), (5, scope + b"\2c"): b"\0" + long(4)}
        assert replay_one(MAP, changes, bases=[base]) == expected

    def test_timers_are_added_and_removed(self) -> None:
        timers = [bytes.fromhex("80") + bytes(7) + long(each) + b"\0" for each in range(4)]
        base = make_base(TIMERS, [(5, timers[0], b""), (5, timers[1], b"")])
        changes = [
            change(5, StateChangeOperation.REMOVE_ELEMENT, timers[0]),
            change(5, StateChangeOperation.ADD_ELEMENT, i32(2) + timers[2] + timers[3]),
            change(5, StateChangeOperation.REMOVE_ELEMENT, timers[3]),
            change(5, StateChangeOperation.REMOVE_ELEMENT, timers[2]),
            change(5, StateChangeOperation.ADD_ELEMENT, i32(1) + timers[2]),
        ]
        assert replay_one(TIMERS, changes, bases=[base]) == {(5, timers[1]): b"", (5, timers[2]): b""}

    def test_ambiguous_keys_get_their_lengths(self) -> None:
        info = keyed_state("value", "VALUE", LONG, STRING)
        changes = [change(5, StateChangeOperation.SET, bytes.fromhex("046b6579 036e73") + long(1))]
        expected = {(5, bytes.fromhex("046b6579 04 036e73 03")): long(1)}
        assert replay_one(info, changes, key=STRING) == expected

    def test_state_ids_are_those_of_their_log(self) -> None:
        key = long(1) + b"\0"
        other = keyed_state("other", "VALUE", STRING, VOID_NAMESPACE)
        logs = [
            in_memory([metadata(VALUE, 0), change(5, StateChangeOperation.SET, key + b"\2a")]),
            in_memory([metadata(other, 0), change(5, StateChangeOperation.SET, key + b"\2b")]),
        ]
        assert read(open_log(*logs)) == {"value": {(5, key): b"\2a"}, "other": {(5, key): b"\2b"}}

    @pytest.mark.parametrize("compressed", [None, False, True])
    def test_a_change_set_counts_once_for_a_key_group(self, compressed: bool | None) -> None:
        changes = [
            metadata(VALUE, 0),
            *(change(group, StateChangeOperation.SET, long(group) + b"\0\2a") for group in (5, 70)),
        ]
        log = in_memory(changes) if compressed is None else in_file([changes], compressed=compressed)
        twice = "a set of logged changes is listed twice for key groups 64-127"
        if compressed is None:
            # Flink never cuts changes in memory.
            twice = "a change of key group 5 is in a log of key groups 64-127"
        with pytest.raises(FormatError, match=twice):
            open_log(log, replace(log, key_groups=HIGH))
        if compressed is None:
            return
        # After changes of parallelism, which leave no size.
        assert isinstance(log, ChangelogStateHandleStream)
        found = read(open_log(replace(log, key_groups=LOW, size=0), replace(log, key_groups=HIGH, size=0)))
        assert found == {"value": {(group, long(group) + b"\0"): b"\2a" for group in (5, 70)}}

    def test_changes_of_other_key_groups_do_not_count(self) -> None:
        changes = [change(group, StateChangeOperation.SET, long(group) + b"\0\2a") for group in (3, 4, 5)]
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
            replay_one(VALUE, [change(5, StateChangeOperation.SET, long(1) + b"\0\2a", state_id=9)])

    def test_a_type_that_no_state_has(self) -> None:
        wrong = replace(VALUE, options=((KEYED_STATE_TYPE, "VALUe"),))
        with pytest.raises(FormatError, match="Flink logs no changes of UNKNOWN state"):
            replay_one(wrong, [change(5, StateChangeOperation.SET, long(1) + b"\0\2a")])

    def test_an_operation_of_another_kind_of_state_names_the_place(self) -> None:
        log = in_file([[metadata(VALUE, 0), change(5, StateChangeOperation.ADD, long(1) + b"\0\2a")]], compressed=False)
        with pytest.raises(FormatError, match="operation 3 is not one that Flink logs for VALUE state") as error:
            read(open_log(log))
        assert error.value.where.file == "dstl/file"
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        assert error.value.where.offset == len(data) - 3 - len(long(1) + b"\0\2a")

    def test_a_change_that_is_cut_off(self) -> None:
        with pytest.raises(FormatError) as error:
            replay_one(VALUE, [change(5, StateChangeOperation.SET, long(1)[:5])])
        assert error.value.where.state == "value"

    def test_a_change_set_that_is_cut_off(self) -> None:
        log = in_file([[metadata(VALUE, 0), change(5, StateChangeOperation.SET, long(1) + b"\0\2a")]], compressed=False)
        (each,) = log.streams
        assert isinstance(each.handle, ByteStreamStateHandle)
        short = ChangelogStream(0, ByteStreamStateHandle("dstl/file", each.handle.data[:-1]))
        with pytest.raises(FormatError, match="beyond its change set"):
            read(open_log(ChangelogStateHandleStream(ALL, (short,), 0, 0, "log")))

    def test_a_first_byte_that_is_no_flag(self) -> None:
        stream = ChangelogStream(0, ByteStreamStateHandle("dstl/file", b"\x02\0\0\0\0"))
        with pytest.raises(FormatError, match="begins with 02, not with 00"):
            open_log(ChangelogStateHandleStream(ALL, (stream,), 0, 0, "log"))

    def test_timers_that_fired_in_flink_1_14(self) -> None:
        with pytest.raises(UnsupportedError, match="not which one"):
            replay_one(TIMERS, [change(5, StateChangeOperation.METADATA, b"")])

    def test_a_state_whose_serializer_changed_since_the_base(self) -> None:
        base = make_base(keyed_state("value", "VALUE", LONG, VOID_NAMESPACE), [(5, long(1) + b"\0", long(1))])
        with pytest.raises(UnsupportedError, match="other serializers"):
            replay_one(VALUE, [change(5, StateChangeOperation.SET, long(2) + b"\0\2a")], bases=[base])

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
    @pytest.mark.slow
    @given(
        OPERATIONS, st.integers(1, 7), st.sampled_from(["memory", "plain", "compressed"]), st.sampled_from([1, 1 << 20])
    )
    def test_a_log_replays_to_what_a_dictionary_holds(
        self, operations: list[tuple[str, int, str]], size: int, storage: str, budget: int
    ) -> None:
        values: dict[tuple[int, bytes], bytes] = {}
        maps: dict[tuple[int, bytes], bytes] = {}
        lists: dict[tuple[int, bytes], list[bytes]] = {}
        changes: list[LoggedChange] = []
        for number, (name, key, text) in enumerate(operations):
            group, scope, raw = 10 * key, long(key) + b"\0", encode(STRING, text)
            list_scope = long(key) + window(0)
            match name:
                case "set":
                    changes.append(change(group, StateChangeOperation.SET, scope + raw, 0))
                    values[group, scope] = raw
                case "clear":
                    changes.append(change(group, StateChangeOperation.CLEAR, scope, 0))
                    values.pop((group, scope), None)
                case "put":
                    changes.append(
                        change(group, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, scope + raw + long(number), 1)
                    )
                    maps[group, scope + raw] = b"\0" + long(number)
                case "remove":
                    changes.append(change(group, StateChangeOperation.REMOVE_ELEMENT, scope + raw, 1))
                    maps.pop((group, scope + raw), None)
                case "clear map":
                    changes.append(change(group, StateChangeOperation.CLEAR, scope, 1))
                    maps = {each: value for each, value in maps.items() if not each[1].startswith(scope)}
                case "add":
                    changes.append(change(group, StateChangeOperation.ADD_ELEMENT, list_scope + i32(number), 2))
                    lists.setdefault((group, list_scope), []).append(i32(number))
                case _:
                    changes.append(change(group, StateChangeOperation.CLEAR, list_scope, 2))
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
        scanned = {group: sum(len(records) for _, records in runs) for group, runs in file.scan_key_groups(ALL)}
        assert scanned == by_group


class TestParts:
    def make(self) -> ChangelogFile:
        base = make_base(VALUE, [(group, long(group) + b"\0", b"\2a") for group in range(0, 128, 2)])
        changes = [change(group, StateChangeOperation.SET, long(group) + b"\0\2b") for group in range(0, 128, 3)]
        return open_log(in_file([[metadata(VALUE, 0), *changes]], compressed=True), bases=[base])

    def test_parts_hold_what_the_file_holds(self) -> None:
        file = self.make()
        parts = list(file.split(300))
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
        assert len(list(file.split(size + 1))) == len(list(base.split(size + 1)))
        assert len(list(file.split(10 * size))) == 1
        assert len(list(replace(file, bases=()).split(size + 1))) == 1
        assert len(list(replace(file, bases=()).split(size // 3))) == 4

    def test_nothing_has_no_parts(self) -> None:
        assert list(open_log().split(100)) == []

    def test_logs_of_a_changed_parallelism_have_the_size_of_their_files(self) -> None:
        log = in_file(
            [[metadata(VALUE, 0)], [change(5, StateChangeOperation.SET, long(1) + b"\0\2b")]], compressed=False
        )
        data = log.streams[0].handle.data  # type: ignore[union-attr]
        assert open_log(replace(log, size=0)).log.size == len(data)

    def test_key_groups_can_be_chosen(self) -> None:
        assert {group for group, _ in read(self.make(), KeyGroupRange(6, 3))["value"]} == {6, 8}
