"""Commands with their defaults over every snapshot of Flink's tests, of other projects and of our jobs: exit code 0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.snapshots import MADE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

ROOTS = {"flink": os.environ.get("FLINK_STATE_FIXTURES"), "wild": os.environ.get("FLINK_STATE_WILD")}
SNAPSHOTS = [
    *(sorted(Path(ROOTS["flink"], "flink").rglob("_metadata")) if ROOTS["flink"] else ()),
    *(sorted(Path(ROOTS["wild"]).rglob("_metadata")) if ROOTS["wild"] else ()),
    *(case.path / "_metadata" for case in MADE),
]
COMMANDS = ("inspect", "read", "dump", "diff", "convert", "keep", "erase")
FLINK = [each.parent for each in SNAPSHOTS if ROOTS["flink"] and each.is_relative_to(Path(ROOTS["flink"], "flink"))]
MAPS = {"494ff033-chk-6": "file:/state/checkpoint"}
"""Directories that absolute paths of a snapshot name, by the folder that has them now."""

DAMAGED = dict.fromkeys(COMMANDS, 2)
EXPECTED = {
    # A text conversion has destroyed its bytes.
    "2022-06-02-scala2.12-a0313de2": DAMAGED,
    # In-flight data are not dropped, and not kept, before the user says so; their keys cannot be searched.
    "stateful-udf-migration-itcase-flink1.17-rocksdb-checkpoint": {"convert": 2, "keep": 2, "erase": 3},
    # Heap native entries have no lengths: only a declaration says where the data of a user's serializer end.
    "type-serializer-snapshot-migration-itcase-flink1.16-hashmap-checkpoint": {"convert": 2},
    # Likewise, but for classes of objects; without their fields nothing of them can be compared either.
    # Of Flink 1.20.5; in that of 2.2.1 the ends of all entries are known.
    "8989b4d08189833f692af2e2b32c547d": {"diff": 3, "convert": 2, "erase": 3},
    "main-hashmap-checkpoint": {"diff": 3, "convert": 2, "erase": 3},
    "main-hashmap-native": {"diff": 3, "convert": 2},
    "compressed-hashmap-native": {"diff": 3, "convert": 2},
    # The types of two keys are in no file before the first materialization.
    "changelog-rocksdb-checkpoint": {"diff": 3, "convert": 2, "erase": 3},
    "inflight-hashmap-checkpoint": {"convert": 2, "keep": 2, "erase": 3},
}
"""Unusual exit codes by a folder of the snapshot: usual is 0, and 1 of `erase`, which does not find the key."""


def find_unusual(path: Path) -> dict[str, int]:
    return next((codes for name, codes in EXPECTED.items() if name in path.parts), {})


def choose_command(number: int, path: Path) -> str:
    commands = tuple(find_unusual(path)) or COMMANDS
    return commands[number % len(commands)]


SAMPLED = {
    **{case.path: (choose_command(number, case.path),) for number, case in enumerate(MADE)},
    **{path: COMMANDS[number % 3 :: 3] for number, path in enumerate(FLINK)},
}
"""Commands in turn: one for each larger snapshot, with an unusual exit code where it has any, and every third for those
of Flink's own tests, which are alike.
"""


@pytest.mark.slow
@pytest.mark.skipif(not SNAPSHOTS, reason="FLINK_STATE_FIXTURES and FLINK_STATE_WILD are unset: they name snapshots")
@pytest.mark.parametrize("metadata", SNAPSHOTS, ids=lambda path: "/".join(path.parts[-4:-1]))
def test_defaults_do(metadata: Path, call: Callable[..., Called], tmp_path: Path) -> None:
    path = metadata.parent
    arguments = [text for case in MADE if case.path == path for each in case.path_mapping for text in ("--map", each)]
    for folder in path.parents:
        if folder.name in MAPS:
            arguments = ["--map", f"{MAPS[folder.name]}={folder}"]
    commands = {
        "inspect": ("inspect", path),
        "read": ("read", path),
        "dump": ("dump", path),
        "diff": ("diff", path, path),
        "convert": ("convert", path, "--out", tmp_path / "canonical"),
        "keep": ("convert", path, "--format", "keep", "--out", tmp_path / "copy"),
        "erase": ("erase", path, "--key", "no-such-key"),
    }
    unusual = find_unusual(path)
    names = SAMPLED.get(path, COMMANDS)
    codes = {name: call(*commands[name], *arguments) for name in names}
    expected = {name: unusual.get(name, 1 if name == "erase" else 0) for name in names}
    assert {name: called.code for name, called in codes.items()} == expected, [each.err for each in codes.values()]
    assert "Traceback" not in "".join(each.err for each in codes.values())
