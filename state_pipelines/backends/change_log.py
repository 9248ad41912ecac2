"""Changes of one subtask since its last snapshot, in the form in which the changelog state backend logs them.

Only changes that still count are kept: a new value of a key replaces the older one, which Flink would log too.
Source: `KvStateChangeLoggerImpl`, `PriorityQueueStateChangeLoggerImpl`, `AbstractStateChangeLogger`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.backends.entry_store import NO_SETTINGS, EntryKind, StateSettings, find_entry_kind
from state_pipelines.backends.value_codecs import make_codec, make_list_functions
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    MetadataChange,
    Operation,
    write_metadata_change,
)
from state_pipelines.metadata.handles import StateChange
from state_pipelines.serializers.state_meta_info import BackendStateType

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

_ONE = (1).to_bytes(4, "big")
_NO_NULL = b"\0"
_KEPT_SCOPES = 4096


class StateLog:
    """Changes of one state.

    Args:
        info: the state.
        layout: of its records.
        settings: which the log repeats.

    Attributes:
        kind: of its entries.
    """

    def __init__(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        self.info = info
        self._settings = settings
        self.kind = find_entry_kind(info)
        self._is_queue = info.backend_type is BackendStateType.PRIORITY_QUEUE
        self._prefix = layout.prefix
        self._find_scope = _make_scope(layout)
        # Per record key (of a cleared map: its head in a tuple) the changes that count, in the order of the first one.
        self._changes: dict[bytes | tuple[bytes], list[bytes]] = {}
        if self.kind is EntryKind.LIST:
            self._encode_element, self._decode_list = make_list_functions(layout.value)

    def __bool__(self) -> bool:
        """Return whether there are changes."""
        return bool(self._changes)

    def put(self, key: bytes, value: bytes) -> None:
        """Log a new value; of list state all elements, joined by `DELIMITER`; of timers a new timer."""
        if self._is_queue:
            self._set(key, Operation.ADD_ELEMENT, _ONE + key[self._prefix :])
        elif self.kind is EntryKind.LIST:
            self._set(key, Operation.SET, self._find_scope(key) + self._count_elements(value))
        else:
            self._set(key, Operation.SET, self._find_scope(key) + value)

    def delete(self, key: bytes) -> None:
        """Log that a value, a list or a timer is gone."""
        if self._is_queue:
            self._set(key, Operation.REMOVE_ELEMENT, key[self._prefix :])
        else:
            self._set(key, Operation.CLEAR, self._find_scope(key))

    def append(self, key: bytes, elements: bytes) -> None:
        """Log elements that a list gets, joined by `DELIMITER`."""
        change = self._find_scope(key) + self._count_elements(elements)
        self._changes.setdefault(key, []).append(bytes((Operation.ADD,)) + change)

    def put_entry(self, head: bytes, map_key: bytes, value: bytes) -> None:
        """Log the value of a map key; it begins with its null flag."""
        scope = self._find_scope(head)
        if value[:1] == _NO_NULL:
            self._replace(head + map_key, Operation.ADD_OR_UPDATE_ELEMENT, scope + map_key + value[1:])
        else:
            # Single values have no null flag; those of a whole map have.
            self._replace(head + map_key, Operation.ADD, scope + _ONE + map_key + value)

    def delete_entry(self, head: bytes, map_key: bytes) -> None:
        """Log that a map key is gone."""
        self._replace(head + map_key, Operation.REMOVE_ELEMENT, self._find_scope(head) + map_key)

    def delete_map(self, head: bytes) -> None:
        """Log that all map keys are gone."""
        self._replace((head,), Operation.CLEAR, self._find_scope(head))

    def clear(self) -> None:
        """Forget all changes."""
        self._changes.clear()

    def make_changes(self, state_id: int) -> list[StateChange]:
        """Return the changes in an order that gives the state, the description of the state in front."""
        described = write_metadata_change(
            MetadataChange(
                info=self.info,
                state_id=state_id,
                ttl_config=self._settings.ttl_config,
                default_value=self._settings.default_value,
            )
        )
        number, prefix = state_id.to_bytes(2, "big"), self._prefix
        found = [StateChange(METADATA_KEY_GROUP, described)]
        for key, changes in self._changes.items():
            record_key = key[0] if isinstance(key, tuple) else key
            key_group = int.from_bytes(record_key[:prefix], "big")
            found += [StateChange(key_group, change[:1] + number + change[1:]) for change in changes]
        return found

    def _set(self, key: bytes, operation: Operation, payload: bytes) -> None:
        """Log a change after which older ones of the record key do not count."""
        self._changes[key] = [bytes((operation,)) + payload]

    def _replace(self, key: bytes | tuple[bytes], operation: Operation, payload: bytes) -> None:
        """Log a change at the end: between entries of a map and its clearing the order counts."""
        self._changes.pop(key, None)
        self._changes[key] = [bytes((operation,)) + payload]

    def _count_elements(self, joined: bytes) -> bytes:
        """The elements of a list as `ListSerializer` writes them."""
        elements = self._decode_list(joined)
        return len(elements).to_bytes(4, "big") + b"".join(map(self._encode_element, elements))


def _make_scope(layout: KeyedLayout) -> Callable[[bytes], bytes]:
    """A function that gives key and namespace of a record key (of a map: of its head) as changes have them.

    Records store the lengths of key and namespace where both are of variable length; changes never do.
    """
    prefix = layout.prefix
    fields = dict(layout.key.fields)
    key, namespace = fields["state_key"], fields["state_namespace"]
    if not (isinstance(key, lay.MeasuredKey) and isinstance(namespace, lay.MeasuredKey)):
        return lambda head: head[prefix:]
    head_layout = lay.Struct((("key", key), ("namespace", namespace)))
    encode_key, encode_namespace = make_codec(key.inner).encode, make_codec(namespace.inner).encode

    @lru_cache(_KEPT_SCOPES)
    def find_scope(head: bytes) -> bytes:
        found = read_value(head_layout, Reader(head, None, prefix))
        return encode_key(found["key"]) + encode_namespace(found["namespace"])

    return find_scope
