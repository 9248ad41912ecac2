"""Dagster failures from errors, with file, offset, operator, state and hint on the step, and tags on the run."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import dagster as dg

from state_pipelines.errors import StateError, StorageError

STORAGE_RETRIES = 3
"""Maximal number of retries of a step after transient storage errors."""

FIRST_WAIT = 10
"""Seconds before the first retry; doubled for each further one."""

ERROR_TAG = "state-pipelines/error"
"""Run tag with the class of the error that explains a failed run."""

_TAG_SIZE = 255

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


@contextmanager
def report_failures(context: _Context) -> Iterator[None]:
    """Turn a `StateError` into a failure of the step, or into a retry if it is a transient storage error.

    Raises:
        dg.Failure: the step failed; the parts of the error are its metadata.
        dg.RetryRequested: the storage had a transient error, and retries are left.
    """
    try:
        yield
    except StateError as error:
        if isinstance(error, StorageError) and error.transient and context.retry_number < STORAGE_RETRIES:
            wait = FIRST_WAIT * 2**context.retry_number
            context.log.warning("%s; retrying in %d s", error, wait)
            raise dg.RetryRequested(max_retries=STORAGE_RETRIES, seconds_to_wait=wait) from error
        tags = {f"state-pipelines/{name}": text for name, text in _list_tags(error)}
        context.instance.add_run_tags(context.run.run_id, tags)
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


def _list_tags(error: StateError) -> Iterator[tuple[str, str]]:
    yield "error", type(error).__name__
    for name, value in (("operator", error.where.operator), ("state", error.where.state)):
        if value is not None:
            # Names in snapshots may have halves of characters, which databases do not store.
            yield name, value.encode(errors="backslashreplace").decode()[:_TAG_SIZE]
