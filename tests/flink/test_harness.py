from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flink.harness import Entry

TIMER: Entry = {"kind": "timer", "op": "a", "key": 1, "ts": 5, "subtask": 0}
PRICE: Entry = {"kind": "broadcast", "op": "b", "state": "prices", "ukey": "x", "value": 1.5, "subtask": 0}


def test_entries_are_equal_whatever_subtask_holds_them() -> None:
    assert not harness.diff_entries([TIMER], [{**TIMER, "subtask": 1}])


def test_each_subtask_may_hold_the_broadcast_state() -> None:
    assert not harness.diff_entries([PRICE], [PRICE, {**PRICE, "subtask": 1}])


def test_an_entry_too_many_is_a_difference() -> None:
    diff = harness.diff_entries([TIMER], [TIMER, TIMER])

    assert diff.extra == ['{"key": 1, "kind": "timer", "op": "a", "ts": 5}']
    assert diff.missing == []


def test_another_value_is_a_difference() -> None:
    assert harness.diff_entries([PRICE], [{**PRICE, "value": 2.5}])


@pytest.mark.flink
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_timer_before_the_one_that_was_deleted_last_is_seen(version: str, backend: str, tmp_path: Path) -> None:
    _, entries = harness.make_snapshot(version, jobs.reminders_job(), tmp_path, backend=backend)
    assert [each["ts"] for each in entries if each["kind"] == "timer"] == [100]
