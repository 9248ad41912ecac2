"""Choice of the tests that drive real Flink: some releases whole, a sample of the others.

The sample depends on the names of the tests alone, so that every run and every process of a run takes the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from hashlib import sha256
from typing import TYPE_CHECKING

from tests.flink.harness import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SAMPLE = 5
"""One test in so many is chosen of releases that do not run whole, unless an option says otherwise."""

RELEASE = "flink release"
"""Name of the property of a test report that holds the release of the test."""


def find_release(parameters: Mapping[str, object]) -> str | None:
    """Return the Flink that a test drives: a parameter, or the first element or the `version` of one."""
    for value in parameters.values():
        first = value[0] if isinstance(value, tuple) and value else value
        for each in (first, getattr(value, "version", None)):
            if each in VERSIONS:
                return str(each)
    return None


def choose(tests: Iterable[tuple[str, str, str | None]], whole: Sequence[str], sample: int) -> set[str]:
    """Choose tests: all of the whole releases, one in `sample` of every test function for each other release.

    Args:
        tests: name, test function and release of each test; a test without a release is always chosen.
        whole: releases whose tests are all chosen.
        sample: one test in so many is chosen of other releases, at least one of each test function.

    Returns:
        The names of the chosen tests.
    """
    chosen: set[str] = set()
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, function, release in tests:
        if release is None or release in whole:
            chosen.add(name)
        else:
            groups[function, release].append(name)
    for names in groups.values():
        names.sort(key=lambda name: sha256(name.encode()).digest())
        chosen.update(names[: math.ceil(len(names) / sample)])
    return chosen


def describe(whole: Sequence[str], sample: int) -> str:
    """Say which tests are chosen, in one line."""
    others = [version for version in VERSIONS if version not in whole]
    parts = [f"all tests of {', '.join(whole)}"] if whole else []
    if others:
        parts.append(f"of {', '.join(others)} one in {sample} of every test function, at least one")
    return f"real Flink: {'; '.join(parts)}"
