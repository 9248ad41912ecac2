"""Types that keys may have (`KeyedStream.validateKeyType`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree.basic import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from state_pipelines.serializers.tree import Serializer


def check_key_type(serializer: Serializer, hashed_classes: Collection[str] = ()) -> None:
    """Refuse keys whose `hashCode` does not follow from their value: arrays, enums, and POJOs without their own.

    Args:
        serializer: of the keys.
        hashed_classes: POJO classes whose `hashCode` is given, so that they have one.

    Raises:
        UsageError: Flink rejects the type too.
    """
    found = [describe(each) for each in _find_unsupported(serializer, hashed_classes)]
    if found:
        raise UsageError(
            f"Type {describe(serializer)} cannot be used as key. Contained UNSUPPORTED key types: {', '.join(found)}. "
            "Look at the keyBy() documentation for the conditions a type has to satisfy in order to be eligible for a "
            "key.",
            hint="Use the fields as a Tuple or Row; for a POJO with its own hashCode, give that in `hashes`",
        )


def _find_unsupported(serializer: Serializer, hashed_classes: Collection[str]) -> Iterator[Serializer]:
    """Find unsupported types; like Flink, inside tuples and rows only."""
    match serializer:
        case tree.Tuple(fields=fields) | tree.Row(fields=fields):
            for each in fields:
                yield from _find_unsupported(each, hashed_classes)
        case tree.Enum() | tree.ScalaEnum() | tree.GenericArray():
            yield serializer
        case tree.Basic(kind=kind) if kind in ARRAYS:
            yield serializer
        case tree.Pojo(pojo_class=name) if name not in hashed_classes:
            yield serializer
