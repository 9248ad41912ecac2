"""Snapshots, operators and states, as users of the library hold them."""

from __future__ import annotations

from state_pipelines.snapshot.declarations import Declarations, declare
from state_pipelines.snapshot.snapshot import Operator, Snapshot, open_snapshot
from state_pipelines.snapshot.state import State

__all__ = ["Declarations", "Operator", "Snapshot", "State", "declare", "open_snapshot"]
