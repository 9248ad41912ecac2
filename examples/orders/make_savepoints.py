"""Makes the savepoints of the example again: `python examples/orders/make_savepoints.py`.

Beside each savepoint lie two files: `expected.jsonl.gz`, every entry as the running job itself sees it, and
`expected-migrated.jsonl.gz`, every entry as the evolved job sees it after the same input.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Makes all savepoints and the files beside them."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.flink import harness, jobs

    for version in harness.VERSIONS:
        folder = HERE / "savepoints" / f"flink-{version.rpartition('.')[0]}"
        shutil.rmtree(folder, ignore_errors=True)
        # the state is small: without this all of it would sit inside _metadata
        job = replace(jobs.orders_job("v1"), settings={"execution.checkpointing.data-inline-threshold": "0"})
        _, entries = harness.make_snapshot(version, job, folder)
        harness.write_entries(folder / "expected.jsonl.gz", entries)
        with tempfile.TemporaryDirectory() as scratch:
            _, evolved = harness.make_snapshot(version, jobs.orders_job("v2"), Path(scratch))
        harness.write_entries(folder / "expected-migrated.jsonl.gz", evolved)


if __name__ == "__main__":
    main()
