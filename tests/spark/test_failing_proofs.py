"""Proofs of migrations that fail for a reason made on purpose: what a person sees of the records that differ."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import MigrationError, ProofError, UsageError
from state_pipelines.operations.migration import parse_migration
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate, migration_run, write_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

USER = "Pojo<shop.User>(age: Int, id: Long, name: String)"
RENAME = [{"rename": {"name": "label"}}]
BACK = [{"rename": {"label": "name"}}]


@pytest.fixture(scope="module")
def users(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    rows = spark.sql(
        """SELECT CONCAT('user-', id) AS state_key, NAMED_STRUCT(
               'age', CAST(id % 9 AS INT), 'id', id, 'name', CONCAT('name ', id)) AS value FROM RANGE(40)"""
    )
    target = tmp_path_factory.mktemp("users") / "savepoint"
    write_state(
        rows,
        str(target),
        operatorId="users",
        keySerializer="String",
        parallelism="2",
        stateVarName="profile",
        stateType="VALUE",
        valueSerializer=USER,
    )
    return open_snapshot(str(target), uids=["users"])


def fail(spark: SparkSession, old: Snapshot, target: Path, **content: Any) -> tuple[ProofError, ProofReport]:
    migration = parse_migration(
        {"revision": "1", "operator": "users", "state": "profile", "upgrade": RENAME, "downgrade": BACK} | content
    )
    with pytest.raises(ProofError) as caught:
        migrate(old, migration, str(target / "new"))
    assert not (target / "new").exists()
    assert isinstance(caught.value.report, ProofReport)
    return caught.value, caught.value.report


def edit_files(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> None:
    """Change bytes of the new files after they were written and before they are proven."""
    write = migration_run._write

    def edited(*arguments: Any) -> Any:
        done = write(*arguments)
        changed = [file for file in Path(arguments[3].target.path).iterdir() if old in file.read_bytes()]
        assert changed
        for file in changed:
            file.write_bytes(file.read_bytes().replace(old, new))
        return done

    monkeypatch.setattr(migration_run, "_write", edited)


def test_a_value_changed_after_it_was_written_is_shown(
    spark: SparkSession, users: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_files(monkeypatch, b"name 17", b"name 71")
    error, report = fail(spark, users, tmp_path)
    (check,) = [each for each in report.failed if each.name == "written_reads_back"]
    (row,) = check.rows
    assert dict(row.key)["state_key"] == "user-17"
    assert row.to_cells() == {
        "state": "profile",
        "key": "user-17",
        "before": '{"age": 8, "id": 17, "name": "name 17"}',
        "after": '{"label": "name 71"}',
        "expected": '{"label": "name 17"}',
    }
    assert check.counts is not None
    assert (check.counts.compared, check.counts.differing, check.counts.missing) == (40, 1, 0)
    assert "user-17" in str(error)
    assert "name 71" in str(error)


def test_a_key_changed_after_it_was_written_is_missing_and_unexpected(
    spark: SparkSession, users: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_files(monkeypatch, b"user-17", b"user-97")
    _, report = fail(spark, users, tmp_path)
    (check,) = [each for each in report.failed if each.name == "key_sets"]
    assert check.counts is not None
    assert (check.counts.missing, check.counts.unexpected) == (1, 1)
    shown = {dict(row.key)["state_key"]: row for row in check.rows}
    assert set(shown) == {"user-17", "user-97"}
    assert "after" in shown["user-17"].absent
    assert "expected" in shown["user-97"].absent
    (hashes,) = [each for each in report.failed if each.name == "key_groups_match_key_hash"]
    (row,) = hashes.rows
    assert dict(row.key) == {"state_key": "user-97"}
    assert row.values["after"] != row.values["expected"]


def test_a_key_written_twice_is_unexpected(
    spark: SparkSession, users: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = find_twins(users)
    edit_files(monkeypatch, one.encode(), other.encode())
    _, report = fail(spark, users, tmp_path)
    (check,) = [each for each in report.failed if each.name == "key_sets"]
    assert check.counts is not None
    assert (check.counts.missing, check.counts.unexpected) == (1, 1)
    shown = {dict(row.key)["state_key"]: row for row in check.rows}
    assert "after" in shown[one].absent
    assert shown[other].note == "the key occurs several times: 2 records after"


def find_twins(users: Snapshot) -> list[str]:
    """Two keys of as many letters in one key group."""
    rows = users.operator("users").state("profile").to_arrow().to_pylist()
    keys = sorted((row["key_group"], len(row["state_key"]), row["state_key"]) for row in rows)
    return next([one[2], other[2]] for one, other in pairwise(keys) if one[:2] == other[:2])


def test_a_wrong_way_back_is_shown_with_what_comes_back(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    steps = {
        "upgrade": [{"set": {"field": "id", "expression": "id + 100"}}],
        "downgrade": [{"set": {"field": "id", "expression": "if(id = 117, 0L, id - 100)"}}],
    }
    _, report = fail(spark, users, tmp_path, **steps)
    (check,) = report.failed
    (row,) = check.rows
    assert row.to_cells() == {
        "state": "profile",
        "key": "user-17",
        "before": '{"id": 17}',
        "after": '{"id": 117}',
        "expected": '{"id": 17}',
        "comes back as": '{"id": 0}',
    }
    assert check.counts is not None
    assert check.counts.differing == 1
    table = report.to_markdown()
    cells = (f'\\{{"id": {number}\\}}' for number in (17, 117, 17, 0))
    assert f"| profile | user-17 | {' | '.join(cells)} |" in table


def test_an_expectation_that_fails_shows_keys_and_values(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    wanted = [{"type": "expect_column_values_to_be_between", "column": "value.id", "max_value": 36}]
    _, report = fail(spark, users, tmp_path, expect=wanted)
    (check,) = report.failed
    assert check.name == "own_expectations"
    assert {dict(row.key)["state_key"]: row.values["after"] for row in check.rows} == {
        f"user-{number}": number for number in (37, 38, 39)
    }
    assert all("max_value=36" in row.values["expected"] for row in check.rows)


def test_an_unknown_expectation_is_reported_before_anything_is_written(
    spark: SparkSession, users: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_run, "SnapshotTransaction", None)
    wanted = [{"type": "expect_miracles"}]
    migration = parse_migration(
        {
            "revision": "1",
            "operator": "users",
            "state": "profile",
            "upgrade": RENAME,
            "downgrade": BACK,
            "expect": wanted,
        }
    )
    with pytest.raises(MigrationError, match="Great Expectations has no expect_miracles") as caught:
        migrate(users, migration, str(tmp_path / "new"))
    assert caught.value.where.state == "profile"


@pytest.fixture
def without_great_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation with the extra `spark` alone."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "great_expectations"]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "great_expectations":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])


@pytest.mark.usefixtures("without_great_expectations")
def test_a_migration_is_proven_without_great_expectations(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    migration = parse_migration(
        {"revision": "1", "operator": "users", "state": "profile", "upgrade": RENAME, "downgrade": BACK}
    )
    proof = migrate(users, migration, str(tmp_path / "new")).proof
    assert proof is not None
    assert proof.ok
    assert [each.name for each in proof.checks] == [
        "row_counts_per_key_group",
        "key_sets",
        "key_groups_match_key_hash",
        "round_trip",
        "written_reads_back",
    ]
    assert proof.numbers["rows compared"] == 40
    assert proof.numbers["bytes"] > 0


@pytest.mark.usefixtures("without_great_expectations")
def test_expectations_without_great_expectations_name_the_extra(
    spark: SparkSession, users: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_run, "SnapshotTransaction", None)
    wanted = [{"type": "expect_column_values_to_not_be_null", "column": "value.id"}]
    migration = parse_migration(
        {
            "revision": "1",
            "operator": "users",
            "state": "profile",
            "upgrade": RENAME,
            "downgrade": BACK,
            "expect": wanted,
        }
    )
    with pytest.raises(UsageError, match=r"state-pipelines\[expectations\]"):
        migrate(users, migration, str(tmp_path / "new"))


def test_without_a_downgrade_there_is_no_check_of_the_round_trip(
    spark: SparkSession, users: Snapshot, tmp_path: Path
) -> None:
    migration = parse_migration(
        {
            "revision": "1",
            "operator": "users",
            "state": "profile",
            "upgrade": [{"drop": {"field": "name"}}],
            "downgrade": {"impossible": "the names are gone"},
        }
    )
    proof = migrate(users, migration, str(tmp_path / "new")).proof
    assert proof is not None
    assert "round_trip" not in [each.name for each in proof.checks]
    assert proof.notes == ("round_trip is not judged: there is no way back: the names are gone",)
