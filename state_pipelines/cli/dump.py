"""`dump`: every entry as JSON lines."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.options import STRICT, Opener, finish_with_notes, snapshot_options
from state_pipelines.codecs.json import dumps
from state_pipelines.errors import UsageError
from state_pipelines.operations.dump import LineKind, dump
from state_pipelines.snapshot.operator_state import IN_FLIGHT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from state_pipelines.operations.dump import Line


_REASON = '"@reason"'


@click.command("dump")
@click.argument("snapshot")
@click.option("--operator", metavar="UID", help="Only this operator: uid, id or name.")
@click.option("--state", metavar="NAME", help="Only states of this name.")
@click.option("--in-flight", is_flag=True, help="The network buffers of unaligned checkpoints too.")
@click.option("--raw", is_flag=True, help="Splits of sources and committables of sinks as the bytes that are stored.")
@STRICT
@snapshot_options
def command(
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
        counts: by operator, state and reason the number of lines.
        errors: why state could not be read at all.
        damage: errors about bytes that are damaged or missing.
        has_undetermined: a format has a version that is not known.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    has_undetermined: bool = False

    def see(self, line: Line) -> str:
        """The text of a line, which is taken note of."""
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
    """Write lines, of which each may be a large part of the memory; those before an error are written too."""
    try:
        for line in lines:
            output.write(line.encode())
            output.write(b"\n")
    finally:
        output.flush()
