"""A job whose only step fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def execute_failing(
    function: Callable[..., None],
) -> Iterator[tuple[dg.DagsterInstance, dg.DagsterRun, dg.DagsterEvent]]:
    """Run a job whose only op is a function: its instance, its run, and the event of the failure."""
    fails = dg.op(function)

    @dg.job
    def job() -> None:
        fails()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        (step,) = result.filter_events(lambda event: event.is_step_failure)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        yield instance, run, step
