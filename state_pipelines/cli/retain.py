"""`retain`: plans of retention, pins and the quarantine; and the application of plans with its limits and results."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import echo, format_bytes, indent, make_console, plural, print_table
from state_pipelines.cli.options import ALLOW_ROOT, AS_JSON, MAP, STORAGE_OPTIONS, Excludes, Needs, RuledCommand
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.retention import (
    ApplyLimits,
    DeletionOutcome,
    PathKind,
    RetentionPolicy,
    apply_plan,
    load_policy,
    open_audit_log,
    parse_policy,
    pin_snapshot,
    plan_retention,
    purge_quarantine,
    read_pins,
    restore_quarantined,
    unpin_snapshot,
)
from state_pipelines.operations.retention.own_directory import find_above, find_pinnable, find_pinned_keys, pin_restored
from state_pipelines.operations.retention.policy import (
    PathKeys,
    parse_duration,
    parse_equalities,
    parse_size,
    read_planned_paths,
)
from state_pipelines.operations.retention.survey import open_roots
from state_pipelines.storage import parse_path_mapping, resolve
from state_pipelines.storage.documents import MOST_LINES, read_given_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from state_pipelines.operations.retention import ApplyResult, AuditLog, AuditRecord, PlannedPath
    from state_pipelines.operations.retention.policy import RetentionPlan, SnapshotVerdict
    from state_pipelines.operations.retention.survey import Root
    from state_pipelines.storage import Location

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
    """Print the result of applying a plan; return whether all of the plan was done."""
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
    failed = [record for record in records if record.outcome is DeletionOutcome.FAILED]
    incomplete = [record for record in records if record.outcome is DeletionOutcome.INCOMPLETE]
    unverified = [record for record in records if record.outcome is DeletionOutcome.RESTORED and record.detail]
    code = ANSWER_IS_NO if failed or incomplete else UNDETERMINED if unverified else 0
    if as_json:
        found = {"records": [record.to_json() for record in records], "pinned": list(pinned)}
        click.echo(json.dumps(found, indent=2))
        return code
    for outcome in (DeletionOutcome.RESTORED, DeletionOutcome.PURGED):
        done = [record for record in records if record.outcome is outcome]
        done += incomplete if outcome is DeletionOutcome.RESTORED else []
        if done:
            size = format_bytes(sum(record.bytes for record in done))
            echo(f"{plural(len(done), 'file')} with {size} {outcome.value}")
    for path in pinned:
        echo(f"pinned, so that the next plan keeps it: {path}")
    _show_details("failed", failed)
    _show_details("the restored snapshot is not complete", incomplete)
    _show_details("it is unknown whether the restored snapshot is complete", unverified)
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


_SHOWN_PATHS = 20
_SHOWN_SNAPSHOTS = 40


class _Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse a duration."""
        return parse_duration(value, param.opts[0] if param else "")


_OF_APPLY = ("--plan", "--quarantine", "--max-paths", "--max-bytes", "--rate")
_OF_PLANS = ("--min-age", "--grace", "--price", "--currency", "--all", "--strict")
_OF_PATHS = ("--map", "--allow-root")
_RULES = (
    Needs(("--reason", "--tag"), ("--pin",), "it is about a pin"),
    *(
        Excludes(
            each,
            ("--apply", "--restore", "--purge", *_OF_APPLY, *_OF_PLANS, *_OF_PATHS, "--audit-log"),
            "such a command only changes or lists pins",
        )
        for each in ("--pin", "--unpin", "--pins")
    ),
    *(
        Excludes(each, ("--apply", *_OF_APPLY, *_OF_PLANS), "such a command only moves or deletes files in quarantine")
        for each in ("--restore", "--purge")
    ),
    Excludes("--purge", _OF_PATHS, "files are purged without reading them"),
    Needs(_OF_APPLY, ("--apply",), "without it nothing is deleted"),
)


@click.command("retain", cls=RuledCommand, rules=_RULES)
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...")
@click.option("--policy", "policy_path", metavar="FILE", help="YAML file that says which snapshots stay.")
@click.option("--min-age", type=_Duration(), metavar="AGE", help="Nothing younger goes; 3d unless the policy says.")
@click.option(
    "--grace", type=_Duration(), metavar="TIME", help="With --apply: plan twice, so long apart; both must agree."
)
@click.option("--price", type=float, metavar="MONEY", help="Price of one GiB for one month, for the estimate.")
@click.option("--currency", metavar="NAME", help="Currency of the price.")
@click.option("--equal-scheme", "equal_schemes", multiple=True, metavar="A=B", help="Schemes that name one storage.")
@click.option(
    "--equal-authority", "equal_authorities", multiple=True, metavar="A=B", help="Hosts or buckets that are the same."
)
@click.option("--apply", "fingerprint", metavar="FINGERPRINT", help="Delete what the plan of this fingerprint names.")
@click.option(
    "--plan",
    "plan_path",
    metavar="FILE",
    help="With --apply: the plan as --json printed it; paths that became deletable later stay, without an error.",
)
@click.option("--quarantine", is_flag=True, help="With --apply: move the files away instead of deleting them.")
@click.option("--max-paths", type=click.IntRange(1), metavar="N", help="With --apply: stop after so many paths.")
@click.option("--max-bytes", metavar="SIZE", help="With --apply: stop before more bytes than this.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="With --apply: paths per second.")
@click.option("--audit-log", metavar="DIR", help="Directory of the audit log; by default in the first root.")
@click.option(
    "--restore",
    metavar="WHAT",
    help="Move back what is in quarantine, and pin it: a fingerprint, or a path.",
)
@click.option("--purge", type=_Duration(), metavar="AGE", help="Delete what is longer in quarantine than AGE.")
@click.option("--pin", metavar="PATH", help="Keep the snapshot at PATH from now on, and end.")
@click.option("--reason", default="", metavar="TEXT", help="Why it is pinned.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="With --pin: tag it for policies instead.")
@click.option("--unpin", metavar="PATH", help="Remove the pin of the snapshot at PATH, and end.")
@click.option("--pins", "list_pins", is_flag=True, help="List the pins of the roots, and end.")
@click.option("--all", "show_all", is_flag=True, help="Show every path, not only the largest.")
@click.option("--strict", is_flag=True, help="Exit with 3 where references are not known.")
@MAP
@ALLOW_ROOT
@STORAGE_OPTIONS
@AS_JSON
@click.pass_context
def command(
    ctx: click.Context,
    roots: tuple[str, ...],
    *,
    policy_path: str | None,
    min_age: timedelta | None,
    grace: timedelta | None,
    price: float | None,
    currency: str | None,
    equal_schemes: tuple[str, ...],
    equal_authorities: tuple[str, ...],
    fingerprint: str | None,
    plan_path: str | None,
    quarantine: bool,
    max_paths: int | None,
    max_bytes: str | None,
    rate: float | None,
    audit_log: str | None,
    restore: str | None,
    purge: timedelta | None,
    pin: str | None,
    reason: str,
    tags: tuple[str, ...],
    unpin: str | None,
    list_pins: bool,
    show_all: bool,
    strict: bool,
    path_mapping: tuple[str, ...],
    allow_roots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show which snapshots and files below the ROOTs are to be deleted, which stay, and why; delete with --apply.

    Nothing is deleted without --apply and the fingerprint of a plan. The plan is made again, and must have the same
    fingerprint; the newest snapshot of each job that stays is verified before anything is deleted.

    ROOTs are directories of checkpoints and savepoints, of any number of jobs that run or not. Give all that share
    files: references are only known below them. Without --policy only orphans go: files that no snapshot references,
    checkpoints and savepoints that were never completed, temporary files.

    Exit code 1: the current plan has another fingerprint, a snapshot that would stay is damaged, not everything could
    be deleted or restored, or a restored snapshot is not complete. Exit code 3: whether it is complete cannot be seen.
    """
    policy = load_policy(policy_path) if policy_path is not None else RetentionPolicy()
    given = {
        "min_age": min_age,
        "grace": grace,
        "price": None if price is None else parse_policy({"price": price}).price,
        "currency": currency or None,
        "equal_schemes": (*policy.equal_schemes, *parse_equalities(equal_schemes)),
        "equal_authorities": (*policy.equal_authorities, *parse_equalities(equal_authorities)),
    }
    policy = policy.model_copy(update={name: each for name, each in given.items() if each is not None})
    if pin is not None and pin == unpin:
        raise UsageError(f"--pin and --unpin name the same snapshot {pin}", hint="Leave one of them out")
    if currency is not None and policy.price is None:
        raise UsageError(
            "--currency has no effect without --price: it is the currency of the estimated saving",
            hint="Add --price MONEY, or leave --currency out",
        )
    mapping = parse_path_mapping(path_mapping).allow(allow_roots)
    if pin is not None or unpin is not None or list_pins:
        keys = PathKeys(policy.equal_schemes, policy.equal_authorities)
        _change_pins(_open(roots, policy), keys, pin=pin, reason=reason, tags=tags, unpin=unpin, as_json=as_json)
        return
    if restore is not None or purge is not None:
        locations = [root.location for root in _open(roots, policy)]
        log = _open_log(locations[0], audit_log)
        keys = PathKeys(policy.equal_schemes, policy.equal_authorities)
        done = [] if restore is None else restore_quarantined(locations, restore, log, keys=keys, path_mapping=mapping)
        pinned = pin_restored(locations, done, reason="restored from quarantine", keys=keys)
        done += [] if purge is None else purge_quarantine(locations, purge, log)
        ctx.exit(show_records(done, pinned, as_json=as_json))
    if fingerprint is not None:
        result = apply_plan(
            roots,
            policy,
            fingerprint=fingerprint,
            planned=None if plan_path is None else read_plan(plan_path, fingerprint),
            grace=policy.grace,
            path_mapping=mapping,
            audit_log=audit_log,
            quarantine=quarantine,
            limits=make_limits(max_paths, max_bytes, rate),
            report=make_report(),
        )
        finish(show_result(result, as_json=as_json))
        return
    plan = plan_retention(roots, policy, path_mapping=mapping, audit_log=audit_log)
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=2))
    else:
        show_plan(plan, make_console(), show_all=show_all)
    if strict and plan.stopped:
        ctx.exit(UNDETERMINED)


def _open(roots: Sequence[str], policy: RetentionPolicy) -> tuple[Root, ...]:
    return open_roots(list(roots), PathKeys(policy.equal_schemes, policy.equal_authorities), None)[0]


def _open_log(root: Location, directory: str | None) -> AuditLog:
    return open_audit_log(root, None if directory is None else resolve(directory))


def _change_pins(
    roots: Sequence[Root],
    keys: PathKeys,
    *,
    pin: str | None,
    reason: str,
    tags: tuple[str, ...],
    unpin: str | None,
    as_json: bool,
) -> None:
    if pin is not None:
        directory, path = _find_pinnable(roots, pin, keys)
        pin_snapshot(directory, path, reason=reason, tags=tags, keys=keys)
    # Pin files in directories above the roots protect snapshots below the roots too.
    above = dict.fromkeys(each for root in roots for each in find_above(root.location)[0])
    directories = [*(root.location for root in roots), *above]
    if unpin is not None:
        unpin_snapshot(_find_pinned(directories, unpin, keys), unpin, keys=keys)
    shown = {root.location: root.path for root in roots}
    pins = [(shown.get(each, str(each)), pinned) for each in directories for pinned in read_pins(each)]
    if as_json:
        entries = [{"root": directory, **each.to_json()} for directory, each in pins]
        click.echo(json.dumps({"pins": entries}, indent=2))
        return
    if not pins:
        click.echo("no pins")
        return
    rows = [(f"{directory}/{each.path}", each.reason, ", ".join(each.tags), each.created) for directory, each in pins]
    print_table(make_console(), ("pinned", "reason", "tags", "since"), rows, depth=0)


def _find_pinnable(roots: Sequence[Root], path: str, keys: PathKeys) -> tuple[Location, str]:
    """The root that holds a snapshot or a directory of snapshots, and its path relative to the root."""
    # A path is relative to a root, or else to the working directory.
    for spelling in (path, str(resolve(path))) if path.strip() else ():
        found = [(root.location, each) for root in roots if (each := find_pinnable(root.location, spelling, keys))]
        if len(found) > 1:
            raise UsageError(f"{path} is in several of the roots", hint="Give its absolute path, or one root")
        if found:
            return found[0]
    raise UsageError(
        f"there is nothing to pin: {path!r} is below none of the roots, or no snapshot is there",
        hint="Give an existing snapshot below a root, or a directory that holds some",
    )


def _find_pinned(directories: Sequence[Location], path: str, keys: PathKeys) -> Location:
    """Return the directory whose pin file pins `path`; the first directory if none does."""
    for each in directories:
        base = keys.directory_key(each.url)
        wanted = set(find_pinned_keys(base, path, keys))
        if any(wanted & set(find_pinned_keys(base, pin.path, keys)) for pin in read_pins(each)):
            return each
    return directories[0]


def show_plan(plan: RetentionPlan, console: Console, *, show_all: bool = False) -> None:
    """Print a plan for people."""
    for reason in plan.stopped:
        console.print(f"stopped: {reason}", style="red", soft_wrap=True)
    for note in plan.notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)
    _show_snapshots(plan, console, show_all=show_all)
    _show_totals(plan, console)
    _show_paths(plan, console, show_all=show_all)
    if plan.unknown:
        console.print(f"{plural(len(plan.unknown), 'path')} with names that Flink does not write stay:")
        for unknown in plan.unknown if show_all else plan.unknown[:_SHOWN_PATHS]:
            console.print(f"  {unknown.path}: {unknown.reason}", soft_wrap=True)
        _show_more(len(plan.unknown), _SHOWN_PATHS, console, show_all=show_all)
    saving = "" if plan.monthly_saving is None else f", {plan.monthly_saving:,.2f} {plan.currency} a month"
    console.print(
        f"{plural(len(plan.delete), 'path')} with {format_bytes(plan.bytes)} would go{saving}; "
        f"{plural(len(plan.keep), 'file')} stay"
    )
    if plan.delete:
        console.print(f"fingerprint {plan.fingerprint}; nothing was deleted", style="bold", soft_wrap=True)
        console.print(f"the same command with --apply {plan.fingerprint} deletes them", soft_wrap=True)


def _show_snapshots(plan: RetentionPlan, console: Console, *, show_all: bool) -> None:
    if not plan.snapshots:
        console.print("no snapshots")
        return
    # Snapshots to delete come first, then the newest ones. Paths are not cropped, so that they can be copied.
    ordered = sorted(plan.snapshots, key=lambda each: (not each.delete, -_time(each), each.path))
    for each in ordered if show_all else ordered[:_SHOWN_SNAPSHOTS]:
        verb = "goes " if each.delete else "stays"
        written = "time unknown    " if each.modified is None else f"{each.modified:%Y-%m-%d %H:%M}"
        size = format_bytes(each.bytes + each.shared_bytes)
        console.print(f"{verb}  {written}  {size:>10}  {each.path}: {each.reasons[0]}", soft_wrap=True)
    _show_more(len(ordered), _SHOWN_SNAPSHOTS, console, show_all=show_all)


def _time(snapshot: SnapshotVerdict) -> float:
    return 0.0 if snapshot.modified is None else snapshot.modified.timestamp()


def _show_totals(plan: RetentionPlan, console: Console) -> None:
    if not plan.delete:
        return
    numbers: dict[tuple[str, PathKind], tuple[int, int]] = {}
    for path in plan.delete:
        root = next((each for each in plan.roots if path.path.startswith(each.rstrip("/") + "/")), "")
        number, size = numbers.get((root, path.kind), (0, 0))
        numbers[root, path.kind] = number + 1, size + path.bytes
    rows = [
        (root, kind.value, f"{number:,}", format_bytes(size))
        for (root, kind), (number, size) in sorted(numbers.items())
    ]
    print_table(console, ("root", "kind", "paths", "bytes"), rows, right=("paths", "bytes"), depth=0)


def _show_paths(plan: RetentionPlan, console: Console, *, show_all: bool) -> None:
    if not plan.delete:
        return
    console.print("paths to delete" if show_all else "largest paths to delete", style="bold")
    largest = sorted(plan.delete, key=lambda each: (-each.bytes, each.path))[:_SHOWN_PATHS]
    for path in plan.delete if show_all else largest:
        console.print(f"  {format_bytes(path.bytes):>10}  {path.path}: {path.reason}", soft_wrap=True)
    _show_more(len(plan.delete), _SHOWN_PATHS, console, show_all=show_all)


def _show_more(number: int, shown: int, console: Console, *, show_all: bool) -> None:
    if number > shown and not show_all:
        console.print(indent(f"and {number - shown:,} more; --all shows every one"))
