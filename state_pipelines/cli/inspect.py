"""`inspect`: the contents of a snapshot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.display import (
    crop,
    format_bytes,
    indent,
    make_console,
    make_table,
    plural,
    print_table,
    shorten_classes,
)
from state_pipelines.cli.options import AS_JSON, STRICT, Opener, finish_with_notes, snapshot_options
from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata.handles import MAX_PARALLELISM
from state_pipelines.operations.inspect import (
    COUNT_LIMIT,
    OperatorReport,
    PythonReport,
    SnapshotReport,
    StateReport,
    inspect,
)
from state_pipelines.operations.state_rows import compact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from state_pipelines.operations.balance import Balance
    from state_pipelines.operations.inspect import ConnectorReport, CoordinatorReport, KeyedFormatReport
    from state_pipelines.operations.profiling import Profile
    from state_pipelines.snapshot import Snapshot

_SERIALIZER_SIZE = 180
_SHOWN_RANGES = 2
_SHOWN_ROWS = 20
_CELL_SIZE = 80
_NUMBER = click.IntRange(1, MAX_PARALLELISM)


@click.command("inspect")
@click.argument("path")
@AS_JSON
@click.option(
    "--count/--no-count", default=None, help="Count entries, which reads all state; by default only of small snapshots."
)
@click.option(
    "--balance",
    "with_balance",
    is_flag=True,
    help="Show how keyed state lies over key groups and subtasks, and the hottest keys.",
)
@click.option(
    "--to-parallelism",
    metavar="N",
    type=_NUMBER,
    help="Predict the balance with another parallelism; implies --balance.",
)
@click.option(
    "--to-max-parallelism",
    metavar="M",
    type=_NUMBER,
    help="Predict the balance with another number of key groups; implies --balance.",
)
@click.option("--plot", metavar="FILE", help="Draw the balance into a new .svg or .png file; implies --balance.")
@click.option(
    "--profile",
    "with_profile",
    is_flag=True,
    help="Show what entries look like: largest keys, nulls and defaults per column, last access; reads all state.",
)
@click.option(
    "--ttl",
    metavar="[[OPERATOR/]STATE=]DURATION",
    multiple=True,
    help="Time to live of states with TTL, such as 7d, to show when entries expire; implies --profile.",
)
@STRICT
@snapshot_options
def command(
    path: str,
    *,
    as_json: bool,
    strict: bool,
    count: bool | None,
    with_balance: bool,
    to_parallelism: int | None,
    to_max_parallelism: int | None,
    plot: str | None,
    with_profile: bool,
    ttl: tuple[str, ...],
    opener: Opener,
) -> None:
    """Show what the snapshot at PATH holds: operators, states, serializers, sizes.

    State that cannot be read or decoded does not hide the rest: notes on stderr (and under "notes" in JSON) tell what
    and why. Exit code 2 when bytes that were read are damaged or missing, 3 when a format has an unknown version, and
    with --strict when there is any note. Only --profile reads values.
    """
    if to_parallelism is not None and to_max_parallelism is not None and to_parallelism > to_max_parallelism:
        raise UsageError(
            f"--to-parallelism {to_parallelism} is above --to-max-parallelism {to_max_parallelism}",
            hint="Every subtask needs at least one key group",
        )
    if plot is not None:
        from state_pipelines.operations.balance import choose_format

        choose_format(plot)
    snapshot = opener.open(path)
    report = inspect(snapshot, count=count)
    balance = None
    if with_balance or plot is not None or to_parallelism is not None or to_max_parallelism is not None:
        balance = _measure(snapshot, count, to_parallelism, to_max_parallelism)
    profile = _profile(snapshot, ttl) if with_profile or ttl else None
    notes, damage = report.notes, report.damage
    if profile is not None:
        # Report damage once that both the report and the profile have found.
        notes, damage = [*notes, *profile.notes], list(dict.fromkeys([*damage, *profile.damage]))
    if as_json:
        shown = {**report.to_json(), "notes": notes}
        if balance is not None:
            shown["balance"] = balance.to_json()
        if profile is not None:
            shown["profile"] = profile.to_json()
        click.echo(json.dumps(shown, indent=2))
    else:
        console = make_console()
        show_report(report, console)
        if balance is not None:
            from state_pipelines.cli.profile import show_balance

            console.print()
            show_balance(balance, console)
        if profile is not None:
            from state_pipelines.cli.profile import show_profile

            console.print()
            show_profile(profile, console)
    if balance is not None and plot is not None:
        from state_pipelines.operations.balance import save_balance

        save_balance(balance, plot)
    finish_with_notes(notes, strict=strict, damage=damage, undetermined=report.has_undetermined)


def _measure(snapshot: Snapshot, count: bool | None, parallelism: int | None, max_parallelism: int | None) -> Balance:
    """Measure the distribution of state over key groups and subtasks; by default count entries of small snapshots only.

    The limit is that of `inspect` without --balance.
    """
    # Imported late: `balance` imports the code for rescaling, which is large, and most calls need no balance.
    from functools import partial

    from state_pipelines.operations.balance import measure_balance
    from state_pipelines.operations.local_processes import choose_processes, run_tasks

    return measure_balance(
        snapshot,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        count=snapshot.file_size <= COUNT_LIMIT if count is None else count,
        run=partial(run_tasks, processes=choose_processes(snapshot.file_size)),
    )


def _profile(snapshot: Snapshot, ttl: tuple[str, ...]) -> Profile:
    from functools import partial

    from state_pipelines.cli.profile import parse_ttl
    from state_pipelines.operations.local_processes import choose_processes, run_tasks
    from state_pipelines.operations.profiling import profile_snapshot

    run = partial(run_tasks, processes=choose_processes(snapshot.file_size))
    profile = profile_snapshot(snapshot, ttl=parse_ttl(ttl), run=run)
    if profile.unused_ttl:
        raise UsageError(
            f"--ttl names {', '.join(profile.unused_ttl)}, which the snapshot does not have",
            where=Where(file=snapshot.path),
            hint="Name a state, or OPERATOR/STATE, as this command lists them without --ttl",
        )
    return profile


def show_report(report: SnapshotReport, console: Console) -> None:
    """Print a report for people."""
    number = f" {report.checkpoint_id}" if report.checkpoint_id >= 0 else ""
    console.print(f"{report.kind}{number} {report.path}", style="bold")
    lines = (
        format_bytes(report.bytes),
        plural(report.files, "file"),
        plural(len(report.operators), "operator"),
        f"metadata version {report.metadata_version}",
        f"Kryo {report.kryo_version}",
        f"fingerprint {report.fingerprint}",
    )
    console.print(f"  {', '.join(lines)}")
    for master in report.master_states:
        size = format_bytes(master.bytes)
        console.print(f"  state of the job master: {master.name}, version {master.version}, {size}")
    for operator in report.operators:
        console.print()
        _show_operator(operator, console)


def _show_operator(operator: OperatorReport, console: Console) -> None:
    console.print(operator.uid or operator.id, style="bold cyan")
    lines = [f"id {operator.id}"] if operator.uid else ["uid not stored (name it with --uid)"]
    if operator.name:
        lines.append(f"name {operator.name}")
    lines += [
        f"parallelism {operator.parallelism} of {operator.max_parallelism}",
        format_bytes(operator.bytes),
    ]
    if operator.finished:
        lines.append("finished")
    elif operator.finished_subtasks:
        lines.append(f"{plural(len(operator.finished_subtasks), 'subtask')} finished")
    console.print(f"  {', '.join(lines)}")
    if operator.node:
        console.print(f"  SQL: {operator.node}", markup=False, highlight=False)
    for each in operator.keyed_formats:
        console.print(f"  keyed state: {_describe_format(each, operator)}")
    if operator.key_evidence:
        console.print(f"  key serializer, inferred since the snapshot does not store it: {operator.key_evidence}")
    if operator.in_flight is not None:
        for name, channels in (("input", operator.in_flight.input), ("output", operator.in_flight.output)):
            if channels.handles:
                counts = (plural(channels.handles, "handle"), plural(channels.channels, "channel"))
                size = f"{plural(channels.buffers, 'buffer')}, {format_bytes(channels.bytes)}"
                console.print(f"  in-flight {name}: {', '.join(counts)}, {size}")
    if operator.coordinator is not None:
        _show_coordinator(operator.coordinator, console)
    if operator.error:
        what = "cannot be read" if operator.damaged else "not all of it is shown"
        console.print(f"  {what}: {operator.error}", style="red")
    for state in operator.states:
        if state.error:
            what = "cannot be read" if state.damaged else "is not read"
            console.print(f"  {state.name} {what}: {state.error}", style="red")
    if operator.states:
        console.print(indent(_make_state_table(operator.states)))
    for state in operator.states:
        _show_columns(state, console)
    _show_python(operator, console)
    for state in operator.states:
        if state.connector is not None:
            _show_connector(state.name, state.connector, console)


def _show_columns(state: StateReport, console: Console) -> None:
    """Print the meaning of the columns of an SQL state."""
    if not state.columns:
        return
    ttl = f", TTL {state.ttl}" if state.ttl is not None else ""
    console.print(f"  {state.name}{ttl}:", markup=False, highlight=False)
    rows = [(each.name, shorten_classes(each.type), crop(each.meaning, _SERIALIZER_SIZE)) for each in state.columns]
    print_table(console, ("column", "type", "holds"), rows, depth=2)


def _show_python(operator: OperatorReport, console: Console) -> None:
    """Print how to declare the types of Python states that have no declared type."""
    bare = {state.name: state.python.guess for state in operator.states if _guess(state) is not None and state.python}
    if not bare:
        return
    name, guess = next(((name, guess) for name, guess in bare.items() if guess), next(iter(bare.items())))
    declaration = f"{operator.uid or operator.id}.{name}={guess or 'TYPE'}"
    console.print(
        f"  {plural(len(bare), 'state')} of Python functions without a declared type: the values are shown as bytes; "
        f"guesses may be wrong. Declare types: --python-types '{declaration}'",
        style="dim",
    )


def _describe_format(each: KeyedFormatReport, operator: OperatorReport) -> str:
    lines = [each.format]
    if each.compression:
        lines.append("not compressed" if each.compression == "none" else f"compression {each.compression}")
    if each.file_merging:
        lines.append("in merged files")
    if each.changes or each.bases:
        size = format_bytes(each.change_bytes)
        if each.change_compression not in ("", "none"):
            size += f", compression {each.change_compression}"
        changes = f"{plural(each.changes, 'stream')} of changes ({size})"
        lines += [plural(each.bases, "materialized handle"), changes]
    if each.shared_files:
        lines.append(f"{plural(each.shared_files, 'shared file')} ({format_bytes(each.shared_bytes)})")
    if each.private_files:
        noun = "private file" if each.shared_files else "file"
        lines.append(f"{plural(each.private_files, noun)} ({format_bytes(each.private_bytes)})")
    if len(operator.keyed_formats) > 1:
        lines.append(f"subtasks {', '.join(map(str, each.subtasks))}")
    return ", ".join(lines)


def _show_coordinator(coordinator: CoordinatorReport, console: Console) -> None:
    text = f"  coordinator state {format_bytes(coordinator.bytes)}"
    if coordinator.version is not None:
        text += f", of a source, enumerator version {coordinator.enumerator_version}"
    console.print(text)
    if coordinator.connector is not None:
        _show_connector("enumerator", coordinator.connector, console)


def _show_connector(name: str, connector: ConnectorReport, console: Console) -> None:
    """Print the first rows of a connector's state, without the columns that are null in all of them."""
    head = f"{connector.connector} {connector.kind}" if connector.connector else "connector not known"
    console.print(f"  {name}: {head}, {connector.summary}")
    shown = connector.first_rows[:_SHOWN_ROWS]
    names = [each for each in connector.columns if any(row[each] is not None for row in shown)]
    if not names:
        return
    numbers = tuple(name for name in names if all(isinstance(row[name], int | None) for row in shown))
    rows = [["" if row[each] is None else crop(compact(row[each]), _CELL_SIZE) for each in names] for row in shown]
    print_table(console, names, rows, right=numbers, depth=2)
    if connector.rows > len(shown):
        console.print(f"    and {connector.rows - len(shown):,} more; `read` and --json give them", style="dim")


def _make_state_table(states: list[StateReport]) -> Table:
    table = make_table(
        "state", "kind", "key", "namespace", "value", "key groups", "entries", "bytes", right=("entries", "bytes")
    )
    for state in states:
        value = shorten_classes(state.value)
        if state.python is not None:
            value = _describe_python(value, state.python)
        guess = _guess(state)
        table.add_row(
            state.name,
            f"{guess.partition('State<')[0].upper()}?" if guess else state.kind,
            crop(shorten_classes(state.key or ""), _SERIALIZER_SIZE // 3),
            crop("" if state.namespace in (None, "VoidNamespace") else shorten_classes(str(state.namespace)), 40),
            crop(f"{value} (raw bytes: {state.undecoded})".strip() if state.undecoded else value, _SERIALIZER_SIZE),
            _format_ranges(state),
            "" if state.entries is None else f"{state.entries:,}",
            "" if state.bytes is None else format_bytes(state.bytes),
        )
    return table


def _guess(state: StateReport) -> str | None:
    """Return the guessed type of a Python state without a declared type; None for all other states."""
    return None if state.python is None else state.python.guess


def _describe_python(value: str, state: PythonReport) -> str:
    """Describe the declared or guessed type of a state of a Python function, and its name and type in Java."""
    java = f"{state.java_name}: {shorten_classes(state.java_value)}"
    return f"{value} ({java})" if state.guess is None else f"{java}; guess: {state.guess or 'none'}"


def _format_ranges(state: StateReport) -> str:
    ranges = [f"{first}-{last}" for first, last in state.key_groups]
    if len(ranges) <= _SHOWN_RANGES:
        return ", ".join(ranges)
    return f"{state.key_groups[0][0]}-{max(last for _, last in state.key_groups)} in {len(ranges)} subtasks"
