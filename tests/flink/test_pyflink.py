"""State of Python functions: what the real PyFlink wrote is read, and what was changed restores in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import load_migration
from state_pipelines.snapshot import declare, open_snapshot
from tests.flink import pyflink_jobs
from tests.flink.harness import HarnessError
from tests.flink.make_pyflink import TARGET

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.flink

TYPES = TARGET.with_name("types.yaml")
KEYS = 12

MIGRATION = """
revision: grades
changes:
  - operator: states
    state: typed
    upgrade: [{add: {field: grade, type: INT, expression: "CAST(n % 5 AS INT)"}}]
    downgrade: [{drop: {field: grade}}]
  - operator: states
    state: items
    upgrade: [{add: {field: unit, type: STRING, default: kg}}]
    downgrade: [{drop: {field: unit}}]
  - operator: states
    state: ttl
    upgrade: [{ttl: {disable: kept for good}}]
    downgrade: [{ttl: {enable: "TIMESTAMP '2126-01-01 00:00:00Z'"}}]
  - operator: states
    state: plain
    upgrade: [{ttl: {enable: "TIMESTAMP '2126-01-01 00:00:00Z'"}}]
    downgrade: [{ttl: {disable: as before}}]
"""

REKEYED = """
revision: numbers
operator: states
upgrade: [{key: {type: Long, expression: "CAST(substring(state_key.f0, 5) AS BIGINT)"}}]
downgrade: [{key: {type: String, expression: "concat('key-', CAST(state_key.f0 AS STRING))"}}]
"""


@pytest.fixture(scope="session", autouse=True)
def _pyflink() -> None:
    if reason := pyflink_jobs.missing_python():
        pytest.skip(reason)
    try:
        pyflink_jobs.install()
    except HarnessError as error:
        pytest.skip(f"PyFlink cannot be installed: {error}")


def open_typed(path: Path) -> Snapshot:
    return open_snapshot(str(path), declare({"python_types": [str(TYPES)]}))


def write_migrated(spark: SparkSession, text: str, directory: Path) -> Path:
    """The savepoint that the tests carry, migrated."""
    from state_pipelines.spark.migration_run import migrate

    file, target = directory / "migration.yaml", directory / "migrated"
    file.write_text(text)
    result = migrate(open_typed(TARGET), load_migration(str(file)), str(target))
    assert result.proof is not None
    assert result.proof.ok
    return target


def last(key: int) -> int:
    """The last number that the job gave to a key."""
    return key + 2 * KEYS


def by_key(lines: list[dict[str, Any]], operator: str = "states") -> dict[Any, dict[str, Any]]:
    return {line["key"]: line for line in lines if line["operator"] == operator}


def test_a_field_more_and_other_times_to_live_restore(spark: SparkSession, tmp_path: Path) -> None:
    target = write_migrated(spark, MIGRATION, tmp_path)
    lines = pyflink_jobs.read_savepoint(target, tmp_path / "read", "--after")

    found = by_key(lines)
    assert len(found) == KEYS
    for key in range(KEYS):
        state, number = found[f"key-{key}"], last(key)
        assert state["typed"] == {"n": number, "s": f"s{number}", "grade": number % 5}
        numbers = [key, key + KEYS, number]
        assert state["items"] == [{"sku": f"sku-{n}", "amount": n, "unit": "kg"} for n in numbers]
        assert (state["ttl"], state["plain"]) == (number, number / 2)
        assert state["list"] == [f"{letter}{n}" for n in numbers for letter in "xy"]
        assert state["map"][f"m{number % 2}"] == number
        assert (state["sum"], state["average"]) == (sum(numbers), [sum(numbers), 3])
        assert f"'number': {number}" in state["pickled"]
    for operator in ("by-long", "by-tuple", "by-row", "by-pickle"):
        values = {line["value"] for line in lines if line["operator"] == operator}
        assert values == {f"v{number}" for number in range(KEYS)}


@pytest.mark.slow
def test_other_keys_restore(spark: SparkSession, tmp_path: Path) -> None:
    target = write_migrated(spark, REKEYED, tmp_path)
    found = by_key(pyflink_jobs.read_savepoint(target, tmp_path / "read", "--key", "long", "--small"))

    assert {key: state["typed"]["n"] for key, state in found.items()} == {key: last(key) for key in range(KEYS)}
    assert {key: len(state["list"]) for key, state in found.items()} == dict.fromkeys(range(KEYS), 6)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "form"), [("rocksdb", "NATIVE"), ("hashmap", "NATIVE")])
def test_every_format_is_read_alike(backend: str, form: str, tmp_path: Path) -> None:
    taken = pyflink_jobs.make_savepoint(tmp_path / "job", backend=backend, form=form, small=True)

    def entries(path: Path) -> list[str]:
        lines = [dict(line) for line in dump(open_typed(path), operator="states") if line["kind"] == "keyed"]
        return sorted(str({name: value for name, value in line.items() if name != "ttl_ts"}) for line in lines)

    assert entries(taken) == entries(TARGET)
