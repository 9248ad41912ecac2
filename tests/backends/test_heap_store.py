from __future__ import annotations

import pytest

from state_pipelines.backends.entry_store import EntryKind, HeapStore, make_records, split_records
from state_pipelines.errors import UsageError
from state_pipelines.metadata.handles import KeyGroupRange

ALL = KeyGroupRange(0, 128)


def read(store: HeapStore, name: str, key_groups: KeyGroupRange = ALL, prefix: int = 1) -> list[tuple[bytes, bytes]]:
    return [entry for records in store.records(name, key_groups) for entry in split_records(records, prefix)]


def test_records_have_the_key_groups_of_their_prefix() -> None:
    records = make_records([(b"\1\0a", b"x"), (b"\2\xffbc", b"")], 2)
    assert records.key_groups.tolist() == [256, 767]
    assert list(split_records(records, 2)) == [(b"\1\0a", b"x"), (b"\2\xffbc", b"")]


def test_no_records_are_no_batch() -> None:
    store = HeapStore(1)
    store.open_entries("s", EntryKind.VALUE)
    assert read(store, "s") == read(store, "unknown") == []


def test_records_come_by_key_group() -> None:
    store = HeapStore(1)
    entries = store.open_entries("s", EntryKind.VALUE)
    for group in (5, 1, 3, 1):
        entries.put(bytes([group]) + b"k", b"v")
    entries.put(b"\1j", b"w")
    assert [key for key, _ in read(store, "s")] == [b"\1k", b"\1j", b"\3k", b"\5k"]
    assert [key for key, _ in read(store, "s", KeyGroupRange(2, 3))] == [b"\3k"]


def test_loaded_records_are_there_whether_the_state_is_opened_or_not() -> None:
    store = HeapStore(1)
    store.load("values", make_records([(b"\1a", b"1"), (b"\2b", b"2")], 1))
    store.load("values", make_records([(b"\2b", b"3")], 1))
    store.load("lists", make_records([(b"\1a", b"1,2")], 1))
    store.load("maps", make_records([(b"\1aX", b"1"), (b"\1aY", b"2")], 1))
    expected = [(b"\1a", b"1"), (b"\2b", b"3")]
    assert read(store, "values") == expected
    values = store.open_entries("values", EntryKind.VALUE)
    lists = store.open_entries("lists", EntryKind.LIST)
    maps = store.open_map("maps", lambda key: 2)
    assert read(store, "values") == expected
    assert values.get(b"\2b") == b"3"
    assert lists.get(b"\1a") == b"1,2"
    assert dict(maps.scan(b"\1a")) == {b"X": b"1", b"Y": b"2"}
    with pytest.raises(UsageError):
        store.load("values", make_records([(b"\1a", b"1")], 1))


def test_appended_elements_are_joined_by_the_delimiter_of_flink() -> None:
    store = HeapStore(1)
    entries = store.open_entries("s", EntryKind.LIST)
    for element in (b"a", b"b,c", b"d"):
        entries.append(b"\1k", element)
    assert read(store, "s") == [(b"\1k", b"a,b,c,d")]
    assert entries.get(b"\1k") == b"a,b,c,d"
    entries.append(b"\1k", b"e")
    assert entries.get(b"\1k") == b"a,b,c,d,e"
    entries.delete(b"\1k")
    assert entries.get(b"\1k") is None


def test_a_map_without_entries_is_not_there() -> None:
    store = HeapStore(1)
    entries = store.open_map("s", lambda key: 2)
    entries.put(b"\1a", b"X", b"1")
    entries.delete(b"\1a", b"Y")
    assert list(entries.keys()) == [b"\1a"]
    entries.delete(b"\1a", b"X")
    assert list(entries.keys()) == []
    assert read(store, "s") == []


def test_entries_change_while_keys_are_iterated() -> None:
    store = HeapStore(1)
    entries = store.open_entries("s", EntryKind.VALUE)
    for number in range(10):
        entries.put(bytes([1, number]), b"")
    for key in entries.keys():  # noqa: SIM118
        entries.delete(key)
        entries.put(key + b"x", b"")
    assert len(read(store, "s")) == 10


def test_a_dropped_state_is_empty_when_it_is_opened_again() -> None:
    store = HeapStore(1)
    store.open_entries("s", EntryKind.VALUE).put(b"\1a", b"1")
    store.drop("s")
    assert store.open_entries("s", EntryKind.LIST).get(b"\1a") is None


def test_the_kind_of_entries_does_not_change() -> None:
    store = HeapStore(1)
    store.open_entries("s", EntryKind.VALUE)
    store.open_map("m", len)
    with pytest.raises(UsageError):
        store.open_map("s", len)
    with pytest.raises(UsageError):
        store.open_entries("m", EntryKind.VALUE)
