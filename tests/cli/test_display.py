"""Lines that are printed without rich are the lines that rich would print."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from rich.text import Text

from state_pipelines.cli.display import SafeConsole, crop, print_table
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.checkpoint import OperatorState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

TEXTS = [
    "",
    "orders",
    "  two  blanks ",
    "x" * 40,
    "x" * 41,
    "word " * 20,
    "größe 大 🎉",
    "大" * 21,
    "a\tb",
    "[bold]x[/] :smile:",
]
KINDS: list[dict[str, Any]] = [{}, {"force_terminal": True, "color_system": "truecolor"}, {"no_color": True}]


def make(kind: type[Console], options: dict[str, Any]) -> Console:
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": False, "emoji": False}
    return kind(file=StringIO(), width=40, height=25, **plain, **options)


@pytest.mark.parametrize("options", KINDS, ids=["file", "terminal", "no color"])
@pytest.mark.parametrize("style", [None, "bold", "bold cyan"])
def test_texts_are_printed_as_rich_prints_them(style: str | None, options: dict[str, Any]) -> None:
    consoles = [make(kind, options) for kind in (Console, SafeConsole)]
    for console in consoles:
        for text in TEXTS:
            console.print(text, style=style)
        console.print()
        console.print("two", "objects", style=style)
        console.print(Text("a text"), soft_wrap=True)
        with console.capture() as captured:
            console.print("captured", style=style)
        assert "captured" in captured.get()
    expected, printed = (console.file.getvalue() for console in consoles)  # type: ignore[attr-defined]
    assert printed == expected


def test_a_line_break_in_a_text_is_visible() -> None:
    console = make(SafeConsole, {})
    console.print("a\nb")
    console.print("a\nb", soft_wrap=True)
    print_table(console, ("name",), [("a\nb",), (crop("c\nd", 3),)])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [each.strip() for each in lines] == ["a\\nb", "a\\nb", "name", "a\\nb", "c\\…"]


def test_characters_that_rich_leaves_out_are_visible_too() -> None:
    console = make(SafeConsole, {})
    console.print("or\rders\x07")
    console.print("or\rders\x07" * 10)
    assert console.file.getvalue().startswith("or\\rders\\x07\nor\\rders\\x07or")  # type: ignore[attr-defined]


@pytest.mark.slow
def test_operators_are_printed_without_the_layout_of_rich(
    call: Callable[..., Called], broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = broken / "_metadata"
    metadata = read_metadata(file.read_bytes(), str(file))
    operators = tuple(OperatorState(each.to_bytes(16, "big"), 1, 128) for each in range(2_000))
    file.write_bytes(write_metadata(replace(metadata, operator_states=operators)))
    laid_out = 0

    def render(self: Console, *arguments: Any) -> Any:
        nonlocal laid_out
        laid_out += 1
        return Console.render(self, *arguments)

    monkeypatch.setattr(SafeConsole, "render", render)
    called = call("inspect", broken)
    assert called.out.count("uid not stored") == 2_000
    assert laid_out < 20
