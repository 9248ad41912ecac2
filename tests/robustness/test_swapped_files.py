"""Two files of a snapshot are exchanged: `verify` says so wherever the format, or a manifest, tells them apart."""

from __future__ import annotations

import shutil
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.metadata import list_references
from state_pipelines.metadata.handles import RelativeFileStateHandle
from state_pipelines.metadata.streams import StateCategory
from state_pipelines.operations.auditing import audit_snapshot
from tests.robustness.snapshot_readers import choose

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot
    from tests.snapshots import Case

NAMES = ("heap", "heap-native", "rocksdb", "rocksdb-native")
CASES = [case for case in choose(*NAMES) if case.version.startswith("2.2")]
MOST = 6


def find_files(snapshot: Snapshot, *, keyed: bool) -> set[str]:
    """Names of the files of keyed, or of other state."""
    return {
        each.handle.relative_path
        for each in list_references(snapshot.metadata)
        if isinstance(each.handle, RelativeFileStateHandle) and (each.category is StateCategory.MANAGED_KEYED) == keyed
    }


def exchange(target: Path, names: set[str]) -> list[bool]:
    """Whether the snapshot can be restored while two of the files are exchanged, for some pairs of them."""
    contents = {target / name: (target / name).read_bytes() for name in sorted(names)}
    pairs = [pair for pair in combinations(contents, 2) if contents[pair[0]] != contents[pair[1]]]
    # Those of equal size first, whose size says nothing.
    pairs.sort(key=lambda pair: abs(len(contents[pair[0]]) - len(contents[pair[1]])))
    found = []
    for one, other in pairs[:MOST]:
        one.write_bytes(contents[other])
        other.write_bytes(contents[one])
        found.append(audit_snapshot(str(target), "whole").restorable)
        one.write_bytes(contents[one])
        other.write_bytes(contents[other])
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_keyed_files_that_are_exchanged_are_damage(case: Case, tmp_path: Path) -> None:
    target = tmp_path / "savepoint"
    shutil.copytree(case.path, target)
    assert audit_snapshot(str(target), "whole").restorable
    found = exchange(target, find_files(case.open(), keyed=True))
    assert set(found) == {False}


def test_a_manifest_tells_files_of_operator_state_apart(tmp_path: Path) -> None:
    # Those of two sources have the same states and sizes, so that nothing in Flink's format does.
    (case,) = (case for case in CASES if case.case == "heap")
    shutil.copytree(case.path, tmp_path / "theirs")
    names = find_files(case.open(), keyed=False)
    assert True in exchange(tmp_path / "theirs", names)
    sp.convert(case.open(), str(tmp_path / "ours"), "keep")
    ours = find_files(sp.open_snapshot(str(tmp_path / "ours")), keyed=False)
    assert set(exchange(tmp_path / "ours", ours)) == {False}
