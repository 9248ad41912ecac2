"""`check`: will the state restore in the new job?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import crop, indent, make_console, make_table, plural, shorten_classes
from state_pipelines.cli.options import AS_JSON, Source, source_options
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.check import BACKENDS, CheckReport, StateCheck, check
from state_pipelines.serializers.compatibility import Outcome

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.snapshot import Snapshot


@click.command("check")
@click.argument("old")
@click.argument("new")
@click.option("--target", metavar="RELEASE", default="2.2", show_default=True, help="Flink that runs the new job.")
@click.option("--backend", type=click.Choice(BACKENDS), help="Its state backend; by default the stricter one counts.")
@AS_JSON
@click.option("--markdown", metavar="FILE", help="Write the report to a file, too.")
@source_options
@click.pass_context
def command(
    ctx: click.Context,
    old: str,
    new: str,
    *,
    target: str,
    backend: str | None,
    as_json: bool,
    markdown: str | None,
    source: Source,
) -> None:
    """Tell whether the state of the snapshot OLD restores in the job that took the snapshot NEW.

    Exit code 0: it does. 1: it does not, or state would be lost, or nobody can tell.
    """
    snapshot = source.open(old)
    report = check(snapshot, source.open(new), target=target, backend=backend)
    losses = find_losses(report, snapshot)
    if markdown is not None:
        _write_markdown(report, markdown)
    if as_json:
        click.echo(json.dumps({**report.to_json(), "loses_state": bool(losses)}, indent=2))
    else:
        show_check(report, make_console())
        for each in losses:
            click.echo(f"state would be lost: {' / '.join(filter(None, (each.operator, each.state)))}")
    if losses or not report.ok:
        ctx.exit(ANSWER_IS_NO)


def find_losses(report: CheckReport, old: Snapshot) -> list[StateCheck]:
    """What the restore would drop although it succeeds; a state that the snapshot does not have is no loss."""
    partial = [each for each in report.checks if each.partial and each.outcome is not Outcome.INCOMPATIBLE]
    if not partial:
        return []
    known = {(operator.label, None) for operator in old.operators} | {
        (operator.label, state.name) for operator in old.operators for state in operator.states
    }
    return [each for each in partial if (each.operator, each.state) in known]


def show_check(report: CheckReport, console: Console) -> None:
    """Print the verdict, and all that is not simply restored."""
    style = "bold green" if report.ok else "bold red"
    backend = report.backend or "any backend"
    console.print(f"{report.verdict}: Flink {report.target}, {backend}", style=style)
    for note in report.notes:
        console.print(f"  {note}", style="dim")
    remarkable = [each for each in report.checks if is_remarkable(each)]
    if remarkable:
        table = make_table("operator", "state", "kind", "place", "outcome")
        for each in remarkable:
            table.add_row(each.operator or "", each.state or "", each.kind, str(each.place), str(each.outcome))
        console.print(indent(table))
    for each in remarkable:
        console.print()
        show_details(each, console)
    same = len(report.checks) - len(remarkable)
    if same:
        console.print(f"  {plural(same, 'place')} restored as they are" if same > 1 else "  1 place restored as it is")


def is_remarkable(each: StateCheck) -> bool:
    """Whether there is more to say than that Flink restores it as it is."""
    return each.outcome is not Outcome.AS_IS or each.partial or bool(each.findings)


def show_details(each: StateCheck, console: Console) -> None:
    """Print why, what to do, and what Flink says."""
    console.print(" / ".join(filter(None, (each.operator, each.state, str(each.place)))), style="bold")
    if each.reason:
        console.print(indent(each.reason))
    for finding in each.findings:
        sides = " -> ".join(shorten_classes(side or "nothing") for side in (finding.old, finding.new))
        console.print(indent(crop(f"{finding.path}: {sides}: {finding.reason}", 400)))
    if each.remedy:
        console.print(indent(f"what to do: {each.remedy}"))
    if each.error:
        console.print(indent(crop(f"Flink says: {shorten_classes(each.error)}", 400)), style="dim")


def _write_markdown(report: CheckReport, path: str) -> None:
    try:
        Path(path).write_text(report.to_markdown(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error.strerror}", where=Where(file=path)) from None
