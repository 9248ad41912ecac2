"""Options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from state_pipelines.cli.commands import set_debug
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.errors import UsageError, Where
from state_pipelines.snapshot import Snapshot, open_snapshot, parse_connectors, parse_key_serializers

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.codecs.kryo import FieldLists

_MAP = click.option(
    "--map",
    "path_mapping",
    metavar="FROM=TO",
    multiple=True,
    help="Where a directory lies now that the snapshot names.",
)
_UID = click.option(
    "--uid", "uids", metavar="NAME", multiple=True, help="A uid, to name an operator that is stored by its hash."
)
_KEY_SERIALIZER = click.option(
    "--key-serializer",
    "key_serializers",
    metavar="OPERATOR=TYPE",
    multiple=True,
    help="The type of an operator's keys, where changelog state does not say it.",
)
_CONNECTOR = click.option(
    "--connector",
    "connectors",
    metavar="OPERATOR=NAME",
    multiple=True,
    help="Which connector wrote an operator's list states, where several could have.",
)
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, hidden=True)
CLASSES = click.option(
    "--classes",
    metavar="FILE",
    callback=lambda ctx, parameter, value: None if value is None else read_classes(value),
    help="Field lists of classes that the snapshot does not describe (Kryo, POJO subclasses).",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@dataclass(frozen=True)
class Source:
    """What helps to read a snapshot.

    Attributes:
        path_mapping: texts `FROM=TO`.
        uids: uids that the caller knows.
        key_serializers: texts `OPERATOR=TYPE`.
        connectors: texts `OPERATOR=NAME`.
    """

    path_mapping: tuple[str, ...]
    uids: tuple[str, ...]
    key_serializers: tuple[str, ...] = ()
    connectors: tuple[str, ...] = ()

    def open(self, path: str, classes: FieldLists | None = None) -> Snapshot:
        """Open the snapshot at `path`."""
        return open_snapshot(
            path,
            path_mapping=self.path_mapping,
            uids=self.uids,
            classes=classes,
            key_serializers=parse_key_serializers(self.key_serializers),
            connectors=parse_connectors(self.connectors),
        )


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--map`, `--uid`, `--key-serializer` and `--connector`; it gets them as its argument `source`."""

    @wraps(command)
    def call(
        *arguments: object,
        path_mapping: tuple[str, ...],
        uids: tuple[str, ...],
        key_serializers: tuple[str, ...],
        connectors: tuple[str, ...],
        **others: object,
    ) -> None:
        command(*arguments, source=Source(path_mapping, uids, key_serializers, connectors), **others)

    return _MAP(_UID(_KEY_SERIALIZER(_CONNECTOR(_DEBUG(call)))))


def read_classes(path: str) -> FieldLists:
    """The field lists in a file.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of classes cannot be read: {error}", where=Where(file=path)) from None
    return load_classes(text)
