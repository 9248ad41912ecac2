"""Failures of runs: errors as failures of Dagster, and the outcomes of runs as plain values."""

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import dagster as dg

from state_pipelines.dagster.job import FlinkJob
from state_pipelines.errors import StateError, StorageError
from state_pipelines.redaction import redact

# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.


STORAGE_RETRIES = 3
"""Maximal number of retries of a step after transient storage errors."""

FIRST_WAIT = 10
"""Seconds before the first retry; doubled for each further one."""

ERROR_TAG = "state-pipelines/error"
"""Run tag with the class of the error that explains a failed run."""

OPERATOR_TAG = "state-pipelines/operator"
STATE_TAG = "state-pipelines/state"
PARENT_TAG = "dagster/parent_run_id"
"""Tag of a re-execution."""

_TAGS = (ERROR_TAG, OPERATOR_TAG, STATE_TAG)

_TAG_SIZE = 255
_END = object()

_Context = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext
_Function = TypeVar("_Function", bound=Callable[..., object])


def reporting_failures(function: _Function) -> _Function:
    """Decorate the function of an asset or op with `report_failures`; its first argument must be the context."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(context: dg.OpExecutionContext, *args: object, **others: object) -> Iterator[object]:
            with report_failures(context):
                yield from function(context, *args, **others)

        return cast("_Function", generate)

    @functools.wraps(function)
    def call(context: dg.OpExecutionContext, *args: object, **others: object) -> object:
        with report_failures(context):
            return function(context, *args, **others)

    return cast("_Function", call)


def using_storage_of(job: FlinkJob | None) -> Callable[[_Function], _Function]:
    """Decorate the function of an asset or op, so that it uses the storage options of a job, and no other code does.

    Args:
        job: the Flink job; None for that of the argument `flink_job`.
    """

    def find(arguments: Mapping[str, object]) -> FlinkJob:
        return cast("FlinkJob", arguments["flink_job"]) if job is None else job

    def decorate(function: _Function) -> _Function:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generate(*args: object, **others: object) -> Iterator[object]:
                storage = find(others).using_storage
                events = cast("Generator[object]", function(*args, **others))
                # Leave the block at each event: while Dagster handles the event, the options must not apply.
                try:
                    while True:
                        with storage():
                            event = next(events, _END)
                        if event is _END:
                            return
                        yield event
                finally:
                    with storage():
                        events.close()

            return cast("_Function", generate)

        @functools.wraps(function)
        def call(*args: object, **others: object) -> object:
            with find(others).using_storage():
                return function(*args, **others)

        return cast("_Function", call)

    return decorate


@contextmanager
def report_failures(context: _Context) -> Iterator[None]:
    """Turn a `StateError` into a failure of the step, or into a retry if it is a transient storage error.

    Raises:
        dg.Failure: the step failed; the parts of the error are its metadata.
        dg.RetryRequested: the storage had a transient error, and retries are left.
    """
    run = _find_run(context)
    if run is not None:
        _clear_inherited_tags(context.instance, run)
    try:
        yield
    except StateError as error:
        if isinstance(error, StorageError) and error.transient and context.retry_number < STORAGE_RETRIES:
            wait = FIRST_WAIT * 2**context.retry_number
            context.log.warning("%s; retrying in %d s", error, wait)
            raise dg.RetryRequested(max_retries=STORAGE_RETRIES, seconds_to_wait=wait) from error
        if run is not None:
            context.instance.add_run_tags(run.run_id, dict(_list_tags(error)))
        raise to_failure(error) from error


def to_failure(error: StateError) -> dg.Failure:
    """Return a failure without retries; its metadata are class, file, offset, operator, state, hint and details."""
    where = error.where
    metadata: dict[str, dg.MetadataValue | str | int] = {"error": type(error).__name__}
    if where.file is not None:
        metadata["file"] = dg.MetadataValue.path(where.file)
    pairs = (
        ("offset", where.offset),
        ("operator", where.operator),
        ("state", where.state),
        ("field", where.path),
        ("hint", error.hint or None),
    )
    metadata |= {name: value for name, value in pairs if value is not None}
    metadata |= error.details
    return dg.Failure(str(error), metadata=metadata, allow_retries=False)


def _find_run(context: _Context) -> dg.DagsterRun | None:
    """Return the run of a step; None if the function was called directly, as in a test of an op."""
    try:
        return context.run
    except dg.DagsterError:
        return None


def _clear_inherited_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Empty the error tags that a re-execution has inherited from the earlier run; Dagster cannot remove tags."""
    inherited = {name: "" for name in _TAGS if run.tags.get(name)}
    # If a step of this run itself has failed, the tags describe its error, and stay.
    if PARENT_TAG in run.tags and inherited and not _has_failed_step(instance, run.run_id):
        instance.add_run_tags(run.run_id, inherited)


def _has_failed_step(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a step of a run has failed so far."""
    return bool(instance.all_logs(run_id, of_type={dg.DagsterEventType.STEP_FAILURE}))


def _list_tags(error: StateError) -> Iterator[tuple[str, str]]:
    yield ERROR_TAG, type(error).__name__
    for name, value in ((OPERATOR_TAG, error.where.operator), (STATE_TAG, error.where.state)):
        if value is not None:
            yield name, to_tag(value)


def to_tag(text: str) -> str:
    """Return a text as the value of a tag: at most 255 characters that databases store."""
    # Names in snapshots may contain lone surrogates, which UTF-8 cannot encode.
    return text.encode(errors="backslashreplace").decode()[:_TAG_SIZE]


NOT_EVALUATED = "not evaluated"
"""Metadata of a check that a failed step did not evaluate: why."""

_PLAIN = (
    dg.TextMetadataValue,
    dg.IntMetadataValue,
    dg.FloatMetadataValue,
    dg.BoolMetadataValue,
    dg.PathMetadataValue,
    dg.UrlMetadataValue,
    dg.TimestampMetadataValue,
    dg.NullMetadataValue,
)
_OUTCOMES = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.STEP_OUTPUT,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.STEP_FAILURE,
}
_PLANS = {dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED}
_LONGEST = 1000
_LONGEST_REASON = 10_000


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a finished run.

    Attributes:
        success: whether all steps succeeded.
        materialized: plain metadata (text, numbers, paths) of materialised or observed assets and op outputs, by name.
        failed_checks: observed values of failed asset checks, by check name; without checks that a failed step did not
            evaluate.
        error: messages of failed steps, one per line; empty on success.
        failed_steps: keys of failed steps.
    """

    success: bool
    materialized: Mapping[str, Mapping[str, object]]
    failed_checks: Mapping[str, str]
    error: str
    failed_steps: frozenset[str] = frozenset()


def read_outcome(instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunOutcome:
    """Read the outcome of a finished run from its events."""
    materialized: dict[str, Mapping[str, object]] = {}
    failed: dict[str, str] = {}
    errors: list[str] = []
    failed_steps: set[str] = set()
    for event in _list_events(instance, run.run_id, _OUTCOMES):
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            materialization = event.step_materialization_data.materialization
            materialized[materialization.asset_key.to_user_string()] = select_plain(materialization.metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
            observation = event.asset_observation_data.asset_observation
            materialized[observation.asset_key.to_user_string()] = select_plain(observation.metadata)
        elif event.event_type is dg.DagsterEventType.STEP_OUTPUT:
            metadata = select_plain(event.step_output_data.metadata)
            if metadata and event.step_key is not None:
                materialized.setdefault(event.step_key, metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if not check.passed and NOT_EVALUATED not in check.metadata:
                observed = check.metadata.get("observed")
                failed[check.check_name] = "" if observed is None else str(observed.value)[:_LONGEST]
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE:
            failed_steps.add(str(event.step_key))
            # Exceptions of clients and of Spark may quote URLs and options.
            errors.append(f"{event.step_key}: {redact(read_reason(event))[:_LONGEST_REASON]}")
    success = run.status is dg.DagsterRunStatus.SUCCESS
    if not success and not errors:
        errors.append(f"the run ended with the status {run.status.value.lower()}, but no step failed")
    return RunOutcome(success, materialized, failed, "\n".join(errors), frozenset(failed_steps))


def read_planned_assets(instance: dg.DagsterInstance, run_id: str) -> dict[str, set[dg.AssetKey]]:
    """Return the assets that each step of a run materialises or checks."""
    planned: dict[str, set[dg.AssetKey]] = {}
    for event in _list_events(instance, run_id, _PLANS):
        if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
            key: dg.AssetKey | None = event.asset_check_planned_data.asset_key
        else:
            key = event.asset_key
        if key is not None:
            planned.setdefault(str(event.step_key), set()).add(key)
    return planned


def read_reason(event: dg.DagsterEvent) -> str:
    """Return why a step failed: the description of its `dg.Failure`, or the message of the innermost cause."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "the step failed without a message"


def select_plain(metadata: Mapping[str, dg.MetadataValue]) -> dict[str, object]:
    """Return the text, numbers and paths of metadata; tables, Markdown and long texts are left out."""
    plain: dict[str, object] = {}
    for name, value in metadata.items():
        if isinstance(value, _PLAIN) and not (isinstance(value.value, str) and len(value.value) > _LONGEST):
            plain[name] = value.value
    return plain


def _list_events(
    instance: dg.DagsterInstance, run_id: str, wanted: set[dg.DagsterEventType]
) -> Iterator[dg.DagsterEvent]:
    for entry in instance.all_logs(run_id, of_type=wanted):
        if entry.dagster_event is not None:
            yield entry.dagster_event
