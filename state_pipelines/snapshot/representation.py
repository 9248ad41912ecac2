"""Texts and small HTML tables that represent snapshots, operators and states in terminals, Markdown and HTML.

Uids, names of states and classes, keys and paths are whatever somebody has written into `_metadata`. None of them may
move the cursor of a terminal (`escape_terminal`), end a cell or a line (`escape_line`, `escape_markdown`), or become a
tag (`escape_html`).
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A backslash is used for the characters that it escapes in every dialect of Markdown. Entities replace the characters
# of tags, tables and strikethrough, where dialects differ.
_MARKDOWN = {each: f"\\{each}" for each in "\\`*_{}[]#!"} | {
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    "|": "&#124;",
    "~": "&#126;",
    # GitHub shows text between two dollar signs as a formula.
    "$": "&#36;",
}

# GitHub finds URLs before it replaces entities, but mentions of users and issues after that, also in HTML (cmark-gfm,
# issues 181 and 278), so that entities do not hide mentions. An empty comment does: it is invisible, and interrupts
# the text in which GitHub finds them.
_COMMENT = "<!-- -->"
_MENTION = r"@|#(?=\d)"
_MENTION_IN_HTML = re.compile(_MENTION)
_SPECIAL = re.compile(
    rf"(?P<mention>{_MENTION})|(?P<url>:(?=//)|(?<=www)\.)|[{re.escape(''.join(_MARKDOWN))}]", re.IGNORECASE
)

# Characters of the categories Cc (but for tab and line feed), Cf, Co, Cs, Zl and Zp, and all others that Unicode calls
# Default_Ignorable_Code_Point: what moves the cursor, turns the direction of what follows, or makes two names look
# alike. Cs are halves of characters, which Java's texts can have and UTF-8 cannot.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff]"
)
# The ASCII characters of `_HIDDEN`; for ASCII texts, this pattern takes a fifth of the time.
_HIDDEN_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
# Invisible characters that are needed to write some texts: joiners inside words of scripts from Arabic to
# Mongolian and between emoji, and one selector after a symbol.
_JOINED = "\u0620-\u06dc\u06de-\u06ff\u0710-\u088f\u0892-\u08e1\u08e3-\u10ff\u1161-\u17b3\u17b6-\u180a\u1810-\u1cff"
_SYMBOLS = "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_NEEDED = re.compile(
    f"(?<=[{_JOINED}{_SYMBOLS}\ufe0f])[\u200c\u200d](?=[{_JOINED}{_SYMBOLS}])|(?<=[{_SYMBOLS}])[\ufe0e\ufe0f]"
)


def escape_terminal(text: str) -> str:
    r"""Return a text with control and invisible characters as their escapes, such as `\x1b`.

    Tabs, line feeds, and the invisible characters inside words and emoji are kept.
    """
    return (_HIDDEN_ASCII if text.isascii() else _HIDDEN).sub(_escape_hidden, text)


def escape_line(text: str) -> str:
    r"""Return a text of one line as `escape_terminal` does, with line breaks as `\n`, so that it stays one line."""
    return escape_terminal(text).replace("\n", "\\n")


def _escape_hidden(match: re.Match[str]) -> str:
    if _NEEDED.match(match.string, match.start()):
        return match[0]
    return match[0].encode("unicode_escape").decode()


def escape_markdown(text: str) -> str:
    """Return a text of one line that Markdown shows unchanged, without links and without mentions of users."""
    return _SPECIAL.sub(_escape_special, _join_lines(text))


def _escape_special(match: re.Match[str]) -> str:
    if match["url"]:
        return f"&#{ord(match[0])};"
    return _MARKDOWN.get(match[0], match[0]) + (_COMMENT if match["mention"] else "")


def quote_markdown(text: str) -> str:
    """Return a text of one line as code in Markdown; backticks in it become apostrophes."""
    return f"`{_join_lines(text).replace('`', chr(39))}`"


def escape_html(text: str) -> str:
    """Return a text of one line for the content of an HTML element, also in Markdown, where it notifies nobody."""
    return _MENTION_IN_HTML.sub(rf"\g<0>{_COMMENT}", html.escape(_join_lines(text)))


def _join_lines(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


SHOWN_ROWS = 50
"""Maximum number of rows of a table that are shown; its caption has the total number."""

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
        caption: caption of the table.
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
