"""Dead keys dropped from all states and timers of an operator, decided by one state."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.migration import Migration, parse_migration
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.spark import MigrationResult, migrate
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark


def make(*steps: dict[str, Any]) -> Migration:
    impossible = {"impossible": "dropped keys do not come back"}
    return parse_migration({"revision": "1", "operator": "orders", "upgrade": list(steps), "downgrade": impossible})


def keyed(snapshot: Snapshot) -> list[KeyedState]:
    return [each for each in snapshot.operator("orders").keyed_states if isinstance(each, KeyedState)]


def count(snapshot: Snapshot, prefix: str = "") -> dict[str, Counter[str]]:
    """The entries per key of every keyed state and of the timers."""
    found = {state.name: Counter(state.to_arrow().column("state_key").to_pylist()) for state in keyed(snapshot)}
    return {name: Counter({f"{prefix}{key}": n for key, n in each.items()}) for name, each in found.items()}


def keep(counts: dict[str, Counter[str]], keys: set[str]) -> dict[str, Counter[str]]:
    return {name: Counter({key: n for key, n in each.items() if key in keys}) for name, each in counts.items()}


@pytest.fixture(scope="module")
def old() -> Snapshot:
    return orders().open()


@pytest.fixture(scope="module")
def seen(old: Snapshot) -> dict[str, int]:
    rows = old.operator("orders").state("last-seen").to_arrow().to_pylist()
    return {row["state_key"]: row["value"]["epoch_second"] for row in rows}


@pytest.fixture(scope="module")
def cut(seen: dict[str, int]) -> int:
    return sorted(seen.values())[len(seen) // 2]


@pytest.fixture(scope="module")
def up(spark: SparkSession, old: Snapshot, cut: int, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    step = {"by": "last-seen", "keep": f"value.epoch_second >= {cut}", "reason": "not seen lately"}
    return migrate(old, make({"filter": step}), str(tmp_path_factory.mktemp("up") / "new"), spark=spark)


def test_dead_keys_leave_all_states_and_timers(
    old: Snapshot, up: MigrationResult, seen: dict[str, int], cut: int
) -> None:
    before = count(old)
    unknown = {key for each in before.values() for key in each} - seen.keys()
    found = count(up.snapshot)
    assert found == keep(before, {key for key, moment in seen.items() if moment >= cut} | unknown)
    assert all(0 < found[name].total() < before[name].total() for name in before)


def test_the_filter_is_proven(up: MigrationResult) -> None:
    assert up.proof is not None
    assert up.proof.ok
    assert any("left out: not seen lately" in each.description for each in up.proof.checks)


def test_lists_and_maps_of_kept_keys_stay_as_they_are(old: Snapshot, up: MigrationResult) -> None:
    for name in ("history", "quantities", "order"):
        rows = [each.operator("orders").state(name).to_arrow().to_pylist() for each in (old, up.snapshot)]
        kept = {row["state_key"] for row in rows[1]}
        assert sorted(map(str, rows[1])) == sorted(str(row) for row in rows[0] if row["state_key"] in kept)


@pytest.fixture(scope="module")
def renamed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    """Decided by entries of a map; keys without one go; then all keys change."""
    step = {"by": "quantities", "keep": "value > 3", "missing": "drop", "reason": "small"}
    steps = make({"filter": step}, {"key": {"type": "String", "expression": "concat('x', state_key)"}})
    return migrate(old, steps, str(tmp_path_factory.mktemp("renamed") / "new"), spark=spark)


def test_a_map_decides_by_any_of_its_entries_before_the_keys_change(old: Snapshot, renamed: MigrationResult) -> None:
    rows = old.operator("orders").state("quantities").to_arrow().to_pylist()
    wanted = keep(count(old, "x"), {f"x{row['state_key']}" for row in rows if row["map_value"] > 3})
    found = count(renamed.snapshot)
    assert found == wanted
    assert 0 < found["order"].total() < count(old)["order"].total()


def test_elements_of_united_lists_are_filtered_and_numbered_under_their_new_key(
    spark: SparkSession, old: Snapshot, tmp_path: Path
) -> None:
    """All keys become two, whose lists one after the other lose some elements."""
    rows = old.operator("orders").state("history").to_arrow().to_pylist()
    new_key = "concat('k', ascii(reverse(state_key)) % 2)"
    lost = sorted(row["list_value"] for row in rows)[len(rows) // 2]
    states = ("quantities", "last-seen", "order")
    united = {"type": "String", "expression": new_key, "on_equal": dict.fromkeys(states, "last")}
    shorter = {"filter": {"keep": f"value < '{lost}'", "reason": "late in the alphabet"}}
    downgrade = {"impossible": "lists stay united"}
    content = {
        "revision": "1",
        "changes": [
            {"operator": "orders", "upgrade": [{"key": united}], "downgrade": downgrade},
            {"operator": "orders", "state": "history", "upgrade": [shorter], "downgrade": downgrade},
        ],
    }
    result = migrate(old, parse_migration(content), str(tmp_path / "new"), spark=spark)
    found = result.snapshot.operator("orders").state("history").to_arrow().to_pylist()
    wanted = Counter(
        (f"k{ord(row['state_key'][-1]) % 2}", row["list_value"]) for row in rows if row["list_value"] < lost
    )
    assert Counter((row["state_key"], row["list_value"]) for row in found) == wanted
    assert {key for key, _ in wanted} == {"k0", "k1"}
    for key in ("k0", "k1"):
        indices = [row["list_index"] for row in found if row["state_key"] == key]
        assert sorted(indices) == list(range(len(indices)))
