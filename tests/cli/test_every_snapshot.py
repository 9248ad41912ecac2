"""`retain`, `verify` and `inspect --profile` with their defaults over every snapshot that real Flink made.

Depth `sample` and profiles run over every eighth snapshot; with EVERY_SNAPSHOT=1 in the environment over all (minutes).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

ROOTS = [os.environ[name] for name in ("FLINK_STATE_FIXTURES", "FLINK_STATE_WILD") if name in os.environ]
SNAPSHOTS = sorted(path.parent for root in ROOTS for path in Path(root).rglob("_metadata"))
SAMPLE = SNAPSHOTS if os.environ.get("EVERY_SNAPSHOT") else SNAPSHOTS[::8]
DAMAGED = "2022-06-02-scala2.12-a0313de2"
"""A snapshot whose `_metadata` was destroyed by a text conversion."""
MAPPING = re.compile(r"--map (\S+=\S+)")

pytestmark = pytest.mark.skipif(
    not SNAPSHOTS, reason="FLINK_STATE_FIXTURES and FLINK_STATE_WILD are unset: they name snapshots"
)


def name(path: Path) -> str:
    return "/".join(path.parts[-3:])


def find_mappings(called: Called) -> list[str]:
    """Options that a command with --json proposes for files that were moved."""
    hints = [finding.get("hint", "") for each in called.json["snapshots"] for finding in each["findings"]]
    found = {match[1] for hint in hints if (match := MAPPING.search(hint)) and match[1] != "FROM=TO"}
    return [argument for mapping in sorted(found) for argument in ("--map", mapping)]


def test_retain_plans_below_every_directory(call: Callable[..., Called]) -> None:
    codes = {path: call("retain", path).code for path in sorted({each.parent for each in SNAPSHOTS})}
    assert set(codes.values()) == {0}


def test_verify_finds_no_damage_but_moved_files(call: Callable[..., Called]) -> None:
    damaged = []
    for path in SNAPSHOTS:
        called = call("verify", path, "--depth", "files", "--json")
        if called.code and call("verify", path, "--depth", "files", *find_mappings(called)).code:
            damaged.append(path)
    assert [DAMAGED in each.parts for each in damaged] == [True] * len(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLE, ids=name)
def test_verify_reads_a_sample(path: Path, call: Callable[..., Called]) -> None:
    called = call("verify", path, "--json")
    called = call("verify", path, "--json", *find_mappings(called)) if called.code == 1 else called
    # Some classes of values are in no file: what only a declaration says cannot be judged.
    assert called.code in ((1,) if DAMAGED in path.parts else (0, 3))
    undetermined = [each for each in called.json["snapshots"][0]["findings"] if each["severity"] == "undetermined"]
    causes = [(each["what"], each.get("operator"), each.get("state")) for each in undetermined]
    assert len(causes) == len(set(causes))


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLE, ids=name)
def test_profiles(path: Path, call: Callable[..., Called]) -> None:
    called = call("inspect", path, "--profile")
    if called.code and DAMAGED not in path.parts:
        assert (called.code, "--map FROM=TO" in called.err) == (2, True)
        called = call("inspect", path, "--profile", *find_mappings(call("verify", path, "--depth", "files", "--json")))
    assert called.code == (2 if DAMAGED in path.parts else 0)
