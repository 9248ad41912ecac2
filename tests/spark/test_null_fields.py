"""Null in fields of POJOs that Flink may not restore, because their classes may declare them as primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from state_pipelines.errors import StateError
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Migration, parse_migration
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate, write_state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOME = "Pojo<shop.Home>(city: String, zip: Int)"
USER = f"Pojo<shop.User>(age: Int, home: {HOME}, homes: List<{HOME}>, id: Long)"
BOXED = "shop.User: [age: Integer, home: shop.Home, homes: List<shop.Home>, id: long]"


@pytest.fixture(scope="module")
def users(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    home = "NAMED_STRUCT('city', 'c', 'zip', CAST(id AS INT))"
    rows = spark.sql(
        f"SELECT CONCAT('user-', id) AS state_key, NAMED_STRUCT('age', CAST(id % 9 AS INT), 'home', {home}, "
        f"'homes', ARRAY({home}), 'id', id) AS value FROM RANGE(12)"
    )
    target = tmp_path_factory.mktemp("users") / "savepoint"
    state = {"operatorId": "users", "stateVarName": "profile", "stateType": "VALUE", "valueSerializer": USER}
    write_state(rows, str(target), keySerializer="String", parallelism="2", **state)
    return open_snapshot(str(target), uids=["users"])


def declare(users: Snapshot, directory: Path, text: str) -> Snapshot:
    """The snapshot with classes of its values declared."""
    (directory / "classes.txt").write_text(f"{text}\n", encoding="utf-8")
    return open_snapshot(users.path, uids=["users"], classes=load_field_lists([directory / "classes.txt"]))


def make_migration(*upgrade: Any, downgrade: Any = None) -> Migration:
    back = downgrade or {"impossible": "nulls are what is tested"}
    return parse_migration(
        {"revision": "1", "operator": "users", "state": "profile", "upgrade": list(upgrade), "downgrade": back}
    )


def set_null(field: str, expression: str) -> dict[str, Any]:
    return {"set": {"field": field, "expression": expression}}


NULL_AGE = set_null("age", "nullif(age, 3)")


def list_ages(snapshot: Snapshot) -> set[Any]:
    return {line["value"]["age"] for line in dump(snapshot, state="profile")}  # type: ignore[index, call-overload]


def test_null_for_a_primitive_is_refused_where_the_class_is_declared(
    spark: SparkSession, users: Snapshot, tmp_path: Path
) -> None:
    old = declare(users, tmp_path, BOXED.replace("Integer", "int"))
    with pytest.raises(StateError, match=r"field age is a primitive \(int\) of shop.User and cannot be null"):
        migrate(old, make_migration(NULL_AGE), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_null_is_written_where_the_class_declares_an_object(
    spark: SparkSession, users: Snapshot, tmp_path: Path
) -> None:
    result = migrate(declare(users, tmp_path, BOXED), make_migration(NULL_AGE), str(tmp_path / "new"))
    assert None in list_ages(result.snapshot)


def test_null_is_written_where_a_cast_names_the_class_of_objects(
    spark: SparkSession, users: Snapshot, tmp_path: Path
) -> None:
    cast = {"cast": {"field": "age", "to": "Integer", "expression": "nullif(age, 3)"}}
    result = migrate(users, make_migration(cast), str(tmp_path / "new"))
    assert None in list_ages(result.snapshot)


NULL_ZIPS = "transform(homes, home -> named_struct('city', home.city, 'zip', nullif(home.zip, 3)))"
AGED = "Pojo<shop.Aged>(age: Int)"
WHOLE = "named_struct('age', nullif(age, 3))"


def null_ages(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch.column("value")
    fields = [pa.nulls(len(value), each.type) if each.name == "age" else value.field(each.name) for each in value.type]
    changed = pa.StructArray.from_arrays(fields, fields=list(value.type))
    return batch.set_column(batch.schema.get_field_index("value"), "value", changed)


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (NULL_AGE, "age"),
        (set_null("home.zip", "nullif(home.zip, 3)"), "zip"),
        (set_null("homes[].zip", "nullif(element.zip, 3)"), "zip"),
        (set_null("homes", NULL_ZIPS), "zip"),
        ({"add": {"field": "other", "type": HOME, "expression": "named_struct('city', 'c', 'zip', null)"}}, "zip"),
        ({"convert": {"to": AGED, "expression": WHOLE, "discard": ["home", "homes", "id"]}}, "age"),
        (
            {"convert": {"to": f"List<{AGED}>", "expression": f"array({WHOLE})", "discard": ["home", "homes", "id"]}},
            "age",
        ),
        ({"kind": {"to": "LIST", "type": AGED, "expression": WHOLE}}, "age"),
        (
            {"split": {"into": {"a": {"type": AGED, "expression": WHOLE}, "b": {"fields": ["home", "homes", "id"]}}}},
            "age",
        ),
        ({"python": {"function": null_ages, "deterministic": True}}, "age"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else each,
)
def test_null_for_what_may_be_a_primitive_is_refused(
    spark: SparkSession, users: Snapshot, tmp_path: Path, step: Any, field: str
) -> None:
    with pytest.raises(StateError) as caught:
        migrate(users, make_migration(step), str(tmp_path / "new"))
    message = str(caught.value)
    assert f"field {field} becomes null, which Flink cannot restore if shop." in message
    assert "(--classes, such as `shop." in message
    assert f"{field}: Integer]`" in message
    assert not (tmp_path / "new").exists()


def test_null_stays_where_it_was_and_may_come_back(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    migrate(declare(users, tmp_path, BOXED), make_migration(NULL_AGE), str(tmp_path / "nulls"))
    old = open_snapshot(str(tmp_path / "nulls"), uids=["users"])
    steps = (set_null("age", "age * 2"), set_null("age", "coalesce(age, -1)"))
    back = [set_null("age", "CAST(nullif(age, -1) / 2 AS INT)")]
    result = migrate(old, make_migration(*steps, downgrade=back), str(tmp_path / "new"))
    assert result.proof is not None
    assert result.proof.ok
    assert -1 in list_ages(result.snapshot)
    doubled = migrate(old, make_migration(steps[0]), str(tmp_path / "doubled"))
    assert None in list_ages(doubled.snapshot)
