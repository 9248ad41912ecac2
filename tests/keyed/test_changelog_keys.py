"""Serializers of keys that a log of changes does not name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.changelog import reader
from state_pipelines.keyed.changelog.changes import ChangeLog, StateChangeOperation
from state_pipelines.keyed.changelog.reader import find_key_serializer, find_written_serializers
from state_pipelines.keyed.key_groups import assign_key_group
from state_pipelines.metadata.handles import KeyGroupRange, LoggedChange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, pojo, timer, tuple_of
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from tests.keyed.changelogs import (
    INT,
    LONG,
    STRING,
    VALUE,
    change,
    encode,
    in_memory,
    long,
    make_base,
    metadata,
    open_log,
)
from tests.serializers.literals import i32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.changelog.changes import Changes
    from state_pipelines.keyed.changelog.reader import ChangelogFile
    from state_pipelines.serializers.tree import Serializer


def key_group_of(value: int | str) -> int:
    if isinstance(value, str):
        code = 0
        for char in value:
            code = (31 * code + ord(char)) & 0xFFFFFFFF
        return assign_key_group(code, 128)
    return assign_key_group((value ^ value >> 32) & 0xFFFFFFFF, 128)


def keyed_log(key: Serializer, keys: Sequence[int | str]) -> ChangelogFile:
    changes = [
        change(key_group_of(each), StateChangeOperation.SET, encode(key, each) + b"\0" + long(1)) for each in keys
    ]
    info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
    return open_log(in_memory([metadata(info, 0), *changes]), key=None)


def pair_log(pairs: Sequence[tuple[str, int]]) -> ChangelogFile:
    """Changes of keys of type Tuple2<String, Int>."""
    key = tuple_of(STRING, INT)
    changes = []
    for text, number in pairs:
        group = assign_key_group((31 * ord(text) + number) & 0xFFFFFFFF, 128)
        changes.append(
            change(group, StateChangeOperation.SET, encode(key, {"f0": text, "f1": number}) + b"\0" + long(1))
        )
    info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
    return open_log(in_memory([metadata(info, 0), *changes]), key=None)


class TestKeySerializers:
    @pytest.mark.parametrize(
        ("key", "keys"),
        [(LONG, range(20)), (INT, range(20)), (STRING, [f"key {each}" for each in range(20)])],
        ids=["Long", "Int", "String"],
    )
    def test_basic_types_are_found_by_parsing_and_hashing(self, key: Serializer, keys: Sequence[int | str]) -> None:
        found = find_key_serializer([keyed_log(key, list(keys))])
        assert found.serializer == key
        assert (found.keys, found.changes, found.hashed) == (20, 20, True)

    def test_changes_are_read_once_unless_there_are_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reads = []
        read = ChangeLog.read

        def count(log: ChangeLog, key_groups: KeyGroupRange) -> Changes:
            reads.append(key_groups)
            return read(log, key_groups)

        monkeypatch.setattr(ChangeLog, "read", count)
        found = find_key_serializer([keyed_log(LONG, list(range(20)))])
        assert len(reads) == 1
        monkeypatch.setattr(reader, "SEARCH_WINDOW", 10)
        assert find_key_serializer([keyed_log(LONG, list(range(20)))]) == found
        assert len(reads) > 20

    def test_an_operation_that_does_not_exist_is_an_error_of_the_file(self) -> None:
        changes = [LoggedChange(key_group_of(7), b"\x0e\0\0" + long(7) + b"\0" + long(1))]
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        with pytest.raises(FormatError, match="14 is not an operation on state"):
            find_key_serializer([open_log(in_memory([metadata(info, 0), *changes]), key=None)])

    def test_the_evidence_names_types_that_fit_as_well(self) -> None:
        found = find_key_serializer([keyed_log(LONG, list(range(20)))])
        assert found.evidence == (
            "Long: basic type; fits 20 changes of 20 keys, whose hashes give their key groups; so do Double, Date"
        )

    @pytest.mark.slow
    def test_tuples_of_basic_types_are_found(self) -> None:
        found = find_key_serializer([pair_log([(chr(97 + each), 7 * each) for each in range(20)])])
        assert found.serializer == tuple_of(STRING, INT)
        assert found.evidence == (
            "Tuple2<String, Int>: tuple of basic types; fits 20 changes of 20 keys, whose hashes give their key groups"
        )

    @pytest.mark.slow
    def test_tuples_need_the_proof_of_many_keys(self) -> None:
        with pytest.raises(UnsupportedError, match="no type of keys that is known here"):
            find_key_serializer([pair_log([("a", 1), ("b", 2)])])

    def test_types_that_other_operators_use_come_first(self) -> None:
        double = basic("Double")
        found = find_key_serializer([keyed_log(LONG, list(range(20)))], [STRING, double])
        assert found.serializer == double

    @pytest.mark.slow
    def test_a_type_whose_hashes_give_other_key_groups_does_not_fit(self) -> None:
        changes = [change(7, StateChangeOperation.SET, long(each) + b"\0" + long(1)) for each in range(20)]
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        file = open_log(in_memory([metadata(info, 0), *changes]), key=None)
        with pytest.raises(UnsupportedError, match="no type of keys that is known here"):
            find_key_serializer([file])

    def test_timers_say_it(self) -> None:
        key = tuple_of(STRING, INT)
        element = timer(key, VOID_NAMESPACE)
        raw = encode(key, {"f0": "a", "f1": 1})
        group = assign_key_group(31 * 97 + 1, 128)
        changes = [change(group, StateChangeOperation.ADD_ELEMENT, i32(1) + bytes(8) + raw + b"\0")]
        log = in_memory([metadata(priority_queue("_timer_state/event_a", element), 0), *changes])
        file = open_log(log, key=None)
        found = find_key_serializer([file])
        assert (found.serializer, found.hashed) == (key, True)
        assert [serializer for serializer, _ in find_written_serializers([file])] == [key]

    def test_materialized_state_of_another_subtask_says_it(self) -> None:
        base = make_base(VALUE, [(5, long(1) + b"\0", b"\2a")], basic("Double"))
        files = [keyed_log(LONG, list(range(5))), open_log(bases=[base])]
        assert find_key_serializer(files).serializer == basic("Double")

    def test_what_materialized_state_says_is_final(self) -> None:
        base = make_base(VALUE, [(5, bytes.fromhex("046b6579 00"), b"\2a")], STRING)
        files = [keyed_log(LONG, list(range(5))), open_log(bases=[base])]
        with pytest.raises(UnsupportedError, match="no type of keys"):
            find_key_serializer(files)

    @pytest.mark.slow
    def test_types_without_a_known_hash_are_tried_by_parsing(self) -> None:
        key = pojo("com.acme.Key", {"id": LONG})
        raw = b"\2\0" + long(7) + b"\0"
        info = keyed_state("count", "VALUE", LONG, VOID_NAMESPACE)
        file = open_log(in_memory([metadata(info, 0), change(5, StateChangeOperation.SET, raw + long(1))]), key=None)
        found = find_key_serializer([file], [STRING, key])
        assert (found.serializer, found.hashed) == (key, False)
        assert found.evidence.endswith("the hash of such keys is not known")
