"""`bootstrap`: rows of Parquet files into a savepoint that Flink starts from."""

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
    print_notes,
    print_table,
    run_with_bar,
    show_proof,
)
from state_pipelines.cli.options import (
    AS_JSON,
    DISCARD_PARTIAL,
    SNAPSHOT_FLAGS,
    Excludes,
    Needs,
    Opener,
    RuledCommand,
    add_options,
    discard_left_over,
    model_options,
    snapshot_options,
)
from state_pipelines.operations.bootstrap.bootstrap import BootstrapRequest, BootstrapResult, plan_bootstrap
from state_pipelines.operations.bootstrap.parquet_rows import ParquetRows, choose_row_processes, load_bootstrap
from state_pipelines.operations.local_processes import Processes
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from rich.console import Console


_RULES = (
    # `--classes` is allowed without `--base`: it also describes the classes of the new states.
    Needs(("--files", *(each for each in SNAPSHOT_FLAGS if each != "--classes")), ("--base",), "it is about the base"),
    Excludes("--dry-run", ("--discard-partial",), "a dry run removes nothing"),
)


@click.command("bootstrap", cls=RuledCommand, rules=_RULES)
@click.argument("file")
@click.option(
    "--out", "target", metavar="TARGET", required=True, help="Directory of the new savepoint; it must not exist."
)
@model_options(BootstrapRequest)
@click.option("--no-proof", is_flag=True, help="Do not read the result back before it is published.")
@PROCESSES
@click.option("--dry-run", is_flag=True, help="Only check the description against the files.")
@DISCARD_PARTIAL
@AS_JSON
@snapshot_options
def command(
    file: str,
    *,
    target: str,
    no_proof: bool,
    processes: int | None,
    dry_run: bool,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
    **wishes: Any,
) -> None:
    """Write a savepoint with the states that FILE describes, out of Parquet files.

    FILE is YAML: operators with uid, key type and parallelism, their states, and which columns of which files they
    get; `classes` and `flink_version` are as --classes and --flink-version. Types, names and the base are checked
    before anything is written; the result is read back and compared with the rows before it is published.
    """
    progress = make_console(stderr=True)
    request = BootstrapRequest.parse(add_options(BootstrapRequest, {}, wishes))
    description = load_bootstrap(file)
    operators = description.operators
    opened = None if request.base is None else opener.open(request.base)
    layouts = description.make_layouts(opened, opener.declarations.classes, request.flink_version)
    if discard_partial:
        discard_left_over(target)
    with Processes(processes or choose_row_processes(operators)) as shared:
        run = partial(run_with_bar, shared, progress)
        plan = plan_bootstrap(
            resolve(target),
            operators,
            ParquetRows(run),
            base=opened,
            format=Format(request.format),
            files=request.files,
            prove=not no_proof,
            layouts=layouts,
        )
        print_notes(progress, plan.notes)
        if dry_run:
            message = f"nothing was written to {plan.target} (--dry-run)"
            click.echo(json.dumps({"path": None}) if as_json else message)
            return
        with SnapshotTransaction(plan.target, run) as transaction:
            result = plan.run(transaction)
    with describe_published(result.path, as_json=as_json):
        if as_json:
            click.echo(json.dumps(_to_json(result), indent=2))
        else:
            _show(result, make_console())


def _show(result: BootstrapResult, console: Console) -> None:
    rows = [(operator, state, f"{count:,}") for (operator, state), count in result.entries.items()]
    print_table(console, ("operator", "state", "entries"), rows, right=("entries",))
    if result.proof is not None:
        show_proof(result.proof, console)
    else:
        console.print("not read back (--no-proof)")
    console.print(f"{format_bytes(result.bytes)} of keys and values in {result.seconds:.1f} s")
    console.print(f"new savepoint: {result.path}", style="bold", soft_wrap=True)


def _to_json(result: BootstrapResult) -> dict[str, object]:
    return {
        "path": result.path,
        "states": [
            {"operator": operator, "state": state, "entries": count}
            for (operator, state), count in result.entries.items()
        ],
        "bytes": result.bytes,
        "proof": None if result.proof is None else result.proof.to_json(),
        "notes": list(result.notes),
        "seconds": result.seconds,
    }
