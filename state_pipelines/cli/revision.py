"""`revision`: a new revision file, empty or drafted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.check import code_options, describe_new, write_revision
from state_pipelines.cli.display import make_console, print_notes
from state_pipelines.cli.options import (
    ALLOW_PYTHON,
    AS_JSON,
    SNAPSHOT_FLAGS,
    Needs,
    Opener,
    RuledCommand,
    snapshot_options,
)
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.check.check import check_jobs, parse_release
from state_pipelines.operations.jobs.job_state import describe_job
from state_pipelines.operations.migration import Change, Migration, Set
from state_pipelines.operations.migration.drafting import (
    Draft,
    draft_revision,
    explain_missing,
    format_migration,
    format_revision,
)
from state_pipelines.operations.migration.history import BASE, HEAD, RevisionDirectory
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.storage import is_directory, join, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.operations.jobs.new_job import NewCode

_NUMBER = re.compile(r"\d{1,9}")


_RULES = (
    Needs(
        ("OLD", "--from", "--job-classes", "--type", "--avro", "--target-release", *SNAPSHOT_FLAGS),
        ("--autogenerate",),
        "without it the revision is a file to fill in",
    ),
)


@click.command("revision", cls=RuledCommand, rules=_RULES)
@click.argument("directory")
@click.argument("old", required=False)
@click.argument("new", required=False)
@click.option("-m", "--message", metavar="TEXT", required=True, help="What the revision is for; names the file.")
@click.option("--autogenerate", is_flag=True, help="Draft it from the snapshot OLD and the new job.")
@click.option("--from", "start", metavar="REVISION", help="Where OLD is, if its serializers do not tell.")
@code_options
@click.option(
    "--target-release", "target", metavar="RELEASE", default="2.2", show_default=True, help="Flink of the new job."
)
@ALLOW_PYTHON
@AS_JSON
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context,
    directory: str,
    old: str | None,
    new: str | None,
    *,
    message: str,
    autogenerate: bool,
    start: str | None,
    code: NewCode,
    target: str,
    allow_python: bool,
    as_json: bool,
    opener: Opener,
) -> None:
    """Write a revision file into DIRECTORY that follows its last one.

    With --autogenerate it is a draft of what makes the snapshot OLD restorable by a new job, which NEW or the options
    name as for `check`. Revisions that OLD has not gone through yet are taken into account. Without it, the file is one
    to fill in.
    """
    location = resolve(directory)
    revisions = RevisionDirectory(directory, allow_python=allow_python) if is_directory(location) else None
    known = revisions.revisions if revisions is not None else ()
    name = name_revision(known, message)
    revises = known[-1].revision if known else None
    if not autogenerate:
        draft = Draft(_make_template(name, revises, message), (), undecided=True)
        text = f"# Fill in every {TODO}.\n{format_migration(draft.migration)}"
    else:
        if old is None:
            raise UsageError("--autogenerate wants the snapshot that the new job is to restore", hint="Add OLD")
        if start is not None and revisions is None:
            raise UsageError(f"--from {start} names a revision, and there is none", where=Where(file=directory))
        snapshot = opener.open(old)
        job = describe_job(snapshot)
        chain = []
        if revisions is not None:
            chain = revisions.between(start or revisions.current(snapshot).require(), HEAD)
        upgrade = ctx.get_parameter_source("target") is not click.core.ParameterSource.DEFAULT
        world = describe_new(new, code, job, parse_release(target), opener, upgrade=upgrade)
        draft = draft_revision(snapshot, world, name, before=chain, revises=revises, description=message)
        if world.keeps_classes and not chain:
            # Serializers that stay the same may have other bytes on another Flink, which only a check knows.
            report = check_jobs(job, world, target=target)
            missing = explain_missing(report, world, draft.migration, draft.remarks)
            draft = replace(draft, remarks=(*draft.remarks, *missing))
        text = format_revision(draft)
    path = write_revision(join(location, f"{name}.yaml"), text)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "path": path,
                    "revision": name,
                    "revises": revises or BASE,
                    "remarks": list(draft.remarks),
                    "undecided": draft.undecided,
                }
            )
        )
        return
    console = make_console()
    print_notes(console, draft.remarks)
    if draft.undecided:
        console.print(f"every {TODO} in it is to be replaced before it runs")
    console.print(f"new revision: {path}", style="bold", soft_wrap=True)


def name_revision(known: Sequence[Migration], message: str) -> str:
    """The next number and the message, such as `0002_currency`.

    Raises:
        UsageError: the message has no letter or digit.
    """
    words = re.sub(r"[\W_]+", "_", message.lower()).strip("_")
    if not words:
        raise UsageError("the message has no words to name the revision after")
    numbers = [int(found[0]) for each in known if (found := _NUMBER.match(each.revision))]
    return f"{max(numbers, default=0) + 1:04}_{words[:40].strip('_')}"


def _make_template(name: str, revises: str | None, message: str) -> Migration:
    change = Change(TODO, TODO, (Set(TODO, TODO),), (), impossible=TODO)
    return Migration(name, revises, message, (change,))
