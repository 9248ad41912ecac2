"""Real Flink: the serializers of SQL types from text are those that every release writes, byte for byte."""

from __future__ import annotations

import pytest

from state_pipelines.serializers.table_runtime import RECORDED_FILE
from tests.flink.make_sql_types import COLLECTIONS, MAP_VIEW, OTHERS, TYPES, format_recorded, open_flink
from tests.serializers.test_sql_serializers import write_made

pytestmark = pytest.mark.flink


def test_recorded_snapshots_are_those_of_every_release_and_others_are_made_of_them(version: str) -> None:
    with open_flink(version) as write:
        assert format_recorded(write((*TYPES, *COLLECTIONS, MAP_VIEW))) == RECORDED_FILE.read_text()
        for text, expected in write(OTHERS).items():
            assert write_made(text) == expected, text
