"""Names in a snapshot are texts that its writer chose; in a terminal and in Markdown they stay texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.cli.display import shorten_classes
from state_pipelines.metadata import compute_operator_id, read_metadata, write_metadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

FORGED = "restorable: all is fine"
UID = f"<img src=x onerror=alert(1)>|\x1b[2J\x1b]0;title\x07\n{FORGED}\n"


@pytest.fixture
def hostile(broken: Path) -> Path:
    """The savepoint with another uid for one operator."""
    file = broken / "_metadata"
    metadata = read_metadata(file.read_bytes(), str(file))
    operators = tuple(
        replace(each, uid=UID, operator_id=compute_operator_id(UID)) if each.uid == "orders" else each
        for each in metadata.operator_states
    )
    file.write_bytes(write_metadata(replace(metadata, operator_states=operators)))
    return broken


@pytest.mark.parametrize("command", ["inspect", "read", "verify"])
def test_no_control_character_reaches_the_terminal(call: Callable[..., Called], hostile: Path, command: str) -> None:
    called = call(command, hostile)
    assert "\x1b" not in called.out + called.err
    assert "\x07" not in called.out + called.err
    assert not any(line.strip().startswith(FORGED) for line in called.out.splitlines())


def test_errors_are_escaped_too(call: Callable[..., Called], hostile: Path) -> None:
    called = call("read", hostile, "--operator", "\x1b[2Jnone")
    assert called.code == 2
    assert "\\x1b[2Jnone" in called.err
    assert "\x1b" not in called.err


def test_markdown_has_no_tag_of_a_name(call: Callable[..., Called], hostile: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    called = call("check", hostile, hostile, "--markdown", report)
    assert called.code in (0, 1, 3), called.err
    text = report.read_text()
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;&#124;" in text
    assert "\x1b" not in text


@pytest.mark.slow
def test_class_names_are_shortened_in_time_proportional_to_their_length() -> None:
    assert shorten_classes("Map<java.lang.String, com.acme.Order$Item>") == "Map<String, Order$Item>"
    packages = "a." * 500_000
    assert shorten_classes(f"{packages}b") == f"{packages}b"
    assert shorten_classes(f"{packages}Order") == "Order"
