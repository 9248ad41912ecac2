"""`dump`: every entry as JSON lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.options import Source, source_options
from state_pipelines.codecs.jsonlines import dumps
from state_pipelines.operations.dump import dump

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO


_LINES_AT_ONCE = 2_000


@click.command("dump")
@click.argument("snapshot")
@click.option("--operator", metavar="UID", help="Only this operator: uid, id or name.")
@click.option("--state", metavar="NAME", help="Only states of this name.")
@click.option("--in-flight", is_flag=True, help="The network buffers of unaligned checkpoints too.")
@source_options
def command(
    snapshot: str,
    *,
    operator: str | None,
    state: str | None,
    in_flight: bool,
    source: Source,
) -> None:
    """Print every entry of SNAPSHOT, one JSON object per line.

    Keyed state, timers, operator and broadcast state; raw, coordinator and job master state as the bytes that are
    stored. Values that JSON has no form for have a tag, such as {"@bytes": "0aff"} or {"@date": "2025-01-31"}.
    """
    entries = dump(source.open(snapshot), operator=operator, state=state, in_flight=in_flight)
    write_lines(map(dumps, entries), sys.stdout.buffer)


def write_lines(lines: Iterable[str], output: BinaryIO) -> None:
    """Write lines in large pieces; those before an error are written too."""
    pending: list[str] = []
    try:
        for line in lines:
            pending.append(line)
            if len(pending) >= _LINES_AT_ONCE:
                _flush(pending, output)
    finally:
        _flush(pending, output)
        output.flush()


def _flush(pending: list[str], output: BinaryIO) -> None:
    if pending:
        piece = "\n".join((*pending, ""))
        pending.clear()
        output.write(piece.encode())
