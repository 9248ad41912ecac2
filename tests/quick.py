"""The quick tests, which `make test` runs: everything plain, and each operation once for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

LONG = ("benchmarks", "conformance", "dagster", "deploy", "docs", "robustness", "spark")
"""Directories of tests that are not quick: they start Spark, Dagster or processes, or walk through all snapshots."""


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test is one of the quick ones.

    A test that is marked `essential` always is; one that is marked `slow`, uses Spark or is in a directory of `LONG`
    is not.
    """
    if item.get_closest_marker("essential"):
        return True
    if item.get_closest_marker("slow") or item.get_closest_marker("spark"):
        return False
    return item.nodeid.removeprefix("tests/").partition("/")[0] not in LONG


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the quick tests and all others, in their order."""
    quick: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (quick if is_quick(item) else others).append(item)
    return quick, others
