"""`--classes`: every form in which classes of a snapshot are declared."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.flink.harness import ROOT, diff_entries
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

HEAP = types("2.2", "heap")
STATE = ("--operator", "composite-types", "--state", "person-or-guest")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of a POJO, its subclass and its fields, and a jar of them."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: there is no javac on the PATH")
    target = tmp_path_factory.mktemp("types")
    java = ROOT / "tests/flink/java/types/types"
    sources = [java / f"{name}.java" for name in ("Guest", "Person", "Place", "Color")]
    subprocess.run(["javac", "-d", target / "classes", *sources], check=True)
    with zipfile.ZipFile(target / "job.jar", "w") as jar:
        for file in (target / "classes").rglob("*.class"):
            jar.write(file, file.relative_to(target / "classes"))
    (target / "guest.yaml").write_text("types.Guest extends types.Person: [visits: int]", encoding="utf-8")
    return target


@pytest.mark.parametrize("form", ["classes", "classes/types/Guest.class", "job.jar", "guest.yaml"])
def test_objects_of_a_subclass_are_decoded(call: Callable[..., Called], compiled: Path, form: str) -> None:
    place = ("composite-types", "person-or-guest")
    expected = [each for each in HEAP.entries() if (each["op"], each.get("state")) == place]
    called = call("dump", HEAP.path, *STATE, "--classes", compiled / form)
    difference = diff_entries(expected, called.lines)
    assert not difference, str(difference)
    assert {line["value"]["@class"] for line in called.lines if line["value"]} == {"types.Guest", "types.Person"}


def test_several_paths(call: Callable[..., Called], compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("a.B: [c: int]")
    paths = ("--classes", tmp_path / "other.yaml", "--classes", compiled / "job.jar")
    rows = call("read", HEAP.path, *STATE, *paths, "--json").lines
    assert {row["value"]["class"] for row in rows if row["value"]} == {"types.Guest", "types.Person"}


@pytest.mark.parametrize(
    "command",
    ["inspect", "read", "dump", "diff", "check", "migrate", "revision", "convert", "rescale", "current", "history"],
)
def test_every_command_that_opens_a_snapshot_takes_classes(call: Callable[..., Called], command: str) -> None:
    assert "--classes PATH" in " ".join(call(command, "--help").out.split())
