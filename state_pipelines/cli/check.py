"""`check`: the verdict whether the state of a snapshot restores in a new job."""

from __future__ import annotations

import json
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import (
    crop,
    echo,
    indent,
    make_console,
    plural,
    print_table,
    shorten_classes,
    write_markdown,
)
from state_pipelines.cli.options import (
    AS_JSON,
    Excludes,
    Opener,
    RuledCommand,
    add_options,
    model_options,
    snapshot_options,
)
from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.operations.check.check import (
    CheckReport,
    CheckRequest,
    CheckVerdict,
    OperatorMatch,
    StateCheck,
    check_jobs,
    format_rename_request,
    match_operators,
    parse_release,
)
from state_pipelines.operations.check.check_report import CheckGroup, group_checks
from state_pipelines.operations.check.class_checks import scan_snapshot
from state_pipelines.operations.jobs.job_state import JobDescription, describe_job
from state_pipelines.operations.jobs.new_job import NewCode, describe_new_job, is_description
from state_pipelines.operations.migration.drafting import draft_from_report, format_revision
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.storage import Location, create_file, is_directory, join, list_directory, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from state_pipelines.snapshot import Snapshot

_STDOUT = "-"
_DRAFT = "0001_draft"
_OPTIONS = (
    click.option(
        "--job-classes",
        "--jar",
        "--class-path",
        "job_classes",
        metavar="PATH",
        multiple=True,
        help="Classes of the new job: a jar, a directory, a class file or a file of field lists.",
    ),
    click.option(
        "--type",
        "types",
        metavar="OPERATOR/STATE=TYPE",
        multiple=True,
        help="The type of a state (of its elements or values): a class, or a readable form.",
    ),
    click.option(
        "--avro", "schemas", metavar="OPERATOR/STATE=FILE", multiple=True, help="The new Avro schema in a state."
    ),
)


def code_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `NewCode` to a command, which gets them as its argument `code`."""

    @wraps(command)
    def call(
        *arguments: object,
        job_classes: tuple[str, ...],
        types: tuple[str, ...],
        schemas: tuple[str, ...],
        **others: object,
    ) -> None:
        command(*arguments, code=NewCode(job_classes, types, schemas), **others)

    decorated: Callable[..., None] = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_RULES = (Excludes("--json", ("--markdown",), "both want the standard output", values=(_STDOUT,)),)


@click.command("check", cls=RuledCommand, rules=_RULES)
@click.argument("old")
@click.argument("new", required=False)
@code_options
@model_options(CheckRequest)
@click.option("--strict", is_flag=True, help="Exit with 1 also when state is dropped or starts empty.")
@AS_JSON
@click.option("--markdown", metavar="FILE", help="Write the report for a pull request, too; - is the standard output.")
@click.option("--draft", metavar="DIR", help="Draft the migration that is needed, into a new directory.")
@click.option(
    "--rename-request",
    metavar="FILE",
    help="Write the operators that the new job has under other uids as a request for `rescale`.",
)
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    old: str,
    new: str | None,
    *,
    code: NewCode,
    strict: bool,
    as_json: bool,
    markdown: str | None,
    draft: str | None,
    rename_request: str | None,
    opener: Opener,
    **wishes: Any,
) -> None:
    """Tell whether the state of the snapshot OLD restores in a new job.

    NEW is a snapshot of the new job, or a description of it (.yaml, .json; see docs/checking.md). Without NEW the new
    job is the old one with the classes, types and schemas of the options, or with --target alone the old one on that
    release of Flink.

    Exit code 0: it does. 1: it does not. 2: wrong use, or unreadable. 3: it cannot be determined.
    """
    request = CheckRequest.parse(add_options(CheckRequest, {}, wishes))
    release = parse_release(request.target)
    is_pair = new is not None and not is_description(new)
    snapshot = opener.open_together(old, new)[0] if is_pair and new is not None else opener.open(old)
    before = describe_job(snapshot)
    upgrade = ctx.get_parameter_source("target_release") is not click.core.ParameterSource.DEFAULT
    after = describe_new(new, code, before, release, opener, upgrade=upgrade)
    report = check_jobs(
        before,
        after,
        target=request.target,
        backend=request.backend,
        allow_non_restored_state=request.allow_non_restored_state,
        find_data=scan_snapshot(snapshot, scan=request.scan),
        row_names=request.row_names,
    )
    losses = find_losses(report, before)
    matches = match_operators(before, after)
    if rename_request is not None:
        write_revision(resolve(rename_request), format_rename_request(matches))
    drafted, remarks = ([], []) if draft is None else _write_draft(snapshot, after, report, draft)
    if markdown is not None:
        write_markdown(report.to_markdown(), markdown)
    if as_json:
        extra = {
            "loses_state": bool(losses),
            "drafts": drafted,
            "remarks": remarks,
            "matches": [each.to_json() for each in matches],
        }
        click.echo(json.dumps({**report.to_json(), **extra}, indent=2))
    elif markdown != _STDOUT:
        show_check(report, make_console())
        show_matches(matches, rename_request, make_console())
        for each in losses:
            echo(f"state would be lost: {' / '.join(filter(None, (each.operator, each.state)))}")
        for remark in remarks:
            echo(f"note: {remark}")
        if draft is not None and not drafted:
            echo(f"nothing was drafted: {'see the notes' if remarks else 'no state needs a migration'}")
        for path in drafted:
            echo(f"drafted: {path}")
    if report.verdict is CheckVerdict.TO_BE_DETERMINED:
        ctx.exit(UNDETERMINED)
    if not report.ok or (strict and report.verdict is not CheckVerdict.FULLY_COMPATIBLE):
        ctx.exit(ANSWER_IS_NO)


def find_losses(report: CheckReport, old: JobDescription) -> list[StateCheck]:
    """List the states that a successful restore would drop; a state that the snapshot does not have is no loss."""
    partial = [each for each in report.checks if each.partial and each.outcome is not Outcome.INCOMPATIBLE]
    if not partial:
        return []
    known = {(operator.label, None) for operator in old.operators} | {
        (operator.label, state.name) for operator in old.operators for state in operator.states
    }
    return [each for each in partial if (each.operator, each.state) in known]


def show_check(report: CheckReport, console: Console) -> None:
    """Print the verdict, and every check but those of serializers that Flink restores as they are."""
    style = "bold green" if report.ok else "bold red"
    backend = report.backend or "any backend"
    console.print(f"{report.verdict}: Flink {report.target}, {backend}", style=style)
    for note in report.notes:
        console.print(f"  {note}", style="dim")
    for line in report.list_classes():
        console.print(f"  {crop(line, 400)}", style="dim", highlight=False)
    remarkable = [each for each in report.checks if each.is_remarkable]
    if remarkable:
        rows = []
        for each in remarkable:
            cells = (each.operator or "", each.state or "", each.kind, str(each.subject), str(each.outcome))
            rows.append((*cells, str(each.action)))
        print_table(console, ("operator", "state", "kind", "subject", "outcome", "to do"), rows)
    for group in group_checks(remarkable):
        console.print()
        show_group(group, console)
    same = len(report.checks) - len(remarkable)
    if same:
        console.print(f"  {plural(same, 'serializer')} restored as {'they are' if same > 1 else 'it is'}")


def show_matches(matches: Sequence[OperatorMatch], request: str | None, console: Console) -> None:
    """Print which operators of the new job may be renamed operators of the old one, and how to rename their state."""
    for each in matches:
        if each.new is not None:
            console.print(f"{each.old} is probably {each.new} now: {each.reason}", soft_wrap=True)
        elif each.candidates:
            names = ", ".join(each.candidates)
            console.print(f"{each.old} could be one of {names} now: {each.reason}", soft_wrap=True)
        if each.candidates and each.hint:
            # `indent` would cut off what is longer than a line.
            console.print(f"  {each.hint}", soft_wrap=True)
    if request is not None:
        console.print(f"request for rescale: {request}", soft_wrap=True)
    elif any(each.new is not None for each in matches):
        console.print("  --rename-request FILE writes a request with which `rescale` renames them", style="dim")


def show_group(group: CheckGroup, console: Console) -> None:
    """Print the reason, the remedies and Flink's error of a group of checks."""
    each = group.checks[0]
    console.print(crop(group.title, 400), style="bold")
    if each.reason:
        console.print(indent(each.reason))
    for finding in group.findings:
        sides = " -> ".join(shorten_classes(side or "nothing") for side in (finding.old, finding.new))
        known = f"{sides}: " if finding.old or finding.new else ""
        console.print(indent(crop(f"{finding.path}: {known}{finding.reason}", 400)))
    for finding, title in group.repeated:
        console.print(indent(f"{finding.path}: as in {title}"))
    for remedy in group.remedies:
        console.print(indent(f"what to do: {remedy}"))
    if each.error:
        console.print(indent(crop(f"Flink says: {shorten_classes(each.error)}", 400)), style="dim")


def describe_new(
    new: str | None, code: NewCode, old: JobDescription, release: tuple[int, int], opener: Opener, *, upgrade: bool
) -> JobDescription:
    """Describe the new job: by a snapshot or description of it, or as the old one with new code or on a newer Flink.

    Args:
        new: a snapshot or a description; None for the old job.
        code: the new code.
        old: the old job.
        release: of Flink that runs the new job.
        opener: how snapshots are opened.
        upgrade: the new job is the old one without changes, if nothing else describes it.

    Raises:
        UsageError: nothing describes the new job, or both a snapshot and types do.
    """
    if new is None and not code and not upgrade:
        raise UsageError(
            "there is no new job to check against",
            hint="Name a snapshot or a description of it, give --job-classes, --type or --avro, or "
            "--target-release for the same job on another Flink",
        )
    return describe_new_job(old, code, release, new=new, open_other=opener.open_unchecked)


def write_revision(location: Location, text: str) -> str:
    """Write a revision file, and return its path.

    Raises:
        TargetExistsError: a file of this name exists.
    """
    with create_file(location) as file:
        file.write(text.encode())
    return str(location)


def _write_draft(
    snapshot: Snapshot, new: JobDescription, report: CheckReport, directory: str
) -> tuple[list[str], list[str]]:
    """Write a drafted revision unless it has no changes; return the paths of written files, and remarks."""
    location = resolve(directory)
    if is_directory(location) and list_directory(location):
        raise TargetExistsError(
            "the directory of the draft is not empty",
            where=Where(file=directory),
            hint=f"Choose a new one; `revision {directory} --autogenerate` drafts one that follows revisions",
        )
    draft = draft_from_report(snapshot, new, report, _DRAFT)
    paths = (
        [write_revision(join(location, f"{_DRAFT}.yaml"), format_revision(draft))] if draft.migration.changes else []
    )
    return paths, list(draft.remarks)
