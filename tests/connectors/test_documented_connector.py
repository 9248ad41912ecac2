"""The example of `docs/connectors.md`, installed and used as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from state_pipelines.connectors.registry import Codec, list_codecs
from tests.connectors.vectors import element, i64
from tests.serializers.literals import utf
from tests.snapshot.built import build_snapshot, list_operator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "connectors.md").read_text(encoding="utf-8")


def find_block(language: str) -> str:
    (block,) = re.findall(rf"```{language}[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    return str(block)


@pytest.fixture
def python_path(tmp_path: Path) -> str:
    """A PYTHONPATH on which the example is installed, entry point and all."""
    site = tmp_path / "site"
    info = site / "acme_connector-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-connector\nVersion: 1.0\n")
    groups = tomllib.loads(find_block("toml"))["project"]["entry-points"]
    lines = [
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (site / "acme_connector.py").write_text(find_block("python"))
    return os.pathsep.join([str(site), str(ROOT)])


@pytest.mark.slow
def test_a_connector_of_ones_own_is_detected_by_the_command_line(python_path: str, tmp_path: Path) -> None:
    stored = element(1, utf("A-7") + i64(99))
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [stored]))
    command = [sys.executable, "-m", "state_pipelines", "read", str(tmp_path), "--operator", "source"]
    done = subprocess.run(
        [*command, "--state", "SourceReaderState", "--json"],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["connector"], row["split"]) == ("acme", {"shelf": "A-7", "position": 99})


@pytest.mark.parametrize("codec", list_codecs(), ids=lambda codec: f"{codec.connector}-{codec.kind}")
def test_every_connector_is_documented(codec: Codec) -> None:
    missing = [
        each
        for each in (codec.connector, *codec.state_names, *codec.columns.names)
        if not re.search(rf"\b{each}\b", PAGE)
    ]
    assert not missing
