"""Serializer snapshots that no reader of ours knows, and those that the user declares."""

from __future__ import annotations

from dataclasses import dataclass, field

from state_pipelines.serializers.tree.base import Serializer


@dataclass(frozen=True, kw_only=True)
class Opaque(Serializer):
    """A snapshot without reader: it is preserved as far as its span is known, its data cannot be decoded.

    Attributes:
        unknown_class: the snapshot class without a reader: `snapshot_class` itself or one nested in it.
        raw: the body of the snapshot, as written; None where its end is not known.
        reason: why it cannot be read, where that is another reason than that nothing reads the class.
    """

    unknown_class: str
    raw: bytes | None = field(repr=False)
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class Declared(Opaque):
    """A snapshot of a class that the user declares (`serializers.declared_snapshots`).

    Attributes:
        layout: text of the layout of the data.
        serializers: nested serializers that the declaration names.
    """

    layout: str
    serializers: tuple[Serializer, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.serializers
