"""Choice of the tests that drive real Flink: some releases whole, a sample of the others.

Every test function runs with some release: a hash of its name says with which one, so that each release gets about the
same number of functions. The sample depends on the names of the tests alone, so that every run and every process of a
run takes the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from hashlib import sha256
from itertools import zip_longest
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
    """Choose tests: all of the whole releases, one in `sample` of every test function for the other releases together.

    The other releases take turns within a function, and a hash of its name says which one begins.

    Args:
        tests: name, test function and release of each test; a test without a release is always chosen. A function
            is named `file::function`, its tests `file::function[parameters]`.
        whole: releases whose tests are all chosen.
        sample: one test in so many is chosen of other releases, at least one of each test function.

    Returns:
        The names of the chosen tests.
    """
    chosen: set[str] = set()
    functions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, function, release in tests:
        if release is None or release in whole:
            chosen.add(name)
        else:
            functions[function][release].append(name)
    for function, releases in functions.items():
        first = int.from_bytes(sha256(function.encode()).digest()[:8], "big") % len(releases)
        names = sorted(releases)
        turns = zip_longest(*(_shuffle(function, releases[name]) for name in names[first:] + names[:first]))
        ordered = [name for turn in turns for name in turn if name is not None]
        chosen.update(ordered[: math.ceil(len(ordered) / sample)])
    return chosen


def _shuffle(function: str, names: list[str]) -> list[str]:
    """Order tests of a function by chance, but alike for all functions of a file: these share what a restore takes."""
    file = function.partition("::")[0]
    return sorted(names, key=lambda name: sha256((file + name.removeprefix(function)).encode()).digest())


def describe(whole: Sequence[str], sample: int) -> str:
    """Say which tests are chosen, in one line."""
    others = [version for version in VERSIONS if version not in whole]
    parts = [f"all tests of {', '.join(whole)}"] if whole else []
    if others:
        parts.append(f"of {', '.join(others)} in turn one in {sample} of every test function, at least one")
    return f"real Flink: {'; '.join(parts)}"
