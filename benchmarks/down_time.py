"""Down time of upgrades on one machine: measured, predicted, and taken apart.

    python -m benchmarks.down_time --release 2.2.1

A job with one POJO for each of 1,000,000 keys runs on a session cluster of real Flink. It is upgraded to a class with
other fields, and then to the same program with another option, by commands, each in a process of its own. Predictions:
before anything was measured; after a rehearsal that restores the result on the same cluster; and of the second upgrade
from the start of the running job alone. A bound is the savepoint, 1.3 times the migration alone, and the restart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from state_pipelines.flink.cluster import Submission
from state_pipelines.flink.connections import connect
from state_pipelines.operations.migration.history import HEAD, RevisionDirectory
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark.migration_run import migrate
from state_pipelines.upgrades.upgrade_plan import measure_down_time
from state_pipelines.upgrades.upgrade_records import Step, find_records
from tests.flink.clusters import make_jar, running_cluster
from tests.flink.jobs import Job
from tests.flink.upgraded_jobs import MIGRATION

if TYPE_CHECKING:
    from state_pipelines.flink.cluster import FlinkCluster

MAIN = "upgrading.ManyKeysJob"
UIDS = ("numbers", "pauses", "totals", "output")
ARGUMENTS = (MAIN, "totals", "execution.checkpointing.interval=5s")
SECONDS = 600


def main() -> None:
    """Run it once, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", default="2.2.1")
    given = parser.parse_args()
    with TemporaryDirectory() as directory:
        sys.stdout.write(f"{json.dumps(measure(given.release, Path(directory)))}\n")


def measure(release: str, directory: Path) -> dict[str, object]:
    """Return the figures of one upgrade."""
    jars = {name: directory / f"{name}.jar" for name in ("v1", "v2")}
    for name, jar in jars.items():
        folders = (f"tests/flink/java/upgrading/{name}", "tests/flink/java/upgrading/job")
        make_jar(release, jar, Job(MAIN, folders))
    (directory / "migrations").mkdir()
    (directory / "migrations" / "0001_double.yaml").write_text(MIGRATION)
    with running_cluster(release, directory / "cluster") as running:
        cluster = connect({"rest": running.url})
        cluster.start(Submission(str(jars["v1"]), arguments=ARGUMENTS, parallelism=2))
        _await_keys(cluster)
        old, new = ({"arguments": ARGUMENTS, "parallelism": 2, "jar": str(jars[name])} for name in ("v1", "v2"))
        job = directory / "JOB.json"

        def describe(results: str, programs: dict[str, Any], settings: dict[str, Any], **more: str) -> None:
            settings = {"savepoints": (running.directory / "savepoints").as_uri(), **programs, **settings}
            described = {
                "name": "totals",
                "cluster": {"rest": running.url},
                "results": str(directory / results),
                "target_release": release.rpartition(".")[0],
                "uids": UIDS,
                "upgrade": settings,
                **more,
            }
            job.write_text(json.dumps(described))

        spare = {"rehearsal": {"cluster": {"rest": running.url}}}
        describe("results", {"old": old, "new": new}, spare, migrations=str(directory / "migrations"))
        assumed = _run("upgrade", str(job), "--plan", "--json")["plan"]["down_time"]
        _run("rehearse", str(job), "--json")
        first = _run("upgrade", str(job), "--json")["record"]
        sys.stderr.write(f"{json.dumps(_compare(first, directory / 'results'))}\n{json.dumps(assumed)}\n")
        other = {**new, "arguments": (*ARGUMENTS[:2], "execution.checkpointing.interval=6s")}
        # From the jar alone it cannot be told that the types are the same.
        describe("others", {"old": new, "new": other}, {"automatic": ["compatible", "undetermined"]})
        second = _run("upgrade", str(job), "--json")["record"]
        savepoint = open_snapshot(first["steps"]["stop"]["savepoint"], uids=UIDS)
        revisions = RevisionDirectory(str(directory / "migrations"))
        started = time.monotonic()
        migrate(savepoint, revisions.between("base", HEAD), str(directory / "alone"))
        alone = time.monotonic() - started
        steps = first["steps"]
        return {
            "release": release,
            "load": round(os.getloadavg()[0], 1),
            "first": _compare(first, directory / "results"),
            "assumed before": assumed,
            "migration alone": round(alone, 1),
            "bound": round(steps["stop"]["seconds"] + 1.3 * alone + steps["watch"]["start_seconds"], 1),
            "second": _compare(second, directory / "others"),
        }


def _run(*command: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "state_pipelines", *command], check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout.decode()}")
    return dict(json.loads(done.stdout))


def _compare(found: dict[str, Any], results: Path) -> dict[str, object]:
    """The down time of an upgrade beside its prediction."""
    record = find_records(str(results), "totals").read(found["id"])
    assert record is not None
    measured, predicted = measure_down_time(record), record.plan["down_time"]
    assert measured is not None
    return {
        "savepoint": record.get(Step.STOP)["seconds"],
        "check": record.get(Step.CHECK)["seconds"],
        "change": record.get(Step.CHANGE)["elapsed"],
        "restart": record.get(Step.WATCH)["start_seconds"],
        "measured": round(measured, 1),
        "predicted": predicted,
        "ratio": round(measured / predicted["seconds"], 2),
    }


def _await_keys(cluster: FlinkCluster) -> None:
    """Wait until the state grows no more."""
    deadline = time.monotonic() + SECONDS
    (job,) = [each for each in cluster.list_jobs() if not each.status.is_terminal]
    sizes: list[int] = []
    while len(sizes) < 4 or len(set(sizes[-3:])) > 1:
        assert time.monotonic() < deadline
        time.sleep(3)
        newest = cluster.read_checkpoints(job.id).latest_completed
        if newest is not None and newest.state_size:
            # The operator state of the output wavers by some bytes.
            sizes.append(newest.state_size // 1_000_000)


if __name__ == "__main__":
    main()
