"""Small input that stands for far more than it is; in a process of its own, whose memory is bounded."""

from __future__ import annotations

import subprocess
import sys

from tests.robustness.bombs import BOMBS


def test_bombs_are_read_or_refused_within_the_bounds() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.robustness.bombs"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line for line in lines if "FOUND" in line] == []
    assert done.returncode == 0, done.stderr
    assert len(lines) == len(BOMBS)
    # Nearly all of them are too much to be read.
    assert sum("refused: " in line for line in lines) > 30
