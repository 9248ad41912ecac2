"""Behaviour of keyed state that every backend and every restore operation keeps.

A subclass names its store and its restore operations; every test runs with each of them. `reopen` ends a job and gives
the one that goes on from its state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers.build import (
    TIME_WINDOW,
    VOID_NAMESPACE,
    basic,
    list_of,
    map_of,
    pojo,
    ttl,
    tuple_of,
)
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.live.keyed_jobs import KeyedJob, start_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.backends.entry_store import EntryStore

STRING, LONG, INT = basic("String"), basic("Long"), basic("Int")
PLACE = pojo("com.acme.Place", {"city": STRING, "zip": INT})
BERLIN: dict[str, Any] = {"class": "com.acme.Place", "city": "Berlin", "zip": 10115}

VALUE = keyed_state("value", "VALUE", LONG, VOID_NAMESPACE)
OBJECT = keyed_state("object", "VALUE", PLACE, VOID_NAMESPACE)
SUM = keyed_state("sum", "REDUCING", LONG, VOID_NAMESPACE)
AGGREGATE = keyed_state("aggregate", "AGGREGATING", tuple_of(LONG, INT), VOID_NAMESPACE)
LIST = keyed_state("list", "LIST", list_of(STRING), VOID_NAMESPACE)
NUMBERS = keyed_state("numbers", "LIST", list_of(LONG), VOID_NAMESPACE)
MAP = keyed_state("map", "MAP", map_of(STRING, LONG), VOID_NAMESPACE)
WINDOWS = keyed_state("windows", "VALUE", STRING, TIME_WINDOW)
WINDOW_MAPS = keyed_state("window-maps", "MAP", map_of(INT, STRING), TIME_WINDOW)
TEXT_NAMESPACES = keyed_state("texts", "MAP", map_of(STRING, STRING), STRING)
TTL_VALUE = keyed_state("ttl", "VALUE", ttl(STRING), VOID_NAMESPACE)
TTL_LIST = keyed_state("ttl-list", "LIST", list_of(ttl(LONG)), VOID_NAMESPACE)
TTL_MAP = keyed_state("ttl-map", "MAP", map_of(STRING, ttl(LONG)), VOID_NAMESPACE)

NO_KEY = r"No key set\. This method should not be called outside of a keyed context\."
OTHER_RANGE = r"Key group \d+ is not in KeyGroupRange\{startKeyGroup=\d+, endKeyGroup=\d+\}\. Unless you're directly"
KEYS = [f"key-{number}" for number in range(40)]


def window(start: int) -> dict[str, int]:
    return {"start": start, "end": start + 10}


class KeyedSuite(ABC):
    """Jobs on one store, and how they go on."""

    restores: ClassVar[tuple[str, ...]] = ("none", "bytes")
    max_parallelisms: ClassVar[tuple[int, ...]] = (128, 1000)
    """Key groups of one byte and of two."""

    @abstractmethod
    def make_store(self, prefix: int, directory: Path) -> EntryStore:
        """An empty store."""

    @pytest.fixture
    def start(self, tmp_path: Path, max_parallelism: int) -> Iterator[Callable[[int], KeyedJob]]:
        jobs: list[KeyedJob] = []

        def start_one(parallelism: int = 1) -> KeyedJob:
            names = (tmp_path / f"job-{len(jobs)}-{subtask}" for subtask in count())
            made = start_job(lambda prefix: self.make_store(prefix, next(names)), STRING, parallelism, max_parallelism)
            jobs.append(made)
            return made

        yield start_one
        for job in jobs:
            job.close()

    @pytest.fixture
    def job(self, start: Callable[[int], KeyedJob]) -> KeyedJob:
        return start(1)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that reopens its job with every restore operation of the class."""
        if "restore" in metafunc.fixturenames:
            metafunc.parametrize("restore", self.restores)
        if "max_parallelism" in metafunc.fixturenames:
            metafunc.parametrize("max_parallelism", self.max_parallelisms)

    @pytest.fixture
    def reopen(self, restore: str, start: Callable[[int], KeyedJob], tmp_path: Path) -> Callable[[KeyedJob], KeyedJob]:
        numbers = count(1)

        def reopen_job(job: KeyedJob) -> KeyedJob:
            if restore == "none":
                return job
            source, _, rescaled = restore.partition(", ")
            again = start(3 if rescaled else len(job.subtasks))
            number = next(numbers)
            if source == "incremental":
                again.restore_incremental(job.save_incremental(tmp_path, number), tmp_path, number)
                return again
            if source == "changelog":
                again.restore_changelog(job.save_changelog(tmp_path, number), tmp_path)
                return again
            files = job.save(source, tmp_path / f"snapshot-{number}")
            for backend in again.subtasks:
                backend.restore([file for file in files if file.key_groups.intersect(backend.key_groups)])
            return again

        return reopen_job


class KeyedStateSuite(KeyedSuite):
    """Tests of one store."""

    def test_a_state_is_empty_at_first(self, job: KeyedJob) -> None:
        for info in (VALUE, OBJECT, SUM, AGGREGATE, LIST, MAP, TTL_VALUE, TTL_LIST, TTL_MAP):
            assert job.at("a", info).get() is None
            assert job.keys(info) == []

    @pytest.mark.parametrize(
        ("info", "make"),
        [
            (VALUE, lambda number: number - 5),
            (OBJECT, lambda number: BERLIN | {"zip": number}),
            (SUM, lambda number: number << 40),
            (AGGREGATE, lambda number: {"f0": -number, "f1": number}),
            (LIST, lambda number: [f"{each}," for each in range(number + 1)]),
            (NUMBERS, lambda number: list(range(-1, number))),
            (MAP, lambda number: [(f"k{each}", None if each % 2 else each) for each in range(min(number, 8) + 1)]),
            (TTL_VALUE, lambda number: {"last_access": number, "value": f"v{number}"}),
            (TTL_LIST, lambda number: [{"last_access": each, "value": number} for each in range(number + 1)]),
            (TTL_MAP, lambda number: [(f"k{number}", {"last_access": 1, "value": number})]),
        ],
        ids=lambda each: getattr(each, "name", ""),
    )
    def test_values_of_many_keys_stay(
        self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob], info: Any, make: Callable[[int], Any]
    ) -> None:
        for number, key in enumerate(KEYS):
            job.at(key, info).put(make(number))
        again = reopen(job)
        for number, key in enumerate(KEYS):
            found = again.at(key, info).get()
            assert (sorted(found) if info.state_type == "MAP" else found) == make(number)
        assert again.keys(info) == sorted(KEYS)

    def test_replaced_and_removed_values(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for key in KEYS:
            job.at(key, VALUE).put(1)
        job.at(KEYS[0], VALUE).put(2)
        job.at(KEYS[1], VALUE).remove()
        job.at(KEYS[2], VALUE).put(None)
        again = reopen(job)
        found = [again.at(key, VALUE).get() for key in KEYS[:4]]
        assert found == [2, None, None, 1]
        again.at(KEYS[1], VALUE).put(5)
        assert again.at(KEYS[1], VALUE).get() == 5
        assert again.keys(VALUE) == sorted({*KEYS} - {KEYS[2]})

    def test_elements_are_appended(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for number in range(3):
            for key in KEYS:
                job.at(key, LIST).append([f"{number}a", f"{number}b"])
        again = reopen(job)
        again.at(KEYS[0], LIST).append(["last"])
        again.at(KEYS[0], LIST).append([])
        expected = ["0a", "0b", "1a", "1b", "2a", "2b"]
        assert again.at(KEYS[0], LIST).get() == [*expected, "last"]
        assert again.at(KEYS[1], LIST).get() == expected

    def test_an_empty_list_is_not_stored(self, job: KeyedJob) -> None:
        table = job.at("a", LIST)
        table.append([])
        assert job.keys(LIST) == []
        table.put(["x"])
        table.put([])
        assert table.get() is None
        assert job.keys(LIST) == []

    def test_null_elements_are_refused(self, job: KeyedJob) -> None:
        table = job.at("a", LIST)
        table.put(["x"])
        with pytest.raises(UsageError, match=r"You cannot add null to a ListState\."):
            table.append(["y", None])
        with pytest.raises(UsageError, match=r"You cannot add null to a ListState\."):
            table.put([None])
        assert table.get() == ["x"]

    def test_map_entries(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for key in KEYS:
            table = job.at(key, MAP)
            for number in range(5):
                table.put_entry(f"m{number}", number)
            table.put_entry("m1", 10)
            table.put_entry("null", None)
            table.remove_entry("m2")
            table.remove_entry("unknown")
        job.at(KEYS[0], MAP).remove()
        again = reopen(job)
        table = again.at(KEYS[1], MAP)
        assert dict(table.entries()) == {"m0": 0, "m1": 10, "m3": 3, "m4": 4, "null": None}
        assert [table.get_entry(each) for each in ("m1", "m2", "null")] == [10, None, None]
        assert [table.has_entry(each) for each in ("m1", "m2", "null")] == [True, False, True]
        assert list(again.at(KEYS[0], MAP).entries()) == []
        assert again.keys(MAP) == sorted(KEYS[1:])
        again.at(KEYS[1], MAP).put([("only", 1)])
        assert again.at(KEYS[1], MAP).get() == [("only", 1)]
        assert again.at(KEYS[2], MAP).get_entry("m1") == 10

    def test_a_map_without_entries_is_not_stored(self, job: KeyedJob) -> None:
        table = job.at("a", MAP)
        table.put_entry("x", 1)
        table.remove_entry("x")
        assert table.get() is None
        assert job.keys(MAP) == []
        table.put([])
        assert job.keys(MAP) == []

    def test_entries_change_while_they_are_iterated(self, job: KeyedJob) -> None:
        table = job.at("a", MAP)
        table.put([(f"m{number}", number) for number in range(10)])
        for map_key, number in table.entries():
            table.remove_entry(map_key)
            table.put_entry(f"again-{map_key}", number)
        assert sorted(map_key for map_key, _ in table.entries()) == [f"again-m{number}" for number in range(10)]

    def test_namespaces_are_apart(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for key in KEYS:
            for start in range(3):
                job.at(key, WINDOWS).put(f"{key} at {start}", window(start))
                job.at(key, WINDOW_MAPS).put_entry(start, f"{key} at {start}", window(start))
        job.at(KEYS[0], WINDOWS).remove(window(1))
        again = reopen(job)
        table = again.at(KEYS[0], WINDOWS)
        assert [table.get(window(start)) for start in range(3)] == ["key-0 at 0", None, "key-0 at 2"]
        assert again.at(KEYS[1], WINDOWS).get(window(1)) == "key-1 at 1"
        assert dict(again.at(KEYS[1], WINDOW_MAPS).entries(window(2))) == {2: "key-1 at 2"}
        assert again.keys(WINDOWS, window(1)) == sorted(KEYS[1:])
        assert again.keys(WINDOW_MAPS, window(1)) == sorted(KEYS)
        pairs = [pair for each in again.tables(WINDOWS) for pair in each.keys_and_namespaces()]
        assert sorted(namespace["start"] for key, namespace in pairs if key == KEYS[0]) == [0, 2]

    def test_keys_and_namespaces_of_varying_length_are_not_confused(
        self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]
    ) -> None:
        places = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a" * 300, "b"), ("a", "b" * 300)]
        for number, (key, namespace) in enumerate(places):
            job.at(key, TEXT_NAMESPACES).put_entry("m", str(number), namespace)
        again = reopen(job)
        for number, (key, namespace) in enumerate(places):
            table = again.at(key, TEXT_NAMESPACES)
            assert dict(table.entries(namespace)) == {"m": str(number)}
            assert list(table.entries("other")) == []

    def test_values_are_changed_for_all_keys(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for number, key in enumerate(KEYS):
            job.at(key, VALUE).put(number)
        again = reopen(job)
        for backend in again.subtasks:
            table = backend.register(VALUE)
            for key in table.keys():  # noqa: SIM118
                backend.set_current_key(key)
                number = table.get()
                if number % 2:
                    table.remove()
                else:
                    table.put(number * 10)
        assert again.keys(VALUE) == sorted(KEYS[::2])
        assert again.at("key-4", VALUE).get() == 40

    def test_a_state_that_nobody_asks_for_stays(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for key in KEYS:
            job.at(key, MAP).put_entry(key, 1)
            job.at(key, VALUE).put(1)
        first = reopen(job)
        first.at(KEYS[0], VALUE).put(2)
        again = reopen(first)
        assert again.at(KEYS[0], VALUE).get() == 2
        assert again.at(KEYS[0], MAP).get() == [(KEYS[0], 1)]
        assert {info.name for info in again.subtasks[0].states} == {"map", "value"}

    def test_without_a_key_there_is_no_access(self, job: KeyedJob) -> None:
        table = job.subtasks[0].register(VALUE)
        with pytest.raises(UsageError, match=NO_KEY):
            table.get()
        job.at("a", VALUE).put(1)
        job.subtasks[0].clear_current_key()
        with pytest.raises(UsageError, match="No key set"):
            table.put(2)

    def test_a_namespace_is_not_null(self, job: KeyedJob) -> None:
        with pytest.raises(UsageError, match=r"Provided namespace is null\."):
            job.at("a", WINDOWS).get()

    def test_a_value_that_does_not_fit_leaves_the_old_one(self, job: KeyedJob) -> None:
        table = job.at("a", OBJECT)
        table.put(BERLIN)
        with pytest.raises(ValueRangeError):
            table.put({"city": "x"})
        assert table.get() == BERLIN

    def test_keys_of_other_subtasks_are_refused(self, start: Callable[[int], KeyedJob]) -> None:
        job = start(2)
        wrong = next(each for each in job.subtasks if each is not job.find_subtask("a"))
        with pytest.raises(UsageError, match=OTHER_RANGE):
            wrong.set_current_key("a")
        with pytest.raises(UsageError, match="must not be null"):
            wrong.set_current_key(None)
