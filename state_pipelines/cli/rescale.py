"""`rescale`: other parallelism, other key groups, other operators."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.display import (
    PROCESSES,
    describe_published,
    echo,
    format_bytes,
    make_console,
    plural,
    print_notes,
    print_table,
    run_with_bar,
)
from state_pipelines.cli.options import (
    AS_JSON,
    DISCARD_PARTIAL,
    SCRATCH,
    Excludes,
    Opener,
    RuledCommand,
    add_options,
    choice_option,
    discard_left_over,
    model_options,
    snapshot_options,
)
from state_pipelines.errors import UsageError, at
from state_pipelines.operations.local_processes import Processes, choose_processes
from state_pipelines.operations.rescale import plan_rescale, rehearse, run_rescale
from state_pipelines.operations.rescale.rescale import tell_label, tell_moved, tell_number
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, parse_request, read_request
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import name_scratch

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.operations.rescale import RescalePlan, RescaleResult


_RULES = (Excludes("--dry-run", ("--discard-partial",), "a dry run removes nothing"),)


@click.command("rescale", cls=RuledCommand, rules=_RULES)
@click.argument("snapshot")
@click.option("--out", "target", metavar="TARGET", help="Directory of the new snapshot; it must not exist.")
@click.option("--request", "file", metavar="FILE", help="What to do, in YAML; other options come on top of it.")
@model_options(RescaleRequest)
@choice_option("--files", FileMode, FileMode.COPY, "What happens to files that stay as they are.")
@click.option("--no-proof", is_flag=True, help="Do not read both sides and compare before it is published.")
@PROCESSES
@SCRATCH
@click.option("--dry-run", is_flag=True, help="Check everything and say what would be done; nothing is kept.")
@DISCARD_PARTIAL
@AS_JSON
@snapshot_options
def command(
    snapshot: str,
    *,
    target: str | None,
    file: str | None,
    files: str,
    no_proof: bool,
    processes: int | None,
    scratch: str | None,
    dry_run: bool,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
    **wishes: Any,
) -> None:
    """Write a snapshot like SNAPSHOT with other parallelism, other key groups or other operators.

    What cannot be done is refused before anything is written. Parallelism alone moves files or ranges of bytes;
    other key groups move records by the hashes of their keys, which are proven with the snapshot itself.
    """
    if target is None and not dry_run:
        raise UsageError("the new snapshot needs a directory", hint="Add --out, or --dry-run to write nothing")
    content, directory = ({}, Path()) if file is None else read_request(file)
    with at(file=file):
        parse_request(content, directory)  # What the file says must be right before anything is added to it.
    request = parse_request(add_options(RescaleRequest, content, wishes), directory)
    if discard_partial and target is not None:
        discard_left_over(target)
    opened = opener.open_unchecked(snapshot) if request.take or request.merge.snapshots else opener.open(snapshot)
    plan = plan_rescale(
        opened,
        # A dry run writes nothing, but the plan needs the name of a directory that does not exist.
        name_scratch(opened.location.directory) if target is None else resolve(target),
        request,
        open_other=opener.open_unchecked,
        files=FileMode(files),
        verify=no_proof,
    )
    progress = make_console(stderr=True)
    print_notes(progress, plan.notes)
    if dry_run:
        with Processes(processes or choose_processes(plan.size)) as shared:
            rehearse(plan, partial(run_with_bar, shared, progress))
        if as_json:
            click.echo(json.dumps(plan.to_json(), indent=2))
        else:
            _show_changes(plan, make_console())
            echo("nothing was written (--dry-run)")
        return
    with Processes(processes or choose_processes(plan.size)) as shared:
        result = run_rescale(plan, partial(run_with_bar, shared, progress), prove=not no_proof, scratch=scratch)
    with describe_published(result.path, as_json=as_json):
        if as_json:
            click.echo(json.dumps(result.to_json(), indent=2))
        else:
            _show_result(result, make_console())


def _show_changes(plan: RescalePlan, console: Console) -> None:
    rows = []
    for change in plan.changes:
        numbers = (tell_number(*change.parallelism), tell_number(*change.max_parallelism))
        rows.append((tell_label(change), *numbers, change.keyed_text, change.operator_state.value))
    rows += [(label, "", "", "dropped", "dropped") for label in plan.dropped]
    print_table(console, ("operator", "parallelism", "max parallelism", "keyed state", "operator state"), rows)
    for change in plan.changes:
        if change.moved is not None and change.parallelism[0] != change.parallelism[1]:
            moved = tell_moved(change.moved, change.max_parallelism[1], format_bytes)
            console.print(f"{change.label}: {moved}", soft_wrap=True)
        for proof in change.hashes:
            console.print(f"{change.label}: {proof}", soft_wrap=True)


def _show_result(result: RescaleResult, console: Console) -> None:
    _show_changes(result.plan, console)
    console.print(
        f"{plural(result.files_written, 'file')} written, {plural(result.files_taken, 'old file')} copied, linked or "
        f"referenced, {format_bytes(result.bytes)} in {result.seconds:.1f} s"
    )
    if result.proof is None:
        console.print("not proven (--no-proof)")
    else:
        states, records = len(result.states), sum(row.after.records for row in result.states)
        console.print(f"proven: {records:,} entries of {plural(states, 'state')}, none lost, doubled or changed")
    console.print(f"new snapshot: {result.path}", style="bold", soft_wrap=True)
