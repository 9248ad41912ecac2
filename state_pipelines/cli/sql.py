"""`sql`: plans of Flink SQL, verdicts on changed queries, and savepoints for them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import (
    crop,
    describe_published,
    make_console,
    plural,
    print_table,
    show_proof,
    write_markdown,
)
from state_pipelines.cli.options import (
    AS_JSON,
    SCRATCH,
    STORAGE_OPTIONS,
    Excludes,
    Opener,
    RuledCommand,
    snapshot_options,
)
from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.operations.sql_check import NO_PLAN, SqlCheckReport, describe_verdict, list_remarks, list_rows
from state_pipelines.operations.sql_check import check as check_query
from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.node_states import PlannedOperator, list_operators
from state_pipelines.sql.planner import VERSIONS, compile_script
from state_pipelines.sql.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from state_pipelines.spark.sql_migration import SqlMigration
    from state_pipelines.sql.planner import CompiledScript

PAIRS_HINT = "Write NAME=VALUE"

_MATCH = click.option(
    "--match",
    "matches",
    metavar="OLD=NEW",
    multiple=True,
    help="An operator of the old query and the one that keeps its state, by uid, where several would do; repeatable.",
)
_FLINK_HOME = click.option(
    "--flink-home", metavar="DIR", help="Directory of an installed Flink. Default: FLINK_HOME, else a package."
)
_FLINK = click.option("--flink", "line", type=click.Choice(VERSIONS), help="Release line that this Flink has to be of.")
_JARS = click.option(
    "--jars", metavar="JAR", multiple=True, help="A jar of connectors, formats or functions; repeatable."
)


@click.command("migrate")
@click.argument("old")
@click.argument("new")
@click.argument("savepoint")
@click.option(
    "--out", "target", metavar="TARGET", required=True, help="Directory of the new savepoint; it must not exist."
)
@click.option(
    "--backfill",
    metavar="COLUMN=TABLE",
    multiple=True,
    help="A Parquet table with the values of a column that would start empty: its name, and the columns of the key.",
)
@_MATCH
@_FLINK_HOME
@_FLINK
@_JARS
@click.option(
    "--template",
    is_flag=True,
    help="Compare the result with a savepoint that Flink takes of the new plan, in a cluster inside a Java process.",
)
@click.option("--no-proof", is_flag=True, help="Do not read the result back before it is published.")
@SCRATCH
@AS_JSON
@snapshot_options
def migrate_command(
    old: str,
    new: str,
    savepoint: str,
    *,
    target: str,
    backfill: tuple[str, ...],
    matches: tuple[str, ...],
    flink_home: str | None,
    line: str | None,
    jars: tuple[str, ...],
    template: bool,
    no_proof: bool,
    scratch: str | None,
    as_json: bool,
    opener: Opener,
) -> None:
    """Write a savepoint that the query NEW takes, from SAVEPOINT, which a job with the query OLD wrote.

    OLD and NEW are scripts (.sql), which Flink's planner compiles, or compiled plans (.json). The compiled plan of NEW
    (plan.json) and the steps (revision.yaml) are written beside the savepoint; start the plan from there. A change of
    the query is refused, before anything is written, if the correct state for NEW cannot be computed.
    """
    from state_pipelines.spark import create_session
    from state_pipelines.spark.sql_migration import migrate_query

    def start() -> Any:
        progress = make_console(stderr=True)
        with progress.status("starting Spark"):
            bar = str(sys.stderr.isatty()).lower()
            return create_session("state-pipelines sql migrate", conf={"spark.ui.showConsoleProgress": bar})

    result = migrate_query(
        old,
        new,
        opener.open(savepoint),
        target,
        flink_home=flink_home,
        flink=line,
        jars=jars,
        match=dict(split_pair(each, "--match") for each in matches),
        backfill=dict(split_pair(each, "--backfill") for each in backfill),
        prove=not no_proof,
        template=template,
        spark=start,
        scratch=scratch,
    )
    with describe_published(target, as_json=as_json):
        if as_json:
            click.echo(json.dumps(_migration_to_json(result), indent=2, default=str))
        else:
            _show_migration(result, make_console())


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Split `NAME=VALUE`.

    Raises:
        UsageError: the text is no such pair.
    """
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise UsageError(f"{option} {text} is no pair", hint=PAIRS_HINT)
    return name, value


def _list_changes(result: SqlMigration) -> Iterator[dict[str, Any]]:
    for operator in result.comparison.operators:
        for state in operator.states:
            for column in state.columns:
                yield {
                    "operator": (operator.new or operator.old).uid,  # type: ignore[union-attr]
                    "state": state.name,
                    "column": column.name,
                    "meaning": column.meaning,
                    "verdict": str(column.verdict),
                    "exact": column.exact,
                    "reason": column.reason,
                }


def _migration_to_json(result: SqlMigration) -> dict[str, Any]:
    return {
        "path": result.path,
        "verdict": str(result.comparison.verdict),
        "exact": result.comparison.exact,
        "columns": list(_list_changes(result)),
        "operators": [
            {"operator": operator, "uid": each.uid, "dropped": each.drop}
            for operator, each in result.revision.operators.operators.items()
        ],
        "sinks": [asdict(each) for each in result.comparison.sinks],
        "rows": result.rows,
        "seconds": result.seconds,
        "notes": list(result.notes),
        "proof": None if result.proof is None else result.proof.to_json(),
    }


def _show_migration(result: SqlMigration, console: Console) -> None:
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    if result.path is None:
        console.print("the savepoint fits the new query as it is: nothing was written")
        return
    for each in _list_changes(result):
        if each["verdict"] == Verdict.CARRIED:
            continue
        reason = f" ({each['reason']})" if each["reason"] else ""
        text = f"{each['operator']} / {each['state']}, {each['meaning']}: {each['verdict']}{reason}"
        console.print(text, soft_wrap=True)
    for sink in result.comparison.sinks:
        text = f"table {sink.table}: rows that it already has keep their {sink.column} until their key changes"
        console.print(text, soft_wrap=True)
    renamed = plural(sum(not each.drop for each in result.revision.operators.operators.values()), "operator")
    rewritten = f"{plural(result.rows, 'record')} rewritten in {result.seconds:.1f} s"
    console.print(f"{renamed} renamed, {rewritten}, everything else copied as bytes")
    if result.proof is not None:
        show_proof(result.proof, console)
    console.print(f"new savepoint: {result.path}", style="bold", soft_wrap=True)
    console.print(f"its plan:      {result.path.rstrip('/')}/plan.json", style="bold", soft_wrap=True)


_CELL_SIZE = 100
_MOST_SUBJECT = 300


@click.group("sql")
def command() -> None:
    """Plans of Flink SQL, off line: no cluster runs."""


command.add_command(migrate_command)


@command.command("plan")
@click.argument("script")
@_FLINK_HOME
@_FLINK
@_JARS
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
@_MATCH
@_FLINK_HOME
@_FLINK
@_JARS
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
    that is not known: for states whose types are equal, the verdict is then "to be determined".

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
        console.print("  none of the operators is known to keep state")
