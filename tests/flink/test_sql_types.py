"""Real Flink: the serializers of SQL types from text are those that every release writes, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.serializers.table_runtime import RECORDED_FILE
from tests.flink.make_sql_types import (
    COLLECTIONS,
    MAP_VIEW,
    OTHERS,
    TYPES,
    choose_recorded,
    format_recorded,
    open_flink,
    write_accumulators,
)
from tests.serializers.test_sql_serializers import write_made

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink


def test_recorded_snapshots_are_those_of_every_release_and_others_are_made_of_them(
    version: str, tmp_path: Path
) -> None:
    # Flink 1.20 writes structured types in its own way.
    accumulators = {} if version.startswith("1.") else write_accumulators(version, tmp_path)
    with open_flink(version) as write:
        recorded = format_recorded(write((*TYPES, *COLLECTIONS, MAP_VIEW)) | choose_recorded(accumulators))
        assert RECORDED_FILE.read_text().startswith(recorded)
        assert not accumulators or recorded == RECORDED_FILE.read_text()
        for text, expected in (write(OTHERS) | accumulators).items():
            assert write_made(text) == expected, text
