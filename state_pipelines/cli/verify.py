"""`verify`: an audit of snapshots, whether they can be restored as far as their bytes show."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import format_bytes, make_console, make_table, plural, show_progress
from state_pipelines.cli.options import AS_JSON, Opener, model_options, snapshot_options
from state_pipelines.operations.auditing import Depth, Severity, audit_paths, run_drill
from state_pipelines.operations.auditing.report import AuditRequest, AuditVerdict

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.operations.auditing import AuditReport, AuditSummary, Finding

_SHOWN = 5
"""Findings of one severity and property of a snapshot that the table shows."""

_STYLES = {
    AuditVerdict.RESTORABLE: "bold green",
    AuditVerdict.DAMAGED: "bold red",
    AuditVerdict.UNDETERMINED: "bold yellow",
}
_SEVERITY_STYLES = {Severity.ERROR: "red", Severity.UNDETERMINED: "yellow", Severity.WARNING: "yellow"}
_CODES = {AuditVerdict.RESTORABLE: 0, AuditVerdict.DAMAGED: ANSWER_IS_NO, AuditVerdict.UNDETERMINED: UNDETERMINED}


@click.command("verify")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@model_options(AuditRequest)
@click.option(
    "--search",
    metavar="DIR",
    multiple=True,
    help="A snapshot, or a directory above some, in which missing files are looked for.",
)
@click.option(
    "--drill",
    metavar="COMMAND",
    help="A command that restores a snapshot in Flink: runs with the path of each one without an error as its last "
    "argument, and ends with 0 where that worked.",
)
@AS_JSON
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    *,
    depth: str | None,
    search: tuple[str, ...],
    drill: str | None,
    as_json: bool,
    opener: Opener,
) -> None:
    """Tell whether the snapshots at PATH... can be restored; nothing is written.

    A PATH is a snapshot, or a directory: then all snapshots below it are verified, and the newest one without an error
    is named.

    Exit code 0: they can be restored, as far as their bytes show. 1: bytes are missing or damaged. 2: wrong use, or the
    storage does not answer. 3: no damage was found, but something could not be judged.
    """
    progress = make_console(stderr=True)
    with show_progress(progress, "verifying") as report:
        summary = audit_paths(paths, depth or Depth.SAMPLE, open=opener.open, search=search, report=report)
    if drill is not None:
        command = shlex.split(drill)
        if not command:
            raise click.BadParameter("the command is empty", param_hint="--drill")
        summary = replace(summary, reports=tuple(run_drill(each, command) for each in summary.reports))
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        show_summary(summary, make_console())
    ctx.exit(_CODES[summary.verdict])


def show_summary(summary: AuditSummary, console: Console) -> None:
    """Print the findings of each snapshot, and a table if there are several snapshots."""
    for index, report in enumerate(summary.reports):
        if len(summary.reports) == 1 or report.findings:
            if index:
                console.print()
            show_report(report, console)
    if len(summary.reports) == 1:
        return
    console.print()
    table = make_table("snapshot", "written", "verdict", "errors", "files", "bytes", right=("errors", "files", "bytes"))
    for report in summary.reports:
        table.add_row(
            report.path,
            "" if report.modified is None else f"{report.modified:%Y-%m-%d %H:%M:%S}",
            report.verdict,
            f"{report.count(Severity.ERROR):,}",
            f"{report.totals.files:,}",
            format_bytes(report.totals.bytes + report.totals.inlined_bytes),
        )
    console.print(table)
    newest = summary.newest_restorable
    console.print()
    console.print(f"newest without an error: {'none' if newest is None else newest.path}", soft_wrap=True)


def show_report(report: AuditReport, console: Console) -> None:
    """Print the verdict and the findings of one snapshot."""
    number = "" if report.checkpoint_id is None else f" {report.checkpoint_id}"
    console.print(
        f"{report.verdict}: {report.kind}{number} {report.path}", style=_STYLES[report.verdict], soft_wrap=True
    )
    totals = report.totals
    lines = [
        f"depth {report.depth}",
        plural(totals.handles, "handle"),
        f"{plural(totals.files, 'file')} of {format_bytes(totals.bytes)}",
        f"{format_bytes(totals.inlined_bytes)} inside _metadata",
    ]
    if totals.tables:
        lines.append(plural(totals.tables, "table"))
    if totals.records:
        lines.append(plural(totals.records, "record"))
    if report.has_manifest:
        left = f", {totals.unchecked:,} not compared" if totals.unchecked else ""
        lines.append(f"{plural(totals.checksums, 'checksum')} of the manifest compared{left}")
    else:
        lines.append("no manifest")
    console.print(f"  {', '.join(lines)}")
    for severity in Severity:
        for each in report.properties:
            found = [one for one in report.findings if (one.severity, one.property) == (severity, each)]
            if found:
                _show_findings(found, report.count(severity, each), console)


def _show_findings(findings: list[Finding], count: int, console: Console) -> None:
    severity, name = findings[0].severity, findings[0].property
    head = f"  {name}: {severity}" if severity is Severity.UNDETERMINED else f"  {name}: {plural(count, str(severity))}"
    console.print(head, style=_SEVERITY_STYLES.get(severity))
    shown = findings[:_SHOWN]
    hints = {finding.hint for finding in shown}
    for finding in shown:
        console.print(f"    {finding if len(hints) > 1 else replace(finding, hint='')}", soft_wrap=True)
    if len(hints) == 1 and hints != {""}:
        console.print(f"    {hints.pop()}", soft_wrap=True)
    if count > _SHOWN:
        console.print(f"    and {count - _SHOWN:,} more (--json has them)")
