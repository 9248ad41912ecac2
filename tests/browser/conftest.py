from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.many_snapshots import fill_instance
from tests.browser.project import dg_dev, make_project
from tests.clusters.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.browser.project import Deployment
    from tests.clusters.servers import Server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program; the tests skip before anything is started where there is none."""
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH: install chromium, or google-chrome")
    return CHROMIUM


@pytest.fixture(scope="session")
def flink() -> Iterator[Server]:
    """The cluster of a job of the deployment."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def deployment(chromium: str, flink: Server) -> Iterator[Deployment]:
    # Not `tmp_path_factory`: pages show paths, and pictures of them are in the docs.
    with tempfile.TemporaryDirectory(prefix="flink-", ignore_cleanup_errors=True) as directory:
        project = make_project(Path(directory) / "shop", flink.url)
        fill_instance(project)
        with dg_dev(project) as running:
            yield running


@pytest.fixture(scope="session")
def page(chromium: str) -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1400, "height": 860})
        browser.close()
