"""Running tasks under a bar."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from state_pipelines.operations.local_processes import Processes, Work

Result = TypeVar("Result")

PROCESSES = click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes, or threads, that share the work; by default one per core, or one for a small snapshot.",
)


def run_with_bar(processes: Processes, console: Console, tasks: Sequence[Work[Result]], what: str) -> list[Result]:
    """Run tasks under a bar, when somebody looks; as `Processes.run`."""
    with _make_bar(console) as bar:
        task = bar.add_task(what, total=len(tasks))
        return processes.run(tasks, what, report=lambda done, total: bar.update(task, completed=done, total=total))


def _make_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())


@contextmanager
def show_progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar when stderr is a terminal; yields what receives the number of finished tasks, and of all."""
    with _make_bar(console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
