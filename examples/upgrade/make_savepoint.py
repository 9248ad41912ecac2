"""Makes the savepoint of the example: `python examples/upgrade/make_savepoint.py`.

Beside it is `expected.jsonl.gz`: every entry as the job with the new code sees it on Flink 2.x after the same input.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLD, NEW = "1.20.5", "2.2.1"


def main() -> None:
    """Makes the savepoint and the file beside it."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.flink import harness, jobs

    folder = HERE / "savepoint"
    shutil.rmtree(folder, ignore_errors=True)
    harness.make_snapshot(OLD, jobs.shop_job("v1"), folder)
    with tempfile.TemporaryDirectory() as scratch:
        _, entries = harness.make_snapshot(NEW, jobs.shop_job("v2"), Path(scratch))
    harness.write_entries(HERE / "expected.jsonl.gz", entries)


if __name__ == "__main__":
    main()
