"""The jars of real Flink hold no snapshot class that `docs/serializer-snapshots.md` does not name."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.javaclasses import parse_class
from tests.flink import harness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.javaclasses import JavaClass

pytestmark = pytest.mark.flink

PAGE = (Path(__file__).parents[2] / "docs/serializer-snapshots.md").read_text()
SNAPSHOT = "org.apache.flink.api.common.typeutils.TypeSerializerSnapshot"
# Classes in between are named so too; Flink names all of its snapshots by what they are.
CANDIDATE = re.compile(r"org/apache/flink/.*Snapshot.*\.class")


def classes(archive: zipfile.ZipFile) -> Iterator[JavaClass]:
    """The candidates in a jar and in the jars inside it."""
    for name in archive.namelist():
        if name.endswith(".jar"):
            with zipfile.ZipFile(io.BytesIO(archive.read(name))) as inner:
                yield from classes(inner)
        elif CANDIDATE.fullmatch(name):
            yield parse_class(archive.read(name), name)


def test_every_snapshot_class_of_flink_is_in_the_table(version: str) -> None:
    home = harness.install_libraries(version)
    found: dict[str, JavaClass] = {}
    for path in home.jars:
        with zipfile.ZipFile(path) as archive:
            found |= {each.name: each for each in classes(archive)}

    def is_snapshot(name: str) -> bool:
        each = found.get(name)
        if name == SNAPSHOT or each is None:
            return name == SNAPSHOT
        above = [*each.interfaces, *([] if each.parent is None else [each.parent.name])]
        return any(map(is_snapshot, above))

    names = {name for name, each in found.items() if is_snapshot(name) and not (each.is_abstract or each.is_interface)}
    assert len(names) > 80
    assert {name for name in names if f"| `{name}` |" not in PAGE} == set()
