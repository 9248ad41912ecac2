"""Real Flink resolves the schema compatibility of every recorded pair as recorded."""

from __future__ import annotations

import pytest

from tests.flink import harness
from tests.serializers.golden_pairs import LINES, parse_golden, read_golden, read_lines

pytestmark = pytest.mark.flink


def test_flink_says_what_is_recorded(version: str) -> None:
    earlier = "" if version == harness.VERSIONS[0] else read_lines(LINES[0])
    now, recorded = parse_golden(harness.resolve_pairs(version, earlier)), read_golden(harness.recorded_line(version))

    assert now.pairs == recorded.pairs
    assert now.snapshots == recorded.snapshots
