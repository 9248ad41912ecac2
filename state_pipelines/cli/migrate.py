"""`migrate`: a new savepoint in which states are as migration files say; and readable lists of these changes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.display import (
    describe_published,
    echo,
    make_console,
    plural,
    print_notes,
    print_table,
    shorten_classes,
    show_proof,
)
from state_pipelines.cli.options import (
    ALLOW_PYTHON,
    AS_JSON,
    DISCARD_PARTIAL,
    SCRATCH,
    Excludes,
    Opener,
    RuledCommand,
    discard_left_over,
    model_options,
    snapshot_options,
)
from state_pipelines.errors import MigrationError, ProofError, UsageError, Where
from state_pipelines.operations.migration import Add, Cast, Direction, Drop, Rename, Set, Step, load_migration
from state_pipelines.operations.migration.flows import Read, find_reads
from state_pipelines.operations.migration.history import HEAD, MigrationRequest, RevisionDirectory
from state_pipelines.operations.migration.migration_planner import find_subject
from state_pipelines.operations.migration.structs import AvroType, PlanContext, SqlColumn, open_struct
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.snapshot.state import PREFIX
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import require_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from state_pipelines.operations.migration import Change, Migration
    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.structs import SlotType
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult


@dataclass(frozen=True)
class FieldChange:
    """The change of one field by a migration.

    Attributes:
        before: `name: type` in the old value; empty when the field is new.
        after: the same in the new value; empty when the field is gone.
        change: what happened to it; empty when nothing did.
    """

    before: str
    after: str
    change: str


@dataclass(frozen=True)
class MigratedState:
    """A state that a migration rewrites, renames or drops.

    Attributes:
        operator: label.
        state: its name now; empty when it is dropped.
        origins: states of the old snapshot that it comes from.
        fields: the changes of its fields, or a single change of the state as a whole.
    """

    operator: str
    state: str
    origins: tuple[str, ...]
    fields: tuple[FieldChange, ...]


def list_changes(plans: Mapping[str, OperatorPlan], chain: Chain, snapshot: Snapshot) -> list[MigratedState]:
    """List the states that a chain of migrations changes.

    Args:
        plans: by label of the operator.
        chain: the planned migrations.
        snapshot: the old snapshot.
    """
    changes = []
    for operator, plan in plans.items():
        own = [
            (change, direction)
            for migration, direction in chain
            for change in migration.changes
            if snapshot.operator(change.operator).id == snapshot.operator(operator).id
        ]
        for name, flow in plan.states.items():
            origins = find_reads(flow)
            before = [plan.shapes[each] for each in origins]
            if isinstance(flow, Read) and origins == (name,) and flow.shape == before[0]:
                continue
            steps = _find_steps(name, own) if origins == (name,) else None
            fields = _trace_state(before, flow.shape, steps, plan.context)
            changes.append(MigratedState(operator, name, origins, tuple(fields)))
        changes += (
            MigratedState(operator, "", (name,), (FieldChange(_describe(plan.shapes[name]), "", f"dropped: {reason}"),))
            for name, reason in plan.dropped.items()
            if name in plan.shapes
        )
    return changes


def trace_fields(
    old: Serializer, new: Serializer, steps: Iterable[Step], context: PlanContext | None = None
) -> list[FieldChange]:
    """List the change of every field of `old` by `steps`, then the fields that they added.

    Raises:
        MigrationError: one of the payloads has no fields.
    """
    before, after = _list_fields(old, context), _list_fields(new, context)
    # Current name of a field -> (its name in the old value, None for an added field; notes on its changes).
    fields: dict[str, tuple[str | None, list[str]]] = {name: (name, []) for name in before}
    for step in steps:
        _note_step(step, fields)
    by_origin = {origin: (name, notes) for name, (origin, notes) in fields.items() if origin is not None}
    changes = []
    for name, kind in before.items():
        now, notes = by_origin.get(name, ("", ["dropped"]))
        text = f"{now}: {after[now]}" if now in after else ""
        changes.append(FieldChange(f"{name}: {kind}", text, "; ".join(notes)))
    added = [(name, notes) for name, (origin, notes) in fields.items() if origin is None and name in after]
    return [*changes, *(FieldChange("", f"{name}: {after[name]}", "; ".join(notes)) for name, notes in added)]


def show_states(changes: Sequence[MigratedState], console: Console) -> None:
    """Print what happened to every state; a title for each when there are several."""
    for each in changes:
        if len(changes) > 1:
            name = each.state or each.origins[0]
            console.print()
            console.print(f"{each.operator} / {name}", style="bold")
        show_changes(list(each.fields), console)


def show_changes(changes: list[FieldChange], console: Console) -> None:
    """Print a table of the fields that changed, and how many did not."""
    rows = [(shorten_classes(each.before), shorten_classes(each.after), each.change) for each in changes if each.change]
    print_table(console, ("before", "after", "change"), rows)
    same = sum(not each.change for each in changes)
    if same:
        console.print(f"  {plural(same, 'field')} as before")


def _find_steps(state: str, changes: Sequence[tuple[Change, Direction]]) -> list[Step]:
    names = (state, state.removeprefix(PREFIX))
    mine = [(change, direction) for change, direction in changes if find_subject(change, direction) in names]
    return [step for change, direction in mine for step in change.steps(direction)]


def _trace_state(
    before: Sequence[StateShape], after: StateShape, steps: list[Step] | None, context: PlanContext
) -> list[FieldChange]:
    """List the changes of a state: by field where all steps change fields, else of the whole state."""
    if steps is not None and all(isinstance(step, Rename | Add | Cast | Drop | Set) for step in steps):
        try:
            return trace_fields(before[0].payload, after.payload, steps, context)
        except MigrationError:
            pass  # reported as a whole
    words = list(dict.fromkeys(_name_step(step) for step in steps or ()))
    if tuple(each.name for each in before) != (after.name,):
        words.insert(0, f"from {', '.join(each.name for each in before)}")
    if any(each.key != after.key for each in before):
        words.append("another key")
    return [FieldChange("; ".join(map(_describe, before)), _describe(after), ", ".join(words) or "renamed")]


def _describe(shape: StateShape) -> str:
    ttl = " with TTL" if shape.ttl else ""
    return f"{shape.kind} of {describe(shape.payload)}{ttl}"


def _name_step(step: Step) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in type(step).__name__).strip("_")


def _note_step(step: Step, fields: dict[str, tuple[str | None, list[str]]]) -> None:
    match step:
        case Rename(names=names):
            for before, after in names:
                if "." in before:
                    fields[before.partition(".")[0].rstrip("[]")][1].append(f"{before} renamed to {after}")
            # Take out all renamed fields before adding any: two fields may exchange their names.
            taken = {after: fields.pop(before) for before, after in names if "." not in before}
            for name, each in taken.items():
                each[1].append("renamed")
                fields[name] = each
        case Add(field=name, expression=expression):
            _note(fields, name, f"added: {expression}")
        case Cast(field=name, expression=expression):
            _note(fields, name, f"cast: {expression}" if expression else "cast")
        case Set(field=name, expression=expression):
            _note(fields, name, f"set: {expression}")
        case Drop(field=name) if "." in name:
            _note(fields, name, "dropped")
        case Drop(field=name):
            del fields[name]


def _note(fields: dict[str, tuple[str | None, list[str]]], path: str, text: str) -> None:
    head, dot, rest = path.partition(".")
    fields.setdefault(head.rstrip("[]"), (None, []))[1].append(f"{rest} {text}" if dot else text)


def _list_fields(payload: Serializer, context: PlanContext | None) -> dict[str, str]:
    struct = open_struct(payload, "", context or PlanContext())
    return {slot.name: _describe_slot(slot.type) for slot in struct.slots}


def _describe_slot(of: SlotType) -> str:
    match of:
        case AvroType(node=node):
            rest = [each for each in node if each != "null"] if isinstance(node, list) else [node]
            words = [each if isinstance(each, str) else str(each.get("name") or each.get("type")) for each in rest]
            return " or ".join(words) + ("?" if isinstance(node, list) and "null" in node else "")
        case SqlColumn(type=kind):
            return describe_type(kind)
        case _:
            return describe(of)


@dataclass(frozen=True)
class Route:
    """The revisions to apply.

    Attributes:
        chain: migrations with their directions, in order.
        start: revision of the snapshot; empty for a single file.
        end: revision to reach; empty for a single file.
    """

    chain: list[tuple[Migration, Direction]]
    start: str = ""
    end: str = ""

    @property
    def names(self) -> list[str]:
        """Direction and revision of each migration, such as `upgrade 0001`."""
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
@model_options(MigrationRequest)
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
    to: str | None,
    **wishes: Any,
) -> None:
    """Write a savepoint like SNAPSHOT, with states changed by the revisions of a directory or by one migration file.

    The revision of the snapshot follows from its serializers; if it is the wanted one already, nothing is written.
    Everything that does not change is copied as bytes. The result is read back and proven before it is published.
    """
    if directory is None and file is None:
        raise UsageError("no migration is given", hint="Give either --migrations DIR or --migration FILE")
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
        route = find_route(revisions, old, to or HEAD, wishes["from"])
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
    """Find the revisions to apply so that a snapshot gets to the revision `end`.

    Raises:
        MigrationError: the revision of the snapshot cannot be determined.
        NotFoundError, UsageError: as `RevisionDirectory.between`.
    """
    report_path = directory.current(snapshot).require() if start is None else directory.name(directory.locate(start))
    chain = directory.between(report_path, end)
    passed = len(chain) if chain and chain[0][1] == Direction.UPGRADE else -len(chain)
    return Route(chain, report_path, directory.name(directory.locate(report_path) + passed))


def find_report(path: str) -> Path:
    """Return the path of a report, after checking it, so that an error is reported before any work is done.

    Raises:
        UsageError: the path does not end in .md or .json, or its directory does not exist.
    """
    report_path = Path(path)
    where = Where(file=path)
    if report_path.suffix not in (".md", ".json"):
        raise UsageError("a report is Markdown or JSON", where=where, hint="Let its name end in .md or .json")
    if not report_path.parent.is_dir():
        raise UsageError("the directory of the report does not exist", where=where)
    return report_path


def write_report(report_path: Path, route: Route, reports: Sequence[object]) -> None:
    """Write the proofs of all operators to a file, which is replaced as a whole: no reader sees an incomplete one.

    Raises:
        UsageError: the file cannot be written.
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
    from state_pipelines.spark.expectations import find_project, load_suites
    from state_pipelines.spark.migration_run import note_plans, plan_snapshot

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


def _show_result(result: MigrationResult, route: Route, changes: list[MigratedState], console: Console) -> None:
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


def _to_json(result: MigrationResult, route: Route, changes: list[MigratedState]) -> dict[str, Any]:
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
