"""`migrate`: a new savepoint in which states are as migration files say."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.changes import StateChange, list_changes, show_states
from state_pipelines.cli.combinations import Excludes, RuledCommand
from state_pipelines.cli.display import describe_published, echo, make_console, plural, print_notes
from state_pipelines.cli.options import (
    ALLOW_PYTHON,
    AS_JSON,
    DISCARD_PARTIAL,
    SCRATCH,
    Opener,
    discard_left_over,
    snapshot_options,
)
from state_pipelines.cli.proofs import show_proof
from state_pipelines.errors import ProofError, UsageError, Where
from state_pipelines.operations.migration import Direction, load_migration
from state_pipelines.operations.migration.history import HEAD, RevisionDirectory
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import require_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from state_pipelines.operations.migration import Migration
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult


@dataclass(frozen=True)
class Route:
    """The revisions to apply.

    Attributes:
        chain: migrations with their directions, in order.
        start: where the snapshot is; empty for a single file.
        end: where it is to be; empty for a single file.
    """

    chain: list[tuple[Migration, Direction]]
    start: str = ""
    end: str = ""

    @property
    def names(self) -> list[str]:
        """`upgrade 0001` and so on."""
        return [f"{direction} {migration.revision}" for migration, direction in self.chain]


_RULES = (
    Excludes("--migrations", ("--migration",), "each says what to do"),
    Excludes("--to", ("--migration",), "a single file has no revisions"),
    Excludes("--from", ("--migration",), "a single file has no revisions"),
    Excludes("--downgrade", ("--migrations",), "--to says where a directory leads"),
    Excludes("--no-proof", ("--report",), "without a proof there is no report of it"),
    Excludes("--no-proof", ("--expectations",), "without a proof nothing is judged"),
)


@click.command("migrate", cls=RuledCommand, rules=_RULES)
@click.argument("snapshot")
@click.option("--migrations", "directory", metavar="DIR", help="The directory of revisions.")
@click.option(
    "--to",
    "end",
    metavar="REVISION",
    default=HEAD,
    show_default=True,
    help="Where to: head, base, a revision or the beginning of its name, +1 or -1.",
)
@click.option("--from", "start", metavar="REVISION", help="Where the snapshot is, if its serializers do not tell.")
@click.option("--migration", "file", metavar="FILE", help="A single migration file, in place of a directory.")
@click.option("--downgrade", is_flag=True, help="Take the single migration back.")
@click.option(
    "--out", "target", metavar="TARGET", required=True, help="Directory of the new savepoint; it must not exist."
)
@click.option("--report", metavar="FILE", help="Keep the results of the proof in a file, FILE.md or FILE.json.")
@click.option(
    "--expectations",
    metavar="DIR",
    help="Suites of Great Expectations that the new states must meet (docs/expectations.md).",
)
@click.option("--no-proof", is_flag=True, help="Do not read the result back before it is published.")
@click.option(
    "--allow-sql",
    is_flag=True,
    help="Allow SQL in the migrations that is more than functions over the row, such as subqueries and files.",
)
@ALLOW_PYTHON
@SCRATCH
@DISCARD_PARTIAL
@AS_JSON
@snapshot_options
def command(
    snapshot: str,
    *,
    directory: str | None,
    end: str,
    start: str | None,
    file: str | None,
    target: str,
    downgrade: bool,
    report: str | None,
    expectations: str | None,
    no_proof: bool,
    allow_sql: bool,
    allow_python: bool,
    scratch: str | None,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
) -> None:
    """Write a savepoint like SNAPSHOT in which states are as revisions of a directory, or one migration file, say.

    Where the snapshot is among the revisions, its own serializers tell; when that is where it is to be, nothing is
    written. All that does not change is copied as bytes. The result is read back and proven before it is published.
    """
    if directory is None and file is None:
        raise UsageError("what to do is not said", hint="Give either --migrations DIR or --migration FILE")
    report_path = None if report is None else find_report(report)
    old = opener.open(snapshot)
    require_outside(resolve(target), old.location.directory)
    if directory is not None:
        revisions = RevisionDirectory(directory, allow_python=allow_python)
        if not revisions.revisions:
            raise UsageError(
                "the directory has no revisions",
                where=Where(file=revisions.path),
                hint="Write one with `state-pipelines revision`, or name another directory",
            )
        route = find_route(revisions, old, end, start)
    else:
        assert file is not None
        route = Route(
            [(load_migration(file, allow_python=allow_python), Direction.DOWNGRADE if downgrade else Direction.UPGRADE)]
        )
    if not route.chain:
        _show_nothing(route, as_json=as_json)
        return
    if discard_partial:
        discard_left_over(target)
    try:
        result = _run(
            old,
            route,
            target,
            prove=not no_proof,
            expectations=expectations,
            allow_sql=allow_sql,
            allow_python=allow_python,
            scratch=scratch,
        )
    except ProofError as error:
        if report_path is not None:
            write_report(report_path, route, [error.report])
        raise
    with describe_published(result.path, as_json=as_json):
        changes = list_changes(result.plans, route.chain, old)
        if as_json:
            click.echo(json.dumps(_to_json(result, route, changes), indent=2, default=str))
        else:
            _show_result(result, route, changes, make_console())
    if report_path is not None:
        try:
            write_report(report_path, route, result.proofs)
        except UsageError as error:
            echo(f"note: {error}; {result.path} is published and proven", err=True)


def find_route(directory: RevisionDirectory, snapshot: Snapshot, end: str, start: str | None) -> Route:
    """The way of a snapshot to a revision.

    Raises:
        MigrationError: it cannot be determined where the snapshot is.
        NotFoundError, UsageError: as `RevisionDirectory.between`.
    """
    report_path = directory.current(snapshot).require() if start is None else directory.name(directory.locate(start))
    chain = directory.between(report_path, end)
    passed = len(chain) if chain and chain[0][1] == Direction.UPGRADE else -len(chain)
    return Route(chain, report_path, directory.name(directory.locate(report_path) + passed))


def find_report(path: str) -> Path:
    """The file of a report, which must be one that can be written; reported before any work is done.

    Raises:
        UsageError: it cannot.
    """
    report_path = Path(path)
    where = Where(file=path)
    if report_path.suffix not in (".md", ".json"):
        raise UsageError("a report is Markdown or JSON", where=where, hint="Let its name end in .md or .json")
    if not report_path.parent.is_dir():
        raise UsageError("the directory of the report does not exist", where=where)
    return report_path


def write_report(report_path: Path, route: Route, reports: Sequence[object]) -> None:
    """Write what the proof found, of each operator; whoever reads the file sees all of it or the one before.

    Raises:
        UsageError: it cannot be written.
    """
    proofs = [each for each in reports if isinstance(each, ProofReport)]
    if report_path.suffix == ".json":
        revisions = [{"revision": each.revision, "direction": direction} for each, direction in route.chain]
        content: dict[str, Any] = {"ok": all(each.ok for each in proofs), "revisions": revisions}
        content["proofs"] = [each.to_json() for each in proofs]
        text = json.dumps(content, indent=2, default=str)
    else:
        titles = [f"- {name}: {each.description}" for name, (each, _) in zip(route.names, route.chain, strict=True)]
        text = "\n\n".join(["# Proof of a migration", "\n".join(titles), *(each.to_markdown() for each in proofs)])
    draft = report_path.with_name(f".{report_path.name}.{os.getpid()}")
    try:
        draft.write_text(f"{text}\n", encoding="utf-8")
        draft.replace(report_path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(
            f"the report cannot be written: {error.strerror}", where=Where(file=str(report_path))
        ) from None


def _run(
    old: Snapshot,
    route: Route,
    target: str,
    *,
    prove: bool,
    expectations: str | None,
    allow_sql: bool,
    allow_python: bool,
    scratch: str | None,
) -> MigrationResult:
    from state_pipelines.spark import create_session, migrate
    from state_pipelines.spark.migration_run import note_plans, plan_snapshot
    from state_pipelines.spark.suites import find_project, load_suites

    # Errors in names and steps are reported before Spark starts.
    plans = plan_snapshot(old, route.chain)
    suites = () if expectations is None else load_suites(expectations)
    project = None if expectations is None else find_project(expectations, None)
    progress = make_console(stderr=True)
    print_notes(progress, note_plans(old, plans))
    with progress.status("starting Spark"):
        bar = str(sys.stderr.isatty()).lower()
        session = create_session("state-pipelines migrate", conf={"spark.ui.showConsoleProgress": bar})
    states = [f"{operator.label} / {name}" for operator, plan in plans for name in (*plan.changed, *plan.dropped)]
    names = ", ".join(states) if len(states) <= 3 else f"{len(states)} states"
    directions = dict.fromkeys(direction for _, direction in route.chain)
    way = f" from {route.start} to {route.end}" if route.start else ""
    progress.print(f"{', '.join(directions)} of {names}{way} to {target}", soft_wrap=True)
    return migrate(
        old,
        route.chain,
        target,
        prove=prove,
        suites=suites,
        project=project,
        allow_sql=allow_sql,
        allow_python=allow_python,
        spark=session,
        scratch=scratch,
    )


def _show_nothing(route: Route, *, as_json: bool) -> None:
    if as_json:
        nothing: dict[str, Any] = {
            "path": None,
            "from": route.start,
            "to": route.end,
            "revisions": [],
            "states": [],
            "proof": None,
        }
        click.echo(json.dumps(nothing, indent=2))
    else:
        echo(f"the snapshot is at {route.end} already: nothing to do, nothing was written")


def _show_result(result: MigrationResult, route: Route, changes: list[StateChange], console: Console) -> None:
    for name, (migration, _) in zip(route.names, route.chain, strict=True):
        console.print(f"{name}: {migration.description}", style="bold")
    show_states(changes, console)
    console.print()
    states = [f"{each.operator} / {each.state}" for each in changes if each.state]
    of = states[0] if len(states) == 1 else plural(len(states), "state")
    written = f"{plural(result.rows, 'record')} of {of} rewritten"
    console.print(f"{written} in {result.seconds:.1f} s, everything else copied as bytes")
    if result.proof is None:
        console.print("not proven (--no-proof)")
    else:
        show_proof(result.proof, console)
    console.print(f"new savepoint: {result.path}", style="bold", soft_wrap=True)


def _to_json(result: MigrationResult, route: Route, changes: list[StateChange]) -> dict[str, Any]:
    return {
        "path": result.path,
        "fingerprint": result.snapshot.fingerprint,
        "from": route.start or None,
        "to": route.end or None,
        "revisions": [{"revision": each.revision, "direction": direction} for each, direction in route.chain],
        "states": [asdict(each) for each in changes],
        "rows": result.rows,
        "seconds": result.seconds,
        "notes": list(result.notes),
        "proof": None if result.proof is None else result.proof.to_json(),
    }
