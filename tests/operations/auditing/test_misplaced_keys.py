"""Keys that lie in another key group than their hash says: the job would never find them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.binary.writer import Writer
from state_pipelines.codecs.programs.execution import Encoded
from state_pipelines.keyed.key_group_assignment import assign_key_groups
from state_pipelines.keyed.raw_timers import TimerService, write_raw_timers
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.operations.auditing import Depth, Severity, audit_snapshot
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from tests.snapshot.built import build_snapshot, operator, write_raw_keyed

if TYPE_CHECKING:
    from pathlib import Path

KEY = 7
GROUP = int(assign_key_groups(np.array([KEY], np.int32), 128)[0])


def write_timer() -> bytes:
    """A key group with one event-time timer of the key 7, a Long, whose hash is 7."""
    writer = Writer()
    # The timestamp with its sign flipped, as canonical files have it.
    writer.i64(1_000 - (1 << 63))
    writer.i64(KEY)
    writer.u8(0)
    data = writer.getvalue()
    event = Encoded(np.frombuffer(data, np.uint8), np.array([len(data)], np.int64))
    nothing = Encoded(np.empty(0, np.uint8), np.empty(0, np.int64))
    return write_raw_timers((TimerService("timers", basic("Long"), VOID_NAMESPACE, event, nothing),))


@pytest.mark.parametrize("depth", [Depth.SAMPLE, Depth.WHOLE])
@pytest.mark.parametrize("moved", [0, 1])
def test_a_key_in_a_wrong_key_group_is_an_error(moved: int, depth: Depth, tmp_path: Path) -> None:
    raw = write_raw_keyed({GROUP + moved: write_timer()}, KeyGroupRange(0, 128))
    snapshot = build_snapshot(tmp_path / "savepoint", operator("timers", SubtaskState(0, raw_keyed_state=raw)))
    report = audit_snapshot(snapshot, depth)
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    if moved:
        assert [
            f"lies in key group {GROUP + 1}, and its hash puts it into {GROUP}" in each.what for each in errors
        ] == [True]
        assert errors[0].offset is not None
    else:
        assert errors == []
        assert report.totals.records == 1
