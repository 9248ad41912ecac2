"""Changelog checkpoints that Flink wrote."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.changelog.reader import (
    ChangelogFile,
    find_bases,
    find_key_serializer,
    find_written_serializers,
    open_changelog,
)
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
)
from state_pipelines.metadata.streams import open_stream
from state_pipelines.operations.dump import dump_state
from state_pipelines.serializers.build import tuple_of
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState
from tests.keyed.changelogs import (
    INT,
    STRING,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot

TYPES = Path(__file__).resolve().parents[1] / "data" / "types"
MADE = sorted(TYPES.glob("flink-*/changelog-*"))


def open_operators(snapshot: Snapshot, given: dict[str, Serializer]) -> dict[str, list[KeyedState]]:
    """The keyed states behind changelog handles; key serializers are found, or else taken from `given`."""
    opened: dict[str, list[tuple[int, ChangelogFile]]] = {}
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, ChangelogStateBackendHandle):
                context = RecordContext(operator.max_parallelism, LayoutContext(snapshot.kryo_version))
                bases = [base for each in handle.materialized if (base := snapshot.handles.open_keyed(each, context))]
                file = open_changelog(
                    handle,
                    bases,
                    lambda each: open_stream(each, snapshot.location.directory, snapshot.path_mapping),
                    context,
                )
                opened.setdefault(operator.label, []).append((subtask.index, file))
    serializers = [
        each for files in opened.values() for _, file in files for i in file.states for _, each in i.serializers
    ]
    subclasses = collect_subclasses(serializers)
    snapshot.layout_context = LayoutContext(snapshot.kryo_version, subclasses, snapshot.classes)
    told = [each for files in opened.values() for each, _ in find_written_serializers([file for _, file in files])]
    states: dict[str, list[KeyedState]] = {}
    for label, found in opened.items():
        operator = snapshot.operator(label)
        context = RecordContext(operator.max_parallelism, snapshot.layout_context, by_block=True)
        files = [(index, file.with_context(context)) for index, file in found]
        key = given.get(label)
        if key is None:
            key = find_key_serializer([file for _, file in files], told).serializer
        subtask_states: dict[str, list[KeyedSubtaskState]] = {}
        for subtask_index, file in files:
            known = file if file.key_serializer else replace(file, key_serializer=key)
            for state_id, info in enumerate(known.states):
                subtask_states.setdefault(info.name, []).append(KeyedSubtaskState(subtask_index, known, state_id))
        states[label] = [KeyedState(operator, tuple(each)) for each in subtask_states.values()]
    return states


def count_lines(lines: Iterable[dict[str, Any]], skipped: frozenset[str] = frozenset()) -> Counter[str]:
    volatile = ("subtask", "ttl_ts")
    return Counter(
        json.dumps({name: value for name, value in line.items() if name not in volatile}, sort_keys=True)
        for line in lines
        if line["kind"] in ("keyed", "timer") and line["op"] not in skipped
    )


def read_expected(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "expected.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("folder", MADE, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_checkpoints_of_flink_hold_what_it_read_itself(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    snapshot = open_snapshot(
        str(folder / case["snapshot"]), path_mapping=[f"file:{case['written']}={folder}"], uids=case["uids"]
    )
    states = open_operators(snapshot, {})
    found = count_lines(line for each in states.values() for state in each for line in dump_state(state))
    assert found == count_lines(read_expected(folder))
    assert found.total() > 30


@pytest.mark.parametrize(
    "folder", [each for each in MADE if "materialized" in each.name], ids=lambda each: each.parts[-2]
)
def test_a_base_that_comes_twice_is_read_once(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    snapshot = open_snapshot(
        str(folder / case["snapshot"]), path_mapping=[f"file:{case['written']}={folder}"], uids=case["uids"]
    )
    checked = 0
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            handle = subtask.managed_keyed_state
            if not isinstance(handle, ChangelogStateBackendHandle):
                continue
            for base in handle.materialized:
                again = replace(base, checkpoint_id=99) if isinstance(base, IncrementalRemoteKeyedStateHandle) else base
                assert find_bases(replace(handle, materialized=(base, again))) == (base,)
                checked += 1
            twice = replace(handle, materialized=handle.materialized * 2)
            once, file = (snapshot.handles.open_keyed(each, operator.record_context) for each in (handle, twice))
            assert isinstance(once, ChangelogFile)
            assert isinstance(file, ChangelogFile)
            assert read(file) == read(once)
    assert checked


# Classes behind Kryo, which no snapshot describes, and windows that the expected entries leave out.
UNDESCRIBED = frozenset({"op-kryo", "win-session"})


UNMATERIALIZED = "made/2.2.1/changelog-rocksdb-checkpoint"


def open_unmaterialized(fixtures: Path, key_serializers: Iterable[str] = ()) -> Snapshot:
    folder = fixtures / UNMATERIALIZED
    case = json.loads((folder / "params.json").read_text())
    written = case["conf"]["dstl.dfs.base-path"].removesuffix("/changelog").replace("///", "/")
    return open_snapshot(
        str(folder / case["snapshot"]),
        declare({"key_serializers": key_serializers}),
        path_mapping=[f"{written}={folder}"],
    )


@pytest.mark.slow
def test_a_checkpoint_before_the_first_materialization(fixtures: Path) -> None:
    folder = fixtures / UNMATERIALIZED
    canonical = open_snapshot(str(next((fixtures / "made/2.2.1/main-rocksdb-canonical").rglob("_metadata")).parent))
    given = {label: _key_of(canonical, label) for label in ("op-agg", "op-pojokey")}
    snapshot = open_unmaterialized(fixtures)
    states = open_operators(snapshot, given)
    snapshot.layout_context = canonical.layout_context
    expected = count_lines(read_expected(folder), UNDESCRIBED)
    lines = [line for each in states.values() for state in each for line in dump_state(state)]
    assert count_lines(lines, UNDESCRIBED) == expected
    assert expected.total() > 9000
    windows = [line for state in canonical.operator("win-session").states for line in dump_state(state)]
    assert count_lines(line for line in lines if line["op"] == "win-session") == count_lines(windows)


@pytest.mark.slow
def test_keys_that_are_tuples_are_found_in_a_checkpoint_of_flink(fixtures: Path) -> None:
    snapshot = open_unmaterialized(fixtures)
    state = snapshot.operator("op-agg").states[0]
    assert isinstance(state, KeyedState)
    assert state.key_serializer == tuple_of(STRING, INT)
    with pytest.raises(UnsupportedError, match="--key-serializer OPERATOR=TYPE"):
        _ = snapshot.operator("op-pojokey").states


@pytest.mark.slow
def test_keys_that_the_caller_describes_are_read(fixtures: Path) -> None:
    folder = fixtures / UNMATERIALIZED
    canonical = open_snapshot(str(next((fixtures / "made/2.2.1/main-rocksdb-canonical").rglob("_metadata")).parent))
    text = f"op-pojokey={describe(_key_of(canonical, 'op-pojokey'))}"
    snapshot = open_unmaterialized(fixtures, [text])
    states = [each for each in snapshot.operator("op-pojokey").states if isinstance(each, KeyedState)]
    lines = [line for each in states for line in dump_state(each)]
    assert count_lines(lines) == count_lines(each for each in read_expected(folder) if each["op"] == "op-pojokey")


def _key_of(snapshot: Snapshot, label: str) -> Serializer:
    return next(state for state in snapshot.operator(label).states if isinstance(state, KeyedState)).key_serializer
