"""`history`: the revisions of a directory, and which one a snapshot is at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import indent, make_console, make_table
from state_pipelines.cli.options import (
    ALLOW_PYTHON,
    AS_JSON,
    SNAPSHOT_FLAGS,
    Needs,
    Opener,
    RuledCommand,
    snapshot_options,
)
from state_pipelines.operations.migration.history import BASE, RevisionDirectory

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.operations.migration import Migration
    from state_pipelines.operations.migration.history import Position


_RULES = (Needs(SNAPSHOT_FLAGS, ("SNAPSHOT",), "it is about the snapshot"),)


@click.command("history", cls=RuledCommand, rules=_RULES)
@click.argument("directory")
@click.argument("snapshot", required=False)
@ALLOW_PYTHON
@AS_JSON
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context, directory: str, snapshot: str | None, *, allow_python: bool, as_json: bool, opener: Opener
) -> None:
    """List the revisions in DIRECTORY from the first to the last; with SNAPSHOT, mark the one that it is at.

    Exit code 1: it cannot be determined where the snapshot is.
    """
    revisions = RevisionDirectory(directory, allow_python=allow_python)
    position = None if snapshot is None else revisions.current(opener.open(snapshot))
    if as_json:
        content = _to_json(revisions)
        click.echo(json.dumps(content if position is None else content | {"current": to_json(position, revisions)}))
    else:
        _show(revisions, position, make_console())
    if position is not None and position.revision is None:
        ctx.exit(ANSWER_IS_NO)


def to_json(position: Position, directory: RevisionDirectory) -> dict[str, object]:
    """Describe the revision of a snapshot."""
    known = position.revision is not None
    pending = directory.between(position.revision, directory.head) if position.revision is not None else []
    return {
        "revision": position.revision,
        "head": directory.head,
        "is_head": position.revision == directory.head,
        "candidates": list(position.candidates),
        "pending": [each.revision for each, _ in pending] if known else None,
        "reasons": dict(position.reasons),
    }


def list_changed_states(migration: Migration) -> list[str]:
    """List the states that a revision changes, as `operator / state`."""
    return list(dict.fromkeys(" / ".join(filter(None, (each.operator, each.state))) for each in migration.changes))


def is_reversible(migration: Migration) -> bool:
    """Whether a revision can be taken back."""
    return not any(change.impossible for change in migration.changes)


def _show(directory: RevisionDirectory, position: Position | None, console: Console) -> None:
    candidates = () if position is None else position.candidates
    mark = "?" if position is None or position.revision is None else "*"
    table = make_table("", "revision", "changes", "way back", "description")
    if BASE in candidates:
        table.add_row(mark, BASE, "", "", "before the first revision")
    for each in directory.revisions:
        table.add_row(
            mark if each.revision in candidates else "",
            each.revision,
            ", ".join(list_changed_states(each)),
            "yes" if is_reversible(each) else "no",
            each.description,
        )
    if directory.revisions:
        console.print(indent(table))
    else:
        console.print(f"there are no revisions in {directory.path}", soft_wrap=True)
    if position is not None and position.revision is None:
        console.print(position.explain(), soft_wrap=True)


def _to_json(directory: RevisionDirectory) -> dict[str, Any]:
    names = (BASE, *(each.revision for each in directory.revisions))
    return {
        "path": directory.path,
        "head": directory.head,
        "fingerprint": directory.fingerprint,
        "revisions": [
            {
                "revision": each.revision,
                "revises": parent,
                "description": each.description,
                "file": each.path,
                "fingerprint": each.fingerprint,
                "changes": [{"operator": change.operator, "state": change.state} for change in each.changes],
                "reversible": is_reversible(each),
            }
            for parent, each in zip(names, directory.revisions, strict=False)
        ],
    }
