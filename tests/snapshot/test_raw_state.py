from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, NotFoundError, UsageError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.snapshot.operator_state import IN_FLIGHT_NAME, RAW_KEYED_NAME, RAW_OPERATOR_NAME
from tests.keyed.raw_sections import write_raw_timers
from tests.keyed.test_raw_timers import KRYO_SECTION, SECTION
from tests.snapshot.built import build_snapshot, operator, write_raw_keyed, write_raw_operator
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Operator, State

LOW, HIGH = KeyGroupRange(0, 64), KeyGroupRange(64, 64)


def open_raw(directory: Path) -> Operator:
    """Raw keyed state that is not timers in two subtasks, raw operator state in the second."""
    subtasks = (
        SubtaskState(0, raw_keyed_state=write_raw_keyed({3: b"three", 5: b""}, LOW)),
        SubtaskState(
            1,
            raw_keyed_state=write_raw_keyed({100: b"hundred"}, HIGH),
            raw_operator_state=write_raw_operator([b"first", b"2"]),
        ),
    )
    return build_snapshot(directory, operator("raw", *subtasks), uids=["raw"]).operator("raw")


def rows(state: State, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row[each] for each in columns) for row in state.to_arrow().to_pylist()]


def test_raw_keyed_state_is_a_table_of_bytes(tmp_path: Path) -> None:
    state = open_raw(tmp_path).state(RAW_KEYED_NAME)
    assert rows(state, "key_group", "subtask", "value_bytes") == [(3, 0, b"three"), (5, 0, b""), (100, 1, b"hundred")]


def test_raw_keyed_state_says_why_it_is_not_timers(tmp_path: Path) -> None:
    state = open_raw(tmp_path).state(RAW_KEYED_NAME)
    assert state.kind == "RAW"
    assert set(rows(state, "reason")) == {(state.undecoded,)}
    assert "timers" in state.undecoded


def test_some_key_groups_of_raw_keyed_state(tmp_path: Path) -> None:
    table = open_raw(tmp_path).state(RAW_KEYED_NAME).to_arrow(key_groups=KeyGroupRange(4, 90))
    assert table["key_group"].to_pylist() == [5]


def test_raw_operator_state_is_a_table_of_bytes(tmp_path: Path) -> None:
    state = open_raw(tmp_path).state(RAW_OPERATOR_NAME)
    assert state.kind == "RAW"
    assert rows(state, "subtask", "list_index", "value_bytes") == [(1, 0, b"first"), (1, 1, b"2")]


def test_raw_state_is_listed(tmp_path: Path) -> None:
    assert [state.name for state in open_raw(tmp_path).states] == [RAW_KEYED_NAME, RAW_OPERATOR_NAME]


def test_raw_state_is_counted(tmp_path: Path) -> None:
    keyed, raw = (state.count() for state in open_raw(tmp_path).states)
    assert (keyed.entries, keyed.bytes, keyed.entries_by_key_group) == (3, 12, {3: 1, 5: 1, 100: 1})
    assert (raw.entries, raw.bytes) == (2, 6)


def test_columns_of_raw_state_can_be_chosen(tmp_path: Path) -> None:
    table = open_raw(tmp_path).state(RAW_OPERATOR_NAME).to_arrow(TableOptions(columns=("value_bytes",)))
    assert table.to_pylist() == [{"value_bytes": b"first"}, {"value_bytes": b"2"}]


def test_raw_state_has_no_keys(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raw state is not decoded"):
        open_raw(tmp_path).state(RAW_KEYED_NAME).to_arrow(TableOptions(key="a"))


def test_raw_operator_state_has_no_key_groups(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no key groups"):
        open_raw(tmp_path).state(RAW_OPERATOR_NAME).to_arrow(key_groups=LOW)


def test_parts_travel_to_other_processes(tmp_path: Path) -> None:
    for state in open_raw(tmp_path).states:
        for subtask_state in state.subtask_states:
            assert pickle.loads(pickle.dumps(subtask_state)) == subtask_state


def test_timers_in_raw_keyed_state_are_not_raw(tmp_path: Path) -> None:
    (case,) = select("2.2.1", "rocksdb-heap-timers")
    found = {state.name: state.kind for state in case.open().operator("few-states").states}
    assert found["_timer_state/event_user-timers"] == "TIMER"
    assert RAW_KEYED_NAME not in found


def open_section(directory: Path, section: bytes) -> Operator:
    subtask = SubtaskState(0, raw_keyed_state=write_raw_keyed({0: section}, KeyGroupRange(0, 128)))
    return build_snapshot(directory, operator("raw", subtask), uids=["raw"]).operator("raw")


@pytest.mark.parametrize("section", [SECTION[:-1], SECTION + b"\0", SECTION[:6], SECTION[:30] + bytes(1)])
def test_damaged_timers_are_not_taken_for_something_else(section: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        _ = open_section(tmp_path, section).states
    assert caught.value.where.file == "raw keyed state"
    with pytest.raises(FormatError):
        _ = open_section(tmp_path, section).raw_states


def test_timers_of_types_that_must_be_told_say_so(tmp_path: Path) -> None:
    (state,) = open_section(tmp_path, KRYO_SECTION).states
    assert state.name == RAW_KEYED_NAME
    assert "com.acme.Key" in state.undecoded
    assert "--classes" in state.undecoded


def test_timers_of_an_old_form_say_so(tmp_path: Path) -> None:
    (state,) = open_section(tmp_path, SECTION[:4] + bytes.fromhex("00000001") + SECTION[8:]).states
    assert "a Flink older than 1.8" in state.undecoded
    assert "take a savepoint there" in state.undecoded


def test_raw_keyed_state_without_any_timer_service_is_empty(tmp_path: Path) -> None:
    subtask = SubtaskState(0, raw_keyed_state=write_raw_keyed({0: write_raw_timers([])}, KeyGroupRange(0, 128)))
    assert build_snapshot(tmp_path, operator("raw", subtask)).operators[0].states == ()


def test_data_in_flight_is_a_table_of_buffers() -> None:
    (case,) = select("2.2.1", "unaligned")
    slow = case.open().operator("slow-map")
    assert slow.in_flight is not None
    found = rows(slow.in_flight, "subtask", "direction", "gate_or_partition", "channel", "buffer_index")
    assert sorted(found) == [(subtask, direction, 0, 1, 0) for subtask in (0, 1) for direction in ("input", "output")]
    table = slow.in_flight.to_arrow()
    assert slow.in_flight.count().bytes == sum(map(len, table["value_bytes"].to_pylist()))


def test_data_in_flight_is_found_by_name_but_not_listed() -> None:
    (case,) = select("2.2.1", "unaligned")
    slow = case.open().operator("slow-map")
    assert slow.states == ()
    assert slow.state(IN_FLIGHT_NAME) is slow.in_flight


def test_without_data_in_flight_there_is_no_such_state(tmp_path: Path) -> None:
    found = open_raw(tmp_path)
    assert found.in_flight is None
    with pytest.raises(NotFoundError):
        found.state(IN_FLIGHT_NAME)
