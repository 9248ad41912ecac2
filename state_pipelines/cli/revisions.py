"""Commands on revisions: `history`, `current` and `revision`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.check import code_options, describe_new, write_revision
from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import echo, indent, make_console, make_table, print_notes
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

    from rich.console import Console

    from state_pipelines.operations.jobs.new_job import NewCode
    from state_pipelines.operations.migration.history import Position

_RULES = (Needs(SNAPSHOT_FLAGS, ("SNAPSHOT",), "it is about the snapshot"),)


@click.command("history", cls=RuledCommand, rules=_RULES)
@click.argument("directory")
@click.argument("snapshot", required=False)
@ALLOW_PYTHON
@AS_JSON
@snapshot_options
@click.pass_context
def history_command(
    ctx: click.Context, directory: str, snapshot: str | None, *, allow_python: bool, as_json: bool, opener: Opener
) -> None:
    """List the revisions in DIRECTORY from the first to the last; with SNAPSHOT, mark the one that it is at.

    Exit code 1: it cannot be determined where the snapshot is.
    """
    revisions = RevisionDirectory(directory, allow_python=allow_python)
    position = None if snapshot is None else revisions.current(opener.open(snapshot))
    if as_json:
        content = _to_json(revisions)
        click.echo(json.dumps(content if position is None else content | {"current": to_json(position, revisions)}))
    else:
        _show(revisions, position, make_console())
    if position is not None and position.revision is None:
        ctx.exit(ANSWER_IS_NO)


def to_json(position: Position, directory: RevisionDirectory) -> dict[str, object]:
    """Describe the revision of a snapshot."""
    known = position.revision is not None
    pending = directory.between(position.revision, directory.head) if position.revision is not None else []
    return {
        "revision": position.revision,
        "head": directory.head,
        "is_head": position.revision == directory.head,
        "candidates": list(position.candidates),
        "pending": [each.revision for each, _ in pending] if known else None,
        "reasons": dict(position.reasons),
    }


def list_changed_states(migration: Migration) -> list[str]:
    """List the states that a revision changes, as `operator / state`."""
    return list(dict.fromkeys(" / ".join(filter(None, (each.operator, each.state))) for each in migration.changes))


def is_reversible(migration: Migration) -> bool:
    """Return whether a revision can be downgraded."""
    return not any(change.impossible for change in migration.changes)


def _show(directory: RevisionDirectory, position: Position | None, console: Console) -> None:
    candidates = () if position is None else position.candidates
    mark = "?" if position is None or position.revision is None else "*"
    table = make_table("", "revision", "changes", "way back", "description")
    if BASE in candidates:
        table.add_row(mark, BASE, "", "", "before the first revision")
    for each in directory.revisions:
        table.add_row(
            mark if each.revision in candidates else "",
            each.revision,
            ", ".join(list_changed_states(each)),
            "yes" if is_reversible(each) else "no",
            each.description,
        )
    if directory.revisions:
        console.print(indent(table))
    else:
        console.print(f"there are no revisions in {directory.path}", soft_wrap=True)
    if position is not None and position.revision is None:
        console.print(position.explain(), soft_wrap=True)


def _to_json(directory: RevisionDirectory) -> dict[str, Any]:
    names = (BASE, *(each.revision for each in directory.revisions))
    return {
        "path": directory.path,
        "head": directory.head,
        "fingerprint": directory.fingerprint,
        "revisions": [
            {
                "revision": each.revision,
                "revises": parent,
                "description": each.description,
                "file": each.path,
                "fingerprint": each.fingerprint,
                "changes": [{"operator": change.operator, "state": change.state} for change in each.changes],
                "reversible": is_reversible(each),
            }
            for parent, each in zip(names, directory.revisions, strict=False)
        ],
    }


@click.command("current")
@click.argument("directory")
@click.argument("snapshot")
@ALLOW_PYTHON
@AS_JSON
@snapshot_options
@click.pass_context
def current_command(
    ctx: click.Context, directory: str, snapshot: str, *, allow_python: bool, as_json: bool, opener: Opener
) -> None:
    """Tell which revision in DIRECTORY the states of SNAPSHOT are at; their serializers say so, no data are read.

    Exit code 1: it cannot be determined, because no revision fits, or because several do.
    """
    revisions = RevisionDirectory(directory, allow_python=allow_python)
    position = revisions.current(opener.open(snapshot))
    if as_json:
        click.echo(json.dumps(to_json(position, revisions)))
    elif position.revision is None:
        echo(position.explain())
    else:
        pending = [each.revision for each, _ in revisions.between(position.revision, revisions.head)]
        distance = f"before head by {', '.join(pending)}" if pending else "head"
        echo(f"{position.revision} ({distance})")
    if position.revision is None:
        ctx.exit(ANSWER_IS_NO)


_NUMBER = re.compile(r"\d{1,9}")


_REVISION_RULES = (
    Needs(
        ("OLD", "--from", "--job-classes", "--type", "--avro", "--target-release", *SNAPSHOT_FLAGS),
        ("--autogenerate",),
        "without it the revision is a file to fill in",
    ),
)


@click.command("revision", cls=RuledCommand, rules=_REVISION_RULES)
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
def revision_command(
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
    name as for `check`. Revisions that OLD has not gone through yet are taken into account. Without --autogenerate the
    file is a template that you fill in.
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
            raise UsageError("--autogenerate needs the snapshot that the new job is to restore", hint="Add OLD")
        if start is not None and revisions is None:
            raise UsageError(f"--from {start}: there is no revision yet", where=Where(file=directory))
        snapshot = opener.open(old)
        job = describe_job(snapshot)
        chain = []
        if revisions is not None:
            chain = revisions.between(start or revisions.current(snapshot).require(), HEAD)
        upgrade = ctx.get_parameter_source("target") is not click.core.ParameterSource.DEFAULT
        world = describe_new(new, code, job, parse_release(target), opener, upgrade=upgrade)
        draft = draft_revision(snapshot, world, name, before=chain, revises=revises, description=message)
        if world.keeps_classes and not chain:
            # A serializer that stays the same may write other bytes on another Flink, which only `check_jobs` finds.
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
    """Name a revision after the next number and the message, such as `0002_currency`.

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
