"""`sql`: plans of Flink SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.display import crop, make_console, plural, print_table
from state_pipelines.cli.options import AS_JSON, STORAGE_OPTIONS
from state_pipelines.errors import TargetExistsError, Where
from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.node_states import PlannedOperator, list_operators
from state_pipelines.sql.planner import VERSIONS, compile_script

if TYPE_CHECKING:
    from state_pipelines.sql.planner import CompiledScript

_CELL_SIZE = 100


@click.group("sql")
def command() -> None:
    """Plans of Flink SQL, off line: no cluster runs."""


@command.command("plan")
@click.argument("script")
@click.option(
    "--flink-home", metavar="DIR", help="Directory of an installed Flink. Default: FLINK_HOME, else a package."
)
@click.option("--flink", "line", type=click.Choice(VERSIONS), help="Release line that this Flink has to be of.")
@click.option("--jars", metavar="JAR", multiple=True, help="A jar of connectors, formats or functions; repeatable.")
@click.option("-o", "--out", "target", metavar="FILE", help="Write the plan into a new file, and show what it keeps.")
@AS_JSON
@STORAGE_OPTIONS
def plan(
    script: str, *, flink_home: str | None, line: str | None, jars: tuple[str, ...], target: str | None, as_json: bool
) -> None:
    """Compile SCRIPT (SET, CREATE …, and one INSERT or statement set) with the planner of Flink.

    The plan is what COMPILE PLAN writes, and EXECUTE PLAN runs it. Tables whose connector no jar has get a stub with
    their schema; notes on stderr say which.
    """
    if target is not None and Path(target).exists():
        raise TargetExistsError("the file exists", where=Where(file=target), hint="Name a new one with --out")
    found = compile_script(script, flink_home=flink_home, flink=line, jars=jars)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if target is not None:
        Path(target).write_text(found.json + "\n", encoding="utf-8")
    operators = [each for each in list_operators(found.plan) if each.states]
    if as_json:
        click.echo(json.dumps(_to_json(found, operators), indent=2))
    elif target is None:
        click.echo(found.json)
    else:
        _show(found, operators, target)


def _to_json(found: CompiledScript, operators: list[PlannedOperator]) -> dict[str, object]:
    return {
        "flink_version": found.plan.flink_version,
        "notes": found.notes,
        "operators": [
            {
                "uid": each.uid,
                "node": each.description,
                "rows": each.meaning,
                "states": [
                    {
                        "name": state.name,
                        "kind": str(state.kind),
                        "value": state.describe(),
                        "ttl": state.ttl,
                        "columns": [
                            {"name": column.name, "type": describe_type(column.type), "meaning": column.meaning}
                            for row in state.rows
                            for column in row.columns
                        ],
                    }
                    for state in each.states
                ],
            }
            for each in operators
        ],
        "plan": json.loads(found.json),
    }


def _show(found: CompiledScript, operators: list[PlannedOperator], target: str) -> None:
    console = make_console()
    nodes = plural(len(found.plan.nodes), "node")
    console.print(f"{target}: {nodes}, compiled by Flink {found.plan.flink_version}", style="bold")
    rows = [
        (each.uid, state.name, crop(", ".join(name for row in state.rows for name in row.names), _CELL_SIZE))
        for each in operators
        for state in each.states
    ]
    if rows:
        print_table(console, ("operator", "state", "columns"), rows)
    else:
        console.print("  no operator keeps state that is known")
