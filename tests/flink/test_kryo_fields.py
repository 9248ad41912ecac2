"""A class that Kryo writes got a field: Flink verifies nothing and fails while reading, which `check` says before."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink

VERSION = "1.20.5"
OLD = jobs.shop_job("v1")
CHANGED = replace(OLD, sources=("tests/flink/java/kryo-fields", OLD.sources[0], *OLD.sources[2:]))
(SAVEPOINT,) = (harness.ROOT / "examples" / "upgrade" / "savepoint").iterdir()


def compiled(job: jobs.Job) -> Path:
    return harness.compile_job(harness.install(VERSION), job)


@pytest.mark.parametrize(("job", "code"), [(OLD, 0), (CHANGED, 1)], ids=["same", "changed"])
def test_check_says_what_flink_does(job: jobs.Job, code: int) -> None:
    classes = ("--classes", compiled(OLD), "--job-classes", compiled(job))
    options = ("--uid", "customers", "--uid", "views", "--target", "1.20", *map(str, classes))
    command = [sys.executable, "-m", "state_pipelines", "check", str(SAVEPOINT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=harness.ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    result = harness.restore(VERSION, SAVEPOINT, job)
    assert result.ok == (code == 0), result.error
