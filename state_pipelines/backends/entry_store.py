"""The protocol of entry stores: where the keyed state of one subtask lives, as bytes.

A store maps record keys to record values, per state. Both have the bytes of the canonical format (see
`keyed.record_layout`): the record key is the key-group prefix, the key, the namespace and, of map state, the map key.
Restoring and snapshotting therefore move bytes and decode nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from state_pipelines.serializers.registered_states import BackendStateType, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

MeasureHead: TypeAlias = "Callable[[bytes], int]"
"""Length of the head of a record key of map state: key-group prefix, key and namespace, without the map key."""

DELIMITER = b","
"""Byte between the elements of list state (`ListDelimitedSerializer`)."""


@dataclass(frozen=True)
class StateSettings:
    """Settings of a state that no snapshot stores, only a log of its changes.

    Attributes:
        ttl_config: `StateTtlConfig` as a Java serialization stream; None without TTL, or if it is not known.
        default_value: bytes of the default value; None if there is none.
    """

    ttl_config: bytes | None = None
    default_value: bytes | None = None


NO_SETTINGS = StateSettings()


class EntryKind(Enum):
    """Kinds of entries, by what is done to them."""

    VALUE = "value"
    """One value: VALUE, REDUCING and AGGREGATING state; also timers, whose values are empty."""
    LIST = "list"
    """Elements that are appended."""
    MAP = "map"
    """An entry per map key, found by the head of their record keys."""


def find_entry_kind(info: StateMetaInfo) -> EntryKind:
    """The kind of the entries of a state."""
    if info.backend_type is BackendStateType.KEY_VALUE and info.state_type in (StateKind.LIST, StateKind.MAP):
        return EntryKind[info.state_type]
    return EntryKind.VALUE


class Entries(Protocol):
    """Entries of a state with one entry per key and namespace."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of a record key; None when there is none."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set a value."""

    def delete(self, key: bytes, /) -> None:
        """Remove an entry, if there is one."""

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to a list, or several that are joined by `DELIMITER`."""

    def keys(self) -> Iterator[bytes]:
        """Record keys at the time of the call; changes during the iteration are allowed."""


class MapEntries(Protocol):
    """Entries of map state; the head of their record keys is key-group prefix, key and namespace."""

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """The value of a map key; None when there is none."""

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """Set the value of a map key."""

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, if it is there."""

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Map keys and values at the time of the call; changes during the iteration are allowed."""

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys."""

    def keys(self) -> Iterator[bytes]:
        """Heads with at least one map key at the time of the call, each once; changes are allowed meanwhile."""


class EntryStore(Protocol):
    """Entries of the states of one subtask."""

    @property
    def is_heap(self) -> bool:
        """Whether Flink's heap backend keeps its state so; it says some things in other words."""

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Note what a state is, before its entries are opened."""

    def open_entries(self, name: str, kind: EntryKind) -> Entries:
        """The entries of a state that is no map; loaded ones if there are any, else none yet."""

    def open_map(self, name: str, measure_head: MeasureHead) -> MapEntries:
        """The entries of a map state; loaded ones if there are any, else none yet."""

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records of a state that is not open; they replace those of the same keys."""

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Records of a state in batches, ascending by key group; nothing of an unknown state."""

    def drop(self, name: str) -> None:
        """Remove a state and its entries."""

    def close(self) -> None:
        """Release everything; entries are lost."""
