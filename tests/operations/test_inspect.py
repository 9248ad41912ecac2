from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata import list_references
from state_pipelines.metadata.checkpoint import MasterState, SubtaskState
from state_pipelines.metadata.handles import (
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import ChannelSummary
from state_pipelines.operations.inspect import CoordinatorReport, MasterReport, OperatorReport, StateReport, inspect
from state_pipelines.snapshot import open_snapshot
from tests.connectors.test_kafka import ENUMERATORS, SPLIT
from tests.connectors.vectors import element, i64, versioned, wrap
from tests.serializers.literals import i32
from tests.snapshot.built import build_snapshot, list_operator, write_raw_keyed, write_raw_operator
from tests.snapshot.built import operator as operator_of
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, FIXTURES, MADE, NO_FIXTURES, Savepoint, orders, types
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

KAFKA = element(0, SPLIT)
Counts = Counter[tuple[str, str]]


def count_expected(savepoint: Savepoint) -> Counts:
    """Entries by operator and state, as `inspect` counts them; broadcast state counts in every subtask."""
    counts: Counts = Counter()
    for entry in savepoint.entries():
        if entry["kind"] == "timer":
            counts[entry["op"], f"_timer_state/{entry['domain']}_{entry['service']}"] += 1
        elif entry["kind"] != "broadcast":
            counts[entry["op"], entry["state"]] += 1
    return counts


def count_reported(savepoint: Savepoint) -> Counts:
    counts: Counts = Counter()
    for operator in inspect(savepoint.open(), count=True).operators:
        for state in operator.states:
            if state.kind != "BROADCAST":
                counts[operator.uid or operator.id, state.name] += state.entries or 0
    return counts


def find(savepoint: Savepoint, operator: str, state: str) -> tuple[OperatorReport, StateReport]:
    report = inspect(savepoint.open())
    (found,) = [each for each in report.operators if each.uid == operator]
    (one,) = [each for each in found.states if each.name == state]
    return found, one


@pytest.mark.parametrize("savepoint", ALL_TYPES + ALL_ORDERS, ids=str)
def test_entries_are_as_many_as_flink_read(savepoint: Savepoint) -> None:
    assert +count_reported(savepoint) == count_expected(savepoint)


@pytest.mark.slow
@pytest.mark.skipif(not FIXTURES, reason=NO_FIXTURES)
@pytest.mark.parametrize("savepoint", MADE, ids=str)
def test_entries_of_a_fixture_are_as_many_as_flink_read(savepoint: Savepoint) -> None:
    expected = count_expected(savepoint)
    wanted = {operator for operator, _ in expected}
    reported = +count_reported(savepoint)
    assert {each: number for each, number in reported.items() if each[0] in wanted} == expected


def test_a_state_is_described() -> None:
    operator, state = find(orders(), "orders", "quantities")
    assert (operator.parallelism, operator.max_parallelism, operator.error) == (2, 128, "")
    assert (state.kind, state.key, state.namespace) == ("MAP", "String", "VoidNamespace")
    assert state.value == "Map<String, Long>"
    assert (state.entries, state.subtasks) == (383, [0, 1])
    assert state.key_groups == [[0, 63], [64, 127]]
    assert state.undecoded == ""


def test_timers_have_no_namespace_serializer() -> None:
    _, state = find(orders(), "orders", "_timer_state/event_user-timers")
    assert (state.kind, state.namespace, state.entries) == ("TIMER", None, 65)


def test_broadcast_state_has_a_key_and_counts_every_copy() -> None:
    _, state = find(orders(), "pricing", "prices")
    assert (state.kind, state.key, state.namespace, state.key_groups) == ("BROADCAST", "String", None, [])
    assert state.entries == 12 * len(state.subtasks)


def test_nothing_is_counted_when_not_wanted() -> None:
    report = inspect(orders().open(), count=False)
    counts = {(state.entries, state.bytes, state.used_key_groups) for each in report.operators for state in each.states}
    assert counts == {(None, None, None)}


def test_the_snapshot_is_described() -> None:
    savepoint = types()
    report = inspect(savepoint.open())
    assert (report.kind, report.checkpoint_id, report.kryo_version) == ("savepoint", 1, 5)
    assert report.path == str(savepoint.path)
    data_files = [file for file in savepoint.path.iterdir() if file.name != "_metadata"]
    assert report.files == len(data_files)
    inlined = sum(operator.coordinator_bytes for operator in report.operators)
    assert report.bytes == inlined + sum(file.stat().st_size for file in data_files)


def test_state_inside_the_metadata_counts_as_bytes_but_not_as_files() -> None:
    report = inspect(types("2.2", "heap-snappy").open())
    assert report.files == 0
    assert report.bytes > 0


def test_the_report_is_json() -> None:
    report = inspect(orders().open())
    assert json.loads(json.dumps(report.to_json()))["operators"][0]["id"] == report.operators[0].id


def report_operator(case: str, uid: str) -> OperatorReport:
    """An operator of a snapshot of Flink 2.2.1 in this tree."""
    (found,) = [each for each in select("2.2.1", case) if "types" in each.name]
    (operator,) = [each for each in inspect(found.open()).operators if each.uid == uid]
    return operator


@pytest.mark.parametrize(
    ("case", "uid", "expected"),
    [
        ("heap", "state-kinds", "canonical"),
        ("rocksdb", "state-kinds", "canonical"),
        ("heap-native", "state-kinds", "heap native"),
        ("heap-checkpoint", "few-states", "heap native"),
        ("rocksdb-native", "state-kinds", "RocksDB native"),
        ("rocksdb-full", "few-states", "RocksDB native"),
        ("rocksdb-incremental", "state-kinds", "RocksDB incremental"),
        # Its first subtask has no file that could be shared.
        ("rocksdb-incremental", "tumbling-windows", "RocksDB incremental"),
        ("rocksdb-file-merging", "few-states", "RocksDB incremental"),
        ("forst", "few-states", "ForSt incremental"),
        ("changelog-heap-memory", "few-states", "changelog"),
        ("changelog-heap-files", "few-states", "changelog"),
        ("changelog-heap-materialized", "few-states", "changelog over heap native"),
        ("changelog-rocksdb-materialized", "few-states", "changelog over RocksDB incremental"),
    ],
)
def test_the_format_of_keyed_state_is_named(case: str, uid: str, expected: str) -> None:
    operator = report_operator(case, uid)
    (found,) = operator.keyed_formats
    assert (found.format, found.subtasks) == (expected, [0, 1])
    assert {state.format for state in operator.states} == {expected}


@pytest.mark.parametrize(
    ("case", "uid", "compression", "of_changes"),
    [
        ("heap", "state-kinds", "none", ""),
        ("heap-snappy", "state-kinds", "snappy", ""),
        ("heap-native", "state-kinds", "none", ""),
        ("heap-native-snappy", "state-kinds", "snappy", ""),
        ("rocksdb-incremental", "state-kinds", "snappy", ""),
        ("changelog-rocksdb-files", "few-states", "", "snappy"),
        ("changelog-heap-files", "few-states", "", "none"),
        ("changelog-heap-materialized", "few-states", "none", "snappy"),
    ],
)
def test_compression_is_told(case: str, uid: str, compression: str, of_changes: str) -> None:
    (found,) = report_operator(case, uid).keyed_formats
    assert (found.compression, found.change_compression) == (compression, of_changes)


@pytest.mark.slow
def test_files_that_may_be_shared_are_counted_apart() -> None:
    (case,) = [each for each in select("2.2.1", "rocksdb-incremental") if "types" in each.name]
    handles = [
        subtask.managed_keyed_state
        for operator in case.open().metadata.operator_states
        if operator.uid == "state-kinds"
        for subtask in operator.subtasks
    ]
    databases = [each for each in handles if isinstance(each, IncrementalRemoteKeyedStateHandle)]
    (found,) = report_operator("rocksdb-incremental", "state-kinds").keyed_formats
    assert found.shared_files == sum(len(each.shared_state) for each in databases)
    # The meta stream beside the files of the database.
    assert found.private_files == sum(len(each.private_state) + 1 for each in databases)
    assert found.shared_bytes + found.private_bytes == report_operator("rocksdb-incremental", "state-kinds").bytes


@pytest.mark.slow
def test_merged_files_are_told() -> None:
    assert report_operator("rocksdb-file-merging", "few-states").keyed_formats[0].file_merging
    assert not report_operator("rocksdb-incremental", "state-kinds").keyed_formats[0].file_merging


def test_changes_and_what_is_materialized_are_counted() -> None:
    (found,) = report_operator("changelog-rocksdb-materialized", "few-states").keyed_formats
    assert (found.bases, found.changes) == (2, 4)
    assert found.shared_files > 0
    (never,) = report_operator("changelog-heap-memory", "few-states").keyed_formats
    assert (never.bases, never.changes) == (0, 2)
    assert never.change_bytes > 0


@pytest.mark.slow
def test_a_key_serializer_that_was_found_comes_with_its_evidence() -> None:
    assert report_operator("changelog-heap-memory", "few-states").key_evidence.startswith("String")
    assert report_operator("changelog-heap-materialized", "few-states").key_evidence == ""


def test_timers_in_raw_keyed_state_are_states() -> None:
    operator = report_operator("rocksdb-heap-timers", "few-states")
    timers = {state.name: (state.kind, state.format) for state in operator.states if state.kind == "TIMER"}
    assert timers == {
        "_timer_state/event_user-timers": ("TIMER", "raw timers"),
        "_timer_state/processing_user-timers": ("TIMER", "raw timers"),
    }


def test_data_in_flight_is_summarised() -> None:
    (case,) = [each for each in select("2.2.1", "unaligned") if "types" in each.name]
    rows = case.open().operator("slow-map").state("_in_flight_data").to_arrow().to_pylist()
    found = report_operator("unaligned", "slow-map").in_flight
    assert found is not None
    for direction, summary in (("input", found.input), ("output", found.output)):
        sizes = [len(row["value_bytes"]) for row in rows if row["direction"] == direction]
        assert summary == ChannelSummary(handles=2, channels=2, buffers=len(sizes), bytes=sum(sizes))
    assert report_operator("unaligned", "slow-sums").in_flight is None


def test_finished_operators_are_told() -> None:
    assert report_operator("finished", "bounded").finished
    assert not report_operator("finished", "unbounded").finished


def test_finished_subtasks_are_told(tmp_path: Path) -> None:
    subtasks = (SubtaskState(0), SubtaskState(1, finished=True))
    (found,) = inspect(build_snapshot(tmp_path, operator_of("half", *subtasks))).operators
    assert (found.finished, found.finished_subtasks) == (False, [1])


def test_state_of_the_job_master_is_listed(tmp_path: Path) -> None:
    report = inspect(build_snapshot(tmp_path, masters=(MasterState("hook", 3, b"abcd"),)))
    assert report.master_states == [MasterReport("hook", 3, 4)]


def test_raw_state_is_reported_with_its_bytes(tmp_path: Path) -> None:
    subtask = SubtaskState(
        0,
        raw_keyed_state=write_raw_keyed({7: b"seven"}, KeyGroupRange(0, 128)),
        raw_operator_state=write_raw_operator([b"a", b"bc"]),
    )
    (found,) = inspect(build_snapshot(tmp_path, operator_of("raw", subtask)), count=False).operators
    keyed, raw = found.states
    assert (keyed.kind, keyed.entries, keyed.bytes, keyed.key_groups, keyed.value) == ("RAW", 1, 5, [[0, 127]], "")
    assert (raw.kind, raw.entries, raw.bytes) == ("RAW", 2, 3)
    assert "timers" in keyed.undecoded


def test_splits_of_a_connector_are_reported(tmp_path: Path) -> None:
    operator = list_operator("source", "SourceReaderState", [KAFKA], [KAFKA])
    (found,) = inspect(build_snapshot(tmp_path, operator)).operators
    connector = found.states[0].connector
    assert connector is not None
    assert (connector.connector, connector.kind, connector.rows) == ("kafka", "split", 2)
    assert connector.summary == "2 splits of orders"
    row = connector.first_rows[0]
    assert (row["topic"], row["partition"], row["offset"]) == ("orders", 3, 42)


def test_committables_that_wait_are_counted_by_checkpoint(tmp_path: Path) -> None:
    subtask = i32(3) + i32(0) + i32(1) + wrap(versioned(8, b"opaque") + i32(0) + i32(0)) + i32(1) + i32(0)
    checkpoint = i64(7) + i32(4) + i32(2) + i32(1) + wrap(subtask)
    stored = element(2, bytes.fromhex("b91f252c") + i32(1) + i32(1) + wrap(checkpoint))
    operator = list_operator("committer", "streaming_committer_raw_states", [stored])
    (found,) = inspect(build_snapshot(tmp_path, operator)).operators
    connector = found.states[0].connector
    assert connector is not None
    assert (connector.connector, connector.kind) == ("unknown sink", "committer")
    assert connector.summary == "1 committable pending: 1 for checkpoint 7"


def test_the_coordinator_of_a_known_source_is_decoded(tmp_path: Path) -> None:
    data, _ = ENUMERATORS[3]
    operator = list_operator("source", "SourceReaderState", [KAFKA], coordinator=i32(1) + versioned(3, data))
    (found,) = inspect(build_snapshot(tmp_path, operator)).operators
    coordinator = found.coordinator
    assert coordinator is not None
    assert (coordinator.version, coordinator.enumerator_version) == (1, 3)
    assert coordinator.connector is not None
    assert coordinator.connector.summary == "1 split known of orders"
    assert coordinator.connector.first_rows[0]["status"] == "assigned"


def test_splits_of_no_known_connector_leave_none_for_the_enumerator(tmp_path: Path) -> None:
    # A source of one's own, whose splits are eight bytes: neither those of Kafka nor those of a number sequence.
    own = element(1, bytes(8))
    operator = list_operator("source", "SourceReaderState", [own], coordinator=i32(1) + versioned(1, bytes(4)))
    (found,) = inspect(build_snapshot(tmp_path, operator)).operators
    assert found.coordinator is not None
    assert (found.coordinator.enumerator_version, found.coordinator.connector) == (1, None)


def test_an_ambiguous_coordinator_names_its_candidates(tmp_path: Path) -> None:
    # Splits of the readers would settle it.
    operator = list_operator("source", "SourceReaderState", [], coordinator=i32(1) + versioned(1, bytes(4)))
    open_question, *_ = inspect(build_snapshot(tmp_path, operator)).operators
    assert open_question.coordinator is not None
    assert open_question.coordinator.connector is not None
    assert open_question.coordinator.connector.candidates == ["kafka", "number-sequence"]
    decided, *_ = inspect(build_snapshot(tmp_path, operator, connectors={"source": "kafka"})).operators
    assert decided.coordinator is not None
    assert decided.coordinator.connector is not None
    assert decided.coordinator.connector.connector == "kafka"


def test_the_coordinator_of_another_operator_has_its_size(tmp_path: Path) -> None:
    operator = list_operator("source", "SourceReaderState", [KAFKA], coordinator=b"abc")
    (found,) = inspect(build_snapshot(tmp_path, operator)).operators
    assert found.coordinator == CoordinatorReport(3)


def test_a_missing_file_of_one_operator_does_not_hide_the_others(tmp_path: Path) -> None:
    source = orders()
    shutil.copytree(source.path, tmp_path / "copy")
    handles = [
        each for each in list_references(source.open().metadata) if isinstance(each.handle, RelativeFileStateHandle)
    ]
    (tmp_path / "copy" / handles[0].handle.relative_path).unlink()  # type: ignore[union-attr]
    operators = inspect(open_snapshot(str(tmp_path / "copy"))).operators
    errors = {each.id: [each.error, *(state.error for state in each.states)] for each in operators}
    (broken,) = [name for name in errors if any(errors[name])]
    assert broken == handles[0].operator.operator_id.hex()
    assert any("the file does not exist" in each for each in errors[broken])
    assert any(each.states for each in operators if each.id != broken)


def test_operator_state_is_shown_although_keyed_state_is_missing(tmp_path: Path) -> None:
    state = list_operator("both", "SourceReaderState", [KAFKA]).subtasks[0]
    missing = KeyGroupsStateHandle(KeyGroupRange(0, 128), (0,) * 128, RelativeFileStateHandle("gone", 10), "keyed")
    subtask = replace(state, managed_keyed_state=missing)
    (found,) = inspect(build_snapshot(tmp_path, operator_of("both", subtask))).operators
    assert [each.name for each in found.states] == ["SourceReaderState"]
    assert "gone" in found.error


@pytest.mark.slow
def test_the_report_of_everything_is_json() -> None:
    for name in ("unaligned", "forst", "changelog-heap-memory", "rocksdb-heap-timers"):
        for case in select("2.2.1", name):
            json.dumps(inspect(case.open()).to_json(), allow_nan=False)
