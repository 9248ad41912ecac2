"""Display of proofs: the checks, and the records that differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from rich.text import Text

from state_pipelines.cli.display import crop, make_console, print_notes, print_table
from state_pipelines.operations.proofs import ProofReport, arrange_rows

if TYPE_CHECKING:
    from rich.console import Console


def show_proof(report: ProofReport, console: Console) -> None:
    """Print the checks of a proof, and the records of those that failed."""
    if report.checks:
        rows = [(each.name, each.result, each.description, crop(each.observed, 200)) for each in report.checks]
        print_table(console, ("check", "result", "description", "observed"), rows)
    for check in report.failed:
        if not check.rows:
            continue
        columns, cells = arrange_rows(check.rows)
        total = 0 if check.counts is None else check.counts.failed
        of = f" of {total:,}" if total > len(cells) else ""
        console.print(f"{check.name}: {len(cells)}{of} records", style="bold")
        print_table(console, columns, [list(map(Text, row)) for row in cells])
    print_notes(console, report.notes)


def show_failed_proof(report: object, *, as_json: bool) -> None:
    """Print the report of a proof that failed; nothing where an error has none."""
    if not isinstance(report, ProofReport):
        return
    if as_json:
        click.echo(json.dumps({"path": None, "proof": report.to_json()}, indent=2, default=str))
    else:
        show_proof(report, make_console())
