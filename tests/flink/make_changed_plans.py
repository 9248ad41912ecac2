"""Record the plans of the queries in `tests/data/sql/changes`, for tests without Flink.

`python -m tests.flink.make_changed_plans` writes `tests/data/sql/changes/plans.json.gz`: a plan for each name.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

from state_pipelines.sql.planner import compile_scripts
from tests.flink.harness import ROOT
from tests.flink.planned_states import link_home

FOLDER = ROOT / "tests/data/sql/changes"
VERSION = "2.2.1"


def read_queries() -> dict[str, str]:
    """The queries by name."""
    lines = (FOLDER / "queries.sql").read_text().splitlines()
    pairs = (line.removeprefix("-- ").partition(": ") for line in lines)
    return {name: query for name, _, query in pairs}


def main() -> None:
    """Record all plans."""
    tables = (FOLDER / "tables.sql").read_text()
    with tempfile.TemporaryDirectory() as directory:
        home = link_home(VERSION, Path(directory))
        paths = {}
        for name, query in read_queries().items():
            paths[name] = Path(directory, f"{name}.sql")
            paths[name].write_text(f"{tables}{query};\n")
        compiled = compile_scripts([str(each) for each in paths.values()], flink_home=str(home))
    plans = {name: json.loads(each.json) for name, each in zip(paths, compiled, strict=True)}
    (FOLDER / "plans.json.gz").write_bytes(gzip.compress(json.dumps(plans, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
