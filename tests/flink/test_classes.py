"""Real Flink gives classes the serializers that are recorded."""

from __future__ import annotations

import json

import pytest

from tests.flink import harness
from tests.flink.make_classes import CLASSES, ask_flink

pytestmark = pytest.mark.flink


def test_flink_extracts_the_recorded_serializers(version: str) -> None:
    recorded = json.loads((CLASSES / "expected.json").read_text(encoding="utf-8"))

    assert ask_flink(version) == recorded[harness.recorded_line(version)]
