"""Every code block of the documentation runs, or says above itself why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import markdown
import pytest

from tests.docs.blocks import NOT_RUN, read_blocks, remove_blocks
from tests.docs.runner import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_YET = (
    "dagster",
    "deploying",
    "expectations",
    "migrations",
    "profiling",
    "pyflink",
    "rescaling",
    "retention",
    "spark",
    "storage",
    "verifying",
)
"""Pages whose blocks are not run yet."""

PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if path.stem not in NOT_YET or path.parent.name == "reference"
)
UPGRADE_PAGE = "from-1.x-to-2.x.md"
"""The page that `test_upgrade_page` follows, for what is left afterwards."""

MOST_NOT_RUN = 12
"""Blocks that may be left out, of all pages together."""


@pytest.mark.spark
@pytest.mark.parametrize(
    "page", [each for each in PAGES if read_blocks(each) and each.name != UPGRADE_PAGE], ids=lambda page: page.name
)
def test_the_blocks_of_a_page_run(page: Path, followed: Callable[[Path], Path]) -> None:
    followed(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_is_in_fenced_blocks(page: Path) -> None:
    assert "<pre>" not in markdown.markdown(remove_blocks(page), extensions=["tables"])


def test_few_blocks_are_left_out() -> None:
    left_out = [str(block) for page in PAGES for block in read_blocks(page) if block.title.startswith(NOT_RUN)]
    assert len(left_out) <= MOST_NOT_RUN, left_out
