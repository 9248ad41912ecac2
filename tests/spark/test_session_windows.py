"""Session windows under other keys and without some contents: what the operator itself has for the new keys."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    EventTimeSessionWindows,
    ListStateDescriptor,
    PassThroughWindowFunction,
    ReducingStateDescriptor,
    Time,
    Types,
    WindowOperator,
    write_savepoint,
)
from state_pipelines.errors import IncompatibleError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult

GAP, LATENESS, WATERMARK = 10, 6, 14
SUMS = ReducingStateDescriptor("window-contents", lambda one, other: one + other, Types.LONG())
LISTS = ListStateDescriptor("window-contents", Types.LONG())


def list_elements() -> list[tuple[int, int]]:
    """Values with their times: sessions that touch those of other keys, lie inside of them, and lie apart.

    None is over when the watermark is reached, but some have fired and wait for late elements.
    """
    chosen = random.Random(7)
    # Of key 0, fired; key 3 goes on from its last millisecond.
    elements = [(0, 0), (6, 3), (3, 13), (9, 22)]
    elements += [(chosen.randrange(1000), chosen.randrange(20, 400)) for _ in range(80)]
    return elements


def run(contents: Any, modulus: int) -> WindowOperator:
    operator = WindowOperator(
        PassThroughWindowFunction(),
        EventTimeSessionWindows.with_gap(Time.milliseconds(GAP)),
        contents,
        lambda value: value % modulus,
        Types.LONG(),
        allowed_lateness=Time.milliseconds(LATENESS),
    )
    operator.open()
    for value, timestamp in list_elements():
        operator.process(value, timestamp)
    operator.advance_watermark(WATERMARK)
    return operator


def write(path: Path, modulus: int) -> Snapshot:
    operators = {"sums": [run(SUMS, modulus)], "lists": [run(LISTS, modulus)]}
    write_savepoint(str(path), operators)
    return open_snapshot(str(path))


def list_sessions(snapshot: Snapshot, uid: str) -> dict[tuple[int, str], tuple[Any, list[int]]]:
    """By key and session: its contents, sorted, and the times of its timers."""
    entries: list[dict[str, Any]] = list(dump(snapshot, operator=uid))
    contents = {
        (each["key"], str(each["ns"])): each["value"] for each in entries if each.get("state") == "window-contents"
    }
    found: dict[tuple[int, str], tuple[Any, list[int]]] = {}
    for each in entries:
        for session, stored in _list_pairs(each):
            value = contents.pop((each["key"], stored))
            found[each["key"], session] = sorted(value) if isinstance(value, list) else value, []
    assert not contents
    for each in entries:
        if each["kind"] == "timer":
            found[each["key"], str(each["ns"])][1].append(each["ts"])
            found[each["key"], str(each["ns"])][1].sort()
    return found


def _list_pairs(entry: dict[str, Any]) -> list[tuple[str, str]]:
    if entry.get("state") != "merging-window-set":
        return []
    return [(str(session), str(stored)) for session, stored in (pair["@tuple"] for pair in entry["value"])]


CHANGES = [
    {
        "operator": "sums",
        "upgrade": [
            {"key": {"type": "Long", "expression": "state_key % 3", "on_equal": {"window-contents": "sum(value)"}}}
        ],
        "downgrade": {"impossible": "keys are united"},
    },
    {
        "operator": "lists",
        "state": "window-contents",
        "upgrade": [{"filter": {"keep": "value % 4 = 0", "reason": "the others do not count"}}],
        "downgrade": {"impossible": "not asked"},
    },
]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return write(tmp_path_factory.mktemp("old") / "savepoint", 6)


@pytest.fixture(scope="module")
def changed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    target = tmp_path_factory.mktemp("new") / "savepoint"
    return migrate(old, parse_migration({"revision": "1", "changes": CHANGES}), str(target), spark=spark)


def test_sessions_are_those_of_a_job_that_has_always_had_the_new_keys(
    old: Snapshot, changed: MigrationResult, tmp_path: Path
) -> None:
    wanted = list_sessions(write(tmp_path / "savepoint", 3), "sums")
    found = list_sessions(changed.snapshot, "sums")
    assert found == wanted
    assert len(found) < len(list_sessions(old, "sums"))
    # One has fired and is late, so that only the timer of its end is left.
    assert {len(timers) for _, timers in list_sessions(old, "sums").values()} == {1, 2}


def test_sessions_go_with_their_contents(old: Snapshot, changed: MigrationResult) -> None:
    before, after = (list_sessions(each, "lists") for each in (old, changed.snapshot))
    kept = {key: ([each for each in values if each % 4 == 0], timers) for key, (values, timers) in before.items()}
    assert after == {key: each for key, each in kept.items() if each[0]}
    assert len(after) < len(before)
    assert any("are all left out are dropped" in note for note in changed.notes)


def test_the_proof_looks_at_the_states_together(changed: MigrationResult) -> None:
    assert changed.proof is not None
    (check,) = [each for each in changed.proof.checks if each.name == "states_agree"]
    assert check.ok
    assert "merging-window-set" in check.description


def test_contents_that_meet_need_a_rule(spark: SparkSession, old: Snapshot, tmp_path: Path) -> None:
    content = {**CHANGES[0], "upgrade": [{"key": {"type": "Long", "expression": "state_key % 3"}}], "revision": "1"}
    with pytest.raises(IncompatibleError, match="several values get the same key") as caught:
        migrate(old, parse_migration(content), str(tmp_path / "up"), spark=spark, prove=False)
    assert "on_equal" in caught.value.hint
    assert not (tmp_path / "up").exists()
