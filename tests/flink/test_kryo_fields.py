"""A class that Kryo writes got a field: Flink verifies nothing and fails while reading, which `check` says before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
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


@pytest.mark.parametrize(
    ("job", "code"), [pytest.param(OLD, 0, marks=pytest.mark.slow), (CHANGED, 1)], ids=["same", "changed"]
)
def test_check_says_what_flink_does(job: jobs.Job, code: int) -> None:
    classes = ("--classes", compiled(OLD), "--job-classes", compiled(job))
    options = ("--uid", "customers", "--uid", "views", "--target", "1.20", *map(str, classes))
    called = CliRunner().invoke(main, ["check", str(SAVEPOINT), *options])
    assert called.exit_code == code, called.output
    result = harness.restore(VERSION, SAVEPOINT, job)
    assert result.ok == (code == 0), result.error
