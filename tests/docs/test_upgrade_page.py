"""The page about Flink 1.x to 2.x: its commands run as they are written, and a real Flink 2 takes what they leave."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXAMPLE = harness.ROOT / "examples" / "upgrade"
PATH = harness.ROOT / "docs" / "from-1.x-to-2.x.md"
PAGE = PATH.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^state-pipelines (.+?) +# exit code (\d)$", PAGE, re.MULTILINE)
EXPECTED = "expected.jsonl.gz"


@pytest.fixture(scope="module")
def upgraded(followed: Callable[[Path], Path]) -> Path:
    """The folder in which somebody has followed the page."""
    return followed(PATH)


def test_the_page_has_a_command_for_each_step() -> None:
    assert [line.split()[0] for line, _ in COMMANDS] == ["check", "check", "migrate", "check"]


@pytest.mark.spark
def test_the_draft_is_the_one_on_the_page(upgraded: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert (upgraded / "migrations" / "0001_draft.yaml").read_text(encoding="utf-8") == shown


@pytest.mark.spark
def test_the_result_is_what_the_new_job_would_have_written(upgraded: Path) -> None:
    command = [sys.executable, "-m", "state_pipelines", "dump", "savepoint-2.3", "--uid", "customers", "--uid", "views"]
    done = subprocess.run(command, cwd=upgraded, capture_output=True, text=True, check=True)
    (upgraded / "dump.jsonl").write_text(done.stdout, encoding="utf-8")
    kept = [each for each in harness.read_entries(upgraded / "dump.jsonl") if each["kind"] in harness.ENTRY_KINDS]
    expected = harness.read_entries(EXAMPLE / EXPECTED)
    wanted, found = ([each for each in entries if each["kind"] == "keyed"] for entries in (expected, kept))
    difference = harness.diff_entries(wanted, found)
    assert not difference, str(difference)
    assert wanted


@pytest.mark.flink
@pytest.mark.spark
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("version", [each for each in harness.VERSIONS if not each.startswith("1.")])
def test_flink_2_restores_the_result(upgraded: Path, version: str, backend: str) -> None:
    job = jobs.shop_job("v2")
    result = harness.restore(version, upgraded / "savepoint-2.3", job, backend=backend, parallelism=3)
    assert result.ok, result.error
    difference = harness.diff_entries(harness.read_entries(EXAMPLE / EXPECTED), result.entries)
    assert not difference, str(difference)


@pytest.mark.flink
@pytest.mark.slow
def test_flink_2_refuses_the_savepoint_as_it_was() -> None:
    (savepoint,) = (EXAMPLE / "savepoint").iterdir()
    assert not harness.restore("2.3.0", savepoint, jobs.shop_job("v2")).ok
