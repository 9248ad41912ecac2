"""Restore audit: whether the bytes of a snapshot are there, whole, and in agreement with each other.

`audit_snapshot` returns the findings about a snapshot, `is_restorable` one answer, and `audit_paths` the findings about
several snapshots or all below a root.
"""

from __future__ import annotations

from state_pipelines.operations.auditing.audits import (
    AuditSummary,
    audit_paths,
    audit_snapshot,
    is_restorable,
    run_drill,
)
from state_pipelines.operations.auditing.file_checks import Listings
from state_pipelines.operations.auditing.report import AuditReport, AuditTotals, Depth, Finding, Property, Severity

__all__ = [
    "AuditReport",
    "AuditSummary",
    "AuditTotals",
    "Depth",
    "Finding",
    "Listings",
    "Property",
    "Severity",
    "audit_paths",
    "audit_snapshot",
    "is_restorable",
    "run_drill",
]
