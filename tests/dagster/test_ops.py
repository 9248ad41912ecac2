"""Ops of which a job is composed, on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster import SnapshotPath, SparkResource, check, erase, migrate, register, rescale, verify
from state_pipelines.dagster.failures import to_failure
from state_pipelines.dagster.metadata_values import round_money, round_seconds
from state_pipelines.dagster.ops import publish_savepoint
from state_pipelines.errors import ProofError
from state_pipelines.operations.proofs import ProofCheck, ProofReport
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import SAVEPOINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment

KEY = "order-0001"
seen: list[str] = []


@dg.op
def publish(snapshot: SnapshotPath) -> None:
    """An op of somebody else."""
    seen.append(snapshot)


@pytest.fixture(scope="module")
def release(deployment: Deployment, spark: SparkSession) -> dg.ExecuteInProcessResult:
    """A job of five of the ops and of another one, run once."""
    key = deployment.add("2.2")

    @dg.job(resource_defs={"flink_job": deployment.job, "spark": SparkResource()})
    def job() -> None:
        publish(register(erase(rescale(migrate(verify(check()))))))

    ops = {
        "check": {"inputs": {"snapshot": key}},
        "rescale": {"config": {"parallelism": 3}},
        "erase": {"config": {"keys": [KEY]}},
    }
    return job.execute_in_process(instance=deployment.instance, run_config={"ops": ops})


def test_each_op_takes_the_snapshot_of_the_one_before(
    release: dg.ExecuteInProcessResult, deployment: Deployment
) -> None:
    paths = {each: release.output_for_node(each) for each in ("check", "verify", "migrate", "rescale", "erase")}
    # By its partition key.
    assert paths["check"] == paths["verify"] == f"{deployment.job.roots[0]}/flink-2.2/{SAVEPOINTS['2.2'].name}"
    assert [str(each) for each in deployment.results] == sorted(
        {paths[each] for each in ("migrate", "rescale", "erase")}
    )
    assert seen == [paths["erase"]]


def test_the_result_has_every_change(release: dg.ExecuteInProcessResult, deployment: Deployment) -> None:
    before = open_snapshot(str(SAVEPOINTS["2.2"]))
    after = open_snapshot(release.output_for_node("erase"))
    state = after.operator("orders").state("order")
    assert {each.parallelism for each in after.operators} == {3}
    keys = {row["state_key"] for row in state.to_arrow().to_pylist()}
    old = {row["state_key"] for row in before.operator("orders").state("order").to_arrow().to_pylist()}
    assert keys == old - {KEY}
    assert KEY in old
    assert state.schema != before.operator("orders").state("order").schema


def test_the_page_of_the_run_shows_the_proofs(release: dg.ExecuteInProcessResult) -> None:
    events = [each for each in release.all_events if each.event_type_value == "STEP_OUTPUT"]
    metadata = {each.step_key: each.step_output_data.metadata for each in events}
    assert metadata["check"]["with the migration"].value == "fully compatible"
    assert metadata["verify"]["verdict"].value == "restorable"
    assert metadata["migrate"]["proof rows differing"].value == 0
    assert metadata["erase"]["snapshots that hold the keys"].value == [release.output_for_node("rescale")]
    for name in ("migrate", "rescale", "erase"):
        assert metadata[name]["path"].value == release.output_for_node(name)


def test_a_registered_result_has_a_partition(release: dg.ExecuteInProcessResult, deployment: Deployment) -> None:
    keys = deployment.instance.get_dynamic_partitions("shop_snapshots")
    paths = {deployment.job.storage.find(key).path for key in keys}
    assert release.output_for_node("erase") in paths


def test_inputs_and_outputs_have_a_type_with_a_description() -> None:
    for op in (check, verify, migrate, rescale, erase, register):
        (input_type, output_type) = (op.input_defs[0].dagster_type, op.output_defs[0].dagster_type)
        assert input_type.display_name == output_type.display_name == "SnapshotPath"
        assert "latest" in str(input_type.description)
        assert op.description


def test_a_failed_proof_names_its_failed_checks() -> None:
    checks = (
        ProofCheck("key_sets", True, "The keys are the same.", "200 keys", "200 keys"),
        ProofCheck("round_trip", False, "The old rows come back.", "no difference", "189 rows differ"),
    )
    report = ProofReport("orders", "order", 200, 128, checks)

    def write() -> None:
        raise ProofError("round_trip failed", report=report)

    with dg.build_op_context() as context, pytest.raises(ProofError) as caught:
        publish_savepoint(context, None, write)
    metadata = to_failure(caught.value).metadata
    assert metadata["failed checks"].value == "round_trip: expected no difference; 189 rows differ"
    assert "key_sets" in str(metadata["proof"].value)


@pytest.mark.parametrize(("seconds", "shown"), [(0.123456, 0.12), (9.87654, 9.88), (61.23456, 61.2)])
def test_seconds_are_rounded_for_people(seconds: float, shown: float) -> None:
    assert round_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, 0), (12.345678, 12.35), (0.01234, 0.01), (0.0000123456, 0.000012), (-3.14159, -3.14)]
)
def test_money_is_rounded_for_people(amount: float, shown: float) -> None:
    assert round_money(amount) == shown
