"""`read`: the rows of one state, or of all keyed states of an operator."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq

from state_pipelines.cli.display import crop, make_console, make_table
from state_pipelines.cli.dump import write_lines
from state_pipelines.cli.options import AS_JSON, Source, source_options
from state_pipelines.errors import UnsupportedError, UsageError, Where
from state_pipelines.keyed.operator_table import OperatorTableOptions
from state_pipelines.keyed.tables import TableOptions
from state_pipelines.metadata.key_groups import parse_key_groups
from state_pipelines.operations.rows import compact, to_rows
from state_pipelines.storage import create_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO


_ROWS_FOR_PEOPLE = 20
_CELL_SIZE = 300


@click.command("read")
@click.argument("path")
@click.option("--operator", metavar="UID", required=True, help="The operator: uid, id or name.")
@click.option("--state", metavar="NAME", help="The state; without it all keyed states, a row per key and namespace.")
@click.option("--states", metavar="a,b", help="Without --state: only these states.")
@click.option("--timers", is_flag=True, help="Without --state: timers too, a list per key and namespace.")
@click.option("--columns", metavar="a,b.c", help="Only these columns, or fields of them.")
@click.option("--key-groups", metavar="a-b", help="Only these key groups, both ends included.")
@click.option("--key", metavar="JSON", help="Only the entries of this key.")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="At most so many rows; a table shows 20.")
@click.option("--raw", is_flag=True, help="Keys and values as the bytes that are stored.")
@click.option("--flatten/--no-flatten", default=None, help="With --state: a row per list element, or per key.")
@AS_JSON
@click.option("--parquet", metavar="FILE", help="Write a Parquet file, which must not exist.")
@source_options
def command(
    path: str,
    *,
    operator: str,
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
    source: Source,
) -> None:
    """Show the rows of one state, or of all keyed states of an operator, of the snapshot at PATH.

    With --json one object per line: dates and times are ISO text, bytes hexadecimal text, maps arrays of [key, value].
    """
    if as_json and parquet is not None:
        raise UsageError("--json and --parquet exclude each other")
    if state is None and flatten is not None:
        raise UsageError("--flatten and --no-flatten are for one state; the table of all states holds lists")
    if state is not None and (states is not None or timers):
        raise UsageError("--states and --timers are for the table of all states, without --state")
    chosen = None if columns is None else tuple(each.strip() for each in columns.split(","))
    wanted_key = None if key is None else _parse_key(key)
    groups = None if key_groups is None else parse_key_groups(key_groups)
    place = source.open(path).operator(operator)
    if state is None:
        names = None if states is None else tuple(each.strip() for each in states.split(","))
        together = OperatorTableOptions(names, timers, chosen, raw, wanted_key)
        schema, batches = place.make_schema(together), place.batches(together, groups)
    else:
        options = TableOptions(columns=chosen, flatten=flatten is not False, raw=raw, key=wanted_key)
        found = place.state(state)
        batches = found.batches(options, groups)
        schema = found.make_schema(options)
    if parquet is not None:
        rows = write_parquet(schema, take(batches, limit), parquet)
        click.echo(f"{rows:,} rows written to {parquet}", err=True)
    elif as_json:
        lines = (json.dumps(row, separators=(",", ":")) for batch in take(batches, limit) for row in to_rows(batch))
        write_lines(lines, sys.stdout.buffer)
    else:
        show_rows(schema.names, batches, _ROWS_FOR_PEOPLE if limit is None else limit)


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
    """Write a Parquet file batch by batch; the number of rows.

    Raises:
        TargetExistsError: there is a file of this name.
        UnsupportedError: Parquet has no form for a column.
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
        # Which types Parquet has no form for (structs without fields, say) depends on the release of Arrow, which tells
        # it only here, where it makes a schema of Parquet out of its own.
        raise UnsupportedError(
            f"Parquet cannot hold a column: {error}", where=Where(file=path), hint="Choose others with --columns"
        ) from None


def show_rows(names: list[str], batches: Iterable[pa.RecordBatch], limit: int) -> None:
    """Print rows for people, and whether there are more."""
    # One row more than is shown tells whether there are more.
    rows = [row for batch in take(batches, limit + 1) for row in to_rows(batch)]
    shown = rows[:limit]
    # A namespace that no row has says nothing.
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


def _parse_key(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise UsageError(
            f"the key is not JSON: {text}", hint="""Write text in quotes, such as --key '"user-1"'"""
        ) from None
