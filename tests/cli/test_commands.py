"""The commands are found without what belongs to extras."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = ("dagster", "google.protobuf", "great_expectations", "kubernetes", "pandas", "py4j", "pyspark", "s3fs")
"""Packages that the package alone does not bring."""

LOAD = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))
from state_pipelines.cli.commands import COMMANDS, load_command
for each in COMMANDS:
    load_command(each)
"""


@pytest.mark.slow
def test_every_command_loads_without_the_packages_of_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(absent=EXTRAS)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
