"""Tests of this folder drive the real Flink; they are skipped, with the reason, where no JDK is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, sampling

if TYPE_CHECKING:
    from pathlib import Path


def _find_release(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return sampling.find_release(call.params) if call is not None else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the releases that run whole and a sample of the others."""
    marked = {item.nodeid: item for item in items if item.get_closest_marker("flink")}
    releases = {name: _find_release(item) for name, item in marked.items()}
    for name, item in marked.items():
        item.user_properties.append((sampling.RELEASE, releases[name] or "any"))
    whole, sample = config.getoption("flink_release"), config.getoption("flink_sample")
    if not whole and not sample:
        return
    quick = {name for name, item in marked.items() if not item.get_closest_marker("slow")}
    tests = (
        (name, name.partition("[")[0], release)
        for name, release in releases.items()
        if name in quick or (release or "any") in whole
    )
    chosen = sampling.choose(tests, whole, sample or sampling.SAMPLE)
    left_out = [item for name, item in marked.items() if name not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in chosen or item.nodeid not in marked]


@pytest.fixture(autouse=True)
def _jdk(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("flink") is not None:
        reason = harness.missing_jdk()
        if reason:
            pytest.skip(reason)


@pytest.fixture(params=harness.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """A Flink version."""
    return str(request.param)


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    """A state backend of Flink."""
    return str(request.param)


@pytest.fixture(params=[2, 3])
def parallelism(request: pytest.FixtureRequest) -> int:
    """As many subtasks as the savepoint was taken with, and more."""
    return int(request.param)


@pytest.fixture
def orders(version: str) -> Path:
    """The folder of the example's savepoint of this version, with its expected entries."""
    return harness.ORDERS / "savepoints" / f"flink-{version.rpartition('.')[0]}"
