"""`retain --apply`, `--restore` and `--purge`: limits, progress and results."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import echo, format_bytes, make_console, plural, print_table
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.retention import ApplyLimits, Outcome
from state_pipelines.operations.retention.policy import parse_size, read_planned_paths
from state_pipelines.storage.documents import MOST_LINES, read_given_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from state_pipelines.operations.retention import ApplyResult, AuditRecord, PlannedPath

_SHOWN = 20


def make_limits(paths: int | None, size: str | None, rate: float | None) -> ApplyLimits:
    """Make the limits of one run from options."""
    limits = ApplyLimits(paths=paths, bytes=None if size is None else parse_size(size, "--max-bytes"))
    return limits if rate is None else ApplyLimits(limits.paths, limits.bytes, rate)


def make_report() -> Callable[[int, int], None] | None:
    """Make a callback that reports progress on stderr; None when stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda done, total: click.echo(f"\r{done:,} of {plural(total, 'path')}", nl=done >= total, err=True)


def read_plan(path: str, fingerprint: str) -> tuple[PlannedPath, ...]:
    """Read the paths that a plan deletes from a file with the output of `retain --json`.

    Raises:
        UsageError: the file cannot be read, or holds another plan.
    """
    planned = read_planned_paths(read_given_file(path, "the plan", most=MOST_LINES), fingerprint)
    if planned is None:
        raise UsageError(
            f"the file does not hold the plan {fingerprint}",
            where=Where(file=path),
            hint="Give the file with the output of `retain --json` that shows this fingerprint",
        )
    return planned


def show_result(result: ApplyResult, *, as_json: bool) -> bool:
    """Print the result of an application; returns whether all of it was done."""
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return result.finished
    console = make_console()
    verb = "moved to quarantine" if result.quarantined else "deleted"
    if result.done:
        rows = [(kind, f"{paths:,}", format_bytes(size)) for kind, (paths, size) in result.done.items()]
        print_table(console, ("kind", "paths", "bytes"), rows, right=("paths", "bytes"), depth=0)
    _show_details("stays", result.kept)
    _show_details("failed", result.failed)
    console.print(f"{plural(result.paths, 'path')} with {format_bytes(result.bytes)} {verb} in {result.seconds:.1f} s")
    if result.stopped:
        console.print(
            f"stopped: {result.stopped}; {plural(result.remaining, 'path')} remain, the same command continues",
            style="yellow",
            soft_wrap=True,
        )
    if result.log:
        console.print(f"audit log: {result.log}", soft_wrap=True)
    return result.finished


def show_records(records: Sequence[AuditRecord], pinned: Sequence[str], *, as_json: bool) -> int:
    """Print which files were restored or purged, and which snapshots were pinned; returns the exit code."""
    failed = [record for record in records if record.outcome is Outcome.FAILED]
    incomplete = [record for record in records if record.outcome is Outcome.INCOMPLETE]
    unverified = [record for record in records if record.outcome is Outcome.RESTORED and record.detail]
    code = ANSWER_IS_NO if failed or incomplete else UNDETERMINED if unverified else 0
    if as_json:
        found = {"records": [record.to_json() for record in records], "pinned": list(pinned)}
        click.echo(json.dumps(found, indent=2))
        return code
    for outcome in (Outcome.RESTORED, Outcome.PURGED):
        done = [record for record in records if record.outcome is outcome]
        done += incomplete if outcome is Outcome.RESTORED else []
        if done:
            size = format_bytes(sum(record.bytes for record in done))
            echo(f"{plural(len(done), 'file')} with {size} {outcome.value}")
    for path in pinned:
        echo(f"pinned, so that the next plan keeps it: {path}")
    _show_details("failed", failed)
    _show_details("the restored snapshot is not complete", incomplete)
    _show_details("whether the restored snapshot is complete cannot be seen", unverified)
    if not records:
        echo("no file is old enough to be purged")
    return code


def finish(done: bool) -> None:
    """End the command with exit code 1 unless everything was done."""
    if not done:
        click.get_current_context().exit(ANSWER_IS_NO)


def _show_details(word: str, records: Sequence[AuditRecord]) -> None:
    for record in records[:_SHOWN]:
        echo(f"{word}: {record.path}: {record.detail}")
    if len(records) > _SHOWN:
        click.echo(f"{word}: and {len(records) - _SHOWN:,} more; --json shows every one")
