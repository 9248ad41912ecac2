"""What proofs find that plans do not: a way back that gives other values, other types, or other fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ProofError
from state_pipelines.operations.migration import parse_migration
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate, write_state
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

USER = "Pojo<shop.User>(age: Int, id: Long, name: String)"
ITEM = "Pojo<shop.Item>(a: Int, b: Long)"

FILTER = {"filter": {"keep": "id != 7", "reason": "test"}}
CAST = {"cast": {"field": "age", "to": "long"}}
ADD = {"add": {"field": "points", "type": "int", "default": 1}}
THERE, BACK = {"rename": {"name": "label"}}, {"rename": {"label": "name"}}
LIST, VALUE = {"kind": {"to": "LIST"}}, {"kind": {"to": "VALUE", "expression": "values[0]"}}


def write(rows: DataFrame, target: Path, value: str, kind: str = "VALUE", **options: str) -> Snapshot:
    write_state(
        rows,
        str(target),
        operatorId="users",
        keySerializer="String",
        parallelism="2",
        stateVarName="profile",
        stateType=kind,
        valueSerializer=value,
        **options,
    )
    return open_snapshot(str(target), uids=["users"])


@pytest.fixture(scope="module")
def users(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    rows = spark.sql(
        """SELECT CONCAT('user-', id) AS state_key, IF(id = 5, NULL, NAMED_STRUCT(
               'age', CAST(id % 9 AS INT), 'id', id, 'name', IF(id % 3 = 0, NULL, CONCAT('name ', id)))) AS value
           FROM RANGE(40)"""
    )
    return write(rows, tmp_path_factory.mktemp("users") / "savepoint", USER)


@pytest.fixture(scope="module")
def person() -> Snapshot:
    return types().open()


def prove(
    spark: SparkSession, old: Snapshot, target: Path, upgrade: list[Any], downgrade: list[Any], **place: str
) -> dict[str, str]:
    """What fails when a snapshot is migrated."""
    place = place or {"operator": "users", "state": "profile"}
    migration = parse_migration({"revision": "1", **place, "upgrade": upgrade, "downgrade": downgrade})
    try:
        report: object = migrate(old, migration, str(target / "new")).proof
    except ProofError as error:
        report = error.report
    assert isinstance(report, ProofReport)
    return {each.name: each.observed for each in report.checks if not each.ok}


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ([CAST, THERE], [BACK]),
        ([CAST, LIST], [VALUE]),
        ([FILTER, CAST, THERE], [BACK]),
        ([{"convert": {"to": USER.replace("Int", "Long")}}], [{"convert": {"to": USER.replace("Int", "Long")}}]),
    ],
    ids=["field by field", "by way of Spark", "rows left out", "converted"],
)
def test_a_type_that_does_not_come_back_fails(
    spark: SparkSession, users: Snapshot, tmp_path: Path, there: list[Any], back: list[Any]
) -> None:
    assert "age in " in prove(spark, users, tmp_path, there, back)["round_trip"]


@pytest.mark.parametrize(("there", "back"), [([THERE], [BACK]), ([LIST], [VALUE]), ([FILTER, THERE], [BACK])])
def test_a_field_too_many_on_the_way_back_fails(
    spark: SparkSession, users: Snapshot, tmp_path: Path, there: list[Any], back: list[Any]
) -> None:
    assert "points in " in prove(spark, users, tmp_path, [ADD, *there], back)["round_trip"]
    assert prove(spark, users, tmp_path / "right", [ADD, *there], [*back, {"drop": {"field": "points"}}]) == {}


@pytest.mark.parametrize(("there", "back"), [([THERE], [BACK]), ([LIST], [VALUE])])
def test_a_field_that_does_not_come_back_fails(
    spark: SparkSession, users: Snapshot, tmp_path: Path, there: list[Any], back: list[Any]
) -> None:
    assert "age in " in prove(spark, users, tmp_path, [*there, {"drop": {"field": "age"}}], back)["round_trip"]


FIVE = {"set": {"field": "visits", "expression": "5"}}
PERSON = {"operator": "composite-types", "state": "person"}


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ([{"rename": {"age": "years"}}], [{"rename": {"years": "age"}}]),
        ([LIST], [VALUE]),
        (
            [{"filter": {"keep": "name IS NOT NULL", "reason": "test"}}, {"rename": {"age": "years"}}],
            [{"rename": {"years": "age"}}],
        ),
    ],
    ids=["field by field", "by way of Spark", "rows left out"],
)
def test_fields_of_subclasses_that_other_states_list_are_judged(
    spark: SparkSession, person: Snapshot, tmp_path: Path, there: list[Any], back: list[Any]
) -> None:
    assert prove(spark, person, tmp_path, there, back, **PERSON) == {}
    assert "visits in " in prove(spark, person, tmp_path / "five", there, [*back, FIVE], **PERSON)["round_trip"]


def test_a_field_that_is_called_as_the_time_is_judged(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        """SELECT CONCAT('u', id) AS state_key, NAMED_STRUCT('a', INT(id), 'ttl_last_access', id) AS value,
                  TIMESTAMP '2024-01-01 00:00:00Z' AS ttl_last_access FROM RANGE(9)"""
    )
    value = "Ttl<Pojo<shop.Visit>(a: Int, ttl_last_access: Long)>"
    old = write(rows, tmp_path / "old", value)
    steps = [{"rename": {"a": "b"}}]
    migration = {"revision": "1", "operator": "users", "state": "profile", "upgrade": steps}
    downgrade = [{"rename": {"b": "a"}}]
    result = migrate(old, parse_migration({**migration, "downgrade": downgrade}), str(tmp_path / "new"))
    assert result.proof is not None
    (written,) = [each.observed for each in result.proof.checks if each.name == "written_reads_back"]
    assert written == "equal in every key group: null values, b, ttl_last_access, times of the last access"


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ([{"rename": {"a": "c"}}], [{"rename": {"c": "a"}}]),
        ([{"cast": {"field": "a", "to": "long"}}], [{"cast": {"field": "a", "to": "int"}}]),
    ],
)
def test_a_way_back_field_by_field_where_the_way_there_has_other_keys(
    spark: SparkSession, tmp_path: Path, there: list[Any], back: list[Any]
) -> None:
    rows = spark.sql(
        """SELECT CONCAT('u', id % 20) AS state_key, CONCAT('k', id) AS map_key,
                  IF(id % 4 = 0, NULL, NAMED_STRUCT('a', INT(id), 'b', id)) AS map_value FROM RANGE(50)"""
    )
    old = write(rows, tmp_path / "old", f"Map<String, {ITEM}>", "MAP")
    pairs = {
        "to": "LIST",
        "type": f"Tuple2<String, Nullable<{ITEM}>>",
        "expression": "struct(map_key AS f0, value AS f1)",
    }
    maps = {"map_key": {"type": "String", "expression": "lower(f0)"}, "value": {"type": ITEM, "expression": "f1"}}
    upgrade = [{"kind": pairs}, {"kind": {"to": "MAP", **maps}}, *there]
    assert prove(spark, old, tmp_path, upgrade, back) == {}


def test_large_types_of_arrow_do_not_matter(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        assert prove(spark, users, tmp_path, [LIST], [VALUE]) == {}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def fail(spark: SparkSession, old: Snapshot, target: Path, upgrade: list[Any], downgrade: list[Any]) -> list[Any]:
    """The examples of the check of the round trip, which fails."""
    place = {"operator": "users", "state": "profile"}
    migration = parse_migration({"revision": "1", **place, "upgrade": upgrade, "downgrade": downgrade})
    with pytest.raises(ProofError) as caught:
        migrate(old, migration, str(target / "new"))
    assert isinstance(caught.value.report, ProofReport)
    (check,) = [each for each in caught.value.report.checks if each.name == "round_trip"]
    assert not check.ok
    return list(check.rows)


def test_a_failed_proof_shows_ten_rows_with_what_was_is_and_comes_back(
    spark: SparkSession, users: Snapshot, tmp_path: Path
) -> None:
    there = [{"set": {"field": "id", "expression": "id + 100"}}]
    back = [{"set": {"field": "id", "expression": "if(id % 2 = 0, id - 100, id - 99)"}}]
    rows = fail(spark, users, tmp_path, there, back)
    assert len(rows) == 10
    for row in rows:
        number = int(row.key["state_key"].removeprefix("user-"))
        assert number % 2 == 1
        assert row.values["before"]["id"] == number
        assert row.values["after"]["id"] == number + 100
        assert row.values["comes back as"]["id"] == number + 1
        assert row.state == "profile"


def test_a_failed_proof_of_another_type_shows_rows_too(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    assert len(fail(spark, users, tmp_path, [CAST, LIST], [VALUE])) == 10
