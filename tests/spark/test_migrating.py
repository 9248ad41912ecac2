from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import MigrationError, ProofError, StateError, TargetExistsError
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, Migration, load_migration
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate, write_state
from tests.flink.harness import ORDERS, Entry, diff_entries, read_entries
from tests.snapshot.savepoints import RELEASES, orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLE = ORDERS / "migrations" / "0001_amount_as_double.yaml"
DROP_NOTE = {"drop": {"field": "note"}}
ADD_NOTE = {"add": {"field": "note", "type": "String", "default": None}}
LOSS = [{"field": "note", "reason": "gone"}]


def make_migration(tmp_path: Path, **changes: Any) -> Migration:
    content = {
        "revision": "1",
        "operator": "orders",
        "state": "order",
        "upgrade": [DROP_NOTE],
        "downgrade": [ADD_NOTE],
        "loss": LOSS,
    }
    path = tmp_path / "migration.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return load_migration(path)


def without_note(entry: Entry) -> Entry:
    if entry.get("state") != "order":
        return entry
    return entry | {"value": entry["value"] | {"note": None}}


@pytest.mark.parametrize(
    "release", [RELEASES[0], *(pytest.param(each, marks=pytest.mark.essential) for each in RELEASES[1:])]
)
def test_orders_migrate_and_come_back(spark: SparkSession, tmp_path: Path, release: str) -> None:
    up = migrate(orders(release).open(), load_migration(EXAMPLE), str(tmp_path / "up"))
    expected = read_entries(orders(release).expected.with_name("expected-migrated.jsonl.gz"))
    assert not diff_entries(expected, dump(up.snapshot))
    assert not diff_entries(expected, dump(open_snapshot(up.path, uids=orders(release).uids)))
    assert up.rows == 200
    assert up.proof is not None
    assert up.proof.ok
    assert (up.proof.rows, [check.name for check in up.proof.checks if not check.ok]) == (200, [])
    down = migrate(up.snapshot, load_migration(EXAMPLE), str(tmp_path / "down"), direction=Direction.DOWNGRADE)
    assert not diff_entries(map(without_note, orders(release).entries()), dump(down.snapshot))


@pytest.mark.parametrize("format", ["heap", "rocksdb"])
def test_native_state_migrates_into_canonical_files(spark: SparkSession, tmp_path: Path, format: str) -> None:
    convert(orders().open(), str(tmp_path / "native"), format)
    native = open_snapshot(str(tmp_path / "native"), uids=orders().uids)
    up = migrate(native, load_migration(EXAMPLE), str(tmp_path / "up"))
    expected = read_entries(orders().expected.with_name("expected-migrated.jsonl.gz"))
    assert not diff_entries(expected, dump(up.snapshot))
    subtasks = up.snapshot.operator("orders").metadata.subtasks
    assert {type(each.managed_keyed_state) for each in subtasks} == {KeyGroupsSavepointStateHandle}


def test_the_result_holds_all_its_files(spark: SparkSession, tmp_path: Path) -> None:
    result = migrate(orders().open(), load_migration(EXAMPLE), str(tmp_path / "up"), prove=False)
    assert result.proof is None
    moved = (tmp_path / "up").rename(tmp_path / "moved")
    assert len(list(dump(open_snapshot(str(moved))))) == len(list(dump(orders().open())))
    assert not [each for each in moved.iterdir() if each.is_dir()]


@pytest.fixture(scope="module")
def carts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A savepoint with a list of POJOs and a map of POJOs."""
    directory = tmp_path_factory.mktemp("carts")
    line = "Pojo<shop.Line>(sku: String, count: Int)"
    options = {"operatorId": "carts", "keySerializer": "String", "parallelism": "2"}
    lists = spark.sql(
        """SELECT CONCAT('cart-', id) AS state_key,
                  ARRAY(NAMED_STRUCT('sku', 'a', 'count', CAST(id AS INT)),
                        NAMED_STRUCT('sku', NULL, 'count', 2)) AS value
           FROM RANGE(40)"""
    )
    first = write_state(
        lists,
        str(directory / "lists"),
        stateVarName="lines",
        stateType="LIST",
        valueSerializer=f"List<{line}>",
        **options,
    )
    maps = spark.sql(
        """SELECT CONCAT('cart-', id % 10) AS state_key, id AS map_key,
                  IF(id = 7, NULL, NAMED_STRUCT('sku', 'b', 'count', CAST(id AS INT))) AS map_value
           FROM RANGE(40)"""
    )
    both = write_state(
        maps,
        str(directory / "both"),
        base=first,
        operatorId="carts",
        stateVarName="by-number",
        stateType="MAP",
        valueSerializer=f"Map<Long, {line}>",
    )
    return open_snapshot(both, uids=["carts"])


def cart_migration(tmp_path: Path, state: str, expression: str = "`count` * 2") -> Migration:
    return make_migration(
        tmp_path,
        operator="carts",
        state=state,
        upgrade=[{"add": {"field": "pieces", "type": "Long", "expression": expression}}, {"drop": {"field": "count"}}],
        downgrade=[
            {"add": {"field": "count", "type": "Integer", "expression": "pieces / 2"}},
            {"drop": {"field": "pieces"}},
        ],
        loss=[],
    )


def test_the_elements_of_a_list_migrate(spark: SparkSession, carts: Snapshot, tmp_path: Path) -> None:
    result = migrate(carts, cart_migration(tmp_path, "lines"), str(tmp_path / "up"))
    values = {line["key"]: line["value"] for line in dump(result.snapshot, state="lines")}
    assert len(values) == 40
    assert values["cart-3"] == [
        {"@class": "shop.Line", "pieces": 6, "sku": "a"},
        {"@class": "shop.Line", "pieces": 4, "sku": None},
    ]
    assert list(dump(result.snapshot, state="by-number")) == list(dump(carts, state="by-number"))


def test_the_values_of_a_map_migrate(spark: SparkSession, carts: Snapshot, tmp_path: Path) -> None:
    result = migrate(carts, cart_migration(tmp_path, "by-number"), str(tmp_path / "up"))
    values = {line["ukey"]: line["value"] for line in dump(result.snapshot, state="by-number")}
    expected = {number: {"@class": "shop.Line", "pieces": number * 2, "sku": "b"} for number in range(40)}
    assert values == expected | {7: None}


def test_expressions_may_name_the_keys(spark: SparkSession, carts: Snapshot, tmp_path: Path) -> None:
    migration = make_migration(
        tmp_path,
        operator="carts",
        state="by-number",
        upgrade=[{"add": {"field": "place", "type": "String", "expression": "CONCAT(state_key, '/', map_key)"}}],
        downgrade=[{"drop": {"field": "place"}}],
        loss=[],
    )
    result = migrate(carts, migration, str(tmp_path / "up"))
    places = {line["ukey"]: line["value"] for line in dump(result.snapshot, state="by-number")}
    assert places[12] == {"@class": "shop.Line", "count": 12, "place": "cart-2/12", "sku": "b"}


@pytest.mark.essential
def test_a_loss_that_is_not_declared_fails_the_proof_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ProofError, match="round_trip") as caught:
        migrate(orders().open(), make_migration(tmp_path, loss=[]), str(tmp_path / "up"))
    failed = [check for check in caught.value.report.checks if not check.ok]  # type: ignore[attr-defined]
    assert [check.name for check in failed] == ["round_trip"]
    assert "note" in failed[0].observed
    assert not (tmp_path / "up").exists()


@pytest.mark.parametrize(
    "expression", ["amount +", "price * 2", "CAST('x' AS BIGINT)", "amount / 0", "ARRAY(amount)", "SUM(amount)"]
)
def test_sql_that_fails_is_told_and_leaves_nothing(spark: SparkSession, tmp_path: Path, expression: str) -> None:
    step = {"add": {"field": "extra", "type": "Double", "expression": expression}}
    migration = make_migration(tmp_path, upgrade=[step], downgrade=[{"drop": {"field": "extra"}}], loss=[])
    with pytest.raises(MigrationError):
        migrate(orders().open(), migration, str(tmp_path / "up"))
    assert not (tmp_path / "up").exists()


def test_null_for_a_primitive_is_told_and_leaves_nothing(spark: SparkSession, carts: Snapshot, tmp_path: Path) -> None:
    element = cart_migration(tmp_path, "lines", expression="IF(`count` = 3, NULL, 1)")
    with pytest.raises(StateError) as caught:
        migrate(carts, element, str(tmp_path / "up"))
    assert type(caught.value) in (ProofError, MigrationError) or "null" in str(caught.value)
    assert not (tmp_path / "up").exists()


def test_the_target_must_not_hold_anything(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "file").write_text("mine")
    with pytest.raises(TargetExistsError):
        migrate(orders().open(), load_migration(EXAMPLE), str(tmp_path / "up"))
    assert [each.name for each in (tmp_path / "up").iterdir()] == ["file"]


def test_timers_cannot_be_migrated(spark: SparkSession, tmp_path: Path) -> None:
    migration = make_migration(tmp_path, state="_timer_state/event_user-timers")
    with pytest.raises(StateError, match="TIMER state cannot be migrated"):
        migrate(orders().open(), migration, str(tmp_path / "up"))
    assert not (tmp_path / "up").exists()
