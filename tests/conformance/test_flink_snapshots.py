"""Snapshots of Flink's own migration tests, from 1.8 on, and of its SQL plans: everything in them is read.

Source of the values: `StatefulJobSnapshotMigrationITCase`, `StatefulJobWBroadcastStateMigrationITCase`,
`MigrationTestUtils` and the tests of operator state of Flink.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.json import dumps
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata import write_metadata
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.storage import read_file
from tests.conformance.rows import to_entries
from tests.conformance.test_snapshots import assert_same, content, decoded_states, iter_canonical
from tests.keyed.canonical_files import rewrite
from tests.snapshots import ENTRY_KINDS

if TYPE_CHECKING:
    from tests.flink.harness import Entry

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
ROOT = Path(FIXTURES or "", "flink")
DOCS = Path(__file__).parents[2] / "docs/formats.md"
FOLDERS = sorted(path.parent for path in ROOT.rglob("_metadata")) if FIXTURES else []
UDF = "stateful-udf-migration-itcase-"
BROADCAST = "stateful-broadcast-udf-migration-itcase-"
OPERATOR_STATE = "operatorstate-"
UIDS = (
    *(f"{name}{number}" for name in ("CheckpointingSource", "BrCheckpointingSource") for number in (1, 2)),
    *(f"{name}{number}" for name in ("CheckpointingKeyedStateFlatMap", "BrProcess") for number in (1, 2)),
    *(f"CheckpointingTimelyStatefulOperator{number}" for number in (1, 2)),
)

UNREADABLE = {
    "type-serializer-snapshot-migration-itcase": "its serializer is a user's own class",
}
"""Families of snapshots with a state that is not read -> why."""


def family(folder: Path) -> str:
    return folder.relative_to(ROOT).parts[1].rpartition("-flink1.")[0] or folder.relative_to(ROOT).parts[1]


READABLE = [folder for folder in FOLDERS if family(folder) not in UNREADABLE]
needs_fixtures = pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)
each_folder = pytest.mark.parametrize("folder", READABLE, ids=lambda folder: str(folder.relative_to(ROOT)))


def of_family(prefix: str) -> pytest.MarkDecorator:
    found = [folder for folder in READABLE if folder.relative_to(ROOT).parts[1].startswith(prefix)]
    return pytest.mark.parametrize("folder", found, ids=lambda folder: folder.relative_to(ROOT).parts[1])


def open_folder(folder: Path) -> Snapshot:
    return open_snapshot(str(folder), uids=UIDS)


@cache
def dump_lines(folder: Path) -> list[Entry]:
    lines = (json.loads(dumps(line)) for line in dump(open_folder(folder)))
    return [line for line in lines if line["kind"] in ENTRY_KINDS]


def test_the_documentation_lists_the_same_unreadable_snapshots() -> None:
    section = DOCS.read_text().split("### Snapshots that are not read")[1].split("\n#")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE)) == UNREADABLE


@needs_fixtures
def test_there_are_snapshots_of_both_kinds() -> None:
    assert Counter(folder.relative_to(ROOT).parts[0] for folder in FOLDERS) >= Counter(snapshots=40, sql=55)


@each_folder
def test_every_value_is_decoded(folder: Path) -> None:
    assert [line for line in dump_lines(folder) if "@undecoded" in dumps(line)] == []


@each_folder
def test_tables_hold_what_is_dumped(folder: Path) -> None:
    states = [*decoded_states(open_folder(folder))]
    assert_same(dump_lines(folder), (entry for state in states for entry in to_entries(state, state.to_arrow())))


@each_folder
def test_keys_lie_in_the_key_group_of_their_hash(folder: Path) -> None:
    for state in decoded_states(open_folder(folder)):
        if isinstance(state, KeyedState):
            table = state.to_arrow(TableOptions(columns=("state_key", "key_group", "hashed_key_group"), key_hash=True))
            pairs = zip(*(table[name].to_pylist() for name in ("key_group", "hashed_key_group")), strict=True)
            assert [pair for pair in pairs if pair[1] not in (None, pair[0])] == []


@each_folder
def test_everything_is_inspected(folder: Path) -> None:
    report = inspect(open_folder(folder), count=True)
    assert [operator.error for operator in report.operators if operator.error] == []
    assert [state.undecoded for operator in report.operators for state in operator.states if state.undecoded] == []


@each_folder
def test_metadata_is_written_byte_for_byte(folder: Path) -> None:
    snapshot = open_folder(folder)
    assert write_metadata(snapshot.metadata) == read_file(snapshot.location.metadata)


@each_folder
def test_canonical_files_are_written_byte_for_byte(folder: Path) -> None:
    for file in iter_canonical(open_folder(folder)):
        again = rewrite(file)
        assert content(again) == content(file)
        assert read_whole_stream(again.stream) == read_whole_stream(file.stream)


@pytest.mark.parametrize("name", UNREADABLE)
@needs_fixtures
def test_what_is_not_read_is_said(name: str) -> None:
    folders = [folder for folder in FOLDERS if family(folder) == name]
    assert folders
    for folder in folders:
        lines = dump_lines(folder)
        (unread,) = {json.dumps(line["state"]) for line in lines if "no reader is registered" in json.dumps(line)}
        assert unread


DRAGONS = ("Here be dragons!", "Here be more dragons!", "Here be yet more dragons!", "Here be the mostest dragons!")


def values(lines: list[Entry], operator: str, state: str) -> list[object]:
    return sorted((line["value"] for line in lines if (line["op"], line.get("state")) == (operator, state)), key=str)


@of_family(UDF)
def test_list_and_union_state_of_the_sources(folder: Path) -> None:
    lines = dump_lines(folder)
    assert values(lines, "CheckpointingSource1", "source-state") == sorted(DRAGONS)
    assert values(lines, "CheckpointingSource2", "source-state") == sorted(DRAGONS)
    modes = {line["op"]: line["mode"] for line in lines if line["kind"] == "operator"}
    assert modes == {"CheckpointingSource1": "SPLIT_DISTRIBUTE", "CheckpointingSource2": "UNION"}


@of_family(UDF)
@pytest.mark.parametrize("number", [1, 2])
def test_keyed_state_and_timers_of_four_keys(folder: Path, number: int) -> None:
    lines = [line for line in dump_lines(folder) if line["op"].endswith(f"Operator{number}")]
    keys = [{"@tuple": [each]} for each in range(4)]
    keyed = [line for line in lines if line["kind"] == "keyed"]
    assert sorted(((line["key"], line["ns"], line["value"]) for line in keyed), key=str) == [
        (key, each, each) for each, key in enumerate(keys)
    ]
    for domain in ("event", "processing"):
        timers = [line for line in lines if line.get("domain") == domain]
        assert sorted(((line["service"], line["key"], line["ns"]) for line in timers), key=str) == [
            ("timer", key, each) for each, key in enumerate(keys)
        ]
    # Ten milliseconds after no watermark or after the first one, which is 0.
    assert {line["ts"] for line in lines if line.get("domain") == "event"} <= {-(1 << 63) + 10, 10}
    flat = [line for line in dump_lines(folder) if line["op"].endswith(f"FlatMap{number}")]
    assert sorted(((line["key"], line["ns"], line["value"]) for line in flat), key=str) == [
        (key, None, each) for each, key in enumerate(keys)
    ]


@of_family(BROADCAST)
def test_broadcast_state(folder: Path) -> None:
    found: dict[tuple[str, str], Counter[tuple[object, object]]] = {}
    for line in dump_lines(folder):
        if line["kind"] == "broadcast":
            found.setdefault((line["op"], line["state"]), Counter())[line["ukey"], line["value"]] += 1
    four = range(4)
    # Each of the four subtasks has all of it.
    assert found == {
        ("BrProcess1", "broadcast-state-1"): Counter({(each, each): 4 for each in four}),
        ("BrProcess1", "broadcast-state-2"): Counter({(str(each), each): 4 for each in four}),
        ("BrProcess2", "broadcast-state-3"): Counter({(each, str(each)): 4 for each in four}),
    }


@of_family(BROADCAST)
def test_state_of_the_sources_of_a_broadcast(folder: Path) -> None:
    lines = dump_lines(folder)
    for uid in UIDS[:4]:
        assert values(lines, uid, "source-state") == sorted(DRAGONS)


@of_family(OPERATOR_STATE)
def test_operator_state_of_chains(folder: Path) -> None:
    found: dict[str, list[str]] = {}
    for line in dump_lines(folder):
        if line["kind"] == "operator":
            found.setdefault(line["op"], []).append(line["value"])
    chains = sorted(sorted(each) for each in found.values())
    names = ["first", "second"] if "complexKeyed" in str(folder) else ["first", "second", "third"]
    assert chains == [[f"{name}{number}" for number in range(4)] for name in names]


@of_family(f"{OPERATOR_STATE}complexKeyed")
def test_list_state_of_ten_keys(folder: Path) -> None:
    keyed = [line for line in dump_lines(folder) if line["kind"] == "keyed"]
    assert sorted((line["key"]["@tuple"][0], line["value"]) for line in keyed) == [(each, [each]) for each in range(10)]


@of_family("legacy-raw-state-heap-timers")
def test_a_timer_in_raw_keyed_state(folder: Path) -> None:
    (timer,) = (line for line in dump_lines(folder) if line["kind"] == "timer")
    assert (timer["service"], timer["domain"], timer["key"], timer["ts"]) == ("user-timers", "event", 0, 2)
