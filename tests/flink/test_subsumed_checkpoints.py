"""Checkpoints are read while real Flink writes new ones and removes old ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import MissingFileError, NotFoundError, SnapshotGoneError
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.operations.dump import dump
from tests.flink.harness import running_job
from tests.flink.jobs import steady_job

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 75
KEYS = 200
SETTINGS = {
    # As fast as it can, so that a checkpoint is gone soon after it was completed.
    "execution.checkpointing.interval": "50 ms",
    "execution.checkpointing.min-pause": "0 ms",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.data-inline-threshold": "0",
    "execution.checkpointing.num-retained": "1",
}


@pytest.mark.flink
def test_a_checkpoint_is_read_whole_or_said_to_be_gone(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    outcomes: Counter[str] = Counter()
    totals: dict[int, int] = {}
    with running_job("2.2.1", steady_job(SETTINGS), root):
        while outcomes.total() < ROUNDS:
            found = sorted(
                (path.parent for path in root.glob("*/chk-*/_metadata")), key=lambda path: int(path.name[4:])
            )
            for checkpoint in found[-1:]:
                outcomes[_read(checkpoint, totals, verify=outcomes.total() % 2 == 1)] += 1
    assert outcomes["whole"] > 0
    assert outcomes["damaged"] == 0
    # The state of a later checkpoint holds all that was counted before.
    counted = [totals[number] for number in sorted(totals)]
    assert counted == sorted(counted)


def _read(checkpoint: Path, totals: dict[int, int], *, verify: bool) -> str:
    try:
        if verify:
            report = audit_snapshot(str(checkpoint), "whole")
            assert report.restorable, report.findings
            return "whole"
        lines = list(dump(str(checkpoint)))
    except SnapshotGoneError:
        return "gone"
    except (MissingFileError, NotFoundError):
        return "gone before it was opened" if not checkpoint.joinpath("_metadata").exists() else "damaged"
    assert not [line for line in lines if line["kind"] == "unread"]
    counts = [line["value"] for line in lines if line["kind"] == "keyed" and line["state"] == "count"]
    assert len(counts) <= KEYS
    totals[int(checkpoint.name[4:])] = sum(int(str(each)) for each in counts)
    return "whole"
