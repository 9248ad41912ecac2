"""Pictures of pages for the docs: `STATE_PIPELINES_SCREENSHOTS=docs/images pytest -m browser` writes them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

DIRECTORY = os.environ.get("STATE_PIPELINES_SCREENSHOTS")

_COLORS = 96
_SETTLED = 1_500
"""Milliseconds after which a page has drawn its plots."""


def keep_picture(page: Page, name: str) -> None:
    """Write the visible part of a page as a small PNG, if there is a directory for pictures."""
    if DIRECTORY:
        navigation = page.get_by_text("Hide navigation")
        if navigation.is_visible():
            navigation.click()
        page.wait_for_timeout(_SETTLED)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(_COLORS).save(Path(DIRECTORY) / f"{name}.png", optimize=True)
