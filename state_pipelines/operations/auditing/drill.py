"""Restore drills: a command of the user that restores a snapshot in real Flink, and its exit code."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.operations.auditing.report import Finding, Property, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.operations.auditing.report import AuditReport

_SHOWN = 2000
"""Last characters of the output of a command that failed."""


def run_drill(report: AuditReport, command: Sequence[str], *, seconds: float = 1800.0) -> AuditReport:
    """Run a command with the path of a snapshot as its last argument; add how it ended to the report.

    Snapshots with errors are not drilled: the answer is known.

    Args:
        report: of the snapshot.
        command: program and arguments; it ends with 0 where the snapshot was restored.
        seconds: after which the command is ended.

    Raises:
        UsageError: the program cannot be started.
    """
    if not report.restorable:
        return report
    finding = None
    try:
        done = subprocess.run(
            [*command, report.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"the drill {command[0]!r} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        what = f"the drill {command[0]!r} did not end within {seconds:,.0f} seconds"
        finding = Finding(Severity.UNDETERMINED, Property.RESTORE, what, file=report.path)
    else:
        if done.returncode:
            output = done.stdout.decode("utf-8", "replace").strip()[-_SHOWN:]
            what = f"the drill {command[0]!r} ended with exit code {done.returncode}: {output or 'it printed nothing'}"
            finding = Finding(Severity.ERROR, Property.RESTORE, what, file=report.path)
    if finding is None:
        return replace(report, drilled=True)
    key = finding.severity, finding.property
    return replace(report, drilled=True, findings=(*report.findings, finding), counts={**report.counts, key: 1})
