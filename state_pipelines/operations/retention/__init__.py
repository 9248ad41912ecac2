"""Retention: which snapshots and files stay, which go, and why; plans are applied by their fingerprint."""

from __future__ import annotations

from state_pipelines.operations.retention.application import ApplyLimits, ApplyResult, apply_plan
from state_pipelines.operations.retention.own_directory import (
    AuditLog,
    AuditRecord,
    DeletionOutcome,
    Pin,
    open_audit_log,
    pin_snapshot,
    read_pins,
    unpin_snapshot,
)
from state_pipelines.operations.retention.planner import plan_retention
from state_pipelines.operations.retention.policy import (
    KeepRule,
    PathKind,
    PlannedPath,
    PolicyRule,
    RetentionPlan,
    RetentionPolicy,
    SnapshotVerdict,
    load_policy,
    parse_policy,
)
from state_pipelines.operations.retention.quarantine import (
    QuarantinedFile,
    list_quarantine,
    purge_quarantine,
    restore_quarantined,
)

__all__ = [
    "ApplyLimits",
    "ApplyResult",
    "AuditLog",
    "AuditRecord",
    "DeletionOutcome",
    "KeepRule",
    "PathKind",
    "Pin",
    "PlannedPath",
    "PolicyRule",
    "QuarantinedFile",
    "RetentionPlan",
    "RetentionPolicy",
    "SnapshotVerdict",
    "UnknownPath",
    "apply_plan",
    "list_quarantine",
    "load_policy",
    "open_audit_log",
    "parse_policy",
    "pin_snapshot",
    "plan_retention",
    "purge_quarantine",
    "read_pins",
    "restore_quarantined",
    "unpin_snapshot",
]
