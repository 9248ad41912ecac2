"""The tests of a sample are the same in every run, and no test function is without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.flink.harness import VERSIONS
from tests.flink.sampling import choose, describe, find_release

TESTS = [
    *(
        (f"test_many[{version}-{number}]", "test_many", version)
        for version in ("1.20.5", "2.3.0")
        for number in range(9)
    ),
    ("test_one[1.20.5]", "test_one", "1.20.5"),
    ("test_none", "test_none", None),
]


@pytest.mark.parametrize(
    ("parameters", "release"),
    [
        ({"backend": "rocksdb", "version": "2.2.1"}, "2.2.1"),
        ({"restored": ("2.3.0", "hashmap", 2)}, "2.3.0"),
        ({"case": SimpleNamespace(version="1.20.5")}, "1.20.5"),
        ({"parallelism": 3, "names": ()}, None),
    ],
)
def test_the_release_is_found_among_the_parameters(parameters: dict[str, object], release: str | None) -> None:
    assert find_release(parameters) == release


def test_whole_releases_and_tests_without_a_release_are_all_chosen() -> None:
    chosen = choose(TESTS, ["2.3.0"], 4)

    assert {name for name, _, release in TESTS if release != "1.20.5"} <= chosen


def test_other_releases_give_their_share_of_each_function() -> None:
    chosen = choose(TESTS, ["2.3.0"], 4)

    assert sum(name.startswith("test_many[1.20.5") for name in chosen) == 3
    assert "test_one[1.20.5]" in chosen


def test_every_function_runs_with_some_release_and_each_release_gets_a_third() -> None:
    tests = [
        (f"test_{number}[{version}-{backend}]", f"test_{number}", version)
        for number in range(300)
        for version in VERSIONS
        for backend in ("hashmap", "rocksdb")
    ]
    chosen = choose(tests, [], 10)

    assert sorted(name.partition("[")[0] for name in chosen) == sorted({function for _, function, _ in tests})
    assert all(80 < sum(version in name for name in chosen) < 120 for version in VERSIONS)


def test_releases_take_turns_within_a_function() -> None:
    chosen = choose(TESTS, [], 6)

    assert [sum(name.startswith(f"test_many[{version}") for name in chosen) for version in VERSIONS] in (
        [2, 0, 1],
        [1, 0, 2],
    )


def test_functions_of_a_file_run_with_the_same_parameters() -> None:
    """They share a restore, which takes most of their time."""
    tests = [
        (f"tests/test_file.py::test_{number}[{version}-{parallelism}]", f"tests/test_file.py::test_{number}", version)
        for number in range(30)
        for version in VERSIONS
        for parallelism in range(9)
    ]
    chosen = choose(tests, [], 27)

    assert len(chosen) == 30
    assert len({name.partition("[")[2] for name in chosen}) == len(VERSIONS)


def test_the_order_of_the_tests_does_not_matter() -> None:
    assert choose(TESTS, ["2.3.0"], 4) == choose(reversed(TESTS), ["2.3.0"], 4)


def test_the_choice_is_described() -> None:
    assert describe(["2.3.0"], 4) == (
        "real Flink: all tests of 2.3.0; of 1.20.5, 2.2.1 in turn one in 4 of every test function, at least one"
    )
    assert (
        describe([], 4) == "real Flink: of 1.20.5, 2.2.1, 2.3.0 in turn one in 4 of every test function, at least one"
    )
    assert describe(["1.20.5", "2.2.1", "2.3.0"], 4) == "real Flink: all tests of 1.20.5, 2.2.1, 2.3.0"
