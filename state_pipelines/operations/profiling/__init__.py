"""Profiles: what the entries of a snapshot look like.

profile = profile_snapshot(open_snapshot("s3://bucket/savepoint-1a2b"), ttl={"": timedelta(days=7)})
"""

from __future__ import annotations

from state_pipelines.operations.profiling.columns import ColumnProfile
from state_pipelines.operations.profiling.profile import OperatorProfile, Profile, StateProfile, profile_snapshot
from state_pipelines.operations.profiling.ttl import TtlOutlook

__all__ = ["ColumnProfile", "OperatorProfile", "Profile", "StateProfile", "TtlOutlook", "profile_snapshot"]
