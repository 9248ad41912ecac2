"""`inspect`: what a snapshot holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.display import crop, format_bytes, indent, make_console, make_table, plural, shorten_classes
from state_pipelines.cli.options import AS_JSON, Source, source_options
from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.inspect import OperatorReport, SnapshotReport, StateReport, inspect

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SERIALIZER_SIZE = 180
_SHOWN_RANGES = 2


@click.command("inspect")
@click.argument("path")
@AS_JSON
@click.option(
    "--count/--no-count", default=None, help="Count entries, which reads all state; by default only of small snapshots."
)
@source_options
def command(path: str, *, as_json: bool, count: bool | None, source: Source) -> None:
    """Show what the snapshot at PATH holds: operators, states, serializers, sizes.

    An operator that cannot be read does not hide the others, but the exit code is 2 then.
    """
    report = inspect(source.open(path), count=count)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show_report(report, make_console())
    unread = [operator for operator in report.operators if operator.error]
    if unread:
        others = f" (and {len(unread) - 1} more)" if unread[1:] else ""
        raise UnsupportedError(f"operator {unread[0].uid or unread[0].id}{others} cannot be read: {unread[0].error}")


def show_report(report: SnapshotReport, console: Console) -> None:
    """Print a report for people."""
    number = f" {report.checkpoint_id}" if report.checkpoint_id >= 0 else ""
    console.print(f"{report.kind}{number} {report.path}", style="bold")
    facts = (
        format_bytes(report.bytes),
        plural(report.files, "file"),
        plural(len(report.operators), "operator"),
        f"metadata version {report.metadata_version}",
        f"Kryo {report.kryo_version}",
        f"fingerprint {report.fingerprint}",
    )
    console.print(f"  {', '.join(facts)}")
    for name in report.master_states:
        console.print(f"  state of the job master: {name}")
    for operator in report.operators:
        console.print()
        _show_operator(operator, console)


def _show_operator(operator: OperatorReport, console: Console) -> None:
    console.print(operator.uid or operator.id, style="bold cyan")
    facts = [f"id {operator.id}"] if operator.uid else ["uid not stored (name it with --uid)"]
    if operator.name:
        facts.append(f"name {operator.name}")
    facts += [
        f"parallelism {operator.parallelism} of {operator.max_parallelism}",
        format_bytes(operator.bytes),
    ]
    if operator.finished:
        facts.append("finished")
    if operator.coordinator_bytes:
        facts.append(f"coordinator state {format_bytes(operator.coordinator_bytes)}")
    if operator.channel_state_handles:
        facts.append(plural(operator.channel_state_handles, "handle") + " of channel state")
    console.print(f"  {', '.join(facts)}")
    if operator.error:
        console.print(f"  cannot be read: {operator.error}", style="red")
    if operator.states:
        console.print(indent(_make_state_table(operator.states)))


def _make_state_table(states: list[StateReport]) -> Table:
    table = make_table(
        "state", "kind", "key", "namespace", "value", "key groups", "entries", "bytes", right=("entries", "bytes")
    )
    for state in states:
        value = shorten_classes(state.value)
        table.add_row(
            state.name,
            state.kind,
            crop(shorten_classes(state.key or ""), _SERIALIZER_SIZE // 3),
            crop("" if state.namespace in (None, "VoidNamespace") else shorten_classes(str(state.namespace)), 40),
            crop(f"{value} (raw bytes: {state.undecoded})" if state.undecoded else value, _SERIALIZER_SIZE),
            _format_ranges(state),
            "" if state.entries is None else f"{state.entries:,}",
            "" if state.bytes is None else format_bytes(state.bytes),
        )
    return table


def _format_ranges(state: StateReport) -> str:
    ranges = [f"{first}-{last}" for first, last in state.key_groups]
    if len(ranges) <= _SHOWN_RANGES:
        return ", ".join(ranges)
    return f"{state.key_groups[0][0]}-{max(last for _, last in state.key_groups)} in {len(ranges)} subtasks"
