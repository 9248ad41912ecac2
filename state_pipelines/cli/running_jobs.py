"""Commands on a running job: `status`, `savepoint`, `rehearse` and `upgrade`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, COMMANDS
from state_pipelines.cli.display import echo, format_bytes, make_console, make_table, plural, print_notes
from state_pipelines.cli.options import (
    ALLOW_PYTHON,
    AS_JSON,
    MAP,
    STORAGE_OPTIONS,
    Excludes,
    Opener,
    RuledCommand,
    snapshot_options,
)
from state_pipelines.errors import StateError
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.flink.health import Level, describe_duration
from state_pipelines.flink.status import JobReport, status
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.savepoint_policy import SavepointFailedError, find_recorded_savepoint, savepoint
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, load_upgrade_request
from state_pipelines.upgrades.upgrade_run import upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from state_pipelines.flink.checkpoint_failures import FailedCheckpoint

_SHOWN = 5
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow"}


@click.command("status")
@click.argument("job")
@click.option(
    "--job",
    "name",
    metavar="NAME",
    help="Name or id of the job, where JOB is an address or the cluster has another name.",
)
@click.option(
    "--operators",
    is_flag=True,
    help="Also compare the oldest and the newest checkpoint that are still there, operator by operator.",
)
@AS_JSON
@snapshot_options
@click.pass_context
def status_command(
    ctx: click.Context, job: str, *, name: str | None, operators: bool, as_json: bool, opener: Opener
) -> None:
    """Show how a running job is: its checkpoints, their failures with causes and remedies, and its slowest subtasks.

    JOB is the description of the job (YAML with `cluster`), or the address of Flink's REST endpoint. Nothing is changed
    at the cluster.

    Exit code 0: nothing is wrong that needs somebody. 1: the job does not run, its state does not fit, or its
    checkpoints fail or are too old. 2: wrong use, or the cluster does not answer.
    """
    taken = find_recorded_savepoint(job)
    report = status(
        job,
        name,
        operators=operators,
        open=opener.open_unchecked,
        path_mapping=opener.path_mapping,
        savepoint=taken,
    )
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show_report(report, make_console())
    ctx.exit(0 if report.is_healthy else ANSWER_IS_NO)


def show_report(report: JobReport, console: Console) -> None:
    """Print the report of a running job."""
    job = report.job
    restarts = report.load.restarts if report.load is not None else None
    console.print(f"{job.name}  {job.status}  {job.id}", style="bold", soft_wrap=True)
    words = [f"at {report.endpoint}"]
    if job.started is not None:
        words.append(f"started {job.started:%Y-%m-%d %H:%M:%S} UTC")
    if restarts is not None:
        words.append(plural(restarts, "restart"))
    if report.load is not None and report.load.pending_records is not None:
        words.append(f"{report.load.pending_records:,} records pending")
    if report.restored_path:
        words.append(f"restored from {report.restored_path}")
    console.print(", ".join(words), soft_wrap=True)
    for each in report.findings:
        console.print()
        console.print(f"{each.level}: {each.what}", style=_STYLES[each.level], soft_wrap=True)
        if each.remedy:
            console.print(f"  {each.remedy}", soft_wrap=True)
        if each.command:
            console.print(f"  {each.command}", style="bold", soft_wrap=True)
    _show_checkpoints(report, console)
    _show_failures(report, console)
    _show_tasks(report, console)
    print_notes(console, report.notes)


def _show_checkpoints(report: JobReport, console: Console) -> None:
    if not report.counts:
        return
    counts, durations = report.counts, report.durations
    console.print()
    console.print(
        f"checkpoints: {counts['completed']:,} completed, {counts['failed']:,} failed, "
        f"{counts['in_progress']:,} in progress, {counts['restored']:,} restored",
        style="bold",
    )
    settings = report.settings
    if settings is not None:
        interval = "none" if settings.interval_ms is None else _duration(settings.interval_ms)
        unaligned = ", unaligned" if settings.is_unaligned else ""
        console.print(
            f"  interval {interval}, time-out {_duration(settings.timeout_ms)}, "
            f"{plural(settings.tolerable_failures or 0, 'failure')} tolerated, {settings.backend}{unaligned}",
            soft_wrap=True,
        )
    if report.newest is not None:
        newest, age = report.newest, report.newest_age
        kind = "savepoint" if newest.is_savepoint else "checkpoint"
        old = "" if age is None else f", {timedelta(seconds=round(age.total_seconds()))} old"
        console.print(f"  newest: {kind} {newest.id}{old}, {newest.path or 'in memory'}", soft_wrap=True)
    if durations.number:
        console.print(
            f"  duration {_duration(durations.last_ms)}, median {_duration(durations.median_ms)}, longest "
            f"{_duration(durations.longest_ms)}; state {_size(durations.last_size)}, written "
            f"{_size(durations.last_written)}, in flight {_size(durations.last_persisted)}",
            soft_wrap=True,
        )


def _show_failures(report: JobReport, console: Console) -> None:
    alike: dict[tuple[str, str, str], list[FailedCheckpoint]] = {}
    for each in report.failed:
        alike.setdefault((each.reason, each.message, each.job_failure), []).append(each)
    for failed in list(alike.values())[:_SHOWN]:
        last = failed[0]
        console.print()
        console.print(_name_failed(failed), style="bold", soft_wrap=True)
        console.print(f"  {last.message} ({last.reason or 'no reason that Flink names'})", soft_wrap=True)
        for name, text in (("failure", last.job_failure), ("usual cause", last.cause), ("remedy", last.remedy)):
            if text:
                console.print(f"  {name}: {text}", soft_wrap=True)
    if len(alike) > _SHOWN:
        console.print(f"  and {len(alike) - _SHOWN} more reasons in the history")
    if report.failures:
        console.print()
        console.print("failures of the job", style="bold")
        table = make_table("times", "last (UTC)", "task", "cause", right=("times",))
        for failure in report.failures[:_SHOWN]:
            table.add_row(str(failure.number), f"{failure.last:%Y-%m-%d %H:%M:%S}", failure.task, failure.cause)
        console.print(table)


def _name_failed(failed: Sequence[FailedCheckpoint]) -> str:
    """Describe failed checkpoints that have the same reason, newest first, in a few words."""
    last = failed[0]
    kind = "savepoint" if last.is_savepoint else "checkpoint"
    more = f" and {plural(len(failed) - 1, 'earlier one')}" if len(failed) > 1 else ""
    when = "" if last.failed is None else f" at {last.failed:%H:%M:%S} UTC"
    return f"failed: {kind} {last.id}{when}{more}, {last.acknowledged} of {last.subtasks} subtasks acknowledged"


def _show_tasks(report: JobReport, console: Console) -> None:
    if report.load is not None and report.load.vertices:
        growth = {each.name: each for each in report.growth}
        console.print()
        columns = ["busy", "backpressured", "state", "growth per hour"]
        table = make_table("task", "parallelism", *columns, right=("parallelism", *columns))
        for each in report.load.vertices:
            grown = growth.get(each.vertex.name)
            rate = grown.bytes_per_hour if grown is not None else None
            table.add_row(
                each.vertex.name,
                str(each.vertex.parallelism),
                _ratio(each.busy_ratio),
                _ratio(each.backpressured_ratio),
                _size(grown.after if grown is not None else None),
                _rate(rate),
            )
        console.print(table)
    if report.operators:
        console.print()
        console.print(f"operators, in {_hours(report.operators[0].hours)}", style="bold")
        columns = ["before", "after", "growth per hour"]
        table = make_table("operator", *columns, right=tuple(columns))
        for grown in report.operators:
            table.add_row(grown.name, _size(grown.before), _size(grown.after), _rate(grown.bytes_per_hour))
        console.print(table)
    if report.slowest:
        console.print()
        console.print("slowest subtasks of the newest checkpoint", style="bold")
        columns = ["subtask", "duration", "start delay", "alignment", "sync", "async", "state"]
        table = make_table("task", *columns, right=tuple(columns))
        for slow in report.slowest:
            table.add_row(
                slow.task,
                str(slow.index),
                _duration(slow.duration_ms) if slow.is_completed else "not acknowledged",
                *map(_duration, (slow.start_delay_ms, slow.alignment_ms, slow.sync_ms, slow.async_ms)),
                _size(slow.state_size),
            )
        console.print(table)


def _duration(millis: int | None) -> str:
    return "-" if millis is None else describe_duration(millis)


def _size(number: int | None) -> str:
    return "-" if number is None else format_bytes(number)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{'-' if value < 0 else '+'}{format_bytes(round(abs(value)))}"


def _hours(hours: float) -> str:
    return str(timedelta(seconds=round(hours * 3600)))


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
    """Replace options that a command does not have by the fields of the job description with the same meaning.

    Errors of reading, checking and migrating name options of `read`, `check` and `migrate`. Options after the name of
    another command are kept.
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
        interrupt.add_note(f"the upgrade has not ended; to continue it: state-pipelines upgrade {job}")
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
    mapped = (*request.path_mapping, *path_mapping)
    return request.model_copy(update={"path_mapping": mapped, "allow_python": allow_python, "allow_sql": allow_sql})


def make_reporter(*, as_json: bool) -> Callable[[str], None]:
    """Return a callback that prints a step to stderr, unless JSON is wanted."""

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
