"""Steps on what is met less often: registered subclasses, windows, merged maps, rows of the table runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import MigrationError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import MigrationResult, migrate
from tests.snapshot.savepoints import types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration import Migration
    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

PEOPLE = """
revision: "1"
changes:
  - operator: composite-types
    state: person
    upgrade:
      - add: {field: initial, type: String, expression: "left(name, 1)"}
      - cast: {field: badge, to: Long, expression: "CAST(substring(badge, 7) AS BIGINT)"}
    downgrade:
      - cast: {field: badge, to: String, expression: "concat('badge ', badge)"}
      - drop: {field: initial}
  - operator: composite-types
    state: person-or-guest
    upgrade:
      - cast: {field: visits, to: Long}
      - set: {field: visits, expression: visits + 1}
    downgrade:
      - set: {field: visits, expression: visits - 1}
      - cast: {field: visits, to: Int}
  - operator: state-kinds
    state: value
    upgrade: [ttl: {enable: 2024-05-06T07:08:09.010Z}]
    downgrade: [ttl: {disable: "it was new"}]
  - operator: state-kinds
    state: list
    upgrade: [ttl: {enable: 2024-05-06}]
    downgrade: [ttl: {disable: "it was new"}]
  - operator: tumbling-windows
    upgrade: [key: {type: Long, expression: "CAST(state_key % 3 AS BIGINT)"}]
    downgrade: {impossible: "the keys are gone"}
  - operator: session-windows
    upgrade: [key: {type: String, expression: "concat('sensor-', state_key)"}]
    downgrade: [key: {type: Int, expression: "CAST(substring(state_key, 8) AS INT)"}]
"""
SPLIT = """
revision: "2"
operator: state-kinds
state: map
upgrade:
  - split: {into: {names: {type: String, expression: value}, sizes: {type: Int, expression: length(value)}}}
downgrade: {impossible: "not asked"}
"""
FILTER = """
revision: "3"
operator: state-kinds
state: sizes
upgrade: [filter: {keep: value > 6, reason: "short ones do not count"}]
downgrade: {impossible: "not asked"}
"""
MERGE = """
revision: "4"
operator: state-kinds
state: names
upgrade:
  - merge:
      with: [sizes]
      into: named
      type: Tuple2<Nullable<String>, Int>
      expression: "named_struct('f0', names, 'f1', coalesce(sizes, -1))"
downgrade: {impossible: "not asked"}
"""


def parse(text: str) -> Migration:
    return parse_migration(yaml.safe_load(text))


def entries(snapshot: Snapshot, operator: str, state: str) -> list[dict[str, Any]]:
    return list(dump(snapshot, operator=operator, state=state))


def timers(snapshot: Snapshot, operator: str) -> list[tuple[Any, ...]]:
    found = [each for each in dump(snapshot, operator=operator) if each["kind"] == "timer"]
    return sorted((each["domain"], each["key"], str(each["ns"]), each["ts"]) for each in found)


@pytest.fixture(scope="module")
def old() -> Snapshot:
    return types().open()


def run_chain(old: Snapshot, target: Path, cores: int, *, prove: bool) -> MigrationResult:
    """Run all four migrations; with more cores than files through spills."""
    chain = [(parse(text), Direction.UPGRADE) for text in (PEOPLE, SPLIT, FILTER, MERGE)]
    with pytest.MonkeyPatch.context() as context:
        context.setattr("state_pipelines.spark.migration_run.count_cores", lambda _: cores)
        return migrate(old, chain, str(target), prove=prove)


@pytest.fixture(scope="module")
def changed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    return run_chain(old, tmp_path_factory.mktemp("more") / "up", 1, prove=True)


def test_the_run_is_proven(changed: MigrationResult) -> None:
    assert changed.proof is not None
    assert changed.proof.ok


def people(snapshot: Snapshot, state: str) -> dict[str, dict[str, Any] | None]:
    return {str(each["key"]): each["value"] for each in entries(snapshot, "composite-types", state)}


def test_registered_subclasses_get_new_fields_and_types(old: Snapshot, changed: MigrationResult) -> None:
    before, after = people(old, "person"), people(changed.snapshot, "person")
    assert {value["@class"] for value in before.values() if value} == {"types.Person", "types.Employee"}
    assert before.keys() == after.keys()
    for key, value in before.items():
        wanted = value and value | {"initial": value["name"] and value["name"][:1]}
        if wanted and wanted["@class"] == "types.Employee" and wanted["badge"] is not None:
            wanted["badge"] = int(wanted["badge"].removeprefix("badge "))
        assert after[key] == wanted
    serializer = describe(changed.snapshot.operator("composite-types").state("person").serializer)
    _, registered = serializer.split("registered types.Employee: ")
    assert "badge: Long" in registered
    assert "types.Person#initial: String" in registered


def test_subclasses_that_are_not_registered_get_new_types(old: Snapshot, changed: MigrationResult) -> None:
    before, after = people(old, "person-or-guest"), people(changed.snapshot, "person-or-guest")
    assert {value["@class"] for value in before.values() if value} == {"types.Person", "types.Guest"}
    for value in before.values():
        if value and "visits" in value:
            value["visits"] += 1
    assert after == before


@pytest.mark.parametrize(("state", "time"), [("value", 1714979289010), ("list", 1714953600000)])
def test_a_date_of_yaml_enables_ttl(old: Snapshot, changed: MigrationResult, state: str, time: int) -> None:
    before = {str(each["key"]): each["value"] for each in entries(old, "state-kinds", state)}
    after = entries(changed.snapshot, "state-kinds", state)
    assert {str(each["key"]): each["value"] for each in after} == before
    assert {str(each["ttl_ts"]) for each in after} <= {str(time)} | {str([time] * n) for n in range(10)}


def test_maps_merge_by_their_user_keys(old: Snapshot, changed: MigrationResult) -> None:
    before = {(str(each["key"]), each["ukey"]): each["value"] for each in entries(old, "state-kinds", "map")}
    after = {
        (str(each["key"]), each["ukey"]): each["value"] for each in entries(changed.snapshot, "state-kinds", "named")
    }
    sizes = {key: len(value) if value is not None and len(value) > 6 else -1 for key, value in before.items()}
    assert set(sizes.values()) > {-1}
    assert after == {key: {"@tuple": [value, sizes[key]]} for key, value in before.items()}


def test_windows_of_equal_keys_are_joined_window_by_window(old: Snapshot, changed: MigrationResult) -> None:
    windows: dict[tuple[int, str], list[int]] = {}
    for each in entries(old, "tumbling-windows", "window-contents"):
        windows.setdefault((each["key"] % 3, str(each["ns"])), []).extend(each["value"])
    after = {
        (each["key"], str(each["ns"])): sorted(each["value"])
        for each in entries(changed.snapshot, "tumbling-windows", "window-contents")
    }
    assert after == {place: sorted(values) for place, values in windows.items()}


def test_the_timers_of_windows_follow_their_keys(old: Snapshot, changed: MigrationResult) -> None:
    wanted = {(domain, key % 3, window, time) for domain, key, window, time in timers(old, "tumbling-windows")}
    assert wanted
    assert timers(changed.snapshot, "tumbling-windows") == sorted(wanted)


@pytest.mark.parametrize("state", ["window-contents", "merging-window-set"])
def test_session_windows_stay_under_new_keys(old: Snapshot, changed: MigrationResult, state: str) -> None:
    before = entries(old, "session-windows", state)
    after = {
        (each["key"], str(each["ns"])): each["value"] for each in entries(changed.snapshot, "session-windows", state)
    }
    assert after == {(f"sensor-{each['key']}", str(each["ns"])): each["value"] for each in before}
    assert len(timers(changed.snapshot, "session-windows")) == len(timers(old, "session-windows"))


def test_maps_of_other_user_keys_do_not_merge(spark: SparkSession, old: Snapshot, tmp_path: Path) -> None:
    text = MERGE.replace("names", "map").replace("sizes", "composites")
    with pytest.raises(MigrationError, match="user key"):
        migrate(old, parse(text), str(tmp_path / "up"))


SQL = """
revision: "1"
changes:
  - operator: 28_join
    state: right-records
    upgrade:
      - cast: {field: f0, to: INT, expression: "CAST(f0 AS INT)"}
      - add: {field: f2, type: "VARCHAR(2147483647)", expression: "concat('#', f0)"}
    downgrade:
      - drop: {field: f2}
      - cast: {field: f0, to: BIGINT}
"""


@pytest.fixture(scope="module")
def tables(fixtures: Path) -> Snapshot:
    (metadata,) = (fixtures / "made" / "2.2.1" / "sql-rocksdb-canonical").glob("*/_metadata")
    return open_snapshot(str(metadata.parent))


def test_rows_of_tables_get_fields_and_types(spark: SparkSession, tables: Snapshot, tmp_path: Path) -> None:
    result = migrate(tables, parse(SQL), str(tmp_path / "up"))
    assert result.proof is not None
    assert result.proof.ok
    before = tables.operator("28_join").state("right-records").to_arrow().to_pylist()
    after = result.snapshot.operator("28_join").state("right-records").to_arrow().to_pylist()
    assert before
    assert [each["value"] for each in after] == [
        {**each["value"], "f2": None if each["value"]["f0"] is None else f"#{each['value']['f0']}"} for each in before
    ]
    serializer = result.snapshot.operator("28_join").state("right-records").serializer
    assert describe(serializer) == "RowData(INT, BIGINT NOT NULL, VARCHAR(2147483647))"


@pytest.mark.parametrize(
    ("state", "step", "message"),
    [
        (
            "28_join/right-records",
            {"add": {"field": "f2", "type": "VARIANT", "default": 1}},
            "VARIANT is no type of a column",
        ),
        ("28_join/right-records", {"cast": {"field": "f0", "to": "VARIANT"}}, "VARIANT is no type of a column"),
        (
            "9_group-aggregate/accState",
            {"cast": {"field": "f0.lastOrder", "to": "INT"}},
            "cannot change what is inside f0, a field of RowData",
        ),
        (
            "9_group-aggregate/accState",
            {"drop": {"field": "f0.f1"}},
            "cannot change what is inside f0, a field of RowData",
        ),
    ],
)
def test_what_rows_of_tables_cannot_become_is_told(
    spark: SparkSession, tables: Snapshot, tmp_path: Path, state: str, step: dict[str, Any], message: str
) -> None:
    operator, _, name = state.partition("/")
    content = {
        "revision": "1",
        "operator": operator,
        "state": name,
        "upgrade": [step],
        "downgrade": {"impossible": "x"},
    }
    with pytest.raises(MigrationError, match=message):
        migrate(tables, parse_migration(content), str(tmp_path / "up"))
    assert not (tmp_path / "up").exists()


def list_files(directory: Path) -> list[bytes]:
    return sorted(each.read_bytes() for each in directory.iterdir() if not each.name.startswith("_"))


def test_the_files_are_the_same_with_and_without_spills(
    old: Snapshot, changed: MigrationResult, tmp_path: Path
) -> None:
    # The files are compared with those that were proven.
    spilled = run_chain(old, tmp_path / "spilled", 1000, prove=False)
    assert changed.rows == spilled.rows
    assert list_files(Path(changed.path)) == list_files(tmp_path / "spilled")
