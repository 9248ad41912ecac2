"""`current`: which revision of a directory a snapshot is at."""

from __future__ import annotations

import json

import click

from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import echo
from state_pipelines.cli.history import to_json
from state_pipelines.cli.options import ALLOW_PYTHON, AS_JSON, Opener, snapshot_options
from state_pipelines.operations.migration.history import RevisionDirectory


@click.command("current")
@click.argument("directory")
@click.argument("snapshot")
@ALLOW_PYTHON
@AS_JSON
@snapshot_options
@click.pass_context
def command(
    ctx: click.Context, directory: str, snapshot: str, *, allow_python: bool, as_json: bool, opener: Opener
) -> None:
    """Tell which revision in DIRECTORY the states of SNAPSHOT are at; their serializers say so, no data are read.

    Exit code 1: it cannot be determined, because no revision fits, or because several do.
    """
    revisions = RevisionDirectory(directory, allow_python=allow_python)
    position = revisions.current(opener.open(snapshot))
    if as_json:
        click.echo(json.dumps(to_json(position, revisions)))
    elif position.revision is None:
        echo(position.explain())
    else:
        pending = [each.revision for each, _ in revisions.between(position.revision, revisions.head)]
        distance = f"before head by {', '.join(pending)}" if pending else "head"
        echo(f"{position.revision} ({distance})")
    if position.revision is None:
        ctx.exit(ANSWER_IS_NO)
