"""`upgrade`, `rehearse` and `savepoint`: commands on a running job."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, COMMANDS
from state_pipelines.cli.display import echo
from state_pipelines.cli.options import ALLOW_PYTHON, AS_JSON, MAP, STORAGE_OPTIONS, Excludes, RuledCommand
from state_pipelines.errors import StateError
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.upgrades.job_upgrade import upgrade
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.savepoint_policy import SavepointFailedError, savepoint
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, load_upgrade_request

if TYPE_CHECKING:
    from collections.abc import Callable

_RULES = (Excludes("--plan", ("--approve",), "a plan stops nothing, so nothing needs an approval"),)
ALLOW_SQL = click.option(
    "--allow-sql",
    is_flag=True,
    help="Allow SQL in the migrations that is more than functions over the row, such as subqueries and files.",
)


SETTINGS = {
    **{kind.flag: kind.name for kind in KINDS},
    "--allow-root": "allow_roots",
    "--job-classes": "job_classes",
    "--type": "new_job",
    "--avro": "new_job",
    "--match": "match",
    "--target-release": "target_release",
}
"""By option of other commands the field of the description of a job that says the same."""

_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_NAMED = re.compile(rf"(`|\(|state-pipelines )(flink|{'|'.join(COMMANDS)})\b[^`;()]*$|\bflink run\b")


def name_settings(text: str, command: click.Command) -> str:
    """Return a text in which options that a command does not have are the fields of the description of the job.

    Reading, checking and migrating name the options of their own commands. What another command is called with stays.
    """
    known = {option for each in command.params for option in each.opts}

    def name(found: re.Match[str]) -> str:
        option = found.group()
        if option in known or option not in SETTINGS or _NAMED.search(text[: found.start()]):
            return option
        return f"`{SETTINGS[option]}` in the description of the job"

    return _OPTION.sub(name, text)


class _JobCommand(RuledCommand):
    """A command that takes the description of a job."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; its errors name fields of the description."""
        try:
            return super().invoke(ctx)
        except StateError as error:
            error.what, error.hint = name_settings(error.what, self), name_settings(error.hint, self)
            raise


def _echo(ctx: click.Context, text: str) -> None:
    echo(name_settings(text, ctx.command))


@click.command("upgrade", cls=_JobCommand, rules=_RULES)
@click.argument("job")
@click.option("--plan", is_flag=True, help="Stop nothing; show what would happen, and the predicted down time.")
@click.option("--approve", metavar="FINGERPRINT", help="Carry out the plan with this fingerprint, whatever the policy.")
@MAP
@ALLOW_PYTHON
@ALLOW_SQL
@STORAGE_OPTIONS
@AS_JSON
@click.pass_context
def upgrade_command(
    ctx: click.Context,
    job: str,
    *,
    plan: bool,
    approve: str | None,
    path_mapping: tuple[str, ...],
    allow_python: bool,
    allow_sql: bool,
    as_json: bool,
) -> None:
    """Upgrade the running job that the file JOB describes: savepoint, check, migration, proof, start, watch, or back.

    An upgrade that was interrupted is continued. The first line of the report says what runs.

    Exit code 0: the new program runs. 1: it does not. 2: wrong use, or nothing could be begun. 3: an approval is
    missing, or it cannot be seen what runs.
    """
    request = load_request(job, path_mapping, allow_python=allow_python, allow_sql=allow_sql)
    try:
        report = upgrade(request, approve=approve, plan_only=plan, report=make_reporter(as_json=as_json))
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"the upgrade is not decided; to continue it: state-pipelines upgrade {job}")
        raise
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2, default=str))
    else:
        for line in report.list_lines():
            _echo(ctx, line)
    ctx.exit(report.exit_code)


def load_request(path: str, path_mapping: tuple[str, ...], *, allow_python: bool, allow_sql: bool) -> UpgradeRequest:
    """Read the description of a job, with the options of the command.

    Raises:
        UsageError: the file is no such description.
    """
    request = load_upgrade_request(path)
    return replace(
        request,
        path_mapping=(*request.path_mapping, *path_mapping),
        allow_python=allow_python,
        allow_sql=allow_sql,
    )


def make_reporter(*, as_json: bool) -> Callable[[str], None]:
    """Return what prints the steps to the standard error, unless JSON is wanted."""

    def report(text: str) -> None:
        if not as_json:
            echo(text, err=True)

    return report


@click.command("rehearse", cls=_JobCommand)
@click.argument("job")
@MAP
@ALLOW_PYTHON
@ALLOW_SQL
@STORAGE_OPTIONS
@AS_JSON
@click.pass_context
def rehearse_command(
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
            _echo(ctx, line)
    ctx.exit(0 if report.ok else ANSWER_IS_NO)


_SAVEPOINT_RULES = (Excludes("--due", ("--format",), "the policy says which formats are due"),)


@click.command("savepoint", cls=_JobCommand, rules=_SAVEPOINT_RULES)
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
def savepoint_command(
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
