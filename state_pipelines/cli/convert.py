"""`convert`: the same state in another format, or in another location."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.display import (
    PROCESSES,
    describe_published,
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
    Excludes,
    Needs,
    Opener,
    RuledCommand,
    add_options,
    discard_left_over,
    model_options,
    snapshot_options,
)
from state_pipelines.errors import UsageError
from state_pipelines.operations.convert import (
    ConversionPlan,
    ConversionRequest,
    ConversionResult,
    plan_conversion,
    run_conversion,
)
from state_pipelines.operations.local_processes import Processes, choose_processes
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from rich.console import Console


_RULES = (
    Excludes("--apply", ("--dry-run",), "a dry run removes nothing"),
    Excludes("--move", ("--no-verify",), "the old snapshot is removed only if the new one was read back"),
    Excludes(
        "--move",
        ("--files",),
        "the new snapshot would need the files that are removed",
        values=(FileMode.REFERENCE.value,),
    ),
    Excludes("--checksums", ("--files",), "no file is copied", values=(FileMode.REFERENCE.value,)),
    Excludes(
        "--compress",
        ("--format",),
        "RocksDB compresses its own blocks, and keep copies files as they are",
        values=(Format.ROCKSDB.value, Format.KEEP.value),
    ),
    Excludes("--dry-run", ("--discard-partial",), "a dry run removes nothing"),
    Needs(("--apply",), ("--move",), "without it nothing is removed"),
)


@click.command("convert", cls=RuledCommand, rules=_RULES)
@click.argument("snapshot")
@click.option(
    "--out", "target", metavar="TARGET", required=True, help="Directory of the new snapshot; it must not exist."
)
@model_options(ConversionRequest)
@click.option("--checksums", is_flag=True, help="Read every copied file again and compare its checksum.")
@click.option(
    "--move",
    is_flag=True,
    help="Remove SNAPSHOT once the new one is published; implies --checksums. Without --apply it is a dry run. Refused "
    "when files lie outside its directory, as those of incremental checkpoints do.",
)
@click.option("--apply", is_flag=True, help="With --move: do it.")
@click.option("--no-verify", is_flag=True, help="Do not read the result back before it is published.")
@PROCESSES
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and what the format cannot carry.")
@DISCARD_PARTIAL
@AS_JSON
@snapshot_options
def command(
    snapshot: str,
    *,
    target: str,
    checksums: bool,
    move: bool,
    apply: bool,
    no_verify: bool,
    processes: int | None,
    dry_run: bool,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
    **wishes: Any,
) -> None:
    """Write a snapshot like SNAPSHOT in another format, or in another location.

    What the format cannot carry is reported before anything is written. The result holds all its files, can be moved,
    and is read back and compared before it is published. Files can be linked or referenced instead of copied.
    """
    if discard_partial and move and not apply:
        raise UsageError(
            "--discard-partial does not go with --move without --apply: that is a dry run, which removes nothing",
            hint="Add --apply, or leave --discard-partial out",
        )
    request = ConversionRequest.parse(add_options(ConversionRequest, {}, wishes))
    opened = opener.open(snapshot)
    if discard_partial:
        discard_left_over(target)
    location = resolve(target)
    plan = plan_conversion(opened, location, request, verify=not no_verify, checksums=checksums, move=move)
    progress = make_console(stderr=True)
    print_notes(progress, plan.notes)
    if dry_run or (move and not apply):
        if as_json:
            click.echo(json.dumps(_plan_to_json(plan), indent=2))
        else:
            _show_plan(plan, make_console(), "--dry-run" if dry_run else "--move without --apply")
        return
    with Processes(processes or choose_processes(plan.snapshot.file_size)) as shared:
        result = run_conversion(plan, partial(run_with_bar, shared, progress))
    with describe_published(result.path, as_json=as_json):
        if as_json:
            click.echo(json.dumps(_to_json(result, plan), indent=2))
        else:
            _show_result(result, plan.files, make_console())


def _show_plan(plan: ConversionPlan, console: Console, reason: str) -> None:
    rows = []
    for operator in plan.snapshot.operators:
        tasks = [task for task in plan.tasks if task.operator_id == operator.metadata.operator_id]
        states = dict.fromkeys(info.name for task in tasks for info in task.header.states)
        rows.append((operator.label, str(len(tasks)), str(operator.parallelism), ", ".join(states)))
    numbers = ("subtasks rewritten", "of")
    print_table(console, ("operator", *numbers, "states"), rows, right=numbers)
    if plan.removal is not None:
        count = plural(1 + len(plan.removal.files), "file")
        console.print(f"{count} of the old snapshot would be removed", soft_wrap=True)
    console.print(f"nothing was written to {plan.target} ({reason})", soft_wrap=True)


def _plan_to_json(plan: ConversionPlan) -> dict[str, object]:
    return {
        "path": None,
        "format": plan.format.value,
        "planned": [
            {"operator": task.operator, "subtask": task.subtask, "states": [info.name for info in task.header.states]}
            for task in plan.tasks
        ],
        "files": plan.files.value,
        "removal": None if plan.removal is None else [str(plan.removal.metadata), *map(str, plan.removal.files)],
        "notes": list(plan.notes),
    }


_VERIFICATION = {
    True: "read back and compared",
    False: "not read back (--no-verify)",
    None: "nothing to compare: files were only copied",
}


_DONE = {FileMode.COPY: "copied", FileMode.LINK: "linked", FileMode.REFERENCE: "copied"}


def _show_result(result: ConversionResult, files: FileMode, console: Console) -> None:
    if result.states:
        rows = [
            (operator, state, f"{digest.records:,}", format_bytes(digest.bytes))
            for operator, state, digest in result.states
        ]
        print_table(console, ("operator", "state", "records", "bytes"), rows, right=("records", "bytes"))
    rewritten = f"{plural(result.converted, 'subtask')} rewritten, {plural(result.copied, 'file')} {_DONE[files]}"
    console.print(f"{rewritten}, {format_bytes(result.bytes)} in {result.seconds:.1f} s")
    console.print(_VERIFICATION[result.verified])
    if result.checksums and result.copied and files is FileMode.COPY:
        console.print("every copied file was read back and its checksum compared")
    if result.removed is not None:
        console.print(f"{plural(result.removed, 'file')} of the old snapshot removed")
    console.print(f"new snapshot: {result.path}", style="bold", soft_wrap=True)


def _to_json(result: ConversionResult, plan: ConversionPlan) -> dict[str, object]:
    return {
        "path": result.path,
        "format": plan.format.value,
        "files": plan.files.value,
        "states": [
            {
                "operator": operator,
                "state": state,
                "records": digest.records,
                "bytes": digest.bytes,
                "digest": f"{digest.digest:016x}",
            }
            for operator, state, digest in result.states
        ],
        "converted": result.converted,
        "copied": result.copied,
        "bytes": result.bytes,
        "verified": result.verified,
        "verification": _VERIFICATION[result.verified],
        "checksums": result.checksums,
        "removed": result.removed,
        "notes": list(result.notes),
        "seconds": result.seconds,
    }
