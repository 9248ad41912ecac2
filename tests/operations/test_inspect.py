from __future__ import annotations

import json
from collections import Counter

import pytest

from state_pipelines.operations.inspect import OperatorReport, StateReport, inspect
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, FIXTURES, MADE, NO_FIXTURES, Savepoint, orders, types

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
