"""`migrate`: a new savepoint in which one state is as a migration file says."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.changes import show_changes, trace_fields
from state_pipelines.cli.display import crop, indent, make_console, make_table, plural
from state_pipelines.cli.options import AS_JSON, Source, source_options
from state_pipelines.errors import ProofError
from state_pipelines.operations.migration import DOWNGRADE, UPGRADE, Migration, load_migration

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.spark import MigrationResult, ProofReport


@click.command("migrate")
@click.argument("snapshot")
@click.option("--migration", "file", metavar="FILE", required=True, help="The migration file.")
@click.option(
    "--out", "target", metavar="TARGET", required=True, help="Directory of the new savepoint; it must not exist."
)
@click.option("--downgrade", is_flag=True, help="Take the migration back.")
@click.option("--no-proof", is_flag=True, help="Do not read the result back before it is published.")
@AS_JSON
@source_options
def command(
    snapshot: str, *, file: str, target: str, downgrade: bool, no_proof: bool, as_json: bool, source: Source
) -> None:
    """Write a savepoint like SNAPSHOT in which the values of one state are as the migration file says.

    All other states are copied as bytes. The result is read back and proven before it is published.
    """
    migration = load_migration(file)
    old = source.open(snapshot)
    # Whatever is wrong with the names is told before Spark starts.
    old.operator(migration.operator).state(migration.state)
    progress = make_console(stderr=True)
    direction = DOWNGRADE if downgrade else UPGRADE
    try:
        with progress.status("starting Spark"):
            from state_pipelines.spark import create_session, migrate

            bar = str(sys.stderr.isatty()).lower()
            session = create_session("state-pipelines migrate", conf={"spark.ui.showConsoleProgress": bar})
        progress.print(f"{direction} of {migration.operator} / {migration.state} to {target}")
        result = migrate(session, old, migration, target, direction=direction, prove=not no_proof)
    except ProofError as error:
        _show_failed_proof(error.report, as_json=as_json)
        raise
    if as_json:
        click.echo(json.dumps(_to_json(result, migration, direction), indent=2, default=str))
    else:
        _show_result(result, migration, direction, make_console())


def show_proof(proof: ProofReport, console: Console) -> None:
    """Print the checks of a proof."""
    table = make_table("check", "result", "what it says", "observed")
    for check in proof.checks:
        result = "passed" if check.ok else "FAILED"
        table.add_row(check.name, result, check.description, crop(check.observed, 200))
    console.print(indent(table))


def _show_failed_proof(report: object, *, as_json: bool) -> None:
    from state_pipelines.spark import ProofReport

    if not isinstance(report, ProofReport):
        return
    if as_json:
        click.echo(json.dumps({"path": None, "proof": _proof_to_json(report)}, indent=2, default=str))
        return
    console = make_console()
    show_proof(report, console)
    for check in report.checks:
        for row in check.sample:
            console.print(f"  {check.name}: {json.dumps(row, ensure_ascii=False, default=str)}")


def _show_result(result: MigrationResult, migration: Migration, direction: str, console: Console) -> None:
    console.print(f"{direction} {migration.revision}: {migration.description}", style="bold")
    show_changes(trace_fields(result.plan.old, result.plan.new, migration.steps(direction)), console)
    console.print()
    written = f"{plural(result.rows, 'record')} of {migration.operator} / {migration.state} written anew"
    console.print(f"{written} in {result.seconds:.1f} s, everything else copied as bytes")
    if result.proof is None:
        console.print("not proven (--no-proof)")
    else:
        show_proof(result.proof, console)
    console.print(f"new savepoint: {result.path}", style="bold", soft_wrap=True)


def _to_json(result: MigrationResult, migration: Migration, direction: str) -> dict[str, object]:
    changes = trace_fields(result.plan.old, result.plan.new, migration.steps(direction))
    return {
        "path": result.path,
        "fingerprint": result.snapshot.fingerprint,
        "revision": migration.revision,
        "direction": direction,
        "operator": migration.operator,
        "state": migration.state,
        "rows": result.rows,
        "seconds": result.seconds,
        "fields": [asdict(change) for change in changes],
        "proof": None if result.proof is None else _proof_to_json(result.proof),
    }


def _proof_to_json(proof: ProofReport) -> dict[str, object]:
    return {"ok": proof.ok, **asdict(proof)}
