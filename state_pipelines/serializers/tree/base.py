"""The base classes of serializer trees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Serializer:
    """A node of a serializer tree.

    Attributes:
        snapshot_class: binary name of the `TypeSerializerSnapshot` class, as written.
        snapshot_version: version that the snapshot class wrote for itself (`getCurrentVersion`).
    """

    snapshot_class: str
    snapshot_version: int = 3

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Nested serializers in the order of the snapshot."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Composite(Serializer):
    """A serializer stored by `CompositeTypeSerializerSnapshot`: outer data, then nested snapshots.

    Attributes:
        outer_version: version of the outer data (`getCurrentOuterSnapshotVersion`); for legacy snapshots without
            the composite header (version <= 2) equal to `snapshot_version`.
    """

    outer_version: int = 1


def is_built_in(node_class: type) -> bool:
    """Return whether a node class belongs to this package, not to a custom serializer family."""
    return node_class.__module__.startswith(__name__.rpartition(".")[0] + ".")
