"""What the page about the architecture names exists."""

from __future__ import annotations

import pkgutil
import re

import pytest

from tests.docs.runner import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?!java\.)(?:\w+\.)+\w+)`", PAGE)))
WALKS = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE, re.MULTILINE)
LONGEST = 10


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name: str) -> None:
    assert pkgutil.resolve_name(f"state_pipelines.{name}") is not None


def test_no_walk_takes_more_than_ten_calls() -> None:
    assert len(WALKS) > LONGEST
    assert max(int(number) for number, _ in WALKS) <= LONGEST
