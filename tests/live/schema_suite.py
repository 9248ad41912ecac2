"""The four outcomes of registering restored state with new serializers, on every backend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from state_pipelines.errors import StateMigrationError, UnsupportedError, UsageError
from state_pipelines.serializers.build import (
    TIME_WINDOW,
    VOID_NAMESPACE,
    basic,
    enum,
    list_of,
    map_of,
    pojo,
    timer,
    ttl,
    tuple_of,
)
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from state_pipelines.serializers.text import describe
from tests.live.keyed_suite import KEYS, KeyedSuite
from tests.serializers.migrating_families import Counter, Crate, Price

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from tests.live.keyed_jobs import KeyedJob

STRING, LONG, INT = basic("String"), basic("Long"), basic("Int")
CLASS = "com.acme.Account"
OLD = pojo(CLASS, {"name": STRING, "cents": LONG})
NEW = pojo(CLASS, {"name": STRING, "limit": INT, "note": STRING})
ACCOUNT: dict[str, Any] = {"class": CLASS, "name": "a", "cents": 5}
EVOLVED: dict[str, Any] = {"class": CLASS, "name": "a", "limit": 0, "note": None}


def value_state(serializer: Serializer, state_type: str = "VALUE", name: str = "state") -> StateMetaInfo:
    return keyed_state(name, state_type, serializer, VOID_NAMESPACE)


class SchemaSuite(KeyedSuite):
    """Tests of one store."""

    the: ClassVar[str] = "The"
    """Begin of Flink's errors."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with every restore: serializers change only there."""
        if "restore" in metafunc.fixturenames:
            metafunc.parametrize("restore", [each for each in self.restores if each != "none"])
        if "max_parallelism" in metafunc.fixturenames:
            metafunc.parametrize("max_parallelism", self.max_parallelisms)

    @pytest.mark.parametrize(
        ("old", "new", "before", "after"),
        [
            (value_state(OLD), value_state(NEW), ACCOUNT, EVOLVED),
            (value_state(list_of(OLD), "LIST"), value_state(list_of(NEW), "LIST"), [ACCOUNT] * 2, [EVOLVED] * 2),
            (
                value_state(map_of(STRING, OLD), "MAP"),
                value_state(map_of(STRING, NEW), "MAP"),
                [("k", ACCOUNT), ("null", None)],
                [("k", EVOLVED), ("null", None)],
            ),
            (
                value_state(tuple_of(LONG, OLD), "AGGREGATING"),
                value_state(tuple_of(LONG, NEW), "AGGREGATING"),
                {"f0": 1, "f1": ACCOUNT},
                {"f0": 1, "f1": EVOLVED},
            ),
            (value_state(ttl(OLD)), value_state(ttl(NEW)), {"last_access": 3, "value": ACCOUNT}, None),
            (value_state(ttl(LONG)), value_state(LONG), {"last_access": 3, "value": 4}, 4),
            (
                value_state(enum("com.acme.Color", "RED", "GREEN")),
                value_state(enum("com.acme.Color", "BLUE", "GREEN", "RED")),
                "GREEN",
                "GREEN",
            ),
            (value_state(Counter(width=4)), value_state(Counter(width=8)), -7, -7),
            (
                value_state(list_of(Price(snapshot_version=1)), "LIST"),
                value_state(list_of(Price(snapshot_version=2)), "LIST"),
                [5],
                [{"cents": 5, "currency": "EUR"}],
            ),
            (
                value_state(Crate(label="box", content=OLD)),
                value_state(Crate(label="box", content=NEW)),
                {"number": 3, "content": ACCOUNT},
                {"number": 3, "content": EVOLVED},
            ),
        ],
        ids=["POJO", "list", "map", "tuple", "TTL", "TTL off", "enum", "custom", "converted", "custom composite"],
    )
    def test_values_migrate(
        self,
        job: KeyedJob,
        reopen: Callable[[KeyedJob], KeyedJob],
        old: StateMetaInfo,
        new: StateMetaInfo,
        before: Any,
        after: Any,
    ) -> None:
        for key in KEYS:
            job.at(key, old).put(before)
        again = reopen(job)
        expected = {"last_access": 3, "value": EVOLVED} if after is None else after
        for key in KEYS:
            assert sorted_map(again.at(key, new).get(), new) == expected
        again.at(KEYS[0], new).put(expected)
        last = reopen(again)
        assert sorted_map(last.at(KEYS[0], new).get(), new) == expected
        assert sorted_map(last.at(KEYS[1], new).get(), new) == expected
        assert last.subtasks[0].states == (new,)

    def test_values_get_ttl(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        for key in KEYS:
            job.at(key, value_state(list_of(LONG), "LIST")).put([1, 2])
        again = reopen(job)
        found = again.at(KEYS[0], value_state(list_of(ttl(LONG)), "LIST")).get()
        assert [each["value"] for each in found] == [1, 2]
        assert all(each["last_access"] > 1_600_000_000_000 for each in found)

    def test_incompatible_values_are_refused(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        job.at("a", value_state(LONG)).put(1)
        again = reopen(job)
        backend = again.find_subtask("a")
        words = (
            f"{self.the} new state serializer ({describe(STRING)}) must not be incompatible with the old state "
            f"serializer ({describe(LONG)})."
        )
        with pytest.raises(StateMigrationError, match=re.escape(words)):
            backend.register(value_state(STRING))
        assert again.at("a", value_state(LONG)).get() == 1

    def test_other_namespaces_are_refused(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        job.at("a", value_state(LONG)).put(1)
        words = (
            f"{self.the} new namespace serializer ({describe(TIME_WINDOW)}) must be compatible with the old namespace "
            f"serializer ({describe(VOID_NAMESPACE)})."
        )
        with pytest.raises(StateMigrationError, match=re.escape(words)):
            reopen(job).find_subtask("a").register(keyed_state("state", "VALUE", LONG, TIME_WINDOW))

    def test_other_map_keys_are_for_heaps_alone(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        old, new = (value_state(map_of(Counter(width=width), LONG), "MAP") for width in (4, 8))
        for key in KEYS:
            job.at(key, old).put([(5, 1), (6, 2)])
        again = reopen(job)
        if not again.subtasks[0].store.is_heap:
            with pytest.raises(StateMigrationError, match="MapState currently only allows value schema evolutions"):
                again.find_subtask("a").register(new)
            return
        for key in KEYS:
            assert sorted(again.at(key, new).get()) == [(5, 1), (6, 2)]
        again.at(KEYS[0], new).put_entry(1 << 40, 3)
        last = reopen(again)
        assert sorted(last.at(KEYS[0], new).get()) == [(5, 1), (6, 2), (1 << 40, 3)]

    def test_another_type_of_state_is_refused(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        job.at("a", value_state(LONG)).put(1)
        with pytest.raises(UsageError, match=r"Was \[VALUE\], registered with \[REDUCING\]"):
            reopen(job).find_subtask("a").register(value_state(LONG, "REDUCING"))

    def test_another_kind_of_state_is_refused(self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]) -> None:
        job.at("a", value_state(LONG)).put(1)
        with pytest.raises(UsageError, match="PRIORITY_QUEUE"):
            reopen(job).find_subtask("a").register_timers(priority_queue("state", timer(STRING, VOID_NAMESPACE)))

    def test_timers_with_other_namespaces_are_refused(
        self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]
    ) -> None:
        job.subtasks[0].register_timers(priority_queue("timers", timer(STRING, VOID_NAMESPACE)))
        again = reopen(job)
        with pytest.raises(StateMigrationError, match="The new priority queue serializer must not be incompatible"):
            again.subtasks[0].register_timers(priority_queue("timers", timer(STRING, TIME_WINDOW)))

    def test_a_change_that_only_flink_judges_is_refused(
        self, job: KeyedJob, reopen: Callable[[KeyedJob], KeyedJob]
    ) -> None:
        inherited = pojo(CLASS, {"name": STRING, "cents": LONG}, declared_by={"name": "com.acme.Base"})
        job.at("a", value_state(inherited)).put(ACCOUNT)
        with pytest.raises(UnsupportedError, match="undetermined"):
            reopen(job).find_subtask("a").register(value_state(pojo(CLASS, {"cents": LONG})))


def sorted_map(value: Any, info: StateMetaInfo) -> Any:
    return sorted(value) if info.state_type == "MAP" else value
