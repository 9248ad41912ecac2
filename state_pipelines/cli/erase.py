"""`erase`: a snapshot without some keys, and where else they are."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import ANSWER_IS_NO, UNDETERMINED
from state_pipelines.cli.display import (
    PROCESSES,
    crop,
    describe_published,
    format_bytes,
    indent,
    make_console,
    plural,
    print_table,
    run_with_bar,
)
from state_pipelines.cli.options import (
    AS_JSON,
    DISCARD_PARTIAL,
    Needs,
    Opener,
    RuledCommand,
    discard_left_over,
    snapshot_options,
)
from state_pipelines.errors import UsageError
from state_pipelines.keyed.keys import KeyText
from state_pipelines.operations.erase import ErasurePlan, plan_erasure, run_erasure, search_below
from state_pipelines.operations.local_processes import Processes, choose_processes
from state_pipelines.operations.state_rows import compact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from state_pipelines.operations.key_search import KeySearch
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.spark.splits import FoundRows

_CELL_SIZE = 120
_ROW_SIZE = 400


_RULES = (
    Needs(("--out",), ("SNAPSHOT",), "it is where the snapshot without the keys is written"),
    Needs(("--discard-partial",), ("--out",), "without a target nothing is written or removed"),
)


@click.command("erase", cls=RuledCommand, rules=_RULES)
@click.argument("snapshot", required=False)
@click.option("--key", "keys", metavar="KEY", multiple=True, help="A key: plain text where keys are text, else JSON.")
@click.option("--out", "target", metavar="TARGET", help="Directory of the new snapshot; without it nothing is written.")
@click.option("--root", metavar="DIR", help="Tell which snapshots below DIR hold the keys.")
@click.option("--also", metavar="SQL", help="Tell in which rows of which states this predicate holds; they stay.")
@click.option("--strict", is_flag=True, help="Exit with 3 where some state cannot be searched.")
@PROCESSES
@DISCARD_PARTIAL
@AS_JSON
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context,
    snapshot: str | None,
    *,
    keys: tuple[str, ...],
    target: str | None,
    root: str | None,
    also: str | None,
    strict: bool,
    processes: int | None,
    discard_partial: bool,
    as_json: bool,
    opener: Opener,
) -> None:
    """Write a snapshot like SNAPSHOT without the entries and timers of some keys, in any operator keyed by them.

    Without --out, only say where they are. The new snapshot is read back before it is published: the keys are in
    none of its states, and everything else is as it was.

    Exit code 1: the keys are nowhere. 3: they were not found, but some state cannot be searched.
    """
    _require_use(snapshot, keys, root)
    texts = [KeyText(key) for key in keys]
    progress = make_console(stderr=True)
    plan = result = None
    searches: list[KeySearch] = []
    rows: list[FoundRows] = []
    opened = None if snapshot is None else opener.open(snapshot)
    if discard_partial and target is not None:
        discard_left_over(target)
    with Processes(processes or choose_processes(0 if opened is None else opened.file_size)) as shared:
        run = partial(run_with_bar, shared, progress)
        if opened is not None:
            plan = plan_erasure(opened, texts, target, run=run)
        if root is not None:
            searches = list(search_below(root, texts, open_other=opener.open_unchecked, run=run))
        if plan is not None and target is not None:
            result = run_erasure(plan, run)
    with describe_published(None if result is None else result.path, as_json=as_json):
        if also is not None:
            paths = [*([snapshot] if snapshot and result is None else []), *([result.path] if result else [])]
            paths += [search.path for search in searches if search.checkpoint_id is not None]
            rows = _find_rows(list(dict.fromkeys(paths)), opener, also)
        if as_json:
            click.echo(json.dumps(_to_json(keys, plan, result, searches if root else None, also, rows), indent=2))
        else:
            _show(keys, plan, result, searches, rows, make_console())
    every = [*([plan.search] if plan is not None else []), *searches]
    unsearched = any(search.unsearched for search in every)
    if unsearched and (strict or not any(search.found for search in every)):
        ctx.exit(UNDETERMINED)
    if not any(search.found for search in every) and not any(row.rows for row in rows):
        ctx.exit(ANSWER_IS_NO)


def _require_use(snapshot: str | None, keys: tuple[str, ...], root: str | None) -> None:
    if not keys:
        raise UsageError("no key is given (--key)", hint="Such as --key order-1; it may be given several times")
    if snapshot is None and root is None:
        raise UsageError("neither a snapshot nor a directory is named", hint="Give SNAPSHOT, --root DIR, or both")


def _find_rows(paths: Sequence[str], opener: Opener, predicate: str) -> list[FoundRows]:
    from state_pipelines.spark import create_session
    from state_pipelines.spark.splits import find_rows

    session = create_session("state-pipelines")
    return [found for path in paths for found in find_rows(session, opener.open_unchecked(path), predicate)]


def _show(
    keys: Sequence[str],
    plan: ErasurePlan | None,
    result: RescaleResult | None,
    searches: Sequence[KeySearch],
    rows: Sequence[FoundRows],
    console: Console,
) -> None:
    if plan is not None:
        _show_search(keys, plan.search, console)
        if result is not None:
            entries = sum(each.entries for each in plan.search.found)
            console.print(
                f"{entries:,} entries and timers erased, {format_bytes(result.bytes)} written or copied in "
                f"{result.seconds:.1f} s"
            )
            console.print("proven: the keys are in no keyed state, every other entry is as it was")
            console.print(f"new snapshot: {result.path}", style="bold", soft_wrap=True)
        elif plan.search.found:
            console.print("nothing was written; --out TARGET writes a snapshot without them")
        elif plan.search.unsearched:
            console.print("the keys are in no state that could be searched; nothing was written")
        else:
            console.print("the keys are in no keyed state of the snapshot; nothing was written")
    for search in searches:
        _show_search(keys, search, console, title=True)
    if searches:
        holding = sum(bool(search.found) for search in searches)
        console.print(f"{holding} of {len(searches)} snapshots hold the keys")
    for found in rows:
        _show_rows(found, console)


def _show_search(keys: Sequence[str], search: KeySearch, console: Console, *, title: bool = False) -> None:
    if title and (search.found or search.unsearched):
        console.print(search.path, style="bold cyan", soft_wrap=True)
    if search.found:
        rows = [
            (each.operator, each.state, each.kind, crop(keys[each.key], _CELL_SIZE), f"{each.entries:,}")
            for each in search.found
        ]
        print_table(console, ("operator", "state", "kind", "key", "entries"), rows, right=("entries",))
    for operator, reason in search.unsearched:
        prefix = f"operator {operator}: " if operator else ""
        console.print(f"  {prefix}not searched: {reason}", style="yellow", soft_wrap=True)


def _show_rows(found: FoundRows, console: Console) -> None:
    if found.rows:
        console.print(f"{found.path}: {found.operator} / {found.state}: {plural(found.rows, 'row')}", soft_wrap=True)
        for row in found.examples:
            console.print(indent(crop(compact(row), _ROW_SIZE)))


def _to_json(
    keys: Sequence[str],
    plan: ErasurePlan | None,
    result: RescaleResult | None,
    searches: Sequence[KeySearch] | None,
    also: str | None,
    rows: Sequence[FoundRows],
) -> dict[str, object]:
    return {
        "keys": list(keys),
        "snapshot": None if plan is None else _search_to_json(keys, plan.search),
        "written": None if result is None else result.to_json(),
        "root": None if searches is None else [_search_to_json(keys, each) for each in searches],
        "also": None if also is None else [found.to_json() for found in rows],
    }


def _search_to_json(keys: Sequence[str], search: KeySearch) -> dict[str, object]:
    return {
        "path": search.path,
        "checkpoint_id": search.checkpoint_id,
        "found": [
            {
                "operator": each.operator,
                "state": each.state,
                "kind": each.kind,
                "key": keys[each.key],
                "entries": each.entries,
            }
            for each in search.found
        ],
        "unsearched": [{"operator": operator or None, "reason": reason} for operator, reason in search.unsearched],
    }
