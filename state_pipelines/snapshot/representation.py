"""Representations of snapshots, operators and states: one line for `repr`, a small HTML table for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.snapshot.operator import Operator
    from state_pipelines.snapshot.snapshot import Snapshot
    from state_pipelines.snapshot.state import State

SHOWN_ROWS = 50
"""Rows of a table; the caption tells how many there are."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def describe_snapshot(snapshot: Snapshot) -> str:
    """Describe a snapshot in one line; nothing is read."""
    number = f" {snapshot.checkpoint_id}" if snapshot.checkpoint_id >= 0 else ""
    counts = f"{_count(len(snapshot.operators), 'operator')}, {format_bytes(snapshot.file_size)}"
    return f"{snapshot.kind}{number}, {counts}, {snapshot.path}"


def describe_operator(operator: Operator) -> str:
    """Describe an operator in one line; nothing is read."""
    name = f" ({operator.name})" if operator.name and operator.name != operator.label else ""
    return f"{operator.label}{name}, parallelism {operator.parallelism} of {operator.max_parallelism}"


def describe_state(state: State) -> str:
    """Describe a state in one line; only headers of files are read, which is done when there is a state."""
    return f"{state.name} of {state.operator.label}, {_count(len(state.parts), 'subtask')}"


def make_snapshot_html(snapshot: Snapshot) -> str:
    """Make an HTML table of the operators of a snapshot; nothing is read."""
    rows = (
        (each.label, each.name or "", f"{each.parallelism} of {each.max_parallelism}", format_bytes(each.keyed_size))
        for each in snapshot.operators
    )
    head = ("operator", "name", "parallelism", "keyed state")
    return _make_table(describe_snapshot(snapshot), head, rows, len(snapshot.operators))


def make_operator_html(operator: Operator) -> str:
    """Make an HTML table of the states of an operator; reads the headers of its files.

    State that cannot be read is a row with its error.
    """
    found = operator.survey()
    rows = [(state.label, state.kind, describe(state.serializer), "") for state in found.states]
    rows += [("", "", "", error) for error in dict.fromkeys(str(failure.error) for failure in found.failures)]
    head = ("state", "kind", "type", "error") if found.failures else ("state", "kind", "type")
    return _make_table(describe_operator(operator), head, (row[: len(head)] for row in rows), len(rows))


def make_state_html(state: State) -> str:
    """Make an HTML table of the columns of a state, or of the reason why it has none."""
    caption = f"{describe_state(state)}, {state.kind}"
    try:
        rows = [(field.name, str(field.type)) for field in state.schema]
    except StateError as error:
        return _make_table(caption, ("error",), [(str(error),)], 1)
    return _make_table(caption, ("column", "type"), rows, len(rows))


def format_bytes(size: int) -> str:
    """Format a number of bytes, such as `12 B` or `1.5 MiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _make_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], count: int) -> str:
    """Make an HTML table; everything in it is escaped, because names in snapshots are untrusted."""
    if count > SHOWN_ROWS:
        caption = f"{caption} (the first {SHOWN_ROWS} of {count:,})"
    lines = [f"<table><caption>{escape(caption)}</caption>", _make_row("th", head)]
    lines += [_make_row("td", row) for row, _ in zip(rows, range(SHOWN_ROWS), strict=False)]
    return "\n".join([*lines, "</table>"])


def _make_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
