"""`retain`, `verify` and `inspect --profile` with their defaults over every snapshot that real Flink made.

All other commands too over the snapshots of other projects (`FLINK_STATE_WILD`, `FLINK_STATE_WILD2`). Depth `sample`
and profiles run over every eighth snapshot; with EVERY_SNAPSHOT=1 in the environment over all (minutes).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

ROOTS = [
    os.environ[name] for name in ("FLINK_STATE_FIXTURES", "FLINK_STATE_WILD", "FLINK_STATE_WILD2") if name in os.environ
]
SNAPSHOTS = sorted(path.parent for root in ROOTS for path in Path(root).rglob("_metadata"))
SAMPLE = SNAPSHOTS if os.environ.get("EVERY_SNAPSHOT") else SNAPSHOTS[::8]
WILD = [
    path.parent
    for name in ("FLINK_STATE_WILD", "FLINK_STATE_WILD2")
    if name in os.environ
    for path in sorted(Path(os.environ[name]).rglob("_metadata"))
]
"""Snapshots of other projects."""
DAMAGED = "2022-06-02-scala2.12-a0313de2"
"""A snapshot whose `_metadata` was destroyed by a text conversion."""
UNKNOWN_VERSIONS = ("savepoint-932fdb-2431ffcb4be6", "type-serializer-snapshot-migration-itcase-flink1.6-savepoint")
"""Snapshots whose keyed state has a version that was never released, or is older than Flink 1.8."""
UNREAD = {*UNKNOWN_VERSIONS, "b4a7ccef-chk-9"}
"""Snapshots of which keyed state cannot be read: its version is unknown, or its files are on another machine."""
MOVED = {"494ff033-chk-6": "file:/state/checkpoint"}
"""Directories that absolute paths of a snapshot name, by the folder that has them now."""
TARGETS = ("1.20", "2.3")
FORMATS = ("canonical", "heap", "rocksdb", "keep")
MAPPING = re.compile(r"--map (\S+=\S+)")

pytestmark = pytest.mark.skipif(
    not SNAPSHOTS, reason="FLINK_STATE_FIXTURES and FLINK_STATE_WILD are unset: they name snapshots"
)


def name(path: Path) -> str:
    return "/".join(path.parts[-3:])


def find_mappings(called: Called) -> list[str]:
    """Options that a command with --json proposes for files that were moved."""
    hints = [finding.get("hint", "") for each in called.json["snapshots"] for finding in each["findings"]]
    found = {match[1] for hint in hints if (match := MAPPING.search(hint)) and not match[1].startswith("FROM=")}
    return [argument for mapping in sorted(found) for argument in ("--map", mapping)]


@pytest.mark.slow
def test_retain_plans_below_every_directory(call: Callable[..., Called]) -> None:
    codes = {path: call("retain", path).code for path in sorted({each.parent for each in SNAPSHOTS})}
    assert set(codes.values()) == {0}


@pytest.mark.slow
def test_verify_finds_no_damage_but_moved_files(call: Callable[..., Called]) -> None:
    damaged = []
    for path in SNAPSHOTS:
        called = call("verify", path, "--depth", "files", "--json")
        if called.code and call("verify", path, "--depth", "files", *find_mappings(called)).code:
            damaged.append(path)
    assert [each for each in damaged if not set(each.parts) & {DAMAGED, *UNREAD}] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLE, ids=name)
def test_verify_reads_a_sample(path: Path, call: Callable[..., Called]) -> None:
    called = call("verify", path, "--json")
    called = call("verify", path, "--json", *find_mappings(called)) if called.code == 1 else called
    # Some classes of values are in no file: what only a declaration says cannot be judged.
    unread = UNREAD & set(path.parts)
    assert called.code in ((1,) if DAMAGED in path.parts else (0, 1, 3) if unread else (0, 3))
    undetermined = [each for each in called.json["snapshots"][0]["findings"] if each["severity"] == "undetermined"]
    causes = [(each["what"], each.get("operator"), each.get("state")) for each in undetermined]
    assert len(causes) == len(set(causes))


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLE, ids=name)
def test_profiles(path: Path, call: Callable[..., Called]) -> None:
    called = call("inspect", path, "--profile")
    unread = UNREAD & set(path.parts)
    if called.code and DAMAGED not in path.parts and not unread:
        assert (called.code, "--map FROM=TO" in called.err) == (2, True)
        called = call("inspect", path, "--profile", *find_mappings(call("verify", path, "--depth", "files", "--json")))
    assert called.code in ((2,) if DAMAGED in path.parts else (0, 2, 3) if unread else (0,))


# --- every command over the snapshots of other projects


@pytest.mark.slow
@pytest.mark.parametrize("path", WILD, ids=name)
def test_every_command_answers(path: Path, call: Callable[..., Called], tmp_path: Path) -> None:
    mapping = [
        text for folder in path.parents if folder.name in MOVED for text in ("--map", f"{MOVED[folder.name]}={folder}")
    ]
    copy = shutil.copytree(path, tmp_path / "copy")
    commands: dict[str, tuple[object, ...]] = {
        "inspect": (path,),
        "inspect --profile": (path,),
        "read": (path,),
        "dump": (path,),
        "diff": (path, copy),
        "check": (path, path),
        **{f"check --target {release}": (path,) for release in TARGETS},
        **{f"verify --depth {depth}": (path,) for depth in ("files", "sample", "whole")},
        "convert --dry-run --format keep": (path, "--out", tmp_path / "dry-keep"),
        **{f"convert --format {each}": (path, "--out", tmp_path / each) for each in FORMATS},
        "rescale --parallelism 3": (path, "--out", tmp_path / "parallelism"),
        "rescale --max-parallelism 1024": (path, "--out", tmp_path / "max-parallelism"),
        "erase --key no-such-key": (path,),
    }
    called = {each: call(*each.split(), *arguments, *mapping) for each, arguments in commands.items()}
    called["retain"] = call("retain", copy)
    codes = {each: found.code for each, found in called.items()}
    for each, found in called.items():
        assert "Traceback" not in found.err + found.out, each
        # An error, a negative and an undetermined answer say why.
        assert found.code != 2 or "error: " in found.err, each
        assert found.code == 0 or found.err + found.out, each
        assert max((len(line) for line in found.err.splitlines()), default=0) < 2000, each
        if found.code in (2, 3):
            assert not (tmp_path / each.rpartition(" ")[2]).exists(), each
    # A snapshot does not differ from its copy, and what is planned is what is done.
    assert codes["diff"] != 1
    assert codes["convert --dry-run --format keep"] == codes["convert --format keep"]
    # A version that nothing knows is undetermined; nothing is written of it.
    refused = (2, 3) if set(path.parts) & set(UNKNOWN_VERSIONS) else (2,)
    assert {
        each: codes[each] for each in codes if each.startswith("convert") and codes[each] not in (0, *refused)
    } == {}
    if DAMAGED in path.parts:
        assert codes["inspect"] == codes["read"] == codes["convert --format keep"] == 2
    elif not UNREAD & set(path.parts):
        # Nothing of it is damaged, and what no reader knows hides nothing else.
        for each in ("inspect", "inspect --profile", "read", "dump", "convert --format keep", "retain"):
            assert (each, codes[each], called[each].err) == (each, 0, called[each].err)
        assert [each for each in codes if each.startswith("verify") and codes[each] not in (0, 3)] == []
