"""Serializer snapshots that Flink 1.11 to 1.20 wrote, of every family its own upgrade tests have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import UsageError
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.text import describe, parse

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
pytestmark = pytest.mark.skipif(
    not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"
)
PATHS = sorted(Path(FIXTURES, "flink/serializers").glob("*/*/serializer-snapshot")) if FIXTURES else []
SNAPSHOTS = pytest.mark.parametrize("path", PATHS, ids=[path.parent.name for path in PATHS])


def test_there_are_snapshots() -> None:
    assert len(PATHS) > 200


@SNAPSHOTS
def test_snapshot_is_read_to_its_end(path: Path) -> None:
    reader = Reader(path.read_bytes(), str(path))
    read_snapshot(reader)
    reader.expect_end("the snapshot")


@SNAPSHOTS
def test_snapshot_is_written_byte_for_byte(path: Path) -> None:
    writer = Writer()
    write_snapshot(writer, read_snapshot(Reader(path.read_bytes(), str(path))))
    assert writer.getvalue() == path.read_bytes()


@SNAPSHOTS
def test_snapshot_has_a_text_that_reads_back_or_says_why_not(path: Path) -> None:
    text = describe(read_snapshot(Reader(path.read_bytes(), str(path))))
    try:
        again = describe(parse(text))
    except UsageError as error:
        again = text if "at character" in error.what else ""
    assert again == text
