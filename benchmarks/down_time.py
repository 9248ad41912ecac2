"""Down time of an upgrade with a migration on one machine: measured, predicted, and taken apart.

    python -m benchmarks.down_time --release 2.2.1

A job with one POJO for each of 1,000,000 keys runs on a session cluster of real Flink. It is rehearsed, and upgraded to
a class with other fields, by commands, each in a process of its own. Printed are the prediction of the plan, the
measured down time, and a bound: the savepoint, 1.3 times the migration alone, and the restart.
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
from typing import TYPE_CHECKING

from state_pipelines.flink.cluster import Submission
from state_pipelines.flink.connections import connect
from state_pipelines.operations.migration.history import HEAD, RevisionDirectory
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark.migration_run import migrate
from state_pipelines.upgrades.down_time import measure_down_time
from state_pipelines.upgrades.upgrade_records import Step, find_records
from tests.flink.clusters import make_jar, running_cluster
from tests.flink.jobs import Job
from tests.flink.upgraded_jobs import MIGRATION

if TYPE_CHECKING:
    from state_pipelines.flink.cluster import FlinkCluster

MAIN = "upgrading.ManyKeysJob"
UIDS = ("numbers", "pauses", "totals", "output")
ARGUMENTS = (MAIN, "totals", "execution.checkpointing.interval=1s")
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
        program = {"arguments": ARGUMENTS, "parallelism": 2}
        cluster.start(Submission(str(jars["v1"]), arguments=ARGUMENTS, parallelism=2))
        _await_keys(cluster)
        upgrade_settings = {
            "savepoints": (running.directory / "savepoints").as_uri(),
            "old": {**program, "jar": str(jars["v1"])},
            "new": {**program, "jar": str(jars["v2"])},
        }
        job = directory / "JOB.json"
        job.write_text(
            json.dumps(
                {
                    "name": "totals",
                    "cluster": {"rest": running.url},
                    "results": str(directory / "results"),
                    "migrations": str(directory / "migrations"),
                    "target_release": release.rpartition(".")[0],
                    "uids": UIDS,
                    "upgrade": upgrade_settings,
                }
            )
        )
        for command in ("rehearse", "upgrade"):
            subprocess.run([sys.executable, "-m", "state_pipelines", command, str(job)], check=True, stdout=sys.stderr)
        record = find_records(str(directory / "results"), "totals").find_last()
        assert record is not None
        savepoint = open_snapshot(str(record.get(Step.STOP)["savepoint"]), uids=UIDS)
        revisions = RevisionDirectory(str(directory / "migrations"))
        started = time.monotonic()
        migrate(savepoint, revisions.between("base", HEAD), str(directory / "alone"))
        alone = time.monotonic() - started
        restart = float(record.get(Step.WATCH)["start_seconds"])
        stop = float(record.get(Step.STOP)["seconds"])
        measured = measure_down_time(record)
        assert measured is not None
        predicted = float(record.plan["down_time"]["seconds"])
        return {
            "release": release,
            "load": round(os.getloadavg()[0], 1),
            "measured": round(measured, 1),
            "predicted": predicted,
            "ratio": round(measured / predicted, 2),
            "savepoint": stop,
            "change": {name: round(each, 1) for name, each in record.get(Step.CHANGE)["seconds"].items()},
            "restart": restart,
            "migration alone": round(alone, 1),
            "bound": round(stop + 1.3 * alone + restart, 1),
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
