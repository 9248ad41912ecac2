"""The command `upgrade` in a process that kills itself at a boundary of its steps, by `SIGKILL`: nothing is tidied.

    python -m tests.flink.killed_upgrade BOUNDARIES JOB.yaml [BOUNDARY ...]

The boundaries are: before and after each change that is asked of a cluster, after each write of the record, before and
after the publication of a written savepoint. The file BOUNDARIES has a line for each one that has killed a process;
each process dies at the first one that is not in there, with its name as the last line. Where some are named, it dies
at these only.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from state_pipelines.cli import main
from state_pipelines.flink import connections
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.upgrades import upgrade_run
from state_pipelines.upgrades.upgrade_records import RecordDirectory, UpgradeRecord

VERBS = ("trigger_savepoint", "start", "cancel")


class Boundaries:
    """The boundaries at which processes have died."""

    def __init__(self, file: Path, chosen: list[str]) -> None:
        self._file = file
        self._chosen = chosen
        self._known = set(file.read_text().splitlines())

    def reach(self, name: str) -> None:
        """Die, unless a process has died here before."""
        if name in self._known or (self._chosen and name not in self._chosen):
            return
        with self._file.open("a") as file:
            file.write(f"{name}\n")
        os.kill(os.getpid(), signal.SIGKILL)


class KilledCluster:
    """A cluster whose caller dies before and after each change that it asks for."""

    def __init__(self, cluster: Any, boundaries: Boundaries) -> None:
        self._cluster = cluster
        self._boundaries = boundaries

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._cluster, name)
        if name not in VERBS:
            return verb

        def call(*arguments: Any) -> Any:
            label = name
            if name == "start":
                label = f"start {Path(arguments[0].jar).name}"
            elif name == "trigger_savepoint":
                label = "stop" if arguments[1].stop else "savepoint"
            self._boundaries.reach(f"before {label}")
            answer = verb(*arguments)
            self._boundaries.reach(f"after {label}")
            return answer

        return call


def run(boundaries: Boundaries, job: str) -> None:
    """Run the command, with clusters, records and publications that kill it."""
    connect, write, commit = connections.connect, RecordDirectory.write, SnapshotTransaction.commit

    def write_or_die(records: RecordDirectory, record: UpgradeRecord) -> None:
        write(records, record)
        if record.outcome is None:
            # After the decision, another start would be another upgrade.
            done = [f"{step}: {', '.join(sorted(outcome))}" for step, outcome in record.steps.items()]
            boundaries.reach(f"after the record of {'; '.join(done) or 'nothing'}")

    def commit_or_die(transaction: SnapshotTransaction, *arguments: Any, **options: Any) -> None:
        boundaries.reach("before the publication")
        commit(transaction, *arguments, **options)
        boundaries.reach("after the publication")

    with (
        patch.object(upgrade_run, "connect", lambda *given: KilledCluster(connect(*given), boundaries)),
        patch.object(RecordDirectory, "write", write_or_die),
        patch.object(SnapshotTransaction, "commit", commit_or_die),
    ):
        main(["upgrade", job, "--json"], prog_name="state-pipelines")


if __name__ == "__main__":
    run(Boundaries(Path(sys.argv[1]), sys.argv[3:]), sys.argv[2])
