"""`sql`: plans of Flink SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import crop, make_console, plural, print_table, write_markdown
from state_pipelines.cli.options import AS_JSON, STORAGE_OPTIONS, Excludes, Opener, RuledCommand, snapshot_options
from state_pipelines.cli.sql_migrate import command as migrate
from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.operations.sql_check import NO_PLAN, SqlCheckReport, describe_verdict, list_remarks, list_rows
from state_pipelines.operations.sql_check import check as check_query
from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.node_states import PlannedOperator, list_operators
from state_pipelines.sql.planner import VERSIONS, compile_script
from state_pipelines.sql.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.sql.planner import CompiledScript

_CELL_SIZE = 100
_MOST_SUBJECT = 300


@click.group("sql")
def command() -> None:
    """Plans of Flink SQL, off line: no cluster runs."""


command.add_command(migrate)


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


_RULES = (Excludes("--json", ("--markdown",), "both want the standard output", values=("-",)),)


@command.command("check", cls=RuledCommand, rules=_RULES)
@click.argument("old")
@click.argument("new")
@click.argument("savepoint")
@click.option(
    "--match",
    "matches",
    metavar="OLD=NEW",
    multiple=True,
    help="An operator of the old query and the one that keeps its state, by uid, where several would do; repeatable.",
)
@click.option(
    "--flink-home", metavar="DIR", help="Directory of an installed Flink. Default: FLINK_HOME, else a package."
)
@click.option("--flink", "line", type=click.Choice(VERSIONS), help="Release line that this Flink has to be of.")
@click.option("--jars", metavar="JAR", multiple=True, help="A jar of connectors, formats or functions; repeatable.")
@click.option(
    "--migrating",
    is_flag=True,
    help="The savepoint gets a migration, so that silent swaps are no reason for exit code 1.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also when anything is not kept exactly, or is dropped.")
@AS_JSON
@click.option("--markdown", metavar="FILE", help="Write the report for a pull request, too; - is the standard output.")
@snapshot_options
@click.pass_context
def check(
    ctx: click.Context,
    old: str,
    new: str,
    savepoint: str,
    *,
    matches: tuple[str, ...],
    flink_home: str | None,
    line: str | None,
    jars: tuple[str, ...],
    migrating: bool,
    strict: bool,
    as_json: bool,
    markdown: str | None,
    opener: Opener,
) -> None:
    """Tell for each operator and column whether the query NEW keeps the state of SAVEPOINT, which the query OLD wrote.

    OLD and NEW are scripts (.sql), which Flink's planner compiles, or compiled plans (.json). OLD may be -, for a query
    that is not known: then equal types are to be determined.

    Exit code 0: the state is kept, exactly or in part. 1: some of it is refused, or a restore of SAVEPOINT as it is
    would give wrong values without an error. 2: wrong use, or unreadable. 3: it cannot be determined.
    """
    report = check_query(
        None if old == NO_PLAN else old,
        new,
        opener.open(savepoint),
        match=dict(_split_match(each) for each in matches),
        flink_home=flink_home,
        flink=line,
        jars=jars,
    )
    if markdown is not None:
        write_markdown(report.to_markdown(), markdown)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    elif markdown != "-":
        _show_check(report)
    if report.verdict is Verdict.UNDETERMINED:
        ctx.exit(UNDETERMINED)
    loses = strict and not (report.exact and report.verdict in (Verdict.CARRIED, Verdict.COMPUTED))
    if report.verdict is Verdict.REFUSED or report.obstacle or loses or (report.swaps and not migrating):
        ctx.exit(ANSWER_IS_NO)


def _split_match(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise UsageError(f"--match {text!r} does not have the form OLD=NEW", hint="Such as 6_group-aggregate=8_join")
    return old, new


def _show_check(report: SqlCheckReport) -> None:
    console = make_console()
    bad = report.verdict in (Verdict.REFUSED, Verdict.UNDETERMINED) or report.obstacle or report.swaps
    console.print(describe_verdict(report), style="bold red" if bad else "bold green")
    if report.swaps:
        console.print("silent swap: a restore of the savepoint as it is gives no error and wrong values", style="bold")
        for each in report.swaps:
            console.print(f"  {each}", soft_wrap=True)
    for operator in report.comparison.operators:
        console.print()
        for row in list_rows(operator):
            _show_row(row, console)
    console.print()
    for remark in list_remarks(report):
        console.print(f"note: {remark}", soft_wrap=True)


def _show_row(row: tuple[str, str, str, str, str], console: Console) -> None:
    name, state, subject, verdict, reason = row
    if name:
        console.print(f"{name}: {verdict}", style="bold", soft_wrap=True)
        for text in (crop(subject, _MOST_SUBJECT), reason):
            if text:
                console.print(f"  {text}", soft_wrap=True)
        return
    text = f"{state}{f': {subject}' if subject else ''}: {verdict}"
    console.print(f"  {text}{f' ({reason})' if reason else ''}", soft_wrap=True)


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
