"""Display of proofs: the checks, and the records that differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from rich.text import Text

from state_pipelines.cli.display import crop, indent, make_console, make_table
from state_pipelines.operations.proofs.proof_reports import ProofReport, arrange_rows

if TYPE_CHECKING:
    from rich.console import Console


def show_proof(report: ProofReport, console: Console) -> None:
    """Print the checks of a proof, and the records of those that failed."""
    if report.checks:
        table = make_table("check", "result", "description", "observed")
        for check in report.checks:
            table.add_row(check.name, check.result, check.description, crop(check.observed, 200))
        console.print(indent(table))
    for check in report.failed:
        if not check.rows:
            continue
        columns, rows = arrange_rows(check.rows)
        total = 0 if check.counts is None else check.counts.failed
        of = f" of {total:,}" if total > len(rows) else ""
        console.print(f"{check.name}: {len(rows)}{of} records", style="bold")
        table = make_table(*columns)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(indent(table))
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)


def show_failed_proof(report: object, *, as_json: bool) -> None:
    """Print the report of a proof that failed; nothing where an error has none."""
    if not isinstance(report, ProofReport):
        return
    if as_json:
        click.echo(json.dumps({"path": None, "proof": report.to_json()}, indent=2, default=str))
    else:
        show_proof(report, make_console())
