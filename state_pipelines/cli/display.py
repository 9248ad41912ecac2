"""Output of commands: tables, paths and colours, progress on a terminal, and proofs."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.cells import cell_len
from rich.console import COLOR_SYSTEMS, Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.operations.proofs import ProofReport, arrange_rows
from state_pipelines.snapshot.representation import escape_line, escape_terminal
from state_pipelines.snapshot.representation import format_bytes as format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from state_pipelines.operations.local_processes import Processes, Work

WIDTH_OF_FILES = 140
"""Columns of output that goes to a file or a pipe, which has no width."""

_HEIGHT_OF_FILES = 25

_PACKAGE = re.compile(r"(?<![\w.])(?:[a-z_]\w*\.)+(?=[A-Z])")


class SafeConsole(Console):
    """A console that escapes the control characters in texts, but not those that it adds itself for colors."""

    def print(self, *objects: Any, style: str | Style | None = None, **options: Any) -> None:
        """Print objects as rich does, but skip rich's layout, which is 50 times slower, for a text that fits on a line.

        Line breaks in a text are escaped: they can only come from names in a snapshot or of files.
        """
        objects = tuple(escape_line(each) if isinstance(each, str) else each for each in objects)
        if len(objects) > 1 or options or not all(isinstance(each, str) for each in objects):
            super().print(*objects, style=style, **options)
            return
        text = "".join(objects)
        if not self._fits(text):
            super().print(text, style=style)
            return
        if style is not None and self.color_system is not None:
            chosen = style if isinstance(style, Style) else self.get_style(style)
            text = chosen.render(text, color_system=COLOR_SYSTEMS[self.color_system])
        try:
            self.file.write(f"{text}\n")
            self.file.flush()
        except BrokenPipeError:
            self.on_broken_pipe()

    def _fits(self, text: str) -> bool:
        """Return whether rich would print a text as it is: one line without tabs, and no capture or progress bar."""
        if not text.isprintable() or (len(text) if text.isascii() else cell_len(text)) > self.width:
            return False
        is_plain = not (self._buffer_index or self._render_hooks or self.record or self.quiet)
        return is_plain and not (self.no_color or self.legacy_windows or self.is_jupyter)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a text or table, with the control characters of its texts escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_terminal(segment.text), segment.style)


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a line as `click.echo` does, with its control characters and line breaks visible."""
    click.echo(escape_line(text), nl=nl, err=err)


@contextmanager
def describe_published(path: str | None, *, as_json: bool) -> Iterator[None]:
    """Keep an error in the block, which prints a description of a published snapshot, from failing the command.

    Args:
        path: the snapshot; None if nothing was published, so that errors are raised.
        as_json: after an error, print the path of the snapshot as JSON, not as text.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        # Catch errors of any class: the snapshot is published even if its description fails.
        if path is None:
            raise
        if click.get_current_context().meta.get("debug"):
            traceback.print_exc()
        what = error if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        echo(f"note: the result cannot be described ({' '.join(str(what).split())})", err=True)
        echo(f"note: nothing is wrong with it: {path} is published and complete", err=True)
        with suppress(OSError):
            click.echo(json.dumps({"path": path}) if as_json else escape_terminal(f"new snapshot: {path}"))
        if isinstance(error, OSError):
            # Discard the buffered output: writing it would fail again when Python exits.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_console(*, stderr: bool = False) -> Console:
    """Make a console without markup, so that names with brackets stay as they are."""
    stream = sys.stderr if stderr else sys.stdout
    # With a height as well, rich does not ask for the size of the terminal at every line.
    width, height = (None, None) if stream.isatty() else (WIDTH_OF_FILES, _HEIGHT_OF_FILES)
    return SafeConsole(
        file=stream, width=width, height=height, markup=False, highlight=False, soft_wrap=False, emoji=False
    )


class _LineTable(Table):
    """A table that escapes line breaks in its texts; a text is wrapped only where its column is too narrow."""

    def add_row(self, *renderables: RenderableType | None, **options: Any) -> None:
        """Add a row as rich does."""
        super().add_row(*(escape_line(each) if isinstance(each, str) else each for each in renderables), **options)


def make_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; the columns named in `right` hold numbers."""
    table = _LineTable(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in right
        )
    return table


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    right: tuple[str, ...] = (),
    depth: int = 1,
) -> None:
    """Print a table (`make_table`), indented by two characters for each level of depth."""
    table = make_table(*columns, right=right)
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2 * depth), expand=False))


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print the notes about a plan or a result."""
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)


def indent(content: Table | Text | Padding | str) -> Padding:
    """Return `content`, indented by two characters."""
    shown = escape_line(content) if isinstance(content, str) else content
    return Padding(shown, (0, 0, 0, 2), expand=False)


def crop(text: str, size: int) -> Text:
    """Return `text`, cut to at most `size` characters."""
    text = escape_line(text)
    return Text(text if len(text) <= size else f"{text[: size - 1]}…")


def shorten_classes(text: str) -> str:
    """Remove the packages of class names from the description of a serializer."""
    return _PACKAGE.sub("", text)


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_markdown(text: str, path: str) -> None:
    """Write a report into a file; `-` is the standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error.strerror}", where=Where(file=path)) from None


Result = TypeVar("Result")

PROCESSES = click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes, or threads, that share the work; by default one per core, or one for a small snapshot.",
)


def run_with_bar(processes: Processes, console: Console, tasks: Sequence[Work[Result]], what: str) -> list[Result]:
    """Run tasks as `Processes.run` does, with a progress bar where stderr is a terminal."""
    with _make_bar(console) as bar:
        task = bar.add_task(what, total=len(tasks))
        return processes.run(tasks, what, report=lambda done, total: bar.update(task, completed=done, total=total))


def _make_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())


@contextmanager
def show_progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if stderr is a terminal; yield its callback (number of finished tasks, number of tasks)."""
    with _make_bar(console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_proof(report: ProofReport, console: Console) -> None:
    """Print the checks of a proof, and the records of those that failed."""
    if report.checks:
        rows = [(each.name, each.result, each.description, crop(each.observed, 200)) for each in report.checks]
        print_table(console, ("check", "result", "description", "observed"), rows)
    for check in report.failed:
        if not check.rows:
            continue
        columns, cells = arrange_rows(check.rows)
        total = 0 if check.counts is None else check.counts.failed
        of = f" of {total:,}" if total > len(cells) else ""
        console.print(f"{check.name}: {len(cells)}{of} records", style="bold")
        print_table(console, columns, [list(map(Text, row)) for row in cells])
    print_notes(console, report.notes)


def show_failed_proof(report: object, *, as_json: bool) -> None:
    """Print the report of a failed proof; print nothing if the error has no report."""
    if not isinstance(report, ProofReport):
        return
    if as_json:
        click.echo(json.dumps({"path": None, "proof": report.to_json()}, indent=2, default=str))
    else:
        show_proof(report, make_console())
