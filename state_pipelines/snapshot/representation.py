"""Texts and small HTML tables, which represent snapshots, operators and states in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.snapshot.escaping import escape_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHOWN_ROWS = 50
"""Rows of a table; the caption tells how many there are."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(size: int) -> str:
    """Format a number of bytes, such as `12 B` or `1.5 MiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def make_html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], count: int) -> str:
    """Make an HTML table; everything in it is escaped, because names in snapshots are untrusted.

    Args:
        caption: of the table.
        head: titles of the columns.
        rows: the cells; only the first `SHOWN_ROWS` are shown.
        count: number of rows.
    """
    if count > SHOWN_ROWS:
        caption = f"{caption} (the first {SHOWN_ROWS} of {count:,})"
    lines = [f"<table><caption>{escape_html(caption)}</caption>", _make_row("th", head)]
    lines += [_make_row("td", row) for row, _ in zip(rows, range(SHOWN_ROWS), strict=False)]
    return "\n".join([*lines, "</table>"])


def _make_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape_html(cell)}</{tag}>' for cell in cells)}</tr>"


def format_count(number: int, noun: str) -> str:
    """Format a number of things, such as `1 operator` or `1,200 operators`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
