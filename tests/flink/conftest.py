"""Tests of this folder drive the real Flink; they are skipped, with the reason, where no JDK is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flink import harness

if TYPE_CHECKING:
    from pathlib import Path


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
