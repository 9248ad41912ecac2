"""`rescale`: other parallelism, other key groups, other operators."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.combinations import Excludes, RuledCommand
from state_pipelines.cli.display import (
    describe_published,
    echo,
    format_bytes,
    make_console,
    plural,
    print_notes,
    print_table,
)
from state_pipelines.cli.options import (
    AS_JSON,
    DISCARD_PARTIAL,
    SCRATCH,
    Opener,
    choice_option,
    discard_left_over,
    snapshot_options,
)
from state_pipelines.cli.progress import PROCESSES, run_with_bar
from state_pipelines.errors import UsageError, at
from state_pipelines.operations.local_processes import Processes, choose_processes
from state_pipelines.operations.rescale import plan_rescale, rehearse, run_rescale
from state_pipelines.operations.rescale.rescale_planner import tell_label, tell_moved, tell_number
from state_pipelines.operations.rescale.rescale_request import parse_request, read_keys, read_request
from state_pipelines.operations.rescale.snapshot_merge import MergeRule
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import name_scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from state_pipelines.operations.rescale import RescalePlan, RescaleResult


_ONCE = {
    "parallelism": "N",
    "max_parallelism": "N",
    "rename": "OPERATOR",
    "keep_keys": "OPERATOR",
    "drop_keys": "OPERATOR",
    "key_hash": "OPERATOR:CLASS",
    "take": "UID",
}
"""Repeatable options, and the text before which their subject ends (`=N`), or which is their subject."""


def _several(name: str, metavar: str, help: str) -> Callable[..., Any]:
    return click.option(name, metavar=metavar, multiple=True, help=help)


_RULES = (Excludes("--dry-run", ("--discard-partial",), "a dry run removes nothing"),)


@click.command("rescale", cls=RuledCommand, rules=_RULES)
@click.argument("snapshot")
@click.option("--out", "target", metavar="TARGET", help="Directory of the new snapshot; it must not exist.")
@click.option("--request", "file", metavar="FILE", help="What to do, in YAML; other options come on top of it.")
@_several("--parallelism", "[OPERATOR=]N", "Subtasks, of all operators or of one.")
@_several("--max-parallelism", "[OPERATOR=]M", "Key groups, of all operators or of one.")
@_several("--rename", "OPERATOR=UID", "A new uid; OPERATOR is a uid or a 32-digit id.")
@_several("--drop-operator", "OPERATOR", "An operator goes, with its state.")
@_several("--drop-state", "OPERATOR=STATE", "A state of an operator goes.")
@_several("--keep-keys", "OPERATOR=FILE", "Only these keys stay: a file with one JSON value per line.")
@_several("--drop-keys", "OPERATOR=FILE", "These keys go.")
@_several(
    "--key-hash",
    "OPERATOR:CLASS=EXPRESSION",
    "hashCode of a class in the keys, where key groups change, such as objects(a, b).",
)
@_several("--take", "UID=SNAPSHOT", "An operator of this uid comes from another snapshot.")
@_several("--merge", "SNAPSHOT", "The state of another snapshot of the same job comes in.")
@click.option(
    "--on-equal",
    type=click.Choice([each.value for each in MergeRule]),
    help="What happens to entries that several merged snapshots have; error by default.",
)
@choice_option("--files", FileMode, FileMode.COPY, "What happens to files that stay as they are.")
@click.option("--allow-idle-sources", is_flag=True, help="A named source may get more subtasks than it knows splits.")
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
    on_equal: str | None,
    files: str,
    allow_idle_sources: bool,
    no_proof: bool,
    processes: int | None,
    scratch: str | None,
    dry_run: bool,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
    **wishes: tuple[str, ...],
) -> None:
    """Write a snapshot like SNAPSHOT with other parallelism, other key groups or other operators.

    What cannot be done is refused before anything is written. Parallelism alone moves files or ranges of bytes;
    other key groups move records by the hashes of their keys, which are proven with the snapshot itself.
    """
    if target is None and not dry_run:
        raise UsageError("the new snapshot needs a directory", hint="Say --out, or look only, with --dry-run")
    content, directory = ({}, Path()) if file is None else read_request(file)
    with at(file=file):
        parse_request(content, directory)  # What the file says must be right before anything is added to it.
    content = _add_wishes(content, wishes, on_equal)
    if allow_idle_sources:
        content["allow_idle_sources"] = True
    if discard_partial and target is not None:
        discard_left_over(target)
    opened = opener.open_unchecked(snapshot) if {"merge", "take"} & set(content) else opener.open(snapshot)
    plan = plan_rescale(
        opened,
        # A dry run needs a directory in name only, one that is not there.
        name_scratch(opened.location.directory) if target is None else resolve(target),
        parse_request(content, directory),
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


def _add_wishes(content: dict[str, Any], wishes: dict[str, tuple[str, ...]], on_equal: str | None) -> dict[str, Any]:
    """The content of a request that `parse_request` takes, with what options say; the given one stays as it is."""
    content = dict(content)

    def of(operator: str) -> dict[str, Any]:
        return _open(_open(content, "operators"), operator)

    for name, syntax in _ONCE.items():
        subjects = Counter(
            text.rpartition("=")[0] if syntax == "N" else text.partition("=")[0] for text in wishes[name]
        )
        if repeated := [each for each, count in subjects.items() if count > 1]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is given twice for {repeated[0] or 'all operators'}", hint=f"Leave one {option} out"
            )
    for name in ("parallelism", "max_parallelism"):
        for text in wishes[name]:
            operator, _, number = text.rpartition("=")
            if not number.isdecimal():
                raise UsageError(f"{text!r} does not have the form [OPERATOR=]N")
            (of(operator) if operator else content)[name] = int(number)
    for operator, uid in _split(wishes["rename"], "OPERATOR=UID"):
        of(operator)["uid"] = uid
    for operator in wishes["drop_operator"]:
        of(operator)["drop"] = True
    for operator, state in _split(wishes["drop_state"], "OPERATOR=STATE"):
        _extend(of(operator), "drop_states", [state])
    for name in ("keep_keys", "drop_keys"):
        for operator, path in _split(wishes[name], "OPERATOR=FILE"):
            of(operator)[name] = read_keys(path)
    for key, expression in _split(wishes["key_hash"], "OPERATOR:CLASS=EXPRESSION"):
        operator, _, class_name = key.rpartition(":")
        if not operator:
            raise UsageError(f"{key!r} does not have the form OPERATOR:CLASS")
        _open(of(operator), "key_hash")[class_name] = expression
    for uid, path in _split(wishes["take"], "UID=SNAPSHOT"):
        taken = _open(_open(content, "take"), uid)
        taken.clear()
        taken["from"] = path
    if wishes["merge"]:
        _extend(_open(content, "merge"), "with", wishes["merge"])
    if on_equal is not None:
        if not _open(content, "merge").get("with"):
            raise UsageError(
                "--on-equal has no effect without --merge: it is about entries that several snapshots have",
                hint="Add --merge SNAPSHOT, or leave --on-equal out",
            )
        _open(content, "merge")["on_equal"] = on_equal
    return content


def _open(content: dict[str, Any], name: str) -> dict[str, Any]:
    """The mapping of a name, to add to; a new one where there is none, or nothing after the name."""
    # In YAML a name may be a number, and one mapping may have several names (aliases): a copy belongs to this one.
    key = next((each for each in content if str(each) == name), name)
    content[key] = inner = dict(content.get(key) or {})
    return inner


def _extend(content: dict[str, Any], name: str, texts: Sequence[str]) -> None:
    """Add to the list of a name, which may be a single text in a request."""
    given = content.get(name) or []
    content[name] = [*([given] if isinstance(given, str) else given), *texts]


def _split(texts: Sequence[str], syntax: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        left, _, right = text.partition("=")
        if not left or not right:
            raise UsageError(f"{text!r} does not have the form {syntax}")
        pairs.append((left, right))
    return pairs


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
        f"{plural(result.files_written, 'file')} written, {plural(result.files_taken, 'file')} taken over, "
        f"{format_bytes(result.bytes)} in {result.seconds:.1f} s"
    )
    if result.proof is None:
        console.print("not proven (--no-proof)")
    else:
        states, records = len(result.states), sum(row.after.records for row in result.states)
        console.print(f"proven: {records:,} entries of {plural(states, 'state')}, none lost, doubled or changed")
    console.print(f"new snapshot: {result.path}", style="bold", soft_wrap=True)
