"""State of Python functions in Spark: columns of declared types, and migrations of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import Direction, load_migration
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.spark import register
from state_pipelines.spark.migration_run import migrate, plan_snapshot
from tests.conformance.test_pyflink import SAVEPOINT, TYPES, dump_state, open_typed, values

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration import Migration

pytestmark = pytest.mark.spark


def write(directory: Path, text: str) -> Migration:
    file = directory / "migration.yaml"
    file.write_text(text)
    return load_migration(str(file))


def test_the_option_gives_columns_of_declared_types(spark: SparkSession) -> None:
    register(spark)
    options = {"operatorId": "states", "stateVarName": "typed", "pythonTypes": "states.typed=ROW<n BIGINT, s STRING>"}
    frame = spark.read.format("flink-state").option("path", str(SAVEPOINT)).options(**options).load()

    assert frame.schema["value"].dataType.simpleString() == "struct<row_kind:string,n:bigint,s:string>"
    assert frame.where("state_key.f0 = 'key-3'").select("value.n", "value.s").collect() == [(27, "s27")]


def test_the_table_of_all_states_has_their_python_names(spark: SparkSession) -> None:
    register(spark)
    options = {"operatorId": "states", "pythonTypes": TYPES, "columns": "state_key,list,sum,map"}
    frame = spark.read.format("flink-state").option("path", str(SAVEPOINT)).options(**options).load()
    (row,) = frame.where("state_key.f0 = 'key-1'").collect()

    assert (row["list"], row["sum"], row["map"]) == (["x1", "y1", "x13", "y13", "x25", "y25"], 39, {"m1": 25})


def test_a_field_more_a_cast_and_another_time_to_live(spark: SparkSession, tmp_path: Path) -> None:
    migration = write(
        tmp_path,
        """
        revision: more
        changes:
          - operator: states
            state: typed
            upgrade:
              - add: {field: grade, type: INT, expression: "CAST(n % 5 AS INT)"}
              - rename: {s: text}
            downgrade:
              - rename: {text: s}
              - drop: {field: grade}
          - operator: states
            state: items
            upgrade: [{cast: {field: amount, to: BIGINT}}]
            downgrade: [{cast: {field: amount, to: INT}}]
          - operator: states
            state: pickled
            upgrade: [{ttl: {enable: "TIMESTAMP '2026-01-01 00:00:00Z'"}}]
            downgrade: [{ttl: {disable: as before}}]
          - operator: states
            state: pairs
            upgrade: [{add: {field: unit, type: "Types.STRING()", default: kg}}]
            downgrade: [{drop: {field: unit}}]
          - operator: rules
            state: rules
            upgrade: [{drop: {field: sku}}]
            downgrade: {impossible: the sku is gone}
        """,
    )
    result = migrate(open_typed(), migration, str(tmp_path / "out"))

    assert result.proof is not None
    assert result.proof.ok
    new = open_snapshot(
        str(tmp_path / "out"),
        declare(
            {
                "python_types": [
                    "states.typed=ROW<n BIGINT, text STRING, grade INT>",
                    "states.items=ListState<ROW<sku STRING, amount BIGINT>>",
                    "states.pickled=PICKLED",
                    "states.pairs=MAP<TUPLE<INT, STRING>, ROW<sku STRING, amount INT, unit STRING>>",
                    "rules.rules=MAP<STRING, ROW<amount INT>>",
                ]
            }
        ),
    )
    assert values(new, "states", "typed")["key-3", "None"]["@row"] == {"n": 27, "text": "s27", "grade": 2}
    assert [each["@row"]["amount"] for each in values(new, "states", "items")["key-3", "None"]] == [3, 15, 27]
    assert values(new, "states", "pickled")["key-3", "None"]["number"] == 27
    assert {line["ttl_ts"] for line in dump_state(new, "states", "pickled")} == {1_767_225_600_000}
    assert values(new, "states", "pairs")["key-3", "{'@tuple': [3, 'p']}"]["@row"]["unit"] == "kg"
    broadcast = dump_state(new, "rules", "rules")
    assert [line["value"]["@row"] for line in broadcast] == [{"amount": 0}, {"amount": 1}] * 2


def test_other_keys_of_an_operator_are_fields_of_a_row(spark: SparkSession, tmp_path: Path) -> None:
    migration = write(
        tmp_path,
        """
        revision: numbers
        operator: states
        upgrade: [{key: {type: Long, expression: "CAST(substring(state_key.f0, 5) AS BIGINT)"}}]
        downgrade: [{key: {type: String, expression: "concat('key-', CAST(state_key.f0 AS STRING))"}}]
        """,
    )
    result = migrate(open_typed(), migration, str(tmp_path / "out"))

    assert result.proof is not None
    assert result.proof.ok
    found = values(result.snapshot, "states", "typed")
    assert {key: value["@row"]["n"] for (key, _), value in found.items()} == {str(key): key + 24 for key in range(12)}
    lists = values(result.snapshot, "states", "list")
    assert lists["5", "None"] == ["x5", "y5", "x17", "y17", "x29", "y29"]


def test_steps_on_fields_of_undeclared_state_name_the_option(tmp_path: Path) -> None:
    migration = write(
        tmp_path,
        """
        revision: more
        operator: states
        state: typed
        upgrade: [{drop: {field: s}}]
        downgrade: {impossible: it is gone}
        """,
    )
    with pytest.raises(MigrationError, match="--python-types"):
        plan_snapshot(open_snapshot(str(SAVEPOINT)), [(migration, Direction.UPGRADE)])


def test_a_type_that_pyflink_does_not_have_is_refused(tmp_path: Path) -> None:
    migration = write(
        tmp_path,
        """
        revision: more
        operator: states
        state: typed
        upgrade: [{add: {field: x, type: "List<String>", expression: "array()"}}]
        downgrade: [{drop: {field: x}}]
        """,
    )
    with pytest.raises(MigrationError, match="PyFlink has no type"):
        plan_snapshot(open_typed(), [(migration, Direction.UPGRADE)])
