"""`rehearse`: the upgrade of a job on a savepoint that is taken while the job runs on."""

from __future__ import annotations

import json

import click

from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import echo
from state_pipelines.cli.options import ALLOW_PYTHON, AS_JSON, MAP, STORAGE_OPTIONS
from state_pipelines.cli.upgrade import ALLOW_SQL, load_request, make_reporter
from state_pipelines.upgrades.rehearsal import rehearse


@click.command("rehearse")
@click.argument("job")
@MAP
@ALLOW_PYTHON
@ALLOW_SQL
@STORAGE_OPTIONS
@AS_JSON
@click.pass_context
def command(
    ctx: click.Context,
    job: str,
    *,
    path_mapping: tuple[str, ...],
    allow_python: bool,
    allow_sql: bool,
    as_json: bool,
) -> None:
    """Try the upgrade of the running job that the file JOB describes; the job runs on.

    A savepoint is taken, checked, migrated and proven, and the result is removed again. The predicted down time is
    kept for `upgrade --plan`.

    Exit code 0: the upgrade would succeed. 1: it would not. 2: wrong use, or the cluster cannot be reached.
    """
    request = load_request(job, path_mapping, allow_python=allow_python, allow_sql=allow_sql)
    report = rehearse(request, report=make_reporter(as_json=as_json))
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2, default=str))
    else:
        for line in report.list_lines():
            echo(line)
    ctx.exit(0 if report.ok else ANSWER_IS_NO)
