"""Fields of Kryo beside fields that a migration changes, as Flink itself reads them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import Declarations, open_snapshot
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.flink.harness import Entry

pytestmark = [pytest.mark.flink, pytest.mark.spark]

OLD = "1.20.5"
BACK = {"impossible": "Flink's view of it is not what is tested"}
CRATE = [{"rename": {"owner": "holder"}}, {"cast": {"field": "weight", "to": "long"}}]
PARCEL = [
    {"rename": {"owner": "holder", "counts": "numbers", "first.zip": "code", "stops[].zip": "code"}},
    {"cast": {"field": "weight", "to": "long"}},
    {"cast": {"field": "first.code", "to": "long"}},
    {"cast": {"field": "stops[].code", "to": "long"}},
    {"add": {"field": "currency", "type": "String", "expression": "concat('EUR ', weight)"}},
    {"drop": {"field": "note"}},
]
STATES = ("parcel", "parcels", "by-number")


def job(main: str, side: str) -> jobs.Job:
    folders = ("tests/flink/java/steps/job", f"tests/flink/java/parcels/{side}")
    orders = ("examples/orders/java/v1", "examples/orders/java/job")
    return jobs.Job(main, (*folders, *orders), settings={"pipeline.generic-types": "true"})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    if reason := harness.missing_jdk():
        pytest.skip(reason)
    return harness.make_snapshot(OLD, job("steps.OldParcels", "before"), tmp_path_factory.mktemp("old"))


def restore(
    spark: SparkSession, old: Path, target: Path, version: str, backend: str, changes: dict[str, list[Any]]
) -> list[Entry]:
    from state_pipelines.spark import migrate

    entries = [
        {"operator": "parcels", "state": state, "upgrade": steps, "downgrade": BACK} for state, steps in changes.items()
    ]
    snapshot = open_snapshot(str(old), Declarations(uids=("parcels",)))
    migrate(snapshot, parse_migration({"revision": "1", "changes": entries}), str(target))
    result = harness.restore(version, target, job("steps.NewParcels", "after"), backend=backend)
    assert result.ok, result.error
    return result.entries


def select(entries: list[Entry], state: str) -> list[Entry]:
    found = [each for each in entries if each.get("state") == state]
    assert found
    return found


def new_stop(stop: dict[str, Any] | None) -> dict[str, Any] | None:
    if stop is None:
        return None
    return {name: value for name, value in stop.items() if name != "zip"} | {"code": stop["zip"]}


def new_crate(crate: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in crate.items() if name != "owner"} | {"holder": crate["owner"]}


def new_parcel(parcel: Any) -> Any:
    if isinstance(parcel, list):
        return [new_parcel(each) for each in parcel]
    kept = {name: parcel[name] for name in ("@class", "tags", "weight")}
    stops = [new_stop(each) for each in parcel["stops"]]
    changed = {"first": new_stop(parcel["first"]), "stops": stops, "numbers": parcel["counts"]}
    return kept | changed | {"holder": parcel["owner"], "currency": f"EUR {parcel['weight']}"}


@pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_flink_1_reads_kryo_fields_beside_changed_ones(
    spark: SparkSession, old: tuple[Path, list[Entry]], tmp_path: Path, backend: str
) -> None:
    changes = {**dict.fromkeys(STATES, PARCEL), "crate": CRATE}
    after = restore(spark, old[0], tmp_path / "new", OLD, backend, changes)
    for state, change in (*((state, new_parcel) for state in STATES), ("crate", new_crate)):
        expected = [{**each, "value": change(each["value"])} for each in select(old[1], state)]
        difference = harness.diff_entries(expected, select(after, state))
        assert not difference, str(difference)


@pytest.mark.parametrize("version", ["2.2.1", "2.3.0"])
def test_flink_2_reads_collections_out_of_kryo_beside_changed_fields(
    spark: SparkSession, old: tuple[Path, list[Entry]], tmp_path: Path, version: str
) -> None:
    gone = {"drop_state": {"reason": "its classes are not those of Flink 2"}}
    collections = {"collections": {"counts": "String, Long", "tags": "String"}}
    changes: dict[str, list[Any]] = {**{key: [gone] for key in STATES}, "crate": [*CRATE, collections]}
    after = restore(spark, old[0], tmp_path / "new", version, "hashmap", changes)
    expected = [{**each, "value": new_crate(each["value"])} for each in select(old[1], "crate")]
    difference = harness.diff_entries(expected, select(after, "crate"))
    assert not difference, str(difference)
