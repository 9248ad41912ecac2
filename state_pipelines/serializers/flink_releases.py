"""Serializer and serializer snapshot classes of each release of Flink, as its distribution has them.

A serializer snapshot names its class, which Flink loads by that name before it reads anything of the snapshot
(`TypeSerializerSnapshot.readVersionedSnapshot`, `InstantiationUtil.resolveClassByName`). The table next to this module
was read from the jars of the releases.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLASSES_FILE = Path(__file__).with_name("flink_classes.tsv")
"""The table: in its first lines the releases, then a class and the releases that have it in each line."""

Release = tuple[int, int]
"""Major and minor number of a release."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")


def list_releases() -> tuple[Release, ...]:
    """Return the releases of the table, in their order."""
    return _read_table()[0]


def find_releases(name: str) -> tuple[Release, ...]:
    """Return the releases of the table that have a class; none where no distribution of Flink has it."""
    releases, classes = _read_table()
    return tuple(releases[index] for index in classes.get(name, ()))


def format_classes(classes: Mapping[str, Iterable[str]]) -> str:
    """Return the text of the table.

    Args:
        classes: binary names of the classes by version of Flink, such as 2.2.1, in the order of the versions.
    """
    owners: dict[str, list[int]] = {}
    for index, names in enumerate(classes.values()):
        for name in names:
            owners.setdefault(name, []).append(index)
    lines = [f"{name}\t{_format_ranges(owners[name])}" for name in sorted(owners)]
    return "\n".join(["\t".join(classes), *lines, ""])


def _format_ranges(indexes: list[int]) -> str:
    """Write ascending numbers as ranges, such as `0-3,7`."""
    starts = [each for each in indexes if each - 1 not in indexes]
    ends = [each for each in indexes if each + 1 not in indexes]
    return ",".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))


@cache
def _read_table() -> tuple[tuple[Release, ...], dict[str, tuple[int, ...]]]:
    head, *lines = CLASSES_FILE.read_text().splitlines()
    releases = tuple((int(major), int(minor)) for major, minor in _VERSION.findall(head))
    return releases, {name: _parse_ranges(ranges) for name, _, ranges in (each.partition("\t") for each in lines)}


def _parse_ranges(text: str) -> tuple[int, ...]:
    ranges = (each.partition("-") for each in text.split(","))
    return tuple(index for start, _, end in ranges for index in range(int(start), int(end or start) + 1))
