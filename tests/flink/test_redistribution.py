"""Real Flink hands out operator state as recorded."""

from __future__ import annotations

import pytest

from tests.flink import harness
from tests.operations.rescaling.golden_redistribution import CASES, SEED, read_golden

pytestmark = pytest.mark.flink


def test_flink_hands_out_what_is_recorded(version: str) -> None:
    recorded = read_golden(harness.recorded_line(version))
    assert harness.redistribute(version, seed=SEED, cases=CASES).splitlines() == recorded
