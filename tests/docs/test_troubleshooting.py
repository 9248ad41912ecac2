"""The messages of ours that the page about troubleshooting quotes exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from state_pipelines.checkpoints.coordinator import FailureReason
from tests.docs.runner import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


@cache
def list_texts() -> tuple[str, ...]:
    """All string literals of the library, those in the fixed parts of f-strings too."""
    files = (ROOT / "state_pipelines").rglob("*.py")
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return tuple(value.lower() for value in constants if isinstance(value, str))


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_of_ours(message: str) -> None:
    fixed = max((part.strip(" ,;:") for part in message.split("…")), key=len)
    assert len(fixed) > 8
    assert any(fixed.lower() in text for text in list_texts())


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 20


@pytest.mark.parametrize("reason", FailureReason, ids=lambda reason: reason.name)
def test_every_reason_of_a_failed_checkpoint_has_a_cause_and_a_remedy(reason: FailureReason) -> None:
    assert f"| {reason.message} | {reason.cause} | {reason.remedy} |" in PAGE
    assert "does not arise" not in reason.remedy
