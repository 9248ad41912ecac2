"""Entry points of installed packages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path


def install(directory: Path, group: str, module: str) -> None:
    info = directory / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nacme = {module}\n")


def test_plugins_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme.once", "acme_once")
    (tmp_path / "acme_once.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins("acme.once", "acme")
    assert sys.modules.pop("acme_once")
    load_plugins("acme.once", "acme")
    assert "acme_once" not in sys.modules


def test_a_plugin_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme.broken", "acme_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"the money plug-in acme \(acme_missing\) cannot be loaded"):
        load_plugins("acme.broken", "money")
