from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.quick import LONG, is_quick, split


def test_a_plain_test_is_quick(request: pytest.FixtureRequest) -> None:
    assert is_quick(request.node)


@pytest.mark.slow
def test_a_slow_test_is_not_quick(request: pytest.FixtureRequest) -> None:
    assert not is_quick(request.node)


@pytest.mark.spark
def test_a_test_of_spark_is_not_quick(request: pytest.FixtureRequest) -> None:
    assert not is_quick(request.node)


@pytest.mark.essential
@pytest.mark.slow
@pytest.mark.spark
def test_an_essential_test_is_always_quick(request: pytest.FixtureRequest) -> None:
    assert is_quick(request.node)


@pytest.mark.slow
def test_every_test_is_run_by_one_of_both_commands(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    quick, others = split(items)
    assert sorted(map(id, [*quick, *others])) == sorted(map(id, items))


def test_the_directories_exist(request: pytest.FixtureRequest) -> None:
    assert all((request.config.rootpath / "tests" / each).is_dir() for each in LONG)


@pytest.mark.parametrize(("mark", "directories"), [("flink", {"flink", "docs"}), ("browser", {"browser"})])
def test_tests_of_flink_and_of_the_browser_are_in_the_directories_that_their_commands_name(
    mark: str, directories: set[str]
) -> None:
    """Collecting all other tests would take longer than many of them."""
    folder = Path(__file__).parent
    files = [each for each in folder.rglob("*.py") if re.search(rf"\bmark\.{mark}\b", each.read_text(encoding="utf-8"))]
    assert {each.relative_to(folder).parts[0] for each in files} == directories
