"""Record the plans of the queries in `tests/data/sql/changes` and in `examples/totals`, with savepoints.

`python -m tests.flink.make_changed_plans` writes a plan for each query and for both of each pair, the savepoint of the
example, and one of the same query as SQL text, whose operators have no uids.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from state_pipelines.sql.planner import FlinkJars, compile_scripts, find_flink, start_java
from state_pipelines.sql.scripts import parse_script
from tests.flink.harness import ROOT
from tests.flink.planned_states import SETTINGS, link_home

FOLDER = ROOT / "tests/data/sql/changes"
EXAMPLE = ROOT / "examples/totals"
VERSION = "2.2.1"
_SECONDS = 3.0


def read_queries() -> dict[str, str]:
    """The queries by name."""
    lines = (FOLDER / "queries.sql").read_text().splitlines()
    pairs = (line.removeprefix("-- ").partition(": ") for line in lines)
    return {name: query for name, _, query in pairs}


def record_plans(home: Path, directory: Path) -> None:
    """Record the plans of the queries, and those of the example."""
    tables = (FOLDER / "tables.sql").read_text()
    paths = {}
    for name, query in read_queries().items():
        paths[name] = directory / f"{name}.sql"
        paths[name].write_text(f"{tables}{query};\n")
    compiled = compile_scripts([str(each) for each in paths.values()], flink_home=str(home))
    plans = {name: json.loads(each.json) for name, each in zip(paths, compiled, strict=True)}
    (FOLDER / "plans.json.gz").write_bytes(gzip.compress(json.dumps(plans, sort_keys=True).encode(), mtime=0))
    scripts = sorted(EXAMPLE.glob("*.sql"))
    for path, each in zip(scripts, compile_scripts([*map(str, scripts)], flink_home=str(home)), strict=True):
        path.with_suffix(".json").write_text(each.json + "\n")


def read_pairs() -> dict[str, tuple[str, str]]:
    """The pairs of `pairs.sql`: scripts of the old query and of the new one, by name."""
    tables, *found = (FOLDER / "pairs.sql").read_text().split("\n\n-- ")
    blocks = (each.strip().splitlines() for each in found)
    return {name: (f"{tables}\n{old}\n", f"{tables}\n{new}\n") for name, old, new in blocks}


def record_pairs(home: Path, directory: Path) -> None:
    """Record the plans of the pairs."""
    paths = []
    for name, scripts in read_pairs().items():
        for number, script in enumerate(scripts):
            paths.append(directory / f"{name}.{number}.sql")
            paths[-1].write_text(script)
    compiled = compile_scripts([str(each) for each in paths], flink_home=str(home))
    plans = [json.loads(each.json) for each in compiled]
    found = dict(zip(read_pairs(), zip(plans[::2], plans[1::2], strict=True), strict=True))
    (FOLDER / "pairs.json.gz").write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))


def record_savepoint(flink: FlinkJars, target: Path, *, as_text: bool) -> None:
    """Run the example for a moment, and stop it with a savepoint: its plan, or its text without uids."""
    with start_java(flink.paths) as java, tempfile.TemporaryDirectory() as directory:
        configuration = java.org.apache.flink.configuration.Configuration()
        for key, value in SETTINGS.items():
            configuration.setString(key, value)
        streams = java.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        tables = java.org.apache.flink.table.api.bridge.java.StreamTableEnvironment
        environment = tables.create(streams.getExecutionEnvironment(configuration))
        client = _start(java, environment, as_text=as_text).getJobClient().get()
        time.sleep(_SECONDS)
        savepoint = _stop(java, client, directory)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(savepoint, target)


def _start(java: Any, environment: Any, *, as_text: bool) -> Any:
    if not as_text:
        plan = java.org.apache.flink.table.api.PlanReference.fromJsonString((EXAMPLE / "totals.json").read_text())
        return environment.loadPlan(plan).execute()
    script = parse_script((EXAMPLE / "totals.sql").read_text())
    for each in script.definitions:
        environment.executeSql(each.text)
    return environment.executeSql(script.inserts[0].text)


def _stop(java: Any, client: Any, directory: str) -> str:
    from py4j.protocol import Py4JJavaError

    canonical = java.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
    while str(client.getJobStatus().get()) in ("INITIALIZING", "CREATED", "RUNNING"):
        with contextlib.suppress(Py4JJavaError):
            return str(client.stopWithSavepoint(False, directory, canonical).get()).removeprefix("file:")
    raise RuntimeError(f"the job is {client.getJobStatus().get()}")


def main() -> None:
    """Record all."""
    with tempfile.TemporaryDirectory() as directory:
        home = link_home(VERSION, Path(directory))
        record_pairs(home, Path(directory))
        record_plans(home, Path(directory))
        flink = find_flink(str(home))
        record_savepoint(flink, EXAMPLE / "savepoint", as_text=False)
        record_savepoint(flink, FOLDER / "savepoint-without-uids", as_text=True)


if __name__ == "__main__":
    main()
