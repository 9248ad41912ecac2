"""`diff`: the differences between two snapshots of any format and backend.

For example:

    found = diff(open_snapshot("s3://bucket/savepoint-1a2b"), open_snapshot("s3://bucket/savepoint-9f0e"))
"""

from __future__ import annotations

from state_pipelines.operations.diff.diff import LIMIT, diff
from state_pipelines.operations.diff.diff_report import (
    ComparedProperty,
    ContentsDiff,
    Example,
    ExampleKind,
    OperatorDiff,
    Presence,
    SnapshotDiff,
    StateDiff,
)

__all__ = [
    "LIMIT",
    "ComparedProperty",
    "ContentsDiff",
    "Example",
    "ExampleKind",
    "OperatorDiff",
    "Presence",
    "SnapshotDiff",
    "StateDiff",
    "diff",
]
