"""Retention is killed or disturbed; `python -m tests.robustness.killed_retention` does it at each call."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("command", "way"), [("apply", "kill -9 after"), ("restore", "second process")])
def test_retention_that_is_disturbed_loses_nothing_and_is_finished_by_the_next_run(command: str, way: str) -> None:
    # In a process without threads, which can be forked.
    options = ("--command", command, "--way", way, "--points", "1")
    module = [sys.executable, "-m", "tests.robustness.killed_retention", *options]
    done = subprocess.run(module, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, _, last = done.stdout.splitlines()
    assert first.startswith(f"{command}: ")
    assert " 1 attempts, " in first
    assert last == "  0 findings"
