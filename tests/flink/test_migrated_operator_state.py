"""List and broadcast state that Flink wrote, migrated, as Flink itself reads it back.

A savepoint of Flink 1.20 is taken with and without compression and migrated; a job with the new classes and states is
restored from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.flink.harness import Entry

pytestmark = [pytest.mark.flink, pytest.mark.spark]

OLD = "1.20.5"
UID = "stores"
RESTORES = (
    ("2.3.0", "hashmap", 2),
    ("2.3.0", "rocksdb", 3),
    ("2.2.1", "hashmap", 2),
    ("2.2.1", "rocksdb", 3),
    ("1.20.5", "hashmap", 3),
)


def change(state: str, *upgrade: Any) -> dict[str, Any]:
    impossible = {"impossible": "Flink's view of it is not what is tested"}
    return {"operator": UID, "state": state, "upgrade": list(upgrade), "downgrade": impossible}


FIELDS = (
    {"rename": {"owner": "holder", "home.zip": "postcode"}},
    {"cast": {"field": "level", "to": "long"}},
    {"cast": {"field": "home.postcode", "to": "String"}},
    {"set": {"field": "visits", "expression": "visits + 1"}},
    {"drop": {"field": "note"}},
)
CHANGES = (
    change(
        "accounts", *FIELDS, {"add": {"field": "currency", "type": "String", "expression": "concat('EUR ', level)"}}
    ),
    change("numbers", {"filter": {"keep": "value % 2 = 0", "reason": "odd"}}, {"rename_state": "evens"}),
    change("texts", {"convert": {"to": "Long", "expression": "CAST(value AS BIGINT)"}}, {"rename_state": "numbers"}),
    change("gone", {"drop_state": {"reason": "nobody reads it"}}),
    change("offsets", {"drop": {"field": "f1"}}, {"reorder": ["f1", "f0"]}),
    change("rules", *FIELDS, {"add": {"field": "currency", "type": "String", "expression": "concat('EUR ', map_key)"}}),
    change("names", {"filter": {"keep": "map_key <> 'name-3'", "reason": "the third"}}, {"rename_state": "titles"}),
    change("same", {"drop_state": {"reason": "its keys have the old class"}}),
)


def job(main: str, side: str, *, compressed: bool = False) -> jobs.Job:
    folders = (f"tests/flink/java/operator-state/{each}" for each in ("job", side))
    orders = ("examples/orders/java/v1", "examples/orders/java/job")
    settings = {"execution.checkpointing.snapshot-compression": "true"} if compressed else {}
    return jobs.Job(main, (*folders, *orders), settings=settings)


class Migrated(NamedTuple):
    """A savepoint before and after; `entries` are those before."""

    entries: list[Entry]
    path: Path


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "compressed"])
def migrated(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Migrated:
    from state_pipelines.spark import migrate

    if reason := harness.missing_jdk():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("old")
    path, entries = harness.make_snapshot(OLD, job("stores.OldJob", "before", compressed=request.param), folder)
    old = open_snapshot(str(path), uids=[UID])
    unread = [old.handles.open_operator(each.managed_operator_state) for each in old.operator(UID).metadata.subtasks]
    assert [each is not None and each.header.compressed for each in unread] == [request.param] * 2
    result = migrate(old, parse_migration({"revision": "1", "changes": list(CHANGES)}), f"{folder}-new")
    assert result.proof is not None
    assert result.proof.ok
    return Migrated(entries, folder.with_name(f"{folder.name}-new"))


@pytest.fixture(scope="module", params=RESTORES, ids=lambda each: "-".join(map(str, each)))
def restored(request: pytest.FixtureRequest, migrated: Migrated) -> list[Entry]:
    version, backend, parallelism = request.param
    new_job = job("stores.NewJob", "after")
    result = harness.restore(version, migrated.path, new_job, backend=backend, parallelism=parallelism)
    assert result.ok, result.error
    return result.entries


def test_flink_sees_what_was_meant(migrated: Migrated, restored: list[Entry]) -> None:
    expected = [after for each in migrated.entries if each["op"] == UID for after in expect(each)]
    assert {each["kind"] for each in expected} == {"operator", "broadcast"}
    assert {each["state"] for each in expected} == {*MEANT.keys(), "evens", "numbers", "titles"} - {"texts", "names"}
    difference = harness.diff_entries(expected, [each for each in restored if each["op"] == UID])
    assert not difference, str(difference)


def expect(entry: Entry) -> list[Entry]:
    """Entries after the migration of one: itself, or none."""
    meant = MEANT.get(entry["state"])
    changed = None if meant is None else meant(entry)
    return [] if changed is None else [{**entry, **changed}]


def new_account(account: dict[str, Any], currency: str) -> dict[str, Any]:
    changed = {name: value for name, value in account.items() if name not in ("owner", "note")}
    changed |= {"holder": account["owner"], "currency": currency}
    changed["visits"] = None if account["visits"] is None else account["visits"] + 1
    if home := account["home"]:
        changed["home"] = {"@class": home["@class"], "city": home["city"], "postcode": str(home["zip"])}
    return changed


MEANT: dict[str, Callable[[Entry], dict[str, Any] | None]] = {
    "accounts": lambda each: {"value": new_account(each["value"], f"EUR {each['value']['level']}")},
    "numbers": lambda each: {"state": "evens"} if each["value"] % 2 == 0 else None,
    "texts": lambda each: {"state": "numbers", "value": int(each["value"])},
    "kept": lambda each: {},
    "offsets": lambda each: {"value": {"@tuple": [each["value"]["@tuple"][2], each["value"]["@tuple"][0]]}},
    "rules": lambda each: {"value": new_account(each["value"], f"EUR {each['ukey']}")},
    "names": lambda each: {"state": "titles"} if each["ukey"] != "name-3" else None,
}
