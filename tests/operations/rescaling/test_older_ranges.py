"""Snapshots whose subtasks have other key groups than Flink's formula gives: nothing is lost at the ends of ranges."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.errors import FormatError
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import write_metadata
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, KeyGroupRange
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.rescale import parse_request, plan_rescale, rescale
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot.snapshot_files import follows_formula
from state_pipelines.storage import resolve
from tests.operations.rescaling.test_rescaling import gather
from tests.snapshot.older_ranges import PARALLELISM, compute_older_range, make_older_ranges, reopen
from tests.snapshots import RESCALING

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.slow

FORMATS = ["canonical", "heap", "rocksdb"]


@pytest.fixture
def whole() -> Snapshot:
    """A savepoint of Flink: keys of several types, windows, timers, operator state."""
    case = next(each for each in RESCALING if each.version.startswith("2.2") and each.case == "canonical")
    return case.open_told()


@pytest.fixture(params=FORMATS)
def older(request: pytest.FixtureRequest, whole: Snapshot, tmp_path: Path) -> Snapshot:
    """The same entries in handles with the ranges of the older rule."""
    return make_older_ranges(whole, tmp_path, request.param)


def test_every_record_is_read(older: Snapshot, whole: Snapshot) -> None:
    keyed = [each for each in older.operators if each.keyed_states]
    assert {each.parallelism for each in keyed} == {PARALLELISM}
    assert not any(follows_formula(each.metadata) for each in keyed)
    for operator in keyed:
        assert {(subtask, file.key_groups) for subtask, file in operator.keyed_files} == {
            (index, compute_older_range(index, PARALLELISM, operator.max_parallelism)) for index in range(PARALLELISM)
        }
    assert gather(dump(older)) == gather(dump(whole))


# Each way once: ranges of canonical files, of databases and of heap files, and records that get other key groups.
@pytest.mark.parametrize(
    ("older", "content"),
    [
        ("canonical", {"parallelism": 7}),
        ("rocksdb", {"parallelism": 7}),
        ("heap", {"parallelism": PARALLELISM}),
        ("rocksdb", {"max_parallelism": 251}),
    ],
    indirect=["older"],
    ids=str,
)
def test_a_rescaling_takes_every_record_to_the_formula(
    older: Snapshot, whole: Snapshot, content: dict[str, int], tmp_path: Path
) -> None:
    result = rescale(older, str(tmp_path / "new"), parse_request(content))
    new = reopen(result.path, whole)
    assert gather(dump(new)) == gather(dump(whole))
    assert all(follows_formula(each.metadata) for each in new.operators)
    counted = sum(row.before.records for row in result.states)
    there = rescale(whole, str(tmp_path / "other"), parse_request(content)).states
    assert counted == sum(row.before.records for row in there) > 0


def test_a_rename_alone_takes_the_operator_to_the_formula(older: Snapshot, whole: Snapshot, tmp_path: Path) -> None:
    uid = next(each.label for each in older.operators if each.keyed_states)
    result = rescale(older, str(tmp_path / "new"), parse_request({"operators": {uid: {"uid": "renamed"}}}))
    new = reopen(result.path, whole)
    assert follows_formula(new.operator("renamed").metadata)
    moved = [line | {"op": "renamed"} if line["op"] == uid else line for line in dump(whole)]
    found = [line | {"op": "renamed"} if line["op"] == new.operator("renamed").id else line for line in dump(new)]
    assert gather(found) == gather(moved)


@pytest.mark.parametrize(
    ("older", "format"),
    [("canonical", "rocksdb"), ("heap", "canonical"), ("rocksdb", "heap"), ("rocksdb", "keep"), ("heap", "keep")],
    indirect=["older"],
)
def test_a_conversion_keeps_every_record(older: Snapshot, whole: Snapshot, format: str, tmp_path: Path) -> None:
    result = convert(older, str(tmp_path / "new"), format)
    assert gather(dump(reopen(result.path, whole))) == gather(dump(whole))
    assert any("rescale --parallelism" in note for note in result.notes)


def test_balance_counts_every_record(older: Snapshot, whole: Snapshot) -> None:
    def count(snapshot: Snapshot) -> dict[str, int]:
        return {
            each.id: sum(state.records or 0 for state in each.states) for each in measure_balance(snapshot).operators
        }

    assert count(older) == count(whole)


@pytest.mark.parametrize("mode", [FileMode.LINK, FileMode.REFERENCE])
def test_a_shared_database_is_counted_once(whole: Snapshot, mode: FileMode, tmp_path: Path) -> None:
    single = rescale(whole, str(tmp_path / "single"), parse_request({"parallelism": 1}))
    database = convert(reopen(single.path, whole), str(tmp_path / "database"), "rocksdb")
    shared = rescale(
        reopen(database.path, whole), str(tmp_path / "shared"), parse_request({"parallelism": 4}), files=mode
    )
    again = reopen(shared.path, whole)
    for operator in again.operators:
        handles = [each.managed_keyed_state for each in operator.metadata.subtasks]
        if isinstance(handles[0], IncrementalRemoteKeyedStateHandle):
            assert [file.key_groups for _, file in operator.keyed_files] == [
                compute_key_group_range(index, 4, operator.max_parallelism) for index in range(4)
            ]
            assert [file.key_groups for file in operator.files.open_stored()] == [
                KeyGroupRange(0, operator.max_parallelism)
            ]
    assert gather(dump(again)) == gather(dump(whole))


@pytest.fixture
def broken(whole: Snapshot, tmp_path: Path) -> tuple[Snapshot, str]:
    """A snapshot in which one operator lacks its last key group; its uid."""
    older = make_older_ranges(whole, tmp_path, "rocksdb")
    chosen = next(each for each in older.operators if each.keyed_states)
    *others, last = chosen.metadata.subtasks
    handle = last.managed_keyed_state
    assert handle is not None
    shorter = KeyGroupRange(handle.key_groups.start, handle.key_groups.number - 1)
    last = replace(last, managed_keyed_state=replace(handle, key_groups=shorter))
    edited = replace(chosen.metadata, subtasks=(*others, last))
    states = tuple(edited if each == chosen.metadata else each for each in older.metadata.operator_states)
    path = tmp_path / "older" / "_metadata"
    path.write_bytes(write_metadata(replace(older.metadata, operator_states=states)))
    return reopen(str(path.parent), whole), chosen.label


def test_a_missing_key_group_concerns_its_operator(broken: tuple[Snapshot, str], tmp_path: Path) -> None:
    snapshot, uid = broken
    message = "the keyed state does not hold every key group once: key group 127 in none"
    report = inspect(snapshot)
    assert {each.uid for each in report.operators if each.error} == {uid}
    assert next(each.error for each in report.operators if each.uid == uid).startswith(message)
    with pytest.raises(FormatError, match=message):
        next(iter(snapshot.operator(uid).batches_by_state()))
    with pytest.raises(FormatError, match=message):
        plan_rescale(snapshot, resolve(str(tmp_path / "new")), parse_request({"parallelism": 7}))
    with pytest.raises(FormatError, match=message):
        plan_rescale(snapshot, resolve(str(tmp_path / "new")), parse_request({"operators": {uid: {"uid": "other"}}}))
    for format in FORMATS:
        with pytest.raises(FormatError, match=message):
            convert(snapshot, str(tmp_path / format), format)
    copied = convert(snapshot, str(tmp_path / "keep"), "keep")
    assert any(f"operator {uid}, which is copied as it is: {message}" in note for note in copied.notes)
    without = rescale(snapshot, str(tmp_path / "without"), parse_request({"operators": {uid: {"drop": True}}}))
    assert without.proof is not None
    assert without.proof.ok


def test_a_missing_key_group_is_unreadable_input(broken: tuple[Snapshot, str]) -> None:
    snapshot, uid = broken
    read = CliRunner().invoke(main, ["read", snapshot.path, "--operator", uid])
    assert read.exit_code == 2
    assert "key group 127 in none" in read.stderr


def test_the_savepoint_with_older_ranges_is_whole(wild: Path, tmp_path: Path) -> None:
    from state_pipelines import open_snapshot

    snapshot = open_snapshot(str(wild / "older-ranges" / "savepoint"))
    lines = list(dump(snapshot))
    assert len([json.dumps(each) for each in lines]) == 1412
    result = rescale(snapshot, str(tmp_path / "new"), parse_request({"parallelism": 7}))
    assert gather(dump(open_snapshot(result.path))) == gather(lines)
