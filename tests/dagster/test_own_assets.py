"""Assets of a team's own: the resource of snapshots, tables of states as inputs, one asset per state."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from state_pipelines.dagster import FlinkJob, SnapshotsResource, build_flink_job, build_test_job
from state_pipelines.dagster.assets.state_tables import name_columns
from state_pipelines.errors import NotFoundError, UsageError
from tests.dagster.conftest import MIGRATIONS, SAVEPOINTS, UIDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.dagster import TestJob

STATE = dg.AssetKey(["test", "state_tables", "orders", "order"])


@pytest.fixture(scope="module")
def test_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestJob]:
    """A job with a savepoint and the table of one of its states, written without Spark."""
    directory = tmp_path_factory.mktemp("own")
    tables = {"directory": str(directory / "tables"), "per": "state"}
    made = build_test_job(
        directory, SAVEPOINTS["2.2"], migrations=str(MIGRATIONS), uids=UIDS, tables=tables, webhook="https://secret"
    )
    table = made.open(made.keys[0]).operator("orders").state("order").to_arrow()
    path = Path(made.job.storage.name_table_of(made.keys[0], "orders", "order"))
    path.mkdir(parents=True)
    pq.write_table(table.slice(0, 150), path / "part-0.parquet")
    pq.write_table(table.slice(150), path / "part-1.parquet")
    (path / "_SUCCESS").touch()
    yield made
    made.instance.dispose()


def load(job: TestJob, kind: Any, key: dg.AssetKey = STATE, **metadata: str) -> Any:
    """What an input of this type gets; the error of the step where it fails."""
    found: list[Any] = []

    def downstream(table: Any) -> None:
        found.append(table)

    downstream.__annotations__["table"] = kind
    asset = dg.asset(
        partitions_def=job.job.partitions,
        ins={"table": dg.AssetIn(key, input_manager_key="test_tables", metadata=metadata)},
    )(downstream)
    result = job.having(dg.Definitions(assets=[asset])).materialize([asset.key], job.keys[0])
    if not result.success:
        (failure,) = result.get_step_failure_events()
        error = failure.step_failure_data.error
        while error is not None and error.cause is not None:
            error = error.cause
        raise UsageError(str(error and error.message))
    return found[0]


@pytest.mark.parametrize("kind", [pa.Table, pd.DataFrame, pl.DataFrame])
def test_the_annotation_of_an_input_chooses_how_a_table_is_loaded(test_job: TestJob, kind: type) -> None:
    table = load(test_job, kind)
    assert isinstance(table, kind)
    assert len(table) == 200  # type: ignore[arg-type]


def test_an_input_may_be_the_path_and_name_its_state(test_job: TestJob) -> None:
    path = load(test_job, str, test_job.job.key("state_tables"), operator="orders", state="order")
    assert Path(path, "part-0.parquet").exists()


@pytest.mark.parametrize(
    ("kind", "key", "metadata", "message"),
    [
        (pa.Table, "state_tables", {}, "the input table names no state"),
        (pa.Table, "state_tables", {"operator": "orders", "state": "nothing"}, "there is no table for the input table"),
        (dict, "state_tables", {"operator": "orders", "state": "order"}, "has the type builtins.dict"),
    ],
)
def test_wrong_inputs_say_why(test_job: TestJob, kind: type, key: str, metadata: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(test_job, kind, test_job.job.key(key), **metadata)


def test_tables_of_states_are_no_outputs(test_job: TestJob) -> None:
    @dg.asset(io_manager_key="test_tables", partitions_def=test_job.job.partitions)
    def mine() -> int:
        return 1

    result = test_job.having(dg.Definitions(assets=[mine])).materialize([mine.key], test_job.keys[0])
    assert not result.success


def test_the_resource_opens_reads_judges_and_audits(test_job: TestJob) -> None:
    with dg.build_resources(dict(test_job.defs.resources or {})) as resources:
        snapshots = resources.test_snapshots
    assert isinstance(snapshots, SnapshotsResource)
    (key,) = test_job.keys
    names = ("latest", key, SAVEPOINTS["2.2"].name, str(SAVEPOINTS["2.2"]))
    assert len({snapshots.open(name).fingerprint for name in names}) == 1
    opened = snapshots.open(key)
    assert snapshots.read_arrow(opened, "orders", "order").num_rows == 200
    assert snapshots.read_pandas(key, "orders", "order")["value"][0]["amount"]
    assert snapshots.read_polars(key, "orders", "order").height == 200
    assert snapshots.audit(key).findings == ()
    report = snapshots.check(key)
    assert report.migrated.ok
    with pytest.raises(NotFoundError):
        snapshots.open("savepoint-unknown")
    with pytest.raises(UsageError, match="there are no pending revisions"):
        snapshots.migrate(key, "nowhere", to="base")
    # The UI shows the fields of resources.
    assert "secret" not in snapshots.description


def test_states_of_the_newest_snapshot_have_assets(test_job: TestJob) -> None:
    specs = {spec.key: spec for spec in test_job.defs.resolve_all_asset_specs()}
    states = {key for key in specs if key.path[:2] == ["test", "state_tables"] and len(key.path) == 4}
    survey = [operator.survey().states for operator in test_job.open(test_job.keys[0]).operators]
    assert len(states) == sum(map(len, survey))
    assert specs[STATE].metadata["state-pipelines/operator"] == "orders"
    assert [dep.asset_key for dep in specs[STATE].deps] == [test_job.job.key("state_tables")]
    assert specs[STATE].partitions_def == test_job.job.partitions


def test_the_field_tables_chooses_states(tmp_path: Path) -> None:
    tables = {"directory": "t", "per": "state", "states": "a/b, c/d/e"}
    job = FlinkJob(name="shop", roots=("nowhere",), results=str(tmp_path), tables=tables)  # type: ignore[arg-type]
    keys = {spec.key.to_user_string() for spec in build_flink_job(job).resolve_all_asset_specs()}
    assert {"shop/state_tables/a/b", "shop/state_tables/c_d/e"} <= keys
    assert job.beside(tmp_path).storage.tables == os.fspath(tmp_path / "t")
    with pytest.raises(ValidationError, match="'order' names no state: write OPERATOR/STATE"):
        FlinkJob(name="shop", roots=("n",), results="r", tables={**tables, "states": ["order"]})  # type: ignore[arg-type]


def test_columns_of_structs_are_listed_with_their_fields() -> None:
    schema = pa.schema([("state_key", pa.string()), ("value", pa.struct([("amount", pa.int64())]))])
    assert [(each.name, each.type) for each in name_columns("orders.order", schema)] == [
        ("orders.order.state_key", "string"),
        ("orders.order.value", "struct<amount: int64>"),
        ("orders.order.value.amount", "int64"),
    ]


def test_the_inventory_has_a_freshness_policy() -> None:
    job = FlinkJob(name="shop", roots=("n",), results="r", thresholds={"max_hours_without_inventory": 2})  # type: ignore[arg-type]
    (spec,) = [
        each for each in build_flink_job(job).resolve_all_asset_specs() if each.key.path[1] == "snapshot_inventory"
    ]
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
