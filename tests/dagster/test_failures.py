"""Errors of this package as failures of Dagster."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import dagster as dg
import pytest

from state_pipelines.dagster.failures import reporting_failures, to_failure
from state_pipelines.errors import FormatError, StorageError, Where
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
