"""`sql migrate`: a savepoint for another query."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.display import describe_published, make_console, plural, show_proof
from state_pipelines.cli.options import AS_JSON, SCRATCH, Opener, snapshot_options
from state_pipelines.errors import UsageError
from state_pipelines.sql.planner import VERSIONS
from state_pipelines.sql.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from state_pipelines.spark.sql_migration import SqlMigration

PAIRS_HINT = "Write NAME=VALUE"


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
    "--template",
    is_flag=True,
    help="Compare the result with a savepoint that Flink takes of the new plan, in a cluster inside a Java process.",
)
@click.option("--no-proof", is_flag=True, help="Do not read the result back before it is published.")
@SCRATCH
@AS_JSON
@snapshot_options
def command(
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
    (plan.json) and the steps (revision.yaml) are written beside the savepoint; start the plan from there. State that
    cannot be had in a right way is refused before anything is written.
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
            click.echo(json.dumps(_to_json(result), indent=2, default=str))
        else:
            _show(result, make_console())


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Split `NAME=VALUE`.

    Raises:
        UsageError: it is none.
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


def _to_json(result: SqlMigration) -> dict[str, Any]:
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


def _show(result: SqlMigration, console: Console) -> None:
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
        text = f"table {sink.table}: rows that are there keep what column {sink.column} held until their key changes"
        console.print(text, soft_wrap=True)
    renamed = plural(sum(not each.drop for each in result.revision.operators.operators.values()), "operator")
    rewritten = f"{plural(result.rows, 'record')} rewritten in {result.seconds:.1f} s"
    console.print(f"{renamed} renamed, {rewritten}, everything else copied as bytes")
    if result.proof is not None:
        show_proof(result.proof, console)
    console.print(f"new savepoint: {result.path}", style="bold", soft_wrap=True)
    console.print(f"its plan:      {result.path.rstrip('/')}/plan.json", style="bold", soft_wrap=True)
