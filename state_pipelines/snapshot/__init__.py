"""Snapshots, operators and states: what a user holds."""

from __future__ import annotations

from state_pipelines.snapshot.opening import open_snapshot, parse_connectors, parse_key_serializers
from state_pipelines.snapshot.snapshot import Operator, Snapshot
from state_pipelines.snapshot.state import State

__all__ = ["Operator", "Snapshot", "State", "open_snapshot", "parse_connectors", "parse_key_serializers"]
