"""Record the plan of the script of `planned_states` and the states of its job, for tests without Flink.

`python -m tests.flink.make_plans` writes `tests/data/sql/plans/flink-<line>.json.gz`.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

from state_pipelines import sql
from state_pipelines.sql.planner import find_flink
from tests.flink.harness import ROOT, VERSIONS
from tests.flink.planned_states import link_home, list_stored, read_script, run_plan


def record(version: str, directory: Path) -> bytes:
    """The plan and the states of its savepoint, as compressed JSON."""
    home = str(link_home(version, directory))
    script = directory / "queries.sql"
    script.write_text(read_script(version))
    compiled = sql.plan(str(script), flink_home=home)
    states = list_stored(run_plan(find_flink(home), compiled.json, directory / "savepoints"))
    content = {"plan": json.loads(compiled.json), "states": states}
    return gzip.compress(json.dumps(content, sort_keys=True).encode(), mtime=0)


def main() -> None:
    """Record all versions."""
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            line = version.rpartition(".")[0]
            (ROOT / f"tests/data/sql/plans/flink-{line}.json.gz").write_bytes(record(version, Path(directory)))


if __name__ == "__main__":
    main()
