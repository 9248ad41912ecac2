from __future__ import annotations

import html
import sys
import time
import unicodedata

import markdown
import mistune
import pytest
from markdown_it import MarkdownIt

from state_pipelines.snapshot.representation import escape_html, escape_markdown, escape_terminal, quote_markdown

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
        ("or\u200bders\u2060\ufeff", "or\\u200bders\\u2060\\ufeff"),
        ("soft\xadhyphen \u180e \u3164", "soft\\xadhyphen \\u180e \\u3164"),
        ("tags \U000e0041\U000e007f", "tags \\U000e0041\\U000e007f"),
        ("private \ue000 \U0010fffd", "private \\ue000 \\U0010fffd"),
        ("or\u200dders\u200c", "or\\u200dders\\u200c"),
        ("a\ufe0f \U000e0100", "a\\ufe0f \\U000e0100"),
        ("👩\u200d🚀 ❤\ufe0f\u200d🔥 ©\ufe0f", None),
        ("❤\ufe0f\ufe0f", "❤\ufe0f\\ufe0f"),
        ("👩\u200d\u200d🚀", "👩\\u200d\\u200d🚀"),
        ("می\u200cشود क्\u200dष", None),
    ],
)
def test_terminals_get_no_control_characters(text: str, shown: str | None) -> None:
    shown = text if shown is None else shown
    assert escape_terminal(text) == shown
    assert escape_terminal(shown) == shown


@pytest.mark.slow
def test_no_invisible_character_is_sent_to_a_terminal_by_itself() -> None:
    hidden = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
    for each in map(chr, range(sys.maxunicode + 1)):
        category = unicodedata.category(each)
        if category in hidden and each not in "\t\n":
            assert escape_terminal(each).isascii(), hex(ord(each))
        elif category[0] in "LNPS" and each not in "\u115f\u1160\u3164\uffa0":
            assert escape_terminal(each) == each, hex(ord(each))


@pytest.mark.slow
def test_long_texts_are_escaped_in_time_in_proportion_to_their_length() -> None:
    begin = time.monotonic()
    for text in ("orders\n" * 1_000_000, "größe 大" * 1_000_000):
        assert escape_terminal(text) == text
    assert len(escape_terminal("\u200d" * 1_000_000)) == 6_000_000
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("@org/team", "@org"),
        ("mail someone@example.org", "@example"),
        ("org/repository#12", "#12"),
        ("https://example.org/a?b", "://"),
        ("see HTTP://EXAMPLE.org", "://"),
        ("www.example.org and WWW.example.org", "www."),
    ],
)
def test_markdown_notifies_nobody_and_links_nothing(text: str, reference: str) -> None:
    escaped = escape_markdown(text)
    assert reference not in escaped.lower()
    for shown in (
        markdown.markdown(escaped),
        MarkdownIt("commonmark").render(escaped),
        str(mistune.create_markdown(escape=False, plugins=["url"])(escaped)),
    ):
        assert "<a" not in shown
        # What is looked for after Markdown became HTML ends at comments.
        assert reference in ("://", "www.") or reference not in html.unescape(shown)
        assert html.unescape(shown.replace("<!-- -->", "")).strip() == f"<p>{text}</p>"


@pytest.mark.parametrize(("text", "reference"), [("@org/team", "@org"), ("a#12 'b'", "#12")])
def test_html_notifies_nobody(text: str, reference: str) -> None:
    escaped = escape_html(text)
    assert reference not in html.unescape(escaped)
    assert html.unescape(escaped.replace("<!-- -->", "")) == text


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


def test_names_of_inner_classes_are_no_formulas() -> None:
    assert escape_markdown("a.B$C$D") == "a.B&#36;C&#36;D"
