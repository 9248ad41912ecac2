"""Errors of this package as failures of Dagster."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
import os
from collections.abc import Iterator

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob, build_flink_job
from state_pipelines.dagster.failures import reporting_failures, to_failure, using_storage_of
from state_pipelines.dagster.flink_asset import AssetStep, bind_op, checked_op, flink_asset, flink_sensor
from state_pipelines.errors import FormatError, StorageError, Where
from state_pipelines.storage.resolution import VARIABLE, find_storage_options
from tests.dagster.failing_jobs import execute_failing

ERROR = FormatError(
    "the magic number is wrong", where=Where("s3://b/_metadata", 17, "orders", "order", "value.zip"), hint="Look again"
)


def test_a_failure_has_the_place_as_metadata() -> None:
    failure = to_failure(ERROR)
    assert failure.description == str(ERROR)
    assert {name: value.value for name, value in failure.metadata.items()} == {
        "error": "FormatError",
        "file": "s3://b/_metadata",
        "offset": 17,
        "operator": "orders",
        "state": "order",
        "field": "value.zip",
        "hint": "Look again",
    }
    assert not failure.allow_retries


def test_step_and_run_show_the_error() -> None:
    @reporting_failures
    def fails(context: dg.OpExecutionContext) -> None:
        raise ERROR

    with execute_failing(fails) as (_, run, step):
        data = step.step_failure_data.user_failure_data
    assert data is not None
    assert data.metadata["offset"].value == 17
    assert {name: text for name, text in run.tags.items() if name.startswith("state-pipelines/")} == {
        "state-pipelines/error": "FormatError",
        "state-pipelines/operator": "orders",
        "state-pipelines/state": "order",
    }


def test_an_op_that_is_called_directly_needs_no_run() -> None:
    @dg.op
    @reporting_failures
    def fails(context: dg.OpExecutionContext) -> None:
        raise ERROR

    with dg.build_op_context() as context, pytest.raises(dg.Failure, match="the magic number is wrong"):
        fails(context)


def test_a_name_that_no_database_stores_does_not_hide_the_error() -> None:
    @reporting_failures
    def fails(context: dg.OpExecutionContext) -> None:
        raise FormatError("the magic number is wrong", where=Where(operator="orders\ud800"))

    with execute_failing(fails) as (_, run, step):
        assert step.step_failure_data.user_failure_data is not None
    assert run.tags["state-pipelines/operator"] == "orders\\ud800"


def test_only_transient_errors_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_pipelines.dagster.failures.FIRST_WAIT", 0)
    attempts = []

    @dg.op
    @reporting_failures
    def fails_once(context: dg.OpExecutionContext) -> None:
        attempts.append(context.retry_number)
        if context.retry_number == 0:
            raise StorageError("reset", transient=True)
        raise StorageError("no credentials")

    @dg.job
    def job() -> None:
        fails_once()

    assert not job.execute_in_process(raise_on_error=False).success
    assert attempts == [0, 1]


def test_two_jobs_with_one_root_have_their_own_options_in_assets_ops_and_sensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    found: list[tuple[str, str, object]] = []

    def look(kind: str, job: FlinkJob) -> None:
        inherited = json.loads(os.environ.get(VARIABLE, "{}")).get("s3://shared", {})
        found.append((kind, job.name, find_storage_options("s3://shared/checkpoints").get("key")))
        assert inherited == ({} if kind == "sensor" else {"key": job.name})

    @checked_op()
    def look_at_storage(context: dg.OpExecutionContext, flink_job: FlinkJob) -> None:
        look("bound op", flink_job)

    def run(job: FlinkJob) -> None:
        @flink_asset(job, "proof", step=AssetStep.SEE, kinds={"flink"}, partitioned=False)
        def proof(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
            look("asset", job)
            yield dg.MaterializeResult()
            look("asset", job)

        @dg.op
        @using_storage_of(job)
        def read(context: dg.OpExecutionContext) -> None:
            look("op", job)

        with dg.build_op_context() as context:
            bind_op(job, look_at_storage)(context)

        @flink_sensor(job, "watch", interval=30)
        def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
            """Watch."""
            look("sensor", job)
            return dg.SkipReason()

        assert dg.materialize([proof], resources=build_flink_job(job).resources).success
        with dg.build_op_context() as op_context, dg.build_sensor_context() as sensor_context:
            read(op_context)
            watch(sensor_context)

    jobs = [
        FlinkJob(name=name, roots=("s3://shared",), results="/none", storage_options={"s3a://shared/": {"key": name}})
        for name in ("one", "other")
    ]
    for job in jobs:
        run(job)
    assert find_storage_options("s3://shared/checkpoints") == {}
    kinds = ("bound op", "asset", "asset", "op", "sensor")
    assert found == [(kind, job.name, job.name) for job in jobs for kind in kinds]
