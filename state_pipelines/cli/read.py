"""`read` and `dump`: the rows of one state, and every entry of a snapshot."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq

from state_pipelines.cli.commands import UNDETERMINED
from state_pipelines.cli.display import crop, echo, make_console, make_table, shorten_classes
from state_pipelines.cli.options import (
    AS_JSON,
    STRICT,
    Excludes,
    Needs,
    Opener,
    RuledCommand,
    finish_with_notes,
    snapshot_options,
)
from state_pipelines.codecs.json import dumps
from state_pipelines.errors import UnsupportedError, UsageError, Where
from state_pipelines.operations.dump import LineKind, dump
from state_pipelines.operations.state_rows import compact, read, to_rows
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.operator_state import IN_FLIGHT_NAME
from state_pipelines.snapshot.snapshot import is_undetermined, is_unreadable
from state_pipelines.storage import create_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, BinaryIO

    from state_pipelines.operations.dump import Line
    from state_pipelines.snapshot import Operator, Snapshot

_REASON = '"@reason"'


@click.command("dump")
@click.argument("snapshot")
@click.option("--operator", metavar="UID", help="Only this operator: uid, id or name.")
@click.option("--state", metavar="NAME", help="Only states of this name.")
@click.option("--in-flight", is_flag=True, help="The network buffers of unaligned checkpoints too.")
@click.option("--raw", is_flag=True, help="Splits of sources and committables of sinks as the bytes that are stored.")
@STRICT
@snapshot_options
def dump_command(
    snapshot: str,
    *,
    operator: str | None,
    state: str | None,
    in_flight: bool,
    raw: bool,
    strict: bool,
    opener: Opener,
) -> None:
    """Print every entry of SNAPSHOT, one JSON object per line.

    Keyed state, timers, operator and broadcast state; raw, coordinator and job master state as the bytes that are
    stored. Elements of known connectors are their splits or committables, with --raw their bytes. Values that JSON has
    no form for have a tag, such as {"@bytes": "0aff"} or {"@date": "2025-01-31"}. Those that cannot be decoded are
    bytes with a reason; state that cannot be read is a line "unread". Exit code 2 when bytes are damaged or missing, 3
    when a format has an unknown version, and with --strict when something could not be decoded.
    """
    if in_flight and state not in (None, IN_FLIGHT_NAME):
        raise UsageError(
            f"--in-flight does not go with --state {state}: buffers in flight are of no such state",
            hint=f"--state {IN_FLIGHT_NAME} gives the buffers alone; or leave one of the options out",
        )
    unread = _Unread()
    entries = dump(opener.open(snapshot), operator=operator, state=state, in_flight=in_flight, splits=not raw)
    write_lines(map(unread.see, entries), sys.stdout.buffer)
    finish_with_notes(unread.notes(), strict=strict, damage=unread.damage, undetermined=unread.has_undetermined)


@dataclass
class _Unread:
    """Printed entries that could not be decoded, and state that could not be read.

    Attributes:
        counts: number of lines by operator, state and reason.
        errors: why state could not be read at all.
        damage: errors about bytes that are damaged or missing.
        has_undetermined: a format has a version that is not known.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    has_undetermined: bool = False

    def see(self, line: Line) -> str:
        """Return the text of a line, and note if it was not decoded or read."""
        text = dumps(line)
        if line["kind"] is LineKind.UNREAD:
            (self.damage if line["damaged"] else self.errors).append(str(line["error"]))
            self.has_undetermined |= "undetermined" in line
        elif _REASON in text:
            found = (line.get(name) for name in ("key", "value"))
            reasons = (str(each["@reason"]) for each in found if isinstance(each, dict) and "@reason" in each)
            reason = next(reasons, "a part of the value cannot be decoded")
            self.counts[str(line["op"]), str(line.get("state", "")), reason] += 1
        return text

    def notes(self) -> list[str]:
        """A note for each state and reason."""
        shown = (
            f"operator {operator}: {number:,} entries of state {state} are shown as bytes: {reason}"
            for (operator, state, reason), number in self.counts.items()
        )
        return [*self.errors, *shown]


def write_lines(lines: Iterable[str], output: BinaryIO) -> None:
    """Write lines one at a time, since a line may be large; those before an error are written too."""
    try:
        for line in lines:
            output.write(line.encode())
            output.write(b"\n")
    finally:
        output.flush()


_ROWS_FOR_PEOPLE = 20
_CELL_SIZE = 300


_RULES = (
    Excludes("--json", ("--parquet",), "rows are printed, or written to a file"),
    Excludes("--state", ("--states", "--timers"), "these are for the table of all states"),
    Needs(
        ("--state", "--states", "--timers", "--columns", "--key-groups", "--key", "--limit", "--raw", "--parquet"),
        ("--operator",),
        "`read` with the path alone lists operators and states",
    ),
    Needs(("--flatten",), ("--state",), "the table of all states holds lists"),
)


@click.command("read", cls=RuledCommand, rules=_RULES)
@click.argument("path")
@click.option("--operator", metavar="UID", help="The operator: uid, id or name; without it all states are listed.")
@click.option("--state", metavar="NAME", help="The state; without it all keyed states, a row per key and namespace.")
@click.option("--states", metavar="a,b", help="Without --state: only these states.")
@click.option("--timers", is_flag=True, help="Without --state: timers too, a list per key and namespace.")
@click.option("--columns", metavar="a,b.c", help="Only these columns, or fields of them.")
@click.option("--key-groups", metavar="a-b", help="Only these key groups, both ends included.")
@click.option("--key", metavar="KEY", help="Only the entries of this key: plain text where keys are text, else JSON.")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="At most so many rows; a table shows 20.")
@click.option("--raw", is_flag=True, help="Keys and values as the bytes that are stored.")
@click.option("--flatten/--no-flatten", default=None, help="With --state: a row per list element, or per key.")
@AS_JSON
@click.option("--parquet", metavar="FILE", help="Write a Parquet file, which must not exist.")
@STRICT
@snapshot_options
def read_command(
    path: str,
    *,
    operator: str | None,
    state: str | None,
    states: str | None,
    timers: bool,
    columns: str | None,
    key_groups: str | None,
    key: str | None,
    limit: int | None,
    raw: bool,
    flatten: bool | None,
    as_json: bool,
    parquet: str | None,
    strict: bool,
    opener: Opener,
) -> None:
    """Show the rows of one state, or of all keyed states of an operator, of the snapshot at PATH.

    Without --operator the operators and states are listed.

    A file that cannot be read does not hide the rows of the others: exit code 2 when bytes are damaged or missing, 3
    when a format has an unknown version, and with --strict when something could not be shown decoded.

    With --json one object per line: dates and times are ISO text, bytes hexadecimal text, maps arrays of [key, value].
    """
    if operator is None:
        snapshot = opener.open(path)
        errors = _list_states(snapshot, as_json=as_json)
        failures = (failure.error for each in snapshot.operators for failure in each.survey().failures)
        if (errors and strict) or any(map(is_undetermined, failures)):
            click.get_current_context().exit(UNDETERMINED)
        return
    rows = read(
        opener.open(path),
        operator,
        state,
        states=_split_names(states),
        timers=timers,
        columns=_split_names(columns),
        key_groups=key_groups,
        key=key,
        raw=raw,
        flatten=flatten,
    )
    reasons: Counter[str] = Counter()
    schema, batches = rows.schema, _note_reasons(rows.batches, reasons)
    if parquet is not None:
        number = write_parquet(schema, take(batches, limit), parquet)
        echo(f"{number:,} rows written to {parquet}", err=True)
    elif as_json:
        lines = (json.dumps(row, separators=(",", ":")) for batch in take(batches, limit) for row in to_rows(batch))
        write_lines(lines, sys.stdout.buffer)
    else:
        show_rows(schema.names, batches, _ROWS_FOR_PEOPLE if limit is None else limit)
    notes = [f"{number:,} rows hold bytes that are not decoded: {reason}" for reason, number in reasons.items()]
    notes += [f"rows are missing: {error}" for error in rows.errors if not is_unreadable(error)]
    finish_with_notes(
        notes,
        strict=strict,
        damage=[str(error) for error in rows.errors if is_unreadable(error)],
        undetermined=any(map(is_undetermined, rows.errors)),
    )


def _split_names(names: str | None) -> list[str] | None:
    return None if names is None else [each.strip() for each in names.split(",")]


def _note_reasons(batches: Iterable[pa.RecordBatch], reasons: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and count the values in their column `reason`."""
    for batch in batches:
        if "reason" in batch.schema.names:
            reasons.update(each for each in batch.column("reason").to_pylist() if each is not None)
        yield batch


def _list_states(snapshot: Snapshot, *, as_json: bool) -> bool:
    """Print the operators and states that `read` can show; return whether some cannot be read."""
    rows = [row for operator in snapshot.operators for row in _describe_states(operator)]
    if as_json:
        write_lines((json.dumps(row, separators=(",", ":")) for row in rows), sys.stdout.buffer)
        return any(row["error"] for row in rows)
    table = make_table("operator", "state", "kind", "type")
    for row in rows:
        kind = f"cannot be read: {row['error']}" if row["error"] else shorten_classes(row["type"] or "")
        table.add_row(row["operator"], row["state"] or "", row["kind"] or "", crop(kind, _CELL_SIZE))
    console = make_console()
    console.print(table if rows else "the snapshot has no operators")
    if rows:
        console.print("--operator UID shows all keyed states of one, --state NAME one of its states", style="dim")
    return any(row["error"] for row in rows)


def _describe_states(operator: Operator) -> Iterator[dict[str, str | None]]:
    """Yield a row per state and per error, or a single row for an operator without either."""
    row: dict[str, str | None] = dict.fromkeys(("operator", "name", "state", "kind", "type", "error"))
    row |= {"operator": operator.label, "name": operator.name}
    found = operator.survey()
    for state in found.states:
        yield row | {"state": state.name, "kind": str(state.kind), "type": describe(state.serializer)}
    for error in dict.fromkeys(str(failure.error) for failure in found.failures):
        yield row | {"error": error}
    if not found.states and not found.failures:
        yield row


def take(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; all without a limit."""
    if limit is None:
        yield from batches
        return
    if limit == 0:
        return
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= min(limit, len(batch))
        if limit == 0:
            return


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], path: str) -> int:
    """Write a Parquet file batch by batch, and return the number of rows.

    Raises:
        TargetExistsError: there is a file of this name.
        UnsupportedError: Parquet has no type for a column.
    """
    location = resolve(path)
    rows, finished = 0, False
    with create_file(location) as file:
        try:
            with _open_writer(file, schema, path) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += len(batch)
            finished = True
        finally:
            if not finished:
                location.filesystem.rm_file(location.path)
    return rows


def _open_writer(file: IO[bytes], schema: pa.Schema, path: str) -> pq.ParquetWriter:
    try:
        return pq.ParquetWriter(file, schema)
    except pa.ArrowNotImplementedError as error:
        # Which types Parquet cannot hold (structs without fields, for example) depends on the release of Arrow, which
        # raises the error only here, where it converts its schema to that of Parquet.
        raise UnsupportedError(
            f"Parquet cannot hold a column: {error}", where=Where(file=path), hint="Choose others with --columns"
        ) from None


def show_rows(names: list[str], batches: Iterable[pa.RecordBatch], limit: int) -> None:
    """Print rows for people, and whether there are more."""
    # Take one row more than is shown, to know whether there are more.
    rows = [row for batch in take(batches, limit + 1) for row in to_rows(batch)]
    shown = rows[:limit]
    # Hide the column of the namespace if it is null in all rows.
    names = [each for each in names if each != "state_namespace" or any(row[each] is not None for row in shown)]
    table = make_table(*names, right=tuple(each for each in names if each in ("key_group", "subtask", "list_index")))
    for row in shown:
        table.add_row(*(crop(compact(row[each]), _CELL_SIZE) for each in names))
    console = make_console()
    if shown:
        console.print(table)
    if not rows:
        console.print("no rows")
    elif len(rows) > limit:
        console.print("and more; --limit N shows them, --json and --parquet FILE give all", style="dim")
