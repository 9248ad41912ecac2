"""`savepoint`: a savepoint of a running job, or those that its policy wants."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import echo
from state_pipelines.cli.options import AS_JSON, MAP, STORAGE_OPTIONS, Excludes, RuledCommand
from state_pipelines.cli.upgrade import make_reporter
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.upgrades.savepoint_policy import (
    SavepointFailedError,
    savepoint,
)

_RULES = (Excludes("--due", ("--format",), "the policy says which formats are due"),)


@click.command("savepoint", cls=RuledCommand, rules=_RULES)
@click.argument("job")
@click.option(
    "--format",
    type=click.Choice([each.lower() for each in SavepointFormat]),
    help="Format of the savepoint.  [default: canonical]",
)
@click.option("--due", is_flag=True, help="Take those that `savepoints` of the job wants and that are not there yet.")
@MAP
@STORAGE_OPTIONS
@AS_JSON
@click.pass_context
def command(
    ctx: click.Context, job: str, *, format: str | None, due: bool, path_mapping: tuple[str, ...], as_json: bool
) -> None:
    """Take a savepoint of the running job that the file JOB describes; the job runs on.

    One that the policy wants (`--due`) is pinned, so that retention keeps it; an earlier one of its format is unpinned
    when there are enough newer ones. A command that was killed is continued by the same command.

    Exit code 0: it is there, or none is due. 1: it failed, for the reason that is printed. 2: wrong use, the cluster
    cannot be reached, or another process takes one.
    """
    try:
        taken = savepoint(
            job,
            format=format or SavepointFormat.CANONICAL,
            due=due,
            path_mapping=path_mapping,
            report=make_reporter(as_json=as_json),
        )
    except SavepointFailedError as error:
        echo(f"{error.what}\n{error.hint}", err=True)
        ctx.exit(ANSWER_IS_NO)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in taken], indent=2))
    else:
        for each in taken:
            echo(each.path)
        if not taken:
            echo("no savepoint is due")
