from __future__ import annotations

import html

import markdown
import pytest

from state_pipelines.snapshot.escaping import escape_html, escape_markdown, escape_terminal, quote_markdown

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![](http://host/x.png)",
    "a | b |\n| c",
    "`code` ` <b>",
    "</summary><script>x</script>",
    "&lt;b&gt;",
    "# head\n\n- list",
    "\\<b>",
    "**bold** _it_ ~~no~~",
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("a\x1b[2J\x07", "a\\x1b[2J\\x07"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("\u202etxt", "\\u202etxt"),
        ("two\nlines\tand tab", "two\nlines\tand tab"),
        ("größe 大 🎉", "größe 大 🎉"),
        ("half \ud83d of a character", "half \\ud83d of a character"),
    ],
)
def test_terminals_get_no_control_characters(text: str, shown: str) -> None:
    assert escape_terminal(text) == shown
    assert escape_terminal(shown) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_the_text_and_nothing_else(text: str) -> None:
    shown = markdown.markdown(escape_markdown(text))
    assert html.unescape(shown) == f"<p>{text.replace(chr(10), ' ')}</p>"
    assert "<" not in shown.removeprefix("<p>").removesuffix("</p>")


@pytest.mark.parametrize("text", HOSTILE)
def test_code_ends_where_it_should(text: str) -> None:
    shown = markdown.markdown(quote_markdown(text))
    assert shown.startswith("<p><code>")
    assert shown.endswith("</code></p>")
    assert shown.count("<") == 4


@pytest.mark.parametrize("text", HOSTILE)
def test_html_holds_no_tag(text: str) -> None:
    assert "<" not in escape_html(text)
    assert "\n" not in escape_html(text)
    assert html.unescape(escape_html(text)) == text.replace("\n", " ")
