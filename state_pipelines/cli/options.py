"""Options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, cast

import click

from state_pipelines.cli.commands import set_debug
from state_pipelines.snapshot import Declarations, Snapshot, declare, open_snapshot
from state_pipelines.snapshot.declarations import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

_MAP = click.option(
    "--map",
    "path_mapping",
    metavar="FROM=TO",
    multiple=True,
    help="Where a directory lies now that the snapshot names.",
)
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, hidden=True)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@dataclass(frozen=True)
class Source:
    """How the snapshots of a command are opened.

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
