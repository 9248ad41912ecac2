"""Comparing snapshots: what is different between two, whatever their formats and backends.

found = diff(open_snapshot("s3://bucket/savepoint-1a2b"), open_snapshot("s3://bucket/savepoint-9f0e"))
"""

from __future__ import annotations

from state_pipelines.operations.comparing.diff import LIMIT, diff
from state_pipelines.operations.comparing.report import (
    ContentsDiff,
    Example,
    ExampleKind,
    Fact,
    OperatorDiff,
    Presence,
    SnapshotDiff,
    StateDiff,
)

__all__ = [
    "LIMIT",
    "ContentsDiff",
    "Example",
    "ExampleKind",
    "Fact",
    "OperatorDiff",
    "Presence",
    "SnapshotDiff",
    "StateDiff",
    "diff",
]
