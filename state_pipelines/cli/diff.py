"""`diff`: the differences between two snapshots."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import (
    PROCESSES,
    crop,
    format_bytes,
    make_console,
    plural,
    print_table,
    run_with_bar,
    shorten_classes,
)
from state_pipelines.cli.options import AS_JSON, Excludes, Opener, RuledCommand, finish_with_notes, snapshot_options
from state_pipelines.operations.diff import LIMIT, diff
from state_pipelines.operations.diff.diff_report import ContentsDiff, Presence
from state_pipelines.operations.local_processes import Processes, choose_processes
from state_pipelines.operations.state_rows import compact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.operations.diff.diff_report import (
        ComparedProperty,
        Example,
        OperatorDiff,
        SnapshotDiff,
        StateDiff,
    )

_CELL_SIZE = 300


_RULES = (Excludes("--metadata-only", ("--limit",), "no records are compared, so that there are no examples"),)


@click.command("diff", cls=RuledCommand, rules=_RULES)
@click.argument("one")
@click.argument("other")
@click.option("--operator", metavar="UID", help="Only this operator: uid, id or name.")
@click.option("--state", metavar="NAME", help="Only states of this name.")
@click.option("--metadata-only", is_flag=True, help="Compare operators, states and serializers; read no records.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=LIMIT,
    show_default=True,
    help="At most so many examples per state.",
)
@PROCESSES
@AS_JSON
@click.option("--strict", is_flag=True, help="Exit code 3 when something could not be compared, whatever else differs.")
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context,
    one: str,
    other: str,
    *,
    operator: str | None,
    state: str | None,
    metadata_only: bool,
    limit: int,
    processes: int | None,
    as_json: bool,
    strict: bool,
    opener: Opener,
) -> None:
    """Tell what is different between the snapshots ONE and OTHER, whatever formats they have.

    Operators are found by id, states by name, records by key. Where, when and in which format a snapshot was taken is
    shown and does not count.

    State that cannot be read does not hide the rest. Exit code 0: they are the same. 1: they are not. 2: wrong use, or
    bytes are damaged or missing. 3: no difference was found, but something could not be compared.
    """
    snapshots = opener.open_together(one, other)
    progress = make_console(stderr=True)
    size = sum(each.file_size for each in snapshots)
    with Processes(processes or choose_processes(0 if metadata_only else size)) as shared:
        report = diff(
            snapshots[0],
            snapshots[1],
            operator=operator,
            state=state,
            metadata_only=metadata_only,
            limit=limit,
            run=partial(run_with_bar, shared, progress),
        )
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show_diff(report, make_console())
    finish_with_notes([], strict=strict, damage=report.damage)
    if strict and not report.is_complete:
        ctx.exit(UNDETERMINED)
    if not report.same:
        ctx.exit(ANSWER_IS_NO if report.differs else UNDETERMINED)


def show_diff(report: SnapshotDiff, console: Console) -> None:
    """Print what is different, and how much is not."""
    console.print(
        report.summary, style="bold green" if report.same else "bold red" if report.differs else "bold yellow"
    )
    console.print(f"  one:   {report.one}", soft_wrap=True)
    console.print(f"  other: {report.other}", soft_wrap=True)
    _show_properties(report.properties, console)
    for operator in report.operators:
        if not operator.same:
            console.print()
            _show_operator(operator, console)
    same = sum(each.same for each in report.operators)
    if same and not report.same:
        console.print()
        console.print(f"{plural(same, 'operator')} the same")
    if report.metadata_only:
        console.print("records were not compared (--metadata-only)")


def _show_operator(operator: OperatorDiff, console: Console) -> None:
    where = "" if operator.presence is Presence.BOTH else f": {operator.presence}"
    console.print(f"{operator.label}{where}", style="bold cyan", soft_wrap=True)
    if operator.error:
        console.print(f"  not compared: {operator.error}", style="red", soft_wrap=True)
    if operator.presence is Presence.BOTH:
        _show_properties(operator.properties, console)
    differing = [state for state in operator.states if not state.same]
    if differing:
        numbers = ("records", "in other", "only in one", "only in other", "changed")
        rows = [(state.name, state.kind, *_tell_numbers(state.contents)) for state in differing]
        print_table(console, ("state", "kind", *numbers), rows, right=numbers)
    for state in operator.states:
        _show_state(state, console)
    if same := len(operator.states) - len(differing):
        console.print(f"  {plural(same, 'state')} the same")


def _show_state(state: StateDiff, console: Console) -> None:
    """Print what the table of states has no columns for; of a state without differences, only how it was compared."""
    note = state.contents.note if state.contents is not None else ""
    examples = state.contents.examples if state.contents is not None else ()
    if state.presence is not Presence.BOTH:
        console.print(f"  {state.name}: {state.presence}", style="bold", soft_wrap=True)
        return
    properties = [each for each in state.properties if each.differs]
    if properties or examples or note:
        console.print(f"  {state.name}{': ' if note else ''}{note}", style="bold", soft_wrap=True)
        _show_properties(properties, console, depth=4)
        _show_examples(examples, console)


def _show_properties(properties: Iterable[ComparedProperty], console: Console, *, depth: int = 2) -> None:
    for compared in properties:
        if compared.differs:
            old, new = (shorten_classes(_tell_answer(compared, each)) for each in (compared.one, compared.other))
            text = f"{' ' * depth}{compared.name}: {old} -> {new}"
            console.print(text, style=None if compared.counts else "dim", soft_wrap=True)


def _tell_answer(compared: ComparedProperty, answer: object) -> str:
    if answer is None or answer == []:
        return "none"
    if compared.name == "bytes" and isinstance(answer, int):
        return format_bytes(answer)
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


def _tell_numbers(contents: ContentsDiff | None) -> tuple[str, ...]:
    found = contents or ContentsDiff(None, None, None)
    counted = (found.only_in_one, found.only_in_other, found.changed)
    return (*map(_tell_size, (found.one, found.other)), *("" if each is None else f"{each:,}" for each in counted))


def _tell_size(digest: RecordDigest | None) -> str:
    return "" if digest is None else f"{digest.records:,}"


def _show_examples(examples: Iterable[Example], console: Console) -> None:
    for each in examples:
        key = ", ".join(f"{name}: {compact(value)}" for name, value in each.key.items())
        note = f" ({each.note})" if each.note else ""
        console.print(crop(f"    {each.kind}{note}  {key}", _CELL_SIZE))
        for name, value in (("one", each.one), ("other", each.other)):
            if value:
                console.print(crop(f"      {name + ':':6} {_tell_value(value)}", _CELL_SIZE))


def _tell_value(columns: dict[str, object]) -> str:
    # A single column, mostly the value, needs no name.
    if len(columns) == 1:
        return compact(next(iter(columns.values())))
    return ", ".join(f"{name}: {compact(value)}" for name, value in columns.items())
