"""Revisions that are not finished: what only people know is still to be filled in."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, Where
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.serializers import tree

if TYPE_CHECKING:
    from state_pipelines.operations.migration.planning import Chain


def refuse_drafts(chain: Chain) -> None:
    """Make sure that nothing is left to be filled in.

    Raises:
        MigrationError: a step still says `TODO`; names the file.
    """
    for migration, direction in chain:
        for change in migration.changes:
            if _says_todo((change.operator, change.state, change.steps(direction))):
                raise MigrationError(
                    f"the {direction} of {change.operator} / {change.state or 'all states'} still says {TODO}",
                    where=Where(file=migration.path),
                    hint="Replace it by what is meant; the remarks in the file say what nobody else can know",
                )


def _says_todo(value: object) -> bool:
    if isinstance(value, str):
        return re.search(rf"\b{TODO}\b", value) is not None
    if isinstance(value, tuple | list):
        return any(map(_says_todo, value))
    if is_dataclass(value) and not isinstance(value, tree.Serializer):
        return any(_says_todo(getattr(value, each.name)) for each in fields(value))
    return False
