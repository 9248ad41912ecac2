"""Takes the savepoint of a PyFlink job that the tests carry: `python -m tests.flink.make_pyflink`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.flink import pyflink_jobs
from tests.flink.harness import ROOT

TARGET = ROOT / "tests" / "data" / "pyflink" / "canonical"


def main() -> None:
    """Replaces the savepoint."""
    with tempfile.TemporaryDirectory() as directory:
        savepoint = pyflink_jobs.make_savepoint(Path(directory) / "job")
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(savepoint, TARGET)


if __name__ == "__main__":
    main()
