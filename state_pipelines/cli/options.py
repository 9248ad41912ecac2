"""Options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, cast

import click

from state_pipelines.cli.commands import CANNOT_BE_TOLD, WRONG_USE, set_debug
from state_pipelines.snapshot import Declarations, Snapshot, declare, open_snapshot
from state_pipelines.snapshot.declarations import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAP = click.option(
    "--map",
    "path_mapping",
    metavar="FROM=TO",
    multiple=True,
    help="Where a directory lies now that the snapshot names.",
)
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, hidden=True)
STRICT = click.option("--strict", is_flag=True, help="Exit code 3 when something could not be shown decoded.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@dataclass(frozen=True)
class Source:
    """Options by which the snapshots of a command are opened.

    Attributes:
        path_mapping: texts `FROM=TO`.
        declarations: facts that the snapshots do not hold.
    """

    path_mapping: tuple[str, ...]
    declarations: Declarations

    def open(self, path: str) -> Snapshot:
        """Open the snapshot at `path`."""
        return open_snapshot(path, self.declarations, path_mapping=self.path_mapping)


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--map` and the options of every `DeclarationKind`; it gets them as its argument `source`."""

    @wraps(command)
    def call(*arguments: object, path_mapping: tuple[str, ...], **others: object) -> None:
        texts = {kind.name: cast("tuple[str, ...]", others.pop(kind.name)) for kind in KINDS}
        command(*arguments, source=Source(path_mapping, declare(texts)), **others)

    decorated: Callable[..., None] = _DEBUG(call)
    for kind in reversed(KINDS):
        decorated = click.option(kind.flag, kind.name, metavar=kind.metavar, multiple=True, help=kind.help)(decorated)
    return _MAP(decorated)


_SHOWN_NOTES = 10


def finish_with_notes(notes: Sequence[str], *, strict: bool, damage: Sequence[str] = ()) -> None:
    """Print what could not be shown to stderr, and end the command where that sets its exit code.

    Args:
        notes: what could not be shown, and why.
        strict: anything of it is exit code 3.
        damage: errors about bytes that are damaged or missing; exit code 2.
    """
    for note in notes[:_SHOWN_NOTES]:
        click.echo(f"note: {' '.join(note.split())}", err=True)
    if len(notes) > _SHOWN_NOTES:
        click.echo(f"note: and {len(notes) - _SHOWN_NOTES} more", err=True)
    context = click.get_current_context()
    if damage:
        others = f" (and {len(damage) - 1} more)" if damage[1:] else ""
        click.echo(f"error: {' '.join(damage[0].split())}{others}", err=True)
        context.exit(WRONG_USE)
    if notes and strict:
        context.exit(CANNOT_BE_TOLD)
