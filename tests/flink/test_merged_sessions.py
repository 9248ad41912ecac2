"""Session windows under other keys: real Flink restores what a job keyed by them from its start has.

One job keys numbers by six keys, the other by two. The savepoint of the first is migrated to the keys of the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.flink.harness import Entry

pytestmark = [pytest.mark.flink, pytest.mark.spark]

VERSION = "2.2.1"
RULES = {"sums": {"window-contents": "sum(value)"}, "lists": {}}


def list_sessions(entries: list[Entry], uid: str) -> dict[tuple[Any, str], tuple[Any, list[int]]]:
    """By key and session: its contents and the times of its timers.

    Under which window contents are stored is up to the order in which Flink meets windows.
    """
    own: list[dict[str, Any]] = [each for each in entries if each["op"] == uid]
    contents = {(each["key"], str(each["ns"])): each["value"] for each in own if each.get("state") == "window-contents"}
    found: dict[tuple[Any, str], tuple[Any, list[int]]] = {}
    for each in own:
        if each.get("state") == "merging-window-set":
            for session, stored in (pair["@tuple"] for pair in each["value"]):
                value = contents.pop((each["key"], str(stored)))
                found[each["key"], str(session)] = sorted(value) if isinstance(value, list) else value, []
    assert not contents
    for each in sorted((each for each in own if each["kind"] == "timer"), key=lambda each: each["ts"]):
        found[each["key"], str(each["ns"])][1].append(each["ts"])
    return found


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Entry]]]:
    if reason := harness.missing_jdk():
        pytest.skip(reason)
    return {
        name: harness.make_snapshot(VERSION, jobs.sessions_job(name), tmp_path_factory.mktemp(name), parallelism=1)
        for name in ("Fine", "Coarse")
    }


@pytest.fixture(scope="module")
def migrated(
    spark: SparkSession, snapshots: dict[str, tuple[Path, list[Entry]]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    from state_pipelines.spark import migrate

    changes = [
        {
            "operator": uid,
            "upgrade": [{"key": {"type": "Int", "expression": "state_key % 2", "on_equal": rules}}],
            "downgrade": {"impossible": "keys are united"},
        }
        for uid, rules in RULES.items()
    ]
    target = tmp_path_factory.mktemp("new") / "migrated"
    snapshot = open_snapshot(str(snapshots["Fine"][0]), uids=tuple(RULES))
    migrate(snapshot, parse_migration({"revision": "1", "changes": changes}), str(target), spark=spark)
    return target


@pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_flink_restores_the_sessions_of_the_new_keys(
    snapshots: dict[str, tuple[Path, list[Entry]]], migrated: Path, backend: str
) -> None:
    result = harness.restore(VERSION, migrated, jobs.sessions_job("Coarse"), backend=backend)
    assert result.ok, result.error
    for uid in RULES:
        wanted = list_sessions(snapshots["Coarse"][1], uid)
        assert list_sessions(result.entries, uid) == wanted
        assert 1 < len(wanted) < len(list_sessions(snapshots["Fine"][1], uid))
